//! Rules of the streams, one by one, and two sides that do what they like.

use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use streams::{Broken, Full, Heard, SendError, Side, Streams};
use wire::guest::{Close, End, MAX_PAYLOAD_BYTES, MAX_STREAMS, Message, Purpose, STREAM_WINDOW_BYTES};

fn control() -> Purpose {
    Purpose::Control {}
}

fn end(channel: u32) -> End {
    End { channel, device: "10.0/00.0".into(), side: 1, bytes: 8192 }
}

fn data(stream: u32, length: usize) -> Message {
    Message::Data { stream, bytes: vec![7; length] }
}

/// A stream that the agent opened, at both sides.
fn pair() -> (Streams, Streams, u32) {
    let (mut agent, mut node) = (Streams::new(Side::Agent), Streams::new(Side::Node));
    let (stream, open) = agent.open(control()).expect("there is room");
    assert_eq!(node.hear(open), Ok(Heard::Opened { stream, purpose: control() }));
    (agent, node, stream)
}

#[test]
fn numbers_are_odd_and_even_and_free_again_when_both_have_closed() {
    let (mut agent, mut node, stream) = pair();
    assert_eq!(stream, 2);
    assert_eq!(node.open(control()).unwrap().0, 1);
    let bye = agent.close(stream, Close::default()).unwrap();
    assert_eq!(agent.close(stream, Close::default()), None);
    assert!(matches!(node.hear(bye), Ok(Heard::Closed { stream: 2, .. })));
    assert!(agent.is_open(2) && node.is_open(2));
    assert!(matches!(agent.hear(node.close(2, Close::default()).unwrap()), Ok(Heard::Closed { .. })));
    assert!(!agent.is_open(2) && !node.is_open(2) && agent.is_empty() && node.len() == 1);
}

#[test]
fn who_opens_what_is_not_his_or_too_much_breaks_a_rule() {
    let open = |stream| Message::Open { stream, purpose: control() };
    let (_, mut node, _) = pair();
    assert_eq!(node.hear(open(3)), Err(Broken::Number { stream: 3 }));
    assert_eq!(node.hear(open(0)), Err(Broken::Number { stream: 0 }));
    assert_eq!(node.hear(open(2)), Err(Broken::Twice { stream: 2 }));
    for stream in 1..MAX_STREAMS {
        assert!(node.hear(open(2 + 2 * u32::try_from(stream).unwrap())).is_ok());
    }
    assert_eq!(node.hear(open(4000)), Err(Broken::Streams));
    for _ in 0..MAX_STREAMS {
        assert!(node.open(control()).is_ok(), "the other side's streams leave ours alone");
    }
    assert_eq!(node.open(control()), Err(Full));
}

#[test]
fn a_window_is_for_messages_and_headers_and_comes_back_when_consumed() {
    let (mut agent, mut node, stream) = pair();
    let mut sent = 0;
    while agent.has_room(stream) {
        let message = agent.send(stream, vec![1; MAX_PAYLOAD_BYTES]).unwrap();
        assert!(matches!(node.hear(message), Ok(Heard::Data { .. })));
        sent += 1;
    }
    assert_eq!(sent, 3);
    let left = agent.room(stream).unwrap();
    assert_eq!(left, STREAM_WINDOW_BYTES - 3 * (MAX_PAYLOAD_BYTES + 12) - 12);
    assert_eq!(agent.send(stream, vec![0; left + 1]), Err(SendError::NoRoom));
    let credit = node.consumed(stream, MAX_PAYLOAD_BYTES).unwrap();
    assert_eq!(agent.hear(credit), Ok(Heard::Room { stream }));
    assert!(agent.has_room(stream));
}

#[test]
fn empty_messages_use_the_window_too() {
    let (_, mut node, stream) = pair();
    let messages = (0..).map(|_| node.hear(data(stream, 0))).take_while(Result::is_ok).count();
    assert_eq!(messages, STREAM_WINDOW_BYTES / 12);
    assert_eq!(node.hear(data(stream, 0)), Err(Broken::Window { stream, bytes: 12, left: 4 }));
}

