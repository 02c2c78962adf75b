//! `tombolo move`: whether a domain can go to a node, the order to go there, and how that went.

use super::books::{self, Books, Moving};
use super::change::{failed, must_hold};
use super::relocation;
use super::{Following, Key};
use crate::admin::{Code, DomainMoveRequest, MoveOutcome, MoveReport, Problem};
use crate::domains::supervisor::State;
use crate::domains::{Domains, prepare};
use placement::{Lack, Step};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout_at;
use topology::{Domain, Settings, Topology};

/// The time that a step of a move may take beyond the times that its file gives the domain to end,
/// and to be ready.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the other node looks before it says that it is not done: less than a call between
/// daemons may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// How often it is asked again at most, each of which takes as long: a large image on a slow disk
/// is unpacked within a quarter of an hour.
const ASKED_AGAIN_MAX: usize = 300;

/// The question to the other node before anything ends: whether the domain can come, and, with
/// `prepare`, to unpack its image.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MayCome {
    pub(crate) prepare: bool,
}

/// Its answer: why not, reason by reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Obstacles {
    pub(crate) refused: Vec<String>,
    /// It is not known yet, because an image is still being unpacked: ask again.
    #[serde(default)]
    pub(crate) pending: bool,
}

/// The obstacles that are being looked for on behalf of other nodes, by domain.
pub(super) type Preparing = BTreeMap<Key, watch::Receiver<Option<Looked>>>;

/// The obstacles that were found, and when.
#[derive(Debug, Clone)]
pub(super) struct Looked {
    at: Instant,
    refused: Vec<String>,
}

impl Looked {
    pub(super) fn now(refused: Vec<String>) -> Self {
        Self { at: Instant::now(), refused }
    }

    /// Whether nobody has come back for it: what it says may have changed since.
    fn is_old(&self) -> bool {
        self.at.elapsed() > 2 * ANSWER_WITHIN
    }
}

/// Finds out for another node whether a domain can come here. What takes long goes on, and the same
/// question gets its answer later.
pub(crate) async fn may_come(
    node: &Arc<Domains>,
    following: &Following,
    key: Key,
    MayCome { prepare }: MayCome,
) -> Obstacles {
    if !prepare {
        return Obstacles { refused: prepare::obstacles(node, &key.0, &key.1, false).await, pending: false };
    }
    let mut found = {
        let mut inner = following.lock();
        inner.preparing.retain(|_, found| !found.borrow().as_ref().is_some_and(Looked::is_old));
        let begin = || begin(Arc::clone(node), key.clone());
        inner.preparing.entry(key.clone()).or_insert_with(begin).clone()
    };
    let answer = match tokio::time::timeout(ANSWER_WITHIN, found.wait_for(Option::is_some)).await {
        Ok(Ok(found)) => {
            let refused = found.as_ref().map(|looked| looked.refused.clone());
            Obstacles { refused: refused.unwrap_or_default(), pending: false }
        }
        Ok(Err(_)) => Obstacles { refused: vec!["looking at it broke off".to_owned()], pending: false },
        Err(_) => return Obstacles { refused: Vec::new(), pending: true },
    };
    following.lock().preparing.remove(&key);
    answer
}

fn begin(node: Arc<Domains>, key: Key) -> watch::Receiver<Option<Looked>> {
    let (found, receiver) = watch::channel(None);
    tokio::spawn(async move {
        let refused = prepare::obstacles(&node, &key.0, &key.1, true).await;
        found.send_replace(Some(Looked::now(refused)));
    });
    receiver
}

