//! Deaths at each time: of the dispatcher, its guardian, both, and their client. Nobody stays
//! stopped, throttled or real-time, with real processes and `kill -9`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use enforce::{Client, Enforcer, Jobs, Kind, Launch, Members, Outside, Plan, Vtm};
use rustix::process::Signal;
use sys::schedule::Class;

const MS: u64 = 1_000_000;
/// How long a death may go unnoticed.
const TIMEOUT: Duration = Duration::from_secs(5);

static ALONE: Mutex<()> = Mutex::new(());

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

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn used_ns(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/schedstat", self.pid())).expect("it is there");
        text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
    }

    /// Its class, its processors, its cgroups.
    fn state(&self) -> (Class, Vec<u32>, String) {
        let class = sys::schedule::class(self.pid()).expect("it is there");
        let cgroups = std::fs::read_to_string(format!("/proc/{}/cgroup", self.pid())).expect("it is there");
        (class, sys::schedule::affinity(self.pid()).expect("it is there"), cgroups)
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        // Nobody of ours holds it still any more, so it dies.
        let _ = self.0.kill();
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !is() {
        assert!(Instant::now() < end, "{what}: not after {TIMEOUT:?}");
        std::thread::yield_now();
    }
}

fn launch(folder: &Path, kind: Kind) -> Launch {
    let group = format!("tombolo-test-deaths-{}", std::process::id());
    let program = PathBuf::from(env!("CARGO_BIN_EXE_enforce-roles"));
    Launch { program, folder: folder.to_owned(), group, kind }
}

fn plan(hogs: &[&Hog], outside: Outside) -> Plan {
    let vtm = |(number, hog): (usize, &&Hog)| Vtm {
        members: Members::pids(&[hog.pid()]),
        inside: Jobs::RoundRobin { turn_ns: 2 * MS },
        outside,
        ..Vtm::new(format!("vtm{number}"), 3 * MS, 30 * MS)
    };
    Plan::new(hogs.iter().enumerate().map(vtm).collect())
}

/// `None`, and said, where there is nothing to try.
fn start(launch: &Launch) -> Option<Client> {
    match Client::start(launch.clone()) {
        Ok(client) if client.ability().caveats.iter().any(|caveat| caveat.starts_with("no real-time")) => {
            println!("skipped: {}", client.ability().caveats.join("; "));
            None
        }
        Ok(client) => Some(client),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn put(client: &mut Client, plan: &Plan) {
    let prepared = client.prepare(plan).expect("it can be kept");
    client.commit(&prepared).expect("it is put in force");
}

fn kill_and_wait(pid: u32) {
    let process = sys::process::pidfd_open(pid).expect("it is there");
    sys::process::pidfd_send_signal(&process, Signal::KILL).expect("it may be ended");
    let mut wait = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    let timeout = rustix::fs::Timespec { tv_sec: 5, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut wait, Some(&timeout)).expect("a wait"), 1, "{pid} ends");
}

fn dies(kind: Kind, outside: Outside, both: bool) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..3 {
        let folder = tempfile::tempdir().expect("a folder");
        let launch = launch(folder.path(), kind);
        let hogs = [Hog::start(), Hog::start()];
        let before = hogs.each_ref().map(Hog::state);
        let Some(mut client) = start(&launch) else { return };
        put(&mut client, &plan(&hogs.each_ref(), outside));
        let (dispatcher, guardian) = (client.pid(), client.guardian());
        // Somewhere in the table's cycles.
        let moment = Duration::from_micros(sys::clock::clock_ns() / 7 % 80_000);
        // tidy(sleep): a death comes at a random moment
        std::thread::sleep(moment);
        if both {
            // A stopped dispatcher can't start another guardian.
            sys::process::kill(dispatcher, Signal::STOP).expect("it is there");
            kill_and_wait(guardian);
        }
        kill_and_wait(dispatcher);
        if both {
            // What they left, the next one gives back, first of all.
            client.restart().expect("another one comes up");
        }
        for (hog, before) in hogs.iter().zip(before) {
            until(&format!("{kind} {outside:?} as before, {moment:?}"), || hog.state() == before);
            let used = hog.used_ns();
            until(&format!("{kind} {outside:?} runs"), || hog.used_ns() > used + MS);
        }
        if both {
            client.stop().expect("it ends");
        }
    }
}

#[test]
fn a_table_dies_and_those_that_it_froze_run() {
    dies(Kind::Table, Outside::Held, false);
}

#[test]
fn a_table_dies_and_those_that_it_stopped_run() {
    dies(Kind::Table, Outside::Stopped, false);
}

#[test]
fn a_table_dies_and_those_that_were_idle_are_ordinary() {
    dies(Kind::Table, Outside::Idle, false);
}

