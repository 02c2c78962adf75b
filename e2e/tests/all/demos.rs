//! The demos that a newcomer runs first: each shows what it says, and leaves nothing.

use e2e::cluster::{etcd_program, missing};
use e2e::demo::{demo, is_skipped, run};
use e2e::node::target;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn assert_shown(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is not shown:\n{said}");
    }
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

/// The receiver's measurements of a capture whose figures were computed by hand (they are in it).
#[test]
fn the_receivers_of_video_measure_as_rfc_3550_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/video");
    let mut command = Command::new("python3");
    command.arg("-B").arg(folder.join("receive.py")).arg("--packets").arg(folder.join("packets.txt"));
    let output = command.output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let measured: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let by_hand = [
        ("sent", 9.0),
        ("received", 8.0),
        ("lost", 1.0),
        ("frames", 2.0),
        ("jitter_worst_ms", 0.9048),
        ("jitter_mean_ms", 0.4896),
        ("spacing_worst_ms", 13.0),
    ];
    for (key, expected) in by_hand {
        let found = measured[key].as_f64().expect("a number");
        assert!((found - expected).abs() < 1e-9, "{key}: {found} and not {expected}");
    }
}

/// `make demo-volumes`, short: a database whose machine is emulated on two nodes, one after the
/// other.
#[test]
fn the_demo_of_volumes_loses_a_node_and_no_acknowledged_transaction() {
    let lacks = missing().or_else(|| {
        let unpacked = |name: &&str| target().join("debian").join(name).join(".complete").exists();
        let lacking = ["kernel", "postgresql"].into_iter().find(|name| !unpacked(name));
        let lacking = lacking.or_else(|| etcd_program().is_none().then_some("etcd"));
        let programs = ["qemu-system-x86_64", "qemu-storage-daemon", "mke2fs", "busybox"];
        let lacking =
            lacking.or_else(|| programs.into_iter().find(|name| image::find_program(name).is_err()));
        lacking.map(|name| format!("needs {name}; run `make deps`"))
    });
    if is_skipped(lacks) {
        return;
    }
    // It ends with an error where a transaction is lost.
    let (pid, said) = run(demo("volumes").env("TRANSACTIONS", "50"));
    assert_no_namespaces(pid);
    assert_shown(
        &said,
        &["The machine runs on", "is behind", "acknowledged to the clients", "longest pause", "lost        "],
    );
    let counted = |what: &str| -> u64 {
        let line = said.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_default();
        line.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default()
    };
    assert!(counted("acknowledged to the clients") >= 100, "{said}");
    assert!(counted("in the database") >= counted("acknowledged to the clients"), "{said}");
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
