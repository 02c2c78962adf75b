//! `tombolo trace`: where the time of a request goes.

use super::look::encoded;
use super::{client, wait};
use crate::cli::{PlaceArgs, TraceArgs};
use crate::output::{Failure, Paint, print, print_json};
use crate::roles::{Order, PROBE, Probe};
use domain::ExecOptions;
use node::admin::{Entry, ServiceRow};
use node::client::Client;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::stdout;
use std::path::PathBuf;
use std::process::Stdio;

/// The binary, as a domain sees it.
const PROGRAM: &str = "/run/tombolo/tombolo";

/// Measures and prints.
pub fn run(place: &PlaceArgs, arguments: &TraceArgs) -> Result<(), Failure> {
    let client = client(place)?;
    let service: Value = wait(client.get(&format!("services/{}", encoded(&arguments.service))))??;
    let entry = asker(&client, arguments, &service)?;
    let file = query_file(&client, &entry, &arguments.service)?;
    let order = Order { file: file.clone(), question: arguments.name.clone(), repeat: arguments.repeat };
    let probe = probe(&entry, &order)?;
    let rows = rows(&probe);
    if arguments.json {
        let phases: Vec<Value> = rows
            .iter()
            .map(|row| json!({ "phase": row.name, "level": row.depth, "median_ns": row.median_ns }))
            .collect();
        return print_json(&json!({
            "service": arguments.service, "domain": entry.domain, "dc": entry.dc, "file": file,
            "question": arguments.name, "repeat": arguments.repeat, "answer": probe.answer,
            "phases": phases, "calls": probe.calls, "traces": probe.traces,
        }));
    }
    let head = format!(
        "{} by {} in {}/{}, {} times; medians\n",
        arguments.name,
        file.display(),
        entry.dc,
        entry.domain,
        arguments.repeat
    );
    print(&(head + &table(&rows)))
}

/// The domain that asks: the named one, or the first that mounts the service.
fn asker(client: &Client, arguments: &TraceArgs, service: &Value) -> Result<Entry, Failure> {
    let name = match &arguments.domain {
        Some(name) => name.clone(),
        None => {
            let first = service.pointer("/consumers/0").and_then(Value::as_str);
            let first = first.ok_or_else(|| {
                Failure::new(format!("no domain mounts service {}", arguments.service))
                    .help("add it to the `services` of a domain in the topology file")
            })?;
            let rows: Vec<ServiceRow> = wait(client.get("services"))??;
            let plain = arguments.service.rsplit('/').next().unwrap_or(&arguments.service);
            let row =
                rows.iter().find(|row| row.service == plain && row.consumers.iter().any(|c| c == first));
            row.map_or_else(|| first.to_owned(), |row| format!("{}/{first}", row.dc))
        }
    };
    Ok(wait(client.get(&format!("domains/{}/entry", encoded(&name))))??)
}

/// Where the domain sees the service's `query`.
fn query_file(client: &Client, entry: &Entry, service: &str) -> Result<PathBuf, Failure> {
    let plain = service.rsplit('/').next().unwrap_or(service);
    let path = format!("dc/{}/domains/{}/services/{plain}/at", entry.dc, entry.domain);
    let at: Result<String, _> = wait(client.get(&format!("state?path={}", encoded(&path))))?;
    let at = at.map_err(|_| {
        Failure::new(format!("domain {} does not mount service {plain}", entry.domain))
            .help("choose another with --domain; `tombolo service ls` lists the consumers")
    })?;
    Ok(PathBuf::from(at).join("query"))
}

/// Runs the probe inside the domain.
fn probe(entry: &Entry, order: &Order) -> Result<Probe, Failure> {
    let order = serde_json::to_string(order).map_err(|e| Failure::new(e.to_string()))?;
    let options =
        ExecOptions { command: vec![PROGRAM.into(), PROBE.into(), order], ..ExecOptions::default() };
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
    median_ns: u64,
}

fn rows(probe: &Probe) -> Vec<Row> {
    let calls = |of: fn(&crate::roles::Calls) -> u64| median(probe.calls.iter().map(of).collect());
    let traced = |key: &str| {
        median(probe.traces.iter().filter_map(|trace| trace.get(key).and_then(Value::as_u64)).collect())
    };
    let row = |name: &str, depth, median_ns| Row { name: name.into(), depth, median_ns };
    let mut rows = vec![
        row("open", 0, calls(|c| c.open_ns)),
        row("write", 0, calls(|c| c.write_ns)),
        row("to the backend", 1, traced("sent_ns")),
        row("backend, both ways", 1, traced("backend_ns")),
    ];
    let mut phases: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for trace in &probe.traces {
        for (name, ns) in trace.get("phases").and_then(Value::as_object).into_iter().flatten() {
            phases.entry(name).or_default().push(ns.as_u64().unwrap_or(0));
        }
    }
    let known = wire::directory::PHASES.iter().filter_map(|name| phases.remove_entry(name));
    let known: Vec<_> = known.collect();
    for (name, values) in known.into_iter().chain(phases) {
        rows.push(row(name, 2, median(values)));
    }
    rows.push(row("read", 0, calls(|c| c.read_ns)));
    rows.push(row("close", 0, calls(|c| c.close_ns)));
    let total = median(probe.calls.iter().map(|c| c.open_ns + c.write_ns + c.read_ns + c.close_ns).collect());
    rows.push(row("total", 0, total));
    rows
}

/// The middle value; 0 of none.
fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

fn table(rows: &[Row]) -> String {
    let paint = Paint::of(&stdout());
    let mut text = String::new();
    for row in rows {
        let name = format!("{}{}", "  ".repeat(row.depth), row.name);
        let (begin, end) = if row.depth == 0 { (paint.bold, paint.end) } else { (paint.dim, paint.end) };
        text += &format!("{begin}{name:<24}{:>14} ns{end}\n", grouped(row.median_ns));
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
        assert_eq!(median(vec![3, 1, 2]), 2);
        assert_eq!(median(Vec::new()), 0);
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(12), "12");
    }
}
