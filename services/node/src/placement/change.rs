//! `up` and `down` in a cluster: what is desired is written down, and every node follows; whoever
//! asked is told how it goes.

use super::books::{self, Books, BooksError, Seen};
use super::{Following, Key};
use crate::base::REGISTRY;
use crate::domains::Teller;
use crate::domains::change::{admit, begin_down, begin_up, dc_of, dry_run, remembered, targets, untouched};
use crate::domains::{Desired, Domains, Ending};
use admin::{Code, DownRequest, Problem, Progress, UpRequest};
use placement::Wish;
use registry::{Expected, RegistryError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use topology::{Step, Topology};

/// How long a step may take beyond what its domain has to become ready: to be noticed, claimed, and
/// ended where it was.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the books are looked at, should no change be told.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Brings a topology up in the cluster, and says how it goes.
pub(crate) async fn up(node: Arc<Domains>, following: Arc<Following>, request: UpRequest, teller: Teller) {
    let last = match try_up(&node, &following, request, &teller).await {
        Ok((summary, changed)) => Progress::Done { summary, changed },
        Err(failed) => *failed,
    };
    teller.tell(last).await;
}

async fn try_up(
    node: &Arc<Domains>,
    following: &Arc<Following>,
    request: UpRequest,
    teller: &Teller,
) -> Result<(String, bool), Box<Progress>> {
    let dc = dc_of(&request.text);
    let change = begin_up(node, &dc, &request, teller).await.map_err(untouched)?;
    let ended = |ending: Ending| untouched(ending.problem(&dc));
    let topology = change.unless_ended(admit(node, &request)).await.map_err(ended)?.map_err(untouched)?;
    must_hold(following).map_err(untouched)?;
    // Two that are told here at the same time do not take the same room.
    let deciding = change.unless_ended(node.changes.giving_back()).await.map_err(ended)?;
    let books = following.refresh().await.map_err(|e| untouched(failed(&e)))?;
    must_fit(following, &books, &topology).map_err(untouched)?;
    let before = books.desired.get(&dc).cloned();
    let plan = topology::plan(before.as_ref().map(|at| &at.value.topology), &topology);
    if request.dry_run {
        return dry_run(&dc, &plan, teller).await;
    }
    let desired = Desired::new(request.text, request.file, request.base, topology.clone());
    let unchanged = plan.is_empty() && all_ready(&books, &topology);
    if unchanged && before.as_ref().is_some_and(|before| before.value.text == desired.text) {
        return Ok((format!("nothing to do: {dc} is as the file says"), false));
    }
    teller.tell(Progress::Plan { steps: plan.steps.iter().map(ToString::to_string).collect() }).await;
    let begun = Instant::now();
    let expected = books::expected(before.as_ref());
    let revision = write(following, &dc, &desired, expected).await.map_err(untouched)?;
    drop(deciding);
    let steps = change.unless_ended(await_steps(following, &topology, &plan, revision, teller)).await;
    if let Err(problem) = steps.unwrap_or_else(|ending| Err(ending.problem(&dc))) {
        if change.ending() == Some(Ending::Superseded) {
            return Err(untouched(problem));
        }
        teller.tell(Progress::RollingBack { reason: problem.message.clone() }).await;
        let restored = match &before {
            Some(before) => {
                write(following, &dc, &before.value, Expected::Revision(revision)).await.map(drop)
            }
            None => forget(following, &dc, Expected::Revision(revision)).await,
        };
        let rolled_back = match restored {
            Ok(()) => await_gone(following, &dc, before.as_ref().map(|at| &at.value.topology)).await,
            Err(why) => {
                teller.tell(Progress::Note { text: format!("rolling back: {}", why.message) }).await;
                false
            }
        };
        return Err(Box::new(Progress::Failed { error: problem, rolled_back: Some(rolled_back) }));
    }
    remembered(following.peers.registry(), &REGISTRY, &dc, &desired, &plan).await;
    if unchanged || plan.is_empty() {
        return Ok((format!("nothing to do: {dc} is as the file says"), false));
    }
    let (count, took) = (plan.steps.len(), begun.elapsed().as_secs_f64());
    Ok((format!("{dc} is up: {count} step{} in {took:.1} s", if count == 1 { "" } else { "s" }), true))
}

/// A node that is cut off decides nothing.
pub(super) fn must_hold(following: &Following) -> Result<(), Problem> {
    if following.holds() {
        return Ok(());
    }
    let why = following.peers.why_cut_off().map_or_else(String::new, |why| format!(": {why}"));
    Err(Problem::new(
        Code::Failed,
        format!("this node is cut off from its cluster, and changes nothing until it is back{why}"),
    )
    .help("`tombolo node ls` shows whom it still hears; say it on another node"))
}

pub(super) fn failed(error: &BooksError) -> Problem {
    Problem::new(Code::Failed, format!("the registry of the cluster: {error}"))
}

/// Every domain has a node, or nothing is begun.
fn must_fit(following: &Following, books: &Books, topology: &Topology) -> Result<(), Problem> {
    let dc = topology.name.as_str();
    // What it has now makes room for what it is to have.
    let mut others = Books { drained: books.drained.clone(), ..Books::default() };
    others.desired =
        books.desired.iter().filter(|(other, _)| *other != dc).map(|(k, v)| (k.clone(), v.clone())).collect();
    others.placed = books
        .placed
        .iter()
        .filter(|((other, _), _)| other != dc)
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    others.promises = books.promises.clone();
    // What was refused of the file before may be otherwise with this one.
    let prefix = format!("{dc}/");
    for promises in others.promises.values_mut() {
        Arc::make_mut(promises).refused.retain(|name, _| !name.starts_with(&prefix));
    }
    let mut cluster = following.cluster(&others, None);
    let (mut refusals, mut homeless) = (Vec::new(), Vec::new());
    for domain in topology.start_order() {
        let want = books.want(dc, domain);
        let at = books.assigned(&(dc.to_owned(), domain.name.as_str().to_owned()));
        let stays = at
            .claimed
            .or(at.placed)
            .filter(|name| cluster.node(name).is_some_and(|node| cluster.lacks(node, &want).is_empty()));
        match stays {
            Some(name) => cluster.take_on(&name, &want),
            None => homeless.push(want),
        }
    }
    // Who names a node needs its room there.
    homeless.sort_by_key(|want| !matches!(want.wish, Wish::Named(_)));
    for want in homeless {
        if let Err(refusal) = cluster.place(&want) {
            refusals.push(refusal.to_string());
        }
    }
    if refusals.is_empty() {
        return Ok(());
    }
    Err(Problem::new(Code::Failed, refusals.join("\n"))
        .help("`tombolo node ls` shows what each node has; nothing was started"))
}

fn all_ready(books: &Books, topology: &Topology) -> bool {
    topology.domains.iter().all(|domain| {
        let key = (topology.name.as_str().to_owned(), domain.name.as_str().to_owned());
        books.claims.contains_key(&key) && books.seen.get(&key).is_some_and(|seen| seen.value.ready)
    })
}

async fn write(
    following: &Arc<Following>,
    dc: &str,
    desired: &Desired,
    expected: Expected,
) -> Result<u64, Problem> {
    let (registry, key, value) = (following.peers.registry(), books::desired_key(dc), books::bytes(desired));
    let written = REGISTRY.run(move || registry.put(&key, &value, expected)).await;
    following.poke();
    settled(written, dc)
}

async fn forget(following: &Arc<Following>, dc: &str, expected: Expected) -> Result<(), Problem> {
    let (registry, key) = (following.peers.registry(), books::desired_key(dc));
    let written = REGISTRY.run(move || registry.delete(&key, expected)).await;
    following.poke();
    settled(written, dc).map(drop)
}

fn settled<T>(written: Result<Result<T, RegistryError>, String>, dc: &str) -> Result<T, Problem> {
    match written {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(RegistryError::Conflict { .. })) => Err(Problem::new(
            Code::Failed,
            format!("somebody changed {dc} at the same time, perhaps on another node"),
        )
        .help("look at what it is now (`tombolo ps`), and say it again")),
        Ok(Err(error)) => Err(Problem::new(Code::Failed, error.to_string())),
        Err(why) => Err(Problem::new(Code::Failed, why)),
    }
}

