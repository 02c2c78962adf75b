//! Letters of a question's name in random case (draft-vixie-dnsext-dns0x20). The DNS takes them for
//! the same name and repeats them as they came, so an answer that repeats them is of somebody who
//! saw the question.

use rustix::io::Errno;

/// Where a message's first question begins, with its name (RFC 1035 section 4.1.1).
const QUESTION: usize = 12;
/// The bit that tells a small letter from a capital one.
const CASE: u8 = 0x20;

/// The name of a question on the wire, as it was and as it is sent.
#[derive(Debug)]
pub struct Spelling {
    asked: Vec<u8>,
    sent: Vec<u8>,
}

impl Spelling {
    /// Spells the name of a query anew. `random` gives 16 bits that nobody can guess.
    ///
    /// # Errors
    /// Those of `random`.
    pub fn change(query: &mut [u8], mut random: impl FnMut() -> Result<u16, Errno>) -> Result<Self, Errno> {
        let length = name_bytes(query.get(QUESTION..).unwrap_or_default());
        let name = query.get_mut(QUESTION..QUESTION + length).unwrap_or_default();
        let asked = name.to_vec();
        let (mut bits, mut left) = (0, 0);
        // The length of a label is below 64, so it is no letter.
        for letter in name.iter_mut().filter(|byte| byte.is_ascii_alphabetic()) {
            if left == 0 {
                (bits, left) = (random()?, u16::BITS);
            }
            if bits & 1 == 1 {
                *letter ^= CASE;
            }
            (bits, left) = (bits >> 1, left - 1);
        }
        Ok(Self { asked, sent: name.to_vec() })
    }

    /// Whether a packet repeats the name as it was sent. If so, it and every copy of it stand there
    /// as it was asked for from then on, and so do names that point to it.
    pub fn undo(&self, packet: &mut [u8]) -> bool {
        let length = self.sent.len();
        if packet.get(QUESTION..QUESTION + length) != Some(self.sent.as_slice()) {
            return false;
        }
        let mut at = QUESTION;
        while let Some(name) = packet.get_mut(at..at + length).filter(|_| self.sent != self.asked) {
            if *name == *self.sent {
                name.copy_from_slice(&self.asked);
                at += length;
            } else {
                at += 1;
            }
        }
        true
    }
}

/// The length of a name that a message begins with, without its end.
fn name_bytes(message: &[u8]) -> usize {
    let mut at = 0;
    while let Some(&label) = message.get(at).filter(|&&label| label != 0) {
        at += usize::from(label) + 1;
    }
    at.min(message.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERY: &[u8] =
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03wWw\x0aquick5tart\x04test\x00\x00\x01\x00\x01";

    #[test]
    fn letters_alone_change_and_what_repeats_them_has_them_back() {
        let mut query = QUERY.to_vec();
        let spelling = Spelling::change(&mut query, || Ok(0xffff)).expect("bits");
        assert_eq!(&query[12..32], b"\x03WwW\x0aQUICK5TART\x04TEST", "all bits are set");
        assert_eq!((&query[..12], &query[32..]), (&QUERY[..12], &QUERY[32..]));
        let mut other = query.clone();
        other[13] ^= CASE;
        let before = other.clone();
        assert!(!spelling.undo(&mut other) && other == before);
        let copied = [&query[..], &query[12..32], b"\0\0\x01"].concat();
        let mut undone = copied.clone();
        assert!(spelling.undo(&mut undone));
        assert_eq!(undone, [QUERY, &QUERY[12..32], b"\0\0\x01"].concat());
        assert!(spelling.undo(&mut query));
        assert_eq!(query, QUERY);
        assert!(!spelling.undo(&mut []) && !spelling.undo(&mut query[..20]));
    }

    #[test]
    fn what_is_cut_or_has_no_letters_stays() {
        for query in
            [&b""[..], &QUERY[..12], &QUERY[..14], b"123456789012\x3fab", b"123456789012\x00\x00\x01"]
        {
            let mut changed = query.to_vec();
            let spelling = Spelling::change(&mut changed, || Ok(0)).expect("bits");
            assert_eq!(changed, query);
            assert_eq!(spelling.undo(&mut changed), query.len() >= 12);
        }
        assert_eq!(Spelling::change(&mut QUERY.to_vec(), || Err(Errno::IO)).err(), Some(Errno::IO));
    }
}
