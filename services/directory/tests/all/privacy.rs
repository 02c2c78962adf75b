//! How well one domain can tell whether another asked for a name: measured, for each kind of cache.
//!
//! In each trial a victim asks for a fresh name, or does not, by the fall of a coin. Then the
//! attacker asks for it, and again, and judges by all that it sees: how long the first answer took,
//! how long the second, and the TTLs. The best threshold for each of these is learnt on one half of
//! the trials and tried on the other; the *advantage* is how much better than guessing it is:
//! |P(correct) - 1/2| * 2. Time is simulated: the upstream's latency is drawn from a distribution
//! with jitter and a long tail, timers are late by a random amount, and the seed is fixed.

use crate::robust::{FakeLoop, consumer, directory, mute, to};
use crate::stage::settings;
use crate::upstream::{bytes, good};
use hickory_proto::op::Message;
use session::{LinkId, Readiness, Service};
use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use wire::directory::{CacheMode, file};

/// Trials of one measurement.
const TRIALS: usize = 3000;
/// An advantage that chance alone does not reach: five standard deviations of 1,500 judgements of a
/// coin, for each of four observations.
const NOISE: f64 = 0.13;
/// A fixed seed: the test gives the same numbers each time.
const SEED: u64 = 0x746f_6d62_6f6c_6f21;

/// xorshift64*.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Between 0 and 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The latency of an upstream: 2 ms, jitter of 1 ms, and one in eight much longer.
    fn latency(&mut self) -> Duration {
        let tail = if self.next().is_multiple_of(8) { -20.0 * self.unit().max(1e-9).ln() } else { 0.0 };
        Duration::from_secs_f64((2.0 + self.unit() + tail) / 1000.0)
    }

    /// By how much a timer is late.
    fn lateness(&mut self) -> Duration {
        Duration::from_secs_f64((20.0 + 60.0 * self.unit()) / 1e6)
    }
}

/// A service, its upstream, and simulated time.
struct World {
    service: Box<dyn Service>,
    ctx: FakeLoop,
    upstream: UdpSocket,
    random: Random,
    replies: VecDeque<(Instant, Vec<u8>, SocketAddr)>,
    tag: u64,
}

/// A domain's view of one question.
#[derive(Debug, Clone, Copy)]
struct Seen {
    latency: Duration,
    ttl: f64,
}

impl World {
    fn new(mode: CacheMode) -> Self {
        let (upstream, address) = mute();
        let mut set = settings(&[address]);
        set.timeout_ms = 2000;
        set.cache.mode = mode;
        set.cache.share = vec!["victim".into(), "attacker".into()];
        set.cache.entries = 100_000;
        let (mut service, mut ctx) = (directory(&set), FakeLoop::new());
        service.attach(&mut ctx, LinkId(1), &consumer("victim"));
        service.attach(&mut ctx, LinkId(2), &consumer("attacker"));
        Self { service, ctx, upstream, random: Random(SEED), replies: VecDeque::new(), tag: 0 }
    }

    /// The upstream hears what was sent, and will answer after its latency.
    fn upstream_hears(&mut self) {
        let mut packet = [0; 1500];
        while let Ok((came, from)) = self.upstream.recv_from(&mut packet) {
            let query = Message::from_vec(&packet[..came]).expect("a query");
            let due = self.ctx.now + self.random.latency();
            self.replies.push_back((due, bytes(&good(&query)), from));
        }
    }

    /// Lets time pass until `tag` is answered.
    fn run_until(&mut self, tag: u64) -> Vec<u8> {
        loop {
            if let Some(place) = self.ctx.answers.iter().position(|(to, _)| to.tag == tag) {
                return self.ctx.answers.swap_remove(place).1.expect("an answer");
            }
            self.upstream_hears();
            let next_reply = self.replies.iter().map(|reply| reply.0).min();
            let timer = self.service.deadline();
            match (next_reply, timer) {
                (Some(reply), timer) if timer.is_none_or(|at| reply <= at) => self.deliver(reply),
                (_, Some(at)) => {
                    self.ctx.now = self.ctx.now.max(at) + self.random.lateness();
                    self.service.expired(&mut self.ctx);
                }
                _ => panic!("nothing will ever happen"),
            }
        }
    }

    fn deliver(&mut self, at: Instant) {
        let place = self.replies.iter().position(|reply| reply.0 == at).expect("it is there");
        let (_, packet, asker) = self.replies.remove(place).expect("it is there");
        // A socket's readiness wakes the loop as late as a timer does.
        self.ctx.now = self.ctx.now.max(at) + self.random.lateness();
        self.upstream.send_to(&packet, asker).expect("sent");
        for token in self.ctx.watched.keys().copied().collect::<Vec<_>>() {
            self.service.ready(&mut self.ctx, token, Readiness { readable: true, ..Readiness::default() });
        }
    }

    fn send(&mut self, link: u64, name: &str) -> u64 {
        self.tag += 1;
        let line = format!("A {name}");
        let to = to(link, 0, self.tag, file::QUERY, self.ctx.now);
        self.service.request(&mut self.ctx, to, line.as_bytes());
        self.tag
    }

    fn ask(&mut self, link: u64, name: &str) -> Seen {
        let start = self.ctx.now;
        let tag = self.send(link, name);
        let answer = String::from_utf8(self.run_until(tag)).expect("text");
        let ttl = answer.split(' ').nth(1).and_then(|ttl| ttl.parse().ok()).expect("a TTL");
        Seen { latency: self.ctx.now.saturating_duration_since(start), ttl }
    }
}

/// An attacker's notes of one trial, and the truth.
struct Trial {
    asked: bool,
    seen: [f64; 4],
}

