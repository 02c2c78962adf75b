//! Records of TLS 1.3 (RFC 8446, 5) when the handshake is over: sealed in the place from which they go out, opened where they came. The handshake is
//! rustls', and so are all secrets; the ciphers are those of *ring*.

use ring_crypto::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::kernel::KernelConnection;
use rustls::{AlertDescription, ConnectionTrafficSecrets, ContentType, Error, HandshakeType, InvalidMessage};

/// In front of a record's body.
pub(crate) const HEADER_BYTES: usize = 5;
/// Most bytes that one record carries.
pub(crate) const CARRIED_BYTES_MAX: usize = 1 << 14;
/// The bytes of a record beside its content: its header, its kind, the tag.
pub(crate) const EXTRA_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;
const TAG_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;
/// Longest body that may come.
const BODY_BYTES_MAX: usize = CARRIED_BYTES_MAX + 256;
/// A key is for so many records: half of what is safe for records of AES-GCM that are full (RFC 8446, 5.5).
const KEY_RECORDS_MAX: u64 = 1 << 23;
/// Another key comes after so many records at the earliest, but for the first few: each costs as much as some records.
const REKEY_RECORDS_MIN: u64 = 64;
const REKEYS_MAX: u32 = 16;

/// The alert that ends a connection in an orderly way.
const CLOSE_NOTIFY: u8 = 0;
/// The alert that says nothing.
const USER_CANCELED: u8 = 90;

/// The source of the secrets that follow.
pub(crate) trait Secrets: Send {
    fn next_outward(&mut self) -> Result<ConnectionTrafficSecrets, Error>;
    fn next_inward(&mut self) -> Result<ConnectionTrafficSecrets, Error>;
}

impl<Data: Send> Secrets for KernelConnection<Data> {
    fn next_outward(&mut self) -> Result<ConnectionTrafficSecrets, Error> {
        self.update_tx_secret().map(|(_, secrets)| secrets)
    }

    fn next_inward(&mut self) -> Result<ConnectionTrafficSecrets, Error> {
        self.update_rx_secret().map(|(_, secrets)| secrets)
    }
}

/// A key, and how many records it was used for.
struct Key {
    key: LessSafeKey,
    mask: [u8; NONCE_BYTES],
    number: u64,
}

impl Key {
    fn new(secrets: &ConnectionTrafficSecrets, number: u64) -> Result<Self, Error> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(Error::General("a cipher that nobody has offered".into())),
        };
        let key = UnboundKey::new(algorithm, key.as_ref());
        let mask = <[u8; NONCE_BYTES]>::try_from(iv.as_ref());
        match (key, mask) {
            (Ok(key), Ok(mask)) => Ok(Self { key: LessSafeKey::new(key), mask, number }),
            _ => Err(Error::General("a key of another length than its cipher's".into())),
        }
    }

    /// Returns the nonce of the next record. None is used twice: a connection ends long before the numbers do.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.mask;
        for (byte, number) in nonce.iter_mut().skip(NONCE_BYTES - 8).zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        self.number += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Seals records that go out.
pub(crate) struct Sealer(Key);

impl Sealer {
    /// `number`: of the next record.
    pub fn new(secrets: &ConnectionTrafficSecrets, number: u64) -> Result<Self, Error> {
        Key::new(secrets, number).map(Self)
    }

    /// It is time for another key.
    pub fn is_worn(&self) -> bool {
        self.0.number >= KEY_RECORDS_MAX
    }

    /// Begins a record behind what is there; what it carries is put behind that.
    pub fn begin(record: &mut Vec<u8>) {
        record.extend_from_slice(&[0; HEADER_BYTES]);
    }

    /// Ends the record that begins at `start`.
    pub fn end(&mut self, kind: ContentType, records: &mut Vec<u8>, start: usize) -> Result<(), Error> {
        records.push(u8::from(kind));
        let length = records.len().saturating_sub(start + HEADER_BYTES) + TAG_BYTES;
        let Some(sealed) = u16::try_from(length).ok().filter(|_| length <= CARRIED_BYTES_MAX + 1 + TAG_BYTES)
        else {
            return Err(Error::General("more than a record carries".into()));
        };
        let nonce = self.0.nonce();
        let Some((header, body)) =
            records.get_mut(start..).and_then(|record| record.split_first_chunk_mut::<HEADER_BYTES>())
        else {
            return Err(Error::General("a record that was not begun".into()));
        };
        let [high, low] = sealed.to_be_bytes();
        *header = [u8::from(ContentType::ApplicationData), 3, 3, high, low];
        let tag = self.0.key.seal_in_place_separate_tag(nonce, Aad::from(*header), body);
        let tag = tag.map_err(|_| Error::EncryptError)?;
        records.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Appends a whole record.
    pub fn whole(&mut self, kind: ContentType, carried: &[u8], records: &mut Vec<u8>) -> Result<(), Error> {
        let start = records.len();
        Self::begin(records);
        records.extend_from_slice(carried);
        self.end(kind, records, start)
    }

    /// Appends the word that another key follows, and goes on with it.
    pub fn rekey(&mut self, secrets: &mut dyn Secrets, records: &mut Vec<u8>) -> Result<(), Error> {
        self.whole(ContentType::Handshake, &[u8::from(HandshakeType::KeyUpdate), 0, 0, 1, 0], records)?;
        self.0 = Key::new(&secrets.next_outward()?, 0)?;
        Ok(())
    }
}

/// The content of a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened<'a> {
    Data(&'a [u8]),
    /// The other side goes on with another key. True: it wants as much of this one.
    Rekeyed(bool),
    /// Nothing follows.
    Ended,
    /// It is to be passed over.
    Nothing,
}

/// Opens records that come.
pub(crate) struct Opener {
    key: Key,
    rekeys: u32,
}

impl Opener {
    /// `number`: of the next record.
    pub fn new(secrets: &ConnectionTrafficSecrets, number: u64) -> Result<Self, Error> {
        Ok(Self { key: Key::new(secrets, number)?, rekeys: 0 })
    }

