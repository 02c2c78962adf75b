//! A handle as the ledger keeps it. The layout is in `docs/spec/ledger.md`.

use crate::device::TRANSFER_BYTES_MAX;
use crate::handle::{
    ASKED_BYTES_MAX, Body, COMMANDS_MAX, Entry, Flow, Handle, Last, OUTSTANDING_MAX, Poll, Progress, Session,
    Text, Times, UNREAD_MAX,
};
use crate::ledger::RECORD_BYTES_MAX;
use crate::stream::Stream;
use crate::tree::Node;
use rustix::io::Errno;
use wire::service::{MAX_CAPSULE_BYTES, MAX_REQUEST_BYTES};

/// The head of one request in a record: its kind, its length, and an errno.
const ENTRY_BYTES: usize = 9;
/// A call under way.
const COMMAND_BYTES: usize = 12;
/// The bytes that unread answers leave free in a record: for the fixed fields, the capsule, the
/// heads of the requests, the partial line and the last answer given.
const RESERVE_BYTES: usize = 1024
    + MAX_CAPSULE_BYTES
    + ENTRY_BYTES * (UNREAD_MAX + 2 * OUTSTANDING_MAX)
    + COMMAND_BYTES * COMMANDS_MAX
    + MAX_REQUEST_BYTES
    + TRANSFER_BYTES_MAX;
/// The longest lines that a session can have outstanding: the bound, one more write, and the
/// beginning that waited.
const ASKED_BYTES_WORST: usize = ASKED_BYTES_MAX + TRANSFER_BYTES_MAX + MAX_REQUEST_BYTES;
const _: () = assert!(RESERVE_BYTES + ASKED_BYTES_WORST < RECORD_BYTES_MAX);

/// Kinds of body.
mod body {
    pub(super) const SESSION: u8 = 1;
    pub(super) const TEXT: u8 = 2;
    pub(super) const CONTROL: u8 = 3;
    pub(super) const OWN: u8 = 4;
    pub(super) const STREAM: u8 = 5;
    pub(super) const OFFSETS: u8 = 6;
    pub(super) const DEVICE: u8 = 7;
}

/// Kinds of progress.
mod progress {
    pub(super) const QUEUED: u8 = 0;
    pub(super) const SENT: u8 = 1;
    pub(super) const ANSWERED: u8 = 2;
    pub(super) const FAILED: u8 = 3;
}

/// The bytes of a handle.
pub(crate) fn encode(handle: &Handle) -> Vec<u8> {
    let mut to = Writer(Vec::with_capacity(256));
    to.long(handle.fh);
    to.long(handle.node.number());
    for word in [handle.flags, handle.uid, handle.gid, handle.pid] {
        to.word(word);
    }
    to.byte(u8::from(handle.opened) | u8::from(handle.idempotent) << 1);
    to.byte(u8::from(handle.poll.is_some()));
    to.long(handle.poll.map_or(0, |poll| poll.handle));
    to.word(handle.poll.map_or(0, |poll| poll.events));
    to.long(handle.last.unique);
    to.word(handle.last.errno.cast_unsigned());
    to.bytes(&handle.last.payload);
    let commands = handle.commands.get(..COMMANDS_MAX).unwrap_or(&handle.commands);
    to.byte(commands.len() as u8);
    // Room for one is always there.
    let none = [(0, 0)];
    for &(unique, done) in if commands.is_empty() { &none[..] } else { commands } {
        to.long(unique);
        to.word(done);
    }
    match &handle.body {
        Body::Session(session) => encode_session(session, &mut to),
        Body::Text(_, false) => to.byte(body::TEXT),
        Body::Text(_, true) => to.byte(body::CONTROL),
        Body::Own(_) => to.byte(body::OWN),
    }
    to.0
}

