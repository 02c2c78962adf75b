//! The same as in `privacy.rs`, on a real clock: real servers, real channels, a name server that
//! really takes its time.
//!
//! In each trial a victim asks for a fresh name, or does not, by the fall of a coin; then the
//! attacker, another domain, asks for it and takes the time of the answer. Half of the trials teach
//! the threshold (and on which side of it lies "asked"), the other half try it, and the other way
//! round. The *advantage* is |P(says "asked" | asked) - P(says "asked" | not asked)|: 0 is
//! guessing, 1 is knowing. All kinds of cache are measured at the same time, each with a server and
//! an upstream of its own, so that whatever else the machine does hits all alike.

use crate::privacy::Random;
use crate::stage::{Stage, settings};
use crate::upstream::{bytes, good};
use hickory_proto::op::Message;
use rustix::event::{PollFd, PollFlags, poll};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::directory::CacheMode;

/// Trials for each kind of cache.
const TRIALS: usize = 1000;
/// An advantage that a cache may have here. Chance alone goes to eight standard errors, which is
/// never; a real one of this size would need hundreds of observations to tell anything worth
/// knowing of one name.
const BOUND: f64 = 0.25;
/// The advantage that the unprotected cache must show, for the measurement to be one.
const TOLD: f64 = 0.8;
/// The share of the normal distribution that lies within so many standard errors is 95 %.
const STANDARD_ERRORS: f64 = 1.96;

/// A name server that answers each question 8 ms later and more: up to 3 ms of jitter, and for one
/// in eight a tail.
struct Slow {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The time that the server takes for one question.
fn delay(random: &mut Random) -> Duration {
    let tail =
        if random.next().is_multiple_of(8) { (-4.0 * random.unit().max(1e-9).ln()).min(30.0) } else { 0.0 };
    Duration::from_secs_f64((8.0 + 3.0 * random.unit() + tail) / 1000.0)
}

impl Slow {
    fn start(seed: u64) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_nonblocking(true).expect("set");
        let address = socket.local_addr().expect("its address");
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        let thread = std::thread::spawn(move || answer_slowly(&socket, &stop, Random(seed)));
        Self { address, stopped, thread: Some(thread) }
    }
}

fn answer_slowly(socket: &UdpSocket, stop: &AtomicBool, mut random: Random) {
    let mut waiting: Vec<(Instant, Vec<u8>, SocketAddr)> = Vec::new();
    let mut packet = [0; 1500];
    while !stop.load(Ordering::SeqCst) {
        let next = waiting.iter().map(|(due, ..)| *due).min();
        let left = next.map(|due| session::timespec(due.saturating_duration_since(Instant::now())));
        poll(&mut [PollFd::new(socket, PollFlags::IN)], left.as_ref()).expect("polled");
        while let Ok((came, from)) = socket.recv_from(&mut packet) {
            let Ok(query) = Message::from_vec(&packet[..came]) else { continue };
            waiting.push((Instant::now() + delay(&mut random), bytes(&good(&query)), from));
        }
        let now = Instant::now();
        for (_, answer, to) in waiting.extract_if(.., |(due, ..)| *due <= now) {
            let _the_asker_may_be_gone = socket.send_to(&answer, to);
        }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        let knock = UdpSocket::bind("127.0.0.1:0").expect("a port");
        knock.send_to(b"", self.address).expect("sent");
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            assert!(std::thread::panicking() || joined.is_ok(), "the upstream does not panic");
        }
    }
}

/// The truth of one trial, and the time that the attacker saw.
#[derive(Clone, Copy)]
struct Trial {
    asked: bool,
    seconds: f64,
}

/// All trials of one kind of cache; `attacker` is its domain, the victim is `a`.
fn trials(mode: CacheMode, attacker: &str, seed: u64) -> Vec<Trial> {
    let upstream = Slow::start(seed);
    let mut set = settings(&[upstream.address]);
    set.timeout_ms = 20_000;
    set.cache.mode = mode;
    set.cache.share = vec!["a".into(), "b".into()];
    let stage = Stage::set(&set);
    let (mut victim, mut attacker) = (stage.link("a"), stage.link(attacker));
    let mut random = Random(!seed);
    let mut trial = |n: usize| {
        let question = format!("A secret{n}.example");
        let asked = random.next() >> 63 == 1;
        if asked {
            victim.query(&question).expect("an answer");
        }
        let start = Instant::now();
        attacker.query(&question).expect("an answer");
        Trial { asked, seconds: start.elapsed().as_secs_f64() }
    };
    (0..TRIALS).map(&mut trial).collect()
}

