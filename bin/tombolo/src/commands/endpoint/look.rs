//! Looking at endpoints: `ls`, `show`.

use super::from_node::{Where, where_to};
use super::{LsArgs, ShowArgs};
use crate::cli::PlaceArgs;
use crate::commands::look::{clean, encoded};
use crate::commands::{client, wait};
use admin::EndpointRow;
use admin::client::ClientError;
use serde_json::Value;
use std::io::stdout;
use terminal::{Failure, Paint, bytes, print, print_json, print_table, seconds};

/// `tombolo endpoint ls`.
pub fn list(place: &PlaceArgs, arguments: &LsArgs) -> Result<(), Failure> {
    let mut rows = rows(place)?;
    if let Some(dc) = &arguments.dc {
        rows.retain(|row| row.dc == *dc);
        if rows.is_empty() {
            return Err(Failure::new(format!("there are no endpoints in {dc:?}")).help(
                "`tombolo ps` lists the distributed containers; a file names endpoints as [endpoint.NAME]",
            ));
        }
    }
    if arguments.json {
        return print_json(&rows);
    }
    let paint = Paint::of(&stdout());
    let cells: Vec<Vec<String>> = rows.iter().map(|row| cells(row, paint)).collect();
    print_table(&["DC", "ENDPOINT", "ADDRESS", "STATE", "IN", "PID", "PEERS", "WAITING", "BYTES"], &cells)
}

/// All endpoints of the node.
pub fn rows(place: &PlaceArgs) -> Result<Vec<EndpointRow>, Failure> {
    wait(client(place)?.get("endpoints"))?.map_err(not_here)
}

/// One of them.
pub fn tree(place: &PlaceArgs, endpoint: &str) -> Result<Value, Failure> {
    wait(client(place)?.get(&format!("endpoints/{}", encoded(endpoint))))?.map_err(not_here)
}

/// In a domain there is no daemon to ask, and there shall be none: a domain is not told of the
/// others.
pub fn not_here(error: ClientError) -> Failure {
    match error {
        ClientError::NotRunning { .. } if where_to(&None) == Where::Here => {
            Failure::new("this is inside a domain, from where endpoints can be called and not listed")
                .help("look from the node; here there are `send`, `call` and `receive`")
        }
        other => other.into(),
    }
}

fn cells(row: &EndpointRow, paint: Paint) -> Vec<String> {
    let dash = || "-".to_owned();
    let state = if row.bound {
        format!("{}bound{}", paint.green, paint.end)
    } else {
        format!("{}free{}", paint.yellow, paint.end)
    };
    vec![
        row.dc.clone(),
        row.endpoint.as_deref().map_or_else(dash, clean),
        row.address.clone().unwrap_or_else(dash),
        state,
        match &row.node {
            Some(node) => format!("{}@{}", row.domain, clean(node)),
            None => row.domain.clone(),
        },
        row.pid.map_or_else(dash, |pid| pid.to_string()),
        row.peers.to_string(),
        row.waiting.to_string(),
        bytes(row.bytes),
    ]
}

