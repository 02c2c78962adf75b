//! The keys of a lane: they come out of the TLS session in which the two sides introduced
//! themselves (RFC 8446, 7.5), and change as it goes on.

use lane::{Open, Seal, Stream};
use ring_crypto::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring_crypto::error::Unspecified;
use ring_crypto::hkdf::{HKDF_SHA256, KeyType, Prk};
use std::io;
use wire::lane::{HEADER_BYTES, KEY_FRAMES_LOG};

/// Bytes of a secret: those of the hash that keys are made with.
const SECRET_BYTES: usize = 32;
/// Of what TLS makes the secrets (RFC 5705): the label is of this protocol alone.
const LABEL: &[u8] = b"EXPORTER-tombolo-lane";

/// So many bytes of key.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand<const N: usize>(secret: &[u8; SECRET_BYTES], what: &[u8]) -> Result<[u8; N], Unspecified> {
    let mut bytes = [0; N];
    let secret = Prk::new_less_safe(HKDF_SHA256, secret);
    secret.expand(&[what], Length(N))?.fill(&mut bytes)?;
    Ok(bytes)
}

/// The key of one epoch: of so many frames in a row.
struct Key {
    epoch: u64,
    key: LessSafeKey,
    mask: [u8; NONCE_LEN],
    secret: [u8; SECRET_BYTES],
}

impl Key {
    fn new(epoch: u64, secret: [u8; SECRET_BYTES]) -> Result<Self, Unspecified> {
        let key = UnboundKey::new(&AES_128_GCM, &expand::<16>(&secret, b"key")?)?;
        Ok(Self { epoch, key: LessSafeKey::new(key), mask: expand(&secret, b"nonce")?, secret })
    }

    fn next(&self) -> Result<Self, Unspecified> {
        Self::new(self.epoch + 1, expand(&self.secret, b"next")?)
    }

    /// Each number of a stream has its own.
    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.mask;
        for (byte, of) in nonce.iter_mut().rev().zip(number.to_le_bytes()) {
            *byte ^= of;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}

/// The keys of one kind of frames in one direction. Those of before can't be made of those of now.
struct Chain {
    before: Option<Key>,
    now: Key,
    after: Option<Key>,
}

impl Chain {
    fn new(secret: [u8; SECRET_BYTES]) -> Result<Self, Unspecified> {
        Ok(Self { before: None, now: Key::new(0, secret)?, after: None })
    }

    /// The key of a number: none but those of this epoch and its neighbours.
    fn key(&mut self, number: u64) -> Option<&Key> {
        let epoch = number >> KEY_FRAMES_LOG;
        if epoch == self.now.epoch + 1 && self.after.is_none() {
            self.after = self.now.next().ok();
        }
        let found = |key: &&Key| key.epoch == epoch;
        [Some(&self.now), self.before.as_ref(), self.after.as_ref()].into_iter().flatten().find(found)
    }

