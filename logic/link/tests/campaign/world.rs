//! Two sides, their users, the network between them, and what the users may expect.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::network::{Network, Random};
use link::{Closed, Config, Event, Link, Sent, Standing, Timing, Transport};
use wire::link::{Hello, Pair};

const WINDOW: usize = 4096;
const QUEUE: usize = 3000;
const PAIRS: u32 = 6;
const SILENCE_MS: u32 = 1000;

#[derive(Default)]
pub struct Counts {
    pub delivered: u64,
    pub resumed: u64,
    pub reborn: u64,
    pub cuts: u64,
    pub lost: u64,
    pub stale: u64,
    pub closed: u64,
    pub full: u64,
    pub silent: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.delivered += other.delivered;
        self.resumed += other.resumed;
        self.reborn += other.reborn;
        self.cuts += other.cuts;
        self.lost += other.lost;
        self.stale += other.stale;
        self.closed += other.closed;
        self.full += other.full;
        self.silent += other.silent;
    }
}

/// One side's knowledge of a pair.
#[derive(Default)]
struct Known {
    name: u64,
    /// Received, and not consumed.
    held: VecDeque<usize>,
    /// This user takes nothing.
    stuck: bool,
    /// Nothing fits, and room was not told of since.
    full: bool,
}

/// A pair as both users together know it, by the name in its opening.
#[derive(Default)]
struct Reference {
    /// Queued by each side, and not delivered to the other.
    sent: [VecDeque<Vec<u8>>; 2],
    /// A side closed it, by waiting for what it had queued, or not.
    closed: [Option<bool>; 2],
    opened: BTreeSet<usize>,
}

struct Side {
    link: Link,
    epoch: u64,
    connected: bool,
    known: BTreeMap<Pair, Known>,
}

pub struct World {
    random: Random,
    network: Network,
    sides: [Side; 2],
    references: BTreeMap<u64, Reference>,
    now_ms: u64,
    names: u64,
    messages: u64,
    transports: Vec<Transport>,
    rebirths: bool,
    pub counts: Counts,
}

fn link(side: u8, epoch: u64) -> Link {
    let hello = Hello {
        oldest: 1,
        newest: 1,
        side,
        compressions: 0,
        pairs: PAIRS,
        window_bytes: WINDOW as u32,
        message_bytes: 2500,
        silence_ms: SILENCE_MS,
    };
    Link::new(Config { epoch, hello, queue_bytes: QUEUE, timing: Timing::default() })
        .expect("a configuration")
}

impl World {
    pub fn new(seed: u64) -> Self {
        let side = |side| Side { link: link(side, 1), epoch: 1, connected: false, known: BTreeMap::new() };
        Self {
            random: Random(seed),
            network: Network::new(),
            sides: [side(0), side(1)],
            references: BTreeMap::new(),
            now_ms: 0,
            names: 0,
            messages: 0,
            transports: vec![Transport::Stream],
            rebirths: false,
            counts: Counts::default(),
        }
    }

    pub fn streams(&mut self) {
        self.transports = vec![Transport::Stream];
    }

    pub fn datagrams(&mut self) {
        self.transports = vec![Transport::Datagrams { bytes: 1280 }, Transport::Datagrams { bytes: 9000 }];
    }

    pub fn everything(&mut self) {
        self.datagrams();
        self.transports.push(Transport::Stream);
        self.rebirths = true;
    }

    pub fn step(&mut self) {
        let side = self.random.below(2);
        match self.random.below(100) {
            0..25 => {
                self.transmit(side);
            }
            25..55 => self.arrive(side),
            55..75 => self.say(side),
            75..84 => self.take(side, false),
            84..88 => self.open(side),
            88..89 => self.close(side),
            89..97 => {
                let most = if self.random.once_in(8) { 400 } else { 30 };
                self.now_ms += self.random.below(most) as u64;
                self.tick();
            }
            97 => self.network.replay(side, &mut self.random),
            98 if self.random.once_in(2) => self.trouble(side),
            _ => self.connect(),
        }
        self.check_bounds();
    }

    /// Both get a new connection, whatever they think of the one that they have; but not while it
    /// works.
    fn connect(&mut self) {
        if self.sides.iter().all(|side| side.connected) {
            return;
        }
        self.network.cut();
        self.network.transport = self.transports[self.random.below(self.transports.len())];
        for side in &mut self.sides {
            side.link.connected(self.now_ms, self.network.transport).expect("long enough datagrams");
            side.connected = true;
        }
    }

    fn trouble(&mut self, side: usize) {
        match self.random.below(if self.rebirths { 4 } else { 3 }) {
            // Both hear of it.
            0 => {
                self.counts.cuts += 1;
                self.network.cut();
                for side in &mut self.sides {
                    side.link.disconnected();
                    side.connected = false;
                }
            }
            // One hears of it; the other speaks to nobody.
            1 => {
                self.counts.cuts += 1;
                self.network.cut();
                self.network.black_hole = [true; 2];
                self.sides[side].link.disconnected();
                self.sides[side].connected = false;
            }
            // Nobody hears of it.
            2 => self.network.black_hole[side] = true,
            _ => self.rebirth(side),
        }
    }

