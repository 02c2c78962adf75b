//! Bytes of a guest over its port, to the machine process. What must hold: no panic; what is held
//! for it and what waits for it stay within their bounds; and nothing is understood of a guest that
//! has not said who it is.
#![cfg_attr(feature = "fuzzing", no_main)]

use fuzz::script::Script;
use machine::guest::{BrokenRule, Guest, Said};
use std::collections::BTreeMap;
use wire::guest::{
    Close, Ending, Event, Exited, Frame, Hello, MAX_STREAMS, Message, Purpose, STREAM_WINDOW_BYTES,
};

/// Steps of one script: more bring nothing new.
const MAX_STEPS: usize = 4096;
/// The bytes that may wait for a guest that does not read: the outbox's bound, and the message that
/// broke it.
const MAX_WAITING: usize = 4 * 1024 * 1024 + 128 * 1024;

fuzz::target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let mut node = Node::default();
    if kind % 2 == 0 {
        // Any bytes, in pieces of any size.
        for piece in bytes.chunks(1 + usize::from(*kind)) {
            if node.hear(piece).is_err() {
                return;
            }
        }
        return;
    }
    let mut script = Script::new(bytes);
    let hello = Hello { version: 1, program: "0".into(), kernel: "6".into(), interrupts: script.flag() };
    if node.hear(&encoded(&Message::Hello(hello))).is_err() {
        return;
    }
    for _ in 0..MAX_STEPS {
        let Some(step) = script.step() else { return };
        let done =
            if step < 160 { node.hear(&frame(step, &mut script)) } else { node.act(step, &mut script) };
        if done.is_err() {
            return;
        }
    }
});

/// The node's half, and what it holds.
#[derive(Default)]
struct Node {
    guest: Guest,
    /// Messages that were not passed on yet, by stream.
    held: BTreeMap<u32, Vec<usize>>,
}

impl Node {
    fn hear(&mut self, bytes: &[u8]) -> Result<(), BrokenRule> {
        let had_spoken = self.guest.has_spoken();
        let said = self.guest.hear(bytes)?;
        let first_is_hello = matches!(said.first(), Some(Said::Hello(_)));
        assert!(
            said.is_empty() || had_spoken || first_is_hello,
            "it is listened to before it says who it is"
        );
        for said in said {
            match said {
                Said::Data { stream, bytes } | Said::Output { stream, bytes } => {
                    self.held.entry(stream).or_default().push(bytes.len());
                }
                // The machine has passed all of it on by then.
                Said::Closed { stream } => {
                    self.held.remove(&stream);
                    self.guest.close(stream, 0, "")?;
                }
                _ => {}
            }
        }
        for lengths in self.held.values() {
            assert!(lengths.iter().sum::<usize>() <= STREAM_WINDOW_BYTES, "more than a window is held");
        }
        assert!(self.held.len() <= 2 * MAX_STREAMS);
        assert!(self.guest.waiting().len() <= MAX_WAITING, "more waits than may");
        Ok(())
    }

    /// Something that the node does.
    fn act(&mut self, step: u8, script: &mut Script<'_>) -> Result<(), BrokenRule> {
        let stream = u32::from(script.byte()) % 32;
        match step % 6 {
            0 => self.guest.open(Purpose::Entrances {}).map(drop),
            1 => {
                let length = script.below(65_536);
                let had_room = self.guest.has_room(stream);
                let sent = self.guest.send(stream, vec![7; length], None)?;
                assert!(sent || !had_room, "there was room");
                Ok(())
            }
            2 => {
                let passed = self.held.get_mut(&stream).and_then(Vec::pop);
                passed.map_or(Ok(()), |length| self.guest.passed_on(stream, length))
            }
            3 => {
                self.held.remove(&stream);
                self.guest.close(stream, 5, "why not")
            }
            4 => {
                let most = self.guest.waiting().len();
                self.guest.wrote(most.min(1 + usize::from(step) * 64));
                Ok(())
            }
            _ => self.guest.say(&Message::Ping([step; 8])),
        }
    }
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

/// Something that a guest says, or nearly.
fn frame(step: u8, script: &mut Script<'_>) -> Vec<u8> {
    let stream = u32::from(script.byte()) % 32;
    let ending = Ending::Code(i32::from(script.byte()));
    encoded(&match step % 12 {
        0 => Message::Open { stream, purpose: Purpose::Control {} },
        1 => Message::Open { stream, purpose: Purpose::Output {} },
        2 | 3 => Message::Data { stream, bytes: vec![script.byte(); script.below(65_536)] },
        4 => Message::Credit { stream, bytes: u32::try_from(script.word() & 0x7_ffff).unwrap_or(0) },
        5 => Message::Close { stream, close: Close::default() },
        6 => Message::Release { channel: stream },
        7 => Message::Ping(script.bytes()),
        8 => Message::Pong(script.bytes()),
        9 => Message::Event(Event::Exited(Exited { ending, out_of_memory: script.flag() })),
        10 => Message::Event(Event::Frontend { up: script.flag(), message: None }),
        _ => {
            let payload = vec![script.byte(); script.below(64)];
            let mut bytes = Vec::new();
            Frame { kind: script.byte() % 20, stream, payload }.encode(&mut bytes);
            return bytes;
        }
    })
}
