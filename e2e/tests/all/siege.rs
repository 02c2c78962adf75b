//! Hostile parties try everything at once, and an honest tenant's look-ups, commands and restarts go on meanwhile, without one failure.
//!
//! The attackers and their attacks are lists in `e2e/programs/siege.py`: a tenant that is root in its container, and somebody on the node without
//! rights.

use e2e::{NameServer, Node, topology, wait};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the siege lasts.
const SIEGE: Duration = Duration::from_secs(15);
/// How long the same is done in quiet before.
const QUIET: Duration = Duration::from_secs(5);
/// How long a command in the besieged domain may take: it starts, or ends by itself after the time that a start may take.
const COMMAND: Duration = Duration::from_secs(40);
/// The user and group `nobody`.
const NOBODY: u32 = 65534;

/// The hostile tenant: its file grants nothing more than an ordinary domain has.
fn hostile(port: u16, score: &Path) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/programs");
    let more = format!(
        "restart = {{ policy = \"always\", backoff = \"50ms\" }}\n\
         mounts = [{{ source = \"{folder}\", target = \"/programs\", read_only = true }}, {{ source = \"{}\", target = \"/score\", read_only = false }}]\n\
         limits = {{ memory = \"256MiB\", pids = 200, cpu = 1 }}",
        score.display()
    );
    topology(port, &["mob"], "", &more).replacen("\"test\"", "\"hostile\"", 1).replace(
        "command = [\"sleep\", \"infinity\"]",
        "command = [\"python3\", \"/programs/siege.py\", \"tenant\", \"/score/tenant\"]",
    )
}

/// How often each attack was begun, and whether each was at least once.
fn begun(score: &Path) -> (String, bool) {
    let text = std::fs::read_to_string(score).unwrap_or_default();
    let all = !text.is_empty() && !text.contains(": 0");
    (text, all)
}

/// Does what an honest tenant does until the time is over; returns how long each action took.
fn honest(node: &Node, how_long: Duration) -> Vec<Duration> {
    let begin = Instant::now();
    let mut took = Vec::new();
    loop {
        let at = Instant::now();
        let out = node.shell_ok(
            "test/web",
            "getent ahostsv4 host3.tombolo.example; exec 3<>/srv/dns/query; echo A host3.tombolo.example >&3; cat <&3",
        );
        assert_eq!(out.matches("192.0.2.3").count(), 4, "three lines of getent and one of the file: {out}");
        took.push(at.elapsed());
        node.ok(&["restart", "test/robot"]);
        node.shell_ok("test/robot", "getent ahostsv4 host3.tombolo.example");
        node.ok(&["ps"]);
        if begin.elapsed() >= how_long {
            break;
        }
    }
    took.sort();
    took
}

/// The p99 of durations that are sorted: the worst where there are fewer than a hundred.
fn p99(took: &[Duration]) -> Duration {
    took[(took.len() * 99 / 100).min(took.len() - 1)]
}

// The first siege did not end: `runc exec` stood still in a domain that had used its memory and its processes up.
#[test]
fn who_tries_everything_at_once_makes_nothing_of_anothers_fail() {
    let Some(node) = Node::start() else { return };
    let server = NameServer::start(node.folder());
    let score = node.folder().join("score");
    std::fs::create_dir(&score).expect("a folder");
    node.up_ok(&topology(server.port, &["web", "robot"], "", ""));
    let daemon = node.pids("daemon");
    let quiet = honest(&node, QUIET);
    node.up_ok(&hostile(server.port, &score));
    let of_user = tempfile::tempdir().expect("a temporary folder");
    std::os::unix::fs::chown(of_user.path(), Some(NOBODY), Some(NOBODY)).expect("the user's folder");
    let user_score = of_user.path().join("user");
    let mut user = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/programs/siege.py"))
        .arg("user")
        .args([&user_score, &node.run_dir(), &node.state_dir()])
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the user's siege");
    wait::until("every attack has begun", || begun(&score.join("tenant")).1 && begun(&user_score).1);
    let besieged = honest(&node, SIEGE);
    for _ in 0..3 {
        let at = Instant::now();
        let run = node.run(&["exec", "hostile/mob", "--", "/bin/true"]);
        assert!(at.elapsed() < COMMAND, "a command in the besieged domain was held up: {run:?}");
        println!("a command in the besieged domain: exit {} after {:?}: {}", run.code, at.elapsed(), run.err);
    }
    println!(
        "two look-ups, {} times: p99 {:?}; under siege, {} times: {:?}, {:.1} times as long\nbegun: {} {}",
        quiet.len(),
        p99(&quiet),
        besieged.len(),
        p99(&besieged),
        p99(&besieged).as_secs_f64() / p99(&quiet).as_secs_f64(),
        begun(&score.join("tenant")).0,
        begun(&user_score).0
    );
    assert!(user.try_wait().expect("a child").is_none(), "the user's siege did not last");
    end_of_user(&mut user);
    let said = user.wait_with_output().expect("its end").stdout;
    assert!(said.is_empty(), "somebody without rights: {}", String::from_utf8_lossy(&said));
    assert_eq!(node.pids("daemon"), daemon, "the daemon did not survive");
    // What the tenant has made goes with it, and holds up nobody.
    node.ok(&["down", "hostile"]);
    wait::until("nothing of it is left", || !node.run_dir().join("dc/hostile").exists());
    honest(&node, Duration::ZERO);
}

/// Kills the siege of the user, and its attacks, which have sessions of their own.
fn end_of_user(user: &mut std::process::Child) {
    let id = user.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    user.kill().expect("it ends");
    for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
        e2e::node::kill(pid);
    }
}