/// `tombolo endpoint show`.
pub fn show(place: &PlaceArgs, arguments: &ShowArgs) -> Result<(), Failure> {
    let tree = tree(place, &arguments.endpoint)?;
    if arguments.json {
        return print_json(&tree);
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    print(&page(&tree, now.as_secs()))
}

/// Returns the page on an endpoint for a person.
fn page(tree: &Value, now_unix_s: u64) -> String {
    let mut out = format!("{}\n", headline(tree));
    let mut field = |key: &str, text: String| out += &format!("  {key:<11}{text}\n");
    field("state", state(tree, now_unix_s));
    field("in", format!("{}/{}", text(tree, "dc"), text(tree, "domain")));
    if !tree["endpoint"].is_null() {
        field(
            "calls",
            whom(
                entries(tree, "may_call"),
                "nobody: no other one's `allow` has it, or its own `calls` leaves them out",
            ),
        );
        field("called by", whom(entries(tree, "called_by"), "nobody: its `allow` is empty"));
    }
    if tree["copies"] == true {
        field("may also", "copy between buffers that were granted to others".into());
    }
    section(&mut out, tree, "peers", "no peers now", peer);
    section(&mut out, tree, "waiting", "", waiting);
    section(&mut out, tree, "buffers", "", buffer);
    section(&mut out, tree, "grants", "", grant);
    section(&mut out, tree, "granted", "", granted);
    out += &limits(tree);
    out
}

fn headline(tree: &Value) -> String {
    let name = tree["endpoint"].as_str().map_or_else(|| "an endpoint without a name".to_owned(), clean);
    match tree["address"].as_str() {
        Some(address) => format!("{name} at {}", clean(address)),
        None => name,
    }
}

fn state(tree: &Value, now_unix_s: u64) -> String {
    let times = match tree["binds"].as_u64() {
        Some(0) | None => String::new(),
        Some(1) => ", bound once so far".into(),
        Some(times) => format!(", bound {times} times so far"),
    };
    if tree["bound"] != true {
        return format!("free: no program is bound to this name{times}");
    }
    if let Some(node) = tree["node"].as_str() {
        return format!("bound on node {}", clean(node));
    }
    let pid = tree["pid"].as_u64().map_or_else(String::new, |pid| format!(" by process {pid}"));
    let since = tree["since_unix_s"]
        .as_u64()
        .map_or_else(String::new, |since| format!(" for {}", seconds(now_unix_s.saturating_sub(since))));
    format!("bound{pid}{since}{times}")
}

/// `motor: send, request; logger: notify`.
fn whom(list: &[Value], nobody: &str) -> String {
    if list.is_empty() {
        return nobody.to_owned();
    }
    let each: Vec<String> = list
        .iter()
        .map(|entry| {
            let who = match entry["endpoint"].as_str() {
                Some(name) => clean(name),
                None => format!("programs of {}", text(entry, "domain")),
            };
            format!("{who}: {}", verbs(&entry["verbs"]))
        })
        .collect();
    each.join("; ")
}

fn peer(entry: &Value) -> String {
    let bytes_text = entry["bytes"].as_u64().map_or_else(String::new, |count| format!(", {}", bytes(count)));
    format!(
        "{} in {}{}: may {}; lets {}{bytes_text}",
        named(entry, "endpoint", "address"),
        text(entry, "domain"),
        entry["node"].as_str().map_or_else(String::new, |node| format!(" on {}", clean(node))),
        verbs(&entry["may"]),
        verbs(&entry["lets"])
    )
}

fn waiting(entry: &Value) -> String {
    let pid = entry["pid"].as_u64().map_or_else(String::new, |pid| format!(", process {pid}"));
    format!("a program of {}{pid}", text(entry, "domain"))
}

fn buffer(entry: &Value) -> String {
    format!("{}: {}", text(entry, "buffer"), bytes(entry["bytes"].as_u64().unwrap_or(0)))
}

fn grant(entry: &Value) -> String {
    let size = bytes(entry["bytes"].as_u64().unwrap_or(0));
    format!("{} to {}: {}, {size}", text(entry, "grant"), text(entry, "to"), text(entry, "access"))
}

fn granted(entry: &Value) -> String {
    let size = bytes(entry["bytes"].as_u64().unwrap_or(0));
    format!("{} of {}: {}, {size}", text(entry, "grant"), text(entry, "owner"), text(entry, "access"))
}

/// A heading and a line for each; nothing, or what is said of none.
fn section(out: &mut String, tree: &Value, key: &str, none: &str, line: fn(&Value) -> String) {
    let all = entries(tree, key);
    if all.is_empty() {
        if !none.is_empty() {
            *out += &format!("{none}\n");
        }
        return;
    }
    *out += &format!("{key}\n");
    for entry in all {
        *out += &format!("  {}\n", line(entry));
    }
}

/// In this order; others behind them.
const LIMITS: [&str; 5] = ["endpoints", "pairs", "bytes", "buffers", "grants"];

/// Returns the use of the distributed container's limits; those that count bytes in words for
/// people.
fn limits(tree: &Value) -> String {
    let Some(all) = tree["limits"].as_object().filter(|all| !all.is_empty()) else { return String::new() };
    let place = |key: &str| LIMITS.iter().position(|known| *known == key).unwrap_or(LIMITS.len());
    let mut all: Vec<(&String, &Value)> = all.iter().collect();
    all.sort_by_key(|(key, _)| place(key));
    let each: Vec<String> = all
        .into_iter()
        .map(|(key, of)| {
            let (used, limit) = (of["used"].as_u64().unwrap_or(0), of["limit"].as_u64().unwrap_or(0));
            if key == "bytes" {
                format!("{} of {}", bytes(used), bytes(limit))
            } else {
                format!("{used} of {limit} {}", clean(key))
            }
        })
        .collect();
    format!("{} uses {}\n", text(tree, "dc"), each.join(", "))
}

fn entries<'v>(tree: &'v Value, key: &str) -> &'v [Value] {
    tree[key].as_array().map_or(&[], Vec::as_slice)
}

