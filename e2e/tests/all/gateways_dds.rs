//! The gateway to DDS: real programs of Cyclone DDS that know nothing of Tombolo, both ways,
//! whatever vanishes and does not fit.

use crate::events::{PUBLISHER, Program, await_subscribers, pid_of};
use crate::gateways::ENDLESS;
use e2e::{Node, node, wait};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Prints what comes of a channel, as text or as digits.
const SUBSCRIBER: &str = "import os\nsub = os.open('/srv/events/CHANNEL/sub', os.O_RDWR)\nos.write(sub, b'overflow wait 10000')\nprint('ready')\n\
                          while True: print(os.read(sub, 65536)SHOWN)";
/// Ends the half of the gateway that speaks DDS.
const KILL: &str = "for it in /proc/[0-9]*; do [ \"$(cat $it/comm 2>/dev/null)\" != tombolo-dds ] || kill -9 ${it#/proc/}; done";

fn run(command: &mut Command) {
    let run = command.output().expect("it starts");
    assert!(run.status.success(), "{command:?}: {}", String::from_utf8_lossy(&run.stderr));
}

/// Compiles the gateway's half and the peer; `None`, said, where there is no Cyclone DDS.
fn compiled(folder: &Path) -> Option<()> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    if Command::new("idlc").arg("-v").output().is_err() || !Path::new("/usr/include/dds/dds.h").exists() {
        println!("skipped: needs Cyclone DDS (apt-get install cyclonedds-dev cyclonedds-tools)");
        return None;
    }
    run(Command::new(sources.join("../scripts/build-dds")).arg(folder));
    run(Command::new("idlc").arg("-o").arg(folder).arg(sources.join("programs/dds_peer.idl")));
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(folder).arg("-o").arg(folder.join("dds_peer"));
    run(cc.arg(sources.join("programs/dds_peer.c")).arg(folder.join("dds_peer.c")).arg("-lddsc"));
    Some(())
}

