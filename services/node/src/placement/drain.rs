//! Nodes whose domains move away, and to which none comes.

use super::Following;
use crate::base::REGISTRY;
use admin::{Code, Problem};
use registry::Expected;
use std::sync::Arc;

/// Has a node's domains moved away, as far as they may move, and keeps others from going there.
///
/// # Errors
/// There is no such node; the registry can't be written.
pub(crate) async fn drain(following: &Arc<Following>, name: &str) -> Result<(), Problem> {
    must_be_known(following, name)?;
    let (registry, key) = (following.peers.registry(), super::books::drain_key(name));
    let put = REGISTRY.run(move || registry.put(&key, b"{}", Expected::Anything)).await;
    following.poke();
    said(put.map(|done| done.map(drop)))
}

/// Undoes [`drain`]; what moved away stays where it is.
///
/// # Errors
/// As there.
pub(crate) async fn undrain(following: &Arc<Following>, name: &str) -> Result<(), Problem> {
    must_be_known(following, name)?;
    let (registry, key) = (following.peers.registry(), super::books::drain_key(name));
    let gone = REGISTRY.run(move || registry.delete(&key, Expected::Anything)).await;
    following.poke();
    said(gone.map(|done| done.map(drop)))
}

fn said(done: Result<Result<(), registry::RegistryError>, String>) -> Result<(), Problem> {
    match done {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Problem::new(Code::Failed, error.to_string())),
        Err(why) => Err(Problem::new(Code::Failed, why)),
    }
}

fn must_be_known(following: &Following, name: &str) -> Result<(), Problem> {
    let nodes = following.peers.nodes();
    if nodes.iter().any(|node| node.name == name) {
        return Ok(());
    }
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    Err(Problem::new(Code::Failed, format!("there is no node {name:?} in this cluster"))
        .help(format!("the nodes are: {}", names.join(", "))))
}
