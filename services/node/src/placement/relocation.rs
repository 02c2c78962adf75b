//! This node's part in planned moves: it ends what leaves, starts what comes, and takes back what
//! does not come up elsewhere.

use super::books::{self, At, Books, BooksError, Moving};
use super::{Following, Key, handover, put_placed, remove, spawn_for, written};
use crate::base::{BOOK, REGISTRY};
use crate::domains::Domains;
use placement::{Duty, Relocation, Standing, Start, Step, duty};
use std::sync::Arc;
use std::time::Instant;

impl Following {
    /// How a domain that is claimed here is, and why it failed, where it did.
    fn start_of(&self, node: &Domains, key: &Key) -> (Start, Option<String>) {
        let inner = self.lock();
        let failed =
            inner.failed.get(key).cloned().or_else(|| inner.refused.get(key).map(|it| it.why.clone()));
        if let Some(why) = failed {
            return (Start::Failed, Some(why));
        }
        let ready = inner.ready.contains(key) && node.supervised(&key.0, &key.1).is_some();
        (if ready { Start::Ready } else { Start::Pending }, None)
    }

    fn is_lost(&self, node: &str) -> bool {
        self.peers
            .nodes()
            .iter()
            .find(|other| other.name == node)
            .is_none_or(|it| it.standing == Standing::Lost)
    }
}

/// Does what a planned move asks of this node. Says whether that is all that is to be done about
/// the domain for now.
pub(super) async fn follow(
    node: &Arc<Domains>,
    following: &Arc<Following>,
    books: &Arc<Books>,
    key: &Key,
) -> Result<bool, BooksError> {
    let Some((moving, step)) =
        books.moves.get(key).and_then(|at| Some((at.clone(), Step::parse(&at.value.step)?)))
    else {
        return Ok(false);
    };
    let me = following.peers.me();
    let (from, to) = (moving.value.from.clone(), moving.value.to.clone());
    let (start, failed) = following.start_of(node, key);
    let relocation = Relocation { from: &from, to: &to, step };
    match duty(&me, relocation, &books.assigned(key), start, |name| following.is_lost(name)) {
        Duty::None => return Ok(false),
        Duty::Give => give(node, following, books, key, moving),
        Duty::HandOn => hand_on(node, following, books, key, if step == Step::Back { from } else { to }),
        Duty::PlaceHere => {
            put_placed(following, key, &me, books::expected(books.placed.get(key))).await?;
        }
        Duty::Set(next) => {
            let why = failed.or_else(|| why(step, next, &me, &from, &to));
            set(following, key, &moving, next, why).await?;
        }
        Duty::TakeBack => {
            let why = Some(format!("node {to} is lost"));
            if set(following, key, &moving, Step::Back, why).await?.is_some() {
                put_placed(following, key, &me, books::expected(books.placed.get(key))).await?;
            }
        }
    }
    following.poke();
    Ok(true)
}

/// Why a move takes another turn, where no start says so.
fn why(step: Step, next: Step, me: &str, from: &str, to: &str) -> Option<String> {
    match next {
        Step::Back => Some(format!("node {to} is lost")),
        Step::Failed if me == from || me == to => Some(if step == Step::Back {
            format!("node {from} is lost")
        } else {
            format!("node {me} had it already")
        }),
        Step::Failed => Some(format!("its node was lost, and {me} took it over")),
        _ => None,
    }
}

/// Sets the step of a move, unless somebody else has set it since.
pub(super) async fn set(
    following: &Arc<Following>,
    key: &Key,
    moving: &At<Moving>,
    next: Step,
    why: Option<String>,
) -> Result<Option<At<Moving>>, BooksError> {
    let mut value = Moving { step: next.as_str().to_owned(), ..moving.value.clone() };
    if let Some(why) = why {
        let before = value.why.take().filter(|_| next == Step::Failed);
        value.why = Some(before.map_or_else(|| why.clone(), |before| format!("{before}; then {why}")));
    }
    if next == Step::Taken {
        following.lock().took.insert(key.clone(), Instant::now());
    }
    if next.is_last() {
        let took = following.lock().took.remove(key);
        value.began_ms = took.filter(|_| next == Step::Done).map(ms_since);
    }
    put(following, key, value, registry::Expected::Revision(moving.revision)).await
}

