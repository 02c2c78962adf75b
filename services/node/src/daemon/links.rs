//! Links to other nodes: who is where, and a proxy for each of them.

use crate::api::node::Node;
use crate::links::{self, Proxies};
use crate::membership::Cluster;
use std::sync::Arc;
use topology::NodeChoice;

/// Keeps proxies for the other nodes of this node's cluster, if it belongs to one.
pub(super) fn start(node: &Arc<Node>) {
    let ground = Arc::new(links::Ground {
        run_dir: node.layout.run_dir.clone(),
        state_dir: node.layout.state_dir.clone(),
        program: node.layout.program.clone(),
        cgroups: node.cgroups.clone(),
        cgroup_name: node.layout.cgroup_name.clone(),
    });
    let Some(cluster) = &node.cluster else {
        // It may have been in one.
        tokio::spawn(async move { links::sweep(&ground, None, &[]).await });
        return;
    };
    tell_broker(node, cluster);
    let proxies = Proxies::new(
        ground,
        node.broker.clone(),
        Arc::new(cluster.clone()),
        Arc::clone(&node.book) as Arc<dyn links::Shared>,
    );
    if node.proxies.set(Arc::clone(&proxies)).is_ok() {
        tokio::spawn(proxies.follow());
    }
}

/// Tells the broker where domains of other nodes are: who holds the claim of one has it; one that
/// names its node is there, whoever holds it.
fn tell_broker(node: &Arc<Node>, cluster: &Cluster) {
    // The broker is a part of what it asks here.
    let of = Arc::downgrade(node);
    let placed = move |dc: &str, domain: &str| {
        let node = of.upgrade()?;
        if let Some(holder) = node.following().and_then(|following| following.placed(dc, domain)) {
            return Some(holder);
        }
        let topology = node.domains.topology(dc)?;
        match &topology.domain(domain)?.placement.node {
            NodeChoice::Named(name) => Some(name.as_str().to_owned()),
            NodeChoice::Any | NodeChoice::Spread => None,
        }
    };
    let numbers = cluster.clone();
    node.broker.number_nodes(Arc::new(move |node: &str| numbers.number_of(node)));
    node.broker.place(cluster.me(), Arc::new(placed));
    if let Some(following) = node.following() {
        let (broker, mut placements) = (node.broker.clone(), following.placements());
        tokio::spawn(async move {
            while placements.changed().await.is_ok() {
                broker.placement_changed();
            }
        });
    }
}
