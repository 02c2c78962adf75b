#![allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]
//! A channel against what is promised of it.

use super::*;
use crate::judge::{Judge, NamedModule};
use crate::store::MemoryStore;
use modules::Module;
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
    let installed = InstalledFilter { text: "a == 1", cost: 1, since: 3, users: 3, usage: None };
    assert_eq!(channel.filters().collect::<Vec<_>>(), [installed]);
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
    assert_eq!(channel.filters().map(|it| it.text).collect::<Vec<_>>(), ["a == 2"]);
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

/// A module whose function `name` has this body.
fn module(name: &str, body: &str) -> NamedModule {
    let results = if name == "filter" { "i32" } else { "i64" };
    let text = format!(
        "(module (memory (export \"memory\") 1) (func (export \"buffer\") (param i32) (result i32) i32.const 1024)
         (func (export \"{name}\") (param i32 i32) (result {results}) {body}))"
    );
    let module = Module::install(&wat::parse_str(text).unwrap()).unwrap();
    NamedModule::new(format!("module {body}"), module)
}

/// Lets events through that begin with this letter, and traps at a `!`.
fn beginning_with(letter: char) -> NamedModule {
    module(
        "filter",
        &format!(
            "(if (i32.eq (i32.load8_u (local.get 0)) (i32.const 33)) (then unreachable))
             (i32.eq (i32.load8_u (local.get 0)) (i32.const {}))",
            letter as u32
        ),
    )
}

/// Takes what there is for a subscriber, as its module has it.
fn take_replaced(channel: &mut Tested, id: SubscriptionId) -> Vec<String> {
    let mut taken = Vec::new();
    while let Some(delivery) = channel.next(id) {
        let mut bytes = Vec::new();
        channel.bytes(delivery.at, &mut bytes);
        assert_eq!(channel.replace(id, &delivery, &mut bytes), Replacement::There);
        taken.push(String::from_utf8(bytes).unwrap());
        channel.sent(id, &delivery, 1);
    }
    taken
}

#[test]
fn a_module_judges_each_event_once_for_all_who_have_it_and_old_ones_when_asked() {
    let mut channel = channel();
    let publisher = channel.join(1, 5, None, 77).unwrap();
    assert!(publish(&mut channel, publisher, "a1") && publish(&mut channel, publisher, "b1"));
    let (one, two) =
        (channel.subscribe(2, Replay::Newest(9)).unwrap(), channel.subscribe(3, Replay::Newest(0)).unwrap());
    let filter = beginning_with('a');
    let name = Judge::from(beginning_with('a')).text().to_owned();
    channel.set_filter(one, Some(filter)).unwrap();
    assert!(channel.share_filter(two, &name) && !channel.share_filter(two, "another"));
    assert!(publish(&mut channel, publisher, "a2") && publish(&mut channel, publisher, "b2"));
    assert!(channel.has_unjudged(one) && !channel.has_unjudged(two));
    assert_eq!(texts(&take(&mut channel, one)), ["a1", "a2"]);
    assert_eq!(texts(&take(&mut channel, two)), ["a2"]);
    let usage = channel.filters().next().unwrap().usage.unwrap();
    assert_eq!(usage.judged, 4, "two when published, two when asked for");
    assert_eq!(channel.filters().map(|it| it.users).collect::<Vec<_>>(), [2]);
}

#[test]
fn old_events_are_asked_about_a_few_at_a_time_and_lost_unasked() {
    let mut channel = channel();
    let publisher = channel.join(1, 5, None, 77).unwrap();
    let id = channel.subscribe(2, Replay::Newest(0)).unwrap();
    for n in 0..3 * ASKED_MAX {
        channel.publish(publisher, 7, format!("{}", n % 10).as_bytes());
    }
    let kept = channel.sequences();
    channel.set_filter(id, Some(module("filter", "i32.const 0"))).unwrap();
    channel.rewind(id, u64::MAX);
    let judged = |channel: &Tested| channel.filters().next().unwrap().usage.unwrap().judged;
    let old = (kept.1 - kept.0).min(SHAPE.history);
    assert!(old < ASKED_MAX, "the buffer is small");
    channel.begin_round();
    assert!(channel.next(id).is_none() && !channel.has_unjudged(id));
    assert_eq!(judged(&channel), old);
    // A buffer with more of them takes several rounds.
    let mut channel =
        Channel::new(MemoryStore::new(AT_BUFFER_BYTES + 65536), 1, b"x", 0, Shape { history: 1000, ..SHAPE })
            .unwrap();
    let publisher = channel.join(1, 5, None, 77).unwrap();
    let id: SubscriptionId = channel.subscribe(2, Replay::Newest(0)).unwrap();
    for _ in 0..200 {
        channel.publish(publisher, 7, b"x");
    }
    channel.set_filter(id, Some(module("filter", "i32.const 0"))).unwrap();
    channel.rewind(id, u64::MAX);
    let mut rounds = 0;
    while channel.next(id).is_none() && channel.has_unjudged(id) {
        rounds += 1;
        assert_eq!(judged(&channel), rounds * ASKED_MAX);
        channel.begin_round();
    }
    assert_eq!((rounds, judged(&channel)), (3, 200));
    // Fuel ends a round, too.
    let slow = module(
        "filter",
        "(local i32) (loop (br_if 0 (i32.lt_u (local.tee 2 (i32.add (local.get 2) (i32.const 1))) (i32.const 4500)))) i32.const 0",
    );
    channel.set_filter(id, Some(slow)).unwrap();
    channel.rewind(id, u64::MAX);
    channel.begin_round();
    assert!(channel.next(id).is_none() && channel.has_unjudged(id));
    assert!(judged(&channel) < ASKED_MAX, "{}", judged(&channel));
    // Events that leave the buffer before it was asked about them are lost, whatever they are.
    channel.rewind(id, u64::MAX);
    let before = channel.sequences().0;
    for _ in 0..2000 {
        channel.publish(publisher, 7, b"x");
    }
    assert_eq!(channel.position(id).lost, 201 - before, "those from before its time, and no other");
}

#[test]
fn a_transform_puts_other_bytes_in_the_place_of_events_also_of_older_ones() {
    let mut channel = channel();
    let publisher = channel.join(1, 5, None, 77).unwrap();
    let (loud, plain) =
        (channel.subscribe(2, Replay::Newest(0)).unwrap(), channel.subscribe(3, Replay::Newest(0)).unwrap());
    let upper = module(
        "transform",
        "(i32.store8 (local.get 0) (i32.sub (i32.load8_u (local.get 0)) (i32.const 32)))
         (i64.or (i64.shl (i64.extend_i32_u (local.get 0)) (i64.const 32)) (i64.extend_i32_u (local.get 1)))",
    );
    channel.set_filter(loud, Some(upper)).unwrap();
    for event in ["fire", "flood", "frost"] {
        assert!(publish(&mut channel, publisher, event));
    }
    assert!(channel.replaces(loud) && !channel.replaces(plain));
    assert_eq!(take_replaced(&mut channel, loud), ["Fire", "Flood", "Frost"]);
    assert_eq!(take_replaced(&mut channel, plain), ["fire", "flood", "frost"], "nobody else notices");
    // Who reads late has each made again, as far as a round goes.
    for _ in 0..ASKED_MAX {
        assert!(publish(&mut channel, publisher, "x"));
    }
    channel.begin_round();
    let mut made = 0;
    while let Some(delivery) = channel.next(loud) {
        let mut bytes = Vec::new();
        channel.bytes(delivery.at, &mut bytes);
        match channel.replace(loud, &delivery, &mut bytes) {
            Replacement::There => channel.sent(loud, &delivery, 1),
            Replacement::Dropped => panic!("it passed when it was published"),
            Replacement::Later => channel.begin_round(),
        }
        made += 1;
        assert!(made < 3 * ASKED_MAX);
    }
}

#[test]
fn a_module_that_fails_ends_its_own_subscriptions_and_no_other() {
    let mut channel = channel();
    let publisher = channel.join(1, 5, None, 77).unwrap();
    let ids: Vec<SubscriptionId> =
        (0..3).map(|key| channel.subscribe(key, Replay::Newest(0)).unwrap()).collect();
    channel.set_filter(ids[0], Some(beginning_with('a'))).unwrap();
    channel.set_filter(ids[1], Some(Filter::parse("a == 1").unwrap())).unwrap();
    assert!(channel.failed().is_empty());
    for event in ["a", "!", "a", "{\"a\": 1}"] {
        assert!(publish(&mut channel, publisher, event));
    }
    let failed = channel.failed();
    assert_eq!(failed.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [ids[0]]);
    assert!(failed[0].1.contains("it has trapped"), "{failed:?}");
    assert_eq!(texts(&take(&mut channel, ids[0])), ["a"], "what passed before");
    assert_eq!(texts(&take(&mut channel, ids[1])), ["{\"a\": 1}"]);
    assert_eq!(texts(&take(&mut channel, ids[2])), ["a", "!", "a", "{\"a\": 1}"]);
    channel.unsubscribe(ids[0], true, 0);
    assert!(channel.failed().is_empty());
}

#[test]
fn modules_of_a_channel_end_at_their_bound() {
    let mut channel = channel();
    let ids: Vec<SubscriptionId> =
        (0..9).map(|key| channel.subscribe(key, Replay::Newest(0)).unwrap()).collect();
    for (n, id) in ids.iter().enumerate() {
        let installed = channel.set_filter(*id, Some(module("filter", &format!("i32.const {n}"))));
        assert_eq!(installed.is_ok(), n < PER_CHANNEL_MAX, "{n}");
    }
    assert!(channel.set_filter(ids[8], Some(Filter::parse("a").unwrap())).is_ok(), "expressions are others");
}