fn verbs(list: &Value) -> String {
    let words: Vec<String> =
        list.as_array().into_iter().flatten().filter_map(Value::as_str).map(clean).collect();
    if words.is_empty() { "nothing".into() } else { words.join(", ") }
}

/// `camera (1.1)`, or `1.1` of one without a name.
fn named(entry: &Value, name: &str, address: &str) -> String {
    match entry[name].as_str().filter(|name| !name.is_empty()) {
        Some(name) => format!("{} ({})", clean(name), text(entry, address)),
        None => text(entry, address),
    }
}

fn text(tree: &Value, key: &str) -> String {
    match &tree[key] {
        Value::String(text) => clean(text),
        Value::Null => "?".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn planner() -> Value {
        json!({
            "dc": "shop", "endpoint": "planner", "domain": "brain", "address": "3.2", "bound": true, "pid": 77,
            "since_unix_s": 1000, "binds": 2, "copies": true,
            "may_call": [{"endpoint": "motor", "verbs": ["send", "request"]}],
            "called_by": [{"endpoint": "camera", "verbs": ["send"]}, {"domain": "desk", "verbs": ["request"]}],
            "peers": [{"address": "1.1", "endpoint": "camera", "domain": "eye", "channel": 9, "bytes": 532_480, "may": [], "lets": ["send"]},
                      {"address": "300.4", "endpoint": null, "domain": "desk", "channel": 10, "may": [], "lets": ["request"]}],
            "waiting": [], "buffers": [{"buffer": 4, "bytes": 1_048_576}],
            "grants": [{"grant": 5, "buffer": 4, "to": "1.1", "access": "read", "bytes": 1_048_576}],
            "granted": [], "bytes": 1_581_056,
            "limits": {"endpoints": {"used": 3, "limit": 256}, "bytes": {"used": 1_581_056, "limit": 268_435_456}}
        })
    }

    #[test]
    fn an_endpoint_is_shown_with_its_rights_both_ways() {
        assert_eq!(
            page(&planner(), 1065),
            "planner at 3.2\n\
             \x20 state      bound by process 77 for 1m05s, bound 2 times so far\n\
             \x20 in         shop/brain\n\
             \x20 calls      motor: send, request\n\
             \x20 called by  camera: send; programs of desk: request\n\
             \x20 may also   copy between buffers that were granted to others\n\
             peers\n\
             \x20 camera (1.1) in eye: may nothing; lets send, 520.0 KiB\n\
             \x20 300.4 in desk: may nothing; lets request\n\
             buffers\n\
             \x20 4: 1.0 MiB\n\
             grants\n\
             \x20 5 to 1.1: read, 1.0 MiB\n\
             shop uses 3 of 256 endpoints, 1.5 MiB of 256.0 MiB\n"
        );
    }

    #[test]
    fn one_that_nobody_is_bound_to_is_shown_as_free() {
        let tree = json!({"dc": "shop", "endpoint": "motor", "domain": "arm", "address": null, "bound": false, "binds": 0,
            "may_call": [], "called_by": [], "waiting": [{"domain": "brain", "pid": 5}]});
        let text = page(&tree, 0);
        assert!(text.starts_with("motor\n  state      free: no program is bound to this name\n"), "{text}");
        assert!(text.contains("called by  nobody: its `allow` is empty\n"), "{text}");
        assert!(text.contains("waiting\n  a program of brain, process 5\n"), "{text}");
    }

    // A program chooses nothing of what is shown here but that it is bound; yet nothing is
    // believed.
    #[test]
    fn nothing_that_is_shown_steers_a_terminal() {
        let mut tree = planner();
        tree["peers"][0]["endpoint"] = "\u{1b}[2J".into();
        assert!(!page(&tree, 0).contains('\u{1b}'));
    }
}
