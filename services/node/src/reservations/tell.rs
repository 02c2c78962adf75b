//! The reservation table as it is shown: rows, and how the sums add up.

use super::tables::Tabled;
use super::{Book, Entry, State, choice};
use admin::reserve as admin;
use enforce::{Kind, VtmReport};
use reserve::adapt::Step;
use reserve::model::Model;
use reserve::node::{Node, Promise};
use reserve::{Bytes, Means, Percent, Response, Rule, Span, Table};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use topology::{nanos_text, rate_text, size_text};

impl Book {
    /// Returns the rows of all promises.
    pub(crate) fn rows(&self) -> admin::Book {
        // Somebody may have taken away what was made of the link.
        self.look_at_link();
        let mut state = self.lock();
        let reports = state.dispatchers.reports();
        let both = mixed(&state);
        let state = &*state;
        let tabled = state.tabled();
        let responses = responses(&state.model, &tabled);
        let cgroups = self.actuator.cgroups();
        let is_elsewhere = cgroups.counts_where_it_schedules();
        let vtms = state.entries.iter().map(|(name, entry)| {
            let usage = if entry.in_force { cgroups.usage(&entry.cgroup) } else { domain::Usage::default() };
            let number = state.model.node().promise(name).and_then(|promise| promise.processor);
            let processor = number.and_then(|(number, _)| state.settings.processors.get(number).copied());
            let moved = state.links.moved(name);
            let mut caveats = self.caveats(entry, &both);
            if entry.in_force && entry.now.network.is_some() {
                caveats.extend(state.links.caveat_beside(&caveats));
            }
            admin::VtmRow {
                name: name.clone(),
                reserve: entry.now.clone(),
                processor,
                kept_by: entry.enforced_by().map(|kind| kind.name().to_owned()),
                kept_because: entry.enforced_by().map(|_| entry.because.clone()),
                jobs: job_rows(&state.model, name, reports.get(name)),
                dispatched: reports.get(name).map(dispatched),
                in_force: entry.in_force && entry.without.is_none(),
                suspended: entry.suspended,
                response_ns: responses.get(name).copied().flatten(),
                cpu_us: match reports.get(name) {
                    // Under a table it may be counted elsewhere, together with all others'.
                    Some(report) if is_elsewhere && entry.enforced_by() == Some(Kind::Table) => {
                        Some(report.used_ns / 1_000 + usage.cpu_ns.unwrap_or(0) / 1_000)
                    }
                    _ => usage.cpu_ns.map(|ns| ns / 1_000),
                },
                throttled_periods: usage.throttled_periods,
                memory_bytes: usage.memory.used_bytes,
                memory_pressure_us: entry
                    .in_force
                    .then(|| cgroups.pressure_us(&entry.cgroup, "memory"))
                    .flatten(),
                network_sent_bytes: moved.sent,
                network_received_bytes: moved.received,
                network_between_bytes: moved.between,
                caveats,
            }
        });
        let vtms: Vec<admin::VtmRow> = vtms.collect();
        let resources = state.model.all().map(|(id, resource)| admin::ResourceRow {
            id: id.number(),
            kind: resource.kind.to_string(),
            name: resource.name.clone(),
            below: resource.below.iter().map(|id| id.number()).collect(),
        });
        let (node, resources) = (state.settings.clone(), resources.collect());
        admin::Book {
            node,
            vtms,
            resources,
            in_cluster: false,
            table: Some(tabled.row()),
            deadline: tabled.deadline_row(),
        }
    }

    /// Returns the row of one promise.
    ///
    /// # Errors
    /// Where nothing is promised to anybody of that name.
    pub(crate) fn row(&self, which: &str) -> Result<admin::VtmRow, ::admin::Problem> {
        let name = self.lock().find(which)?;
        let found = self.rows().vtms.into_iter().find(|row| row.name == name);
        found.ok_or_else(|| super::unknown(which))
    }

    /// Returns a domain's promise, in a word for a listing.
    pub(crate) fn short(&self, name: &str) -> Option<String> {
        let state = self.lock();
        let entry = state.entries.get(name)?;
        let lines = entry.now.lines();
        let held = if entry.suspended { vec!["suspended".to_owned()] } else { Vec::new() };
        Some(lines.into_iter().chain(held).collect::<Vec<_>>().join("; "))
    }

