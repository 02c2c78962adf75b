//! A consumer's interpretation of a backend's messages. Decides without waiting.

use rustix::io::Errno;
use thiserror::Error;
use wire::service::{
    DecodeError, Export, HEADER_BYTES, Header, Kind, MAX_ANSWER_BYTES, MAX_CAPSULE_BYTES, MAX_RECORD_BYTES,
    MAX_RESPONSE_BYTES, Phase, VERSION, VERSION_MIN, flags, ready,
};

/// Bytes of a tag in [`Incoming::Leave`].
const TAG_BYTES: usize = 8;
/// The largest errno that Linux knows; a status above it is none.
const MAX_ERRNO: u32 = 4095;

/// A message of a backend.
#[derive(Debug, PartialEq)]
pub enum Incoming<'a> {
    /// First of all: what the service offers.
    Hello(Export),
    /// The answer to a request, an `Open`, a `Control` or a `State`. It may be one that was
    /// cancelled meanwhile.
    Answer(Answer<'a>),
    /// The state of a session changed: keep this for the next backend.
    Capsule {
        /// The session whose state it is.
        session: u64,
        /// The state, in the service's own form.
        capsule: &'a [u8],
    },
    /// A record of a stream.
    Record {
        /// The session.
        session: u64,
        /// Its bytes.
        record: &'a [u8],
        /// The state of the session after it; empty where the service says none.
        capsule: &'a [u8],
    },
    /// The events that poll(2) reports for an open device from now on.
    Ready {
        /// Of which session.
        session: u64,
        /// Bits of [`wire::service::ready`].
        ready: u32,
    },
    /// A stream has ended.
    End {
        /// The session.
        session: u64,
        /// Why; none where there is just nothing more.
        errno: Option<Errno>,
    },
    /// Last of all: the backend takes no more. What it has not answered, it has not taken, but for
    /// these requests.
    Leave {
        /// Their tags, 8 bytes each, little-endian ([`tags`]).
        taken: &'a [u8],
    },
}

/// The tags of [`Incoming::Leave`].
pub fn tags(taken: &[u8]) -> impl Iterator<Item = u64> {
    taken.as_chunks::<TAG_BYTES>().0.iter().map(|tag| u64::from_le_bytes(*tag))
}

/// One whole answer.
#[derive(Debug, PartialEq)]
pub struct Answer<'a> {
    /// The session.
    pub session: u64,
    /// To which request.
    pub tag: u64,
    /// The service's answer.
    pub result: Result<&'a [u8], Errno>,
    /// Where the time went, if the request asked for it.
    pub phases: Vec<Phase>,
}

/// Bytes that no correct backend sends; give the link up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadBackend {
    /// No message at all, or none of this version.
    #[error("the backend's message is not understood")]
    Decode(#[from] DecodeError),
    /// A kind that only consumers send.
    #[error("a backend does not send {0:?}")]
    Kind(Kind),
    /// The greeting does not come first, comes twice, or is not understood.
    #[error("the backend's greeting is missing, doubled or not understood")]
    Hello,
    /// The backend speaks another version.
    #[error(
        "the backend speaks version {0} of the service protocol, versions {VERSION_MIN} to {VERSION} are understood"
    )]
    Version(u32),
    /// The pieces of an answer do not belong together.
    #[error("the pieces of the backend's answer do not belong together")]
    Pieces,
    /// An answer longer than [`MAX_ANSWER_BYTES`].
    #[error("the backend's answer is longer than {MAX_ANSWER_BYTES} bytes")]
    TooLong,
    /// A status that is no errno.
    #[error("the backend's status {0} is no errno")]
    Status(u32),
    /// A record that is too long, or whose parts are not.
    #[error("the backend's record of a stream is too long, or its capsule is")]
    Record,
    /// Readiness with bits that this version does not know, or with a payload.
    #[error("what the backend says for poll is not understood")]
    Ready,
    /// A farewell that is no list of tags.
    #[error("the backend's farewell is not understood")]
    Leave,
}

/// A whole thing, without its bytes.
#[derive(Debug)]
pub enum Whole {
    /// See [`Incoming::Hello`].
    Hello(Export),
    /// See [`Incoming::Answer`].
    Answer(WholeAnswer),
    /// See [`Incoming::Capsule`].
    Capsule {
        /// The session whose state it is.
        session: u64,
    },
    /// See [`Incoming::Record`].
    Record {
        /// The session.
        session: u64,
        /// How many of the message's last bytes are the capsule.
        capsule_bytes: usize,
    },
    /// See [`Incoming::Ready`].
    Ready {
        /// Of which session.
        session: u64,
        /// Its bits.
        ready: u32,
    },
    /// See [`Incoming::End`].
    End {
        /// The session.
        session: u64,
        /// Why.
        errno: Option<Errno>,
    },
    /// See [`Incoming::Leave`].
    Leave,
}

