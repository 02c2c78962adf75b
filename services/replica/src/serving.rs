//! The primary of a view: what `logic/volume` says is done to the engine, to other nodes' replicas,
//! and to clients.

use crate::base::{Base, For};
use crate::engine::Ask;
use crate::input::{Replier, Wish};
use crate::peers::{self, Sent};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use volume::{Action, Event, Extent, Node, Primary, Session, WriteId, named};
use wire::nbd::error;
use wire::replica::{Greeting, PeerState, Report, VolumeRecord};

/// How long another replica may take to have a write on stable storage: a slow disk does, a dead
/// one does not.
const SILENCE: Duration = Duration::from_secs(3);
/// How long the daemon may take to say where another replica listens: it starts one if need be.
const FIND_TIMEOUT: Duration = Duration::from_secs(8);
/// Pause before a replica that could not be reached is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long the registry may take to change the record before it is asked again.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(2);

/// A piece of a client's write, within one extent.
#[derive(Debug)]
struct Piece {
    offset: u64,
    data: Bytes,
    whole: u64,
    /// Whether it is on its way to the disk.
    begun: bool,
}

/// A client's write, of several pieces.
#[derive(Debug)]
struct Whole {
    replier: Replier,
    left: usize,
    failed: bool,
}

/// A client's read.
#[derive(Debug)]
struct Read {
    offset: u64,
    length: u32,
    replier: Replier,
    /// Something was written there meanwhile.
    stale: bool,
}

impl Read {
    fn meets(&self, offset: u64, bytes: usize) -> bool {
        let end = offset.saturating_add(bytes as u64);
        offset < self.offset.saturating_add(self.length.into()) && self.offset < end
    }
}

/// A connection to another replica.
#[derive(Debug, Default)]
struct Link {
    /// Its number; 0: none was begun.
    connection: u64,
    /// Since when it is known where to connect, or asked.
    finding: Option<Instant>,
    out: Option<UnboundedSender<Sent>>,
    /// The next number that is to go out.
    next: u64,
    /// Messages that go out when those before them have.
    parked: BTreeMap<u64, (u64, Bytes)>,
    /// When what was not answered went out.
    sent: BTreeMap<u64, Instant>,
    why: String,
    retry: Option<Instant>,
}

impl Link {
    fn cut(&mut self, why: String) {
        *self = Self { connection: 0, why, retry: Some(Instant::now() + RETRY), ..Self::default() };
    }

    fn send(&mut self, sequence: u64, offset: u64, data: Bytes) {
        self.parked.insert(sequence, (offset, data));
        let Some(out) = &self.out else { return };
        while let Some((offset, data)) = self.parked.remove(&self.next) {
            self.sent.insert(self.next, Instant::now());
            // The end of its connection is heard.
            let _gone = out.send(Sent { sequence: self.next, offset, data });
            self.next += 1;
        }
    }
}

/// The primary of a view.
#[derive(Debug)]
pub(crate) struct Serving {
    primary: Primary,
    like: VolumeRecord,
    view: u64,
    next_id: u64,
    pieces: BTreeMap<WriteId, Piece>,
    wholes: BTreeMap<u64, Whole>,
    waiting: VecDeque<Read>,
    reading: BTreeMap<u64, Read>,
    links: BTreeMap<Node, Link>,
    /// When the change that is under way was asked for.
    changing: Option<Instant>,
    /// Bytes that may be copied now.
    pace: u64,
    paced: Instant,
    acknowledged: u64,
    first: Vec<Action>,
}

impl Serving {
    /// `None`: the record does not name this node.
    pub fn new(record: &VolumeRecord, revision: u64, base: &mut Base) -> Option<Self> {
        let own = base.names.own()?;
        let rules = named::numbered(record).filter(|rules| rules.is_primary(own, record.view))?;
        let extents = Extent::try_from(base.configured.bytes.div_ceil(base.extent_bytes)).ok()?;
        let (primary, first) = Primary::new(own, rules, revision, extents);
        Some(Self {
            primary,
            like: record.clone(),
            view: record.view,
            next_id: 0,
            pieces: BTreeMap::new(),
            wholes: BTreeMap::new(),
            waiting: VecDeque::new(),
            reading: BTreeMap::new(),
            links: BTreeMap::new(),
            changing: None,
            pace: 0,
            paced: Instant::now(),
            acknowledged: 0,
            first,
        })
    }

    pub fn begin(&mut self, base: &mut Base) {
        let first = std::mem::take(&mut self.first);
        self.act(first, base);
        self.step(Event::Pace(0), base);
    }