    /// The part of the state tree.
    pub(crate) fn tree(&self) -> Value {
        let rows = self.rows();
        let vtms: BTreeMap<&str, &admin::VtmRow> =
            rows.vtms.iter().map(|row| (row.name.as_str(), row)).collect();
        json!({ "node": rows.node, "vtms": vtms, "adaptations": self.lock().adaptations })
    }

    /// How it all adds up: who is on which processor, how long everybody may take, which table
    /// would be.
    pub(crate) fn explain(&self) -> Vec<String> {
        let mut state = self.lock();
        let reports = state.dispatchers.reports();
        let state = &*state;
        let model = &state.model;
        let tabled = state.tabled();
        let capacity = model.node().capacity().clone();
        let mut lines = vec![format!(
            "policy {}; a switch is charged {}",
            capacity.rule.policy,
            Span(capacity.rule.costs.switch_ns())
        )];
        for number in 0..capacity.processors {
            let on: Vec<(&str, reserve::Task)> = model.node().on_processor(number).collect();
            let tasks: Vec<reserve::Task> = on.iter().map(|(_, task)| *task).collect();
            let cpu = state.settings.processors.get(number).copied().unwrap_or(number);
            if on.is_empty() {
                lines.push(format!("processor {cpu}: nothing is promised of it"));
                continue;
            }
            let ppm: u128 = tasks
                .iter()
                .map(|task| u128::from(task.budget_ns()) * 1_000_000 / u128::from(task.period_ns()))
                .sum();
            let how = match capacity.rule.admit(&tasks, None) {
                Ok(proof) => proof.to_string(),
                Err(error) => error.to_string(),
            };
            lines.push(format!(
                "processor {cpu}: {}.{:04} % promised, admitted {how}",
                ppm / 10_000,
                ppm % 10_000
            ));
            let responses = tabled.responses(model.node(), number);
            for (name, task) in &on {
                let told = match responses.get(*name) {
                    Some(Response::Within(ns)) => format!("at worst after {}", Span(*ns)),
                    _ => "when, would take too long to tell".to_owned(),
                };
                lines.push(format!(
                    "  {name}: {} in each {}, {told}, due after {}",
                    nanos_text(task.budget_ns()),
                    nanos_text(task.period_ns()),
                    nanos_text(task.deadline_ns())
                ));
            }
            lines.push(table_line(model.node(), &tabled, number).unwrap_or_else(|| {
                match model.node().table(number) {
                    Ok((_, table)) => format!(
                        "  a table for it would have {} slots in {}",
                        table.slots().len(),
                        Span(table.cycle_ns())
                    ),
                    Err(error) => format!("  there is no table for it: {error}"),
                }
            }));
        }
        for about in state.dispatchers.about() {
            lines.push(format!(
                "{}: dispatcher {}, guardian {}, at most {}.{:04} % of each processor, a switch is charged {}",
                about.kind,
                about.pid,
                about.guardian,
                about.most_ppm / 10_000,
                about.most_ppm % 10_000,
                Span(about.switch_ns)
            ));
        }
        lines.extend(tabled.room.map(|room| {
            format!(
                "deadlines: the kernel leaves them {} of a processor on {} processors, of which others on this machine have {}",
                Percent(room.left_ppm().saturating_add(room.others_ppm)),
                room.processors,
                Percent(room.others_ppm)
            )
        }));
        let both = mixed(state);
        for (name, entry) in &state.entries {
            let asked = choice::of(&entry.now).0;
            let why = match (entry.now.cpu, entry.enforced_by()) {
                _ if entry.without.is_some() => "nothing is promised to it now".to_owned(),
                (None, _) => "no processor time is promised to it".to_owned(),
                (Some(_), None) => match tabled.without.get(name) {
                    Some(why) => format!(
                        "kept by nobody now: it does not run; a quota will keep it, and not the {asked} that was asked for: {why}"
                    ),
                    None => "kept by nobody now: it does not run".to_owned(),
                },
                (Some(_), Some(kind)) => format!("kept by {kind}, {}: {}", means(kind), entry.because),
            };
            lines.push(format!("{name}: {why}"));
            lines.extend(
                job_rows(model, name, reports.get(name)).iter().map(|row| format!("  {}", row.line())),
            );
            let caveats = self.caveats(entry, &both);
            lines.extend(caveats.iter().map(|caveat| format!("  not guaranteed: {caveat}")));
        }
        let sum = |of: fn(&Promise) -> u64| -> u64 {
            model.node().promises().map(|(_, promise)| of(promise)).sum()
        };
        let rate = sum(|promise| promise.network.map_or(0, |class| class.rate_bits));
        lines.push(match &state.settings.link {
            Some(link) => {
                let between = state.settings.between_bits.map_or(String::new(), |bits| format!("; {} between domains of this node", rate_text(bits)));
                format!("link {}: {} of {} promised, each way{between}", link.device, rate_text(rate), rate_text(link.rate_bits))
            }
            None => "link: none is said to be for reservations; `tombolo reserve node --link DEVICE=RATE` says one".to_owned(),
        });
        let size = |bytes: u64| Bytes(bytes.into());
        let memory = sum(|promise| promise.memory_bytes);
        lines.push(format!("memory: {} of {} promised", size(memory), size(capacity.memory_bytes)));
        let (bytes, operations) = (sum(|promise| promise.disk.bytes), sum(|promise| promise.disk.operations));
        lines.push(format!(
            "disk: {} of {} a second and {operations} of {} operations a second promised",
            size(bytes),
            size(capacity.disk.bytes),
            capacity.disk.operations
        ));
        lines
    }
}

