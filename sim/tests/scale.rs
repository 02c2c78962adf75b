//! A thousand nodes: the decisions stay the same on all of them, and their figures are printed.

use placement::{Assigned, Verdict, judge};
use sim::scale::{cluster, measure, want};

#[test]
fn what_large_clusters_cost() {
    for (nodes, domains) in [(10, 100), (100, 1_000), (1_000, 10_000)] {
        println!("{:?}", measure(nodes, domains));
    }
}

#[test]
fn of_a_thousand_nodes_one_takes_each_domain_and_none_has_more_than_its_share() {
    let mut booked = cluster(1_000);
    for number in 0..400 {
        let node = booked.place(&want(number)).expect("there is room");
        if number % 100 == 0 {
            let takes = |name: &str| {
                let assigned = Assigned { placed: Some(node.clone()), claimed: None };
                matches!(judge(name, &booked, &want(number), &assigned), Verdict::Claim { .. })
            };
            let takers = booked.nodes().iter().filter(|node| takes(&node.name)).count();
            assert_eq!(takers, 1, "domain {number}");
        }
    }
    // The next one goes where the fewest are.
    assert_eq!(booked.place(&want(400)).expect("there is room"), "node-0400");
}
