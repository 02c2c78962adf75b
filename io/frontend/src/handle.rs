//! One open file: what it is, what it waits for, and what a successor has to know of it.

use std::collections::VecDeque;

use rustix::io::Errno;
use wire::service::{MAX_REQUEST_BYTES, Phase, ready};

use crate::stream::Stream;
use crate::tree::Node;

/// Requests that one session may have asked and not been answered.
pub(crate) const OUTSTANDING_MAX: usize = 64;
/// Bytes of request lines that one session may have outstanding before it may not ask more. The
/// write that passes it is taken, so that the longest line always can be.
pub(crate) const ASKED_BYTES_MAX: usize = MAX_REQUEST_BYTES;
/// Calls under way that the ledger remembers of one open file, as many as it may have requests
/// outstanding: further ioctls wait for one to end, and of further control writes a successor does
/// not know how far they came.
pub(crate) const COMMANDS_MAX: usize = OUTSTANDING_MAX;
/// Answers (errors and empty ones count) that one session may leave unread; then nothing more may
/// be asked.
pub(crate) const UNREAD_MAX: usize = 1024;
/// Bytes of answers that one session may leave unread; then nothing more may be asked.
pub(crate) const UNREAD_BYTES_MAX: usize = 256 * 1024;

/// The reply to the last answered call of a handle, for the case that the kernel asks again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Last {
    pub(crate) unique: u64,
    pub(crate) errno: i32,
    pub(crate) payload: Vec<u8>,
}

/// Where a session stands with the backend that is there now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It has never heard of the session; it is to be told at once.
    Lost,
    /// It refused the session; it is asked again when there is something to ask.
    Refused,
    /// `Open` is on its way.
    Opening,
    /// It has answered `Open`.
    Open,
}

/// How far one request is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Not with a backend yet.
    Queued,
    /// With a backend, under this tag.
    Sent(u64),
    Answered(Vec<u8>),
    Failed(i32),
}

/// Clock readings of one request, in ns; 0 where it has not come to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) asked: u64,
    pub(crate) sent: u64,
    pub(crate) answered: u64,
    /// When `write` was answered.
    pub(crate) accepted: u64,
    pub(crate) phases: Option<Vec<Phase>>,
}

/// One request of a session, from its line to the last byte of its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The request; dropped when it is answered.
    pub(crate) line: Vec<u8>,
    pub(crate) progress: Progress,
    /// Until when it waits for a backend, in ns of the monotonic clock.
    pub(crate) deadline: u64,
    pub(crate) times: Times,
}

/// The meaning of reads and writes of a session file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Lines are asked, and their answers are read.
    #[default]
    Lines,
    /// Records come by themselves, and go.
    Stream(Box<Stream>),
    /// Bytes at offsets.
    Offsets,
    /// As the backend of a device does it. What poll(2) says, in the bits of
    /// [`wire::service::ready`].
    Device(u32),
}

impl Flow {
    /// Whether each read and write goes to the backend by itself.
    pub(crate) fn is_transferred(&self) -> bool {
        matches!(self, Self::Offsets | Self::Device(_))
    }
}

/// The state of an open session file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) flow: Flow,
    pub(crate) standing: Standing,
    /// The sealed state that the next backend gets.
    pub(crate) capsule: Vec<u8>,
    /// A newer one that counts as soon as the request that caused it is answered.
    pub(crate) capsule_next: Option<Vec<u8>>,
    pub(crate) partial: Vec<u8>,
    pub(crate) entries: VecDeque<Entry>,
    /// Bytes of the first answer that are read already.
    pub(crate) taken: usize,
    /// Something was read since the last end of file: the next one is worth a wake-up.
    pub(crate) end_due: bool,
    /// Parked reads and writes, in the order of their coming.
    pub(crate) readers: VecDeque<u64>,
    pub(crate) writers: VecDeque<u64>,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            flow: Flow::Lines,
            standing: Standing::Lost,
            capsule: Vec::new(),
            capsule_next: None,
            partial: Vec::new(),
            entries: VecDeque::new(),
            taken: 0,
            end_due: false,
            readers: VecDeque::new(),
            writers: VecDeque::new(),
        }
    }
}

impl Session {
    fn waits(entry: &&Entry) -> bool {
        matches!(entry.progress, Progress::Queued | Progress::Sent(_))
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.entries.iter().filter(Self::waits).count()
    }