    fn rebirth(&mut self, side: usize) {
        self.counts.reborn += 1;
        self.counts.stale += self.sides[side].link.stale();
        let epoch = self.sides[side].epoch + 1;
        self.sides[side] =
            Side { link: link(side as u8, epoch), epoch, connected: false, known: BTreeMap::new() };
        for reference in self.references.values_mut() {
            reference.closed[side].get_or_insert(false);
        }
        // A stream dies with whoever spoke; datagrams go on flying.
        if !self.network.transport.is_lossy() {
            self.network.cut();
            self.network.black_hole = [true; 2];
        }
    }

    fn transmit(&mut self, side: usize) -> bool {
        let most = if self.network.unkind { 1280 + self.random.below(9000) } else { 100_000 };
        let mut packet = Vec::new();
        let sent = self.sides[side].link.poll_transmit(self.now_ms, most, &mut packet);
        if sent {
            assert!(packet.len() <= most, "{} bytes of {most}", packet.len());
            if let Transport::Datagrams { bytes } = self.network.transport {
                assert!(packet.len() <= bytes, "{} bytes in a datagram of {bytes}", packet.len());
            }
            self.network.carry(side, &packet, &mut self.random);
        }
        sent
    }

    fn arrive(&mut self, side: usize) {
        let most = if self.network.unkind { 1 + self.random.below(4000) } else { usize::MAX };
        for (header, body) in self.network.arrive(1 - side, most, &mut self.random) {
            let events = self.sides[side].link.receive(self.now_ms, &header, &body);
            self.heed(side, events);
        }
    }

    fn tick(&mut self) {
        for side in 0..2 {
            let events = self.sides[side].link.tick(self.now_ms);
            self.heed(side, events);
        }
    }

