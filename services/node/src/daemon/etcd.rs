//! This node's member of the cluster's own etcd: kept while the cluster has one, and ended where it
//! has none.

use crate::api::node::Node;
use crate::etcd::{self, Keeper};
use crate::membership::own_etcd;
use std::sync::Arc;

/// Takes up what an earlier daemon left, before anybody asks etcd. A member that belongs to no such
/// cluster is ended.
pub(super) async fn start(node: &Arc<Node>) {
    let ground = node.etcd_ground();
    let cluster = node.cluster.as_ref().filter(|cluster| cluster.config().etcd.own);
    let Some(cluster) = cluster.cloned() else {
        let swept = crate::base::MEMBER.run(move || etcd::sweep(&ground).map_err(|error| error.to_string()));
        if let Err(error) = swept.await.and_then(|swept| swept) {
            tracing::warn!(error, "what is left of an etcd member can't be ended");
        }
        return;
    };
    let has_member = ground.room().record().unwrap_or_else(|error| {
        tracing::error!(%error, "the etcd member of this node can't be started");
        None
    });
    let keeper = Keeper::new(ground, has_member.is_some());
    if node.etcd.set(Arc::clone(&keeper)).is_ok() {
        tokio::spawn(Arc::clone(&keeper).keep());
        tokio::spawn(own_etcd::look_after(cluster, keeper));
    }
}

/// Ends the member with the daemon, unless other nodes live that need it: it goes on for them, and
/// the next daemon finds it.
pub(super) async fn retire(node: &Node) {
    let (Some(keeper), Some(cluster)) = (node.etcd.get(), &node.cluster) else { return };
    let needed = cluster.nodes().iter().any(|member| member.alive && member.name != cluster.me());
    if needed {
        tracing::info!("the etcd member of this node runs on, for the other nodes");
    } else {
        keeper.stop().await;
    }
}