fn encode_session(session: &Session, to: &mut Writer) {
    let taken = match &session.flow {
        Flow::Lines => {
            to.byte(body::SESSION);
            session.taken
        }
        Flow::Offsets => {
            to.byte(body::OFFSETS);
            session.taken
        }
        // The next backend says anew what poll(2) says.
        Flow::Device(_) => {
            to.byte(body::DEVICE);
            session.taken
        }
        // Records that are not read yet come again: after the state that the session is in now.
        Flow::Stream(stream) => {
            to.byte(body::STREAM);
            for errno in [stream.ended, stream.refused, stream.lost] {
                to.word(errno.map_or(u32::MAX, i32::cast_unsigned));
            }
            stream.taken
        }
    };
    to.bytes(&session.capsule);
    to.bytes(&session.partial);
    to.byte(u8::from(session.end_due));
    to.word(taken as u32);
    to.word(session.entries.len() as u32);
    let mut budget = (RECORD_BYTES_MAX - RESERVE_BYTES).saturating_sub(session.asked_bytes());
    for entry in &session.entries {
        match &entry.progress {
            Progress::Queued => to.part(progress::QUEUED, &entry.line),
            Progress::Sent(_) => to.part(progress::SENT, &entry.line),
            Progress::Failed(errno) => to.part(progress::FAILED, &errno.to_le_bytes()),
            Progress::Answered(answer) if answer.len() <= budget => {
                budget -= answer.len();
                to.part(progress::ANSWERED, answer);
            }
            // Rather an honest error than half an answer.
            Progress::Answered(_) => to.part(progress::FAILED, &Errno::IO.raw_os_error().to_le_bytes()),
        }
    }
}

/// The handle in `bytes`; `None` if they are none.
pub(crate) fn decode(bytes: &[u8]) -> Option<Handle> {
    let mut from = Reader(bytes);
    let (fh, node) = (from.long()?, Node::from_number(from.long()?)?);
    let (flags, uid, gid, pid) = (from.word()?, from.word()?, from.word()?, from.word()?);
    let bits = from.byte()?;
    if bits > 3 {
        return None;
    }
    let (opened, idempotent) = (bits & 1 != 0, bits & 2 != 0);
    let polled = from.flag()?;
    let poll = Poll { handle: from.long()?, events: from.word()?, seen: 0 };
    let last =
        Last { unique: from.long()?, errno: from.word()?.cast_signed(), payload: from.bytes()?.to_vec() };
    let count = usize::from(from.byte()?);
    if count > COMMANDS_MAX {
        return None;
    }
    let mut commands = Vec::with_capacity(count.max(1));
    for _ in 0..count.max(1) {
        commands.push((from.long()?, from.word()?));
    }
    commands.truncate(count);
    let body = match from.byte()? {
        body::SESSION => Body::Session(Box::new(decode_session(&mut from)?)),
        body::OFFSETS => {
            Body::Session(Box::new(Session { flow: Flow::Offsets, ..decode_session(&mut from)? }))
        }
        body::DEVICE => {
            Body::Session(Box::new(Session { flow: Flow::Device(0), ..decode_session(&mut from)? }))
        }
        body::STREAM => Body::Session(Box::new(decode_stream(&mut from)?)),
        body::TEXT => Body::Text(Text::default(), false),
        body::CONTROL => Body::Text(Text::default(), true),
        body::OWN => Body::Own(Vec::new()),
        _ => return None,
    };
    let poll = polled.then_some(poll);
    let whole = from.0.is_empty();
    let (calls, open_ns, held, dirty) = (Vec::new(), 0, 0, false);
    let handle = Handle {
        fh,
        node,
        flags,
        idempotent,
        passes: false,
        uid,
        gid,
        pid,
        opened,
        open_ns,
        poll,
        last,
        commands,
        calls,
        body,
        held,
        dirty,
    };
    whole.then_some(handle)
}

fn decode_session(from: &mut Reader<'_>) -> Option<Session> {
    let mut session = Session {
        capsule: from.bytes()?.to_vec(),
        partial: from.bytes()?.to_vec(),
        end_due: from.flag()?,
        taken: from.word()? as usize,
        ..Session::default()
    };
    for _ in 0..from.word()? {
        let (kind, part) = (from.byte()?, from.bytes()?);
        let (progress, line) = match kind {
            progress::QUEUED => (Progress::Queued, part.to_vec()),
            // Whoever gets it has no such tag: 0 is none's.
            progress::SENT => (Progress::Sent(0), part.to_vec()),
            progress::ANSWERED => (Progress::Answered(part.to_vec()), Vec::new()),
            progress::FAILED => (Progress::Failed(i32::from_le_bytes(part.try_into().ok()?)), Vec::new()),
            _ => return None,
        };
        session.entries.push_back(Entry { line, progress, deadline: 0, times: Times::default() });
    }
    Some(session)
}

