//! Decisions and admissions, in virtual time.

use super::{Plan, Put, p99, us};
use crate::statistics::median;
use reserve::dispatch::{Dispatcher, Inside};
use reserve::model::{Manager, Model, Wish};
use reserve::network::Link;
use reserve::node::{Capacity, Disk};
use reserve::{Heuristic, Policy, Rule, Table, Task};
use std::time::Instant;

/// The period of every machine, in ns: 25 frames a second.
const PERIOD_NS: u64 = 40_000_000;
/// A turn of a job, in ns.
const TURN_NS: u64 = 10_000;

/// Measures decisions of several sizes, and admissions of adaptations.
pub(super) fn measure(plan: &Plan, put: &mut Put<'_>) {
    for (count, name) in [(2, "decide 2x2"), (20, "decide 20x20"), (200, "reserve.decide.200x200")] {
        if let Some(times) = decisions(count, plan.decisions) {
            put(name, "us", p99(&times));
            if count == 200 {
                put("decide 200x200, median", "us", median(&times).unwrap_or(0.0));
            }
        }
    }
    for (count, name) in [(2, "admit among 2"), (20, "admit among 20"), (200, "admit among 200")] {
        put(name, "us", p99(&admissions(count, plan.adaptations)));
    }
}

fn decisions(count: usize, number: usize) -> Option<Vec<f64>> {
    let task = Task::new(PERIOD_NS / count as u64, PERIOD_NS).ok()?;
    let table = Table::build(Rule::default(), &vec![task; count]).ok()?;
    let mut dispatcher =
        Dispatcher::new(table, &vec![Inside::RoundRobin { turn_ns: TURN_NS }; count], 0).ok()?;
    for vtm in 0..count {
        for _ in 0..count {
            let job = dispatcher.join(vtm, None).ok()?;
            dispatcher.ready(vtm, job, 0).ok()?;
        }
    }
    let mut times = Vec::with_capacity(number);
    let mut now_ns = 0;
    for _ in 0..number {
        let begun = Instant::now();
        let decision = std::hint::black_box(dispatcher.decide(now_ns));
        times.push(us(begun.elapsed()));
        now_ns = decision.until_ns;
    }
    Some(times)
}

/// A node whose one processor is nearly full of machines of periods that do not go together, so
/// that each admission needs the exact test.
pub(super) fn crowd(count: usize) -> Option<Model> {
    let capacity = Capacity {
        processors: 1,
        rule: Rule::new(Policy::RateMonotonic),
        link: Link { rate_bits: 1_000_000_000, queue_bytes: 1 << 20, packet_bytes: 1_514 },
        memory_bytes: 1 << 30,
        disk: Disk::default(),
    };
    let mut model = Model::new(capacity, Heuristic::FirstFit).ok()?;
    let names = names(count);
    let wishes: Vec<(&str, Wish)> = names
        .iter()
        .enumerate()
        .filter_map(|(index, name)| Some((name.as_str(), wish(index, count, 10)?)))
        .collect();
    model.adapt(&wishes).ok()?;
    Some(model)
}

/// The names of so many machines.
pub(super) fn names(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("m{index:03}")).collect()
}

/// The promise to the machine of that index: so many tenths of its usual share.
pub(super) fn wish(index: usize, count: usize, tenths: u64) -> Option<Wish> {
    let period_ns = PERIOD_NS + index as u64 * 100_003;
    let budget_ns = period_ns * 8 / 10 / count as u64 / 10 * tenths;
    Some(Wish { task: Some(Task::new(budget_ns.max(1), period_ns).ok()?), ..Wish::default() })
}

fn admissions(count: usize, number: usize) -> Vec<f64> {
    let (Some(mut model), names) = (crowd(count), names(count)) else { return Vec::new() };
    let mut times = Vec::with_capacity(number);
    for turn in 0..number {
        let (less, more) = if turn % 2 == 0 { (9, 11) } else { (10, 10) };
        let (Some(first), Some(last)) = (wish(0, count, less), wish(count - 1, count, more)) else { break };
        let (Some(giver), Some(taker)) = (names.first(), names.last()) else { break };
        let begun = Instant::now();
        let done =
            model.admit(&[(giver, first), (taker, last)]).and_then(|adaptation| model.commit(adaptation));
        times.push(us(begun.elapsed()));
        if done.is_err() {
            break;
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_decided_and_admitted() {
        for count in [2, 20, 200] {
            assert_eq!(decisions(count, 100).map(|times| times.len()), Some(100));
            assert_eq!(admissions(count, 10).len(), 10, "{count}");
        }
    }
}
