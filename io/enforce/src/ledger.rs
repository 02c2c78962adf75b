//! The debts: everything that was done to processes, written down before it is done, so that
//! whoever comes after a death can give it back.
//!
//! The file is replaced as a whole. It is of this boot of the kernel: after another one nothing is
//! owed.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use sys::schedule::Class;

use crate::error::{Context, EnforceError, Result};
use crate::hierarchy::{self, Freezer, Version};
use crate::members;

/// Version of the file's layout.
const LAYOUT: u32 = 1;
/// Longest ledger that is read: more debts than [`crate::MAX_VTMS`] machines with
/// [`crate::MAX_PIDS`] processes can have is a broken file.
const MAX_BYTES: u64 = 256 << 20;
/// The file's name in its folder.
const NAME: &str = "owed.json";
/// How often processes are looked for that came while others were given back.
const ROUNDS: usize = 3;
/// How long the removal of a cgroup of ours is tried: the kernel lets go of a moved or dead task a
/// moment later.
const REMOVE_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause between two such attempts.
const REMOVE_PAUSE: Duration = Duration::from_millis(2);

/// One thing to give back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Debt {
    /// All threads of the processes in this cgroup: out of real time, and on these processors.
    Group {
        /// The cgroup.
        dir: PathBuf,
        /// Where its threads could run.
        affinity: Vec<u32>,
    },
    /// One process.
    Process {
        /// Its number,
        pid: u32,
        /// and when it started, so that nobody else of that number is meant.
        start: u64,
        /// Its nice value.
        nice: i32,
        /// Where its threads could run.
        affinity: Vec<u32>,
        /// In which cgroups it was.
        homes: Vec<PathBuf>,
        /// Whether it may be stopped.
        stopped: bool,
    },
    /// A cgroup that may be frozen.
    Frozen {
        /// Its directory.
        dir: PathBuf,
        /// Of which version.
        two: bool,
    },
    /// The processes in `from` go to `to`, which may be of another hierarchy. A later debt is given
    /// back first.
    Move {
        /// The cgroup by which they are found.
        from: PathBuf,
        /// Where they belong.
        to: PathBuf,
    },
    /// The former value of a file.
    File {
        /// The file.
        path: PathBuf,
        /// The value.
        value: String,
    },
    /// A cgroup that we made.
    Made {
        /// Its directory.
        dir: PathBuf,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Page {
    layout: u32,
    boot: String,
    debts: Vec<Debt>,
}

/// The file.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    debts: Vec<Debt>,
}

