//! `tombolo trace`: where the time of a request goes.

use super::look::{clean, encoded};
use super::{client, wait};
use crate::cli::{PlaceArgs, TraceArgs};
use crate::roles::{Arm, Calls, Order, PROBE, Probe};
use admin::client::Client;
use admin::{DomainRow, Entry, ServiceRow};
use domain::ExecOptions;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::stdout;
use std::path::PathBuf;
use std::process::Stdio;
use terminal::{Failure, Paint, print, print_json};

/// Measures and prints.
pub fn run(place: &PlaceArgs, arguments: &TraceArgs) -> Result<(), Failure> {
    let client = client(place)?;
    let service: Value = wait(client.get(&format!("services/{}", encoded(&arguments.service))))??;
    refuse_others(&arguments.service, &service)?;
    let entry = asker(&client, &arguments.service, arguments.domain.as_deref(), &service)?;
    let file = mounted_at(&client, &entry, &arguments.service)?.join("query");
    let order = Order { file: file.clone(), question: arguments.name.clone(), repeat: arguments.repeat };
    let probe = probe(&entry, &order)?;
    let rows = rows(&probe);
    if arguments.json {
        let phase = |row: &Row| json!({ "phase": row.name, "level": row.depth, "fresh_ns": row.fresh_ns, "again_ns": row.again_ns });
        return print_json(&json!({
            "service": arguments.service, "domain": entry.domain, "dc": entry.dc, "file": file,
            "question": arguments.name, "repeat": arguments.repeat,
            "phases": rows.iter().map(phase).collect::<Vec<_>>(), "measured": probe,
        }));
    }
    let mut text = format!(
        "{} by {} in {}/{}: medians of {}, in ns\n",
        arguments.name,
        file.display(),
        entry.dc,
        entry.domain,
        arguments.repeat
    );
    text += &table(&rows);
    text += &legend(&probe);
    print(&text)
}

/// Refuses services of other kinds: requests to a program are its own business, and no answer of it
/// says where its time went.
fn refuse_others(name: &str, service: &Value) -> Result<(), Failure> {
    let kind = service.get("kind").and_then(Value::as_str).unwrap_or("service");
    if kind == "directory" {
        return Ok(());
    }
    let failure =
        Failure::new(format!("{name} is a {kind}: only the questions to a directory can be traced"));
    Err(failure.help(format!("`tombolo service show {name}` says who uses it")))
}

/// Returns the meaning of the columns, and the answer: the way of a failure is another one than
/// that of an answer.
fn legend(probe: &Probe) -> String {
    let mut text = match &probe.not_flushed {
        None => "\nfresh: the cache was emptied before each request\n".to_owned(),
        Some(why) => format!(
            "\nfresh: one request; the cache may have known the answer, because it could not be emptied ({why})\n"
        ),
    };
    text += "again: the same request again and again\n";
    text += "what is indented happens meanwhile in the frontend and, further in, in the backend\n";
    let paint = Paint::of(&stdout());
    match &probe.failure {
        Some(errno) => {
            text += &format!("{}answered by an error:{} {}\n", paint.yellow, paint.end, clean(errno))
        }
        None => text += &format!("answer: {}\n", clean(probe.answer.lines().next().unwrap_or("(empty)"))),
    }
    text
}

/// The domain that asks: the named one; else one that may make the service forget; else the first
/// that mounts it.
pub(super) fn asker(
    client: &Client,
    called: &str,
    domain: Option<&str>,
    service: &Value,
) -> Result<Entry, Failure> {
    let name = match domain {
        Some(name) => name.to_owned(),
        None => {
            let running: Vec<DomainRow> = wait(client.get("domains"))??;
            let first = best_consumer(service, &running).ok_or_else(|| {
                Failure::new(format!("no domain that runs mounts service {called}"))
                    .help("add it to the `services` of a domain in the topology file")
            })?;
            let rows: Vec<ServiceRow> = wait(client.get("services"))??;
            let plain = called.rsplit('/').next().unwrap_or(called);
            let row =
                rows.iter().find(|row| row.service == plain && row.consumers.iter().any(|c| c == first));
            row.map_or_else(|| first.to_owned(), |row| format!("{}/{first}", row.dc))
        }
    };
    Ok(wait(client.get(&format!("domains/{}/entry", encoded(&name))))??)
}

/// A consumer that may write to the service's `ctl`, so that fresh requests can be measured; or the
/// first one that runs.
fn best_consumer<'a>(service: &'a Value, domains: &[DomainRow]) -> Option<&'a str> {
    let runs = |name: &&str| domains.iter().any(|row| row.domain == *name && row.state == "running");
    let consumers = service.get("consumers")?.as_array()?.iter().filter_map(Value::as_str).filter(runs);
    let controls = |name: &&str| {
        let verbs = service.get("allow").and_then(|allow| allow.get(*name)).and_then(Value::as_array);
        verbs.is_some_and(|verbs| verbs.iter().any(|verb| verb == "control"))
    };
    consumers.clone().find(controls).or_else(|| consumers.clone().next())
}

