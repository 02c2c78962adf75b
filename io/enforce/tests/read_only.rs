//! Where control groups can't be written, as in many containers: what is kept all the same, how,
//! and what is said of it.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use enforce::{Bandwidth, Config, Deadline, Enforcer, Members, Outside, Plan, Table, Vtm, hierarchy};
use rustix::mount::{MountFlags, MountPropagationFlags, mount_bind, mount_change, mount_remount};
use sys::schedule::Class;

const MS: u64 = 1_000_000;
/// How long what should come is waited for.
const TIMEOUT: Duration = Duration::from_secs(10);

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

    fn state(&self) -> char {
        enforce::members::state_and_start(self.pid()).expect("it is there").0
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        // A process that was stopped dies all the same.
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

/// Runs something where each hierarchy is mounted read-only: in a mount namespace that the thread
/// has for itself, with those that it starts. `None`, and said, where there is no such namespace.
fn read_only<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Err(error) = sys::namespace::unshare(sys::namespace::UnshareFlags::NEWNS) {
                println!("skipped: no mount namespace: {error}");
                return None;
            }
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("private");
            let mounted = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("mounts");
            let is_ours = |line: &&str| line.contains(" - cgroup");
            for place in mounted.lines().filter(is_ours).filter_map(|line| line.split(' ').nth(4)) {
                mount_bind(place, place).expect("once more");
                mount_remount(place, MountFlags::BIND | MountFlags::RDONLY, c"").expect("read-only");
            }
            Some(work())
        });
        thread.join().expect("it comes to an end")
    })
}

fn config(folder: &tempfile::TempDir) -> Config {
    Config::new(folder.path(), format!("tombolo-test-read-only-{}", std::process::id()))
}

fn vtm(id: &str, hog: &Hog, outside: Outside) -> Vtm {
    Vtm { members: Members::pids(&[hog.pid()]), outside, ..Vtm::new(id, 10 * MS, 40 * MS) }
}

fn cgroups_of(hog: &Hog) -> String {
    std::fs::read_to_string(format!("/proc/{}/cgroup", hog.pid())).expect("it is there")
}

#[test]
fn a_table_stops_by_signals_and_says_so_and_what_is_strict_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let hog = Hog::start();
    let before = (sys::schedule::affinity(hog.pid()).expect("it is there"), cgroups_of(&hog));
    read_only(|| {
        let mut table = Table::new(config(&folder)).expect("signals need no control groups");
        let caveats = table.ability().caveats.join("; ");
        if caveats.contains("no real-time class") {
            return println!("skipped: {caveats}");
        }
        assert!(caveats.contains("is read-only, so nobody is frozen"), "{caveats}");
        assert!(caveats.contains("nothing bounds the real time of jobs"), "{caveats}");
        let plan = Plan::new(vec![vtm("one", &hog, Outside::Held)]);
        let refused = table.prepare(&Plan { strict: true, ..plan.clone() }).expect_err("it is strict");
        assert!(refused.to_string().contains("is read-only"), "{refused}");
        let prepared = table.prepare(&plan).expect("it can be kept");
        let said = prepared.caveats.join("; ");
        assert!(said.contains("`one` has no freezer: it is held by signals"), "{said}");
        table.commit(&prepared).expect("it is put in force");
        // It runs in its slots and is stopped outside of them, and has about what it was promised.
        until("it is stopped", || hog.state() == 'T');
        until("it is let run", || {
            sys::schedule::class(hog.pid()).is_ok_and(Class::is_real_time) && hog.state() == 'R'
        });
        let now = |table: &mut Table| {
            let report = table.report().expect("a report");
            (report.at_ns, report.vtms[0].used_ns)
        };
        let begun = now(&mut table);
        until("a second passes", || now(&mut table).0 > begun.0 + 1_000 * MS);
        let ended = now(&mut table);
        let used = (ended.1 - begun.1) * 100 / (ended.0 - begun.0);
        assert!((15..=30).contains(&used), "{used} % of a processor, and 25 were promised");
        assert_eq!(cgroups_of(&hog), before.1, "nobody is moved about");
        table.release().expect("all is given back");
        until("it runs", || hog.state() == 'R');
        assert_eq!(sys::schedule::class(hog.pid()).expect("it is there"), Class::Other { nice: 0 });
        assert_eq!(sys::schedule::affinity(hog.pid()).expect("it is there"), before.0);
    });
}

/// A cgroup that somebody else has made is told by name, and can't be frozen from here.
#[test]
fn a_group_that_is_named_is_held_by_signals_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let hog = Hog::start();
    let Ok(found) = hierarchy::Hierarchies::discover() else { return println!("skipped: no mounts") };
    let Some(mount) = found.freezer.filter(|mount| !mount.is_read_only()) else {
        return println!("skipped: no freezer is ours");
    };
    let path = format!("tombolo-test-named-{}", std::process::id());
    let dir = mount.create(&path).expect("a cgroup");
    let home = mount.of_process(hog.pid()).expect("it is in one");
    hierarchy::write(&dir.join("cgroup.procs"), &hog.pid().to_string()).expect("it is put there");
    read_only(|| {
        let mut table = Table::new(config(&folder)).expect("signals need no control groups");
        if table.ability().caveats.join("; ").contains("no real-time class") {
            return println!("skipped: {}", table.ability().caveats.join("; "));
        }
        let vtm = Vtm { members: Members::cgroup(&path), ..Vtm::new("one", 10 * MS, 40 * MS) };
        let prepared = table.prepare(&Plan::new(vec![vtm])).expect("it can be kept");
        table.commit(&prepared).expect("it is put in force");
        until("it is stopped", || hog.state() == 'T');
        table.release().expect("all is given back");
        until("it runs", || hog.state() == 'R');
    });
    hierarchy::write(&home.join("cgroup.procs"), &hog.pid().to_string()).expect("it goes back");
    until("the cgroup is empty", || std::fs::remove_dir(&dir).is_ok());
}

#[test]
fn deadlines_need_no_control_groups_and_a_quota_says_what_it_lacks() {
    let (folder, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let hog = Hog::start();
    read_only(|| {
        let why = Bandwidth::new(config(&other)).expect_err("there is nowhere to write a quota").to_string();
        assert!(why.contains("is read-only, and a quota is written there"), "{why}");
        let mut deadline = match Deadline::new(config(&folder)) {
            Ok(deadline) => deadline,
            Err(error) => return println!("skipped: {error}"),
        };
        let prepared = deadline.prepare(&Plan::new(vec![vtm("one", &hog, Outside::Held)]));
        deadline.commit(&prepared.expect("it can be kept")).expect("it is put in force");
        assert!(matches!(sys::schedule::class(hog.pid()), Ok(Class::Deadline { .. })));
        deadline.release().expect("all is given back");
        assert_eq!(sys::schedule::class(hog.pid()).expect("it is there"), Class::Other { nice: 0 });
    });
}
