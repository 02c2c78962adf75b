//! The cluster in the admin socket's answers.

use super::node::Node;
use crate::membership::{etcd_view, growth, init, join, own_etcd, replace, rotate, token};
use admin::{
    BackupRequest, Code, InitRequest, JoinRequest, NodesView, Problem, RemoveRequest, ReplaceRequest,
    RotateRequest, Said, TokenRequest,
};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;

type Shared = State<Arc<Node>>;

/// Its paths that change nothing.
pub(crate) fn looks() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/nodes", get(nodes))
        .route("/v1/nodes/{name}", get(show))
        .route("/v1/cluster/etcd", get(etcd))
        .route("/v1/cluster/authority", get(authority))
}

/// The others.
pub(crate) fn changes() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/cluster/init", post(init_here))
        .route("/v1/cluster/join", post(join_here))
        .route("/v1/cluster/token", post(make_token))
        .route("/v1/cluster/remove", post(remove))
        .route("/v1/cluster/rotate", post(rotate_here))
        .route("/v1/cluster/etcd/backup", post(back_up))
        .route("/v1/cluster/authority/replace", post(replace_authority))
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body)
        .map_err(|error| Problem::new(Code::BadRequest, format!("the body is not understood: {error}")))
}

fn single() -> Problem {
    Problem::new(Code::NoCluster, "this node belongs to no cluster")
        .help("`tombolo node init` begins one, `tombolo node join` joins one")
}

async fn nodes(State(node): Shared) -> Json<NodesView> {
    Json(match &node.cluster {
        Some(cluster) => with_free(&node, cluster.view()).await,
        None => NodesView::default(),
    })
}

/// Adds to the view what each node has left to promise. The arithmetic of many promises takes its
/// time.
async fn with_free(node: &Arc<Node>, mut view: NodesView) -> NodesView {
    let Some(following) = node.following().cloned() else { return view };
    let free = crate::base::BOOK.run(move || following.free()).await;
    let mut free = free.unwrap_or_else(|error| {
        tracing::warn!(error, "it is not told what nodes have left to promise");
        BTreeMap::new()
    });
    for row in &mut view.nodes {
        row.free = free.remove(&row.name);
    }
    view
}

async fn show(State(node): Shared, Path(name): Path<String>) -> Result<Response, Problem> {
    let cluster = node.cluster.as_ref().ok_or_else(single)?;
    let view = with_free(&node, cluster.view()).await;
    let names: Vec<String> = view.nodes.iter().map(|row| row.name.clone()).collect();
    let found = view.nodes.into_iter().find(|row| row.name == name);
    let found = found.ok_or_else(|| {
        Problem::new(Code::UnknownNode, format!("there is no node {name:?} in the cluster"))
            .help(crate::base::meant(&name, &names, "nodes"))
    })?;
    Ok(Json(found).into_response())
}

/// Refuses where the node belongs to a cluster, unless that has removed it.
fn must_be_single(node: &Node) -> Result<(), Problem> {
    match &node.cluster {
        Some(cluster) if !cluster.is_removed() => Err(Problem::new(
            Code::Taken,
            format!(
                "this machine is node {} of cluster {} already",
                cluster.me(),
                cluster.identity().cluster()
            ),
        )
        .help(format!("`tombolo node remove {}` takes it out", cluster.me()))),
        _ => Ok(()),
    }
}

async fn init_here(State(node): Shared, body: Bytes) -> Result<Json<Said>, Problem> {
    let request: InitRequest = parsed(&body)?;
    must_be_single(&node)?;
    let _changing = node.domains.changing().await;
    let said =
        init::init(node.place.state_dir.clone(), Arc::clone(&node.registry), node.etcd_ground(), request)
            .await?;
    node.again.notify_one();
    Ok(Json(Said { said }))
}