/// Tells each step as it is done by whichever node has to do it.
async fn await_steps(
    following: &Arc<Following>,
    topology: &Topology,
    plan: &topology::Plan,
    revision: u64,
    teller: &Teller,
) -> Result<(), Problem> {
    let of = plan.steps.len();
    let dc = topology.name.as_str();
    for (index, step) in plan.steps.iter().enumerate() {
        let begun = Instant::now();
        let what = step.to_string();
        teller.tell(Progress::Started { step: index + 1, of, what: what.clone() }).await;
        let (name, ready_ms) = match step {
            Step::Start { domain } => (Some(domain), domain.ready_timeout_ms),
            Step::Restart { after, .. } | Step::Update { after, .. } => (Some(after), after.ready_timeout_ms),
            Step::Stop { domain } => {
                let key = (dc.to_owned(), domain.name.as_str().to_owned());
                await_books(
                    following,
                    STEP_TIMEOUT + Duration::from_millis(domain.stop.timeout_ms),
                    &what,
                    |books| Ok((!books.claims.contains_key(&key)).then(String::new)),
                )
                .await?;
                (None, 0)
            }
            _ => (None, 0),
        };
        let mut at = String::new();
        if let Some(domain) = name {
            let key = (dc.to_owned(), domain.name.as_str().to_owned());
            let patience = STEP_TIMEOUT + Duration::from_millis(ready_ms);
            let node =
                await_books(following, patience, &what, |books| is_up(books, &key, revision, &what)).await?;
            at = format!(" on {node}");
        }
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        teller.tell(Progress::Finished { step: index + 1, of, what: format!("{what}{at}"), took_ms }).await;
    }
    // What the plan left alone may have been given up, or be on its way.
    for domain in topology.start_order() {
        let key = (dc.to_owned(), domain.name.as_str().to_owned());
        let what = format!("bring {} up", domain.name);
        let patience = STEP_TIMEOUT + Duration::from_millis(domain.ready_timeout_ms);
        await_books(following, patience, &what, |books| is_up(books, &key, revision, &what)).await?;
    }
    Ok(())
}

