//! Endpoints: what is admitted, explained and planned of them, and who may call whom.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::path::Path;

use proptest::prelude::*;
use topology::{Caller, EndpointVerb, IpcLimits, Step, Topology, plan};

const FILE: &str = r#"
name = "shop"
[domain.brain]
kind = "container"
command = ["brain"]
[domain.eye]
kind = "container"
command = ["eye"]
[domain.desk]
kind = "container"
command = ["desk"]
[endpoint.planner]
domain = "brain"
allow = [{ endpoints = ["camera"], verbs = ["send", "notify"] }, { domains = ["desk"], verbs = ["request"] }]
calls = ["camera"]
[endpoint.camera]
domain = "eye"
allow = [{ endpoints = ["planner"], domains = ["desk"], verbs = ["request"] }]
[endpoint.motor]
domain = "eye"
allow = [{ domains = "*", verbs = ["relay"] }]
copies = true
"#;

fn admitted(text: &str) -> Topology {
    topology::parse(text, "endpoint.toml", Path::new("/base")).unwrap_or_else(|error| panic!("{error}"))
}

fn may(topology: &Topology, from: (Option<&str>, &str), to: (Option<&str>, &str)) -> Vec<&'static str> {
    let caller = |(name, domain)| Caller { name, domain };
    topology.may_call(caller(from), caller(to)).into_iter().map(EndpointVerb::as_str).collect()
}

#[test]
fn one_calls_another_if_that_one_allows_it_and_its_own_list_does_not_leave_it_out() {
    let shop = admitted(FILE);
    let (planner, camera, motor) =
        ((Some("planner"), "brain"), (Some("camera"), "eye"), (Some("motor"), "eye"));
    let (clerk, stranger) = ((None, "desk"), (None, "eye"));
    // They may call each other: circles are no error.
    assert_eq!(may(&shop, camera, planner), ["send", "notify"]);
    assert_eq!(may(&shop, planner, camera), ["request"]);
    assert_eq!(may(&shop, planner, motor), [""; 0], "it is not among its `calls`");
    assert_eq!(may(&shop, camera, motor), ["relay"]);
    assert_eq!(may(&shop, clerk, planner), ["request"]);
    assert_eq!(may(&shop, stranger, planner), [""; 0]);
    // One without a name is called by those whom it may call, and nothing is passed on to it.
    assert_eq!(may(&shop, planner, clerk), ["send", "request", "notify"]);
    assert_eq!(may(&shop, planner, stranger), [""; 0]);
    assert_eq!(may(&shop, clerk, stranger), [""; 0]);
    assert_eq!(may(&shop, motor, motor), [""; 0]);
    assert_eq!(may(&shop, (Some("gone"), "desk"), planner), [""; 0], "a name that is no more has no rights");
}

#[test]
fn nothing_is_said_twice_and_nothing_must_be_said() {
    let least = admitted(
        "name = \"a\"\n[domain.a]\nkind = \"container\"\ncommand = [\"a\"]\n[endpoint.e]\ndomain = \"a\"\n",
    );
    let endpoint = least.endpoint("e").unwrap();
    assert!(endpoint.allow_endpoints.is_empty() && endpoint.allow_domains.is_empty());
    assert!(endpoint.calls.is_none() && !endpoint.copies && least.ipc == IpcLimits::default());
    let none = admitted(
        "name = \"a\"\n[domain.a]\nkind = \"container\"\ncommand = [\"a\"]\n[endpoint.e]\ndomain = \"a\"\ncalls = []\n[ipc]\nendpoints = 8\n",
    );
    assert!(none.endpoint("e").unwrap().calls.as_ref().unwrap().is_empty());
    assert_eq!((none.ipc.endpoints, none.ipc.anonymous_per_domain), (8, 8));
    let json = serde_json::to_string(&admitted(FILE)).unwrap();
    assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), admitted(FILE));
}

