//! Following what a cluster wants: which domains run here, and which no longer.
//!
//! Every daemon reads the same books and decides by the same function ([`placement::judge`]); who
//! is first is settled by compare-and-swap. One pass looks at everything, so that nothing depends
//! on having heard of every change.

mod books;
mod change;
mod drain;
mod handover;
mod hold;
mod of_cluster;
mod peers;
mod promised;
mod relocate;
mod relocation;
mod take_up;

pub(crate) use books::Key;
pub(crate) use change::{down, up};
pub(crate) use drain::{drain, undrain};
pub(crate) use peers::Peers;
pub(crate) use relocate::{MayCome, Obstacles, may_come, relocate};

use crate::base::{DISKS, REGISTRY};
use crate::domains::ready;
use crate::domains::supervisor::{First, State, supervise};
use crate::domains::{Domains, Known};
use crate::reservations::Offers;
use books::{At, Books, BooksError, Claim, Placed, Seen};
use placement::{Standing, Verdict, Wish};
use registry::{Expected, Watch};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use topology::{Domain, Topology};

/// How long the books are trusted without a word of a change: a watch that broke without a sign
/// costs no more than this.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Pause after the books could not be read.
const RETRY_PAUSE: Duration = Duration::from_millis(300);
/// Changes that come together are looked at together.
const GATHER: Duration = Duration::from_millis(5);
/// How long a node that lacks something for a domain is not asked again.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// How long the thread that waits for changes waits at a time before it looks whether it is still
/// wanted.
const WATCH_TIMEOUT: Duration = Duration::from_secs(1);

/// A node's part in a cluster.
#[derive(Debug)]
pub(crate) struct Following {
    pub(crate) peers: Arc<dyn Peers>,
    /// This node's promises, and the amounts that it may still promise.
    book: Arc<dyn Offers>,
    state: Mutex<Inner>,
    /// Ticks when a placement has changed.
    placements: watch::Sender<u64>,
    /// Ticks when the books have been read.
    looked: watch::Sender<u64>,
    /// How often the book of promises had changed when the cluster was told of it last.
    told_promises: watch::Sender<u64>,
    /// The orders that monitors were given.
    hold: hold::Hold,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    books: Arc<Books>,
    /// Domains whose last start here was seen to be ready.
    ready: BTreeSet<Key>,
    /// Domains whose supervisor is watched.
    watched: BTreeSet<Key>,
    /// Why a start failed, until the next one.
    failed: BTreeMap<Key, String>,
    /// Domains that something is being done about.
    busy: BTreeSet<Key>,
    /// Distributed containers whose change is being put into effect.
    taking_up: BTreeSet<String>,
    /// Domains that this node does not run because their promise is strict.
    refused: BTreeMap<Key, promised::Refusal>,
    /// How often the book had changed when it was looked at last.
    looked_at: u64,
    /// Why domains are nowhere, or not where they should be.
    stuck: BTreeMap<Key, String>,
    /// Whether this daemon has ever read the books.
    was_read: bool,
    /// When this node began to start what came by a planned move.
    took: BTreeMap<Key, Instant>,
    /// The obstacles that are being looked for on behalf of other nodes.
    preparing: relocate::Preparing,
    /// Nodes to which domains can't go that should leave this one: since when, and why.
    unfit: BTreeMap<Key, (String, Instant, String)>,
    /// The reports that were written last.
    told: BTreeMap<Key, Seen>,
}