    pub(crate) fn asked_bytes(&self) -> usize {
        self.entries.iter().filter(Self::waits).map(|entry| entry.line.len()).sum()
    }

    /// Memory that programs or the backend made the session hold.
    pub(crate) fn held_bytes(&self) -> usize {
        let answers = self.entries.iter().map(|entry| match &entry.progress {
            Progress::Answered(answer) => answer.len(),
            _ => entry.line.len(),
        });
        self.partial.len() + answers.sum::<usize>()
    }

    pub(crate) fn unread_bytes(&self) -> usize {
        let answers = self.entries.iter().map(|entry| match &entry.progress {
            Progress::Answered(answer) => answer.len(),
            _ => 0,
        });
        answers.sum::<usize>().saturating_sub(self.taken)
    }

    /// Whether somebody has to read before more may be asked.
    pub(crate) fn is_unread(&self) -> bool {
        self.unread_bytes() >= UNREAD_BYTES_MAX || self.entries.len() - self.outstanding() >= UNREAD_MAX
    }

    /// Lines that may be asked now.
    pub(crate) fn room(&self) -> usize {
        if self.is_unread() || self.asked_bytes() >= ASKED_BYTES_MAX {
            return 0;
        }
        OUTSTANDING_MAX.saturating_sub(self.outstanding())
    }

    pub(crate) fn ask(&mut self, line: Vec<u8>, asked: u64, deadline: u64) {
        let times = Times { asked, ..Times::default() };
        self.entries.push_back(Entry { line, progress: Progress::Queued, deadline, times });
        self.end_due = false;
    }

    /// The next that a read would give, or `None` where it would wait. Empty answers are nobody's
    /// end of file: they are dropped here.
    pub(crate) fn read(&mut self, size: usize) -> Option<Taken> {
        loop {
            let Some(first) = self.entries.front_mut() else {
                self.end_due = false;
                return Some(Taken { bytes: Vec::new(), errno: 0, finished: None });
            };
            let (bytes, errno, whole) = match &first.progress {
                Progress::Queued | Progress::Sent(_) => return None,
                Progress::Failed(errno) => (Vec::new(), *errno, true),
                Progress::Answered(answer) => {
                    let rest = answer.get(self.taken..).unwrap_or_default();
                    let piece = rest.get(..size).unwrap_or(rest);
                    (piece.to_vec(), 0, piece.len() == rest.len())
                }
            };
            self.taken += bytes.len();
            let finished = if whole { self.entries.pop_front().map(|entry| entry.times) } else { None };
            if whole {
                self.taken = 0;
            }
            if errno != 0 || !bytes.is_empty() || size == 0 {
                self.end_due = true;
                return Some(Taken { bytes, errno, finished });
            }
        }
    }

    /// Whether a write is a record that waits for its answer. Until the backend of a stream has
    /// said so anew, one that may be such a stream is taken for it.
    pub(crate) fn waits_for_answers(&self) -> bool {
        match &self.flow {
            Flow::Stream(stream) => stream.adopted || stream.writes_wait(),
            _ => false,
        }
    }

    /// Keeps what the backend said of the session's state.
    pub(crate) fn keep(&mut self, capsule: Vec<u8>) {
        if !self.stream().is_some_and(|stream| stream.renew(&capsule)) {
            self.capsule = capsule;
        }
    }

    pub(crate) fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.flow {
            Flow::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    pub(crate) fn readable(&self) -> bool {
        match &self.flow {
            Flow::Lines => {}
            Flow::Stream(stream) => return stream.readable(),
            Flow::Offsets => return true,
            Flow::Device(bits) => return bits & ready::READ != 0,
        }
        match self.entries.front().map(|entry| &entry.progress) {
            None => self.end_due,
            Some(Progress::Queued | Progress::Sent(_)) => false,
            Some(_) => true,
        }
    }
}

/// The result of one read of a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) bytes: Vec<u8>,
    pub(crate) errno: i32,
    /// The clock readings of a request whose answer is read out with it.
    pub(crate) finished: Option<Times>,
}

/// The state of an open file with a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Text {
    /// The text that reads return; `None` until it was fetched.
    pub(crate) text: Option<Result<Vec<u8>, Errno>>,
    /// The tag it is being fetched under.
    pub(crate) fetching: Option<u64>,
    /// Whether a fetch is wanted and could not be sent yet.
    pub(crate) wanted: bool,
    /// Until when a wanted fetch waits for a backend.
    pub(crate) deadline: u64,
    /// Parked opens and reads that wait for it.
    pub(crate) waiting: Vec<u64>,
}

