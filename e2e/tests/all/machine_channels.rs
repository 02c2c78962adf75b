//! Channels whose ends are in machines: two guests, a guest and a container, deaths, and a guest
//! that writes whatever it likes.

use e2e::machines::{self, PEER, SCRIBBLE, logs, shell};
use e2e::{Node, node, wait};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

/// The program of the tests, on this machine.
const ON_THE_NODE: &str = env!("CARGO_BIN_EXE_channel_peer");
/// Channels that the hostile guest holds while it writes into them.
const SCRIBBLED_ON: usize = 4;
/// How often it writes into each of them, some thousand words at a time.
const ROUNDS: &str = "40";

/// How long an emulated machine may take to end and to be started again, beside much else.
const RESTART: Duration = Duration::from_secs(120);
/// How long is waited for who offers a channel, in ms: a machine that is being started, too.
const WAIT_MS: &str = "180000";

/// `camera`, a machine, offers `frames` to `viewer`, another one, and to `desk`, a container, which
/// offers `pictures` to both. Whoever dies is started again.
fn topology() -> String {
    let image = machines::booting(machines::image(ON_THE_NODE));
    let again = "restart = { policy = \"always\", backoff = \"50ms\" }";
    let desk = format!(
        "\n[domain.desk]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"{PEER_ON_DESK}\", \"offer\", \"pictures\"]\n\
         mounts = [{{ source = \"{ON_THE_NODE}\", target = \"{PEER_ON_DESK}\" }}]\n{again}\n"
    );
    let service = |name: &str, host: &str, whom: &str| {
        format!(
            "\n[service.{name}]\nkind = \"channel\"\ndomain = \"{host}\"\n\
             allow = [{{ domains = [{whom}], verbs = [\"open\"] }}]\n"
        )
    };
    "name = \"shop\"\n".to_owned()
        + &machines::domain("camera", &[PEER, "offer", "frames"], &image, again)
        + &machines::domain("viewer", &[], &image, again)
        + &desk
        + &service("frames", "camera", "\"viewer\", \"desk\"")
        + &service("pictures", "desk", "\"viewer\", \"camera\"")
}

/// Where the container has the program.
const PEER_ON_DESK: &str = "/channel-peer";

/// Opens a channel from a domain and asks: who is answered.
fn assert_answered(node: &Node, domain: &str, service: &str) {
    let program = if domain == "desk" { PEER_ON_DESK } else { PEER };
    let run = node.run(&["exec", domain, "--", program, "open", service, WAIT_MS, "200"]);
    let wanted = format!("answered 200 as shop/{domain}/api");
    assert_eq!(
        (run.code, run.out.trim()),
        (0, wanted.as_str()),
        "{domain} asks {service}: {run:?}{}{}",
        logs(node, "camera"),
        node.daemon_log()
    );
}

/// Everybody reaches everybody whom the file names.
fn assert_all_talk(node: &Node) {
    for (domain, service) in
        [("viewer", "frames"), ("desk", "frames"), ("viewer", "pictures"), ("camera", "pictures")]
    {
        assert_answered(node, domain, service);
    }
}

fn open_channels(node: &Node, service: &str) -> u64 {
    let rows = node.json(&["service", "ls"]);
    let rows = rows.as_array().expect("a list");
    let row = rows.iter().find(|row| row["service"] == service).expect("the channel is listed");
    row["channels"].as_u64().unwrap_or_else(|| panic!("no count of channels: {row}"))
}

/// A program in a domain that holds channels until it is let go.
struct Keeper(Child);

