//! Changing what runs: `up` and `down`. One change of a distributed container at a time; each
//! finishes, or restores what was before.

use super::Teller;
use super::inside;
use super::prepare;
use super::ready;
use super::relays;
use super::supervisor::{First, State, supervise};
use super::turns::{Turn, start_each, turns};
use super::{Change, Desired, Domains, Ending, Wish};
use crate::base::{BOOK, KEPT, Pool, REMOVALS, RegistryDebug, UNPACKING, history};
use crate::reservations::Looking;
use admin::history::Revision;
use admin::{Code, DownRequest, Problem, Progress, UpRequest};
use domain::Unpack;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};
use topology::{Domain, NodeChoice, Plan, Step, Topology};

/// Steps that are told of what another file would change.
const STEPS_TOLD: usize = 8;

/// Brings a topology up, and says how it goes.
pub(crate) async fn up(node: Arc<Domains>, request: UpRequest, teller: Teller) {
    let dc = dc_of(&request.text);
    let last = match try_up(&node, request, &teller).await {
        Ok((summary, changed)) => Progress::Done { summary, changed },
        Err(failed) => *failed,
    };
    match &last {
        Progress::Done { changed: true, .. } => node.events.happened(&dc, None, "up", None),
        // What is refused before it is touched has not happened.
        Progress::Failed { error, rolled_back: Some(_) } => {
            node.events.happened(&dc, None, "rolled-back", Some(error.message.clone()));
        }
        _ => {}
    }
    teller.tell(last).await;
}

async fn try_up(
    node: &Arc<Domains>,
    request: UpRequest,
    teller: &Teller,
) -> Result<(String, bool), Box<Progress>> {
    let dc = dc_of(&request.text);
    let change = begin_up(node, &dc, &request, teller).await.map_err(untouched)?;
    let ended = |ending: Ending| untouched(ending.problem(&dc));
    let topology = change.unless_ended(admit(node, &request)).await.map_err(ended)?.map_err(untouched)?;
    let before = node.topology(&dc);
    super::targets::admit(&node.targets, before.as_deref(), &topology).map_err(untouched)?;
    let plan = with_failed_ones(node, topology::plan(before.as_deref(), &topology), &topology);
    if request.dry_run {
        return dry_run(&dc, &plan, teller).await;
    }
    let same = change.unless_ended(refuse_another_file(node, &dc, &request, &plan));
    same.await.map_err(ended)?.map_err(untouched)?;
    let desired = Arc::new(Desired::new(request.text, request.file, request.base, topology.clone()));
    if plan.is_empty() {
        node.set_desired(&dc, Some(Arc::clone(&desired))).await.map_err(untouched)?;
        remembered(node.registry(), &KEPT, &dc, &desired, &plan).await;
        change.unless_ended(settle(node, &topology)).await.map_err(ended)?.map_err(untouched)?;
        return Ok((format!("nothing to do: {dc} is as the file says"), false));
    }
    teller.tell(Progress::Plan { steps: plan.steps.iter().map(ToString::to_string).collect() }).await;
    change.unless_ended(prepare::all(node, &dc, &plan)).await.map_err(ended)?.map_err(untouched)?;
    let promises = Promises::of(node, before.as_deref(), &topology);
    let promises = change.unless_ended(promises).await.map_err(ended)?;
    // As a whole, before anything is touched; the kernel is told step by step.
    begin(node, &dc, Some(&topology)).await.map_err(untouched)?;
    let Promises { given_back: _held, asked } = promises;
    drop(asked);
    let begun = Instant::now();
    let done = match execute(node, &change, &dc, &plan, teller).await {
        Ok(()) => {
            let written = node.set_desired(&dc, Some(Arc::clone(&desired))).await;
            written.map_err(|problem| (plan.steps.len(), problem))
        }
        Err(failed) => Err(failed),
    };
    if let Err((begun, problem)) = done {
        let restored = enter(node, &dc, before.as_deref()).await;
        if let Err(problem) = restored {
            tracing::error!(dc, %problem, "what was promised before can't be restored");
        }
        if change.ending() == Some(Ending::Superseded) {
            // All of it is removed next, as far as it came.
            node.forget_current_if_unwanted(&dc);
            return Err(untouched(problem));
        }
        return Err(roll_back(node, &dc, &plan, begun, problem, teller).await);
    }
    // The file comes first: whoever finds it finds what goes with it, or makes that anew.
    written(node, &dc).await;
    remembered(node.registry(), &KEPT, &dc, &desired, &plan).await;
    let count = plan.steps.len();
    let took = begun.elapsed().as_secs_f64();
    Ok((format!("{dc} is up: {count} step{} in {took:.1} s", if count == 1 { "" } else { "s" }), true))
}

