//! Looking: `ps`, `inspect`, `service`.

use super::live::{INTERVAL, NEW_PAGE};
use super::{client, wait};
use crate::cli::{InspectArgs, ListArgs, PlaceArgs, PsArgs, ServiceCommand};
use admin::{DomainRow, HealthRow, LayerRow, ServiceRow};
use serde_json::Value;
use std::io::{IsTerminal, stdout};
use terminal::{Failure, Paint, bytes, print, print_json, print_table, seconds};

/// The state in `ps --json` of a guest whose command does not run yet.
const BOOTING: &str = "booting";

/// `tombolo ps`.
pub fn domains(place: &PlaceArgs, arguments: &PsArgs) -> Result<(), Failure> {
    let client = client(place)?;
    loop {
        let mut rows: Vec<DomainRow> = wait(client.get("domains"))??;
        if let Some(dc) = &arguments.dc {
            rows.retain(|row| row.dc == *dc);
            // Who watches may wait for what is not there yet.
            if rows.is_empty() && !arguments.watch {
                let failure = Failure::new(format!("no distributed container {dc:?} is up"));
                return Err(failure.help("`tombolo ps` lists all domains"));
            }
        }
        if arguments.json {
            print_json(&rows)?;
        } else {
            if arguments.watch && stdout().is_terminal() {
                print(NEW_PAGE)?;
            }
            table(&rows)?;
        }
        if !arguments.watch {
            return Ok(());
        }
        std::thread::park_timeout(INTERVAL);
    }
}

fn table(rows: &[DomainRow]) -> Result<(), Failure> {
    let paint = Paint::of(&stdout());
    let mut cells: Vec<Vec<String>> = rows.iter().map(|row| domain_cells(row, paint)).collect();
    let mut titles = vec![
        "DC", "DOMAIN", "KIND", "STATE", "UP", "PID", "RESTARTS", "MEMORY", "PIDS", "SERVICES", "COMMAND",
    ];
    let mut insert = |at: usize, title, of: &dyn Fn(&DomainRow) -> Option<String>| {
        titles.insert(at, title);
        for (cells, row) in cells.iter_mut().zip(rows) {
            cells.insert(at, of(row).unwrap_or_else(|| "-".into()));
        }
    };
    // Columns that few have, from the right to the left.
    if rows.iter().any(|row| row.layer.is_some()) {
        insert(8, "LAYER", &|row| row.layer.as_ref().map(layer));
    }
    if rows.iter().any(|row| row.node.is_some()) {
        insert(2, "NODE", &|row| row.node.clone());
    }
    print_table(&titles, &cells)?;
    print(&reasons(rows))
}

/// Why domains are in their states: below the table, because one long reason would widen every row.
fn reasons(rows: &[DomainRow]) -> String {
    let reason = |row: &DomainRow| {
        let why = row.why.as_ref()?;
        Some(format!("{}/{}: {}: {}\n", row.dc, row.domain, row.state, clean(why)))
    };
    rows.iter().filter_map(reason).collect()
}

/// How much of a layer is used: `12.0 MiB/256.0 MiB 310/65536`.
fn layer(layer: &LayerRow) -> String {
    let used_bytes = layer.used_bytes.map_or_else(|| "-".to_owned(), bytes);
    let used_inodes = layer.used_inodes.map_or_else(|| "-".to_owned(), |used| used.to_string());
    format!("{used_bytes}/{} {used_inodes}/{}", bytes(layer.size_bytes), layer.inodes)
}

fn domain_cells(row: &DomainRow, paint: Paint) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let booting = row.machine.as_ref().and_then(|machine| machine.guest.as_ref()).filter(|at| *at == BOOTING);
    let booting = booting.filter(|_| row.state == "running");
    let ended = row.last_exit.as_ref().filter(|_| row.state != "running");
    let health = row.health.as_ref().filter(|_| row.state == "running").map(health);
    let state = ended.or(booting).or(health.as_ref()).map_or_else(
        || paint.state(&row.state),
        |more| format!("{} ({})", paint.state(&row.state), clean(more)),
    );
    vec![
        row.dc.clone(),
        row.domain.clone(),
        kind(row),
        state,
        or_dash(row.up_s.map(seconds)),
        or_dash(row.pid.map(|pid| pid.to_string())),
        row.restarts.to_string(),
        or_dash(row.memory_bytes.map(bytes)),
        or_dash(row.processes.map(|count| count.to_string())),
        if row.services.is_empty() { "-".into() } else { row.services.join(" ") },
        shortened(&row.command.join(" ")),
    ]
}

