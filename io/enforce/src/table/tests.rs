//! A change that one processor can't make is made by none.

use super::lane::Handle;
use super::{Horizon, Lane, Table};
use crate::{Config, Enforcer, Members, Plan, Vtm};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MS: u64 = 1_000_000;

/// A program that always wants to run, ends with us, and after 10 s of processor time.
struct Hog(Child);

impl Hog {
    fn start() -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        sys::process::kill_with_parent(&mut command);
        sys::schedule::limit_processor_seconds(&mut command, 10);
        Self(command.spawn().expect("a shell starts"))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

fn vtm(id: &str, hog: &Hog, processor: usize, budget_ms: u64) -> Vtm {
    let members = Members::pids(&[hog.0.id()]);
    Vtm { members, processor, ..Vtm::new(id, budget_ms * MS, 40 * MS) }
}

/// The length of a slot, in ns, over some of them.
fn slot_ns(table: &mut Table, id: &str) -> u64 {
    let mut of = || {
        let report = table.report().expect("a report");
        let found = report.vtms.into_iter().find(|vtm| vtm.id == id).expect("it is kept");
        (found.offered_ns, found.slots)
    };
    let before = of();
    loop {
        let after = of();
        if after.1 >= before.1 + 8 {
            return (after.0 - before.0) / (after.1 - before.1);
        }
        std::thread::yield_now();
    }
}

/// The story of it: one lane had a new table, the other was dead, and what was told to be refused
/// was half in force.
#[test]
fn a_change_that_a_dead_processor_can_not_make_is_made_by_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let group = format!("tombolo-test-lanes-{}", std::process::id());
    let mut table = match Table::new(Config::new(folder.path(), group)) {
        Ok(table) if table.real_time && table.ability.processors.contains(&1) => table,
        other => {
            println!("skipped: {:?}", other.map(|table| table.ability.clone()));
            return;
        }
    };
    let hogs = [Hog::start(), Hog::start()];
    let put = |table: &mut Table, vtms: Vec<Vtm>| {
        let prepared = table.prepare(&Plan::new(vtms)).expect("it can be kept");
        table.commit(&prepared)
    };
    put(&mut table, vec![vtm("one", &hogs[0], 0, 4)]).expect("it is put in force");
    // Its thread is there as far as anybody knows, and never answers.
    table.lanes.insert(1, Lane { shared: Arc::default(), thread: None, horizon: Horizon::default() });
    let before = sys::schedule::affinity(hogs[1].0.id()).expect("it is there");
    let refused = put(&mut table, vec![vtm("one", &hogs[0], 0, 12), vtm("two", &hogs[1], 1, 4)]);
    assert!(refused.is_err_and(|error| error.to_string().contains("does not answer")));
    let (vtms, generation) = (table.in_force.vtms.clone(), table.generation);
    assert_eq!((vtms.len(), vtms[0].budget_ns, generation), (1, 4 * MS, 1));
    let long_ns = slot_ns(&mut table, "one");
    assert!(long_ns < 8 * MS, "its slots are {long_ns} ns long, as if it had been given more");
    // The next change is as good as any; who came and was not taken is as it was.
    table.lanes.remove(&1);
    put(&mut table, vec![vtm("one", &hogs[0], 0, 6)]).expect("it is put in force");
    table.release().expect("all is given back");
    assert_eq!(sys::schedule::affinity(hogs[1].0.id()).expect("it is there"), before);
}