#[test]
fn credit_beyond_the_window_breaks_a_rule() {
    let (mut agent, _, stream) = pair();
    assert_eq!(agent.hear(Message::Credit { stream, bytes: 1 }), Err(Broken::Credit { stream }));
    agent.send(stream, vec![0; 10]).unwrap();
    assert!(agent.hear(Message::Credit { stream, bytes: 22 }).is_ok());
    let most = Message::Credit { stream, bytes: u32::MAX };
    assert_eq!(agent.hear(most), Err(Broken::Credit { stream }));
}

#[test]
fn who_consumes_more_than_came_gives_no_more_back() {
    let (mut agent, mut node, stream) = pair();
    node.hear(agent.send(stream, vec![0; 70_000 - 10_000]).unwrap()).unwrap();
    node.hear(agent.send(stream, vec![0; 10_000]).unwrap()).unwrap();
    let credit = node.consumed(stream, 1_000_000).unwrap();
    assert_eq!(credit, Message::Credit { stream, bytes: 70_024 });
    assert!(agent.hear(credit).is_ok());
}

#[test]
fn on_a_stream_that_we_closed_everything_passes_and_ends_are_handed_back() {
    let (mut agent, mut node, stream) = pair();
    agent.close(stream, Close::default()).unwrap();
    let [first, second] = node.send_end(stream, end(7), b"x".to_vec()).unwrap();
    assert_eq!(agent.hear(first), Ok(Heard::Nothing));
    assert_eq!(agent.hear(second), Ok(Heard::Late(Some(end(7)))));
    assert_eq!(agent.hear(data(stream, 5)), Ok(Heard::Late(None)));
    assert_eq!(agent.send(stream, Vec::new()), Err(SendError::Closed));
    assert_eq!(agent.room(stream), None);
}

#[test]
fn on_a_stream_that_they_closed_nothing_passes() {
    let (mut agent, mut node, stream) = pair();
    node.hear(agent.close(stream, Close::default()).unwrap()).unwrap();
    for message in [data(stream, 0), Message::Credit { stream, bytes: 0 }, data(900, 0)] {
        assert!(matches!(node.hear(message), Err(Broken::NotOpen { .. })));
    }
    let again = Message::Close { stream, close: Close::default() };
    assert_eq!(node.hear(again), Err(Broken::NotOpen { stream }));
    assert_eq!(node.send(stream, Vec::new()), Err(SendError::Closed));
}

#[test]
fn an_end_goes_with_the_message_behind_it_and_comes_from_a_node_alone() {
    let (mut agent, mut node, stream) = pair();
    let announced = Message::End { stream, end: end(7) };
    assert_eq!(node.hear(announced.clone()), Err(Broken::ForeignEnd));
    assert_eq!(agent.hear(announced.clone()), Ok(Heard::Nothing));
    let carried = Heard::Data { stream, bytes: vec![7], end: Some(end(7)) };
    assert_eq!(agent.hear(data(stream, 1)), Ok(carried));
    assert_eq!(agent.hear(announced.clone()), Ok(Heard::Nothing));
    assert_eq!(agent.hear(announced), Err(Broken::LostEnd { stream }));
    let close = Message::Close { stream, close: Close::default() };
    assert_eq!(agent.hear(close), Err(Broken::LostEnd { stream }));
}

#[test]
fn what_is_not_about_streams_is_handed_through() {
    let (mut agent, _, _) = pair();
    let ping = Message::Ping([1; 8]);
    assert_eq!(agent.hear(ping.clone()), Ok(Heard::Other(ping)));
}

/// One side of a link with everything that it holds.
struct Half {
    streams: Streams,
    /// On the way to the other side.
    wire: VecDeque<Message>,
    /// Received and not consumed.
    held: VecDeque<(u32, usize)>,
    /// The messages that were sent and received on each stream that both knew, by their first
    /// bytes.
    sent: BTreeMap<u32, Vec<u32>>,
    received: BTreeMap<u32, Vec<u32>>,
    counter: u32,
}

