//! Packets that are lost, and those that only seem to be; the order of pairs; and the receiver's
//! reports.

use crate::{config, connect, exchange, joined, messages, packet};
use link::{Event, Link, Sent, Standing, Transport};
use wire::link::{Frame, Packet, Pair, packet::FRAMES};

const DATAGRAMS: Transport = Transport::Datagrams { bytes: 1280 };

/// Two that are joined by datagrams, and a pair of theirs, with nothing on its way.
fn by_datagrams() -> (Link, Link, Pair) {
    let (mut first, mut second) = joined();
    for link in [&mut first, &mut second] {
        link.connected(0, DATAGRAMS).expect("long enough datagrams");
    }
    exchange(&mut first, &mut second, 0);
    let pair = first.open(b"").expect("a pair");
    exchange(&mut first, &mut second, 0);
    second.tick(20);
    exchange(&mut first, &mut second, 20);
    assert_eq!(first.held().outward, 0);
    (first, second, pair)
}

/// All that a link has to say is lost.
fn lose(link: &mut Link, now_ms: u64) -> usize {
    std::iter::from_fn(|| packet(link, now_ms)).count()
}

fn frames_of(link: &mut Link, now_ms: u64) -> Vec<String> {
    let mut found = Vec::new();
    while let Some((_, body)) = packet(link, now_ms) {
        let mut rest = &body[..];
        while let Some(frame) = Frame::next(&mut rest).expect("what was sent can be read") {
            let text = format!("{frame:?}");
            found.push(text.split([' ', '(']).next().unwrap_or_default().to_owned());
        }
    }
    found
}

#[test]
fn what_was_lost_is_sent_again_when_its_time_is_over() {
    let (mut first, mut second, pair) = by_datagrams();
    assert_eq!(first.send(pair, b"hear me"), Ok(Sent::Queued));
    let mut now_ms = 50;
    for wait_ms in [100, 200] {
        assert_eq!(lose(&mut first, now_ms), 1);
        assert_eq!(first.tick(now_ms + wait_ms - 1), []);
        assert_eq!(lose(&mut first, now_ms + wait_ms - 1), 0, "after {wait_ms} ms, not before");
        now_ms += wait_ms;
        assert_eq!(first.tick(now_ms), []);
        let header = Packet::plain(FRAMES, 0, 1, 1);
        assert_eq!(first.receive(now_ms, &header, &[]), [], "the peer is there, and nothing more");
    }
    let [_, events] = exchange(&mut first, &mut second, now_ms);
    assert_eq!(messages(&events), [(pair, b"hear me".to_vec())]);
}

#[test]
fn when_only_the_state_was_lost_the_message_comes_twice_and_is_delivered_once() {
    let (mut first, mut second, pair) = by_datagrams();
    assert_eq!(first.send(pair, b"once"), Ok(Sent::Queued));
    let (header, body) = packet(&mut first, 50).unwrap();
    assert_eq!(messages(&second.receive(50, &header, &body)).len(), 1);
    second.tick(70);
    assert_eq!(lose(&mut second, 70), 0, "it begins to wait when it is asked what there is");
    second.tick(90);
    assert_eq!(lose(&mut second, 90), 1);
    first.tick(150);
    let [_, events] = exchange(&mut first, &mut second, 150);
    assert_eq!(messages(&events), []);
    assert_eq!(first.held().outward, 0, "it heard that it was received");
}

#[test]
fn one_that_does_not_know_that_it_was_heard_asks_and_is_answered() {
    let new = |side| Link::new(config(side, 1)).unwrap();
    let (mut first, mut second) = (new(0), new(1));
    for link in [&mut first, &mut second] {
        link.connected(0, DATAGRAMS).unwrap();
    }
    let mut hellos = [&mut first, &mut second].map(|link| packet(link, 0).unwrap());
    hellos.swap(0, 1);
    first.receive(0, &hellos[0].0, &hellos[0].1);
    second.receive(0, &hellos[1].0, &hellos[1].1);
    let (header, body) = packet(&mut second, 0).unwrap();
    first.receive(0, &header, &body);
    assert!(lose(&mut first, 0) > 0);
    assert_eq!((first.standing(), second.standing()), (Standing::Up, Standing::Greeting));
    second.tick(100);
    let [_, events] = exchange(&mut first, &mut second, 100);
    assert_eq!(events, [Event::Up { version: 1, resumed: false }]);
}

