//! Every way of keeping promises of processors, by the one suite. One test after the other: they
//! measure processor time.

use std::sync::{Mutex, MutexGuard};

use conformance::enforcers::{self as suite, Real, Simulated};
use enforce::{Bandwidth, Config, Deadline, EnforceError, Enforcer, Result, Table};

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

struct Bed {
    subject: Real,
    _folder: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// `None`, and said, where this machine can't.
fn bed<E: Enforcer + 'static>(make: fn(Config) -> Result<E>, tolerance: u64) -> Option<Bed> {
    let alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let group = format!("tombolo-test-{}", std::process::id());
    match make(Config { record: true, ..Config::new(folder.path(), group) }) {
        Ok(enforcer)
            if enforcer.ability().caveats.iter().any(|caveat| caveat.starts_with("no real-time")) =>
        {
            println!("skipped: {}", enforcer.ability().caveats.join("; "));
            None
        }
        Ok(enforcer) => {
            let subject = Real::new(Box::new(enforcer), tolerance);
            Some(Bed { subject, _folder: folder, _alone: alone })
        }
        Err(error @ (EnforceError::Unable { .. } | EnforceError::File { .. })) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn simulator_budgets() {
    suite::budgets_are_kept_before_and_after_a_change(&mut Simulated::new());
}

#[test]
fn simulator_refusals() {
    suite::what_is_refused_changes_nothing(&mut Simulated::new());
}

fn tried<E: Enforcer + 'static>(
    make: fn(Config) -> Result<E>,
    tolerance: u64,
    case: fn(&mut dyn suite::Subject),
) {
    if let Some(mut bed) = bed(make, tolerance) {
        case(&mut bed.subject);
    }
}

#[test]
fn bandwidth_budgets() {
    tried(Bandwidth::new, 30, suite::budgets_are_kept_before_and_after_a_change);
}

#[test]
fn bandwidth_refusals() {
    tried(Bandwidth::new, 30, suite::what_is_refused_changes_nothing);
}

#[test]
fn bandwidth_forks() {
    tried(Bandwidth::new, 30, suite::forks_and_ends_are_seen);
}

#[test]
fn bandwidth_leaves_stopped() {
    tried(Bandwidth::new, 30, suite::who_is_stopped_by_somebody_else_stays_so);
}

#[test]
fn bandwidth_expels() {
    tried(Bandwidth::new, 30, suite::who_is_expelled_is_as_before);
}

#[test]
fn bandwidth_gives_back() {
    tried(Bandwidth::new, 30, suite::who_is_given_back_is_as_before);
}

#[test]
fn table_budgets() {
    tried(Table::new, 10, suite::budgets_are_kept_before_and_after_a_change);
}

#[test]
fn table_refusals() {
    tried(Table::new, 10, suite::what_is_refused_changes_nothing);
}

#[test]
fn table_forks() {
    tried(Table::new, 10, suite::forks_and_ends_are_seen);
}

#[test]
fn table_leaves_stopped() {
    tried(Table::new, 10, suite::who_is_stopped_by_somebody_else_stays_so);
}

#[test]
fn table_expels() {
    tried(Table::new, 10, suite::who_is_expelled_is_as_before);
}

#[test]
fn table_gives_back() {
    tried(Table::new, 10, suite::who_is_given_back_is_as_before);
}

#[test]
fn deadline_budgets() {
    tried(Deadline::new, 30, suite::budgets_are_kept_before_and_after_a_change);
}

#[test]
fn deadline_refusals() {
    tried(Deadline::new, 30, suite::what_is_refused_changes_nothing);
}

#[test]
fn deadline_forks() {
    tried(Deadline::new, 30, suite::forks_and_ends_are_seen);
}

#[test]
fn deadline_leaves_stopped() {
    tried(Deadline::new, 30, suite::who_is_stopped_by_somebody_else_stays_so);
}

#[test]
fn deadline_expels() {
    tried(Deadline::new, 30, suite::who_is_expelled_is_as_before);
}

#[test]
fn deadline_gives_back() {
    tried(Deadline::new, 30, suite::who_is_given_back_is_as_before);
}

#[test]
fn bandwidth_vanished() {
    tried(Bandwidth::new, 30, suite::who_vanishes_between_the_calls_is_in_nobodys_way);
}

#[test]
fn bandwidth_outrun() {
    tried(Bandwidth::new, 30, suite::forks_that_outrun_every_scan_get_nothing_beyond_the_budget);
}

#[test]
fn table_vanished() {
    tried(Table::new, 10, suite::who_vanishes_between_the_calls_is_in_nobodys_way);
}

#[test]
fn table_outrun() {
    tried(Table::new, 10, suite::forks_that_outrun_every_scan_get_nothing_beyond_the_budget);
}

#[test]
fn deadline_vanished() {
    tried(Deadline::new, 30, suite::who_vanishes_between_the_calls_is_in_nobodys_way);
}

#[test]
fn simulator_jobs() {
    suite::simulated_jobs_are_in_time_as_analysed();
}

#[test]
fn table_jobs() {
    tried(Table::new, 10, suite::jobs_go_before_each_other_by_rank);
}

#[test]
fn table_jobs_nobody_is() {
    tried(Table::new, 10, |subject| {
        suite::jobs_that_nobody_is_are_told(subject, enforce::Order::RateMonotonic);
    });
}

#[test]
fn deadline_jobs() {
    tried(Deadline::new, 30, suite::jobs_by_deadline_have_budgets_of_their_own);
}

#[test]
fn deadline_jobs_nobody_is() {
    tried(Deadline::new, 30, |subject| {
        suite::jobs_that_nobody_is_are_told(subject, enforce::Order::EarliestDeadline);
    });
}

#[test]
fn a_quota_says_that_it_orders_no_jobs() {
    let Some(mut bed) = bed(Bandwidth::new, 0) else { return };
    let subject = &mut bed.subject as &mut dyn suite::Subject;
    let hog = suite::Hog::spin();
    let who = enforce::Who::Process("sh".to_owned());
    let (budget_ns, period_ns) = (suite::MS, 20 * suite::MS);
    let job = enforce::Job { name: "one".to_owned(), who, budget_ns, period_ns, deadline_ns: period_ns };
    let inside = enforce::Jobs::By { policy: enforce::Order::RateMonotonic, jobs: vec![job] };
    let members = enforce::Members::pids(&[hog.pid()]);
    let vtm = enforce::Vtm { members, inside, ..enforce::Vtm::new("many", 2 * suite::MS, 20 * suite::MS) };
    let prepared = subject.enforcer().prepare(&enforce::Plan::new(vec![vtm])).expect("it can be kept");
    let caveats = prepared.caveats.join("\n");
    assert!(caveats.contains("`many`: a quota does not order the jobs inside"), "{caveats}");
    subject.enforcer().release().expect("all is given back");
}

fn commit_times<E: Enforcer + 'static>(name: &str, make: fn(Config) -> Result<E>) {
    let Some(mut bed) = bed(make, 0) else { return };
    let times_ns = suite::changes_in_a_row_are_all_made(&mut bed.subject, 50);
    let at = |percent: usize| times_ns[(times_ns.len() - 1) * percent / 100];
    println!("{name}: 50 changes of 2 virtual task machines, commit p50 {} ns, most {} ns", at(50), at(100));
}

