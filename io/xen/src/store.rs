//! A client of XenStore, through the kernel's device. What it speaks is Xen's
//! (`xen/include/public/io/xs_wire.h`).

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

/// The kernel's device.
const DEVICE: &str = "/dev/xen/xenbus";
/// Bytes in front of a payload: kind, request, transaction, length, 32 bits each.
const HEADER_BYTES: usize = 16;
/// Longest payload (`XENSTORE_PAYLOAD_MAX`).
const PAYLOAD_BYTES_MAX: usize = 4096;
/// How long an answer may take: it comes from a program that has nothing else to do, on a machine
/// that may have much.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The same for an entry that is taken back: whoever is done does not wait long for that.
const LAST_TIMEOUT: Duration = Duration::from_secs(3);
/// How often that is tried: a change beside it, which happens seldom, undoes it.
const RETRACTIONS_MAX: usize = 8;
/// Events that are taken off at once: a domain that changes its entry all the time gives others
/// their turn.
const EVENTS_MAX: usize = 64;

/// Kinds of messages that we use (`enum xsd_sockmsg_type`).
mod kind {
    pub const READ: u32 = 2;
    pub const WATCH: u32 = 4;
    pub const START: u32 = 6;
    pub const END: u32 = 7;
    pub const WRITE: u32 = 11;
    pub const REMOVE: u32 = 13;
    pub const SET_PERMISSIONS: u32 = 14;
    pub const EVENT: u32 = 15;
    pub const ERROR: u32 = 16;
}

