//! The promises about links, and by what each is judged.

use super::plan::{Arm, BULK, COPIES_IN, COPIES_OUT, Case, ROUND_TRIP, STREAM_1K, STREAM_64};
use crate::promise::{Promise, Relation, Verdict};
use crate::results::{Metric, Results};

const fn at_least(id: &'static str, about: &'static str, goal: f64) -> Promise {
    Promise { id, about, unit: "x", relation: Relation::AtLeast, goal }
}

const fn at_most(id: &'static str, about: &'static str, goal: f64) -> Promise {
    Promise { id, about, unit: "x", relation: Relation::AtMost, goal }
}

/// All of them.
pub const PROMISES: [Promise; 15] = [
    at_least("link.stream.64B.grpc", "messages of 64 B over TCP with TLS, relative to gRPC without it", 3.0),
    at_least("link.stream.64B.grpc-tls", "the same, relative to gRPC with TLS", 3.0),
    at_least("link.stream.1KiB.grpc", "messages of 1 KiB, relative to gRPC without TLS", 1.0),
    at_most(
        "link.rtt.64B.tcp",
        "round trip over TCP with TLS, relative to raw TCP whose ends never sleep",
        1.3,
    ),
    at_most("link.rtt.64B.asleep", "the same of ends that never spin, relative to raw TCP", 1.3),
    at_least("link.bulk.tls", "bulk over TCP with TLS, relative to raw TCP with TLS", 0.9),
    at_most("link.ethernet.rtt.64B", "round trip over raw Ethernet, relative to TCP with TLS", 1.0),
    at_least("link.ethernet.stream.64B", "messages of 64 B over raw Ethernet, relative to TCP with TLS", 1.0),
    at_least("link.ethernet.bulk", "bulk over raw Ethernet, relative to TCP with TLS", 1.0),
    at_least("link.ethernet.bulk.9000B", "the same on a network that takes frames of 9000 bytes", 1.0),
    at_least("link.ethernet.bulk.65535B", "the same on one that takes the longest frames", 1.0),
    at_most(
        "link.copy.4KiB.in",
        "copy of 4 KiB from the other node, relative to an answer of it over TCP with TLS",
        3.0,
    ),
    at_most("link.copy.4KiB.out", "the same to the other node", 3.0),
    at_least(
        "link.copy.1MiB.in",
        "copies of 1 MiB from the other node, relative to answers of it over TCP with TLS",
        0.5,
    ),
    at_least("link.copy.1MiB.out", "the same to the other node", 0.5),
];

/// The comparisons of the promises: in which case, of which arms, by which figure.
const COMPARISONS: [(Case, [Arm; 2], Metric); 15] = [
    (STREAM_64, [Arm::Link, Arm::Grpc], Metric::Rate),
    (STREAM_64, [Arm::Link, Arm::GrpcTls], Metric::Rate),
    (STREAM_1K, [Arm::Link, Arm::Grpc], Metric::Rate),
    (ROUND_TRIP, [Arm::Link, Arm::TcpSpinning], Metric::P50),
    (ROUND_TRIP, [Arm::Asleep, Arm::Tcp], Metric::P50),
    (BULK, [Arm::Link, Arm::Tls], Metric::Rate),
    (ROUND_TRIP, [Arm::Ethernet, Arm::Link], Metric::P50),
    (STREAM_64, [Arm::Ethernet, Arm::Link], Metric::Rate),
    (BULK, [Arm::Ethernet, Arm::Link], Metric::Rate),
    (BULK, [Arm::LongEthernet, Arm::LongLink], Metric::Rate),
    (BULK, [Arm::LongestEthernet, Arm::LongestLink], Metric::Rate),
    (COPIES_IN[0], [Arm::Link, Arm::Tls], Metric::P50),
    (COPIES_OUT[0], [Arm::Link, Arm::Tls], Metric::P50),
    (COPIES_IN[2], [Arm::Link, Arm::Tls], Metric::Rate),
    (COPIES_OUT[2], [Arm::Link, Arm::Tls], Metric::Rate),
];

/// The verdicts on those promises that the results can speak of.
#[must_use]
pub fn verdicts(results: &Results) -> Vec<Verdict> {
    let judged = |(promise, (case, arms, metric)): (&Promise, &(Case, [Arm; 2], Metric))| {
        let condition = case.condition();
        let arms = arms.map(Arm::name);
        let found = results.ratio(&condition, arms[0], arms[1], *metric)?;
        Some(promise.judge(found, arms.iter().map(|arm| results.samples(&condition, arm)).sum()))
    };
    PROMISES.iter().zip(&COMPARISONS).filter_map(judged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_promise_has_something_that_judges_it() {
        for (promise, (case, arms, metric)) in PROMISES.iter().zip(&COMPARISONS) {
            assert!(arms.iter().all(|arm| case.arms().contains(arm)), "{}", promise.id);
            assert_eq!(promise.relation == Relation::AtMost, *metric == Metric::P50, "{}", promise.id);
        }
    }
}