/// An answer without its bytes.
#[derive(Debug)]
pub struct WholeAnswer {
    /// To which request.
    pub tag: u64,
    session: u64,
    status: Result<(), Errno>,
    phases: Vec<Phase>,
    /// Where the bytes are: in the pieces, or so many in the last message.
    bytes: Option<usize>,
}

/// A record of a stream, or the stream's end.
fn record(header: &Header, payload: &[u8]) -> Result<Whole, BadBackend> {
    let session = header.session;
    if header.flags & flags::END != 0 {
        let errno = errno_of(header.status)?;
        return if payload.is_empty() && header.file == 0 {
            Ok(Whole::End { session, errno })
        } else {
            Err(BadBackend::Record)
        };
    }
    let capsule_bytes = header.file as usize;
    let record_bytes = payload.len().checked_sub(capsule_bytes).ok_or(BadBackend::Record)?;
    let fits = record_bytes <= MAX_RECORD_BYTES && capsule_bytes <= MAX_CAPSULE_BYTES;
    if !fits || header.flags != 0 || header.status != 0 {
        return Err(BadBackend::Record);
    }
    Ok(Whole::Record { session, capsule_bytes })
}

/// The errno of a status; none for 0.
fn errno_of(status: u32) -> Result<Option<Errno>, BadBackend> {
    match i32::try_from(status) {
        Ok(0) => Ok(None),
        Ok(errno) if status <= MAX_ERRNO => Ok(Some(Errno::from_raw_os_error(errno))),
        _ => Err(BadBackend::Status(status)),
    }
}

/// Puts answers together.
#[derive(Debug, Default)]
pub struct Assembly {
    greeted: bool,
    /// Of the answer whose next piece must follow: its tag and session.
    expected: Option<(u64, u64)>,
    pieces: Vec<u8>,
}

impl Assembly {
    /// Takes one message; `Ok(None)`: the answer goes on in the next one. The bytes are then lent
    /// by [`Assembly::lend`] and [`Assembly::lend_answer`].
    ///
    /// # Errors
    /// [`BadBackend`].
    pub fn take(&mut self, message: &[u8]) -> Result<Option<Whole>, BadBackend> {
        let (header, payload) = Header::decode(message)?;
        let follows = |expected| header.kind == Kind::Response && expected == (header.tag, header.session);
        if self.expected.is_some_and(|expected| !follows(expected)) {
            return Err(BadBackend::Pieces);
        }
        if !self.greeted {
            return self.hello(&header, payload).map(Some);
        }
        match header.kind {
            Kind::Response => self.response(&header, payload),
            Kind::Capsule if payload.len() <= MAX_CAPSULE_BYTES => {
                Ok(Some(Whole::Capsule { session: header.session }))
            }
            Kind::Capsule => Err(BadBackend::TooLong),
            Kind::Record => record(&header, payload).map(Some),
            Kind::Ready => {
                let known = header.file & !ready::ALL == 0 && header.flags == 0 && header.status == 0;
                if known && payload.is_empty() {
                    Ok(Some(Whole::Ready { session: header.session, ready: header.file }))
                } else {
                    Err(BadBackend::Ready)
                }
            }
            Kind::Leave => {
                let plain = (header.flags, header.status, header.session, header.tag, header.file);
                let fits = payload.len() % TAG_BYTES == 0 && payload.len() <= MAX_RESPONSE_BYTES;
                if plain == (0, 0, 0, 0, 0) && fits { Ok(Some(Whole::Leave)) } else { Err(BadBackend::Leave) }
            }
            Kind::Hello => Err(BadBackend::Hello),
            other => Err(BadBackend::Kind(other)),
        }
    }

    /// Puts the bytes to what [`Assembly::take`] made of `message`, which must be the last one.
    pub fn lend<'a>(&'a self, whole: Whole, message: &'a [u8]) -> Incoming<'a> {
        match whole {
            Whole::Hello(export) => Incoming::Hello(export),
            Whole::Answer(answer) => Incoming::Answer(self.lend_answer(answer, message)),
            Whole::Capsule { session } => {
                Incoming::Capsule { session, capsule: message.get(HEADER_BYTES..).unwrap_or_default() }
            }
            Whole::Record { session, capsule_bytes } => {
                let payload = message.get(HEADER_BYTES..).unwrap_or_default();
                let (record, capsule) =
                    payload.split_at_checked(payload.len() - capsule_bytes).unwrap_or_default();
                Incoming::Record { session, record, capsule }
            }
            Whole::Ready { session, ready } => Incoming::Ready { session, ready },
            Whole::End { session, errno } => Incoming::End { session, errno },
            Whole::Leave => Incoming::Leave { taken: message.get(HEADER_BYTES..).unwrap_or_default() },
        }
    }

