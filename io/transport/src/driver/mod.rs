//! Carries one link: one task owns the connection, and its user calls from wherever it is.

mod handle;
mod inbox;
mod spin;

pub use handle::{Events, Handle, Status, SwitchError, Traffic, WrongPeer};

use crate::compress::{Compression, Packer};
use crate::connect::{ConnectError, connect};
use crate::connection::{Carry, Connection};
use crate::locator::Locator;
use crate::tls::Tls;
use handle::{Shared, State};
use inbox::Inbox;
use link::{BadConfig, Broken, Config, Event, Link, Over, Standing, Transport, Way};
use spin::Spin;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::Sleep;
use wire::link::{BadPacket, compression};

/// The bytes that are gathered before they are handed to the transport: some records of TLS, which
/// stay in the cache on their way.
const BATCH_BYTES: usize = 64 << 10;
/// The same where what goes out has classes: nothing overtakes what is gathered.
const BATCH_BYTES_CLASSED: usize = 32 << 10;
/// The bytes that are asked for at once of a carrier that has no place of its own for them.
const SCRATCH_BYTES: usize = 256 << 10;
/// How often a turn receives before it lets others of its runtime have theirs.
const RECEIVES_OF_A_TURN: usize = 4;
/// How often a turn that has nothing to do looks for what came, before others have theirs: about as
/// long as that of the runtime takes.
const LOOKS_OF_A_TURN: usize = 4;
/// The first wait before connecting again; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// A node that is back is found after so long at the latest.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// How long the last packet may take: who does not take it finds out by silence.
const FAREWELL_LIMIT: Duration = Duration::from_secs(1);

/// The side that connects.
#[derive(Debug, Clone)]
pub struct Dial {
    /// Where the other proxy is reached; the first is preferred, the others are tried in turn.
    pub locators: Vec<Locator>,
    /// By what both know each other.
    pub tls: Tls,
}

/// The settings of a driver, before it begins.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node at the other side.
    pub peer: String,
    /// The link. Its hello names [`COMPRESSIONS`](crate::COMPRESSIONS), or fewer.
    pub link: Config,
    /// The compression of packets that go out.
    pub compression: Compression,
    /// `None`: this side is given connections ([`Handle::adopt`]).
    pub dial: Option<Dial>,
    /// How long to look again and again for an answer before sleeping, while that pays; zero: not
    /// at all.
    pub spin: Duration,
}

/// A link, its user's end, what happens on it, and what is to be run.
///
/// # Errors
/// See [`BadConfig`].
pub fn start(settings: Settings) -> Result<(Handle, Events, Driver), BadConfig> {
    let Settings { peer, link, compression, dial, spin } = settings;
    let dials = dial.is_some();
    let (locators, tls) = dial.map_or((Vec::new(), None), |dial| (dial.locators, Some(dial.tls)));
    let shared = Arc::new(Shared::new(State::new(Link::new(link)?, compression, locators), peer, dials));
    let driver = Driver {
        shared: shared.clone(),
        begun: Instant::now(),
        now: Instant::now(),
        tls,
        on: None,
        dialing: None,
        attempts: 0,
        again_at: Some(Instant::now()),
        timer: None,
        inbox: Inbox::default(),
        scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
        packer: Packer::new(),
        unpacked: Vec::new(),
        outbox: Vec::new(),
        sent: 0,
        blocked: None,
        spin: Spin::new(spin),
    };
    Ok((Handle(shared.clone()), Events::new(shared), driver))
}

/// A connection in use.
struct On {
    carrier: Box<dyn Carry>,
    /// Something was handed over that may be held.
    unflushed: bool,
    /// It was told to hold little.
    little: bool,
}

type Made = Result<Connection, ConnectError>;

/// A connection that is being made, and who waits for it.
struct Dialing {
    locator: Locator,
    made: Pin<Box<dyn Future<Output = Made> + Send>>,
    tell: Option<oneshot::Sender<Result<(), ConnectError>>>,
}

