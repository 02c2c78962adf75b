//! How machines end, each in its own way, and what `ps` says of it. All that can fail once it is up
//! fails in one topology; what never comes up is refused with the reason.

use e2e::machines::{self, logs};
use e2e::{Node, node, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Whether this is the long run, in which machines end in all ways; else in those that are neither
/// waited for nor like another one.
const IS_LONG: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"long");
/// Ends of [`ENDS`] that are tried in each run.
const ALWAYS: [&str; 2] = ["panics", "exits"];
/// The ends of a guest: its domain's name, the line that brings the end about, the word, the exit
/// code, and words of the message.
const ENDS: [(&str, &str, &str, u64, &str); 5] = [
    ("panics", "echo c >/proc/sysrq-trigger", "panicked", 125, "sysrq triggered crash"),
    ("reboots", "busybox reboot -f", "rebooted", 125, ""),
    ("switches-off", "busybox poweroff -f", "powered-off", 0, ""),
    ("exits", "kill -USR1 $(cat /run/command)", "exited", 3, ""),
    ("eats", "kill -USR2 $(cat /run/command)", "exited", 137, "out of memory"),
];
/// The time in which a silence is noticed: the agent answers within 30 s, QEMU within 20 s; then
/// the machine is ended.
const SILENCE: Duration = Duration::from_secs(90);
/// The command of the guests: it ends, or takes all memory, as it is told.
const COMMAND: &str = "trap 'exit 3' USR1; trap 'x=0123456789abcdef; while :; do x=$x$x; done' USR2; \
                       echo $$ >/run/command; while :; do sleep 1000 & wait $!; done";

/// A command that does not hear that it is asked to end, and what else its domain is told.
const DEAF: &str = "trap '' TERM; while :; do sleep 1000; done";
const DEAF_MORE: &str = "restart = { policy = \"never\" }\nstop = { timeout = \"2s\" }";

fn once(name: &str, more: &str) -> String {
    machines::domain(name, &["sh", "-c", COMMAND], more, "restart = { policy = \"never\" }")
}

/// The row of `ps`, once the domain has ended.
fn ended(node: &Node, domain: &str) -> Value {
    let over = || machines::row(node, domain)["state"] != "running";
    wait::until_within(&format!("{domain} has ended"), SILENCE, over);
    machines::row(node, domain)
}

fn assert_outcome(node: &Node, domain: &str, word: &str, message: &str) {
    let row = ended(node, domain);
    let text = row.to_string();
    let told = node.ok(&["ps"]);
    let line = told.lines().find(|line| line.contains(domain)).unwrap_or_default();
    assert!(
        text.contains(word) && text.contains(message) && (line.contains(word) || word == "exited"),
        "{domain}: {word:?} with {message:?} expected:\n{text}\n{told}{}{}",
        logs(node, domain),
        node.daemon_log()
    );
}

#[test]
fn each_end_of_a_machine_is_told_by_its_name() {
    let Some(node) = machines::start() else { return };
    let ends = || ENDS.into_iter().filter(|(name, ..)| IS_LONG || ALWAYS.contains(name));
    let silent: &[&str] = if IS_LONG { &["hangs", "stalls"] } else { &[] };
    let names: Vec<&str> =
        ends().map(|(name, ..)| name).chain(silent.iter().copied()).chain(["dies"]).collect();
    let text = names.iter().map(|name| once(name, "")).collect::<String>();
    let deaf = machines::domain("deaf", &["sh", "-c", DEAF], "", DEAF_MORE);
    node.up_ok(&format!("name = \"ends\"\n{text}{deaf}"));
    // First what takes longest to be noticed.
    let stopping = IS_LONG.then(|| silence(&node));
    // As who stops a domain asks its first process, which asks the guest.
    let pid = machines::row(&node, "deaf")["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    send(pid.expect("its first process"), Signal::TERM);
    let dying = machines::qemus(&node, "dies");
    dying.iter().for_each(|pid| node::kill(*pid));
    for (name, line, ..) in ends() {
        // Its exit code is that of a command whose machine is gone, or 0 where it was quick.
        let _told = node.run(&["exec", name, "--", "sh", "-c", line]);
    }
    for (name, _, word, code, message) in ends() {
        assert_outcome(&node, name, word, message);
        let row = machines::row(&node, name);
        assert!(row.to_string().contains(&code.to_string()), "{name} has not ended with {code}: {row}");
    }
    assert_outcome(&node, "dies", "qemu-died", "signal");
    assert_outcome(&node, "deaf", "killed", "it did not end in time");
    if let Some(mut stopping) = stopping {
        assert_outcome(&node, "hangs", "qemu-hung", "");
        assert_outcome(&node, "stalls", "hung", "");
        let code = stopping.wait().expect("it ends").code();
        assert_eq!(code, Some(125), "the machine has ended under a command");
    }
    for name in names {
        assert_eq!(node.run(&["exec", name, "--", "true"]).code, 125, "{name} still runs something");
    }
}

/// Makes `hangs` and `stalls` silent: the one by its QEMU, the other by its agent. The command that
/// is returned does the latter, and ends with its machine.
fn silence(node: &Node) -> Child {
    let hanging = machines::qemus(node, "hangs");
    hanging.iter().for_each(|pid| send(*pid, Signal::STOP));
    let stop = format!("kill -STOP $({})", machines::pid_of("agent"));
    let stopping = node.command(&["exec", "stalls", "--", "sh", "-c", &stop]).stderr(Stdio::null()).spawn();
    stopping.expect("exec starts")
}

fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(pid, signal).expect("it runs");
}

