//! Event channels: unmodified shells and Python of containers publish and subscribe through files,
//! whatever dies.

use e2e::{Node, node, wait};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

/// How often each of backend and frontends is killed.
const KILLS: u64 = 3;

/// A distributed container with an event service in `bus`; `sensor` publishes and manages, `panel`
/// does both, `attic` subscribes.
pub(crate) fn topology(settings: &str) -> String {
    let domain = |name: &str| {
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\n\
             services = {{ events = \"/srv/events\" }}\n"
        )
    };
    format!(
        "name = \"lab\"\n[domain.bus]\nkind = \"container\"\nroot = \"host\"\n\
         restart = {{ policy = \"always\", backoff = \"50ms\", max_backoff = \"500ms\" }}\n{}{}{}\
         [service.events]\nkind = \"events\"\ndomain = \"bus\"\n\
         allow = [{{ domains = [\"sensor\"], verbs = [\"publish\", \"manage\"] }}, \
         {{ domains = [\"panel\"], verbs = [\"publish\", \"subscribe\"] }}, \
         {{ domains = [\"attic\"], verbs = [\"subscribe\"] }}]\nsettings = {{ {settings} }}\n",
        domain("sensor"),
        domain("panel"),
        domain("attic"),
    )
}

const SETTINGS: &str = "channels_per_domain = 8, channels = { alarms = {}, control = { buffer = \"64KiB\", event = \"4KiB\", wait = \"5s\" }, \
                        fast = { buffer = \"8KiB\", event = \"256B\" } }";

pub(crate) fn start() -> Option<Node> {
    let node = Node::start()?;
    node.up_ok(&topology(SETTINGS));
    wait::until("the service is up", || node.shell("panel", "cat /srv/events/alarms/stats").code == 0);
    Some(node)
}

pub(crate) fn pid_of(node: &Node, domain: &str, which: &str) -> u32 {
    let rows = node.json(&["ps"]);
    let row = rows.as_array().expect("a list").iter().find(|row| row["domain"] == domain).cloned();
    let pid = row.and_then(|row| row[which].as_u64()).expect("it runs");
    u32::try_from(pid).expect("a process")
}

pub(crate) fn channel(node: &Node, name: &str) -> Value {
    let tree = node.json(&["service", "show", "events"]);
    let channels = tree["state"]["channels"].as_array().cloned().unwrap_or_default();
    channels.into_iter().find(|row| row["channel"] == name).unwrap_or(Value::Null)
}

pub(crate) fn await_subscribers(node: &Node, name: &str, count: u64) {
    wait::until("the subscriptions are open", || channel(node, name)["subscribers"] == count);
}

/// Reads so many lines of `alarms`, each when it comes.
pub(crate) fn lines_of(count: usize) -> String {
    format!("exec < /srv/events/alarms/sub; for n in $(seq {count}); do read -r line; echo \"$line\"; done")
}

/// A program of a domain, and its lines.
pub(crate) struct Program(Child, Lines<BufReader<ChildStdout>>);

impl Program {
    pub(crate) fn shell(node: &Node, domain: &str, line: &str) -> Self {
        Self::start(node, &["exec", domain, "--", "timeout", "--kill-after=5", "120", "sh", "-c", line])
    }

    pub(crate) fn python(node: &Node, domain: &str, program: &str) -> Self {
        Self::start(
            node,
            &["exec", domain, "--", "timeout", "--kill-after=5", "120", "python3", "-uc", program],
        )
    }

    fn start(node: &Node, words: &[&str]) -> Self {
        Self::run(node.command(words))
    }

    pub(crate) fn run(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("tombolo starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        Self(child, lines)
    }

    pub(crate) fn line(&mut self) -> String {
        self.1.next().expect("a line").expect("read")
    }

    /// Ends it from outside.
    pub(crate) fn kill(mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("it ends");
    }

    pub(crate) fn end(mut self) -> Vec<String> {
        let rest = self.1.map(|line| line.expect("read")).collect();
        assert!(self.0.wait().expect("it ends").success(), "{rest:?}");
        rest
    }
}

#[test]
fn shells_publish_by_printf_and_subscribe_by_cat() {
    let Some(node) = start() else { return };
    let reader = Program::shell(&node, "panel", &lines_of(2));
    let other = Program::shell(&node, "attic", &lines_of(2));
    await_subscribers(&node, "alarms", 2);
    node.shell_ok("sensor", "echo fire > /srv/events/alarms/pub; printf 'flood\\n' > /srv/events/alarms/pub");
    assert_eq!(reader.end(), ["fire", "flood"]);
    assert_eq!(other.end(), ["fire", "flood"]);
    assert_eq!(node.shell_ok("attic", "cat /srv/events/alarms/last"), "flood\n");
    // Who comes late asks for what was.
    let late = "exec 3<>/srv/events/alarms/sub; printf 'replay all\\nframing text\\n' >&3; for n in 1 2 3 4; do read -r line <&3; echo \"$line\"; done";
    let lines = Program::shell(&node, "attic", late).end();
    assert!(lines[0].starts_with("event=1 publisher=") && lines[0].ends_with(" lost=0 bytes=5"), "{lines:?}");
    assert_eq!((lines[1].as_str(), lines[3].as_str()), ("fire", "flood"));
    // Channels come and go, by who may.
    assert_eq!(
        node.shell_ok("sensor", "cd /srv/events; mkdir mine; ls; ls mine"),
        "alarms\ncontrol\nfast\nmine\nctl\nlast\npub\nstats\nsub\n"
    );
    let denied = |domain: &str, line: &str, why: &str| {
        let run = node.shell(domain, line);
        assert!(run.code != 0 && run.err.contains(why), "{line}: {run:?}");
    };
    denied("attic", "echo x > /srv/events/alarms/pub", "ermission denied");
    denied("attic", "mkdir /srv/events/yours", "ermission denied");
    denied("sensor", "cat /srv/events/alarms/sub", "ermission denied");
    denied("sensor", "rmdir /srv/events/alarms", "not permitted");
    denied("panel", "rmdir /srv/events/mine", "ermission denied");
    denied("sensor", "mkdir '/srv/events/a b'", "Invalid argument");
    denied("sensor", "mkdir /srv/events/$(printf %065d 0)", "too long");
    denied("sensor", "mkdir /srv/events/mine", "File exists");
    let open = Program::shell(&node, "panel", "cat /srv/events/mine/sub");
    await_subscribers(&node, "mine", 1);
    node.shell_ok(
        "sensor",
        "echo 'history 3' > /srv/events/mine/ctl; echo last > /srv/events/mine/pub; rmdir /srv/events/mine",
    );
    assert_eq!(open.end(), ["last"], "and then the end");
}

#[test]
fn filters_overflow_and_ioctls_from_python() {
    let Some(node) = start() else { return };
    let mut subscriber = Program::python(
        &node,
        "panel",
        r#"
import errno, fcntl, json, os, select, struct
def refused(wanted, act):
    try: act()
    except OSError as error: assert error.errno == wanted, error
    else: assert False, act
sub = "/srv/events/alarms/sub"
hot = os.open(sub, os.O_RDWR)
refused(errno.EINVAL, lambda: os.write(hot, b"filter temperature >"))
assert "at byte 13" in open("/srv/events/alarms/stats").read()
refused(errno.EPERM, lambda: os.write(hot, b"overflow wait 100"))
os.write(hot, b'filter temperature > 30 && zone == "b"\n')
both = os.open(sub, os.O_RDWR)
fcntl.ioctl(both, 0x4200d762, b'temperature > 30 && zone == "b"'.ljust(512, b"\0"))
binary = os.open(sub, os.O_RDWR)
fcntl.ioctl(binary, 0x4010d761, struct.pack("<BBHIQ", 0, 1, 0, 0, 2**64 - 1))
latest = os.open(sub, os.O_RDWR)
os.write(latest, b"overflow latest")
os.mkfifo("/tmp/go")
print("ready")
os.read(os.open("/tmp/go", os.O_RDONLY), 9)
assert json.loads(os.read(hot, 65536)) == {"temperature": 35, "zone": "b"}
assert json.loads(os.read(both, 65536)) == {"temperature": 35, "zone": "b"}
assert json.loads(os.read(latest, 65536))["temperature"] == 99
poll = select.poll()
poll.register(latest, select.POLLIN)
assert poll.poll(50) == []
record = os.read(binary, 65536)
sequence, publisher, number, published, lost, length = struct.unpack("<QQQQQQ", record[:48])
assert (sequence, number, lost, length) == (1, 1, 0, len(record) - 48), record
delivered, lost, after, channel, cost, since = struct.unpack("<6Q", fcntl.ioctl(hot, 0x8030d760, bytes(48)))
assert (delivered, lost, channel, cost) == (1, 0, 101, 3), (delivered, lost, channel, cost)
assert "subscribers=2" in open("/srv/events/alarms/stats").read()
with open("/srv/events/alarms/sub", "rb") as plain: refused(errno.EBADF, lambda: os.write(plain.fileno(), b"start"))
print("done")
"#,
    );
    assert_eq!(subscriber.line(), "ready");
    node.shell_ok(
        "sensor",
        "cd /srv/events/alarms; for n in $(seq 100); do zone=a; test $n = 35 && zone=b; \
         test $n = 100 && n=99; echo \"{\\\"temperature\\\": $n, \\\"zone\\\": \\\"$zone\\\"}\" > pub; done",
    );
    node.shell_ok("panel", "printf published > /tmp/go");
    assert_eq!(subscriber.end(), ["done"]);
}

/// Writes numbers, as fast as they are taken; each write returns when its event is in the channel.
pub(crate) const PUBLISHER: &str = r#"
import os
pub = os.open("/srv/events/CHANNEL/pub", os.O_WRONLY)
for n in range(COUNT): os.write(pub, b"%d\n" % n)
print("published")
"#;

/// Writes numbers until there is a file `/tmp/stop` and the next number ends with 0; then says how
/// many.
pub(crate) const UNTIL_STOPPED: &str = r#"
import os
pub = os.open("/srv/events/control/pub", os.O_WRONLY)
n = 0
while n % 10 or not os.path.exists("/tmp/stop"):
    os.write(pub, b"%d\n" % n)
    n += 1
os.write(pub, b"end\n")
print(n)
"#;

#[test]
fn who_is_to_lose_nothing_gets_each_event_once_and_in_order_whatever_is_killed() {
    let Some(node) = start() else { return };
    let mut reader = Program::python(
        &node,
        "panel",
        r#"
import os
sub = os.open("/srv/events/control/sub", os.O_RDWR)
os.write(sub, b"overflow wait 5000")
print("ready")
n = 0
while True:
    event = os.read(sub, 65536)
    if event == b"end\n": break
    assert event == b"%d\n" % n, (n, event)
    n += 1
print(n)
"#,
    );
    assert_eq!(reader.line(), "ready");
    let publisher = Program::python(&node, "sensor", UNTIL_STOPPED);
    let next = || channel(&node, "control")["next"].as_u64().unwrap_or(0);
    for _ in 0..KILLS {
        for (domain, which) in [("bus", "pid"), ("panel", "frontend_pid"), ("sensor", "frontend_pid")] {
            let seen = next();
            wait::until("events flow", || next() > seen + 100);
            node::kill(pid_of(&node, domain, which));
            let seen = next();
            wait::until("events flow again", || next() > seen + 100);
        }
    }
    node.shell_ok("sensor", "touch /tmp/stop");
    let published = publisher.end();
    assert_eq!(reader.end(), published, "each once and in order");
    let count: u64 = published[0].parse().expect("a number");
    assert_eq!(next(), count + 2, "none is in the channel twice");
    let lost = channel(&node, "control")["subscriptions"].clone();
    assert_eq!(lost, serde_json::json!([]));
}

#[test]
fn who_never_reads_stops_nobody_and_counts_exactly_what_it_lost() {
    let Some(node) = start() else { return };
    let mut slow = Program::python(
        &node,
        "attic",
        r#"
import os, re
sub = os.open("/srv/events/fast/sub", os.O_RDWR)
os.write(sub, b"framing text")
os.mkfifo("/tmp/go")
print("ready")
os.read(os.open("/tmp/go", os.O_RDONLY), 9)
got, last, before = 0, 0, 0
while last < 50000:
    head, event = os.read(sub, 65536).split(b"\n", 1)
    number, lost = (int(re.search(rb"%s=(\d+)" % key, head)[1]) for key in (b"number", b"lost"))
    got += 1
    assert number > last and number == got + lost, (head, got)
    assert event == b"%d\n" % (number - 1), event
    last = number
assert got + lost == 50000 and lost > 0
print("counted")
"#,
    );
    assert_eq!(slow.line(), "ready");
    let publisher = PUBLISHER.replace("CHANNEL", "fast").replace("COUNT", "50000");
    assert_eq!(Program::python(&node, "sensor", &publisher).end(), ["published"]);
    node.shell_ok("attic", "printf go > /tmp/go");
    assert_eq!(slow.end(), ["counted"]);
}

#[test]
fn a_flood_of_one_domain_ends_at_its_quota() {
    let Some(node) = start() else { return };
    let flood = r#"
import errno, os
made, refused = 0, 0
for n in range(10000):
    try:
        os.mkdir("/srv/events/flood-%d" % n)
        made += 1
    except OSError as error:
        assert error.errno == errno.EDQUOT, error
        refused += 1
assert (made, refused) == (8, 9992), (made, refused)
for name in (b"nul\0", b"a/b", b"..", b".", b"", b"\xff", b"-x"):
    try: os.mkdir(b"/srv/events/" + name)
    except (OSError, ValueError): pass
    else: assert False, name
pub = os.open("/srv/events/fast/pub", os.O_WRONLY)
for size in (257, 65536, 65537, 1 << 20):
    try: os.write(pub, bytes(size))
    except OSError as error: assert error.errno == errno.EMSGSIZE, error
    else: assert False, size
assert os.write(pub, bytes(256)) == 256
opened = []
try:
    while len(opened) < 1000: opened.append(os.open("/srv/events/flood-0/pub", os.O_WRONLY))
except OSError as error: assert error.errno in (errno.EMFILE, errno.EUSERS), error
else: assert False
print("flooded")
"#;
    let flooder = Program::python(&node, "sensor", flood);
    let mut reader = Program::shell(&node, "panel", &lines_of(20));
    await_subscribers(&node, "alarms", 1);
    for n in 0..20 {
        node.shell_ok("panel", &format!("echo {n} > /srv/events/alarms/pub"));
        assert_eq!(reader.line(), n.to_string());
    }
    assert_eq!(flooder.end(), ["flooded"]);
    // A publisher that is killed leaves whole events only.
    let mut killed = Program::python(
        &node,
        "panel",
        "import os\npub = os.open('/srv/events/alarms/pub', os.O_WRONLY)\nprint(os.getpid())\nwhile True: os.write(pub, b'x' * 60000)",
    );
    killed.line();
    wait::until("it publishes", || channel(&node, "alarms")["next"].as_u64() > Some(30));
    killed.0.kill().expect("killed");
    killed.0.wait().expect("it ends");
    let last = node.shell_ok("attic", "wc -c < /srv/events/alarms/last");
    assert_eq!(last.trim(), "60000");
}

#[test]
fn the_command_line_records_and_replays() {
    let Some(node) = start() else { return };
    let folder = node.folder().join("recorded.jsonl");
    let file = folder.to_string_lossy().into_owned();
    let record = ["events", "record", "alarms", &file, "--count", "3", "--domain", "panel"];
    let mut child = node.command(&record).spawn().expect("tombolo starts");
    await_subscribers(&node, "alarms", 1);
    node.ok(&["events", "pub", "alarms", "one", "--domain", "sensor"]);
    node.shell_ok(
        "sensor",
        "printf 'two\\n' > /srv/events/alarms/pub; printf '\\377' > /srv/events/alarms/pub",
    );
    assert!(child.wait().expect("it ends").success());
    let recorded = std::fs::read_to_string(&folder).expect("the file");
    let lines: Vec<Value> = recorded.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(
        (&lines[0]["text"], &lines[1]["text"], &lines[2]["hex"]),
        (&"one".into(), &"two\n".into(), &"ff".into())
    );
    node.ok(&["events", "replay", "fast", &file, "--speed", "0", "--domain", "sensor"]);
    let again =
        node.ok(&["events", "sub", "fast", "--replay", "all", "--count", "3", "--json", "--domain", "attic"]);
    let again: Vec<Value> = again.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let content =
        |lines: &[Value]| lines.iter().map(|it| (it["text"].clone(), it["hex"].clone())).collect::<Vec<_>>();
    assert_eq!(content(&again), content(&lines));
    let rows = node.json(&["events", "ls"]);
    let names: Vec<&str> =
        rows.as_array().expect("a list").iter().filter_map(|row| row["channel"].as_str()).collect();
    assert_eq!(names, ["alarms", "control", "fast"]);
    assert_eq!(node.json(&["events", "show", "lab/events/fast"])["next"], 4);
    assert_eq!(node.json(&["events", "top"]).as_array().map(Vec::len), Some(3));
    let refused = node.run(&["events", "sub", "alarms", "--filter", "a >", "--domain", "panel"]);
    assert!(refused.code == 2 && refused.err.contains("at byte 3"), "{refused:?}");
    let unsaid = node.run(&["events", "pub", "alarms", "x"]);
    assert!(unsaid.code == 2 && unsaid.err.contains("--domain lab/panel"), "{unsaid:?}");
}

/// Subscribes and is to lose nothing, while one publisher after the other is killed in the middle
/// of its writes.
const KILLER: &str = r#"
import os, signal, struct
sub = os.open("/srv/events/control/sub", os.O_RDWR)
os.write(sub, b"framing binary\noverflow wait 5000")
numbers, count = {}, 0
def read():
    global count
    record = os.read(sub, 65536)
    sequence, publisher, number, published, lost, length = struct.unpack("<6Q", record[:48])
    event, count = record[48:], count + 1
    assert (sequence, lost, length) == (count, 0, 4096), (sequence, lost, length, count)
    assert event == event[:1] * 4096, "a torn event"
    assert number == numbers.get(publisher, 0) + 1, (publisher, number)
    numbers[publisher] = number
    return event[0]
for turn in range(1, 41):
    child = os.fork()
    if child == 0:
        pub = os.open("/srv/events/control/pub", os.O_WRONLY)
        while True: os.write(pub, bytes([turn]) * 4096)
    # Those of the one before may still be there.
    for n in range(turn):
        while read() != turn: pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
pub = os.open("/srv/events/control/pub", os.O_WRONLY)
assert os.write(pub, b"\xff" * 4096) == 4096
while read() != 0xff: pass
assert len(numbers) == 41, numbers
print("whole")
"#;

#[test]
fn publishers_that_are_killed_in_the_middle_of_an_event_leave_whole_ones() {
    let Some(node) = start() else { return };
    assert_eq!(Program::python(&node, "panel", KILLER).end(), ["whole"]);
}

/// Publishers are to wait for it for 200 ms, and it stops. Then it reads: at each event what it has
/// got and what it has lost is as many as were published.
const STOPPED: &str = r#"
import os, signal, struct
sub = os.open("/srv/events/control/sub", os.O_RDWR)
os.write(sub, b"framing binary\noverflow wait 200")
print(os.getpid())
os.kill(os.getpid(), signal.SIGSTOP)
got, lost, event = 0, 0, b""
while event != b"19999\n":
    record = os.read(sub, 65536)
    sequence, publisher, number, published, lost, length = struct.unpack("<6Q", record[:48])
    got, event = got + 1, record[48:]
    assert sequence == got + lost, (sequence, got, lost)
assert lost > 0
print("counted")
"#;

#[test]
fn a_subscriber_that_stops_holds_publishers_up_once_and_counts_what_it_lost() {
    let Some(node) = start() else { return };
    let mut stopped = Program::python(&node, "panel", STOPPED);
    let pid = stopped.line();
    await_subscribers(&node, "control", 1);
    let publisher = PUBLISHER.replace("CHANNEL", "control").replace("COUNT", "20000");
    assert_eq!(Program::python(&node, "sensor", &publisher).end(), ["published"]);
    assert_eq!(channel(&node, "control")["waited"], 1, "publishers waited once, and not again");
    node.shell_ok("panel", &format!("kill -CONT {pid}"));
    assert_eq!(stopped.end(), ["counted"]);
}

/// Makes 5,000 channels, as far as there are any.
const MANY: &str = r#"
import errno, os
made = 0
for n in range(5000):
    try:
        os.mkdir("/srv/events/NAME-%d" % n)
        made += 1
    except OSError as error: assert error.errno in (errno.EDQUOT, errno.ENOSPC), error
print(made)
"#;

#[test]
fn ten_thousand_channels_end_at_the_bound_and_a_successor_has_them_all() {
    let Some(node) = Node::start() else { return };
    let settings = "channels_per_domain = 4096, memory = \"256MiB\", memory_per_domain = \"256MiB\", \
                    made = { buffer = \"8KiB\" }, channels = { alarms = {} }";
    let text = topology(settings)
        .replace("[\"publish\", \"subscribe\"]", "[\"publish\", \"subscribe\", \"manage\"]");
    node.up_ok(&text);
    wait::until("the service is up", || node.shell("panel", "cat /srv/events/alarms/stats").code == 0);
    let makers =
        ["sensor", "panel"].map(|domain| Program::python(&node, domain, &MANY.replace("NAME", domain)));
    let mut reader = Program::shell(&node, "attic", &lines_of(40));
    await_subscribers(&node, "alarms", 1);
    let flows = |reader: &mut Program| {
        for n in 0..20 {
            node.shell_ok("panel", &format!("echo {n} > /srv/events/alarms/pub"));
            assert_eq!(reader.line(), n.to_string());
        }
    };
    flows(&mut reader);
    let made: Vec<u64> = makers.into_iter().map(|it| it.end().concat().parse().expect("a number")).collect();
    assert_eq!(made.iter().sum::<u64>(), 8192 - 1, "{made:?}");
    assert!(made.iter().all(|made| *made <= 4096), "{made:?}");
    let names = || node.shell_ok("attic", "ls /srv/events | sort | md5sum; ls /srv/events | wc -l");
    let before = names();
    assert!(before.ends_with("\n8192\n"), "{before}");
    let listed = node.run(&["events", "ls"]);
    assert!(listed.out.contains("alarms") && listed.out.lines().count() > 30, "{listed:?}");
    assert!(listed.err.contains("more channels are not shown"), "{listed:?}");
    node::kill(pid_of(&node, "bus", "pid"));
    flows(&mut reader);
    assert_eq!(names(), before);
    node.shell_ok("sensor", "rmdir /srv/events/sensor-0; mkdir /srv/events/again");
}

#[test]
fn a_recording_on_a_full_disk_ends_with_the_reason_and_has_whole_events() {
    let Some(node) = start() else { return };
    let folder = node.folder().join("small");
    std::fs::create_dir(&folder).expect("a folder");
    mount("tmpfs", &folder, "tmpfs", MountFlags::empty(), c"size=64k").expect("a small file system");
    let file = folder.join("recorded.jsonl").to_string_lossy().into_owned();
    let record = ["events", "record", "alarms", &file, "--domain", "panel"];
    let child = node.command(&record).stderr(Stdio::piped()).spawn().expect("tombolo starts");
    await_subscribers(&node, "alarms", 1);
    let event = "x".repeat(3000);
    for _ in 0..30 {
        node.shell_ok("sensor", &format!("echo {event} > /srv/events/alarms/pub"));
    }
    let ended = child.wait_with_output().expect("it ends");
    let recorded = std::fs::read_to_string(&file).expect("the recording");
    let replayed = node.run(&["events", "replay", "control", &file, "--speed", "0", "--domain", "sensor"]);
    unmount(&folder, UnmountFlags::DETACH).expect("the small file system goes");
    let words = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && words.contains("No space left on device"), "{words}");
    let lines: Vec<Value> = recorded.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.len() > 10 && recorded.ends_with('\n'), "{} lines", lines.len());
    assert!(lines.iter().enumerate().all(|(at, line)| line["sequence"] == at + 1 && line["lost"] == 0));
    assert_eq!(replayed.code, 0, "{replayed:?}");
    assert_eq!(channel(&node, "control")["next"], lines.len() + 1);
    await_subscribers(&node, "alarms", 0);
}

