//! The rules of a link, one by one; and a hostile peer that the transport has let in.

mod classes;
mod hostile;
mod loss;

use link::{
    Broken, Closed, Config, Event, Link, OpenError, Over, SendError, Sent, Standing, Timing, Transport,
};
use wire::link::{Decoder, Frame, Hello, Packet, Pair, packet};

const WINDOW: u32 = 4096;

pub(crate) fn config(side: u8, epoch: u64) -> Config {
    let hello = Hello {
        oldest: 1,
        newest: 1,
        side,
        compressions: 0b010,
        pairs: 3,
        window_bytes: WINDOW,
        message_bytes: 2000,
        silence_ms: 900,
    };
    Config { epoch, hello, queue_bytes: 4096, timing: Timing::default() }
}

/// One packet of a link, as the transport carries it.
fn packet(link: &mut Link, now_ms: u64) -> Option<(Packet, Vec<u8>)> {
    let mut bytes = Vec::new();
    link.poll_transmit(now_ms, 100_000, &mut bytes).then(|| {
        let (header, body) = Packet::split(&bytes).expect("what was sent can be read");
        (header, body.to_vec())
    })
}

/// All that both have to say goes over, until both are silent. Returns the events, by side.
fn exchange(first: &mut Link, second: &mut Link, now_ms: u64) -> [Vec<Event>; 2] {
    let mut events = [Vec::new(), Vec::new()];
    loop {
        let (one, other) = (packet(first, now_ms), packet(second, now_ms));
        if one.is_none() && other.is_none() {
            return events;
        }
        if let Some((header, body)) = one {
            events[1].extend(second.receive(now_ms, &header, &body));
        }
        if let Some((header, body)) = other {
            events[0].extend(first.receive(now_ms, &header, &body));
        }
    }
}

fn connect(first: &mut Link, second: &mut Link) -> [Vec<Event>; 2] {
    first.connected(0, Transport::Stream).expect("a stream");
    second.connected(0, Transport::Stream).expect("a stream");
    exchange(first, second, 0)
}

pub(crate) fn joined() -> (Link, Link) {
    let new = |config| Link::new(config).expect("a configuration");
    let (mut first, mut second) = (new(config(0, 1)), new(config(1, 1)));
    connect(&mut first, &mut second);
    (first, second)
}

fn messages(events: &[Event]) -> Vec<(Pair, Vec<u8>)> {
    let messages = events.iter().filter_map(|event| match event {
        Event::Messages { pair, messages } => Some((*pair, messages)),
        _ => None,
    });
    messages.flat_map(|(pair, messages)| messages.iter().map(move |bytes| (pair, bytes.to_vec()))).collect()
}

#[test]
fn two_that_meet_are_up_and_one_that_comes_back_resumes() {
    let (mut first, mut second) = (Link::new(config(0, 1)).unwrap(), Link::new(config(1, 1)).unwrap());
    assert_eq!(first.open(b""), Err(OpenError::NotYet));
    let up = |resumed| vec![Event::Up { version: 1, resumed }];
    assert_eq!(connect(&mut first, &mut second), [up(false), up(false)]);
    assert_eq!(first.compressions(), 0b010);
    first.disconnected();
    assert_eq!(first.standing(), Standing::Down);
    assert_eq!(connect(&mut first, &mut second), [up(true), up(true)]);
}

#[test]
fn releases_that_follow_each_other_understand_each_other_and_others_say_why_not() {
    let release = |side, newest| {
        let mut config = config(side, 1);
        (config.hello.oldest, config.hello.newest) = (newest - 1, newest);
        Link::new(config).unwrap()
    };
    let (mut old, mut new) = (release(0, 4), release(1, 5));
    let up = vec![Event::Up { version: 4, resumed: false }];
    assert_eq!(connect(&mut old, &mut new), [up.clone(), up]);
    let (mut old, mut new) = (release(0, 4), release(1, 6));
    let [of_old, of_new] = connect(&mut old, &mut new);
    assert_eq!(of_old, [Event::Over(Over::Version { oldest: 5, newest: 6 })]);
    assert_eq!(of_new, [Event::Over(Over::Version { oldest: 3, newest: 4 })]);
    assert!(Over::Version { oldest: 5, newest: 6 }.to_string().contains("versions 5 to 6"));
}