async fn join_here(State(node): Shared, body: Bytes) -> Result<Json<Said>, Problem> {
    let request: JoinRequest = parsed(&body)?;
    // The cluster's own etcd lets nobody in who was removed, so a node that was away does not hear
    // of it. The cluster that it asks knows: the name and the address of a node are taken.
    let may_be_removed =
        node.cluster.as_ref().is_some_and(|cluster| cluster.config().etcd.own && cluster.is_fenced());
    if !may_be_removed {
        must_be_single(&node)?;
    }
    let _changing = node.domains.changing().await;
    let dcs = node.domains.dcs();
    // What a node knows that was removed is its former cluster's.
    if node.cluster.is_none() && !dcs.is_empty() {
        return Err(Problem::new(Code::Taken, format!("{} is up here, which the cluster knows nothing of", dcs.join(", ")))
            .help("`tombolo down --all` first, and `tombolo up` afterwards; or begin the cluster here (`tombolo node init`)"));
    }
    // They would be swept away as what counts no more.
    if node.cluster.is_none()
        && let Some(secret) = node.secrets.rows().await?.first()
    {
        let message = format!(
            "secrets are set here, as {}/{}, which the cluster knows nothing of",
            secret.dc, secret.secret
        );
        return Err(Problem::new(Code::Taken, message)
            .help("remove them (`tombolo secret ls`, `tombolo secret rm`) and set them in the cluster; or begin the cluster here (`tombolo node init`)"));
    }
    let anew = |does| node.cluster.iter().for_each(|cluster| cluster.joins_anew(does));
    anew(true);
    let said = async {
        let _changing = match &node.cluster {
            Some(cluster) => Some(cluster.changing().await),
            None => None,
        };
        join::join(node.place.state_dir.clone(), request).await
    };
    let said = said.await.inspect_err(|_| anew(false))?;
    if let Some(keeper) = node.etcd.get() {
        own_etcd::end(keeper).await;
    }
    node.again.notify_one();
    Ok(Json(Said { said }))
}

async fn make_token(State(node): Shared, body: Bytes) -> Result<Response, Problem> {
    let request: TokenRequest = parsed(&body)?;
    let cluster = node.cluster.as_ref().ok_or_else(single)?;
    Ok(Json(token::make(cluster, request).await?).into_response())
}

async fn remove(State(node): Shared, body: Bytes) -> Result<Json<Said>, Problem> {
    let request: RemoveRequest = parsed(&body)?;
    let cluster = node.cluster.as_ref().ok_or_else(single)?;
    let alive = cluster.member(&request.node).is_some_and(|member| member.alive);
    if alive && !request.force {
        return Err(Problem::new(Code::Taken, format!("node {} is alive", request.node)).help(
            "stop its daemon first, or add --force: it is fenced, and what it runs may run elsewhere",
        ));
    }
    growth::may_leave(cluster, &request.node).await?;
    let (etcd, name) = (cluster.etcd().clone(), request.node.clone());
    crate::membership::blocking(move || join::leave(&etcd, &name)).await?;
    Ok(Json(Said {
        said: format!(
            "node {} is removed, and its certificate is believed no more; if it could let others join and is not trusted, change what lets \
             it into etcd, and `tombolo node authority replace`",
            request.node
        ),
    }))
}

async fn etcd(State(node): Shared) -> Result<Response, Problem> {
    let cluster = node.cluster.as_ref().ok_or_else(single)?;
    let seen = node.etcd.get().map(|keeper| keeper.seen()).unwrap_or_default();
    Ok(Json(etcd_view::view(cluster, seen).await?).into_response())
}

async fn back_up(State(node): Shared, body: Bytes) -> Result<Json<Said>, Problem> {
    let request: BackupRequest = parsed(&body)?;
    let cluster = node.cluster.as_ref().ok_or_else(single)?;
    etcd_view::backup(cluster, request.file).await.map(Json)
}

async fn authority(State(node): Shared) -> Result<Response, Problem> {
    let cluster = node.cluster.as_ref().ok_or_else(single)?;
    Ok(Json(replace::view(cluster).await?).into_response())
}

async fn replace_authority(State(node): Shared, body: Bytes) -> Result<Json<Said>, Problem> {
    let request: ReplaceRequest = parsed(&body)?;
    let cluster = node.cluster.as_ref().ok_or_else(single)?;
    replace::replace(cluster, request.restored).await.map(Json)
}

async fn rotate_here(State(node): Shared, body: Bytes) -> Result<Json<Said>, Problem> {
    let request: RotateRequest = parsed(&body)?;
    let cluster = node.cluster.as_ref().ok_or_else(single)?;
    rotate::rotate(cluster, request.revoke).await?;
    let earlier = if request.revoke { "; earlier ones are believed no more" } else { "" };
    let serial = cluster.identity().serial();
    Ok(Json(Said { said: format!("node {} has another certificate: {serial}{earlier}", cluster.me()) }))
}
