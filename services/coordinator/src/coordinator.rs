//! Decisions, and the clients that wait to hear of each until it is committed.

use crate::history::History;
use crate::sessions::{Session, What};
use crate::store::{Heard, Store};
use coordination::{Commit, Event, HolderId, PushId, Refusal, SessionId, State};
use rustix::io::Errno;
use session::{Context, LinkId, ReplyTo};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};
use wire::control::Consumer;
use wire::coordination::{Ask, MAX_STATE_CHANGES};
use wire::service::{Kind, OpenInfo};

/// The token by which the store's descriptor is watched.
const STORE: u32 = 0;
/// How long a commit may be under way before others are refused: as long as the daemon waits for
/// etcd.
const STALL: Duration = Duration::from_secs(5);
/// Bytes of the records of one commit: with the head and what stands around them, less than a
/// packet.
const COMMIT_BYTES: usize = 88 * 1024;
/// Calls that are kept while the state is being loaded; more are refused.
const MAX_EARLY: usize = 1024;

/// The effect of a decision once it is committed.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// An answer.
    Answer(ReplyTo, Result<Vec<u8>, Errno>),
    /// The consumer is to keep this for a session.
    Seal(LinkId, u64, Vec<u8>),
    /// Nothing more is read of a stream, but this.
    End(LinkId, u64, Errno),
    /// Somebody has a lock or an item, or has passed a barrier.
    Granted(SessionId, u64),
}

/// A call that came before the state was there.
#[derive(Debug)]
enum Early {
    Open(ReplyTo, Box<OpenInfo>),
    Request(ReplyTo, Vec<u8>),
    Control(ReplyTo, Vec<u8>),
    Tree(ReplyTo, Kind, Vec<u8>),
}

impl Early {
    fn to(&self) -> ReplyTo {
        match self {
            Self::Open(to, _) | Self::Request(to, _) | Self::Control(to, _) | Self::Tree(to, _, _) => *to,
        }
    }
}

/// The service.
pub(crate) struct Coordinator {
    pub(crate) name: String,
    pub(crate) grace_ms: u64,
    store: Box<dyn Store>,
    /// `None` while it is being loaded.
    state: Option<State>,
    /// The registry's revision of the head.
    head: u64,
    /// From when milliseconds are counted.
    began: Option<Instant>,
    pub(crate) links: HashMap<LinkId, Consumer>,
    pub(crate) sessions: BTreeMap<(LinkId, u64), Session>,
    pub(crate) places: HashMap<SessionId, (LinkId, u64)>,
    last_session: u64,
    /// Pushes that wait for room.
    pub(crate) pushes: BTreeMap<PushId, ReplyTo>,
    pub(crate) last_push: u64,
    early: VecDeque<Early>,
    pending: Vec<Outcome>,
    /// The outcomes of the commit that is under way, for when it is made.
    under_way: Vec<Outcome>,
    events: Vec<Event>,
    committing: Option<Instant>,
    pub(crate) history: History,
    over: Option<String>,
}

impl Coordinator {
    pub(crate) fn new(name: &str, grace_ms: u64, store: Box<dyn Store>) -> Self {
        Self {
            name: name.to_owned(),
            grace_ms,
            store,
            state: None,
            head: 0,
            began: None,
            links: HashMap::new(),
            sessions: BTreeMap::new(),
            places: HashMap::new(),
            last_session: 0,
            pushes: BTreeMap::new(),
            last_push: 0,
            early: VecDeque::new(),
            pending: Vec::new(),
            under_way: Vec::new(),
            events: Vec::new(),
            committing: None,
            history: History::default(),
            over: None,
        }
    }

    /// Why it can't go on, if it can't.
    pub(crate) fn why_over(&self) -> Option<&str> {
        self.over.as_deref()
    }

    pub(crate) fn begin(&mut self, ctx: &mut dyn Context) {
        self.began = Some(ctx.now());
        if let Err(error) = ctx.watch(self.store.descriptor(), STORE, session::Interest::Read) {
            self.over = Some(format!("its state can't be waited for: {error}"));
        }
        self.store.ask(Ask::Load);
        self.committing = Some(ctx.now());
    }

    pub(crate) fn now_ms(&self, now: Instant) -> u64 {
        let began = self.began.unwrap_or(now);
        u64::try_from(now.saturating_duration_since(began).as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn at(&self, ms: u64) -> Option<Instant> {
        self.began.map(|began| began + Duration::from_millis(ms))
    }

    /// When holders' time is over that are not heard of.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.state.as_ref().and_then(State::deadline).and_then(|ms| self.at(ms))
    }

    /// The state, where it is loaded.
    pub(crate) fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }

    /// The state, for whoever has been let through by [`Coordinator::enter`].
    pub(crate) fn decide<T>(
        &mut self,
        decide: impl FnOnce(&mut State) -> Result<T, Refusal>,
    ) -> Result<T, Errno> {
        let state = self.state.as_mut().ok_or(Errno::AGAIN)?;
        decide(state).map_err(errno_of)
    }

