//! The user's side of a link: calls that never wait, events, and its state.

use crate::compress::Compression;
use crate::connect::ConnectError;
use crate::connection::Connection;
use crate::locator::{Address, Kind, Locator};
use link::{Broken, Event, Held, Link, OpenError, SendError, Sent, Share, Standing, Way};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use thiserror::Error;
use tokio::sync::oneshot;
use wire::link::Pair;

/// Where so many events wait for the user nothing more is received: windows bound their bytes, and
/// not what short messages take beside these.
const EVENTS_MAX: usize = 1024;

/// The traffic of a link since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Connections that there were.
    pub connections: u64,
    /// Messages that were queued.
    pub messages_out: u64,
    /// Messages that came.
    pub messages_in: u64,
    /// Packets.
    pub packets_out: u64,
    /// Packets.
    pub packets_in: u64,
    /// Bytes of packets before they were compressed.
    pub plain_out: u64,
    /// Bytes of packets as they were carried; TLS adds to them.
    pub carried_out: u64,
    /// Bytes of bodies when they were unpacked.
    pub plain_in: u64,
    /// Bytes of bodies as they came.
    pub carried_in: u64,
}

/// How it stands with a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// See [`Standing`].
    pub standing: Standing,
    /// The transport that carries it now.
    pub kind: Option<Kind>,
    /// Where the other end of that is.
    pub remote: Option<Address>,
    /// To which locator this side connected.
    pub locator: Option<Locator>,
    /// The last measured round trip, in ms.
    pub round_trip_ms: Option<u64>,
    /// The compression that is wanted.
    pub compression: Compression,
    /// The way that the last packets went.
    pub way: Way,
    /// Why there was no connection, last.
    pub last_loss: Option<String>,
    /// Pairs, and bytes that wait.
    pub held: Held,
    /// Packets of other incarnations, which were dropped.
    pub stale: u64,
    /// See [`Traffic`].
    pub traffic: Traffic,
}

/// A connection to another node than the link's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the connection is to `{found}`, and the link to `{expected}`")]
pub struct WrongPeer {
    /// The node that it leads to.
    pub found: String,
    /// The node that the link is for.
    pub expected: String,
}

/// Why the connection was not exchanged. The one before goes on.
#[derive(Debug, Error)]
pub enum SwitchError {
    /// The other side connects.
    #[error("`{0}` connects to this node: exchange the transport there")]
    NotOurs(String),
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Another exchange took its place, or the link is over.
    #[error("the exchange was given up: the link is over, or another was asked for")]
    GivenUp,
}

/// The parts of a [`Status`] that the driver keeps up to date.
pub(super) struct Known {
    pub kind: Option<Kind>,
    pub remote: Option<Address>,
    pub locator: Option<Locator>,
    pub way: Way,
    pub last_loss: Option<String>,
    pub traffic: Traffic,
}

type Switch = (Locator, oneshot::Sender<Result<(), ConnectError>>);

/// The state that driver and user share.
pub(super) struct State {
    pub link: Link,
    events: VecDeque<Event>,
    pub driver: Option<Waker>,
    user: Option<Waker>,
    pub is_run: bool,
    /// Nothing is received until the user has taken events.
    holds_back: bool,
    pub adopted: Option<Connection>,
    /// The connection that there is has to go, and why.
    pub cut: Option<String>,
    pub switch: Option<Switch>,
    /// The locators are others.
    pub redial: bool,
    pub locators: Vec<Locator>,
    pub compression: Compression,
    /// Whether that which goes out has classes: bytes that are handed over to the transport can't
    /// be overtaken any more.
    pub classed: bool,
    pub status: Known,
}

impl State {
    pub fn new(link: Link, compression: Compression, locators: Vec<Locator>) -> Self {
        let status = Known {
            kind: None,
            remote: None,
            locator: None,
            way: Way::None,
            last_loss: None,
            traffic: Traffic::default(),
        };
        Self {
            link,
            events: VecDeque::new(),
            driver: None,
            user: None,
            is_run: true,
            holds_back: false,
            adopted: None,
            cut: None,
            switch: None,
            redial: false,
            locators,
            compression,
            classed: false,
            status,
        }
    }

    pub fn wake_user(&mut self) {
        if let Some(user) = self.user.take() {
            user.wake();
        }
    }

