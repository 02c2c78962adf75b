//! Plans for real, as short as they can be: that every subject and every deployment that this
//! machine has works, not how fast.

use campaign::analysis::analyse;
use campaign::plan::Plan;
use campaign::record::{self, Records};
use campaign::run::{Outcome, Progress, Request, RunError, Watcher, run};
use campaign::{file, page};
use std::path::{Path, PathBuf};

/// Lets a run go on, until so many repetitions were begun.
struct Until(usize);

impl Watcher for Until {
    fn progress(&mut self, _: &Progress) {
        self.0 -= 1;
    }

    fn is_over(&mut self) -> bool {
        self.0 == 0
    }
}

fn plan(text: &str) -> Plan {
    file::read(text, "the test's plan").unwrap_or_else(|refused| panic!("{refused}"))
}

fn measure(text: &str, out: &Path, until: usize) -> Result<Outcome, RunError> {
    let plan = plan(text);
    let binary = Path::new(env!("CARGO_BIN_EXE_plan-worker"));
    run(&Request { plan: &plan, text, binary, out }, &mut Until(until))
}

fn measured(text: &str) -> (Outcome, Records) {
    let out = tempfile::tempdir().expect("a folder");
    let outcome = measure(text, out.path(), usize::MAX).expect("it runs");
    (outcome, record::read(out.path()).expect("results"))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn every_subject_of_ours_and_of_the_kernel_answers_in_every_loop() {
    let icmp = if is_root() { "\"icmp\", " } else { "" };
    let text = format!(
        "name = \"subjects\"\nsubjects = [{icmp}\"udp\", \"tcp\", \"unix\", \"pipe\", \"tombolo-channel\", \"tombolo-channel-asleep\", \
         \"tombolo-endpoint\", \"tombolo-endpoint-asleep\"]\npayloads = [\"64B\", \"4KiB\"]\n\
         loops = [\"closed\", \"periodic 2ms\", \"poisson 2ms\"]\nwindow = \"20ms\"\nlaunches = 1\n"
    );
    let (outcome, records) = measured(&text);
    assert_eq!(records.failed, []);
    assert!(outcome.end.complete && outcome.skipped.is_empty(), "{outcome:?}");
    assert_eq!(records.measured.len(), plan(&text).order().len());
    for measured in &records.measured {
        assert!(measured.operations + measured.unanswered > 0, "{:?}", measured.which);
        assert_eq!(measured.latencies.count() + measured.warm_up, measured.operations);
    }
}

#[test]
fn each_deployment_works_or_says_what_it_lacks() {
    let text = "name = \"deployments\"\nsubjects = [\"tcp\", \"tombolo-channel\", \"icmp\"]\nideal = \"tcp\"\n\
        deployments = [\"bare\", \"network-namespace\", \"container\"]\nwindow = \"20ms\"\nlaunches = 1\n";
    let (outcome, records) = measured(text);
    for skipped in &outcome.skipped {
        println!("skipped: {}: {}", skipped.what, skipped.why);
    }
    let failures = records.failed.iter().filter(|failed| is_root() || !failed.which.arm.starts_with("icmp"));
    assert_eq!(failures.count(), 0, "{:?}", records.failed);
    for deployment in ["bare", "network-namespace", "container"] {
        let is_there = records.measured.iter().any(|measured| measured.which.cell.deployment == deployment);
        let is_excused = outcome.skipped.iter().any(|skipped| skipped.what == deployment);
        assert!(is_there != is_excused, "{deployment}: {:?}", outcome.skipped);
    }
    let text = page::html(&analyse(records).expect("a plan"));
    assert!(text.contains("network-namespace") && text.ends_with("</html>\n"));
}

#[test]
fn a_server_computes_as_long_as_it_is_told_to() {
    let text = "name = \"work\"\nsubjects = [\"unix\"]\nwork = [\"0ns\", \"3ms\"]\nwindow = \"60ms\"\nlaunches = 1\n";
    let (_, records) = measured(text);
    for measured in records.measured.iter().filter(|measured| measured.which.cell.work_ns > 0) {
        let shortest = measured.latencies.pairs().next().expect("there are samples").0;
        assert!(shortest >= 3_000_000, "{shortest}");
    }
}

#[test]
fn what_was_interrupted_goes_on_and_another_plan_is_refused() {
    let text = "name = \"resumed\"\nsubjects = [\"unix\", \"pipe\"]\nwindow = \"10ms\"\nlaunches = 3\n";
    let all = plan(text).order().len();
    let out = tempfile::tempdir().expect("a folder");
    let first = measure(text, out.path(), 4).expect("it runs");
    assert!(!first.end.complete && first.end.left == all - 4, "{first:?}");
    let records = record::read(out.path()).expect("results");
    assert!(analyse(records.clone()).expect("a plan").state().contains("5 repetitions are left"));
    let second = measure(text, out.path(), usize::MAX).expect("it runs");
    assert!(second.end.complete, "{second:?}");
    let mut done: Vec<_> = record::read(out.path())
        .expect("results")
        .measured
        .into_iter()
        .map(|measured| measured.which)
        .collect();
    done.sort();
    done.dedup();
    assert_eq!(done.len(), all);
    let third = measure(text, out.path(), usize::MAX).expect("nothing is left");
    assert!(third.end.complete);
    assert_eq!(record::read(out.path()).expect("results").measured.len(), all);
    let said =
        measure(&text.replace("launches = 3", "launches = 2"), out.path(), usize::MAX).expect_err("another");
    assert!(said.to_string().contains("has results of the plan `resumed`"), "{said}");
}

#[test]
fn what_is_not_built_is_skipped_with_how_to_install_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let worker = Path::new(env!("CARGO_BIN_EXE_plan-worker"));
    std::os::unix::fs::symlink(worker, folder.path().join("plan-worker")).expect("a link");
    let text = "name = \"missing\"\nsubjects = [\"unix\", \"zenoh\", \"iceoryx2\"]\nwindow = \"10ms\"\nlaunches = 1\n";
    let out = folder.path().join("out");
    let binary = folder.path().join("tombolo");
    let request = Request { plan: &plan(text), text, binary: &binary, out: &out };
    let outcome = run(&request, &mut Until(usize::MAX)).expect("it runs");
    let said: Vec<&str> = outcome.skipped.iter().map(|skipped| skipped.why.as_str()).collect();
    assert_eq!(said.len(), 2);
    assert!(said.iter().any(|why| why.contains("`ipc-peer`") && why.contains("-p middleware")), "{said:?}");
    assert!(outcome.end.complete);
    assert_eq!(record::read(&out).expect("results").measured.len(), 2);
}