/// Notes the file among those that were up. What is up does not depend on it.
pub(crate) async fn remembered(
    registry: Arc<dyn RegistryDebug>,
    pool: &'static Pool,
    dc: &str,
    desired: &Desired,
    plan: &Plan,
) {
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let revision = Revision {
        number: 0,
        at_ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
        file: desired.file.clone(),
        base: desired.base.clone(),
        changes: plan.steps.iter().map(ToString::to_string).collect(),
        text: desired.text.clone(),
    };
    let of = dc.to_owned();
    let noted = pool.run(move || history::note(&*registry, &of, revision)).await;
    match noted {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(dc, %error, "the file is not noted among those that were up"),
        Err(error) => tracing::warn!(dc, error, "the file is not noted among those that were up"),
    }
}

/// Says what a file would change.
pub(crate) async fn dry_run(dc: &str, plan: &Plan, teller: &Teller) -> Result<(String, bool), Box<Progress>> {
    if plan.is_empty() {
        return Ok((format!("nothing to do: {dc} is as the file says"), false));
    }
    teller.tell(Progress::Plan { steps: plan.steps.iter().map(ToString::to_string).collect() }).await;
    let count = plan.steps.len();
    Ok((format!("{dc} would be up after {count} step{}", if count == 1 { "" } else { "s" }), false))
}

/// Refuses to replace what another file says by one that happens to have the same name.
async fn refuse_another_file(
    node: &Domains,
    dc: &str,
    request: &UpRequest,
    plan: &Plan,
) -> Result<(), Problem> {
    let Some(known) = node.known(dc) else { return Ok(()) };
    if request.replace || plan.is_empty() {
        return Ok(());
    }
    let place = |base: &Path, file: &Path| base.join(file.file_name().unwrap_or_default());
    let (former, this) =
        (place(&known.desired.base, &known.desired.file), place(&request.base, &request.file));
    let (one, other) = (former.clone(), this.clone());
    let same = move || {
        // One that is gone was moved, or made anew elsewhere.
        let Ok(there) = std::fs::canonicalize(&one) else { return true };
        std::fs::canonicalize(&other).is_ok_and(|this| this == there) || other == one
    };
    if UNPACKING.run(same).await.map_err(|why| Problem::new(Code::Failed, why))? {
        return Ok(());
    }
    let told = plan.steps.iter().take(STEPS_TOLD).map(|step| format!("\n  {step}")).collect::<String>();
    let more = match plan.steps.len().saturating_sub(STEPS_TOLD) {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    };
    let message = format!(
        "{dc} is up from another file, {}; with {} this would be done:{told}{more}",
        former.display(),
        this.display()
    );
    Err(Problem::new(Code::Taken, message).help(
        "add --replace if this file is to take its place; or give it a name of its own: name = \"...\"",
    ))
}

pub(crate) fn untouched(error: Problem) -> Box<Progress> {
    Box::new(Progress::Failed { error, rolled_back: None })
}

