//! Watching keys: changes fan out to bounded queues, one for each watcher.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Changes that wait for one watcher. One that lags further behind is cut off and must list again.
const MAX_WAITING_CHANGES: usize = 1024;

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The registry's revision after it.
    pub revision: u64,
    /// The new value; `None`: deleted.
    pub value: Option<Vec<u8>>,
}

/// The changes below one prefix since the watch began.
#[derive(Debug)]
pub struct Watch {
    changes: Receiver<Change>,
    _wanted: std::sync::Arc<()>,
}

impl Watch {
    /// The next change, waiting for it `patience` at the most. `Ok(None)`: there was none.
    ///
    /// # Errors
    /// [`Lagged`]: this watcher was too slow (or the registry is closed); list and watch again.
    pub fn next(&self, patience: Duration) -> Result<Option<Change>, Lagged> {
        match self.changes.recv_timeout(patience) {
            Ok(change) => Ok(Some(change)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Lagged),
        }
    }
}

/// The watch ended: changes were lost. List again, and watch again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the watch ended because its reader was too slow or the registry was closed; list and watch again")]
pub struct Lagged;

/// All watchers of one registry.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<Vec<(String, SyncSender<Change>)>>);

/// The source that feeds one watcher from elsewhere.
#[derive(Debug)]
pub(crate) struct Feed {
    sender: SyncSender<Change>,
    /// Lives as long as the watcher.
    wanted: std::sync::Weak<()>,
}

impl Feed {
    /// Whether it could be told; if not, the watcher has gone or lags, and is told nothing more.
    pub(crate) fn tell(&self, change: Change) -> bool {
        self.sender.try_send(change).is_ok()
    }

    /// Whether nobody listens any more.
    pub(crate) fn is_over(&self) -> bool {
        self.wanted.strong_count() == 0
    }
}

impl Watchers {
    /// A watcher that is fed from elsewhere.
    pub(crate) fn feed() -> (Feed, Watch) {
        let (sender, receiver) = sync_channel(MAX_WAITING_CHANGES);
        let wanted = std::sync::Arc::new(());
        let feed = Feed { sender, wanted: std::sync::Arc::downgrade(&wanted) };
        (feed, Watch { changes: receiver, _wanted: wanted })
    }

    pub(crate) fn add(&self, prefix: &str) -> Watch {
        let (sender, receiver) = sync_channel(MAX_WAITING_CHANGES);
        self.lock().push((prefix.to_owned(), sender));
        Watch { changes: receiver, _wanted: std::sync::Arc::default() }
    }

    /// Tells everyone whom it concerns; drops who has gone or lags. The caller holds whatever
    /// orders its changes.
    pub(crate) fn tell(&self, change: &Change) {
        self.lock().retain(|(prefix, sender)| {
            !change.key.starts_with(prefix.as_str()) || sender.try_send(change.clone()).is_ok()
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(String, SyncSender<Change>)>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
