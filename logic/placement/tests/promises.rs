//! Where domains go that are to be promised something, what is said where nobody can, and what
//! never happens.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use placement::{Assigned, Cluster, Given, Lack, Node, Promises, Standing, Verdict, Want, Wish, judge};
use proptest::prelude::*;
use reserve::network::Link;
use reserve::node::{Capacity, Disk};
use reserve::{Policy, Rule};
use std::collections::BTreeMap;
use std::sync::Arc;
use topology::{DiskShare, Job, JobPolicy, NetworkClass, NetworkShare, ProcessorShare, Reserve, Who};

const MS: u64 = 1_000_000;
const MIB: u64 = 1 << 20;
const PERIOD: u64 = 40;

fn capacity(processors: usize, link_bits: u64, mib: u64) -> Capacity {
    Capacity {
        processors,
        rule: Rule::new(Policy::EarliestDeadline),
        link: Link { rate_bits: link_bits, queue_bytes: MIB, packet_bytes: 1_514 },
        memory_bytes: mib * MIB,
        disk: Disk { bytes: 100_000_000, operations: 1_000 },
    }
}

fn says(name: &str, capacity: Capacity) -> Node {
    let promises = Promises { capacity: Some(capacity), ..Promises::default() };
    Node { promises: Arc::new(promises), ..Node::new(name, Standing::Ready) }
}

fn nothing() -> Reserve {
    let (cpu, network, memory_bytes, io) = (None, None, None, None);
    Reserve { cpu, network, memory_bytes, io, strict: true, ..Reserve::default() }
}

fn cpu(budget_ms: u64) -> Reserve {
    let (budget_ns, period_ns) = (budget_ms * MS, PERIOD * MS);
    let share = ProcessorShare { budget_ns, period_ns, deadline_ns: period_ns, processor: None };
    Reserve { cpu: Some(share), ..nothing() }
}

fn want(domain: &str, wish: Wish, reserve: Reserve) -> Want {
    Want { reserve: Some(reserve), ..Want::new("film", domain, wish) }
}

fn loose(want: Want) -> Want {
    Want { reserve: want.reserve.map(|reserve| Reserve { strict: false, ..reserve }), ..want }
}

fn given(now: Reserve, processor: Option<usize>) -> Given {
    Given { file: Some(now.clone()), now, processor }
}

fn at(placed: Option<&str>, claimed: Option<&str>) -> Assigned {
    Assigned { placed: placed.map(str::to_owned), claimed: claimed.map(str::to_owned) }
}

#[test]
fn a_domain_goes_where_its_promise_fits_and_most_is_free() {
    let mut cluster = Cluster::new(vec![says("a", capacity(1, 0, 1)), says("b", capacity(2, 0, 1))]);
    let placed: Vec<String> =
        (0..4).map(|n| cluster.place(&want(&format!("d{n}"), Wish::Any, cpu(20))).unwrap()).collect();
    assert_eq!(placed, ["a", "b", "b", "a"]);
    // Half of a processor is left, twice.
    assert_eq!(cluster.place(&want("e", Wish::Any, cpu(20))).unwrap(), "b");
    assert_eq!(cluster.place(&want("f", Wish::Any, cpu(20))).unwrap(), "b");
    assert!(cluster.place(&want("g", Wish::Any, cpu(1))).is_err());
}

#[test]
fn a_refusal_says_of_each_node_why_admission_refuses_it_there() {
    let no_link = says("a", capacity(1, 0, 64));
    let mut slow = says("b", capacity(1, 10_000_000, 64));
    let other = given(cpu(30), Some(0));
    Arc::make_mut(&mut slow.promises).others.insert("run/r1".into(), other);
    let silent = Node::new("c", Standing::Ready);
    let network = NetworkShare {
        rate_bits: 1_000_000,
        ceiling_bits: None,
        burst_bytes: 16 * 1024,
        class: NetworkClass::Gold,
    };
    let reserve = Reserve { network: Some(network), ..cpu(20) };
    let refusal = Cluster::new(vec![no_link, slow, silent])
        .choose(&want("x", Wish::Any, reserve), |_| true)
        .unwrap_err()
        .to_string();
    for told in [
        "no node fits domain x: a can't promise it what it is to be promised (network (film/x): ",
        "b can't promise it what it is to be promised (processor 0: `run/r1` would take 50 ms of its 40 ms",
        "a budget of 10 ms for `film/x` instead of 20 ms",
        "c does not say what it can promise",
    ] {
        assert!(refusal.contains(told), "{told:?} is not in {refusal:?}");
    }
}

