//! The input of a link, and the effects of time: hellos, incarnations, frames, silence.

use crate::broken::{Broken, Over};
use crate::config::Transport;
use crate::inward::{Item, Owes};
use crate::link::{Closed, Event, Farewell, Link, Peer};
use crate::pairs::Place;
use wire::link::{Frame, Hello, Packet, Pair, Ranges, Refusal, compression, packet, refusal};

/// A silent side says something so many times before the other may call it lost.
const SIGNS_OF_LIFE: u64 = 3;

#[derive(Debug)]
pub(crate) enum Connection {
    Down,
    On(On),
}

/// A connection that was not cut.
#[derive(Debug)]
pub(crate) struct On {
    pub transport: Transport,
    /// The peer is known to have heard us.
    pub up: bool,
    pub heard_ms: u64,
    pub sent_ms: u64,
    /// A hello is to be sent, now or then.
    pub hello_due: bool,
    pub hello_at: Option<u64>,
    pub ping_due: bool,
    /// When the ping left that is not answered yet.
    pub ping: Option<u64>,
    pub pong: Option<[u8; 8]>,
    /// The peer has said what it has of all pairs: nothing is sent twice for nothing.
    pub resumed_heard: bool,
    pub resumed_sent: bool,
    /// When the peer is told of what came at the latest.
    pub soon_at: Option<u64>,
    /// When what is on its way may be lost.
    pub resend_at: Option<u64>,
    /// The time until which that which is to be sent has to wait for its class.
    pub held_until: Option<u64>,
    pub round_trip_ms: Option<u64>,
}

impl Connection {
    pub fn new(now_ms: u64, transport: Transport) -> Self {
        Self::On(On {
            transport,
            up: false,
            heard_ms: now_ms,
            sent_ms: now_ms,
            hello_due: true,
            hello_at: None,
            ping_due: false,
            ping: None,
            pong: None,
            resumed_heard: transport.is_lossy(),
            resumed_sent: false,
            soon_at: None,
            resend_at: None,
            held_until: None,
            round_trip_ms: None,
        })
    }

    pub fn on(&self) -> Option<&On> {
        match self {
            Self::On(on) => Some(on),
            Self::Down => None,
        }
    }

    pub fn on_mut(&mut self) -> Option<&mut On> {
        match self {
            Self::On(on) => Some(on),
            Self::Down => None,
        }
    }
}

impl Link {
    /// Whether a packet may be unpacked: its compression is one that our hello names.
    #[must_use]
    pub fn takes(&self, header: &Packet) -> bool {
        let offered = u32::from(self.config.hello.compressions) >> header.compression.min(31) & 1 == 1;
        header.compression == compression::NONE || offered
    }

    /// The transport has brought a packet; `body` is unpacked.
    pub fn receive(&mut self, now_ms: u64, header: &Packet, body: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        if self.over.is_some() {
            return events;
        }
        match self.hear(now_ms, header, body, &mut events) {
            Ok(()) => {}
            Err(broken) => {
                let over = self.broken(broken);
                events.push(Event::Over(over));
            }
        }
        events
    }