#[test]
fn pairs_that_have_something_to_send_take_turns() {
    let mut two = [config(0, 1), config(1, 1)];
    for config in &mut two {
        (config.hello.window_bytes, config.queue_bytes) = (1 << 20, 1 << 20);
    }
    let (mut first, mut second) = (Link::new(two[0]).unwrap(), Link::new(two[1]).unwrap());
    connect(&mut first, &mut second);
    let pairs = [first.open(b"").unwrap(), first.open(b"").unwrap(), first.open(b"").unwrap()];
    exchange(&mut first, &mut second, 0);
    for pair in pairs {
        while first.send(pair, &[1; 2000]) == Ok(Sent::Queued) {}
    }
    let mut turns = Vec::new();
    for _ in 0..30 {
        let mut bytes = Vec::new();
        assert!(first.poll_transmit(0, 9000, &mut bytes));
        let mut rest = &bytes[32..];
        while let Some(frame) = Frame::next(&mut rest).unwrap() {
            let Frame::Data { pair, .. } = frame else { continue };
            turns.push(pair);
        }
    }
    for turn in turns.chunks(3) {
        assert!(pairs.iter().all(|pair| turn.len() < 3 || turn.contains(pair)), "{turns:?}");
    }
}

#[test]
fn a_state_goes_along_with_what_is_sent_or_comes_after_a_while() {
    let (mut first, mut second) = joined();
    let pair = first.open(b"").unwrap();
    exchange(&mut first, &mut second, 0);
    assert_eq!(second.due(), Some(20));
    assert_eq!(second.send(pair, b"back"), Ok(Sent::Queued));
    assert_eq!(frames_of(&mut second, 5), ["Data", "State"]);
    assert_eq!(first.send(pair, b"forth"), Ok(Sent::Queued));
    let (header, body) = packet(&mut first, 5).unwrap();
    second.receive(5, &header, &body);
    assert_eq!(frames_of(&mut second, 6), [""; 0]);
    assert_eq!(second.due(), Some(26));
    second.tick(26);
    assert_eq!(frames_of(&mut second, 26), ["State"]);
}

#[test]
fn who_consumes_more_than_came_allows_no_more_for_that() {
    let (mut first, mut second) = joined();
    let pair = first.open(b"").unwrap();
    exchange(&mut first, &mut second, 0);
    for _ in 0..10 {
        second.consumed(pair, 2000);
    }
    let mut delivered = 0;
    for _ in 0..20 {
        let _queued_or_full = first.send(pair, &[1; 1000]).unwrap();
        let [_, events] = exchange(&mut first, &mut second, 0);
        delivered += messages(&events).len();
    }
    assert_eq!(delivered, 4);
}

#[test]
fn of_pieces_ahead_of_a_gap_a_bounded_number_is_kept() {
    let (_, mut second, pair) = by_datagrams();
    for at in 0..2000_u64 {
        let mut body = Vec::new();
        Frame::Data { pair, offset: 10 + 2 * at, bytes: b"x" }.encode(&mut body);
        let header = Packet::plain(FRAMES, body.len(), 1, 1);
        assert_eq!(second.receive(20, &header, &body), []);
    }
    assert_eq!(second.held().inward, 256);
}

#[test]
fn who_closes_lets_the_other_get_rid_of_what_it_still_sends() {
    // Each is full of what the other does not take: neither would ever take anything if both waited
    // for room first.
    let (mut first, mut second) = joined();
    let pair = first.open(b"").unwrap();
    exchange(&mut first, &mut second, 0);
    let mut queued = 0;
    while first.send(pair, &[1; 1000]) == Ok(Sent::Queued) {
        queued += 1;
        exchange(&mut first, &mut second, 0);
    }
    while second.send(pair, &[2; 1000]) == Ok(Sent::Queued) {
        exchange(&mut first, &mut second, 0);
    }
    assert!(queued > 4, "more than the window");
    first.close(pair, 1);
    let [_, events] = exchange(&mut first, &mut second, 0);
    assert_eq!(events, [Event::Room(pair)]);
    assert_eq!(second.send(pair, &[2; 1000]), Ok(Sent::Queued));
    // And nothing of what was queued before the close is lost.
    let mut delivered = 4;
    for _ in 0..queued {
        second.consumed(pair, 1000);
        let [_, events] = exchange(&mut first, &mut second, 0);
        delivered += messages(&events).len();
    }
    assert_eq!(delivered, queued);
    assert_eq!(first.held().pairs + second.held().pairs, 0);
}

#[test]
fn when_the_state_that_gives_more_is_lost_the_sender_asks_for_it() {
    let (mut first, mut second, pair) = by_datagrams();
    let mut events = Vec::new();
    while first.send(pair, &[1; 1900]) == Ok(Sent::Queued) {
        events.extend(exchange(&mut first, &mut second, 50).into_iter().flatten());
    }
    second.tick(90);
    exchange(&mut first, &mut second, 90);
    let mut delivered = messages(&events).len();
    second.consumed(pair, 1900);
    second.consumed(pair, 1900);
    assert!(lose(&mut second, 100) > 0, "it says that more may come");
    let mut now_ms = 100;
    while first.held().outward > 0 && now_ms < 2000 {
        now_ms = first.due().unwrap().min(second.due().unwrap());
        first.tick(now_ms);
        second.tick(now_ms);
        let [_, events] = exchange(&mut first, &mut second, now_ms);
        delivered += messages(&events).len();
    }
    assert!(delivered > 2 && now_ms < 500, "{delivered} messages after {now_ms} ms");
}
