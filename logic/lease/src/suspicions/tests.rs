//! Three nodes that want one claim, on a keeper of leases that gives them their whole time anew
//! whenever it likes, over a network that delays, loses and reorders. Their clocks run at different
//! speeds, and each is stopped now and then, while its clock goes on.

use super::*;
use crate::{Holder, Next, Terms};

const MS: u64 = 1_000_000;
const TERMS: Terms = Terms { ttl_ns: 2_000 * MS, margin_ns: 400 * MS, renew_every_ns: 400 * MS };
const TIMING: SuspicionTiming =
    SuspicionTiming { slow_ns: 200 * MS, pause_ns: 1_000 * MS, longest_pause_ns: 4_000 * MS };
const NODES: usize = 3;
/// Clocks run faster or slower by this many thousandths at the most.
const DRIFT: u64 = 20;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The keeper's record of one node. `life` 0: it has none.
#[derive(Default, Clone, Copy)]
struct Kept {
    life: u64,
    ends: u64,
    /// The suspicion, and whether the life is over by it.
    suspicion: Option<(u64, bool)>,
}

/// The keeper of the leases, and one claim.
#[derive(Default)]
struct Keeper {
    revision: u64,
    kept: [Kept; NODES],
    /// The node that has the claim, and in which life.
    claim: Option<(usize, u64)>,
}

