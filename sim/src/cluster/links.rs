//! Links between machines, and endpoints that call each other over them: a proxy on each machine
//! (`link::Link`), what stands in for the endpoint of the other machine (`ipc::StandIn`), and
//! endpoints (`ipc::Endpoint`). When proxies connect, and how they introduce endpoints, is written
//! a second time here.

use crate::cluster::pair::{End, pair};
use crate::cluster::world::{Planted, World};
use crate::network::Place;
use crate::time::{Bell, MS, Time};
use ipc::{Content, Endpoint, From, Limits, Poll, Pulse, Receive, Request, Rights, Said, StandIn, Turn};
use link::{Config, Event, Link, Sent, Timing, Transport};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};
use wire::ipc::Address;
use wire::link::{Decoder, Hello, Packet, Pair};

/// The bytes that a proxy holds for a pair, and how long a connection may be silent.
const WINDOW_BYTES: u32 = 16_384;
const SILENCE_MS: u32 = 1_000;
/// Pause before proxies connect again, and before endpoints are introduced again.
const AGAIN_NS: u64 = 300 * MS;
/// Bytes of a packet at the most.
const PACKET_BYTES: usize = 8_192;
const DATAGRAM_BYTES: usize = 1_400;
/// How long a call waits, and how long it waits for the other node's word after that.
const CALL_NS: u64 = 700 * MS;
const OVERDUE_NS: u64 = 1_000 * MS;

/// The messages sent and received in one conversation of two endpoints.
#[derive(Default)]
pub struct Conversation {
    received: Vec<u64>,
    seen: BTreeSet<u64>,
    /// Numbers of messages that never will be received, as their caller was told.
    withdrawn: BTreeSet<u64>,
    /// Numbers that have to be received as long as both ends live.
    promised: BTreeSet<u64>,
    is_over: bool,
}

/// The outcome of all conversations.
#[derive(Default)]
pub struct Talk {
    conversations: BTreeMap<u64, Conversation>,
    last: u64,
    /// Messages and requests that were received.
    pub received: u64,
    /// Replies.
    pub replies: u64,
}

impl Talk {
    fn of(&mut self, number: u64) -> &mut Conversation {
        self.conversations.entry(number).or_default()
    }
}

/// One connection of two proxies.
struct Wire {
    transport: Transport,
    is_open: Cell<bool>,
    /// By sender: packets of a stream that are on their way, one after the other, and what the
    /// receiver has of one.
    streams: [RefCell<VecDeque<Vec<u8>>>; 2],
    moving: [Cell<bool>; 2],
    decoders: [RefCell<Decoder>; 2],
}

/// A pair of endpoints at one machine.
struct Kept {
    stand_in: StandIn<End>,
    hearing: ipc::spoken::Hearing,
    say: VecDeque<Said>,
    fragments: VecDeque<Vec<u8>>,
    conversation: u64,
}

/// A machine's proxy to another machine.
pub struct Proxy {
    world: Weak<World>,
    time: Time,
    machine: usize,
    other: usize,
    owner: u64,
    link: RefCell<Link>,
    wire: RefCell<Option<Rc<Wire>>>,
    kept: RefCell<BTreeMap<Pair, Kept>>,
    bell: Rc<Bell>,
    is_up: Cell<bool>,
}

/// Starts the proxies of a machine, and whatever they need of others.
pub fn power_on(world: &Rc<World>, machine: usize) {
    for other in (0..world.machines.len()).filter(|other| *other != machine) {
        start(world, machine, other);
    }
}