impl Ledger {
    /// That of a folder, which is made; what it says was owed by whoever was there before.
    ///
    /// # Errors
    /// When the folder can't be made or the file not read.
    pub fn open(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).at("make", folder)?;
        let path = folder.join(NAME);
        let debts = load(&path)?;
        Ok(Self { path, debts })
    }

    /// The debts.
    #[must_use]
    pub fn debts(&self) -> &[Debt] {
        &self.debts
    }

    /// Adds what is about to be owed. A debt that stands there already for the same thing stays as
    /// it is: the first one knows how it was.
    ///
    /// # Errors
    /// When it can't be written; then nothing may be done.
    pub fn owe(&mut self, debts: Vec<Debt>) -> Result<()> {
        let before = self.debts.len();
        for debt in debts {
            if !self.debts.iter().any(|known| known.is_of(&debt)) {
                self.debts.push(debt);
            }
        }
        if self.debts.len() == before {
            return Ok(());
        }
        self.store().inspect_err(|_| self.debts.truncate(before))
    }

    /// Notes that these processes may be stopped by signals from now on.
    ///
    /// # Errors
    /// When it can't be written; then nothing may be done.
    pub fn mark_stopped(&mut self, pids: &[u32]) -> Result<()> {
        let mut changed = false;
        for debt in &mut self.debts {
            if let Debt::Process { pid, stopped, .. } = debt
                && pids.contains(pid)
                && !*stopped
            {
                (*stopped, changed) = (true, true);
            }
        }
        if changed { self.store() } else { Ok(()) }
    }

    /// Strikes out what has been given back, or is nobody's any more.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn strike(&mut self, given_back: impl Fn(&Debt) -> bool) -> Result<()> {
        let before = self.debts.len();
        self.debts.retain(|debt| !given_back(debt));
        if self.debts.len() == before { Ok(()) } else { self.store() }
    }

    /// Gives everything back, and strikes it out. What can't be given back is told, and all else is
    /// given back all the same.
    ///
    /// # Errors
    /// The first of them, or where the file can't be written.
    pub fn pay(&mut self) -> Result<usize> {
        let debts = std::mem::take(&mut self.debts);
        let first = pay(&debts);
        self.store()?;
        first.map(|()| debts.len())
    }

    /// Gives back what is owed to one virtual task machine, and strikes it out.
    ///
    /// # Errors
    /// As [`Ledger::pay`].
    pub fn pay_some(&mut self, is_its: impl Fn(&Debt) -> bool) -> Result<()> {
        let its: Vec<Debt> = self.debts.iter().filter(|debt| is_its(debt)).cloned().collect();
        let paid = pay(&its);
        self.strike(|debt| its.contains(debt))?;
        paid
    }

    fn store(&self) -> Result<()> {
        let page = Page { layout: LAYOUT, boot: boot(), debts: self.debts.clone() };
        let text = serde_json::to_vec(&page).map_err(io::Error::from).at("encode", &self.path)?;
        let new = self.path.with_extension("new");
        let mut file = fs::File::create(&new).at("make", &new)?;
        file.write_all(&text).at("write to", &new)?;
        // No wait for the disk: after a crash of the machine nothing is owed.
        fs::rename(&new, &self.path).at("rename", &new)
    }
}

/// Gives back what a ledger's file says is owed, without changing the file: what the guardian does,
/// quickly.
///
/// # Errors
/// As [`Ledger::pay`].
pub fn pay_from(folder: &Path) -> Result<usize> {
    let debts = load(&folder.join(NAME))?;
    pay(&debts).map(|()| debts.len())
}

fn load(path: &Path) -> Result<Vec<Debt>> {
    let mut text = Vec::new();
    match fs::File::open(path) {
        Ok(file) => file.take(MAX_BYTES).read_to_end(&mut text).at("read", path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).at("open", path),
    };
    let page: Page = serde_json::from_slice(&text).map_err(io::Error::from).at("understand", path)?;
    if page.layout != LAYOUT {
        let why = format!("{} has layout {}, and we know {LAYOUT}", path.display(), page.layout);
        return Err(EnforceError::Dispatcher(why));
    }
    Ok(if page.boot == boot() { page.debts } else { Vec::new() })
}

fn boot() -> String {
    // Without /proc there is one boot for all.
    hierarchy::read(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default()
}

impl Debt {
    fn is_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Group { dir, .. }, Self::Group { dir: there, .. })
            | (Self::Frozen { dir, .. }, Self::Frozen { dir: there, .. })
            | (Self::Made { dir }, Self::Made { dir: there }) => dir == there,
            (Self::Process { pid, start, .. }, Self::Process { pid: number, start: begun, .. }) => {
                (pid, start) == (number, begun)
            }
            (Self::File { path, .. }, Self::File { path: there, .. }) => path == there,
            (Self::Move { from, to }, Self::Move { from: there, to: home }) => (from, to) == (there, home),
            _ => false,
        }
    }
}