/// Somebody who polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Poll {
    /// The kernel's name for it.
    pub(crate) handle: u64,
    /// The awaited events, and those reported last: bits of poll(2).
    pub(crate) events: u32,
    pub(crate) seen: u32,
}

impl Poll {
    /// One more poller of the same open file, which is told `ready`. The kernel has one name for
    /// all pollers of an open file, and wakes all of them at once: whoever polled before waits on
    /// for what it waits for.
    pub(crate) fn joined(before: Option<Poll>, handle: u64, events: u32, ready: u32) -> Poll {
        match before {
            Some(before) => {
                // What only the newcomer was told is news for who waited before.
                let seen = ready & (before.seen | !before.events);
                Poll { handle, events: before.events | events, seen }
            }
            None => Poll { handle, events, seen: ready },
        }
    }
}

/// `POLLIN | POLLRDNORM`.
pub(crate) const READABLE: u32 = 0x41;
/// `POLLOUT | POLLWRNORM`.
pub(crate) const WRITABLE: u32 = 0x104;
/// `POLLPRI`.
const PRIORITY: u32 = 0x2;
/// `POLLERR`.
const ERROR: u32 = 0x8;

/// Returns the events that poll(2) reports for a device whose backend has stated `bits` of
/// [`ready`].
fn events_of(bits: u32) -> u32 {
    let events = [
        (ready::READ, READABLE),
        (ready::WRITE, WRITABLE),
        (ready::PRIORITY, PRIORITY),
        (ready::ERROR, ERROR),
    ];
    events.iter().filter(|(bit, _)| bits & bit != 0).fold(0, |all, (_, events)| all | events)
}

/// The object behind a handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    Session(Box<Session>),
    /// A `Text` file, or with `true` a `Control` file.
    Text(Text, bool),
    /// A file of `/srv/self`, as it was when it was opened.
    Own(Vec<u8>),
}

/// One open file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Handle {
    /// Slot and generation; the session's number too.
    pub(crate) fh: u64,
    pub(crate) node: Node,
    /// Flags of open(2).
    pub(crate) flags: u32,
    /// Whether what was asked of it may be asked again.
    pub(crate) idempotent: bool,
    /// Whether it ends with the frontend, and so is not in the ledger: a client of 9P has it.
    pub(crate) passes: bool,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
    /// Whether `open` has returned: before that, nobody has the handle.
    pub(crate) opened: bool,
    pub(crate) open_ns: u64,
    /// The outstanding poll, if there is one.
    pub(crate) poll: Option<Poll>,
    pub(crate) last: Last,
    /// Calls under way that a successor must not make again: control writes with their lines that
    /// are done, and ioctls of files of which nothing may be asked twice.
    pub(crate) commands: Vec<(u64, u32)>,
    /// Parked opens, ioctls and control writes.
    pub(crate) calls: Vec<u64>,
    pub(crate) body: Body,
    /// Bytes that it holds, as counted into the frontend's sum.
    pub(crate) held: usize,
    /// Whether the ledger has to hear of the handle.
    pub(crate) dirty: bool,
}

impl Handle {
    pub(crate) fn service(&self) -> Option<usize> {
        match self.node {
            Node::File(service, _) => Some(service),
            _ => None,
        }
    }

    pub(crate) fn session(&mut self) -> Option<&mut Session> {
        match &mut self.body {
            Body::Session(session) => Some(session),
            _ => None,
        }
    }

    /// Bytes that the handle holds on behalf of others.
    pub(crate) fn held_bytes(&self) -> usize {
        let body = match &self.body {
            Body::Session(session) => session.held_bytes(),
            Body::Text(Text { text: Some(Ok(text)), .. }, _) | Body::Own(text) => text.len(),
            Body::Text(..) => 0,
        };
        body + self.last.payload.len()
    }

    /// Notes how many lines of a control write are done.
    pub(crate) fn commanded(&mut self, key: u64, done: u32) {
        match self.commands.iter_mut().find(|(other, _)| *other == key) {
            Some((_, before)) => *before = done,
            None => self.commands.push((key, done)),
        }
        self.dirty = true;
    }

