//! A server's answer to the opening of a stream: how much of it the reader takes ahead, and whether
//! writes wait.

use super::{DecodeError, TERMS_BYTES};

/// In a stream's terms: each write waits for the answer to its record.
const WRITES_WAIT: u32 = 1;

/// The terms of an open stream. 8 bytes: window 0, flags 4 (writes wait 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Bytes of records, their overhead included, that the reader holds and has given credit for at
    /// once; it may take less. 0: it gives credit for one record, when somebody reads or polls.
    pub window: u32,
    /// Whether a write returns when its record was answered, with the errno of the answer.
    pub writes_wait: bool,
}

impl Terms {
    /// The bytes of the terms.
    #[must_use]
    pub fn encode(self) -> [u8; TERMS_BYTES] {
        let mut bytes = [0; TERMS_BYTES];
        bytes[..4].copy_from_slice(&self.window.to_le_bytes());
        bytes[4..].copy_from_slice(&(if self.writes_wait { WRITES_WAIT } else { 0 }).to_le_bytes());
        bytes
    }

    /// The terms in an answer; none where the server leaves them to the reader.
    ///
    /// # Errors
    /// [`DecodeError::Payload`] for bytes that are no terms.
    pub fn decode(answer: &[u8]) -> Result<Option<Self>, DecodeError> {
        if answer.is_empty() {
            return Ok(None);
        }
        let [a, b, c, d, flags @ ..] = *<&[u8; TERMS_BYTES]>::try_from(answer)
            .map_err(|_| DecodeError::Payload("length of a stream's terms"))?;
        let flags = u32::from_le_bytes(flags);
        if flags & !WRITES_WAIT != 0 {
            return Err(DecodeError::Payload("flags of a stream's terms"));
        }
        Ok(Some(Self { window: u32::from_le_bytes([a, b, c, d]), writes_wait: flags != 0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_survive_the_wire_and_nonsense_is_none() {
        let terms = Terms { window: 70_000, writes_wait: true };
        assert_eq!(Terms::decode(&terms.encode()), Ok(Some(terms)));
        assert_eq!(Terms::decode(b""), Ok(None));
        assert!(Terms::decode(b"short").is_err());
        assert!(Terms::decode(&[0, 0, 0, 0, 2, 0, 0, 0]).is_err());
    }
}
