//! Looking: `ps`, `inspect`, `service`.

use super::{client, wait};
use crate::cli::{InspectArgs, ListArgs, PlaceArgs, ServiceCommand};
use crate::output::{Failure, Paint, bytes, print, print_json, print_table, seconds};
use node::admin::{DomainRow, ServiceRow};
use serde_json::Value;
use std::io::stdout;

/// `tombolo ps`.
pub fn domains(place: &PlaceArgs, arguments: &ListArgs) -> Result<(), Failure> {
    let client = client(place)?;
    let rows: Vec<DomainRow> = wait(client.get("domains"))??;
    if arguments.json {
        return print_json(&rows);
    }
    let paint = Paint::of(&stdout());
    let cells: Vec<Vec<String>> = rows.iter().map(|row| domain_cells(row, paint)).collect();
    print_table(
        &[
            "DC",
            "DOMAIN",
            "KIND",
            "STATE",
            "UP",
            "PID",
            "RESTARTS",
            "MEMORY",
            "PROCESSES",
            "SERVICES",
            "COMMAND",
        ],
        &cells,
    )
}

fn domain_cells(row: &DomainRow, paint: Paint) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let why = row.why.as_ref().or(row.last_exit.as_ref().filter(|_| row.state != "running"));
    let state =
        why.map_or_else(|| paint.state(&row.state), |why| format!("{} ({why})", paint.state(&row.state)));
    vec![
        row.dc.clone(),
        row.domain.clone(),
        row.kind.clone(),
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
    if arguments.json {
        return print_json(&rows);
    }
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

/// A tree as indented text: `key: value`, deeper things below.
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
            for (key, value) in map {
                write_entry(&format!("{indent}{}:", clean(key)), value, depth, out);
            }
        }
        Value::Array(list) => {
            for value in list {
                write_entry(&format!("{indent}-"), value, depth, out);
            }
        }
        scalar => *out += &format!("{indent}{}\n", plain(scalar)),
    }
}

fn write_entry(head: &str, value: &Value, depth: usize, out: &mut String) {
    let list_of_plain =
        value.as_array().is_some_and(|list| list.iter().all(|item| !item.is_object() && !item.is_array()));
    match value {
        Value::Object(map) if map.is_empty() => *out += &format!("{head} (none)\n"),
        Value::Array(list) if list.is_empty() => *out += &format!("{head} (none)\n"),
        Value::Array(list) if list_of_plain => {
            let items: Vec<String> = list.iter().map(plain).collect();
            *out += &format!("{head} {}\n", items.join(", "));
        }
        Value::Object(_) | Value::Array(_) => {
            *out += &format!("{head}\n");
            write_tree(value, depth + 1, out);
        }
        scalar => *out += &format!("{head} {}\n", plain(scalar)),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => clean(text),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

/// What a domain wrote of itself must not steer the reader's terminal.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_tree_is_printed_as_indented_text_that_steers_no_terminal() {
        let tree = json!({"a": {"b": 1, "list": ["x", "y"], "none": []}, "evil\u{1b}[2J": "\u{1b}[31mred", "rows": [{"k": null}]});
        let text = indented(&tree);
        assert_eq!(
            text,
            "a:\n  b: 1\n  list: x, y\n  none: (none)\nevil\u{fffd}[2J: \u{fffd}[31mred\nrows:\n  -\n    k: -\n"
        );
    }

    #[test]
    fn a_url_takes_any_text() {
        assert_eq!(encoded("dc/a b?ü"), "dc%2Fa%20b%3F%C3%BC");
    }
}