#[test]
fn memory_and_disk_count_as_well() {
    let cluster = Cluster::new(vec![says("a", capacity(1, 0, 64))]);
    let memory = Reserve { memory_bytes: Some(65 * MIB), ..nothing() };
    let io = Reserve { io: Some(DiskShare { bytes: None, operations: Some(1_001) }), ..nothing() };
    for (reserve, told) in [(memory, "memory"), (io, "operations")] {
        let refusal = cluster.choose(&want("x", Wish::Any, reserve), |_| true).unwrap_err().to_string();
        assert!(refusal.contains(told), "{refusal}");
    }
}

/// The promises that a node tells count as it tells them, and once: for whom the books know there,
/// and for processes that are no domains.
#[test]
fn what_a_node_says_counts_for_those_who_are_there() {
    let mut node = says("a", capacity(2, 0, 64));
    let promises = Arc::make_mut(&mut node.promises);
    promises.domains.insert("film/here".into(), given(cpu(30), Some(1)));
    promises.domains.insert("film/gone".into(), given(cpu(40), Some(0)));
    let mut cluster = Cluster::new(vec![node]);
    cluster.take_on("a", &want("here", Wish::Any, cpu(30)));
    // Who is gone leaves a whole processor; who is here has 30 ms of the other.
    assert_eq!(cluster.place(&want("x", Wish::Any, cpu(40))).unwrap(), "a");
    assert!(cluster.choose(&want("y", Wish::Any, cpu(11)), |_| true).is_err());
    assert!(cluster.choose(&want("y", Wish::Any, cpu(10)), |_| true).is_ok());
}

#[test]
fn what_was_adapted_counts_as_it_is_now() {
    let mut node = says("a", capacity(1, 0, 64));
    let adapted = Given { file: Some(cpu(10)), now: cpu(35), processor: Some(0) };
    Arc::make_mut(&mut node.promises).domains.insert("film/here".into(), adapted);
    let mut cluster = Cluster::new(vec![node.clone()]);
    cluster.take_on("a", &want("here", Wish::Any, cpu(10)));
    assert!(cluster.choose(&want("x", Wish::Any, cpu(6)), |_| true).is_err());
    // Another file: what was adapted is over.
    let mut cluster = Cluster::new(vec![node]);
    cluster.take_on("a", &want("here", Wish::Any, cpu(20)));
    assert!(cluster.choose(&want("x", Wish::Any, cpu(20)), |_| true).is_ok());
}

#[test]
fn what_a_node_has_left_is_what_is_not_promised_to_those_who_are_there() {
    let mut node = says("a", capacity(2, 10_000_000, 64));
    let promises = Arc::make_mut(&mut node.promises);
    promises.domains.insert("film/here".into(), given(cpu(30), Some(1)));
    promises.domains.insert("film/gone".into(), given(cpu(40), Some(0)));
    let network = NetworkShare {
        rate_bits: 4_000_000,
        ceiling_bits: None,
        burst_bytes: 16 * 1024,
        class: NetworkClass::Gold,
    };
    let other = Reserve { network: Some(network), memory_bytes: Some(60 * MIB), ..cpu(1) };
    promises.others.insert("run/r1".into(), given(other, Some(0)));
    let mut cluster = Cluster::new(vec![node, says("b", capacity(1, 0, 8)), Node::new("c", Standing::Ready)]);
    cluster.take_on("a", &want("here", Wish::Any, cpu(30)));
    let free = cluster.promisable("a").unwrap();
    assert_eq!(free.processors_ppm, [975_000, 250_000]);
    assert_eq!((free.network_bits, free.memory_bytes), (Some(6_000_000), 4 * MIB));
    let all = cluster.promisable("b").unwrap();
    assert_eq!((all.processors_ppm, all.network_bits, all.memory_bytes), (vec![1_000_000], None, 8 * MIB));
    assert_eq!((all.disk_bytes, all.disk_operations), (100_000_000, 1_000));
    assert_eq!((cluster.promisable("c"), cluster.promisable("nobody")), (None, None));
}

