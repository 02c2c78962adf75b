//! The requests of other nodes: JSON over the connections that membership serves.
//! `docs/spec/joining.md` describes it.

use super::node::Node;
use super::whole;
use crate::links::{LINK_PATH, Offer};
use crate::membership::release::{self, RELEASE_HEADER};
use crate::membership::{
    Caller, Cluster, JOIN_PATH, OfConnection, Origin, PROOF_PATH, Stranger, join, own_etcd, replace, rotate,
};
use crate::secrets::{Carried, PEER_PATH as SECRETS, Place};
use crate::volumes::{self, About, Listens};
use admin::{Code, MAX_BODY_BYTES, Problem};
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use std::sync::Arc;
use std::time::Duration;

/// How long a node may take to send the body of a request: 4 MiB over a slow link.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest body of who has shown no certificate: a request to join with all labels that a node may
/// have.
const MAX_STRANGERS_BODY_BYTES: usize = 64 << 10;

/// A value of a secret, in a path: distributed container, name, revision and id.
type AtPeer = (String, String, u64, String);

type Shared = State<Arc<Node>>;

/// Returns the routes for other nodes.
pub(crate) fn router(node: Arc<Node>) -> Router {
    Router::new()
        .route(JOIN_PATH, post(join_here))
        .route(PROOF_PATH, post(prove_here))
        .route("/v1/certificate", post(certificate))
        .route(own_etcd::CERTIFICATE_PATH, post(member_certificate))
        .route("/v1/hello", post(hello))
        .route(replace::PATH, post(hand_over))
        .route(LINK_PATH, post(link_offered))
        .route(volumes::MAKE_PATH, post(make_replica))
        .route(volumes::FIND_PATH, post(find_replica))
        .route(volumes::DROP_PATH, post(drop_replica))
        .route(
            &format!("{SECRETS}/{{dc}}/{{secret}}/{{revision}}/{{id}}"),
            get(secret_asked).post(secret_given).delete(secret_over),
        )
        .merge(whole::routes())
        .fallback(nothing_here)
        .layer(from_fn(only_nodes))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(node)
}

/// Another node's daemon asks for the value of a secret.
async fn secret_asked(State(node): Shared, Path(place): Path<AtPeer>) -> Result<Json<Carried>, Problem> {
    node.secrets.give(placed(&place)?).await.map(Json)
}

/// Another node's daemon gives the value of a secret.
async fn secret_given(
    State(node): Shared,
    Path(place): Path<AtPeer>,
    Json(Carried { value }): Json<Carried>,
) -> Result<Json<()>, Problem> {
    node.secrets.take(placed(&place)?, value).await.map(Json)
}

/// Another node's daemon says that a value counts no more.
async fn secret_over(State(node): Shared, Path(place): Path<AtPeer>) -> Result<Json<()>, Problem> {
    node.secrets.is_over(placed(&place)?).await.map(Json)
}

fn placed((dc, secret, revision, id): &AtPeer) -> Result<Place, Problem> {
    Place::parse((dc, secret, *revision, id))
}

/// Another node's daemon says where its proxy for this one listens, and asks where ours for it
/// does.
async fn link_offered(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Json(offer): Json<Offer>,
) -> Result<Json<Offer>, Problem> {
    let proxies = node.proxies.get().ok_or_else(|| Problem::new(Code::NotRunning, "no links yet"))?;
    proxies.offered(&caller.node, offer).await.map(Json).map_err(|why| Problem::new(Code::BadRequest, why))
}

/// Another node makes a volume, with a replica here.
async fn make_replica(State(node): Shared, Json(about): Json<About>) -> Result<Json<bool>, Problem> {
    node.volumes.make_replica(about).await.map(|()| Json(true))
}

/// The primary of a volume asks where its replica here listens.
async fn find_replica(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Json(about): Json<About>,
) -> Result<Json<Listens>, Problem> {
    node.volumes.find_replica(&caller.node, &about).await.map(Json)
}

