//! The paths about reservations.

use super::{Shared, parsed};
use crate::api::node::Node;
use crate::base::BOOK;
use crate::reservations::watch;
use admin::reserve::{
    AdaptRequest, Adapted, Book, MoveRequest, Named, NodeSettings, Ran, RunRequest, Trace, VtmRow,
};
use admin::{Code, Problem};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use std::sync::Arc;

/// Runs work that waits for the kernel away from the loop.
async fn away<T: Send + 'static>(
    node: Arc<Node>,
    work: impl FnOnce(&Node) -> Result<T, Problem> + Send + 'static,
) -> Result<Json<T>, Problem> {
    let done = BOOK.run(move || work(&node)).await;
    done.map_err(|why| Problem::new(Code::Failed, why))?.map(Json)
}

pub(super) async fn book(State(node): Shared) -> Result<Json<Book>, Problem> {
    away(node, |node| Ok(Book { in_cluster: node.following().is_some(), ..node.book.rows() })).await
}

pub(super) async fn explain(State(node): Shared) -> Result<Json<Vec<String>>, Problem> {
    away(node, |node| Ok(node.book.explain())).await
}

pub(super) async fn show(State(node): Shared, Path(name): Path<String>) -> Result<Json<VtmRow>, Problem> {
    away(node, move |node| node.book.row(&name)).await
}

pub(super) async fn trace(State(node): Shared) -> Result<Json<Trace>, Problem> {
    away(node, |node| Ok(node.book.trace())).await
}

pub(super) async fn node_settings(State(node): Shared) -> Result<Json<NodeSettings>, Problem> {
    away(node, |node| Ok(node.book.rows().node)).await
}

pub(super) async fn set_node(State(node): Shared, body: Bytes) -> Result<Json<NodeSettings>, Problem> {
    let settings: NodeSettings = parsed(&body)?;
    // Files are admitted to what the node has.
    let _changing = node.domains.changing().await;
    let set =
        away(Arc::clone(&node), move |node| node.book.set_node(settings).map(|()| node.book.rows().node));
    let set = set.await?;
    if let Some(following) = node.following() {
        following.has_told().await;
    }
    Ok(set)
}

pub(super) async fn adapt(State(node): Shared, body: Bytes) -> Result<Json<Adapted>, Problem> {
    let request: AdaptRequest = parsed(&body)?;
    away(node, move |node| node.book.adapt(&request)).await
}

pub(super) async fn shift(State(node): Shared, body: Bytes) -> Result<Json<Adapted>, Problem> {
    let request: MoveRequest = parsed(&body)?;
    away(node, move |node| node.book.shift(&request)).await
}

pub(super) async fn run(State(node): Shared, body: Bytes) -> Result<Json<Ran>, Problem> {
    let request: RunRequest = parsed(&body)?;
    let ran = away(Arc::clone(&node), move |node| node.book.run(&request)).await?;
    tokio::spawn(watch(Arc::clone(&node.book), ran.name.clone()));
    Ok(ran)
}

pub(super) async fn suspend(State(node): Shared, body: Bytes) -> Result<Json<VtmRow>, Problem> {
    set_suspended(node, &body, true).await
}

pub(super) async fn resume(State(node): Shared, body: Bytes) -> Result<Json<VtmRow>, Problem> {
    set_suspended(node, &body, false).await
}

async fn set_suspended(node: Arc<Node>, body: &[u8], suspended: bool) -> Result<Json<VtmRow>, Problem> {
    let Named { name } = parsed(body)?;
    away(node, move |node| {
        node.book.suspend(&name, suspended)?;
        node.book.row(&name)
    })
    .await
}