/// Two together have the whole processor; but a slot comes late then at times for a job of the one
/// that is there.
#[test]
fn nobody_goes_where_jobs_inside_another_would_be_late() {
    let node = says("a", capacity(1, 0, 64));
    let share =
        ProcessorShare { budget_ns: 15 * MS, period_ns: 30 * MS, deadline_ns: 30 * MS, processor: None };
    let other = want("x", Wish::Any, Reserve { cpu: Some(share), ..nothing() });
    let mut cluster = Cluster::new(vec![node.clone()]);
    cluster.take_on("a", &want("here", Wish::Any, cpu(20)));
    assert!(cluster.choose(&other, |_| true).is_ok());
    let copy = |deadline_ms: u64| Job {
        who: Who::Process("copy".into()),
        budget_ns: 5 * MS,
        period_ns: 40 * MS,
        deadline_ns: deadline_ms * MS,
    };
    let jobs = BTreeMap::from([("copy".to_owned(), copy(26))]);
    let reserve = Reserve { policy: JobPolicy::DeadlineMonotonic, jobs, ..cpu(20) };
    let mut cluster = Cluster::new(vec![node]);
    assert_eq!(cluster.place(&want("here", Wish::Any, reserve)).unwrap(), "a");
    let refusal = cluster.choose(&other, |_| true).unwrap_err().to_string();
    assert!(refusal.contains("inside `film/here`: job `copy` would take"), "{refusal}");
}

#[test]
fn a_strict_domain_waits_for_room_and_another_goes_without() {
    let lost = Node { standing: Standing::Lost, ..says("a", capacity(1, 0, 64)) };
    let full = |name: &str| {
        let mut node = says(name, capacity(1, 0, 64));
        Arc::make_mut(&mut node.promises).others.insert("run/r1".into(), given(cpu(40), Some(0)));
        node
    };
    let cluster = Cluster::new(vec![lost, full("b"), full("c")]);
    let strict = Want { elsewhere: true, ..want("x", Wish::Any, cpu(1)) };
    for me in ["b", "c"] {
        assert!(matches!(judge(me, &cluster, &strict, &at(Some("a"), None)), Verdict::Stuck(_)));
    }
    let takes = judge("b", &cluster, &loose(strict.clone()), &at(Some("a"), None));
    assert_eq!(takes, Verdict::Claim { from: Some("a".into()) });
    // Whoever asks before anything is started is told.
    assert!(cluster.choose(&loose(strict), |_| true).is_err());
}

#[test]
fn who_is_refused_goes_to_the_next_node_and_at_last_nowhere() {
    let refuse = |cluster: &[&str]| {
        let nodes = ["a", "b", "c"].map(|name| {
            let mut node = says(name, capacity(1, 0, 64));
            if cluster.contains(&name) {
                let why = format!("{name} has no real-time class");
                Arc::make_mut(&mut node.promises).refused.insert("film/x".into(), why);
            }
            node
        });
        Cluster::new(nodes.to_vec())
    };
    let strict = want("x", Wish::Any, cpu(1));
    let on = |node: &str| at(Some(node), Some(node));
    assert_eq!(judge("a", &refuse(&["a"]), &strict, &on("a")), Verdict::Move { to: "b".into() });
    assert_eq!(judge("b", &refuse(&["a"]), &strict, &on("b")), Verdict::Run);
    assert_eq!(judge("b", &refuse(&["a", "b"]), &strict, &on("b")), Verdict::Move { to: "c".into() });
    let Verdict::Stuck(refusal) = judge("c", &refuse(&["a", "b", "c"]), &strict, &on("c")) else { panic!() };
    for name in ["a", "b", "c"] {
        assert!(
            refusal.to_string().contains(&format!("{name} has refused it ({name} has no real-time class)"))
        );
    }
    // One that names its node has nowhere to go, and is told of that one alone.
    let named = want("x", Wish::Named("b".into()), cpu(1));
    let Verdict::Stuck(refusal) = judge("b", &refuse(&["b"]), &named, &on("b")) else { panic!() };
    assert_eq!(
        refusal.to_string(),
        "domain x can't run on the node that it names: b has refused it (b has no real-time class)"
    );
}

