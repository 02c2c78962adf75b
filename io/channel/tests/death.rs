//! Processes that die by `kill -9` at random moments, thousands of times: the survivor wakes,
//! receives what was committed, whole and in order, and learns of the end; nothing is left of the
//! channel.
//!
//! One test alone in its program, because it counts what the program holds.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod other_process;
mod traffic;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use channel::{Config, End, ReceiveError, Receiver, SendError, Sender, SpinPolicy, pair};
use sys::region::Region;
use traffic::{Messages, Random};

/// How many processes die; the variable asks for another number.
const DEATHS: u64 = 2500;
const DEATHS_VARIABLE: &str = "TOMBOLO_DEATHS";
/// Deaths that are under way at once: with one, the processors would wait while a process starts,
/// and while survivors sleep.
const LANES: usize = 3;
/// Long enough for a machine under load; what is tested is that none of it is needed.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How much later than at the hang-up of a pipe that died with it a survivor may learn of a death:
/// the promise. Held against the median, because a machine with other things to do lets some wait
/// for a processor.
const LATER: Duration = Duration::from_millis(10);
/// Later than this nobody was woken: a wait came to its own end.
const LOST: Duration = Duration::from_secs(10);

fn deadline() -> Option<Instant> {
    Some(Instant::now() + TIMEOUT)
}

/// The notes of a child before each step, in memory that outlives it.
struct Notes(Region);

impl Notes {
    const BYTES: usize = 4096;
    const SENT: usize = 0;
    const BEGUN: usize = 8;

    fn new() -> (Notes, OwnedFd) {
        let memory = sys::memfd::sealed("notes", Self::BYTES as u64).unwrap();
        (Notes::map(&memory), memory)
    }

    fn map(memory: &OwnedFd) -> Notes {
        Notes(Region::map(memory, Self::BYTES).unwrap())
    }

    /// So many messages may be on their way.
    fn note_begun(&self, count: u64) {
        self.0.store_u64(Self::BEGUN, count, Ordering::Release);
    }

    fn begun(&self) -> u64 {
        self.0.load_u64(Self::BEGUN, Ordering::Acquire)
    }

    /// So many messages have been sent and are held back no more, for certain.
    fn note_sent(&self, count: u64) {
        self.0.store_u64(Self::SENT, count, Ordering::Release);
    }

    fn sent(&self) -> u64 {
        self.0.load_u64(Self::SENT, Ordering::Acquire)
    }
}

/// The roles of the child until it is killed.
const ROLES: [&str; 5] = ["flood", "sink", "both", "echo", "deaf"];
const READY: &[u8] = b"ready";
/// Messages in pieces are at most this many times as long as those in one: longer than the ring.
const LARGE: usize = 3;
/// A flood holds messages back up to so many bytes at most.
const BATCH_BYTES: usize = 3000;
/// Streams of messages: from the child, and to it.
const FROM_CHILD: u64 = 1;
const TO_CHILD: u64 = 2;

/// One death: all that is decided beforehand.
#[derive(Clone, Copy, Debug)]
struct Round {
    role: &'static str,
    seed: u64,
    ring_bytes: u32,
    /// The index of the end that dies.
    victim: usize,
    /// Whether it is killed at any moment from its start on, or only once it says that it lives.
    early: bool,
    delay: Duration,
    policy: SpinPolicy,
    /// Whether both wait as an event loop does, with descriptors, and not inside a call.
    by_descriptors: bool,
    /// Whether there are messages that go in pieces.
    large: bool,
}

impl Round {
    fn choose(number: u64, random: &mut Random) -> Round {
        let role = ROLES[(number % ROLES.len() as u64) as usize];
        let early = random.one_in(4) && role != "echo";
        let within = if early { 4_000_000 } else { 1_500_000 };
        Round {
            role,
            seed: random.next(),
            ring_bytes: [4 << 10, 16 << 10, 256 << 10][random.below(3)],
            victim: random.below(2),
            early,
            delay: Duration::from_nanos(random.below(within) as u64),
            policy: if random.one_in(2) { SpinPolicy::Adaptive } else { SpinPolicy::Never },
            by_descriptors: random.one_in(2),
            // An end that may die before it has said what it takes gets nothing in pieces.
            large: !early && random.one_in(2),
        }
    }