/// A proxy begins; one before it is over, with its connection and the endpoints' pairs.
pub fn start(world: &Rc<World>, machine: usize, other: usize) {
    let side = u8::from(machine > other);
    let hello = Hello {
        oldest: 1,
        newest: 1,
        side,
        compressions: 0,
        pairs: 8,
        window_bytes: WINDOW_BYTES,
        message_bytes: 4_096,
        silence_ms: SILENCE_MS,
    };
    let epoch = world.time.now() / 1_000 + 1;
    let config = Config { epoch, hello, queue_bytes: WINDOW_BYTES as usize, timing: Timing::default() };
    let Ok(link) = Link::new(config) else { return world.fail("a proxy's configuration is none".into()) };
    let owner = (1 << 50) + (epoch << 8) + ((machine as u64) << 4) + other as u64;
    let proxy = Rc::new(Proxy {
        world: Rc::downgrade(world),
        time: world.time.clone(),
        machine,
        other,
        owner,
        link: RefCell::new(link),
        wire: RefCell::default(),
        kept: RefCell::default(),
        bell: Rc::default(),
        is_up: Cell::new(false),
    });
    stop(world, machine, other);
    world.proxies.borrow_mut().insert((machine, other), Rc::clone(&proxy));
    world.time.spawn(owner, async move { proxy.run().await });
}

/// A proxy dies.
pub fn stop(world: &World, machine: usize, other: usize) {
    let Some(proxy) = world.proxies.borrow_mut().remove(&(machine, other)) else { return };
    if let Some(wire) = proxy.wire.take() {
        wire.is_open.set(false);
    }
    for kept in proxy.kept.borrow().values() {
        world.talk.borrow_mut().of(kept.conversation).is_over = true;
    }
    world.time.end(proxy.owner);
}

impl Proxy {
    fn now_ms(&self) -> u64 {
        self.time.now() / MS
    }

    async fn run(self: Rc<Self>) {
        let mut connect_at = 0;
        loop {
            let Some(world) = self.world.upgrade() else { return };
            let is_down = self.wire.borrow().as_ref().is_none_or(|wire| !wire.is_open.get());
            if is_down && self.is_up.replace(false) {
                self.link.borrow_mut().disconnected();
            }
            // The lesser of the two connects.
            if is_down && self.machine < self.other && self.time.now() >= connect_at {
                connect_at = self.time.now() + AGAIN_NS;
                connect(&world, self.machine, self.other);
            }
            let now = self.now_ms();
            let events = self.link.borrow_mut().tick(now);
            self.heed(&world, events);
            self.introduce(&world);
            self.turn_all(&world);
            self.transmit(&world);
            let due = self.link.borrow().due().map_or(u64::MAX, |due| due.max(now + 1) * MS);
            let until = due.min(self.time.now() + AGAIN_NS);
            drop(world);
            self.bell.wait(&self.time, until).await;
        }
    }

    fn transmit(&self, world: &Rc<World>) {
        let Some(wire) = self.wire.borrow().clone().filter(|wire| wire.is_open.get()) else { return };
        let most = if wire.transport.is_lossy() { DATAGRAM_BYTES } else { PACKET_BYTES };
        loop {
            let mut packet = Vec::new();
            if !self.link.borrow_mut().poll_transmit(self.now_ms(), most, &mut packet) {
                return;
            }
            carry(world, &wire, (self.machine, self.other), packet);
        }
    }

