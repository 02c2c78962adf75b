//! Ending every process of a cgroup, whatever they do meanwhile.

use super::{Cgroups, Hierarchy, MAX_DEPTH, Version, directories, write};
use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long processes may take to die of SIGKILL; only one that hangs in the kernel takes longer.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one round waits for those that it killed, before it looks for new ones.
const ROUND: Duration = Duration::from_millis(500);
/// Rounds in which nobody is frozen.
const UNFROZEN_ROUNDS: u32 = 3;

impl Cgroups {
    /// Kills every process of the cgroup `path` and those below it, waits until all are gone, and
    /// tells how many there were.
    ///
    /// # Errors
    /// [`Error::StillAlive`] for processes that hang in the kernel.
    pub fn kill(&self, path: &str) -> Result<usize> {
        let deadline = Instant::now() + KILL_TIMEOUT;
        let mut killed = BTreeSet::new();
        let mut round = 0;
        loop {
            // Frozen processes of version 1 can't fork while they are killed one by one; version 2
            // kills at a stroke. Who fork no faster than they are killed are not frozen: were we
            // killed in between, they would stay, and no signal ends them, until somebody thaws
            // them.
            if round >= UNFROZEN_ROUNDS {
                self.each_freezer(path, "FROZEN");
            }
            // Before the stroke, behind which the quickest are gone.
            let victims = self.open_processes(path);
            self.kill_at_a_stroke(path);
            for (pid, fd) in &victims {
                killed.insert(*pid);
                // One that is gone already has what it was to get.
                let _gone = pidfd_send_signal(fd, Signal::KILL);
            }
            self.each_freezer(path, "THAWED");
            let left = self.processes(path);
            if victims.is_empty() && left.is_empty() {
                return Ok(killed.len());
            }
            if Instant::now() >= deadline {
                return Err(Error::StillAlive {
                    cgroup: path.to_owned(),
                    pids: left,
                    waited_ms: KILL_TIMEOUT.as_millis() as u64,
                });
            }
            wait_for_all(&victims, ROUND);
            round += 1;
        }
    }

    /// Descriptors of the cgroup's processes. Each is opened first and looked up again afterwards,
    /// so that a number which was reused in between can't get a stranger killed.
    fn open_processes(&self, path: &str) -> Vec<(u32, OwnedFd)> {
        let opened: Vec<(u32, OwnedFd)> = self
            .processes(path)
            .into_iter()
            .filter(|&pid| pid != std::process::id())
            .filter_map(|pid| {
                let fd = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
                Some((pid, fd))
            })
            .collect();
        let still = self.processes(path);
        opened.into_iter().filter(|(pid, _)| still.binary_search(pid).is_ok()).collect()
    }

    fn kill_at_a_stroke(&self, path: &str) {
        for Hierarchy { mount, .. } in self.hierarchies.iter().filter(|h| h.version == Version::Two) {
            let file = mount.join(path).join("cgroup.kill");
            let ours = std::process::id();
            let mut inside = Vec::new();
            super::collect(&mount.join(path), MAX_DEPTH, &mut inside);
            if file.exists() && !inside.contains(&ours) {
                // Linux before 5.14 lacks the file; those processes are killed one by one.
                let _ = write(&file, "1");
            }
        }
    }

    fn each_freezer(&self, path: &str, state: &str) {
        let freezers = self.hierarchies.iter().filter(|h| h.version == Version::One && h.has("freezer"));
        for freezer in freezers {
            set_freezer(&freezer.mount.join(path), state, MAX_DEPTH);
        }
    }
}

/// Children too: a runtime that was killed while it paused a container leaves that one frozen by
/// itself.
fn set_freezer(path: &Path, state: &str, depth: usize) {
    // A cgroup that is gone needs no freezing, and one that can't be frozen is killed in several
    // rounds.
    let _ = write(&path.join("freezer.state"), state);
    if depth > 0 && state == "THAWED" {
        directories(path).iter().for_each(|child| set_freezer(&path.join(child), state, depth - 1));
    }
}

fn wait_for_all(victims: &[(u32, OwnedFd)], timeout: Duration) {
    let deadline = Instant::now() + timeout;
    for (_, fd) in victims {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        // A failed wait only makes the next round come early.
        let _ = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&left));
    }
}
