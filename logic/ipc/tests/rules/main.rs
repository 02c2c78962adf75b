//! A peer that keeps to no rule, and the error that it gets; turns; and endpoints that are not
//! there.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod pair;

use ipc::{
    Broken, Content, Endpoint, From, Gone, NoPeer, Poll, Pulse, Receive, ReceiveError, Received, Request,
    RequestError, Rights, Send, SendError, Sleep, Way, Word,
};
use pair::{End, address, endpoint, join, pair as channel, with_stranger};
use wire::ipc::{Address, Header, Kind, call_word};

const LATE: Pulse = Pulse { late: true, overdue: false, label: None, spins: false };
const NOW: Pulse = Pulse { late: false, overdue: false, label: None, spins: false };

fn header(source: Address, kind: Kind, id: u64, length: usize) -> Header {
    Header { source, tag: 7, length: u32::try_from(length).unwrap(), kind, takes: 0, id }
}

fn receive(endpoint: &mut Endpoint<End>, from: From) -> Result<Received, ReceiveError> {
    let mut call = Receive::new(from);
    loop {
        match endpoint.poll_receive(&mut call, &mut Vec::new(), LATE) {
            Poll::Ready(result) => return result,
            Poll::Again => {}
            Poll::Sleep(_) => panic!("it is late"),
        }
    }
}

fn receive_one(endpoint: &mut Endpoint<End>, from: u32) -> Result<Received, ReceiveError> {
    receive(endpoint, From::One(address(from)))
}

fn send(endpoint: &mut Endpoint<End>, to: Address) -> Result<(), SendError> {
    match endpoint.poll_send(&mut Send::buffered(to, 1), b"", LATE) {
        Poll::Ready(result) => result,
        Poll::Again | Poll::Sleep(_) => panic!("it is late"),
    }
}

/// A peer puts this into the ring; the endpoint that receives is told which rule was broken, and
/// the peer is cut off.
fn breaks(header: Header, payload: &[u8], rule: Broken) {
    let mut me = endpoint(1);
    let stranger = with_stranger(&mut me, 2);
    let mut other = endpoint(3);
    join(&mut me, &mut other);
    stranger.put(header, payload);
    assert_eq!(receive_one(&mut me, 2), Err(NoPeer::Broken(address(2), rule).into()));
    assert!(stranger.is_cut_off());
    // Nobody else notices.
    assert_eq!(send(&mut other, address(1)), Ok(()));
    assert_eq!(receive(&mut me, From::Any).unwrap().source, address(3));
}

#[test]
fn a_forged_source_cuts_off_who_forged_it() {
    let rule = Broken::Source { alleged: address(3), expected: address(2) };
    breaks(header(address(3), Kind::Message, 0, 0), b"", rule);
    let earlier = Address { slot: 2, generation: 9 };
    let rule = Broken::Source { alleged: earlier, expected: address(2) };
    breaks(header(earlier, Kind::Send, 1, 0), b"", rule);
}

#[test]
fn a_message_that_is_too_long_cuts_off_its_sender() {
    let most = wire::ipc::payload_bytes_max(pair::RING_BYTES);
    let long = vec![0; most + 1];
    let rule = Broken::Length { length: u32::try_from(most + 1).unwrap(), most };
    breaks(header(address(2), Kind::Message, 0, most + 1), &long, rule);
}

#[test]
fn a_request_for_somebody_who_is_not_bound_is_dropped() {
    let mut me = endpoint(1);
    let stranger = with_stranger(&mut me, 2);
    stranger.put(header(address(9), Kind::Forward, 4, 0), b"");
    assert_eq!(receive(&mut me, From::Any), Err(ReceiveError::TimedOut));
    assert!(!stranger.is_cut_off());
}

/// An endpoint that may only pass on has asked for itself in that way.
#[test]
fn whoever_passes_on_can_not_ask_for_itself_so() {
    let mut me = endpoint(1);
    let stranger = with_stranger(&mut me, 2);
    let rights = Rights { answers: false, ..Rights::ALL };
    me.set_rights(address(2), rights).unwrap();
    stranger.put(header(address(2), Kind::Forward, 4, 0), b"");
    assert_eq!(receive(&mut me, From::Any), Err(ReceiveError::TimedOut));
    // For others it may, and they are named as what it says.
    let _other = with_stranger(&mut me, 3);
    stranger.put(header(address(3), Kind::Forward, 5, 0), b"");
    let Ok(Received { source, content: Content::Request { asked, .. } }) = receive(&mut me, From::Any) else {
        panic!("a request that was passed on was not received");
    };
    assert_eq!((source, asked.relayed_by()), (address(3), Some(address(2))));
}

#[test]
fn a_call_that_nobody_waits_for_is_dropped() {
    let mut me = endpoint(1);
    let stranger = with_stranger(&mut me, 2);
    for id in 1..200 {
        stranger.put(header(address(2), Kind::Send, id, 0), b"");
    }
    assert_eq!(receive(&mut me, From::Any), Err(ReceiveError::TimedOut));
}

