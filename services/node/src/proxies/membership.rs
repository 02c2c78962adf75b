//! The other nodes, as membership in a cluster knows them.

use super::{Answer, Ground, LINK_PATH, Nodes, Offer, Proxies, Shared};
use crate::cluster::Cluster;
use crate::node::Node;
use crate::reserve::Shares;
use hyper::Method;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use tokio::sync::watch;
use topology::NodeChoice;

impl Nodes for Cluster {
    fn me(&self) -> String {
        Cluster::me(self).to_owned()
    }

    fn address(&self) -> IpAddr {
        // It is this node's own from when it joined, whether the registry can be asked or not.
        self.config().address.ip()
    }

    fn others(&self) -> Option<Vec<String>> {
        if self.is_removed() {
            return Some(Vec::new());
        }
        let me = Cluster::me(self);
        Some(self.names()?.into_iter().filter(|name| name != me).collect())
    }

    fn changes(&self) -> watch::Receiver<u64> {
        Cluster::changes(self)
    }

    fn identity(&self) -> PathBuf {
        self.trust_folder().to_path_buf()
    }

    fn trust_changes(&self) -> watch::Receiver<u64> {
        Cluster::trust_changes(self)
    }

    fn call<'a>(&'a self, node: &'a str, offer: Offer) -> Answer<'a> {
        Box::pin(async move {
            Cluster::call(self, node, Method::POST, LINK_PATH, &offer).await.map_err(|e| e.to_string())
        })
    }
}

/// The book of a node, as long as there is one.
#[derive(Debug)]
struct OfBook(Weak<Node>);

impl Shared for OfBook {
    fn came(&self, node: &str, cgroup: &str) {
        if let Some(of) = self.0.upgrade() {
            of.book.proxy_came(node, cgroup);
        }
    }

    fn left(&self, node: &str) {
        if let Some(of) = self.0.upgrade() {
            of.book.proxy_left(node);
        }
    }

    fn shares(&self) -> watch::Receiver<Shares> {
        self.0.upgrade().map_or_else(|| watch::channel(Shares::default()).1, |of| of.book.shares())
    }
}

/// Keeps proxies for the other nodes of this node's cluster, if it belongs to one.
pub(crate) fn start(node: &Arc<Node>) {
    let ground = Arc::new(Ground {
        run_dir: node.layout.run_dir.clone(),
        state_dir: node.layout.state_dir.clone(),
        program: node.layout.program.clone(),
        cgroups: node.cgroups.clone(),
        cgroup_name: node.layout.cgroup_name.clone(),
    });
    let Some(cluster) = &node.cluster else {
        // It may have been in one.
        tokio::spawn(async move { super::sweep(&ground, None, &[]).await });
        return;
    };
    // Who holds its claim has it; a domain that names its node is there, whoever does.
    let of = Arc::downgrade(node);
    let placed = move |dc: &str, domain: &str| {
        let node = of.upgrade()?;
        if let Some(holder) = node.placed(dc, domain) {
            return Some(holder);
        }
        let topology = node.topology(dc)?;
        match &topology.domain(domain)?.placement.node {
            NodeChoice::Named(name) => Some(name.as_str().to_owned()),
            NodeChoice::Any | NodeChoice::Spread => None,
        }
    };
    let numbers = cluster.clone();
    node.broker.number_nodes(Arc::new(move |node: &str| numbers.number_of(node)));
    node.broker.place(Cluster::me(cluster), Arc::new(placed));
    if let Some(following) = node.following() {
        let (broker, mut placements) = (node.broker.clone(), following.placements());
        tokio::spawn(async move {
            while placements.changed().await.is_ok() {
                broker.placement_changed();
            }
        });
    }
    let proxies = Proxies::new(
        ground,
        node.broker.clone(),
        Arc::new(cluster.clone()),
        Arc::new(OfBook(Arc::downgrade(node))),
    );
    if node.proxies.set(Arc::clone(&proxies)).is_ok() {
        tokio::spawn(proxies.follow());
    }
}