fn kit(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kit").join(path)
}

/// A plan with one adapter.
fn adapter(command: &str, patience: &str) -> String {
    format!(
        "name = \"adapters\"\nsubjects = [\"exec:echo\"]\nloops = [\"closed\", \"poisson 1ms\"]\nwindow = \"30ms\"\nlaunches = 1\n\
         patience = \"{patience}\"\nadapter.echo = [{command}]\n"
    )
}

#[test]
fn the_kit_for_python_makes_an_adapter() {
    let command = format!("\"python3\", {:?}", kit("python/echo_tcp.py"));
    let (outcome, records) = measured(&adapter(&command, "30s"));
    assert_eq!((records.failed, outcome.failed), (Vec::new(), 0));
    assert!(records.measured.iter().all(|measured| measured.operations > 0) && records.measured.len() == 4);
}

#[test]
fn the_kit_for_c_makes_an_adapter() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("echo_tcp");
    let compiled = std::process::Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&program)
        .arg(kit("c/echo_tcp.c"))
        .arg("-lm")
        .status();
    if compiled.is_err() {
        println!("skipped: needs a C compiler");
        return;
    }
    assert!(compiled.is_ok_and(|status| status.success()));
    let (outcome, records) = measured(&adapter(&format!("{program:?}"), "30s"));
    assert_eq!((records.failed, outcome.failed), (Vec::new(), 0));
    assert!(records.measured.iter().all(|measured| measured.operations > 0));
}

/// The echo of the kit, with one line of its server replaced.
fn spoilt(from: &str, to: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let text = std::fs::read_to_string(kit("python/echo_tcp.py")).expect("the example");
    assert!(text.contains(from));
    std::fs::write(folder.path().join("echo.py"), text.replace(from, to)).expect("written");
    std::fs::copy(kit("python/tombolo_bench.py"), folder.path().join("tombolo_bench.py")).expect("copied");
    let command = format!("\"python3\", {:?}", folder.path().join("echo.py"));
    (folder, command)
}

#[test]
fn a_server_that_lies_dies_or_hangs_is_found_named_and_passed_over() {
    let answers = "connection.sendall(request)\n                yield";
    let cases = [
        (
            "connection.sendall(request[:-1] + b\"x\")\n                yield",
            "wrong number or checksum",
            "30s",
        ),
        ("raise OSError(\"no device\")\n                yield", "", "30s"),
        ("import threading; threading.Event().wait()\n                yield", "", "500ms"),
    ];
    for (spoils, words, patience) in cases {
        let (_folder, command) = spoilt(answers, spoils);
        let (outcome, records) = measured(&adapter(&command, patience));
        assert_eq!((records.measured.len(), outcome.failed), (0, 4), "{spoils}");
        assert!(outcome.end.complete, "{spoils}");
        for failed in &records.failed {
            assert!(failed.why.contains("exec") && failed.why.contains(words), "{spoils}: {}", failed.why);
        }
    }
}
