//! Locks on files of bytes at offsets, as fcntl(2) and flock(2) know them.

use super::{DecodeError, LOCK_BYTES, lock};

/// The effect of a [`Lock`]. The discriminant is the byte on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LockMode {
    /// Gives up what the owner has.
    None = 0,
    /// Excludes exclusive locks of other owners.
    Shared = 1,
    /// Excludes all locks of other owners.
    Exclusive = 2,
}

/// A lock that is set, given up or looked for, and one that was found. 32 bytes: owner 0 (8 bytes),
/// first byte 8 (8 bytes), last byte 16 (8 bytes; included; that of a lock to the end of the file
/// is 2^63 - 1), process 24, mode 28 (1 byte), flags 29 (1 byte), reserved 30.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// The consumer's number of the owner.
    pub owner: u64,
    /// First and last byte.
    pub range: (u64, u64),
    /// The process that sets it, as its domain counts; 0 where that is not told.
    pub process: u32,
    /// Its effect.
    pub mode: LockMode,
    /// Bits of [`lock`].
    pub flags: u8,
}

impl Lock {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; LOCK_BYTES] {
        let mut bytes = [0; LOCK_BYTES];
        bytes[0..8].copy_from_slice(&self.owner.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.range.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.range.1.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.process.to_le_bytes());
        bytes[28] = self.mode as u8;
        bytes[29] = self.flags;
        bytes
    }

    /// The lock in exactly these bytes.
    ///
    /// # Errors
    /// [`DecodeError::Payload`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let bytes: &[u8; LOCK_BYTES] = bytes.try_into().map_err(|_| DecodeError::Payload("length"))?;
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let mode = match bytes[28] {
            0 => LockMode::None,
            1 => LockMode::Shared,
            2 => LockMode::Exclusive,
            _ => return Err(DecodeError::Payload("mode")),
        };
        let (range, flags) = ((u64_at(8), u64_at(16)), bytes[29]);
        if flags & !lock::ALL != 0 || bytes[30..] != [0; 2] {
            return Err(DecodeError::Payload("flags"));
        }
        if range.0 > range.1 || i64::try_from(range.1).is_err() {
            return Err(DecodeError::Payload("range"));
        }
        Ok(Self { owner: u64_at(0), range, process: u32_at(24), mode, flags })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_survives_the_wire_and_nonsense_is_refused_by_name() {
        let range = (7, i64::MAX as u64);
        let good = Lock { owner: 1 << 50, range, process: 42, mode: LockMode::Exclusive, flags: lock::WAIT };
        assert_eq!(Lock::decode(&good.encode()), Ok(good));
        let refused = |at: usize, byte: u8| {
            let mut bytes = good.encode();
            bytes[at] = byte;
            Lock::decode(&bytes)
        };
        assert_eq!(refused(28, 3), Err(DecodeError::Payload("mode")));
        assert_eq!(refused(29, 8), Err(DecodeError::Payload("flags")));
        assert_eq!(refused(31, 1), Err(DecodeError::Payload("flags")));
        assert_eq!(refused(23, 0xff), Err(DecodeError::Payload("range")));
        assert_eq!(refused(15, 0x80), Err(DecodeError::Payload("range")));
        assert_eq!(Lock::decode(&good.encode()[1..]), Err(DecodeError::Payload("length")));
    }
}
