//! Taking up what the cluster desires and this node does not follow yet.

use super::books::{At, Books};
use super::{Following, Key, known, promised};
use crate::base::{BOOK, KEPT};
use crate::domains::Domains;
use std::sync::Arc;
use std::time::Duration;
use topology::Topology;

/// How long a pass waits for what it puts into effect. What takes longer goes on beside the next
/// passes.
const TIMEOUT: Duration = Duration::from_millis(100);

/// A change of a distributed container that is being put into effect; decisions about its domains
/// go on when this is dropped.
struct TakingUp {
    following: Arc<Following>,
    dc: String,
}

impl TakingUp {
    /// `None`: a change of it is under way already, and the next one follows.
    fn begin(following: &Arc<Following>, dc: &str) -> Option<Self> {
        let new = following.lock().taking_up.insert(dc.to_owned());
        new.then(|| Self { following: Arc::clone(following), dc: dc.to_owned() })
    }
}

impl Drop for TakingUp {
    fn drop(&mut self) {
        self.following.lock().taking_up.remove(&self.dc);
        self.following.poke();
    }
}

/// Puts into effect what is desired and was not: services and rights at once, domains of this node
/// with it. A domain that takes its time to end holds up its own distributed container alone.
pub(super) async fn changes(node: &Arc<Domains>, following: &Arc<Following>, books: &Books) {
    let gone: Vec<String> = node.dcs().into_iter().filter(|dc| !books.desired.contains_key(dc)).collect();
    let mut begun = Vec::new();
    for dc in gone {
        let Some(before) = node.topology(&dc) else { continue };
        let Some(taking_up) = TakingUp::begin(following, &dc) else { continue };
        begun.push(tokio::spawn(take_down(Arc::clone(node), taking_up, before)));
    }
    for (dc, desired) in &books.desired {
        if node.known(dc).is_some_and(|known| known.revision == desired.revision) {
            continue;
        }
        let Some(taking_up) = TakingUp::begin(following, dc) else { continue };
        begun.push(tokio::spawn(take_up(Arc::clone(node), taking_up, desired.clone())));
    }
    let all = async {
        for change in begun {
            if let Err(error) = change.await {
                tracing::error!(%error, "a change of the cluster's broke off");
            }
        }
    };
    // Most are done at once, and what follows from them is decided by the same pass.
    let _done_later = tokio::time::timeout(TIMEOUT, all).await;
}

async fn take_down(node: Arc<Domains>, of: TakingUp, before: Arc<Topology>) {
    let dc = of.dc.as_str();
    let plan = topology::plan(Some(&before), &Topology::empty(before.name.clone()));
    crate::domains::change::follow_plan(&node, dc, &plan).await;
    let (here, book, name) = (Arc::clone(&node), Arc::clone(&of.following.book), dc.to_owned());
    let taken_back =
        BOOK.run(move || book.enter(&name, None, here.cgroup()).map_err(|error| error.to_string()));
    if let Err(why) = taken_back.await.and_then(|taken_back| taken_back) {
        tracing::error!(dc, why, "what was promised can't be taken back");
    }
    node.follow_desired(dc, None);
    mirror(&node, dc, None).await;
    node.forget_current_if_unwanted(dc);
    crate::domains::change::remove_traces(&node, dc).await;
}

async fn take_up(node: Arc<Domains>, of: TakingUp, desired: At<Arc<crate::domains::Desired>>) {
    let (dc, following) = (of.dc.as_str(), &of.following);
    let plan = topology::plan(node.topology(dc).as_deref(), &desired.value.topology);
    promised::enter_changed(&node, following, dc, &desired.value.topology).await;
    crate::domains::change::follow_plan(&node, dc, &plan).await;
    node.follow_desired(dc, Some(known(&desired)));
    mirror(&node, dc, Some(Arc::clone(&desired.value))).await;
    // Somebody said `up`: what had been given up is tried again.
    let failed: Vec<Key> = {
        let mut inner = following.lock();
        let failed = inner.failed.keys().filter(|key| key.0 == dc).cloned().collect::<Vec<_>>();
        inner.failed.retain(|key, _| key.0 != dc);
        failed
    };
    for key in failed {
        if let Some(supervised) = node.supervised(&key.0, &key.1)
            && let Err(error) = supervised.stop().await
        {
            tracing::error!(dc = key.0, domain = key.1, error, "what failed can't be removed");
        }
    }
    following.lock().ready.retain(|(of, name)| of != dc || node.supervised(of, name).is_some());
}

/// Keeps a copy on this node, away from the loop.
pub(super) async fn mirror(node: &Arc<Domains>, dc: &str, desired: Option<Arc<crate::domains::Desired>>) {
    let (node, dc) = (Arc::clone(node), dc.to_owned());
    if let Err(error) = KEPT.run(move || node.mirror_desired(&dc, desired.as_deref())).await {
        tracing::error!(error, "no copy of what the cluster desires can be kept on this node");
    }
}
