//! The actuator of promises on this node: it writes the kernel's control groups as the reservation
//! table says.

use super::weights::{Share, Weights};
use domain::{Cgroups, Device, Quota, QuotaFile};
use reserve::node::Promise;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How often a quota that somebody else has set is set back, before it is only told: whoever sets
/// it more often than that means it.
const MAX_RESTORED: u32 = 3;

/// Keeps promises of whoever is in a cgroup.
#[derive(Debug)]
pub(crate) struct Actuator {
    cgroups: Cgroups,
    /// The cgroup of all domains of this node; those directly below it are of distributed
    /// containers.
    top: String,
    device: Option<Device>,
    /// The quotas that we told the kernel, by their cgroups: open, for a change has no time to look
    /// for them.
    quotas: Mutex<BTreeMap<String, Told>>,
    /// The cgroups whose promise of the disk the kernel has taken: what it does not take of them
    /// afterwards is a failure, and no lack of the machine.
    disks: Mutex<BTreeSet<String>>,
    weights: Mutex<Weights>,
}

#[derive(Debug)]
struct Told {
    file: QuotaFile,
    wanted: Quota,
    /// How often somebody else has set another one, and the last of them.
    disturbed: u32,
    theirs: Option<String>,
}

/// The parts of a promise that could not be kept, in whole sentences.
pub(crate) type Caveats = Vec<String>;

impl Actuator {
    pub(crate) fn new(cgroups: Cgroups, top: &str, state_dir: &Path) -> Self {
        let (quotas, disks, weights) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { cgroups, top: top.to_owned(), device: Device::of(state_dir), quotas, disks, weights }
    }

    pub(crate) fn cgroups(&self) -> &Cgroups {
        &self.cgroups
    }

    /// Keeps a promise from now on, in place of the one before; what this node can't keep is told.
    /// `share`: the processor time with which it comes before who is promised nothing, however it
    /// is kept.
    ///
    /// # Errors
    /// Where the kernel refuses what it can do.
    pub(crate) fn keep(
        &self,
        cgroup: &str,
        promise: &Promise,
        share: Option<Share>,
    ) -> Result<Caveats, String> {
        let mut caveats = Vec::new();
        // The cgroup may be another one than it was.
        self.disks.lock().unwrap_or_else(PoisonError::into_inner).remove(cgroup);
        self.keep_cpu(cgroup, promise, &mut caveats)?;
        self.keep_memory(cgroup, promise, &mut caveats)?;
        self.keep_disk(cgroup, promise, &mut caveats)?;
        if let Some(share) = share
            && self.cgroups.offers("cpu")
        {
            self.weights().put(&self.cgroups, cgroup, share).map_err(said)?;
        }
        Ok(caveats)
    }

    /// Makes what differs between two promises true; processor time only where it is kept by a
    /// quota.
    pub(crate) fn keep_change(
        &self,
        cgroup: &str,
        from: &Promise,
        to: &Promise,
        by_quota: bool,
    ) -> Result<Caveats, String> {
        let mut caveats = Vec::new();
        let task = |promise: &Promise| promise.processor.map(|(_, task)| task);
        match task(to) {
            _ if !by_quota || task(from) == task(to) => {}
            None => self.lift(cgroup)?,
            Some(task) => self.change_cpu(cgroup, &task, &mut caveats)?,
        }
        if from.processor != to.processor && self.cgroups.offers("cpu") {
            let share = to.processor.as_ref().map(Share::of);
            self.prefer(cgroup, share)?;
        }
        if from.memory_bytes != to.memory_bytes {
            self.keep_memory(cgroup, to, &mut caveats)?;
        }
        if from.disk != to.disk {
            self.keep_disk(cgroup, to, &mut caveats)?;
        }
        Ok(caveats)
    }

    fn keep_cpu(&self, cgroup: &str, promise: &Promise, caveats: &mut Caveats) -> Result<(), String> {
        let Some((_, task)) = promise.processor else {
            return Ok(());
        };
        let told = |quota: Quota| self.tell(cgroup, quota, true);
        self.keep_quota(&task, caveats, told)
    }