    pub fn view(&self) -> u64 {
        self.view
    }

    pub fn has_ended(&self) -> bool {
        self.primary.has_ended()
    }

    pub fn record(&self) -> (VolumeRecord, u64) {
        let (record, revision) = self.primary.record();
        (named::named(record, &self.like), revision)
    }

    /// Another daemon is there: it is asked what its predecessor was.
    pub fn ask_again(&mut self) {
        let long_ago = Instant::now().checked_sub(CHANGE_TIMEOUT);
        self.changing = self.changing.and(long_ago).or(self.changing);
        for link in self.links.values_mut().filter(|link| link.finding.is_some()) {
            link.cut("another daemon is asked where it is".into());
        }
    }

    fn step(&mut self, event: Event, base: &mut Base) {
        let actions = self.primary.step(event, base.holds());
        self.act(actions, base);
        self.read_on(base);
    }

    fn act(&mut self, actions: Vec<Action>, base: &mut Base) {
        let ends = actions.contains(&Action::End);
        for action in actions {
            match action {
                Action::StoreOwn(id, _) => self.store_own(id, base),
                Action::Store(node, _, sequence, id, _) => {
                    if let (Some(piece), Some(link)) = (self.pieces.get(&id), self.links.get_mut(&node)) {
                        link.send(sequence, piece.offset, piece.data.clone());
                    }
                }
                Action::Copy(node, session, sequence, extent) => {
                    self.copy(node, session, sequence, extent, base);
                }
                Action::Open(node) => self.open(node, base),
                Action::Change(record, revision) => {
                    self.changing = Some(Instant::now());
                    base.report(Report::Change { record: named::named(&record, &self.like), revision });
                }
                Action::Acknowledge(id) => {
                    self.acknowledged += 1;
                    self.piece_done(id, true);
                }
                // Where the view is over clients are cut off, and ask the next one again.
                Action::Fail(_) if ends => {}
                Action::Fail(id) => self.piece_done(id, false),
                Action::End => {}
            }
        }
    }

    fn store_own(&mut self, id: WriteId, base: &mut Base) {
        let Some(piece) = self.pieces.get_mut(&id) else { return };
        piece.begun = true;
        for read in self.reading.values_mut() {
            read.stale |= read.meets(piece.offset, piece.data.len());
        }
        let ask = Ask::Write { offset: piece.offset, data: piece.data.clone() };
        base.disk.ask(ask, For::Own { view: self.view, write: id });
    }

