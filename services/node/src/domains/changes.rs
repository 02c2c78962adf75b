//! Turns of changes: one change of each distributed container at a time, and nobody waits for a
//! change of another one. A waiting change is told for whom it waits, and a change that is under
//! way can be ended.

use super::Teller;
use admin::{Code, Problem, Progress};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, watch};

/// Changes that are under way or wait, on the whole node: far more than people and programs type at
/// once.
const MAX_CHANGES: usize = 256;

/// Why a change ends before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The caller has thought better of it: what was before is restored.
    Cancelled,
    /// Somebody removes the distributed container: nothing is restored that would be removed next.
    Superseded,
}

impl Ending {
    /// The problem for the client that asked for the change.
    pub(crate) fn problem(self, dc: &str) -> Problem {
        match self {
            Self::Cancelled => Problem::new(Code::Cancelled, format!("the change of {dc} was cancelled")),
            Self::Superseded => {
                Problem::new(Code::Cancelled, format!("a `down` of {dc} ended this change of it"))
            }
        }
    }
}

/// The wish to change a distributed container.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    /// In words, as others are told who wait for it: "`up` of shop.toml".
    pub(crate) what: String,
    /// Whether a `down` ends it.
    pub(crate) gives_way: bool,
    /// By which whoever asked for it can cancel it.
    pub(crate) ticket: Option<String>,
}

/// The changes of one node.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Held together with others by each change of a distributed container, and alone by what is
    /// about all of them.
    whole: Arc<RwLock<()>>,
    /// Held alone by a change that gives promises back which it may have to restore, and for a
    /// moment by one that makes new ones.
    promises: Arc<RwLock<()>>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    turns: BTreeMap<String, Arc<tokio::sync::Mutex<()>>>,
    known: BTreeMap<u64, Known>,
    next: u64,
}

/// A change that is under way or waits.
#[derive(Debug)]
struct Known {
    dc: String,
    wish: Wish,
    ending: watch::Sender<Option<Ending>>,
    /// When its turn came.
    since: Option<Instant>,
}

/// A change whose turn it is, or that waits for it; others have theirs when it is dropped.
#[derive(Debug)]
pub(crate) struct Change {
    changes: Arc<Changes>,
    number: u64,
    ending: watch::Receiver<Option<Ending>>,
    held: Option<(OwnedRwLockReadGuard<()>, OwnedMutexGuard<()>)>,
}

impl Changes {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other change of `dc` is under way, and nobody changes what all stand on.
    ///
    /// # Errors
    /// Ended before its turn came, or too many wait.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        dc: &str,
        wish: Wish,
        teller: &Teller,
    ) -> Result<Change, Problem> {
        let mut change = self.enter(dc, wish)?;
        if let Some(text) = self.before(change.number) {
            teller.tell(Progress::Note { text }).await;
        }
        let turn = self.turn(dc);
        let whole = Arc::clone(&self.whole);
        let held = async { (whole.read_owned().await, turn.lock_owned().await) };
        change.held = Some(change.unless_ended(held).await.map_err(|ending| ending.problem(dc))?);
        if let Some(known) = self.lock().known.get_mut(&change.number) {
            known.since = Some(Instant::now());
        }
        Ok(change)
    }

    /// Makes a change known, so that it can be ended while it waits.
    fn enter(self: &Arc<Self>, dc: &str, wish: Wish) -> Result<Change, Problem> {
        let mut inner = self.lock();
        if inner.known.len() >= MAX_CHANGES {
            return Err(Problem::new(
                Code::Failed,
                format!("{MAX_CHANGES} changes are under way or wait on this node already"),
            )
            .help("wait until some are done"));
        }
        let number = inner.next;
        inner.next += 1;
        let (ending, receiver) = watch::channel(None);
        inner.known.insert(number, Known { dc: dc.to_owned(), wish, ending, since: None });
        drop(inner);
        Ok(Change { changes: Arc::clone(self), number, ending: receiver, held: None })
    }

    fn turn(&self, dc: &str) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.lock().turns.entry(dc.to_owned()).or_default())
    }

    /// For whom a change waits, if it does.
    fn before(&self, number: u64) -> Option<String> {
        let inner = self.lock();
        let me = inner.known.get(&number)?;
        let ahead = inner.known.range(..number).map(|(_, known)| known).find(|known| known.dc == me.dc);
        match ahead {
            Some(known) => {
                let since = known.since.map_or_else(
                    || ", which waits itself".to_owned(),
                    |since| format!(", under way for {:.1} s", since.elapsed().as_secs_f64()),
                );
                Some(format!("waiting for {}{since}", known.wish.what))
            }
            None if self.whole.try_read().is_err() => {
                Some("waiting for a change of what the whole node stands on".to_owned())
            }
            None => None,
        }
    }

    /// Ends the change that was begun with this ticket; says whether there is one.
    pub(crate) fn cancel(&self, ticket: &str) -> bool {
        let inner = self.lock();
        let found = inner.known.values().find(|known| known.wish.ticket.as_deref() == Some(ticket));
        if let Some(known) = found {
            known.ending.send_replace(Some(Ending::Cancelled));
        }
        found.is_some()
    }

    /// Ends what gives way to a `down` of `dc`; says what that is, in words.
    pub(crate) fn supersede(&self, dc: &str) -> Vec<String> {
        let inner = self.lock();
        let known = inner.known.values().filter(|known| known.dc == dc && known.wish.gives_way);
        known
            .map(|known| {
                known.ending.send_replace(Some(Ending::Superseded));
                known.wish.what.clone()
            })
            .collect()
    }

    /// The distributed containers that something is being done about, or will be.
    pub(crate) fn under_way(&self) -> Vec<String> {
        let inner = self.lock();
        let mut names: Vec<String> = inner.known.values().map(|known| known.dc.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The changes under way and those that wait, in the order in which they came, for the state
    /// tree.
    pub(crate) fn rows(&self) -> Vec<serde_json::Value> {
        let row = |known: &Known| {
            serde_json::json!({
                "dc": known.dc,
                "what": known.wish.what,
                "under_way_s": known.since.map(|since| since.elapsed().as_secs()),
            })
        };
        self.lock().known.values().map(row).collect()
    }

    /// Waits until no change is under way, and keeps all others waiting.
    pub(crate) async fn alone(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.whole).write_owned().await
    }

    /// For a change that gives back what it may have to restore.
    pub(crate) async fn giving_back(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.promises).write_owned().await
    }

    /// For a change that asks for promises, until it has them.
    pub(crate) async fn asking(&self) -> OwnedRwLockReadGuard<()> {
        Arc::clone(&self.promises).read_owned().await
    }
}