/// Writes the record of a move.
pub(super) async fn put(
    following: &Arc<Following>,
    key: &Key,
    value: Moving,
    expected: registry::Expected,
) -> Result<Option<At<Moving>>, BooksError> {
    let (registry, path, bytes) = (following.peers.registry(), books::move_key(key), books::bytes(&value));
    let put = move || books::unless_conflict(registry.put(&path, &bytes, expected));
    let revision = written(REGISTRY.run(put).await)?;
    following.poke();
    tracing::info!(dc = key.0, domain = key.1, step = value.step, why = value.why, "a planned move goes on");
    Ok(revision.map(|revision| At { value, revision }))
}

fn ms_since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Ends a domain here as its file says, and gives it to the other node.
fn give(
    node: &Arc<Domains>,
    following: &Arc<Following>,
    books: &Arc<Books>,
    key: &Key,
    mut moving: At<Moving>,
) {
    let supervised = node.supervised(&key.0, &key.1);
    let (node, following_too, books, of) =
        (Arc::clone(node), Arc::clone(following), Arc::clone(books), key.clone());
    spawn_for(following, key, async move {
        let begun = Instant::now();
        let mut next = (Step::Given, None);
        if let Some(supervised) = supervised
            && let Err(error) = supervised.stop().await
        {
            next = (Step::Failed, Some(format!("it can't be ended where it is: {error}")));
        }
        // Before anything says that it has ended: whoever repeats this finds the file, or that it
        // was sent.
        if let Err(why) = handover::send(&node, &following_too, &of).await {
            tracing::warn!(
                dc = of.0,
                domain = of.1,
                why,
                "what it left can't be sent on yet, so it does not move yet"
            );
            return;
        }
        moving.value.ended_ms = Some(ms_since(begun));
        let given = match set(&following_too, &of, &moving, next.0, next.1).await {
            Ok(given) => given.is_some() && next.0 == Step::Given,
            Err(error) => {
                tracing::warn!(dc = of.0, domain = of.1, %error, "its move can't be written down now");
                false
            }
        };
        // Whoever was quicker has decided otherwise: the next pass sees how.
        if given {
            let_go(&node, &following_too, &books, &of, &moving.value.to).await;
        }
    });
}

/// Ends what is left of a domain here, which is the other node's.
fn hand_on(node: &Arc<Domains>, following: &Arc<Following>, books: &Arc<Books>, key: &Key, heir: String) {
    let supervised = node.supervised(&key.0, &key.1);
    let (node, following_too, books, of) =
        (Arc::clone(node), Arc::clone(following), Arc::clone(books), key.clone());
    spawn_for(following, key, async move {
        if let Some(supervised) = supervised
            && let Err(error) = supervised.stop().await
        {
            tracing::error!(dc = of.0, domain = of.1, error, "what is left of it can't be removed");
            return;
        }
        let_go(&node, &following_too, &books, &of, &heir).await;
    });
}

/// Gives a domain that has ended here to another node, and lets go of the claim.
pub(super) async fn let_go(
    node: &Arc<Domains>,
    following: &Arc<Following>,
    books: &Books,
    of: &Key,
    heir: &str,
) {
    if let Err(why) = handover::send(node, following, of).await {
        tracing::warn!(
            dc = of.0,
            domain = of.1,
            why,
            "what it left can't be sent on yet, so it does not leave yet"
        );
        return;
    }
    {
        let mut inner = following.lock();
        inner.ready.remove(of);
        inner.failed.remove(of);
    }
    let (book, name) = (Arc::clone(&following.book), format!("{}/{}", of.0, of.1));
    if let Err(error) = BOOK.run(move || book.leave(&name)).await {
        tracing::error!(error, "a promise can't be ended");
    }
    let moved = async {
        let given = put_placed(following, of, heir, books::expected(books.placed.get(of))).await?;
        if let (Some(_), Some(claim)) = (given, books.claims.get(of)) {
            let expected = registry::Expected::Revision(claim.revision);
            remove(following, books::claim_key(of), expected).await?;
        }
        Ok::<(), BooksError>(())
    };
    if let Err(error) = moved.await {
        tracing::warn!(dc = of.0, domain = of.1, %error, "it can't be given to another node now");
    }
}
