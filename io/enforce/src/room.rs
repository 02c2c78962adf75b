//! The room of the kernel's deadline class on this machine: its bound, and what others have of it.

use std::collections::BTreeSet;
use std::fs;

use reserve::DeadlineRoom;
use sys::schedule::Class;

use crate::hierarchy::{self, Hierarchies};
use crate::members;

/// Most of each processor that promises may have, in millionths: the kernel's bound is 95 % as it
/// is shipped, of which its server of ordinary threads has 5 where it has one.
const MAX_PPM: u64 = 900_000;
/// The share of each processor that stays with ordinary threads, in millionths: the kernel's own
/// server has it, or we leave it.
const KEPT_PPM: u64 = 50_000;

/// The room that it has for us. `ours`: threads whose share is ours already.
#[must_use]
pub fn room(processors: usize, ours: &BTreeSet<u32>) -> DeadlineRoom {
    let others = shares().into_iter().filter(|(thread, _)| !ours.contains(thread));
    let others_ppm = others.map(|(_, ppm)| ppm).fold(0, u64::saturating_add);
    DeadlineRoom { processors, most_ppm: most_ppm(), others_ppm }
}

/// The same for whoever knows those that are ours by their cgroups, as plans name them.
#[must_use]
pub fn deadline_room<'a>(cgroups: impl Iterator<Item = &'a str>) -> DeadlineRoom {
    let processors = crate::deadline::online().map_or(0, |online| online.len());
    let mut ours = BTreeSet::new();
    let mut cgroups = cgroups.peekable();
    // Where nothing can be found out, the threads of all count as others': that refuses more, and
    // nothing that was admitted fails.
    if cgroups.peek().is_some()
        && let Ok(hierarchies) = Hierarchies::discover()
        && let Some(mount) = hierarchies.membership()
    {
        let processes = cgroups.flat_map(|path| hierarchy::processes(&mount.path.join(path)));
        ours.extend(processes.flat_map(members::threads));
    }
    room(processors, &ours)
}

/// Most of each processor, in millionths, by what the kernel was told (`sched_rt_runtime_us` in
/// each `sched_rt_period_us`; -1: no bound).
fn most_ppm() -> u64 {
    let read = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<i64>().ok()
    };
    bound_ppm(read("sched_rt_runtime_us"), read("sched_rt_period_us"))
}

fn bound_ppm(runtime_us: Option<i64>, period_us: Option<i64>) -> u64 {
    let told = runtime_us.zip(period_us);
    let positive = |number: i64| u64::try_from(number).ok();
    let bound = told.and_then(|(runtime, period)| Some((positive(runtime)?, positive(period)?)));
    match bound.filter(|(_, period)| *period > 0) {
        Some((runtime, period)) => {
            let ppm = u128::from(runtime) * 1_000_000 / u128::from(period);
            u64::try_from(ppm).unwrap_or(MAX_PPM).saturating_sub(KEPT_PPM).min(MAX_PPM)
        }
        None => MAX_PPM,
    }
}

/// The threads of the class on this machine, each with its share in millionths, rounded up.
fn shares() -> Vec<(u32, u64)> {
    let mut found = Vec::new();
    let Ok(processes) = fs::read_dir("/proc") else { return found };
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for thread in numbers.flat_map(members::threads) {
        // One that has gone meanwhile has nothing.
        if let Ok(Class::Deadline { runtime_ns, period_ns, .. }) = sys::schedule::class(thread) {
            let ppm = (u128::from(runtime_ns) * 1_000_000).div_ceil(u128::from(period_ns.max(1)));
            found.push((thread, u64::try_from(ppm).unwrap_or(u64::MAX)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_kernels_without_what_stays_with_ordinary_threads() {
        for (runtime_us, period_us, ppm) in [
            (Some(950_000), Some(1_000_000), 900_000),
            (Some(500_000), Some(1_000_000), 450_000),
            (Some(1_000_000), Some(1_000_000), 900_000),
            (Some(0), Some(1_000_000), 0),
            (Some(-1), Some(1_000_000), 900_000),
            (Some(1), Some(0), 900_000),
            (None, None, 900_000),
        ] {
            assert_eq!(bound_ppm(runtime_us, period_us), ppm, "{runtime_us:?} in {period_us:?}");
        }
    }
}