#[test]
fn table_changes_in_a_row() {
    commit_times("table", Table::new);
}

#[test]
fn bandwidth_changes_in_a_row() {
    commit_times("bandwidth", Bandwidth::new);
}

#[test]
fn deadline_changes_in_a_row() {
    commit_times("deadline", Deadline::new);
}

/// Whatever is only told of a promise is a reason to refuse it, where that was asked for; one of
/// which nothing is told is kept.
fn strict<E: Enforcer + 'static>(make: fn(Config) -> Result<E>) {
    let Some(mut bed) = bed(make, 0) else { return };
    let enforcer = suite::Subject::enforcer(&mut bed.subject);
    let hog = suite::Hog::spin();
    let plain = enforce::Vtm {
        members: enforce::Members::pids(&[hog.pid()]),
        ..enforce::Vtm::new("one", suite::MS, 20 * suite::MS)
    };
    let job = enforce::Job {
        name: "nobody".to_owned(),
        who: enforce::Who::Process("nobody-is-called-so".to_owned()),
        budget_ns: suite::MS,
        period_ns: 20 * suite::MS,
        deadline_ns: 20 * suite::MS,
    };
    let policy = if enforcer.kind() == enforce::Kind::Deadline {
        enforce::Order::EarliestDeadline
    } else {
        enforce::Order::RateMonotonic
    };
    let without = enforce::Vtm { inside: enforce::Jobs::By { policy, jobs: vec![job] }, ..plain.clone() };
    let mut refused = 0;
    for vtm in [without, plain] {
        let plan = enforce::Plan::new(vec![vtm]);
        let before = suite::state(hog.pid());
        let strict = enforcer.prepare(&enforce::Plan { strict: true, ..plan.clone() });
        if strict.is_err() {
            assert_eq!(suite::state(hog.pid()), before, "it was moved, and then refused");
        }
        let caveats = enforcer.prepare(&plan).expect("it can be kept, with what is told").caveats;
        match (&caveats[..], strict) {
            ([], Ok(prepared)) => assert!(prepared.caveats.is_empty()),
            ([first, ..], Err(error)) => {
                assert!(error.to_string().contains(first.as_str()), "{error}, and not {first}");
                refused += 1;
            }
            (caveats, strict) => panic!("{caveats:?}, and {strict:?}"),
        }
    }
    assert!(refused > 0, "nothing was refused");
}