/// Time goes to and fro between two without a pause, by commits that wait for nobody, and at some
/// moment of one of them the dispatcher dies.
#[test]
fn a_table_dies_in_the_middle_of_changes_and_nobody_is_held() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for outside in [Outside::Held, Outside::Stopped] {
        for round in 0..6 {
            let folder = tempfile::tempdir().expect("a folder");
            let hogs = [Hog::start(), Hog::start()];
            let before = hogs.each_ref().map(Hog::state);
            let Some(mut client) = start(&launch(folder.path(), Kind::Table)) else { return };
            let mut plan = plan(&hogs.each_ref(), outside);
            put(&mut client, &plan);
            let dispatcher = client.pid();
            // Somewhere between the first request and what follows some hundred of them.
            let moment = Duration::from_micros(sys::clock::clock_ns() / 7 % 60_000);
            let killer = std::thread::spawn(move || {
                // tidy(sleep): a death comes at a random moment
                std::thread::sleep(moment);
                kill_and_wait(dispatcher);
            });
            let end = Instant::now() + TIMEOUT;
            let mut changes = 0;
            let mut change = |plan: &Plan| {
                let prepared = client.prepare(plan)?;
                client.commit(&prepared)
            };
            while change(&plan).is_ok() {
                changes += 1;
                plan.vtms[0].budget_ns = if changes % 2 == 0 { 3 } else { 2 } * MS;
                plan.vtms[1].budget_ns = if changes % 2 == 0 { 3 } else { 4 } * MS;
                assert!(Instant::now() < end, "nobody has killed it");
            }
            killer.join().expect("it was killed");
            for (hog, before) in hogs.iter().zip(before) {
                let what = format!("{outside:?}, round {round}, after {changes} changes and {moment:?}");
                until(&format!("{what}: as before"), || hog.state() == before);
                let used = hog.used_ns();
                until(&format!("{what}: it runs"), || hog.used_ns() > used + MS);
            }
        }
    }
}

#[test]
fn a_quotas_keeper_dies_and_nobody_is_throttled() {
    dies(Kind::Bandwidth, Outside::Held, false);
}

#[test]
fn a_deadlines_keeper_dies_and_all_are_ordinary() {
    dies(Kind::Deadline, Outside::Held, false);
}

#[test]
fn a_table_and_its_guardian_die_and_the_next_gives_back() {
    dies(Kind::Table, Outside::Held, true);
}

#[test]
fn a_table_and_its_guardian_die_and_the_next_lets_those_run_that_were_stopped() {
    dies(Kind::Table, Outside::Stopped, true);
}

#[test]
fn a_table_and_its_guardian_die_and_the_next_makes_those_ordinary_that_were_idle() {
    dies(Kind::Table, Outside::Idle, true);
}

#[test]
fn a_deadlines_keeper_and_its_guardian_die_and_the_next_makes_all_ordinary() {
    dies(Kind::Deadline, Outside::Held, true);
}

#[test]
fn a_quotas_keeper_and_its_guardian_die_and_the_next_gives_back() {
    dies(Kind::Bandwidth, Outside::Held, true);
}

#[test]
fn whoever_asked_may_go_and_come_back_and_a_guardian_is_replaced() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let launch = launch(folder.path(), Kind::Table);
    let hog = Hog::start();
    let Some(mut client) = start(&launch) else { return };
    let plan = plan(&[&hog], Outside::Held);
    put(&mut client, &plan);
    assert!(client.effect(TIMEOUT).expect("it is seen").after_ns.is_some());
    let (pid, guardian) = (client.pid(), client.guardian());
    drop(client);
    // As a daemon that was killed: nothing changes for the jobs.
    let mut client = Client::start(launch.clone()).expect("it is there");
    assert_eq!(client.pid(), pid);
    assert_eq!(client.in_force().expect("it says"), plan);
    kill_and_wait(guardian);
    until("another guardian", || {
        Client::start(launch.clone()).is_ok_and(|client| client.guardian() != guardian)
    });
    let mut client = Client::start(launch.clone()).expect("it is there");
    let report = client.report().expect("a report");
    assert_eq!((report.generation, report.vtms.len()), (1, 1), "{report:?}");
    drop(client);
    // Another kind: the first gives back what it has before it makes room.
    let other = Client::start(Launch { kind: Kind::Bandwidth, ..launch }).expect("it comes up");
    assert_ne!(other.pid(), pid);
    assert_eq!(hog.state().0, Class::Other { nice: 0 });
    other.stop().expect("it ends");
}

