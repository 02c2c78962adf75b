//! The duties of every kind of channel, whatever its ends are made of: memfds and pipes, the device
//! of a guest, or memory that another hypervisor shares. One suite of scenarios, each of which has
//! two halves: the *near* one leads and judges, the *far* one answers (and judges what it sees).
//!
//! [`run`] has both halves of a scenario in two threads. Two programs that have met anyhow run one
//! half each, by [`Scenario::near`] and
//! [`Scenario::far`]: so the ends can be in two machines. Each scenario wants a fresh channel; the order is that of [`SCENARIOS`].
//!
//! [`links`] is another suite: what every transport of links between nodes has to do.
//!
//! Whatever a half waits for, it waits for [`TIMEOUT`] at most: a kind that loses a wake-up fails,
//! and hangs nobody.

mod closing;
pub mod enforcers;
pub mod fake;
mod hostile;
pub mod links;
mod loops;
mod memory;
mod messages;
mod party;
mod streams;
pub mod views;
mod waiting;

use std::time::{Duration, Instant};

use channel::{Receiver, Sender};

pub use party::{Given, Party};

/// How long a half waits for the other at a time: long enough for an emulated machine under load.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Why a half did not do what it should.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// This kind of end, or this machine, can't do what the scenario is about.
    #[error("skipped: {0}")]
    Skipped(String),
    /// It did something else.
    #[error("{0}")]
    Wrong(String),
}

impl Failure {
    fn wrong(text: impl Into<String>) -> Failure {
        Failure::Wrong(text.into())
    }

    /// Names what was being done when something else went wrong.
    fn during(what: &str) -> impl FnOnce(&dyn std::error::Error) -> Failure {
        let what = what.to_owned();
        move |error| Failure::Wrong(format!("{what}: {}", chain(error)))
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The outcome of a half.
pub type Done = Result<(), Failure>;

/// Says what was being done when it went wrong.
trait Doing<T> {
    fn doing(self, what: &str) -> Result<T, Failure>;
}

impl<T, E: std::error::Error> Doing<T> for Result<T, E> {
    fn doing(self, what: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure::during(what)(&error))
    }
}

/// Judges.
fn ensure(holds: bool, what: impl FnOnce() -> String) -> Done {
    if holds { Ok(()) } else { Err(Failure::Wrong(what())) }
}

fn deadline() -> Option<Instant> {
    Some(Instant::now() + TIMEOUT)
}

/// One thing that a channel does.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The name of it.
    pub name: &'static str,
    near: fn(Box<dyn Party>) -> Done,
    far: fn(Box<dyn Party>) -> Done,
}

impl Scenario {
    /// The half that leads.
    ///
    /// # Errors
    /// The check that did not hold.
    pub fn near(&self, end: impl Party + 'static) -> Done {
        (self.near)(Box::new(end))
    }

    /// The half that answers.
    ///
    /// # Errors
    /// The check that did not hold.
    pub fn far(&self, end: impl Party + 'static) -> Done {
        (self.far)(Box::new(end))
    }
}

/// Scenarios from a list of `name: module::{near, far}`.
macro_rules! scenarios {
    ($($name:literal: $near:path, $far:path;)*) => {
        &[$(Scenario { name: $name, near: $near, far: $far }),*]
    };
}

/// The suite.
pub const SCENARIOS: &[Scenario] = scenarios! {
    "atomic accesses are atomic": memory::counts, memory::counts;
    "fences are fences": memory::fences, memory::fences;
    "questions are answered": messages::asks, messages::answers;
    "messages of all lengths arrive whole and in order": messages::floods, messages::takes;
    "both directions at once": messages::both, messages::both;
    "batches": messages::batches, messages::takes;
    "messages in pieces, and one that is abandoned": messages::sends_pieces, messages::takes_pieces;
    "written and read in place": messages::lends, messages::takes;
    "streams": streams::writes, streams::reads;
    "streams that end one way first": streams::ends, streams::answers_the_end;
    "nobody is rung who is awake": waiting::polls, waiting::polls;
    "sleepers are woken": waiting::asks_asleep, waiting::answers_asleep;
    "deadlines pass, and room wakes": waiting::lets_deadlines_pass, waiting::waits_for_room;
    "a close from another thread wakes its own end": waiting::is_closed_by_a_thread, waiting::waits_for_the_end;
    "an event loop, level-triggered": loops::asks, loops::answers_by_poll;
    "an event loop, edge-triggered": loops::asks, loops::answers_by_edges;
    "a runtime": loops::asks_with_tokio, loops::answers_with_tokio;
    "a close: what was sent is received": closing::sends_and_closes, closing::receives_and_ends;
    "the far end closes": closing::learns_of_the_close, closing::closes;
    "the near end dies": closing::dies, closing::receives_and_ends;
    "the far end dies while it is waited for": closing::learns_of_the_close, closing::dies_when_told;
    "the far end dies while it is sent to": closing::floods_until_the_end, closing::dies_when_told;
    "a record that is none": hostile::writes_nonsense, hostile::refuses_nonsense;
    "an index that is none": hostile::consumes_nonsense, hostile::refuses_to_send;
    "a peer that writes whatever it likes": hostile::scribbles, hostile::stands_scribbles;
};

/// Runs both halves of a scenario, in two threads.
///
/// # Errors
/// The failure of the half that reported one first; of two, of the one that did not merely find the
/// other gone.
pub fn run(scenario: &Scenario, near: impl Party + 'static, far: impl Party + 'static) -> Done {
    let far_half = std::thread::Builder::new().name("far".into()).spawn({
        let scenario = *scenario;
        move || scenario.far(far)
    });
    let far_half = far_half.doing("start a thread")?;
    let near = scenario.near(near);
    let far = far_half.join().unwrap_or_else(|_| Err(Failure::wrong("the far half panicked")));
    match (near, far) {
        (Ok(()), Ok(())) => Ok(()),
        (Err(Failure::Skipped(why)), _) | (_, Err(Failure::Skipped(why))) => Err(Failure::Skipped(why)),
        (near, far) => {
            let word = |done: Done| done.map_or_else(|failure| failure.to_string(), |()| "done".to_owned());
            Err(Failure::Wrong(format!("near: {}; far: {}", word(near), word(far))))
        }
    }
}

/// Runs the whole suite over fresh pairs from `make`, and says how each scenario went by `report`.
///
/// # Errors
/// How many failed; the scenarios after one that fails are run as well.
pub fn run_all<N: Party + 'static, F: Party + 'static>(
    mut make: impl FnMut() -> Result<(N, F), Failure>,
    mut report: impl FnMut(&Scenario, &Done),
) -> Done {
    let mut failed = 0;
    for scenario in SCENARIOS {
        let done = make().and_then(|(near, far)| run(scenario, near, far));
        failed += usize::from(matches!(done, Err(Failure::Wrong(_))));
        report(scenario, &done);
    }
    ensure(failed == 0, || format!("{failed} of {} scenarios failed", SCENARIOS.len()))
}

fn open(end: Box<dyn Party>) -> Result<(Sender, Receiver), Failure> {
    end.open().doing("open the end")
}

fn send(sender: &mut Sender, message: &[u8]) -> Done {
    sender.send(message, deadline()).doing("send")
}

fn receive(receiver: &mut Receiver) -> Result<Vec<u8>, Failure> {
    let mut message = Vec::new();
    receiver.receive(&mut message, deadline()).doing("receive")?;
    Ok(message)
}
