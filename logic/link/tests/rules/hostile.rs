//! A peer that the transport has let in, and that keeps to no rule.

use crate::{WINDOW, config, joined};
use link::{Broken, Closed, Event, Link, Over, Sent, Transport};
use proptest::prelude::*;
use wire::link::{BadPacket, Frame, Hello, Packet, Pair, Ranges, packet, record, record_header};

const THEIRS: Pair = Pair { slot: 0, generation: 1 };
const OURS: Pair = Pair { slot: 1, generation: 1 };

fn say(link: &mut Link, frames: &[Frame<'_>]) -> Vec<Event> {
    let mut body = Vec::new();
    frames.iter().for_each(|frame| frame.encode(&mut body));
    link.receive(0, &Packet::plain(packet::FRAMES, body.len(), 1, 1), &body)
}

fn record_of(kind: u32, length: usize) -> Vec<u8> {
    [&record_header(kind, length)[..], &vec![0; length]].concat()
}

/// A link that a hostile peer, of side 0, speaks with. It has a pair of its own, and one of ours is
/// open.
fn victim() -> Link {
    let (_, mut link) = joined();
    assert_eq!(link.open(b"ours"), Ok(OURS));
    let opening = record_of(record::OPEN, 4);
    let events = say(&mut link, &[Frame::Data { pair: THEIRS, offset: 0, bytes: &opening }]);
    assert_eq!(events, [Event::Opened { pair: THEIRS, content: vec![0; 4] }]);
    let mut packet = Vec::new();
    while link.poll_transmit(0, 100_000, &mut packet) {}
    link
}

fn state(pair: Pair, received: u64, credit: u64, closed: bool) -> Frame<'static> {
    Frame::State { pair, received, credit, ranges: Ranges::default(), closed }
}

#[test]
fn each_rule_that_is_broken_ends_the_link_and_is_named() {
    let long = record_of(record::MESSAGE, 2001);
    let open_again = record_of(record::OPEN, 1);
    let strange = record_header(9, 0);
    let message = record_of(record::MESSAGE, 1);
    let full = [7; 4096];
    let new = Pair { slot: 2, generation: 5 };
    let data = |pair, offset, bytes| Frame::Data { pair, offset, bytes };
    let close = |pair, offset| Frame::Close { pair, offset, reason: 0 };
    let bytes = long.len();
    let cases: Vec<(Vec<Frame<'_>>, Broken)> = vec![
        (vec![data(THEIRS, 13, b"x")], Broken::Gap { pair: THEIRS, offset: 13, received: 12 }),
        (vec![data(THEIRS, 13, &full)], Broken::Window { pair: THEIRS, end: 4109, credit: 4108 }),
        (vec![data(THEIRS, 12, &long)], Broken::Record { pair: THEIRS, kind: 2, bytes: bytes - 8 }),
        (vec![data(THEIRS, 12, &open_again)], Broken::Record { pair: THEIRS, kind: 1, bytes: 1 }),
        (vec![data(THEIRS, 12, &strange)], Broken::Bad(BadPacket::Kind { what: "a record", found: 9 })),
        (vec![data(new, 0, &message)], Broken::Record { pair: new, kind: 2, bytes: 1 }),
        (vec![close(THEIRS, 11)], Broken::Close { pair: THEIRS, offset: 11 }),
        (vec![close(THEIRS, 12), close(THEIRS, 13)], Broken::Close { pair: THEIRS, offset: 13 }),
        (vec![close(THEIRS, 12), data(THEIRS, 12, b"x")], Broken::Close { pair: THEIRS, offset: 12 }),
        (vec![close(THEIRS, 20)], Broken::Gap { pair: THEIRS, offset: 20, received: 12 }),
        (vec![close(THEIRS, 9999)], Broken::Window { pair: THEIRS, end: 9999, credit: 4108 }),
        (vec![state(OURS, 13, 0, false)], Broken::State { pair: OURS, received: 13, sent: 12 }),
        (vec![state(OURS, 12, 0, true)], Broken::State { pair: OURS, received: 12, sent: 12 }),
        (vec![state(OURS, 12, 4109, false)], Broken::Credit { pair: OURS, credit: 4109 }),
        (vec![Frame::Gone(OURS)], Broken::Gone(OURS)),
        (vec![Frame::Gone(new)], Broken::Never(new)),
        (vec![state(new, 0, 0, false)], Broken::Never(new)),
        (
            vec![data(Pair { slot: 1, generation: 2 }, 0, b"x")],
            Broken::Never(Pair { slot: 1, generation: 2 }),
        ),
        (vec![data(Pair { slot: 6, generation: 1 }, 0, b"x")], Broken::Slot(Pair { slot: 6, generation: 1 })),
        (
            vec![data(Pair { slot: 0, generation: 2 }, 0, b"x")],
            Broken::Reopened(Pair { slot: 0, generation: 2 }),
        ),
    ];
    for (frames, broken) in cases {
        let mut link = victim();
        let events = say(&mut link, &frames);
        assert_eq!(events.last(), Some(&Event::Over(Over::Broken(broken))), "{frames:?}");
        assert_eq!(link.held(), link::Held::default(), "nothing is held for it any more");
        assert_eq!(say(&mut link, &frames), []);
        let mut last = Vec::new();
        assert!(link.poll_transmit(0, 2000, &mut last), "it is told why");
        assert_eq!(Packet::split(&last).unwrap().0.kind, packet::REFUSAL);
        assert!(!link.poll_transmit(0, 2000, &mut last));
    }
}