    /// Notes an ioctl that is about to be made. False: no more can be noted, of those that are
    /// under way (`lives`) and can't be forgotten.
    pub(crate) fn begun(&mut self, key: u64, lives: impl Fn(u64) -> bool) -> bool {
        if self.commands.len() >= COMMANDS_MAX {
            // Of a predecessor's, whose callers have not come again.
            self.commands.retain(|&(other, _)| lives(other));
        }
        let there_is_room = self.commands.len() < COMMANDS_MAX;
        if there_is_room {
            self.commanded(key, 0);
        }
        there_is_room
    }

    /// A call is not under way any more; the lines of it that are done, if it was.
    pub(crate) fn ended(&mut self, key: u64) -> Option<u32> {
        let at = self.commands.iter().position(|(other, _)| *other == key)?;
        self.dirty = true;
        Some(self.commands.remove(at).1)
    }

    pub(crate) fn text(&mut self) -> Option<&mut Text> {
        match &mut self.body {
            Body::Text(text, _) => Some(text),
            _ => None,
        }
    }

    /// Returns the events that poll(2) reports.
    pub(crate) fn ready(&self) -> u32 {
        match &self.body {
            Body::Session(session) => {
                if let Flow::Device(bits) = session.flow {
                    return events_of(bits);
                }
                let readable = if session.readable() { READABLE } else { 0 };
                let is_free = session.flow == Flow::Offsets || session.room() > 0;
                let writable = if is_free { WRITABLE } else { 0 };
                readable | writable
            }
            Body::Text(..) | Body::Own(_) => READABLE | WRITABLE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_polls_is_not_replaced_by_who_polls_later() {
        let reader = Poll::joined(None, 7, READABLE, WRITABLE);
        let both = Poll::joined(Some(reader), 7, WRITABLE, WRITABLE);
        assert_eq!(both, Poll { handle: 7, events: READABLE | WRITABLE, seen: WRITABLE });
        let told = Poll::joined(Some(reader), 7, READABLE, READABLE | WRITABLE);
        assert_eq!(told.seen & READABLE, 0, "it is news to the first");
    }

    fn session(progress: Vec<Progress>) -> Session {
        let mut session = Session::default();
        for progress in progress {
            session.ask(b"line".to_vec(), 0, 0);
            session.entries.back_mut().unwrap().progress = progress;
        }
        session
    }

    fn answered(text: &str) -> Progress {
        Progress::Answered(text.into())
    }

    fn read(session: &mut Session, size: usize) -> Option<(String, i32)> {
        session.read(size).map(|taken| (String::from_utf8(taken.bytes).unwrap(), taken.errno))
    }

    #[test]
    fn answers_come_in_the_order_of_asking_and_one_at_a_time() {
        let mut session = session(vec![answered("one"), Progress::Sent(1), answered("three")]);
        assert_eq!(read(&mut session, 2), Some(("on".into(), 0)));
        assert!(session.readable());
        assert_eq!(read(&mut session, 9), Some(("e".into(), 0)));
        assert!(!session.readable());
        assert_eq!(read(&mut session, 9), None);
        session.entries[0].progress = Progress::Failed(110);
        assert_eq!(read(&mut session, 9), Some((String::new(), 110)));
        assert_eq!(read(&mut session, 9), Some(("three".into(), 0)));
    }

    #[test]
    fn the_end_of_file_is_worth_one_wake_up() {
        let mut session = session(vec![]);
        assert!(!session.readable());
        session.ask(b"x".to_vec(), 0, 0);
        session.entries[0].progress = answered("y");
        assert_eq!(read(&mut session, 9), Some(("y".into(), 0)));
        assert!(session.readable());
        assert_eq!(read(&mut session, 9), Some((String::new(), 0)));
        assert!(!session.readable());
    }

    #[test]
    fn an_empty_answer_is_no_end_of_file() {
        let mut session = session(vec![answered(""), answered("x"), answered(""), Progress::Queued]);
        assert_eq!(read(&mut session, 9), Some(("x".into(), 0)));
        assert_eq!(read(&mut session, 9), None);
    }

    #[test]
    fn there_is_no_room_for_more_than_the_bounds() {
        assert_eq!(session(vec![]).room(), OUTSTANDING_MAX);
        assert_eq!(session(vec![Progress::Queued; OUTSTANDING_MAX]).room(), 0);
        assert_eq!(session(vec![answered("x"); OUTSTANDING_MAX + 5]).room(), OUTSTANDING_MAX);
        assert_eq!(session(vec![Progress::Failed(5); UNREAD_MAX]).room(), 0);
        assert_eq!(session(vec![answered(&"x".repeat(UNREAD_BYTES_MAX))]).room(), 0);
    }
}
