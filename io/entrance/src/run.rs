//! The loop: one thread for all entrances of a domain.

use crate::backend::{Backend, Entrance, Pending};
use crate::dns::{self, Bad, Code};
use crate::resolve::{self, Call};
use crate::stream::{Client, Hopeless, MAX_CLIENTS, is_harmless};
use crate::{Answered, Command, Counters, Entrances, Shared};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::directory::{AddressQuery, file};

/// Longest query over UDP, in bytes: a question and some options.
const MAX_UDP_QUERY_BYTES: usize = 4096;
/// Datagrams, or clients, or answers that are dealt with before the others have their turn.
const BATCH: usize = 32;
/// Events fetched at once.
const EVENTS: usize = 32;
/// How long not to accept after that failed for want of a descriptor or memory: who waits keeps the
/// listening socket ready, and nothing but the end of a client changes that.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest answer over TCP: what its frame can say.
const MAX_TCP_BYTES: usize = u16::MAX as usize;

const WAKE: u64 = 0;
const UDP: u64 = 1;
const TCP: u64 = 2;
const RESOLVE: u64 = 3;
/// A link; plus the entrance's number.
const LINK: u64 = 8;
/// A client; plus its number.
const CLIENT: u64 = 16;

/// The party that gets an answer.
#[derive(Debug)]
enum Origin {
    Udp(SocketAddr, dns::Query),
    Tcp(u64, dns::Query),
    Resolve(u64, Call),
}

/// Everything the loop has.
pub struct Loop {
    epoll: OwnedFd,
    entrances: Entrances,
    shared: Arc<Shared>,
    answered: Answered,
    backend: Backend<Origin>,
    clients: HashMap<u64, Client>,
    last_client: u64,
    /// Until when nobody is accepted.
    accepts_again: Option<Instant>,
    now: Instant,
    stopped: bool,
}