    /// The same for an answer.
    pub fn lend_answer<'a>(&'a self, whole: WholeAnswer, message: &'a [u8]) -> Answer<'a> {
        let WholeAnswer { tag, session, status, phases, bytes } = whole;
        let bytes = match bytes {
            Some(bytes) => message.get(HEADER_BYTES..HEADER_BYTES + bytes).unwrap_or_default(),
            None => &self.pieces,
        };
        Answer { session, tag, result: status.map(|()| bytes), phases }
    }

    fn hello(&mut self, header: &Header, payload: &[u8]) -> Result<Whole, BadBackend> {
        if header.kind != Kind::Hello {
            return Err(BadBackend::Hello);
        }
        let export: Export = serde_json::from_slice(payload).map_err(|_| BadBackend::Hello)?;
        if !(VERSION_MIN..=VERSION).contains(&export.version) {
            return Err(BadBackend::Version(export.version));
        }
        self.greeted = true;
        Ok(Whole::Hello(export))
    }

    fn response(&mut self, header: &Header, payload: &[u8]) -> Result<Option<Whole>, BadBackend> {
        let more = header.flags & flags::MORE != 0;
        let traced = header.flags & flags::TRACE != 0;
        if more && (traced || header.status != 0) {
            return Err(BadBackend::Pieces);
        }
        let (bytes, phases) =
            if traced { Phase::split(payload, header.file)? } else { (payload, Vec::new()) };
        let continues = self.expected.is_some();
        if !continues {
            self.pieces.clear();
            // A long answer's memory is not kept for the short ones that follow.
            self.pieces.shrink_to(MAX_RESPONSE_BYTES);
        }
        if more || continues {
            if self.pieces.len() + bytes.len() > MAX_ANSWER_BYTES {
                return Err(BadBackend::TooLong);
            }
            self.pieces.extend_from_slice(bytes);
        }
        self.expected = more.then_some((header.tag, header.session));
        if more {
            return Ok(None);
        }
        let status = errno_of(header.status)?.map_or(Ok(()), Err);
        Ok(Some(Whole::Answer(WholeAnswer {
            tag: header.tag,
            session: header.session,
            status,
            phases,
            bytes: (!continues).then_some(bytes.len()),
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(kind: Kind, flags: u16, tag: u64, file: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short");
        let header = Header { flags, tag, file, length, ..Header::new(kind) };
        [&header.encode()[..], payload].concat()
    }

    /// Takes a message and lends what came of it.
    fn take<'a>(assembly: &'a mut Assembly, message: &'a [u8]) -> Result<Option<Incoming<'a>>, BadBackend> {
        let whole = assembly.take(message)?;
        Ok(whole.map(|whole| assembly.lend(whole, message)))
    }

    fn greeted() -> Assembly {
        let mut assembly = Assembly::default();
        let export = Export { version: VERSION, kind: "echo".into(), files: Vec::new() };
        let hello = message(Kind::Hello, 0, 0, 0, &serde_json::to_vec(&export).expect("json"));
        assert_eq!(take(&mut assembly, &hello), Ok(Some(Incoming::Hello(export))));
        assembly
    }

    #[test]
    fn pieces_become_one_answer_with_the_phases_of_the_last() {
        let mut assembly = greeted();
        assert_eq!(take(&mut assembly, &message(Kind::Response, flags::MORE, 7, 0, b"ab")), Ok(None));
        let mut last = b"cd".to_vec();
        let phases = vec![Phase { phase: 1, nanoseconds: 9 }];
        let trailer = Phase::append(&phases, &mut last);
        let whole = Answer { session: 0, tag: 7, result: Ok(b"abcd"), phases };
        let last = message(Kind::Response, flags::TRACE, 7, trailer, &last);
        assert_eq!(take(&mut assembly, &last), Ok(Some(Incoming::Answer(whole))));
        let short = Answer { session: 0, tag: 8, result: Ok(b"x"), phases: Vec::new() };
        assert_eq!(
            take(&mut assembly, &message(Kind::Response, 0, 8, 0, b"x")),
            Ok(Some(Incoming::Answer(short)))
        );
    }

    #[test]
    fn a_record_comes_with_the_state_after_it_and_a_stream_ends_with_a_reason() {
        let mut assembly = greeted();
        let whole = message(Kind::Record, 0, 0, 3, b"recordcap");
        assert_eq!(
            take(&mut assembly, &whole),
            Ok(Some(Incoming::Record { session: 0, record: b"record", capsule: b"cap" }))
        );
        let end = Header { flags: flags::END, status: 5, ..Header::new(Kind::Record) }.encode();
        let ended = Incoming::End { session: 0, errno: Some(Errno::IO) };
        assert_eq!(take(&mut assembly, &end), Ok(Some(ended)));
        for (flags, file, payload) in [
            (0, 4, &b"abc"[..]),
            (flags::END, 0, b"x"),
            (flags::TRACE, 0, b""),
            (0, 0, &[0; MAX_RECORD_BYTES + 1]),
        ] {
            let wrong = message(Kind::Record, flags, 0, file, payload);
            assert_eq!(take(&mut greeted(), &wrong), Err(BadBackend::Record), "{flags} {file}");
        }
    }

    #[test]
    fn a_farewell_is_a_list_of_tags_and_nothing_else() {
        let hello =
            serde_json::to_vec(&Export { version: VERSION, kind: "x".into(), files: vec![] }).expect("JSON");
        let mut assembly = Assembly::default();
        take(&mut assembly, &message(Kind::Hello, 0, 0, 0, &hello)).expect("a greeting");
        let taken = [7_u64.to_le_bytes(), u64::MAX.to_le_bytes()].concat();
        match take(&mut assembly, &message(Kind::Leave, 0, 0, 0, &taken)) {
            Ok(Some(Incoming::Leave { taken })) => assert_eq!(tags(taken).collect::<Vec<_>>(), [7, u64::MAX]),
            other => panic!("{other:?}"),
        }
        for wrong in [
            message(Kind::Leave, 0, 0, 0, &taken[..15]),
            message(Kind::Leave, flags::MORE, 0, 0, &taken),
            message(Kind::Leave, 0, 1, 0, &taken),
            message(Kind::Leave, 0, 0, 1, &taken),
        ] {
            assert_eq!(take(&mut assembly, &wrong), Err(BadBackend::Leave));
        }
    }

    #[test]
    fn a_backend_that_breaks_the_rules_is_told_which() {
        let response = message(Kind::Response, 0, 1, 0, b"");
        assert_eq!(take(&mut Assembly::default(), &response), Err(BadBackend::Hello));
        assert_eq!(
            take(&mut greeted(), &message(Kind::Close, 0, 0, 0, b"")),
            Err(BadBackend::Kind(Kind::Close))
        );
        let mut assembly = greeted();
        assert_eq!(take(&mut assembly, &message(Kind::Response, flags::MORE, 1, 0, b"a")), Ok(None));
        assert_eq!(take(&mut assembly, &message(Kind::Response, 0, 2, 0, b"b")), Err(BadBackend::Pieces));
        let mut assembly = greeted();
        let piece = message(Kind::Response, flags::MORE, 1, 0, &vec![0; 90 * 1024]);
        let end = (0..20).find_map(|_| take(&mut assembly, &piece).err());
        assert_eq!(end, Some(BadBackend::TooLong));
        let mut refused = Header { status: 5000, ..Header::new(Kind::Response) }.encode();
        assert_eq!(take(&mut greeted(), &refused), Err(BadBackend::Status(5000)));
        refused[4..8].copy_from_slice(&2_u32.to_le_bytes());
        let refusal = Answer { session: 0, tag: 0, result: Err(Errno::NOENT), phases: Vec::new() };
        assert_eq!(take(&mut greeted(), &refused), Ok(Some(Incoming::Answer(refusal))));
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..20)) {
            let mut assembly = greeted();
            for message in &messages {
                if take(&mut assembly, message).is_err() {
                    break;
                }
            }
        }

        #[test]
        fn no_well_formed_message_breaks_it(parts in prop::collection::vec(
            (1_u16..23, 0_u16..8, any::<u8>(), 0_u32..40, prop::collection::vec(any::<u8>(), 0..50)), 0..40)) {
            let mut assembly = greeted();
            for (kind, flags, tag, file, payload) in parts {
                let Ok(kind) = Kind::try_from(kind) else { continue };
                if take(&mut assembly, &message(kind, flags, u64::from(tag % 3), file, &payload)).is_err() {
                    break;
                }
            }
        }
    }
}