impl Half {
    fn new(side: Side) -> Self {
        let (streams, wire, held) = (Streams::new(side), VecDeque::new(), VecDeque::new());
        Self { streams, wire, held, sent: BTreeMap::new(), received: BTreeMap::new(), counter: 0 }
    }

    fn act(&mut self, what: u8, which: usize, length: usize) {
        let known: Vec<u32> = self.sent.keys().copied().collect();
        let stream = known.get(which % known.len().max(1)).copied().unwrap_or(2);
        match what {
            0 => {
                if let Ok((stream, message)) = self.streams.open(control()) {
                    self.sent.insert(stream, Vec::new());
                    self.received.insert(stream, Vec::new());
                    self.wire.push_back(message);
                }
            }
            1 => {
                if let Some(message) = self.streams.close(stream, Close::default()) {
                    self.wire.push_back(message);
                }
            }
            2 | 3 => {
                if let Some((stream, length)) = self.held.pop_front() {
                    self.wire.extend(self.streams.consumed(stream, length));
                }
            }
            _ => {
                let mut bytes = self.counter.to_le_bytes().to_vec();
                bytes.resize(4 + length, 0);
                let room = self.streams.room(stream);
                let result = self.streams.send(stream, bytes);
                assert_eq!(result.is_ok(), room.is_some_and(|room| room >= 4 + length));
                if let Ok(message) = result {
                    self.sent.entry(stream).or_default().push(self.counter);
                    self.counter += 1;
                    self.wire.push_back(message);
                }
            }
        }
    }

    fn take(&mut self, message: Message) {
        match self.streams.hear(message).expect("an honest side breaks no rule") {
            Heard::Opened { stream, .. } => {
                self.sent.insert(stream, Vec::new());
                self.received.insert(stream, Vec::new());
            }
            Heard::Data { stream, bytes, .. } => {
                let number = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
                self.received.entry(stream).or_default().push(number);
                self.held.push_back((stream, bytes.len()));
                let held: usize =
                    self.held.iter().filter(|(of, _)| *of == stream).map(|(_, length)| length + 12).sum();
                assert!(held <= STREAM_WINDOW_BYTES, "{held} bytes are held for a stream");
            }
            _ => {}
        }
    }
}

