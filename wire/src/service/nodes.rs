//! Trees of a service: what its nodes are numbered by, and the bytes of what is said of them.
//! Little endian.

use super::{
    Behaviour, CHANGE_BYTES, DecodeError, ENTRY_BYTES, LIST_BYTES, MAX_NAME_BYTES, MAX_TARGET_BYTES,
    NODE_BYTES, RANGE_BYTES, ROOM_BYTES, SERIAL_BITS, SET_BYTES,
};

/// The number of a node below the exported folder `root`; none where either is too large.
#[must_use]
pub const fn below(root: u32, serial: u32) -> Option<u32> {
    if root >= (1 << (32 - SERIAL_BITS)) - 1 || serial >> SERIAL_BITS != 0 {
        return None;
    }
    Some((root + 1) << SERIAL_BITS | serial)
}

/// The exported file that a number belongs to: itself, or the folder that the node is below.
#[must_use]
pub const fn root_of(number: u32) -> u32 {
    match (number >> SERIAL_BITS).checked_sub(1) {
        Some(root) => root,
        None => number,
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// One node of a tree, as stat(2) shows it. 48 bytes: number 0, behaviour 4, flags 5, mode 6 (2
/// bytes), links 8, reserved 12, size 16, seconds of its last change 24, nanoseconds 32, user 36,
/// group 40, reserved 44.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// By which it is known; never another node's while anybody may know it. Made by [`below`].
    pub number: u32,
    /// The meaning of its file operations.
    pub behaviour: Behaviour,
    /// As [`super::FileExport::idempotent`].
    pub idempotent: bool,
    /// Permission bits.
    pub mode: u16,
    /// Names that it has.
    pub links: u32,
    /// Bytes, of a symbolic link those of its target; of other files that are not
    /// [`Behaviour::Random`], nothing follows from it.
    pub size: u64,
    /// When it changed last: seconds since 1970, and nanoseconds.
    pub changed: (u64, u32),
    /// User and group that own it, or [`super::OWNER_NONE`].
    pub owner: (u32, u32),
}

/// In a node's flags: [`Node::idempotent`].
const IDEMPOTENT: u8 = 1;

fn behaviour_code(behaviour: Behaviour) -> u8 {
    match behaviour {
        Behaviour::Session => 1,
        Behaviour::Control => 2,
        Behaviour::Text => 3,
        Behaviour::Stream => 4,
        Behaviour::Random => 5,
        Behaviour::Device => 7,
        Behaviour::Folder => 6,
        Behaviour::Symlink => 8,
    }
}

fn behaviour_of(code: u8) -> Option<Behaviour> {
    Some(match code {
        1 => Behaviour::Session,
        2 => Behaviour::Control,
        3 => Behaviour::Text,
        4 => Behaviour::Stream,
        5 => Behaviour::Random,
        7 => Behaviour::Device,
        6 => Behaviour::Folder,
        8 => Behaviour::Symlink,
        _ => return None,
    })
}

impl Node {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; NODE_BYTES] {
        let mut bytes = [0; NODE_BYTES];
        bytes[0..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4] = behaviour_code(self.behaviour);
        bytes[5] = if self.idempotent { IDEMPOTENT } else { 0 };
        bytes[6..8].copy_from_slice(&self.mode.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.links.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.size.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.changed.0.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.changed.1.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.owner.0.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.owner.1.to_le_bytes());
        bytes
    }

    /// The node in exactly these bytes.
    ///
    /// # Errors
    /// [`DecodeError::Payload`] names the field that can't be.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let bytes: &[u8; NODE_BYTES] = bytes.try_into().map_err(|_| DecodeError::Payload("length"))?;
        let mode = u16::from_le_bytes([bytes[6], bytes[7]]);
        let node = Self {
            number: u32_at(bytes, 0),
            behaviour: behaviour_of(bytes[4]).ok_or(DecodeError::Payload("behaviour"))?,
            idempotent: bytes[5] & IDEMPOTENT != 0,
            mode,
            links: u32_at(bytes, 8),
            size: u64_at(bytes, 16),
            changed: (u64_at(bytes, 24), u32_at(bytes, 32)),
            owner: (u32_at(bytes, 36), u32_at(bytes, 40)),
        };
        let refused = if node.number >> SERIAL_BITS == 0 {
            Some("number")
        } else if bytes[5] & !IDEMPOTENT != 0 || u32_at(bytes, 12) != 0 || u32_at(bytes, 44) != 0 {
            Some("reserved bytes")
        } else if mode & !0o777 != 0 {
            Some("mode")
        } else if i64::try_from(node.size).is_err() || i64::try_from(node.changed.0).is_err() {
            Some("size or time")
        } else if node.changed.1 >= 1_000_000_000 {
            Some("nanoseconds")
        } else {
            None
        };
        refused.map_or(Ok(node), |field| Err(DecodeError::Payload(field)))
    }
}

