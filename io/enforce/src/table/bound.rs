//! The control group that bounds the real time of all jobs together, and what is missing without
//! it.

use super::Config;
use crate::error::Result;
use crate::hierarchy::{self, Hierarchies, Version};
use crate::ledger::{Debt, Ledger};
use std::path::PathBuf;

/// The abilities that can't be had where the hierarchy that freezes is not ours to write.
pub(super) fn without_control_groups(hierarchies: &Hierarchies) -> Option<String> {
    let freezer = hierarchies.freezer.as_ref().filter(|mount| mount.is_read_only())?;
    Some(format!(
        "{} is read-only, so nobody is frozen: who is held is stopped by signals, which its parents see, and what it starts runs free for some moments; mount the control groups writable to have whole groups held",
        freezer.path.display()
    ))
}

/// The cgroup that bounds the real time of all jobs, where the kernel has that (version 1,
/// `CONFIG_RT_GROUP_SCHED`).
pub(super) fn make_bound(
    hierarchies: &Hierarchies,
    config: &Config,
    ledger: &mut Ledger,
    caveats: &mut Vec<String>,
) -> Result<Option<PathBuf>> {
    let unbounded = "should the dispatcher and its guardian die in the same moment, the kernel alone bounds jobs that are real-time then, all together, to 95 % of each processor";
    let there = hierarchies
        .cpu
        .as_ref()
        .filter(|cpu| cpu.version == Version::One && cpu.path.join("cpu.rt_runtime_us").exists());
    let Some(cpu) = there else {
        caveats.push(format!("this kernel has no real-time bandwidth for cgroups: {unbounded}"));
        return Ok(None);
    };
    if cpu.is_read_only() {
        caveats.push(format!(
            "{} is read-only, so nothing bounds the real time of jobs: {unbounded}",
            cpu.path.display()
        ));
        return Ok(None);
    }
    let path = format!("{}+jobs", config.group);
    let dir = cpu.path.join(&path);
    ledger.owe(vec![
        // Paid last: the kernel counts the time of a cgroup that was removed for some moments more,
        // and it would be missing elsewhere.
        Debt::File { path: dir.join("cpu.rt_runtime_us"), value: "0".to_owned() },
        Debt::Made { dir: dir.clone() },
        Debt::Move { from: dir.clone(), to: cpu.path.clone() },
        Debt::Group { dir: dir.clone(), affinity: Vec::new() },
    ])?;
    cpu.create(&path)?;
    match hierarchy::write(&dir.join("cpu.rt_runtime_us"), "1000") {
        Ok(()) => Ok(Some(dir)),
        Err(error) => {
            caveats.push(format!("no real-time bandwidth is left for a cgroup ({error}): {unbounded}"));
            Ok(None)
        }
    }
}