    /// Another budget for one that is kept already: one write, to a file that is open.
    pub(crate) fn change_cpu(
        &self,
        cgroup: &str,
        task: &reserve::Task,
        caveats: &mut Caveats,
    ) -> Result<(), String> {
        self.keep_quota(task, caveats, |quota| self.tell(cgroup, quota, false))
    }

    fn keep_quota(
        &self,
        task: &reserve::Task,
        caveats: &mut Caveats,
        tell: impl FnOnce(Quota) -> Result<(), String>,
    ) -> Result<(), String> {
        if !self.cgroups.offers("cpu") {
            caveats.push("processor time is not kept: this kernel has no control group for it".into());
            return Ok(());
        }
        let (quota, exact) = Quota::of(task.budget_ns(), task.period_ns());
        if !exact {
            caveats.push(format!(
                "the budget comes within {} us and not within each period: the kernel keeps no quota below {} us",
                quota.period_us,
                domain::SHORTEST_PERIOD_US
            ));
        }
        if task.deadline_ns() < task.period_ns() {
            caveats.push(
                "the deadline within the period is not kept: the kernel's quota knows periods only".into(),
            );
        }
        tell(quota)
    }

    /// Tells the kernel a quota; `afresh` where the cgroup may be another one than it was.
    fn tell(&self, cgroup: &str, quota: Quota, afresh: bool) -> Result<(), String> {
        let mut quotas = self.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        if afresh || !quotas.contains_key(cgroup) {
            let file = self.cgroups.quota_file(cgroup).map_err(said)?;
            let told = Told { file, wanted: quota, disturbed: 0, theirs: None };
            quotas.insert(cgroup.to_owned(), told);
        }
        let Some(told) = quotas.get_mut(cgroup) else { return Ok(()) };
        told.wanted = quota;
        told.file.set(quota).map_err(|error| format!("the quota of {cgroup} can't be set: {error}"))
    }

    /// Binds those in a cgroup to the processor that admission has counted them on; `None`: to
    /// none. Failures are told.
    pub(crate) fn pin(&self, cgroup: &str, processor: Option<usize>) -> Caveats {
        let pinned = match processor {
            None if !self.cgroups.offers("cpuset") => return Vec::new(),
            None => self.cgroups.pin(cgroup, None),
            Some(number) => self.cgroups.pin(cgroup, Some(&[number])),
        };
        let said = |error| format!("it is not bound to the processor that gives its time: {}", said(error));
        pinned.map_err(said).err().into_iter().collect()
    }

    /// Nobody watches over the quota of a cgroup until it is told anew.
    pub(crate) fn leave(&self, cgroup: &str) {
        self.quotas.lock().unwrap_or_else(PoisonError::into_inner).remove(cgroup);
    }

    /// Takes the quota of a cgroup away, which may be gone.
    pub(crate) fn lift(&self, cgroup: &str) -> Result<(), String> {
        self.leave(cgroup);
        if !self.cgroups.exists(cgroup) || !self.cgroups.offers("cpu") {
            return Ok(());
        }
        self.cgroups.promise_cpu(cgroup, None).map_err(said)
    }

