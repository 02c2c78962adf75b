//! The relay at the other end of a channel says what it likes, while this one opens, reads, passes
//! on and ends connections. What must hold: no panic, a frame that is understood says the same when
//! it is said again, nobody sends beyond a window of ours, we never send beyond one of theirs, and
//! who keeps to the rules is never told that one was broken.
#![cfg_attr(feature = "fuzzing", no_main)]

use std::collections::HashMap;

use fuzz::script::Script;
use mux::{Broken, Heard, Mux, Side};
use wire::socket::{DATA_BYTES_MAX, Frame, HEADER_BYTES, VERSION, WINDOW_BYTES};

/// A script longer than this says nothing new.
const STEPS_MAX: usize = 300;

fuzz::target!(|bytes: &[u8]| {
    let mut script = Script::new(bytes);
    let side = if script.flag() { Side::Mount } else { Side::Server };
    let mut play =
        Play { mux: Mux::new(side), side, opened: 0, waiting: HashMap::new(), room: HashMap::new() };
    // Whoever greets wrongly comes no further: mostly it does.
    if script.byte() > 8 {
        play.hear(Frame::Hello { version: VERSION }, HEADER_BYTES).expect("a greeting");
    }
    for _ in 0..STEPS_MAX {
        let Some(step) = script.step() else { break };
        if play.turn(step, &mut script).is_err() {
            break;
        }
        play.look();
    }
});

struct Play {
    mux: Mux,
    side: Side,
    opened: u64,
    /// Bytes of the peer's that were not passed on, by connections that are open here.
    waiting: HashMap<u64, u64>,
    /// The credit that the peer gives us.
    room: HashMap<u64, u64>,
}

impl Play {
    fn turn(&mut self, step: u8, script: &mut Script<'_>) -> Result<(), Broken> {
        let number = 1 + script.below(4) as u64;
        match step % 16 {
            0..=2 => return self.hear_any(script),
            3 => return self.hear(Frame::Open { connection: self.opened + 1, port: 7 }, HEADER_BYTES),
            4..=6 => {
                let bytes = 1 + script.below(DATA_BYTES_MAX);
                return self.hear(Frame::Data { connection: number }, HEADER_BYTES + bytes);
            }
            7 => {
                let bytes = 1 + script.below(65_536) as u32;
                return self.hear(Frame::Credit { connection: number, bytes }, HEADER_BYTES);
            }
            8 => return self.hear(Frame::Finish { connection: number }, HEADER_BYTES),
            9 => return self.hear(Frame::Reset { connection: number, errno: 104 }, HEADER_BYTES),
            10 if self.side == Side::Mount => {
                let (connection, frame) = self.mux.open(80);
                self.opened += 1;
                assert_eq!((connection, frame), (self.opened, Frame::Open { connection, port: 80 }));
                self.begun(connection);
            }
            10 | 11 => {
                let room = self.mux.room(number);
                let bytes = script.below(65_536).min(room);
                self.mux.sent(number, bytes);
                assert_eq!(self.mux.room(number), room - bytes);
                if let Some(left) = self.room.get_mut(&number) {
                    *left -= bytes as u64;
                }
            }
            12 | 13 => self.pass_on(number, script.below(65_536) as u64),
            14 => {
                let finish = self.mux.finish(number);
                assert!(finish.is_none_or(|frame| frame == Frame::Finish { connection: number }));
                assert_eq!(self.mux.room(number), 0);
            }
            _ => {
                let was_open = self.mux.reset(number, 32).is_some();
                assert!(!was_open || number <= self.opened);
                self.forget(number);
            }
        }
        Ok(())
    }

    fn begun(&mut self, connection: u64) {
        self.waiting.insert(connection, 0);
        self.room.insert(connection, u64::from(WINDOW_BYTES));
    }

    fn forget(&mut self, connection: u64) {
        self.waiting.remove(&connection);
        self.room.remove(&connection);
    }

    /// A record of the peer's that need not be a frame.
    fn hear_any(&mut self, script: &mut Script<'_>) -> Result<(), Broken> {
        let header: [u8; HEADER_BYTES] = script.bytes();
        let length = script.below(HEADER_BYTES + DATA_BYTES_MAX + 2);
        let Ok(frame) = Frame::read(header, length) else { return Ok(()) };
        assert_eq!(frame.header(), header);
        self.hear(frame, length)
    }

    fn hear(&mut self, frame: Frame, length: usize) -> Result<(), Broken> {
        assert_eq!(Frame::read(frame.header(), length), Ok(frame));
        let body = length - HEADER_BYTES;
        match self.mux.hear(frame, body)? {
            Heard::Opened { connection, .. } => {
                assert_eq!((self.side, connection), (Side::Server, self.opened + 1));
                self.opened = connection;
                self.begun(connection);
            }
            Heard::Data { connection } => {
                let waiting = self.waiting.get_mut(&connection).expect("it is open");
                *waiting += body as u64;
                assert!(*waiting <= u64::from(WINDOW_BYTES), "more than a window waits");
            }
            Heard::Room { connection } => {
                let Frame::Credit { bytes, .. } = frame else { panic!("room without credit") };
                let room = self.room.get_mut(&connection).expect("it is open");
                *room += u64::from(bytes);
                assert!(*room <= u64::from(WINDOW_BYTES), "it allows more than a window");
            }
            Heard::Finished { connection } => assert!(connection <= self.opened),
            Heard::Reset { connection } => self.forget(connection),
            Heard::Nothing => {}
        }
        Ok(())
    }

    /// Gives bytes that wait to their socket.
    fn pass_on(&mut self, connection: u64, most: u64) {
        let Some(waiting) = self.waiting.get_mut(&connection) else { return };
        let taken = most.min(*waiting);
        *waiting -= taken;
        if let Some(Frame::Credit { bytes, .. }) = self.mux.consumed(connection, taken as usize) {
            assert!((1..=WINDOW_BYTES).contains(&bytes));
        }
    }

    fn look(&self) {
        assert!(self.mux.len() as u64 <= self.opened);
        for (connection, room) in &self.room {
            let said = self.mux.room(*connection) as u64;
            assert!(said == 0 || said == *room, "{said} may be sent, and {room} are allowed");
        }
    }
}