/// Returns the outcome of health checks: `healthy`, `failing 2/3`.
fn health(health: &HealthRow) -> String {
    match health.failures {
        0 => health.state.clone(),
        failures => format!("{} {failures}/{}", health.state, health.fails),
    }
}

/// The kind, of a machine with what runs it: `vm (tcg, 2 cpus, 512.0 MiB)`.
fn kind(row: &DomainRow) -> String {
    let Some(machine) = &row.machine else { return row.kind.clone() };
    let accel = machine.accel.as_ref().map_or_else(String::new, |accel| format!("{}, ", clean(accel)));
    let cpus = if machine.cpus == 1 { "1 cpu".to_owned() } else { format!("{} cpus", machine.cpus) };
    format!("{} ({accel}{cpus}, {})", row.kind, bytes(machine.memory_bytes))
}

/// A command line that does not spoil the table.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 48;
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.chars().count() <= SHOWN {
        return clean;
    }
    clean.chars().take(SHOWN - 3).chain("...".chars()).collect()
}

/// `tombolo service ...`.
pub fn service(place: &PlaceArgs, command: &ServiceCommand) -> Result<(), Failure> {
    match command {
        ServiceCommand::New(arguments) => super::skeleton::new(arguments),
        ServiceCommand::Check(arguments) => super::service_check::run(place, arguments),
        ServiceCommand::Move(arguments) => super::service_move::run(place, arguments),
        ServiceCommand::Ls(arguments) => services(place, arguments),
        ServiceCommand::Show { service, json } => {
            let client = client(place)?;
            let tree: Value = wait(client.get(&format!("services/{}", encoded(service))))??;
            if *json { print_json(&tree) } else { print(&indented(&tree)) }
        }
    }
}

fn services(place: &PlaceArgs, arguments: &ListArgs) -> Result<(), Failure> {
    let client = client(place)?;
    let rows: Vec<ServiceRow> = wait(client.get("services"))??;
    if arguments.json { print_json(&rows) } else { service_table(&rows) }
}

pub(super) fn service_table(rows: &[ServiceRow]) -> Result<(), Failure> {
    let paint = Paint::of(&stdout());
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.dc.clone(),
                row.service.clone(),
                row.kind.clone(),
                paint.state(if row.up { "up" } else { "down" }),
                row.domain.clone(),
                row.server_pid.map_or("-".into(), |pid| pid.to_string()),
                row.generation.to_string(),
                row.channels.to_string(),
                row.consumers.join(" "),
            ]
        })
        .collect();
    print_table(
        &["DC", "SERVICE", "KIND", "STATE", "IN", "SERVER", "GENERATION", "CHANNELS", "CONSUMERS"],
        &cells,
    )
}

/// `tombolo inspect`.
pub fn inspect(place: &PlaceArgs, arguments: &InspectArgs) -> Result<(), Failure> {
    let client = client(place)?;
    let path = arguments.path.as_deref().unwrap_or("").trim_matches('/');
    let tree: Value = wait(client.get(&format!("state?path={}", encoded(path))))??;
    if arguments.json { print_json(&tree) } else { print(&indented(&tree)) }
}

/// A part of a URL: everything but letters, digits, `-`, `.`, `_` as `%XX`.
pub fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}

/// Counters of one group that are 0 and are said together; fewer are shown.
const FEW_ZEROES: usize = 3;

/// Characters of a few numbers that are said in one line: a line of a terminal, with room for what
/// stands before.
const NUMBERS_LINE_CHARS: usize = 96;

/// A tree as indented text: `key: value`, deeper things below. What says little is short: small
/// things of a list and a few numbers have a line each, and counters that never counted are only
/// counted. `--json` has everything.
pub fn indented(tree: &Value) -> String {
    let mut out = String::new();
    match tree {
        Value::Object(_) | Value::Array(_) => write_tree(tree, 0, &mut out),
        scalar => out = format!("{}\n", plain(scalar)),
    }
    out
}