/// `sensor` publishes and `panel` subscribes; programs of DDS run in `gateway`, which has only
/// `lo`.
fn topology(folder: &Path) -> String {
    let container = |name: &str, more: &str| {
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\n\
             restart = {{ policy = \"always\", backoff = \"50ms\", max_backoff = \"500ms\" }}\n{more}\n"
        )
    };
    let sleeps = "command = [\"sleep\", \"infinity\"]\nservices = { events = \"/srv/events\" }";
    let gateway = format!(
        "command = [\"/run/tombolo/tombolo\", \"events\", \"gateway\", \"--dds\", \"0\", \"--dds-program\", \"/opt/dds/tombolo-dds\", \
         \"--out\", \"alarms=Alarms\", \"--out\", \"kept=Kept\", \"--qos\", \"Kept=durability=transient-local,history=3\", \
         \"--out\", \"fast=Fast\", \"--in\", \"Orders=orders\", \"--in\", \"Readings=readings\", \"--qos\", \"Readings=type=any\"]\n\
         mounts = [{{ source = \"{}\", target = \"/opt/dds\" }}]\nservices = {{ events = \"/srv/events\" }}",
        folder.display()
    );
    format!(
        "name = \"lab\"\n{}{}{}{}[service.events]\nkind = \"events\"\ndomain = \"bus\"\n\
         allow = [{{ domains = [\"sensor\"], verbs = [\"publish\"] }}, {{ domains = [\"panel\"], verbs = [\"subscribe\"] }}, \
         {{ domains = [\"gateway\"], verbs = [\"publish\", \"subscribe\"] }}]\n\
         settings = {{ channels = {{ alarms = {{ buffer = \"64KiB\", event = \"4KiB\", wait = \"60s\" }}, \
         orders = {{ wait = \"10s\", event = \"4KiB\" }}, readings = {{ wait = \"10s\" }}, kept = {{ wait = \"10s\" }}, \
         fast = {{ buffer = \"8KiB\", event = \"256B\" }} }} }}\n",
        container("bus", ""),
        container("sensor", sleeps),
        container("panel", sleeps),
        container("gateway", &gateway),
    )
}

fn peer(node: &Node, mode: &str, topic: &str, lines: &str) -> Program {
    let line = format!("printf '{lines}' | /opt/dds/dds_peer {mode} {topic}");
    let mut peer = Program::shell(node, "gateway", &line);
    assert_eq!(peer.line(), "ready");
    peer
}

fn await_said(node: &Node, words: &str) {
    wait::until(words, || node.run(&["logs", "gateway"]).out.contains(words));
}

fn kill_dds(node: &Node) {
    node.shell("gateway", KILL);
}

fn subscriber(node: &Node, channel: &str, shown: &str) -> Program {
    let mut panel =
        Program::python(node, "panel", &SUBSCRIBER.replace("CHANNEL", channel).replace("SHOWN", shown));
    assert_eq!(panel.line(), "ready");
    panel
}

/// Reads numbers, each one more than the one before, until `last`. Returns how many came again.
fn read_in_order(reader: &mut Program, next: &mut u32, last: impl Fn(u32) -> bool) -> u32 {
    let mut again = 0;
    loop {
        let number: u32 = reader.line().parse().expect("a number");
        assert!(number <= *next, "{next} is missing before {number}");
        again += u32::from(number < *next);
        *next = (*next).max(number + 1);
        if last(number) {
            return again;
        }
    }
}

fn events_go_out_whatever_is_killed(node: &Node) {
    await_subscribers(node, "alarms", 1);
    let mut killed = peer(node, "read", "Alarms", "");
    let mut reader = peer(node, "read", "Alarms", "");
    let publisher = Program::python(node, "sensor", ENDLESS);
    killed.line();
    // The first that is seen is the one with which the programs had found each other.
    let first: u32 = reader.line().parse().expect("a number");
    let mut next = first + 1;
    read_in_order(&mut reader, &mut next, |number| number > first + 500);
    // A reader that dies is waited for until its lease is over: nothing is lost.
    killed.kill();
    read_in_order(&mut reader, &mut next, |number| number > first + 1000);
    // What had not got there when this half died comes again.
    kill_dds(node);
    let before = next;
    let again = read_in_order(&mut reader, &mut next, |number| number > before + 1000);
    println!("{again} events came again");
    assert!(again <= 64, "more came again than were under way");
    node.shell_ok("sensor", "touch /tmp/stop");
    let count: u32 = publisher.end().concat().parse().expect("a number");
    read_in_order(&mut reader, &mut next, |number| number == count - 1);
    reader.kill();
    // Whoever is not to be waited for holds nobody up.
    let fast = PUBLISHER.replace("CHANNEL", "fast").replace("COUNT", "20000");
    assert_eq!(Program::python(node, "sensor", &fast).end(), ["published"]);
}

fn samples_come_in_whatever_is_killed(node: &Node) {
    let mut panel = subscriber(node, "orders", ".decode()");
    // What is longer than the channel's events, than any event, and than any sample keeps nothing
    // else from coming.
    assert_eq!(peer(node, "write", "Orders", "one\\n@5000\\n@100000\\n@3000000\\ntwo\\n").end(), ["sent"]);
    assert_eq!(panel.line(), "one");
    assert_eq!(panel.line(), "two");
    await_said(node, "1 samples of Orders were longer than an event");
    kill_dds(node);
    assert_eq!(peer(node, "write", "Orders", "three\\n").end(), ["sent"]);
    assert_eq!(panel.line(), "three");
    let lives = node.run(&["logs", "gateway"]).out.matches("connected").count();
    node::kill(pid_of(node, "gateway", "pid"));
    wait::until("the gateway is back", || {
        node.run(&["logs", "gateway"]).out.matches("connected").count() > lives
    });
    assert_eq!(peer(node, "write", "Orders", "four\\n").end(), ["sent"]);
    assert_eq!(panel.line(), "four");
    panel.kill();
}

fn types_and_qualities_fit_or_are_refused_in_words(node: &Node) {
    // Of any type: an event is a sample as it is serialized (little endian, the number 7, four
    // bytes of padding, 0.5).
    let mut panel = subscriber(node, "readings", ".hex()");
    assert_eq!(peer(node, "write-reading", "Readings", "").end(), ["sent"]);
    let sample = panel.line();
    assert!(sample.starts_with("0001000007000000") && sample.ends_with("000000000000e03f"), "{sample}");
    await_said(node, "Readings has the type lab::Reading");
    panel.kill();
    let strange = peer(node, "read-reading", "Alarms", "");
    await_said(node, "this gateway's is tombolo::Event, the last one's lab::Reading");
    strange.kill();
    let careless = peer(node, "fast", "Orders", "lost\\n");
    await_said(node, "the last one's reliability does not fit");
    careless.kill();
    // Who comes late gets what is kept.
    let mut early = peer(node, "late", "Kept", "");
    node.shell_ok("sensor", "for it in a b c d e; do printf $it > /srv/events/kept/pub; done");
    while early.line() != "e" {}
    early.kill();
    let mut late = peer(node, "late", "Kept", "");
    assert_eq!([late.line(), late.line(), late.line()], ["c", "d", "e"]);
    late.kill();
}

fn what_can_not_be_is_refused(node: &Node) {
    let refused = |words: &str, code: i32, why: &str| {
        let run = node.shell("gateway", &format!("/run/tombolo/tombolo events gateway {words}"));
        assert!(run.code == code && run.err.contains(why), "{words}: {run:?}");
    };
    refused("--dds 0 --out alarms=A", 1, "tombolo-dds");
    refused("--dds 233 --out alarms=A", 2, "233");
    refused("--dds 0 --mqtt 127.0.0.1:1883 --out alarms=A", 2, "cannot be used with");
    refused("--dds 0 --out 'alarms=A b'", 2, "is no topic of DDS");
    refused("--dds 0 --in A/+=orders", 2, "is no topic of DDS");
    refused("--dds 0 --out alarms=A --out kept=A", 2, "same topic twice");
    refused("--dds 0 --out alarms=A --qos B=history=1", 2, "neither --out nor --in does");
    refused("--dds 0 --out alarms=A --qos A=type=any", 2, "its type is not known");
    refused("--dds 0 --out alarms=A --qos A=deadline=5", 2, "is no time");
    refused("--mqtt 127.0.0.1:1883 --out alarms=A --qos A=history=1", 2, "are for --dds");
    refused("--dds 0 --client me --out alarms=A", 2, "are for --mqtt");
    let run = node.shell(
        "gateway",
        "CYCLONEDDS_URI='<General/>' /run/tombolo/tombolo events gateway --dds 0 --out alarms=A",
    );
    assert!(run.code == 2 && run.err.contains("may lead to a network"), "{run:?}");
}

#[test]
fn events_go_to_programs_of_dds_and_come_from_them_whatever_vanishes_or_does_not_fit() {
    let Some(node) = Node::start() else { return };
    let folder = node.folder().join("dds");
    fs::create_dir(&folder).expect("a folder");
    let Some(()) = compiled(&folder) else { return };
    node.up_ok(&topology(&folder));
    await_said(&node, "connected");
    events_go_out_whatever_is_killed(&node);
    samples_come_in_whatever_is_killed(&node);
    types_and_qualities_fit_or_are_refused_in_words(&node);
    what_can_not_be_is_refused(&node);
}