    fn heed(self: &Rc<Self>, world: &Rc<World>, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Up { .. } => self.is_up.set(true),
                Event::Opened { pair, content } => self.opened(world, pair, &content),
                Event::Messages { pair, messages } => {
                    self.link.borrow_mut().consumed_all(pair, messages.count(), messages.bytes());
                    for message in &messages {
                        self.heard(world, pair, message);
                    }
                }
                Event::Room(_) => {}
                Event::Closed { pair, .. } => self.closed(world, pair),
                Event::Silent => {
                    if let Some(wire) = self.wire.take() {
                        wire.is_open.set(false);
                    }
                }
                Event::Over(over) => world.fail(format!("a link of n{} is over: {over}", self.machine)),
            }
        }
    }

    /// Two endpoints are introduced to each other, where there are none.
    fn introduce(self: &Rc<Self>, world: &Rc<World>) {
        if self.machine > self.other || !self.kept.borrow().is_empty() || !self.is_up.get() {
            return;
        }
        let number = {
            let mut talk = world.talk.borrow_mut();
            talk.last += 1;
            talk.last
        };
        let opened = self.link.borrow_mut().open(&number.to_le_bytes());
        if let Ok(pair) = opened {
            self.begin(world, pair, number, true);
        }
    }

    fn opened(self: &Rc<Self>, world: &Rc<World>, pair: Pair, content: &[u8]) {
        match content.try_into() {
            Ok(number) => self.begin(world, pair, u64::from_le_bytes(number), false),
            Err(_) => world.fail("an opening is not what was said".into()),
        }
    }

    /// An endpoint, its program, and what stands in for the other one.
    fn begin(self: &Rc<Self>, world: &Rc<World>, of: Pair, number: u64, calls: bool) {
        let generation = u32::try_from(number).unwrap_or(u32::MAX);
        let [caller, answerer] = [1, 2].map(|slot| Address { slot, generation });
        let (local, remote) = if calls { (caller, answerer) } else { (answerer, caller) };
        let bell = Rc::new(Bell::default());
        let [near, far] = pair(&self.time, [&bell, &self.bell]);
        let mut endpoint = Endpoint::new(local, Limits::default());
        if endpoint.bind(remote, Rights::ALL, near).is_err() {
            return world.fail("an endpoint can't be bound".into());
        }
        let kept = Kept {
            stand_in: StandIn::new(far, local, remote),
            hearing: ipc::spoken::Hearing::default(),
            say: VecDeque::new(),
            fragments: VecDeque::new(),
            conversation: number,
        };
        self.kept.borrow_mut().insert(of, kept);
        let program =
            Program { world: Rc::downgrade(world), time: self.time.clone(), endpoint, bell, number, remote };
        self.time.spawn(self.owner, async move {
            if calls { program.call().await } else { program.answer().await }
        });
    }

    fn heard(&self, world: &World, pair: Pair, message: &[u8]) {
        let mut all = self.kept.borrow_mut();
        let Some(kept) = all.get_mut(&pair) else { return };
        let heard = kept.hearing.hear(message, crate::cluster::pair::RING_BYTES);
        let done = match heard {
            Ok(Some(said)) => kept.stand_in.hear(said, &mut kept.say).map_err(|why| why.to_string()),
            Ok(None) => Ok(()),
            Err(why) => Err(why),
        };
        if let Err(why) = done {
            world.fail(format!("what stands in for an endpoint on n{} says: {why}", self.machine));
        }
    }

    fn closed(&self, world: &World, pair: Pair) {
        let Some(mut kept) = self.kept.borrow_mut().remove(&pair) else { return };
        ipc::Link::close(kept.stand_in.link_mut());
        world.talk.borrow_mut().of(kept.conversation).is_over = true;
    }

    /// The deeds of endpoints go onto the link.
    fn turn_all(&self, world: &World) {
        let pairs: Vec<Pair> = self.kept.borrow().keys().copied().collect();
        for of in pairs {
            self.turn(world, of);
        }
    }

    fn turn(&self, world: &World, of: Pair) {
        let mut all = self.kept.borrow_mut();
        let Some(kept) = all.get_mut(&of) else { return };
        let mut listens = false;
        loop {
            if !self.tell(of, kept) {
                break;
            }
            match kept.stand_in.turn(&mut kept.say) {
                Ok(Turn::Idle) if kept.say.is_empty() && listens => break,
                // LISTEN: once more after it was said.
                Ok(Turn::Idle) if kept.say.is_empty() => {
                    kept.stand_in.listen();
                    listens = true;
                }
                Ok(Turn::Idle | Turn::More) => {}
                Ok(Turn::Ended) => {
                    self.tell(of, kept);
                    self.link.borrow_mut().close(of, 0);
                    world.talk.borrow_mut().of(kept.conversation).is_over = true;
                    all.remove(&of);
                    return;
                }
                Err(why) => {
                    return world.fail(format!("an endpoint on n{} breaks a rule: {why}", self.machine));
                }
            }
        }
    }

    /// Sends what there is room for. Whether that was all.
    fn tell(&self, of: Pair, kept: &mut Kept) -> bool {
        loop {
            while let Some(message) = kept.fragments.front() {
                match self.link.borrow_mut().send(of, message) {
                    Ok(Sent::Queued) => drop(kept.fragments.pop_front()),
                    Ok(Sent::Full) | Err(_) => return false,
                }
            }
            let Some(said) = kept.say.pop_front() else { return true };
            kept.fragments.extend(ipc::spoken::messages(&said));
        }
    }

    /// A packet has come.
    fn receive(self: &Rc<Self>, world: &Rc<World>, header: &Packet, body: &[u8]) {
        let events = self.link.borrow_mut().receive(self.now_ms(), header, body);
        self.heed(world, events);
        self.bell.ring(&self.time);
    }
}

