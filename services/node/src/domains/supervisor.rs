//! One domain, from its start to its end, through all its incarnations: a task of its own.

use super::frontends::End;
use super::health::{Checks, HealthView};
use super::incarnation::{self, Happened, Incarnation};
use super::store::Actual;
use super::{Domains, Events};
use crate::base::{BOOK, KEPT};
use domain::Exit;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use topology::{Backoff, Decision, Domain, GiveUp};

/// Commands that may wait for one supervisor: `up` and `down` send one at a time.
const MAX_WAITING_COMMANDS: usize = 8;
/// How long a domain waits until its books are on the disk. That takes some milliseconds.
const DISK_TIMEOUT: Duration = Duration::from_secs(1);
/// Where a domain is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Starting,
    Running,
    Stopping,
    /// Its program ended; the next start is due later.
    Waiting,
    /// Its program ended, and is not started again.
    Ended,
    /// It could not be started, or failed too often.
    Failed,
    /// Somebody stopped it, and it stays so until somebody starts it.
    Stopped,
}

impl State {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Waiting => "waiting",
            Self::Ended => "ended",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }

    pub(crate) fn runs(self) -> bool {
        self == Self::Running
    }
}

/// The supervisor's view of a domain, for those who look.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) state: State,
    pub(crate) why: Option<String>,
    pub(crate) init_pid: Option<u32>,
    pub(crate) monitor_pid: Option<u32>,
    pub(crate) frontend_pid: Option<u32>,
    pub(crate) since: Option<Instant>,
    pub(crate) restarts: u64,
    pub(crate) frontend_restarts: u64,
    pub(crate) last_exit: Option<Exit>,
    /// The results of its health checks, where it has some and runs.
    pub(crate) health: Option<HealthView>,
}

impl Default for View {
    fn default() -> Self {
        Self {
            state: State::Starting,
            why: None,
            init_pid: None,
            monitor_pid: None,
            frontend_pid: None,
            since: None,
            restarts: 0,
            frontend_restarts: 0,
            last_exit: None,
            health: None,
        }
    }
}

/// A domain that has a supervisor.
#[derive(Debug)]
pub(crate) struct Supervised {
    pub(crate) dc: String,
    pub(crate) name: String,
    domain: Mutex<Arc<Domain>>,
    commands: mpsc::Sender<Command>,
    view: watch::Sender<View>,
    events: Arc<Events>,
}

/// The commands to a supervisor.
#[derive(Debug)]
enum Command {
    /// End the domain and yourself.
    Stop { done: oneshot::Sender<Result<(), String>>, at_once: bool },
    /// End the domain, and stay: until somebody starts it, or, with `again`, to start it at once.
    Halt { done: oneshot::Sender<Result<(), String>>, at_once: bool, again: bool },
    /// Start the domain, which does not run.
    Begin { done: oneshot::Sender<Result<(), String>> },
    /// Send its program this signal.
    Signal { signal: i32, done: oneshot::Sender<Result<(), String>> },
    /// These keys of the domain changed, which may change while it runs.
    Update { domain: Arc<Domain>, done: oneshot::Sender<Result<(), String>> },
    /// A service has changed: its relay follows, if it has one.
    Follow { done: oneshot::Sender<Result<(), String>> },
}

