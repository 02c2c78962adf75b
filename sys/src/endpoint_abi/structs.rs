//! The structures of the header.

use super::Address;
use crate::channel_abi::{Failure, Outcome};
use libc::c_int;

/// A message that came, beside its bytes: `struct tombolo_message`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Message {
    /// One of [`Message::MESSAGE`] and the others.
    pub kind: u32,
    /// The sender's word for the receiver.
    pub tag: u32,
    /// The sender.
    pub source: Address,
    /// Of a request: its number.
    pub request: u64,
    /// Of notices: the bits.
    pub notices: u64,
    /// Bytes.
    pub length: u32,
    /// Of a request: most bytes of its reply.
    pub takes: u32,
    /// Of a request that was passed on: by whom; 0: by nobody.
    pub relayed_by: Address,
    /// Zero.
    pub reserved: [u64; 2],
}

impl Message {
    /// Nobody waits for a reply.
    pub const MESSAGE: u32 = 1;
    /// Somebody does.
    pub const REQUEST: u32 = 2;
    /// Bits, without bytes.
    pub const NOTICES: u32 = 3;
    /// A reply to a call.
    pub const REPLY: u32 = 4;
}

/// Bytes of a name in a structure, with its NUL: names of the topology file are shorter.
const NAME_BYTES: usize = 64;

/// One whom an endpoint was introduced to: `struct tombolo_peer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Peer {
    /// Where it is.
    pub address: Address,
    /// [`Peer::SEND`] and the others.
    pub rights: u32,
    /// 0: it has ended.
    pub is_alive: u32,
    name: [u8; NAME_BYTES],
    domain: [u8; NAME_BYTES],
    reserved: [u64; 4],
}

impl Peer {
    /// Send to it.
    pub const SEND: u32 = 1;
    /// Ask it.
    pub const REQUEST: u32 = 2;
    /// Notify it.
    pub const NOTIFY: u32 = 4;
    /// Pass requests on to it.
    pub const RELAY: u32 = 8;
    /// Receive its messages.
    pub const HEARS: u32 = 16;
    /// Receive its requests.
    pub const ANSWERS: u32 = 32;
    /// Receive its notices.
    pub const HEEDS: u32 = 64;
    /// Receive requests that it passes on.
    pub const ANSWERS_RELAYED: u32 = 128;

    /// One with a name and a domain, either of which may be empty.
    #[must_use]
    pub fn new(address: Address, rights: u32, is_alive: bool, name: &str, domain: &str) -> Self {
        let (name, domain) = (text(name), text(domain));
        Self { address, rights, is_alive: u32::from(is_alive), name, domain, reserved: [0; 4] }
    }
}

/// Text with a NUL behind it; what is too long is cut.
fn text(text: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    let cut = text.floor_char_boundary(NAME_BYTES - 1);
    for (to, from) in bytes.iter_mut().zip(text.bytes().take(cut)) {
        *to = from;
    }
    bytes
}

/// The access of others to a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

impl Access {
    /// As the header has it.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
        }
    }

    pub(super) fn of(number: c_int) -> Outcome<Self> {
        match number {
            1 => Ok(Self::Read),
            2 => Ok(Self::Write),
            other => {
                let text = format!("{other} is no access: take TOMBOLO_ACCESS_READ or TOMBOLO_ACCESS_WRITE");
                Err(Failure { errno: libc::EINVAL, text })
            }
        }
    }
}

/// A buffer that was granted: `struct tombolo_grant`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Granted {
    /// Its number.
    pub grant: i64,
    /// The owner's address.
    pub owner: Address,
    /// Bytes of data.
    pub bytes: u64,
    access: u32,
    reserved_word: u32,
    reserved: [u64; 4],
}

impl Granted {
    /// A granted buffer.
    #[must_use]
    pub fn new(grant: i64, owner: Address, bytes: u64, access: Access) -> Self {
        let access = access.number();
        Self { grant, owner, bytes, access, reserved_word: 0, reserved: [0; 4] }
    }
}

const _: () = assert!(size_of::<Message>() == 64 && align_of::<Message>() == 8);
const _: () = assert!(size_of::<Peer>() == 176 && align_of::<Peer>() == 8);
const _: () = assert!(size_of::<Granted>() == 64 && align_of::<Granted>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_with_a_nul_however_long_it_is() {
        let long = "é".repeat(NAME_BYTES);
        let peer = Peer::new(1, 0, true, &long, "desk");
        assert_eq!(peer.name[NAME_BYTES - 2..], [0, 0], "cut between letters");
        assert!(str::from_utf8(&peer.name[..NAME_BYTES - 2]).is_ok());
        assert_eq!(&peer.domain[..5], b"desk\0");
    }
}