    /// How long the first record of `bytes` is; `None`: it is not whole.
    pub fn length(bytes: &[u8]) -> Result<Option<usize>, Error> {
        let Some([kind, _, _, high, low]) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        if *kind != u8::from(ContentType::ApplicationData) {
            return Err(InvalidMessage::InvalidContentType.into());
        }
        let body = usize::from(u16::from_be_bytes([*high, *low]));
        if body > BODY_BYTES_MAX {
            return Err(Error::PeerSentOversizedRecord);
        }
        Ok(Some(HEADER_BYTES + body).filter(|length| *length <= bytes.len()))
    }

    /// Opens a whole record where it is. Nothing may be opened after an error.
    pub fn open<'a>(&mut self, record: &'a mut [u8], secrets: &mut dyn Secrets) -> Result<Opened<'a>, Error> {
        let Some((header, body)) = record.split_first_chunk_mut::<HEADER_BYTES>() else {
            return Err(InvalidMessage::MessageTooShort.into());
        };
        let nonce = self.key.nonce();
        let opened = self.key.key.open_in_place(nonce, Aad::from(*header), body);
        let plain: &[u8] = opened.map_err(|_| Error::DecryptError)?;
        // Behind the kind may be zeros, which say nothing.
        let end = plain.iter().rposition(|byte| *byte != 0);
        let Some((kind, carried)) = end.and_then(|end| Some((*plain.get(end)?, plain.get(..end)?))) else {
            return Err(InvalidMessage::InvalidContentType.into());
        };
        if carried.len() > CARRIED_BYTES_MAX {
            return Err(Error::PeerSentOversizedRecord);
        }
        match ContentType::from(kind) {
            ContentType::ApplicationData => Ok(Opened::Data(carried)),
            ContentType::Alert => alert(carried),
            ContentType::Handshake => self.handshake(carried, secrets),
            got_type => {
                let expect_types = vec![ContentType::ApplicationData];
                Err(Error::InappropriateMessage { expect_types, got_type })
            }
        }
    }

    /// Takes a message that may follow a handshake: other keys. Tickets are passed over: nobody
    /// resumes a session.
    fn handshake(&mut self, said: &[u8], secrets: &mut dyn Secrets) -> Result<Opened<'static>, Error> {
        let Some(([kind, _, high, low], content)) = said.split_first_chunk() else {
            return Err(InvalidMessage::MessageTooShort.into());
        };
        match (HandshakeType::from(*kind), content) {
            (HandshakeType::KeyUpdate, [wants @ (0 | 1)]) if (*high, *low) == (0, 1) => {
                if self.key.number < REKEY_RECORDS_MIN {
                    self.rekeys += 1;
                }
                if self.rekeys > REKEYS_MAX {
                    return Err(Error::General("the other side changes keys for nothing".into()));
                }
                self.key = Key::new(&secrets.next_inward()?, 0)?;
                Ok(Opened::Rekeyed(*wants == 1))
            }
            (HandshakeType::KeyUpdate, _) => Err(InvalidMessage::InvalidKeyUpdate.into()),
            (HandshakeType::NewSessionTicket, _) => Ok(Opened::Nothing),
            (got_type, _) => {
                let expect_types = vec![HandshakeType::KeyUpdate, HandshakeType::NewSessionTicket];
                Err(Error::InappropriateHandshakeMessage { expect_types, got_type })
            }
        }
    }
}

fn alert(said: &[u8]) -> Result<Opened<'static>, Error> {
    match said {
        [_, CLOSE_NOTIFY] => Ok(Opened::Ended),
        [_, USER_CANCELED] => Ok(Opened::Nothing),
        [_, what] => Err(Error::AlertReceived(AlertDescription::from(*what))),
        _ => Err(InvalidMessage::MessageTooShort.into()),
    }
}

/// The content of an alert that ends a connection in an orderly way.
pub(crate) fn close_notify() -> [u8; 2] {
    [1, CLOSE_NOTIFY]
}

/// The content of the alert that tells the other side of an error; `None`: it has told us.
pub(crate) fn alert_of(error: &Error) -> Option<[u8; 2]> {
    let what = match error {
        Error::AlertReceived(_) => return None,
        Error::DecryptError => AlertDescription::BadRecordMac,
        Error::PeerSentOversizedRecord => AlertDescription::RecordOverflow,
        Error::InvalidMessage(_) => AlertDescription::DecodeError,
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            AlertDescription::UnexpectedMessage
        }
        _ => AlertDescription::InternalError,
    };
    Some([2, u8::from(what)])
}

#[cfg(test)]
mod tests;