impl Supervised {
    pub(crate) fn domain(&self) -> Arc<Domain> {
        Arc::clone(&self.domain.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn view(&self) -> View {
        self.view.borrow().clone()
    }

    /// Changes of the view, as they happen.
    pub(crate) fn views(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    /// Ends the domain and removes everything of it.
    pub(crate) async fn stop(&self) -> Result<(), String> {
        self.ask(|done| Command::Stop { done, at_once: false }).await
    }

    /// As [`Supervised::stop`], without asking it first.
    pub(crate) async fn stop_at_once(&self) -> Result<(), String> {
        self.ask(|done| Command::Stop { done, at_once: true }).await
    }

    /// Ends the domain, and leaves it so. Its logs and counters stay.
    pub(crate) async fn halt(&self, at_once: bool) -> Result<(), String> {
        self.ask(|done| Command::Halt { done, at_once, again: false }).await
    }

    /// Ends the domain where it runs, and starts it.
    pub(crate) async fn begin_again(&self) -> Result<(), String> {
        self.ask(|done| Command::Halt { done, at_once: false, again: true }).await
    }

    /// Starts the domain unless it runs.
    pub(crate) async fn begin(&self) -> Result<(), String> {
        self.ask(|done| Command::Begin { done }).await
    }

    /// Sends its program a signal.
    pub(crate) async fn signal(&self, signal: i32) -> Result<(), String> {
        self.ask(|done| Command::Signal { signal, done }).await
    }

    /// Changes what can be changed of a domain that runs.
    pub(crate) async fn update(&self, domain: &Domain) -> Result<(), String> {
        self.ask(|done| Command::Update { domain: Arc::new(domain.clone()), done }).await
    }

    /// Has its relay do what the topology says now.
    pub(crate) async fn follow(&self) -> Result<(), String> {
        self.ask(|done| Command::Follow { done }).await
    }

    /// Notes what a health check says, and tells it where that is news.
    pub(super) fn checked(&self, health: HealthView) {
        let before = self.view.borrow().health.as_ref().map(|health| health.state);
        let (state, why) = (health.state, health.last_failure.clone());
        self.view.send_modify(|view| view.health = Some(health));
        if before != Some(state) && matches!(state, "healthy" | "unhealthy") {
            self.events.happened(&self.dc, Some(&self.name), state, why);
        }
    }

    async fn ask(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<(), String>>) -> Command,
    ) -> Result<(), String> {
        let (done, answer) = oneshot::channel();
        if self.commands.send(command(done)).await.is_err() {
            // The supervisor has ended, and its domain with it.
            return Ok(());
        }
        answer.await.unwrap_or(Ok(()))
    }

    fn change(&self, change: impl FnOnce(&mut View)) {
        let before = self.view.borrow().state;
        self.view.send_modify(|view| {
            change(view);
            if !matches!(view.state, State::Running | State::Stopping) {
                view.health = None;
            }
        });
        let view = self.view();
        if view.state == before {
            return;
        }
        let ended = matches!(view.state, State::Waiting | State::Ended | State::Failed | State::Stopped);
        let exit = view.last_exit.as_ref().filter(|_| ended).map(super::exit_text);
        let why = exit.into_iter().chain(view.why).collect::<Vec<_>>().join("; ");
        let why = (!why.is_empty()).then_some(why);
        self.events.happened(&self.dc, Some(&self.name), view.state.as_str(), why);
    }
}

/// How a supervisor comes to its first incarnation.
#[derive(Debug)]
pub(crate) enum First {
    /// By starting it; if that fails, it is over.
    Start,
    /// By starting it after a daemon was away; if that fails, its restart policy decides.
    Restore,
    /// It runs already: an earlier daemon started it.
    Adopt(Box<Incarnation>),
    /// It ended while no daemon was there.
    Ended(Exit),
}

/// Gives a domain its supervisor. The outcome comes once: whether the first incarnation runs.
pub(crate) fn supervise(
    node: &Arc<Domains>,
    dc: &str,
    domain: &Domain,
    first: First,
) -> (Arc<Supervised>, oneshot::Receiver<Result<(), String>>) {
    let (commands, inbox) = mpsc::channel(MAX_WAITING_COMMANDS);
    let supervised = Arc::new(Supervised {
        dc: dc.to_owned(),
        name: domain.name.as_str().to_owned(),
        domain: Mutex::new(Arc::new(domain.clone())),
        commands,
        view: watch::Sender::new(View::default()),
        events: Arc::clone(&node.events),
    });
    node.events.happened(dc, Some(domain.name.as_str()), State::Starting.as_str(), None);
    node.add_supervised(Arc::clone(&supervised));
    let (tell, outcome) = oneshot::channel();
    // A start by hand begins with clean books.
    let known = if matches!(first, First::Start) { None } else { node.actual(dc, domain.name.as_str()) };
    let mut backoff = Backoff::new(domain.restart);
    let stopped = known.as_ref().is_some_and(|known| known.stopped);
    if let Some(known) = known {
        backoff = known.backoff;
        backoff.set_policy(domain.restart);
        supervised.change(|view| {
            view.restarts = known.restarts;
            view.frontend_restarts = known.frontend_restarts;
            view.last_exit = known.last_exit;
        });
    }
    let task = Task {
        node: Arc::clone(node),
        backoff,
        me: Arc::clone(&supervised),
        inbox,
        outcome: Some(tell),
        ran: None,
        stopped,
    };
    tokio::spawn(task.run(first));
    (supervised, outcome)
}

struct Task {
    node: Arc<Domains>,
    me: Arc<Supervised>,
    backoff: Backoff,
    inbox: mpsc::Receiver<Command>,
    outcome: Option<oneshot::Sender<Result<(), String>>>,
    /// How long the incarnation that has just ended ran.
    ran: Option<Duration>,
    /// Somebody stopped it, and nobody has started it since.
    stopped: bool,
}

/// Why an incarnation is over.
enum Over {
    /// Its program ended, or its monitor died.
    Ended(Exit),
    /// It was ended because its health checks failed: how, and why.
    Unhealthy(Exit, String),
    /// It could not be started.
    NotStarted(String),
}

/// Somebody wants the domain gone.
struct Asked(oneshot::Sender<Result<(), String>>);

/// The next step of a supervisor.
enum Next {
    /// An incarnation is over.
    Over(Over),
    /// Nothing, until it is told to.
    Rest,
    /// Somebody has ended the domain, which stays so.
    Halted(oneshot::Sender<Result<(), String>>),
    /// Somebody starts it, which does not run.
    Begin(oneshot::Sender<Result<(), String>>),
    /// Somebody wants it gone, or nobody can want anything of it any more.
    Gone(Option<Asked>),
}

impl Task {
    async fn run(mut self, first: First) {
        let asked = self.live(first).await;
        self.me.change(|view| view.state = State::Stopping);
        self.node.remove_supervised(&self.me.dc, &self.me.name);
        let removed = incarnation::remove(&self.node, &self.me.dc, &self.me.name).await;
        self.me.change(|view| view.state = State::Ended);
        self.write_down(false).await;
        if let Some(Asked(done)) = asked {
            let _nobody_waits = done.send(removed);
        }
    }

    /// From incarnation to incarnation, until somebody wants it gone.
    async fn live(&mut self, first: First) -> Option<Asked> {
        let mut next = match first {
            First::Adopt(incarnation) => self.watch(*incarnation).await,
            First::Ended(exit) => {
                self.tell_outcome(Ok(()));
                Next::Over(Over::Ended(exit))
            }
            First::Restore if self.stopped => {
                self.me.change(|view| view.state = State::Stopped);
                self.tell_outcome(Ok(()));
                Next::Rest
            }
            First::Restore => self.start_and_watch().await,
            First::Start => match self.start().await {
                Ok(incarnation) => self.watch(incarnation).await,
                Err(why) => {
                    self.give_up(why.clone());
                    self.tell_outcome(Err(why));
                    Next::Rest
                }
            },
        };
        loop {
            next = match next {
                Next::Over(over) => self.after(over).await,
                Next::Rest => self.rest().await,
                Next::Halted(done) => {
                    let _nobody_waits = done.send(self.halted().await);
                    Next::Rest
                }
                Next::Begin(done) => self.begin(done).await,
                Next::Gone(asked) => return asked,
            }
        }
    }

    /// Decides by the restart policy what follows from the end of an incarnation.
    async fn after(&mut self, over: Over) -> Next {
        let ran = self.ran.take().unwrap_or_default();
        let decision = self.book(&over, ran);
        self.write_down(true).await;
        if let Over::NotStarted(why) = over {
            self.tell_outcome(Err(why));
        }
        match decision {
            Decision::GiveUp(_) => Next::Rest,
            Decision::RestartAfter(pause) => match self.pause(pause).await {
                Ok(()) => self.start_and_watch().await,
                Err(next) => next,
            },
        }
    }

    /// Clears away what an incarnation has left that somebody has ended.
    async fn halted(&mut self) -> Result<(), String> {
        self.stopped = true;
        let removed = incarnation::remove(&self.node, &self.me.dc, &self.me.name).await;
        self.me.change(|view| {
            *view = View {
                state: State::Stopped,
                restarts: view.restarts,
                frontend_restarts: view.frontend_restarts,
                last_exit: view.last_exit.clone(),
                ..View::default()
            };
        });
        self.write_down(true).await;
        removed
    }

    /// Starts it by hand, with clean books.
    async fn begin(&mut self, done: oneshot::Sender<Result<(), String>>) -> Next {
        self.stopped = false;
        self.backoff = Backoff::new(self.me.domain().restart);
        self.write_down(true).await;
        self.outcome = Some(done);
        match self.start().await {
            Ok(incarnation) => self.watch(incarnation).await,
            Err(why) => {
                self.give_up(why.clone());
                self.tell_outcome(Err(why));
                Next::Rest
            }
        }
    }

    /// Keeps the books where the next daemon finds them, or (with `keep` false) removes them. A
    /// disk that does not answer is not waited for: counters are lost then, if this daemon dies,
    /// too.
    async fn write_down(&self, keep: bool) {
        // By itself, so that it is done whether anybody waits or not, and in its turn.
        let written = tokio::spawn(self.written(keep));
        if tokio::time::timeout(DISK_TIMEOUT, written).await.is_err() {
            let (dc, domain) = (&self.me.dc, &self.me.name);
            tracing::warn!(dc, domain, "the disk is slow: what became of it is written down later");
        }
    }

    /// Writes the books of now, in its turn.
    fn written(&self, keep: bool) -> impl Future<Output = ()> + use<> {
        let view = self.me.view();
        let actual = keep.then_some(Actual {
            restarts: view.restarts,
            frontend_restarts: view.frontend_restarts,
            last_exit: view.last_exit,
            backoff: self.backoff,
            stopped: self.stopped,
        });
        let (node, me) = (Arc::clone(&self.node), Arc::clone(&self.me));
        async move {
            let write = move || node.set_actual(&me.dc, &me.name, actual.as_ref());
            if let Err(error) = KEPT.run(write).await {
                tracing::error!(error, "the books of a domain can't be kept");
            }
        }
    }

    fn tell_outcome(&mut self, outcome: Result<(), String>) {
        if let Some(tell) = self.outcome.take() {
            let _nobody_waits = tell.send(outcome);
        }
    }

    /// Notes how an incarnation ended, and decides what becomes of the domain.
    fn book(&mut self, over: &Over, ran: Duration) -> Decision {
        let (exit, words) = match over {
            Over::Ended(exit) => (how(exit), super::exit_text(exit)),
            Over::Unhealthy(_, why) => (topology::Exit::Unhealthy, why.clone()),
            Over::NotStarted(why) => (topology::Exit::NotStarted, why.clone()),
        };
        let decision = self.backoff.ended(exit, ran);
        let (dc, domain) = (&self.me.dc, &self.me.name);
        match &decision {
            Decision::RestartAfter(pause) => {
                tracing::warn!(
                    dc,
                    domain,
                    "it ended ({words}) after {:.1} s; next start in {} ms",
                    ran.as_secs_f64(),
                    pause.as_millis()
                );
            }
            Decision::GiveUp(reason) => {
                tracing::info!(dc, domain, "it ended ({words}) and stays so: {reason}")
            }
        }
        self.me.change(|view| {
            view.init_pid = None;
            view.monitor_pid = None;
            view.frontend_pid = None;
            view.since = None;
            if let Over::Ended(exit) | Over::Unhealthy(exit, _) = over {
                view.last_exit = Some(exit.clone());
            }
            view.restarts += u64::from(matches!(decision, Decision::RestartAfter(_)));
            let not_started = match over {
                Over::NotStarted(why) | Over::Unhealthy(_, why) => Some(why.clone()),
                Over::Ended(_) => None,
            };
            (view.state, view.why) = match &decision {
                Decision::RestartAfter(_) => (State::Waiting, not_started),
                Decision::GiveUp(GiveUp::Retries { .. }) => (State::Failed, Some(reason(&decision))),
                Decision::GiveUp(_) if not_started.is_some() => (State::Failed, not_started),
                Decision::GiveUp(_) => (State::Ended, None),
            };
        });
        decision
    }

    fn give_up(&self, why: String) {
        self.me.change(|view| {
            view.state = State::Failed;
            view.why = Some(why);
        });
    }

    async fn start(&mut self) -> Result<Incarnation, String> {
        self.me.change(|view| view.state = State::Starting);
        let domain = self.me.domain();
        let started = incarnation::start(&self.node, &self.me.dc, &domain).await;
        if started.is_err()
            && let Err(error) = incarnation::remove(&self.node, &self.me.dc, &self.me.name).await
        {
            tracing::error!(dc = self.me.dc, domain = self.me.name, error, "what was begun can't be removed");
        }
        started
    }

    async fn start_and_watch(&mut self) -> Next {
        match self.start().await {
            Ok(incarnation) => self.watch(incarnation).await,
            Err(why) => Next::Over(Over::NotStarted(why)),
        }
    }

    /// Watches one incarnation to its end.
    async fn watch(&mut self, mut incarnation: Incarnation) -> Next {
        self.me.change(|view| {
            view.state = State::Running;
            view.why = None;
            view.init_pid = Some(incarnation.init_pid());
            view.monitor_pid = Some(incarnation.monitor_pid());
            view.frontend_pid = incarnation.frontend_pid();
            view.since = Some(incarnation.since());
        });
        self.tell_outcome(Ok(()));
        let mut checks = Checks::begin(&self.node, &self.me, incarnation.since());
        loop {
            tokio::select! {
                why = Checks::dead(&mut checks) => return self.end_unhealthy(incarnation, why).await,
                happened = incarnation.event() => match happened {
                    Happened::Domain => {
                        self.ran = Some(incarnation.ran(&self.node));
                        let exit = incarnation.conclude(&self.node).await;
                        return Next::Over(Over::Ended(exit));
                    }
                    Happened::Frontend(end) => self.replace_frontend(&mut incarnation, end).await,
                    Happened::Relay => self.replace_relay(&mut incarnation).await,
                },
                command = self.inbox.recv() => match command {
                    Some(Command::Stop { done, at_once }) => {
                        self.end(incarnation, at_once).await;
                        return Next::Gone(Some(Asked(done)));
                    }
                    Some(Command::Halt { done, at_once, again }) => {
                        // First of all it is to stay so: a daemon that dies now has a successor
                        // that knows.
                        self.stopped = !again;
                        self.written(true).await;
                        self.end(incarnation, at_once).await;
                        return if again { Next::Begin(done) } else { Next::Halted(done) };
                    }
                    Some(Command::Begin { done }) => {
                        let _nobody_waits = done.send(Ok(()));
                    }
                    Some(Command::Signal { signal, done }) => {
                        let _nobody_waits = done.send(incarnation.signal(signal));
                    }
                    Some(Command::Update { domain, done }) => {
                        let before = self.me.domain();
                        let updated = self.update(domain).await;
                        if before.health != self.me.domain().health {
                            // The former checks end before others say what they see.
                            Checks::end(checks.take(), &self.node, &self.me).await;
                            self.me.change(|view| view.health = None);
                            checks = Checks::begin(&self.node, &self.me, incarnation.since());
                        }
                        let updated = match updated {
                            Ok(()) if before.published != self.me.domain().published => {
                                incarnation.follow_services(&self.node, &self.me.domain()).await
                            }
                            other => other,
                        };
                        let _nobody_waits = done.send(updated);
                    }
                    Some(Command::Follow { done }) => {
                        let followed = incarnation.follow_services(&self.node, &self.me.domain()).await;
                        let _nobody_waits = done.send(followed);
                    }
                    None => return Next::Gone(None),
                },
            }
        }
    }

    /// Ends an incarnation as its file says, or at once.
    async fn end(&self, incarnation: Incarnation, at_once: bool) {
        self.me.change(|view| view.state = State::Stopping);
        let patience = Duration::from_millis(self.me.domain().stop.timeout_ms);
        let grace = if at_once { Duration::ZERO } else { patience };
        // Who is frozen between slots can't end as it is asked to.
        self.let_go().await;
        incarnation.stop(grace).await;
    }

    /// Ends an incarnation that does not do what it should; its restart policy says what follows.
    async fn end_unhealthy(&mut self, incarnation: Incarnation, why: String) -> Next {
        self.ran = Some(incarnation.ran(&self.node));
        self.me.change(|view| {
            view.state = State::Stopping;
            view.why = Some(why.clone());
        });
        self.let_go().await;
        let patience = Duration::from_millis(self.me.domain().stop.timeout_ms);
        let exit = incarnation.stop_and_conclude(&self.node, patience).await;
        Next::Over(Over::Unhealthy(exit, why))
    }

    /// Nobody has to keep its promise any more.
    async fn let_go(&self) {
        let (node, name) = (Arc::clone(&self.node), format!("{}/{}", self.me.dc, self.me.name));
        if let Err(error) = BOOK.run(move || node.book.ended(&name)).await {
            tracing::error!(error, "its promise can't be let go before it ends");
        }
    }

    async fn replace_frontend(&mut self, incarnation: &mut Incarnation, end: End) {
        let (dc, domain) = (&self.me.dc, &self.me.name);
        if end == End::Died {
            tracing::warn!(dc, domain, "its frontend ended; a successor takes over");
        }
        match incarnation.replace_frontend(&self.node, &self.me.domain()).await {
            Ok(()) => {
                self.me.change(|view| {
                    view.frontend_restarts += u64::from(end == End::Died);
                    view.frontend_pid = incarnation.frontend_pid();
                });
                self.write_down(true).await;
            }
            Err(error) => tracing::error!(dc, domain, error, "its frontend can't be replaced; trying again"),
        }
    }

    async fn replace_relay(&mut self, incarnation: &mut Incarnation) {
        let (dc, domain) = (&self.me.dc, &self.me.name);
        if let Err(error) = incarnation.replace_relay(&self.node, &self.me.domain()).await {
            tracing::error!(dc, domain, error, "its relay can't be replaced; trying again");
        }
    }

    async fn update(&mut self, domain: Arc<Domain>) -> Result<(), String> {
        self.backoff.set_policy(domain.restart);
        incarnation::limit(&self.node, &self.me.dc, &domain).await?;
        *self.me.domain.lock().unwrap_or_else(PoisonError::into_inner) = domain;
        Ok(())
    }

    async fn pause(&mut self, pause: Duration) -> Result<(), Next> {
        let until = tokio::time::Instant::now() + pause;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return Ok(()),
                command = self.inbox.recv() => self.idle(command)?,
            }
        }
    }