proptest! {
    #[test]
    fn two_honest_sides_lose_nothing_and_break_no_rule(
        steps in prop::collection::vec((0_u8..4, 0_u8..12, 0_usize..8, 0_usize..60_000), 0..400),
    ) {
        let mut halves = [Half::new(Side::Node), Half::new(Side::Agent)];
        for (who, what, which, length) in steps {
            let [node, agent] = &mut halves;
            match who {
                0 => node.act(what, which, length),
                1 => agent.act(what, which, length),
                2 => if let Some(message) = node.wire.pop_front() { agent.take(message) },
                _ => if let Some(message) = agent.wire.pop_front() { node.take(message) },
            }
        }
        let [node, agent] = &mut halves;
        while !node.wire.is_empty() || !agent.wire.is_empty() {
            if let Some(message) = node.wire.pop_front() { agent.take(message) }
            if let Some(message) = agent.wire.pop_front() { node.take(message) }
        }
        for (from, to) in [(&*node, &*agent), (&*agent, &*node)] {
            for (stream, sent) in &from.sent {
                let received = to.received.get(stream).cloned().unwrap_or_default();
                // A side that closed takes no more; what it took before is a beginning of what was
                // sent.
                prop_assert_eq!(&received[..], &sent[..received.len()]);
                if from.streams.room(*stream).is_some() {
                    prop_assert_eq!(received.len(), sent.len());
                }
            }
        }
        // Both know the same: what one has free the other has.
        let known: Vec<u32> = node.sent.keys().chain(agent.sent.keys()).copied().collect();
        for stream in known {
            prop_assert_eq!(node.streams.is_open(stream), agent.streams.is_open(stream));
        }
    }

    /// A hostile side that knows how much of each window is left goes up to it, and in the end
    /// beyond it.
    #[test]
    fn a_hostile_side_makes_nobody_hold_more_than_a_window(
        steps in prop::collection::vec((0_u8..6, 0_usize..OF_THE_HOSTILE.len(), 0_usize..=MAX_PAYLOAD_BYTES), 0..200),
        last in 0_usize..OF_THE_HOSTILE.len(),
        beyond in 1_usize..1_000,
    ) {
        let mut victim = Victim::new();
        for (what, which, length) in steps {
            let stream = OF_THE_HOSTILE[which];
            match what {
                0 => victim.consume(stream),
                1 => victim.sent(stream, victim.left[&stream].saturating_sub(HEADER_BYTES).min(length))?,
                _ if HEADER_BYTES + length <= victim.left[&stream] => victim.sent(stream, length)?,
                // One that does not fit: from then on it is not listened to.
                _ => return victim.refuses(stream, length),
            }
        }
        let stream = OF_THE_HOSTILE[last];
        while victim.left[&stream] >= HEADER_BYTES + MAX_PAYLOAD_BYTES {
            victim.sent(stream, MAX_PAYLOAD_BYTES)?;
        }
        let most = victim.left[&stream].saturating_sub(HEADER_BYTES);
        victim.refuses(stream, (most + beyond).min(MAX_PAYLOAD_BYTES))?;
    }
}

/// Streams that a hostile side has opened.
const OF_THE_HOSTILE: [u32; 3] = [2, 4, 6];
/// A message takes as much of the window beside its bytes.
const HEADER_BYTES: usize = 12;

/// A side that is attacked: what it holds, and what it has let the other side send.
struct Victim {
    streams: Streams,
    held: BTreeMap<u32, VecDeque<usize>>,
    left: BTreeMap<u32, usize>,
}

impl Victim {
    fn new() -> Self {
        let mut streams = Streams::new(Side::Node);
        for stream in OF_THE_HOSTILE {
            streams.hear(Message::Open { stream, purpose: control() }).expect("it may open");
        }
        let left = OF_THE_HOSTILE.map(|stream| (stream, STREAM_WINDOW_BYTES)).into();
        Self { streams, held: BTreeMap::new(), left }
    }

    /// Uses up the oldest message that it holds.
    fn consume(&mut self, stream: u32) {
        let Some(length) = self.held.get_mut(&stream).and_then(VecDeque::pop_front) else { return };
        if let Some(Message::Credit { bytes, .. }) = self.streams.consumed(stream, length) {
            *self.left.entry(stream).or_default() += usize::try_from(bytes).expect("a window is small");
        }
    }

    /// Hears a message that fits into the window.
    fn sent(&mut self, stream: u32, length: usize) -> Result<(), TestCaseError> {
        let left = self.left.entry(stream).or_default();
        if *left < HEADER_BYTES {
            return Ok(());
        }
        let heard = self.streams.hear(data(stream, length));
        prop_assert!(matches!(heard, Ok(Heard::Data { .. })), "{:?}", heard);
        *left -= HEADER_BYTES + length;
        let held = self.held.entry(stream).or_default();
        held.push_back(length);
        let held: usize = held.iter().map(|length| HEADER_BYTES + length).sum();
        prop_assert!(held <= STREAM_WINDOW_BYTES, "{} bytes are held for a stream", held);
        Ok(())
    }

    /// Hears a message that does not.
    fn refuses(&mut self, stream: u32, length: usize) -> Result<(), TestCaseError> {
        let left = self.left[&stream];
        let broken = Broken::Window { stream, bytes: HEADER_BYTES + length, left };
        prop_assert_eq!(self.streams.hear(data(stream, length)), Err(broken));
        Ok(())
    }
}