/// Waits for the turn of an `up`.
pub(crate) async fn begin_up(
    node: &Domains,
    dc: &str,
    request: &UpRequest,
    teller: &Teller,
) -> Result<Change, Problem> {
    let what = format!("`up` of {}", request.file.display());
    let wish = Wish { what, gives_way: true, ticket: request.ticket.clone() };
    node.changes.begin(dc, wish, teller).await
}

/// Ends what is on its way, and waits for the turn of a `down`.
pub(crate) async fn begin_down(node: &Domains, dc: &str, teller: &Teller) -> Result<Change, Problem> {
    for what in node.changes.supersede(dc) {
        teller.tell(Progress::Note { text: format!("ending {what}, which is under way") }).await;
    }
    let wish = Wish { what: format!("`down` of {dc}"), gives_way: false, ticket: None };
    node.changes.begin(dc, wish, teller).await
}

/// A lock that keeps the promises of others from getting between those of a change.
struct Promises {
    /// A change that gives promises back keeps others from taking them until it is known that they
    /// need not be restored.
    given_back: Option<OwnedRwLockWriteGuard<()>>,
    /// A change that asks for more has its promises as soon as they are entered.
    asked: Option<OwnedRwLockReadGuard<()>>,
}

impl Promises {
    async fn of(node: &Domains, before: Option<&Topology>, topology: &Topology) -> Self {
        if gives_back(before, topology) {
            Self { given_back: Some(node.changes.giving_back().await), asked: None }
        } else {
            Self { given_back: None, asked: Some(node.changes.asking().await) }
        }
    }
}

/// Whether something that was promised is promised no longer, or otherwise.
fn gives_back(before: Option<&Topology>, topology: &Topology) -> bool {
    let mut promised = before.into_iter().flat_map(|before| &before.domains).filter(|d| d.reserve.is_some());
    promised.any(|before| topology.domain(&before.name).is_none_or(|after| after.reserve != before.reserve))
}

/// Enters what is promised by a file that is about to be in force, and is not written down before
/// it is.
async fn begin(node: &Arc<Domains>, dc: &str, topology: Option<&Topology>) -> Result<(), Problem> {
    let (node, dc, topology) = (Arc::clone(node), dc.to_owned(), topology.cloned());
    let begin = move || node.book.begin(&dc, topology.as_ref(), &node.layout.cgroup_name);
    BOOK.run(begin).await.map_err(|why| Problem::new(Code::Failed, why))?
}

/// The file is written down; what is promised by it follows.
async fn written(node: &Arc<Domains>, dc: &str) {
    let (book, name) = (Arc::clone(node), dc.to_owned());
    if let Err(error) = BOOK.run(move || book.book.settle(&name)).await {
        tracing::error!(dc, error, "what is promised can't be written down");
    }
}

/// Enters what is promised in a distributed container from now on.
async fn enter(node: &Arc<Domains>, dc: &str, topology: Option<&Topology>) -> Result<(), Problem> {
    let (node, dc, topology) = (Arc::clone(node), dc.to_owned(), topology.cloned());
    // The kernel, and dispatchers, are told who is promised nothing any more.
    let enter = move || node.book.enter(&dc, topology.as_ref(), &node.layout.cgroup_name);
    BOOK.run(enter).await.map_err(|why| Problem::new(Code::Failed, why))?
}

pub(crate) async fn admit(node: &Domains, request: &UpRequest) -> Result<Topology, Problem> {
    let dc = dc_of(&request.text);
    // In a cluster, placement looks whether there is a node that can promise it, for each domain.
    let looking = if node.is_in_cluster() {
        Looking::nowhere().with_images(&node.layout)
    } else {
        let unpack = if request.dry_run { Unpack::No } else { Unpack::Yes };
        node.book.beside(&dc).with_images(&node.layout).into_trees(node.layout.clone(), unpack)
    };
    let (text, file, base) = (request.text.clone(), request.file.display().to_string(), request.base.clone());
    let admitted = UNPACKING.run(move || topology::admit(&text, &file, &base, &looking)).await;
    let topology = match admitted {
        Ok(Ok(topology)) if node.is_in_cluster() => volumes_stay(topology),
        Ok(Ok(topology)) => alone(topology),
        Ok(Err(diagnostics)) => Err(Problem::new(Code::NotAdmitted, diagnostics.render(false))),
        Err(error) => {
            Err(Problem::new(Code::Failed, format!("the file could not be read to its end: {error}")))
        }
    }?;
    node.secrets.refuse_unset(&topology).await?;
    Ok(topology)
}

