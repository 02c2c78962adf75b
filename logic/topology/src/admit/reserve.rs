//! The rules of what is promised: of one domain by itself, and of all together beside what the node
//! has promised to others.

use super::Context;
use crate::bounds::{BURST_BYTES_DEFAULT, JOBS_MAX};
use crate::diagnostic::Code;
use crate::file::{DiskShareForm, DomainForm, JobForm, NetworkShareForm, ProcessorShareForm};
use crate::model::{DiskShare, Domain, DomainKind, Job, Network, NetworkShare, ProcessorShare, Reserve, Who};
use crate::name::Name;
use crate::read::{At, Field, Named, Span};
use crate::scalar::{nanos_text, rate_text, size_text};
use crate::tables;
use ::reserve::adapt::AdaptError;
use ::reserve::model::{Manager, ModelError, Team, Wish};
use ::reserve::node::{Added, NodeError};
use ::reserve::{TaskError, Unkept};
use std::collections::BTreeMap;

/// The remedy where the node can't keep something.
const HELP: &str =
    "`tombolo reserve ls` shows what is promised, and `tombolo reserve explain` how that adds up";

/// Returns the reserve that one domain asks for.
pub(super) fn reserve(form: &DomainForm, cx: &mut Context<'_, '_>) -> Option<Reserve> {
    let at = form.reserve.given()?;
    let reserve = &at.value;
    let asked = [
        reserve.cpu.is_absent(),
        reserve.network.is_absent(),
        reserve.memory.is_absent(),
        reserve.io.is_absent(),
    ];
    if asked.iter().all(|absent| *absent) {
        cx.out
            .error(Code::TooFew, &at.span, "this reservation promises nothing")
            .help("reserve = { cpu = { budget = \"16ms\", period = \"40ms\" } }, or leave it out");
    }
    refuse_double_limits(form, cx);
    let network = reserve.network.given();
    if let Some(at) = network
        && super::domain::network(form) == Network::None
        && !form.kind.is_broken()
        // Services and endpoints of other nodes are reached over the link by a proxy, which keeps
        // the promise, too.
        && cx.form.service.is_absent()
        && cx.form.endpoint.is_absent()
    {
        cx.out
            .error(
                Code::NoNetwork,
                &at.span,
                "a domain that has only `lo` sends nothing over the node's link",
            )
            .help("add network = \"host\", or leave the reservation out");
    }
    let asked = Reserve {
        cpu: reserve.cpu.given().and_then(|at| processor(at, cx)),
        network: network.and_then(|at| class(&at.value, cx)),
        memory_bytes: reserve.memory.value().map(|bytes| bytes.0),
        io: reserve.io.given().map(|at| disk(at, cx)),
        policy: reserve.policy.value().copied().unwrap_or_default(),
        jobs: jobs(&reserve.jobs, cx),
        enforce: reserve.enforce.value().copied().unwrap_or_default(),
        outside: reserve.outside.value().copied().unwrap_or_default(),
        strict: reserve.strict.value().copied().unwrap_or(false),
    };
    let jobs_span = reserve.jobs.given().map_or(&at.span, |at| &at.span);
    let all_read = !reserve.policy.is_broken() && !reserve.jobs.is_broken() && !reserve.enforce.is_broken();
    let whole = reserve.jobs.value().is_none_or(|named| named.0.len() == asked.jobs.len());
    let cpu_read = asked.cpu.is_some() || reserve.cpu.is_absent();
    if all_read
        && whole
        && cpu_read
        && let Err((message, help)) = asked.check_jobs()
    {
        cx.out.error(Code::Conflict, jobs_span, message).help(help);
    }
    if !reserve.policy.is_broken()
        && !reserve.enforce.is_broken()
        && let Some(outside) = reserve.outside.given()
        && let Err((message, help)) = asked.check_outside()
    {
        cx.out.error(Code::Conflict, &outside.span, message).help(help);
    }
    if !reserve.jobs.is_absent() && form.kind.value() == Some(&DomainKind::Vm) {
        cx.out
            .error(Code::WrongKind, jobs_span, "the node does not see the processes of a guest")
            .help("leave the jobs out; the guest's own kernel orders them");
    }
    Some(asked)
}

/// The jobs that are whole; what is wrong with the others is reported.
fn jobs(field: &Field<Named<JobForm, JOBS_MAX>>, cx: &mut Context<'_, '_>) -> BTreeMap<String, Job> {
    let mut found = BTreeMap::new();
    for (name, at) in super::named(field, cx) {
        if let Some(job) = job(at, cx) {
            found.insert(name.value.to_string(), job);
        }
    }
    found
}