/// Why XenStore did not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no device.
    #[error("can't open {DEVICE}: this must run in a domain of Xen, as root")]
    Open(#[source] io::Error),
    /// The device failed.
    #[error("XenStore can't be reached through {DEVICE}")]
    Device(#[source] io::Error),
    /// It refused.
    #[error("XenStore refuses to {action} {path}: {code}")]
    Refused {
        /// The action that was asked for.
        action: &'static str,
        /// Of which path.
        path: String,
        /// Its word for it, such as `EACCES`.
        code: String,
    },
    /// It said what nobody says.
    #[error("XenStore's answer is none: {what}")]
    Nonsense {
        /// The fault.
        what: &'static str,
    },
    /// It did not answer.
    #[error("XenStore has not answered for {} s", waited.as_secs())]
    Silent {
        /// How long.
        waited: Duration,
    },
    /// The path has a zero byte or is too long.
    #[error("{path:?} is no path of XenStore")]
    Path {
        /// The path.
        path: String,
    },
}

/// A connection of its own, with its own watches.
#[derive(Debug)]
pub(crate) struct Store {
    device: File,
    input: Vec<u8>,
    /// Whether something changed where we watch, since somebody asked.
    changed: bool,
    request: u32,
    patience: Duration,
}

/// A message that arrived.
#[derive(Debug, PartialEq, Eq)]
struct Message {
    kind: u32,
    request: u32,
    payload: Vec<u8>,
}

impl Store {
    pub fn open() -> Result<Self, StoreError> {
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
            .open(DEVICE)
            .map_err(StoreError::Open)?;
        Ok(Self { device, input: Vec::new(), changed: false, request: 0, patience: TIMEOUT })
    }

    /// Reads the entry at `path`; `None` where there is none, or none that we may see.
    pub fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.read_in(0, path)
    }

    fn read_in(&mut self, transaction: u32, path: &str) -> Result<Option<Vec<u8>>, StoreError> {
        match self.ask("read", kind::READ, transaction, path, &[]) {
            Ok(content) => Ok(Some(content)),
            Err(StoreError::Refused { code, .. }) if code == "ENOENT" || code == "EACCES" => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The number of the domain that we are in.
    pub fn domain(&mut self) -> Result<u16, StoreError> {
        let text = self.read("domid")?.ok_or(StoreError::Nonsense { what: "this domain has no number" })?;
        let text = String::from_utf8_lossy(&text);
        text.parse().map_err(|_| StoreError::Nonsense { what: "this domain's number is none" })
    }

    /// Writes at `path`, and lets domain `reader` read it.
    pub fn publish(&mut self, path: &str, content: &str, own: u16, reader: u16) -> Result<(), StoreError> {
        self.ask("write", kind::WRITE, 0, path, content.as_bytes())?;
        // The first word: the owner, and that others may do nothing. Whoever watches is told by
        // this, too.
        let permissions = format!("n{own}\0r{reader}\0");
        self.ask("open up", kind::SET_PERMISSIONS, 0, path, permissions.as_bytes()).map(drop)
    }

    /// Removes what stands at `path`, if it is `content`: the last thing that is done with a
    /// connection.
    pub fn retract(&mut self, path: &str, content: &str) -> Result<(), StoreError> {
        self.patience = LAST_TIMEOUT;
        for _ in 0..RETRACTIONS_MAX {
            match self.retract_once(path, content) {
                Err(StoreError::Refused { code, .. }) if code == "EAGAIN" => {}
                done => return done,
            }
        }
        Ok(())
    }

    /// Either all of it or `EAGAIN`, where somebody has written there or beside it meanwhile.
    fn retract_once(&mut self, path: &str, content: &str) -> Result<(), StoreError> {
        let id = self.ask("begin to change", kind::START, 0, "", &[])?;
        let id = std::str::from_utf8(&id).ok().and_then(|id| id.trim_end_matches('\0').parse().ok());
        let id: u32 = id.ok_or(StoreError::Nonsense { what: "a transaction without a number" })?;
        let is_ours = match self.read_in(id, path) {
            Ok(found) => found.as_deref() == Some(content.as_bytes()),
            Err(_) => false,
        };
        let is_removed = is_ours && self.ask("remove", kind::REMOVE, id, path, &[]).is_ok();
        let word = if is_removed { "T" } else { "F" };
        self.ask("end the change of", kind::END, id, word, &[]).map(drop)
    }

    /// Tells of each change at `path` from now on, once at once.
    pub fn watch(&mut self, path: &str) -> Result<(), StoreError> {
        self.ask("watch", kind::WATCH, 0, path, b"w\0").map(drop)
    }

    /// Whether something changed where we watch, since the last time. Never blocks.
    pub fn has_changed(&mut self) -> Result<bool, StoreError> {
        for _ in 0..EVENTS_MAX {
            let Some(message) = self.next()? else { break };
            self.keep(&message);
        }
        Ok(std::mem::take(&mut self.changed))
    }

    /// One request and its answer.
    fn ask(
        &mut self,
        action: &'static str,
        kind: u32,
        transaction: u32,
        path: &str,
        more: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        self.request = self.request.wrapping_add(1);
        let request = self.request;
        let bad = || StoreError::Path { path: path.to_owned() };
        if path.contains('\0') {
            return Err(bad());
        }
        let payload = [path.as_bytes(), b"\0", more].concat();
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(bad());
        }
        let length = payload.len() as u32;
        let mut message = Vec::with_capacity(HEADER_BYTES + payload.len());
        for word in [kind, request, transaction, length] {
            message.extend_from_slice(&word.to_ne_bytes());
        }
        message.extend_from_slice(&payload);
        self.device.write_all(&message).map_err(StoreError::Device)?;
        let answer = self.answer(request)?;
        if answer.kind == kind {
            return Ok(answer.payload);
        }
        if answer.kind != kind::ERROR {
            return Err(StoreError::Nonsense { what: "it is of another kind than the question" });
        }
        let code = String::from_utf8_lossy(&answer.payload).trim_end_matches('\0').to_owned();
        Err(StoreError::Refused { action, path: path.to_owned(), code })
    }

    fn answer(&mut self, request: u32) -> Result<Message, StoreError> {
        let deadline = Instant::now() + self.patience;
        loop {
            match self.next()? {
                Some(message) if message.kind != kind::EVENT && message.request == request => {
                    return Ok(message);
                }
                Some(message) => self.keep(&message),
                None => self.wait(deadline)?,
            }
        }
    }

    fn wait(&self, deadline: Instant) -> Result<(), StoreError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(StoreError::Silent { waited: self.patience });
        }
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut polled = [PollFd::new(&self.device, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(StoreError::Device(error.into())),
        }
    }

    /// Notes an event; an answer that nobody waits for any more is dropped. One path is watched,
    /// and each event says no more than "look again".
    fn keep(&mut self, message: &Message) {
        self.changed |= message.kind == kind::EVENT;
    }

    /// The next message that is there.
    fn next(&mut self) -> Result<Option<Message>, StoreError> {
        loop {
            if let Some(message) = take(&mut self.input)? {
                return Ok(Some(message));
            }
            let mut bytes = [0; HEADER_BYTES + PAYLOAD_BYTES_MAX];
            match self.device.read(&mut bytes) {
                Ok(0) => return Err(StoreError::Device(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.input.extend_from_slice(bytes.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(StoreError::Device(error)),
            }
        }
    }
}

impl AsFd for Store {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Takes the first message out of what has arrived, if it is there as a whole.
fn take(input: &mut Vec<u8>) -> Result<Option<Message>, StoreError> {
    let Some((header, rest)) = input.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let [kind, request, _transaction, length] = words(header);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > PAYLOAD_BYTES_MAX {
        return Err(StoreError::Nonsense { what: "it is longer than any" });
    }
    let Some(payload) = rest.get(..length) else { return Ok(None) };
    let message = Message { kind, request, payload: payload.to_vec() };
    input.drain(..HEADER_BYTES + length);
    Ok(Some(message))
}

fn words(header: &[u8; HEADER_BYTES]) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(header.as_chunks::<4>().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u32, request: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("a short one");
        let header = [kind, request, 0, length].map(u32::to_ne_bytes);
        [header.concat(), payload.to_vec()].concat()
    }

    #[test]
    fn messages_are_taken_whole_and_in_order() {
        let all = [message(kind::EVENT, 0, b"/a\0w\0"), message(kind::READ, 7, b"x")].concat();
        let mut input = Vec::new();
        let mut found = Vec::new();
        for byte in all {
            input.push(byte);
            found.extend(take(&mut input).expect("no nonsense"));
        }
        assert_eq!(
            found,
            [
                Message { kind: kind::EVENT, request: 0, payload: b"/a\0w\0".to_vec() },
                Message { kind: kind::READ, request: 7, payload: b"x".to_vec() },
            ]
        );
        assert!(input.is_empty());
    }

    #[test]
    fn a_length_that_nobody_has_is_refused_before_it_is_waited_for() {
        let mut input = message(kind::READ, 1, b"");
        input[12..].copy_from_slice(&4097_u32.to_ne_bytes());
        assert!(matches!(take(&mut input), Err(StoreError::Nonsense { .. })));
    }

    #[test]
    fn without_xen_it_says_where_it_must_run() {
        match Store::open() {
            Err(error @ StoreError::Open(_)) => assert!(error.to_string().contains("domain of Xen")),
            Err(error) => panic!("{error}"),
            Ok(_) => println!("skipped: this machine is a domain of Xen"),
        }
    }
}