impl Change {
    /// Why it is to end, if it is.
    pub(crate) fn ending(&self) -> Option<Ending> {
        *self.ending.borrow()
    }

    /// Comes back when it is to end.
    pub(crate) async fn ended(&self) -> Ending {
        let mut ending = self.ending.clone();
        let found = ending.wait_for(Option::is_some).await.map(|ending| *ending);
        match found {
            Ok(Some(ending)) => ending,
            // It is known for as long as it lives.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Does what can be left at any moment.
    ///
    /// # Errors
    /// It is to end, and did before that was done.
    pub(crate) async fn unless_ended<T>(&self, work: impl Future<Output = T>) -> Result<T, Ending> {
        tokio::select! {
            biased;
            ending = self.ended() => Err(ending),
            done = work => Ok(done),
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.held = None;
        let mut inner = self.changes.lock();
        let Some(gone) = inner.known.remove(&self.number) else { return };
        if !inner.known.values().any(|known| known.dc == gone.dc) {
            inner.turns.remove(&gone.dc);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    fn wish(what: &str) -> Wish {
        Wish { what: what.into(), gives_way: what.starts_with("`up`"), ticket: Some(what.into()) }
    }

    fn teller() -> (Teller, mpsc::Receiver<Progress>) {
        let (lines, told) = mpsc::channel(8);
        (Teller::new(lines), told)
    }

    #[tokio::test]
    async fn changes_of_two_do_not_wait_for_each_other_and_who_waits_is_told_for_whom() {
        let changes = Arc::new(Changes::default());
        let (teller, mut told) = teller();
        let first = changes.begin("shop", wish("`up` of a.toml"), &teller).await.expect("its turn");
        let other = changes.begin("lab", wish("`up` of b.toml"), &teller).await.expect("nobody is before it");
        assert!(told.try_recv().is_err(), "nobody had to wait");
        let second = {
            let (changes, teller) = (Arc::clone(&changes), teller.clone());
            tokio::spawn(async move { changes.begin("shop", wish("`up` of c.toml"), &teller).await })
        };
        match told.recv().await {
            Some(Progress::Note { text }) => {
                assert!(text.starts_with("waiting for `up` of a.toml, under way for "), "{text}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(changes.under_way(), ["lab", "shop"]);
        drop(first);
        let second = second.await.expect("it ends").expect("its turn");
        assert!(second.ending().is_none() && other.ending().is_none());
        drop((second, other));
        assert!(changes.under_way().is_empty() && changes.lock().turns.is_empty(), "nothing is left");
    }

    #[tokio::test]
    async fn what_waits_and_what_is_under_way_can_be_ended() {
        let changes = Arc::new(Changes::default());
        let (teller, mut told) = teller();
        let first = changes.begin("shop", wish("`up` of a.toml"), &teller).await.expect("its turn");
        let second = {
            let (changes, teller) = (Arc::clone(&changes), teller.clone());
            tokio::spawn(async move { changes.begin("shop", wish("`up` of c.toml"), &teller).await })
        };
        told.recv().await.expect("it waits");
        assert!(changes.cancel("`up` of c.toml") && !changes.cancel("`up` of d.toml"));
        let refused = second.await.expect("it ends").expect_err("it was cancelled");
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (Code::Cancelled, "the change of shop was cancelled")
        );
        assert_eq!(first.ending(), None);
        assert_eq!(changes.supersede("shop"), ["`up` of a.toml"]);
        assert_eq!(first.unless_ended(std::future::pending::<()>()).await, Err(Ending::Superseded));
        let removal = Wish { what: "`down` of shop".into(), gives_way: false, ticket: None };
        drop(first);
        let removal = changes.begin("shop", removal, &teller).await.expect("its turn");
        assert!(changes.supersede("shop").is_empty() && removal.ending().is_none(), "a `down` is not ended");
    }

    #[tokio::test]
    async fn what_is_about_all_waits_for_all() {
        let changes = Arc::new(Changes::default());
        let (teller, mut told) = teller();
        let alone = changes.alone().await;
        let first = {
            let (changes, teller) = (Arc::clone(&changes), teller.clone());
            tokio::spawn(async move { changes.begin("shop", wish("`up` of a.toml"), &teller).await })
        };
        assert!(
            matches!(told.recv().await, Some(Progress::Note { text }) if text.contains("the whole node"))
        );
        drop(alone);
        first.await.expect("it ends").expect("its turn");
    }
}