impl Book {
    /// Processor time that one has had outside of its own cgroup, in ns; `None`: that is not so.
    pub(crate) fn used_elsewhere_ns(&self, name: &str) -> Option<u64> {
        if !self.actuator.cgroups().counts_where_it_schedules() {
            return None;
        }
        let mut state = self.lock();
        state.entries.get(name).filter(|entry| entry.enforced_by() == Some(Kind::Table))?;
        state.dispatchers.reports().get(name).map(|report| report.used_ns)
    }

    /// Returns the parts of a promise that are not guaranteed now.
    fn caveats(&self, entry: &Entry, both: &BTreeMap<Kind, String>) -> Vec<String> {
        let mut caveats = entry.caveats.clone();
        caveats.extend(entry.caveat().filter(|caveat| !entry.caveats.contains(caveat)));
        caveats.extend(entry.slept.caveat());
        if let Some(kind) = entry.enforced_by() {
            caveats.extend(both.get(&kind).cloned());
            if entry.is_by_quota() {
                caveats.extend(self.actuator.disturbance(&entry.cgroup));
            }
        }
        caveats
    }
}

impl Entry {
    /// Returns the enforcement of its processor time, if there is one now.
    fn enforced_by(&self) -> Option<Kind> {
        self.kept_by.filter(|_| self.in_force && self.now.cpu.is_some())
    }
}

/// Returns the cost of each of several enforcements to the others: admission takes all on a
/// processor for of one kind.
fn mixed(state: &State) -> BTreeMap<Kind, String> {
    let (table, deadline) =
        (state.dispatchers.is_in_use(Kind::Table), state.dispatchers.is_in_use(Kind::Deadline));
    let mut found = BTreeMap::new();
    if deadline {
        let words =
            "others have deadlines in the kernel, which come before slots of a table: these may be had later";
        found.insert(Kind::Table, words.to_owned());
    }
    if table || deadline {
        let words = "who is kept by a table or by deadlines comes before all quotas: the budget may be had later in the period than the analysis says";
        found.insert(Kind::Bandwidth, words.to_owned());
    }
    found
}

/// Returns the means of an enforcement, in words.
fn means(kind: Kind) -> &'static str {
    match kind {
        Kind::Table => "a real-time thread of ours that goes by a table of all on the processor",
        Kind::Deadline => "the kernel's deadline class for each of its threads",
        Kind::Bandwidth => "the kernel's quota for its cgroup, before all that is promised nothing",
        Kind::Simulator => "nobody: time is virtual",
    }
}

