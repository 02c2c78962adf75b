//! A node's etcd member, kept: found or started, started again when it ends, ended when somebody
//! says so.
//!
//! It outlives the daemon (`docs/adr/0075-a-cluster-brings-its-own-etcd.md` says why). The next one
//! finds it.

use super::server::{self, Ground, Process};
use crate::base::{MEMBER, watched};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::sync::watch;

/// Pause after a member has ended; it doubles up to [`PAUSE_MAX`] while it ends soon.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A member that has lived so long has not ended soon.
const LIVED: Duration = Duration::from_secs(30);
/// How often the size of its log is looked at.
const LOOK_AT_LOG: Duration = Duration::from_secs(60);

/// The wanted state of the member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order {
    runs: bool,
    /// Grows when it is to start anew.
    generation: u64,
}

/// The known state of the member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Its process.
    pub(crate) pid: Option<u32>,
    /// How often it was started again by this daemon.
    pub(crate) restarts: u64,
    /// Why it does not run.
    pub(crate) why: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Keeper {
    ground: Arc<Ground>,
    order: watch::Sender<Order>,
    /// Whether a process runs that was to.
    runs: watch::Sender<bool>,
    seen: Mutex<Seen>,
}

impl Keeper {
    /// Of the member on this node; nothing is done before [`Keeper::keep`].
    pub(crate) fn new(ground: Arc<Ground>, runs: bool) -> Arc<Self> {
        let order = watch::Sender::new(Order { runs, generation: 0 });
        Arc::new(Self { ground, order, runs: watch::Sender::new(false), seen: Mutex::default() })
    }

    pub(crate) fn ground(&self) -> &Arc<Ground> {
        &self.ground
    }

    pub(crate) fn seen(&self) -> Seen {
        self.see().clone()
    }

    fn see(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it run from now on.
    pub(crate) fn run(&self) {
        self.order.send_modify(|order| order.runs = true);
    }

    /// Has it start anew: it takes up what it reads only then.
    pub(crate) fn start_anew(&self) {
        self.order.send_modify(|order| order.generation += 1);
    }

    /// Ends it, and waits until it has ended.
    pub(crate) async fn stop(&self) {
        self.order.send_modify(|order| order.runs = false);
        let mut runs = self.runs.subscribe();
        // The sender is a part of this, so the wait ends by what is waited for.
        let _ended = runs.wait_for(|runs| !*runs).await;
    }

    /// Keeps it, for as long as this is polled.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut orders = self.order.subscribe();
        let mut pause = PAUSE_MIN;
        loop {
            if !orders.borrow_and_update().runs {
                self.runs.send_replace(false);
                if orders.changed().await.is_err() {
                    return;
                }
                continue;
            }
            self.runs.send_replace(true);
            let begun = Instant::now();
            let ended = self.serve(&mut orders).await;
            self.see().pid = None;
            let Err(why) = ended else {
                pause = PAUSE_MIN;
                continue;
            };
            let (why, words) = (why.to_string(), self.ground.room().last_words());
            tracing::warn!(why, words, "the etcd member of this node does not run, and is started again");
            {
                let mut seen = self.see();
                seen.why = Some(if words.is_empty() { why } else { format!("{why}; it said last: {words}") });
                seen.restarts += 1;
            }
            pause = if begun.elapsed() > LIVED { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
            tokio::select! {
                // tidy(sleep): nothing tells when a member would do better.
                () = tokio::time::sleep(pause) => {}
                _ = orders.changed() => {}
            }
        }
    }

    /// Until it is ordered to end, or to start anew, and has ended; an error: it ended by itself,
    /// or can't be started.
    async fn serve(&self, orders: &mut watch::Receiver<Order>) -> io::Result<()> {
        let ground = Arc::clone(&self.ground);
        let started = MEMBER.run(move || {
            let record =
                ground.room().record()?.ok_or_else(|| io::Error::other("no member was begun here"))?;
            server::find_or_start(&ground, &record)
        });
        let Process { pid, descriptor } = started.await.map_err(io::Error::other)??;
        tracing::info!(pid, "the etcd member of this node runs");
        {
            let mut seen = self.see();
            (seen.pid, seen.why) = (Some(pid), None);
        }
        let descriptor = watched(descriptor, Interest::READABLE)?;
        let mut log = tokio::time::interval(LOOK_AT_LOG);
        let by_itself = loop {
            tokio::select! {
                ended = descriptor.readable() => {
                    drop(ended?);
                    break true;
                }
                changed = orders.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    break false;
                }
                _ = log.tick() => {
                    if let Err(error) = self.ground.room().log() {
                        tracing::warn!(%error, "the log of the etcd member can't be looked after");
                    }
                }
            }
        };
        let (ground, process) =
            (Arc::clone(&self.ground), Process { pid, descriptor: unwatched(descriptor) });
        let ended = MEMBER.run(move || {
            if by_itself {
                server::reap(&process);
                return Ok(());
            }
            server::end(&ground, &process)
        });
        ended.await.map_err(io::Error::other)??;
        if by_itself { Err(io::Error::other("it has ended by itself (killed?)")) } else { Ok(()) }
    }
}

fn unwatched(descriptor: tokio::io::unix::AsyncFd<OwnedFd>) -> OwnedFd {
    descriptor.into_inner()
}