/// Whether bytes can be the name of a node: not empty, not too long, no `/`, no NUL, neither `.`
/// nor `..`.
fn is_name(name: &[u8]) -> bool {
    let dots = name == b"." || name == b"..";
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && !dots && !name.iter().any(|&b| b == b'/' || b == 0)
}

/// Whether bytes can be the target of a symbolic link: not empty, not too long, no NUL.
#[must_use]
pub fn is_target(target: &[u8]) -> bool {
    (1..=MAX_TARGET_BYTES).contains(&target.len()) && !target.contains(&0)
}

/// The part of a folder that is asked for. 12 bytes: after 0, bytes 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List {
    /// The [`Entry::place`] of the last entry that is known; 0 for the beginning.
    pub after: u64,
    /// How many bytes of entries are wanted at the most.
    pub bytes: u32,
}

impl List {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; LIST_BYTES] {
        let mut bytes = [0; LIST_BYTES];
        bytes[0..8].copy_from_slice(&self.after.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// Reads exactly these bytes as a request for a part of a folder.
    ///
    /// # Errors
    /// [`DecodeError::Payload`] where there are more or fewer.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() != LIST_BYTES {
            return Err(DecodeError::Payload("length"));
        }
        Ok(Self { after: u64_at(bytes, 0), bytes: u32_at(bytes, 8) })
    }
}

/// One entry of a folder: the node, its place 48, the length of its name 56 (2 bytes), the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The node.
    pub node: Node,
    /// Where a listing goes on after it: grows, is never 0, and means the same as long as the node
    /// is there.
    pub place: u64,
    /// Its name.
    pub name: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Appends the bytes. A name longer than [`MAX_NAME_BYTES`] is cut.
    pub fn append(&self, to: &mut Vec<u8>) {
        let name = self.name.get(..MAX_NAME_BYTES).unwrap_or(self.name);
        to.extend_from_slice(&self.node.encode());
        to.extend_from_slice(&self.place.to_le_bytes());
        to.extend_from_slice(&(name.len() as u16).to_le_bytes());
        to.extend_from_slice(name);
    }

    /// Takes the first entry off `bytes`; `None` at their end.
    ///
    /// # Errors
    /// [`DecodeError::Payload`].
    pub fn take(bytes: &mut &'a [u8]) -> Result<Option<Self>, DecodeError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (head, rest) =
            bytes.split_at_checked(ENTRY_BYTES).ok_or(DecodeError::Payload("length of an entry"))?;
        let node = Node::decode(head.get(..NODE_BYTES).unwrap_or_default())?;
        let place = u64_at(head, NODE_BYTES);
        let length = usize::from(u16::from_le_bytes([head[NODE_BYTES + 8], head[NODE_BYTES + 9]]));
        let (name, rest) = rest.split_at_checked(length).ok_or(DecodeError::Payload("length of a name"))?;
        if !is_name(name) {
            return Err(DecodeError::Payload("name"));
        }
        if place == 0 || i64::try_from(place).is_err() {
            return Err(DecodeError::Payload("place"));
        }
        *bytes = rest;
        Ok(Some(Self { node, place, name }))
    }
}

/// The operation of a [`Change`]. The discriminant is the byte on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// Makes a file, or gives `EEXIST`.
    Create = 1,
    /// Makes a folder.
    MakeFolder = 2,
    /// Takes a file's name away.
    Unlink = 3,
    /// Takes an empty folder away.
    RemoveFolder = 4,
    /// Gives a node another name, in the folder `other`. `mode` has the flags of renameat2(2).
    Rename = 5,
    /// Gives the node `other` one more name.
    Link = 6,
    /// Makes a symbolic link; the new name is its target.
    Symlink = 7,
}

/// A change of a folder. 20 bytes: operation 0, reserved 1, length of the first name 2 (2 bytes),
/// mode 4, other node 8, user 12, group 16; then the name, and for `Rename` the new name, for
/// `Symlink` the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<'a> {
    /// The operation.
    pub operation: Operation,
    /// Permission bits of what is made; flags of a `Rename`.
    pub mode: u32,
    /// The folder that a node is moved to, or the node that gets one more name; else 0.
    pub other: u32,
    /// The user and group that ask, as the domain's kernel saw them.
    pub caller: (u32, u32),
    /// The name.
    pub name: &'a [u8],
    /// The new name of a `Rename`, the target of a `Symlink`; else empty.
    pub new_name: &'a [u8],
}

