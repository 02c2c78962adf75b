//! Measures channels between two guests of Xen beside libxenvchan and TCP through the guests'
//! network cards, and prints JSON lines: what was measured, then a line for each promise of
//! `docs/performance.md`.

use std::process::ExitCode;

use bench::promise::{Promise, Relation};
use bench::statistics::{estimate, median};
use serde::Deserialize;
use xen_bed::{What, run};

/// One measured value.
#[derive(Debug, Deserialize)]
struct Measured {
    measure: String,
    way: String,
    launch: usize,
    value: f64,
    samples: u64,
}

/// The measurements, their peers, and the promises.
const PROMISES: [(&str, &str, Promise); 6] = [
    (
        "rtt.64B",
        "vchan",
        promise("xen.rtt.64B.vchan", "round trip of 64 B, against libxenvchan", Relation::AtMost, 1.0),
    ),
    (
        "rtt.4KiB",
        "vchan",
        promise("xen.rtt.4KiB.vchan", "round trip of 4 KiB, against libxenvchan", Relation::AtMost, 1.0),
    ),
    (
        "stream.64KiB",
        "vchan",
        promise(
            "xen.stream.64KiB.vchan",
            "stream of 64 KiB messages, against libxenvchan",
            Relation::AtLeast,
            1.0,
        ),
    ),
    (
        "rtt.64B",
        "tcp",
        promise("xen.rtt.64B.tcp", "round trip of 64 B, against TCP over netfront", Relation::AtMost, 0.5),
    ),
    (
        "rtt.4KiB",
        "tcp",
        promise("xen.rtt.4KiB.tcp", "round trip of 4 KiB, against TCP over netfront", Relation::AtMost, 0.5),
    ),
    (
        "stream.64KiB",
        "tcp",
        promise(
            "xen.stream.64KiB.tcp",
            "stream of 64 KiB messages, against TCP over netfront",
            Relation::AtLeast,
            2.0,
        ),
    ),
];

const fn promise(id: &'static str, about: &'static str, relation: Relation, goal: f64) -> Promise {
    Promise { id, about, unit: "x", relation, goal }
}

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("xen_bench: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), String> {
    let here = std::env::current_exe().map_err(|error| format!("this program is nowhere: {error}"))?;
    // target/PROFILE/xen_bench
    let target = here.ancestors().nth(2).ok_or("this program is in no target folder")?;
    let report = run(What::Bench, &here.with_file_name("xen_peer"), target)?;
    let mut measured = Vec::new();
    for line in &report.measured {
        println!("{line}");
        measured.push(serde_json::from_str::<Measured>(line).map_err(|error| format!("{line}: {error}"))?);
    }
    for (measure, against, promise) in &PROMISES {
        let line = judge(&measured, measure, against, promise)
            .ok_or_else(|| format!("nothing was measured for {}\n{}", promise.id, report.console))?;
        println!("{line}");
    }
    match report.checks.iter().find_map(|(name, result)| Some((name, result.as_ref().err()?))) {
        Some((name, why)) => Err(format!("{name} failed: {why}")),
        None => Ok(()),
    }
}

/// The promise's line of JSON, from the ratio of each launch.
fn judge(measured: &[Measured], measure: &str, against: &str, promise: &Promise) -> Option<String> {
    let value = |way: &str, launch: usize| {
        let values: Vec<f64> = measured
            .iter()
            .filter(|one| one.measure == measure && one.way == way && one.launch == launch)
            .map(|one| one.value)
            .collect();
        median(&values)
    };
    let launches = measured.iter().map(|one| one.launch + 1).max()?;
    let ratios: Vec<f64> = (0..launches)
        .filter_map(|launch| Some(value("channel", launch)? / value(against, launch)?))
        .collect();
    let samples = measured
        .iter()
        .filter(|one| one.measure == measure && [against, "channel"].contains(&one.way.as_str()))
        .map(|one| one.samples)
        .sum();
    serde_json::to_string(&promise.judge(estimate(&ratios)?, samples)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_is_judged_by_the_ratios_within_launches() {
        let one = |way: &str, launch, value| Measured {
            measure: "rtt.64B".into(),
            way: way.into(),
            launch,
            value,
            samples: 10,
        };
        let measured =
            [one("channel", 0, 10.0), one("vchan", 0, 20.0), one("channel", 1, 30.0), one("vchan", 1, 60.0)];
        let line = judge(&measured, "rtt.64B", "vchan", &PROMISES[0].2).expect("a line");
        assert!(line.contains("\"value\":0.5,") && line.contains("\"holds\":true"), "{line}");
        assert!(line.contains("\"launches\":2,\"samples\":40"), "{line}");
        assert_eq!(judge(&measured, "rtt.4KiB", "vchan", &PROMISES[1].2), None);
    }

    #[test]
    fn the_page_has_the_promises_and_their_goals() {
        let page = include_str!("../../../../docs/performance.md");
        for (_, _, promise) in PROMISES {
            let goal =
                format!("`{}` | {} {} {} |", promise.id, promise.relation.sign(), promise.goal, promise.unit);
            assert!(page.contains(&goal), "docs/performance.md does not say {goal}");
        }
    }
}