// A registry that was written before there were endpoints is read, and what has none is written as
// before.
#[test]
fn a_topology_without_endpoints_is_written_as_it_was_before_there_were_any() {
    let plain = admitted("name = \"a\"\n[domain.a]\nkind = \"container\"\ncommand = [\"a\"]\n");
    let json = serde_json::to_value(&plain).unwrap();
    assert!(json.get("endpoints").is_none() && json.get("ipc").is_none());
    assert_eq!(serde_json::from_value::<Topology>(json).unwrap(), plain);
}

#[test]
fn all_that_differs_of_endpoints_is_one_step() {
    let (before, after) = (
        admitted(FILE),
        admitted(&format!(
            "{}[ipc]\npairs = 9\n",
            FILE.replace("[endpoint.motor]", "[endpoint.arm]").replace(", \"notify\"", "")
        )),
    );
    let way = plan(Some(&before), &after);
    assert_eq!(
        way.to_string(),
        "endpoints: no more `motor`, new `arm` in eye, `planner` has another `allow`, another `ipc.pairs`\n"
    );
    let mut there = before.clone();
    way.apply(&mut there);
    assert_eq!(there, after);
    way.undo(1).apply(&mut there);
    assert_eq!(there, before);
    let up = plan(None, &before);
    let at = |wanted: fn(&Step) -> bool| up.steps.iter().position(wanted).unwrap();
    assert!(
        at(|step| matches!(step, Step::UpdateEndpoints { .. }))
            < at(|step| matches!(step, Step::Start { .. })),
        "a program binds as soon as it runs"
    );
    let down = plan(Some(&before), &Topology::empty(before.name.clone()));
    assert!(matches!(down.steps.last(), Some(Step::UpdateEndpoints { .. })));
}

#[test]
fn who_checks_a_file_reads_who_may_call_whom() {
    let shown = topology::explain(&admitted(FILE)).to_string();
    let planner = "\nendpoint planner in brain\n     camera           may send, notify\n     programs of desk may request\n";
    assert!(shown.contains(planner), "{shown}");
    assert!(shown.contains("\nendpoint motor in eye; it may copy between buffers of others\n"), "{shown}");
    assert!(shown.contains("\nendpoints may be 256 at a time (32 of a domain without a name)"), "{shown}");
}

proptest! {
    #[test]
    fn every_change_can_be_made_and_undone(one in file(), other in file()) {
        let (before, after) = (admitted(&one), admitted(&other));
        let way = plan(Some(&before), &after);
        let mut there = before.clone();
        way.apply(&mut there);
        prop_assert_eq!(&there, &after);
        way.undo(way.steps.len()).apply(&mut there);
        prop_assert_eq!(&there, &before);
        prop_assert_eq!(way.is_empty(), before == after);
    }
}

/// A file of two domains and some of three endpoints.
fn file() -> impl Strategy<Value = String> {
    let endpoint = |name: &'static str| {
        (any::<bool>(), 0..2_u8, 0..16_u8, 0..3_u8).prop_map(move |(is, domain, verbs, calls)| {
            if !is {
                return String::new();
            }
            let verbs: Vec<String> = EndpointVerb::ALL
                .iter()
                .enumerate()
                .filter(|(bit, _)| verbs >> bit & 1 == 1)
                .map(|(_, verb)| format!("\"{}\"", verb.as_str()))
                .collect();
            let allow = if verbs.is_empty() {
                String::new()
            } else {
                format!("allow = [{{ domains = [\"b\"], verbs = [{}] }}]\n", verbs.join(", "))
            };
            let calls = if calls == 1 { "calls = []\n" } else { "" };
            format!("[endpoint.{name}]\ndomain = \"{}\"\n{allow}{calls}", if domain == 0 { "a" } else { "b" })
        })
    };
    (endpoint("x"), endpoint("y"), endpoint("z"), 1..4_u32).prop_map(|(x, y, z, pairs)| {
        let domains = "[domain.a]\nkind = \"container\"\ncommand = [\"a\"]\n[domain.b]\nkind = \"container\"\ncommand = [\"b\"]\n";
        format!("name = \"shop\"\n{domains}{x}{y}{z}[ipc]\npairs = {pairs}\n")
    })
}
