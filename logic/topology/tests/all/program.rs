//! Services of programs: what is admitted, explained and planned of them.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::path::Path;

use serde_json::json;
use topology::{Program, Ready, ServiceKind, Settings, Topology, Verb, bounds, plan};

const FILE: &str = r#"
name = "lab"

[domain.gauge]
kind = "process"
command = ["gauge"]

[domain.attic]
kind = "container"
command = ["sleep", "infinity"]
services = { thermometer = "/srv/thermometer" }

[domain.hall]
kind = "container"
command = ["sleep", "infinity"]
services = { thermometer = { at = "/srv/t", stub = false } }

[service.thermometer]
kind = "program"
domain = "gauge"
allow = [{ domains = ["hall"], verbs = ["read", "calibrate"] }, { domains = ["attic"], verbs = ["read"] }]
"#;

/// Settings of every type that TOML has.
const SETTINGS: &str = r#"
[service.thermometer.settings]
unit = "celsius"
period_ms = 250
first = 0x10
least = -9223372036854775808
offset = -0.5
calm = true
since = 2026-11-24T12:00:00Z
"odd key" = [1, "two", [3.0]]
[service.thermometer.settings.alarm]
above = 30
[[service.thermometer.settings.probe]]
pin = 4
[[service.thermometer.settings.probe]]
pin = 17
"#;

fn admitted(text: &str) -> Topology {
    topology::parse(text, "program.toml", Path::new("/base")).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(text: &str) -> String {
    match topology::parse(text, "program.toml", Path::new("/base")) {
        Ok(_) => panic!("admitted"),
        Err(diagnostics) => diagnostics.render(false),
    }
}

fn verb(word: &str) -> Verb {
    Verb::parse(word).unwrap()
}

#[test]
fn a_program_serves_files_that_domains_mount_with_verbs_of_its_own() {
    let lab = admitted(FILE);
    let thermometer = lab.service("thermometer").unwrap();
    assert_eq!(thermometer.kind(), ServiceKind::Program);
    assert!(!thermometer.kind().has_server() && thermometer.kind().has_files());
    let gauge = lab.domain("gauge").unwrap();
    assert_eq!((&gauge.program, &gauge.ready), (&Program::Command(vec!["gauge".into()]), &Ready::Started));
    assert!(lab.allows("hall", "thermometer", &verb("calibrate")));
    assert!(!lab.allows("attic", "thermometer", &verb("calibrate")));
    assert!(lab.mounts("attic", "thermometer") && !lab.mounts("gauge", "thermometer"));
    let mount = &lab.domain("hall").unwrap().services[0];
    assert_eq!((mount.at.as_str(), mount.stub, mount.resolve, mount.preload), ("t", false, false, false));
    let json = serde_json::to_string(&lab).unwrap();
    assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), lab);
}

#[test]
fn a_verb_of_another_kind_is_a_word_like_any_other() {
    let lab = admitted(&FILE.replace("\"calibrate\"", "\"open\", \"resolve\""));
    let thermometer = lab.service("thermometer").unwrap();
    assert!(thermometer.allows("hall", &Verb::Open) && thermometer.allows("hall", &Verb::Resolve));
    // And it opens no channel.
    assert!(!thermometer.opens("hall"));
}

#[test]
fn settings_are_any_table_and_reach_the_program_as_json() {
    let lab = admitted(&format!("{FILE}{SETTINGS}"));
    let Settings::Program(settings) = &lab.service("thermometer").unwrap().settings else { panic!() };
    let expected = json!({
        "unit": "celsius", "period_ms": 250, "first": 16, "least": i64::MIN, "offset": -0.5, "calm": true,
        "since": "2026-11-24T12:00:00Z", "odd key": [1, "two", [3.0]], "alarm": { "above": 30 },
        "probe": [{ "pin": 4 }, { "pin": 17 }],
    });
    assert_eq!(serde_json::Value::Object(settings.table.clone()), expected);
    let json = serde_json::to_string(&lab).unwrap();
    assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), lab);
}

#[test]
fn settings_are_bounded_in_bytes_and_depth() {
    // {"text":"..."} takes eleven bytes beside the text.
    let long = |bytes: usize| format!("{FILE}settings = {{ text = \"{}\" }}\n", "x".repeat(bytes - 11));
    admitted(&long(bounds::PROGRAM_SETTINGS_BYTES_MAX));
    let message = refused(&long(bounds::PROGRAM_SETTINGS_BYTES_MAX + 1));
    assert!(
        message.contains("16385 bytes as JSON") && message.contains("let the program read a file"),
        "{message}"
    );
    let deep =
        |lists: usize| format!("{FILE}settings = {{ deep = {}{} }}\n", "[".repeat(lists), "]".repeat(lists));
    admitted(&deep(bounds::PROGRAM_SETTINGS_DEPTH_MAX - 1));
    assert!(refused(&deep(bounds::PROGRAM_SETTINGS_DEPTH_MAX)).contains("within each other"));
}

#[test]
fn whoever_mounts_starts_after_the_host_where_there_is_a_choice() {
    let order: Vec<String> =
        admitted(FILE).start_order().iter().map(|domain| domain.name.to_string()).collect();
    assert_eq!(order, ["gauge", "attic", "hall"]);
}

#[test]
fn a_programs_service_is_explained() {
    let text = topology::explain(&admitted(FILE)).to_string();
    let expected = "service thermometer (program) in gauge: its program serves the files\n     \
                    attic            may read               /srv/thermometer\n     \
                    hall             may calibrate, read    /srv/t\n";
    assert!(text.ends_with(expected), "{text}");
    let text = topology::explain(&admitted(&format!("{FILE}{SETTINGS}"))).to_string();
    assert!(
        text.contains("and is told alarm, calm, first, least, odd key, offset, period_ms, probe, …\n"),
        "{text}"
    );
}

#[test]
fn settings_verbs_and_the_host_change_while_all_runs() {
    let before = admitted(FILE);
    let steps = |text: &str| plan(Some(&before), &admitted(text)).to_string();
    assert_eq!(
        steps(&format!("{FILE}settings = {{ unit = \"kelvin\" }}")),
        "update service thermometer while it runs: `settings` changed\n"
    );
    assert_eq!(
        steps(&FILE.replace("\"read\", \"calibrate\"", "\"read\", \"reset\"")),
        "no longer allow hall to calibrate thermometer\nallow hall to reset thermometer\n"
    );
    assert_eq!(
        steps(&FILE.replace("domain = \"gauge\"", "domain = \"attic\"")),
        "update service thermometer while it runs: `domain` changed\n"
    );
    let after = admitted(&format!("{FILE}settings = {{ unit = \"kelvin\" }}"));
    let there = plan(Some(&before), &after);
    let mut now = before.clone();
    there.apply(&mut now);
    assert_eq!(now, after);
    there.undo(there.steps.len()).apply(&mut now);
    assert_eq!(now, before);
}
