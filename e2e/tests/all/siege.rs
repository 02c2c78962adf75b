//! One tenant tries everything at once, for a while; another one's look-ups, calls and restarts go on meanwhile, without one failure.

use e2e::{NameServer, Node, topology, wait};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How long the siege lasts.
const SIEGE: Duration = Duration::from_secs(20);
/// How long the same is done in quiet before.
const QUIET: Duration = Duration::from_secs(5);

/// The hostile tenant: nothing that its file grants is more than an ordinary domain has.
fn hostile(port: u16) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/programs");
    let more = format!(
        "mounts = [{{ source = \"{folder}\", target = \"/programs\", read_only = true }}]\n\
         limits = {{ memory = \"256MiB\", pids = 200, cpu = 1 }}"
    );
    topology(port, &["mob"], "", &more).replacen("\"test\"", "\"hostile\"", 1)
}

/// Does what an honest tenant does until the time is over; returns how long each action took.
fn honest(node: &Node, how_long: Duration) -> Vec<Duration> {
    let begin = Instant::now();
    let mut took = Vec::new();
    while begin.elapsed() < how_long {
        let at = Instant::now();
        let out = node.shell_ok("test/web", "getent ahostsv4 host3.tombolo.example");
        assert!(out.contains("192.0.2.3"), "{out}");
        let out =
            node.shell_ok("test/web", "exec 3<>/srv/dns/query; echo A host3.tombolo.example >&3; cat <&3");
        assert!(out.contains("192.0.2.3"), "{out}");
        took.push(at.elapsed());
        node.ok(&["restart", "test/robot"]);
        node.shell_ok("test/robot", "getent ahostsv4 host3.tombolo.example");
        node.ok(&["ps"]);
    }
    took.sort();
    took
}

#[test]
fn a_tenant_that_tries_everything_at_once_makes_nothing_of_anothers_fail() {
    let Some(node) = Node::start() else { return };
    let server = NameServer::start(node.folder());
    node.up_ok(&topology(server.port, &["web", "robot"], "", ""));
    node.up_ok(&hostile(server.port));
    let daemon = node.pids("daemon");
    let quiet = honest(&node, QUIET);
    let mut mob = node
        .command(&["exec", "-i", "hostile/mob", "--", "python3", "/programs/siege.py"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the siege begins");
    let besieged = honest(&node, SIEGE);
    assert!(mob.try_wait().expect("a child").is_none(), "the siege did not last");
    drop(mob.stdin.take());
    let said = mob.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    let median = |took: &[Duration]| took[took.len() / 2];
    println!(
        "two look-ups: median {:?}, worst {:?}; under siege {:?}, {:?}\n{said}",
        median(&quiet),
        quiet.last(),
        median(&besieged),
        besieged.last()
    );
    assert!(said.contains("begun:") && !said.contains(": 0"), "an attack never began: {said}");
    assert_eq!(node.pids("daemon"), daemon, "the daemon did not survive");
    // What the tenant has made goes with it, and holds up nobody.
    node.ok(&["down", "hostile"]);
    wait::until("nothing of it is left", || !node.run_dir().join("dc/hostile").exists());
    honest(&node, Duration::from_millis(1));
}