/// The story of it: a real-time job whose dispatcher is dead has the processor for itself, and a
/// machine of two processors stands still.
#[test]
fn whoever_is_left_real_time_is_bounded_by_the_kernel() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let launch = launch(folder.path(), Kind::Table);
    let hog = Hog::start();
    let Some(mut client) = start(&launch) else { return };
    if client.ability().caveats.iter().any(|caveat| caveat.contains("real-time bandwidth")) {
        println!("skipped: {}", client.ability().caveats.join("; "));
        return client.stop().expect("it ends");
    }
    // Who looks must not be where the slots are: it would never run during one.
    let processors = sys::schedule::affinity(0).expect("ours");
    let Some(elsewhere) = processors.iter().copied().find(|processor| *processor != 0) else {
        println!("skipped: one processor is all that there is");
        return client.stop().expect("it ends");
    };
    sys::schedule::set_affinity(0, &[elsewhere]).expect("it is ours");
    let mut plan = plan(&[&hog], Outside::Idle);
    plan.vtms.iter_mut().for_each(|vtm| vtm.budget_ns = 6 * MS);
    put(&mut client, &plan);
    let (dispatcher, guardian) = (client.pid(), client.guardian());
    let is_real_time = || sys::schedule::class(hog.pid()).expect("it is there").is_real_time();
    until("it is stopped in a slot", || {
        until("a slot", is_real_time);
        sys::process::kill(dispatcher, Signal::STOP).expect("it is there");
        until("it is stopped", || {
            enforce::members::state_and_start(dispatcher).is_some_and(|(state, _)| state == 'T')
        });
        let is_left = is_real_time();
        if !is_left {
            sys::process::kill(dispatcher, Signal::CONT).expect("it is there");
        }
        is_left
    });
    kill_and_wait(guardian);
    kill_and_wait(dispatcher);
    let before = (sys::clock::clock_ns(), hog.used_ns());
    // tidy(sleep): that time passes is what is waited for
    std::thread::sleep(Duration::from_secs(1));
    let (passed, used) = (sys::clock::clock_ns() - before.0, hog.used_ns() - before.1);
    assert!(hog.state().0.is_real_time());
    assert!(used * 100 < passed * 40, "{used} ns of {passed} ns, and a fifth was promised with its margin");
    client.restart().expect("another one comes up");
    assert_eq!(hog.state().0, Class::Other { nice: 0 });
    client.stop().expect("it ends");
}

/// The story of it: a machine that was suspended, or a virtual one that was away, wakes up with its
/// clock far ahead.
#[test]
fn a_dispatcher_that_was_away_takes_the_table_up_where_it_should_be() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let hog = Hog::start();
    let Some(mut client) = start(&launch(folder.path(), Kind::Table)) else { return };
    put(&mut client, &plan(&[&hog], Outside::Held));
    assert!(client.effect(TIMEOUT).expect("it is seen").after_ns.is_some());
    sys::process::kill(client.pid(), Signal::STOP).expect("it is there");
    // tidy(sleep): that it is away is what is tried
    std::thread::sleep(Duration::from_millis(1_300));
    sys::process::kill(client.pid(), Signal::CONT).expect("it is there");
    let mut reported = || client.report().expect("a report");
    until("it is told", || reported().resynchronised == 1);
    // Nothing is made up for: its slots go on, one in each period.
    let before = reported();
    until("slots go on", || reported().vtms[0].slots >= before.vtms[0].slots + 8);
    let after = reported();
    let passed_ms = (after.at_ns - before.at_ns) / MS;
    let slots = after.vtms[0].slots - before.vtms[0].slots;
    assert!(slots <= passed_ms / 30 + 2, "{slots} slots in {passed_ms} ms");
    client.stop().expect("it ends");
}

#[test]
fn changes_by_way_of_another_process_are_short() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for kind in [Kind::Table, Kind::Bandwidth, Kind::Deadline] {
        let folder = tempfile::tempdir().expect("a folder");
        let hogs = [Hog::start(), Hog::start()];
        let Some(mut client) = start(&launch(folder.path(), kind)) else { continue };
        let (one, mut other) = (plan(&hogs.each_ref(), Outside::Held), plan(&hogs.each_ref(), Outside::Held));
        other.vtms.iter_mut().for_each(|vtm| vtm.budget_ns += MS);
        let mut times_ns = Vec::new();
        for number in 0..100 {
            let prepared =
                client.prepare(if number % 2 == 0 { &one } else { &other }).expect("it can be kept");
            times_ns.push(client.commit(&prepared).expect("it is put in force").commit_ns);
        }
        times_ns.sort_unstable();
        println!("{kind}: 100 changes of 2, commit p50 {} ns, p99 {} ns", times_ns[50], times_ns[99]);
        assert!(times_ns[50] < 20 * MS, "half of them take {} ns", times_ns[50]);
        client.stop().expect("it ends");
    }
}