/// Where the domain sees the service.
pub(super) fn mounted_at(client: &Client, entry: &Entry, service: &str) -> Result<PathBuf, Failure> {
    let plain = service.rsplit('/').next().unwrap_or(service);
    let path = format!("dc/{}/domains/{}/services/{plain}/at", entry.dc, entry.domain);
    let at: Result<String, _> = wait(client.get(&format!("state?path={}", encoded(&path))))?;
    let at = at.map_err(|_| {
        Failure::new(format!("domain {} does not mount service {plain}", entry.domain))
            .help("choose another with --domain; `tombolo service ls` lists the consumers")
    })?;
    Ok(PathBuf::from(at))
}

/// Runs the probe inside the domain.
fn probe(entry: &Entry, order: &Order) -> Result<Probe, Failure> {
    let order = serde_json::to_string(order).map_err(|e| Failure::new(e.to_string()))?;
    let options =
        ExecOptions { command: vec![entry.program.clone(), PROBE.into(), order], ..ExecOptions::default() };
    let mut command = domain::exec_command(&entry.layout, &entry.dc, &entry.domain, &options)
        .map_err(|e| Failure::new(e.to_string()))?;
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Failure::new(format!("the probe in {}/{} failed: {said}", entry.dc, entry.domain)));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|e| Failure::new(format!("the probe's report is not understood: {e}")))
}

/// A line of the breakdown.
struct Row {
    name: String,
    depth: usize,
    fresh_ns: Option<u64>,
    again_ns: Option<u64>,
}

fn rows(probe: &Probe) -> Vec<Row> {
    let row = |name: &str, depth, of: &dyn Fn(&Arm) -> Vec<u64>| Row {
        name: name.into(),
        depth,
        fresh_ns: median(of(&probe.fresh)),
        again_ns: median(of(&probe.again)),
    };
    let calls = |of: fn(&Calls) -> u64| move |arm: &Arm| arm.calls.iter().map(of).collect::<Vec<u64>>();
    let traced = |key: &'static str| {
        move |arm: &Arm| arm.traces.iter().filter_map(|trace| trace.get(key)?.as_u64()).collect::<Vec<u64>>()
    };
    let mut rows = vec![
        row("open", 0, &calls(|c| c.open_ns)),
        row("write", 0, &calls(|c| c.write_ns)),
        row("to the backend", 1, &traced("sent_ns")),
        row("backend, both ways", 1, &traced("backend_ns")),
    ];
    for phase in phases(probe) {
        let of =
            |arm: &Arm| arm.traces.iter().filter_map(|t| t.get("phases")?.get(&phase)?.as_u64()).collect();
        rows.push(row(&phase, 2, &of));
    }
    rows.push(row("read", 0, &calls(|c| c.read_ns)));
    rows.push(row("close", 0, &calls(|c| c.close_ns)));
    rows.push(row("total", 0, &calls(|c| c.open_ns + c.write_ns + c.read_ns + c.close_ns)));
    rows
}

/// The phases of the backend that any request went through: in the service's own order, then
/// others.
fn phases(probe: &Probe) -> Vec<String> {
    let traces = probe.fresh.traces.iter().chain(&probe.again.traces);
    let seen: BTreeSet<String> = traces
        .filter_map(|trace| trace.get("phases").and_then(Value::as_object))
        .flat_map(|phases| phases.keys().cloned())
        .collect();
    let known = wire::directory::PHASES.iter().map(|name| (*name).to_owned());
    let others = seen.iter().filter(|name| !wire::directory::PHASES.contains(&name.as_str())).cloned();
    known.filter(|name| seen.contains(name)).chain(others).collect()
}

/// The middle value.
fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

fn table(rows: &[Row]) -> String {
    let paint = Paint::of(&stdout());
    let cell = |value: Option<u64>| value.map_or("-".into(), grouped);
    let mut text = format!("{}{:<24}{:>14}{:>14}{}\n", paint.bold, "", "fresh", "again", paint.end);
    for row in rows {
        let name = format!("{}{}", "  ".repeat(row.depth), row.name);
        let begin = if row.depth == 0 { paint.bold } else { paint.dim };
        let (fresh, again) = (cell(row.fresh_ns), cell(row.again_ns));
        text += &format!("{begin}{name:<24}{fresh:>14}{again:>14}{}\n", paint.end);
    }
    text
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_thousands() {
        assert_eq!(median(vec![3, 1, 2]), Some(2));
        assert_eq!(median(Vec::new()), None);
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(12), "12");
    }
}