/// Moves a domain to another node, or says why it stays.
///
/// # Errors
/// There is no such node, the domain runs nowhere, it is being moved already, the registry can't be
/// read or written, or it is not known what became of it.
pub(crate) async fn relocate(
    node: Arc<Domains>,
    following: Arc<Following>,
    key: Key,
    request: DomainMoveRequest,
) -> Result<MoveReport, Problem> {
    must_hold(&following)?;
    let books = following.refresh().await.map_err(|error| failed(&error))?;
    let to = request.to;
    let nodes = following.peers.nodes();
    if !nodes.iter().any(|node| node.name == to) {
        let names: Vec<String> = nodes.into_iter().map(|node| node.name).collect();
        return Err(Problem::new(Code::UnknownNode, format!("there is no node {to:?} in the cluster"))
            .help(crate::base::meant(&to, &names, "nodes")));
    }
    let name = format!("{}/{}", key.0, key.1);
    let desired = books.desired.get(&key.0).map(|at| Arc::clone(&at.value));
    let domain = desired.as_ref().and_then(|desired| desired.topology.domain(&key.1));
    let (Some(desired), Some(domain), Some(claim)) = (&desired, domain, books.claims.get(&key)) else {
        return Err(Problem::new(Code::NotRunning, format!("no node runs {name} now, so it can't be moved"))
            .help("`tombolo ps` shows why"));
    };
    let from = claim.value.node.clone();
    let mut report = MoveReport::new(&key.0, &key.1, &from, &to);
    if from == to {
        return Ok(report);
    }
    let before = books.moves.get(&key);
    if let Some(under_way) = before.filter(|at| !at.value.is_over()) {
        let Moving { from, to, .. } = &under_way.value;
        return Err(Problem::new(Code::Taken, format!("{name} is being moved from {from} to {to} already"))
            .help("`tombolo ps` shows how far it is"));
    }
    report.refused = obstacles(&following, &books, &desired.topology, domain, (&from, &to));
    report.notes = notes(domain, &from);
    if report.refused.is_empty() {
        report.refused = ask(&node, &following, &key, &to, !request.dry_run).await?;
    }
    if !report.refused.is_empty() {
        report.outcome = MoveOutcome::Refused;
        return Ok(report);
    }
    if request.dry_run {
        report.outcome = MoveOutcome::Possible;
        return Ok(report);
    }
    let begun = Instant::now();
    let order = Moving::asked(&from, &to);
    let asked = relocation::put(&following, &key, order, books::expected(before)).await;
    let Some(asked) = asked.map_err(|error| failed(&error))? else {
        return Err(Problem::new(Code::Taken, format!("somebody else moves {name} at the same time")));
    };
    let last = await_end(&following, &key, domain, asked.revision).await?;
    report.pause_ms = Some(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
    report.ended_ms = last.ended_ms;
    report.began_ms = last.began_ms;
    report.why = last.why;
    report.outcome = match Step::parse(&last.step) {
        Some(Step::Done) => MoveOutcome::Moved,
        Some(Step::Returned) => MoveOutcome::Returned,
        _ => MoveOutcome::Failed,
    };
    Ok(report)
}

/// Why a domain can't go to a node, as far as the cluster's books say.
fn obstacles(
    following: &Following,
    books: &Books,
    topology: &Topology,
    domain: &Domain,
    (from, to): (&str, &str),
) -> Vec<String> {
    let mut found = Vec::new();
    if domain.machine.is_some() {
        found.push(
            "it is a guest, whose memory does not move: name the node in its file, and it starts anew there"
                .to_owned(),
        );
    }
    for volume in domain.volumes.iter().filter(|volume| !volume.is_replicated()) {
        found.push(format!("its volume {} has one replica, which is on {from}", volume.name));
    }
    for service in topology.served_by(domain.name.as_str()) {
        if let Settings::Files(files) = &service.settings
            && files.store.is_none()
        {
            found.push(format!("the files of its service {} are on the disk of {from}", service.name));
        }
    }
    let key = (topology.name.as_str().to_owned(), domain.name.as_str().to_owned());
    if books.seen.get(&key).is_some_and(|seen| seen.value.state == State::Stopped.as_str()) {
        found.push("somebody has stopped it, and a move would start it: `tombolo start` it first".to_owned());
    }
    let cluster = following.cluster(books, Some(&key));
    let want = books.want(&key.0, domain);
    let lacks = cluster.node(to).map(|node| cluster.lacks(node, &want)).unwrap_or_default();
    found.extend(lacks.iter().map(|lack| match lack {
        Lack::Name { wanted } => format!("its file names the node {wanted}"),
        other => format!("{to} {other}"),
    }));
    found
}

/// Returns the notes for a person who moves a domain.
fn notes(domain: &Domain, from: &str) -> Vec<String> {
    let writable = domain.mounts.iter().filter(|mount| !mount.read_only);
    let mut notes: Vec<String> = writable
        .map(|mount| {
            format!("what it wrote to {} is in {} on {from}", mount.target.display(), mount.source.display())
        })
        .collect();
    if domain.writable {
        notes.push("what it wrote to its root is lost, as at every restart".to_owned());
    }
    notes
}

/// Asks the node to which a domain is to go what it lacks.
///
/// # Errors
/// It does not answer, or is of a release that does not know the question.
pub(super) async fn ask(
    node: &Arc<Domains>,
    following: &Following,
    (dc, domain): &Key,
    to: &str,
    prepare: bool,
) -> Result<Vec<String>, Problem> {
    if to == following.peers.me() {
        return Ok(prepare::obstacles(node, dc, domain, prepare).await);
    }
    let (path, body) = (format!("/v1/here/move/{dc}/{domain}"), json!(MayCome { prepare }));
    for _again in 0..ASKED_AGAIN_MAX {
        let answer = following.peers.call(to, path.clone(), Some(body.clone())).await;
        let answer =
            answer.and_then(|answer| serde_json::from_value(answer).map_err(|error| error.to_string()));
        let Obstacles { refused, pending } = answer.map_err(|why| {
            Problem::new(
                Code::Failed,
                format!("node {to} does not say whether {dc}/{domain} can run there: {why}"),
            )
            .help("`tombolo node ls` shows whether it is there")
        })?;
        if !pending {
            return Ok(refused.into_iter().map(|why| format!("{to}: {why}")).collect());
        }
    }
    Ok(vec![format!("{to}: its image takes too long to unpack")])
}

/// Waits until a move that was asked for at that revision is over. One that takes too long is given
/// up, or taken back.
async fn await_end(
    following: &Arc<Following>,
    key: &Key,
    domain: &Domain,
    asked: u64,
) -> Result<Moving, Problem> {
    let (end, ready) = (domain.stop.timeout_ms, domain.ready_timeout_ms);
    let mut patience = STEP_TIMEOUT + Duration::from_millis(end.saturating_add(ready));
    let mut looked = following.looked.subscribe();
    for _turn in 0..2 {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            looked.mark_unchanged();
            let books = following.books();
            let desired = books.desired.get(&key.0).and_then(|at| at.value.topology.domain(&key.1));
            if desired.is_none() {
                let gone = format!("{}/{} is not wanted any more", key.0, key.1);
                return Err(Problem::new(Code::NotRunning, gone));
            }
            // What was read before the order tells of the move before.
            let at = books.moves.get(key).filter(|at| at.revision >= asked && at.value.is_over());
            if let Some(at) = at {
                return Ok(at.value.clone());
            }
            if !matches!(timeout_at(deadline, looked.changed()).await, Ok(Ok(()))) {
                break;
            }
        }
        give_up(following, key).await?;
        // What goes back ends there, and starts where it was.
        patience = patience.saturating_mul(2);
    }
    Err(Problem::new(Code::Failed, format!("it is not known what became of {}/{}", key.0, key.1))
        .help("`tombolo ps` shows where it is"))
}

/// A move that has taken too long: before its domain ended it is forgotten, and after that it goes
/// back.
async fn give_up(following: &Arc<Following>, key: &Key) -> Result<(), Problem> {
    let books = following.refresh().await.map_err(|error| failed(&error))?;
    let Some(at) = books.moves.get(key) else { return Ok(()) };
    let next = match Step::parse(&at.value.step) {
        Some(Step::Asked) => Step::Failed,
        Some(Step::Given | Step::Taken) => Step::Back,
        _ => return Ok(()),
    };
    let why = Some("it took too long".to_owned());
    relocation::set(following, key, at, next, why).await.map_err(|error| failed(&error)).map(drop)
}
