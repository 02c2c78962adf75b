//! The room that the kernel's deadline class is said to have is the room that it has: nobody who
//! was let in is told by the kernel that there is none, whatever others have.

use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};

use enforce::{Config, Deadline, Enforcer, Members, Outside, Plan, Vtm};
use reserve::{DeadlineRoom, Span};
use sys::schedule::Class;

const PERIOD_NS: u64 = 40_000_000;

/// One has all that there is.
static ALONE: Mutex<()> = Mutex::new(());

/// A process, ended with this.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self::of("sleep", &["60"])
    }

    fn of(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        sys::process::kill_with_parent(&mut command);
        sys::schedule::limit_processor_seconds(&mut command, 10);
        Self(command.spawn().expect("a process"))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A thread that is nobody's, and has that share of a processor by deadlines until `during` is
/// over. `None`: the kernel has no such share.
fn beside<T>(share_ppm: u64, during: impl FnOnce() -> T) -> Option<T> {
    let (tell, told) = mpsc::sync_channel(1);
    let (end, ended) = mpsc::sync_channel::<()>(1);
    let stranger = std::thread::spawn(move || {
        let runtime_ns = share_ppm * PERIOD_NS / 1_000_000;
        let class = Class::Deadline { runtime_ns, deadline_ns: PERIOD_NS, period_ns: PERIOD_NS };
        let has = share_ppm == 0 || sys::schedule::set_class(0, class).is_ok();
        tell.send(has).expect("somebody waits");
        // Its end is what it waits for.
        let _ = ended.recv();
        enforce::ledger::leave_real_time(0, Class::Other { nice: 0 }).expect("it may leave");
    });
    let done = told.recv().expect("it says").then(during);
    drop(end);
    stranger.join().expect("it ends");
    done
}

fn plan(sleepers: &[Sleeper; 2], budgets: [u64; 2]) -> Plan {
    let vtm = |(name, (sleeper, budget_ns)): (&str, (&Sleeper, u64))| Vtm {
        members: Members::pids(&[sleeper.0.id()]),
        ..Vtm::new(name, budget_ns, PERIOD_NS)
    };
    Plan::new(["one", "two"].into_iter().zip(sleepers.iter().zip(budgets)).map(vtm).collect())
}

/// Two tasks that take just as much as is left: half of it for the first.
fn all_of(room: DeadlineRoom) -> [u64; 2] {
    let of = |ppm: u64| ppm * PERIOD_NS / 1_000_000;
    let first = room.left_ppm() / 2;
    [of(first), of(room.left_ppm() - first)]
}

#[test]
fn who_is_let_in_is_never_told_that_there_is_no_room_and_who_is_not_is_told_what_would_pass() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let group = format!("tombolo-test-deadlines-{}", std::process::id());
    let mut deadline = match Deadline::new(Config::new(folder.path(), group)) {
        Ok(deadline) => deadline,
        Err(error) => return println!("skipped: {error}"),
    };
    let sleepers = [Sleeper::start(), Sleeper::start()];
    let mut put = |budgets: [u64; 2]| -> enforce::Result<()> {
        let plan = plan(&sleepers, budgets);
        let prepared = deadline.prepare(&plan)?;
        let done = deadline.commit(&prepared).map(drop);
        deadline.release()?;
        // Refused by the kernel, and not by us, is what must not be.
        done.expect("it was let in");
        Ok(())
    };
    for share_ppm in [0, 1_000, 33_333, 250_000, 700_001] {
        let tried = beside(share_ppm, || {
            let room = enforce::deadline_room(std::iter::empty());
            assert!(room.others_ppm >= share_ppm, "{share_ppm}: {room:?}");
            let [first, second] = all_of(room);
            put([first, second]).expect("there is just enough");
            let why = put([first, second + 1_000_000]).expect_err("that is too much").to_string();
            assert!(why.contains("deadlines for `one`, `two` would have"), "{why}");
            assert!(why.contains("and the kernel leaves its deadline class"), "{why}");
            let passes = format!("it would pass with a budget of {} for `two`", Span(second));
            assert!(why.contains(&passes), "{passes}: {why}");
            assert_eq!(why.contains("of which others on this machine have"), room.others_ppm > 0, "{why}");
        });
        assert!(tried.is_some(), "the kernel refuses {share_ppm} ppm of its deadline class to a stranger");
    }
}

/// The bound is not just a small one: somewhat more than that is refused by the kernel itself.
#[test]
fn what_is_left_is_about_what_the_kernel_has() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let room = enforce::deadline_room(std::iter::empty());
    if beside(10_000, || ()).is_none() {
        return println!("skipped: the kernel has no deadlines for us");
    }
    let processors = u64::try_from(room.processors).expect("a number of processors");
    // 5 % of each, where the kernel has no server for ordinary threads; and what is not one
    // thread's.
    let threads = room.left_ppm().div_ceil(900_000) + processors;
    let share_ppm = (room.left_ppm() + 60_000 * processors) / threads;
    fn all(threads: u64, share_ppm: u64) -> bool {
        threads == 0 || beside(share_ppm, || all(threads - 1, share_ppm)).unwrap_or(false)
    }
    assert!(!all(threads, share_ppm), "{threads} threads have {share_ppm} ppm each, and {room:?} was all");
}

/// Once `idle` and `fair` took what the class left (`SCHED_FLAG_RECLAIM`), before all ordinary
/// threads: a quota of 85 % beside one of them had 54 % of a processor, and was told as kept.
#[test]
fn nobody_outside_of_a_budget_goes_before_quotas_and_ordinary_threads() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let group = format!("tombolo-test-outside-{}", std::process::id());
    let mut deadline = match Deadline::new(Config::new(folder.path(), group)) {
        Ok(deadline) => deadline,
        Err(error) => return println!("skipped: {error}"),
    };
    let hog = Sleeper::of("sh", &["-c", "while :; do :; done"]);
    let vtm = |outside| Vtm {
        members: Members::pids(&[hog.0.id()]),
        outside,
        ..Vtm::new("hog", PERIOD_NS / 4, PERIOD_NS)
    };
    for outside in [Outside::Idle, Outside::Fair] {
        let refused = deadline.prepare(&Plan::new(vec![vtm(outside)])).expect_err("that can't be had");
        assert!(refused.to_string().contains("take `held`, or a table for `idle` and `fair`"), "{refused}");
    }
    for outside in [Outside::Held, Outside::Stopped] {
        let prepared = deadline.prepare(&Plan::new(vec![vtm(outside)])).expect("that is what there is");
        deadline.commit(&prepared).expect("it is kept");
        let class = sys::schedule::class(hog.0.id()).expect("it is there");
        assert!(matches!(class, Class::Deadline { .. }), "{class:?}");
    }
    // Linux 6.18 takes back the share of one that dies out of its budget twice, now and then, and
    // lets in too much from then on.
    deadline.release().expect("all is given back");
}
