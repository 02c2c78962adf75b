//! Processes and their threads, by `/proc`: who is there, since when, and what they have used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Most threads of one virtual task machine that are looked after; more than [`reserve::dispatch::MOST_JOBS`] processes with one each have no place in it.
pub const MOST_THREADS: usize = 4 * reserve::dispatch::MOST_JOBS;
/// Most descendants of a process that are followed.
const MOST_DESCENDANTS: usize = reserve::dispatch::MOST_JOBS;

/// What `/proc/PID/stat` says of a process: its state's letter, and when it started, in ticks since the boot.
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

/// The threads of a process.
#[must_use]
pub fn threads(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// All that a process has started, and they, that are still there.
#[must_use]
pub fn descendants(pid: u32) -> Vec<u32> {
    let (mut found, mut next) = (BTreeSet::new(), vec![pid]);
    while let Some(parent) = next.pop() {
        for thread in threads(parent) {
            let path = format!("/proc/{parent}/task/{thread}/children");
            let text = fs::read_to_string(path).unwrap_or_default();
            for child in text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()) {
                if found.len() < MOST_DESCENDANTS && found.insert(child) {
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

/// Who is in a virtual task machine, as last seen, and what all that were have used since they were first seen.
#[derive(Debug, Clone, Default)]
pub struct Census {
    /// Each process with its threads.
    pub jobs: BTreeMap<u32, Vec<u32>>,
    used_ns: u64,
    last_ns: BTreeMap<u32, u64>,
    /// What each thread has used since the look before.
    gained_ns: BTreeMap<u32, u64>,
}

impl Census {
    /// Looks again. Returns whether somebody came or went.
    pub fn take(&mut self, processes: &[u32]) -> bool {
        let mut jobs = BTreeMap::new();
        let mut count = 0;
        for &pid in processes {
            // A zombie has no threads that could run.
            if state_and_start(pid).is_none_or(|(state, _)| matches!(state, 'Z' | 'X')) {
                continue;
            }
            let mut threads = threads(pid);
            threads.sort_unstable();
            count += threads.len();
            if count > MOST_THREADS || jobs.len() >= reserve::dispatch::MOST_JOBS {
                break;
            }
            if !threads.is_empty() {
                jobs.insert(pid, threads);
            }
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

    /// What each thread has used between the last two looks, in ns.
    pub fn gained_ns(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.gained_ns.iter().map(|(thread, ns)| (*thread, *ns))
    }

    /// How many threads there are.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.jobs.values().map(Vec::len).sum()
    }
}
