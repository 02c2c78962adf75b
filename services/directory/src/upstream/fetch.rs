//! One question on its way to the upstreams: attempt after attempt, until one answers or none is
//! left.

use super::socket::{Protocol, Waiter};
use super::spelling::Spelling;
use super::{Health, Sockets, Standing};
use crate::answer::{self, Answer, Question, Reply};
use crate::failure::Failure;
use crate::measure::{Phase, Phases, Stopwatch};
use crate::message;
use rustix::io::Errno;
use session::Context;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Packets that were not the answer after which a source port is given up: whoever guesses ids gets
/// so many guesses out of 65,536. The attempt then waits for its time-out and the next takes a new
/// port.
const MAX_STRAYS: u32 = 32;
/// Bytes of the length in front of a message in a stream (RFC 1035 section 4.2.2).
const LENGTH_BYTES: usize = 2;
/// Largest packet there is.
pub const MAX_PACKET_BYTES: usize = 64 * 1024;

/// The context of an attempt.
pub struct Net<'a> {
    /// The loop.
    pub ctx: &'a mut dyn Context,
    /// The sockets.
    pub sockets: &'a mut Sockets,
    /// The health of the upstreams.
    pub health: &'a mut Health,
    /// How they stand with the domain that asks; `None`: it is gone.
    pub standing: Option<&'a mut Standing>,
    /// Scratch room for a query.
    pub query: &'a mut Vec<u8>,
    /// Scratch room of [`MAX_PACKET_BYTES`] for what comes over a stream.
    pub packet: &'a mut [u8],
    /// The time of this round.
    pub now: Instant,
}

/// How it goes on.
#[derive(Debug)]
pub enum Step {
    /// Waiting for a packet, until then.
    Waiting(Instant),
    /// It is over.
    Finished(Finished),
}

/// The end of a look-up.
#[derive(Debug)]
pub struct Finished {
    /// The answer, or why there is none.
    pub outcome: Result<Answer, Failure>,
    /// Where the time went.
    pub phases: Phases,
}

/// A stream's half-sent query and half-received answer.
#[derive(Debug, Default)]
struct Stream {
    connected: bool,
    out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
}

#[derive(Debug)]
struct Attempt {
    place: usize,
    address: SocketAddr,
    /// `None`: the port was given up, only the time-out is awaited.
    token: Option<u32>,
    message_id: u16,
    /// How the name was spelled in a datagram.
    spelling: Option<Spelling>,
    started: Instant,
    deadline: Instant,
    strays: u32,
    /// Phases before this attempt: what it spent becomes `Retry` if it fails.
    before: Phases,
    watch: Stopwatch,
    stream: Option<Stream>,
}

/// One question on its way.
#[derive(Debug)]
pub struct Fetch {
    owner: u64,
    question: Arc<Question>,
    upstreams: Arc<[SocketAddr]>,
    /// Places in `upstreams`, who is up first.
    order: Vec<usize>,
    /// Whether sockets go to the pool: not those to addresses of a session's choice.
    pooled: bool,
    timeout: Duration,
    /// Attempts so far, and how many there may be.
    made: usize,
    allowed: usize,
    /// Upstreams that have said their last word.
    done: Vec<bool>,
    edns: bool,
    attempt: Option<Attempt>,
    worst: Option<Failure>,
    phases: Phases,
}

impl Fetch {
    /// A question for `upstreams`, on behalf of look-up `owner`. Nothing is sent before
    /// [`Fetch::start`].
    pub fn new(
        owner: u64,
        question: Arc<Question>,
        upstreams: Arc<[SocketAddr]>,
        pooled: bool,
        timeout: Duration,
        retries: u32,
    ) -> Self {
        let (count, rounds) = (upstreams.len(), retries as usize + 1);
        Self {
            owner,
            question,
            order: (0..count).collect(),
            pooled,
            timeout,
            made: 0,
            allowed: count.saturating_mul(rounds),
            done: vec![false; count],
            edns: true,
            attempt: None,
            worst: None,
            phases: Phases::default(),
            upstreams,
        }
    }