    /// Longest message, where a record takes so many bytes.
    fn longest(&self, max_message: usize) -> usize {
        if self.large { LARGE * max_message } else { max_message }
    }
}

impl Round {
    /// The round in words, for the child.
    fn tell(&self) -> String {
        let adaptive = self.policy == SpinPolicy::Adaptive;
        format!("{} {} {adaptive} {} {}", self.role, self.seed, self.by_descriptors, self.large)
    }

    /// Parses the part of the round that the child has to know; the rest is the parent's business.
    fn told(words: &str) -> Round {
        let words: Vec<&str> = words.split(' ').collect();
        let [role, seed, adaptive, by_descriptors, large] = words.try_into().expect("five words");
        Round {
            role: ROLES.into_iter().find(|known| *known == role).expect("a role that there is"),
            seed: seed.parse().unwrap(),
            ring_bytes: 0,
            victim: 0,
            early: false,
            delay: Duration::ZERO,
            policy: if adaptive == "true" { SpinPolicy::Adaptive } else { SpinPolicy::Never },
            by_descriptors: by_descriptors == "true",
            large: large == "true",
        }
    }
}

/// Sends message after message, in every way there is, until the channel ends.
fn pour(sender: &mut Sender, messages: &Messages, round: &Round, notes: Option<&Notes>) -> Instant {
    let (mut random, mut bytes) = (Random::new(round.seed, 3), Vec::new());
    for number in 0.. {
        messages.make(number, &mut bytes);
        if let Some(notes) = notes {
            notes.note_begun(number + 1);
        }
        let sent = match random.below(5) {
            // Pieces are the business of a call that waits.
            _ if bytes.len() > sender.max_message() => sender.send(&bytes, deadline()),
            0 if round.by_descriptors => send_by_descriptors(sender, &bytes),
            1 => sender.send_vectored(&[&bytes[..bytes.len() / 2], &bytes[bytes.len() / 2..]], deadline()),
            2 => send_after_a_loan_that_came_to_nothing(sender, &bytes),
            3 => {
                sender.set_batch_bytes(random.below(BATCH_BYTES));
                sender.send(&bytes, deadline())
            }
            _ => sender.send(&bytes, deadline()).and_then(|()| sender.flush()),
        };
        match (sent, notes) {
            (Err(SendError::Closed), _) => return Instant::now(),
            (Err(error), _) => panic!("{error}"),
            // Those before the flush may be held back.
            (Ok(()), Some(notes)) if random.one_in(3) && sender.flush().is_ok() => {
                notes.note_sent(number + 1)
            }
            (Ok(()), _) => {}
        }
    }
    unreachable!("numbers do not end");
}

fn send_after_a_loan_that_came_to_nothing(sender: &mut Sender, bytes: &[u8]) -> Result<(), SendError> {
    assert!(sender.loan(sender.max_message(), deadline())?.write_at(0, bytes));
    let mut loan = sender.loan(bytes.len(), deadline())?;
    assert!(loan.write_at(0, bytes));
    loan.commit()
}

fn send_by_descriptors(sender: &mut Sender, bytes: &[u8]) -> Result<(), SendError> {
    loop {
        match sender.try_send(bytes) {
            Err(SendError::Full) => {}
            other => return other,
        }
        if sender.prepare_wait(bytes.len())? {
            let watched = sender.descriptors();
            sys::doorbell::wait(watched.doorbell, watched.lifeline, Some(TIMEOUT.as_nanos() as u64)).unwrap();
            sender.cancel_wait();
            sender.drain_doorbell()?;
        }
    }
}