impl Keeper {
    fn start(node: &Node, domain: &str, service: &str, count: usize) -> Self {
        let program = if domain == "desk" { PEER_ON_DESK } else { PEER };
        let mut child = node
            .command(&["exec", "-i", domain, "--", program, "keep", service, &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("exec starts");
        let output = child.stdout.take().expect("its output");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("it speaks");
        assert_eq!(line.trim(), format!("kept {count}"), "{}", node.daemon_log());
        Self(child)
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("it ends");
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Where the test has failed it runs still; elsewhere it has ended, and there is nothing to
        // kill.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn ends_in_machines_are_ends_like_any_other() {
    let Some(node) = machines::start() else { return };
    node.up_ok(&topology());
    assert_all_talk(&node);
    channels_come_and_go(&node);
    a_program_dies(&node);
    a_guest_writes_whatever_it_likes(&node);
    a_machine_dies(&node);
    assert_all_talk(&node);
}

/// Each is a device of the guest, which is there while its program holds it, and gone afterwards.
fn channels_come_and_go(node: &Node) {
    let devices = "grep -lsx 0x1110 /sys/bus/pci/devices/*/device | wc -l";
    let count = || machines::shell_ok(node, "viewer", devices).trim().to_owned();
    wait::until("what was used is unplugged", || count() == "0");
    for _ in 0..2 {
        let keeper = Keeper::start(node, "viewer", "pictures", 3);
        assert_eq!((count().as_str(), open_channels(node, "pictures")), ("3", 3));
        keeper.end();
        wait::until("its channels are over", || open_channels(node, "pictures") == 0);
        wait::until("its devices are unplugged", || count() == "0");
    }
}

/// `kill -9` of a program in a guest, at the other end of open channels: its peers see the end, and
/// its successor serves them.
fn a_program_dies(node: &Node) {
    let keepers = [Keeper::start(node, "desk", "frames", 1), Keeper::start(node, "viewer", "frames", 1)];
    let before = machines::row(node, "camera")["restarts"].clone();
    // With its command the guest ends, and who has killed it, too: whether the shell can say so
    // first is open.
    let _either = shell(node, "camera", "kill -9 $(pidof channel-peer)");
    wait::until_within("the offerer's guest is started again", RESTART, || {
        machines::row(node, "camera")["restarts"] != before
    });
    keepers.into_iter().for_each(Keeper::end);
    assert_answered(node, "desk", "frames");
    assert_answered(node, "viewer", "frames");
}

/// Whatever the guest does to its devices harms its own channels and nothing else.
fn a_guest_writes_whatever_it_likes(node: &Node) {
    if shell(node, "viewer", &format!("test -x {SCRIBBLE}")).code != 0 {
        return;
    }
    let qemus = ["viewer", "camera"].map(|domain| machines::qemus(node, domain));
    let desk = machines::row(node, "desk")["pid"].clone();
    let keepers = [
        Keeper::start(node, "viewer", "frames", SCRIBBLED_ON / 2),
        Keeper::start(node, "viewer", "pictures", SCRIBBLED_ON / 2),
    ];
    let run = node.run(&["exec", "viewer", "--", SCRIBBLE, ROUNDS]);
    assert_eq!(
        (run.code, run.out.trim()),
        (0, format!("scribbling on {SCRIBBLED_ON}\nscribbled on {SCRIBBLED_ON}").as_str()),
        "{run:?}{}",
        logs(node, "viewer")
    );
    keepers.into_iter().for_each(Keeper::end);
    assert_all_talk(node);
    let now = ["viewer", "camera"].map(|domain| machines::qemus(node, domain));
    let told = || ["viewer", "camera"].map(|domain| logs(node, domain)).concat() + &node.daemon_log();
    assert!(now == qemus, "a machine has died of it{}", told());
    assert_eq!(machines::row(node, "desk")["pid"], desk, "the container has died of it");
}

/// `kill -9` of QEMU: what a power cut is to a machine.
fn a_machine_dies(node: &Node) {
    let keeper = Keeper::start(node, "desk", "frames", 2);
    let before = machines::row(node, "camera")["restarts"].clone();
    for qemu in machines::qemus(node, "camera") {
        node::kill(qemu);
    }
    wait::until_within("the machine is started again", RESTART, || {
        let row = machines::row(node, "camera");
        row["restarts"] != before && row["state"] == "running"
    });
    keeper.end();
}
