//! An activator that is a command of the user's: it is told what is in force, when its adaptation
//! begins and after each change, and never waited for.
//!
//! A task of its own runs it, one at a time. Of the changes that come meanwhile the last one
//! counts. One that fails is run again after a pause, so that in the end it has been told what is
//! so.

use super::commands::{Commands, Output};
use crate::domains::{Domains, gather, last_line};
use adaptation::Amounts;
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::runtime::Handle;
use tokio::sync::watch;
use topology::ActivatorProgram;

/// A variable that every process of an activator has, by which it is found when it is to end.
const MARK: &str = "TOMBOLO_ACTIVATOR";
/// The pause before one that failed is run again; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest such pause.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// How long the last words of one that has ended are waited for: somebody else may hold its output.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The line of JSON that the command reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Order {
    adaptation: String,
    domain: String,
    /// The amounts that it was told before, if any.
    was: Option<Amounts>,
    has: Amounts,
    why: String,
}

/// The state of an activator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct State {
    pub(super) runs: u64,
    /// Why the last run failed, if it did.
    pub(super) trouble: Option<String>,
}

/// An activator. Without this, its command ends.
#[derive(Debug)]
pub(super) struct Activator {
    told: Option<Amounts>,
    orders: watch::Sender<Option<Order>>,
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Activator {
    /// Has a task run the command as soon as there is something to tell.
    pub(super) fn begin(
        runtime: &Handle,
        node: &Arc<Domains>,
        key: &(String, String),
        activator: &ActivatorProgram,
    ) -> Self {
        let (orders, asked) = watch::channel(None);
        let state = Arc::<Mutex<State>>::default();
        let runner = Runner {
            commands: Commands::new(node, key, (&activator.domain, &activator.command), MARK),
            limit: Duration::from_millis(activator.timeout_ms),
            state: Arc::clone(&state),
        };
        runtime.spawn(runner.run(asked));
        Self { told: None, orders, state }
    }

    /// Tells what is in force, if that is another than before.
    pub(super) fn tell(&mut self, (adaptation, domain): (&str, &str), has: Amounts, why: &str) {
        if self.told == Some(has) {
            return;
        }
        let (adaptation, domain) = (adaptation.to_owned(), domain.to_owned());
        let was = self.told.replace(has);
        self.orders.send_replace(Some(Order { adaptation, domain, was, has, why: why.to_owned() }));
    }

    /// Forgets what was told.
    pub(super) fn forget(&mut self) {
        self.told = None;
        self.orders.send_if_modified(|order| order.take().is_some());
    }

    pub(super) fn state(&self) -> State {
        lock(&self.state).clone()
    }
}

/// The task of an activator.
struct Runner {
    commands: Commands,
    limit: Duration,
    state: Arc<Mutex<State>>,
}

impl Runner {
    async fn run(self, mut asked: watch::Receiver<Option<Order>>) {
        self.commands.end_former().await;
        let mut pause = FIRST_PAUSE;
        let mut has_failed = false;
        loop {
            tokio::select! {
                is_asked = asked.changed() => {
                    if is_asked.is_err() {
                        return;
                    }
                    pause = FIRST_PAUSE;
                }
                // tidy(sleep): a command that goes wrong at once would be run again and again.
                () = tokio::time::sleep(pause), if has_failed => pause = (pause * 2).min(MAX_PAUSE),
            }
            let Some(order) = asked.borrow_and_update().clone() else {
                has_failed = false;
                continue;
            };
            let done = tokio::select! {
                done = self.perform(&order) => Some(done),
                () = closed(&asked) => None,
            };
            self.commands.end().await;
            let Some(done) = done else { return };
            has_failed = done.is_err();
            let mut state = lock(&self.state);
            state.runs += 1;
            state.trouble = done.err().map(|why| format!("its activator {why}"));
        }
    }

    async fn perform(&self, order: &Order) -> Result<(), String> {
        let line = serde_json::to_string(order).unwrap_or_default() + "\n";
        let mut child = self.commands.begin(Output::Errors)?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stderr.take()) else {
            return Err("has no standard streams".to_owned());
        };
        let said = Arc::new(Mutex::new(Vec::new()));
        let mut hear = tokio::task::JoinSet::new();
        hear.spawn(gather(output, Arc::clone(&said)));
        let ended = tokio::time::timeout(self.limit, async {
            // One that reads nothing has its input closed all the same.
            let _unread = input.write_all(line.as_bytes()).await;
            drop(input);
            child.wait().await
        });
        let why = match ended.await {
            Ok(Ok(status)) if status.success() => return Ok(()),
            Ok(Ok(status)) => {
                let code = status.code().map_or_else(|| status.to_string(), |code| format!("exit {code}"));
                format!("has failed ({code})")
            }
            Ok(Err(error)) => format!("can't be awaited: {error}"),
            Err(_) => format!("has not ended within {:?}", self.limit),
        };
        let _too_late =
            tokio::time::timeout(LAST_WORDS, async { while hear.join_next().await.is_some() {} }).await;
        let said = said.lock().unwrap_or_else(PoisonError::into_inner);
        Err(last_line(&said).map_or(why.clone(), |line| format!("{why}: {line}")))
    }
}

/// Waits until nobody has orders any more.
async fn closed(asked: &watch::Receiver<Option<Order>>) {
    let mut asked = asked.clone();
    while asked.changed().await.is_ok() {}
}