/// Time that goes from one to another is committed when it is given to a thread that decides
/// nothing at the time: it can't decide anything without it. Time that others may get is waited
/// for.
#[test]
fn an_exchange_waits_for_nobody_and_what_is_given_up_is_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let group = format!("tombolo-test-exchange-{}", std::process::id());
    let mut table = match Table::new(Config::new(folder.path(), group)) {
        Ok(table) if table.real_time => table,
        other => {
            println!("skipped: {:?}", other.map(|table| table.ability.clone()));
            return;
        }
    };
    let hogs = [Hog::start(), Hog::start()];
    let plan = |budgets: [u64; 2]| {
        Plan::new(vec![vtm("one", &hogs[0], 0, budgets[0]), vtm("two", &hogs[1], 0, budgets[1])])
    };
    let put = |table: &mut Table, plan: &Plan| {
        let prepared = table.prepare(plan).expect("it can be kept");
        table.commit(&prepared)
    };
    put(&mut table, &plan([8, 4])).expect("it is put in force");
    // The real one has had it: it is in force at a time that it has said itself, and both have
    // slots of it.
    let exchanged = put(&mut table, &plan([4, 8])).expect("it is put in force");
    let effect = table.effect(Duration::from_secs(5)).expect("it is seen");
    assert_eq!((effect.generation, effect.after_ns.is_some()), (exchanged.generation, true));
    let (short_ns, long_ns) = (slot_ns(&mut table, "one"), slot_ns(&mut table, "two"));
    assert!(short_ns < 6 * MS && long_ns > 6 * MS, "slots of {short_ns} and {long_ns} ns");
    // One that sleeps and never wakes.
    let asleep: Arc<super::Shared> = Arc::default();
    assert!(asleep.orders.end());
    let real = table.lanes.insert(0, Lane { shared: asleep, thread: None, horizon: Horizon::default() });
    let begun = Instant::now();
    let exchanged = put(&mut table, &plan([8, 4])).expect("it is put in force");
    assert!(begun.elapsed() < super::ANSWER_TIMEOUT, "it was waited for");
    let effect = table.effect(Duration::from_millis(10)).expect("nobody has failed");
    assert_eq!((effect.generation, effect.after_ns), (exchanged.generation, None));
    let refused = put(&mut table, &plan([7, 4]));
    assert!(refused.is_err_and(|error| error.to_string().contains("does not answer")));
    table.lanes.extend(real.map(|lane| (0, lane)));
    table.release().expect("all is given back");
}

/// Once signals went to numbers, which may be somebody else's by then.
#[test]
fn a_signal_reaches_whom_it_is_for_or_nobody() {
    let mut child = Command::new("sleep").arg("60").spawn().expect("a process");
    let pid = child.id();
    let (_, start) = crate::members::state_and_start(pid).expect("it is there");
    let stranger = Handle { start: start + 1, pidfd: None };
    assert!(stranger.send(pid, rustix::process::Signal::KILL).is_err(), "it has its number alone");
    Handle { start, pidfd: None }.send(pid, rustix::process::Signal::STOP).expect("it is the one");
    let handle = Handle::new(pid, start);
    assert!(handle.pidfd.is_some() && handle.is_there());
    handle.send(pid, rustix::process::Signal::KILL).expect("it is the one");
    child.wait().expect("it ends");
    assert!(!handle.is_there());
    // Whoever has the number now is not this one: here our own stands for it.
    assert!(handle.send(std::process::id(), rustix::process::Signal::KILL).is_err());
}

/// Starts a program under a number that nobody has any more; `None`: numbers can't be asked for
/// here.
fn with_number(number: u32) -> Option<Hog> {
    for _ in 0..500 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).ok()?;
        let mut hog = Hog::start();
        if hog.0.id() == number {
            return Some(hog);
        }
        // Somebody else was quicker.
        let _ = hog.0.kill();
        hog.0.wait().expect("it ends");
    }
    None
}

/// Once threads were raised and lowered by numbers: a stranger that got the number of a process
/// that had ended was real-time in its slots, and an ordinary thread after them, whatever it had
/// been.
#[test]
fn who_has_the_number_of_one_that_has_ended_keeps_its_class() {
    let folder = tempfile::tempdir().expect("a folder");
    let group = format!("tombolo-test-number-{}", std::process::id());
    let mut table = match Table::new(Config::new(folder.path(), group)) {
        Ok(table) if table.real_time => table,
        other => return println!("skipped: {:?}", other.map(|table| table.ability.clone())),
    };
    let mut first = Hog::start();
    // It is neither frozen nor stopped between its slots.
    let plan = Plan::new(vec![Vtm { outside: crate::Outside::Fair, ..vtm("one", &first, 0, 8) }]);
    let prepared = table.prepare(&plan).expect("it can be kept");
    table.commit(&prepared).expect("it is put in force");
    assert!(table.effect(Duration::from_secs(5)).expect("it is seen").after_ns.is_some());
    first.0.kill().expect("it is told to end");
    first.0.wait().expect("it ends");
    let Some(stranger) = with_number(first.0.id()) else {
        return println!("skipped: nobody gets a number of choice here (/proc/sys/kernel/ns_last_pid)");
    };
    let own = sys::schedule::Class::Other { nice: 7 };
    sys::schedule::set_class(stranger.0.id(), own).expect("it is ours");
    // Nobody has scanned since, so the processor's thread has the number still.
    let slots = || table.kept.get("one").map_or(0, |kept| kept.meter.slots.load(super::Ordering::Relaxed));
    let end = slots() + 8;
    while slots() < end {
        assert_eq!(sys::schedule::class(stranger.0.id()).expect("it runs"), own);
        std::thread::yield_now();
    }
    table.release().expect("all is given back");
}
