//! Services of kind `coordination`: keys, locks, barriers and queues as files, used by shells of
//! containers, kept whatever dies.

use e2e::{Node, node, wait};
use serde_json::Value;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long holders that are not heard of have what they hold, in these tests.
const GRACE: Duration = Duration::from_secs(3);
/// A distributed container in which `keeper` serves, `a` and `b` may do everything, and `c` only
/// look.
fn topology(node: &str) -> String {
    let shell = |name: &str| {
        format!(
            "\n[domain.{name}]\nkind = \"container\"\nroot = \"host\"\n{node}command = [\"sleep\", \"infinity\"]\n\
             restart = {{ policy = \"always\", backoff = \"50ms\" }}\nservices = {{ sync = \"/srv/sync\" }}\n"
        )
    };
    format!(
        "name = \"lab\"\n\n[domain.keeper]\nkind = \"container\"\nroot = \"host\"\n{node}\
         restart = {{ policy = \"always\", backoff = \"50ms\", max_backoff = \"200ms\" }}\n{}{}{}\n\
         [service.sync]\nkind = \"coordination\"\ndomain = \"keeper\"\nsettings = {{ grace = \"3s\" }}\n\
         allow = [{{ domains = [\"a\", \"b\"], verbs = [\"observe\", \"coordinate\"] }}, {{ domains = [\"c\"], verbs = [\"observe\"] }}]\n",
        shell("a"),
        shell("b"),
        shell("c"),
    )
}

fn start() -> Option<Node> {
    let node = Node::start()?;
    node.up_ok(&topology(""));
    wait::until("the service is served", || node.shell("a", "cat /srv/sync/status").out.contains("epoch"));
    Some(node)
}

fn pid_of(node: &Node, domain: &str) -> u32 {
    let tree = node.json(&["inspect", &format!("dc/lab/domains/{domain}")]);
    tree["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs")
}

