//! The admin socket: HTTP over a Unix socket that only root reaches. `docs/spec/admin.md` describes it.

use crate::admin::{Code, DownRequest, Entry, MAX_BODY_BYTES, Problem, Progress, UpRequest, Version};
use crate::node::Node;
use crate::{change, metrics, tree};
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Lines of progress that may wait for a slow reader before the work waits for it, too.
const MAX_WAITING_LINES: usize = 64;

type Shared = State<Arc<Node>>;

/// All paths.
pub(crate) fn router(node: Arc<Node>) -> Router {
    Router::new()
        .route("/v1/version", get(version))
        .route("/v1/up", post(up))
        .route("/v1/down", post(down))
        .route("/v1/domains", get(domains))
        .route("/v1/domains/{name}/entry", get(entry))
        .route("/v1/domains/{name}/place", get(place))
        .route("/v1/services", get(services))
        .route("/v1/services/{name}", get(service))
        .route("/v1/endpoints", get(endpoints))
        .route("/v1/endpoints/{name}", get(endpoint))
        .route("/v1/state", get(state))
        .route("/metrics", get(text_metrics))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(node)
}

/// The metrics alone, for the loopback port.
pub(crate) fn metrics_router(node: Arc<Node>) -> Router {
    Router::new().route("/metrics", get(text_metrics)).fallback(nothing_here).with_state(node)
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = match self.code {
            Code::BadRequest => StatusCode::BAD_REQUEST,
            Code::NotAdmitted => StatusCode::UNPROCESSABLE_ENTITY,
            Code::UnknownDc
            | Code::UnknownDomain
            | Code::UnknownService
            | Code::UnknownEndpoint
            | Code::UnknownPath => StatusCode::NOT_FOUND,
            Code::Ambiguous | Code::NotRunning => StatusCode::CONFLICT,
            Code::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            Code::Ending => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, Json(self)).into_response()
    }
}

async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION").into(), pid: std::process::id() })
}

async fn up(State(node): Shared, body: Bytes) -> Result<Response, Problem> {
    let request: UpRequest = parsed(&body)?;
    if !request.base.is_absolute() {
        return Err(Problem::new(Code::BadRequest, "`base` must be an absolute path"));
    }
    Ok(streamed(move |progress| change::up(node, request, progress)))
}

async fn down(State(node): Shared, body: Bytes) -> Result<Response, Problem> {
    let request: DownRequest = parsed(&body)?;
    Ok(streamed(move |progress| change::down(node, request, progress)))
}

async fn domains(State(node): Shared) -> Response {
    Json(tree::domain_rows(&node).await).into_response()
}

async fn entry(State(node): Shared, Path(name): Path<String>) -> Result<Json<Entry>, Problem> {
    let (dc, domain) = node.find_domain(&name)?;
    node.must_run(&dc, &domain)?;
    Ok(Json(entry_of(&node, dc, domain)))
}

/// Where a domain's things are, whether it runs or not.
async fn place(State(node): Shared, Path(name): Path<String>) -> Result<Json<Entry>, Problem> {
    let (dc, domain) = node.find_domain(&name)?;
    Ok(Json(entry_of(&node, dc, domain)))
}

fn entry_of(node: &Node, dc: String, domain: String) -> Entry {
    let topology = node.topology(&dc);
    let found = topology.as_ref().and_then(|topology| topology.domain(&domain));
    let program = found.map_or_else(String::new, |found| crate::spec::program(&node.layout, found));
    Entry { dc, domain, program, layout: node.layout.clone() }
}

async fn services(State(node): Shared) -> Response {
    Json(tree::service_rows(&node)).into_response()
}

async fn service(State(node): Shared, Path(name): Path<String>) -> Result<Response, Problem> {
    let (dc, service) = node.find_service(&name)?;
    let tree = tree::whole(&node).await;
    let found = tree.pointer(&format!("/dc/{dc}/services/{service}")).cloned();
    let found =
        found.ok_or_else(|| Problem::new(Code::UnknownService, format!("service {name} has just gone")))?;
    Ok(Json(found).into_response())
}

async fn endpoints(State(node): Shared) -> Response {
    Json(tree::endpoint_rows(&node)).into_response()
}

async fn endpoint(State(node): Shared, Path(name): Path<String>) -> Result<Response, Problem> {
    let (dc, which) = node.find_endpoint(&name)?;
    let found = node.broker.endpoint(&dc, &which);
    let found =
        found.ok_or_else(|| Problem::new(Code::UnknownEndpoint, format!("endpoint {name} has just gone")))?;
    Ok(Json(found).into_response())
}

#[derive(Deserialize)]
struct Where {
    #[serde(default)]
    path: String,
}

async fn state(State(node): Shared, Query(at): Query<Where>) -> Result<Response, Problem> {
    let whole = tree::whole(&node).await;
    Ok(Json(tree::part(&node, &whole, &at.path)?).into_response())
}

async fn text_metrics(State(node): Shared) -> Response {
    let text = metrics::text(&tree::whole(&node).await);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn nothing_here() -> Problem {
    Problem::new(Code::UnknownPath, "there is nothing at this path")
        .help("docs/spec/admin.md lists the paths")
}

async fn wrong_method() -> Problem {
    Problem::new(Code::BadRequest, "this path has another method").help("docs/spec/admin.md lists the paths")
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body)
        .map_err(|e| Problem::new(Code::BadRequest, format!("the body is not understood: {e}")))
}

/// Where long work says how far it is. The work goes on, whether anybody reads or not.
#[derive(Debug, Clone)]
pub(crate) struct Teller(mpsc::Sender<Progress>);

impl Teller {
    pub(crate) async fn tell(&self, progress: Progress) {
        // A reader that went away does not stop the work.
        let _gone = self.0.send(progress).await;
    }
}

/// Runs `work` as a task of its own, so that it is finished (or rolled back) even if the client goes away, and streams
/// what it tells as JSON lines.
fn streamed<F, W>(work: F) -> Response
where
    F: FnOnce(Teller) -> W,
    W: Future<Output = ()> + Send + 'static,
{
    let (teller, lines) = mpsc::channel(MAX_WAITING_LINES);
    tokio::spawn(work(Teller(teller)));
    let body = Body::new(Lines(lines));
    ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

/// Progress as the body of an answer.
struct Lines(mpsc::Receiver<Progress>);

impl hyper::body::Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|progress| {
            let progress = progress?;
            // The types of `Progress` have nothing that JSON can't say; an empty line would be the visible symptom.
            let mut line = serde_json::to_vec(&progress).unwrap_or_default();
            line.push(b'\n');
            Some(Ok(hyper::body::Frame::data(line.into())))
        })
    }
}
