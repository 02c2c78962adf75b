//! The choice of the enforcement that keeps a domain's processor time, and its reason.

use super::Entry;
use enforce::{Jobs, Kind, Members, Vtm, Who};
use reserve::Task;
use topology::{Enforce, Outside, Reserve};

/// Returns the enforcement that keeps it, and the reason.
pub(super) fn of(reserve: &Reserve) -> (Kind, String) {
    let (kept_by, why) = reserve.kept_by();
    let kind = match kept_by {
        Enforce::Table => Kind::Table,
        Enforce::Deadline => Kind::Deadline,
        Enforce::Auto | Enforce::Bandwidth => Kind::Bandwidth,
    };
    (kind, why.to_owned())
}

/// Returns the part of a request that a quota can't keep.
pub(super) fn outside_of_a_quota(reserve: &Reserve) -> Option<String> {
    let asked = reserve.outside;
    (asked != Outside::Held).then(|| {
        format!(
            "a quota holds whoever has used its budget up: `outside = \"{}\"` takes `enforce = \"table\"`",
            asked.as_str()
        )
    })
}

/// Returns the part of a request that deadlines can't keep, before that was refused.
pub(super) fn outside_of_deadlines(reserve: &Reserve) -> Option<String> {
    let asked = reserve.outside;
    (asked != Outside::Held).then(|| {
        format!(
            "deadlines hold whoever has used its budget up: `outside = \"{}\"` takes `enforce = \"table\"`",
            asked.as_str()
        )
    })
}

/// Returns a domain as a dispatcher is told of it.
pub(super) fn vtm(
    name: &str,
    entry: &Entry,
    is_domain: bool,
    processor: Option<usize>,
    task: &Task,
) -> Option<Vtm> {
    // A table holds a domain with its frontend: a container runtime takes one whose own cgroup is
    // frozen for paused. The deadline class divides a budget among threads, and those of the
    // frontend are ours.
    let (kind, _) = of(&entry.now);
    let cgroup = match kind {
        Kind::Deadline if is_domain => format!("{}/{}", entry.cgroup, domain::Part::Payload.name()),
        _ => entry.cgroup.clone(),
    };
    let outside = match entry.now.outside {
        // One that was promised `idle` or `fair` before that was refused would else keep all others
        // from their deadlines.
        _ if kind == Kind::Deadline => enforce::Outside::Held,
        Outside::Held => enforce::Outside::Held,
        Outside::Idle => enforce::Outside::Idle,
        Outside::Fair => enforce::Outside::Fair,
    };
    Some(Vtm {
        inside: inside(&entry.now),
        members: Members::cgroup(cgroup),
        processor: processor?,
        deadline_ns: task.deadline_ns(),
        outside,
        suspended: entry.suspended && kind == Kind::Table,
        ..Vtm::new(name, task.budget_ns(), task.period_ns())
    })
}

/// Returns the order of its jobs.
fn inside(reserve: &Reserve) -> Jobs {
    let Some(policy) = reserve.policy.order() else { return Jobs::default() };
    let job = |(name, job): (&String, &topology::Job)| enforce::Job {
        name: name.clone(),
        who: match &job.who {
            topology::Who::Process(pattern) => Who::Process(pattern.clone()),
            topology::Who::Thread(pattern) => Who::Thread(pattern.clone()),
        },
        budget_ns: job.budget_ns,
        period_ns: job.period_ns,
        deadline_ns: job.deadline_ns,
    };
    Jobs::By { policy: policy.into(), jobs: reserve.jobs.iter().map(job).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::{JobPolicy, ProcessorShare};

    #[test]
    fn a_quota_keeps_what_it_can_and_a_table_what_is_strict_and_due_early() {
        let cpu = ProcessorShare { budget_ns: 1, period_ns: 40, deadline_ns: 40, processor: None };
        let early = ProcessorShare { deadline_ns: 20, ..cpu };
        let reserve =
            |cpu, enforce, strict| Reserve { cpu: Some(cpu), enforce, strict, ..Reserve::default() };
        for (cpu, enforce, strict, kind) in [
            (cpu, Enforce::Auto, false, Kind::Bandwidth),
            (cpu, Enforce::Auto, true, Kind::Bandwidth),
            (early, Enforce::Auto, false, Kind::Bandwidth),
            (early, Enforce::Auto, true, Kind::Table),
            (early, Enforce::Bandwidth, true, Kind::Bandwidth),
            (cpu, Enforce::Table, false, Kind::Table),
            (cpu, Enforce::Deadline, true, Kind::Deadline),
        ] {
            assert_eq!(of(&reserve(cpu, enforce, strict)).0, kind, "{enforce:?} {strict}");
        }
        for (policy, kind) in [
            (JobPolicy::RateMonotonic, Kind::Table),
            (JobPolicy::DeadlineMonotonic, Kind::Table),
            (JobPolicy::EarliestDeadline, Kind::Deadline),
        ] {
            assert_eq!(of(&Reserve { policy, ..reserve(cpu, Enforce::Auto, false) }).0, kind, "{policy:?}");
        }
    }
}
