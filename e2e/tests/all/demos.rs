//! The demos that a newcomer runs first: each shows what it says, and leaves nothing.

use e2e::cluster::{etcd_program, missing};
use e2e::node::{binary, target};
use std::path::Path;
use std::process::{Command, Stdio};

/// A demo of `examples`, run in a network namespace that has only `lo`: nobody else has its ports
/// there.
fn demo(name: &str) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name).join("demo.sh");
    let mut command = Command::new("unshare");
    command
        .args(["--net", "sh", "-c", "ip link set lo up && exec \"$0\""])
        .arg(script)
        .env("TOMBOLO", binary())
        .env("CARGO_TARGET_DIR", target())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a demo to its end. Its process, whose number is in the names of what it makes, and its
/// output.
fn run(command: &mut Command) -> (u32, String) {
    let child = command.spawn().expect("the demo starts");
    let pid = child.id();
    let output = child.wait_with_output().expect("the demo ends");
    let said =
        [output.stdout, output.stderr].map(|stream| String::from_utf8_lossy(&stream).into_owned()).join("\n");
    assert!(output.status.success(), "{said}");
    (pid, said)
}

fn assert_shown(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is not shown:\n{said}");
    }
}

/// Whether this machine can't run the demos; the reason is told.
fn is_skipped(lacks: Option<String>) -> bool {
    if let Some(reason) = &lacks {
        println!("skipped: {reason}");
    }
    lacks.is_some()
}

/// `make demo`.
#[test]
fn the_first_demo_shows_what_it_says_and_leaves_nothing() {
    if is_skipped(missing()) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let run_dir = folder.path().join("run");
    let state_dir = folder.path().join("state");
    let mut command = demo("quickstart");
    command.env("TOMBOLO_RUN_DIR", &run_dir).env("TOMBOLO_STATE_DIR", state_dir);
    let (_, said) = run(&mut command);
    assert_shown(
        &said,
        &["Address: 192.0.2.10", "SRV 10 5 554", "No such file or directory", "quickstart is down"],
    );
    if said.contains("This part is left out") {
        println!("skipped: {}", said.lines().find(|line| line.contains("left out")).unwrap_or_default());
    } else {
        assert_shown(&said, &["start edge", "this is Linux"]);
    }
    assert_eq!(e2e::clean::leftovers(&run_dir), Vec::<String>::new());
}

/// `make demo-sockets`.
#[test]
fn the_demo_of_sockets_shows_what_it_says_and_leaves_nothing() {
    let lacks = missing().or_else(|| {
        let unpacked = |name: &&str| target().join("debian").join(name).join(".complete").exists();
        let lacking = ["nginx", "redis", "postgresql"].into_iter().find(|name| !unpacked(name));
        lacking.map(|name| format!("needs {name}; run `make deps`"))
    });
    if is_skipped(lacks) {
        return;
    }
    let (_, said) = run(&mut demo("shop"));
    assert_shown(&said, &["shop is up", "ready x1, salt x1, tea x3", "received_bytes"]);
}

fn assert_no_namespaces(pid: u32) {
    let spaces = Command::new("ip").args(["netns", "list"]).output().expect("ip(8)");
    let spaces = String::from_utf8_lossy(&spaces.stdout).into_owned();
    let name = format!("td{pid}-");
    assert!(!spaces.lines().any(|space| space.starts_with(&name)), "the demo left namespaces:\n{spaces}");
}

/// `make demo-cluster`.
#[test]
fn the_demo_of_three_nodes_shows_what_it_says_and_leaves_nothing() {
    let lacks =
        missing().or_else(|| etcd_program().is_none().then(|| "needs etcd; run `make deps`".to_owned()));
    if is_skipped(lacks) {
        return;
    }
    let (pid, said) = run(&mut demo("cluster"));
    assert_no_namespaces(pid);
    assert_eq!(
        said.matches("192.0.2.7 ").count(),
        2,
        "the name was not resolved over both transports:\n{said}"
    );
    assert_shown(&said, &["The counter runs elsewhere after"]);
}

/// `make demo-failover`.
#[test]
fn the_demo_of_failover_loses_a_node_and_nothing_is_done_twice() {
    let lacks =
        missing().or_else(|| etcd_program().is_none().then(|| "needs etcd; run `make deps`".to_owned()));
    if is_skipped(lacks) {
        return;
    }
    // It ends with an error where a caller was given up, or something was done twice.
    let (pid, said) = run(&mut demo("failover"));
    assert_no_namespaces(pid);
    assert_shown(&said, &["keeper runs on", "look-ups", "calls", "locks", "boxes:"]);
}

/// `make demo-sensors`, for two seconds.
#[test]
fn the_demo_of_sensors_deals_with_each_reading_and_draws_their_ages() {
    if is_skipped(missing()) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let drawing = folder.path().join("latencies.svg");
    let mut command = demo("sensors");
    command.env("SECONDS_OF_SENSORS", "2").env("SENSORS_SVG", &drawing);
    // It ends with an error where the recorder got what is no alarm, or a sensor was not heard of.
    let (_, said) = run(&mut command);
    assert_shown(&said, &["Waiting until both have subscribed", "alarms, of which the first is", "lost 0"]);
    let drawn = std::fs::read_to_string(&drawing).expect("the drawing");
    assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"), "{drawn}");
    assert_eq!(drawn.matches("<polyline").count(), 2, "half of them, and 99 of 100");
}
