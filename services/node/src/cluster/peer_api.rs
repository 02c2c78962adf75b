//! What other nodes ask: HTTP/1.1 with JSON over mutual TLS. `docs/spec/joining.md` describes it.

use super::release::{self, PROTOCOLS, RELEASE_HEADER};
use super::trusted::Trusted;
use super::{Cluster, join, replace, rotate};
use crate::admin::{Code, MAX_BODY_BYTES, Problem};
use crate::node::Node;
use crate::proxies::{LINK_PATH, Offer};
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

/// Connections of other nodes, and of who pretends to be one, that are served at a time.
const MAX_CONNECTIONS: usize = 256;
/// How long a handshake, and the head of a request, may take.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Where a machine that has no certificate may knock.
pub(crate) const JOIN_PATH: &str = "/v1/join";

/// Who asks, as its certificate says.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) node: String,
    pub(super) shown: Arc<trust::Shown>,
}

/// From where somebody asks who has no certificate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct From(pub(crate) IpAddr);

type Shared = State<Arc<Node>>;

/// All paths.
pub(crate) fn router(node: Arc<Node>) -> Router {
    Router::new()
        .route(JOIN_PATH, post(join_here))
        .route("/v1/certificate", post(certificate))
        .route("/v1/hello", post(hello))
        .route(replace::PATH, post(hand_over))
        .route(LINK_PATH, post(link_offered))
        .merge(crate::follow::routes())
        .fallback(nothing_here)
        .layer(from_fn(only_nodes))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(node)
}

/// Another node's daemon says where its proxy for this one listens, and asks where ours for it does.
async fn link_offered(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    Json(offer): Json<Offer>,
) -> Result<Json<Offer>, Problem> {
    let proxies = node.proxies.get().ok_or_else(|| Problem::new(Code::NotRunning, "no links yet"))?;
    proxies.offered(&caller.node, offer).map(Json).map_err(|why| Problem::new(Code::BadRequest, why))
}

/// Who shows no certificate may join, and nothing else; whose release is too far away is told so.
async fn only_nodes(request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>().cloned();
    let who =
        caller.as_ref().map_or_else(|| "the caller".to_owned(), |caller| format!("node {}", caller.node));
    let release = request.headers().get(RELEASE_HEADER).and_then(|value| value.to_str().ok()).unwrap_or("");
    if let Err(problem) = release::check(release, &who) {
        return problem.into_response();
    }
    if caller.is_none() && request.uri().path() != JOIN_PATH {
        return Problem::new(Code::Refused, "only nodes of the cluster may ask this").into_response();
    }
    next.run(request).await
}

async fn join_here(
    State(node): Shared,
    Extension(From(from)): Extension<From>,
    body: Bytes,
) -> Result<Response, Problem> {
    let request = parsed(&body)?;
    Ok(Json(join::admit(of(&node)?, request, from).await?).into_response())
}

async fn certificate(
    State(node): Shared,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Response, Problem> {
    let request = parsed(&body)?;
    Ok(Json(rotate::issue(of(&node)?, &caller.node, request).await?).into_response())
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

/// Serves other nodes at an address of this machine.
///
/// # Errors
/// The address can't be listened at.
pub(crate) async fn serve(cluster: &Cluster, router: Router) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(cluster.config().address).await?;
    let address = listener.local_addr()?;
    let acceptor =
        TlsAcceptor::from(cluster.identity().server_for_joiners(PROTOCOLS).map_err(std::io::Error::other)?);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let cluster = cluster.clone();
    tokio::spawn(async move {
        loop {
            // The next one waits in the kernel until another is done.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "another node can't be accepted");
                    // tidy(sleep): out of descriptors; nothing tells when there is one again.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (acceptor, router, cluster) = (acceptor.clone(), router.clone(), cluster.clone());
            tokio::spawn(async move {
                if let Err(error) = serve_one(&cluster, acceptor, router, stream, from).await {
                    tracing::info!(%from, error, "who asked at the peer API was not served");
                }
                drop(place);
            });
        }
    });
    Ok(address)
}

async fn serve_one(
    cluster: &Cluster,
    acceptor: TlsAcceptor,
    router: Router,
    stream: TcpStream,
    from: SocketAddr,
) -> Result<(), String> {
    super::call::notice_its_end(&stream).map_err(|error| error.to_string())?;
    let stream = tokio::time::timeout(GREETING_PATIENCE, acceptor.accept(stream)).await;
    let stream = stream
        .map_err(|_| "its handshake takes too long".to_owned())?
        .map_err(|error| trust::explain(&error, &from.to_string()))?;
    let chain = stream.get_ref().1.peer_certificates();
    let shown = chain.map(|chain| cluster.identity().shown(chain).map(Arc::new)).transpose();
    let shown = shown.map_err(|error| error.to_string())?;
    let mut router = router.layer(Extension(From(from.ip())));
    if let Some(shown) = &shown {
        let (node, shown) = (shown.peer().node.clone(), Arc::clone(shown));
        router = router.layer(Extension(Caller { node, shown }));
    }
    let stream = Trusted::new(stream, cluster, shown.clone());
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(GREETING_PATIENCE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades();
    let Some(shown) = shown else { return served.await.map_err(|error| error.to_string()) };
    tokio::select! {
        served = served => served.map_err(|error| error.to_string()),
        // Also where nothing is read or written: who waits for an answer gets none.
        () = cluster.clone().until_disbelieved(Arc::clone(&shown)) => Err(cluster.why_disbelieved(&shown)),
    }
}