#[test]
fn two_of_one_side_refuse_each_other() {
    let (mut first, mut second) = (Link::new(config(1, 1)).unwrap(), Link::new(config(1, 1)).unwrap());
    let side = [Event::Over(Over::Side { side: 1 })];
    assert_eq!(connect(&mut first, &mut second), [side.to_vec(), side.to_vec()]);
    assert!(matches!(first.open(b""), Err(OpenError::Over(Over::Side { side: 1 }))));
}

#[test]
fn an_old_incarnation_is_refused_and_changes_nothing() {
    let (mut first, mut second) = joined();
    let pair = first.open(b"for you").unwrap();
    exchange(&mut first, &mut second, 0);
    let mut reborn = Link::new(config(1, 2)).unwrap();
    let [events, _] = connect(&mut first, &mut reborn);
    assert_eq!(events[0], Event::Closed { pair, why: Closed::Reborn });
    assert_eq!(events[1], Event::Up { version: 1, resumed: false });
    // The old one is still there, and speaks.
    let kept = first.open(b"new").unwrap();
    second.connected(0, Transport::Stream).unwrap();
    let stale = first.stale();
    let (header, body) = packet(&mut second, 0).unwrap();
    assert_eq!(first.receive(0, &header, &body), []);
    assert_eq!(first.stale(), stale + 1);
    let (header, body) = packet(&mut first, 0).unwrap();
    assert_eq!(header.kind, packet::REFUSAL);
    assert!(matches!(second.receive(0, &header, &body)[..], [Event::Over(Over::Refused(_))]));
    assert_eq!(first.send(kept, b"still here"), Ok(Sent::Queued));
}

#[test]
fn a_receiver_that_takes_nothing_stops_its_own_pair_and_no_other() {
    let (mut first, mut second) = joined();
    let (stuck, other) = (first.open(b"a").unwrap(), first.open(b"b").unwrap());
    let mut queued = 0;
    let mut delivered = 0;
    while first.send(stuck, &[1; 1000]) == Ok(Sent::Queued) {
        queued += 1;
        let [_, events] = exchange(&mut first, &mut second, 0);
        delivered += messages(&events).len();
    }
    assert_eq!(delivered, 4, "a window of 4096 bytes holds four messages and their headers");
    assert!(queued > delivered);
    for round in 0..100_u8 {
        assert_eq!(first.send(other, &[round; 1500]), Ok(Sent::Queued));
        let [_, events] = exchange(&mut first, &mut second, 0);
        assert_eq!(messages(&events), [(other, vec![round; 1500])]);
        second.consumed(other, 1500);
    }
    // It takes two: two more come, and there is room.
    second.consumed(stuck, 1000);
    second.consumed(stuck, 1000);
    let [events, more] = exchange(&mut first, &mut second, 0);
    assert_eq!(messages(&more).len(), 2);
    assert_eq!(events, [Event::Room(stuck)]);
    // And it can be closed, though it is full.
    first.abandon(stuck, 9);
    let [_, events] = exchange(&mut first, &mut second, 20);
    assert_eq!(events.last(), Some(&Event::Closed { pair: stuck, why: Closed::ByPeer(9) }));
    assert_eq!(first.send(stuck, b""), Err(SendError::NotOpen(stuck)));
}

#[test]
fn what_was_queued_while_the_transport_was_busy_goes_in_one_packet() {
    let (mut first, mut second) = joined();
    let pairs = [first.open(b"a").unwrap(), first.open(b"b").unwrap()];
    for pair in pairs.iter().cycle().take(40) {
        assert_eq!(first.send(*pair, &[5; 64]), Ok(Sent::Queued));
    }
    let (header, body) = packet(&mut first, 0).unwrap();
    assert_eq!(packet(&mut first, 0), None);
    let mut rest = &body[..];
    let frames = std::iter::from_fn(|| Frame::next(&mut rest).unwrap()).count();
    assert!(frames <= 4, "{frames} frames for 40 messages of 2 pairs");
    assert_eq!(messages(&second.receive(0, &header, &body)).len(), 40);
}