impl Keeper {
    /// A lease has ended, with all that is bound to it.
    fn end(&mut self, node: usize) {
        let life = self.kept[node].life;
        self.kept[node] = Kept::default();
        if self.claim == Some((node, life)) {
            self.claim = None;
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Ask {
    Begin,
    Renew { life: u64 },
    Look { life: u64 },
    Answer { life: u64, suspicion: u64 },
    Suspicion { of: usize },
    TakeOver { of: usize, life: u64, suspicion: u64 },
    End { of: usize, life: u64 },
    Claim { life: u64 },
}

#[derive(Clone, Copy, Debug)]
enum Told {
    Begun { life: u64 },
    Renewed { life: u64, ok: bool },
    Looked { life: u64, ok: bool, suspicion: Option<(u64, bool)> },
    Answered { life: u64, ok: bool },
    Stands { of: usize, life: u64, suspicion: u64 },
    Ended { of: usize, life: u64, ok: bool },
    Claimed { life: u64, ok: bool },
}

/// `sent`: by the clock of the node that asks.
#[derive(Clone, Copy, Debug)]
enum Message {
    Ask(Ask),
    Told(Told),
}

struct Node {
    holder: Holder,
    suspicions: Suspicions,
    /// The holder's lease, and which life that is.
    lease: (u64, u64),
    /// Of which renewal, by when it was sent, was said that the lease lasts, and that no suspicion
    /// stands.
    lasts: u64,
    clear: u64,
    /// Since when a renewal is not answered; 0: none is.
    waits_since: u64,
    claimed_in: u64,
    asks_again: u64,
    stopped_until: u64,
    /// Thousandths by which its clock is faster than it should be, above `-DRIFT`.
    drift: u64,
    offset: u64,
}

impl Node {
    fn clock(&self, now: u64) -> u64 {
        self.offset + now / 1_000 * (1_000 - DRIFT + self.drift)
    }

    fn has_claim(&self, now: u64) -> bool {
        self.claimed_in != 0 && self.claimed_in == self.lease.1 && self.holder.is_held(self.clock(now))
    }

    fn counts(&mut self) {
        let sent = self.lasts.min(self.clear);
        if sent > 0 {
            self.holder.renewed(self.lease.0, sent);
        }
    }
}

/// One world of a seed.
struct World {
    random: Random,
    keeper: Keeper,
    nodes: Vec<Node>,
    /// When it arrives, whose it is, when that node sent what it is about, and what it says.
    wire: Vec<(u64, usize, u64, Message)>,
    slowest: u64,
    loss: u64,
    /// The wait of those who take over, in hundredths of what they should wait.
    wait: u64,
    taken_over: u64,
    both: u64,
}

impl World {
    fn new(seed: u64, wait: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let nodes = (0..NODES)
            .map(|_| Node {
                holder: Holder::new(TERMS),
                suspicions: Suspicions::new(TIMING),
                lease: (0, 0),
                lasts: 0,
                clear: 0,
                waits_since: 0,
                claimed_in: 0,
                asks_again: 0,
                stopped_until: 0,
                drift: random.below(2 * DRIFT + 1),
                offset: random.below(1_000_000) * MS,
            })
            .collect();
        let (slowest, loss) = (1 + random.below(250), random.below(30));
        let (keeper, wire) = (Keeper::default(), Vec::new());
        Self { random, keeper, nodes, wire, slowest, loss, wait, taken_over: 0, both: 0 }
    }

    fn post(&mut self, now: u64, node: usize, sent: u64, message: Message) {
        // For seconds at a time hardly any renewal hears of suspicions, while leases are kept
        // alive.
        let deaf = matches!(message, Message::Ask(Ask::Look { .. })) && now / (2_500 * MS) % 3 == 1;
        if self.random.below(100) >= if deaf { 85 } else { self.loss } {
            // Now and then one is very late.
            let late = if self.random.below(50) == 0 { 3_000 } else { 0 };
            let at = now + (self.random.below(self.slowest) + late) * MS;
            self.wire.push((at, node, sent, message));
        }
    }

    fn ask(&mut self, now: u64, node: usize, ask: Ask) {
        let sent = self.nodes[node].clock(now);
        self.post(now, node, sent, Message::Ask(ask));
    }

    /// The keeper's answer.
    fn keep(&mut self, node: usize, ask: Ask, now: u64) -> Option<Told> {
        let keeper = &mut self.keeper;
        keeper.revision += 1;
        let revision = keeper.revision;
        let there = keeper.kept[node];
        Some(match ask {
            Ask::Begin => {
                if there.life != 0 {
                    return None;
                }
                keeper.kept[node] = Kept { life: revision, ends: now + TERMS.ttl_ns, suspicion: None };
                Told::Begun { life: revision }
            }
            Ask::Renew { life } => {
                let ok = there.life == life;
                if ok {
                    keeper.kept[node].ends = now + TERMS.ttl_ns;
                }
                Told::Renewed { life, ok }
            }
            Ask::Look { life } => Told::Looked { life, ok: there.life == life, suspicion: there.suspicion },
            Ask::Answer { life, suspicion } => {
                let ok = there.life == life && there.suspicion == Some((suspicion, false));
                if ok {
                    keeper.kept[node].suspicion = None;
                }
                Told::Answered { life, ok }
            }
            Ask::Suspicion { of } => {
                let kept = &mut keeper.kept[of];
                if kept.life == 0 {
                    return None;
                }
                let suspicion = kept.suspicion.get_or_insert((revision, false)).0;
                Told::Stands { of, life: kept.life, suspicion }
            }
            Ask::TakeOver { of, life, suspicion } => {
                let kept = &mut keeper.kept[of];
                let ok = kept.life == life && kept.suspicion == Some((suspicion, false));
                if ok {
                    kept.suspicion = Some((revision, true));
                }
                Told::Ended { of, life, ok }
            }
            Ask::End { of, life } => {
                if keeper.kept[of].life == life {
                    keeper.end(of);
                }
                return None;
            }
            Ask::Claim { life } => {
                let ok = there.life == life && (keeper.claim.is_none() || keeper.claim == Some((node, life)));
                if ok {
                    keeper.claim = Some((node, life));
                }
                Told::Claimed { life, ok }
            }
        })
    }

    fn hear(&mut self, index: usize, sent: u64, told: Told, now: u64) {
        let clock = self.nodes[index].clock(now);
        let node = &mut self.nodes[index];
        match told {
            Told::Begun { life } if life > node.lease.1 => {
                let lease = node.holder.granted(sent, TERMS.ttl_ns);
                (node.lease, node.lasts, node.clear) = ((lease, life), sent, 0);
            }
            Told::Renewed { life, ok } if life == node.lease.1 => {
                if ok {
                    node.lasts = node.lasts.max(sent);
                    node.counts();
                } else {
                    node.holder.lost(node.lease.0);
                }
            }
            Told::Looked { life, ok, suspicion } if life == node.lease.1 => match (ok, suspicion) {
                (true, None) => {
                    (node.clear, node.waits_since) = (node.clear.max(sent), 0);
                    node.counts();
                }
                (true, Some((suspicion, false))) => {
                    node.waits_since = 0;
                    self.ask(now, index, Ask::Answer { life, suspicion });
                }
                _ => {
                    node.holder.lost(node.lease.0);
                    self.ask(now, index, Ask::End { of: index, life });
                }
            },
            Told::Answered { life, ok: true } if life == node.lease.1 => {
                node.clear = node.clear.max(sent);
                node.counts();
            }
            Told::Stands { of, life, suspicion } => {
                let wait = TERMS.ttl_ns / 100 * self.wait;
                node.suspicions.stands(&of.to_string(), life, suspicion, wait, clock);
            }
            Told::Ended { of, life, ok: true } => {
                self.taken_over += 1;
                self.ask(now, index, Ask::End { of, life });
            }
            Told::Claimed { life, ok } if life == node.lease.1 => {
                node.claimed_in = if ok { life } else { 0 };
            }
            _ => {}
        }
    }

    fn act(&mut self, index: usize, now: u64) {
        let clock = self.nodes[index].clock(now);
        let node = &mut self.nodes[index];
        if node.waits_since > 0 && clock >= node.suspicions.due(node.waits_since) {
            node.suspicions.suspected_all(clock);
            for of in (0..NODES).filter(|of| *of != index) {
                self.ask(now, index, Ask::Suspicion { of });
            }
        }
        let node = &mut self.nodes[index];
        if node.holder.is_held(clock) {
            for (of, suspicion) in node.suspicions.ripe(clock) {
                self.nodes[index].suspicions.over(&of);
                let of = of.parse().unwrap();
                self.ask(
                    now,
                    index,
                    Ask::TakeOver { of, life: suspicion.life, suspicion: suspicion.revision },
                );
            }
        }
        let node = &mut self.nodes[index];
        if clock < node.asks_again {
            return;
        }
        node.asks_again = clock + 100 * MS;
        let (life, held) = (node.lease.1, node.holder.is_held(clock));
        match node.holder.next(clock) {
            Next::Grant => self.ask(now, index, Ask::Begin),
            Next::Renew => {
                if node.waits_since == 0 {
                    node.waits_since = clock;
                }
                self.ask(now, index, Ask::Renew { life });
                self.ask(now, index, Ask::Look { life });
            }
            Next::Wait(_) => {}
        }
        if held && self.nodes[index].claimed_in != life {
            self.ask(now, index, Ask::Claim { life });
        }
    }

    fn tick(&mut self, tick: u64) {
        let now = tick * MS;
        // It elects another leader: nothing ends for now.
        if self.random.below(300) == 0 {
            for kept in self.keeper.kept.iter_mut().filter(|kept| kept.life != 0) {
                kept.ends = kept.ends.max(now + TERMS.ttl_ns);
            }
        }
        for node in 0..NODES {
            if self.keeper.kept[node].life != 0 && self.keeper.kept[node].ends <= now {
                self.keeper.end(node);
            }
            if self.random.below(9_000) == 0 {
                self.nodes[node].stopped_until = now + self.random.below(5_000) * MS;
            }
        }
        let nodes = &self.nodes;
        let arrived = self.wire.extract_if(.., |(at, node, _, message)| {
            *at <= now && (matches!(message, Message::Ask(_)) || nodes[*node].stopped_until <= now)
        });
        for (_, node, sent, message) in arrived.collect::<Vec<_>>() {
            match message {
                Message::Ask(ask) => {
                    if let Some(told) = self.keep(node, ask, now) {
                        self.post(now, node, sent, Message::Told(told));
                    }
                }
                Message::Told(told) => self.hear(node, sent, told, now),
            }
        }
        for node in 0..NODES {
            if self.nodes[node].stopped_until <= now {
                self.act(node, now);
            }
        }
        let holders = self.nodes.iter().filter(|node| node.has_claim(now)).count();
        self.both += u64::from(holders > 1);
    }
}

/// How often one took over, for how many milliseconds two had the claim, and for how many there was
/// one.
fn run(seed: u64, wait: u64) -> (u64, u64, u64) {
    let mut world = World::new(seed, wait);
    let mut held = 0;
    for tick in 1..60_000 {
        world.tick(tick);
        held += u64::from(world.nodes.iter().any(|node| node.has_claim(tick * MS)));
    }
    (world.taken_over, world.both, held)
}

#[test]
fn no_two_ever_have_the_claim_whatever_clocks_and_the_network_do() {
    let (mut taken_over, mut held) = (0, 0);
    for seed in 0..60 {
        let (taken, both, one) = run(seed, 100);
        assert_eq!(both, 0, "seed {seed}: two had the claim for so many ms");
        (taken_over, held) = (taken_over + taken, held + one);
    }
    assert!(
        taken_over > 100 && held > 1_000_000,
        "the runs show nothing: {taken_over} times, held {held} ms"
    );
}

/// The simulation is good for something: it finds those who wait too short.
#[test]
fn who_waits_shorter_than_a_holder_believes_is_found_out() {
    assert!((0..60).any(|seed| run(seed, 60).1 > 0), "nobody was found out");
}

#[test]
fn a_suspicion_is_ripe_a_whole_lease_after_one_was_told_of_it() {
    let mut suspicions = Suspicions::new(TIMING);
    assert_eq!(suspicions.next_ripe(), None);
    suspicions.stands("a", 7, 20, TERMS.ttl_ns, 1_000 * MS);
    // To hear of it again makes it neither older nor younger.
    suspicions.stands("a", 7, 20, TERMS.ttl_ns, 1_500 * MS);
    assert_eq!(suspicions.next_ripe(), Some(3_000 * MS));
    assert_eq!(suspicions.ripe(2_999 * MS), []);
    assert_eq!(suspicions.ripe(3_000 * MS)[0].1, Suspicion { life: 7, revision: 20, ripe_at: 3_000 * MS });
    // Another suspicion, of the same life or of another, begins anew.
    suspicions.stands("a", 7, 25, TERMS.ttl_ns, 3_000 * MS);
    assert_eq!(suspicions.ripe(3_000 * MS), []);
    suspicions.stands("a", 9, 25, TERMS.ttl_ns, 4_000 * MS);
    assert_eq!(suspicions.next_ripe(), Some(6_000 * MS));
    suspicions.over("a");
    assert_eq!(suspicions.next_ripe(), None);
}

/// The margin is what is left for stopping, less what clocks differ by: of 2 s and 400 ms more than
/// 300 ms, with clocks that differ by a fiftieth each.
#[test]
fn the_fence_has_closed_long_enough_before_with_clocks_that_drift() {
    let valid = TERMS.ttl_ns - TERMS.margin_ns;
    let (longest, shortest) = (valid * 1_000 / (1_000 - DRIFT), TERMS.ttl_ns * 1_000 / (1_000 + DRIFT));
    assert!(shortest > longest + 300 * MS, "{longest} {shortest}");
}

#[test]
fn who_is_answered_slowly_again_and_again_suspects_ever_less() {
    let mut suspicions = Suspicions::new(TIMING);
    let mut now = 10_000 * MS;
    assert_eq!(suspicions.due(now), now + 200 * MS);
    let mut pauses = Vec::new();
    for _ in 0..4 {
        now = suspicions.due(now);
        suspicions.suspected_all(now);
        pauses.push((suspicions.due(now) - now) / MS);
    }
    assert_eq!(pauses, [1_000, 2_000, 4_000, 4_000]);
    // After as long a quiet time it is as at first: another leader may die soon.
    now = suspicions.due(now) + 4_001 * MS;
    suspicions.suspected_all(now);
    assert_eq!(suspicions.due(now) - now, 1_000 * MS);
}