#[test]
fn strict_refuses_what_is_not_guaranteed() {
    strict(Bandwidth::new);
}

#[test]
fn strict_refuses_what_a_table_does_not_guarantee() {
    strict(Table::new);
}

#[test]
fn strict_refuses_what_deadlines_do_not_guarantee() {
    strict(Deadline::new);
}

/// A second controller on the same cgroup is seen and told, and what it set is set back, a few
/// times.
#[test]
fn a_second_controller_is_told_and_outlasted() {
    let Some(mut bed) = bed(Bandwidth::new, 0) else { return };
    let subject = &mut bed.subject as &mut dyn suite::Subject;
    let hog = suite::Hog::spin();
    let members = enforce::Members::pids(&[hog.pid()]);
    let vtm = enforce::Vtm { members, ..enforce::Vtm::new("one", 2 * suite::MS, 20 * suite::MS) };
    let prepared = subject.enforcer().prepare(&enforce::Plan::new(vec![vtm])).expect("it can be kept");
    subject.enforcer().commit(&prepared).expect("it is put in force");
    let cpu = enforce::hierarchy::Hierarchies::discover().expect("hierarchies").cpu.expect("one with cpu");
    let dir = cpu.of_process(hog.pid()).expect("its cgroup");
    let (file, theirs) = match cpu.version {
        enforce::hierarchy::Version::One => ("cpu.cfs_quota_us", "20000"),
        enforce::hierarchy::Version::Two => ("cpu.max", "20000 20000"),
    };
    let ours = enforce::hierarchy::read(&dir.join(file)).expect("ours");
    enforce::hierarchy::write(&dir.join(file), theirs).expect("theirs");
    subject.enforcer().scan().expect("a scan");
    assert_eq!(enforce::hierarchy::read(&dir.join(file)).expect("a value"), ours);
    let report = subject.enforcer().report().expect("a report");
    assert!(report.vtms[0].notes[0].contains("somebody else set"), "{report:?}");
    subject.enforcer().release().expect("all is given back");
}

/// The real dispatcher's decisions, asked again of the simulator, are the same.
#[test]
fn the_simulator_replays_what_a_table_decided() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let group = format!("tombolo-test-{}", std::process::id());
    let mut table = match Table::new(Config { record: true, ..Config::new(folder.path(), group) }) {
        Ok(table) if table.ability().caveats.is_empty() => table,
        other => {
            println!("skipped: {:?}", other.map(|table| table.ability().caveats.clone()));
            return;
        }
    };
    let hogs = [suite::Hog::spin(), suite::Hog::spin()];
    for budget_ms in [2, 3] {
        let members = enforce::Members::pids(&hogs.each_ref().map(suite::Hog::pid));
        let inside = enforce::Jobs::RoundRobin { turn_ns: suite::MS };
        let base = enforce::Vtm::new("one", budget_ms * suite::MS, 20 * suite::MS);
        let plan = enforce::Plan::new(vec![enforce::Vtm { members, inside, ..base }]);
        let prepared = table.prepare(&plan).expect("it can be kept");
        table.commit(&prepared).expect("it is put in force");
        assert!(table.effect(std::time::Duration::from_secs(2)).expect("it is seen").after_ns.is_some());
    }
    let recording = table.recording(0).expect("it answers").expect("it was asked for");
    assert!(recording.whole && recording.steps.len() > 4);
    enforce::Simulator::replay(&recording).expect("the same decisions");
}

/// Threads that leave the deadline class asleep take nothing of its share with them: so many come
/// and go that the kernel would be out of it.
#[test]
fn deadline_shares_come_back_from_those_who_sleep() {
    let Some(mut bed) = bed(Deadline::new, 0) else { return };
    let subject = &mut bed.subject as &mut dyn suite::Subject;
    for _ in 0..12 {
        let sleeper = suite::Hog::start("exec sleep 20");
        let members = enforce::Members::pids(&[sleeper.pid()]);
        let vtm = enforce::Vtm { members, ..enforce::Vtm::new("one", 8 * suite::MS, 20 * suite::MS) };
        let prepared = subject.enforcer().prepare(&enforce::Plan::new(vec![vtm])).expect("it can be kept");
        subject.enforcer().commit(&prepared).expect("there is room again");
        subject.enforcer().release().expect("all is given back");
    }
}
