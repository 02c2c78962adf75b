//! Classes: who floods delays nobody of another class, and what nobody uses is not lost. The line
//! between the two sides carries so much in a ms, and what does not fit waits in front of it.

use super::{Event, Link, Packet, config, connect};
use link::{Sent, Share, Transport};
use std::collections::VecDeque;
use wire::link::Pair;

/// The bytes that the line carries in a ms.
const LINE: usize = 1_000;
/// The most bytes that wait in front of it: a socket's buffer.
const BUFFER: usize = 64 << 10;
const GOLD: u32 = 16;
const FLOOD: u32 = 17;
const MESSAGE: usize = 500;
/// Between two messages of gold, in ms.
const EVERY_MS: u64 = 10;
const MS: u64 = 5_000;

fn wide(side: u8) -> Link {
    let mut config = config(side, 1);
    (config.hello.window_bytes, config.hello.message_bytes) = (512 << 10, 32 << 10);
    config.hello.silence_ms = 60_000;
    config.queue_bytes = 512 << 10;
    Link::new(config).expect("a configuration")
}

/// The outcome of a run: how long messages of gold took at most, how many arrived, bytes of the
/// flood.
#[derive(Debug, Default)]
struct Run {
    longest_ms: u64,
    arrived: u64,
    flooded: usize,
}

struct World {
    from: Link,
    to: Link,
    gold: Pair,
    flood: Pair,
    /// Packets, and what of the first has gone over the line.
    line: VecDeque<Vec<u8>>,
    gone: usize,
}

impl World {
    fn new() -> Self {
        let (mut from, mut to) = (wide(0), wide(1));
        connect(&mut from, &mut to);
        let (gold, flood) = (from.open(b"gold").expect("room"), from.open(b"flood").expect("room"));
        Self { from, to, gold, flood, line: VecDeque::new(), gone: 0 }
    }

    fn classes(&mut self) {
        let share = |rate_bytes, precedence| Share {
            rate_bytes,
            ceiling_bytes: 900_000,
            burst_bytes: 2_000,
            precedence,
        };
        self.from.set_whole(Some(900_000));
        assert!(self.from.set_share(GOLD, Some(share(100_000, 0))));
        assert!(self.from.set_share(FLOOD, Some(share(100_000, 2))));
        self.from.classify(self.gold, GOLD);
        self.from.classify(self.flood, FLOOD);
    }

    fn waits(&self) -> usize {
        self.line.iter().map(Vec::len).sum::<usize>() - self.gone
    }

    fn carry(&mut self, now_ms: u64) -> Vec<Event> {
        while self.waits() < BUFFER {
            let mut bytes = Vec::new();
            if !self.from.poll_transmit(now_ms, 32 << 10, &mut bytes) {
                break;
            }
            self.line.push_back(bytes);
        }
        let mut left = LINE;
        let mut events = Vec::new();
        while let Some(first) = self.line.front() {
            let now = left.min(first.len() - self.gone);
            (self.gone, left) = (self.gone + now, left - now);
            if self.gone < first.len() {
                break;
            }
            let (header, body) = Packet::split(first).expect("what was sent can be read");
            events.extend(self.to.receive(now_ms, &header, body));
            self.line.pop_front();
            self.gone = 0;
        }
        for event in &events {
            if let Event::Messages { pair, messages } = event {
                self.to.consumed_all(*pair, messages.count(), messages.bytes());
            }
        }
        self.to.tick(now_ms);
        let mut back = Vec::new();
        while self.to.poll_transmit(now_ms, 32 << 10, &mut back) {
            let (header, body) = Packet::split(&back).expect("what was sent can be read");
            self.from.receive(now_ms, &header, body);
            back.clear();
        }
        self.from.tick(now_ms);
        events
    }

    fn run(&mut self, until_ms: u64) -> Run {
        let mut run = Run::default();
        for now_ms in until_ms - MS..until_ms {
            if now_ms % EVERY_MS == 0 {
                let mut message = vec![0; MESSAGE];
                message[..8].copy_from_slice(&now_ms.to_le_bytes());
                assert_eq!(self.from.send(self.gold, &message).expect("it is open"), Sent::Queued);
            }
            while self.from.send(self.flood, &[7; 8_000]).expect("it is open") == Sent::Queued {}
            for event in self.carry(now_ms) {
                match event {
                    Event::Messages { pair, messages } if pair == self.gold => {
                        for bytes in &messages {
                            let sent = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
                            run.longest_ms = run.longest_ms.max(now_ms - sent);
                            run.arrived += 1;
                        }
                    }
                    Event::Messages { messages, .. } => run.flooded += messages.bytes(),
                    _ => {}
                }
            }
        }
        run
    }
}

#[test]
fn who_floods_delays_nobody_of_another_class_and_has_what_is_left() {
    let mut plain = World::new();
    let without = plain.run(MS);
    let mut classed = World::new();
    classed.classes();
    let with = classed.run(MS);
    assert!(without.longest_ms > 50, "the flood is none: {without:?}");
    assert!(with.longest_ms <= 20 && with.arrived >= MS / EVERY_MS - 3, "{with:?}");
    // 900 bytes a ms, but for gold's.
    assert!(with.flooded > 700 * MS as usize, "{with:?}");
}

#[test]
fn another_rate_is_in_force_while_pairs_are_open_and_a_new_connection_keeps_it() {
    let mut world = World::new();
    world.classes();
    world.run(MS);
    let slow = Share { rate_bytes: 50_000, ceiling_bytes: 50_000, burst_bytes: 2_000, precedence: 2 };
    assert!(world.from.set_share(FLOOD, Some(slow)));
    // What was on its way has arrived after a run of the old length.
    world.run(2 * MS);
    let found = world.run(3 * MS).flooded;
    let wanted = 50 * MS as usize;
    assert!(found.abs_diff(wanted) * 20 < wanted, "{found} of {wanted}");
    world.from.disconnected();
    world.to.disconnected();
    (world.gone, world.line) = (0, VecDeque::new());
    world.from.connected(3 * MS, Transport::Stream).expect("a stream");
    world.to.connected(3 * MS, Transport::Stream).expect("a stream");
    world.run(4 * MS);
    let found = world.run(5 * MS).flooded;
    assert!(found.abs_diff(wanted) * 20 < wanted, "{found} of {wanted}");
    // Whose class is gone is of the rest: a hundredth, and what is left.
    assert!(world.from.set_share(FLOOD, None));
    let run = world.run(6 * MS);
    assert!(run.flooded > 700 * MS as usize && run.longest_ms <= 20, "{run:?}");
}
