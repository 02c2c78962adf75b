//! The whole distributed container from any node: what each of them says of its part, put together.

use super::node::Node;
use super::remote::{self, Asked, Running, Tree};
use super::tree;
use crate::base::LOOKS;
use crate::domains::supervisor::State as DomainState;
use crate::domains::{Teller, lifecycle};
use crate::placement::{Following, Key, MayCome, Obstacles, may_come};
use admin::{Act, Code, DomainRow, ExecRequest, Problem, Progress, Said};
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use placement::Standing;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use wire::remote::{NINEP_PROTOCOL, PROTOCOL};

/// How long another node may take to say its part; a listing goes on without it.
const PART_TIMEOUT: Duration = Duration::from_secs(2);
/// The requests that other nodes may make of this one. Each has come with the certificate of a node
/// of this cluster.
pub(crate) fn routes() -> Router<Arc<Node>> {
    Router::new()
        .route("/v1/here/domains", get(domains_here))
        .route("/v1/here/state", get(state_here))
        .route("/v1/here/logs/{dc}/{domain}", get(logs_here))
        .route("/v1/here/exec", post(exec_here))
        .route("/v1/here/9p", post(ninep_here))
        .route("/v1/here/act/{dc}/{domain}", post(act_here))
        .route("/v1/here/move/{dc}/{domain}", post(may_come_here))
}

async fn domains_here(State(node): State<Arc<Node>>) -> Json<Vec<DomainRow>> {
    Json(rows_here(&node).await)
}

/// The rows of the domains whose claim this node holds.
async fn rows_here(node: &Arc<Node>) -> Vec<DomainRow> {
    let mut rows = tree::domain_rows(node).await;
    let Some(following) = node.following() else { return rows };
    let me = following.peers.me();
    rows.retain(|row| {
        following.placed(&row.dc, &row.domain).is_some_and(|node| node == me)
            || node.domains.supervised(&row.dc, &row.domain).is_some()
    });
    for row in &mut rows {
        row.node = Some(me.clone());
        if following.refused_everywhere(&(row.dc.clone(), row.domain.clone())).is_some() && row.pid.is_none()
        {
            row.state = DomainState::Failed.as_str().to_owned();
        }
        row.why = row.why.take().or_else(|| following.stuck(&(row.dc.clone(), row.domain.clone())));
    }
    rows
}

/// `ps`: the rows of all nodes, and of domains that no node has now.
pub(crate) async fn whole_rows(node: &Arc<Node>, following: &Arc<Following>) -> Vec<DomainRow> {
    let mut found = rows_here(node).await;
    let me = following.peers.me();
    let others = following
        .peers
        .nodes()
        .into_iter()
        .filter(|other| other.name != me && other.standing != Standing::Lost);
    let asked: Vec<_> = others
        .map(|other| {
            let peers = Arc::clone(&following.peers);
            tokio::spawn(async move {
                let rows = peers.call(&other.name, "/v1/here/domains".to_owned(), None);
                let rows =
                    tokio::time::timeout(PART_TIMEOUT, rows).await.unwrap_or_else(|_| Err("too slow".into()));
                rows.and_then(|rows| {
                    serde_json::from_value::<Vec<DomainRow>>(rows).map_err(|e| e.to_string())
                })
                .inspect_err(|error| {
                    tracing::debug!(node = other.name, error, "a node does not say its part")
                })
                .unwrap_or_default()
            })
        })
        .collect();
    for part in asked {
        found.extend(part.await.unwrap_or_default());
    }
    found.extend(rows_of_nobody(node, following, &found));
    found.sort_by(|a, b| (&a.dc, &a.domain).cmp(&(&b.dc, &b.domain)));
    found.dedup_by(|a, b| (&a.dc, &a.domain, &a.node) == (&b.dc, &b.domain, &b.node));
    found
}