#[test]
fn a_subscription_that_hears_nothing_for_too_long_is_told() {
    let Some(node) = Node::start() else { return };
    let plain = topology(SETTINGS);
    let (before, panel) = plain.split_once("[domain.panel]").expect("a panel");
    let targets = "events = { targets = { \"alarms/sub\" = { age = \"2s\" } } }";
    let file = format!("{before}[domain.panel]{}", panel.replacen("events = \"/srv/events\"", targets, 1));
    node.up_ok(&file);
    wait::until("the service is up", || node.shell("panel", "cat /srv/events/alarms/stats").code == 0);
    let state = || node.shell_ok("panel", "cat /srv/self/targets");
    assert_eq!(state(), "events alarms/sub age 2000000us - unknown\n");
    let hears = Program::shell(&node, "panel", &lines_of(2));
    await_subscribers(&node, "alarms", 1);
    node.shell_ok("sensor", "echo fire > /srv/events/alarms/pub");
    // Events of other channels are no news.
    node.shell_ok("sensor", "echo 1 > /srv/events/fast/pub");
    wait::until("the silence is told", || {
        let events = node.ok(&["events"]);
        events
            .lines()
            .any(|line| line.contains("target-missed") && line.contains("events/alarms/sub: age 2s"))
    });
    assert!(state().ends_with("missed\n"), "{}", state());
    node.shell_ok("sensor", "echo flood > /srv/events/alarms/pub");
    assert_eq!(hears.end(), ["fire", "flood"]);
    // Nobody reads: nobody misses anything.
    wait::until("nobody waits any more", || state().ends_with("unknown\n"));
}
