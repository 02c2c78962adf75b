//! The jobs inside the virtual task machines of a table: their priorities, and how long they take
//! on what it gives.

use std::collections::BTreeMap;

use reserve::{Costs, Policy, Response, Rule};

use super::lane::{Ranked, TURN_PRIORITY};
use crate::core::Change;
use crate::enforcer::JobReport;
use crate::error::{EnforceError, Result};
use crate::jobs::{Job, Jobs, Team};
use crate::plan::Plan;

/// How long a job takes on the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobTime {
    /// At worst; `None`: without a bound, or nobody can tell.
    response_ns: Option<u64>,
    deadline_ns: u64,
}

impl JobTime {
    fn is_late(self) -> bool {
        self.response_ns.is_none_or(|response_ns| response_ns > self.deadline_ns)
    }
}

/// The jobs of one virtual task machine.
#[derive(Debug, Clone, Default)]
pub struct Inside {
    pub team: Team,
    times: Vec<JobTime>,
}

impl Inside {
    pub fn set_times(&mut self, times: Vec<JobTime>) {
        self.times = times;
    }

    fn priorities(&self) -> Option<Vec<u32>> {
        self.team.jobs().ranks().map(|ranks| ranks.into_iter().map(|rank| TURN_PRIORITY + rank).collect())
    }

    /// As a processor's thread is told.
    pub fn ranked(&self) -> Option<Ranked> {
        let (priorities, roster) = (self.priorities()?, self.team.roster());
        let of = roster.of.iter();
        let of = of.filter_map(|(thread, job)| Some((*thread, *priorities.get(*job)?)));
        let tasks = (0..).zip(self.team.jobs().tasks()).zip(&roster.threads);
        let present =
            tasks.filter(|(_, threads)| **threads > 0).map(|((index, task), _)| (index, Some(task)));
        Some(Ranked { priorities: of.collect(), present: present.collect() })
    }

    pub fn reports(&self) -> Vec<JobReport> {
        let priorities = self.priorities().unwrap_or_default();
        let mut reports = self.team.reports();
        for (index, report) in reports.iter_mut().enumerate() {
            let time = self.times.get(index).copied();
            report.priority = priorities.get(index).copied();
            report.response_ns = time.and_then(|time| time.response_ns);
            report.late = time.is_some_and(JobTime::is_late);
        }
        reports
    }
}

/// A table does not see when a job begins.
pub fn refuse_deadlines(plan: &Plan) -> Result<()> {
    let is_by_deadline =
        |jobs: &Jobs| jobs.by().is_some_and(|(policy, _)| policy == Policy::EarliestDeadline);
    match plan.vtms.iter().find(|vtm| is_by_deadline(&vtm.inside)) {
        Some(vtm) => Err(EnforceError::Unable {
            kind: "table",
            why: format!(
                "the jobs of `{}` go by their deadlines, and a table does not see when a job begins; take the deadline class, or another order",
                vtm.id
            ),
        }),
        None => Ok(()),
    }
}

/// How long the jobs inside each take on what these tables give.
pub fn times(plan: &Plan, costs: Costs, changes: &[(usize, Change)]) -> BTreeMap<String, Vec<JobTime>> {
    let mut found = BTreeMap::new();
    for (_, change) in changes {
        for (place, (id, _)) in change.vtms.iter().enumerate() {
            let Some(vtm) = plan.vtm(id) else { continue };
            let Some((policy, jobs)) = vtm.inside.by() else { continue };
            let rule = Rule { policy, costs };
            let supply = change.table.supply(place);
            let responses = reserve::inside::responses(rule, &vtm.inside.tasks(), &supply).ok().flatten();
            let time = |(index, job): (usize, &Job)| {
                let response = responses.as_ref().and_then(|all| all.get(index));
                let response_ns = match response {
                    Some(Response::Within(ns)) => Some(*ns),
                    _ => None,
                };
                JobTime { response_ns, deadline_ns: job.deadline_ns }
            };
            found.insert(id.clone(), jobs.iter().enumerate().map(time).collect());
        }
    }
    found
}

/// The jobs of it that would be late.
pub fn caveats(plan: &Plan, id: &str, times: &[JobTime]) -> Vec<String> {
    let jobs = plan.vtm(id).and_then(|vtm| vtm.inside.by()).map_or(&[][..], |(_, jobs)| jobs);
    let late = jobs.iter().zip(times).filter(|(_, time)| time.is_late());
    late.map(|(job, time)| match time.response_ns {
        Some(ns) => format!(
            "`{id}`: job `{}` takes up to {} of its {} on the table that is kept here",
            job.name,
            reserve::Span(ns),
            reserve::Span(time.deadline_ns)
        ),
        None => format!(
            "`{id}`: job `{}` may take longer than its {} on the table that is kept here, and nobody can tell how much",
            job.name,
            reserve::Span(time.deadline_ns)
        ),
    })
    .collect()
}
