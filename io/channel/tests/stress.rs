//! Honest ends under stress: every way to send and to receive, in any order, both directions at
//! once, in one process and in two, while threads pause and move between processors. Each message
//! that comes is the next one, and whole.
//!
//! The choices repeat with the seed; when a thread runs does not.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod other_process;
mod traffic;

use std::io::Write;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use channel::{Config, Descriptors, End, ReceiveError, Receiver, SendError, Sender, SpinPolicy, pair};
use traffic::{Messages, Random};

/// How long each direction of each test sends, in seconds; the variable asks for another time.
const SECONDS: f64 = 2.0;
const SECONDS_VARIABLE: &str = "TOMBOLO_STRESS_SECONDS";
/// A run of fewer messages than this in one direction has shown nothing.
const MESSAGES_MIN: u64 = 2000;
/// For what should happen at once; long enough for a machine under load.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A wait of this kind often ends in vain, which is then part of the test.
const SHORT_WAIT_US: usize = 200;
/// Messages between two pauses, and between two moves to another processor, on average.
const PAUSE_ONE_IN: usize = 3000;
const MOVE_ONE_IN: usize = 9000;
/// Messages between two flushes, on average, beyond those that happen by themselves.
const FLUSH_ONE_IN: usize = 60;
/// The longest pause: longer than any spin, shorter than anything that waits for real.
const PAUSE_US: usize = 1500;
/// Messages in pieces are at most this many times as long as those in one: longer than the ring.
const LARGE: usize = 3;
/// Messages are held back up to so many bytes at most, when they are.
const BATCH_BYTES: usize = 20_000;
/// A direction has about this many messages more in it when its way of sending and receiving
/// changes.
const HABIT_MESSAGES: usize = 400;

fn deadline() -> Option<Instant> {
    Some(Instant::now() + TIMEOUT)
}

fn short(random: &mut Random) -> Option<Instant> {
    Some(Instant::now() + Duration::from_micros(random.below(SHORT_WAIT_US) as u64))
}

fn seconds() -> Duration {
    let seconds = std::env::var(SECONDS_VARIABLE).ok().map_or(SECONDS, |text| text.parse().unwrap());
    Duration::from_secs_f64(seconds)
}

/// The source of irregular timing in a thread.
struct Moods {
    random: Random,
    processors: Vec<u32>,
}

impl Moods {
    fn new(seed: u64, stream: u64) -> Moods {
        Moods { random: Random::new(seed, stream), processors: sys::processor::allowed().unwrap() }
    }

    fn come_and_go(&mut self) {
        if self.random.one_in(MOVE_ONE_IN) {
            let one = self.random.below(self.processors.len() + 1);
            let chosen = self.processors.get(one..=one).unwrap_or(&self.processors);
            sys::processor::pin(chosen).unwrap();
        }
        if self.random.one_in(PAUSE_ONE_IN) {
            self.pause();
        }
    }

    fn pause(&mut self) {
        let pause = Duration::from_micros(self.random.below(PAUSE_US) as u64);
        match self.random.below(3) {
            0 => thread::yield_now(),
            1 => {
                let end = Instant::now() + pause;
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
            }
            // tidy(sleep): the pause is what is tested: the other end finds the ring full, or
            // empty, and sleeps too
            _ => thread::sleep(pause),
        }
    }

    fn policy(&mut self) -> SpinPolicy {
        if self.random.one_in(2) { SpinPolicy::Adaptive } else { SpinPolicy::Never }
    }
}

fn sleep_on(watched: Descriptors<'_>) {
    let since = Instant::now();
    sys::doorbell::wait(watched.doorbell, watched.lifeline, Some(TIMEOUT.as_nanos() as u64)).unwrap();
    assert!(since.elapsed() < TIMEOUT, "nobody rang");
}

/// Tries `once` until it is done; `wait` is for when it is not.
fn until_done<S, T>(
    state: &mut S,
    mut once: impl FnMut(&mut S) -> Option<T>,
    mut wait: impl FnMut(&mut S),
) -> T {
    let limit = Instant::now() + TIMEOUT;
    loop {
        if let Some(done) = once(state) {
            return done;
        }
        assert!(Instant::now() < limit, "nothing moves any more");
        wait(state);
    }
}