/// A shell of a container that runs while the test goes on, and says lines.
struct Talk {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Talk {
    fn start(node: &Node, domain: &str, line: &str) -> Self {
        let mut command = node.command(&["exec", "-i", domain, "--", "bash", "-c", line]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("tombolo starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        Self { child, lines }
    }

    /// The next line that it says; `None`: it has ended.
    fn next(&mut self) -> Option<String> {
        self.lines.next().map(|line| line.expect("text"))
    }

    /// Its shell, as this machine counts, which says it first of all.
    fn says_number(&mut self) -> u64 {
        let line = self.next().expect("a line");
        line.trim().parse().unwrap_or_else(|_| panic!("{line:?} is no number"))
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// Takes the lock, says the token, and keeps it until its input ends.
const HOLD: &str = "exec 9<>/srv/sync/locks/printer; read token <&9; echo $token; read forever; echo $?";

/// The process in the container that holds the lock.
fn holder_of(node: &Node, domain: &str) -> u32 {
    let line = "for p in /proc/[0-9]*; do for f in $p/fd/9; do [ \"$(readlink $f)\" = /srv/sync/locks/printer ] && echo ${p#/proc/}; done; done; true";
    node.shell_ok(domain, line).lines().next().expect("a holder").trim().parse().expect("a number")
}

#[test]
fn keys_are_files_and_who_believes_what_was_is_refused() {
    let Some(node) = start() else { return };
    node.shell_ok("a", "mkdir /srv/sync/kv/config && echo blue > /srv/sync/kv/config/colour");
    assert_eq!(node.shell_ok("b", "cat /srv/sync/kv/config/colour"), "blue\n");
    assert_eq!(node.shell_ok("b", "ls /srv/sync/kv/config"), "colour\n");
    assert_eq!(node.shell_ok("c", "cat /srv/sync/kv/config/colour"), "blue\n", "c may look");
    let denied = node.shell("c", "echo red > /srv/sync/kv/config/colour");
    assert!(denied.code != 0 && denied.err.contains("ermission denied"), "{denied:?}");
    // A longer value in the place of a shorter one, a shorter one in the place of that, bytes that
    // are no text, and what is added to the end.
    node.shell_ok("a", "head -c 20000 /dev/zero > /srv/sync/kv/config/colour");
    assert_eq!(node.shell_ok("b", "wc -c < /srv/sync/kv/config/colour").trim(), "20000");
    node.shell_ok("a", "echo red > /srv/sync/kv/config/colour; echo green >> /srv/sync/kv/config/colour");
    assert_eq!(node.shell_ok("b", "cat /srv/sync/kv/config/colour"), "red\ngreen\n");
    // Compare and swap.
    let ask = |domain: &str, line: &str| {
        node.shell(
            domain,
            &format!("exec 3<>/srv/sync/ctl; echo '{line}' >&3; read answer <&3 && echo $answer"),
        )
    };
    let first: u64 = ask("a", "put kv/n 1").out.trim().parse().expect("a revision");
    assert_eq!(ask("b", "get kv/n").out.trim(), format!("{first} 1"));
    let second: u64 = ask("b", &format!("cas kv/n {first} 2")).out.trim().parse().expect("a revision");
    assert!(second > first);
    let stale = ask("a", &format!("cas kv/n {first} 3"));
    assert!(stale.code != 0, "{stale:?}");
    assert!(ask("a", "cas kv/n 0 3").code != 0, "it is there");
    assert_eq!(node.shell_ok("b", "cat /srv/sync/kv/n"), "2");
    // Python, and the ioctls.
    let python = r#"
import fcntl, os, struct, errno
REVISION, EXPECT = 0x8008D801, 0x4008D802
fd = os.open("/srv/sync/kv/n", os.O_RDWR)
assert os.read(fd, 100) == b"2"
revision = struct.unpack("=Q", fcntl.ioctl(fd, REVISION, bytes(8)))[0]
other = os.open("/srv/sync/kv/n", os.O_RDWR)
os.write(other, b"5")
fcntl.ioctl(fd, EXPECT, struct.pack("=Q", revision))
try:
    os.pwrite(fd, b"3", 0)
    print("swapped")
except OSError as error:
    print(errno.errorcode[error.errno])
"#;
    let said = node.shell("a", &format!("python3 -c '{}'", python.replace('\'', "\"")));
    assert_eq!(said.out.trim(), "ESTALE", "{said:?}");
    // Removal.
    node.shell_ok("a", "rm /srv/sync/kv/n");
    assert!(node.shell("b", "cat /srv/sync/kv/n").err.contains("No such file"));
    assert!(node.shell("a", "rmdir /srv/sync/kv/config").err.contains("not empty"));
    node.finish();
}

#[test]
fn what_is_hostile_is_refused_by_its_name() {
    let Some(node) = start() else { return };
    let python = |code: &str| node.shell("a", &format!("python3 -c '{code}'"));
    let refused = |code: &str, errno: &str| {
        let run = python(&format!(
            "import os, errno\ntry:\n    {code}\n    print(\"done\")\nexcept OSError as error:\n    print(errno.errorcode[error.errno])"
        ));
        assert_eq!(run.out.trim(), errno, "{code}: {run:?}");
    };
    refused("open(\"/srv/sync/kv/big\", \"wb\", 0).write(bytes(10_000_000))", "EFBIG");
    assert_eq!(node.shell_ok("a", "wc -c < /srv/sync/kv/big").trim(), "0", "nothing of it is there");
    refused("open(\"/srv/sync/kv/a b\", \"w\")", "EINVAL");
    refused("open(b\"/srv/sync/kv/\\xff\\xfe\", \"w\")", "EINVAL");
    refused("open(\"/srv/sync/kv/new\\nline\", \"w\")", "EINVAL");
    refused("os.rename(\"/srv/sync/kv/big\", \"/srv/sync/kv/other\")", "ENOTSUP");
    refused("os.link(\"/srv/sync/kv/big\", \"/srv/sync/kv/other\")", "ENOTSUP");
    refused("os.mkdir(\"/srv/sync/locks/folder\")", "EINVAL");
    refused(
        "fd = os.open(\"/srv/sync/ctl\", os.O_RDWR); os.write(fd, b\"put ../../desired/lab x\\n\"); os.read(fd, 9)",
        "EINVAL",
    );
    refused(
        "fd = os.open(\"/srv/sync/ctl\", os.O_RDWR); os.write(fd, b\"put kv/../a x\\n\"); os.read(fd, 9)",
        "EINVAL",
    );
    refused(
        "fd = os.open(\"/srv/sync/ctl\", os.O_RDWR); os.write(fd, b\"frobnicate\\n\"); os.read(fd, 9)",
        "EINVAL",
    );
    refused("fd = os.open(\"/srv/sync/kv/big\", os.O_RDWR); os.pwrite(fd, b\"x\", 7)", "EINVAL");
    // Whoever is not the server has no way to what is kept.
    let ask = "import socket, json\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ns.connect(\"/run/tombolo/control.sock\")\n\
               s.send(json.dumps({\"op\": \"keep_state\", \"id\": 1, \"service\": \"sync\"}).encode())\nprint(json.loads(s.recv(65536))[\"errno\"])";
    assert_eq!(python(ask).out.trim(), "2", "ENOENT");
    let in_keeper = node.shell("keeper", &format!("python3 -c '{ask}'"));
    assert_eq!(in_keeper.out.trim(), "1", "EPERM: {in_keeper:?}");
    // As many names as there is room for, and no more; then removing makes room.
    let fill = "import os, errno\nn = 0\ntry:\n    while True:\n        with open(\"/srv/sync/kv/n%d\" % n, \"wb\", 0) as f: f.write(bytes(32768))\n        n += 1\nexcept OSError as error: print(n, errno.errorcode[error.errno])";
    let run = python(fill);
    let mut words = run.out.split_whitespace();
    let count: usize = words.next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{run:?}"));
    assert!((100..200).contains(&count) && words.next() == Some("EDQUOT"), "{run:?}");
    node.shell_ok("a", "rm /srv/sync/kv/n*; echo small > /srv/sync/kv/small");
    node.finish();
}

#[test]
fn a_lock_has_one_holder_and_the_next_has_a_greater_token() {
    let Some(node) = start() else { return };
    let mut first = Talk::start(&node, "a", HOLD);
    let one = first.says_number();
    // Who only tries is told so at once, and who waits a bounded time too.
    let tries = "import os\ntry: os.open(\"/srv/sync/locks/printer\", os.O_RDONLY | os.O_NONBLOCK)\nexcept BlockingIOError: print(\"held\")";
    assert_eq!(node.shell_ok("b", &format!("python3 -c '{tries}'")).trim(), "held");
    let timed = node.shell("b", "exec 9</srv/sync/locks/printer; timeout 1 head -n 1 <&9; echo code $?");
    assert!(timed.out.contains("code 124"), "{timed:?}");
    assert!(node.shell("b", "rm /srv/sync/locks/printer").err.contains("busy"), "it is held");
    let mut second = Talk::start(&node, "b", HOLD);
    wait::until("the second waits", || node.shell_ok("c", "cat /srv/sync/status").contains("waiting 1"));
    // The holder is killed: the next one has it at once, not after the grace.
    node.shell_ok("a", &format!("kill -9 {}", holder_of(&node, "a")));
    let begun = Instant::now();
    let two = second.says_number();
    assert!(begun.elapsed() < GRACE * 2 / 3, "it took {:?}", begun.elapsed());
    assert!(two > one, "{two} after {one}");
    drop(first);
    node.finish();
}

#[test]
fn locks_are_held_while_the_daemon_and_the_server_die_and_come_back() {
    let Some(node) = start() else { return };
    node.shell_ok("a", "echo kept > /srv/sync/kv/key");
    let mut first = Talk::start(&node, "a", HOLD);
    let one = first.says_number();
    let mut second = Talk::start(&node, "b", HOLD);
    wait::until("the second waits", || node.shell_ok("c", "cat /srv/sync/status").contains("waiting 1"));
    // The daemon dies, which is more than the grace away.
    node.kill_daemon();
    wait::pause(GRACE + Duration::from_secs(1));
    assert!(node.up_ok(&topology("")).contains("nothing to do"));
    let who =
        |node: &Node| node.shell_ok("a", "exec 3<>/srv/sync/ctl; echo who locks/printer >&3; head -n 2 <&3");
    assert!(who(&node).contains(&format!("held {one} a")), "{}", who(&node));
    // The server dies, several times; the holder shows what it has to the next one.
    for epoch in 2..=4 {
        node::kill(pid_of(&node, "keeper"));
        wait::until("the next server serves", || {
            node.shell("c", "cat /srv/sync/status").out.contains(&format!("epoch {epoch}\n"))
        });
    }
    wait::pause(GRACE + Duration::from_secs(1));
    assert!(who(&node).contains(&format!("held {one} a")), "{}", who(&node));
    assert_eq!(node.shell_ok("c", "cat /srv/sync/kv/key"), "kept\n");
    // The frontend of the holder dies.
    for pid in node.pids("frontend") {
        node::kill(pid);
    }
    wait::pause(GRACE + Duration::from_secs(1));
    assert!(who(&node).contains(&format!("held {one} a")), "{}", who(&node));
    node.shell_ok("a", &format!("kill -9 {}", holder_of(&node, "a")));
    assert!(second.says_number() > one);
    node.finish();
}

#[test]
fn watchers_are_told_of_every_change_or_that_there_is_a_gap() {
    let Some(node) = start() else { return };
    let mut watch =
        Talk::start(&node, "c", "exec 4</srv/sync/watch; while read line <&4; do echo $line; done");
    let now = watch.next().expect("from where on");
    assert!(now.ends_with(" now"), "{now}");
    node.shell_ok(
        "a",
        "for i in $(seq 1 50); do echo $i > /srv/sync/kv/counted; done; rm /srv/sync/kv/counted",
    );
    let mut last: u64 = now.split(' ').next().and_then(|word| word.parse().ok()).expect("a revision");
    let mut puts = 0;
    loop {
        let line = watch.next().expect("a change");
        let (revision, what) = line.split_once(' ').expect("two words");
        let revision: u64 = revision.parse().expect("a revision");
        assert_eq!(revision, last + 1, "{line}");
        last = revision;
        match what {
            "put kv/counted" => puts += 1,
            "rm kv/counted" => break,
            other => panic!("{other}"),
        }
    }
    // One for making it, and one for each write.
    assert_eq!(puts, 51);
    // The next server does not know what was before it, and says so if there was something.
    node::kill(pid_of(&node, "keeper"));
    wait::until("the next server serves", || {
        node.shell("a", "cat /srv/sync/status").out.contains("epoch 2\n")
    });
    node.shell_ok("a", "echo on > /srv/sync/kv/counted");
    let line = watch.next().expect("a change");
    assert_eq!(line, format!("{} put kv/counted", last + 1));
    node.finish();
}

#[test]
fn a_key_that_lives_as_long_as_a_session_goes_with_it() {
    let Some(node) = start() else { return };
    let mut session = Talk::start(
        &node,
        "a",
        "exec 3<>/srv/sync/ctl; echo lease kv/alive here >&3; read r <&3; echo $r; read forever",
    );
    session.says_number();
    assert_eq!(node.shell_ok("b", "cat /srv/sync/kv/alive"), "here");
    node::kill(pid_of(&node, "keeper"));
    wait::until("the next server serves", || {
        node.shell("b", "cat /srv/sync/status").out.contains("epoch 2\n")
    });
    wait::pause(GRACE + Duration::from_secs(1));
    assert_eq!(
        node.shell_ok("b", "cat /srv/sync/kv/alive"),
        "here",
        "its session goes on at the next server"
    );
    drop(session);
    wait::until("the key is gone", || node.shell("b", "cat /srv/sync/kv/alive").err.contains("No such file"));
    node.finish();
}

#[test]
fn a_semaphore_has_as_many_holders_as_it_was_told() {
    let Some(node) = start() else { return };
    node.shell_ok("a", "exec 3<>/srv/sync/ctl; echo count semaphores/tapes 2 >&3; read r <&3");
    let hold = "exec 9</srv/sync/semaphores/tapes; read token <&9; echo $token; read forever";
    let mut holders: Vec<Talk> = (0..2).map(|_| Talk::start(&node, "a", hold)).collect();
    for holder in &mut holders {
        holder.says_number();
    }
    let mut third = Talk::start(&node, "b", hold);
    wait::until("the third waits", || node.shell_ok("c", "cat /srv/sync/status").contains("waiting 1"));
    holders.pop();
    third.says_number();
    node.finish();
}

/// The service's part of the node's state tree.
fn state(node: &Node) -> Value {
    node.json(&["service", "show", "sync"])
}

#[test]
fn the_service_is_seen_where_services_are() {
    let Some(node) = start() else { return };
    let tree = state(&node);
    assert_eq!(tree["settings"]["grace_ms"], 3000, "{tree}");
    let wrong = node.up(&topology("").replace("\"observe\", \"coordinate\"", "\"observe\", \"resolve\""));
    assert!(wrong.code != 0 && wrong.err.contains("it has no verb `resolve`"), "{wrong:?}");
    let wrong = node.up(&topology("").replace("grace = \"3s\"", "grace = \"1ms\""));
    assert!(wrong.code != 0, "{wrong:?}");
    node.finish();
}

#[test]
fn people_read_change_and_watch_keys_and_hold_locks_by_commands() {
    let Some(node) = start() else { return };
    node.ok(&["kv", "set", "config/colour", "blue", "--domain", "a"]);
    assert_eq!(node.ok(&["kv", "get", "config/colour", "--domain", "c"]), "blue\n", "c may look");
    let several = node.run(&["kv", "get", "config/colour"]);
    assert!(several.code == 2 && several.err.contains("lab/a, lab/b, lab/c"), "{several:?}");
    let denied = node.run(&["kv", "set", "config/colour", "red", "--domain", "c"]);
    assert!(denied.code == 1 && denied.err.contains("verbs `observe`, `coordinate`"), "{denied:?}");
    // In a domain nobody has to say which.
    let got: Value =
        serde_json::from_str(&node.shell_ok("a", "/run/tombolo/tombolo kv get config/colour --json"))
            .expect("JSON");
    let revision = got["revision"].as_u64().expect("a revision").to_string();
    let swapped = node.ok(&["kv", "cas", "config/colour", &revision, "-1", "--domain", "a"]);
    assert!(swapped.trim().parse::<u64>().is_ok_and(|now| now.to_string() != revision), "{swapped}");
    let slow = node.run(&["kv", "cas", "config/colour", &revision, "green", "--domain", "b"]);
    assert!(slow.code == 1 && slow.err.contains("somebody was faster"), "{slow:?}");
    let listed = node.json(&["kv", "ls", "--domain", "a"]);
    assert_eq!((listed[0]["key"].as_str(), listed[0]["bytes"].as_u64()), (Some("config/colour"), Some(2)));
    // A watcher sees what comes after it began.
    let mut watcher = Talk::start(&node, "b", "/run/tombolo/tombolo kv watch config/ --count 2");
    assert!(watcher.next().is_some_and(|line| line.ends_with(" now")));
    node.shell_ok("a", "head -c 40000 /dev/zero | /run/tombolo/tombolo kv set config/big && exit 1; true");
    node.ok(&["kv", "set", "config/text", "a word and another", "--domain", "a"]);
    node.ok(&["kv", "rm", "config/text", "--domain", "a"]);
    assert!(watcher.next().is_some_and(|line| line.ends_with(" put config/text")));
    assert!(watcher.next().is_some_and(|line| line.ends_with(" rm config/text")));
    assert_eq!(watcher.next(), None);
    let gone = node.run(&["kv", "get", "config/text", "--domain", "a"]);
    assert!(gone.code == 1 && gone.err.contains("config/text: there is none"), "{gone:?}");
    node.shell_ok("a", "printf 'two\\nlines\\n' | /run/tombolo/tombolo kv set config/text");
    assert_eq!(node.ok(&["kv", "get", "config/text", "--domain", "b"]), "two\nlines\n");
    // A lock, its token, who waits, and the exit code of the command.
    let mut holder = Talk::start(
        &node,
        "a",
        "/run/tombolo/tombolo sync lock printer -- sh -c 'echo $TOMBOLO_TOKEN; read end; exit 7'; echo $?",
    );
    let token = holder.says_number();
    let locks = node.json(&["sync", "ls", "--domain", "c"]);
    assert_eq!(locks[0]["name"], "locks/printer", "{locks}");
    assert_eq!(locks[0]["held"][0], serde_json::json!({ "domain": "a", "token": token }), "{locks}");
    let taken = node.run(&["sync", "lock", "printer", "--try", "--domain", "b", "--", "true"]);
    assert!(taken.code == 1 && taken.err.contains("somebody has it"), "{taken:?}");
    let late = node.run(&["sync", "lock", "printer", "--timeout", "200ms", "--domain", "b", "--", "true"]);
    assert!(late.code == 1 && late.err.contains("not within"), "{late:?}");
    drop(holder.child.stdin.take());
    assert_eq!(holder.next().as_deref(), Some("7"));
    let next =
        node.ok(&["sync", "lock", "printer", "--domain", "b", "--", "sh", "-c", "echo $TOMBOLO_TOKEN"]);
    assert!(next.trim().parse::<u64>().is_ok_and(|next| next > token), "{next}");
    node.finish();
}

/// Waits at the barrier, and says the generation, or what is wrong.
const ARRIVE: &str = "cat /srv/sync/barriers/phase 2>&1";

/// Takes an item, says it, and keeps it until its input ends.
const WORK: &str = "exec 9<>/srv/sync/queues/jobs; read item <&9; echo $item; read forever";

/// A line of the service's status.
fn status_of(node: &Node, path: &str) -> String {
    let text = node.shell("c", "cat /srv/sync/status").out;
    text.lines().find(|line| line.starts_with(&format!("{path} "))).unwrap_or_default().to_owned()
}

/// Kills the process of a domain that has a file open.
fn kill_user_of(node: &Node, domain: &str, path: &str) {
    let line = format!(
        "for p in /proc/[0-9]*; do for f in $p/fd/*; do [ \"$(readlink $f)\" = {path} ] && echo ${{p#/proc/}}; done; done; true"
    );
    let found = node.shell_ok(domain, &line);
    node.shell_ok(domain, &format!("kill -9 {}", found.lines().next().expect("somebody has it")));
}

#[test]
fn parties_pass_a_barrier_together_whatever_dies_or_are_told_that_it_is_broken() {
    let Some(node) = start() else { return };
    assert!(
        node.shell("a", "touch /srv/sync/barriers/phase; cat /srv/sync/barriers/phase")
            .err
            .contains("nvalid")
    );
    node.shell_ok("a", "echo 3 > /srv/sync/barriers/phase");
    let mut parties: Vec<Talk> = ["a", "b"].iter().map(|domain| Talk::start(&node, domain, ARRIVE)).collect();
    let waiting = |of: &str| status_of(&node, "barriers/phase").contains(&format!("waiting {of}"));
    wait::until("two wait", || waiting("2 of 3"));
    assert!(node.shell("b", "echo 2 > /srv/sync/barriers/phase").err.contains("busy"), "some wait for three");
    assert!(node.shell("b", "rm /srv/sync/barriers/phase").err.contains("busy"));
    // Those who wait go on waiting at the next server, as long as it takes.
    node::kill(pid_of(&node, "keeper"));
    wait::until("the next server serves", || {
        node.shell("c", "cat /srv/sync/status").out.contains("epoch 2\n")
    });
    wait::pause(GRACE + Duration::from_secs(1));
    assert!(waiting("2 of 3"), "{}", status_of(&node, "barriers/phase"));
    parties.push(Talk::start(&node, "b", ARRIVE));
    for party in &mut parties {
        assert_eq!(party.says_number(), 1);
        assert_eq!(party.next(), None, "nothing comes after it");
    }
    // Who dies while it waits breaks it for the others, who read that, and the next generation is
    // another.
    let mut left = Talk::start(&node, "a", ARRIVE);
    let _killed = Talk::start(&node, "b", ARRIVE);
    wait::until("two wait", || waiting("2 of 3"));
    kill_user_of(&node, "b", "/srv/sync/barriers/phase");
    let told = left.next().expect("a line");
    assert!(told.contains("canceled"), "{told}");
    let mut again: Vec<Talk> =
        ["a", "b", "b"].iter().map(|domain| Talk::start(&node, domain, ARRIVE)).collect();
    for party in &mut again {
        assert_eq!(party.says_number(), 3, "2 is broken");
    }
    node.shell_ok("a", "rm /srv/sync/barriers/phase");
    node.finish();
}

#[test]
fn an_item_comes_back_until_somebody_is_done_with_it() {
    let Some(node) = start() else { return };
    node.shell_ok("a", "exec 3<>/srv/sync/ctl; echo queue queues/jobs 2 durable >&3; read r <&3");
    node.shell_ok("a", "echo one > /srv/sync/queues/jobs; echo two > /srv/sync/queues/jobs");
    let tries = "import os\nfd = os.open(\"/srv/sync/queues/jobs\", os.O_WRONLY | os.O_NONBLOCK)\ntry: os.write(fd, b\"x\")\nexcept BlockingIOError: print(\"full\")";
    assert_eq!(node.shell_ok("b", &format!("python3 -c '{tries}'")).trim(), "full");
    // Whoever takes an item has it while servers die, and gives it back by dying.
    let mut first = Talk::start(&node, "a", WORK);
    assert_eq!(first.next().as_deref(), Some("one"));
    node::kill(pid_of(&node, "keeper"));
    wait::until("the next server serves", || {
        node.shell("c", "cat /srv/sync/status").out.contains("epoch 2\n")
    });
    wait::pause(GRACE + Duration::from_secs(1));
    let state = status_of(&node, "queues/jobs");
    assert!(state.contains("items 2 of 2 given 1 "), "{state}");
    // A push that waits for room is made when somebody is done.
    let mut third = Talk::start(&node, "b", "echo three > /srv/sync/queues/jobs; echo pushed");
    wait::until("a push waits", || status_of(&node, "queues/jobs").contains("pushing 1"));
    kill_user_of(&node, "a", "/srv/sync/queues/jobs");
    let done = "exec 9<>/srv/sync/queues/jobs; for i in 1 2 3; do read item <&9; echo $item; echo done >&9 || exit 1; done";
    let mut worker = Talk::start(&node, "b", done);
    let items: Vec<String> = std::iter::from_fn(|| worker.next()).collect();
    assert_eq!(items, ["one", "two", "three"], "in order, the first once more");
    assert_eq!(third.next().as_deref(), Some("pushed"));
    // Who waits for an item gets it although a server died meanwhile; and a frontend that dies
    // takes nothing along.
    let mut waits = Talk::start(&node, "a", WORK);
    wait::until("one waits", || status_of(&node, "queues/jobs").contains("waiting 1"));
    node::kill(pid_of(&node, "keeper"));
    wait::until("it waits again", || status_of(&node, "queues/jobs").contains("waiting 1"));
    node.shell_ok("b", "echo four > /srv/sync/queues/jobs");
    assert_eq!(waits.next().as_deref(), Some("four"));
    for pid in node.pids("frontend") {
        node::kill(pid);
    }
    wait::pause(GRACE + Duration::from_secs(1));
    assert!(
        status_of(&node, "queues/jobs").contains("items 1 of 2 given 1 "),
        "{}",
        status_of(&node, "queues/jobs")
    );
    // One that has not read may not be done, and one that is done may not be done again.
    let python = r#"
import os, errno
fd = os.open("/srv/sync/queues/jobs", os.O_RDWR)
for _ in range(2):
    try:
        os.write(fd, b"done")
        print("done")
    except OSError as error:
        print(errno.errorcode[error.errno])
    os.system("echo five > /srv/sync/queues/jobs")
    os.read(fd, 100)
    os.write(fd, b"done")
"#;
    let said = node.shell("b", &format!("python3 -c '{}'", python.replace('\'', "\"")));
    assert_eq!(said.out, "ESTALE\nESTALE\n", "{said:?}");
    node.finish();
}

#[test]
fn hostile_parties_and_items_are_refused_by_their_name() {
    let Some(node) = start() else { return };
    let refused = |domain: &str, code: &str, errno: &str| {
        let run = node.shell(
            domain,
            &format!(
                "python3 -c 'import os, errno, select\ntry:\n    {code}\n    print(\"done\")\nexcept OSError as error:\n    print(errno.errorcode[error.errno])'"
            ),
        );
        assert_eq!(run.out.trim(), errno, "{code}: {run:?}");
    };
    let ctl = |line: &str| {
        format!("fd = os.open(\"/srv/sync/ctl\", os.O_RDWR); os.write(fd, b\"{line}\\n\"); os.read(fd, 99)")
    };
    let push = |bytes: &str| {
        format!("os.write(os.open(\"/srv/sync/queues/jobs\", os.O_WRONLY | os.O_CREAT), bytes({bytes}))")
    };
    refused("a", &push("32768"), "done");
    refused("a", &push("32769"), "EFBIG");
    refused("a", &push("10000000"), "EMSGSIZE");
    assert!(status_of(&node, "queues/jobs").contains("items 1 of 1024"), "nothing of those is there");
    for line in [
        "parties barriers/../a 3",
        "parties barriers/.. 3",
        "parties barriers/a 0",
        "parties barriers/a 257",
        "parties barriers/a -1",
        "parties queues/jobs 3",
        "queue queues/a 0",
        "queue queues/a 5000",
        "queue queues/a 5 for-ever",
        "queue barriers/a 5",
        "parties barriers/a\\x00b 3",
    ] {
        refused("a", &ctl(line), "EINVAL");
    }
    refused("a", &ctl("queue queues/a/b 5"), "ENOTDIR");
    assert_eq!(node.shell_ok("a", "ls /srv/sync/queues /srv/sync/barriers | grep -c ^a; true").trim(), "0");
    refused("a", "os.open(\"/srv/sync/queues/jobs\", os.O_RDONLY)", "EINVAL");
    refused("a", "os.write(os.open(\"/srv/sync/queues/jobs\", os.O_RDWR), b\"push\")", "EINVAL");
    refused("a", "os.mkdir(\"/srv/sync/queues/folder\")", "EINVAL");
    refused("c", "os.open(\"/srv/sync/queues/jobs\", os.O_WRONLY)", "EACCES");
    refused("c", "os.open(\"/srv/sync/barriers/a\", os.O_WRONLY | os.O_CREAT)", "EACCES");
    // As many wait as a domain may have streams open, and others are served meanwhile.
    refused(
        "a",
        "os.write(os.open(\"/srv/sync/barriers/crowd\", os.O_WRONLY | os.O_CREAT), b\"256\")",
        "done",
    );
    refused(
        "a",
        "crowd = [os.open(\"/srv/sync/barriers/crowd\", os.O_RDONLY) for _ in range(1000)]",
        "EMFILE",
    );
    refused("b", "os.unlink(\"/srv/sync/barriers/crowd\")", "done");
    // A queue has no more than the service has room for, and says so.
    let fill = "import os, errno\nfd = os.open(\"/srv/sync/queues/jobs\", os.O_WRONLY)\nn = 0\ntry:\n    while True:\n        os.write(fd, bytes(32768))\n        n += 1\nexcept OSError as error: print(n, errno.errorcode[error.errno])";
    let run = node.shell("a", &format!("python3 -c '{fill}'"));
    let mut words = run.out.split_whitespace();
    let count: usize = words.next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{run:?}"));
    assert!((100..200).contains(&count) && words.next() == Some("EDQUOT"), "{run:?}");
    node.finish();
}

#[test]
fn people_wait_at_barriers_and_push_and_pop_items_by_commands() {
    let Some(node) = start() else { return };
    let unsaid = node.run(&["sync", "barrier", "phase", "--domain", "a"]);
    assert!(unsaid.code == 1 && unsaid.err.contains("there is none"), "{unsaid:?}");
    let mut other = Talk::start(&node, "b", "/run/tombolo/tombolo sync barrier phase --parties 2");
    wait::until("it waits", || status_of(&node, "barriers/phase").contains("waiting 1 of 2"));
    assert_eq!(node.ok(&["sync", "barrier", "phase", "--parties", "2", "--domain", "a"]), "1\n");
    assert_eq!(other.says_number(), 1);
    let late = node.run(&["sync", "barrier", "phase", "--timeout", "200ms", "--domain", "a"]);
    assert!(late.code == 1 && late.err.contains("not within"), "{late:?}");
    // Items.
    node.ok(&["sync", "queue", "jobs", "--items", "2", "--durable", "--domain", "a"]);
    node.ok(&["sync", "push", "jobs", "first", "--domain", "a"]);
    node.shell_ok("a", "printf 'two\\nlines' | /run/tombolo/tombolo sync push jobs");
    let full = node.run(&["sync", "push", "jobs", "--try", "third", "--domain", "b"]);
    assert!(full.code == 1 && full.err.contains("it is full"), "{full:?}");
    let rows = node.json(&["sync", "ls", "--domain", "c"]);
    let queue = rows.as_array().and_then(|rows| rows.iter().find(|row| row["name"] == "queues/jobs"));
    assert_eq!(
        queue.map(|row| (row["items"].clone(), row["durable"].clone())),
        Some((2.into(), true.into()))
    );
    let failed = node.run(&["sync", "pop", "jobs", "--domain", "a", "--", "sh", "-c", "cat; exit 3"]);
    assert!(failed.code == 3 && failed.out == "first", "{failed:?}");
    assert_eq!(node.ok(&["sync", "pop", "jobs", "--domain", "b"]), "first\n", "it came back");
    assert_eq!(node.ok(&["sync", "pop", "jobs", "--domain", "b", "--", "cat"]), "two\nlines");
    let empty = node.run(&["sync", "pop", "jobs", "--try", "--domain", "b"]);
    assert!(empty.code == 1 && empty.err.contains("it is empty"), "{empty:?}");
    let late = node.run(&["sync", "pop", "jobs", "--timeout", "200ms", "--domain", "b"]);
    assert!(late.code == 1 && late.err.contains("not within"), "{late:?}");
    node.finish();
}

#[test]
fn the_rust_library_does_what_the_files_do() {
    const PROGRAM: &str = env!("CARGO_BIN_EXE_coordinate_program");
    let Some(node) = Node::start() else { return };
    let mounted = format!("mounts = [{{ source = \"{PROGRAM}\", target = \"/program\" }}]\nservices = ");
    node.up_ok(&topology("").replace("services = ", &mounted));
    wait::until("the service is served", || node.shell("a", "cat /srv/sync/status").out.contains("epoch"));
    let run = node.run(&["exec", "a", "--", "/program"]);
    assert!(run.code == 0 && run.out == "all of it\n", "{run:?}");
    // A program that is killed gives back what it holds; another container has it then.
    let mut holder = Talk::start(&node, "a", "echo $$; exec /program hold printer");
    let (_, token) = (holder.says_number(), holder.says_number());
    let mut next = Talk::start(&node, "b", "exec /program hold printer");
    wait::until("it waits", || status_of(&node, "locks/printer").contains("waiting 1"));
    node.shell_ok("a", "pkill -9 -x program");
    assert!(next.says_number() > token);
    drop((holder, next));
    let run = node.run(&["exec", "c", "--", "/program"]);
    assert!(run.code != 0 && run.err.contains("ermission"), "{run:?}");
    node.finish();
}

/// Starts Python in a container, with our package.
fn python(node: &Node, domain: &str, code: &str) -> Command {
    node.command(&[
        "exec",
        "-i",
        "--env",
        "PYTHONPATH=/run/tombolo/python",
        domain,
        "--",
        "python3",
        "-c",
        code,
    ])
}

#[test]
fn the_python_library_does_what_the_files_do() {
    let Some(node) = start() else { return };
    let run: node::Run =
        python(&node, "a", include_str!("coordination_library.py")).output().expect("tombolo starts").into();
    assert!(run.code == 0 && run.out.ends_with("all of it\n"), "{run:?}");
    // A program that is killed gives back what it holds; another container has it then.
    let hold = "from tombolo.sync import Sync; held = Sync().lock('printer'); print(held.token, flush=True); input()";
    let mut holder = python(&node, "a", hold)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("tombolo starts");
    let mut token = String::new();
    let out = holder.stdout.take().expect("its output");
    BufReader::new(out).read_line(&mut token).expect("a token");
    let next = "from tombolo.sync import Sync\nwith Sync('/srv/sync').lock('printer', timeout=60) as token: print(token)";
    let next = python(&node, "b", next).stdout(Stdio::piped()).spawn().expect("tombolo starts");
    wait::until("it waits", || status_of(&node, "locks/printer").contains("waiting 1"));
    node.shell_ok("a", "pkill -9 -f 'input[(][)]'");
    holder.wait().expect("it ends");
    let next = next.wait_with_output().expect("it ends");
    let number = |text: &str| text.trim().parse::<u64>().expect("a token");
    assert!(number(&String::from_utf8_lossy(&next.stdout)) > number(&token));
    // Whoever may only look is refused what changes something.
    let look = "from tombolo.sync import Sync\ns = Sync()\nprint(s.get('n').value)\ntry: s.put('n', b'1')\nexcept PermissionError: print('refused')";
    let run: node::Run = python(&node, "c", look).output().expect("tombolo starts").into();
    assert_eq!(run.out, "b'100'\nrefused\n", "{run:?}");
    node.finish();
}
