//! Promises in a cluster: each node tells what it has and has promised, refuses what is strict and
//! can't be kept, and lets go of what it no longer runs.

use super::books::{self, At, Books, BooksError};
use super::{Following, Key, spawn_for, written};
use crate::admin::FreeRow;
use crate::base::{BOOK, REGISTRY};
use crate::domains::Domains;
use crate::reservations::{Ground, Offer, Refused};
use placement::Promises;
use registry::Expected;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use topology::{Domain, Topology};

/// How long a refusal holds where nothing tells that it is over: what a machine can do may change
/// without a sign.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// How long whoever changes what this node has waits until the cluster knows.
const TELL_TIMEOUT: Duration = Duration::from_secs(5);

/// The refusal of this node to run a domain whose promise is strict.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) why: String,
    /// Of which revision of what is desired.
    revision: u64,
    ground: Ground,
    since: Instant,
}

impl Following {
    /// Why a domain that was refused here is nowhere else either.
    pub(crate) fn refused_everywhere(&self, key: &Key) -> Option<String> {
        let inner = self.lock();
        inner.refused.get(key).and_then(|_| inner.stuck.get(key).cloned())
    }

    pub(super) fn has_refused(&self, key: &Key) -> bool {
        self.lock().refused.contains_key(key)
    }

    /// Returns the amounts that each node may still promise, by its offer and the bookings on it.
    pub(crate) fn free(&self) -> BTreeMap<String, FreeRow> {
        let cluster = self.cluster(&self.books(), None);
        let row = |free: placement::Free| FreeRow {
            processors_ppm: free.processors_ppm,
            network_bits: free.network_bits,
            memory_bytes: free.memory_bytes,
            disk_bytes: free.disk_bytes,
            disk_operations: free.disk_operations,
        };
        let names = cluster.nodes().iter().map(|node| &node.name);
        names.filter_map(|name| Some((name.clone(), row(cluster.promisable(name)?)))).collect()
    }

    /// Returns the promises of all nodes, by their offers and, of this one, by its table.
    pub(super) fn promises(&self, books: &Books) -> BTreeMap<String, Arc<Promises>> {
        let mut promises = books.promises.clone();
        let inner = self.lock();
        let of_now = inner.refused.iter().filter(|(key, refusal)| is_of_now(books, key, refusal));
        let mut own = of_now.peekable();
        if own.peek().is_some() {
            let mine = Arc::make_mut(promises.entry(self.peers.me()).or_default());
            mine.refused
                .extend(own.map(|((dc, domain), refusal)| (format!("{dc}/{domain}"), refusal.why.clone())));
        }
        promises
    }
}

fn is_of_now(books: &Books, (dc, domain): &Key, refusal: &Refusal) -> bool {
    books
        .desired
        .get(dc)
        .is_some_and(|at| at.revision == refusal.revision && at.value.topology.domain(domain).is_some())
}

/// Takes note of whom this node has refused, and forgets whom it may run now.
pub(super) async fn take_note(node: &Arc<Domains>, following: &Arc<Following>, books: &Books) {
    let new = strict(books)
        .filter(|(key, _)| following.book.has_refused(&name_of(key)) && !following.lock().busy.contains(key));
    for (key, revision) in new.collect::<Vec<_>>() {
        let Some(why) = following.book.take_refusal(&name_of(&key)) else { continue };
        tracing::error!(dc = key.0, domain = key.1, why, "it is strict, and refused here");
        let refusal = Refusal { why, revision, ground: following.book.ground(), since: Instant::now() };
        following.lock().refused.insert(key.clone(), refusal);
        end(node, following, &key);
    }
    if following.lock().refused.is_empty() {
        return;
    }
    let ground = {
        let book = Arc::clone(&following.book);
        BOOK.run(move || book.ground()).await
    };
    let Ok(ground) = ground else { return };
    following.lock().refused.retain(|key, refusal| {
        is_of_now(books, key, refusal)
            && !ground.may_have_more(&refusal.ground)
            && refusal.since.elapsed() < REFUSED_FOR
    });
}

/// The domains whose promise is strict, and the revision that says so.
fn strict(books: &Books) -> impl Iterator<Item = (Key, u64)> {
    books.desired.iter().flat_map(|(dc, desired)| {
        let domains = desired.value.topology.domains.iter();
        let strict = domains.filter(|domain| domain.reserve.as_ref().is_some_and(|reserve| reserve.strict));
        strict.map(|domain| ((dc.clone(), domain.name.as_str().to_owned()), desired.revision))
    })
}

fn name_of((dc, domain): &Key) -> String {
    format!("{dc}/{domain}")
}

/// Ends what is left of a domain here that was refused.
pub(super) fn end(node: &Arc<Domains>, following: &Arc<Following>, key: &Key) {
    let Some(supervised) = node.supervised(&key.0, &key.1) else { return };
    let of = key.clone();
    following.lock().ready.remove(key);
    spawn_for(following, key, async move {
        if let Err(error) = supervised.stop().await {
            tracing::error!(dc = of.0, domain = of.1, error, "what was refused can't be removed");
        }
    });
}

