//! The hand-over of a domain's last incarnation, on its way to the node that has the domain next:
//! `handover/DC/DOMAIN` in the registry.

use super::books::{self, BooksError};
use super::{Following, Key, remove, written};
use crate::base::{DISKS, REGISTRY};
use crate::domains::Domains;
use registry::Expected;
use std::sync::Arc;

/// Sends it on, before anything says that the domain has left. Where there is no file, it was sent.
///
/// # Errors
/// In words: it must not be lost, so the domain does not leave yet.
pub(super) async fn send(node: &Arc<Domains>, following: &Arc<Following>, key: &Key) -> Result<(), String> {
    let (here, (dc, name)) = (Arc::clone(node), key.clone());
    let read = DISKS.run(move || here.handover(&dc, &name)).await??;
    let Some(bytes) = read else { return Ok(()) };
    let path = books::handover_key(key);
    let sent = if bytes.is_empty() {
        remove(following, path, Expected::Anything).await
    } else {
        let registry = following.peers.registry();
        let put = move || registry.put(&path, &bytes, Expected::Anything).map(Some);
        written(REGISTRY.run(put).await).map(drop)
    };
    sent.map_err(|error: BooksError| error.to_string())?;
    let (here, (dc, name)) = (Arc::clone(node), key.clone());
    DISKS.run(move || here.remove_handover(&dc, &name)).await?
}

/// Takes what is on its way to this node, which is about to start the domain.
///
/// # Errors
/// In words: it must not be lost, so the domain does not start yet.
pub(super) async fn take(node: &Arc<Domains>, following: &Arc<Following>, key: &Key) -> Result<(), String> {
    let (registry, path) = (following.peers.registry(), books::handover_key(key));
    let found = REGISTRY.run(move || registry.get(&path)).await?.map_err(|error| error.to_string())?;
    let Some(entry) = found else { return Ok(()) };
    let (here, (dc, name)) = (Arc::clone(node), key.clone());
    DISKS.run(move || here.put_handover(&dc, &name, &entry.value)).await??;
    remove(following, books::handover_key(key), Expected::Anything).await.map_err(|error| error.to_string())
}