    /// The driver has something to do. It says again whom to wake each time.
    fn wake_driver(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// So much waits for the user that no more is to be received; who takes it wakes the driver.
    pub fn has_backlog(&mut self) -> bool {
        self.holds_back = self.events.len() >= EVENTS_MAX;
        self.holds_back
    }

    /// The user has taken all events.
    fn taken(&mut self) {
        if std::mem::take(&mut self.holds_back) {
            self.wake_driver();
        }
    }

    pub fn tell(&mut self, event: Event) {
        if let Event::Messages { messages, .. } = &event {
            self.status.traffic.messages_in += messages.count() as u64;
        }
        self.events.push_back(event);
        self.wake_user();
    }

    pub fn refuse(&mut self, broken: Broken) {
        if let Some(event) = self.link.refuse(broken) {
            self.tell(event);
        }
    }
}

pub(super) struct Shared {
    state: Mutex<State>,
    pub peer: String,
    dials: bool,
}

impl Shared {
    pub fn new(state: State, peer: String, dials: bool) -> Self {
        Self { state: Mutex::new(state), peer, dials }
    }

    pub fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A link, as its users call it. No call waits; clones are the same.
#[derive(Clone)]
pub struct Handle(pub(super) Arc<Shared>);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({})", self.0.peer)
    }
}