/// Domains that are desired and that no node has spoken of.
fn rows_of_nobody(node: &Node, following: &Following, found: &[DomainRow]) -> Vec<DomainRow> {
    let nodes = following.peers.nodes();
    let mut rows = Vec::new();
    for (dc, topology) in node.domains.topologies() {
        for domain in &topology.domains {
            let name = domain.name.as_str();
            if found.iter().any(|row| row.dc == dc && row.domain == name) {
                continue;
            }
            let key: Key = (dc.clone(), name.to_owned());
            let (at, seen) = following.whereabouts(&key);
            let lost = at
                .as_ref()
                .is_some_and(|at| !nodes.iter().any(|n| n.name == *at && n.standing != Standing::Lost));
            let state = match (&at, &seen) {
                (None, _) => "not placed".to_owned(),
                (Some(_), _) if lost => "lost".to_owned(),
                (Some(_), Some(seen)) => seen.state.clone(),
                (Some(_), None) => "starting".to_owned(),
            };
            let why = following.stuck(&key).or_else(|| seen.and_then(|seen| seen.why));
            rows.push(DomainRow { node: at, why, ..tree::row_of_none(&dc, domain, &state) });
        }
    }
    rows
}

#[derive(Deserialize)]
struct Where {
    #[serde(default)]
    path: String,
}

async fn state_here(State(node): State<Arc<Node>>, Query(at): Query<Where>) -> Result<Json<Value>, Problem> {
    let whole = tree::whole(&node).await;
    Ok(Json(tree::part(&node, &whole, &at.path)?))
}

/// Lines of a log: `?tail=N&follow=true&since_ms=N&until_ms=N`.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Lines {
    tail: Option<u64>,
    #[serde(default)]
    follow: bool,
    /// Only records from this moment on, in milliseconds since 1970.
    since_ms: Option<u64>,
    /// Only records before this moment.
    until_ms: Option<u64>,
}

async fn logs_here(
    State(node): State<Arc<Node>>,
    Path(key): Path<(String, String)>,
    Query(lines): Query<Lines>,
) -> Result<Response, Problem> {
    logs_in(node, key, lines).await
}

/// The log of a domain of this node.
pub(crate) async fn logs_in(
    node: Arc<Node>,
    (dc, name): (String, String),
    lines: Lines,
) -> Result<Response, Problem> {
    let moment = |ms: u64| std::time::UNIX_EPOCH.checked_add(std::time::Duration::from_millis(ms));
    let (since, until) = (lines.since_ms.and_then(moment), lines.until_ms.and_then(moment));
    let query = domain::LogQuery { tail: lines.tail, follow: lines.follow, since, until };
    LOOKS
        .run(move || remote::lines(&node.remote.1, &node.layout, (&dc, &name), &query))
        .await
        .unwrap_or_else(|why| Err(Problem::new(Code::Failed, why)))
}

/// `POST /v1/here/exec`: run a command in a domain of this node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecOrder {
    dc: String,
    domain: String,
    request: ExecRequest,
}

async fn exec_here(State(node): State<Arc<Node>>, request: Request) -> Result<Response, Problem> {
    let asked = remote::asked(request, PROTOCOL).await?;
    let order: ExecOrder = serde_json::from_slice(&asked.body)
        .map_err(|error| Problem::new(Code::BadRequest, format!("the body is not understood: {error}")))?;
    exec_in(&node, &order.dc, &order.domain, order.request, asked).await
}

/// Runs a command in a domain of this node, for whoever asked.
///
/// # Errors
/// The domain does not run, or nothing can be run in it.
pub(crate) async fn exec_in(
    node: &Arc<Node>,
    dc: &str,
    domain: &str,
    request: ExecRequest,
    asked: Asked,
) -> Result<Response, Problem> {
    node.domains.must_run(dc, domain)?;
    let running = Running::start(&node.remote.0, &node.layout, (dc, domain), request)?;
    let answer = asked.switched();
    tokio::spawn(async move { remote::attend(asked.stream().await, running).await });
    Ok(answer)
}

/// Has another node run a command in a domain of its own, and passes on what it and whoever asked
/// say to each other.
///
/// # Errors
/// The error of that node, or its silence.
pub(crate) async fn exec_there(
    following: &Following,
    node: &str,
    (dc, domain): (String, String),
    request: ExecRequest,
    asked: Asked,
) -> Result<Response, Problem> {
    let order = json!(ExecOrder { dc, domain, request });
    let far = following.peers.open(node, "/v1/here/exec".to_owned(), PROTOCOL, order).await?;
    let answer = asked.switched();
    tokio::spawn(remote::bridge(asked, far));
    Ok(answer)
}

/// `POST /v1/here/9p`: the files of a domain of this node by 9P.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NinepOrder {
    dc: String,
    domain: String,
}