    /// The same for what can't be refused, and needs no answer.
    pub(crate) fn change(&mut self, ctx: &mut dyn Context, change: impl FnOnce(&mut State)) {
        if let Some(state) = &mut self.state {
            change(state);
        }
        self.flush(ctx);
    }

    /// Answers when what was decided is committed.
    pub(crate) fn answer(&mut self, to: ReplyTo, answer: Result<Vec<u8>, Errno>) {
        self.pending.push(Outcome::Answer(to, answer));
    }

    pub(crate) fn then(&mut self, outcome: Outcome) {
        self.pending.push(outcome);
    }

    /// A new open file.
    pub(crate) fn insert(&mut self, to: ReplyTo, holder: HolderId, what: What) -> SessionId {
        let id = self.next_session();
        self.sessions.insert((to.link, to.session), Session { id, holder, what });
        self.places.insert(id, (to.link, to.session));
        id
    }

    pub(crate) fn next_session(&mut self) -> SessionId {
        self.last_session += 1;
        SessionId(self.last_session)
    }

    /// Whether a call may be decided now. If not, it is kept, or has been answered.
    fn enter(&mut self, ctx: &mut dyn Context, early: impl FnOnce() -> Early) -> bool {
        if self.state.is_some() {
            if !self.is_stalled(ctx.now()) {
                return true;
            }
            ctx.answer(early().to(), Err(Errno::AGAIN), &[]);
        } else if self.early.len() < MAX_EARLY {
            self.early.push_back(early());
        } else {
            ctx.answer(early().to(), Err(Errno::AGAIN), &[]);
        }
        false
    }

    fn is_stalled(&self, now: Instant) -> bool {
        self.committing.is_some_and(|since| now.saturating_duration_since(since) >= STALL)
    }

    pub(crate) fn take_open(&mut self, ctx: &mut dyn Context, to: ReplyTo, info: &OpenInfo) {
        if self.enter(ctx, || Early::Open(to, Box::new(info.clone()))) {
            self.open_file(to, info);
            self.flush(ctx);
        }
    }

    pub(crate) fn take_request(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        if self.enter(ctx, || Early::Request(to, payload.to_vec())) {
            self.ask_file(to, payload);
            self.flush(ctx);
        }
    }

    pub(crate) fn take_control(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        if self.enter(ctx, || Early::Control(to, payload.to_vec())) {
            let answer = self.ioctl(to, payload);
            self.answer(to, answer);
            self.flush(ctx);
        }
    }

    pub(crate) fn take_tree(&mut self, ctx: &mut dyn Context, to: ReplyTo, kind: Kind, payload: &[u8]) {
        if self.enter(ctx, || Early::Tree(to, kind, payload.to_vec())) {
            let answer = self.ask_tree(to, kind, payload);
            self.answer(to, answer);
            self.flush(ctx);
        }
    }

    /// An open file is over.
    pub(crate) fn close(&mut self, ctx: &mut dyn Context, link: LinkId, session: u64) {
        self.early.retain(|early| (early.to().link, early.to().session) != (link, session));
        let Some(Session { id, holder, .. }) = self.sessions.remove(&(link, session)) else { return };
        self.places.remove(&id);
        self.change(ctx, |state| state.leave(id, holder));
    }

    /// A consumer is not heard of any more: what its sessions hold is kept for a while.
    pub(crate) fn lose(&mut self, ctx: &mut dyn Context, link: LinkId) {
        self.links.remove(&link);
        self.early.retain(|early| early.to().link != link);
        self.forget_pushes(|to| to.link == link);
        let until = self.now_ms(ctx.now()) + self.grace_ms;
        let lost: Vec<(LinkId, u64)> =
            self.sessions.range((link, 0)..=(link, u64::MAX)).map(|(key, _)| *key).collect();
        for key in lost {
            let Some(Session { id, holder, .. }) = self.sessions.remove(&key) else { continue };
            self.places.remove(&id);
            if let Some(state) = &mut self.state {
                state.orphan(id, holder, until);
            }
        }
        self.flush(ctx);
    }

    pub(crate) fn expire(&mut self, ctx: &mut dyn Context) {
        let now = self.now_ms(ctx.now());
        self.change(ctx, |state| state.expire(now));
    }

    /// The store has answered.
    pub(crate) fn hear(&mut self, ctx: &mut dyn Context) {
        while let Some(heard) = self.store.heard() {
            self.committing = None;
            match heard {
                Heard::Loaded(records) => self.loaded(ctx, records),
                Heard::Committed(revision) => {
                    self.head = revision;
                    self.committed(ctx);
                }
                Heard::Superseded => {
                    self.over =
                        Some("another server has its state now; this one has answered nobody since".into());
                    return;
                }
                Heard::Refused(message) => {
                    self.over = Some(format!("what it decided can't be kept: {message}"));
                    return;
                }
            }
            self.flush(ctx);
        }
    }