impl Handle {
    fn act<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        self.0.with(|state| {
            let done = act(state);
            state.wake_driver();
            done
        })
    }

    /// The node at the other side.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.0.peer
    }

    /// See [`Link::open`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, content: &[u8]) -> Result<Pair, OpenError> {
        self.act(|state| state.link.open(content))
    }

    /// See [`Link::send`].
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(&self, pair: Pair, message: &[u8]) -> Result<Sent, SendError> {
        self.send_parts(pair, [message, &[]])
    }

    /// See [`Link::send_parts`].
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send_parts(&self, pair: Pair, parts: [&[u8]; 2]) -> Result<Sent, SendError> {
        self.act(|state| {
            let sent = state.link.send_parts(pair, parts)?;
            state.status.traffic.messages_out += u64::from(sent == Sent::Queued);
            Ok(sent)
        })
    }

    /// Queues messages on a pair as long as there are any and they fit; says how many did. Of many
    /// small ones each costs less than by [`Handle::send`]. Where one did not fit, [`Event::Room`]
    /// says when it does.
    ///
    /// # Errors
    /// See [`Link::send_all_parts`].
    pub fn send_all<'a>(
        &self,
        pair: Pair,
        messages: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<usize, SendError> {
        self.send_all_parts(pair, messages.into_iter().map(|message| [message, &[]]))
    }

    /// The same with messages that lie in two pieces each: see [`Link::send_all_parts`].
    ///
    /// # Errors
    /// As there.
    pub fn send_all_parts<'a>(
        &self,
        pair: Pair,
        messages: impl IntoIterator<Item = [&'a [u8]; 2]>,
    ) -> Result<usize, SendError> {
        self.act(|state| {
            let queued = state.link.send_all_parts(pair, messages)?;
            state.status.traffic.messages_out += queued as u64;
            Ok(queued)
        })
    }

    /// See [`Link::consumed_all`].
    pub fn consumed_all(&self, pair: Pair, messages: usize, bytes: usize) {
        self.act(|state| state.link.consumed_all(pair, messages, bytes));
    }

    /// See [`Link::consumed`].
    pub fn consumed(&self, pair: Pair, bytes: usize) {
        self.act(|state| state.link.consumed(pair, bytes));
    }

    /// See [`Link::close`].
    pub fn close(&self, pair: Pair, reason: u32) {
        self.act(|state| state.link.close(pair, reason));
    }

    /// See [`Link::abandon`].
    pub fn abandon(&self, pair: Pair, reason: u32) {
        self.act(|state| state.link.abandon(pair, reason));
    }

    /// See [`Link::held_of`].
    #[must_use]
    pub fn held_of(&self, pair: Pair) -> usize {
        self.0.with(|state| state.link.held_of(pair))
    }

    /// See [`Link::goodbye`]. The driver ends.
    pub fn goodbye(&self, reason: u32) {
        self.act(|state| state.link.goodbye(reason));
    }

    /// See [`Link::set_whole`].
    pub fn set_whole(&self, rate_bytes: Option<u64>) {
        self.act(|state| {
            state.link.set_whole(rate_bytes);
            state.classed = rate_bytes.is_some();
        });
    }

    /// See [`Link::set_share`].
    #[must_use]
    pub fn set_share(&self, class: u32, share: Option<Share>) -> bool {
        self.act(|state| state.link.set_share(class, share))
    }

    /// See [`Link::classify`].
    pub fn classify(&self, pair: Pair, class: u32) {
        self.act(|state| state.link.classify(pair, class));
    }

    /// See [`Link::message_bytes_max`].
    #[must_use]
    pub fn message_bytes_max(&self) -> Option<usize> {
        self.0.with(|state| state.link.message_bytes_max())
    }

    /// See [`Link::standing`].
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.0.with(|state| state.link.standing())
    }

    /// How it stands.
    #[must_use]
    pub fn status(&self) -> Status {
        self.0.with(|state| Status {
            standing: state.link.standing(),
            kind: state.status.kind,
            remote: state.status.remote,
            locator: state.status.locator,
            round_trip_ms: state.link.round_trip_ms(),
            compression: state.compression,
            way: state.status.way,
            last_loss: state.status.last_loss.clone(),
            held: state.link.held(),
            stale: state.link.stale(),
            traffic: state.status.traffic,
        })
    }

    /// Sets the compression of packets that go out from now on.
    pub fn set_compression(&self, compression: Compression) {
        self.act(|state| state.compression = compression);
    }

    /// Where the other proxy is reached from now on. A connection that stands is left alone;
    /// without one it is tried at once.
    pub fn set_locators(&self, locators: Vec<Locator>) {
        self.act(|state| {
            state.redial |= state.locators != locators;
            state.locators = locators;
        });
    }

    /// Gives the link a connection that a listener accepted. It takes the place of the one that
    /// there is.
    ///
    /// # Errors
    /// [`WrongPeer`]; the connection is closed then.
    pub fn adopt(&self, connection: Connection) -> Result<(), WrongPeer> {
        if connection.peer() != self.0.peer {
            return Err(WrongPeer { found: connection.peer().to_owned(), expected: self.0.peer.clone() });
        }
        self.act(|state| state.adopted = Some(connection));
        Ok(())
    }

    /// Has the connection that there is go, and any that is being made: another one carries the
    /// link on, if it can be had.
    pub fn cut(&self, why: &str) {
        self.act(|state| {
            state.adopted = None;
            state.cut = Some(why.to_owned());
        });
    }

    /// Exchanges the connection for one to `locator`, which is preferred from then on. The old one
    /// carries the link until the new one stands; no message is lost, doubled or overtaken.
    ///
    /// # Errors
    /// See [`SwitchError`].
    pub async fn switch(&self, locator: Locator) -> Result<(), SwitchError> {
        if !self.0.dials {
            return Err(SwitchError::NotOurs(self.0.peer.clone()));
        }
        let (tell, told) = oneshot::channel();
        self.act(|state| state.switch = Some((locator, tell)).filter(|_| state.is_run));
        told.await.map_err(|_| SwitchError::GivenUp)??;
        self.0.with(|state| {
            state.locators.retain(|known| *known != locator);
            state.locators.insert(0, locator);
        });
        Ok(())
    }
}

/// The events of a link, in order.
pub struct Events {
    shared: Arc<Shared>,
    taken: VecDeque<Event>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Events({})", self.shared.peer)
    }
}

impl Events {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, taken: VecDeque::new() }
    }

    /// The next one, if there is one already.
    pub fn try_next(&mut self) -> Option<Event> {
        if self.taken.is_empty() {
            let taken = &mut self.taken;
            self.shared.with(|state| {
                std::mem::swap(taken, &mut state.events);
                state.taken();
            });
        }
        self.taken.pop_front()
    }

    /// Waits for the next one; `None`: the driver has ended. Dropped before it is ready, it has
    /// lost nothing.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Events::next`], for those who poll themselves.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        if let Some(event) = self.taken.pop_front() {
            return Poll::Ready(Some(event));
        }
        let taken = &mut self.taken;
        self.shared.with(|state| {
            std::mem::swap(taken, &mut state.events);
            state.taken();
            match taken.pop_front() {
                Some(event) => Poll::Ready(Some(event)),
                None if !state.is_run => Poll::Ready(None),
                None => {
                    state.user = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
    }
}
