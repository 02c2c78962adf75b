//! The naive arm for real: namespaces, a bridge, dnsmasq, the C library. It needs nothing of ours
//! but the worker.

use bench::BenchError;
use bench::directory::place::{Place, SUFFIX};
use bench::directory::work::{Tale, Task, Way};
use bench::directory::{naive, usage};
use std::path::Path;
use std::time::Duration;

fn task() -> Task {
    Task {
        way: Way::Library,
        suffix: SUFFIX.into(),
        names: 8,
        processor: sys::processor::allowed().expect("our processors")[0],
        warm_up_ns: 1_000_000,
        window_ns: 50_000_000,
        seed: 1,
    }
}

/// A place next to the worker that cargo built; `None`, and a printed reason, where this machine
/// can't have one.
fn place() -> Option<Place> {
    match Place::make(Path::new(env!("CARGO_BIN_EXE_lookup-worker")), None) {
        Ok(place) => Some(place),
        Err(error @ (BenchError::Missing { .. } | BenchError::Command { .. })) if !is_root() => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("no place: {error}"),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn two_naive_domains_resolve_at_the_same_time_and_leave_nothing() {
    let Some(place) = place() else { return };
    let folder = place.folder().to_path_buf();
    let mut workers =
        [naive::start(&place, 0), naive::start(&place, 1)].map(|worker| worker.expect("it starts"));
    for worker in &mut workers {
        worker.expect("ready").expect("it is ready");
        worker.give(&task()).expect("it takes the task");
        worker.expect("primed").expect("every name has an address");
    }
    let before = usage::name_server_processor_ns(&place).expect("the kernel counts");
    let begin_ns = sys::clock::clock_ns() + 10_000_000;
    for worker in &mut workers {
        worker.say(&begin_ns.to_string()).expect("it listens");
    }
    for worker in &mut workers {
        let tale = worker.tale::<Tale>(Duration::from_millis(100)).expect("it tells");
        assert_eq!(tale.failures, 0, "{:?}", tale.first_failure);
        assert!(tale.latencies.count() > 10, "{} look-ups in 50 ms", tale.latencies.count());
        assert!(tale.processor_ns > 0 && tale.operations >= tale.latencies.count());
    }
    assert!(usage::name_server_processor_ns(&place).expect("the kernel counts") > before);
    let processes = workers.each_ref().map(bench::worker::Worker::process);
    drop(workers);
    place.end().expect("all is undone");
    assert!(!folder.exists(), "{} is left", folder.display());
    for process in processes {
        assert!(!Path::new(&format!("/proc/{process}")).exists(), "process {process} is left");
    }
}