    /// The first attempt.
    pub fn start(&mut self, net: &mut Net<'_>) -> Step {
        let (upstreams, now) = (self.upstreams.clone(), net.now);
        if let Some(standing) = &net.standing {
            self.order.sort_by_key(|&place| upstreams.get(place).is_some_and(|&a| standing.is_down(a, now)));
        }
        self.next(net)
    }

    /// The time-out of the present attempt may be over.
    pub fn expired(&mut self, net: &mut Net<'_>) -> Step {
        match &self.attempt {
            Some(attempt) if attempt.deadline > net.now => Step::Waiting(attempt.deadline),
            _ => self.fail(net, Failure::TimedOut, false),
        }
    }

    /// The stream of the present attempt is ready.
    pub fn stream_ready(&mut self, net: &mut Net<'_>) -> Step {
        match self.advance_stream(net) {
            Ok(Some(reply)) => self.replied(net, reply),
            Ok(None) | Err(Errno::AGAIN | Errno::INTR) => match &self.attempt {
                Some(attempt) => Step::Waiting(attempt.deadline),
                None => self.next(net),
            },
            Err(Errno::CONNRESET | Errno::PIPE) => self.fail(net, Failure::BadAnswer, true),
            Err(errno) => self.fail(net, failure_of(errno), true),
        }
    }

    /// The query of the present attempt has left, some time after it was made.
    pub fn sent(&mut self) {
        if let Some(attempt) = &mut self.attempt {
            self.phases.add(Phase::Send, attempt.watch.lap());
        }
    }

    /// The socket of the present attempt failed.
    pub fn broke(&mut self, net: &mut Net<'_>, errno: Errno) -> Step {
        self.fail(net, failure_of(errno), true)
    }

    /// The attempt that waits on this socket under this id, if it is the present one.
    fn attempt_at(&mut self, token: u32, waiter: Waiter) -> Option<&mut Attempt> {
        let here = |attempt: &&mut Attempt| {
            (attempt.token, attempt.message_id) == (Some(token), waiter.message_id)
                && attempt.stream.is_none()
        };
        self.attempt.as_mut().filter(here)
    }

    /// A packet with the id of the present attempt came to its socket; `None`: it is not the answer
    /// all the same.
    pub fn hear(&mut self, net: &mut Net<'_>, token: u32, waiter: Waiter, packet: &[u8]) -> Option<Step> {
        let waited = self.attempt_at(token, waiter)?.watch.lap();
        self.phases.add(Phase::Receive, waited);
        let mut packet = packet.to_vec();
        let spelling = self.attempt.as_ref().and_then(|attempt| attempt.spelling.as_ref());
        let repeats = spelling.is_some_and(|spelling| spelling.undo(&mut packet));
        let reply = match answer::read(&packet, waiter.message_id, &self.question, false) {
            // Of an upstream that spells names in its own way, or of somebody who has guessed: only
            // the upstream answers a stream.
            Reply::Answer(_) if !repeats => Reply::Truncated,
            reply => reply,
        };
        let decoding = self.attempt.as_mut()?.watch.lap();
        self.phases.add(Phase::Decode, decoding);
        if matches!(reply, Reply::NotOurs) { None } else { Some(self.replied(net, reply)) }
    }

    /// A packet that was nobody's answer came to the socket of the present attempt: somebody may be
    /// guessing.
    pub fn stray(&mut self, net: &mut Net<'_>, token: u32, waiter: Waiter) {
        let Some(attempt) = self.attempt_at(token, waiter) else { return };
        attempt.strays += 1;
        if attempt.strays >= MAX_STRAYS {
            attempt.token = None;
            net.sockets.leave(net.ctx, token, self.owner, false, net.now);
        }
    }

    /// Nobody waits any more.
    pub fn abort(&mut self, net: &mut Net<'_>) {
        if let Some(token) = self.attempt.take().and_then(|attempt| attempt.token) {
            net.sockets.leave(net.ctx, token, self.owner, false, net.now);
        }
    }