impl<'a> Change<'a> {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.operation as u8, 0];
        bytes.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        for word in [self.mode, self.other, self.caller.0, self.caller.1] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(self.name);
        bytes.extend_from_slice(self.new_name);
        bytes
    }

    /// The change in exactly these bytes.
    ///
    /// # Errors
    /// [`DecodeError::LongName`], [`DecodeError::Payload`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (head, names) = bytes.split_at_checked(CHANGE_BYTES).ok_or(DecodeError::Payload("length"))?;
        let operation = match head[0] {
            1 => Operation::Create,
            2 => Operation::MakeFolder,
            3 => Operation::Unlink,
            4 => Operation::RemoveFolder,
            5 => Operation::Rename,
            6 => Operation::Link,
            7 => Operation::Symlink,
            _ => return Err(DecodeError::Payload("operation")),
        };
        let length = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let (name, new_name) =
            names.split_at_checked(length).ok_or(DecodeError::Payload("length of a name"))?;
        let new_name_is_long = operation == Operation::Rename && new_name.len() > MAX_NAME_BYTES;
        if name.len() > MAX_NAME_BYTES || new_name_is_long {
            return Err(DecodeError::LongName(name.len().max(new_name.len())));
        }
        let fits = match operation {
            Operation::Rename => is_name(new_name),
            Operation::Symlink => is_target(new_name),
            _ => new_name.is_empty(),
        };
        if head[1] != 0 || !is_name(name) || !fits {
            return Err(DecodeError::Payload("name"));
        }
        let caller = (u32_at(head, 12), u32_at(head, 16));
        Ok(Self { operation, mode: u32_at(head, 4), other: u32_at(head, 8), caller, name, new_name })
    }
}

/// Bytes of a file. 12 bytes: offset 0, count 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Where they begin.
    pub offset: u64,
    /// How many.
    pub bytes: u32,
}

impl Range {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; RANGE_BYTES] {
        List { after: self.offset, bytes: self.bytes }.encode()
    }

    /// The range in exactly these bytes.
    ///
    /// # Errors
    /// [`DecodeError::Payload`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let List { after, bytes } = List::decode(bytes)?;
        if i64::try_from(after).is_err() {
            return Err(DecodeError::Payload("offset"));
        }
        Ok(Self { offset: after, bytes })
    }
}

/// The offset that a [`super::Kind::WriteAt`] begins with, and its data.
///
/// # Errors
/// [`DecodeError::Payload`].
pub fn offset_of(payload: &[u8]) -> Result<(u64, &[u8]), DecodeError> {
    let (head, data) = payload.split_at_checked(8).ok_or(DecodeError::Payload("length"))?;
    let offset = u64_at(head, 0);
    if i64::try_from(offset).is_err() {
        return Err(DecodeError::Payload("offset"));
    }
    Ok((offset, data))
}

/// Attributes to be changed; what is `None` stays. 32 bytes: which 0 (bits: size 1, mode 2, time
/// 4), mode 4, size 8, seconds 16, nanoseconds 24, reserved 28.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The size: a file is cut, or filled up with zeros.
    pub size: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// When it changed last.
    pub changed: Option<(u64, u32)>,
}

impl Attributes {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SET_BYTES] {
        let mut bytes = [0; SET_BYTES];
        let bit = |is: bool, bit: u8| if is { bit } else { 0 };
        bytes[0] = bit(self.size.is_some(), 1) | bit(self.mode.is_some(), 2) | bit(self.changed.is_some(), 4);
        let (seconds, nanoseconds) = self.changed.unwrap_or_default();
        bytes[4..8].copy_from_slice(&self.mode.unwrap_or_default().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size.unwrap_or_default().to_le_bytes());
        bytes[16..24].copy_from_slice(&seconds.to_le_bytes());
        bytes[24..28].copy_from_slice(&nanoseconds.to_le_bytes());
        bytes
    }

    /// Reads exactly these bytes as a change.
    ///
    /// # Errors
    /// [`DecodeError::Payload`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() != SET_BYTES {
            return Err(DecodeError::Payload("length"));
        }
        let which = u32_at(bytes, 0);
        let (mode, size, changed) =
            (u32_at(bytes, 4), u64_at(bytes, 8), (u64_at(bytes, 16), u32_at(bytes, 24)));
        if which & !7 != 0 || u32_at(bytes, 28) != 0 {
            return Err(DecodeError::Payload("reserved bytes"));
        }
        if mode & !0o777 != 0 || i64::try_from(size).is_err() || changed.1 >= 1_000_000_000 {
            return Err(DecodeError::Payload("mode, size or time"));
        }
        let set = |bit: u32| which & bit != 0;
        Ok(Self {
            size: set(1).then_some(size),
            mode: set(2).then_some(mode),
            changed: set(4).then_some(changed),
        })
    }
}