fn write_tree(tree: &Value, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    match tree {
        Value::Object(map) => {
            let zeroes = map.values().filter(|value| is_zero(value)).count();
            let hidden = if zeroes > FEW_ZEROES { zeroes } else { 0 };
            for (key, value) in map.iter().filter(|(_, value)| hidden == 0 || !is_zero(value)) {
                write_entry(&format!("{indent}{}:", clean(key)), key, value, depth, out);
            }
            if hidden == map.len() && hidden > 0 {
                *out += &format!("{indent}(all {hidden} are 0)\n");
            } else if hidden > 0 {
                *out += &format!("{indent}({hidden} more are 0)\n");
            }
        }
        Value::Array(list) => {
            for value in list {
                write_entry(&format!("{indent}-"), "", value, depth, out);
            }
        }
        scalar => *out += &format!("{indent}{}\n", plain(scalar)),
    }
}

fn write_entry(head: &str, key: &str, value: &Value, depth: usize, out: &mut String) {
    let list_of_plain = value.as_array().is_some_and(|list| list.iter().all(is_plain));
    match value {
        Value::Object(map) if key.is_empty() && !map.is_empty() && map.values().all(is_plain) => {
            let pairs: Vec<String> =
                map.iter().map(|(key, value)| format!("{}: {}", clean(key), plain(value))).collect();
            *out += &format!("{head} {}\n", pairs.join(", "));
        }
        Value::Object(map) if map.is_empty() => *out += &format!("{head} (none)\n"),
        Value::Array(list) if list.is_empty() => *out += &format!("{head} (none)\n"),
        Value::Array(list) if list_of_plain => {
            let items: Vec<String> = list.iter().map(plain).collect();
            // A command is read as it would be typed.
            let between = if key == "command" { " " } else { ", " };
            *out += &format!("{head} {}\n", items.join(between));
        }
        Value::Object(map) if numbers(map).is_some() => {
            *out += &format!("{head} {}\n", numbers(map).unwrap_or_default());
        }
        Value::Object(_) | Value::Array(_) => {
            *out += &format!("{head}\n");
            write_tree(value, depth + 1, out);
        }
        scalar => *out += &format!("{head} {}\n", plain(scalar)),
    }
}

/// A few numbers in one line, such as a latency's.
fn numbers(map: &serde_json::Map<String, Value>) -> Option<String> {
    if map.len() < 2 || !map.values().all(Value::is_number) {
        return None;
    }
    if map.values().all(is_zero) {
        return Some(format!("(all {} are 0)", map.len()));
    }
    let pairs: Vec<String> = map.iter().map(|(key, value)| format!("{} {value}", clean(key))).collect();
    let line = pairs.join(", ");
    (line.len() <= NUMBERS_LINE_CHARS).then_some(line)
}

fn is_plain(value: &Value) -> bool {
    !value.is_object() && !value.is_array()
}

fn is_zero(value: &Value) -> bool {
    value.as_u64() == Some(0)
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => clean(text),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

/// Replaces the control characters of a domain's own words, which must not steer the reader's
/// terminal.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_tree_is_printed_as_indented_text_that_steers_no_terminal() {
        let tree = json!({"a": {"b": 1, "list": ["x", "y"], "none": []}, "evil\u{1b}[2J": "\u{1b}[31mred", "rows": [{"k": null}], "command": ["a", "b"]});
        let text = indented(&tree);
        assert_eq!(
            text,
            "a:\n  b: 1\n  list: x, y\n  none: (none)\ncommand: a b\nevil\u{fffd}[2J: \u{fffd}[31mred\nrows:\n  - k: -\n"
        );
    }

    #[test]
    fn counters_that_never_counted_take_one_line() {
        let few = json!({"a": 0, "b": 0, "c": 0, "d": 1});
        assert_eq!(indented(&few), "a: 0\nb: 0\nc: 0\nd: 1\n");
        let many = json!({"a": 0, "b": 0, "c": 0, "d": 1, "e": 0, "f": {"g": 0}});
        assert_eq!(indented(&many), "d: 1\nf:\n  g: 0\n(4 more are 0)\n");
        assert_eq!(indented(&json!({"x": {"a": 0, "b": 0, "c": 0, "d": 0}})), "x: (all 4 are 0)\n");
        let latency = json!({"latency": {"count": 2, "p50_ns": 100}});
        assert_eq!(indented(&latency), "latency: count 2, p50_ns 100\n");
    }

    #[test]
    fn a_url_takes_any_text() {
        assert_eq!(encoded("dc/a b?ü"), "dc%2Fa%20b%3F%C3%BC");
    }
}