fn decode_stream(from: &mut Reader<'_>) -> Option<Session> {
    let mut errno = || from.word().map(|word| (word != u32::MAX).then_some(word.cast_signed()));
    let (ended, refused, lost) = (errno()?, errno()?, errno()?);
    let mut session = decode_session(from)?;
    let taken = std::mem::take(&mut session.taken);
    let latest = session.capsule.clone();
    let mut stream = Stream::default();
    (stream.ended, stream.refused, stream.lost) = (ended, refused, lost);
    (stream.taken, stream.latest) = (taken, latest);
    session.flow = Flow::Stream(Box::new(stream));
    Some(session)
}

struct Writer(Vec<u8>);

impl Writer {
    fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    fn word(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn long(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, value: &[u8]) {
        self.word(value.len() as u32);
        self.0.extend_from_slice(value);
    }

    fn part(&mut self, kind: u8, value: &[u8]) {
        self.byte(kind);
        self.bytes(value);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.word()? as usize;
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::UNREAD_BYTES_MAX;

    fn handle(body: Body) -> Handle {
        Handle {
            fh: 7 << 32 | 3,
            node: Node::File(1, 2),
            flags: 2,
            idempotent: true,
            passes: false,
            uid: 1000,
            gid: 1001,
            pid: 42,
            opened: true,
            open_ns: 0,
            poll: Some(Poll { handle: 99, events: 1, seen: 0 }),
            last: Last { unique: 12, errno: 110, payload: b"payload".to_vec() },
            commands: vec![(44, 2), (46, 0)],
            calls: Vec::new(),
            body,
            held: 0,
            dirty: false,
        }
    }

    fn session() -> Session {
        let mut session =
            Session { capsule: b"sealed".to_vec(), partial: b"par".to_vec(), ..Session::default() };
        for progress in
            [Progress::Answered(b"one".to_vec()), Progress::Failed(5), Progress::Sent(0), Progress::Queued]
        {
            session.ask(b"line".to_vec(), 0, 0);
            if let Some(entry) = session.entries.back_mut() {
                entry.progress = progress;
                if !matches!(entry.progress, Progress::Sent(_) | Progress::Queued) {
                    entry.line.clear();
                }
            }
        }
        session.taken = 2;
        session
    }

    fn stream() -> Session {
        let capsule = b"sealed".to_vec();
        let mut stream = Stream::default();
        (stream.taken, stream.latest) = (3, capsule.clone());
        (stream.ended, stream.refused) = (Some(0), Some(11));
        Session { flow: Flow::Stream(Box::new(stream)), taken: 0, capsule, ..session() }
    }

    #[test]
    fn a_handle_survives_the_ledger() {
        for body in [
            Body::Session(Box::new(session())),
            Body::Session(Box::new(Session { flow: Flow::Offsets, ..session() })),
            Body::Session(Box::new(Session { flow: Flow::Device(0), ..session() })),
            Body::Session(Box::new(stream())),
            Body::Text(Text::default(), false),
            Body::Text(Text::default(), true),
            Body::Own(Vec::new()),
        ] {
            let handle = handle(body);
            assert_eq!(decode(&encode(&handle)), Some(handle));
        }
    }

    #[test]
    fn no_prefix_of_a_record_is_a_record() {
        let bytes = encode(&handle(Body::Session(Box::new(session()))));
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None, "cut at {cut}");
        }
        assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
    }

    #[test]
    fn the_fullest_session_fits_a_slot() {
        let mut full = Session {
            capsule: vec![1; MAX_CAPSULE_BYTES],
            partial: vec![b'x'; MAX_REQUEST_BYTES],
            ..Session::default()
        };
        for _ in 0..OUTSTANDING_MAX {
            full.ask(vec![b'l'; ASKED_BYTES_WORST / OUTSTANDING_MAX], 0, 0);
        }
        for at in 0..UNREAD_MAX {
            full.ask(Vec::new(), 0, 0);
            if let Some(entry) = full.entries.back_mut() {
                entry.progress = match at % 2 {
                    0 => Progress::Answered(vec![b'a'; UNREAD_BYTES_MAX / 256]),
                    _ => Progress::Failed(5),
                };
            }
        }
        let mut handle = handle(Body::Session(Box::new(full)));
        handle.last.payload = vec![0; TRANSFER_BYTES_MAX];
        handle.commands = vec![(1, 2); COMMANDS_MAX];
        let bytes = encode(&handle);
        assert!(bytes.len() <= RECORD_BYTES_MAX, "{} bytes", bytes.len());
        assert!(decode(&bytes).is_some());
    }
}
