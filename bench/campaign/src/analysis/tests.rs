//! The words on runs that were made up, so that the truth is known.

use super::*;
use crate::record::{FORMAT, Which};
use bench::core_line::State;
use statistics::SplitMix;

/// A plan, and a run of it in which each subject takes its time: by deployment, in us.
pub(crate) const PLAN: &str = "name = \"made-up\"\nsubjects = [\"tcp\", \"udp\", \"unix\"]\nideal = \"udp\"\n\
    deployments = [\"bare\", \"container\"]\npayloads = [\"64B\"]\nlaunches = 10\ndeadlines = [\"1ms\", \"10ms\"]\n";

/// Records of a run of [`PLAN`] in which `us` says how long a subject takes.
pub(crate) fn made_up(us: impl Fn(&str, Deployment) -> f64) -> Records {
    let plan = file::read(PLAN, "made-up").expect("a plan");
    let mut random = SplitMix(4);
    let mut measured = Vec::new();
    for repeat in plan.order() {
        let level = us(repeat.subject(), repeat.cell.deployment) * (1.0 + random.unit() * 0.02);
        let (mut latencies, mut uncorrected) = (Latencies::new(), Latencies::new());
        for _ in 0..200 {
            let ns = ((level + random.exponential(level / 20.0)) * 1_000.0) as u64;
            latencies.record(ns);
            uncorrected.record(ns);
        }
        measured.push(Measured {
            which: Which::from(&repeat),
            state: State::Near,
            operations: 200,
            unanswered: 0,
            warm_up: 5,
            is_unsettled: false,
            window_ns: 200_000_000,
            client_processor_ns: Some(1_000_000),
            server_processor_ns: Some(1_000_000),
            switches: Some(400),
            latencies,
            uncorrected,
        });
    }
    let head = Head {
        format: FORMAT.into(),
        plan: plan.name.clone(),
        fingerprint: plan.fingerprint(),
        text: PLAN.into(),
        environment: serde_json::json!({ "kernel": "6.1", "processor": "<a & b>" }),
    };
    let end = Some(End { complete: true, left: 0 });
    Records { head, measured, failed: Vec::new(), skipped: Vec::new(), end }
}

fn plain(subject: &str, deployment: Deployment) -> f64 {
    let virtual_us = if deployment == Deployment::Bare { 0.0 } else { 40.0 };
    match subject {
        "udp" => 20.0 + virtual_us,
        "tcp" if virtual_us > 0.0 => 50.0 + virtual_us + 10.0,
        "tcp" => 50.0,
        _ => 50.0 + virtual_us,
    }
}

#[test]
fn what_is_faster_is_said_to_be_and_what_is_the_same_is_not() {
    let analysis = analyse(made_up(plain)).expect("a plan");
    let claim = |cell: usize, arm: &str| {
        let arm = analysis.cells[cell].arms.iter().find(|found| found.arm == arm).expect("the arm");
        arm.comparison.map(|comparison| comparison.claim)
    };
    assert_eq!(claim(0, "udp"), Some(Claim::Smaller));
    assert_eq!(claim(0, "tcp"), None);
    assert!(matches!(claim(0, "tcp (again)"), Some(Claim::CantTell { .. })));
    assert!(matches!(claim(0, "unix"), Some(Claim::CantTell { .. })));
    assert_eq!(analysis.false_alarms(), (0, 2));
    assert_eq!(analysis.state(), "complete");
}

#[test]
fn sentences_claim_what_is_shown() {
    let analysis = analyse(made_up(plain)).expect("a plan");
    let said: Vec<String> = analysis.cells[0]
        .arms
        .iter()
        .filter_map(|arm| Some(sentence(&arm.arm, "tcp", arm.comparison.as_ref()?)))
        .collect();
    assert!(said[0].starts_with("udp is faster than tcp: 0.4"), "{said:?}");
    assert!(said[1].starts_with("can't tell unix from tcp ("), "{said:?}");
}

#[test]
fn the_time_is_divided_among_ideal_middleware_virtualization_and_both() {
    let analysis = analyse(made_up(plain)).expect("a plan");
    let of = |subject: &str| {
        let found = analysis.decompositions.iter().find(|found| found.subject == subject);
        found.expect("a decomposition").parts
    };
    let near = |found: Estimate, truth: f64| {
        assert!(found.low - 4.0 < truth && truth < found.high + 4.0, "{found:?} is not {truth}");
    };
    let tcp = of("tcp");
    near(tcp.ideal, 20.0);
    near(tcp.middleware, 30.0);
    near(tcp.virtualization, 40.0);
    near(tcp.interaction, 10.0);
    near(of("unix").interaction, 0.0);
    assert_eq!(analysis.decompositions.len(), 2);
}

#[test]
fn deadlines_have_shares_and_a_bound_also_where_none_was_missed() {
    let analysis = analyse(made_up(plain)).expect("a plan");
    let [first, second] = analysis.cells[0].arms[0].deadlines.as_slice() else { panic!("two deadlines") };
    assert!(first.used[0] > 0.04 && first.used[0] < 0.07, "{first:?}");
    assert!((first.used[0] / second.used[0] - 10.0).abs() < 0.01);
    // 2,000 samples.
    assert!(first.missed.value == 0.0 && first.missed.high > 0.001 && first.missed.high < 0.003, "{first:?}");
}

#[test]
fn a_run_that_was_cut_short_is_marked_and_still_read() {
    let mut records = made_up(plain);
    records.end = None;
    records.measured.truncate(20);
    let analysis = analyse(records).expect("a plan");
    assert!(analysis.state().contains("killed") && !analysis.cells.is_empty());
}