/// The refusal by `up` of a file that can't come up.
fn refused(node: &Node, text: &str) -> String {
    let run = node.up(&format!("name = \"never\"\n{text}"));
    assert_eq!(run.code, 1, "{run:?}{}", node.daemon_log());
    run.err
}

/// The machines that never come up, how that ends, and words of the message.
const NEVER_UP: [(&str, &str, &str, &str); 4] = [
    (
        "quiet",
        "#!/bin/busybox sh\nbusybox sleep 1000\n",
        "silent",
        "did not speak within 4s (`boot_timeout`)",
    ),
    (
        "garbage",
        "#!/bin/busybox sh\nbusybox mount -t sysfs sysfs /sys\nbusybox mount -t devtmpfs dev /dev\n\
         while read -r module; do busybox insmod $module; done </etc/tombolo/modules\n\
         until busybox ls /dev/vport* >/dev/null 2>&1; do :; done\n\
         for port in /dev/vport*; do busybox dd if=/dev/urandom of=$port bs=4096 count=8; done\n\
         busybox sleep 1000\n",
        "broke-protocol",
        "the guest broke a rule",
    ),
    ("ends", "#!/bin/busybox sh\necho this guest does not want to\n", "panicked", "Attempted to kill init"),
    ("off", "#!/bin/busybox sh\necho good-bye\nbusybox poweroff -f\n", "powered-off", ""),
];

// Each on a node of its own, so that they boot side by side: one node brings up one domain after
// the other.
#[test]
fn a_machine_that_never_comes_up_says_why() {
    std::thread::scope(|scope| {
        for (name, init, word, message) in NEVER_UP {
            scope.spawn(move || never_comes_up(name, init, word, message));
        }
    });
}

fn never_comes_up(name: &str, init: &str, word: &str, message: &str) {
    let Some(node) = machines::start() else { return };
    // It would be waited for two minutes; the file says how long it may take. The others have as
    // long as ever.
    let more = if word == "silent" { ", boot_timeout = \"4s\"" } else { "" };
    let machine = machines::booting(&machines::bare_image(init)) + more;
    if word != "powered-off" {
        let said = refused(&node, &once(name, &machine));
        assert!(said.contains(word) && said.contains(message), "{said}{}", node.daemon_log());
    }
    shown_by_ps(&node, name, &machine, word, message);
}

/// A machine that is to be tried again is shown by `ps` while `up` waits for it.
fn shown_by_ps(node: &Node, name: &str, machine: &str, word: &str, message: &str) {
    let stubborn = machines::domain(
        name,
        &["true"],
        machine,
        "restart = { policy = \"always\", backoff = \"10m\", max_backoff = \"10m\" }",
    )
    .replace("ready = {", "ready = { command = [\"true\"],");
    let file = node.folder().join("stubborn.toml");
    std::fs::write(&file, format!("name = \"stubborn\"\n{stubborn}")).expect("the topology");
    let up =
        node.command(&["up", &file.to_string_lossy()]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut up = up.expect("up starts");
    let shown = || {
        let run = node.run(&["ps", "--json"]);
        let rows: Value = serde_json::from_str(&run.out).unwrap_or_default();
        let last = rows.pointer("/0/last_exit").and_then(Value::as_str).unwrap_or_default().to_owned();
        last.contains(word) && last.contains(message)
    };
    wait::until_within(&format!("ps says that {name} is {word}"), SILENCE, shown);
    let told = node.ok(&["ps"]);
    assert!(told.lines().any(|line| line.contains(name) && line.contains(word)), "{told}");
    // It would be waited for to its time. The next daemon sweeps what nobody wants.
    node.kill_daemon();
    assert!(!up.wait().expect("it ends with the daemon").success());
}

/// A QEMU of the test's own, in place of the machine's.
fn with_qemu(node: &Node, script: &str) -> String {
    let folder = node.folder().join("programs");
    std::fs::create_dir_all(&folder).expect("a folder");
    let program = folder.join("qemu-system-x86_64");
    std::fs::write(&program, script).expect("a script");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default())
}

#[test]
fn a_qemu_that_is_too_old_or_refuses_is_told_by_name() {
    let old = "#!/bin/sh\necho 'QEMU emulator version 4.0.1'\n";
    let refuses = "#!/bin/sh\ncase $1 in *version*) echo 'QEMU emulator version 8.2.0';; \
                   *) echo 'qemu-system-x86_64: -sandbox: no such option' >&2; exit 1;; esac\n";
    for (script, words) in [(old, "4.0.1"), (refuses, "no such option")] {
        // The daemon has the path of who started it.
        let Some(node) = machines::start() else { return };
        let path = with_qemu(&node, script);
        let file = node.folder().join("topology.toml");
        std::fs::write(&file, format!("name = \"old\"\n{}", once("edge", ""))).expect("the topology");
        let output =
            node.command(&["up", &file.to_string_lossy()]).env("PATH", path).output().expect("up starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && said.contains("no-qemu") && said.contains(words),
            "{said}{}",
            node.daemon_log()
        );
        shown_by_ps(&node, "edge", "", "no-qemu", words);
    }
}