/// Refuses, in a cluster, a domain with volumes that might run on a node without them.
fn volumes_stay(topology: Topology) -> Result<Topology, Problem> {
    let moves = |domain: &&Domain| {
        domain.volumes.iter().any(|volume| !volume.is_replicated())
            && !matches!(domain.placement.node, NodeChoice::Named(_))
    };
    let Some(domain) = topology.domains.iter().find(moves) else { return Ok(topology) };
    let message = format!(
        "{} has volumes with one replica, which are on one node of the cluster: it has to name that node",
        domain.name
    );
    let help = "add node = \"NAME\" to the domain, or replicas = 2 to the volume";
    Err(Problem::new(Code::NotAdmitted, message).help(help))
}

/// Refuses, on a node without a cluster, volumes that are to be on several.
fn alone(topology: Topology) -> Result<Topology, Problem> {
    let mut volumes = topology.domains.iter().flat_map(|domain| &domain.volumes);
    let Some(volume) = volumes.find(|volume| volume.is_replicated()) else { return Ok(topology) };
    let message =
        format!("the volume {} has {} replicas, and this node is alone", volume.name, volume.replicas);
    let help = "make it a node of a cluster (`tombolo node init`), or leave `replicas` out";
    Err(Problem::new(Code::NotAdmitted, message).help(help))
}

/// The name of the distributed container that a file is about, as far as it can be read.
pub(crate) fn dc_of(text: &str) -> String {
    let blind = topology::parse(text, "", Path::new("/"));
    blind.map_or_else(|_| String::new(), |topology| topology.name.as_str().to_owned())
}

/// Adds the domains that the plan leaves as they are, but which do not run because they could not
/// be kept running, or somebody stopped them.
fn with_failed_ones(node: &Domains, mut plan: Plan, topology: &Topology) -> Plan {
    let touched = |step: &Step, domain: &Domain| match step {
        Step::Start { domain: other } | Step::Stop { domain: other } => other.name == domain.name,
        Step::Restart { after, .. } => after.name == domain.name,
        _ => false,
    };
    for domain in topology.start_order() {
        let state = node.supervised(topology.name.as_str(), domain.name.as_str()).map(|s| s.view().state);
        let lost = state.is_none_or(|state| matches!(state, State::Failed | State::Stopped));
        if lost && !plan.steps.iter().any(|step| touched(step, domain)) {
            plan.steps.push(Step::Start { domain: Box::new(domain.clone()) });
        }
    }
    plan
}

/// Waits for domains that are on their way, such as after a daemon's death.
async fn settle(node: &Arc<Domains>, topology: &Topology) -> Result<(), Problem> {
    for domain in topology.start_order() {
        let Some(supervised) = node.supervised(topology.name.as_str(), domain.name.as_str()) else {
            continue;
        };
        let state = supervised.view().state;
        let boots = state.runs() && is_booting(node, topology, domain);
        if !boots && !matches!(state, State::Starting | State::Waiting) {
            continue;
        }
        let problem =
            |why| Problem::new(Code::Failed, format!("domain {} does not come up: {why}", domain.name));
        ready::wait(node, &supervised).await.map_err(problem)?;
    }
    Ok(())
}

/// Whether a machine's guest is still on its way.
fn is_booting(node: &Domains, topology: &Topology, domain: &Domain) -> bool {
    let machine = node.broker.machine(topology.name.as_str(), domain.name.as_str());
    domain.machine.is_some() && machine.is_none_or(|machine| machine.started.is_none())
}

