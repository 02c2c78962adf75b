//! The admin socket: HTTP over a Unix socket of root's, and over those of the groups that may
//! change and look. `docs/spec/admin.md` describes it.

mod adaptation;
mod cluster;
mod help;
mod history;
mod metrics;
pub(crate) mod node;
pub(crate) mod peers;
pub(crate) mod remote;
mod reserve;
mod secret;
mod tree;
mod volume;
mod whole;

use crate::domains::{Teller, change, lifecycle, spec};
use crate::placement::{self, Following};
use admin::place::Access;
use admin::{
    Act, CancelRequest, Cancelled, Code, DomainMoveRequest, DownRequest, Entry, ExecRequest, LinkChange,
    LinkRow, MAX_BODY_BYTES, Migrating, Migration, MoveReport, Problem, Said, ServiceMoveRequest,
    ServiceMoved, UpRequest, Version,
};
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use node::Node;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use wire::remote::{NINEP_PROTOCOL, PROTOCOL};

/// Lines of progress that may wait for a slow reader before the work waits for it, too.
const MAX_WAITING_LINES: usize = 64;

type Shared = State<Arc<Node>>;

/// Returns the routes of the admin socket.
pub(crate) fn router(node: Arc<Node>) -> Router {
    finished(looks().merge(changes()), node)
}

/// The routes for those who may look alone; the others are told why not.
pub(crate) fn looking_router(node: Arc<Node>) -> Router {
    finished(looks().merge(changes().route_layer(middleware::from_fn(may_only_look))), node)
}

/// Requests that change nothing, and tell no text of a file nor anything that a program was given.
fn looks() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/version", get(version))
        .route("/v1/events", get(events))
        .route("/v1/domains", get(domains))
        .route("/v1/domains/{name}/place", get(place))
        .route("/v1/domains/{name}/logs", get(logs))
        .route("/v1/services", get(services))
        .route("/v1/services/{name}", get(service))
        .route("/v1/endpoints", get(endpoints))
        .route("/v1/endpoints/{name}", get(endpoint))
        .route("/v1/links", get(links))
        .route("/v1/links/{node}", get(link))
        .route("/v1/reserve", get(reserve::book))
        .route("/v1/reserve/explain", get(reserve::explain))
        .route("/v1/reserve/show/{*name}", get(reserve::show))
        .route("/v1/reserve/trace", get(reserve::trace))
        .route("/v1/reserve/node", get(reserve::node_settings))
        .route("/v1/adaptations", get(adaptation::all))
        .route("/v1/adaptations/show/{*name}", get(adaptation::show))
        .route("/v1/volumes", get(volume::all))
        .route("/v1/volumes/show/{*name}", get(volume::show))
        .route("/v1/secrets", get(secret::all))
        .route("/v1/state", get(state))
        .route("/metrics", get(text_metrics))
        .merge(cluster::looks())
}

/// Requests that change something, or tell more.
fn changes() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/up", post(up))
        .route("/v1/down", post(down))
        .route("/v1/cancel", post(cancel))
        .route("/v1/domains/{name}/entry", get(entry))
        .route("/v1/domains/{name}/exec", post(exec))
        .route("/v1/domains/{name}/9p", post(ninep))
        .route("/v1/domains/{name}/act", post(act))
        .route("/v1/domains/{name}/move", post(relocate))
        .route("/v1/nodes/{name}/drain", post(drain))
        .route("/v1/nodes/{name}/undrain", post(undrain))
        .route("/v1/services/{name}/move", post(move_service))
        .route("/v1/endpoints/{name}", post(migrate_endpoint))
        .route("/v1/links/{node}", post(set_link))
        .route("/v1/reserve/node", post(reserve::set_node))
        .route("/v1/reserve/adapt", post(reserve::adapt))
        .route("/v1/reserve/move", post(reserve::shift))
        .route("/v1/reserve/run", post(reserve::run))
        .route("/v1/reserve/suspend", post(reserve::suspend))
        .route("/v1/reserve/resume", post(reserve::resume))
        .route("/v1/adaptations/set", post(adaptation::set))
        .route("/v1/history", get(history::all))
        .route("/v1/history/{dc}", get(history::of))
        .route("/v1/secrets/set", post(secret::set))
        .route("/v1/secrets/remove", post(secret::remove))
        .route("/v1/volumes/create", post(volume::create))
        .route("/v1/volumes/change", post(volume::change))
        .merge(cluster::changes())
}