    /// A frame of this number was genuine.
    fn reached(&mut self, number: u64) {
        if number >> KEY_FRAMES_LOG == self.now.epoch + 1
            && let Some(after) = self.after.take()
        {
            self.before = Some(std::mem::replace(&mut self.now, after));
        }
    }
}

/// All keys of one side.
pub(super) struct Keys {
    /// Data, states: outward, then inward.
    out: [Chain; 2],
    inward: [Chain; 2],
}

fn place(stream: Stream) -> usize {
    match stream {
        Stream::Data => 0,
        Stream::State => 1,
    }
}

impl Keys {
    /// Of a TLS session, by what exports its secrets. `connects`: which of the two sides this is.
    ///
    /// # Errors
    /// Where the session exports none.
    pub fn of(
        export: impl Fn(&mut [u8], &[u8], &[u8]) -> Result<(), rustls::Error>,
        connects: bool,
    ) -> io::Result<Self> {
        let chain = |what: &[u8]| -> io::Result<Chain> {
            let mut secret = [0; SECRET_BYTES];
            export(&mut secret, LABEL, what).map_err(io::Error::other)?;
            Chain::new(secret).map_err(|_| io::Error::other("no keys come out of the TLS session"))
        };
        let connecting = [chain(b"connecting data")?, chain(b"connecting state")?];
        let accepting = [chain(b"accepting data")?, chain(b"accepting state")?];
        let (out, inward) = if connects { (connecting, accepting) } else { (accepting, connecting) };
        Ok(Self { out, inward })
    }
}

impl Seal for Keys {
    fn seal(&mut self, stream: Stream, number: u64, frame: &mut Vec<u8>) {
        let Some(chain) = self.out.get_mut(place(stream)) else { return };
        let Some((head, body)) = frame.split_at_mut_checked(HEADER_BYTES) else { return };
        let sealed = chain.key(number).and_then(|key| {
            key.key.seal_in_place_separate_tag(key.nonce(number), Aad::from(head), body).ok()
        });
        chain.reached(number);
        match sealed {
            Some(tag) => frame.extend_from_slice(tag.as_ref()),
            // Only a body longer than any frame can't be sealed; nothing goes out in clear.
            None => frame.clear(),
        }
    }
}

impl Open for Keys {
    fn open<'a>(&mut self, stream: Stream, number: u64, frame: &'a mut [u8]) -> Option<&'a [u8]> {
        let chain = self.inward.get_mut(place(stream))?;
        let (head, body) = frame.split_at_mut_checked(HEADER_BYTES)?;
        let key = chain.key(number)?;
        let opened = key.key.open_in_place(key.nonce(number), Aad::from(head), body).ok()?;
        chain.reached(number);
        Some(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session that exports a hash of what it is asked for.
    fn keys(session: u8, connects: bool) -> Keys {
        let export = move |to: &mut [u8], label: &[u8], context: &[u8]| {
            let mut digest = ring_crypto::digest::Context::new(&ring_crypto::digest::SHA256);
            for part in [&[session][..], label, context] {
                digest.update(part);
            }
            to.copy_from_slice(digest.finish().as_ref());
            Ok(())
        };
        Keys::of(export, connects).unwrap()
    }

    fn frame(body: &[u8]) -> Vec<u8> {
        [&[9; HEADER_BYTES][..], body].concat()
    }

    #[test]
    fn what_is_sealed_is_opened_by_the_other_side_alone() {
        let (mut near, mut far) = (keys(1, true), keys(1, false));
        for stream in [Stream::Data, Stream::State] {
            for number in [0, 1, (1 << KEY_FRAMES_LOG) - 1, 1 << KEY_FRAMES_LOG] {
                let mut sealed = frame(b"a message");
                near.seal(stream, number, &mut sealed);
                assert_eq!(sealed.len(), HEADER_BYTES + 9 + wire::lane::TAG_BYTES);
                assert!(!sealed.windows(9).any(|part| part == b"a message"));
                for (at, bit) in [(0, 1), (HEADER_BYTES, 128), (sealed.len() - 1, 1)] {
                    let mut spoiled = sealed.clone();
                    spoiled[at] ^= bit;
                    assert_eq!(far.open(stream, number, &mut spoiled), None, "{at}");
                }
                assert_eq!(far.open(stream, number + 1, &mut sealed.clone()), None, "another number");
                let other = if stream == Stream::Data { Stream::State } else { Stream::Data };
                assert_eq!(far.open(other, number, &mut sealed.clone()), None, "another kind");
                assert_eq!(near.open(stream, number, &mut sealed.clone()), None, "sent back");
                let mut strange = keys(2, false);
                assert_eq!(strange.open(stream, number, &mut sealed.clone()), None, "another session");
                assert_eq!(far.open(stream, number, &mut sealed), Some(&b"a message"[..]));
            }
        }
    }

    #[test]
    fn keys_go_on_one_by_one_and_what_is_late_is_opened_yet() {
        let (mut near, mut far) = (keys(1, true), keys(1, false));
        let mut sealed = |number| {
            let mut sealed = frame(b"x");
            near.seal(Stream::Data, number, &mut sealed);
            sealed
        };
        let epoch = 1 << KEY_FRAMES_LOG;
        let (mut late, mut next, mut far_away) = (sealed(epoch - 1), sealed(epoch), sealed(2 * epoch));
        assert_eq!(far.open(Stream::Data, 2 * epoch, &mut far_away.clone()), None, "two epochs ahead");
        assert!(far.open(Stream::Data, epoch, &mut next).is_some());
        assert!(far.open(Stream::Data, epoch - 1, &mut late).is_some());
        assert!(far.open(Stream::Data, 2 * epoch, &mut far_away).is_some());
        assert_eq!(far.inward[0].now.epoch, 2);
    }
}
