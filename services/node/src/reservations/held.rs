//! The reservation table for adaptations: a domain's promise, its use and misses, the amounts that
//! would fit, and a change of just that.

use super::network::Queue;
use super::{Book, State, refused};
use admin::reserve::{AdaptRequest, Adapted, Change};
use admin::{Code, Problem};
use enforce::Kind;
use reserve::model::{Manager, Wish};
use std::collections::BTreeMap;
use topology::Reserve;

/// The promise to one domain now.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) now: Reserve,
    /// The reservation of its file.
    pub(crate) file: Reserve,
    /// Whether its processes are there, and its promise is kept.
    pub(crate) in_force: bool,
}

/// Counters of one, since it came.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counted {
    /// Processor time that it has used, in ns.
    pub(crate) cpu_ns: Option<u64>,
    /// Periods or slots that it has missed, and all that there were; `None`: what keeps it does not
    /// count them.
    pub(crate) missed: Option<(u64, u64)>,
}

impl Book {
    /// Returns the promise to one domain now; `None`: nothing is promised to it here.
    pub(crate) fn held(&self, name: &str) -> Option<Held> {
        let state = self.lock();
        let entry = state.entries.get(name).filter(|entry| entry.without.is_none())?;
        let in_force = entry.in_force && !entry.suspended;
        Some(Held { now: entry.now.clone(), file: entry.file.clone()?, in_force })
    }

    /// Returns the use and the misses of one domain so far.
    pub(crate) fn counted(&self, name: &str) -> Counted {
        let mut state = self.lock();
        let Some(entry) = state.entries.get(name).filter(|entry| entry.in_force) else {
            return Counted::default();
        };
        let (cgroup, kept_by) = (entry.cgroup.clone(), entry.kept_by);
        let cgroups = self.actuator.cgroups();
        let usage = cgroups.usage(&cgroup);
        match kept_by {
            Some(Kind::Table) => {
                let reports = state.dispatchers.reports();
                let report = reports.get(name);
                let elsewhere =
                    report.filter(|_| cgroups.counts_where_it_schedules()).map_or(0, |r| r.used_ns);
                Counted {
                    cpu_ns: usage.cpu_ns.map(|ns| ns.saturating_add(elsewhere)),
                    missed: report.map(|report| (report.late, report.slots)),
                }
            }
            Some(Kind::Bandwidth) | None => Counted {
                cpu_ns: usage.cpu_ns,
                missed: usage.throttled_periods.zip(cgroups.quota_periods(&cgroup)),
            },
            Some(_) => Counted { cpu_ns: usage.cpu_ns, missed: None },
        }
    }

    /// Returns the queue of the class of the link that one is promised.
    pub(crate) fn queue(&self, name: &str) -> Option<Queue> {
        let state = self.lock();
        state.entries.get(name).filter(|entry| entry.in_force)?;
        state.links.queue(name)
    }

    /// How long the processes of one have waited for what a controller gives, in us.
    pub(crate) fn pressure_us(&self, name: &str, controller: &str) -> Option<u64> {
        let cgroup = self.lock().entries.get(name).filter(|entry| entry.in_force)?.cgroup.clone();
        self.actuator.cgroups().pressure_us(&cgroup, controller)
    }

    /// Whether these changes could be made now.
    ///
    /// # Errors
    /// Why not, with what would pass.
    pub(crate) fn fits(&self, changes: &[Change]) -> Result<(), Problem> {
        admitted(&self.lock(), changes)
    }

    /// Makes these changes in one step, as long as everybody has what was `expected` when they were
    /// decided. Their effect is not waited for, and the trace says why.
    ///
    /// # Errors
    /// Where somebody has something else by now, not all can be kept, or the kernel refuses a part:
    /// then all is as before.
    pub(crate) fn adapt_from(
        &self,
        expected: &[(String, Reserve)],
        request: &AdaptRequest,
        why: &str,
    ) -> Result<Adapted, Problem> {
        let mut state = self.lock();
        let is_other = |(name, reserve): &&(String, Reserve)| {
            state.entries.get(name).is_none_or(|entry| entry.now != *reserve)
        };
        if let Some((name, _)) = expected.iter().find(is_other) {
            return Err(Problem::new(Code::Failed, format!("{name} was promised something else meanwhile")));
        }
        let done = self.adapt_locked(&mut state, &request.changes);
        drop(state);
        self.note(&done, why);
        if done.is_ok() {
            request.changes.iter().for_each(|change| self.mark(&change.name));
        }
        self.conclude_at_once(done)
    }
}

fn admitted(state: &State, changes: &[Change]) -> Result<(), Problem> {
    let (mut wishes, mut teams) = (Vec::new(), BTreeMap::new());
    for change in changes {
        let (wish, team) = state.asked(&change.reserve)?;
        teams.insert(change.name.clone(), team);
        wishes.push((change.name.as_str(), wish));
    }
    let wishes: &[(&str, Wish)] = &wishes;
    let adaptation = state.model.admit_teams(wishes, teams).map_err(|error| refused(&error))?;
    let coming = changes.iter().map(|change| (change.name.as_str(), &change.reserve)).collect();
    state.admit_tables_of_change(adaptation.transaction().after(), &coming)
}
