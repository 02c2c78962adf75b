//! Weights of cgroups: the share of a processor that the kernel gives each while several want it.

use super::{Cgroups, Hierarchy, Version, directories, write};
use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The weight that a cgroup is made with, and that a thread directly in the parent of one has, in
/// thousandths of it: the unit of weights here.
pub const USUAL_WEIGHT: u64 = 1_000;
/// The same in the kernel's numbers of version 1, and the most that it takes.
const USUAL_SHARES: u64 = 1_024;
const MAX_SHARES: u64 = 262_144;
/// The same two of version 2.
const USUAL_WEIGHT_2: u64 = 100;
const MAX_WEIGHT_2: u64 = 10_000;
/// How many threads of one cgroup are looked at, at most, to see which of them want to run.
const MAX_THREADS: usize = 16_384;

/// The wish for a processor of those directly below a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demand {
    /// The weights of the cgroups there, in thousandths of the usual one.
    pub groups: u64,
    /// The number of threads there, in none of those cgroups, that run or wait for a processor.
    pub threads: u64,
}

/// The numbers of a hierarchy: the file, the usual weight and the greatest one.
const fn numbers(version: Version) -> (&'static str, u64, u64) {
    match version {
        Version::One => ("cpu.shares", USUAL_SHARES, MAX_SHARES),
        Version::Two => ("cpu.weight", USUAL_WEIGHT_2, MAX_WEIGHT_2),
    }
}

impl Cgroups {
    /// Gives the cgroup `path` a weight, in thousandths of the usual one ([`USUAL_WEIGHT`]);
    /// `None`: the greatest that the kernel takes, as it is where more is asked.
    ///
    /// # Errors
    /// [`Error::Controller`] where there is no such controller; [`Error::File`] when the kernel
    /// refuses.
    pub fn weigh(&self, path: &str, weight: Option<u64>) -> Result<()> {
        let hierarchy =
            self.with("cpu").ok_or(Error::Controller { what: "processor time", controller: "cpu" })?;
        let (file, usual, max) = numbers(hierarchy.version);
        let of = |weight: u64| u128::from(weight) * u128::from(usual) / u128::from(USUAL_WEIGHT);
        let value = weight.map_or(max, |weight| u64::try_from(of(weight)).unwrap_or(max).clamp(1, max));
        write(&hierarchy.mount.join(path).join(file), &value.to_string())
    }

    /// The wish for a processor of those directly below the cgroup `path` (`""`: the root), less
    /// the cgroups of these names.
    #[must_use]
    pub fn demand(&self, path: &str, without: &BTreeSet<&str>) -> Demand {
        let Some(hierarchy) = self.with("cpu") else { return Demand::default() };
        let at = hierarchy.mount.join(path);
        let others = directories(&at).into_iter().filter(|name| !without.contains(name.as_str()));
        let weights = others.filter_map(|name| weight(hierarchy, &at.join(name)));
        Demand { groups: weights.fold(0, u64::saturating_add), threads: runnable(hierarchy, &at) }
    }
}

fn weight(hierarchy: &Hierarchy, at: &Path) -> Option<u64> {
    let (file, usual, _) = numbers(hierarchy.version);
    Some(super::share::read_number(&at.join(file))?.saturating_mul(USUAL_WEIGHT) / usual)
}

/// The number of threads of the whole machine that run, or wait for a processor.
fn running() -> Option<u64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

/// The number of threads directly in a cgroup that run, or wait for a processor.
fn runnable(hierarchy: &Hierarchy, at: &Path) -> u64 {
    let file = match hierarchy.version {
        Version::One => "tasks",
        Version::Two => "cgroup.threads",
    };
    let text = fs::read_to_string(at.join(file)).unwrap_or_default();
    // Whoever asks runs; where nobody else does, nobody has to be looked at.
    if let Some(all @ 0..=1) = running() {
        return if text.is_empty() { 0 } else { all };
    }
    let wants = |thread: &&str| {
        // `TID (NAME) STATE …`, and the name may have any bytes.
        let line = thread.parse::<u32>().ok().and_then(|id| fs::read(format!("/proc/{id}/stat")).ok());
        line.is_some_and(|line| {
            let end = line.iter().rposition(|&byte| byte == b')');
            end.and_then(|end| line.get(end + 2)) == Some(&b'R')
        })
    };
    u64::try_from(text.lines().take(MAX_THREADS).filter(wants).count()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_told_and_read_in_the_numbers_of_both_versions() {
        for (line, usual, double, max) in [
            ("31 23 0:28 / /sys/fs/cgroup rw - cgroup cgroup rw,cpu\n", "1024", "2048", "262144"),
            ("31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "100", "200", "10000"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().join("sys/fs/cgroup");
            let file = if line.contains("cgroup2") { "cpu.weight" } else { "cpu.shares" };
            for name in ["a", "b", "c"] {
                fs::create_dir_all(root.join(name)).unwrap();
                fs::write(root.join(name).join(file), usual).unwrap();
            }
            fs::write(root.join("cgroup.controllers"), "cpu\n").unwrap();
            let cgroups = Cgroups::from_mountinfo(line, dir.path());
            let told = |name: &str, weight: Option<u64>| {
                // A file of the kernel's is never longer than what was written last.
                fs::write(root.join(name).join(file), "").unwrap();
                cgroups.weigh(name, weight).unwrap();
                fs::read_to_string(root.join(name).join(file)).unwrap()
            };
            assert_eq!(told("a", Some(2 * USUAL_WEIGHT)), double);
            assert_eq!(told("b", None), max);
            assert_eq!(told("b", Some(u64::MAX)), max);
            assert_eq!(told("c", Some(0)), "1");
            assert_eq!(told("c", Some(USUAL_WEIGHT)), usual);
            let demand = cgroups.demand("", &BTreeSet::from(["b"]));
            assert_eq!(demand, Demand { groups: 3 * USUAL_WEIGHT, threads: 0 });
        }
    }

    #[test]
    fn threads_that_run_are_told_from_those_that_sleep() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("sys/fs/cgroup");
        fs::create_dir_all(&root).unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        // This very thread runs while it looks; the sleeper does not, once it is past exec.
        while fs::read_to_string(format!("/proc/{}/comm", sleeper.id())).unwrap().trim() != "sleep"
            || fs::read_to_string(format!("/proc/{}/stat", sleeper.id())).unwrap().contains(") R ")
        {
            std::thread::yield_now();
        }
        let own = rustix::thread::gettid().as_raw_nonzero();
        fs::write(root.join("tasks"), format!("{own}\n{}\nnonsense\n4294967295\n", sleeper.id())).unwrap();
        let line = "31 23 0:28 / /sys/fs/cgroup rw - cgroup cgroup rw,cpu\n";
        let demand = Cgroups::from_mountinfo(line, dir.path()).demand("", &BTreeSet::new());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(demand, Demand { groups: 0, threads: 1 });
    }
}