#[test]
fn a_place_is_used_again_and_never_for_the_same_pair() {
    let (mut first, mut second) = joined();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let pairs = [first.open(b"").unwrap(), first.open(b"").unwrap(), first.open(b"").unwrap()];
        assert_eq!(first.open(b""), Err(OpenError::Many { most: 3 }));
        exchange(&mut first, &mut second, 0);
        for pair in pairs {
            assert!(seen.insert(pair) && pair.slot % 2 == 0 && pair.slot < 6);
            second.close(pair, 4);
        }
        let [events, _] = exchange(&mut first, &mut second, 0);
        assert_eq!(events.len(), 3);
        assert_eq!(first.held().pairs + second.held().pairs, 0);
    }
}

#[test]
fn who_hears_nothing_takes_the_connection_for_cut_and_who_speaks_is_heard() {
    let (mut first, mut second) = joined();
    let mut now_ms = 0;
    while now_ms < 10_000 {
        now_ms = first.due().unwrap().min(second.due().unwrap());
        assert_eq!(first.tick(now_ms), []);
        assert_eq!(second.tick(now_ms), []);
        exchange(&mut first, &mut second, now_ms + 2);
    }
    assert_eq!(first.standing(), Standing::Up);
    // Half open: the other has gone, and nobody said so.
    let last_ms = now_ms;
    while first.standing() == Standing::Up {
        now_ms = first.due().unwrap();
        let events = first.tick(now_ms);
        while packet(&mut first, now_ms).is_some() {}
        assert!(events.is_empty() || events == [Event::Silent]);
    }
    assert!((900..=902).contains(&(now_ms - last_ms)), "{}", now_ms - last_ms);
    assert_eq!(first.due(), None);
    // Nor does a hello wait for ever.
    first.connected(now_ms, Transport::Datagrams { bytes: 1280 }).unwrap();
    let mut hellos = 0;
    while first.standing() == Standing::Greeting {
        while packet(&mut first, now_ms).is_some() {
            hellos += 1;
        }
        now_ms = first.due().unwrap();
        first.tick(now_ms);
    }
    assert_eq!(hellos, 9, "each 100 ms for 900 ms");
}

#[test]
fn a_ping_measures_the_round_trip_and_a_pong_that_nobody_asked_for_nothing() {
    let (mut first, mut second) = joined();
    let say = |first: &mut Link, now_ms: u64, bytes: [u8; 8]| {
        let mut body = Vec::new();
        Frame::Pong(bytes).encode(&mut body);
        first.receive(now_ms, &Packet::plain(packet::FRAMES, body.len(), 1, 1), &body)
    };
    assert_eq!(first.tick(300), []);
    let (header, body) = packet(&mut first, 300).unwrap();
    assert_eq!(say(&mut first, 301, [3; 8]), []);
    assert_eq!(first.round_trip_ms(), None);
    assert_eq!(second.receive(303, &header, &body), []);
    let (header, body) = packet(&mut second, 303).unwrap();
    assert_eq!(first.receive(307, &header, &body), []);
    assert_eq!(first.round_trip_ms(), Some(7));
}

#[test]
fn a_goodbye_ends_both() {
    let (mut first, mut second) = joined();
    first.goodbye(3);
    let [_, events] = exchange(&mut first, &mut second, 0);
    assert_eq!(events, [Event::Over(Over::Goodbye { reason: 3 })]);
    assert_eq!(first.standing(), Standing::Over(Over::Ended));
    assert_eq!(packet(&mut second, 0), None);
}

#[test]
fn what_does_not_fit_is_refused_with_the_bound() {
    let (mut first, _second) = joined();
    assert_eq!(first.open(&[0; 513]), Err(OpenError::Long { found: 513, most: 512 }));
    let pair = first.open(b"").unwrap();
    assert_eq!(first.send(pair, &[0; 2001]), Err(SendError::Long { found: 2001, most: 2000 }));
    assert!(first.connected(0, Transport::Datagrams { bytes: 1279 }).is_err());
    assert!(Link::new(Config { epoch: 0, ..config(0, 1) }).is_err());
    assert!(Link::new(Config { queue_bytes: 500, ..config(0, 1) }).is_err());
    let mut no_window = config(0, 1);
    no_window.hello.window_bytes = 10;
    assert!(Link::new(no_window).is_err());
}