/// Returns the node that has a domain up, or the reason why none will.
fn is_up(books: &Books, key: &Key, revision: u64, what: &str) -> Result<Option<String>, Problem> {
    let Some(Seen { node, ready, failed, why, revision: at, .. }) =
        books.seen.get(key).map(|seen| &seen.value)
    else {
        return Ok(None);
    };
    if *at < revision || books.claims.get(key).is_none_or(|claim| claim.value.node != *node) {
        return Ok(None);
    }
    if *failed {
        let why = why.as_deref().unwrap_or("it does not say why");
        return Err(Problem::new(Code::Failed, format!("could not {what} on {node}: {why}")));
    }
    Ok(ready.then(|| node.clone()))
}

/// Looks at the books until they say so.
async fn await_books(
    following: &Arc<Following>,
    patience: Duration,
    what: &str,
    mut enough: impl FnMut(&Books) -> Result<Option<String>, Problem>,
) -> Result<String, Problem> {
    let deadline = Instant::now() + patience;
    loop {
        let late = Instant::now() > deadline;
        match following.refresh().await {
            Ok(books) => {
                if let Some(found) = enough(&books)? {
                    return Ok(found);
                }
            }
            // What is desired is written down, and followed whether this daemon can look or not.
            Err(error) if error.may_pass() && !late => {
                tracing::info!(%error, what, "the books of the cluster can't be read now");
            }
            Err(error) => return Err(failed(&error)),
        }
        if late {
            let stuck: Vec<String> = following.lock().stuck.values().cloned().collect();
            let stuck = if stuck.is_empty() { String::new() } else { format!(": {}", stuck.join("; ")) };
            return Err(Problem::new(
                Code::Failed,
                format!("could not {what} within {} s{stuck}", patience.as_secs()),
            ));
        }
        // tidy(sleep): the registry tells changes to one watcher, which is not this one.
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Waits until no node has a domain that is not of `left`; says whether that came to be.
async fn await_gone(following: &Arc<Following>, dc: &str, left: Option<&Topology>) -> bool {
    let nodes = following.peers.nodes();
    let lost =
        |name: &str| nodes.iter().any(|node| node.name == name && node.standing == placement::Standing::Lost);
    let gone = await_books(following, STEP_TIMEOUT, "end what was", |books| {
        let there = books.claims.iter().any(|((of, name), claim)| {
            of == dc && !lost(&claim.value.node) && left.is_none_or(|left| left.domain(name).is_none())
        });
        Ok((!there).then(String::new))
    });
    gone.await.is_ok()
}

/// Removes distributed containers from the cluster, and says how it goes.
pub(crate) async fn down(
    node: Arc<Domains>,
    following: Arc<Following>,
    request: DownRequest,
    teller: Teller,
) {
    let last = match try_down(&node, &following, &request, &teller).await {
        Ok(names) if names.is_empty() => {
            Progress::Done { summary: "nothing to do: nothing is up".into(), changed: false }
        }
        Ok(names) => Progress::Done { summary: format!("{} is down", names.join(", ")), changed: true },
        Err(error) => Progress::Failed { error, rolled_back: None },
    };
    teller.tell(last).await;
}

async fn try_down(
    node: &Arc<Domains>,
    following: &Arc<Following>,
    request: &DownRequest,
    teller: &Teller,
) -> Result<Vec<String>, Problem> {
    must_hold(following)?;
    let names = targets(node, request)?;
    for dc in &names {
        let _turn = begin_down(node, dc, teller).await?;
        let begun = Instant::now();
        let what = format!("remove {dc} from the cluster");
        teller.tell(Progress::Started { step: 1, of: 1, what: what.clone() }).await;
        forget(following, dc, Expected::Anything).await?;
        if !await_gone(following, dc, None).await {
            return Err(Problem::new(
                Code::Failed,
                format!("{dc} is no longer wanted, but not gone everywhere yet"),
            )
            .help("`tombolo ps` shows what is left; nodes end it as soon as they can"));
        }
        forget_lost(following, dc).await?;
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        teller.tell(Progress::Finished { step: 1, of: 1, what, took_ms }).await;
    }
    Ok(names)
}

/// Removes the records of domains of nodes that are not there to do so.
async fn forget_lost(following: &Arc<Following>, dc: &str) -> Result<(), Problem> {
    let books = following.refresh().await.map_err(|e| failed(&e))?;
    let left: Vec<Key> = books
        .placed
        .keys()
        .chain(books.seen.keys())
        .chain(books.moves.keys())
        .filter(|key| key.0 == dc)
        .cloned()
        .collect();
    for key in left {
        for path in
            [books::placed_key(&key), books::seen_key(&key), books::move_key(&key), books::handover_key(&key)]
        {
            super::remove(following, path, Expected::Anything).await.map_err(|e| failed(&e))?;
        }
    }
    Ok(())
}