/// Both proxies get a new connection, if the way is open both ways.
fn connect(world: &Rc<World>, one: usize, other: usize) {
    let (at, there) = (Place::Machine(one), Place::Machine(other));
    if world.network.is_cut(at, there) || world.network.is_cut(there, at) {
        return;
    }
    let both = [(one, other), (other, one)].map(|way| world.proxies.borrow().get(&way).cloned());
    let [Some(one), Some(other)] = both else { return };
    let lossy = world.time.per_mille(500);
    let transport = if lossy { Transport::Datagrams { bytes: DATAGRAM_BYTES } } else { Transport::Stream };
    let wire = Rc::new(Wire {
        transport,
        is_open: Cell::new(true),
        streams: Default::default(),
        moving: Default::default(),
        decoders: Default::default(),
    });
    for proxy in [&one, &other] {
        if let Some(before) = proxy.wire.replace(Some(Rc::clone(&wire))) {
            before.is_open.set(false);
        }
        if proxy.link.borrow_mut().connected(proxy.now_ms(), transport).is_err() {
            world.fail("a datagram is too short".into());
        }
        proxy.is_up.set(true);
        proxy.bell.ring(&world.time);
    }
}

/// A packet is on its way: a stream keeps the order, and sends again while the way is cut;
/// datagrams are lost, doubled and overtaken.
fn carry(world: &Rc<World>, wire: &Rc<Wire>, (from, to): (usize, usize), packet: Vec<u8>) {
    let (at, there) = (Place::Machine(from), Place::Machine(to));
    if wire.transport.is_lossy() {
        for arrival in world.network.arrivals(&world.time, at, there).into_iter().flatten() {
            let (of, wire, packet) = (Rc::downgrade(world), Rc::clone(wire), packet.clone());
            world.time.at(arrival, move || {
                let Some(world) = of.upgrade() else { return };
                // Datagrams that fly outlive their connection.
                let proxy = world.proxies.borrow().get(&(to, from)).cloned();
                if let (Some(proxy), Ok((header, body))) = (proxy, Packet::split(&packet))
                    && wire.is_open.get()
                {
                    proxy.receive(&world, &header, body);
                }
            });
        }
        return;
    }
    let direction = usize::from(from > to);
    wire.streams[direction].borrow_mut().push_back(packet);
    if !wire.moving[direction].replace(true) {
        let delay = world.network.delay(&world.time);
        move_stream(world, wire, (from, to), world.time.now() + delay);
    }
}