    /// Whether there is any quota that somebody else could set.
    pub(crate) fn watches(&self) -> bool {
        !self.quotas.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Looks for quotas that somebody else has set, and sets them back, a few times.
    pub(crate) fn look_for_others(&self) {
        let mut quotas = self.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        quotas.retain(|cgroup, _| self.cgroups.exists(cgroup));
        for (cgroup, told) in quotas.iter_mut() {
            let found = told.file.found();
            if told.file.told() != Some(told.wanted) || found == told.file.told() {
                continue;
            }
            let theirs = found.map_or_else(
                || "none".to_owned(),
                |quota| format!("{} us in each {} us", quota.budget_us, quota.period_us),
            );
            told.theirs = Some(theirs.clone());
            told.disturbed = told.disturbed.saturating_add(1);
            if told.disturbed > MAX_RESTORED {
                continue;
            }
            tracing::warn!(cgroup, theirs, "somebody else sets the quota of a cgroup whose budget is ours");
            // A file that was written by somebody else has to be written whole.
            let again = self.cgroups.quota_file(cgroup).map_err(said).and_then(|mut file| {
                file.set(told.wanted).map_err(|error| error.to_string())?;
                told.file = file;
                Ok(())
            });
            if let Err(error) = again {
                tracing::error!(cgroup, error, "the quota can't be set back");
            }
        }
    }

    /// Returns another program's change of a quota of ours, in words.
    pub(crate) fn disturbance(&self, cgroup: &str) -> Option<String> {
        let quotas = self.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        let told = quotas.get(cgroup)?;
        let theirs = told.theirs.as_ref()?;
        let after = match told.disturbed {
            0 => return None,
            1 => "it was set back".to_owned(),
            times @ ..=MAX_RESTORED => format!("it was set back, {times} times so far"),
            times => format!("it was set back {MAX_RESTORED} times, and is left now ({times} times)"),
        };
        Some(format!("somebody else has set the quota of its cgroup {cgroup} to {theirs}; {after}"))
    }

    fn weights(&self) -> MutexGuard<'_, Weights> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a cgroup with this share before who is promised nothing, or back among them.
    pub(crate) fn prefer(&self, cgroup: &str, share: Option<Share>) -> Result<(), String> {
        let mut weights = self.weights();
        match share {
            Some(share) => weights.put(&self.cgroups, cgroup, share),
            None => weights.take(&self.cgroups, cgroup),
        }
        .map_err(said)
    }

    /// Has the weights follow who else wants the processor now.
    pub(crate) fn adjust(&self) {
        self.weights().adjust(&self.cgroups);
    }

    fn keep_memory(&self, cgroup: &str, promise: &Promise, caveats: &mut Caveats) -> Result<(), String> {
        if !self.cgroups.offers("memory") {
            if promise.memory_bytes > 0 {
                caveats.push("memory is not kept: this kernel has no control group for it".into());
            }
            return Ok(());
        }
        let bytes = (promise.memory_bytes > 0).then_some(promise.memory_bytes);
        self.cgroups.promise_memory(cgroup, bytes).map_err(said)
    }

    fn keep_disk(&self, cgroup: &str, promise: &Promise, caveats: &mut Caveats) -> Result<(), String> {
        let wanted = promise.disk != reserve::node::Disk::default();
        let Some(device) = self.device else {
            if wanted {
                caveats.push(
                    "the disk is not kept: the state directory is on no disk that can be throttled".into(),
                );
            }
            return Ok(());
        };
        let done = self.cgroups.promise_disk(cgroup, device, promise.disk.bytes, promise.disk.operations);
        let mut disks = self.disks.lock().unwrap_or_else(PoisonError::into_inner);
        match done {
            Ok(()) => {
                if wanted {
                    disks.insert(cgroup.to_owned());
                } else {
                    disks.remove(cgroup);
                }
                Ok(())
            }
            Err(error) if disks.contains(cgroup) => Err(said(error)),
            Err(error) if wanted => {
                caveats.push(format!("the disk is not kept: {}", said(error)));
                Ok(())
            }
            // What is not there needs no lifting.
            Err(_) => Ok(()),
        }
    }

    /// Lets go: no quota, no preference.
    pub(crate) fn release(&self, cgroup: &str) -> Result<(), String> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner).remove(cgroup);
        if !self.cgroups.exists(cgroup) {
            self.leave(cgroup);
            self.weights().forget(&self.cgroups, cgroup);
            return Ok(());
        }
        if self.cgroups.offers("cpu") {
            self.lift(cgroup)?;
            self.prefer(cgroup, None)?;
        }
        for why in self.pin(cgroup, None) {
            tracing::warn!(cgroup, why, "a promise that is over leaves its processes where they are");
        }
        self.keep_memory(cgroup, &Promise::default(), &mut Vec::new())?;
        self.keep_disk(cgroup, &Promise::default(), &mut Vec::new())
    }

    /// Puts all cgroups back among everybody else's: nobody is promised anything any more.
    pub(crate) fn stand_down(&self) {
        if self.cgroups.offers("cpu") {
            self.weights().stand_down(&self.cgroups, &self.top);
        }
    }
}

pub(crate) fn said(error: domain::Error) -> String {
    crate::base::said(error)
}