fn finished(routes: Router<Arc<Node>>, node: Arc<Node>) -> Router {
    routes
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(node)
}

async fn may_only_look(_: Request, _: middleware::Next) -> Problem {
    let group = Access::Change.usual_group();
    Problem::new(Code::Refused, "whoever comes by this socket may look, and this is more than that").help(
        format!(
            "say it as root, or as a member of the group that may change ({group}, where no other is named)"
        ),
    )
}

/// The metrics alone, for the loopback port.
pub(crate) fn metrics_router(node: Arc<Node>) -> Router {
    Router::new().route("/metrics", get(text_metrics)).fallback(nothing_here).with_state(node)
}

async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION").into(), pid: std::process::id() })
}

async fn up(State(node): Shared, body: Bytes) -> Result<Response, Problem> {
    let request: UpRequest = parsed(&body)?;
    if !request.base.is_absolute() {
        return Err(Problem::new(Code::BadRequest, "`base` must be an absolute path"));
    }
    if let Some(following) = node.following().cloned() {
        return Ok(streamed(move |progress| {
            placement::up(Arc::clone(&node.domains), following, request, progress)
        }));
    }
    Ok(streamed(move |progress| change::up(Arc::clone(&node.domains), request, progress)))
}

async fn cancel(State(node): Shared, body: Bytes) -> Result<Json<Cancelled>, Problem> {
    let CancelRequest { ticket } = parsed(&body)?;
    Ok(Json(Cancelled { cancelled: node.domains.changes.cancel(&ticket) }))
}

#[derive(Deserialize)]
struct Listening {
    #[serde(default)]
    follow: bool,
}

/// Answers with the events so far, and, for one that listens on, with those that come.
async fn events(State(node): Shared, Query(Listening { follow }): Query<Listening>) -> Response {
    let (lines, body) = mpsc::channel(MAX_WAITING_LINES);
    tokio::spawn(async move {
        let mut changes = node.domains.events.changes();
        let mut told = 0;
        loop {
            changes.mark_unchanged();
            for event in node.domains.events.after(told) {
                told = event.number;
                if lines.send(event).await.is_err() {
                    return;
                }
            }
            if !follow {
                return;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = lines.closed() => return,
            }
        }
    });
    json_lines(body)
}

async fn down(State(node): Shared, body: Bytes) -> Result<Response, Problem> {
    let request: DownRequest = parsed(&body)?;
    if let Some(following) = node.following().cloned() {
        return Ok(streamed(move |progress| {
            placement::down(Arc::clone(&node.domains), following, request, progress)
        }));
    }
    Ok(streamed(move |progress| change::down(Arc::clone(&node.domains), request, progress)))
}

async fn links(State(node): Shared) -> Json<Vec<LinkRow>> {
    match node.proxies.get() {
        Some(proxies) => Json(proxies.rows().await),
        None => Json(Vec::new()),
    }
}

async fn link(State(node): Shared, Path(name): Path<String>) -> Result<Response, Problem> {
    let found = match node.proxies.get() {
        Some(proxies) => proxies.tree(&name).await,
        None => None,
    };
    Ok(Json(found.ok_or_else(|| no_link(&name))?).into_response())
}

async fn set_link(State(node): Shared, Path(name): Path<String>, body: Bytes) -> Result<Response, Problem> {
    let change: LinkChange = parsed(&body)?;
    let proxies = node.proxies.get().ok_or_else(|| no_link(&name))?;
    proxies.set(&name, &change).await.map_err(|why| Problem::new(Code::BadRequest, why))?;
    link(State(node), Path(name)).await
}

fn no_link(name: &str) -> Problem {
    Problem::new(Code::UnknownLink, format!("there is no link to a node {name:?}"))
        .help("`tombolo link ls` lists those that there are; a node alone has none")
}

async fn domains(State(node): Shared) -> Response {
    match node.following() {
        Some(following) => Json(whole::whole_rows(&node, following).await).into_response(),
        None => Json(tree::domain_rows(&node).await).into_response(),
    }
}

async fn entry(State(node): Shared, Path(name): Path<String>) -> Result<Json<Entry>, Problem> {
    let (dc, domain) = node.domains.find_domain(&name)?;
    if elsewhere(&node, &dc, &domain).is_none() {
        node.domains.must_run(&dc, &domain)?;
    }
    Ok(Json(entry_of(&node, dc, domain)))
}

/// The other node that has a domain.
fn elsewhere(node: &Node, dc: &str, domain: &str) -> Option<String> {
    let following = node.following()?;
    following.placed(dc, domain).filter(|name| *name != following.peers.me())
}

