//! The other nodes, as membership in a cluster knows them, and this node's link, as the book has
//! it.

use super::{Answer, LINK_PATH, Nodes, Offer, Shared};
use crate::membership::Cluster;
use crate::reservations::{Book, Shares};
use hyper::Method;
use std::net::IpAddr;
use std::path::PathBuf;
use tokio::sync::watch;

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

impl Shared for Book {
    fn came(&self, node: &str, cgroup: &str) {
        self.proxy_came(node, cgroup);
    }

    fn left(&self, node: &str) {
        self.proxy_left(node);
    }

    fn shares(&self) -> watch::Receiver<Shares> {
        Book::shares(self)
    }
}