fn move_stream(world: &Rc<World>, wire: &Rc<Wire>, (from, to): (usize, usize), at: u64) {
    let (of, wire) = (Rc::downgrade(world), Rc::clone(wire));
    world.time.at(at, move || {
        let Some(world) = of.upgrade() else { return };
        if !wire.is_open.get() {
            return;
        }
        if world.network.is_cut(Place::Machine(from), Place::Machine(to)) {
            return move_stream(&world, &wire, (from, to), world.time.now() + 200 * MS);
        }
        let direction = usize::from(from > to);
        wire.moving[direction].set(false);
        let packets: Vec<Vec<u8>> = wire.streams[direction].borrow_mut().drain(..).collect();
        let proxy = world.proxies.borrow().get(&(to, from)).cloned();
        let Some(proxy) = proxy else { return };
        for packet in packets {
            let mut rest = &packet[..];
            loop {
                let next = wire.decoders[direction].borrow_mut().next(&mut rest);
                match next {
                    Ok(Some((header, body))) if wire.is_open.get() => proxy.receive(&world, &header, &body),
                    Ok(Some(_) | None) => break,
                    Err(why) => return world.fail(format!("a stream holds what is no packet: {why}")),
                }
            }
        }
    });
}

/// A program with one endpoint.
struct Program {
    world: Weak<World>,
    time: Time,
    endpoint: Endpoint<End>,
    bell: Rc<Bell>,
    number: u64,
    remote: Address,
}

impl Program {
    /// Whatever was found of a call, against what it was told.
    fn found(&self, found: impl FnOnce(&mut Talk, &mut Option<String>)) {
        let Some(world) = self.world.upgrade() else { return };
        let mut why = None;
        found(&mut world.talk.borrow_mut(), &mut why);
        if let Some(why) = why {
            world.fail(format!("conversation {}: {why}", self.number));
        }
    }

    fn is_planted(&self, planted: Planted) -> bool {
        self.world.upgrade().is_some_and(|world| world.config.planted == Some(planted))
    }

    fn pulse(&self, since: u64) -> Pulse {
        let now = self.time.now();
        Pulse {
            late: now >= since + CALL_NS,
            overdue: now >= since + CALL_NS + OVERDUE_NS,
            ..Pulse::default()
        }
    }

    async fn sleep(&mut self, since: u64) {
        let ends = [since + CALL_NS, since + CALL_NS + OVERDUE_NS];
        let until = ends.into_iter().find(|end| *end > self.time.now()).unwrap_or(self.time.now() + MS);
        self.bell.wait(&self.time, until).await;
        self.endpoint.heard_all();
    }

    /// Messages, with a rendezvous and without, and requests, each with the next number.
    async fn call(mut self) {
        let mut number = 0_u64;
        loop {
            self.time.pause(self.time.between(1, 700) * MS).await;
            number += 1;
            let mut payload = number.to_le_bytes().to_vec();
            payload.resize(8 + self.time.index(600), 7);
            let over = match self.time.index(3) {
                0 => self.send(number, &payload, false).await,
                1 => self.send(number, &payload, true).await,
                _ => self.request(number, &payload).await,
            };
            if over {
                return;
            }
        }
    }

    /// Whether the peer is gone.
    async fn send(&mut self, number: u64, payload: &[u8], meets: bool) -> bool {
        let mut call =
            if meets { ipc::Send::rendezvous(self.remote, 1) } else { ipc::Send::buffered(self.remote, 1) };
        let since = self.time.now();
        let sent = loop {
            let pulse = self.pulse(since);
            match self.endpoint.poll_send(&mut call, payload, pulse) {
                Poll::Ready(sent) => break sent,
                Poll::Again => self.time.pause(MS / 100).await,
                Poll::Sleep(_) => self.sleep(since).await,
            }
        };
        let lies = self.is_planted(Planted::LyingCaller);
        let of = self.number;
        self.found(|talk, why| {
            let conversation = talk.of(of);
            let was_received = conversation.seen.contains(&number);
            match sent {
                Ok(()) if meets && !was_received => {
                    *why = Some(format!("message {number} was not received, and its sender was told so"));
                }
                Ok(()) => drop(conversation.promised.insert(number)),
                Err(ipc::SendError::TimedOut(_) | ipc::SendError::Deadlock(_)) => {
                    conversation.withdrawn.insert(number);
                    if was_received {
                        *why = Some(format!(
                            "message {number} was received, and its sender was told it never is"
                        ));
                    }
                }
                Err(ipc::SendError::Unknown(_)) if lies => {
                    conversation.withdrawn.insert(number);
                    if was_received {
                        *why =
                            Some(format!("message {number} was received, and its sender takes it for lost"));
                    }
                }
                Err(_) => {}
            }
        });
        matches!(sent, Err(ipc::SendError::NoPeer(_)))
    }