#[test]
fn a_peer_can_close_its_pair_and_the_other_one_lives() {
    let mut link = victim();
    let events = say(&mut link, &[Frame::Close { pair: THEIRS, offset: 12, reason: 6 }]);
    assert_eq!(events, [Event::Closed { pair: THEIRS, why: Closed::ByPeer(6) }]);
    assert_eq!(link.send(OURS, b"on"), Ok(Sent::Queued));
}

#[test]
fn an_incarnation_says_one_thing_only() {
    let mut link = victim();
    let other = Hello { message_bytes: 1, ..config(0, 1).hello };
    let header = Packet::plain(packet::HELLO, other.to_bytes().len(), 1, 1);
    let events = link.receive(0, &header, &other.to_bytes());
    assert_eq!(events, [Event::Over(Over::Broken(Broken::Changed))]);
}

#[test]
fn what_a_replayed_refusal_of_another_incarnation_says_is_nothing() {
    let mut link = victim();
    let body = wire::link::Refusal { reason: 1, oldest: 1, newest: 1 }.to_bytes();
    assert_eq!(link.receive(0, &Packet::plain(packet::REFUSAL, body.len(), 1, 7), &body), []);
    assert_eq!(link.send(OURS, b"on"), Ok(Sent::Queued));
}

/// Something that a peer might say, with numbers near those that matter.
fn frames() -> impl Strategy<Value = Vec<(u8, u32, u32, u64, u64, Vec<u8>)>> {
    let near = prop_oneof![0_u64..40, 4080_u64..4120, Just(u64::MAX), Just(1 << 40)];
    let payload = prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..40),
        (0_usize..2100).prop_map(|length| record_of(record::MESSAGE, length)),
        (0_usize..20).prop_map(|length| record_of(record::OPEN, length)),
    ];
    proptest::collection::vec((0_u8..13, 0_u32..7, 1_u32..4, near.clone(), near, payload), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_an_authenticated_peer_says_all_stays_bounded(said in frames(), lossy: bool, follows: bool) {
        let mut link = victim();
        if lossy {
            link.connected(0, Transport::Datagrams { bytes: 1280 }).unwrap();
        }
        let mut ends = std::collections::BTreeMap::<Pair, u64>::new();
        let mut taken = std::collections::BTreeMap::<Pair, usize>::new();
        for (kind, slot, generation, first, second, bytes) in said {
            let pair = Pair { slot, generation };
            // Where a stream of bytes goes on, so that it gets somewhere.
            let offset = if follows { *ends.entry(pair).or_insert(if pair == THEIRS { 12 } else { 0 }) } else { first };
            let mut ranges = Ranges::default();
            let range = second.checked_add(1).is_some_and(|to| second > first && ranges.push(second, to));
            let frame = match kind {
                0..6 => Frame::Data { pair, offset: offset.min(1 << 41), bytes: &bytes },
                6 => Frame::Close { pair, offset, reason: 1 },
                7 => Frame::State { pair, received: first, credit: second, ranges, closed: range },
                8 => Frame::Gone(pair),
                9 => Frame::Ping([1; 8]),
                10 => Frame::Pong([1; 8]),
                11 => Frame::Ask(pair),
                _ => Frame::Resumed,
            };
            if kind < 6 {
                *ends.entry(pair).or_insert(0) += bytes.len() as u64;
            }
            for event in say(&mut link, &[frame]) {
                match event {
                    Event::Messages { pair, messages } => {
                        prop_assert!(messages.iter().all(|message| message.len() <= 2000));
                        *taken.entry(pair).or_insert(0) += messages.bytes() + 8 * messages.count();
                    }
                    Event::Opened { pair, content } => prop_assert!(pair.slot % 2 == 0 && content.len() <= 512),
                    Event::Closed { pair, .. } => drop(taken.remove(&pair)),
                    _ => {}
                }
            }
            // Nothing was consumed.
            prop_assert!(taken.values().all(|bytes| *bytes <= WINDOW as usize), "{taken:?}");
            let held = link.held();
            prop_assert!(held.pairs <= 6 && held.inward <= held.pairs * WINDOW as usize, "{held:?}");
            let mut packet = Vec::new();
            let mut packets = 0;
            while link.poll_transmit(0, 1280, &mut packet) {
                packets += 1;
                prop_assert!(packets < 20, "one frame makes it talk and talk");
            }
        }
    }
}