    fn piece_done(&mut self, id: WriteId, acknowledged: bool) {
        let Some(piece) = self.pieces.remove(&id) else { return };
        let Some(whole) = self.wholes.get_mut(&piece.whole) else { return };
        whole.left -= 1;
        whole.failed |= !acknowledged;
        if whole.left == 0
            && let Some(whole) = self.wholes.remove(&piece.whole)
        {
            whole.replier.done(if whole.failed { Err(error::SHUTDOWN) } else { Ok(Bytes::new()) });
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub fn client(&mut self, wish: Wish, replier: Replier, base: &mut Base) {
        match wish {
            Wish::Read { offset, length } => {
                self.waiting.push_back(Read { offset, length, replier, stale: false });
                self.read_on(base);
            }
            Wish::Write { offset, data } => self.write(offset, data, replier, base),
        }
    }

    fn write(&mut self, mut offset: u64, mut data: Bytes, replier: Replier, base: &mut Base) {
        let whole = self.id();
        let mut events = Vec::new();
        while !data.is_empty() {
            let extent = offset / base.extent_bytes;
            let room = (extent + 1) * base.extent_bytes - offset;
            let length = data.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            let piece = Piece { offset, data: data.split_to(length), whole, begun: false };
            let id = self.id();
            self.pieces.insert(id, piece);
            // The volume has fewer: the request is within it.
            events.push(Event::Write(id, Extent::try_from(extent).unwrap_or(Extent::MAX)));
            offset += length as u64;
        }
        self.wholes.insert(whole, Whole { replier, left: events.len(), failed: false });
        for event in events {
            self.step(event, base);
        }
    }

    /// Begins reads that wait and may be answered: nothing is being written there that may yet be
    /// lost.
    fn read_on(&mut self, base: &mut Base) {
        if self.waiting.is_empty() || !self.primary.reads(base.holds()) {
            return;
        }
        for read in std::mem::take(&mut self.waiting) {
            let under_way = |piece: &Piece| piece.begun && read.meets(piece.offset, piece.data.len());
            if self.pieces.values().any(under_way) {
                self.waiting.push_back(read);
                continue;
            }
            let id = self.id();
            let ask = Ask::Read { offset: read.offset, length: read.length };
            base.disk.ask(ask, For::Read { view: self.view, read: id });
            self.reading.insert(id, read);
        }
    }

    pub fn read_done(&mut self, read: u64, result: Result<Bytes, u32>, base: &mut Base) {
        let Some(mut read) = self.reading.remove(&read) else { return };
        if read.stale || !self.primary.reads(base.holds()) {
            read.stale = false;
            self.waiting.push_back(read);
            self.read_on(base);
        } else {
            read.replier.done(result);
        }
    }

    pub fn own_stored(&mut self, id: WriteId, result: Result<Bytes, u32>, base: &mut Base) {
        if let Err(error) = result {
            tracing::error!(error, "the own replica failed: this node leaves");
        }
        self.step(Event::OwnStored(id, result.is_ok()), base);
    }

    fn copy(&mut self, node: Node, session: Session, sequence: u64, extent: Extent, base: &mut Base) {
        let offset = u64::from(extent) * base.extent_bytes;
        let length = base.extent_bytes.min(base.configured.bytes.saturating_sub(offset));
        self.pace = self.pace.saturating_sub(base.extent_bytes);
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let what_for = For::Copy { view: self.view, node, session, sequence, offset };
        base.disk.ask(Ask::Read { offset, length }, what_for);
    }

    pub fn copied(
        &mut self,
        node: Node,
        session: Session,
        sequence: u64,
        offset: u64,
        result: Result<Bytes, u32>,
        base: &mut Base,
    ) {
        let Some(link) = self.links.get_mut(&node) else { return };
        if session.number != link.connection || link.connection == 0 {
            return;
        }
        match result {
            Ok(data) => link.send(sequence, offset, data),
            Err(error) => {
                tracing::error!(error, "the own replica can't be read, to copy it");
                link.cut(format!("this node's own replica can't be read (error {error})"));
                self.step(Event::Lost(node), base);
            }
        }
    }

    fn open(&mut self, node: Node, base: &mut Base) {
        let name = base.names.name(node).to_owned();
        let link = self.links.entry(node).or_default();
        link.finding = Some(Instant::now());
        if base.has_daemon {
            base.report(Report::Find { node: name, view: self.view });
        } else if let Some(at) = base.found.get(&name).copied() {
            self.connect(node, at, base);
        }
    }

    fn connect(&mut self, node: Node, at: SocketAddr, base: &mut Base) {
        let link = self.links.entry(node).or_default();
        base.connections += 1;
        let (out, sent) = unbounded_channel();
        *link = Link { connection: base.connections, out: Some(out), ..Link::default() };
        let greeting = Greeting { id: self.like.id.clone(), view: self.view };
        let name = base.names.name(node).to_owned();
        tokio::spawn(peers::call(base.ground.clone(), name, at, base.connections, greeting, sent));
    }

    pub fn found(&mut self, name: &str, at: Option<SocketAddr>, why: String, base: &mut Base) {
        let Some(node) = base.names.number(name) else { return };
        let is_awaited = |link: &&mut Link| link.finding.is_some() && link.connection == 0;
        let Some(link) = self.links.get_mut(&node).filter(is_awaited) else { return };
        match at {
            Some(at) => {
                base.found.insert(name.to_owned(), at);
                self.connect(node, at, base);
            }
            None => {
                link.cut(why);
                self.step(Event::Lost(node), base);
            }
        }
    }

    /// The other replica that has this connection.
    fn link(&mut self, name: &str, connection: u64, base: &Base) -> Option<(Node, &mut Link)> {
        let node = base.names.number(name)?;
        let link = self.links.get_mut(&node).filter(|link| link.connection == connection)?;
        Some((node, link))
    }

    pub fn peer_up(&mut self, name: &str, connection: u64, base: &mut Base) {
        let Some((node, _)) = self.link(name, connection, base) else { return };
        tracing::info!(node = name, "the other replica takes writes");
        // Each connection is a session of its own, and what is answered comes on it alone.
        self.step(Event::Opened(node, Session { incarnation: 0, number: connection }), base);
    }

    pub fn peer_stored(&mut self, name: &str, connection: u64, sequence: u64, error: u32, base: &mut Base) {
        let Some((node, link)) = self.link(name, connection, base) else { return };
        link.sent.remove(&sequence);
        if error != 0 {
            tracing::warn!(node = name, error, "the other replica can't store a write");
            link.cut(format!("it can't store a write (error {error})"));
            return self.step(Event::Lost(node), base);
        }
        let session = Session { incarnation: 0, number: connection };
        self.step(Event::Stored(node, session, sequence, true), base);
    }

    pub fn peer_gone(&mut self, name: &str, connection: u64, why: String, base: &mut Base) {
        let Some((node, link)) = self.link(name, connection, base) else { return };
        if link.why != why {
            tracing::warn!(node = name, why, "the other replica is not connected");
        }
        link.cut(why);
        self.step(Event::Lost(node), base);
    }

    pub fn registry(&mut self, record: &VolumeRecord, revision: u64, base: &mut Base) {
        self.changing = None;
        // A record that names strangers names this node no more.
        let rules = named::numbered(record).filter(|_| record.id == self.like.id);
        let over = || volume::Record { primary: None, ..self.primary.record().0.clone() };
        let rules = rules.unwrap_or_else(over);
        self.step(Event::Registry(rules, revision), base);
    }

    pub fn release(&mut self, base: &mut Base) {
        self.step(Event::Release, base);
    }

    /// The claim is held for longer, or no longer.
    pub fn nudge(&mut self, base: &mut Base) {
        let extents = self.extents_to_copy(base);
        self.step(Event::Pace(extents), base);
    }

    fn extents_to_copy(&self, base: &Base) -> u32 {
        u32::try_from(self.pace / base.extent_bytes).unwrap_or(u32::MAX)
    }

    pub fn tick(&mut self, base: &mut Base) {
        let now = Instant::now();
        let passed = now.saturating_duration_since(std::mem::replace(&mut self.paced, now));
        let more = u128::from(base.configured.resync_bytes) * passed.as_millis() / 1000;
        // No more is saved up than for a moment: a pause is not made up for.
        let most = base.extent_bytes.max(base.configured.resync_bytes / 4);
        self.pace = self.pace.saturating_add(u64::try_from(more).unwrap_or(u64::MAX)).min(most);
        self.nudge(base);
        for (node, why) in self.silent(now) {
            tracing::warn!(node = base.names.name(node), why, "the other replica is given up");
            if let Some(link) = self.links.get_mut(&node) {
                link.cut(why);
            }
            self.step(Event::Lost(node), base);
        }
        let is_due = |link: &Link| link.retry.is_some_and(|at| at <= now);
        let due: Vec<Node> =
            self.links.iter().filter(|(_, link)| is_due(link)).map(|(node, _)| *node).collect();
        for node in due {
            // One that is to be struck off is tried when it is.
            self.step(Event::Connect(node), base);
        }
        if self.changing.is_some_and(|since| now.duration_since(since) > CHANGE_TIMEOUT) {
            self.step(Event::Retry, base);
        }
    }

    fn silent(&self, now: Instant) -> Vec<(Node, String)> {
        let silent = |(node, link): (&Node, &Link)| {
            let waits = |since: &Instant, patience| now.duration_since(*since) > patience;
            if link.sent.values().next().is_some_and(|since| waits(since, SILENCE)) {
                return Some((*node, format!("it has not stored a write within {} s", SILENCE.as_secs())));
            }
            let finding = link.finding.as_ref().is_some_and(|since| waits(since, FIND_TIMEOUT));
            finding.then(|| (*node, "nobody says where it listens".to_owned()))
        };
        self.links.iter().filter_map(silent).collect()
    }

    /// How the others are, and how many writes were acknowledged.
    pub fn peers(&self, base: &Base) -> (BTreeMap<String, PeerState>, u64) {
        let (record, _) = self.primary.record();
        let own = base.names.own();
        let others = record.replicas.iter().filter(|node| Some(**node) != own);
        let peers = others.map(|node| {
            let is_connected = self.primary.is_connected(*node);
            let state = match (record.current.contains(node), is_connected) {
                (true, true) => "current",
                (true, false) => "lost",
                (false, true) => "resyncing",
                (false, false) => "behind",
            };
            let behind = (self.primary.behind(*node) as u64).saturating_mul(base.extent_bytes);
            let why = self.links.get(node).map_or_else(String::new, |link| link.why.clone());
            let why = if is_connected { String::new() } else { why };
            let behind_bytes = behind.min(base.configured.bytes);
            (base.names.name(*node).to_owned(), PeerState { state: state.to_owned(), behind_bytes, why })
        });
        (peers.collect(), self.acknowledged)
    }
}
