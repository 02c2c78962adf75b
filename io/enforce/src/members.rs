//! Processes and their threads, by `/proc`: who is there, since when, and what they have used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Most threads of one virtual task machine that are looked after. Each costs some microseconds of
/// every look, and looks are nobody's budget; those beyond are ordinary threads.
pub const MAX_THREADS: usize = 1_024;
/// Most descendants of a process that are followed.
const MAX_DESCENDANTS: usize = reserve::dispatch::MAX_JOBS;
/// Most threads whose children are looked for at once: each is a file to be read.
const MAX_PARENT_THREADS: usize = 4 * MAX_THREADS;

/// The state of a process in `/proc/PID/stat`: its state's letter, and when it started, in ticks
/// since the boot.
#[must_use]
pub fn state_and_start(pid: u32) -> Option<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything, more of them too.
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Whether this number is still that process, and not a zombie.
#[must_use]
pub fn is_it(pid: u32, start: u64) -> bool {
    state_and_start(pid).is_some_and(|(state, begun)| begun == start && !matches!(state, 'Z' | 'X'))
}

/// Whether this number is still that process, or what has not been waited for of it: its first
/// thread may have ended before others.
#[must_use]
pub fn is_same(pid: u32, start: u64) -> bool {
    state_and_start(pid).is_some_and(|(_, begun)| begun == start)
}

/// The threads of a process.
#[must_use]
pub fn threads(pid: u32) -> Vec<u32> {
    threads_up_to(pid, usize::MAX)
}

/// So many of the threads of a process, the oldest first.
#[must_use]
pub fn threads_up_to(pid: u32, most: usize) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).take(most).collect()
}

/// All that a process has started, and they, that are still there.
#[must_use]
pub fn descendants(pid: u32) -> Vec<u32> {
    let (mut found, mut next) = (BTreeSet::new(), vec![pid]);
    let mut left = MAX_PARENT_THREADS;
    while let Some(parent) = next.pop() {
        let threads = threads_up_to(parent, left);
        left -= threads.len();
        for thread in threads {
            let path = format!("/proc/{parent}/task/{thread}/children");
            let text = fs::read_to_string(path).unwrap_or_default();
            for child in text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()) {
                if found.len() < MAX_DESCENDANTS && found.insert(child) {
                    next.push(child);
                }
            }
        }
    }
    found.into_iter().collect()
}

/// Processor time that a thread has used, in ns.
fn used_ns(pid: u32, thread: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
    text.split(' ').next()?.parse().ok()
}

/// The members of a virtual task machine, as last seen, and what all that were have used since they
/// were first seen.
#[derive(Debug, Clone, Default)]
pub struct Census {
    /// Each process with its threads.
    pub jobs: BTreeMap<u32, Vec<u32>>,
    /// When each process started, which its number alone does not say who it is.
    starts: BTreeMap<u32, u64>,
    /// Whether there are threads beyond those that are looked after.
    is_full: bool,
    used_ns: u64,
    last_ns: BTreeMap<u32, u64>,
    /// The time that each thread has used since the look before.
    gained_ns: BTreeMap<u32, u64>,
}

impl Census {
    /// Looks again. Returns whether somebody came or went.
    pub fn take(&mut self, processes: &[u32]) -> bool {
        let mut jobs = BTreeMap::new();
        let mut left = MAX_THREADS;
        (self.is_full, self.starts) = (false, BTreeMap::new());
        for &pid in processes {
            if jobs.len() >= reserve::dispatch::MAX_JOBS {
                self.is_full = true;
                break;
            }
            // A zombie has no threads that could run.
            let Some((state, start)) = state_and_start(pid) else { continue };
            if matches!(state, 'Z' | 'X') {
                continue;
            }
            // One more than there is room for tells that there is one more.
            let mut threads = threads_up_to(pid, left + 1);
            if threads.is_empty() {
                continue;
            }
            if threads.len() > left {
                self.is_full = true;
                threads.truncate(left);
            }
            left -= threads.len();
            threads.sort_unstable();
            self.starts.insert(pid, start);
            jobs.insert(pid, threads);
        }
        let mut last = BTreeMap::new();
        self.gained_ns.clear();
        for (pid, threads) in &jobs {
            for &thread in threads {
                let Some(now) = used_ns(*pid, thread) else { continue };
                let before = self.last_ns.get(&thread).copied();
                // A number that was reused begins anew.
                let gone_by = before.map_or(0, |before| now.saturating_sub(before));
                self.used_ns = self.used_ns.saturating_add(gone_by);
                self.gained_ns.insert(thread, gone_by);
                last.insert(thread, now);
            }
        }
        self.last_ns = last;
        let changed = jobs != self.jobs;
        self.jobs = jobs;
        changed
    }

    /// Processor time used while they were here, in ns.
    #[must_use]
    pub fn used_ns(&self) -> u64 {
        self.used_ns
    }

    /// The time that each thread has used between the last two looks, in ns.
    pub fn gained_ns(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.gained_ns.iter().map(|(thread, ns)| (*thread, *ns))
    }

    /// When a process that is in it has started, in ticks since the boot.
    #[must_use]
    pub fn start(&self, pid: u32) -> Option<u64> {
        self.starts.get(&pid).copied()
    }

    /// Whether there are more than [`MAX_THREADS`] threads, or more processes than are dispatched.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// How many threads there are, of those that are looked after.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.jobs.values().map(Vec::len).sum()
    }
}