/// How the victim and the attacker meet.
#[derive(Clone, Copy, PartialEq)]
enum Meeting {
    /// The victim's answer has come, some seconds ago.
    Later,
    /// The victim still waits for its answer.
    AtOnce,
}

fn trials(mode: CacheMode, attacker: u64, meeting: Meeting) -> Vec<Trial> {
    let mut world = World::new(mode);
    (0..TRIALS)
        .map(|n| {
            let name = format!("secret{n}.example");
            let asked = world.random.next() >> 63 == 1;
            let mut pending = None;
            if asked && meeting == Meeting::Later {
                world.ask(1, &name);
            } else if asked {
                pending = Some(world.send(1, &name));
                world.upstream_hears();
            }
            world.ctx.now += match meeting {
                Meeting::Later => Duration::from_secs(world.random.next() % 60),
                Meeting::AtOnce => Duration::from_micros(world.random.next() % 1000),
            };
            let (first, second) = (world.ask(attacker, &name), world.ask(attacker, &name));
            if let Some(tag) = pending {
                world.run_until(tag);
            }
            let seen = [first.latency.as_secs_f64(), second.latency.as_secs_f64(), first.ttl, second.ttl];
            Trial { asked, seen }
        })
        .collect()
}

/// Share of right judgements where everything `below` the threshold (or not below) is taken for
/// "asked".
fn correct(trials: &[Trial], what: usize, threshold: f64, below: bool) -> f64 {
    let right = trials.iter().filter(|trial| ((trial.seen[what] < threshold) == below) == trial.asked);
    right.count() as f64 / trials.len() as f64
}

/// The advantage of the best of the four observations, each judged by the best threshold.
fn advantage(trials: &[Trial]) -> f64 {
    let (learn, check) = trials.split_at(trials.len() / 2);
    let of = |what: usize| {
        let mut thresholds: Vec<f64> = learn.iter().map(|trial| trial.seen[what]).collect();
        thresholds.sort_by(f64::total_cmp);
        let rules = thresholds.iter().step_by(10).flat_map(|&at| [(at, true), (at, false)]);
        let best =
            rules.max_by(|a, b| correct(learn, what, a.0, a.1).total_cmp(&correct(learn, what, b.0, b.1)));
        let (threshold, below) = best.expect("there are trials");
        (correct(check, what, threshold, below) - 0.5).abs() * 2.0
    };
    (0..4).map(of).fold(0.0, f64::max)
}

#[test]
fn only_a_cache_shared_without_delay_tells_what_another_domain_asked() {
    const ATTACKER: u64 = 2;
    for meeting in [Meeting::Later, Meeting::AtOnce] {
        let when = if meeting == Meeting::Later { "afterwards" } else { "meanwhile" };
        for (mode, text) in [
            (CacheMode::Private, "private"),
            (CacheMode::None, "none"),
            (CacheMode::Shared, "shared, delayed hits"),
        ] {
            let found = advantage(&trials(mode, ATTACKER, meeting));
            println!("advantage, cache {text}, asked {when}: {found:.3}");
            assert!(found < NOISE, "cache {text}, asked {when}: advantage {found:.3}");
        }
        // The contrast: an attacker that shares one plain cache with the victim, as a usual
        // resolver's users do.
        let naive = advantage(&trials(CacheMode::Private, 1, meeting));
        println!("advantage, cache shared without delay, asked {when}: {naive:.3}");
        let expected = if meeting == Meeting::Later { 0.95 } else { 0.2 };
        assert!(naive > expected, "the measurement must see what is there to see: {naive:.3}");
    }
}

#[test]
fn a_shared_answer_is_fetched_once_and_then_a_hit() {
    let mut world = World::new(CacheMode::Shared);
    let first = world.ask(1, "once.example");
    let delayed = world.ask(2, "once.example");
    let gap = delayed.latency.abs_diff(first.latency);
    assert!(gap < Duration::from_micros(200), "held back as long as the fetch took, to {gap:?}");
    assert_eq!(world.ask(2, "once.example").latency, Duration::ZERO, "then it is the domain's own");
    assert!(world.replies.is_empty(), "the upstream was asked once");
    let state = world.service.state();
    let delayed: Vec<_> =
        state["domains"].as_array().expect("a list").iter().map(|d| d["delayed"].as_u64()).collect();
    assert_eq!(delayed.iter().flatten().sum::<u64>(), 1, "the administrator sees it");
    assert!(world.service.state_for(LinkId(2)).get("delayed").is_none(), "the domain does not");
}

#[test]
fn domains_that_are_not_listed_share_nothing() {
    let mut world = World::new(CacheMode::Shared);
    world.service.attach(&mut world.ctx, LinkId(3), &consumer("stranger"));
    world.ask(1, "private.example");
    let before = world.service.state()["upstreams"][0]["answers"].as_u64();
    world.ask(3, "private.example");
    assert_eq!(world.service.state()["upstreams"][0]["answers"].as_u64(), before.map(|n| n + 1));
}

#[test]
fn a_question_that_was_given_up_is_still_fetched_for_who_follows() {
    let mut world = World::new(CacheMode::Shared);
    let mine = world.send(1, "followed.example");
    let theirs = world.send(2, "followed.example");
    world.service.cancel(&mut world.ctx, LinkId(1), mine);
    world.service.detach(&mut world.ctx, LinkId(1));
    let answer = world.run_until(theirs);
    assert!(answer.starts_with(b"followed.example. 300 A"));
    assert_eq!(world.service.state()["upstreams"][0]["answers"].as_u64(), Some(1));
}