/// A call went on beyond its deadline as long as there was something to drop.
#[test]
fn a_deadline_is_kept_however_much_there_is_to_drop() {
    let mut me = endpoint(1);
    let stranger = with_stranger(&mut me, 2);
    for id in 1..1000 {
        stranger.put(header(address(2), Kind::Send, id, 0), b"");
    }
    for from in [From::Any, From::One(address(2)), From::Some(vec![address(2)])] {
        let mut call = Receive::new(from);
        assert_eq!(me.poll_receive(&mut call, &mut Vec::new(), NOW), Poll::Again);
        let late = me.poll_receive(&mut call, &mut Vec::new(), LATE);
        assert_eq!(late, Poll::Ready(Err(ReceiveError::TimedOut)));
    }
}

#[test]
fn a_window_that_is_said_to_be_more_than_was_sent_cuts_off_the_hostile_peer() {
    let mut me = endpoint(1);
    let stranger = with_stranger(&mut me, 2);
    stranger.word(Way::In, Word::Received, |word| *word = 1 << 40);
    let window = wire::ipc::window_bytes(pair::RING_BYTES) / wire::ipc::record_bytes(0);
    let mut sent = 0;
    let why = loop {
        match send(&mut me, address(2)) {
            Ok(()) => sent += 1,
            Err(why) => break why,
        }
    };
    assert_eq!(sent, window);
    assert!(matches!(
        why,
        SendError::NoPeer(NoPeer::Broken(_, Broken::Received { .. })) | SendError::TimedOut(_)
    ));
    assert!(stranger.is_cut_off());
}

#[test]
fn whoever_sends_without_end_in_front_of_a_reply_is_cut_off() {
    let mut me = endpoint(1);
    let stranger = with_stranger(&mut me, 2);
    let mut request = Request::new(address(2), 1, 8);
    let mut into = Vec::new();
    assert_eq!(me.poll_request(&mut request, b"", &mut into, NOW), Poll::Sleep(Sleep::One(address(2))));
    for _ in 0..100 {
        stranger.put(header(address(2), Kind::Message, 0, 0), b"");
    }
    let polled = loop {
        match me.poll_request(&mut request, b"", &mut into, NOW) {
            Poll::Again => {}
            polled => break polled,
        }
    };
    let Poll::Ready(Err(RequestError::NoPeer(NoPeer::Broken(_, rule)))) = polled else {
        panic!("{polled:?}")
    };
    assert!(matches!(rule, Broken::Window { .. }), "{rule:?}");
}

#[test]
fn nonsense_in_the_word_of_a_call_ends_that_call_alone() {
    let mut me = endpoint(1);
    let stranger = with_stranger(&mut me, 2);
    let mut call = Send::rendezvous(address(2), 1);
    assert_eq!(me.poll_send(&mut call, b"", NOW), Poll::Sleep(Sleep::One(address(2))));
    stranger.word(Way::In, Word::Call, |word| *word = call_word(99, 2));
    let Poll::Ready(Err(SendError::NoPeer(NoPeer::Broken(_, rule)))) = me.poll_send(&mut call, b"", NOW)
    else {
        panic!("it was believed");
    };
    assert_eq!(rule, Broken::Call { id: 1, found: call_word(99, 2) });
}

#[test]
fn a_reply_that_is_longer_than_was_asked_for_cuts_off_the_server() {
    let mut me = endpoint(1);
    let stranger = with_stranger(&mut me, 2);
    let mut request = Request::new(address(2), 1, 2);
    let mut into = Vec::new();
    assert_eq!(me.poll_request(&mut request, b"", &mut into, NOW), Poll::Sleep(Sleep::One(address(2))));
    stranger.put(header(address(2), Kind::Reply, 1, 3), b"abc");
    let polled = me.poll_request(&mut request, b"", &mut into, NOW);
    let why = NoPeer::Broken(address(2), Broken::Length { length: 3, most: 2 });
    assert_eq!(polled, Poll::Ready(Err(why.into())));
}

#[test]
fn the_label_of_another_does_not_end_a_call() {
    let mut me = endpoint(1);
    let stranger = with_stranger(&mut me, 2);
    let mut call = Send::rendezvous(address(2), 1);
    let pulse = Pulse { label: Some(500), ..NOW };
    stranger.word(Way::Out, Word::Path, |word| *word = u64::MAX);
    for label in [501, 499, 0, (1 << 56) - 1] {
        stranger.word(Way::Out, Word::Path, |word| *word = wire::ipc::path_word(label, 3));
        assert_eq!(me.poll_send(&mut call, b"", pulse), Poll::Sleep(Sleep::One(address(2))), "label {label}");
    }
    stranger.word(Way::Out, Word::Path, |word| *word = wire::ipc::path_word(500, 3));
    assert_eq!(me.poll_send(&mut call, b"", pulse), Poll::Ready(Err(SendError::Deadlock(address(2)))));
    assert_eq!(stranger.word(Way::In, Word::Path, |_| {}), 0, "it is published no more");
}

