//! A machine whose slot is over runs in nobody else's, however many threads it starts.

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use enforce::{Config, Enforcer, Members, Plan, Table, Vtm, VtmReport};

/// Tables of two tests at a time would want more real time than the kernel gives.
static ALONE: Mutex<()> = Mutex::new(());
const MS: u64 = 1_000_000;
/// The variable that makes this program start threads that always want to run, and says how many.
const FLOOD: &str = "TOMBOLO_TEST_FLOOD";
/// The same for threads that read of which control groups they are.
const READS: &str = "TOMBOLO_TEST_READS_ITS_GROUPS";
/// How many a flood has.
const THREADS: usize = 600;
/// How long is looked.
const SPAN: Duration = Duration::from_secs(2);
/// How often; most of them have to hold.
const SPANS: usize = 3;
/// The unit in which the kernel tells stolen time, in ns.
const TICK_NS: u64 = 10_000_000;

/// The time that a hypervisor has taken of each processor, in ns. On a machine that shares its own,
/// threads by the hundred that are woken and stopped are stolen from most.
fn stolen_ns() -> Vec<u64> {
    let text = std::fs::read_to_string("/proc/stat").expect("the kernel tells");
    let of_one = |line: &str| line.split_ascii_whitespace().nth(8)?.parse::<u64>().ok();
    let each = text.lines().skip(1).take_while(|line| line.starts_with("cpu"));
    each.map(|line| of_one(line).expect("stolen time is the ninth word") * TICK_NS).collect()
}

/// The time that may be missing of one processor's since `before`, because it was stolen.
fn missing_ns(before: &[u64]) -> u64 {
    let stolen = before.iter().zip(stolen_ns()).map(|(before, now)| now.saturating_sub(*before));
    stolen.max().unwrap_or(0) + TICK_NS
}

/// A process, ended with this.
struct Program(Child);

impl Program {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        sys::process::kill_with_parent(&mut command);
        sys::schedule::limit_processor_seconds(&mut command, 20);
        Self(command.spawn().expect("a process"))
    }

    fn spin() -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        Self::start(command)
    }

    /// One whose threads read all the time of which control groups they are. That takes the
    /// kernel's locks of control groups, as freezing does.
    fn reads_its_groups() -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "reads_its_groups_where_it_is_told_to"]).env(READS, "8");
        Self::start(command)
    }

    /// One that waits for a word before it starts its threads, so they come after admission.
    fn flood() -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "floods_where_it_is_told_to"]).env(FLOOD, THREADS.to_string());
        Self::start(command)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test: what a flood is made of.
#[test]
fn floods_where_it_is_told_to() {
    let Some(threads) = std::env::var(FLOOD).ok().and_then(|count| count.parse::<usize>().ok()) else {
        return;
    };
    let mut running = Vec::new();
    // The first of them would leave no time for the others to be made.
    let all_there = Arc::new(Barrier::new(threads));
    for _ in 1..threads {
        let all_there = Arc::clone(&all_there);
        let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
            all_there.wait();
            loop {
                std::hint::spin_loop();
            }
        });
        running.push(thread.expect("there is room for a thread"));
    }
    all_there.wait();
    let first: Option<std::thread::JoinHandle<()>> = running.pop();
    // None ever does.
    let _ = first.map(std::thread::JoinHandle::join);
}

/// Not a test: threads that read of which control groups they are, and the state of the freezer
/// they are in where that has one, and start processes.
#[test]
fn reads_its_groups_where_it_is_told_to() {
    let Some(threads) = std::env::var(READS).ok().and_then(|count| count.parse::<usize>().ok()) else {
        return;
    };
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let freezer = groups.lines().find_map(|line| line.split_once(":freezer:"));
    let state = freezer.map(|(_, path)| format!("/sys/fs/cgroup/freezer{path}/freezer.state"));
    let running: Vec<_> = (0..threads)
        .map(|thread| {
            let state = state.clone();
            std::thread::spawn(move || {
                loop {
                    // What can't be read is not read.
                    let _groups = std::fs::read("/proc/self/cgroup");
                    let _state = state.as_ref().map(std::fs::read);
                    if thread == 0 {
                        let _child = Command::new("/bin/true").status();
                    }
                }
            })
        })
        .collect();
    running.into_iter().for_each(|thread: std::thread::JoinHandle<()>| drop(thread.join()));
}

fn of(table: &mut Table, id: &str) -> VtmReport {
    let report = table.report().expect("a report");
    report.vtms.into_iter().find(|vtm| vtm.id == id).expect("it is kept")
}

