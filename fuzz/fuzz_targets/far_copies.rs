//! Requests of another node for a buffer that was granted to an endpoint there, to the lender here:
//! a real buffer. What must hold: no panic; what was granted to be read stays as it is; pieces are
//! no longer than they may be and come from the buffer; and after a recall nothing is copied.
#![cfg_attr(feature = "fuzzing", no_main)]

use endpoint::{Access, Address, Endpoint, Lender, Options};
use fuzz::script::Script;
use session::Memories;
use wire::control::{EndpointAddress, GrantAccess, GrantedBuffer};
use wire::loan::{HEADER_BYTES, PIECE_BYTES_MAX, Record};

/// Steps of one script: more bring nothing new.
const MAX_STEPS: usize = 512;
/// A buffer of some pieces, and not of whole ones.
const BYTES: usize = 3 * PIECE_BYTES_MAX + 1234;
const OWNER: Address = Address { slot: 1 << 20 | 1, generation: 5 };
const GRANTEE: Address = Address { slot: 1, generation: 3 };
/// The contents of the buffer.
const CONTENT: u8 = 0x5a;

fuzz::target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    if kind % 4 == 0 {
        parsers(bytes);
    } else {
        play(kind % 4 == 1, Script::new(bytes));
    }
});

/// A message that is understood is written the same.
fn parsers(bytes: &[u8]) {
    let Some((header, behind)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return };
    if let Ok(record) = Record::read(*header, behind.len()) {
        assert_eq!(record.to_bytes(), *header);
    }
}

fn on_wire(Address { slot, generation }: Address) -> EndpointAddress {
    EndpointAddress { slot, generation }
}

fn play(writable: bool, mut script: Script<'_>) {
    let access = if writable { Access::Write } else { Access::Read };
    let mut owner = Endpoint::alone(OWNER, &Options::default()).expect("an endpoint");
    let mut buffer = owner.buffer_alone(BYTES, access).expect("a buffer");
    buffer.write(0, &[CONTENT; BYTES]).expect("written");
    let handed = owner.grant_alone(&mut buffer, GRANTEE, 7).expect("granted");
    let granted = GrantedBuffer {
        grant: handed.grant.number(),
        buffer: handed.buffer,
        place: handed.place,
        owner: on_wire(OWNER),
        to: on_wire(GRANTEE),
        access: if writable { GrantAccess::Write } else { GrantAccess::Read },
        bytes: handed.bytes,
    };
    let memories = Memories { data: handed.data, states: handed.states };
    let mut lender = Lender::open(&memories, &granted).expect("a lender");
    let (mut message, mut piece) = (Vec::new(), Vec::new());
    for _ in 0..MAX_STEPS {
        let Some(step) = script.step() else { break };
        match step {
            0..160 if lender.hears() => {
                if lender.hear(&asked(step, &mut script)).is_err() {
                    break;
                }
            }
            0..160 => {}
            160..250 => {
                message.clear();
                if lender.say(&mut message, &mut piece) {
                    check(&message, writable);
                }
            }
            _ => lender.recall(),
        }
    }
    if !writable {
        let mut all = vec![0; BYTES];
        buffer.read(0, &mut all).expect("read");
        assert!(all.iter().all(|byte| *byte == CONTENT), "what was granted to be read was written");
    }
}

fn asked(step: u8, script: &mut Script<'_>) -> Vec<u8> {
    let place = |script: &mut Script<'_>| match script.flag() {
        true => script.word(),
        false => script.below(65_536) as u64 * 2,
    };
    let (copy, offset, length) = (script.word(), place(script), place(script));
    let mut behind = 0;
    let record = match step % 6 {
        0 | 1 => Record::Read { copy, offset, length },
        2 => Record::Write { copy, offset, length },
        3 | 4 => {
            behind = 1 + script.below(PIECE_BYTES_MAX);
            Record::Bytes { copy, offset }
        }
        _ => Record::Cancel { copy },
    };
    let mut message = record.to_bytes().to_vec();
    if step == 159 {
        // Not even a record.
        message.truncate(script.below(HEADER_BYTES + 1));
    }
    message.resize(message.len() + behind, script.byte());
    message
}

fn check(message: &[u8], writable: bool) {
    let (header, bytes) = message.split_first_chunk::<HEADER_BYTES>().expect("a whole header");
    let record = Record::read(*header, bytes.len()).expect("what is said can be read");
    if let Record::Bytes { offset, .. } = record {
        assert!(bytes.len() <= PIECE_BYTES_MAX && offset + bytes.len() as u64 <= BYTES as u64);
        assert!(writable || bytes.iter().all(|byte| *byte == CONTENT), "bytes that are not the buffer's");
    }
}
