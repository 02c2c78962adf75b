//! The resources of everything of a node, as the kernel counts them: its daemon, its monitors, and
//! all in its control groups.

use crate::control_group::{self, ROOT, keyed, number};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The resources that a node uses at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory that its control groups are charged, kernel memory included, and the proportional
    /// share of its processes outside of them.
    pub memory_bytes: u64,
    /// Open descriptors of its processes.
    pub descriptors: u64,
    /// Threads of its processes.
    pub threads: u64,
    /// Context switches so far, by thread.
    switches: BTreeMap<PathBuf, u64>,
}

impl Usage {
    /// Reads it; `None` where the node has no control group.
    #[must_use]
    pub fn of_node(run_dir: &Path) -> Option<Self> {
        let within = pids_of_groups(run_dir);
        let mut usage = Self { memory_bytes: charged_bytes(run_dir)?, ..Self::default() };
        let outside = processes(run_dir).filter(|process| !within.contains(process));
        for process in outside.collect::<Vec<_>>() {
            usage.memory_bytes += proportional_bytes(&process).unwrap_or(0);
            usage.add(&process);
        }
        within.iter().for_each(|process| usage.add(process));
        Some(usage)
    }

    fn add(&mut self, process: &Path) {
        let entries = |folder: &str| fs::read_dir(process.join(folder)).into_iter().flatten().flatten();
        self.descriptors += entries("fd").count() as u64;
        for thread in entries("task") {
            self.threads += 1;
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            let of = |key| keyed(&status, key).unwrap_or(0);
            let switches = of("voluntary_ctxt_switches:") + of("nonvoluntary_ctxt_switches:");
            self.switches.insert(thread.path(), switches);
        }
    }

    /// Context switches since `before`, of the threads that both have.
    #[must_use]
    pub fn switches_since(&self, before: &Self) -> u64 {
        let grown =
            self.switches.iter().filter_map(|(thread, now)| now.checked_sub(*before.switches.get(thread)?));
        grown.sum()
    }
}

/// The bytes that the control groups of a node are charged.
#[must_use]
pub fn charged_bytes(run_dir: &Path) -> Option<u64> {
    let name = control_group::of_node(run_dir)?;
    let usage = [format!("memory/{name}/memory.usage_in_bytes"), format!("{name}/memory.current")];
    usage.iter().find_map(|path| number(&Path::new(ROOT).join(path)))
}

/// Proportional share of the memory of the node's daemon.
#[must_use]
pub fn daemon_bytes(run_dir: &Path) -> Option<u64> {
    proportional_bytes(&processes(run_dir).find(|process| is_daemon(process))?)
}

fn proportional_bytes(process: &Path) -> Option<u64> {
    let text = fs::read_to_string(process.join("smaps_rollup")).ok()?;
    Some(keyed(&text, "Pss:")? * 1024)
}

/// The folders under `/proc` of all processes in the node's control groups.
fn pids_of_groups(run_dir: &Path) -> Vec<PathBuf> {
    let Some(name) = control_group::of_node(run_dir) else { return Vec::new() };
    let tops = [Path::new(ROOT).join("memory").join(&name), Path::new(ROOT).join(&name)];
    let mut folders: Vec<PathBuf> = tops.into_iter().find(|top| top.exists()).into_iter().collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        let pids = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        found.extend(pids.lines().map(|pid| Path::new("/proc").join(pid)));
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
        folders.extend(entries.filter(|path| path.is_dir()));
    }
    found
}

/// The folders under `/proc` of all processes of the node with this run directory: their command
/// line or their environment speaks of it.
fn processes(run_dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(move |process| {
        ["cmdline", "environ"]
            .iter()
            .any(|file| speaks_of(&fs::read(process.join(file)).unwrap_or_default(), run_dir))
    })
}

fn speaks_of(text: &[u8], path: &Path) -> bool {
    let needle = path.as_os_str().as_encoded_bytes();
    text.windows(needle.len()).any(|found| found == needle)
}

fn is_daemon(process: &Path) -> bool {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    let mut words = line.split(|&byte| byte == 0);
    words.next().is_some_and(|program| program.ends_with(b"tombolo")) && words.any(|word| word == b"daemon")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_no_daemon() {
        assert!(!is_daemon(Path::new("/proc/self")));
        assert_eq!(processes(Path::new("/nowhere/in/particular")).count(), 0);
    }

    #[test]
    fn a_process_is_counted_with_its_threads_and_descriptors() {
        let mut usage = Usage::default();
        usage.add(Path::new("/proc/self"));
        let _held = fs::File::open("/proc/self/stat").expect("it opens");
        let mut later = Usage::default();
        later.add(Path::new("/proc/self"));
        assert!(usage.threads >= 1 && later.descriptors > 0 && usage.memory_bytes == 0);
        // Threads that only one of both has do not count.
        assert_eq!(later.switches_since(&Usage::default()), 0);
    }
}