/// The state that hearing packets needs.
struct Ears<'a> {
    now_ms: u64,
    shared: &'a Shared,
    inbox: &'a mut Inbox,
    packer: &'a mut Packer,
    unpacked: &'a mut Vec<u8>,
    /// The peer is there, and speaks.
    up: bool,
    /// A rule was broken: nothing more is to be heard.
    deaf: bool,
}

impl Ears<'_> {
    /// Hears the packets that are whole.
    fn hear(&mut self, bytes: &[u8]) {
        // Of a packet that is not whole yet nobody has to know.
        if self.deaf || self.inbox.keep(bytes) {
            return;
        }
        let Self { now_ms, inbox, packer, unpacked, up, .. } = self;
        let broken = self.shared.with(|state| {
            let cut = inbox.cut(bytes, |header, body| {
                let traffic = &mut state.status.traffic;
                traffic.packets_in += 1;
                traffic.carried_in += u64::from(header.carried);
                traffic.plain_in += u64::from(header.plain);
                let body = match header.compression {
                    compression::NONE => body,
                    found if !state.link.takes(header) => return Err(Broken::Compression { found }),
                    _ => packer
                        .unpack(header, body, unpacked)
                        .ok_or(BadPacket::Length { what: "an unpacked body", found: body.len() })?,
                };
                for event in state.link.receive(*now_ms, header, body) {
                    *up |= matches!(event, Event::Up { .. });
                    state.tell(event);
                }
                Ok(())
            });
            cut.map_err(|broken| state.refuse(broken)).is_err()
        });
        self.deaf = broken;
    }
}

/// The outcome of a turn.
enum Turn {
    Busy,
    Idle,
    Over(Over),
}

/// Carries the link; [`Driver::run`] is to be spawned.
pub struct Driver {
    shared: Arc<Shared>,
    begun: Instant,
    /// As it was when this turn began: to ask the clock costs more than most of a turn.
    now: Instant,
    tls: Option<Tls>,
    on: Option<On>,
    dialing: Option<Dialing>,
    /// Since the link was up last.
    attempts: u32,
    /// When to connect again.
    again_at: Option<Instant>,
    timer: Option<(Instant, Pin<Box<Sleep>>)>,
    inbox: Inbox,
    /// Where a carrier puts what came that has no place of its own for it.
    scratch: Box<[u8]>,
    packer: Packer,
    unpacked: Vec<u8>,
    outbox: Vec<u8>,
    /// Bytes of the outbox that are handed over.
    sent: usize,
    /// The transport takes nothing since.
    blocked: Option<Instant>,
    spin: Spin,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver({})", self.shared.peer)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.with(|state| {
            state.is_run = false;
            state.switch = None;
            state.wake_user();
        });
    }
}

impl Driver {
    /// Carries the link until it is over, and says why. Dropped, it closes the connection; the peer
    /// takes it for cut.
    pub async fn run(mut self) -> Over {
        loop {
            match poll_fn(|cx| self.poll_turn(cx)).await {
                Turn::Over(over) => {
                    let farewell = poll_fn(|cx| self.poll_farewell(cx));
                    match tokio::time::timeout(FAREWELL_LIMIT, farewell).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::debug!(%error, "the last packet is lost"),
                        Err(_) => tracing::debug!("the last packet was not taken in time"),
                    }
                    return over;
                }
                Turn::Busy | Turn::Idle => tokio::task::yield_now().await,
            }
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from((self.now - self.begun).as_millis()).unwrap_or(u64::MAX)
    }