/// Receives until the channel ends: the greeting and then message after message, each the next one,
/// and whole. Returns how many came, and when it was over.
fn drain(receiver: &mut Receiver, messages: &Messages, round: &Round) -> (u64, Instant) {
    let (mut got, mut expected, mut number) = (Vec::new(), READY.to_vec(), 0);
    loop {
        let received = if round.by_descriptors {
            receive_by_descriptors(receiver, &mut got)
        } else {
            receiver.receive(&mut got, deadline())
        };
        match received {
            Ok(_) if number == 0 && got == READY => continue,
            Ok(length) => assert_eq!(length, got.len()),
            Err(ReceiveError::Closed) => return (number, Instant::now()),
            Err(error) => panic!("{error}"),
        }
        messages.make(number, &mut expected);
        assert!(got == expected, "message {number} of {} bytes is not as it was sent", expected.len());
        number += 1;
    }
}

fn receive_by_descriptors(receiver: &mut Receiver, into: &mut Vec<u8>) -> Result<usize, ReceiveError> {
    loop {
        if let Some(length) = receiver.try_receive(into)? {
            return Ok(length);
        }
        if receiver.prepare_wait() {
            let watched = receiver.descriptors();
            sys::doorbell::wait(watched.doorbell, watched.lifeline, Some(TIMEOUT.as_nanos() as u64)).unwrap();
            receiver.cancel_wait();
            receiver.drain_doorbell()?;
        }
    }
}

/// Sends a message and awaits it back, again and again.
fn call(sender: &mut Sender, receiver: &mut Receiver, messages: &Messages) -> (u64, Instant) {
    let (mut got, mut bytes) = (Vec::new(), Vec::new());
    for number in 0.. {
        messages.make(number, &mut bytes);
        match sender.send(&bytes, deadline()) {
            Ok(()) => {}
            Err(SendError::Closed) => return (number, Instant::now()),
            Err(error) => panic!("{error}"),
        }
        match receiver.receive(&mut got, deadline()) {
            Ok(_) => assert!(got == bytes, "echo {number}"),
            Err(ReceiveError::Closed) => return (number, Instant::now()),
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("numbers do not end");
}

/// Runs the child until it is killed. With a role that nobody knows it fails, and so does the
/// parent's test.
fn live(round: &Round, sender: &mut Sender, receiver: &mut Receiver, notes: &Notes) {
    let outward = Messages::new(round.seed, FROM_CHILD, round.longest(sender.max_message()));
    let inward = Messages::new(round.seed, TO_CHILD, round.longest(receiver.max_message()));
    match round.role {
        "flood" => drop(pour(sender, &outward, round, Some(notes))),
        "sink" => drop(drain(receiver, &inward, round)),
        "both" => thread::scope(|scope| {
            scope.spawn(|| pour(sender, &outward, round, Some(notes)));
            drain(receiver, &inward, round);
        }),
        "echo" => {
            let mut bytes = Vec::new();
            for count in 1.. {
                notes.note_begun(count);
                let echoed = receiver.receive(&mut bytes, deadline()).is_ok()
                    && sender.send(&bytes, deadline()).is_ok();
                if !echoed {
                    return;
                }
                notes.note_sent(count);
            }
        }
        // The end of the parent's process is the end of ours.
        "deaf" => drop(other_process::receive(0)),
        other => panic!("no role {other}"),
    }
}

#[test]
#[ignore = "the other process of the test below, which starts it"]
fn child() {
    let Some(role) = other_process::role() else { return };
    let Some(mut descriptors) = other_process::receive(End::DESCRIPTORS + 2) else { return };
    let notes = Notes::map(&descriptors.pop().unwrap());
    // Held as long as the process lives: its end is the hang-up that the parent compares with.
    let _alive = descriptors.pop().unwrap();
    let round = Round::told(&role);
    let (mut sender, mut receiver) = End::from_descriptors(descriptors).unwrap().open().unwrap();
    receiver.set_spin_policy(round.policy);
    sender.set_spin_policy(round.policy);
    receiver.set_message_limit(round.longest(receiver.max_message()));
    sender.send(READY, deadline()).unwrap();
    live(&round, &mut sender, &mut receiver, &notes);
}

/// The findings of one survivor.
struct Outcome {
    received: u64,
    /// When its receiver knew, and when its sender did.
    knew: [Instant; 2],
}

fn survive(
    round: &Round,
    (sender, outward): (&mut Sender, &Messages),
    (receiver, inward): (&mut Receiver, &Messages),
) -> Outcome {
    if round.role == "echo" {
        let (received, knew) = call(sender, receiver, outward);
        return Outcome { received, knew: [knew; 2] };
    }
    thread::scope(|scope| {
        let pouring = scope.spawn(|| pour(sender, outward, round, None));
        let (received, knew) = drain(receiver, inward, round);
        Outcome { received, knew: [knew, pouring.join().unwrap()] }
    })
}

/// Waits until the pipe hangs up.
fn await_hang_up(pipe: &OwnedFd) -> Instant {
    let mut byte = [0];
    let read = rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut byte)).unwrap();
    assert_eq!(read, 0, "nobody writes into this pipe");
    Instant::now()
}