#[test]
fn a_peer_that_floods_gets_its_turn_and_no_more() {
    let mut me = endpoint(1);
    let floods = with_stranger(&mut me, 2);
    let quiet = with_stranger(&mut me, 3);
    let mut call = Receive::new(From::Any);
    assert_eq!(me.poll_receive(&mut call, &mut Vec::new(), NOW), Poll::Sleep(Sleep::All));
    for _ in 0..300 {
        floods.put(header(address(2), Kind::Message, 0, 0), b"");
    }
    me.heard(address(2));
    assert_eq!(receive(&mut me, From::Any).unwrap().source, address(2));
    quiet.put(header(address(3), Kind::Message, 0, 0), b"");
    // It has rung, and nobody has heard it: who always finds something never sleeps. It is found
    // all the same.
    let before = (0..).take_while(|_| receive(&mut me, From::Any).unwrap().source == address(2)).count();
    assert!(before <= 64, "after {before}");
    // From then on it is known to be awake, and gets every other turn.
    quiet.put(header(address(3), Kind::Message, 0, 0), b"");
    let next = [(); 2].map(|()| receive(&mut me, From::Any).unwrap().source);
    assert!(next.contains(&address(3)), "{next:?}");
}

#[test]
fn nobody_is_called_by_an_old_name() {
    let mut me = endpoint(5);
    let at = |slot, generation| Address { slot, generation };
    let bind = |me: &mut Endpoint<End>, generation| me.bind(at(2, generation), Rights::ALL, channel().0);
    let failed = |me: &mut Endpoint<End>, to| match send(me, to) {
        Err(SendError::NoPeer(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(failed(&mut me, at(2, 1)), NoPeer::Unbound(at(2, 1)));
    assert_eq!(failed(&mut me, at(5, 1)), NoPeer::Oneself(at(5, 1)));
    bind(&mut me, 4).unwrap();
    assert_eq!(failed(&mut me, at(2, 3)), NoPeer::WrongGeneration { asked: at(2, 3), found: 4 });
    assert_eq!(bind(&mut me, 3), Err(NoPeer::WrongGeneration { asked: at(2, 3), found: 4 }));
    me.unbind(at(2, 4), Gone::Dead).unwrap();
    assert_eq!(failed(&mut me, at(2, 4)), NoPeer::Dead(at(2, 4)));
    assert_eq!(failed(&mut me, at(2, 5)), NoPeer::WrongGeneration { asked: at(2, 5), found: 4 });
    bind(&mut me, 5).unwrap();
    assert_eq!(send(&mut me, at(2, 5)), Ok(()));
    me.unbind(at(2, 5), Gone::Moved(at(8, 1))).unwrap();
    assert_eq!(failed(&mut me, at(2, 5)), NoPeer::Moved { from: at(2, 5), to: at(8, 1) });
}

#[test]
fn what_is_not_allowed_is_refused_on_both_sides() {
    let (mut me, mut other) = (endpoint(1), endpoint(2));
    let (here, there) = channel();
    me.bind(address(2), Rights { request: false, ..Rights::ALL }, here).unwrap();
    other.bind(address(1), Rights { hears: false, ..Rights::ALL }, there).unwrap();
    let mut request = Request::new(address(2), 1, 0);
    let polled = me.poll_request(&mut request, b"", &mut Vec::new(), NOW);
    assert_eq!(polled, Poll::Ready(Err(RequestError::Refused(address(2)))));
    let mut call = Send::rendezvous(address(2), 1);
    assert_eq!(me.poll_send(&mut call, b"", NOW), Poll::Sleep(Sleep::One(address(2))));
    assert_eq!(receive(&mut other, From::Any), Err(ReceiveError::TimedOut));
    assert_eq!(me.poll_send(&mut call, b"", NOW), Poll::Ready(Err(SendError::Refused(address(2)))));
}

#[test]
fn a_message_that_does_not_fit_is_not_sent() {
    let (mut me, mut other) = (endpoint(1), endpoint(2));
    join(&mut me, &mut other);
    let most = wire::ipc::payload_bytes_max(pair::RING_BYTES);
    let polled = me.poll_send(&mut Send::buffered(address(2), 1), &vec![1; most + 1], NOW);
    assert_eq!(polled, Poll::Ready(Err(SendError::TooLong { length: most + 1, most })));
    let polled = me.poll_send(&mut Send::buffered(address(2), 1), &vec![1; most], NOW);
    assert_eq!(polled, Poll::Ready(Ok(())));
    let received = receive(&mut other, From::Any).unwrap();
    assert_eq!(received.content, Content::Message { tag: 1 });
}