    fn loaded(&mut self, ctx: &mut dyn Context, records: Vec<crate::store::Record>) {
        let (heads, records): (Vec<_>, Vec<_>) = records.into_iter().partition(|(key, ..)| key.is_empty());
        let head = heads.first();
        self.head = head.map_or(0, |(_, revision, _)| *revision);
        let writer = match holder() {
            Ok(writer) => writer,
            Err(errno) => {
                self.over = Some(format!("no random number: {errno}"));
                return;
            }
        };
        let until = self.now_ms(ctx.now()) + self.grace_ms;
        let records = records.into_iter().map(|(key, _, value)| (key, value));
        match State::load(head.map(|(_, _, value)| value.as_slice()), records, writer, until) {
            Ok(state) => {
                let (nodes, bytes) = state.size();
                tracing::info!(
                    service = self.name,
                    epoch = state.epoch(),
                    nodes,
                    bytes,
                    "the state is loaded"
                );
                self.history.begin(state.revision());
                self.state = Some(state);
            }
            Err(what) => {
                self.over = Some(format!("its state is damaged: {what}"));
                return;
            }
        }
        for early in std::mem::take(&mut self.early) {
            match early {
                Early::Open(to, info) => self.take_open(ctx, to, &info),
                Early::Request(to, payload) => self.take_request(ctx, to, &payload),
                Early::Control(to, payload) => self.take_control(ctx, to, &payload),
                Early::Tree(to, kind, payload) => self.take_tree(ctx, to, kind, &payload),
            }
        }
    }

    fn committed(&mut self, ctx: &mut dyn Context) {
        self.history.add(std::mem::take(&mut self.events));
        for outcome in std::mem::take(&mut self.under_way) {
            match outcome {
                Outcome::Answer(to, answer) => ctx.answer(to, answer.as_deref().map_err(|errno| *errno), &[]),
                Outcome::Seal(link, session, capsule) => ctx.capsule(link, session, &capsule),
                Outcome::End(link, session, errno) => ctx.end(link, session, Some(errno)),
                Outcome::Granted(session, token) => self.granted(ctx, session, token),
            }
        }
        self.feed_watchers(ctx);
    }

    /// Has committed what was decided, or asks whether this is still the server, for those who were
    /// only told what there is.
    pub(crate) fn flush(&mut self, ctx: &mut dyn Context) {
        let Some(state) = &mut self.state else { return };
        for grant in state.take_grants() {
            self.pending.push(Outcome::Granted(grant.session, grant.token));
        }
        let (broken, pushed) = (state.take_broken(), state.take_pushed());
        for session in broken {
            if let Some(&(link, number)) = self.places.get(&session) {
                self.end_barrier(link, number, Errno::CANCELED);
            }
        }
        self.pushed(pushed);
        let Some(state) = &mut self.state else { return };
        if self.committing.is_some() {
            return;
        }
        let ask = match state.take_commit(MAX_STATE_CHANGES, COMMIT_BYTES) {
            Some(Commit { head, changes, whole }) => {
                if whole {
                    self.events = state.take_events();
                    self.under_way = std::mem::take(&mut self.pending);
                }
                Ask::Commit { expected: self.head, head, changes }
            }
            None if self.pending.is_empty() => return,
            None => {
                self.under_way = std::mem::take(&mut self.pending);
                Ask::Commit { expected: self.head, head: Vec::new(), changes: Vec::new() }
            }
        };
        self.committing = Some(ctx.now());
        self.store.ask(ask);
    }
}

/// A number that nobody guesses.
pub(crate) fn holder() -> Result<HolderId, Errno> {
    let mut id = [0; 16];
    rustix::io::retry_on_intr(|| {
        rustix::rand::getrandom(&mut id[..], rustix::rand::GetRandomFlags::empty())
    })?;
    Ok(HolderId(id))
}

/// Returns the errno that a program sees for a refusal. `docs/coordination.md` has them in a table.
pub(crate) fn errno_of(refusal: Refusal) -> Errno {
    match refusal {
        Refusal::Missing => Errno::NOENT,
        Refusal::Exists => Errno::EXIST,
        Refusal::Stale | Refusal::Lost => Errno::STALE,
        Refusal::Name | Refusal::Unfit => Errno::INVAL,
        Refusal::LongPath => Errno::NAMETOOLONG,
        Refusal::LongValue => Errno::FBIG,
        Refusal::Full => Errno::DQUOT,
        Refusal::IsFolder => Errno::ISDIR,
        Refusal::NotFolder => Errno::NOTDIR,
        Refusal::NotEmpty => Errno::NOTEMPTY,
        Refusal::Busy => Errno::BUSY,
        Refusal::Held => Errno::AGAIN,
        Refusal::Crowded | Refusal::Greedy => Errno::NOLCK,
    }
}