/// Shares of the trials where the victim had asked, and where it had not, in which the attacker
/// says "asked"; and how many there were.
fn says(trials: &[Trial], (threshold, below): (f64, bool)) -> [(f64, usize); 2] {
    [true, false].map(|asked| {
        let of: Vec<_> = trials.iter().filter(|trial| trial.asked == asked).collect();
        let said = of.iter().filter(|trial| (trial.seconds < threshold) == below).count();
        (said as f64 / of.len().max(1) as f64, of.len())
    })
}

/// The rule that does best on what is known.
fn learn(known: &[Trial]) -> (f64, bool) {
    let gain = |rule: &(f64, bool)| {
        let [(hits, _), (alarms, _)] = says(known, *rule);
        hits - alarms
    };
    let rules = known.iter().flat_map(|trial| [(trial.seconds, true), (trial.seconds, false)]);
    rules.max_by(|a, b| gain(a).total_cmp(&gain(b))).expect("there are trials")
}

/// The advantage, and its standard error.
fn advantage(trials: &[Trial]) -> (f64, f64) {
    let (even, odd): (Vec<_>, Vec<_>) = trials.iter().enumerate().partition(|(n, _)| n % 2 == 0);
    let half = |half: Vec<(usize, &Trial)>| half.into_iter().map(|(_, trial)| *trial).collect::<Vec<_>>();
    let (even, odd) = (half(even), half(odd));
    let folds = [(&even, &odd), (&odd, &even)].map(|(known, new)| {
        let [(hits, asked), (alarms, not)] = says(new, learn(known));
        let variance = |share: f64, count: usize| share * (1.0 - share) / count.max(1) as f64;
        (hits - alarms, variance(hits, asked) + variance(alarms, not))
    });
    let [(one, one_variance), (two, two_variance)] = folds;
    (f64::midpoint(one, two).abs(), (one_variance + two_variance).sqrt() / 2.0)
}

#[test]
fn on_a_real_clock_only_a_cache_shared_without_delay_tells_what_another_domain_asked() {
    // The contrast is an attacker that shares one plain cache with the victim: the victim's own
    // domain.
    let arms = [
        ("private", CacheMode::Private, "b"),
        ("none", CacheMode::None, "b"),
        ("shared, delayed hits", CacheMode::Shared, "b"),
        ("shared without delay", CacheMode::Private, "a"),
    ];
    let found: Vec<_> = std::thread::scope(|scope| {
        let measure = |n: u64, (text, mode, attacker)| {
            scope.spawn(move || (text, advantage(&trials(mode, attacker, 0x746f_6d62 + n))))
        };
        let running: Vec<_> = (0..).zip(arms).map(|(n, arm)| measure(n, arm)).collect();
        running.into_iter().map(|arm| arm.join().expect("measured")).collect()
    });
    for (text, (advantage, error)) in &found {
        let margin = STANDARD_ERRORS * error;
        println!("advantage on a real clock, cache {text}: {advantage:.3} +- {margin:.3} ({TRIALS} trials)");
    }
    let (naive, ours) = found.split_last().expect("four");
    for (text, (advantage, _)) in ours {
        assert!(*advantage < BOUND, "cache {text}: advantage {advantage:.3}");
    }
    assert!(naive.1.0 > TOLD, "the measurement must see what is there to see: {:.3}", naive.1.0);
}

#[test]
fn the_advantage_of_who_knows_is_one_and_of_who_guesses_none() {
    let mut random = Random(7);
    let mut trial = |gap: f64| {
        let asked = random.next() >> 63 == 1;
        Trial { asked, seconds: random.unit() + if asked { -gap } else { 0.0 } }
    };
    let knows: Vec<_> = (0..TRIALS).map(|_| trial(2.0)).collect();
    let half: Vec<_> = (0..TRIALS).map(|_| trial(0.5)).collect();
    let guesses: Vec<_> = (0..TRIALS).map(|_| trial(0.0)).collect();
    assert!(advantage(&knows).0 > 0.99, "{:?}", advantage(&knows));
    assert!((0.4..0.6).contains(&advantage(&half).0), "{:?}", advantage(&half));
    assert!(advantage(&guesses).0 < 0.15, "{:?}", advantage(&guesses));
    assert!((0.02..0.08).contains(&advantage(&guesses).1), "{:?}", advantage(&guesses));
}
