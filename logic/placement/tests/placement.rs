//! Where domains go, why they do not, and what never happens.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use placement::{Assigned, Cluster, Lack, Node, Standing, Verdict, Want, Wish, judge};
use proptest::prelude::*;
use std::collections::BTreeMap;

const GIB: u64 = 1 << 30;

fn node(name: &str, gib: u64, cpus: u64) -> Node {
    Node { memory_bytes: gib * GIB, cpu_milli: cpus * 1000, ..Node::new(name, Standing::Ready) }
}

fn want(domain: &str, wish: Wish, gib: u64) -> Want {
    Want { memory_bytes: gib * GIB, ..Want::new("shop", domain, wish) }
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn any_goes_where_most_room_is_and_ties_go_by_name() {
    let mut cluster = Cluster::new(vec![node("c", 4, 4), node("a", 4, 4), node("b", 8, 4)]);
    let placed: Vec<String> =
        (0..4).map(|n| cluster.place(&want(&format!("d{n}"), Wish::Any, 2)).unwrap()).collect();
    assert_eq!(placed, ["a", "b", "c", "b"]);
}

#[test]
fn domains_without_limits_are_shared_out_by_their_number() {
    let mut cluster = Cluster::new(vec![node("a", 4, 4), node("b", 4, 4)]);
    let placed: Vec<String> =
        (0..4).map(|n| cluster.place(&want(&format!("d{n}"), Wish::Any, 0)).unwrap()).collect();
    assert_eq!(placed, ["a", "b", "a", "b"]);
}

#[test]
fn spread_keeps_apart_even_where_there_is_less_room() {
    let mut cluster = Cluster::new(vec![node("a", 64, 64), node("b", 2, 2), node("c", 2, 2)]);
    let placed: Vec<String> =
        (0..3).map(|n| cluster.place(&want(&format!("d{n}"), Wish::Spread, 1)).unwrap()).collect();
    assert_eq!(placed, ["a", "b", "c"]);
    // Those of another distributed container do not count.
    let other = Want { dc: "other".into(), ..want("d", Wish::Spread, 1) };
    assert_eq!(cluster.place(&other).unwrap(), "a");
}

#[test]
fn a_refusal_says_what_each_node_lacks_nearest_first() {
    let mut nodes = vec![node("a", 1, 4), node("b", 4, 4), node("c", 4, 1)];
    nodes[1].standing = Standing::Lost;
    nodes[2].labels = labels(&[("disk", "hdd")]);
    nodes[0].labels = labels(&[("disk", "ssd")]);
    let cluster = Cluster::new(nodes);
    let want = Want { labels: labels(&[("disk", "ssd")]), cpu_milli: 2000, ..want("db", Wish::Any, 2) };
    let refusal = cluster.choose(&want, |_| true).unwrap_err();
    assert_eq!(refusal.nearest(), Some("a"));
    assert_eq!(
        refusal.to_string(),
        "no node fits domain db: a lacks 1GiB of memory (1GiB are free) (the nearest miss); c has the label disk = \"hdd\", not \
         \"ssd\" and lacks 1.000 processors (1.000 are free); b is lost and lacks the label disk = \"ssd\""
    );
}

#[test]
fn a_name_is_taken_at_its_word() {
    let mut cluster = Cluster::new(vec![node("a", 4, 4), node("b", 1, 4)]);
    assert_eq!(cluster.place(&want("x", Wish::Named("b".into()), 1)).unwrap(), "b");
    let full = cluster.place(&want("y", Wish::Named("b".into()), 1)).unwrap_err();
    assert_eq!(
        full.to_string(),
        "domain y can't run on the node that it names: b lacks 1GiB of memory (0B are free)"
    );
    let nobody = cluster.place(&want("y", Wish::Named("z".into()), 1)).unwrap_err();
    assert_eq!(nobody.to_string(), "domain y wants the node z, and there is none; the nodes are: a, b");
}

fn with_standings(a: Standing, b: Standing, c: Standing) -> Cluster {
    let nodes = [("a", a), ("b", b), ("c", c)];
    Cluster::new(nodes.map(|(name, standing)| Node { standing, ..node(name, 4, 4) }).to_vec())
}

fn at(placed: Option<&str>, claimed: Option<&str>) -> Assigned {
    Assigned { placed: placed.map(str::to_owned), claimed: claimed.map(str::to_owned) }
}

#[test]
fn a_claim_is_respected_whatever_else_is_so() {
    use Standing::{Lost, Ready};
    let cluster = with_standings(Lost, Ready, Ready);
    let want = Want { elsewhere: true, ..want("x", Wish::Any, 1) };
    // The lease still lives: nobody touches it, although its node is not heard of.
    assert_eq!(judge("b", &cluster, &want, &at(Some("a"), Some("a"))), Verdict::Leave);
    // It has ended: one of them, and only one, takes over.
    assert_eq!(judge("b", &cluster, &want, &at(Some("a"), None)), Verdict::Claim { from: Some("a".into()) });
    assert_eq!(judge("c", &cluster, &want, &at(Some("a"), None)), Verdict::Leave);
    // The node that comes back finds it taken.
    assert_eq!(
        judge("a", &with_standings(Ready, Ready, Ready), &want, &at(Some("b"), Some("b"))),
        Verdict::Leave
    );
}

#[test]
fn what_may_not_run_elsewhere_waits_for_its_node_until_that_is_removed() {
    use Standing::{Lost, Ready};
    let stays = want("x", Wish::Any, 1);
    let lost = with_standings(Lost, Ready, Ready);
    assert_eq!(judge("b", &lost, &stays, &at(Some("a"), None)), Verdict::Wait { node: "a".into() });
    let removed = Cluster::new(vec![node("b", 4, 4), node("c", 4, 4)]);
    assert_eq!(judge("b", &removed, &stays, &at(Some("a"), None)), Verdict::Claim { from: Some("a".into()) });
    let back = with_standings(Ready, Ready, Ready);
    assert_eq!(judge("a", &back, &stays, &at(Some("a"), None)), Verdict::Claim { from: None });
}

/// Its node wrote the claim and died before it wrote the place. Its next daemon ran the domain, and
/// was cut off: whoever found the domain nowhere placed started it, and it was not one to run
/// elsewhere.
#[test]
fn who_has_a_claim_has_the_place_too_before_it_runs_anything() {
    use Standing::{Drained, Ready};
    let all = with_standings(Ready, Ready, Ready);
    let stays = want("x", Wish::Any, 1);
    for placed in [None, Some("b")] {
        assert_eq!(judge("a", &all, &stays, &at(placed, Some("a"))), Verdict::PlaceHere);
        assert_eq!(judge("b", &all, &stays, &at(placed, Some("a"))), Verdict::Leave);
    }
    assert_eq!(judge("a", &all, &stays, &at(Some("a"), Some("a"))), Verdict::Run);
    // It stays because it fits nowhere else; what goes needs no place here.
    let drained = with_standings(Drained, Ready, Ready);
    assert_eq!(judge("a", &drained, &want("x", Wish::Any, 64), &at(None, Some("a"))), Verdict::PlaceHere);
    assert_eq!(judge("a", &drained, &stays, &at(None, Some("a"))), Verdict::Move { to: "b".into() });
}

#[test]
fn a_drain_moves_what_may_move_and_leaves_the_rest() {
    use Standing::{Drained, Ready};
    let drained = with_standings(Drained, Ready, Ready);
    let held = at(Some("a"), Some("a"));
    assert_eq!(judge("a", &drained, &want("x", Wish::Any, 1), &held), Verdict::Move { to: "b".into() });
    assert_eq!(judge("a", &drained, &want("x", Wish::Named("a".into()), 1), &held), Verdict::Run);
    let too_large = want("x", Wish::Any, 64);
    assert!(matches!(judge("a", &drained, &too_large, &held), Verdict::Stuck(_)));
}

#[test]
fn a_file_that_names_another_node_moves_it_there() {
    let cluster = with_standings(Standing::Ready, Standing::Ready, Standing::Ready);
    let named = want("x", Wish::Named("c".into()), 1);
    assert_eq!(judge("a", &cluster, &named, &at(Some("a"), Some("a"))), Verdict::Move { to: "c".into() });
    assert_eq!(judge("c", &cluster, &named, &at(Some("c"), None)), Verdict::Claim { from: None });
}

fn standings() -> impl Strategy<Value = Standing> {
    prop_oneof![4 => Just(Standing::Ready), 1 => Just(Standing::Drained), 1 => Just(Standing::Lost)]
}

fn clusters() -> impl Strategy<Value = Vec<Node>> {
    let one = (standings(), 0_u64..8, 0_u64..8, 0_usize..3);
    proptest::collection::vec(one, 1..6).prop_map(|nodes| {
        let make = |(index, (standing, gib, cpus, label)): (usize, (Standing, u64, u64, usize))| {
            let zone = ["north", "south"].get(label).map(|zone| ("zone", *zone));
            Node { standing, labels: labels(zone.as_slice()), ..node(&format!("n{index}"), gib, cpus) }
        };
        nodes.into_iter().enumerate().map(make).collect()
    })
}

fn wants() -> impl Strategy<Value = Vec<Want>> {
    let wish = prop_oneof![
        Just(Wish::Any),
        Just(Wish::Spread),
        (0_usize..6).prop_map(|n| Wish::Named(format!("n{n}")))
    ];
    let one = (wish, 0_u64..4, 0_u64..4, 0_usize..4, any::<bool>());
    proptest::collection::vec(one, 0..12).prop_map(|wants| {
        let make = |(index, (wish, gib, cpus, label, elsewhere)): (usize, (Wish, u64, u64, usize, bool))| {
            let zone = ["north", "south"].get(label).map(|zone| ("zone", *zone));
            Want {
                cpu_milli: cpus * 1000,
                labels: labels(zone.as_slice()),
                elsewhere,
                ..want(&format!("d{index}"), wish, gib)
            }
        };
        wants.into_iter().enumerate().map(make).collect()
    })
}

proptest! {
    // Nobody is promised more than there is, and everything asked for is kept.
    #[test]
    fn what_is_placed_fits(nodes in clusters(), wants in wants()) {
        let mut cluster = Cluster::new(nodes.clone());
        let mut taken: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for want in &wants {
            let before = cluster.clone();
            match cluster.place(want) {
                Ok(name) => {
                    let node = nodes.iter().find(|node| node.name == name).unwrap();
                    prop_assert_eq!(node.standing, Standing::Ready);
                    prop_assert!(want.labels.iter().all(|(key, value)| node.labels.get(key) == Some(value)));
                    prop_assert!(!matches!(&want.wish, Wish::Named(other) if *other != name));
                    let taken = taken.entry(name).or_default();
                    *taken = (taken.0 + want.memory_bytes, taken.1 + want.cpu_milli);
                    prop_assert!(taken.0 <= node.memory_bytes && taken.1 <= node.cpu_milli);
                }
                // A refusal is true: each node lacks something, and the words name every node that
                // may be meant.
                Err(refusal) => {
                    prop_assert_eq!(refusal.lacks.len(), nodes.len());
                    for (name, lacks) in &refusal.lacks {
                        prop_assert!(!lacks.is_empty());
                        prop_assert_eq!(lacks, &before.lacks(before.node(name).unwrap(), want));
                    }
                    prop_assert!(refusal.to_string().contains(&want.domain));
                }
            }
        }
    }

    // The order in which nodes are told does not decide: all nodes come to the same conclusion.
    #[test]
    fn every_node_decides_alike(nodes in clusters(), wants in wants()) {
        let mut there = Cluster::new(nodes.clone());
        let mut here = Cluster::new(nodes.into_iter().rev().collect());
        for want in &wants {
            prop_assert_eq!(there.place(want), here.place(want));
        }
    }

    // Whatever the registry says of a domain, at most one node starts it, and nobody who is not
    // ready.
    #[test]
    fn at_most_one_node_takes_a_domain(
        nodes in clusters(),
        wants in wants(),
        placed in proptest::option::of(0_usize..6),
        claimed in proptest::option::of(0_usize..6),
    ) {
        let cluster = Cluster::new(nodes.clone());
        let name = |index: usize| format!("n{index}");
        let assigned = Assigned { placed: placed.map(name), claimed: claimed.map(name) };
        for want in &wants {
            let takers: Vec<&Node> = nodes
                .iter()
                .filter(|node| node.standing != Standing::Lost)
                .filter(|node| matches!(judge(&node.name, &cluster, want, &assigned), Verdict::Claim { .. } | Verdict::Run | Verdict::PlaceHere))
                .collect();
            prop_assert!(takers.len() <= 1, "{takers:?}");
            if let (Some(claimed), Some(taker)) = (&assigned.claimed, takers.first()) {
                prop_assert_eq!(claimed, &taker.name);
            }
            if let (Some(placed), Some(taker)) = (&assigned.placed, takers.first())
                && assigned.claimed.is_none()
                && *placed != taker.name
                && let Some(node) = cluster.node(placed)
            {
                prop_assert_eq!(node.standing, Standing::Lost);
                prop_assert!(want.elsewhere);
            }
        }
    }

    // What runs stays where it is as long as its node may have it.
    #[test]
    fn nothing_that_runs_is_moved_for_balance(nodes in clusters(), wants in wants(), index in 0_usize..6) {
        let Some(me) = nodes.get(index) else { return Ok(()) };
        let cluster = Cluster::new(nodes.clone());
        let assigned = Assigned { placed: Some(me.name.clone()), claimed: Some(me.name.clone()) };
        for want in &wants {
            let bad = |lack: &Lack| !matches!(lack, Lack::Memory { .. } | Lack::Cpu { .. } | Lack::Lost);
            if !cluster.lacks(me, want).iter().any(bad) {
                prop_assert_eq!(judge(&me.name, &cluster, want, &assigned), Verdict::Run);
            }
        }
    }
}