#[test]
fn a_drain_moves_nobody_to_where_its_promise_would_end() {
    let mut drained = says("a", capacity(1, 0, 64));
    drained.standing = Standing::Drained;
    let mut full = says("b", capacity(1, 0, 64));
    Arc::make_mut(&mut full.promises).others.insert("run/r1".into(), given(cpu(40), Some(0)));
    let held = at(Some("a"), Some("a"));
    for want in [want("x", Wish::Any, cpu(5)), loose(want("x", Wish::Any, cpu(5)))] {
        let there = Cluster::new(vec![drained.clone(), full.clone()]);
        assert!(matches!(judge("a", &there, &want, &held), Verdict::Stuck(_)));
        let there = Cluster::new(vec![drained.clone(), full.clone(), says("c", capacity(1, 0, 64))]);
        assert_eq!(judge("a", &there, &want, &held), Verdict::Move { to: "c".into() });
    }
}

#[test]
fn what_a_node_says_may_be_nonsense() {
    let mut node = says("a", capacity(1, 0, 64));
    let promises = Arc::make_mut(&mut node.promises);
    let absurd = ProcessorShare { budget_ns: u64::MAX, period_ns: 0, deadline_ns: 0, processor: None };
    let absurd = Reserve { cpu: Some(absurd), memory_bytes: Some(u64::MAX), ..nothing() };
    promises.others.insert("run/r1".into(), given(absurd, Some(usize::MAX)));
    promises.others.insert(String::new(), given(cpu(40), None));
    promises.others.insert("run/r2".into(), given(cpu(35), Some(7)));
    let over = Capacity { processors: usize::MAX, ..capacity(1, u64::MAX, u64::MAX / MIB) };
    let huge = says("b", over);
    let mut cluster = Cluster::new(vec![node, huge]);
    assert_eq!(cluster.place(&want("x", Wish::Any, cpu(40))).unwrap(), "a");
    assert!(cluster.place(&want("y", Wish::Any, cpu(40))).is_err());
}

/// Every way in which up to three domains can be on two small nodes, against counting by hand.
#[test]
fn small_clusters_are_decided_as_counted_by_hand() {
    let budgets = [10, 20, 30, 40];
    for first in budgets {
        for second in budgets {
            for third in budgets {
                for free in budgets {
                    let mut small = says("b", capacity(1, 0, 64));
                    if free < 40 {
                        let used = given(cpu(40 - free), Some(0));
                        Arc::make_mut(&mut small.promises).others.insert("run/r1".into(), used);
                    }
                    let mut cluster = Cluster::new(vec![says("a", capacity(1, 0, 64)), small]);
                    let mut left = [("a", 40, 0), ("b", free, 0)];
                    for (name, budget) in [("x", first), ("y", second), ("z", third)] {
                        // Most room, then fewest domains, then the first by name.
                        let fitting = left.iter_mut().filter(|(_, left, _)| *left >= budget);
                        let best = fitting.min_by_key(|(name, left, domains)| (40 - *left, *domains, *name));
                        let by_hand = best.map(|(name, left, domains)| {
                            (*left, *domains) = (*left - budget, *domains + 1);
                            (*name).to_owned()
                        });
                        let placed = cluster.place(&want(name, Wish::Any, cpu(budget)));
                        assert_eq!(
                            placed.ok(),
                            by_hand,
                            "{name} of {first} {second} {third} with {free} free"
                        );
                    }
                }
            }
        }
    }
}

fn nodes() -> impl Strategy<Value = Vec<Node>> {
    let other = proptest::option::of(1_u64..40);
    let one = (1_usize..3, other, any::<bool>(), 0_u64..64);
    proptest::collection::vec(one, 1..4).prop_map(|nodes| {
        let make = |(index, (processors, other, refuses, mib)): (usize, (usize, Option<u64>, bool, u64))| {
            let mut node = says(&format!("n{index}"), capacity(processors, 0, mib));
            let promises = Arc::make_mut(&mut node.promises);
            if let Some(budget) = other {
                promises.others.insert("run/r1".into(), given(cpu(budget), Some(0)));
            }
            if refuses {
                promises.refused.insert("film/d0".into(), "it was tried".into());
            }
            node
        };
        nodes.into_iter().enumerate().map(make).collect()
    })
}

fn wants() -> impl Strategy<Value = Vec<Want>> {
    let one = (1_u64..=40, 0_u64..32, any::<bool>(), any::<bool>());
    proptest::collection::vec(one, 0..8).prop_map(|wants| {
        let make = |(index, (budget, mib, strict, spread)): (usize, (u64, u64, bool, bool))| {
            let memory_bytes = (mib > 0).then_some(mib * MIB);
            let wish = if spread { Wish::Spread } else { Wish::Any };
            want(&format!("d{index}"), wish, Reserve { memory_bytes, strict, ..cpu(budget) })
        };
        wants.into_iter().enumerate().map(make).collect()
    })
}

