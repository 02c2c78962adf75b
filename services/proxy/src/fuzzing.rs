//! A proxy without its process and its node: a fuzz target is the other node's proxy, and this
//! node's daemon and programs. Only fuzz targets use it.

use crate::carrier::Carrier;
use crate::pump::Ended;
use crate::switch::{Kept, MAX_PUMPS, Switch};
use channel::{Config, Receiver, Sender};
use link::{Event, Link, OpenError, SendError, Sent, Share, Standing, Timing, Transport};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use wire::link::{Decoder, Hello, Pair};
use wire::proxy::{
    MAX_MESSAGE_BYTES, MAX_REFUSAL_BYTES, MAX_WAITING_OPENS, Order, Report, SILENCE_MS, WINDOW_BYTES,
};
use wire::ring::RING_BYTES_MIN;

/// Pairs that each side may have: few, so that the bound is met.
const PAIRS: u32 = 8;
/// Bytes that one side says at a time.
const TURN_BYTES: usize = 100_000;
/// How often the pumps have their turn after each thing that happened: what they have to say of it,
/// they say in fewer.
const TURNS: usize = 8;
/// Packets that follow from one thing that happened, at most.
const MAX_PACKETS: usize = 4096;
/// Reports to the daemon that follow from one event of the link, at most.
const MAX_REPORTS: usize = 4;

/// Both ends of a link: the victim's is side 1.
#[derive(Debug, Clone)]
struct Net(Arc<Mutex<[Link; 2]>>);

