//! The cost of a large cluster: the decisions that ship, on a thousand nodes and ten thousand
//! domains, and what they ask of etcd. `docs/scale.md` has the figures.

use placement::{Assigned, Cluster, Node, Standing, Verdict, Want, Wish, judge};
use std::time::{Duration, Instant};

/// One size of a cluster, and what was measured of it.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Nodes.
    pub nodes: usize,
    /// Domains.
    pub domains: usize,
    /// How long one node takes to book what all have.
    pub book: Duration,
    /// How long it takes to decide about one domain that is another's.
    pub judge_other: Duration,
    /// How long it takes to choose a node for one domain that is nobody's.
    pub judge_fresh: Duration,
    /// Bytes of keys and values that a pass lists: claims, places and reports.
    pub listed_bytes: usize,
}

/// Nodes of equal room.
#[must_use]
pub fn cluster(nodes: usize) -> Cluster {
    let node = |number: usize| Node {
        cpu_milli: 64_000,
        memory_bytes: 1 << 40,
        ..Node::new(&format!("node-{number:04}"), Standing::Ready)
    };
    Cluster::new((0..nodes).map(node).collect())
}

/// A domain that may run anywhere.
#[must_use]
pub fn want(number: usize) -> Want {
    Want {
        elsewhere: true,
        cpu_milli: 100,
        memory_bytes: 64 << 20,
        ..Want::new("shop", &format!("domain-{number:05}"), Wish::Any)
    }
}

/// Measures one size.
#[must_use]
pub fn measure(nodes: usize, domains: usize) -> Scale {
    let name = |number: usize| format!("node-{:04}", number % nodes);
    let wants: Vec<Want> = (0..domains).map(want).collect();
    let began = Instant::now();
    let mut booked = cluster(nodes);
    for (number, want) in wants.iter().enumerate() {
        booked.take_on(&name(number), want);
    }
    let book = began.elapsed();
    let (me, held) = (name(0), Assigned { placed: Some(name(1)), claimed: Some(name(1)) });
    let judged = |assigned: &Assigned, times: u32| {
        let began = Instant::now();
        for number in 0..times as usize {
            let verdict = judge(&me, &booked, &wants[number % domains], assigned);
            assert!(matches!(verdict, Verdict::Leave | Verdict::Claim { .. }), "{verdict:?}");
        }
        began.elapsed() / times
    };
    // The bytes of each domain's records, as `services/node/src/placement/books.rs` writes them.
    let record = r#"claim/shop/domain-00000{"node":"node-0000","incarnation":123456}"#.len()
        + r#"placed/shop/domain-00000{"node":"node-0000"}"#.len()
        + r#"seen/shop/domain-00000{"node":"node-0000","state":"running","ready":true,"failed":false,"revision":123456}"#.len();
    Scale {
        nodes,
        domains,
        book,
        judge_other: judged(&held, 1_000),
        judge_fresh: judged(&Assigned::default(), 20),
        listed_bytes: domains * record,
    }
}
