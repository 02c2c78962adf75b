//! Hostile parties try everything at once, and an honest tenant's look-ups, calls, commands and
//! restarts go on meanwhile, without one failure.
//!
//! The attackers and their attacks are lists in `e2e/programs/siege.py`: a tenant that is root in
//! its container, a neighbour of the honest tenant's that shares its services, and somebody on the
//! node without rights. In the long run, there is also a guest. `docs/siege.md` says of each attack
//! which test shows what it comes to.

use e2e::machines::{self, SCRIBBLE};
use e2e::siege::{Times, assert_said, attacker, begun, compared, end, length, processes, siege};
use e2e::{NameServer, Node, topology, wait};
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the siege lasts in the ordinary run.
const SIEGE: Duration = Duration::from_secs(15);
/// How long the same is done in quiet before.
const QUIET: Duration = Duration::from_secs(5);
/// How long a command in the besieged domain may take: it starts, or ends by itself after the time
/// that a start may take.
const COMMAND: Duration = Duration::from_secs(40);
/// The user and group `nobody`.
const NOBODY: u32 = 65534;
const CHANNEL_PEER: &str = env!("CARGO_BIN_EXE_channel_peer");
const ENDPOINT_PEER: &str = env!("CARGO_BIN_EXE_endpoint_peer");
/// How often a channel's other end and an endpoint are asked in one go.
const CALLS: usize = 100;

/// The honest tenant: two programs that look names up, and one that they ask over a channel and by
/// an endpoint. Its second name server is a public one, which is to hear of no name that the first
/// one has.
fn honest_file(first: u16, second: u16) -> String {
    let mounts = format!(
        "mounts = [{{ source = \"{CHANNEL_PEER}\", target = \"/channel-peer\" }}, {{ source = \"{ENDPOINT_PEER}\", target = \"/endpoint-peer\" }}]"
    );
    let one = format!("upstream = [\"127.0.0.1:{first}\"]");
    let both = format!("upstream = [\"127.0.0.1:{first}\", \"127.0.0.1:{second}\"]");
    topology(first, &["web", "robot"], "", &mounts).replace(&one, &both)
        + &format!(
            "\n[domain.keeper]\nkind = \"container\"\nroot = \"host\"\n\
             command = [\"sh\", \"-c\", \"/endpoint-peer serve planner & exec /channel-peer offer frames\"]\n{mounts}\n\
             \n[service.frames]\nkind = \"channel\"\ndomain = \"keeper\"\nallow = [{{ domains = [\"web\"], verbs = [\"open\"] }}]\n\
             \n[endpoint.planner]\ndomain = \"keeper\"\nallow = [{{ domains = [\"web\"], verbs = [\"request\"] }}]\n"
        )
}

/// The hostile tenant: its file grants nothing more than an ordinary domain has, and a domain of
/// its own that never looks who has opened a channel.
fn hostile_file(port: u16, score: &Path) -> String {
    let dns = "services = { dns = { at = \"/srv/dns\", preload = true } }";
    let sink = "restart = { policy = \"always\", backoff = \"50ms\" }";
    topology(port, &[], "", "").replacen("\"test\"", "\"hostile\"", 1)
        + &attacker("mob", "tenant", score, CHANNEL_PEER, dns)
        + &format!(
            "\n[domain.sink]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"/channel-peer\", \"sulk\", \"spam\"]\n{sink}\n\
             mounts = [{{ source = \"{CHANNEL_PEER}\", target = \"/channel-peer\" }}]\n\
             \n[service.spam]\nkind = \"channel\"\ndomain = \"sink\"\nallow = [{{ domains = [\"mob\"], verbs = [\"open\"] }}]\n\
             settings = {{ ring_bytes = \"4MiB\", max_channels = 200 }}\n"
        )
}

/// A hostile guest: it scribbles over its devices, writes nonsense to its agent's port, opens what
/// it can, asks without end, and uses up itself.
fn guest_file(port: u16) -> String {
    let attack = format!(
        "while :; do {SCRIBBLE} 1000 & (while :; do echo A x$RANDOM.silent.example > /srv/dns/query; done) & \
         (while :; do head -c 4096 /dev/urandom > /dev/virtio-ports/tombolo.agent; done) & \
         (while :; do sleep 1000 & done) & (head -c 500000000 /dev/zero | tail) & \
         sleep 3; kill $(jobs -p); killall sleep tail head; done"
    );
    let more = "services = { dns = \"/srv/dns\" }\nrestart = { policy = \"always\", backoff = \"50ms\" }";
    let image = machines::booting(machines::image(CHANNEL_PEER));
    topology(port, &[], "", "").replacen("\"test\"", "\"beasts\"", 1)
        + &machines::domain("beast", &["sh", "-c", &attack], &image, more)
}

/// The times that an honest tenant's actions took.
#[derive(Default)]
struct Done {
    names: Times,
    calls: Times,
    restarts: Times,
}

/// Does what an honest tenant does until the time is over.
fn honest(node: &Node, how_long: Duration) -> Done {
    let begin = Instant::now();
    let mut done = Done::default();
    let calls = format!("/channel-peer open frames 20000 {CALLS} && /endpoint-peer ask planner {CALLS}");
    loop {
        let out = done.names.of(|| {
            node.shell_ok(
                "test/web",
                "getent ahostsv4 host3.tombolo.example; exec 3<>/srv/dns/query; echo A host3.tombolo.example >&3; cat <&3",
            )
        });
        assert_eq!(out.matches("192.0.2.3").count(), 4, "three lines of getent and one of the file: {out}");
        let run = done.calls.of(|| node.shell("test/web", &calls));
        assert_said(&run, &[&format!("answered {CALLS} as test/web")]);
        done.restarts.of(|| node.ok(&["restart", "test/robot"]));
        node.shell_ok("test/robot", "getent ahostsv4 host3.tombolo.example");
        node.ok(&["ps"]);
        if begin.elapsed() >= how_long {
            return done;
        }
    }
}