fn job(at: &At<JobForm>, cx: &mut Context<'_, '_>) -> Option<Job> {
    let form = &at.value;
    let (span, who) = match (form.process.given(), form.thread.given()) {
        (Some(process), None) => (&process.span, Who::Process(process.value.0.clone())),
        (None, Some(thread)) => (&thread.span, Who::Thread(thread.value.0.clone())),
        (None, None) if form.process.is_broken() || form.thread.is_broken() => return None,
        _ => {
            cx.out
                .error(Code::Conflict, &at.span, "a job is either a process or a thread")
                .help("process = \"decoder\", or thread = \"mixer*\"");
            return None;
        }
    };
    if let Err(why) = who.check() {
        cx.out.error(Code::BadText, span, why);
        return None;
    }
    let (budget, period) = (form.budget.given()?, form.period.given()?);
    let deadline_ns = form.deadline.given().map_or(period.value.0, |at| at.value.0);
    let job = Job { who, budget_ns: budget.value.0, period_ns: period.value.0, deadline_ns };
    if let Err(error) = job.task() {
        let message = match error {
            TaskError::LateAlone { .. } => {
                format!("{} can't be had within {}", nanos_text(job.budget_ns), nanos_text(job.deadline_ns))
            }
            TaskError::BudgetOverPeriod { .. } => {
                format!("one processor has no {} in {}", nanos_text(job.budget_ns), nanos_text(job.period_ns))
            }
            error => error.to_string(),
        };
        cx.out.error(Code::OutOfRange, &at.span, message);
        return None;
    }
    Some(job)
}

/// A limit below the promise breaks it, and a limit of processor time beside a budget is a second
/// controller.
fn refuse_double_limits(form: &DomainForm, cx: &mut Context<'_, '_>) {
    let (Some(reserve), Some(limits)) = (form.reserve.value(), form.limits.value()) else { return };
    if let (Some(cpu), true) = (limits.cpu.given(), reserve.cpu.given().is_some()) {
        cx.out
            .error(
                Code::Conflict,
                &cpu.span,
                "with `reserve.cpu` the promise bounds the processor time already",
            )
            .help("leave `limits.cpu` out");
    }
    if let (Some(limit), Some(promise)) = (limits.memory.given(), reserve.memory.given())
        && limit.value.0 < promise.value.0
    {
        let message =
            format!("{} are promised and {} allowed", size_text(promise.value.0), size_text(limit.value.0));
        cx.out
            .error(Code::Conflict, &promise.span, message)
            .help("promise at most what `limits.memory` allows");
    }
}

fn processor(at: &At<ProcessorShareForm>, cx: &mut Context<'_, '_>) -> Option<ProcessorShare> {
    let form = &at.value;
    let (budget, period) = (form.budget.given()?, form.period.given()?);
    let deadline = form.deadline.given();
    let share = ProcessorShare {
        budget_ns: budget.value.0,
        period_ns: period.value.0,
        deadline_ns: deadline.map_or(period.value.0, |at| at.value.0),
        processor: form.processor.value().map(|count| count.0),
    };
    match share.task() {
        Ok(_) => return Some(share),
        Err(TaskError::LateAlone { .. }) => {
            let span = deadline.map_or(&at.span, |at| &at.span);
            let message = format!(
                "{} can't be had within {}",
                nanos_text(share.budget_ns),
                nanos_text(share.deadline_ns)
            );
            cx.out.error(Code::OutOfRange, span, message).help("give a deadline that is at least the budget");
        }
        Err(TaskError::BudgetOverPeriod { .. }) => {
            let message = format!(
                "one processor has no {} in {}",
                nanos_text(share.budget_ns),
                nanos_text(share.period_ns)
            );
            cx.out
                .error(Code::OutOfRange, &budget.span, message)
                .help(format!("the budget is at most the period, \"{}\"", nanos_text(share.period_ns)));
        }
        Err(error) => {
            cx.out.error(Code::OutOfRange, &at.span, error.to_string());
        }
    }
    None
}

fn class(form: &NetworkShareForm, cx: &mut Context<'_, '_>) -> Option<NetworkShare> {
    let rate_bits = form.rate.value()?.0;
    if let Some(ceiling) = form.ceiling.given()
        && ceiling.value.0 < rate_bits
    {
        let message = format!("this ceiling is below the rate, {}", rate_text(rate_bits));
        cx.out.error(Code::Conflict, &ceiling.span, message).help("give at least the rate, or leave it out");
    }
    Some(NetworkShare {
        rate_bits,
        ceiling_bits: form.ceiling.value().map(|ceiling| ceiling.0),
        burst_bytes: form.burst.value().map_or(BURST_BYTES_DEFAULT, |burst| burst.0),
        class: form.class.value().copied().unwrap_or_default(),
    })
}