    /// The domain does not run; its books are kept until somebody wants it gone, or to run.
    async fn rest(&mut self) -> Next {
        loop {
            let command = self.inbox.recv().await;
            if let Err(next) = self.idle(command) {
                return next;
            }
        }
    }

    /// A command while nothing runs.
    fn idle(&mut self, command: Option<Command>) -> Result<(), Next> {
        match command {
            Some(Command::Stop { done, .. }) => Err(Next::Gone(Some(Asked(done)))),
            Some(Command::Halt { done, again: false, .. }) => Err(Next::Halted(done)),
            Some(Command::Halt { done, again: true, .. } | Command::Begin { done }) => Err(Next::Begin(done)),
            Some(Command::Signal { done, .. }) => {
                let _nobody_waits = done.send(Err("it does not run now".into()));
                Ok(())
            }
            Some(Command::Update { domain, done }) => {
                self.backoff.set_policy(domain.restart);
                *self.me.domain.lock().unwrap_or_else(PoisonError::into_inner) = domain;
                let _nobody_waits = done.send(Ok(()));
                Ok(())
            }
            // There is no relay now, and the next one knows.
            Some(Command::Follow { done }) => {
                let _nobody_waits = done.send(Ok(()));
                Ok(())
            }
            None => Err(Next::Gone(None)),
        }
    }
}

fn reason(decision: &Decision) -> String {
    match decision {
        Decision::GiveUp(reason) => reason.to_string(),
        Decision::RestartAfter(_) => String::new(),
    }
}

fn how(exit: &Exit) -> topology::Exit {
    match exit.ending {
        domain::Ending::Code(code) => topology::Exit::Code(code),
        domain::Ending::Signal(signal) => topology::Exit::Signal(signal),
        domain::Ending::Lost => topology::Exit::Signal(rustix::process::Signal::KILL.as_raw()),
    }
}