/// How much a tree may hold, and how much of that is free. 32 bytes: bytes 0, free bytes 8, nodes
/// 16, free nodes 24.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes, and how many of them are free.
    pub bytes: (u64, u64),
    /// Files, folders and links, and how many more there may be.
    pub nodes: (u64, u64),
}

impl Room {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; ROOM_BYTES] {
        let mut bytes = [0; ROOM_BYTES];
        let fields = [self.bytes.0, self.bytes.1, self.nodes.0, self.nodes.1];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Reads exactly these bytes as the room of a tree.
    ///
    /// # Errors
    /// [`DecodeError::Payload`]: another length, more free than there is, or more than a signed
    /// number holds.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() != ROOM_BYTES {
            return Err(DecodeError::Payload("length"));
        }
        let room = Self {
            bytes: (u64_at(bytes, 0), u64_at(bytes, 8)),
            nodes: (u64_at(bytes, 16), u64_at(bytes, 24)),
        };
        let is_room = |(all, free): (u64, u64)| free <= all && i64::try_from(all).is_ok();
        if is_room(room.bytes) && is_room(room.nodes) { Ok(room) } else { Err(DecodeError::Payload("room")) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::OWNER_NONE;
    use super::*;
    use proptest::prelude::*;

    fn node(name: u32) -> Node {
        Node {
            number: below(3, name).unwrap(),
            behaviour: Behaviour::Stream,
            idempotent: true,
            mode: 0o640,
            links: 2,
            size: 1 << 40,
            changed: (5, 6),
            owner: (1000, OWNER_NONE),
        }
    }

    #[test]
    fn a_number_says_which_exported_folder_it_is_below() {
        assert_eq!(below(0, 0), Some(1 << SERIAL_BITS));
        assert_eq!(below(254, (1 << SERIAL_BITS) - 1), Some(u32::MAX));
        assert_eq!((below(255, 0), below(0, 1 << SERIAL_BITS)), (None, None));
        for (root, serial) in [(0, 0), (7, 9), (254, 77)] {
            assert_eq!(root_of(below(root, serial).unwrap()), root);
        }
        assert_eq!(root_of(17), 17, "an exported file is its own");
    }

    #[test]
    fn everything_survives_the_wire() {
        assert_eq!(Node::decode(&node(1).encode()), Ok(node(1)));
        let mut listing = Vec::new();
        let entries = [(1, &b"a"[..]), (2, &b"\xff new\nline"[..])];
        for (place, name) in entries {
            Entry { node: node(place), place: u64::from(place), name }.append(&mut listing);
        }
        let mut rest = &listing[..];
        for (place, name) in entries {
            let entry = Entry::take(&mut rest).unwrap().unwrap();
            assert_eq!((entry.place, entry.name), (u64::from(place), name));
        }
        assert_eq!(Entry::take(&mut rest), Ok(None));
        let rename = Change {
            operation: Operation::Rename,
            mode: 1,
            other: 7,
            caller: (1, 2),
            name: b"old",
            new_name: b"new",
        };
        assert_eq!(Change::decode(&rename.encode()), Ok(rename));
        let set = Attributes { size: Some(9), mode: None, changed: Some((1, 2)) };
        assert_eq!(Attributes::decode(&set.encode()), Ok(set));
        let range = Range { offset: 5, bytes: 6 };
        assert_eq!(Range::decode(&range.encode()), Ok(range));
    }

    #[test]
    fn names_that_no_kernel_takes_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; MAX_NAME_BYTES + 1]] {
            let change = Change {
                operation: Operation::Unlink,
                mode: 0,
                other: 0,
                caller: (0, 0),
                name,
                new_name: b"",
            };
            assert!(Change::decode(&change.encode()).is_err(), "{name:?}");
        }
        let nameless = Change {
            operation: Operation::Rename,
            mode: 0,
            other: 0,
            caller: (0, 0),
            name: b"a",
            new_name: b"",
        };
        assert!(Change::decode(&nameless.encode()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_something_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            if let Ok(node) = Node::decode(&bytes) {
                prop_assert_eq!(&node.encode()[..], &bytes[..]);
            }
            let mut rest = &bytes[..];
            while let Ok(Some(_)) = Entry::take(&mut rest) {}
            if let Ok(change) = Change::decode(&bytes) {
                prop_assert_eq!(change.encode(), bytes.clone());
            }
            let _ = (List::decode(&bytes), Range::decode(&bytes), Attributes::decode(&bytes), offset_of(&bytes));
        }
    }
}