    async fn request(&mut self, number: u64, payload: &[u8]) -> bool {
        let mut call = Request::new(self.remote, 2, 64);
        let (since, mut into) = (self.time.now(), Vec::new());
        let asked = loop {
            let pulse = self.pulse(since);
            match self.endpoint.poll_request(&mut call, payload, &mut into, pulse) {
                Poll::Ready(asked) => break asked,
                Poll::Again => self.time.pause(MS / 100).await,
                Poll::Sleep(_) => self.sleep(since).await,
            }
        };
        let of = self.number;
        self.found(|talk, why| {
            talk.replies += u64::from(asked.is_ok());
            let conversation = talk.of(of);
            let was_received = conversation.seen.contains(&number);
            match asked {
                Ok(_) if into != number.to_le_bytes() => {
                    *why = Some(format!("request {number} got the reply {into:?}"));
                }
                Ok(_) if !was_received => *why = Some(format!("request {number} was answered by nobody")),
                Err(ipc::RequestError::TimedOut { received: false, .. }) => {
                    conversation.withdrawn.insert(number);
                    if was_received {
                        *why = Some(format!(
                            "request {number} was received, and its caller was told it never is"
                        ));
                    }
                }
                Err(ipc::RequestError::TimedOut { received: true, .. }) if !was_received => {
                    *why = Some(format!("request {number} was not received, and its caller was told it was"));
                }
                _ => {}
            }
        });
        matches!(asked, Err(ipc::RequestError::NoPeer(_)))
    }

    /// Receives, and answers requests with their number.
    async fn answer(mut self) {
        let mut payload = Vec::new();
        loop {
            // It is slow now and then, so that senders wait.
            if self.time.per_mille(100) {
                self.time.pause(self.time.between(1, 1_500) * MS).await;
            }
            let mut call = Receive::new(From::One(self.remote));
            let received = loop {
                match self.endpoint.poll_receive(&mut call, &mut payload, Pulse::default()) {
                    Poll::Ready(received) => break received,
                    Poll::Again => self.time.pause(MS / 100).await,
                    Poll::Sleep(_) => {
                        self.bell.wait(&self.time, u64::MAX).await;
                        self.endpoint.heard_all();
                    }
                }
            };
            let Ok(received) = received else { return };
            let Some(number) = payload.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes)) else {
                return;
            };
            let of = self.number;
            self.found(|talk, why| {
                talk.received += 1;
                let conversation = talk.of(of);
                if conversation.received.last().is_some_and(|last| *last >= number) {
                    *why = Some(format!("{number} was received after {:?}", conversation.received.last()));
                }
                if conversation.withdrawn.contains(&number) {
                    *why = Some(format!("{number} was received, and its sender had been told it never is"));
                }
                conversation.received.push(number);
                conversation.seen.insert(number);
            });
            if let Content::Request { asked, .. } = received.content {
                // Who does not wait any more gets no reply.
                let _stale = self.endpoint.reply(&asked, 3, &number.to_le_bytes());
            }
        }
    }
}

/// In the end, of every conversation that goes on, all that was sent has been received.
pub fn check(world: &World) {
    let talk = world.talk.borrow();
    for (number, conversation) in talk.conversations.iter().filter(|(_, it)| !it.is_over) {
        // What was sent in the last moment is still on its way.
        let last = conversation.received.last().copied().unwrap_or(0);
        let lost = conversation.promised.range(..last).find(|sent| !conversation.seen.contains(sent));
        if let Some(lost) = lost {
            world.fail(format!("conversation {number}: message {lost} of {last} was lost"));
        }
    }
}
