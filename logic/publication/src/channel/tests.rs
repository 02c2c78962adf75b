#![allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]
//! A channel against what is promised of it.

use super::*;
use crate::store::MemoryStore;
use proptest::prelude::*;
use wire::events::region::AT_BUFFER_BYTES;

const SHAPE: Shape = Shape { event_bytes: 64, history: 100, wait_ms: 500 };

type Tested = Channel<MemoryStore, u32>;

fn channel() -> Tested {
    Channel::new(MemoryStore::new(AT_BUFFER_BYTES + 1024), 1, b"alarms", 0, SHAPE).unwrap()
}

fn at(published: Published) -> bool {
    matches!(published, Published::At(_))
}

fn publish(channel: &mut Tested, publisher: Publisher, text: &str) -> bool {
    at(channel.publish(publisher, 7, text.as_bytes()))
}

/// Takes what there is for a subscriber, as text and numbers.
fn take(channel: &mut Tested, id: SubscriptionId) -> Vec<(String, u64)> {
    let mut taken = Vec::new();
    while let Some(delivery) = channel.next(id) {
        let mut bytes = Vec::new();
        channel.bytes(delivery.at, &mut bytes);
        taken.push((String::from_utf8(bytes).unwrap(), delivery.head.sequence));
        channel.sent(id, &delivery, 1);
    }
    taken
}

fn texts(taken: &[(String, u64)]) -> Vec<&str> {
    taken.iter().map(|(text, _)| text.as_str()).collect()
}

#[test]
fn each_subscriber_gets_each_event_once_and_in_order() {
    let mut channel = channel();
    let publisher = channel.join(1, 5, None, 77).unwrap();
    let one = channel.subscribe(2, Replay::Newest(0)).unwrap();
    assert!(publish(&mut channel, publisher, "first"));
    let late = channel.subscribe(3, Replay::Newest(9)).unwrap();
    let later = channel.subscribe(4, Replay::Newest(0)).unwrap();
    assert!(publish(&mut channel, publisher, "second"));
    assert_eq!(texts(&take(&mut channel, one)), ["first", "second"]);
    assert_eq!(texts(&take(&mut channel, late)), ["first", "second"]);
    assert_eq!(take(&mut channel, later), [("second".to_owned(), 2)]);
    assert_eq!(channel.position(later), Position { next: 3, delivered: 1, lost: 0 });
    let mut newest = Vec::new();
    assert_eq!(channel.newest(&mut newest).map(|head| head.publisher_sequence), Some(2));
    assert_eq!(newest, b"second");
}

#[test]
fn who_is_slow_loses_the_oldest_and_knows_how_many() {
    let mut channel = channel();
    let publisher = channel.join(1, 5, None, 77).unwrap();
    let slow = channel.subscribe(2, Replay::Newest(0)).unwrap();
    let latest = channel.subscribe(3, Replay::Newest(0)).unwrap();
    let alarms = channel.subscribe(4, Replay::Newest(0)).unwrap();
    channel.set_overflow(latest, Overflow::Latest).unwrap();
    channel.set_filter(alarms, Some(Filter::parse("n > 95 || n < 3").unwrap())).unwrap();
    for n in 0..100 {
        assert!(publish(&mut channel, publisher, &format!("{{\"n\":{n}}}")));
    }
    let taken = take(&mut channel, slow);
    let position = channel.position(slow);
    assert_eq!(position.delivered + position.lost, 100);
    assert_eq!(taken.first().map(|(_, sequence)| *sequence), Some(position.lost + 1));
    assert_eq!(texts(&take(&mut channel, latest)), ["{\"n\":99}"]);
    assert_eq!(channel.position(latest).lost, 99);
    assert_eq!(take(&mut channel, alarms).len(), 4);
    assert_eq!(
        channel.position(alarms),
        Position { next: 101, delivered: 4, lost: 3 },
        "of those that passed"
    );
}