/// Writes down what this node has and has promised, where that has changed.
pub(super) async fn tell(following: &Arc<Following>, books: &Books) -> Result<(), BooksError> {
    let me = following.peers.me();
    let changes = *following.book.changes().borrow();
    let book = Arc::clone(&following.book);
    let offer = BOOK.run(move || book.offer()).await;
    let mut offer =
        offer.map_err(|why| BooksError::Unreadable { key: "the book of reservations".into(), why })?;
    offer.incarnation = following.peers.incarnation();
    offer.refused = {
        let inner = following.lock();
        let told = |(key, refusal): (&Key, &Refusal)| {
            (name_of(key), Refused { why: refusal.why.clone(), revision: refusal.revision })
        };
        inner.refused.iter().map(told).collect()
    };
    if books.offers.get(&me).is_some_and(|known| known.value == offer) {
        following.told_promises.send_replace(changes);
        return Ok(());
    }
    let (peers, path, value) = (Arc::clone(&following.peers), books::offer_key(&me), books::bytes(&offer));
    // It is this node's alone.
    let put = move || peers.put_leased(&path, &value, Expected::Anything);
    written(REGISTRY.run(move || put().map(Some)).await)?;
    following.told_promises.send_replace(changes);
    Ok(())
}

impl Following {
    /// Comes back when the cluster has been told all that the book says now; or when that takes so
    /// long that it is told some time later.
    pub(crate) async fn has_told(&self) {
        let changes = *self.book.changes().borrow();
        let mut told = self.told_promises.subscribe();
        let waited = told.wait_for(|told| *told >= changes);
        if !matches!(tokio::time::timeout(TELL_TIMEOUT, waited).await, Ok(Ok(_))) {
            tracing::warn!("other nodes are told later what this one can promise now");
        }
    }
}

/// Promises of domains that this node no longer runs end here, and what runs without its promise
/// gets it where there is room now.
pub(super) async fn follow_book(node: &Arc<Domains>, following: &Arc<Following>, books: &Books) {
    let me = following.peers.me();
    let is_left = |key: &Key| {
        books.claims.get(key).is_none_or(|claim| claim.value.node != me)
            && node.supervised(&key.0, &key.1).is_none()
            && !following.is_busy(key)
    };
    for key in following.book.domains().iter().filter(|key| is_left(key)) {
        let (book, name) = (Arc::clone(&following.book), name_of(key));
        if let Err(error) = BOOK.run(move || book.leave(&name)).await {
            tracing::error!(error, "a promise can't be ended");
        }
    }
    let changes = *following.book.changes().borrow();
    if std::mem::replace(&mut following.lock().looked_at, changes) == changes {
        return;
    }
    for key in following.book.domains_without() {
        let domain = books.desired.get(&key.0).and_then(|desired| desired.value.topology.domain(&key.1));
        if let Some(domain) = domain
            && node.supervised(&key.0, &key.1).is_some()
            && !following.lock().busy.contains(&key)
        {
            try_again(node, following, &key, domain).await;
        }
    }
}

async fn try_again(node: &Arc<Domains>, following: &Following, key: &Key, domain: &Domain) {
    let (of, name, domain) = (key.0.clone(), name_of(key), domain.clone());
    let (node, book) = (Arc::clone(node), Arc::clone(&following.book));
    let kept = BOOK.run(move || {
        book.enter_one(&of, &domain, node.cgroup())?;
        if book.without(&name).is_some() {
            return Ok(());
        }
        tracing::info!(name, "there is room for its promise now");
        book.keep(&name)
    });
    if let Err(why) = kept.await.and_then(|kept| kept) {
        tracing::warn!(dc = key.0, domain = key.1, why, "it goes on without its promise");
    }
}

/// Enters what the domains that run here are promised by a file that has changed.
pub(super) async fn enter_changed(node: &Arc<Domains>, following: &Following, dc: &str, topology: &Topology) {
    for domain in &topology.domains {
        if node.supervised(dc, domain.name.as_str()).is_some() {
            // Of one that is refused the book keeps a note, of which the next pass takes note.
            if let Err(why) = enter(node, following, dc, domain).await {
                tracing::warn!(
                    dc,
                    domain = domain.name.as_str(),
                    why,
                    "it can't be promised what its file says now"
                );
            }
        }
    }
}

/// Enters what one domain is promised that this node is about to run.
///
/// # Errors
/// Why it is refused.
pub(super) async fn enter(
    node: &Arc<Domains>,
    following: &Following,
    dc: &str,
    domain: &Domain,
) -> Result<(), String> {
    let (node, dc, domain) = (Arc::clone(node), dc.to_owned(), domain.clone());
    let book = Arc::clone(&following.book);
    BOOK.run(move || book.enter_one(&dc, &domain, node.cgroup())).await?
}

/// Returns the offers of nodes for placement.
pub(super) fn of_offers(
    offers: &BTreeMap<String, At<Offer>>,
    revision_of: impl Fn(&str) -> Option<u64>,
) -> BTreeMap<String, Arc<Promises>> {
    let one =
        |(node, offer): (&String, &At<Offer>)| (node.clone(), Arc::new(offer.value.promises(&revision_of)));
    offers.iter().map(one).collect()
}