/// How long after the kill the pipe hung up, and each half of the survivor knew, in ns.
#[derive(Debug)]
struct Latency {
    pipe_ns: u64,
    receiver_ns: u64,
    sender_ns: u64,
}

impl Latency {
    /// When both halves knew.
    fn survivor_ns(&self) -> u64 {
        self.receiver_ns.max(self.sender_ns)
    }

    fn later_ns(&self) -> u64 {
        self.survivor_ns().saturating_sub(self.pipe_ns)
    }
}

fn die(round: &Round) -> Latency {
    let (one, other) = pair(&config(round.ring_bytes)).unwrap();
    let (ours, theirs) = if round.victim == 1 { (one, other) } else { (other, one) };
    let (mut sender, mut receiver) = ours.open().unwrap();
    sender.set_spin_policy(round.policy);
    receiver.set_spin_policy(round.policy);
    receiver.set_message_limit(round.longest(receiver.max_message()));
    let inward = Messages::new(round.seed, FROM_CHILD, round.longest(receiver.max_message()));
    let outward = Messages::new(round.seed, TO_CHILD, round.longest(sender.max_message()));
    let (notes, notes_memory) = Notes::new();
    let (hang_up, alive) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let mut other = other_process::start(&round.tell());
    let mut descriptors = Vec::from(theirs.into_descriptors());
    descriptors.extend([alive, notes_memory]);
    other.pass(&descriptors.iter().map(AsFd::as_fd).collect::<Vec<_>>());
    drop(descriptors);
    if !round.early {
        let mut greeting = Vec::new();
        receiver.receive(&mut greeting, deadline()).unwrap();
        assert_eq!(greeting, READY);
    }
    let (killed, hung_up, outcome) = thread::scope(|scope| {
        let survivor = scope.spawn(|| survive(round, (&mut sender, &outward), (&mut receiver, &inward)));
        // No event to wait for: the moment is meant to be any.
        let moment = Instant::now() + round.delay;
        while Instant::now() < moment {
            thread::yield_now();
        }
        let killed = Instant::now();
        other.child.kill().unwrap();
        (killed, await_hang_up(&hang_up), survivor.join().unwrap())
    });
    let status = other.child.wait().unwrap();
    assert!(!status.success() && status.code().is_none(), "the child came to its own end: {status}");
    let (received, sent, begun) = (outcome.received, notes.sent(), notes.begun());
    assert!(received >= sent, "{received} of {sent} committed messages came");
    assert!(received <= begun, "{received} messages came, {begun} were begun");
    assert!(sender.is_closed() && receiver.is_closed());
    assert!(matches!(sender.send(b"x", deadline()), Err(SendError::Closed)));
    assert!(matches!(receiver.receive(&mut Vec::new(), deadline()), Err(ReceiveError::Closed)));
    let since = |at: Instant| u64::try_from((at - killed).as_nanos()).unwrap();
    let [receiver_ns, sender_ns] = outcome.knew.map(since);
    Latency { pipe_ns: since(hung_up), receiver_ns, sender_ns }
}