/// Returns the part of a node that is only there where there are several nodes.
fn in_cluster<'n>(node: &'n Node, what: &str) -> Result<&'n Arc<Following>, Problem> {
    node.following().ok_or_else(|| {
        Problem::new(Code::NoCluster, format!("{what}: this node is in no cluster"))
            .help("`tombolo node init` makes one of it, `tombolo node join` takes it into another")
    })
}

/// Runs a command in a domain, whichever node has it.
async fn exec(State(node): Shared, Path(name): Path<String>, request: Request) -> Result<Response, Problem> {
    let asked = remote::asked(request, PROTOCOL).await?;
    let request: ExecRequest = parsed(&asked.body)?;
    let (dc, domain) = node.domains.find_domain(&name)?;
    match (node.following(), elsewhere(&node, &dc, &domain)) {
        (Some(following), Some(at)) => whole::exec_there(following, &at, (dc, domain), request, asked).await,
        _ => whole::exec_in(&node, &dc, &domain, request, asked).await,
    }
}

/// The files of a domain by 9P, whichever node has it.
async fn ninep(State(node): Shared, Path(name): Path<String>, request: Request) -> Result<Response, Problem> {
    let asked = remote::asked(request, NINEP_PROTOCOL).await?;
    let (dc, domain) = node.domains.find_domain(&name)?;
    match (node.following(), elsewhere(&node, &dc, &domain)) {
        (Some(following), Some(at)) => whole::ninep_there(following, &at, (dc, domain), asked).await,
        _ => whole::ninep_in(&node, &dc, &domain, asked).await,
    }
}

/// Does something with one domain, whichever node has it.
async fn act(State(node): Shared, Path(name): Path<String>, body: Bytes) -> Result<Response, Problem> {
    let act: Act = parsed(&body)?;
    let (dc, domain) = node.domains.find_domain(&name)?;
    if let (Some(following), Some(at)) = (node.following().cloned(), elsewhere(&node, &dc, &domain)) {
        return Ok(streamed(move |teller| whole::act_there(following, at, (dc, domain), act, teller)));
    }
    Ok(streamed(move |teller| lifecycle::act(Arc::clone(&node.domains), (dc, domain), act, teller)))
}

/// The log of a domain, whichever node has it. Root's command line reads one of this node itself.
async fn logs(
    State(node): Shared,
    Path(name): Path<String>,
    Query(lines): Query<whole::Lines>,
) -> Result<Response, Problem> {
    let key = node.domains.find_domain(&name)?;
    match (node.following(), elsewhere(&node, &key.0, &key.1)) {
        (Some(following), Some(at)) => whole::logs_there(following, &at, key, lines).await,
        _ => whole::logs_in(node, key, lines).await,
    }
}