impl Following {
    pub(crate) fn new(peers: Arc<dyn Peers>, book: Arc<dyn Offers>) -> Arc<Self> {
        Arc::new(Self {
            peers,
            book,
            state: Mutex::default(),
            placements: watch::Sender::new(0),
            looked: watch::Sender::new(0),
            told_promises: watch::Sender::new(0),
            hold: hold::Hold::default(),
            wake: Notify::new(),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn books(&self) -> Arc<Books> {
        Arc::clone(&self.lock().books)
    }

    /// The node that holds the claim of a domain.
    pub(crate) fn placed(&self, dc: &str, domain: &str) -> Option<String> {
        let books = self.books();
        let key = (dc.to_owned(), domain.to_owned());
        books.claims.get(&key).map(|at| at.value.node.clone())
    }

    /// The node where a domain is or is to be, and what that said of it last.
    pub(crate) fn whereabouts(&self, key: &Key) -> (Option<String>, Option<Seen>) {
        let books = self.books();
        let assigned = books.assigned(key);
        let at = assigned.claimed.or(assigned.placed);
        let seen = books.seen.get(key).map(|seen| seen.value.clone());
        let seen = seen.filter(|seen| Some(&seen.node) == at.as_ref());
        (at, seen)
    }

    /// Ticks when [`Following::placed`] may say something else.
    pub(crate) fn placements(&self) -> watch::Receiver<u64> {
        self.placements.subscribe()
    }

    /// Whether a domain that runs here may go on: nobody else has it.
    pub(crate) fn may_adopt(&self, dc: &str, domain: &Domain) -> bool {
        let books = self.books();
        let assigned = books.assigned(&(dc.to_owned(), domain.name.as_str().to_owned()));
        if !self.lock().was_read {
            return !domain.restart.elsewhere;
        }
        let me = self.peers.me();
        // Nobody has it: it ran here before this node was in a cluster.
        if assigned == placement::Assigned::default() {
            return true;
        }
        assigned.claimed.or(assigned.placed).is_some_and(|node| node == me)
    }

    /// Whether this node holds its claims now.
    pub(crate) fn holds(&self) -> bool {
        *self.peers.hold_until().borrow() > domain::hold::now_ns()
    }

    /// Whether something is being done about a domain.
    fn is_busy(&self, key: &Key) -> bool {
        let inner = self.lock();
        inner.busy.contains(key) || inner.taking_up.contains(&key.0)
    }

    /// Looks at everything soon.
    pub(crate) fn poke(&self) {
        self.wake.notify_one();
    }

    /// Why a domain is nowhere, or not where it should be.
    pub(crate) fn stuck(&self, key: &Key) -> Option<String> {
        self.lock().stuck.get(key).cloned()
    }

    /// Whether that node has said lately that a domain can't come; then the reason is shown.
    fn unfit(&self, key: &Key, to: &str) -> bool {
        let mut inner = self.lock();
        let lately = |(at, since, _): &&(String, Instant, String)| at == to && since.elapsed() < ASK_AGAIN;
        let why = inner.unfit.get(key).filter(lately).map(|(.., why)| why.clone());
        why.is_some_and(|why| {
            inner.stuck.insert(key.clone(), why);
            true
        })
    }

    /// Reads the books, and remembers them.
    async fn refresh(&self) -> Result<Arc<Books>, BooksError> {
        let (registry, before) = (self.peers.registry(), self.books());
        let read = REGISTRY.run(move || Books::read(&*registry, &before)).await;
        let books = Arc::new(read.map_err(|why| BooksError::Unreadable { key: "the books".into(), why })??);
        let moved = {
            let mut inner = self.lock();
            let holders = |books: &Books| {
                books.claims.iter().map(|(key, at)| (key.clone(), at.value.node.clone())).collect::<Vec<_>>()
            };
            let moved = holders(&inner.books) != holders(&books);
            inner.books = Arc::clone(&books);
            moved
        };
        self.looked.send_modify(|count| *count = count.wrapping_add(1));
        if moved {
            self.placements.send_modify(|count| *count = count.wrapping_add(1));
        }
        Ok(books)
    }

    /// The cluster with everything booked but `but`.
    fn cluster(&self, books: &Books, but: Option<&Key>) -> placement::Cluster {
        let mut nodes = self.peers.nodes();
        let promises = self.promises(books);
        for node in &mut nodes {
            node.promises = promises.get(&node.name).cloned().unwrap_or_default();
            if node.standing == Standing::Ready && books.drained.contains(&node.name) {
                node.standing = Standing::Drained;
            }
        }
        let mut cluster = placement::Cluster::new(nodes);
        for (dc, desired) in &books.desired {
            for domain in &desired.value.topology.domains {
                let key = (dc.clone(), domain.name.as_str().to_owned());
                let (assigned, want) = (books.assigned(&key), books.want(dc, domain));
                // Who names a node needs its room there, whoever else is decided about first.
                let named = if let Wish::Named(node) = &want.wish { Some(node.clone()) } else { None };
                if Some(&key) != but
                    && let Some(node) = assigned.claimed.or(assigned.placed).or(named)
                {
                    cluster.take_on(&node, &want);
                    // Until a planned move is over, its room is kept at both ends.
                    let moving = books.moves.get(&key).map(|at| &at.value).filter(|moving| !moving.is_over());
                    for end in moving.into_iter().flat_map(|moving| [&moving.from, &moving.to]) {
                        if *end != node {
                            cluster.take_on(end, &want);
                        }
                    }
                }
            }
        }
        cluster
    }
}

/// Reads the books before anything is adopted. Where the cluster can't be reached, the copy on this
/// node says what is desired, and what runs here and may not run elsewhere goes on.
pub(crate) async fn begin(node: &Arc<Domains>, following: &Arc<Following>) {
    let books = match following.refresh().await {
        Ok(books) => books,
        Err(error) => {
            tracing::warn!(%error, "the cluster can't be reached: what may not run elsewhere goes on here");
            return;
        }
    };
    for dc in node.dcs().into_iter().filter(|dc| !books.desired.contains_key(dc)) {
        node.follow_desired(&dc, None);
        node.set_current(&dc, None);
        take_up::mirror(node, &dc, None).await;
    }
    for (dc, desired) in &books.desired {
        node.follow_desired(dc, Some(known(desired)));
        node.set_current(dc, Some(Arc::new(desired.value.topology.clone())));
        take_up::mirror(node, dc, Some(Arc::clone(&desired.value))).await;
    }
    following.lock().was_read = true;
}

fn known(desired: &At<Arc<crate::domains::Desired>>) -> Known {
    Known { desired: Arc::clone(&desired.value), revision: desired.revision }
}

/// Follows for as long as the daemon lives.
pub(crate) async fn follow(node: Arc<Domains>, following: Arc<Following>) {
    hold::keep(&node, &following);
    watch_registry(&following);
    let mut changes = following.peers.changes();
    let mut promised = following.book.changes();
    loop {
        let pause = match pass(&node, &following).await {
            Ok(()) => LOOK_AGAIN,
            Err(error) => {
                tracing::warn!(%error, "the books of the cluster can't be read or written now");
                RETRY_PAUSE
            }
        };
        tokio::select! {
            () = following.wake.notified() => {}
            changed = changes.changed() => if changed.is_err() { return },
            changed = promised.changed() => if changed.is_err() { return },
            // tidy(sleep): the backstop for a watch that broke without a sign.
            () = tokio::time::sleep(pause) => {}
        }
        // tidy(sleep): what changes together is looked at together.
        tokio::time::sleep(GATHER).await;
    }
}

/// A thread that waits for changes of the books, and pokes.
fn watch_registry(following: &Arc<Following>) {
    let weak = Arc::downgrade(following);
    let started = std::thread::Builder::new().name("follow".into()).spawn(move || {
        let mut watch: Option<Watch> = None;
        while let Some(following) = weak.upgrade() {
            let current = match watch.take() {
                Some(watch) => Ok(watch),
                // Everything below: the books have several prefixes, and whatever else changes is
                // rare.
                None => following.peers.registry().watch("").inspect(|_| following.poke()),
            };
            drop(following);
            match current.map(|watch| watch.next(WATCH_TIMEOUT).map(|change| (watch, change))) {
                Ok(Ok((current, change))) => {
                    watch = Some(current);
                    if change.is_some()
                        && let Some(following) = weak.upgrade()
                    {
                        following.poke();
                    }
                }
                // It lagged, or broke: the next round makes a new one.
                Ok(Err(_)) => {}
                Err(error) => {
                    tracing::debug!(%error, "the registry can't be watched now");
                    std::thread::park_timeout(RETRY_PAUSE);
                }
            }
        }
    });
    if let Err(error) = started {
        tracing::error!(%error, "no thread to watch the registry: changes are seen late");
    }
}

/// Makes one pass over everything.
async fn pass(node: &Arc<Domains>, following: &Arc<Following>) -> Result<(), BooksError> {
    // Before the books, not after: what they say is not older than this.
    let (holds, lapses) = (following.holds(), following.hold.lapses());
    let books = following.refresh().await?;
    if !holds {
        // Nothing is decided by a node that may be the only one that does not know better.
        return Ok(());
    }
    take_up::changes(node, following, &books).await;
    rebind(following, &books).await?;
    promised::take_note(node, following, &books).await;
    promised::follow_book(node, following, &books).await;
    promised::tell(following, &books).await?;
    'all: for (dc, desired) in &books.desired {
        if following.lock().taking_up.contains(dc) {
            continue;
        }
        for domain in desired.value.topology.start_order() {
            // What was claimed just now counts for the next one: that is decided by books that say
            // so.
            let of = Of { dc, topology: &desired.value.topology, domain, lapses };
            if decide(node, following, &books, of).await? {
                break 'all;
            }
        }
    }
    clear_what_is_unwanted(node, following, &books).await?;
    tell(node, following, &books).await
}

/// Claims of this node's earlier daemons are bound to this one's lease, as long as they are there.
async fn rebind(following: &Arc<Following>, books: &Books) -> Result<(), BooksError> {
    let (me, incarnation) = (following.peers.me(), following.peers.incarnation());
    for (key, claim) in &books.claims {
        if claim.value.node == me && claim.value.incarnation != incarnation {
            put_claim(following, key, Expected::Revision(claim.revision)).await?;
            following.poke();
        }
    }
    Ok(())
}

async fn put_claim(
    following: &Arc<Following>,
    key: &Key,
    expected: Expected,
) -> Result<Option<u64>, BooksError> {
    let peers = Arc::clone(&following.peers);
    let claim = Claim { node: peers.me(), incarnation: peers.incarnation() };
    let path = books::claim_key(key);
    let put = move || books::unless_conflict(peers.put_leased(&path, &books::bytes(&claim), expected));
    written(REGISTRY.run(put).await)
}

async fn put_placed(
    following: &Arc<Following>,
    key: &Key,
    node: &str,
    expected: Expected,
) -> Result<Option<u64>, BooksError> {
    let registry = following.peers.registry();
    let (path, placed) = (books::placed_key(key), Placed { node: node.to_owned() });
    let put = move || books::unless_conflict(registry.put(&path, &books::bytes(&placed), expected));
    written(REGISTRY.run(put).await)
}

async fn remove(following: &Arc<Following>, path: String, expected: Expected) -> Result<(), BooksError> {
    let registry = following.peers.registry();
    written(REGISTRY.run(move || books::unless_conflict(registry.delete(&path, expected))).await).map(drop)
}

fn written<T>(
    done: Result<Result<Option<T>, registry::RegistryError>, String>,
) -> Result<Option<T>, BooksError> {
    match done {
        Ok(done) => Ok(done?),
        Err(why) => Err(BooksError::Unreadable { key: "an answer".into(), why }),
    }
}

/// A domain that is wanted.
#[derive(Clone, Copy)]
struct Of<'a> {
    dc: &'a str,
    topology: &'a Topology,
    domain: &'a Domain,
    /// How often the hold had passed before the books were read: what they say of claims is over
    /// when it has passed since.
    lapses: u64,
}

/// Does what is to be done about one domain. Says whether it was claimed.
async fn decide(
    node: &Arc<Domains>,
    following: &Arc<Following>,
    books: &Arc<Books>,
    of: Of<'_>,
) -> Result<bool, BooksError> {
    let Of { dc, domain, .. } = of;
    let key: Key = (dc.to_owned(), domain.name.as_str().to_owned());
    if following.lock().busy.contains(&key) {
        return Ok(false);
    }
    if relocation::follow(node, following, books, &key).await? {
        return Ok(false);
    }
    let me = following.peers.me();
    let assigned = books.assigned(&key);
    let verdict = match &assigned.claimed {
        // Most domains of a large cluster: nothing is booked to find that out.
        Some(claimed) if *claimed != me => Verdict::Leave,
        _ => {
            let cluster = following.cluster(books, Some(&key));
            placement::judge(&me, &cluster, &books.want(dc, domain), &assigned)
        }
    };
    {
        let mut inner = following.lock();
        match &verdict {
            Verdict::Stuck(refusal) => inner.stuck.insert(key.clone(), refusal.to_string()),
            Verdict::Wait { node } => inner.stuck.insert(key.clone(), format!("its node {node} is lost")),
            _ => inner.stuck.remove(&key),
        };
    }
    let supervised = node.supervised(dc, &key.1);
    if let Some(supervised) = &supervised {
        take_note_of_adopted(following, &key, supervised);
    }
    match verdict {
        Verdict::Run => run(node, following, books, of, key),
        Verdict::PlaceHere => {
            put_placed(following, &key, &me, books::expected(books.placed.get(&key))).await?;
            following.poke();
        }
        // It is strict, and can't be kept what it is promised: nowhere is better than here.
        Verdict::Stuck(_) if following.has_refused(&key) => promised::end(node, following, &key),
        // It can't go where it should: better here than nowhere.
        Verdict::Stuck(_) if books.claims.get(&key).is_some_and(|claim| claim.value.node == me) => {
            run(node, following, books, of, key);
        }
        Verdict::Claim { from } => {
            if let Some(from) = &from {
                tracing::warn!(dc, domain = key.1, from, "its node is lost: this one takes over");
            }
            if put_claim(following, &key, Expected::Absent).await?.is_some() {
                put_placed(following, &key, &me, books::expected(books.placed.get(&key))).await?;
            }
            following.poke();
            return Ok(true);
        }
        Verdict::Move { to } if following.unfit(&key, &to) => {
            run(node, following, books, of, key);
        }
        Verdict::Move { to } => {
            tracing::info!(dc, domain = key.1, to, "it moves to another node");
            spawn_move(node, following, books, key, to);
        }
        Verdict::Leave | Verdict::Wait { .. } | Verdict::Stuck(_) => {
            if let Some(supervised) = supervised {
                tracing::warn!(dc, domain = key.1, "another node has it: it ends here");
                let (node, following, of) = (Arc::clone(node), Arc::clone(following), key.clone());
                spawn_for(&following, &key, async move {
                    if let Err(error) = supervised.stop_at_once().await {
                        tracing::error!(error, "what another node has can't be removed here");
                    }
                    // Nobody hands on what a life left that was over before.
                    let removed = DISKS.run(move || node.remove_handover(&of.0, &of.1));
                    if let Err(error) = removed.await.and_then(|removed| removed) {
                        tracing::error!(error, "what it left can't be removed here");
                    }
                });
            }
        }
    }
    Ok(false)
}

/// Runs something for a domain, of which nothing else is done meanwhile.
fn spawn_for(following: &Arc<Following>, key: &Key, work: impl Future<Output = ()> + Send + 'static) {
    following.lock().busy.insert(key.clone());
    let (following, key) = (Arc::clone(following), key.clone());
    tokio::spawn(async move {
        work.await;
        following.lock().busy.remove(&key);
        following.poke();
    });
}

/// Starts a domain that is claimed here, once those that it waits for are ready, wherever they are.
fn run(node: &Arc<Domains>, following: &Arc<Following>, books: &Books, of: Of<'_>, key: Key) {
    let Of { topology, domain, lapses, .. } = of;
    if node.supervised(&key.0, &key.1).is_some() || following.lock().failed.contains_key(&key) {
        return;
    }
    let ready = |name: &str| {
        let other = (key.0.clone(), name.to_owned());
        let holder = books.claims.get(&other).map(|claim| &claim.value.node);
        let seen = books.seen.get(&other).map(|seen| &seen.value);
        following.lock().ready.contains(&other)
            || seen.is_some_and(|seen| seen.ready && Some(&seen.node) == holder)
    };
    let mut waits = domain.after.iter().map(|name| name.as_str()).filter(|name| !ready(name));
    if let Some(name) = waits.next() {
        tracing::debug!(dc = key.0, domain = key.1, waits_for = name, "it waits");
        return;
    }
    // Frontends wait for a backend anyway; to start after it saves them the wait, where it is on
    // this node.
    if topology
        .backends(domain)
        .into_iter()
        .any(|name| following.lock().busy.contains(&(key.0.clone(), name.to_owned())))
    {
        return;
    }
    let (node, domain) = (Arc::clone(node), domain.clone());
    let (following_too, of) = (Arc::clone(following), key.clone());
    spawn_for(following, &key, async move {
        // Of a refusal the book keeps a note, of which the next pass takes note.
        if let Err(why) = promised::enter(&node, &following_too, &of.0, &domain).await {
            tracing::warn!(dc = of.0, domain = of.1, why, "it is not started here");
            return;
        }
        if let Err(why) = handover::take(&node, &following_too, &of).await {
            tracing::warn!(
                dc = of.0,
                domain = of.1,
                why,
                "what its last life left can't be had yet, so it is not started yet"
            );
            return;
        }
        if domain.restart.elsewhere && following_too.hold.lapsed_since(lapses) {
            // Another node may have its claim by now, although this one holds others again: the
            // next pass reads whose it is.
            tracing::warn!(dc = of.0, domain = of.1, "this node was cut off before it was started");
            return;
        }
        let (supervised, outcome) = supervise(&node, &of.0, &domain, First::Restore);
        report_views(&following_too, &supervised);
        let ready = match outcome.await {
            Ok(Ok(())) => ready::wait(&node, &supervised).await,
            Ok(Err(why)) => Err(why),
            Err(_) => Err("its supervisor ended".into()),
        };
        if ready.is_err() && following_too.book.has_refused(&format!("{}/{}", of.0, of.1)) {
            if let Err(error) = supervised.stop().await {
                tracing::error!(dc = of.0, domain = of.1, error, "what was refused can't be removed");
            }
            return;
        }
        if ready.is_err() && domain.restart.elsewhere && following_too.hold.lapsed_since(lapses) {
            // Its monitor ended it in the middle of its start, or this daemon did. What becomes of
            // it is decided by whoever has its claim.
            tracing::warn!(dc = of.0, domain = of.1, "this node was cut off while it was started");
            if let Err(error) = supervised.stop_at_once().await {
                tracing::error!(dc = of.0, domain = of.1, error, "what was begun can't be removed");
            }
            return;
        }
        let mut inner = following_too.lock();
        match ready {
            Ok(()) => {
                inner.ready.insert(of);
            }
            Err(why) => {
                tracing::error!(dc = of.0, domain = of.1, why, "it does not come up");
                inner.failed.insert(of, why);
            }
        }
    });
}

/// A domain that an earlier daemon started here runs, and was ready when that said so.
fn take_note_of_adopted(
    following: &Arc<Following>,
    key: &Key,
    supervised: &Arc<crate::domains::supervisor::Supervised>,
) {
    let new = {
        let mut inner = following.lock();
        let new = !inner.watched.contains(key);
        if new {
            inner.watched.insert(key.clone());
            if !inner.failed.contains_key(key) {
                inner.ready.insert(key.clone());
            }
        }
        new
    };
    if new {
        report_views(following, supervised);
    }
}

/// Looks again whenever a domain's state changes, until its supervisor ends.
fn report_views(following: &Arc<Following>, supervised: &Arc<crate::domains::supervisor::Supervised>) {
    let key = (supervised.dc.clone(), supervised.name.clone());
    following.lock().watched.insert(key.clone());
    let (following, mut views) = (Arc::downgrade(following), supervised.views());
    tokio::spawn(async move {
        loop {
            let changed = views.changed().await.is_ok();
            let Some(following) = following.upgrade() else { return };
            if !changed {
                following.lock().watched.remove(&key);
            }
            following.poke();
            if !changed {
                return;
            }
        }
    });
}

/// Ends a domain here, gives it to another node, and lets go of the claim.
fn spawn_move(node: &Arc<Domains>, following: &Arc<Following>, books: &Arc<Books>, key: Key, to: String) {
    let supervised = node.supervised(&key.0, &key.1);
    let (following_too, books, of) = (Arc::clone(following), Arc::clone(books), key.clone());
    let node = Arc::clone(node);
    spawn_for(following, &key, async move {
        if let Some(supervised) = supervised {
            // One that does not answer, or is of an older release, is believed to be fit: so it was
            // before nodes were asked.
            let lacks = relocate::ask(&node, &following_too, &of, &to, true).await.unwrap_or_default();
            if !lacks.is_empty() {
                let why = format!("it should leave this node, and can't: {}", lacks.join("; "));
                tracing::warn!(dc = of.0, domain = of.1, why, "it does not move");
                following_too.lock().unfit.insert(of, (to, Instant::now(), why));
                return;
            }
            if let Err(error) = supervised.stop().await {
                tracing::error!(
                    dc = of.0,
                    domain = of.1,
                    error,
                    "it can't be ended here, so it does not move"
                );
                return;
            }
        }
        relocation::let_go(&node, &following_too, &books, &of, &to).await;
    });
}

/// Removes what this node wrote of domains that nobody wants any more.
async fn clear_what_is_unwanted(
    node: &Arc<Domains>,
    following: &Arc<Following>,
    books: &Books,
) -> Result<(), BooksError> {
    let me = following.peers.me();
    let wanted = |key: &Key| {
        books.desired.get(&key.0).is_some_and(|desired| desired.value.topology.domain(&key.1).is_some())
    };
    let mine = books.placed.iter().filter(|(_, placed)| placed.value.node == me).map(|(key, _)| key);
    let mine =
        mine.chain(books.claims.iter().filter(|(_, claim)| claim.value.node == me).map(|(key, _)| key));
    let unwanted: BTreeSet<Key> = mine.filter(|key| !wanted(key)).cloned().collect();
    for key in unwanted {
        if node.supervised(&key.0, &key.1).is_some() || following.is_busy(&key) {
            continue;
        }
        {
            let mut inner = following.lock();
            inner.ready.remove(&key);
            inner.failed.remove(&key);
            inner.told.remove(&key);
            inner.stuck.remove(&key);
            inner.unfit.remove(&key);
            inner.took.remove(&key);
            inner.refused.remove(&key);
        }
        following.book.leave(&format!("{}/{}", key.0, key.1));
        for (path, expected) in [
            (books::seen_key(&key), Expected::Anything),
            (books::move_key(&key), Expected::Anything),
            (books::handover_key(&key), Expected::Anything),
            (books::placed_key(&key), books::expected(books.placed.get(&key))),
            (books::claim_key(&key), books::expected(books.claims.get(&key))),
        ] {
            if expected != Expected::Absent {
                remove(following, path, expected).await?;
            }
        }
    }
    Ok(())
}

/// Writes down how the domains of this node are, where that has changed.
async fn tell(node: &Arc<Domains>, following: &Arc<Following>, books: &Books) -> Result<(), BooksError> {
    let me = following.peers.me();
    for (key, claim) in &books.claims {
        let Some(desired) = books.desired.get(&key.0) else { continue };
        if claim.value.node != me || desired.value.topology.domain(&key.1).is_none() {
            continue;
        }
        let view = node.supervised(&key.0, &key.1).map(|supervised| supervised.view());
        let refused = following.refused_everywhere(key);
        let (seen, known) = {
            let inner = following.lock();
            let failed = refused.as_ref().or_else(|| inner.failed.get(key));
            let state = match &view {
                Some(view) if failed.is_none() || view.state.runs() => view.state.as_str(),
                _ if failed.is_some() => State::Failed.as_str(),
                _ => "not started",
            };
            let why = failed.cloned().or_else(|| view.as_ref().and_then(|view| view.why.clone()));
            let seen = Seen {
                node: me.clone(),
                state: state.to_owned(),
                ready: inner.ready.contains(key) && view.is_some() && !inner.busy.contains(key),
                failed: failed.is_some(),
                why: why.or_else(|| inner.stuck.get(key).cloned()),
                revision: desired.revision,
            };
            (seen, inner.told.get(key).cloned())
        };
        if known.as_ref() == Some(&seen) && books.seen.contains_key(key) {
            continue;
        }
        let (registry, path, value) = (following.peers.registry(), books::seen_key(key), books::bytes(&seen));
        let put = move || registry.put(&path, &value, Expected::Anything);
        written(REGISTRY.run(move || put().map(Some)).await)?;
        following.lock().told.insert(key.clone(), seen);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