impl Loop {
    /// Takes the sockets.
    pub fn new(entrances: Entrances, shared: Arc<Shared>, answered: Answered) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &shared.wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        if let Some(udp) = &entrances.udp {
            udp.set_nonblocking(true)?;
            epoll::add(&epoll, udp, EventData::new_u64(UDP), EventFlags::IN)?;
        }
        if let Some(tcp) = &entrances.tcp {
            tcp.set_nonblocking(true)?;
            epoll::add(&epoll, tcp, EventData::new_u64(TCP), EventFlags::IN)?;
        }
        if let Some(resolve) = &entrances.resolve {
            resolve.set_nonblocking(true)?;
            epoll::add(&epoll, resolve, EventData::new_u64(RESOLVE), EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            entrances,
            shared,
            answered,
            backend: Backend::new(),
            clients: HashMap::new(),
            last_client: 0,
            accepts_again: None,
            now: Instant::now(),
            stopped: false,
        })
    }

    /// Serves until it is told to stop.
    pub fn run(mut self) {
        while !self.stopped {
            let timeout = if self.backend.prepare_wait() { self.time_left() } else { Some(Duration::ZERO) };
            let empty = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
            let mut events = [empty; EVENTS];
            let timeout = timeout.map(session::timespec);
            let count = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                Ok(count) => count,
                Err(Errno::INTR) => 0,
                Err(errno) => {
                    tracing::error!(%errno, "the entrances can't wait any more; they are closed");
                    return;
                }
            };
            self.now = Instant::now();
            self.backend.woken();
            for event in events.iter().take(count) {
                let data = event.data;
                self.happened(data.u64(), event.flags);
            }
            for entrance in Entrance::ALL {
                self.receive(entrance);
                self.backend.catch_up(entrance);
            }
            self.expire();
        }
    }

    fn happened(&mut self, source: u64, flags: EventFlags) {
        match source {
            WAKE => self.obey(),
            UDP => self.read_udp(),
            TCP | RESOLVE => self.accept(source),
            link if link < CLIENT => {}
            client => self.client(client - CLIENT, flags),
        }
    }

    fn obey(&mut self) {
        self.shared.wake.drain();
        for command in self.shared.take() {
            match command {
                Command::Stop => self.stopped = true,
                Command::Connect(entrance, end) => {
                    if let Err(error) = self.backend.connect(entrance, end) {
                        tracing::error!(entrance = entrance.name(), %error, "a link can't be opened");
                        continue;
                    }
                    let data = EventData::new_u64(LINK + entrance as u64);
                    let watched = self
                        .backend
                        .doorbell(entrance)
                        .map(|bell| epoll::add(&self.epoll, bell, data, EventFlags::IN));
                    if let Some(Err(errno)) = watched {
                        tracing::error!(entrance = entrance.name(), %errno, "a link can't be watched");
                        self.backend.lose(entrance);
                    }
                }
            }
        }
    }

    fn read_udp(&mut self) {
        let mut query = [0; MAX_UDP_QUERY_BYTES];
        for _ in 0..BATCH {
            let Some(udp) = &self.entrances.udp else { return };
            match udp.recv_from(&mut query) {
                Ok((bytes, from)) => {
                    self.shared.counters.add(|counters| &counters.udp_queries);
                    let query = query.get(..bytes).unwrap_or_default();
                    match dns::check(query) {
                        Ok(checked) => {
                            let origin = Origin::Udp(from, checked);
                            // Nobody behind a datagram can be hopeless.
                            let _sent = self.ask(Entrance::Stub, file::MESSAGE, query.to_vec(), origin);
                        }
                        Err(Bad::Answer(code)) => self.send_udp(from, &dns::failure(query, code)),
                        Err(Bad::Ignore) => self.shared.counters.add(|counters| &counters.ignored),
                    }
                }
                Err(error) if is_harmless(&error) => return,
                // An ICMP error of an earlier answer is told to the next read; it concerns nobody
                // here.
                Err(error) => tracing::debug!(%error, "the stub's UDP socket reports"),
            }
        }
    }

    fn send_udp(&self, to: SocketAddr, answer: &[u8]) {
        self.shared.counters.add(|counters| &counters.answers);
        let sent = self.entrances.udp.as_ref().map(|udp| udp.send_to(answer, to));
        if let Some(Err(error)) = sent {
            // As a network would lose it; the client asks again.
            tracing::debug!(%error, "an answer was not sent");
        }
    }

    fn accept(&mut self, source: u64) {
        for _ in 0..BATCH {
            let accepted = match (source, &self.entrances.tcp, &self.entrances.resolve) {
                (TCP, Some(tcp), _) => tcp.accept().and_then(|(socket, _)| Client::tcp(socket, self.now)),
                (_, _, Some(resolve)) => {
                    resolve.accept().and_then(|(socket, _)| Client::unix(socket, self.now))
                }
                _ => return,
            };
            let client = match accepted {
                Ok(client) => client,
                Err(error) if is_harmless(&error) => return,
                Err(error) => {
                    tracing::warn!(%error, "a client can't be accepted");
                    self.shared.counters.add(|counters| &counters.accept_failures);
                    return self.pause_accepting();
                }
            };
            let of_kind = self.clients.values().filter(|other| other.is_dns() == client.is_dns()).count();
            if of_kind >= MAX_CLIENTS {
                self.shared.counters.add(|counters| &counters.sent_away);
                continue;
            }
            self.last_client += 1;
            let id = self.last_client;
            let data = EventData::new_u64(CLIENT + id);
            if let Err(errno) = epoll::add(&self.epoll, &client, data, EventFlags::empty()) {
                tracing::warn!(%errno, "a client can't be watched");
                continue;
            }
            self.clients.insert(id, client);
            self.settle(id, Ok(()));
        }
    }

    fn pause_accepting(&mut self) {
        self.accepts_again = Some(self.now + ACCEPT_PAUSE);
        self.watch_listeners(EventFlags::empty());
    }

    fn watch_listeners(&self, flags: EventFlags) {
        let tcp = self.entrances.tcp.as_ref().map(|tcp| (tcp.as_fd(), TCP));
        let resolve = self.entrances.resolve.as_ref().map(|resolve| (resolve.as_fd(), RESOLVE));
        for (listener, source) in tcp.into_iter().chain(resolve) {
            if let Err(errno) = epoll::modify(&self.epoll, listener, EventData::new_u64(source), flags) {
                tracing::error!(%errno, "a listening socket can't be watched any more");
            }
        }
    }

    fn client(&mut self, id: u64, flags: EventFlags) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let mut result = Ok(());
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) && client.outstanding > 0 {
            result = Err(Hopeless);
        } else if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            result = client.read(self.now);
        }
        if result.is_ok() && flags.contains(EventFlags::OUT) {
            result = client.write();
        }
        let result = result.and_then(|()| self.messages(id));
        self.settle(id, result);
    }

    /// Deals with the whole messages that a client has sent.
    fn messages(&mut self, id: u64) -> Result<(), Hopeless> {
        loop {
            let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
            let Some(message) = client.message()? else { return Ok(()) };
            client.outstanding += 1;
            if client.is_dns() {
                self.tcp_query(id, message)?;
            } else {
                self.resolve_call(id, &message)?;
            }
        }
    }

    fn tcp_query(&mut self, id: u64, query: Vec<u8>) -> Result<(), Hopeless> {
        self.shared.counters.add(|counters| &counters.tcp_queries);
        match dns::check(&query) {
            Ok(checked) => self.ask(Entrance::Stub, file::MESSAGE, query, Origin::Tcp(id, checked)),
            Err(Bad::Answer(code)) => self.send(id, &dns::failure(&query, code)),
            Err(Bad::Ignore) => Err(Hopeless),
        }
    }

    fn resolve_call(&mut self, id: u64, message: &[u8]) -> Result<(), Hopeless> {
        self.shared.counters.add(|counters| &counters.resolve_calls);
        let call = match resolve::parse(message) {
            Ok(call) => call,
            Err(Some(reply)) => return self.send(id, &reply),
            Err(None) => return Err(Hopeless),
        };
        if let Some(reply) = call.known() {
            return self.send(id, &reply);
        }
        let mut payload = Vec::new();
        let file = match &call {
            Call::Hostname { name, v4, v6 } => {
                AddressQuery { v4: *v4, v6: *v6, name }.encode(&mut payload);
                file::ADDRESSES
            }
            Call::Address(address) => {
                match address {
                    std::net::IpAddr::V4(address) => payload.extend_from_slice(&address.octets()),
                    std::net::IpAddr::V6(address) => payload.extend_from_slice(&address.octets()),
                }
                file::NAMES
            }
        };
        self.ask(Entrance::Resolve, file, payload, Origin::Resolve(id, call))
    }

    /// Asks the service. What there is no room for is answered at once, and no more than that: the
    /// caller goes on with the client's next message, however many there are.
    fn ask(
        &mut self,
        entrance: Entrance,
        file: u32,
        payload: Vec<u8>,
        origin: Origin,
    ) -> Result<(), Hopeless> {
        let pending = Pending { entrance, file, asked: self.now, payload, origin };
        let asked = self.backend.ask(pending, self.now);
        self.shared.counters.set_pending(self.backend.len());
        let Err(pending) = asked else { return Ok(()) };
        self.shared.counters.add(|counters| &counters.overloads);
        self.answer(&pending, Err(Errno::NOBUFS))
    }

    /// Delivers the answers of a link.
    fn receive(&mut self, entrance: Entrance) {
        for _ in 0..BATCH {
            let mut delivered = None;
            let received = self.backend.receive(entrance, |pending, answer| {
                delivered = Some((pending, answer.map(<[u8]>::to_vec)));
            });
            if let Some((pending, answer)) = delivered {
                (self.answered)(pending.entrance, self.now.saturating_duration_since(pending.asked));
                self.deliver(pending, answer.as_deref().map_err(|errno| *errno));
            }
            match received {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(entrance = entrance.name(), %error, "the service's server is gone");
                    break;
                }
            }
        }
        self.shared.counters.set_pending(self.backend.len());
    }

    /// Answers a request, and deals with what its client has sent meanwhile. For the loop alone:
    /// whoever deals with a client's messages answers by [`Loop::answer`], or each message would
    /// nest in the one before.
    fn deliver(&mut self, pending: Pending<Origin>, answer: Result<&[u8], Errno>) {
        let answered = self.answer(&pending, answer);
        if let Origin::Tcp(id, _) | Origin::Resolve(id, _) = pending.origin {
            let result = answered.and_then(|()| self.messages(id));
            self.settle(id, result);
        }
    }

    fn answer(&mut self, pending: &Pending<Origin>, answer: Result<&[u8], Errno>) -> Result<(), Hopeless> {
        if answer.is_err() {
            self.shared.counters.add(|counters| &counters.failures);
        }
        let query = &pending.payload;
        match &pending.origin {
            Origin::Udp(to, checked) => {
                self.send_udp(*to, &dns_answer(query, checked, answer, checked.udp_bytes));
                Ok(())
            }
            Origin::Tcp(id, checked) => self.send(*id, &dns_answer(query, checked, answer, MAX_TCP_BYTES)),
            Origin::Resolve(id, call) => self.send(*id, &resolve::reply(call, answer)),
        }
    }

    /// Answers one outstanding request of a client, which may be gone.
    fn send(&mut self, id: u64, message: &[u8]) -> Result<(), Hopeless> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        self.shared.counters.add(|counters| &counters.answers);
        client.outstanding = client.outstanding.saturating_sub(1);
        client.send(message, self.now)
    }

    /// Watches a client for what it can do next, or lets go of it.
    fn settle(&mut self, id: u64, result: Result<(), Hopeless>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let wanted = client.interest();
        let watched = if wanted == client.watched {
            Ok(())
        } else {
            epoll::modify(&self.epoll, &*client, EventData::new_u64(CLIENT + id), wanted)
        };
        client.watched = wanted;
        if result.is_err() || client.is_done() || watched.is_err() {
            // Closing the socket ends the watch: nobody else has the descriptor.
            self.clients.remove(&id);
        }
    }

    fn time_left(&self) -> Option<Duration> {
        let clients = self.clients.values().filter_map(Client::deadline);
        let first = clients.chain(self.backend.deadline(self.now)).chain(self.accepts_again).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    fn expire(&mut self) {
        while let Some(pending) = self.backend.expired(self.now) {
            self.deliver(pending, Err(Errno::TIMEDOUT));
        }
        let now = self.now;
        if self.accepts_again.take_if(|again| *again <= now).is_some() {
            self.watch_listeners(EventFlags::IN);
        }
        self.clients.retain(|_, client| client.deadline().is_none_or(|deadline| deadline > now));
    }
}

/// The service's answer, or what a resolver makes of an errno.
fn dns_answer(query: &[u8], checked: &dns::Query, answer: Result<&[u8], Errno>, most: usize) -> Vec<u8> {
    let code = match answer {
        Ok(answer) => match dns::fit(query, checked, answer, most) {
            Some(answer) => return answer,
            None => Code::ServFail,
        },
        Err(Errno::ACCESS | Errno::PERM) => Code::Refused,
        Err(Errno::INVAL | Errno::NAMETOOLONG) => Code::FormErr,
        Err(Errno::OPNOTSUPP) => Code::NotImp,
        Err(_) => Code::ServFail,
    };
    dns::failure(query, code)
}

impl Counters {
    fn set_pending(&self, pending: usize) {
        self.pending.store(pending as u64, std::sync::atomic::Ordering::Relaxed);
    }
}