/// Does the steps, turn by turn. On failure: how many were begun, and why.
async fn execute(
    node: &Arc<Domains>,
    change: &Change,
    dc: &str,
    plan: &Plan,
    teller: &Teller,
) -> Result<(), (usize, Problem)> {
    let of = plan.steps.len();
    for (first, steps) in turns(&plan.steps) {
        if let Some(ending) = change.ending() {
            return Err((first, ending.problem(dc)));
        }
        let turn = Turn { first, of, teller };
        let failed = |why: String| {
            let begun = first + steps.len();
            if let Some(ending) = change.ending() {
                return (begun, ending.problem(dc));
            }
            let problem = Problem::new(Code::Failed, why);
            (begun, Problem { help: super::host::advice(&node.host), ..problem })
        };
        let failures = turn.take(node, dc, steps, Some(change)).await;
        if !failures.is_empty() {
            return Err(failed(failures.join("; ")));
        }
        for text in steps.iter().filter_map(|step| worth_saying(node, step)) {
            teller.tell(Progress::Note { text }).await;
        }
    }
    Ok(())
}

/// Returns a remark on how a step was done, for those who wait for it.
fn worth_saying(node: &Domains, step: &Step) -> Option<String> {
    let (Step::Start { domain } | Step::Restart { after: domain, .. }) = step else { return None };
    let why = super::machines::emulated_because(node, domain)?;
    Some(format!("{} is emulated, which is several times slower: {why}", domain.name))
}

/// Does one step. Where `change` is to end, a start is not waited for any longer; whatever ends is
/// waited for.
pub(super) async fn perform(
    node: &Arc<Domains>,
    dc: &str,
    step: &Step,
    change: Option<&Change>,
) -> Result<(), String> {
    match step {
        Step::Stop { domain } => {
            end(node, dc, domain.name.as_str()).await?;
            node.apply(dc, step);
            Ok(())
        }
        Step::Start { domain } => {
            node.apply(dc, step);
            start(node, dc, domain, ended(change, dc)).await
        }
        Step::Restart { after, .. } => {
            stop(node, dc, after.name.as_str()).await?;
            node.apply(dc, step);
            start(node, dc, after, ended(change, dc)).await
        }
        Step::Update { after, .. } => {
            node.apply(dc, step);
            match node.supervised(dc, after.name.as_str()) {
                Some(supervised) => supervised.update(after).await,
                None => Ok(()),
            }
        }
        _ => {
            node.apply(dc, step);
            inside::follow(node, dc, step).await?;
            relays::follow(node, dc, step).await
        }
    }
}

/// Puts a change into effect as far as it is this node's in a cluster: whatever is to be started is
/// left to who follows.
pub(crate) async fn follow_plan(node: &Arc<Domains>, dc: &str, plan: &Plan) {
    let nobody = Teller::nobody();
    for (first, steps) in turns(&plan.steps) {
        let turn = Turn { first, of: plan.steps.len(), teller: &nobody };
        let failures = match steps {
            [Step::Start { .. }, ..] => {
                steps.iter().for_each(|step| node.apply(dc, step));
                Vec::new()
            }
            [step @ Step::Restart { after, .. }] => {
                let stopped = stop(node, dc, after.name.as_str()).await;
                node.apply(dc, step);
                stopped.err().map(|why| format!("could not {step}: {why}")).into_iter().collect()
            }
            steps => turn.take(node, dc, steps, None).await,
        };
        for error in failures {
            tracing::error!(dc, error, "a change of the cluster's has no effect here");
        }
    }
}

/// Stops a domain that is not wanted any more. What its last life left is for nobody.
pub(super) async fn end(node: &Arc<Domains>, dc: &str, name: &str) -> Result<(), String> {
    stop(node, dc, name).await?;
    let (node, dc, name) = (Arc::clone(node), dc.to_owned(), name.to_owned());
    REMOVALS.run(move || node.remove_handover(&dc, &name)).await?
}