proptest! {
    // Wherever domains are placed, a node that has promised nothing else admits all of them at once
    // or one after the other: nobody is promised what is not there.
    #[test]
    fn what_is_placed_is_admitted(nodes in nodes(), wants in wants()) {
        use reserve::model::{Manager, Model};
        let mut cluster = Cluster::new(nodes.clone());
        let mut models: Vec<Model> = nodes
            .iter()
            .map(|node| {
                let capacity = node.promises.capacity.clone().unwrap();
                let mut model = Model::new(capacity, reserve::Heuristic::WorstFit).unwrap();
                for (name, given) in &node.promises.others {
                    model.reserve(name, given.now.wish(0).unwrap()).unwrap();
                }
                model
            })
            .collect();
        let mut sums = vec![(0_u64, 0_u64); nodes.len()];
        for want in &wants {
            let reserve = want.reserve.clone().unwrap();
            let Ok(name) = cluster.place(want) else { continue };
            let index = nodes.iter().position(|node| node.name == name).unwrap();
            prop_assert!(!(nodes[index].promises.refused.contains_key("film/d0") && want.domain == "d0"));
            let name = format!("film/{}", want.domain);
            // The node may have put the earlier ones on other processors: then it refuses, and says
            // so. On one it never does.
            let reserved = models[index].reserve(&name, reserve.wish(0).unwrap());
            if models[index].node().capacity().processors == 1 {
                prop_assert!(reserved.is_ok(), "{reserved:?}");
            }
            sums[index].0 += reserve.cpu.unwrap().budget_ns;
            sums[index].1 += reserve.memory_bytes.unwrap_or(0);
        }
        for (node, (budget, memory)) in nodes.iter().zip(sums) {
            let capacity = node.promises.capacity.as_ref().unwrap();
            let others: u64 = node.promises.others.values().map(|given| given.now.cpu.unwrap().budget_ns).sum();
            prop_assert!(budget + others <= capacity.processors as u64 * PERIOD * MS);
            prop_assert!(memory <= capacity.memory_bytes);
        }
    }

    // Whatever is refused or full: at most one node takes a domain, no node takes one that is
    // strict without room, and all decide alike.
    #[test]
    fn at_most_one_node_takes_a_domain_and_it_can_promise(
        nodes in nodes(),
        wants in wants(),
        placed in proptest::option::of(0_usize..4),
    ) {
        let cluster = Cluster::new(nodes.clone());
        let other = Cluster::new(nodes.iter().rev().cloned().collect());
        let assigned = Assigned { placed: placed.map(|index| format!("n{index}")), claimed: None };
        for want in &wants {
            let takes = |cluster: &Cluster| -> Vec<String> {
                let takes = |node: &&Node| matches!(judge(&node.name, cluster, want, &assigned), Verdict::Claim { .. });
                nodes.iter().filter(takes).map(|node| node.name.clone()).collect()
            };
            let takers = takes(&cluster);
            prop_assert!(takers.len() <= 1, "{takers:?}");
            prop_assert_eq!(&takers, &takes(&other));
            let Some(taker) = takers.first() else { continue };
            if assigned.placed.as_ref() != Some(taker) {
                let lacks = cluster.lacks(cluster.node(taker).unwrap(), want);
                let without = lacks.iter().all(|lack| matches!(lack, Lack::Promise { .. } | Lack::Refused { .. }));
                prop_assert!(lacks.is_empty() || (without && !want.reserve.as_ref().unwrap().strict), "{lacks:?}");
            }
        }
    }

    // Who is held is moved for a refusal, and never for room.
    #[test]
    fn who_is_held_is_moved_for_a_refusal_and_never_for_room(nodes in nodes(), wants in wants()) {
        let cluster = Cluster::new(nodes.clone());
        for node in &nodes {
            for want in &wants {
                let held = at(Some(&node.name), Some(&node.name));
                let refused = want.domain == "d0" && node.promises.refused.contains_key("film/d0");
                let verdict = judge(&node.name, &cluster, want, &held);
                prop_assert_eq!(verdict == Verdict::Run, !refused);
                if let Verdict::Move { to } = verdict {
                    prop_assert!(cluster.lacks(cluster.node(&to).unwrap(), want).is_empty());
                }
            }
        }
    }
}
