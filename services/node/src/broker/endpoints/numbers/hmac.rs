//! HMAC with SHA-256 (RFC 2104, FIPS 180-4): nobody who has not the key can say the code of a text.

use sha2::{Digest, Sha256};
use std::io;

/// Bytes of the key, and of a code.
const BYTES: usize = 32;
/// Bytes of a block of SHA-256.
const BLOCK_BYTES: usize = 64;

/// A key.
#[derive(Clone)]
pub(super) struct Key([u8; BYTES]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// A new one.
    pub(super) fn random() -> io::Result<Self> {
        let mut bytes = [0; BYTES];
        let got = rustix::io::retry_on_intr(|| {
            rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
        })?;
        if got == BYTES {
            Ok(Self(bytes))
        } else {
            Err(io::Error::other("the kernel gave too few random bytes"))
        }
    }

    /// As it is kept.
    pub(super) fn text(&self) -> String {
        hexadecimal(&self.0)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 2 * BYTES {
            return None;
        }
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let mut key = [0; BYTES];
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            let [high, low] = pair else { return None };
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Self(key))
    }

    /// The code of `text`, in hexadecimal.
    pub(super) fn code(&self, text: &[u8]) -> String {
        let padded = |pad: u8| {
            let mut block = [pad; BLOCK_BYTES];
            block.iter_mut().zip(self.0).for_each(|(byte, key)| *byte ^= key);
            block
        };
        let inner = Sha256::new().chain_update(padded(0x36)).chain_update(text).finalize();
        hexadecimal(&Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize())
    }

    /// Whether `code` is that of `text`. It takes the same time wherever they differ.
    pub(super) fn proves(&self, text: &[u8], code: &str) -> bool {
        let right = self.code(text);
        let differ = right.bytes().zip(code.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
        right.len() == code.len() && differ == 0
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Test case 6 has a longer key than ours; case 2 with its key filled up with zeros is the same
    // to HMAC (RFC 4231).
    #[test]
    fn codes_are_those_of_the_standard() {
        let mut key = [0; BYTES];
        key[..4].copy_from_slice(b"Jefe");
        let code = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        let key = Key(key);
        assert_eq!(key.code(b"what do ya want for nothing?"), code);
        assert!(key.proves(b"what do ya want for nothing?", code));
        assert!(!key.proves(b"what do ya want for nothing!", code) && !key.proves(b"", &code[1..]));
    }

    #[test]
    fn a_key_comes_back_as_it_was_kept() {
        let key = Key::random().unwrap();
        assert_eq!(Key::parse(&key.text()).unwrap().0, key.0);
        assert!(Key::parse("").is_none() && Key::parse(&"g".repeat(64)).is_none() && key.0 != [0; BYTES]);
    }
}
