//! The usage of a cgroup, in both versions' files.

use super::{Cgroups, Version};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// The resources that a domain uses now and has used so far. A figure is absent where the kernel
/// does not account it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// How many enforcement periods ended with the domain being held back.
    pub throttled_periods: Option<u64>,
    /// For how long it was held back, in nanoseconds.
    pub throttled_ns: Option<u64>,
    /// Its memory.
    pub memory: Memory,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// Memory of a domain, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// In use now, page cache included.
    pub used_bytes: Option<u64>,
    /// The most that it ever used.
    pub peak_bytes: Option<u64>,
    /// The limit, if there is one.
    pub limit_bytes: Option<u64>,
    /// Processes that the kernel killed because of the limit.
    pub oom_kills: Option<u64>,
}

/// Version 1 says "no limit" by a number of whole pages near 2^63.
const NO_LIMIT_BYTES: u64 = 1 << 62;

pub(super) fn read(cgroups: &Cgroups, path: &str) -> Usage {
    let mut usage = Usage::default();
    read_cpu(cgroups, path, &mut usage);
    if let Some(h) = cgroups.with("memory") {
        usage.memory = read_memory(&h.mount.join(path), h.version);
    }
    usage.pids = cgroups.with("pids").and_then(|h| number(&h.mount.join(path).join("pids.current")));
    usage
}

fn read_cpu(cgroups: &Cgroups, path: &str, usage: &mut Usage) {
    let Some(h) = cgroups.with("cpu") else {
        usage.cpu_ns = cpuacct(cgroups, path);
        return;
    };
    let stat = h.mount.join(path).join("cpu.stat");
    usage.throttled_periods = keyed(&stat, "nr_throttled");
    if h.version == Version::Two {
        usage.cpu_ns = keyed(&stat, "usage_usec").map(|us| us.saturating_mul(1000));
        usage.throttled_ns = keyed(&stat, "throttled_usec").map(|us| us.saturating_mul(1000));
    } else {
        usage.cpu_ns = cpuacct(cgroups, path);
        usage.throttled_ns = keyed(&stat, "throttled_time");
    }
}

fn cpuacct(cgroups: &Cgroups, path: &str) -> Option<u64> {
    cgroups.with("cpuacct").and_then(|h| number(&h.mount.join(path).join("cpuacct.usage")))
}

fn read_memory(at: &Path, version: Version) -> Memory {
    match version {
        Version::Two => Memory {
            used_bytes: number(&at.join("memory.current")),
            peak_bytes: number(&at.join("memory.peak")),
            limit_bytes: number(&at.join("memory.max")),
            oom_kills: keyed(&at.join("memory.events"), "oom_kill"),
        },
        Version::One => Memory {
            used_bytes: number(&at.join("memory.usage_in_bytes")),
            peak_bytes: number(&at.join("memory.max_usage_in_bytes")),
            limit_bytes: number(&at.join("memory.limit_in_bytes")).filter(|&l| l < NO_LIMIT_BYTES),
            oom_kills: oom_kills_v1(at),
        },
    }
}

/// Version 1 counts a kill in the victim's own cgroup only, so the children's counts are added.
fn oom_kills_v1(at: &Path) -> Option<u64> {
    let own = keyed(&at.join("memory.oom_control"), "oom_kill")?;
    let children = super::directories(at);
    Some(
        own + children
            .iter()
            .filter_map(|c| keyed(&at.join(c).join("memory.oom_control"), "oom_kill"))
            .sum::<u64>(),
    )
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

pub(super) fn keyed(file: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let mut pairs = text.lines().filter_map(|l| l.split_once(' '));
    pairs.find(|(k, _)| *k == key).and_then(|(_, v)| v.trim().parse().ok())
}