#[test]
fn of_several_as_many_are_queued_as_fit_and_room_is_told_for_the_next() {
    let (mut first, mut second) = joined();
    let pair = first.open(b"").unwrap();
    exchange(&mut first, &mut second, 0);
    let (head, body) = ([7], [8; 999]);
    // Of 4096 bytes each takes 1008.
    assert_eq!(first.send_all_parts(pair, [[&head[..], &body]; 6]), Ok(4));
    assert_eq!(first.send_all_parts(pair, [[&head[..], &body]; 2]), Ok(0));
    let [of_first, of_second] = exchange(&mut first, &mut second, 0);
    assert_eq!(of_first, [Event::Room(pair)]);
    let whole = [&head[..], &body].concat();
    assert_eq!(messages(&of_second), vec![(pair, whole); 4]);
    // One that can't ever be sent does not hold up those before it, and says so when it is the
    // first.
    let (short, long) = ([&[1][..], &[]], [&[0; 2000][..], &[0]]);
    assert_eq!(first.send_all_parts(pair, [short, long, short]), Ok(1));
    let refused = first.send_all_parts(pair, [long, short]);
    assert_eq!(refused, Err(SendError::Long { found: 2001, most: 2000 }));
    assert_eq!(first.send_all_parts(pair, []), Ok(0));
}

#[test]
fn what_was_lost_comes_again_though_only_the_ranges_tell() {
    let (mut first, mut second) = joined();
    for link in [&mut first, &mut second] {
        link.connected(0, Transport::Datagrams { bytes: 1280 }).unwrap();
    }
    exchange(&mut first, &mut second, 0);
    let pair = first.open(b"").unwrap();
    exchange(&mut first, &mut second, 0);
    assert_eq!(first.send(pair, &[1; 1200]), Ok(Sent::Queued));
    let mut lost = Vec::new();
    assert!(first.poll_transmit(0, 1280, &mut lost));
    let mut delivered = 0;
    // Nothing but states of what came behind it: no time passes.
    for round in 0..4_u8 {
        assert_eq!(first.send(pair, &[round; 100]), Ok(Sent::Queued));
        let [_, events] = exchange(&mut first, &mut second, 0);
        delivered += messages(&events).len();
    }
    assert_eq!(delivered, 5);
}

#[test]
fn a_stream_may_come_in_single_bytes() {
    let (mut first, mut second) = joined();
    let pair = first.open(b"x").unwrap();
    assert_eq!(first.send(pair, &[9; 2000]), Ok(Sent::Queued));
    let mut bytes = Vec::new();
    while first.poll_transmit(0, 5000, &mut bytes) {}
    let (mut decoder, mut events) = (Decoder::default(), Vec::new());
    for mut byte in bytes.chunks(1) {
        if let Some((header, body)) = decoder.next(&mut byte).unwrap() {
            events.extend(second.receive(0, &header, &body));
        }
    }
    assert_eq!(messages(&events), [(pair, vec![9; 2000])]);
}

#[test]
fn what_was_not_unpacked_or_not_offered_breaks_a_rule() {
    for (compression, plain, offered) in [(2, 30, false), (1, 30, true)] {
        let (_, mut second) = joined();
        let header = Packet { compression, plain, ..Packet::plain(packet::FRAMES, 20, 1, 1) };
        assert_eq!(second.takes(&header), offered);
        let events = second.receive(0, &header, &[0; 20]);
        let [Event::Over(Over::Broken(broken))] = events[..] else { panic!("{events:?}") };
        match offered {
            true => assert_eq!(broken, Broken::Unpacked { announced: 30, found: 20 }),
            false => assert_eq!(broken, Broken::Compression { found: 2 }),
        }
    }
}