impl Net {
    fn lock(&self) -> MutexGuard<'_, [Link; 2]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Carrier for Net {
    fn open(&self, content: &[u8]) -> Result<Pair, OpenError> {
        self.lock()[1].open(content)
    }
    fn send(&self, pair: Pair, message: &[u8]) -> Result<Sent, SendError> {
        self.lock()[1].send(pair, message)
    }
    fn send_parts(&self, pair: Pair, parts: [&[u8]; 2]) -> Result<Sent, SendError> {
        self.lock()[1].send_parts(pair, parts)
    }
    fn send_all_parts(&self, pair: Pair, messages: &[[&[u8]; 2]]) -> Result<usize, SendError> {
        self.lock()[1].send_all_parts(pair, messages.iter().copied())
    }
    fn consumed_all(&self, pair: Pair, messages: usize, bytes: usize) {
        self.lock()[1].consumed_all(pair, messages, bytes);
    }
    fn close(&self, pair: Pair, reason: u32) {
        self.lock()[1].close(pair, reason);
    }
    fn abandon(&self, pair: Pair, reason: u32) {
        self.lock()[1].abandon(pair, reason);
    }
    fn held_of(&self, pair: Pair) -> usize {
        self.lock()[1].held_of(pair)
    }
    fn set_whole(&self, rate_bytes: Option<u64>) {
        self.lock()[1].set_whole(rate_bytes);
    }
    fn set_share(&self, class: u32, share: Option<Share>) -> bool {
        self.lock()[1].set_share(class, share)
    }
    fn classify(&self, pair: Pair, class: u32) {
        self.lock()[1].classify(pair, class);
    }
    fn standing(&self) -> Standing {
        self.lock()[1].standing()
    }
    fn transport(&self) -> String {
        "memory".into()
    }
    fn loss(&self) -> String {
        String::new()
    }
    fn state(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

fn link(side: u8) -> Link {
    let hello = Hello {
        oldest: 1,
        newest: 1,
        side,
        compressions: 1,
        pairs: PAIRS,
        window_bytes: WINDOW_BYTES,
        message_bytes: MAX_MESSAGE_BYTES,
        silence_ms: SILENCE_MS,
    };
    let config =
        link::Config { epoch: 1, hello, queue_bytes: WINDOW_BYTES as usize, timing: Timing::default() };
    let mut link = Link::new(config).expect("a configuration");
    link.connected(0, Transport::Stream).expect("a stream");
    link
}

/// The victim, and what is around it.
#[derive(Debug)]
pub struct Stage {
    net: Net,
    switch: Switch,
    ends: mpsc::UnboundedReceiver<(Pair, Ended)>,
    /// The programs of this node: the other ends of the channels that were given to the proxy.
    programs: VecDeque<(Sender, Receiver)>,
    runtime: Runtime,
}

/// The link is over: that is how what breaks its rules ends.
#[derive(Debug, Clone, Copy)]
pub struct LinkIsOver;

impl Stage {
    /// A proxy whose link has just been connected; neither side has said anything.
    #[must_use]
    pub fn new() -> Self {
        let net = Net(Arc::new(Mutex::new([link(0), link(1)])));
        let (switch, ends) = Switch::new(Arc::new(net.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { net, switch, ends, programs: VecDeque::new(), runtime }
    }

    /// The other side says any bytes, without a link of its own.
    ///
    /// # Errors
    /// [`LinkIsOver`].
    pub fn bytes(&mut self, bytes: &[u8], piece: usize) -> Result<(), LinkIsOver> {
        let mut decoder = Decoder::default();
        for mut piece in bytes.chunks(piece.max(1)) {
            while let Some((header, body)) = decoder.next(&mut piece).map_err(|_| LinkIsOver)? {
                let events = self.net.lock()[1].receive(0, &header, &body);
                self.hear(events)?;
                self.rest();
            }
        }
        Ok(())
    }

    /// Carries what both have to say, and gives the pumps their turn.
    ///
    /// # Errors
    /// [`LinkIsOver`].
    pub fn carry(&mut self) -> Result<(), LinkIsOver> {
        let mut packets = 0;
        for _ in 0..TURNS {
            while let Some(events) = self.one_packet() {
                packets += 1;
                assert!(packets <= MAX_PACKETS, "they talk and talk");
                self.hear(events)?;
            }
            self.rest();
        }
        Ok(())
    }

    /// One packet from either side; what it is for the victim.
    fn one_packet(&mut self) -> Option<Vec<Event>> {
        let mut links = self.net.lock();
        for side in [0, 1] {
            let mut bytes = Vec::new();
            if !links[side].poll_transmit(0, TURN_BYTES, &mut bytes) {
                continue;
            }
            let (header, body) = wire::link::Packet::split(&bytes).expect("what was sent can be read");
            let events = links[1 - side].receive(0, &header, body);
            if side == 0 {
                return Some(events);
            }
            for event in events {
                if let Event::Messages { pair, messages } = event {
                    let sizes: Vec<usize> = messages.iter().map(<[u8]>::len).collect();
                    sizes.into_iter().for_each(|bytes| links[0].consumed(pair, bytes));
                }
            }
            return Some(Vec::new());
        }
        None
    }

    fn hear(&mut self, events: Vec<Event>) -> Result<(), LinkIsOver> {
        let _inside = self.runtime.enter();
        for event in events {
            let most = MAX_REPORTS
                + if let Event::Messages { messages, .. } = &event { messages.count() } else { 0 };
            let before = self.switch.reports.len();
            self.switch.hear(event).map_err(|_| LinkIsOver)?;
            assert!(self.switch.reports.len() - before <= most, "one event is told many times");
        }
        Ok(())
    }

    /// The pumps have a turn, and everything is within its bounds.
    fn rest(&mut self) {
        self.runtime.block_on(tokio::task::yield_now());
        while let Ok((pair, how)) = self.ends.try_recv() {
            self.switch.pump_ended(pair, &how);
        }
        let counted = |is: fn(&Kept) -> bool| self.switch.pairs.values().filter(|kept| is(kept)).count();
        assert!(self.switch.pairs.len() <= 2 * PAIRS as usize, "more pairs than both allow");
        assert_eq!(
            self.switch.asked,
            counted(|kept| matches!(kept, Kept::Asked { .. })),
            "who asks is miscounted"
        );
        assert!(self.switch.asked <= MAX_WAITING_OPENS && self.switch.pumps <= MAX_PUMPS);
        assert_eq!(self.switch.opens.len(), counted(|kept| matches!(kept, Kept::Opening { .. })));
        assert!(counted(|kept| matches!(kept, Kept::NewsIn)) <= 1);
    }

    /// The reports to the daemon since the last time.
    pub fn reports(&mut self) -> Vec<Report> {
        let reports: Vec<Report> = self.switch.reports.drain(..).collect();
        for report in &reports {
            if let Report::Refused { errno, message, .. } = report {
                assert!((1..4096).contains(errno) && !message.chars().any(char::is_control));
                // What is not UTF-8 is replaced, which takes three bytes for one.
                assert!(message.len() <= 3 * MAX_REFUSAL_BYTES);
            }
        }
        reports
    }

    /// The daemon says something; an end of a new channel goes with what takes one.
    ///
    /// # Errors
    /// [`LinkIsOver`].
    pub fn order(&mut self, order: Order) -> Result<(), LinkIsOver> {
        let mut descriptors = Vec::new();
        if matches!(order, Order::Open { .. } | Order::Accept { .. }) {
            let config = Config { ring_bytes: RING_BYTES_MIN, ..Config::default() };
            let (near, far) = channel::pair(&config).expect("a channel");
            self.programs.push_back(near.open().expect("an end"));
            // Who was there longest ends.
            if self.programs.len() > PAIRS as usize {
                self.programs.pop_front();
            }
            descriptors = far.into_descriptors().into();
        }
        let _inside = self.runtime.enter();
        self.switch.obey(order, descriptors).map_err(|_| LinkIsOver)
    }

    /// One of the programs sends, receives all that is there, and may end.
    pub fn program(&mut self, which: usize, bytes: &[u8], ends: bool) {
        if self.programs.is_empty() {
            return;
        }
        let which = which % self.programs.len();
        if let Some((sender, receiver)) = self.programs.get_mut(which) {
            // One that is full, or over, is so by what the other side did.
            let _full = sender.try_send(bytes);
            let mut message = Vec::new();
            while let Ok(Some(_)) = receiver.try_receive(&mut message) {
                message.clear();
            }
        }
        if ends {
            self.programs.remove(which);
        }
    }

    /// The other side's link, which keeps to the rules of links whatever it carries.
    pub fn peer<T>(&mut self, act: impl FnOnce(&mut Link) -> T) -> T {
        act(&mut self.net.lock()[0])
    }
}

impl Default for Stage {
    fn default() -> Self {
        Self::new()
    }
}
