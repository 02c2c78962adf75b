//! The Network Block Device protocol, as far as replicas of volumes speak it: fixed newstyle
//! negotiation and simple replies
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>). All numbers are
//! big-endian.

use thiserror::Error;

/// The first word of a server.
pub const SERVER_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// The word before each option of a client.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The word before each answer to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The word before each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The word before each reply.
pub const REPLY_MAGIC: u32 = 0x6744_6698;

/// Handshake flag of both sides: fixed newstyle.
pub const FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag of both sides: no zeroes after the export's facts.
pub const NO_ZEROES: u16 = 2;

/// Options of a client.
pub mod option {
    /// Names an export; what follows are requests.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the negotiation.
    pub const ABORT: u32 = 2;
    /// Asks which exports there are.
    pub const LIST: u32 = 3;
    /// Asks about an export.
    pub const INFO: u32 = 6;
    /// Asks about an export, and begins with requests.
    pub const GO: u32 = 7;
}

/// Answers to an option.
pub mod answer {
    /// It is done.
    pub const ACK: u32 = 1;
    /// An export's name.
    pub const SERVER: u32 = 2;
    /// A fact about an export.
    pub const INFO: u32 = 3;
    /// The bit of all errors.
    pub const IS_ERROR: u32 = 1 << 31;
    /// The option is not known.
    pub const UNSUPPORTED: u32 = IS_ERROR | 1;
    /// The option's data mean nothing.
    pub const INVALID: u32 = IS_ERROR | 3;
    /// There is no such export.
    pub const UNKNOWN: u32 = IS_ERROR | 6;
}

/// The fact about an export that says its size and its flags.
pub const INFO_EXPORT: u16 = 0;
/// The fact about an export that says which sizes of requests it takes.
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Flags of an export.
pub mod export {
    /// There are flags.
    pub const HAS_FLAGS: u16 = 1;
    /// It takes [`super::command::FLUSH`].
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// It takes [`super::FUA`].
    pub const SEND_FUA: u16 = 1 << 3;
    /// Bytes that were written on one connection and flushed on another are there.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Commands of a client.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the data follow.
    pub const WRITE: u16 = 1;
    /// End the connection; there is no reply.
    pub const DISCONNECT: u16 = 2;
    /// Have on stable storage whatever was written.
    pub const FLUSH: u16 = 3;
}

/// Flag of a request: reply when it is on stable storage.
pub const FUA: u16 = 1;

/// Errors of a reply.
pub mod error {
    /// Input or output failed.
    pub const IO: u32 = 5;
    /// The request means nothing.
    pub const INVALID: u32 = 22;
    /// There is no room.
    pub const NO_SPACE: u32 = 28;
    /// The server is about to end.
    pub const SHUTDOWN: u32 = 108;
}

/// Longest request, in bytes: what every client may send where nothing else was said.
pub const MAX_REQUEST_BYTES: u32 = 32 << 20;
/// Longest data of an option that is read, in bytes: a name of 4096 bytes and some words.
pub const MAX_OPTION_BYTES: u32 = 8192;
/// Bytes of a request without its data.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a reply without its data.
pub const REPLY_BYTES: usize = 16;

/// A message is not of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{what} begins with {found:#x}, which is not NBD")]
pub struct NotNbd {
    /// The part.
    pub what: &'static str,
    /// The word there.
    pub found: u64,
}

/// A request without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// See [`FUA`].
    pub flags: u16,
    /// See [`command`].
    pub command: u16,
    /// Comes back in the reply.
    pub cookie: u64,
    /// Where, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub length: u32,
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut word = [0; N];
    if let Some(found) = bytes.get(at..at + N) {
        word.copy_from_slice(found);
    }
    word
}

impl Request {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        let (magic, rest) = bytes.split_at_mut(4);
        magic.copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        let (flags, rest) = rest.split_at_mut(2);
        flags.copy_from_slice(&self.flags.to_be_bytes());
        let (command, rest) = rest.split_at_mut(2);
        command.copy_from_slice(&self.command.to_be_bytes());
        let (cookie, rest) = rest.split_at_mut(8);
        cookie.copy_from_slice(&self.cookie.to_be_bytes());
        let (offset, length) = rest.split_at_mut(8);
        offset.copy_from_slice(&self.offset.to_be_bytes());
        length.copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// The request that these bytes are.
    ///
    /// # Errors
    /// [`NotNbd`].
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, NotNbd> {
        let magic = u32::from_be_bytes(word(bytes, 0));
        if magic != REQUEST_MAGIC {
            return Err(NotNbd { what: "a request", found: magic.into() });
        }
        Ok(Self {
            flags: u16::from_be_bytes(word(bytes, 4)),
            command: u16::from_be_bytes(word(bytes, 6)),
            cookie: u64::from_be_bytes(word(bytes, 8)),
            offset: u64::from_be_bytes(word(bytes, 16)),
            length: u32::from_be_bytes(word(bytes, 24)),
        })
    }

    /// The end of its bytes in the export; `None`: there is no such place in one of so many bytes.
    #[must_use]
    pub fn end_within(&self, bytes: u64) -> Option<u64> {
        self.offset.checked_add(self.length.into()).filter(|end| *end <= bytes)
    }
}

/// A reply without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// See [`error`]; 0: it is done.
    pub error: u32,
    /// The request's.
    pub cookie: u64,
}

impl Reply {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; REPLY_BYTES] {
        let mut bytes = [0; REPLY_BYTES];
        let (magic, rest) = bytes.split_at_mut(4);
        magic.copy_from_slice(&REPLY_MAGIC.to_be_bytes());
        let (error, cookie) = rest.split_at_mut(4);
        error.copy_from_slice(&self.error.to_be_bytes());
        cookie.copy_from_slice(&self.cookie.to_be_bytes());
        bytes
    }

    /// The reply that these bytes are.
    ///
    /// # Errors
    /// [`NotNbd`].
    pub fn parse(bytes: &[u8; REPLY_BYTES]) -> Result<Self, NotNbd> {
        let magic = u32::from_be_bytes(word(bytes, 0));
        if magic != REPLY_MAGIC {
            return Err(NotNbd { what: "a reply", found: magic.into() });
        }
        Ok(Self { error: u32::from_be_bytes(word(bytes, 4)), cookie: u64::from_be_bytes(word(bytes, 8)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_are_what_they_were() {
        let request =
            Request { flags: FUA, command: command::WRITE, cookie: 7, offset: 1 << 40, length: 4096 };
        let bytes = request.bytes();
        assert_eq!(bytes[..8], [0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1]);
        assert_eq!(Request::parse(&bytes), Ok(request));
        let reply = Reply { error: error::IO, cookie: u64::MAX - 1 };
        assert_eq!(Reply::parse(&reply.bytes()), Ok(reply));
        assert!(Request::parse(&[0; REQUEST_BYTES]).is_err() && Reply::parse(&[0xff; REPLY_BYTES]).is_err());
    }

    #[test]
    fn a_place_behind_the_end_is_none() {
        let request = |offset, length| Request { flags: 0, command: 0, cookie: 0, offset, length };
        assert_eq!(request(512, 512).end_within(1024), Some(1024));
        assert_eq!(request(512, 513).end_within(1024), None);
        assert_eq!(request(u64::MAX, 1).end_within(u64::MAX), None);
    }
}