#[test]
fn publishers_wait_for_who_is_to_lose_nothing_but_not_for_ever() {
    let mut channel = channel();
    let publisher = channel.join(1, 5, None, 77).unwrap();
    let sure = channel.subscribe(2, Replay::Newest(0)).unwrap();
    assert_eq!(channel.set_overflow(sure, Overflow::Wait(501)), Err(SubscriptionRefused::Wait(500)));
    channel.set_overflow(sure, Overflow::Wait(500)).unwrap();
    let mut published = 0;
    while publish(&mut channel, publisher, &published.to_string()) {
        published += 1;
    }
    assert_eq!(channel.patience_ms(), 500);
    // It was sent all, and has perhaps not read it.
    assert_eq!(take(&mut channel, sure).len(), published);
    assert!(!publish(&mut channel, publisher, "x"));
    // It holds two at the most, so it has read the others.
    assert!(channel.read_up_to(sure, 2));
    assert!(publish(&mut channel, publisher, "x"));
    while publish(&mut channel, publisher, "y") {}
    channel.overrun(1);
    for _ in 0..200 {
        assert!(publish(&mut channel, publisher, "z"));
    }
    take(&mut channel, sure);
    let position = channel.position(sure);
    assert!(position.lost > 0);
    assert!(channel.read_up_to(sure, 0), "it reads again");
    while publish(&mut channel, publisher, "z") {}
    assert_eq!(channel.patience_ms(), 500, "and is waited for again");
}

#[test]
fn filters_of_one_text_are_one_and_hold_for_what_was_published_before() {
    let mut channel = channel();
    let publisher = channel.join(1, 5, None, 77).unwrap();
    assert!(publish(&mut channel, publisher, "{\"a\":1}") && publish(&mut channel, publisher, "no json"));
    let filter = || Some(Filter::parse("a == 1").unwrap());
    let ids: Vec<_> = (0..3).map(|key| channel.subscribe(key, Replay::Newest(9)).unwrap()).collect();
    for &id in &ids {
        channel.set_filter(id, filter()).unwrap();
    }
    assert_eq!(channel.filters().collect::<Vec<_>>(), [("a == 1", 1, 3, 3)]);
    assert!(
        publish(&mut channel, publisher, "{\"a\":2}")
            && publish(&mut channel, publisher, "{\"a\":1,\"b\":2}")
    );
    assert_eq!(texts(&take(&mut channel, ids[0])), ["{\"a\":1}", "{\"a\":1,\"b\":2}"]);
    // Swapped between two events: it holds for all that it has not had.
    channel.set_filter(ids[1], Some(Filter::parse("a == 2").unwrap())).unwrap();
    assert_eq!(texts(&take(&mut channel, ids[1])), ["{\"a\":2}"]);
    channel.unsubscribe(ids[0], true, 0);
    channel.unsubscribe(ids[2], true, 0);
    assert_eq!(channel.filters().map(|(text, ..)| text).collect::<Vec<_>>(), ["a == 2"]);
    let many = (0..=FILTERS_MAX).map(|n| {
        let id = channel.subscribe(9, Replay::Newest(0)).unwrap();
        channel.set_filter(id, Some(Filter::parse(&format!("a == {n}")).unwrap()))
    });
    assert_eq!(many.filter(Result::is_err).count(), 1);
}

#[test]
fn there_is_a_bound_to_those_who_take_part() {
    let mut channel = channel();
    for key in 0..SUBSCRIBERS_MAX as u32 {
        channel.subscribe(key, Replay::Newest(0)).unwrap();
    }
    assert_eq!(channel.subscribe(0, Replay::Newest(0)), Err(SubscriptionRefused::Full));
    let publishers = wire::events::region::PUBLISHERS_MAX as u32;
    let first = channel.join(0, 5, None, 1).unwrap();
    for key in 1..publishers {
        channel.join(key, 5, None, u64::from(key) + 1).unwrap();
    }
    assert_eq!(channel.join(0, 5, None, 999), Err(PublisherRefused));
    channel.part(first, false, 3);
    assert!(channel.join(0, 5, None, 999).is_ok(), "who is gone gives way");
}