/// The jobs inside one that have budgets: by what its dispatcher says, and where none keeps them
/// now, by what admission found.
fn job_rows(model: &Model, name: &str, report: Option<&VtmReport>) -> Vec<admin::JobRow> {
    let one = |timed: reserve::model::Timed| {
        let found = report.and_then(|report| report.inside.iter().find(|job| job.name == timed.name));
        let admitted = match timed.response {
            Some(Response::Within(ns)) => Some(ns),
            _ => None,
        };
        // A dispatcher's table is that which is in force.
        let by_table = found.filter(|job| job.priority.is_some());
        let deadline_ns = timed.task.deadline_ns();
        admin::JobRow {
            response_ns: by_table.map_or(admitted, |job| job.response_ns),
            in_time: by_table.is_none_or(|job| !job.late),
            budget_ns: timed.task.budget_ns(),
            period_ns: timed.task.period_ns(),
            deadline_ns,
            priority: found.and_then(|job| job.priority),
            processes: found.map(|job| job.processes),
            threads: found.map(|job| job.threads),
            used_us: found.map(|job| job.used_ns / 1_000),
            name: timed.name,
        }
    };
    model.timed(name).into_iter().map(one).collect()
}

fn dispatched(report: &VtmReport) -> admin::DispatchedRow {
    admin::DispatchedRow {
        jobs: report.jobs,
        threads: report.threads,
        offered_us: report.offered_ns / 1_000,
        used_us: report.used_ns / 1_000,
        slots: report.slots,
        late_slots: report.late,
        worst_late_us: report.worst_late_ns / 1_000,
        notes: report.notes.clone(),
    }
}

/// The worst response time of everybody, in ns.
fn responses(model: &Model, tabled: &Tabled) -> BTreeMap<String, Option<u64>> {
    let mut found = BTreeMap::new();
    for number in 0..model.node().capacity().processors {
        for (name, response) in tabled.responses(model.node(), number) {
            let ns = if let Response::Within(ns) = response { Some(ns) } else { None };
            found.insert(name, ns);
        }
    }
    found
}

/// The table of a processor that somebody is on.
fn table_line(node: &Node, tabled: &Tabled, number: usize) -> Option<String> {
    let (names, tasks): (Vec<&str>, Vec<reserve::Task>) = tabled.on(node, number).into_iter().unzip();
    if names.is_empty() {
        return None;
    }
    let rule = Rule { costs: tabled.means.costs, ..node.capacity().rule };
    let built = match Table::build(rule, &tasks) {
        Ok(table) => format!("{} slots in {}", table.slots().len(), Span(table.cycle_ns())),
        Err(error) => error.to_string(),
    };
    Some(format!(
        "  the table of {}: {built}, {} of at most {}, a switch is charged {}",
        names.join(", "),
        Percent(Means::asked_ppm(&tasks)),
        Percent(tabled.means.most_ppm),
        Span(rule.costs.switch_ns())
    ))
}

/// A step in words.
pub(super) fn step(step: &Step) -> String {
    let cpu = |promise: &Promise| {
        promise.processor.map_or_else(
            || "no processor time".to_owned(),
            |(_, task)| format!("{} in {}", nanos_text(task.budget_ns()), nanos_text(task.period_ns())),
        )
    };
    let network = |promise: &Promise| {
        promise.network.map_or_else(|| "no network".to_owned(), |class| rate_text(class.rate_bits))
    };
    let disk = |promise: &Promise| {
        let (bytes, operations) = (promise.disk.bytes, promise.disk.operations);
        let bytes = (bytes > 0).then(|| format!("{} a second", size_text(bytes)));
        let operations = (operations > 0).then(|| format!("{operations} operations a second"));
        let both: Vec<String> = bytes.into_iter().chain(operations).collect();
        if both.is_empty() { "nothing".to_owned() } else { both.join(" and ") }
    };
    let mut parts = Vec::new();
    if step.from.processor != step.to.processor {
        parts.push(format!("cpu {} to {}", cpu(&step.from), cpu(&step.to)));
    }
    if step.from.network != step.to.network {
        parts.push(format!("network {} to {}", network(&step.from), network(&step.to)));
    }
    if step.from.memory_bytes != step.to.memory_bytes {
        parts.push(format!(
            "memory {} to {}",
            size_text(step.from.memory_bytes),
            size_text(step.to.memory_bytes)
        ));
    }
    if step.from.disk != step.to.disk {
        parts.push(format!("disk {} to {}", disk(&step.from), disk(&step.to)));
    }
    format!("{}: {}", step.name, parts.join(", "))
}