    fn hear(
        &mut self,
        now_ms: u64,
        header: &Packet,
        body: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Broken> {
        if self.connection.on().is_none() {
            self.stale += 1;
            return Ok(());
        }
        if !self.takes(header) {
            return Err(Broken::Compression { found: header.compression });
        }
        if u32::try_from(body.len()) != Ok(header.plain) {
            return Err(Broken::Unpacked { announced: header.plain, found: body.len() });
        }
        match header.kind {
            packet::HELLO => self.hear_hello(now_ms, header, Hello::read(body)?, events),
            packet::REFUSAL => {
                self.hear_refusal(header, Refusal::read(body)?, events);
                Ok(())
            }
            _ => self.hear_frames(now_ms, header, body, events),
        }
    }

    fn is_of_peer(&self, header: &Packet) -> bool {
        header.to == self.config.epoch && self.peer.is_some_and(|peer| peer.epoch == header.from)
    }

    fn hear_refusal(&mut self, header: &Packet, refusal: Refusal, events: &mut Vec<Event>) {
        let older = self.peer.is_some_and(|peer| header.from < peer.epoch);
        if header.to != self.config.epoch || older {
            self.stale += 1;
            return;
        }
        self.end(Over::Refused(refusal), None);
        events.push(Event::Over(Over::Refused(refusal)));
    }

    fn hear_hello(
        &mut self,
        now_ms: u64,
        header: &Packet,
        hello: Hello,
        events: &mut Vec<Event>,
    ) -> Result<(), Broken> {
        if self.peer.is_some_and(|peer| header.from < peer.epoch) {
            self.stale += 1;
            let refusal = self.refusal(refusal::EPOCH);
            self.farewell = Some(Farewell::Refusal { to: header.from, refusal });
            return Ok(());
        }
        let same = self.peer.filter(|peer| peer.epoch == header.from);
        if same.is_some_and(|peer| peer.hello != hello) {
            return Err(Broken::Changed);
        }
        if same.is_none() && !self.meet(header.from, hello, events) {
            return Ok(());
        }
        let heard_us = header.to == self.config.epoch;
        if let Some(on) = self.connection.on_mut() {
            on.heard_ms = now_ms;
            if !heard_us {
                on.hello_due = true;
            } else if on.up && on.transport.is_lossy() {
                // It does not know that we know.
                on.ping_due = true;
            }
        }
        if heard_us {
            self.come_up(events);
        }
        Ok(())
    }

    /// A new incarnation of the peer. `false`: it is refused.
    fn meet(&mut self, epoch: u64, hello: Hello, events: &mut Vec<Event>) -> bool {
        let ours = self.config.hello;
        let (over, reason) = match ours.common_version(&hello) {
            None => (Over::Version { oldest: hello.oldest, newest: hello.newest }, refusal::VERSION),
            Some(_) if hello.side == ours.side => (Over::Side { side: hello.side }, refusal::SIDE),
            Some(version) => {
                let ended = self.pairs.reborn(ours.side);
                events.extend(ended.into_iter().map(|pair| Event::Closed { pair, why: Closed::Reborn }));
                self.peer = Some(Peer { epoch, hello, version, met: false });
                if let Some(on) = self.connection.on_mut() {
                    (on.up, on.resumed_sent, on.resend_at, on.soon_at) = (false, false, None, None);
                    on.resumed_heard = on.transport.is_lossy();
                }
                return true;
            }
        };
        let refusal = self.refusal(reason);
        self.end(over, Some(Farewell::Refusal { to: epoch, refusal }));
        events.push(Event::Over(over));
        false
    }

    fn come_up(&mut self, events: &mut Vec<Event>) {
        let (Some(on), Some(peer)) = (self.connection.on_mut(), self.peer.as_mut()) else { return };
        if !on.up {
            on.up = true;
            on.hello_at = None;
            events.push(Event::Up { version: peer.version, resumed: peer.met });
            peer.met = true;
        }
    }

    fn hear_frames(
        &mut self,
        now_ms: u64,
        header: &Packet,
        mut body: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), Broken> {
        if !self.is_of_peer(header) {
            self.stale += 1;
            return Ok(());
        }
        self.come_up(events);
        if let Some(on) = self.connection.on_mut() {
            on.heard_ms = now_ms;
        }
        while let Some(frame) = Frame::next(&mut body)? {
            self.hear_frame(now_ms, frame, events)?;
            if self.over.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn hear_frame(&mut self, now_ms: u64, frame: Frame<'_>, events: &mut Vec<Event>) -> Result<(), Broken> {
        match frame {
            Frame::Data { pair, .. } | Frame::Close { pair, .. } => self.hear_item(pair, frame, events),
            Frame::State { pair, received, credit, ranges, closed } => {
                self.hear_state(pair, (received, credit), (ranges, closed), events)
            }
            Frame::Gone(pair) => self.hear_gone(pair),
            Frame::Ask(pair) => self.hear_ask(pair),
            Frame::Goodbye { reason } => {
                self.end(Over::Goodbye { reason }, None);
                events.push(Event::Over(Over::Goodbye { reason }));
                Ok(())
            }
            Frame::Resumed | Frame::Ping(_) | Frame::Pong(_) => {
                let Some(on) = self.connection.on_mut() else { return Ok(()) };
                match frame {
                    Frame::Ping(bytes) => on.pong = Some(bytes),
                    // Any other pong answers what was not asked, and measures nothing.
                    Frame::Pong(bytes) if on.ping == Some(u64::from_le_bytes(bytes)) => {
                        on.round_trip_ms = on.ping.take().map(|sent| now_ms.saturating_sub(sent));
                    }
                    Frame::Resumed => on.resumed_heard = true,
                    _ => {}
                }
                Ok(())
            }
        }
    }

    fn place(&self, pair: Pair) -> Result<(Place, Peer), Broken> {
        let peer = self.peer.ok_or(Broken::Never(pair))?;
        Ok((self.pairs.place(pair, &self.config.hello, &peer.hello)?, peer))
    }

    /// Takes an item of a pair's own stream of bytes.
    fn hear_item(&mut self, pair: Pair, frame: Frame<'_>, events: &mut Vec<Event>) -> Result<(), Broken> {
        let (place, peer) = self.place(pair)?;
        match place {
            Place::Past => {
                self.pairs.say_gone(pair);
                return Ok(());
            }
            Place::New => self.pairs.accept(pair, &self.config.hello, &peer.hello)?,
            Place::Here => {}
        }
        let lossy = self.connection.on().is_some_and(|on| on.transport.is_lossy());
        let Some(entry) = self.pairs.get(pair) else { return Ok(()) };
        let mut items = Vec::new();
        match frame {
            Frame::Data { offset, bytes, .. } => entry.inn.data(pair, offset, bytes, lossy, &mut items)?,
            Frame::Close { offset, reason, .. } => {
                entry.inn.close(pair, (offset, reason), lossy, &mut items)?;
            }
            _ => {}
        }
        for item in items {
            match item {
                Item::Open(content) => {
                    entry.announced = true;
                    events.push(Event::Opened { pair, content });
                }
                Item::Messages(messages) => events.push(Event::Messages { pair, messages }),
                Item::Closed(reason) => {
                    if entry.announced && !entry.out.is_closed() {
                        events.push(Event::Closed { pair, why: Closed::ByPeer(reason) });
                    }
                    // Nobody there listens any more.
                    entry.out.close(reason, true);
                }
            }
        }
        self.settle(pair);
        Ok(())
    }

    fn hear_state(
        &mut self,
        pair: Pair,
        told: (u64, u64),
        more: (Ranges, bool),
        events: &mut Vec<Event>,
    ) -> Result<(), Broken> {
        let (place, peer) = self.place(pair)?;
        match place {
            Place::Past => return Ok(()),
            Place::New => return Err(Broken::Never(pair)),
            Place::Here => {}
        }
        let lossy = self.connection.on().is_some_and(|on| on.transport.is_lossy());
        let window = u64::from(peer.hello.window_bytes);
        let queue_bytes = self.config.queue_bytes;
        if let Some(entry) = self.pairs.get(pair) {
            entry.out.hear(pair, told, more, (window, lossy))?;
            let wanted = entry.out.wanted;
            if wanted > 0 && entry.out.held() + wanted <= queue_bytes && !entry.out.is_closed() {
                entry.out.wanted = 0;
                events.push(Event::Room(pair));
            }
        }
        self.settle(pair);
        Ok(())
    }

    fn hear_ask(&mut self, pair: Pair) -> Result<(), Broken> {
        match self.place(pair)?.0 {
            Place::Past => self.pairs.say_gone(pair),
            Place::New => return Err(Broken::Never(pair)),
            Place::Here => {}
        }
        if let Some(entry) = self.pairs.get(pair) {
            entry.inn.owes = Owes::Now;
        }
        self.settle(pair);
        Ok(())
    }

    fn hear_gone(&mut self, pair: Pair) -> Result<(), Broken> {
        match self.place(pair)?.0 {
            Place::Past => return Ok(()),
            Place::New => return Err(Broken::Never(pair)),
            Place::Here => {}
        }
        let Some(entry) = self.pairs.get(pair) else { return Ok(()) };
        if !(entry.out.close_known() && entry.inn.is_closed()) {
            return Err(Broken::Gone(pair));
        }
        self.pairs.end(pair, self.config.hello.side);
        Ok(())
    }

    /// How often a side that has nothing to say says that it is there, in ms.
    fn sign_of_life_ms(&self) -> u64 {
        let ours = self.config.hello.silence_ms;
        u64::from(self.peer.map_or(ours, |peer| peer.hello.silence_ms.min(ours))) / SIGNS_OF_LIFE
    }

    /// When [`Link::tick`] is to be called next, in ms; `None`: not before something else happens.
    /// To be asked when [`Link::poll_transmit`] has nothing more.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        if self.over.is_some() {
            return None;
        }
        let on = self.connection.on()?;
        let silent = on.heard_ms.saturating_add(self.config.hello.silence_ms.into());
        let sign = (on.up && !on.ping_due).then(|| on.sent_ms.saturating_add(self.sign_of_life_ms()));
        [Some(silent), sign, on.soon_at, on.hello_at, on.resend_at, on.held_until].into_iter().flatten().min()
    }

    /// It is so late: some ms of a clock that never goes back. Packets to be sent because of it
    /// come out of [`Link::poll_transmit`].
    pub fn tick(&mut self, now_ms: u64) -> Vec<Event> {
        let (hello, timing) = (self.config.hello, self.config.timing);
        let sign_ms = self.sign_of_life_ms();
        let Some(on) = self.connection.on_mut().filter(|_| self.over.is_none()) else { return Vec::new() };
        let past = |at: Option<u64>| at.is_some_and(|at| at <= now_ms);
        if past(Some(on.heard_ms.saturating_add(hello.silence_ms.into()))) {
            self.connection = Connection::Down;
            return vec![Event::Silent];
        }
        on.ping_due |= on.up && past(Some(on.sent_ms.saturating_add(sign_ms)));
        if past(on.hello_at) {
            on.hello_at = None;
            on.hello_due = true;
        }
        if past(on.soon_at) {
            on.soon_at = None;
            self.pairs.hurry();
        }
        if past(on.held_until) {
            // Whoever asks what there is to send hears of the next time.
            on.held_until = None;
        }
        if past(on.resend_at) {
            on.resend_at = self.pairs.expire(now_ms, timing.resend_after_ms, hello.side);
        }
        Vec::new()
    }
}
