//! A stream whose peer writes and reads by the rules and scribbles between our calls. What must
//! hold is what must hold for messages, and that bytes come once, in order, across the seams of
//! records.
#![cfg_attr(feature = "fuzzing", no_main)]

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

use channel::{Mode, ReceiveError, SendError, StreamReader, StreamWriter};
use fuzz::script::Script;
use fuzz::stage::{self, Damage, Hand, in_time};
use fuzz::watch::Watch;

/// A script longer than this says nothing new.
const STEPS_MAX: usize = 300;

fuzz::target!(|bytes: &[u8]| {
    let mut script = Script::new(bytes);
    let (ours, peer, hand) = stage::ends(usize::from(script.flag()), Mode::Stream);
    let watch = Watch::new(&hand);
    let mut play = Play {
        ours: ours.open_stream().expect("our end"),
        peer: peer.open_stream().expect("the peer's end"),
        hand,
        watch,
        damage: Damage::default(),
        inward: Underway::default(),
        outward: Underway::default(),
        closed: false,
        fill: 0,
    };
    for _ in 0..STEPS_MAX {
        let Some(step) = script.step() else { break };
        if play.turn(step, &mut script).is_none() {
            break;
        }
    }
});

/// The bytes that one direction carries.
#[derive(Default)]
struct Underway {
    bytes: VecDeque<u8>,
    finished: bool,
}

impl Underway {
    fn take(&mut self, read: &[u8]) {
        for byte in read {
            assert_eq!(self.bytes.pop_front(), Some(*byte), "it came otherwise than it was written");
        }
    }
}

struct Play {
    ours: (StreamWriter, StreamReader),
    peer: (StreamWriter, StreamReader),
    hand: Hand,
    watch: Watch,
    damage: Damage,
    inward: Underway,
    outward: Underway,
    closed: bool,
    fill: u8,
}

impl Play {
    fn turn(&mut self, step: u8, script: &mut Script<'_>) -> Option<()> {
        match step % 16 {
            0..=7 => {
                self.watch.begin(&self.hand);
                let over = if step.is_multiple_of(2) { self.write(script) } else { self.read(script) };
                self.watch.end(&self.hand);
                return over;
            }
            8..=10 => self.peer_writes(script),
            11 | 12 => self.peer_reads(script),
            13 | 14 => self.damage.add(self.hand.scribble(script)),
            _ if script.byte() == 0 => {
                self.peer.0.close();
                self.closed = true;
            }
            _ => {}
        }
        Some(())
    }

    fn some_bytes(&mut self, script: &mut Script<'_>) -> Vec<u8> {
        let length = if script.flag() { script.below(5000) } else { script.below(100) };
        let first = self.fill;
        self.fill = self.fill.wrapping_add(length as u8);
        (0..length).map(|index| first.wrapping_add(index as u8)).collect()
    }

    fn write(&mut self, script: &mut Script<'_>) -> Option<()> {
        let bytes = self.some_bytes(script);
        let cut = script.below(bytes.len() + 1);
        let parts = [IoSlice::new(&bytes[..cut]), IoSlice::new(&[]), IoSlice::new(&bytes[cut..])];
        let writer = &mut self.ours.0;
        let written = match script.below(8) {
            0 => in_time(|deadline| writer.write_with(&bytes, deadline)),
            1 => in_time(|deadline| writer.write_vectored_with(&parts, deadline)),
            2 => writer.try_write_vectored(&parts),
            3 => {
                writer.set_batch_bytes(script.below(600));
                Ok(0)
            }
            4 => writer.try_flush().map(|()| 0),
            5 => match writer.prepare_wait(bytes.len()) {
                Ok(prepared) => {
                    if prepared {
                        writer.cancel_wait();
                    }
                    writer.drain_doorbell().map(|()| 0)
                }
                Err(error) => Err(error),
            },
            6 if script.byte() == 0 => writer.try_finish().map(|()| {
                self.outward.finished = true;
                0
            }),
            _ => writer.try_write(&bytes),
        };
        match written {
            Ok(count) => {
                assert!(count <= bytes.len());
                self.outward.bytes.extend(&bytes[..count]);
            }
            Err(SendError::Full | SendError::TimedOut) => {}
            Err(SendError::Closed) => {
                // A reader that has met a lie behind good bytes has closed, and says why when it is
                // asked again.
                let known = self.closed || self.damage.any() || self.damage.states || self.outward.finished;
                assert!(known, "nobody closed");
            }
            Err(SendError::Corrupt(violation)) => return self.was_refused(&violation.to_string()),
            Err(error) => panic!("{error}"),
        }
        Some(())
    }

    fn read(&mut self, script: &mut Script<'_>) -> Option<()> {
        let mut into = vec![0; if script.flag() { script.below(3000) } else { script.below(9) }];
        let all = into.len();
        let reader = &mut self.ours.1;
        let read = match script.below(5) {
            0 => in_time(|deadline| reader.read_with(&mut into, deadline)).map(Some),
            1 => {
                let (one, other) = into.split_at_mut(all / 3);
                reader.try_read_vectored(&mut [IoSliceMut::new(one), IoSliceMut::new(other)])
            }
            2 => {
                if reader.prepare_wait() {
                    reader.cancel_wait();
                }
                reader.drain_doorbell().expect("our pipe is readable");
                return Some(());
            }
            _ => reader.try_read(&mut into),
        };
        match read {
            Ok(Some(0)) if all > 0 => {
                let closed = self.closed || self.inward.finished;
                assert!(closed || self.damage.any() || self.damage.states, "nobody ended it");
                // A writer that has met a lie has closed for both.
                assert!(self.damage.any() || self.inward.bytes.is_empty(), "it ended before its end");
            }
            Ok(Some(count)) => {
                assert!(count <= all);
                if !self.damage.inward {
                    self.inward.take(&into[..count]);
                }
            }
            Ok(None) | Err(ReceiveError::TimedOut) => {
                assert!(self.damage.inward || self.inward.bytes.is_empty(), "it does not come");
            }
            Err(ReceiveError::Corrupt(violation)) => return self.was_refused(&violation.to_string()),
            Err(error) => panic!("{error}"),
        }
        Some(())
    }

    fn peer_writes(&mut self, script: &mut Script<'_>) {
        let bytes = self.some_bytes(script);
        if self.damage.inward || self.damage.states || self.inward.finished || self.closed {
            return;
        }
        if script.byte() == 0 {
            self.inward.finished = self.peer.0.try_finish().is_ok();
            return;
        }
        match self.peer.0.try_write(&bytes) {
            Ok(count) => self.inward.bytes.extend(&bytes[..count]),
            Err(SendError::Full) => {}
            Err(SendError::Closed) if self.damage.any() => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn peer_reads(&mut self, script: &mut Script<'_>) {
        if self.damage.outward || self.damage.states || self.closed {
            return;
        }
        let mut into = vec![0; script.below(3000) + 1];
        match self.peer.1.try_read(&mut into) {
            Ok(Some(0)) => {
                let ended = self.outward.finished && self.outward.bytes.is_empty();
                assert!(ended || self.damage.any(), "it ended before its end");
            }
            Ok(Some(count)) => self.outward.take(&into[..count]),
            // What the writer holds back does not show.
            Ok(None) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn was_refused(&mut self, violation: &str) -> Option<()> {
        assert!(self.damage.any(), "no lie was told, and yet: {violation}");
        assert!(self.ours.0.is_closed() && self.ours.1.is_closed());
        let again = self.ours.0.try_write(b"x");
        assert!(matches!(again, Err(SendError::Closed | SendError::Corrupt(_))), "{again:?}");
        None
    }
}