/// Looks after the table until `done`.
fn until(table: &mut Table, what: &str, mut done: impl FnMut(&mut Table) -> bool) {
    let begun = Instant::now();
    while !done(table) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        table.scan().expect("a scan");
        // tidy(sleep): a dispatcher looks every 20 ms.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Once threads kept their real-time class when their slot was over, until the kernel had frozen
/// them, and those started after admission cost what no switch was charged for: a neighbour lost
/// what six hundred threads took to stand still.
#[test]
fn a_neighbour_has_its_slots_whole_beside_hundreds_of_threads() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let group = format!("tombolo-test-floods-{}", std::process::id());
    let mut table = match Table::new(Config::new(folder.path(), group)) {
        Ok(table) => table,
        Err(error) => return println!("skipped: {error}"),
    };
    if table.ability().caveats.iter().any(|caveat| caveat.contains("no real-time class")) {
        return println!("skipped: no real-time class here");
    }
    let (flood, gold) = (Program::flood(), Program::spin());
    let vtm = |id: &str, program: &Program, budget_ms: u64| Vtm {
        members: Members::pids(&[program.0.id()]),
        ..Vtm::new(id, budget_ms * MS, 40 * MS)
    };
    let plan = Plan::new(vec![vtm("flood", &flood, 3), vtm("gold", &gold, 10)]);
    let prepared = table.prepare(&plan).expect("there is room");
    table.commit(&prepared).expect("it is kept");
    until(&mut table, "the flood has come", |table| of(table, "flood").threads >= THREADS);
    // What it takes to be charged for them, and to have slots of the table with that.
    let settled = Instant::now();
    until(&mut table, "its threads are charged for", |_| settled.elapsed() > Duration::from_millis(200));
    let mut kept = 0;
    for _ in 0..SPANS {
        let stolen = stolen_ns();
        let before = of(&mut table, "gold");
        let begun = Instant::now();
        until(&mut table, "the span is over", |_| begun.elapsed() > SPAN);
        let after = of(&mut table, "gold");
        let missing = missing_ns(&stolen);
        let (used, offered) = (after.used_ns - before.used_ns, after.offered_ns - before.offered_ns);
        println!("gold used {} of {} ms, {} may have been stolen", used / MS, offered / MS, missing / MS);
        println!("the flood: {:?}", of(&mut table, "flood"));
        // Its slots are longer than what it is promised by what a switch may cost.
        let promised = begun.elapsed().as_nanos() * 10 / 40;
        kept += usize::from(u128::from(used + missing) * 100 >= promised * 97);
    }
    assert!(kept * 2 > SPANS, "gold has what it is promised in {kept} of {SPANS} spans");
    let notes = of(&mut table, "flood").notes.join("; ");
    // At admission it had one. Where a change of class costs much, there is not room for all.
    let charged = notes.split_once("switches are charged for ").and_then(|(_, rest)| rest.split_once(':'));
    let charged = charged.map_or(THREADS, |(number, _)| number.parse().expect("a number"));
    assert!(charged >= THREADS / 4, "{notes}");
    table.release().expect("all is given back");
}

/// Whoever reads `/proc/self/cgroup` takes locks that whoever freezes and thaws takes too, slot by
/// slot.
#[test]
fn a_neighbour_has_its_slots_while_others_read_of_which_control_groups_they_are() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let group = format!("tombolo-test-locks-{}", std::process::id());
    let mut table = match Table::new(Config::new(folder.path(), group)) {
        Ok(table) => table,
        Err(error) => return println!("skipped: {error}"),
    };
    if table.ability().caveats.iter().any(|caveat| caveat.contains("no real-time class")) {
        return println!("skipped: no real-time class here");
    }
    let (other, gold) = (Program::spin(), Program::spin());
    let vtm = |id: &str, program: &Program, budget_ms: u64| Vtm {
        members: Members::pids(&[program.0.id()]),
        ..Vtm::new(id, budget_ms * MS, 40 * MS)
    };
    let plan = Plan::new(vec![vtm("other", &other, 3), vtm("gold", &gold, 10)]);
    let prepared = table.prepare(&plan).expect("there is room");
    table.commit(&prepared).expect("it is kept");
    let (mut readers, mut shares) = (Vec::new(), Vec::new());
    for beside in ["nobody", "readers"] {
        if beside == "readers" {
            readers.extend((0..4).map(|_| Program::reads_its_groups()));
        }
        let stolen = stolen_ns();
        let before = of(&mut table, "gold");
        let begun = Instant::now();
        until(&mut table, "the span is over", |_| begun.elapsed() > SPAN);
        let after = of(&mut table, "gold");
        let missing = if beside == "readers" { missing_ns(&stolen) } else { 0 };
        let used = after.used_ns - before.used_ns + missing;
        println!("beside {beside} gold used {} ms: {after:?}", used / MS);
        shares.push(u128::from(used) * 1000 * 40 / (begun.elapsed().as_nanos() * 10));
    }
    // A lock that is waited for in each slot of ten ms would cost more than one of them. Who else
    // is real-time on this machine takes of both.
    let [alone, beside] = *shares else { panic!("two spans") };
    assert!(
        beside * 10 >= alone.min(1000) * 9,
        "of 1000 it has {beside} beside readers, and {alone} beside nobody"
    );
    table.release().expect("all is given back");
}

/// Once each process that a fork loop started stayed in the ledger for as long as its machine was
/// kept, until no reader took the ledger any more.
#[test]
fn who_starts_processes_without_end_makes_no_ledger_without_end() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let group = format!("tombolo-test-ledger-{}", std::process::id());
    let mut table = match Table::new(Config::new(folder.path(), group)) {
        Ok(table) => table,
        Err(error) => return println!("skipped: {error}"),
    };
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do sh -c 'kill -0 $$'; done"]);
    let forks = Program::start(command);
    let vtm = Vtm {
        members: Members::pids(&[forks.0.id()]),
        // As where there is no freezer.
        outside: enforce::Outside::Stopped,
        ..Vtm::new("forks", 10 * MS, 20 * MS)
    };
    let prepared = table.prepare(&Plan::new(vec![vtm])).expect("there is room");
    table.commit(&prepared).expect("it is kept");
    let owed = || {
        let ledger = enforce::ledger::Ledger::open(folder.path()).expect("it can be read");
        let processes =
            ledger.debts().iter().filter(|debt| matches!(debt, enforce::ledger::Debt::Process { .. }));
        processes.count()
    };
    let (begun, mut most) = (Instant::now(), 0);
    until(&mut table, "the span is over", |_| {
        most = most.max(owed());
        begun.elapsed() > SPAN
    });
    assert!((1..=8).contains(&most), "{most} of those that have been there are in the ledger");
    table.release().expect("all is given back");
}
