//! Messages of a service and its consumer: trees, ranges, streams and whole messages. What must
//! hold: no panic, what is understood says the same when it is said again, a name is one that a
//! kernel may have, and no number leads out of its folder.
#![cfg_attr(feature = "fuzzing", no_main)]

use wire::service::{
    Attributes, Change, Entry, Header, Kind, List, Lock, Node, Operation, Phase, Range, Room, SERIAL_BITS,
    Terms, XattrChange, below, flags, is_target, is_xattr_name, offset_of, root_of,
};

fuzz::target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 12 {
        0 => {
            if let Ok(node) = Node::decode(bytes) {
                assert_eq!(node.encode(), bytes);
                let serial = node.number & ((1 << SERIAL_BITS) - 1);
                assert_eq!(below(root_of(node.number), serial), Some(node.number));
            }
        }
        1 => entries(bytes),
        2 => {
            if let Ok(change) = Change::decode(bytes) {
                assert_eq!(change.encode(), bytes);
                assert!(is_name(change.name));
                match change.operation {
                    Operation::Rename => assert!(is_name(change.new_name)),
                    Operation::Symlink => assert!(is_target(change.new_name)),
                    _ => assert!(change.new_name.is_empty()),
                }
            }
        }
        3 => {
            if let Ok(range) = Range::decode(bytes) {
                assert_eq!(range.encode(), bytes);
                assert!(i64::try_from(range.offset).is_ok());
            }
        }
        4 => {
            if let Ok(attributes) = Attributes::decode(bytes) {
                assert_eq!(Attributes::decode(&attributes.encode()), Ok(attributes));
            }
        }
        5 => {
            if let Ok(Some(terms)) = Terms::decode(bytes) {
                assert_eq!(terms.encode(), bytes);
            }
        }
        6 => {
            if let Ok((offset, data)) = offset_of(bytes) {
                assert_eq!([&offset.to_le_bytes()[..], data].concat(), bytes);
            }
        }
        7 => {
            if let Ok(list) = List::decode(bytes) {
                assert_eq!(list.encode(), bytes);
            }
        }
        8 => {
            if let Ok(room) = Room::decode(bytes) {
                assert_eq!(room.encode(), bytes);
                assert!(room.bytes.1 <= room.bytes.0 && room.nodes.1 <= room.nodes.0);
            }
        }
        9 => {
            if let Ok(change) = XattrChange::decode(bytes) {
                assert_eq!(change.encode(), bytes);
                assert!(is_xattr_name(change.name));
            }
        }
        10 => {
            if let Ok(lock) = Lock::decode(bytes) {
                assert_eq!(lock.encode(), bytes);
                assert!(lock.range.0 <= lock.range.1);
            }
        }
        _ => whole(bytes),
    }
});

fn entries(bytes: &[u8]) {
    let mut rest = bytes;
    let mut again = Vec::new();
    while let Ok(Some(entry)) = Entry::take(&mut rest) {
        assert!(is_name(entry.name) && entry.place != 0);
        entry.append(&mut again);
    }
    assert_eq!(bytes.strip_prefix(&again[..]), Some(rest));
}

fn whole(bytes: &[u8]) {
    let Ok((header, payload)) = Header::decode(bytes) else { return };
    assert_eq!([&header.encode()[..], payload].concat(), bytes);
    if header.kind == Kind::Response
        && header.flags & flags::TRACE != 0
        && let Ok((answer, phases)) = Phase::split(payload, header.file)
    {
        assert_eq!(answer.len() + phases.len() * wire::service::PHASE_BYTES, payload.len());
    }
}

fn is_name(name: &[u8]) -> bool {
    (1..=wire::service::MAX_NAME_BYTES).contains(&name.len())
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
        && name != b"."
        && name != b".."
}
