//! The files that were up.

use super::Shared;
use crate::base::{KEPT, REGISTRY, history};
use admin::history::Revision;
use admin::{Code, Problem};
use axum::Json;
use axum::extract::{Path, State};
use std::collections::BTreeMap;

/// All of them, by distributed container.
pub(super) async fn all(State(node): Shared) -> Result<Json<BTreeMap<String, Vec<Revision>>>, Problem> {
    let (registry, pool) = match node.following() {
        Some(following) => (following.peers.registry(), &REGISTRY),
        None => (node.domains.registry(), &KEPT),
    };
    let read = pool.run(move || history::all(&*registry)).await;
    let read = read.map_err(|why| Problem::new(Code::Failed, why))?;
    Ok(Json(read.map_err(|error| Problem::new(Code::Failed, error.to_string()))?))
}

/// Those of one distributed container, the oldest first.
pub(super) async fn of(node: Shared, Path(dc): Path<String>) -> Result<Json<Vec<Revision>>, Problem> {
    let Json(mut all) = all(node).await?;
    let known: Vec<String> = all.keys().cloned().collect();
    all.remove(&dc).map(Json).ok_or_else(|| {
        Problem::new(Code::UnknownDc, format!("no file of {dc} was up here, as far as is remembered"))
            .help(crate::base::meant(&dc, &known, "distributed containers"))
    })
}
