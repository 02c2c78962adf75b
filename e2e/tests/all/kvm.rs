//! The executor of a guest's instructions is found by trying: a KVM that is there and does not run
//! guests is told from one that does.

use e2e::machines::{self, row, shell_ok};
use e2e::{Node, Run};
use serde_json::Value;
use std::process::{Command, Stdio};

/// A guest of the small system, which says what it is.
fn file(accel: &str) -> String {
    let image = machines::booting(machines::image(env!("CARGO_BIN_EXE_channel_peer")));
    let words = ["sh", "-c", "echo this is $(uname -s); while :; do sleep 1000; done"];
    let text = machines::domain("edge", &words, &image, "restart = { policy = \"never\" }");
    format!("name = \"test\"\n{}", text.replace("accel = \"tcg\"", &format!("accel = \"{accel}\"")))
}

/// A device of that name, where there is one, that is something else: it opens.
const COVER: &str = "test ! -e /dev/kvm || mount --bind /dev/null /dev/kvm";

/// `up` in a mount namespace of its own, in which `prepare` is done first: the daemon that it
/// starts stays there.
fn up_where(node: &Node, prepare: &str, text: &str) -> Run {
    let path = node.folder().join("topology.toml");
    std::fs::write(&path, text).expect("the topology is written");
    let up = node.command(&["up", &path.to_string_lossy()]);
    let words: Vec<String> = std::iter::once(up.get_program())
        .chain(up.get_args())
        .map(|word| format!("'{}'", word.display()))
        .collect();
    let line = format!("set -e; {prepare}; exec {}", words.join(" "));
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &line]).stdin(Stdio::null()).output();
    output.expect("unshare(1)").into()
}

/// On a machine with a good KVM, with a bad one and with none: the guest runs, by what the node
/// says, and if it is emulated, it is said why, at once and later on.
#[test]
fn auto_runs_a_guest_whatever_kvm_is_like_here() {
    let Some(node) = machines::start() else { return };
    let told = node.up_ok(&file("auto"));
    let kvm = node.json(&["inspect", "node/kvm"]);
    assert_eq!(kvm["tried"], true, "{kvm}");
    let machine = row(&node, "edge")["machine"].clone();
    assert_eq!(shell_ok(&node, "edge", "uname -s"), "Linux\n");
    if kvm["works"] == true {
        assert_eq!((&machine["accel"], machine.get("emulated_because")), (&Value::from("kvm"), None));
        assert!(!told.contains("emulated"), "{told}");
        return;
    }
    let why = kvm["why"].as_str().expect("why it does not work");
    assert!(why.contains("/dev/kvm"), "{why}");
    assert_eq!((&machine["accel"], &machine["emulated_because"]), (&Value::from("tcg"), &kvm["why"]));
    assert!(told.contains(&format!("edge is emulated, which is several times slower: {why}")), "{told}");
    assert!(node.daemon_log().contains(why), "{}", node.daemon_log());
}

/// It starts nothing: neither a guest that stands still for two minutes, nor one that is emulated
/// unasked.
#[test]
fn kvm_that_was_asked_for_and_does_not_work_is_refused_with_the_reason() {
    let Some(node) = machines::start() else { return };
    let begun = std::time::Instant::now();
    let run = up_where(&node, COVER, &file("kvm"));
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.err.contains("accel = \"kvm\"") && run.err.contains("/dev/kvm"), "{run:?}");
    assert!(run.err.contains("accel = \"auto\""), "{run:?}");
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}

#[test]
fn auto_emulates_where_the_device_is_none() {
    let Some(node) = machines::start() else { return };
    let run = up_where(&node, COVER, &file("auto"));
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.out.contains("edge is emulated") && run.out.contains("/dev/kvm"), "{run:?}");
    assert_eq!(row(&node, "edge")["machine"]["accel"], "tcg");
}

/// The trial has a purpose: a KVM that runs guests. Few machines of tests have one, so an emulated
/// machine has it, whose emulator does what an AMD processor does for it.
#[test]
fn a_kvm_that_runs_guests_is_found_to() {
    let Some(node) = machines::start() else { return };
    let image = machines::booting(&machines::image_with_kvm());
    node.up_ok(&format!("name = \"test\"\n{}", machines::domain("edge", &["sleep", "1000"], &image, "")));
    let run = machines::shell(&node, "edge", "ls /dev/kvm && time tombolo internal-kvm | od -An -tx1 -w6");
    assert_eq!(run.code, 0, "{run:?}{}", machines::logs(&node, "edge"));
    assert_eq!(run.out, "/dev/kvm\n 01 02 03 04 05 06\n", "{run:?}");
}