    /// One turn. Ready: there is more to do, now or perhaps soon; others of the runtime may go
    /// first.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Turn> {
        self.now = Instant::now();
        self.take_orders(cx);
        self.poll_dialing(cx);
        let mut busy = self.poll_receive(cx);
        busy |= self.poll_send(cx);
        if let Some(over) = self.shared.with(|state| match state.link.standing() {
            Standing::Over(over) => Some(over),
            _ => None,
        }) {
            return Poll::Ready(Turn::Over(over));
        }
        if self.poll_timer(cx) {
            return Poll::Ready(Turn::Busy);
        }
        if busy {
            self.spin.happened(self.now);
            return Poll::Ready(Turn::Busy);
        }
        if self.on.is_some() && self.blocked.is_none() && self.spin.again(self.now) {
            let came = self.looks(cx);
            return Poll::Ready(if came { Turn::Busy } else { Turn::Idle });
        }
        Poll::Pending
    }

    /// Looks for what came some times more, because others of the runtime want nothing most of the
    /// time, and takes it.
    fn looks(&mut self, cx: &mut Context<'_>) -> bool {
        for _ in 0..LOOKS_OF_A_TURN {
            let Some(on) = &mut self.on else { return false };
            match on.carrier.look() {
                Ok(false) => {}
                Ok(true) => {
                    self.poll_receive(cx);
                    return true;
                }
                Err(error) => {
                    self.lost(&error);
                    return true;
                }
            }
        }
        false
    }

    /// Takes the user's wishes for the connection.
    fn take_orders(&mut self, cx: &mut Context<'_>) {
        let (cut, adopted, switch, drop_it) = self.shared.with(|state| {
            if !state.driver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                state.driver = Some(cx.waker().clone());
            }
            let drop_it = std::mem::take(&mut state.redial);
            (state.cut.take(), state.adopted.take(), state.switch.take(), drop_it)
        });
        if let Some(why) = cut {
            self.dialing = None;
            self.lost(&io::Error::other(why));
        }
        if let Some(connection) = adopted {
            self.attach(connection);
        }
        if drop_it {
            self.attempts = 0;
            if self.on.is_none() {
                self.dialing = None;
                self.again_at = Some(self.now);
            }
        }
        if let Some((locator, tell)) = switch {
            self.dial(locator, Some(tell));
        }
    }

    fn dial(&mut self, locator: Locator, tell: Option<oneshot::Sender<Result<(), ConnectError>>>) {
        let Some(tls) = self.tls.clone() else { return };
        let peer = self.shared.peer.clone();
        let made = Box::pin(async move { connect(locator, &tls, &peer).await });
        // Who waited for one that was under way learns that another took its place.
        self.dialing = Some(Dialing { locator, made, tell });
        self.again_at = None;
    }

    fn poll_dialing(&mut self, cx: &mut Context<'_>) {
        if self.tls.is_none() {
            return;
        }
        if self.dialing.is_none() && self.on.is_none() && self.again_at.is_none_or(|at| at <= self.now) {
            let attempts = usize::try_from(self.attempts).unwrap_or(0);
            let next = self.shared.with(|state| {
                let most = state.locators.len().max(1);
                state.locators.get(attempts % most).copied()
            });
            match next {
                Some(locator) => self.dial(locator, None),
                // Told where, it is woken.
                None => self.again_at = Some(self.now + BACKOFF_MAX),
            }
        }
        let Some(dialing) = &mut self.dialing else { return };
        let Poll::Ready(made) = dialing.made.as_mut().poll(cx) else { return };
        let Some(Dialing { locator, tell, .. }) = self.dialing.take() else { return };
        match made {
            Ok(connection) => {
                self.attach(connection);
                self.shared.with(|state| state.status.locator = Some(locator));
                // Nobody may wait for it any more.
                tell.map(|tell| tell.send(Ok(())).is_ok());
            }
            Err(error) => {
                self.back_off(&error.to_string());
                tell.map(|tell| tell.send(Err(error)).is_ok());
            }
        }
    }

    fn back_off(&mut self, why: &str) {
        let doubled = BACKOFF_MIN.saturating_mul(1 << self.attempts.min(16));
        self.attempts = self.attempts.saturating_add(1);
        self.again_at = Some(self.now + doubled.min(BACKOFF_MAX));
        tracing::debug!(peer = self.shared.peer, why, "no connection");
        self.shared.with(|state| state.status.last_loss = Some(why.to_owned()));
    }

    /// A new connection takes the place of whatever was before.
    fn attach(&mut self, connection: Connection) {
        let now_ms = self.now_ms();
        let attached = self.shared.with(|state| {
            state.status.kind = Some(connection.kind());
            state.status.remote = Some(connection.remote());
            state.status.locator = None;
            state.status.traffic.connections += 1;
            state.link.connected(now_ms, Transport::Stream)
        });
        if let Err(error) = attached {
            // Streams are always good for a link.
            tracing::error!(%error, "a link refuses its transport");
            return;
        }
        self.inbox.clear();
        self.outbox.clear();
        (self.sent, self.blocked, self.again_at) = (0, None, None);
        self.on = Some(On { carrier: connection.carrier, unflushed: false, little: false });
    }

    fn lost(&mut self, why: &io::Error) {
        self.on = None;
        self.shared.with(|state| {
            state.link.disconnected();
            state.status.kind = None;
        });
        self.back_off(&why.to_string());
    }

    /// Takes what came. True: there was something.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> bool {
        let mut came = false;
        for _ in 0..RECEIVES_OF_A_TURN {
            let now_ms = self.now_ms();
            if self.on.is_none() || self.shared.with(State::has_backlog) {
                break;
            }
            let Some(on) = &mut self.on else { break };
            let mut ears = Ears {
                now_ms,
                shared: &self.shared,
                inbox: &mut self.inbox,
                packer: &mut self.packer,
                unpacked: &mut self.unpacked,
                up: false,
                deaf: false,
            };
            let received = on.carrier.poll_hear(cx, &mut self.scratch, &mut |bytes| ears.hear(bytes));
            if ears.up {
                self.attempts = 0;
            }
            match received {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => {
                    self.lost(&io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the other node closed the connection",
                    ));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => self.lost(&error),
            }
            came = true;
        }
        came
    }

    /// Hands over what is to go out. True: there was something.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> bool {
        let mut sent = false;
        let emptied = match self.poll_places(cx, &mut sent) {
            Poll::Pending => return sent,
            Poll::Ready(Ok(all)) => all,
            Poll::Ready(Err(error)) => {
                self.lost(&error);
                return true;
            }
        };
        loop {
            if self.sent == self.outbox.len() {
                if emptied {
                    break;
                }
                self.gather();
            }
            let Some(on) = &mut self.on else { break };
            let rest = self.outbox.get(self.sent..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            let begun = Instant::now();
            match on.carrier.poll_send(cx, rest) {
                Poll::Pending => {
                    self.blocked.get_or_insert(begun);
                    return sent;
                }
                Poll::Ready(Ok(bytes)) => {
                    let since = self.blocked.take().unwrap_or(begun);
                    self.packer.carried(bytes, u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
                    self.sent += bytes;
                    on.unflushed = true;
                    sent = true;
                }
                Poll::Ready(Err(error)) => {
                    self.lost(&error);
                    return true;
                }
            }
        }
        if let Some(on) = self.on.as_mut().filter(|on| on.unflushed) {
            match on.carrier.poll_flush(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => on.unflushed = false,
                Poll::Ready(Err(error)) => self.lost(&error),
            }
        }
        sent
    }

    /// Lets the link put packets together where they go out, where the carrier has places for that
    /// and nothing is to be done to them first. Ready: what there is yet to go goes by way of the
    /// outbox; true: nothing is.
    fn poll_places(&mut self, cx: &mut Context<'_>, put: &mut bool) -> Poll<io::Result<bool>> {
        while self.sent == self.outbox.len() {
            let now_ms = self.now_ms();
            let Some(on) = &mut self.on else { break };
            let most = on.carrier.packet_bytes();
            let Poll::Ready(place) = on.carrier.poll_place(cx) else {
                self.blocked.get_or_insert_with(Instant::now);
                return Poll::Pending;
            };
            let Some(place) = place? else { break };
            self.blocked = None;
            let begin = place.len();
            let (plain, more, classed) = self.shared.with(|state| {
                let plain = state.compression == Compression::None;
                if !plain || !state.link.poll_transmit(now_ms, most, place) {
                    return (plain, false, state.classed);
                }
                let (bytes, traffic) = ((place.len() - begin) as u64, &mut state.status.traffic);
                traffic.packets_out += 1;
                traffic.plain_out += bytes;
                traffic.carried_out += bytes;
                state.status.way = Way::None;
                (plain, true, state.classed)
            });
            on.carrier.placed(cx)?;
            if on.little != classed {
                on.little = classed;
                on.carrier.hold_little(classed);
            }
            if !more {
                return Poll::Ready(Ok(plain));
            }
            (*put, on.unflushed) = (true, true);
        }
        Poll::Ready(Ok(false))
    }

    /// Fills the outbox, which is empty, with packets.
    fn gather(&mut self) {
        self.outbox.clear();
        self.sent = 0;
        if self.on.is_none() {
            return;
        }
        let now_ms = self.now_ms();
        let (outbox, packer) = (&mut self.outbox, &mut self.packer);
        let classed = self.shared.with(|state| {
            let (wanted, takes) = (state.compression, state.link.compressions());
            let batch = if state.classed { BATCH_BYTES_CLASSED } else { BATCH_BYTES };
            while outbox.len() < batch {
                let start = outbox.len();
                if !state.link.poll_transmit(now_ms, batch, outbox) {
                    break;
                }
                let plain = outbox.len() - start;
                if wanted != Compression::None {
                    packer.pack(outbox, start, wanted, takes);
                }
                let traffic = &mut state.status.traffic;
                traffic.packets_out += 1;
                traffic.plain_out += plain as u64;
                traffic.carried_out += (outbox.len() - start) as u64;
            }
            if !outbox.is_empty() {
                state.status.way = packer.way(wanted, takes);
            }
            state.classed
        });
        if let Some(on) = self.on.as_mut().filter(|on| on.little != classed) {
            on.little = classed;
            on.carrier.hold_little(classed);
        }
    }

    /// True: the time has come for something, and it was done.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> bool {
        let due = self.shared.with(|state| state.link.due());
        let due = due.map(|due| self.begun + Duration::from_millis(due));
        let again =
            self.again_at.filter(|_| self.on.is_none() && self.dialing.is_none() && self.tls.is_some());
        let Some(at) = [due, again].into_iter().flatten().min() else { return false };
        if at <= self.now {
            self.tick();
            return true;
        }
        // A timer that goes off too early is set again then; to set it for every packet costs more.
        let early = self.timer.as_ref().is_some_and(|(set, _)| *set <= at);
        if !early {
            self.timer = Some((at, Box::pin(tokio::time::sleep_until(at.into()))));
        }
        let fired = self.timer.as_mut().is_some_and(|(_, timer)| timer.as_mut().poll(cx).is_ready());
        if fired {
            self.timer = None;
        }
        fired
    }

    fn tick(&mut self) {
        let now_ms = self.now_ms();
        let silent = self.shared.with(|state| {
            let mut silent = false;
            for event in state.link.tick(now_ms) {
                silent |= event == Event::Silent;
                state.tell(event);
            }
            silent
        });
        if silent {
            self.lost(&io::Error::new(io::ErrorKind::TimedOut, "the other node was silent for too long"));
        }
    }

    /// Says the last that is to be said, and closes.
    fn poll_farewell(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.poll_send(cx);
            if self.blocked.is_some() {
                return Poll::Pending;
            }
            if self.sent == self.outbox.len() {
                break;
            }
        }
        let Some(on) = &mut self.on else { return Poll::Ready(Ok(())) };
        ready!(on.carrier.poll_flush(cx))?;
        on.carrier.poll_close(cx)
    }
}