async fn stop(node: &Domains, dc: &str, name: &str) -> Result<(), String> {
    match node.supervised(dc, name) {
        Some(supervised) => supervised.stop().await,
        None => Ok(()),
    }
}

/// Comes back with the words for it when the change is to end.
async fn ended(change: Option<&Change>, dc: &str) -> String {
    match change {
        Some(change) => change.ended().await.problem(dc).message,
        None => std::future::pending().await,
    }
}

/// Starts a domain and waits until it is ready, unless `broken_off` comes back before that.
pub(super) async fn start(
    node: &Arc<Domains>,
    dc: &str,
    domain: &Domain,
    broken_off: impl Future<Output = String>,
) -> Result<(), String> {
    // A supervisor that has given up makes room for a new one.
    stop(node, dc, domain.name.as_str()).await?;
    let (supervised, outcome) = supervise(node, dc, domain, First::Start);
    let started = async {
        match outcome.await {
            Ok(Ok(())) => ready::wait(node, &supervised).await,
            Ok(Err(why)) => Err(why),
            Err(_) => Err("its supervisor ended".into()),
        }
    };
    let started = tokio::select! {
        biased;
        why = broken_off => Err(why),
        started = started => started,
    };
    if started.is_err()
        && let Err(error) = supervised.stop().await
    {
        tracing::error!(
            dc,
            domain = domain.name.as_str(),
            error,
            "a domain that did not start can't be removed"
        );
    }
    started
}

/// Undoes the first `begun` steps, and says how that went.
async fn roll_back(
    node: &Arc<Domains>,
    dc: &str,
    plan: &Plan,
    begun: usize,
    problem: Problem,
    teller: &Teller,
) -> Box<Progress> {
    teller.tell(Progress::RollingBack { reason: problem.message.clone() }).await;
    let mut complete = true;
    let undo = plan.undo(begun);
    let nobody = Teller::nobody();
    for (first, steps) in turns(&undo.steps) {
        let turn = Turn { first, of: undo.steps.len(), teller: &nobody };
        for why in turn.take(node, dc, steps, None).await {
            complete = false;
            teller.tell(Progress::Note { text: format!("rolling back: {why}") }).await;
        }
    }
    node.forget_current_if_unwanted(dc);
    Box::new(Progress::Failed { error: problem, rolled_back: Some(complete) })
}

/// Removes distributed containers, and says how it goes.
pub(crate) async fn down(node: Arc<Domains>, request: DownRequest, teller: Teller) {
    let last = match targets(&node, &request) {
        Err(error) => Progress::Failed { error, rolled_back: None },
        Ok(names) if names.is_empty() => {
            Progress::Done { summary: "nothing to do: nothing is up".into(), changed: false }
        }
        Ok(names) => remove_all(&node, &names, &teller).await,
    };
    teller.tell(last).await;
}

pub(crate) fn targets(node: &Domains, request: &DownRequest) -> Result<Vec<String>, Problem> {
    // Where there is none, nothing is to be done: whoever says `down` twice means the same both
    // times. What is on its way for the first time is meant, too.
    let coming = node.changes.under_way();
    let mut known = node.dcs();
    known.extend(coming.iter().filter(|dc| !known.contains(dc)).cloned().collect::<Vec<_>>());
    match &request.dc {
        Some(dc) if coming.contains(dc) => Ok(vec![dc.clone()]),
        None if request.all || known.len() <= 1 => Ok(known),
        which => node.find_dc(which.as_deref()).map(|dc| vec![dc]),
    }
}