/// First whoever has real time loses it, then everybody may run, then the rest. Each of it can be
/// done twice.
fn pay(debts: &[Debt]) -> Result<()> {
    let mut first = Ok(());
    let mut note = |result: Result<()>| {
        if let Err(error) = result {
            tracing::warn!(%error, "could not give back");
            if first.is_ok() {
                first = Err(error);
            }
        }
    };
    for _ in 0..ROUNDS {
        for debt in debts {
            match debt {
                Debt::Group { dir, affinity } => {
                    hierarchy::processes(dir).into_iter().for_each(|pid| out_of_real_time(pid, 0, affinity));
                }
                Debt::Process { pid, start, nice, affinity, .. } if members::is_it(*pid, *start) => {
                    out_of_real_time(*pid, *nice, affinity);
                }
                _ => {}
            }
        }
        debts.iter().for_each(let_run);
    }
    for debt in debts.iter().rev() {
        match debt {
            Debt::Process { pid, start, homes, .. } if members::is_it(*pid, *start) => {
                for home in homes.iter().filter(|home| home.is_dir()) {
                    note(absent_is_fine(hierarchy::write(&home.join("cgroup.procs"), &pid.to_string())));
                }
            }
            Debt::Move { from, to } => {
                for pid in hierarchy::processes(from) {
                    note(absent_is_fine(hierarchy::write(&to.join("cgroup.procs"), &pid.to_string())));
                }
            }
            Debt::File { path, value } => note(absent_is_fine(hierarchy::write(path, value))),
            _ => {}
        }
    }
    for debt in debts.iter().rev() {
        if let Debt::Made { dir } = debt {
            note(remove(dir));
        }
    }
    first
}

fn out_of_real_time(pid: u32, nice: i32, affinity: &[u32]) {
    for thread in members::threads(pid) {
        // One that is gone needs nothing.
        let _ = leave_real_time(thread, Class::Other { nice });
        if !affinity.is_empty() {
            let _ = sys::schedule::set_affinity(thread, affinity);
        }
    }
}

/// Least and longest that a deadline thread can have: so small a share that the kernel counts it as
/// nothing (below 2^-20).
const LEAST_DEADLINE: Class =
    Class::Deadline { runtime_ns: 1024, deadline_ns: 4_000_000_000, period_ns: 4_000_000_000 };

/// Puts a thread into an ordinary class. One of the deadline class goes by way of a share that
/// counts as nothing: the kernel forgets to take back the share of a thread that leaves the class
/// asleep, and so it forgets nothing.
///
/// # Errors
/// The kernel's.
pub fn leave_real_time(thread: u32, to: Class) -> io::Result<()> {
    let now = sys::schedule::class(thread)?;
    if matches!(now, Class::Deadline { .. }) {
        match sys::schedule::set_class(thread, LEAST_DEADLINE) {
            // A kernel that has let in more than it has (Linux 6.18 takes back the share of some
            // that die twice) refuses even a smaller share. To leave is never refused.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            other => other?,
        }
    }
    if now.is_real_time() && !matches!(to, Class::Other { .. }) {
        sys::schedule::set_class(thread, Class::Other { nice: 0 })?;
    }
    sys::schedule::set_class(thread, to)
}

fn let_run(debt: &Debt) {
    match debt {
        Debt::Frozen { dir, two } => {
            let version = if *two { Version::Two } else { Version::One };
            // A cgroup that is gone holds nobody.
            let _ = hierarchy::write(&dir.join(Freezer::name(version)), Freezer::word(version, false));
        }
        Debt::Process { pid, start, stopped: true, .. } if members::is_it(*pid, *start) => {
            let _ = sys::process::kill(*pid, Signal::CONT);
            for child in members::descendants(*pid) {
                let _ = sys::process::kill(child, Signal::CONT);
            }
        }
        _ => {}
    }
}

/// Takes the absence of an object for success: an object that vanished needs nothing from us.
fn absent_is_fine(result: Result<()>) -> Result<()> {
    match result {
        Err(EnforceError::File { ref source, .. })
            if source.kind() == io::ErrorKind::NotFound
                || source.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
                || source.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) =>
        {
            Ok(())
        }
        other => other,
    }
}

fn remove(dir: &Path) -> Result<()> {
    let end = Instant::now() + REMOVE_TIMEOUT;
    loop {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error())
                    && Instant::now() < end =>
            {
                // tidy(sleep): version 1 has no event for a cgroup becoming empty; bounded by
                // REMOVE_TIMEOUT
                std::thread::sleep(REMOVE_PAUSE);
            }
            Err(error) => return Err(error).at("remove cgroup", dir),
        }
    }
}