async fn ninep_here(State(node): State<Arc<Node>>, request: Request) -> Result<Response, Problem> {
    let asked = remote::asked(request, NINEP_PROTOCOL).await?;
    let order: NinepOrder = serde_json::from_slice(&asked.body)
        .map_err(|error| Problem::new(Code::BadRequest, format!("the body is not understood: {error}")))?;
    ninep_in(&node, &order.dc, &order.domain, asked).await
}

/// Has whoever asked speak 9P with a domain of this node.
///
/// # Errors
/// The domain does not run, or shows nothing by 9P.
pub(crate) async fn ninep_in(
    node: &Arc<Node>,
    dc: &str,
    domain: &str,
    asked: Asked,
) -> Result<Response, Problem> {
    node.domains.must_run(dc, domain)?;
    let tree = Tree::connect(&node.remote.2, &node.layout, (dc, domain)).await?;
    let answer = asked.switched();
    tokio::spawn(async move { tree.attend(asked.stream().await).await });
    Ok(answer)
}

/// The same with a domain of another node.
///
/// # Errors
/// The error of that node, or its silence.
pub(crate) async fn ninep_there(
    following: &Following,
    node: &str,
    (dc, domain): (String, String),
    asked: Asked,
) -> Result<Response, Problem> {
    let order = json!(NinepOrder { dc, domain });
    let far = following.peers.open(node, "/v1/here/9p".to_owned(), NINEP_PROTOCOL, order).await?;
    let answer = asked.switched();
    tokio::spawn(remote::bridge(asked, far));
    Ok(answer)
}

/// Another node wants to know whether a domain can come here.
async fn may_come_here(
    State(node): State<Arc<Node>>,
    Path((dc, name)): Path<(String, String)>,
    Json(asked): Json<MayCome>,
) -> Result<Json<Obstacles>, Problem> {
    let following = node
        .following()
        .ok_or_else(|| Problem::new(Code::NoCluster, "this node does not follow a cluster now"))?;
    Ok(Json(may_come(&node.domains, following, (dc, name), asked).await))
}

async fn act_here(
    State(node): State<Arc<Node>>,
    Path((dc, name)): Path<(String, String)>,
    Json(act): Json<Act>,
) -> Result<Json<Said>, Problem> {
    let said = lifecycle::try_act(&node.domains, (&dc, &name), act, &Teller::nobody()).await?;
    Ok(Json(Said { said }))
}

/// Has another node do something with a domain of its own, and says how it went.
pub(crate) async fn act_there(
    following: Arc<Following>,
    at: String,
    (dc, domain): (String, String),
    act: Act,
    teller: Teller,
) {
    let asked = async {
        let said = ask(&following, &at, format!("/v1/here/act/{dc}/{domain}"), Some(json!(act))).await?;
        serde_json::from_value::<Said>(said).map_err(|error| {
            Problem::new(Code::Failed, format!("node {at} answered something else: {error}"))
        })
    };
    let last = match asked.await {
        Ok(Said { said }) => Progress::Done { summary: said, changed: true },
        Err(error) => Progress::Failed { error, rolled_back: None },
    };
    teller.tell(last).await;
}

/// The log of a domain of another node, as that sends it.
///
/// # Errors
/// As [`exec_there`].
pub(crate) async fn logs_there(
    following: &Following,
    node: &str,
    (dc, domain): (String, String),
    lines: Lines,
) -> Result<Response, Problem> {
    let asked = [("tail", lines.tail), ("since_ms", lines.since_ms), ("until_ms", lines.until_ms)];
    let asked = asked.iter().filter_map(|(key, value)| value.map(|value| format!("&{key}={value}")));
    let path = format!("/v1/here/logs/{dc}/{domain}?follow={}{}", lines.follow, asked.collect::<String>());
    let answer = following.peers.read(node, path).await?;
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::new(answer)).into_response())
}

/// The part of another node's state tree that is about one of its domains.
///
/// # Errors
/// As [`exec_there`].
pub(crate) async fn state_there(
    following: &Following,
    node: &str,
    (dc, domain): (String, String),
) -> Result<Value, Problem> {
    ask(following, node, format!("/v1/here/state?path=dc/{dc}/domains/{domain}"), None).await
}

async fn ask(following: &Following, node: &str, path: String, body: Option<Value>) -> Result<Value, Problem> {
    let answer = following.peers.call(node, path, body).await;
    answer.map_err(|why| {
        Problem::new(Code::Failed, format!("node {node} did not answer: {why}"))
            .help("`tombolo node ls` shows whether it is there")
    })
}
