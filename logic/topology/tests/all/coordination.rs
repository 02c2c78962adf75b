//! Services of kind `coordination`: what is admitted, explained and planned of them.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::path::Path;

use topology::{Program, ServiceKind, Settings, Topology, Verb, plan};

const FILE: &str = r#"
name = "lab"

[domain.keeper]
kind = "container"

[domain.a]
kind = "container"
command = ["sleep", "infinity"]
services = { sync = "/srv/sync" }

[service.sync]
kind = "coordination"
domain = "keeper"
allow = [{ domains = ["a"], verbs = ["observe", "coordinate"] }]
"#;

fn admitted(text: &str) -> Topology {
    topology::parse(text, "coordination.toml", Path::new("/base")).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(text: &str) -> String {
    match topology::parse(text, "coordination.toml", Path::new("/base")) {
        Ok(_) => panic!("admitted"),
        Err(diagnostics) => diagnostics.render(false),
    }
}

fn grace(lab: &Topology) -> u64 {
    match &lab.service("sync").unwrap().settings {
        Settings::Coordination(settings) => settings.grace_ms,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_coordination_has_a_server_of_ours_files_and_two_verbs() {
    let lab = admitted(FILE);
    let sync = lab.service("sync").unwrap();
    assert_eq!(sync.kind(), ServiceKind::Coordination);
    assert!(sync.kind().has_server() && sync.kind().has_files());
    assert!(matches!(lab.domain("keeper").unwrap().program, Program::Server(_)));
    assert!(sync.allows("a", &Verb::Observe) && sync.allows("a", &Verb::Coordinate));
    assert!(lab.mounts("a", "sync") && !sync.opens("a"));
    assert_eq!(grace(&lab), 10_000);
    let json = serde_json::to_string(&lab).unwrap();
    assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), lab);
}

#[test]
fn its_grace_changes_while_it_runs() {
    let other = format!("{FILE}settings = {{ grace = \"30s\" }}\n");
    assert_eq!(grace(&admitted(&other)), 30_000);
    let plan = plan(Some(&admitted(FILE)), &admitted(&other));
    assert!(plan.to_string().contains("settings.grace"), "{plan}");
    let wrong = refused(&other.replace("30s", "30ms"));
    assert!(wrong.contains("1s"), "{wrong}");
    let wrong = refused(&other.replace("grace", "grave"));
    assert!(wrong.contains("did you mean `grace`?"), "{wrong}");
}

#[test]
fn what_a_coordination_can_t_be_is_refused() {
    let machine = FILE.replacen("kind = \"container\"", "kind = \"vm\"", 1);
    let wrong = refused(&machine);
    assert!(wrong.contains("in which no coordination can be served"), "{wrong}");
    let wrong = refused(&FILE.replace("\"observe\", ", "\"resolve\", "));
    assert!(wrong.contains("it has no verb `resolve`"), "{wrong}");
    let wrong = refused(&format!("{FILE}to = \"tcp:80\"\n"));
    assert!(wrong.contains("`to`"), "{wrong}");
    let wrong = refused(&FILE.replace("\"/srv/sync\"", "{ at = \"/srv/sync\", stub = true }"));
    assert!(wrong.contains("stub"), "{wrong}");
    let wrong =
        refused(&FILE.replacen("kind = \"container\"\n", "kind = \"container\"\ncommand = [\"x\"]\n", 1));
    assert!(wrong.contains("command"), "{wrong}");
}