#[allow(clippy::needless_update, reason = "a test that is about the ring's size leaves the rest as it is")]
fn config(ring_bytes: u32) -> Config {
    Config { ring_bytes, ..Config::default() }
}

/// Everything that the process holds and that a channel might leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: Vec<String>,
    regions: usize,
    threads: usize,
    children: String,
}

impl Holdings {
    fn now() -> Holdings {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        let mut descriptors: Vec<String> = descriptors
            // The listing itself is open while it is read, and closed when its link is.
            .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
            .map(|link| link.display().to_string())
            .filter(|link| !link.starts_with("/proc/"))
            .collect();
        descriptors.sort();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let threads: Vec<_> = std::fs::read_dir("/proc/self/task").unwrap().map(Result::unwrap).collect();
        let children =
            |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap();
        Holdings {
            descriptors,
            regions: maps.lines().filter(|line| line.contains("/memfd:")).count(),
            threads: threads.len(),
            children: threads.iter().map(children).collect(),
        }
    }
}

/// In ms.
fn percentile(sorted: &[u64], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100] as f64 / 1e6
}

/// Prints a distribution and returns its middle and its end, in ms.
fn report(what: &str, mut ns: Vec<u64>) -> (f64, f64) {
    ns.sort_unstable();
    let [p50, p95, p99, most] = [50, 95, 99, 100].map(|percent| percentile(&ns, percent));
    println!("{what}: half within {p50:.3} ms, 95% {p95:.3}, 99% {p99:.3}, all {most:.3}");
    (p50, most)
}

#[test]
fn whoever_survives_learns_of_it_and_nothing_is_left() {
    let seed = traffic::seed();
    let deaths = std::env::var(DEATHS_VARIABLE).ok().map_or(DEATHS, |text| text.parse().unwrap());
    // What a process makes once for all of its channels (the pipe of which rings are copies) is no
    // leak.
    let (one, other) = pair(&Config::default()).unwrap();
    drop((one.open().unwrap(), other.open().unwrap()));
    let before = Holdings::now();
    let next = AtomicU64::new(0);
    let lane = || {
        let mut found = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= deaths {
                return found;
            }
            let round = Round::choose(number, &mut Random::new(seed, number));
            let died = std::panic::catch_unwind(|| die(&round));
            let died = died.unwrap_or_else(|_| panic!("death {number} of seed {seed:x}: {round:?}"));
            found.push((number, died));
        }
    };
    let latencies: Vec<(u64, Latency)> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
    });
    // A thread that has ended is listed for a moment still.
    let patience = Instant::now() + TIMEOUT;
    while Holdings::now() != before && Instant::now() < patience {
        thread::yield_now();
    }
    assert_eq!(Holdings::now(), before, "something is left");
    println!("{deaths} deaths; from kill(2) on, on this machine now:");
    if let Some((number, death)) = latencies.iter().max_by_key(|(_, death)| death.later_ns()) {
        let round = Round::choose(*number, &mut Random::new(seed, *number));
        println!("the latest was death {number}: {death:?}, {round:?}");
    }
    report("a pipe hangs up", latencies.iter().map(|(_, death)| death.pipe_ns).collect());
    report("the survivor knows", latencies.iter().map(|(_, death)| death.survivor_ns()).collect());
    let later = latencies.iter().map(|(_, death)| death.later_ns());
    let (usual_ms, most_ms) = report("the survivor knows, after the pipe", later.collect());
    assert!(usual_ms <= LATER.as_secs_f64() * 1e3, "survivors learn of a death late: {usual_ms} ms");
    assert!(most_ms <= LOST.as_secs_f64() * 1e3, "a survivor was never woken: {most_ms} ms");
}