    fn heed(&mut self, side: usize, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Up { version, resumed } => {
                    assert_eq!(version, 1);
                    self.counts.resumed += u64::from(resumed);
                }
                Event::Opened { pair, content } => self.opened(side, pair, &content),
                Event::Messages { pair, messages } => {
                    messages.iter().for_each(|bytes| self.delivered(side, pair, bytes));
                }
                Event::Room(pair) => {
                    if let Some(known) = self.sides[side].known.get_mut(&pair) {
                        known.full = false;
                    }
                }
                Event::Closed { pair, why } => self.closed(side, pair, why),
                Event::Silent => {
                    self.counts.silent += 1;
                    self.sides[side].connected = false;
                }
                Event::Over(over) => panic!("side {side}: {over}"),
            }
        }
    }

    fn opened(&mut self, side: usize, pair: Pair, content: &[u8]) {
        let name = u64::from_le_bytes(content.try_into().expect("a name"));
        let reference = self.references.get_mut(&name).expect("somebody opened it");
        assert!(reference.opened.insert(side), "pair {name} was opened twice");
        let stuck = self.random.once_in(4);
        let known = Known { name, stuck, ..Known::default() };
        assert!(self.sides[side].known.insert(pair, known).is_none(), "pair {pair} is there already");
    }

    fn delivered(&mut self, side: usize, pair: Pair, bytes: &[u8]) {
        let Some(known) = self.sides[side].known.get_mut(&pair) else {
            panic!("a message of {pair}, unknown")
        };
        let reference = self.references.get_mut(&known.name).expect("a pair");
        let expected = reference.sent[1 - side].pop_front();
        assert_eq!(expected.as_deref(), Some(bytes), "side {side}, pair {}", known.name);
        self.counts.delivered += 1;
        known.held.push_back(bytes.len());
        let held: usize = known.held.iter().map(|bytes| bytes + 8).sum();
        assert!(held <= WINDOW, "{held} bytes were delivered into a window of {WINDOW}");
    }

    fn closed(&mut self, side: usize, pair: Pair, why: Closed) {
        self.counts.closed += 1;
        let known = self.sides[side].known.remove(&pair).expect("a pair that is known");
        let reference = self.references.get_mut(&known.name).expect("a pair");
        let how = reference.closed[1 - side];
        if why == Closed::Reborn {
            let unknown = !reference.opened.contains(&(1 - side));
            assert!(self.sides[1 - side].epoch > 1 && (unknown || how.is_some()), "nobody was born anew");
        } else if how.expect("nobody closed this pair") {
            assert!(reference.sent[1 - side].is_empty(), "something was lost before an orderly close");
        }
        reference.closed[side].get_or_insert(false);
    }

    fn open(&mut self, side: usize) {
        self.names += 1;
        let Ok(pair) = self.sides[side].link.open(&self.names.to_le_bytes()) else { return };
        let stuck = self.random.once_in(4);
        let known = Known { name: self.names, stuck, ..Known::default() };
        assert!(self.sides[side].known.insert(pair, known).is_none());
        let opened = BTreeSet::from([side]);
        self.references.insert(self.names, Reference { opened, ..Reference::default() });
    }

    fn any_pair(&mut self, side: usize) -> Option<Pair> {
        let count = self.sides[side].known.len();
        if count == 0 {
            return None;
        }
        self.sides[side].known.keys().nth(self.random.below(count)).copied()
    }

    fn say(&mut self, side: usize) {
        let Some(pair) = self.any_pair(side) else { return };
        let length = match self.random.below(4) {
            0 => 0,
            1 => 8 + self.random.below(2400),
            _ => 8 + self.random.below(100),
        };
        self.messages += 1;
        let mut message = self.messages.to_le_bytes().to_vec();
        message.resize(length, self.messages as u8);
        let sent = self.sides[side].link.send(pair, &message).expect("an open pair");
        let Some(known) = self.sides[side].known.get_mut(&pair) else { return };
        match sent {
            Sent::Queued => {
                let reference = self.references.get_mut(&known.name).expect("a pair");
                reference.sent[side].push_back(message);
            }
            Sent::Full => {
                self.counts.full += 1;
                known.full = true;
            }
        }
    }

    fn take(&mut self, side: usize, all: bool) {
        let pairs: Vec<Pair> = if all {
            self.sides[side].known.keys().copied().collect()
        } else {
            self.any_pair(side).into_iter().collect()
        };
        for pair in pairs {
            let Side { known, link, .. } = &mut self.sides[side];
            let Some(known) = known.get_mut(&pair) else { continue };
            while !known.stuck
                && let Some(bytes) = known.held.pop_front()
            {
                link.consumed(pair, bytes);
                if !all {
                    break;
                }
            }
        }
    }

    fn close(&mut self, side: usize) {
        let Some(pair) = self.any_pair(side) else { return };
        let orderly = self.random.once_in(2);
        let known = self.sides[side].known.remove(&pair).expect("a pair");
        let reference = self.references.get_mut(&known.name).expect("a pair");
        reference.closed[side] = Some(orderly);
        if orderly {
            self.sides[side].link.close(pair, 7);
        } else {
            self.sides[side].link.abandon(pair, 7);
        }
    }

    fn check_bounds(&mut self) {
        for side in &mut self.sides {
            let held = side.link.held();
            assert!(held.pairs <= 2 * PAIRS as usize, "{} pairs", held.pairs);
            assert!(held.outward <= held.pairs * QUEUE, "{} bytes wait", held.outward);
            assert!(held.inward <= held.pairs * WINDOW, "{} bytes have come", held.inward);
        }
    }

    /// From now on the network is kind. Users that are not stuck take all; when nothing moves any
    /// more, all that they were sent has come. Then the others take as well.
    pub fn finish(&mut self) {
        self.network.unkind = false;
        // What is on its way may have to do without a new connection.
        let works = self.sides.iter().all(|side| side.connected) && self.network.black_hole == [false; 2];
        if !works || self.random.once_in(2) {
            for side in &mut self.sides {
                side.link.disconnected();
                side.connected = false;
            }
            self.connect();
        }
        self.settle();
        self.check_delivered(|known| !known.stuck);
        for side in &mut self.sides {
            side.known.values_mut().for_each(|known| known.stuck = false);
        }
        self.settle();
        self.check_delivered(|_| true);
        for side in &mut self.sides {
            self.counts.stale += side.link.stale();
            assert_eq!(side.link.held().outward, 0, "all was received, and the other has heard that");
            assert_eq!(side.link.standing(), Standing::Up);
            assert_eq!(side.link.held().pairs, side.known.len(), "pairs are left that nobody knows");
            let full = side.known.values().filter(|known| known.full).count();
            assert_eq!(full, 0, "somebody waits for room, and all is empty");
        }
        self.counts.lost += self.network.lost;
    }

    /// Until nothing happens but signs of life.
    fn settle(&mut self) {
        for _ in 0..400 {
            for side in 0..2 {
                while self.transmit(side) {}
                while !self.network.is_empty() {
                    self.arrive(0);
                    self.arrive(1);
                }
                self.take(side, true);
            }
            self.now_ms += 10;
            self.tick();
        }
    }

    fn check_delivered(&self, which: impl Fn(&Known) -> bool) {
        for (at, side) in self.sides.iter().enumerate() {
            for known in side.known.values().filter(|known| which(known)) {
                let reference = &self.references[&known.name];
                let waits = reference.sent[1 - at].len();
                assert_eq!(waits, 0, "pair {} lacks {waits} messages at side {at}", known.name);
            }
        }
    }
}