// A backend is killed between an event and its answer: the record is sent again.
#[test]
fn a_record_that_is_written_again_after_a_death_is_published_once() {
    let mut first = channel();
    let publisher = first.join(1, 5, None, 77).unwrap();
    let sure = first.subscribe(2, Replay::Newest(0)).unwrap();
    first.set_overflow(sure, Overflow::Wait(100)).unwrap();
    for text in ["a", "b", "c"] {
        assert!(publish(&mut first, publisher, text));
    }
    let delivery = first.next(sure).unwrap();
    first.sent(sure, &delivery, 1);
    let position = first.position(sure);
    let mut second: Tested = Channel::take_up(first.log_into_store(), 0).unwrap();
    // The subscriber's events are kept until it is back.
    let publisher = second.join(3, 5, Some((77, 1)), 99).unwrap();
    assert_eq!(second.publisher(publisher), (77, 3));
    assert!(second.is_double(publisher) && second.answered(publisher) == 2);
    assert!(second.is_double(publisher) && !second.is_double(publisher));
    while publish(&mut second, publisher, "more") {}
    let sure = second.subscribe(4, Replay::After(position)).unwrap();
    second.set_overflow(sure, Overflow::Wait(100)).unwrap();
    let taken = take(&mut second, sure);
    assert_eq!(&texts(&taken)[..3], ["b", "c", "more"]);
    assert!(taken.windows(2).all(|two| two[0].1 + 1 == two[1].1));
    assert!(second.next_hold_ns().is_some());
    second.returned(position);
    assert_eq!(second.next_hold_ns(), None, "it is back");
    // A stranger gains nothing by another's number.
    let stranger = second.join(5, 6, Some((77, 0)), 100).unwrap();
    assert_eq!(second.publisher(stranger), (100, 0));
}

#[derive(Debug, Clone)]
enum Step {
    Publish(u8),
    Take(usize, usize),
    Read(usize),
    Filter(usize, bool),
    Die,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => any::<u8>().prop_map(Step::Publish),
        4 => (0_usize..3, 1_usize..9).prop_map(|(who, most)| Step::Take(who, most)),
        2 => (0_usize..3).prop_map(Step::Read),
        1 => (0_usize..3, any::<bool>()).prop_map(|(who, on)| Step::Filter(who, on)),
        1 => Just(Step::Die),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Three subscribers of different minds, in any order of things: nobody gets an event twice or
    /// out of order, what is delivered and what is lost add up to what was published, and who is
    /// waited for loses nothing.
    #[test]
    fn what_is_delivered_and_what_is_lost_add_up(steps in steps()) {
        let mut tested = channel();
        let mut publisher = tested.join(1, 5, None, 77).unwrap();
        let mut ids: Vec<_> = (0..3).map(|key| tested.subscribe(key, Replay::Newest(0)).unwrap()).collect();
        tested.set_overflow(ids[1], Overflow::Wait(100)).unwrap();
        tested.set_overflow(ids[2], Overflow::Latest).unwrap();
        let (mut published, mut last, mut filtered) = (0, [0; 3], [false; 3]);
        for step in steps {
            match step {
                Step::Publish(n) => {
                    let text = format!("{{\"n\":{n}}}");
                    published += u64::from(publish(&mut tested, publisher, &text));
                }
                Step::Take(who, most) => {
                    for _ in 0..most {
                        let Some(delivery) = tested.next(ids[who]) else { break };
                        prop_assert!(delivery.head.sequence > last[who]);
                        if who == 1 && !filtered[who] {
                            prop_assert_eq!(delivery.head.sequence, last[who] + 1);
                        }
                        last[who] = delivery.head.sequence;
                        tested.sent(ids[who], &delivery, 1);
                    }
                }
                Step::Read(who) => {
                    tested.read_up_to(ids[who], 0);
                }
                Step::Filter(who, on) => {
                    filtered[who] |= on;
                    let filter = on.then(|| Filter::parse("n > 100").unwrap());
                    tested.set_filter(ids[who], filter).unwrap();
                }
                Step::Die => {
                    let positions: Vec<_> = ids.iter().map(|&id| tested.position(id)).collect();
                    let written = tested.publisher(publisher).1;
                    tested = Channel::take_up(tested.log_into_store(), 0).unwrap();
                    publisher = tested.join(1, 5, Some((77, written)), 88).unwrap();
                    ids = positions.into_iter().map(|it| tested.subscribe(0, Replay::After(it)).unwrap()).collect();
                    tested.set_overflow(ids[1], Overflow::Wait(100)).unwrap();
                    tested.set_overflow(ids[2], Overflow::Latest).unwrap();
                    tested.expire_holds(HOLD_NS);
                    filtered = [true; 3];
                }
            }
            for who in 0..3 {
                let position = tested.position(ids[who]);
                prop_assert!(position.next <= published + 1);
                if !filtered[who] {
                    prop_assert_eq!(position.next - 1, position.delivered + position.lost);
                }
            }
            prop_assert_eq!(tested.position(ids[1]).lost, 0);
        }
    }
}

impl Tested {
    fn log_into_store(self) -> MemoryStore {
        self.log.into_store()
    }
}