    /// The next upstream that has not said its last word.
    fn choose(&mut self) -> Option<usize> {
        while self.made < self.allowed {
            let place = self.order.get(self.made % self.order.len().max(1)).copied();
            self.made += 1;
            if let Some(place) = place
                && self.done.get(place) == Some(&false)
            {
                return Some(place);
            }
        }
        None
    }

    fn next(&mut self, net: &mut Net<'_>) -> Step {
        match self.choose() {
            Some(place) => self.begin(net, place, Protocol::Udp),
            None => self.finish(Err(self.worst.unwrap_or(Failure::TimedOut))),
        }
    }

    fn finish(&mut self, outcome: Result<Answer, Failure>) -> Step {
        Step::Finished(Finished { outcome, phases: self.phases })
    }

    /// Opens, connects and (over UDP) sends.
    fn begin(&mut self, net: &mut Net<'_>, place: usize, protocol: Protocol) -> Step {
        let Some(&address) = self.upstreams.get(place) else { return self.next(net) };
        let deadline = net.now + self.timeout;
        self.attempt = Some(Attempt {
            place,
            address,
            token: None,
            message_id: 0,
            spelling: None,
            started: Instant::now(),
            deadline,
            strays: 0,
            before: self.phases,
            watch: Stopwatch::start(),
            stream: None,
        });
        let begun = match protocol {
            Protocol::Udp => self.send_datagram(net, address),
            Protocol::Tcp => self.open_stream(net, address),
        };
        match begun {
            Ok(()) => Step::Waiting(deadline),
            Err(failure) => self.fail(net, failure, true),
        }
    }

    fn send_datagram(&mut self, net: &mut Net<'_>, address: SocketAddr) -> Result<(), Failure> {
        let Some(attempt) = &mut self.attempt else { return Ok(()) };
        let open = match net.sockets.companion(address) {
            None if self.pooled => net.sockets.take_idle(net.ctx, address, net.now).map_err(failure_of)?,
            companion => companion,
        };
        let token = match open {
            Some(token) => token,
            None => net.sockets.open(net.ctx, address, Protocol::Udp, net.now).map_err(failure_of)?,
        };
        attempt.token = Some(token);
        attempt.message_id = net.sockets.wait_on(token, self.owner).map_err(failure_of)?;
        self.phases.add(Phase::Socket, attempt.watch.lap());
        if open.is_none() {
            net.sockets.connect(token).map_err(failure_of)?;
            self.phases.add(Phase::Connect, attempt.watch.lap());
        }
        net.query.clear();
        message::ask(&self.question, attempt.message_id, self.edns, net.query)?;
        let spelling = Spelling::change(net.query, || net.sockets.random()).map_err(failure_of)?;
        attempt.spelling = Some(spelling);
        net.sockets.send_query(token, self.owner, net.query).map_err(failure_of)?;
        self.phases.add(Phase::Send, attempt.watch.lap());
        Ok(())
    }

    fn open_stream(&mut self, net: &mut Net<'_>, address: SocketAddr) -> Result<(), Failure> {
        let Some(attempt) = &mut self.attempt else { return Ok(()) };
        let token = net.sockets.open(net.ctx, address, Protocol::Tcp, net.now).map_err(failure_of)?;
        attempt.token = Some(token);
        attempt.message_id = net.sockets.wait_on(token, self.owner).map_err(failure_of)?;
        let mut query = Vec::with_capacity(512);
        message::ask(&self.question, attempt.message_id, self.edns, &mut query)?;
        let length = u16::try_from(query.len()).map_err(|_| Failure::Malformed)?;
        let out = [&length.to_be_bytes()[..], &query].concat();
        attempt.stream = Some(Stream { out, ..Stream::default() });
        self.phases.add(Phase::Socket, attempt.watch.lap());
        net.sockets.connect(token).map_err(failure_of)
    }

