//! Two ends over a pipe that loses nothing, in thousands of random orders: what is written is read,
//! once and in order, whoever is slow; and a peer that says anything at all is refused by name.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use mux::{Broken, Heard, Mux, Side};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use wire::socket::{Frame, VERSION, WINDOW_BYTES};

/// One end, with what it has sent and what has arrived.
struct End {
    mux: Mux,
    /// Bytes of each connection: how many were sent, arrived, and were consumed.
    sent: BTreeMap<u64, usize>,
    arrived: BTreeMap<u64, usize>,
    consumed: BTreeMap<u64, usize>,
    over: BTreeMap<u64, &'static str>,
}

/// Frames on their way, with the bytes behind them.
type Pipe = VecDeque<(Frame, usize)>;

impl End {
    fn new(side: Side) -> (Self, Pipe) {
        let end = Self {
            mux: Mux::new(side),
            sent: BTreeMap::new(),
            arrived: BTreeMap::new(),
            consumed: BTreeMap::new(),
            over: BTreeMap::new(),
        };
        (end, VecDeque::from([(Frame::Hello { version: VERSION }, 0)]))
    }

    fn send(&mut self, connection: u64, wanted: usize, out: &mut Pipe) {
        let bytes = self.mux.room(connection).min(wanted);
        if bytes > 0 {
            self.mux.sent(connection, bytes);
            *self.sent.entry(connection).or_default() += bytes;
            out.push_back((Frame::Data { connection }, bytes));
        }
    }

    fn consume(&mut self, connection: u64, out: &mut Pipe) {
        let arrived = self.arrived.get(&connection).copied().unwrap_or(0);
        let consumed = self.consumed.entry(connection).or_default();
        let bytes = arrived - *consumed;
        *consumed = arrived;
        out.extend(self.mux.consumed(connection, bytes).map(|frame| (frame, 0)));
    }

    fn reset(&mut self, connection: u64, out: &mut Pipe) {
        if let Some(frame) = self.mux.reset(connection, 104) {
            self.over.insert(connection, "reset");
            out.push_back((frame, 0));
        }
    }