/// Moves a domain to another node of the cluster. It goes on even if whoever asked goes away.
async fn relocate(
    State(node): Shared,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<MoveReport>, Problem> {
    let request: DomainMoveRequest = parsed(&body)?;
    let following = Arc::clone(in_cluster(&node, "can't move a domain to another node")?);
    let key = node.domains.find_domain(&name)?;
    let moved = tokio::spawn(placement::relocate(Arc::clone(&node.domains), following, key, request));
    moved.await.map_err(|error| Problem::new(Code::Failed, error.to_string()))?.map(Json)
}

async fn drain(State(node): Shared, Path(name): Path<String>) -> Result<Json<Said>, Problem> {
    placement::drain(in_cluster(&node, "can't drain a node")?, &name).await?;
    let said =
        format!("node {name} is drained: what may move moves away, `tombolo ps` shows how far that is");
    Ok(Json(Said { said }))
}

async fn undrain(State(node): Shared, Path(name): Path<String>) -> Result<Json<Said>, Problem> {
    placement::undrain(in_cluster(&node, "can't take a drain back")?, &name).await?;
    Ok(Json(Said { said: format!("node {name} takes domains again; what moved away stays where it is") }))
}

/// Where a domain's things are, whether it runs or not.
async fn place(State(node): Shared, Path(name): Path<String>) -> Result<Json<Entry>, Problem> {
    let (dc, domain) = node.domains.find_domain(&name)?;
    Ok(Json(entry_of(&node, dc, domain)))
}

fn entry_of(node: &Node, dc: String, domain: String) -> Entry {
    let topology = node.domains.topology(&dc);
    let found = topology.as_ref().and_then(|topology| topology.domain(&domain));
    let program = found.map_or_else(String::new, |found| spec::program(&node.layout, found));
    let at = elsewhere(node, &dc, &domain);
    Entry { dc, domain, program, layout: node.layout.clone(), node: at }
}

async fn services(State(node): Shared) -> Response {
    Json(tree::service_rows(&node)).into_response()
}

async fn service(State(node): Shared, Path(name): Path<String>) -> Result<Response, Problem> {
    let (dc, service) = node.domains.find_service(&name)?;
    let tree = tree::whole(&node).await;
    let found = tree.pointer(&format!("/dc/{dc}/services/{service}")).cloned();
    let found =
        found.ok_or_else(|| Problem::new(Code::UnknownService, format!("service {name} has just gone")))?;
    Ok(Json(found).into_response())
}

async fn move_service(
    State(node): Shared,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    let ServiceMoveRequest { to } = parsed(&body)?;
    let (dc, service) = node.domains.find_service(&name)?;
    let moved =
        node.broker.move_service(&dc, &service, &to).await.map_err(|why| Problem::new(Code::Refused, why))?;
    let took_us = u64::try_from(moved.took.as_micros()).unwrap_or(u64::MAX);
    Ok(Json(ServiceMoved { dc, service, from: moved.from, to, took_us }).into_response())
}

async fn endpoints(State(node): Shared) -> Response {
    Json(tree::endpoint_rows(&node)).into_response()
}

async fn endpoint(State(node): Shared, Path(name): Path<String>) -> Result<Response, Problem> {
    let (dc, which) = node.domains.find_endpoint(&name)?;
    let found = node.broker.endpoint(&dc, &which);
    let found =
        found.ok_or_else(|| Problem::new(Code::UnknownEndpoint, format!("endpoint {name} has just gone")))?;
    Ok(Json(found).into_response())
}

async fn migrate_endpoint(
    State(node): Shared,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    let wanted: Migration = parsed(&body)?;
    let (dc, which) = node.domains.find_endpoint(&name)?;
    let before = node
        .broker
        .migrate(&dc, &which, wanted.to.as_deref())
        .map_err(|why| Problem::new(Code::Refused, why))?;
    Ok(Json(Migrating { dc, endpoint: which, before: before.to_string() }).into_response())
}

#[derive(Deserialize)]
struct Where {
    #[serde(default)]
    path: String,
}

async fn state(State(node): Shared, Query(at): Query<Where>) -> Result<Response, Problem> {
    if let Some(following) = node.following()
        && let Some((dc, domain)) = domain_at(&node, &at.path)
        && let Some(other) = elsewhere(&node, &dc, &domain)
    {
        return Ok(Json(whole::state_there(following, &other, (dc, domain)).await?).into_response());
    }
    let whole = tree::whole(&node).await;
    Ok(Json(tree::part(&node, &whole, &at.path)?).into_response())
}

/// The domain that a path of the state tree is about: its name, or `dc/DC/domains/NAME`.
fn domain_at(node: &Node, path: &str) -> Option<(String, String)> {
    let path = path.trim_matches('/');
    match path.split('/').collect::<Vec<_>>().as_slice() {
        ["dc", dc, "domains", name] => Some(((*dc).to_owned(), (*name).to_owned())),
        _ => node.domains.find_domain(path).ok(),
    }
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

/// Runs `work` as a task of its own, so that it is finished (or rolled back) even if the client
/// goes away, and streams what it tells as JSON lines.
fn streamed<F, W>(work: F) -> Response
where
    F: FnOnce(Teller) -> W,
    W: Future<Output = ()> + Send + 'static,
{
    let (teller, lines) = mpsc::channel(MAX_WAITING_LINES);
    tokio::spawn(work(Teller::new(teller)));
    json_lines(lines)
}

fn json_lines<T: Serialize + Send + 'static>(lines: mpsc::Receiver<T>) -> Response {
    let body = Body::new(Lines(lines));
    ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

/// A stream of JSON objects, one a line, as the body of an answer.
struct Lines<T>(mpsc::Receiver<T>);

impl<T: Serialize> hyper::body::Body for Lines<T> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|line| {
            let line = line?;
            // The types of lines have nothing that JSON can't say; an empty line would be the
            // visible symptom.
            let mut line = serde_json::to_vec(&line).unwrap_or_default();
            line.push(b'\n');
            Some(Ok(hyper::body::Frame::data(line.into())))
        })
    }
}

#[cfg(test)]
mod tests;