/// A name server that never answers, and what it was asked.
struct Silent {
    port: u16,
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Vec<String>>,
}

impl Silent {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let port = socket.local_addr().expect("its address").port();
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a time-out");
        let ended = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ended);
        // Read all the time: what has no room in the socket would not be seen.
        let thread = std::thread::spawn(move || {
            let (mut packet, mut heard) = ([0; 4096], Vec::new());
            while !is_over.load(Ordering::Relaxed) {
                if let Ok(length) = socket.recv(&mut packet) {
                    heard.push(String::from_utf8_lossy(&packet[..length]).to_lowercase());
                }
            }
            heard
        });
        Self { port, ended, thread }
    }

    /// Ends it; the queries that came, as text.
    fn heard(self) -> Vec<String> {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}

/// Begins the siege of somebody without rights, who has this folder for the score.
fn siege_of_user(folder: &Path, words: &[&str]) -> Child {
    std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY)).expect("the user's folder");
    siege(Command::new("python3"), "user", &folder.join("user"), words)
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the user's siege")
}

/// Once the attackers of a test that had failed went on until the machine was started anew.
#[test]
fn attackers_end_with_the_test_that_began_them() {
    let Some(_node) = Node::start() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let score = folder.path().join("user");
    let (mut siege, all) = std::thread::scope(|scope| {
        let test = scope.spawn(|| {
            let siege = siege_of_user(folder.path(), &[]);
            wait::until("every attack has begun", || begun(&score).1);
            let all = processes(&siege);
            (siege, all)
        });
        test.join().expect("it does not panic")
    });
    assert!(all.len() > 1, "it had no attackers: {all:?}");
    siege.wait().expect("its end");
    // One that has ended may not have been waited for: it belongs to whoever takes orphans here.
    let is_over = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
    };
    wait::until("all of it is over", || all.iter().all(is_over));
}

// The first siege did not end: `runc exec` stood still in a domain that had used its memory and its
// processes up.
#[test]
fn who_tries_everything_at_once_makes_nothing_of_anothers_fail() {
    let (how_long, is_long) = length(SIEGE);
    let Some(node) = (if is_long { machines::start() } else { Node::start() }) else { return };
    let [hole, public] = [(); 2].map(|()| Silent::start());
    let server = NameServer::start_with_hole(node.folder(), hole.port);
    let score = node.folder().join("score");
    std::fs::create_dir(&score).expect("a folder");
    let file = honest_file(server.port, public.port);
    node.up_ok(&file);
    let daemon = node.pids("daemon");
    let quiet = honest(&node, QUIET);
    let mole = attacker("mole", "neighbour", &score, CHANNEL_PEER, "services = { dns = \"/srv/dns\" }");
    node.up_ok(&(file + &mole));
    node.up_ok(&hostile_file(server.port, &score));
    if is_long {
        node.up_ok(&guest_file(server.port));
    }
    let of_user = tempfile::tempdir().expect("a temporary folder");
    let user_score = of_user.path().join("user");
    let [run_dir, state_dir] = [node.run_dir(), node.state_dir()].map(|at| at.display().to_string());
    let mut user = siege_of_user(of_user.path(), &[&run_dir, &state_dir]);
    let scores = [score.join("tenant"), score.join("neighbour"), user_score];
    wait::until_within("every attack has begun", 2 * wait::TIMEOUT, || {
        scores.iter().all(|score| begun(score).1)
    });
    let besieged = honest(&node, how_long);
    for _ in 0..3 {
        let at = Instant::now();
        let run = node.run(&["exec", "hostile/mob", "--", "/bin/true"]);
        assert!(at.elapsed() < COMMAND, "a command in the besieged domain was held up: {run:?}");
        println!("a command in the besieged domain: exit {} after {:?}: {}", run.code, at.elapsed(), run.err);
    }
    println!("{}", compared("two look-ups", &quiet.names, &besieged.names));
    println!("{}", compared("calls by a channel and an endpoint", &quiet.calls, &besieged.calls));
    println!("{}", compared("a restart", &quiet.restarts, &besieged.restarts));
    for score in &scores {
        println!("begun: {}", begun(score).0);
    }
    let (silent, leaked) = (hole.heard(), public.heard());
    assert!(!silent.is_empty(), "nobody asked for names that nobody answers");
    assert!(
        !leaked.iter().any(|query| query.contains("host3")),
        "the second name server heard of names of the first"
    );
    assert!(user.try_wait().expect("a child").is_none(), "the user's siege did not last");
    end(&mut user);
    let said = user.wait_with_output().expect("its end").stdout;
    assert!(said.is_empty(), "somebody without rights: {}", String::from_utf8_lossy(&said));
    assert_eq!(node.pids("daemon"), daemon, "the daemon did not survive");
    // What the attackers have made goes with them, and holds up nobody.
    let others: &[&str] = if is_long { &["hostile", "beasts"] } else { &["hostile"] };
    for dc in others {
        node.ok(&["down", dc]);
        wait::until("nothing of it is left", || !node.run_dir().join("dc").join(dc).exists());
    }
    honest(&node, Duration::ZERO);
}
