//! Messages of another node's proxy about an endpoint there, to its stand-in here, on a real
//! channel whose other end an endpoint of this node has. What must hold: no panic; a rule that is
//! broken is said; whatever is heard is answered by little; and nothing but what is passed on bears
//! another name than the peer's.
#![cfg_attr(feature = "fuzzing", no_main)]

use channel::{Config, pair};
use endpoint::{Address, StandIn, Turn};
use fuzz::script::Script;
use std::collections::VecDeque;
use wire::ipc::{HEADER_BYTES, Header, Kind, payload_bytes_max};
use wire::ring::RING_BYTES_MIN;

/// Steps of one script: more bring nothing new.
const MAX_STEPS: usize = 512;
/// Answers to one thing that was heard, and of one turn: some records, and what goes with them.
const MAX_SAID: usize = 64;
const LOCAL: Address = Address { slot: 1, generation: 3 };
const REMOTE: Address = Address { slot: 1 << 20 | 1, generation: 5 };

fuzz::target!(|bytes: &[u8]| {
    let mut script = Script::new(bytes);
    let config = Config { ring_bytes: RING_BYTES_MIN, ..Config::default() };
    let (near, far) = pair(&config).expect("a channel");
    let (mut sender, mut receiver) = near.open().expect("an end");
    let mut stand_in = StandIn::open(far, LOCAL, REMOTE).expect("an end");
    let mut say = VecDeque::new();
    for _ in 0..MAX_STEPS {
        let Some(step) = script.step() else { return };
        let before = say.len();
        let goes_on = match step {
            0..200 => {
                let said = said(step, &mut script);
                stand_in.hear(said, &mut say).is_ok()
            }
            200..235 => matches!(stand_in.turn(&mut say), Ok(Turn::More | Turn::Idle)),
            235..250 => {
                let record = record(&mut script);
                let bytes = [&record.0.to_bytes()[..], &record.1].concat();
                let _full = sender.try_send(&bytes);
                true
            }
            _ => {
                let mut message = Vec::new();
                while let Ok(Some(_)) = receiver.try_receive(&mut message) {
                    let header = message.first_chunk::<HEADER_BYTES>().expect("a whole header");
                    let header = Header::read(*header, message.len()).expect("a header that is one");
                    assert!(
                        (header.kind == Kind::Forward) != (header.source == REMOTE),
                        "somebody else's name"
                    );
                    message.clear();
                }
                true
            }
        };
        assert!(say.len() - before <= MAX_SAID, "it talks and talks");
        if !goes_on {
            return;
        }
        if say.len() > MAX_SAID {
            say.clear();
        }
    }
});

fn said(step: u8, script: &mut Script<'_>) -> endpoint::Said {
    use endpoint::Said;
    match step % 8 {
        0 => Said::Taken(script.word()),
        1 => Said::Over(script.word()),
        2 => Said::Withdraw(script.word()),
        3 => Said::Received(script.word()),
        4 => Said::Notices(script.word()),
        5 => Said::Path(script.word()),
        _ => {
            let (header, payload) = record(script);
            Said::Record(header, payload)
        }
    }
}

/// A header that can be read, as a proxy has seen to, with a payload of its length.
fn record(script: &mut Script<'_>) -> (Header, Vec<u8>) {
    let kinds = [Kind::Message, Kind::Send, Kind::Request, Kind::Reply, Kind::Forward, Kind::Refer];
    let kind = kinds[script.below(kinds.len())];
    let source = match script.below(4) {
        0 => LOCAL,
        1 => Address { slot: script.word() as u32, generation: 1 + script.below(7) as u32 },
        _ => REMOTE,
    };
    let length = script.below(payload_bytes_max(RING_BYTES_MIN).min(4096));
    let header = Header {
        source,
        tag: script.word() as u32,
        length: length as u32,
        kind,
        takes: if kind == Kind::Request { script.word() as u32 } else { 0 },
        id: script.word(),
    };
    let bytes = header.to_bytes();
    match Header::read(bytes, HEADER_BYTES + length) {
        Ok(header) => (header, vec![7; length]),
        Err(_) => {
            (Header { source: REMOTE, kind: Kind::Message, takes: 0, id: 0, ..header }, vec![7; length])
        }
    }
}
