//! A holder against a grantor, over a network that delays, loses and reorders, on a clock that is
//! simulated.

use super::*;

const MS: u64 = 1_000_000;
const TERMS: Terms = Terms { ttl_ns: 2_000 * MS, margin_ns: 400 * MS, renew_every_ns: 500 * MS };

/// The grantor: knows when its lease ends, by when it heard.
#[derive(Default)]
struct Grantor {
    lease: u64,
    ends: u64,
}

impl Grantor {
    fn has_ended(&self, now: u64) -> bool {
        now >= self.ends
    }
}

#[derive(Clone, Copy, Debug)]
enum Message {
    Grant { sent: u64 },
    Granted { sent: u64, lease: u64 },
    Renew { sent: u64, lease: u64 },
    Renewed { sent: u64, lease: u64, ok: bool },
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Runs one network for a simulated minute; returns how many milliseconds it was held, and how
/// often it was lost.
fn run(seed: u64) -> (u64, u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (slowest, loss, cut) = (1 + random.below(3_000), random.below(60), random.below(3) == 0);
    let mut holder = Holder::new(TERMS);
    let mut grantor = Grantor::default();
    let mut wire: Vec<(u64, Message)> = Vec::new();
    let (mut held_ms, mut losses) = (0, 0);
    // What the holder calls its lease, and what the grantor does.
    let mut names = (0, 0);
    let mut asked = 0;
    for tick in 0..60_000_u64 {
        let now = tick * MS;
        let is_cut = cut && (20_000..30_000).contains(&tick);
        let post = |random: &mut Random, wire: &mut Vec<(u64, Message)>, message| {
            if random.below(100) >= loss && !is_cut {
                wire.push((now + random.below(slowest) * MS, message));
            }
        };
        for (_, message) in wire.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>() {
            match message {
                Message::Grant { sent } => {
                    // A second request for one that lives gives another, after the first has ended.
                    if grantor.has_ended(now) {
                        grantor = Grantor { lease: grantor.lease + 1, ends: now + TERMS.ttl_ns };
                        post(&mut random, &mut wire, Message::Granted { sent, lease: grantor.lease });
                    }
                }
                Message::Granted { sent, lease } => {
                    if names.1 < lease {
                        names = (holder.granted(sent, TERMS.ttl_ns), lease);
                        holder.renewed(names.0, sent);
                    }
                }
                Message::Renew { sent, lease } => {
                    let ok = lease == grantor.lease && !grantor.has_ended(now);
                    if ok {
                        grantor.ends = now + TERMS.ttl_ns;
                    }
                    post(&mut random, &mut wire, Message::Renewed { sent, lease, ok });
                }
                Message::Renewed { sent, lease, ok } if lease == names.1 => {
                    if ok {
                        holder.renewed(names.0, sent);
                    } else {
                        losses += 1;
                        holder.lost(names.0);
                    }
                }
                Message::Renewed { .. } => {}
            }
        }
        if now >= asked {
            match holder.next(now) {
                Next::Grant => post(&mut random, &mut wire, Message::Grant { sent: now }),
                Next::Renew => post(&mut random, &mut wire, Message::Renew { sent: now, lease: names.1 }),
                Next::Wait(_) => {}
            }
            asked = now + 100 * MS;
        }
        if holder.is_held(now) {
            held_ms += 1;
            assert!(!grantor.has_ended(now), "seed {seed}, {tick} ms: both believe that it is theirs");
            assert!(
                grantor.ends - now > TERMS.margin_ns / 2,
                "seed {seed}, {tick} ms: no time is left to stop"
            );
        }
    }
    (held_ms, losses)
}

#[test]
fn nobody_holds_what_has_ended_whatever_the_network_does() {
    let (mut held, mut lost) = (0, 0);
    for seed in 0..80 {
        let (held_ms, losses) = run(seed);
        held += held_ms;
        lost += losses;
    }
    assert!(held > 300_000 && lost > 20, "the runs show nothing: held {held} ms, lost {lost} times");
}

#[test]
fn a_good_network_holds_it_for_good() {
    let mut holder = Holder::new(TERMS);
    assert_eq!((holder.next(0), holder.is_held(0)), (Next::Grant, false));
    let lease = holder.granted(10 * MS, TERMS.ttl_ns);
    assert!(!holder.is_held(11 * MS), "others do not see it yet");
    holder.renewed(lease, 10 * MS);
    assert!(holder.is_held(1_609 * MS) && !holder.is_held(1_610 * MS));
    assert_eq!(holder.next(20 * MS), Next::Wait(510 * MS));
    assert_eq!(holder.next(510 * MS), Next::Renew);
    holder.renewed(lease, 510 * MS);
    assert_eq!(holder.held_until(), 2_110 * MS);
    // An answer to an earlier renewal that comes later takes nothing away.
    holder.renewed(lease, 300 * MS);
    assert_eq!(holder.held_until(), 2_110 * MS);
}

#[test]
fn what_is_lost_is_lost_at_once_and_news_of_it_does_not_bring_it_back() {
    let mut holder = Holder::new(TERMS);
    let first = holder.granted(0, TERMS.ttl_ns);
    holder.renewed(first, 0);
    holder.lost(first);
    assert_eq!((holder.held_until(), holder.next(1)), (0, Next::Grant));
    holder.renewed(first, 500 * MS);
    assert!(!holder.is_held(501 * MS));
    let second = holder.granted(600 * MS, TERMS.ttl_ns);
    holder.renewed(second, 600 * MS);
    holder.lost(first);
    holder.renewed(first, 9_000 * MS);
    assert_eq!(holder.held_until(), 2_200 * MS);
}