fn has_room(result: Result<(), SendError>) -> Option<()> {
    match result {
        Ok(()) => Some(()),
        Err(SendError::Full | SendError::TimedOut) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Sends one message that goes in pieces.
fn send_large(sender: &mut Sender, bytes: &[u8], way: usize, random: &mut Random) {
    let piece_bytes = sender.piece_bytes();
    match way % 3 {
        0 => sender.send(bytes, deadline()).unwrap(),
        // What is given up in the midst of it never was. Each time it has longer: on a busy machine
        // no short while is long enough for many pieces.
        1 => {
            let mut longer = Duration::ZERO;
            until_done(
                sender,
                |sender| {
                    longer = longer * 2 + Duration::from_micros(1);
                    has_room(sender.send(bytes, short(random).map(|at| at + longer)))
                },
                |_| {},
            );
        }
        _ => {
            let mut sent = 0;
            until_done(
                sender,
                |sender| has_room(sender.try_send_from(bytes, &mut sent)),
                |sender| sleep_for_room(sender, piece_bytes),
            );
        }
    }
}

fn sleep_for_room(sender: &mut Sender, length: usize) {
    if sender.prepare_wait(length).unwrap() {
        sleep_on(sender.descriptors());
        sender.cancel_wait();
        sender.drain_doorbell().unwrap();
    }
}

/// Sends one message, in way `way`.
fn send(sender: &mut Sender, bytes: &[u8], way: usize, random: &mut Random) {
    let cut = random.below(bytes.len() + 1);
    let parts: [&[u8]; 3] = [&bytes[..cut / 2], &bytes[cut / 2..cut], &bytes[cut..]];
    match way {
        _ if bytes.len() > sender.max_message() => send_large(sender, bytes, way, random),
        0 => sender.send(bytes, deadline()).unwrap(),
        1 => until_done(sender, |sender| has_room(sender.try_send(bytes)), |_| thread::yield_now()),
        2 => sender.send_vectored(&parts, deadline()).unwrap(),
        3 => {
            let mut loan = sender.loan(bytes.len(), deadline()).unwrap();
            assert!(loan.write_at(cut, parts[2]) && loan.write_at(0, &bytes[..cut]));
            loan.commit().unwrap();
        }
        4 => {
            // A loan that comes to nothing changes nothing.
            assert!(sender.loan(sender.max_message(), deadline()).unwrap().write_at(0, bytes));
            let mut loan = sender.loan(bytes.len(), deadline()).unwrap();
            loan.write_all(&bytes[..cut]).unwrap();
            loan.write_all(&bytes[cut..]).unwrap();
            loan.commit().unwrap();
        }
        5 => until_done(sender, |sender| has_room(sender.send(bytes, short(random))), |_| {}),
        6 => until_done(
            sender,
            |sender| has_room(sender.try_send_vectored(&parts)),
            |sender| sleep_for_room(sender, bytes.len()),
        ),
        7 => {
            let more = random.below(sender.max_message() - bytes.len() + 1);
            let mut loan = sender.loan(bytes.len() + more, deadline()).unwrap();
            assert!(loan.write_at(0, bytes) && loan.write_at(bytes.len(), &vec![0xee; more]));
            loan.commit_first(bytes.len()).unwrap();
        }
        8 => {
            // Lent to another language, which thinks better of it.
            let _first = sender.begin(bytes.len(), deadline()).unwrap();
            assert!(matches!(sender.try_send(bytes), Err(SendError::OutOfOrder(_))));
            sender.cancel();
            sender.send(bytes, deadline()).unwrap();
        }
        _ => {
            sender.wait(bytes.len(), deadline()).unwrap();
            sender.try_send(bytes).unwrap();
        }
    }
}

const SENDING_WAYS: usize = 10;

fn has_come<T>(result: Result<T, ReceiveError>) -> Option<T> {
    match result {
        Ok(got) => Some(got),
        Err(ReceiveError::TimedOut) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Receives one message into `got`, in way `way`.
fn receive(receiver: &mut Receiver, got: &mut Vec<u8>, way: usize, random: &mut Random) {
    let in_pieces = |message: &channel::Alleged<'_>, got: &mut Vec<u8>| {
        let cut = message.len() / 2;
        got.resize(message.len(), 0);
        assert!(message.copy_to(cut, &mut got[cut..]) && message.copy_to(0, &mut got[..cut]));
    };
    let length = match way {
        0 => receiver.receive(got, deadline()).unwrap(),
        1 => until_done(receiver, |receiver| receiver.try_receive(got).unwrap(), |_| thread::yield_now()),
        2 => {
            receiver.read(deadline(), |message| in_pieces(message, got)).unwrap();
            got.len()
        }
        3 => {
            let mut once =
                |receiver: &mut Receiver| receiver.try_read(|message| in_pieces(message, got)).unwrap();
            until_done(receiver, &mut once, |receiver| receiver.wait(deadline()).unwrap());
            got.len()
        }
        4 => until_done(receiver, |receiver| has_come(receiver.receive(got, short(random))), |_| {}),
        5 => until_done(
            receiver,
            |receiver| receiver.try_receive(got).unwrap(),
            |receiver| {
                if receiver.prepare_wait() {
                    sleep_on(receiver.descriptors());
                    receiver.cancel_wait();
                    receiver.drain_doorbell().unwrap();
                }
            },
        ),
        6 => {
            let length = receiver.next_length(deadline()).unwrap();
            assert_eq!(receiver.try_next_length().unwrap(), Some(length), "it stays");
            receiver.try_receive(got).unwrap().unwrap()
        }
        _ => {
            // Waiting takes nothing, however often.
            receiver.wait(deadline()).unwrap();
            receiver.wait(deadline()).unwrap();
            receiver.try_receive(got).unwrap().unwrap()
        }
    };
    assert_eq!(length, got.len());
}

const RECEIVING_WAYS: usize = 8;

/// Sends for a while, then the message that ends the direction; returns how many came before it.
fn send_all(sender: &mut Sender, messages: &Messages, moods: &mut Moods, time: Duration) -> u64 {
    let (mut bytes, mut way, mut count) = (Vec::new(), 0, 0);
    let end = Instant::now() + time;
    while Instant::now() < end {
        if moods.random.one_in(HABIT_MESSAGES) {
            way = moods.random.below(SENDING_WAYS);
            sender.set_spin_policy(moods.policy());
            let batch = moods.random.below(3) / 2 * moods.random.below(BATCH_BYTES);
            sender.set_batch_bytes(batch);
        }
        messages.make(count, &mut bytes);
        send(sender, &bytes, way, &mut moods.random);
        if moods.random.one_in(FLUSH_ONE_IN) {
            sender.flush().unwrap();
        }
        moods.come_and_go();
        count += 1;
    }
    sender.send(&messages.end(count), deadline()).unwrap();
    sender.flush().unwrap();
    count
}

/// Receives until the message that ends the direction; returns how many came before it.
fn receive_all(receiver: &mut Receiver, messages: &Messages, moods: &mut Moods) -> u64 {
    let (mut got, mut expected, mut way) = (Vec::new(), Vec::new(), 0);
    for count in 0.. {
        if moods.random.one_in(HABIT_MESSAGES) {
            way = moods.random.below(RECEIVING_WAYS);
            receiver.set_spin_policy(moods.policy());
        }
        receive(receiver, &mut got, way, &mut moods.random);
        messages.make(count, &mut expected);
        if got != expected {
            assert!(
                got == messages.end(count),
                "message {count} ({} bytes) is not as it was sent",
                got.len()
            );
            return count;
        }
        moods.come_and_go();
    }
    unreachable!("numbers do not end");
}

/// One end's part: both directions at once. Returns how many messages it sent and received.
fn take_part(end: End, side: u64, seed: u64, time: Duration) -> (u64, u64) {
    let (mut sender, mut receiver) = end.open().unwrap();
    let longest = LARGE * sender.max_message();
    receiver.set_message_limit(longest);
    // Each knows then what the other takes.
    sender.send(b"here", deadline()).unwrap();
    receiver.receive(&mut Vec::new(), deadline()).unwrap();
    let outward = Messages::new(seed, side, longest);
    let inward = Messages::new(seed, 1 - side, longest);
    let counts = thread::scope(|scope| {
        let sending = scope.spawn(|| send_all(&mut sender, &outward, &mut Moods::new(seed, 10 + side), time));
        let receiving = scope.spawn(|| receive_all(&mut receiver, &inward, &mut Moods::new(seed, 20 + side)));
        (sending.join().unwrap(), receiving.join().unwrap())
    });
    // The peer's last message has come, but ours may still stand in the ring: the close waits for
    // nothing, loses nothing.
    drop((sender, receiver));
    counts
}

#[allow(clippy::needless_update, reason = "a test that is about the ring's size leaves the rest as it is")]
fn config(ring_bytes: u32) -> Config {
    Config { ring_bytes, ..Config::default() }
}

fn check(what: &str, counts: (u64, u64)) {
    println!("{what}: {} messages there, {} back", counts.0, counts.1);
    assert!(counts.0 >= MESSAGES_MIN && counts.1 >= MESSAGES_MIN, "{counts:?} messages show nothing");
}

fn in_threads(ring_bytes: u32) {
    let seed = traffic::seed();
    let time = seconds();
    let (one, other) = pair(&config(ring_bytes)).unwrap();
    let (ours, theirs) = thread::scope(|scope| {
        let ours = scope.spawn(|| take_part(one, 0, seed, time));
        let theirs = scope.spawn(|| take_part(other, 1, seed, time));
        (ours.join().unwrap(), theirs.join().unwrap())
    });
    assert_eq!(ours, (theirs.1, theirs.0), "what was sent and what came");
    check("threads", ours);
}

fn in_processes(ring_bytes: u32) {
    let seed = traffic::seed();
    let (one, other) = pair(&config(ring_bytes)).unwrap();
    let mut process = other_process::start(&seed.to_string());
    let descriptors = other.into_descriptors();
    process.pass(&descriptors.each_ref().map(AsFd::as_fd));
    drop(descriptors);
    let counts = take_part(one, 0, seed, seconds());
    let status = process.child.wait().unwrap();
    assert!(status.success(), "the other process: {status}");
    check("processes", counts);
}

#[test]
#[ignore = "the other process of the tests below, which start it"]
fn child() {
    let Some(seed) = other_process::role() else { return };
    let Some(descriptors) = other_process::receive(End::DESCRIPTORS) else { return };
    take_part(End::from_descriptors(descriptors).unwrap(), 1, seed.parse().unwrap(), seconds());
}

#[test]
fn small_rings_between_processes() {
    in_processes(4 << 10);
}

#[test]
fn large_rings_between_processes() {
    in_processes(1 << 20);
}

#[test]
fn small_rings_between_threads() {
    in_threads(4 << 10);
}

#[test]
fn large_rings_between_threads() {
    in_threads(256 << 10);
}
