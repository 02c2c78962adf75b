//! `make demo-video`: it fills a processor and a link, which leaves other tests none.

use e2e::cluster::missing;
use e2e::demo::{demo, is_skipped, run};
use e2e::node::target;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;

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
