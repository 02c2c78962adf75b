//! The demos that a newcomer runs first: each shows what it says, and leaves nothing.

use e2e::cluster::{etcd_program, missing};
use e2e::node::{binary, target};
use serde_json::Value;
use std::io::{BufRead, BufReader};
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

fn video() -> Command {
    demo("video")
}

/// Why this machine can't stream video.
fn lacks_video() -> Option<String> {
    let lacking = |program: &&str| !Path::new("/usr/bin").join(program).exists();
    let iperf3 = target().join("debian/iperf3/.complete").exists();
    missing()
        .or_else(|| {
            let program = ["ffmpeg", "taskset"].into_iter().find(lacking)?;
            Some(format!("needs {program}; run `make deps`"))
        })
        .or_else(|| (!iperf3).then(|| "needs iperf3; run `make deps`".to_owned()))
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

/// Frames that came whole in an arm, as a share of those that were due.
fn delivered(arm: &Value) -> f64 {
    let streams = arm["streams"].as_object().expect("streams");
    let frames: f64 = streams.values().filter_map(|stream| stream["frames"].as_f64()).sum();
    frames / arm["expected_frames"].as_f64().expect("a number")
}

/// `make demo-video`, short: on a busy machine it can't be said how many frames come, but that no
/// more are lost where both are promised than where nothing is.
#[test]
fn the_demo_of_video_runs_all_arms_and_promised_streams_lose_no_more_than_others() {
    if is_skipped(lacks_video()) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report.html");
    let mut command = video();
    command.env("REPORT", &report).env("IN_MEMORY", folder.path());
    let (_, said) = run(command.env("ARM_SECONDS", "2").env("LAST_SECONDS", "3"));
    let text = std::fs::read_to_string(report.with_extension("json")).expect("the figures");
    let found: Value = serde_json::from_str(&text).expect("JSON");
    let arms = found["arms"].as_array().expect("arms");
    let names: Vec<&str> = arms.iter().filter_map(|arm| arm["name"].as_str()).collect();
    assert_eq!(names, ["neither", "network", "processor", "both", "corrected"], "{said}");
    for arm in arms {
        assert!(arm["streams"].as_object().is_some_and(|streams| streams.len() >= 4), "{arm}");
    }
    assert!(delivered(&arms[4]) > 0.0, "{said}");
    assert!(delivered(&arms[4]) >= delivered(&arms[0]), "{said}");
    let page = std::fs::read_to_string(&report).expect("the report");
    for arm in arms {
        let title = arm["title"].as_str().expect("a title");
        assert!(page.contains(title), "{title} is not in the report");
    }
    assert!(page.contains("6032 packets") && page.contains("8329 packets") && page.ends_with("</html>\n"));
    assert!(page.matches("<svg").count() >= 13, "the report lacks figures");
    assert!(!["http:", "https:", "src=", "url("].iter().any(|what| page.contains(what)), "it fetches");
    assert_eq!(e2e::clean::leftovers(folder.path()), Vec::<String>::new());
}

/// Broken off as by Ctrl-C, while domains, a daemon and namespaces are there.
#[test]
fn the_demo_of_video_leaves_nothing_when_it_is_broken_off() {
    if is_skipped(lacks_video()) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = video();
    command.env("REPORT", folder.path().join("report.html")).env("IN_MEMORY", folder.path());
    let child = command.env("ARM_SECONDS", "5").spawn().expect("the demo starts");
    let pid = i32::try_from(child.id()).expect("a process");
    let mut child = child;
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).split(b'\r');
    // It says how far it is once all programs of the first arm run.
    let begun = lines.by_ref().map_while(Result::ok).any(|line| {
        let line = String::from_utf8_lossy(&line).into_owned();
        line.starts_with("Nothing is promised:")
    });
    assert!(begun, "the first arm did not begin");
    let inner = std::fs::read_dir(folder.path()).expect("its folder").flatten().next().expect("its files");
    let group = std::fs::read_to_string(inner.path().join("run/cgroup")).expect("the control group");
    Command::new("kill").args(["-INT", &pid.to_string()]).status().expect("kill(1)");
    lines.for_each(drop);
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(e2e::clean::leftovers(folder.path()), Vec::<String>::new());
    let roots = std::fs::read_dir("/sys/fs/cgroup").expect("control groups").flatten();
    let left: Vec<_> =
        roots.map(|root| root.path().join(group.trim())).filter(|path| path.exists()).collect();
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
    assert_eq!(std::fs::read_dir(folder.path()).expect("its folder").count(), 0);
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