    fn hear(&mut self, input: &mut Pipe) {
        let Some((frame, body)) = input.pop_front() else { return };
        match self.mux.hear(frame, body).unwrap() {
            Heard::Data { connection } => {
                *self.arrived.entry(connection).or_default() += body;
                let held = self.arrived[&connection] - self.consumed.get(&connection).copied().unwrap_or(0);
                assert!(held <= WINDOW_BYTES as usize, "more than a window is held");
            }
            Heard::Finished { connection } => drop(self.over.insert(connection, "finished")),
            Heard::Reset { connection } => drop(self.over.insert(connection, "reset")),
            Heard::Opened { .. } | Heard::Room { .. } | Heard::Nothing => {}
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Open,
    Send(bool, u64, usize),
    Consume(bool, u64),
    Finish(bool, u64),
    Reset(bool, u64),
    Hear(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let number = 1_u64..6;
    prop_oneof![
        1 => Just(Step::Open),
        8 => (any::<bool>(), number.clone(), 1_usize..40_000).prop_map(|(a, b, c)| Step::Send(a, b, c)),
        4 => (any::<bool>(), number.clone()).prop_map(|(a, b)| Step::Consume(a, b)),
        1 => (any::<bool>(), number.clone()).prop_map(|(a, b)| Step::Finish(a, b)),
        1 => (any::<bool>(), number).prop_map(|(a, b)| Step::Reset(a, b)),
        12 => any::<bool>().prop_map(Step::Hear),
    ]
}

proptest! {
    #[test]
    fn what_is_sent_arrives_once_and_nothing_holds_more_than_a_window(steps in prop::collection::vec(step(), 1..400)) {
        let (mut client, mut there) = End::new(Side::Mount);
        let (mut server, mut back) = End::new(Side::Server);
        for step in steps {
            match step {
                Step::Open => {
                    let (_, frame) = client.mux.open(1);
                    there.push_back((frame, 0));
                }
                Step::Send(true, number, bytes) => client.send(number, bytes, &mut there),
                Step::Send(false, number, bytes) => server.send(number, bytes, &mut back),
                Step::Consume(true, number) => client.consume(number, &mut there),
                Step::Consume(false, number) => server.consume(number, &mut back),
                Step::Finish(true, number) => there.extend(client.mux.finish(number).map(|frame| (frame, 0))),
                Step::Finish(false, number) => back.extend(server.mux.finish(number).map(|frame| (frame, 0))),
                Step::Reset(true, number) => client.reset(number, &mut there),
                Step::Reset(false, number) => server.reset(number, &mut back),
                Step::Hear(true) => client.hear(&mut back),
                Step::Hear(false) => server.hear(&mut there),
            }
        }
        while !there.is_empty() || !back.is_empty() {
            client.hear(&mut back);
            server.hear(&mut there);
        }
        for (from, to) in [(&client, &server), (&server, &client)] {
            for (connection, sent) in &from.sent {
                let arrived = to.arrived.get(connection).copied().unwrap_or(0);
                let was_reset = to.over.get(connection) == Some(&"reset") || from.over.get(connection) == Some(&"reset");
                prop_assert!(arrived == *sent || (was_reset && arrived < *sent), "{connection}: {arrived} of {sent}");
            }
        }
    }

    #[test]
    fn anything_that_a_peer_says_is_taken_or_refused_and_no_more(
        frames in prop::collection::vec((any::<[u8; 16]>(), 1_u8..8, 0_u8..4, 0_usize..100_000), 1..200),
        server in any::<bool>(),
    ) {
        let mut mux = Mux::new(if server { Side::Server } else { Side::Mount });
        for (mut header, kind, number, body) in frames {
            header[0] = kind;
            header[1..4].fill(0);
            header[8..].fill(0);
            header[8] = number;
            let Ok(frame) = Frame::read(header, wire::socket::HEADER_BYTES + body) else { continue };
            if mux.hear(frame, body).is_err() {
                break;
            }
        }
    }
}

fn greeted(side: Side) -> Mux {
    let mut mux = Mux::new(side);
    assert_eq!(mux.hear(Frame::Hello { version: VERSION }, 0), Ok(Heard::Nothing));
    mux
}

#[test]
fn each_broken_rule_has_its_name() {
    let hear = |mux: &mut Mux, frame, body| mux.hear(frame, body).unwrap_err();
    let mut early = Mux::new(Side::Server);
    assert_eq!(hear(&mut early, Frame::Open { connection: 1, port: 0 }, 0), Broken::Greeting);
    assert_eq!(hear(&mut early, Frame::Hello { version: 9 }, 0), Broken::Version { version: 9 });
    let mut server = greeted(Side::Server);
    assert_eq!(hear(&mut server, Frame::Hello { version: VERSION }, 0), Broken::Greeting);
    assert_eq!(
        hear(&mut server, Frame::Open { connection: 2, port: 0 }, 0),
        Broken::Number { connection: 2 }
    );
    assert_eq!(hear(&mut server, Frame::Finish { connection: 1 }, 0), Broken::NotOpen { connection: 1 });
    server.hear(Frame::Open { connection: 1, port: 0 }, 0).unwrap();
    assert_eq!(
        hear(&mut server, Frame::Open { connection: 1, port: 0 }, 0),
        Broken::Number { connection: 1 }
    );
    assert_eq!(
        hear(&mut server, Frame::Credit { connection: 1, bytes: 1 }, 0),
        Broken::Credit { connection: 1 }
    );
    let window = WINDOW_BYTES as usize;
    assert_eq!(
        hear(&mut server, Frame::Data { connection: 1 }, window + 1),
        Broken::Window { connection: 1, bytes: window + 1, left: WINDOW_BYTES }
    );
    server.hear(Frame::Finish { connection: 1 }, 0).unwrap();
    assert_eq!(hear(&mut server, Frame::Data { connection: 1 }, 1), Broken::Finished { connection: 1 });
    let mut mount = greeted(Side::Mount);
    assert_eq!(hear(&mut mount, Frame::Open { connection: 1, port: 0 }, 0), Broken::Number { connection: 1 });
}

#[test]
fn what_comes_late_for_a_connection_that_is_over_does_nothing() {
    let mut mount = greeted(Side::Mount);
    let (connection, _) = mount.open(0);
    assert!(mount.reset(connection, 104).is_some() && mount.reset(connection, 104).is_none());
    for frame in
        [Frame::Data { connection }, Frame::Finish { connection }, Frame::Reset { connection, errno: 1 }]
    {
        assert_eq!(mount.hear(frame, 1), Ok(Heard::Nothing));
    }
    let (next, _) = mount.open(0);
    assert_eq!((next, mount.len()), (connection + 1, 1));
}