fn disk(at: &At<DiskShareForm>, cx: &mut Context<'_, '_>) -> DiskShare {
    if at.value.bytes.is_absent() && at.value.operations.is_absent() {
        cx.out
            .error(Code::TooFew, &at.span, "this promises nothing of the disk")
            .help("{ bytes = \"10MB\" }, { operations = 500 }, or both");
    }
    DiskShare {
        bytes: at.value.bytes.value().map(|bytes| bytes.0),
        operations: at.value.operations.value().map(|count| u64::from(count.0)),
    }
}

/// Asks the node whether it can keep everything at once; whoever comes first without finding room
/// gets the refusal.
pub(super) fn keep(dc: &Name, domains: &[Domain], cx: &mut Context<'_, '_>) {
    if !cx.out.is_clean() {
        return;
    }
    let Some(model) = cx.node.promised() else { return };
    let link_bits = model.node().capacity().link.rate_bits;
    let mut wishes: Vec<(String, &Domain, Wish, Team)> = Vec::new();
    let mut asked: Vec<(String, &Reserve)> = Vec::new();
    for domain in domains {
        let Some(reserve) = &domain.reserve else { continue };
        let name = format!("{dc}/{}", domain.name);
        if let (Ok(wish), Ok(team)) = (reserve.wish(link_bits), reserve.team()) {
            wishes.push((name.clone(), domain, wish, team));
            asked.push((name, reserve));
        }
    }
    let wished: Vec<(&str, Wish, Team)> =
        wishes.iter().map(|(name, _, wish, team)| (name.as_str(), *wish, team.clone())).collect();
    let whole = match tables::together(model, &wished) {
        Ok(admitted) => {
            let asked: Vec<(&str, &Reserve)> =
                asked.iter().map(|(name, one)| (name.as_str(), *one)).collect();
            return refuse_tables(&tables::of_file(&admitted, cx.node, &asked), dc, domains, cx);
        }
        Err(whole) => whole,
    };
    let mut so_far = model.clone();
    let alone = wishes.iter().find_map(|(name, domain, wish, team)| {
        let team = BTreeMap::from([(name.clone(), team.clone())]);
        let admitted = so_far.admit_teams(&[(name.as_str(), *wish)], team);
        let refused = admitted.and_then(|adaptation| so_far.commit(adaptation)).err()?;
        Some((*domain, refused))
    });
    let Some((domain, refused)) = alone.or_else(|| Some((wishes.first()?.1, whole))) else { return };
    let span = place(domain, &refused, cx);
    let linkless = matches!(refused, ModelError::Adapt(AdaptError::Refused(NodeError::Network { .. })))
        && link_bits == 0;
    let help = if linkless {
        "nothing is said of the node's link: `tombolo reserve node --link DEVICE=RATE`"
    } else {
        HELP
    };
    cx.out.error(Code::NotKept, &span, format!("the node can't keep this: {refused}")).help(help);
}

/// Refuses domains that are strict and for which a table or deadlines have no room; a quota keeps
/// the others.
fn refuse_tables(unkept: &[Unkept], dc: &Name, domains: &[Domain], cx: &mut Context<'_, '_>) {
    for refused in unkept {
        let is_it = |domain: &&Domain| refused.name == format!("{dc}/{}", domain.name);
        let domain =
            domains.iter().find(is_it).filter(|domain| domain.reserve.as_ref().is_some_and(|one| one.strict));
        let form = domain.and_then(|domain| cx.domain_form(domain.name.as_str())?.reserve.given());
        let Some(at) = form else { continue };
        let span = at.value.cpu.given().map_or(&at.span, |at| &at.span).clone();
        let words = format!("the node can't keep this: {refused}");
        cx.out.error(Code::NotKept, &span, words).help(HELP);
    }
}

/// The key that asks for what there is not enough of.
fn place(domain: &Domain, refused: &ModelError, cx: &Context<'_, '_>) -> Span {
    let Some(at) = cx.domain_form(domain.name.as_str()).and_then(|form| form.reserve.given()) else {
        return 0..0;
    };
    let form = &at.value;
    let found = match refused {
        ModelError::Adapt(AdaptError::Refused(NodeError::Network { .. })) => {
            form.network.given().map(|at| &at.span)
        }
        ModelError::Adapt(AdaptError::Refused(NodeError::Sum { what: Added::Memory, .. })) => {
            form.memory.given().map(|at| &at.span)
        }
        ModelError::Adapt(AdaptError::Refused(NodeError::Sum { .. })) => form.io.given().map(|at| &at.span),
        ModelError::Inside { .. } | ModelError::NoTable { .. } => form.jobs.given().map(|at| &at.span),
        _ => form.cpu.given().map(|at| &at.span),
    };
    found.unwrap_or(&at.span).clone()
}