/// A volume was removed from the cluster.
async fn drop_replica(State(node): Shared, Json(about): Json<About>) -> Result<Json<bool>, Problem> {
    node.volumes.drop_replica(&about).await.map(|()| Json(true))
}

/// A caller without a certificate may join, and nothing else; one whose release is too far away is
/// told so.
async fn only_nodes(request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>().cloned();
    let who =
        caller.as_ref().map_or_else(|| "the caller".to_owned(), |caller| format!("node {}", caller.node));
    let release = request.headers().get(RELEASE_HEADER).and_then(|value| value.to_str().ok()).unwrap_or("");
    if let Err(problem) = release::check(release, &who) {
        return problem.into_response();
    }
    if caller.is_none() && ![JOIN_PATH, PROOF_PATH].contains(&request.uri().path()) {
        return Problem::new(Code::Refused, "only nodes of the cluster may ask this").into_response();
    }
    let most = if caller.is_some() { MAX_BODY_BYTES } else { MAX_STRANGERS_BODY_BYTES };
    match whole(request, most).await {
        Ok(request) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// The request with its body, which was waited for so long and no longer.
async fn whole(request: Request, most: usize) -> Result<Request, Problem> {
    let (head, body) = request.into_parts();
    let bad = |why: String| Problem::new(Code::BadRequest, why);
    match tokio::time::timeout(BODY_TIMEOUT, axum::body::to_bytes(body, most)).await {
        Ok(Ok(body)) => Ok(Request::from_parts(head, Body::from(body))),
        Ok(Err(error)) => Err(bad(format!("the body has no more than {most} bytes: {error}"))),
        Err(_) => Err(bad(format!("the body takes longer than {} s", BODY_TIMEOUT.as_secs()))),
    }
}

async fn join_here(
    State(node): Shared,
    Extension(Origin(from)): Extension<Origin>,
    stranger: Option<Extension<Stranger>>,
    body: Bytes,
) -> Result<Response, Problem> {
    let request = parsed(&body)?;
    // A node that asks for another machine is none.
    let _turn = match &stranger {
        Some(Extension(stranger)) => stranger.turn().await,
        None => None,
    };
    Ok(Json(join::admit(of(&node)?, request, from).await?).into_response())
}

async fn prove_here(
    State(node): Shared,
    Extension(words): Extension<OfConnection>,
    Extension(stranger): Extension<Stranger>,
) -> Result<Response, Problem> {
    let _turn = stranger.turn().await;
    Ok(Json(join::prove(of(&node)?, words).await?).into_response())
}

async fn certificate(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Response, Problem> {
    let request = parsed(&body)?;
    Ok(Json(rotate::issue(of(&node)?, &caller.node, request).await?).into_response())
}

/// A certificate for the etcd member of the node that asks.
async fn member_certificate(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Response, Problem> {
    let request = parsed(&body)?;
    Ok(Json(own_etcd::issue(of(&node)?, &caller.node, request).await?).into_response())
}

async fn hand_over(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Response, Problem> {
    let request = parsed(&body)?;
    Ok(Json(replace::hand_over(of(&node)?, caller, request).await?).into_response())
}

async fn hello(State(node): Shared, Extension(caller): Extension<Caller>) -> Result<Response, Problem> {
    let cluster = of(&node)?;
    Ok(Json(serde_json::json!({ "node": cluster.me(), "caller": caller.node, "release": release::RELEASE }))
        .into_response())
}

async fn nothing_here() -> Problem {
    Problem::new(Code::UnknownPath, "there is nothing at this path")
        .help("docs/spec/joining.md lists the paths")
}

fn of(node: &Node) -> Result<&Cluster, Problem> {
    node.cluster.as_ref().ok_or_else(|| Problem::new(Code::Failed, "this node belongs to no cluster"))
}

fn parsed<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body)
        .map_err(|error| Problem::new(Code::BadRequest, format!("the body is not understood: {error}")))
}