async fn remove_all(node: &Arc<Domains>, names: &[String], teller: &Teller) -> Progress {
    let mut removals = tokio::task::JoinSet::new();
    for dc in names {
        let (node, dc, teller) = (Arc::clone(node), dc.clone(), teller.clone());
        removals.spawn(async move { (remove(&node, &dc, &teller).await, dc) });
    }
    let mut failures = Vec::new();
    while let Some(removed) = removals.join_next().await {
        match removed {
            Ok((Ok(()), _)) => {}
            Ok((Err(why), dc)) => failures.push(format!("{dc}: {why}")),
            Err(error) => failures.push(error.to_string()),
        }
    }
    failures.sort();
    if failures.is_empty() {
        return Progress::Done { summary: format!("{} is down", names.join(", ")), changed: true };
    }
    let error = Problem::new(Code::Failed, format!("could not remove everything: {}", failures.join("; ")))
        .help("run `tombolo down` again; `tombolo inspect` shows what is left");
    Progress::Failed { error, rolled_back: None }
}

async fn remove(node: &Arc<Domains>, dc: &str, teller: &Teller) -> Result<(), String> {
    let _turn = begin_down(node, dc, teller).await.map_err(|problem| problem.to_string())?;
    let Some(before) = node.topology(dc) else { return Ok(()) };
    // First of all it is no longer wanted: a daemon that dies now has a successor that sweeps.
    node.set_desired(dc, None).await.map_err(|problem| problem.to_string())?;
    let plan = topology::plan(Some(&before), &Topology::empty(before.name.clone()));
    let mut failures = Vec::new();
    for (first, steps) in turns(&plan.steps) {
        let turn = Turn { first, of: plan.steps.len(), teller };
        failures.extend(turn.take(node, dc, steps, None).await);
    }
    if let Err(problem) = enter(node, dc, None).await {
        failures.push(problem.to_string());
    }
    node.forget_current_if_unwanted(dc);
    remove_traces(node, dc).await;
    node.events.happened(dc, None, "down", (!failures.is_empty()).then(|| failures.join("; ")));
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}

/// Removes what a distributed container leaves when all its domains are gone.
pub(crate) async fn remove_traces(node: &Arc<Domains>, dc: &str) {
    let (node, dc) = (Arc::clone(node), dc.to_owned());
    if let Err(error) = REMOVALS.run(move || node.remove_traces(&dc)).await {
        tracing::warn!(error, "what a distributed container leaves can't be removed");
    }
}

/// After a start: what is desired and does not run is started; what can't be is left to its restart
/// policy and told.
pub(crate) async fn restore(node: Arc<Domains>) {
    for dc in node.dcs() {
        tokio::spawn(restore_one(Arc::clone(&node), dc));
    }
}

async fn restore_one(node: Arc<Domains>, dc: String) {
    let what = format!("the start of {dc} after a start of the daemon");
    let wish = Wish { what, gives_way: true, ticket: None };
    let change = match node.changes.begin(&dc, wish, &Teller::nobody()).await {
        Ok(change) => change,
        Err(problem) => {
            tracing::warn!(dc, %problem, "it is not restored");
            return;
        }
    };
    let Some(topology) = node.topology(&dc) else { return };
    let lost = |domain: &&Domain| node.supervised(&dc, domain.name.as_str()).is_none();
    let lost: Vec<Domain> = topology.start_order().into_iter().filter(lost).cloned().collect();
    let mut starts = start_each(Some(&topology), lost, |_, domain| {
        let (node, dc) = (Arc::clone(&node), dc.clone());
        async move {
            let name = domain.name.as_str();
            tracing::info!(dc, domain = name, "it is desired and does not run: starting it");
            let (supervised, outcome) = supervise(&node, &dc, &domain, First::Restore);
            let ready = match outcome.await {
                Ok(Ok(())) => ready::wait(&node, &supervised).await,
                Ok(Err(why)) => Err(why),
                Err(_) => Err("its supervisor ended".into()),
            };
            if let Err(error) = ready {
                tracing::error!(dc, domain = name, error, "it could not be restored");
            }
        }
    });
    // Whoever removes it next ends those that are on their way.
    let _broken_off = change.unless_ended(async { while starts.join_next().await.is_some() {} }).await;
}