    /// The upstream has spoken.
    fn replied(&mut self, net: &mut Net<'_>, reply: Reply) -> Step {
        let Some(attempt) = &mut self.attempt else { return self.next(net) };
        net.health.answered(attempt.address, attempt.started.elapsed());
        if let Some(standing) = &mut net.standing {
            standing.answered(attempt.address);
        }
        let (place, clean) = (attempt.place, attempt.strays == 0 && self.pooled);
        if let Some(token) = attempt.token.take() {
            net.sockets.leave(net.ctx, token, self.owner, clean, net.now);
        }
        self.phases.add(Phase::Close, attempt.watch.lap());
        match reply {
            Reply::Answer(answer) => {
                self.attempt = None;
                self.finish(Ok(answer))
            }
            Reply::Truncated => self.begin(net, place, Protocol::Tcp),
            Reply::NoEdns if self.edns => {
                self.edns = false;
                self.begin(net, place, Protocol::Udp)
            }
            Reply::NoEdns | Reply::NotOurs => self.fail(net, Failure::ServerFailure, true),
            Reply::Failed(failure) => self.fail(net, failure, true),
        }
    }

    /// The present attempt has failed; `last_word`: asking this upstream again would not help.
    fn fail(&mut self, net: &mut Net<'_>, failure: Failure, last_word: bool) -> Step {
        if self.worst.is_none_or(|worst| worst.weight() < failure.weight()) {
            self.worst = Some(failure);
        }
        if let Some(attempt) = self.attempt.take() {
            if let Some(token) = attempt.token {
                net.sockets.leave(net.ctx, token, self.owner, false, net.now);
            }
            if last_word && let Some(done) = self.done.get_mut(attempt.place) {
                *done = true;
            }
            if matches!(failure, Failure::TimedOut | Failure::Unreachable | Failure::Refused)
                && net.health.failed(attempt.address, failure)
                && let Some(standing) = &mut net.standing
            {
                standing.failed(attempt.address, net.now);
            }
            self.phases = attempt.before;
            self.phases.add(Phase::Retry, attempt.started.elapsed());
        }
        if failure == Failure::OutOfResources {
            return self.finish(Err(failure));
        }
        self.next(net)
    }

    /// As far as the stream goes without waiting: connect, send, receive. The reply, once it is
    /// whole.
    fn advance_stream(&mut self, net: &mut Net<'_>) -> Result<Option<Reply>, Errno> {
        let Some(attempt) = &mut self.attempt else { return Ok(None) };
        let (Some(token), Some(stream)) = (attempt.token, &mut attempt.stream) else { return Ok(None) };
        if !stream.connected {
            net.sockets.connected(token)?;
            stream.connected = true;
            self.phases.add(Phase::Connect, attempt.watch.lap());
        }
        while let Some(rest) = stream.out.get(stream.sent..).filter(|rest| !rest.is_empty()) {
            stream.sent += net.sockets.send(token, rest)?;
            if stream.sent >= stream.out.len() {
                net.sockets.only_read(net.ctx, token)?;
                self.phases.add(Phase::Send, attempt.watch.lap());
            }
        }
        let came = net.sockets.receive(token, net.packet)?;
        if came == 0 {
            return Err(Errno::CONNRESET);
        }
        stream.input.extend_from_slice(net.packet.get(..came).unwrap_or_default());
        let Some((length, body)) = stream.input.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let Some(packet) = body.get(..usize::from(u16::from_be_bytes(*length))) else { return Ok(None) };
        self.phases.add(Phase::Receive, attempt.watch.lap());
        let reply = answer::read(packet, attempt.message_id, &self.question, true);
        self.phases.add(Phase::Decode, attempt.watch.lap());
        // A stream comes from the upstream alone: what is not the answer there is nonsense, not
        // noise.
        Ok(Some(if matches!(reply, Reply::NotOurs) { Reply::Failed(Failure::BadAnswer) } else { reply }))
    }
}

/// The failure of an upstream that a system call's error stands for.
fn failure_of(errno: Errno) -> Failure {
    match errno {
        Errno::CONNREFUSED => Failure::Refused,
        Errno::TIMEDOUT => Failure::TimedOut,
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::NOSPC => Failure::OutOfResources,
        Errno::CONNRESET | Errno::PIPE => Failure::BadAnswer,
        _ => Failure::Unreachable,
    }
}
