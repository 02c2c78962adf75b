//! Links over TIPC between two nodes: network namespaces of a guest whose kernel has it. One start
//! of it serves all these tests; each looks at what one check of `tipc_peer` said.

use conformance::links::SCENARIOS;
use e2e::report::Report;
use e2e::tipc_guest::{ALL, SUITE, is_of_suite, run, suite};
use std::path::Path;
use std::sync::OnceLock;

/// The near node's report; the guest is booted by the test that comes first.
fn report() -> Option<&'static Report> {
    static REPORT: OnceLock<Result<Report, String>> = OnceLock::new();
    match REPORT.get_or_init(|| run(Path::new(env!("CARGO_BIN_EXE_tipc_peer")))) {
        Ok(report) => Some(report),
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

fn holds(check: &str) {
    let Some(report) = report() else { return };
    match report.checks.get(check) {
        Some(Ok(())) => {}
        Some(Err(why)) => panic!("{check}: {why}\n--- what else it said\n{}", report.notes.join("\n")),
        None => panic!(
            "the guest never came to {check}\n--- what it said\n{}\n--- its console\n{}",
            report.notes.join("\n"),
            report.console
        ),
    }
}

#[test]
fn without_tipc_in_the_kernel_or_a_bearer_it_is_said_how_to_get_it() {
    holds("missing_module");
    holds("missing_bearer");
}

#[test]
fn messages_go_between_two_nodes_over_tipc() {
    holds("messages_between_nodes");
}

#[test]
fn a_link_under_load_goes_from_tipc_to_tcp_and_back_without_losing_a_message() {
    holds("exchanges_between_nodes");
}

#[test]
fn the_bench_of_links_measures_those_over_tipc() {
    holds("bench_of_links");
}

/// The suite takes minutes on a machine that is emulated: `cargo xtask test tipc`.
fn asked_for() -> Option<String> {
    let asked = suite();
    if asked.is_none() {
        println!("skipped: takes minutes in a guest that is emulated: `make test-tipc`, or {SUITE}={ALL}");
    }
    asked.filter(|_| report().is_some())
}

#[test]
fn a_link_outlives_its_bearer() {
    if asked_for().is_some() {
        holds("a_bearer_that_goes_away");
    }
}

/// Each stream of it goes to the other node and back.
#[test]
fn all_that_links_do_they_do_over_tipc_between_two_nodes() {
    let Some(asked) = asked_for() else { return };
    for scenario in SCENARIOS.iter().filter(|scenario| is_of_suite(scenario.name, &asked)) {
        holds(&format!("suite.{}", scenario.name.replace([':', ','], "")));
    }
}
