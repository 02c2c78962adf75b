//! The rules of adaptations.

use super::domain::argv;
use super::{Context, named};
use crate::diagnostic::Code;
use crate::file::{self, AdaptationForm, BudgetRangeForm, Command, RateRangeForm, RuleForm, SelectorForm};
use crate::model::{
    ActivatorProgram, Adaptation, Domain, Giving, Monitor, MonitorWord, Pressed, SelectorProgram,
};
use crate::name::Name;
use crate::read::{At, Field};
use crate::scalar::{nanos_text, rate_text};
use crate::suggest::quoted;
use adaptation::{Feedback, Figure, Range, RangeError, Selector, Settings, Threshold};
use std::path::PathBuf;

const RULES: &str = "more = { above = 5, samples = 2 } and less = { below = 1, samples = 10 }, or feedback = { target = 1 }, or selector = { command = [\"./selector\"] }";

/// All adaptations that are whole, sorted by name; what is wrong with the others is reported.
pub(super) fn all(domains: &[Domain], cx: &mut Context<'_, '_>) -> Vec<Adaptation> {
    let form = cx.form;
    let mut found: Vec<(Adaptation, &At<AdaptationForm>)> = Vec::new();
    for (name, at) in named(&form.adaptation, cx) {
        if let Some(adaptation) = one(name.value, at, domains, cx) {
            found.push((adaptation, at));
        }
    }
    for (number, (adaptation, at)) in found.iter().enumerate() {
        let other = found.iter().take(number).find(|(other, _)| other.domain == adaptation.domain);
        if let (Some((other, _)), Some(domain)) = (other, at.value.domain.given()) {
            let message = format!(
                "`{}` is adapted by `{}` already: two would undo each other's work",
                other.domain, other.name
            );
            cx.out.error(Code::Conflict, &domain.span, message).help("make one of them of both");
        }
    }
    for (adaptation, at) in &found {
        for giving in &adaptation.from {
            let Some((other, _)) = found.iter().find(|(other, _)| other.domain == giving.domain) else {
                continue;
            };
            let fights = giving.least_cpu_ns.is_some() && other.settings.cpu.is_some()
                || giving.least_network_bits.is_some() && other.settings.network.is_some();
            if fights && other.priority >= adaptation.priority {
                let span = at.value.from.given().map_or(&at.span, |from| &from.span);
                let message = format!(
                    "`{}` would take from `{}` what `{}` would take back: it has to go first",
                    adaptation.name, giving.domain, other.name
                );
                let help =
                    format!("priority = {} for `{}`", other.priority.saturating_add(1), adaptation.name);
                cx.out.error(Code::Conflict, span, message).help(help);
            }
        }
    }
    let mut all: Vec<Adaptation> = found.into_iter().map(|(adaptation, _)| adaptation).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn one(
    name: Name,
    at: &At<AdaptationForm>,
    domains: &[Domain],
    cx: &mut Context<'_, '_>,
) -> Option<Adaptation> {
    let form = &at.value;
    let of = form.domain.given()?;
    let domain = cx.domain_called(of)?;
    let monitor = monitor(at, &domain, cx);
    let (program, module) = selecting(form, &domain, cx);
    let activator = activator(form, &domain, cx);
    let selector = selector(at, cx);
    let promised = domains.iter().find(|known| known.name == domain)?;
    let reserve = promised.reserve.as_ref();
    let cpu = form.cpu.given().and_then(|range| {
        let share = reserve.and_then(|reserve| reserve.cpu);
        if share.is_none() {
            lacks(
                &domain,
                "processor time",
                "reserve = { cpu = { budget = \"16ms\", period = \"40ms\" } }",
                range,
                cx,
            );
        }
        budget_range(
            range,
            share?.budget_ns,
            share?.period_ns,
            form.feedback.is_absent() && form.selector.is_absent(),
            cx,
        )
    });
    let network = form.network.given().and_then(|range| {
        let share = reserve.and_then(|reserve| reserve.network);
        if share.is_none() {
            lacks(&domain, "rate of the link", "reserve = { network = { rate = \"5mbit\" } }", range, cx);
        }
        rate_range(range, share?.rate_bits, cx)
    });
    let levels = form.levels.value().map_or(1, |count| count.0);
    if form.cpu.is_absent() && form.network.is_absent() && levels == 1 && !form.levels.is_broken() {
        cx.out
            .error(Code::TooFew, &at.span, "this adaptation moves nothing")
            .help("add cpu = { least = \"4ms\", most = \"16ms\", step = \"2ms\" }, network, or levels = 3");
    }
    if let Some(feedback) = form.feedback.given()
        && form.cpu.is_absent()
    {
        cx.out
            .error(Code::MissingKey, &feedback.span, "the controller moves the budget of the processor")
            .help("add cpu = { least = \"4ms\", most = \"16ms\" }");
    }
    Some(Adaptation {
        monitor: monitor?,
        every_ms: form.every.value().map_or(crate::bounds::ADAPTATION_EVERY_MS_DEFAULT, |ms| ms.0),
        settings: Settings {
            selector: selector?,
            cpu,
            network,
            levels,
            pause_ms: form.pause.value().map_or(crate::bounds::ADAPTATION_PAUSE_MS_DEFAULT, |ms| ms.0),
            changes_per_minute: form
                .changes_per_minute
                .value()
                .map_or(crate::bounds::CHANGES_PER_MINUTE_DEFAULT, |count| count.0),
        },
        selector: program,
        module,
        activator,
        from: givers(form, &domain, domains, cx),
        priority: form.priority.value().map_or(0, |count| count.0),
        dry_run: form.dry_run.value().copied().unwrap_or(false),
        name,
        domain,
    })
}

fn lacks<T>(domain: &Name, what: &str, help: &str, at: &At<T>, cx: &mut Context<'_, '_>) {
    cx.out
        .error(Code::Conflict, &at.span, format!("`{domain}` is promised no {what} that could move"))
        .help(format!("add {help} to the domain"));
}

fn monitor(at: &At<AdaptationForm>, domain: &Name, cx: &mut Context<'_, '_>) -> Option<Monitor> {
    let form = &at.value;
    let word = form.monitor.given()?;
    let watches_service = matches!(
        word.value,
        MonitorWord::Latency | MonitorWord::Jitter | MonitorWord::Rate | MonitorWord::Targets
    );
    if let (Some(service), false) = (form.service.given(), watches_service) {
        let message = "only the monitors `latency`, `jitter`, `rate` and `targets` are of a service";
        cx.out.error(Code::Conflict, &service.span, message).help("leave `service` out");
    }
    match word.value {
        MonitorWord::Quality => Some(Monitor::Quality),
        MonitorWord::Misses => Some(Monitor::Misses),
        MonitorWord::CpuPressure => Some(Monitor::Pressure(Pressed::Cpu)),
        MonitorWord::MemoryPressure => Some(Monitor::Pressure(Pressed::Memory)),
        MonitorWord::IoPressure => Some(Monitor::Pressure(Pressed::Io)),
        MonitorWord::Latency => service(at, domain, cx).map(Monitor::Latency),
        MonitorWord::Jitter => service(at, domain, cx).map(Monitor::Jitter),
        MonitorWord::Rate => service(at, domain, cx).map(Monitor::Rate),
        MonitorWord::Targets => with_targets(at, domain, cx).map(Monitor::Targets),
        MonitorWord::Loss => of_link(word, domain, cx).then_some(Monitor::Loss),
        MonitorWord::Queue => of_link(word, domain, cx).then_some(Monitor::Queue),
    }
}

/// The service whose targets are watched: the domain asks some of it.
fn with_targets(at: &At<AdaptationForm>, domain: &Name, cx: &mut Context<'_, '_>) -> Option<Name> {
    let name = service(at, domain, cx)?;
    let mounted = cx.domain_form(domain.as_str())?.services.value()?.get(name.as_str())?;
    if mounted.value.as_ref()?.value.0.targets.value().is_some_and(|targets| !targets.0.is_empty()) {
        return Some(name);
    }
    let message = format!("`{domain}` asks no targets of `{name}`");
    let span = at.value.service.given().map_or(&at.span, |service| &service.span);
    cx.out.error(Code::Conflict, span, message).help(format!(
        "services = {{ {name} = {{ at = \"/srv/{name}\", targets = {{ FILE = {{ p99 = \"5ms\" }} }} }} }}"
    ));
    None
}

/// Whether the domain has a class of the link.
fn of_link(word: &At<MonitorWord>, domain: &Name, cx: &mut Context<'_, '_>) -> bool {
    let form = cx.domain_form(domain.as_str());
    let reserve = form.and_then(|form| form.reserve.value());
    let has = reserve.is_some_and(|reserve| reserve.network.given().is_some());
    if !has {
        let message = format!("`{domain}` is promised no rate of the link, and has no queue of its own");
        cx.out
            .error(Code::Conflict, &word.span, message)
            .help("add reserve = { network = { rate = \"5mbit\" } } to the domain");
    }
    has
}

/// The service whose requests are watched.
fn service(at: &At<AdaptationForm>, domain: &Name, cx: &mut Context<'_, '_>) -> Option<Name> {
    let form = &at.value;
    let Some(service) = form.service.given() else {
        if form.service.is_absent() {
            let message = "this monitor is of a service, and none is said";
            cx.out
                .error(Code::MissingKey, &at.span, message)
                .help("service = \"dns\", one that the domain mounts");
        }
        return None;
    };
    let mounted = cx.domain_form(domain.as_str())?.services.value();
    if mounted.is_some_and(|mounted| mounted.get(&service.value.0).is_some()) {
        return Name::parse(&service.value.0).ok();
    }
    let message = format!("`{domain}` mounts no service {}", quoted(&service.value.0));
    cx.out.error(Code::UnknownService, &service.span, message).help("name one of its `services`");
    None
}

/// The program or the module that decides, if one does.
fn selecting(
    form: &AdaptationForm,
    domain: &Name,
    cx: &mut Context<'_, '_>,
) -> (Option<SelectorProgram>, Option<PathBuf>) {
    let Some(at) = form.selector.given() else { return (None, None) };
    if form.feedback.given().is_some() {
        let message = "either a program decides, or the controller does";
        cx.out.error(Code::Conflict, &at.span, message).help("leave `selector` out, or `feedback`");
    }
    match (&at.value.command, &at.value.module) {
        (Field::Given(command), Field::Absent) => (program(&at.value, command, domain, cx), None),
        (Field::Absent, Field::Given(module)) => {
            if !at.value.domain.is_absent() || !at.value.timeout.is_absent() {
                let message = "a module is of no domain, and its time is bounded by its fuel";
                cx.out.error(Code::Conflict, &at.span, message).help("leave `domain` and `timeout` out");
            }
            let path = file::on_node(cx.base, &module.value.0);
            if let Some(Err(why)) = cx.node.module(&path) {
                let message = format!("{} is no module for selectors: {why}", path.display());
                cx.out
                    .error(Code::NotFound, &module.span, message)
                    .help("docs/spec/selector.md says what a module is");
            }
            (None, Some(path))
        }
        (Field::Broken, _) | (_, Field::Broken) => (None, None),
        (Field::Given(_), Field::Given(_)) | (Field::Absent, Field::Absent) => {
            cx.out
                .error(Code::Conflict, &at.span, "a selector has either a `command` or a `module`")
                .help("name one of them");
            (None, None)
        }
    }
}

fn program(
    form: &SelectorForm,
    command: &At<Command>,
    domain: &Name,
    cx: &mut Context<'_, '_>,
) -> Option<SelectorProgram> {
    let domain = match form.domain.given() {
        Some(named) => cx.domain_called(named)?,
        None => domain.clone(),
    };
    let timeout_ms = form.timeout.value().map_or(crate::bounds::SELECTOR_TIMEOUT_MS_DEFAULT, |ms| ms.0);
    Some(SelectorProgram { domain, command: argv(command, cx), timeout_ms })
}

/// The command that is told what is in force, if there is one.
fn activator(form: &AdaptationForm, domain: &Name, cx: &mut Context<'_, '_>) -> Option<ActivatorProgram> {
    let at = form.activator.given()?;
    let domain = match at.value.domain.given() {
        Some(named) => cx.domain_called(named)?,
        None => domain.clone(),
    };
    let command = argv(at.value.command.given()?, cx);
    let timeout = at.value.timeout.value();
    let timeout_ms = timeout.map_or(crate::bounds::ACTIVATOR_TIMEOUT_MS_DEFAULT, |ms| ms.0);
    Some(ActivatorProgram { domain, command, timeout_ms })
}

fn selector(at: &At<AdaptationForm>, cx: &mut Context<'_, '_>) -> Option<Selector> {
    let form = &at.value;
    if let Some(feedback) = form.feedback.given() {
        for rule in [&form.more, &form.less] {
            if let Some(rule) = rule.given() {
                let message = "either the controller decides, or rules do";
                cx.out
                    .error(Code::Conflict, &rule.span, message)
                    .help("leave `feedback` out, or `more` and `less`");
            }
        }
        if let Some(word) = form.monitor.given()
            && !matches!(word.value, MonitorWord::Quality | MonitorWord::Misses)
        {
            let message = "the controller needs a share of work that is missed, in percent";
            cx.out.error(Code::Conflict, &word.span, message).help("monitor = \"misses\", or \"quality\"");
        }
        let target = feedback.value.target.given()?;
        if target.value.0.0 >= Figure::whole(100).0 {
            cx.out.error(
                Code::OutOfRange,
                &target.span,
                "all of the work is 100 percent, and less may be missed",
            );
        }
        let calm_samples =
            feedback.value.samples.value().map_or(crate::bounds::FEEDBACK_SAMPLES_DEFAULT, |count| count.0);
        return Some(Selector::Feedback(Feedback { target: target.value.0, calm_samples }));
    }
    if let Some(selector) = form.selector.given() {
        if form.more.given().is_some() || form.less.given().is_some() {
            let message = "either a program decides, or rules do";
            cx.out
                .error(Code::Conflict, &selector.span, message)
                .help("leave `selector` out, or `more` and `less`");
        }
        return Some(Selector::Program);
    }
    if form.feedback.is_broken() || form.selector.is_broken() {
        return None;
    }
    if form.more.is_absent() || form.less.is_absent() {
        cx.out
            .error(Code::MissingKey, &at.span, "nothing says when more is needed, and when less would do")
            .help(RULES);
    }
    let (more, more_samples) = rule(&form.more, cx)?;
    let (less, less_samples) = rule(&form.less, cx)?;
    let selector = Selector::Rules { more, more_samples, less, less_samples };
    if let (Err(error), Some(less)) = (selector.check(), form.less.given()) {
        cx.out.error(Code::Conflict, &less.span, error.to_string()).help(RULES);
    }
    Some(selector)
}

fn rule(field: &Field<RuleForm>, cx: &mut Context<'_, '_>) -> Option<(Threshold, u32)> {
    let at = field.given()?;
    let samples = at.value.samples.value().map_or(1, |count| count.0);
    match (at.value.above.given(), at.value.below.given()) {
        (Some(above), None) => Some((Threshold::Above(above.value.0), samples)),
        (None, Some(below)) => Some((Threshold::Below(below.value.0), samples)),
        _ if at.value.above.is_broken() || at.value.below.is_broken() => None,
        _ => {
            let message = "a rule is about figures above a bound, or below one";
            cx.out.error(Code::Conflict, &at.span, message).help("above = 5, or below = 5");
            None
        }
    }
}

fn budget_range(
    at: &At<BudgetRangeForm>,
    promised_ns: u64,
    period_ns: u64,
    by_rules: bool,
    cx: &mut Context<'_, '_>,
) -> Option<Range> {
    let form = &at.value;
    let (least, most) = (form.least.given()?.value.0, form.most.given()?);
    if form.step.is_absent() && by_rules {
        let message = "rules move a budget step by step, and no step is said";
        cx.out.error(Code::MissingKey, &at.span, message).help("step = \"2ms\"");
    }
    if most.value.0 > period_ns {
        let message =
            format!("one processor has no {} in {}", nanos_text(most.value.0), nanos_text(period_ns));
        cx.out.error(Code::OutOfRange, &most.span, message);
        return None;
    }
    let range = Range { least, most: most.value.0, step: form.step.value().map_or(0, |step| step.0) };
    checked(range, promised_ns, nanos_text, at, cx)
}

fn rate_range(at: &At<RateRangeForm>, promised_bits: u64, cx: &mut Context<'_, '_>) -> Option<Range> {
    let form = &at.value;
    let (least, most, step) = (form.least.given()?, form.most.given()?, form.step.given()?);
    let range = Range { least: least.value.0, most: most.value.0, step: step.value.0 };
    checked(range, promised_bits, rate_text, at, cx)
}

fn checked<T>(
    range: Range,
    promised: u64,
    text: fn(u64) -> String,
    at: &At<T>,
    cx: &mut Context<'_, '_>,
) -> Option<Range> {
    let error = match range.check(promised) {
        Ok(()) => return Some(range),
        Err(error) => error,
    };
    let (least, most) = (text(range.least), text(range.most));
    let message = match error {
        RangeError::Outside => {
            format!("the domain is promised {}, which is not between {least} and {most}", text(promised))
        }
        RangeError::Reversed => format!("the least, {least}, is more than the most, {most}"),
        RangeError::StepTooGreat => {
            format!("a step of {} is more than there is between {least} and {most}", text(range.step))
        }
    };
    cx.out.error(Code::OutOfRange, &at.span, message);
    None
}

fn givers(form: &AdaptationForm, domain: &Name, domains: &[Domain], cx: &mut Context<'_, '_>) -> Vec<Giving> {
    let mut found = Vec::new();
    let entries = form.from.value().map_or(&[][..], |named| named.0.as_slice());
    for entry in entries {
        let key = At { value: crate::scalar::Filled(entry.key.value.clone()), span: entry.key.span.clone() };
        let (Some(giver), Some(at)) = (cx.domain_called(&key), entry.value.as_ref()) else { continue };
        if giver == *domain {
            cx.out
                .error(Code::Conflict, &key.span, format!("`{giver}` can't give to itself"))
                .help("leave it out");
            continue;
        }
        let reserve =
            domains.iter().find(|known| known.name == giver).and_then(|known| known.reserve.as_ref());
        let giving = Giving {
            least_cpu_ns: at.value.cpu.value().map(|nanos| nanos.0),
            least_network_bits: at.value.network.value().map(|rate| rate.0),
            domain: giver,
        };
        let lacks_cpu = giving.least_cpu_ns.is_some() && reserve.is_none_or(|reserve| reserve.cpu.is_none());
        let lacks_network =
            giving.least_network_bits.is_some() && reserve.is_none_or(|reserve| reserve.network.is_none());
        if lacks_cpu || lacks_network {
            let what = if lacks_cpu { "processor time" } else { "rate of the link" };
            let message = format!("`{}` is promised no {what} that it could give", giving.domain);
            cx.out.error(Code::Conflict, &key.span, message).help("leave it out, or promise it some");
        }
        if giving.least_cpu_ns.is_none() && giving.least_network_bits.is_none() {
            let message = format!("nothing says what `{}` may give", giving.domain);
            cx.out.error(Code::TooFew, &at.span, message).help("cpu = \"4ms\": what is left to it at least");
        }
        found.push(giving);
    }
    found
}
