//! Looking after those who keep promises: a dispatcher that died is followed by another one, a
//! quota that somebody else has set is set back, and it is told when the machine slept.

use super::Book;
use super::sleeps::{Reading, Watcher};
use crate::base::BOOK;
use crate::base::watched;
use enforce::Kind;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;

/// Between two looks at whether somebody else sets quotas: as long as a person takes to wonder.
const LOOK: Duration = Duration::from_secs(1);
/// Pause before another dispatcher is tried, where none came up; doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(10);

impl Book {
    /// The processes of dispatchers.
    fn dispatchers(&self) -> Vec<(Kind, u32)> {
        self.lock().dispatchers.about().into_iter().map(|about| (about.kind, about.pid)).collect()
    }

    /// Another one in the place of one that died.
    fn follow(&self, kind: Kind, dead: u32) -> Result<(), String> {
        let mut state = self.lock();
        state.dispatchers.revive_after(kind, dead, &self.there()).map_err(|error| error.to_string())
    }

    /// Sets back what somebody else has set, and has the weights follow who wants the processor.
    fn look_for_others(&self) {
        self.actuator.look_for_others();
        self.actuator.adjust();
    }

    /// Whether anything is kept that has to be looked after.
    fn is_in_use(&self) -> bool {
        self.actuator.watches() || self.lock().entries.values().any(|entry| entry.in_force)
    }

    /// The machine slept: whoever was promised something has had nothing, and is told.
    fn slept(&self, ns: u64) {
        let mut state = self.lock();
        state.entries.values_mut().filter(|entry| entry.in_force).for_each(|entry| entry.slept.add(ns));
    }
}

/// Looks after them for as long as the daemon lives.
pub(crate) async fn look_after(book: Arc<Book>) {
    let changed = book.lock().dispatchers.changed();
    let mut pause = FIRST_PAUSE;
    let mut sleeps = Watcher::default();
    loop {
        let (seen, is_in_use) = {
            let book = Arc::clone(&book);
            BOOK.run(move || (book.dispatchers(), book.is_in_use())).await.unwrap_or_default()
        };
        if let Some(ns) = sleeps.look(Reading::now()) {
            tracing::warn!(ns, "the machine slept: nobody had what is promised meanwhile");
            let book = Arc::clone(&book);
            let noted = BOOK.run(move || book.slept(ns)).await;
            if let Err(error) = noted {
                tracing::error!(error, "nobody is told that the machine slept");
            }
        }
        tokio::select! {
            () = changed.notified() => {}
            // tidy(sleep): nothing tells that somebody else writes to a file of the kernel's, or
            // that the machine slept.
            () = tokio::time::sleep(LOOK), if is_in_use => {
                let book = Arc::clone(&book);
                let looked = BOOK.run(move || {
                    book.mark_all();
                    book.look_for_others();
                })
                .await;
                if let Err(error) = looked {
                    tracing::error!(error, "nobody looks for others who set quotas");
                }
            }
            Some((kind, pid)) = one_has_died(&seen) => {
                let book = Arc::clone(&book);
                match BOOK.run(move || book.follow(kind, pid)).await {
                    Ok(Ok(())) => pause = FIRST_PAUSE,
                    Ok(Err(error)) | Err(error) => {
                        tracing::error!(%kind, error, "no other dispatcher goes on; whom it kept has no promise until one does");
                        // tidy(sleep): what is missing for one tells nobody when it is there.
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(MAX_PAUSE);
                    }
                }
            }
        }
    }
}

/// Waits until one of these processes has ended; `None` at once where there is none.
async fn one_has_died(processes: &[(Kind, u32)]) -> Option<(Kind, u32)> {
    let mut waits = tokio::task::JoinSet::new();
    for &(kind, pid) in processes {
        let opened = sys::process::pidfd_open(pid);
        waits.spawn(async move {
            if let Ok(Ok(descriptor)) = opened.map(|opened| watched(opened, Interest::READABLE))
                && let Err(error) = descriptor.readable().await
            {
                tracing::error!(%kind, pid, %error, "the end of a dispatcher can't be awaited");
            }
            (kind, pid)
        });
    }
    waits.join_next().await?.ok()
}
