//! The monitor protocol (QMP) of QEMU and its storage daemon: one JSON object on a line, each way.
//! Words of QEMU are allegations: a guest, or an image, may have broken out of it.
//!
//! One command is under way at a time, so that a descriptor is never taken for another's, and so
//! that there is always room for what is sent.

use rustix::io::Errno;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use thiserror::Error;

/// Longest line that is taken, in bytes: the longest answers to what is asked have some thousand.
const MAX_LINE_BYTES: usize = 64 * 1024;
/// Bytes read at a time.
const READ_BYTES: usize = 16 * 1024;
/// Longest text of an error that is kept, in bytes.
const MAX_ERROR_BYTES: usize = 300;

/// A command for QEMU.
#[derive(Debug)]
pub struct Command {
    name: &'static str,
    arguments: Option<Value>,
    descriptor: Option<OwnedFd>,
}

impl Command {
    /// A command without arguments.
    pub fn plain(name: &'static str) -> Self {
        Self { name, arguments: None, descriptor: None }
    }

    /// A command with arguments.
    pub fn with(name: &'static str, arguments: Value) -> Self {
        Self { name, arguments: Some(arguments), descriptor: None }
    }

    /// Gives QEMU a descriptor, under a name.
    pub fn give(name: &str, descriptor: OwnedFd) -> Self {
        Self { name: "getfd", arguments: Some(json!({ "fdname": name })), descriptor: Some(descriptor) }
    }

    /// The descriptor that would be given, if there is one.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptor.take()
    }
}

/// A version of QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 7 of 7.2.22.
    pub major: u64,
    /// 2 of 7.2.22.
    pub minor: u64,
    /// 22 of 7.2.22.
    pub micro: u64,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

/// A message of QEMU.
#[derive(Debug, PartialEq, Eq)]
pub enum Said<T> {
    /// Its first words.
    Hello(Version),
    /// The answer to the command with this tag: what it returns, or why it was refused.
    Done(T, Result<Value, String>),
    /// Something happened.
    Event(Event),
}

/// Something happened: as QEMU calls it, with what it says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// QEMU's word (`SHUTDOWN`, ...).
    pub name: String,
    /// The rest; null where there is none.
    pub data: Value,
}

impl Event {
    /// A text of it, cleaned and cut.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<String> {
        self.data.get(key).and_then(Value::as_str).map(|text| clean(text, MAX_ERROR_BYTES))
    }
}

/// A text without control characters, at most so many bytes long. What a guest or QEMU says goes
/// through this before it is shown.
#[must_use]
pub fn clean(text: &str, most: usize) -> String {
    let mut cleaned = String::new();
    for character in text.trim_matches(|c: char| c.is_control() || c.is_whitespace()).chars() {
        let shown = if character.is_control() { ' ' } else { character };
        if cleaned.len() + shown.len_utf8() > most {
            break;
        }
        cleaned.push(shown);
    }
    cleaned.truncate(cleaned.trim_end().len());
    cleaned
}

/// QEMU's monitor is of no use any more.
#[derive(Debug, Error)]
pub enum QmpError {
    /// It has ended.
    #[error("QEMU's monitor is gone")]
    Gone,
    /// The socket failed.
    #[error("QEMU's monitor can't be reached: {0}")]
    Socket(#[source] io::Error),
    /// A line that is none of the protocol.
    #[error("QEMU's monitor says what makes no sense: {0}")]
    Nonsense(String),
}

/// The connection to QEMU's monitor. `T` tells the answers apart.
#[derive(Debug)]
pub struct Qmp<T> {
    socket: OwnedFd,
    line: Vec<u8>,
    waiting: VecDeque<(T, Command)>,
    under_way: Option<T>,
    greeted: bool,
    /// The failure of an earlier command; the next caller is told.
    failed: Option<QmpError>,
}

impl<T> Qmp<T> {
    /// Over a connected, non-blocking stream socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            line: Vec::new(),
            waiting: VecDeque::new(),
            under_way: None,
            greeted: false,
            failed: None,
        }
    }

    /// Asks, as soon as what was asked before is answered.
    pub fn ask(&mut self, tag: T, command: Command) {
        self.waiting.push_back((tag, command));
        self.go_on();
    }

    /// Whether QEMU owes an answer, or its first words.
    pub fn is_owed(&self) -> bool {
        self.under_way.is_some() || !self.greeted
    }

    /// Reads what is there and gives out what it says. Never waits.
    ///
    /// # Errors
    /// [`QmpError`].
    pub fn hear(&mut self) -> Result<Vec<Said<T>>, QmpError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut bytes = [0; READ_BYTES];
        let read = match rustix::io::retry_on_intr(|| rustix::io::read(&self.socket, &mut bytes[..])) {
            Ok(0) | Err(Errno::CONNRESET) => return Err(QmpError::Gone),
            Ok(read) => read,
            Err(Errno::AGAIN) => return Ok(Vec::new()),
            Err(errno) => return Err(QmpError::Socket(errno.into())),
        };
        let mut heard = Vec::new();
        for &byte in bytes.get(..read).unwrap_or_default() {
            if byte != b'\n' {
                self.line.push(byte);
                if self.line.len() > MAX_LINE_BYTES {
                    return Err(QmpError::Nonsense("a line without end".to_owned()));
                }
                continue;
            }
            let line = std::mem::take(&mut self.line);
            heard.extend(self.understand(&line)?);
        }
        self.go_on();
        Ok(heard)
    }

    fn go_on(&mut self) {
        if self.under_way.is_some() || !self.greeted {
            return;
        }
        let Some((tag, command)) = self.waiting.pop_front() else { return };
        let mut text = match command.arguments {
            Some(arguments) => json!({ "execute": command.name, "arguments": arguments }).to_string(),
            None => json!({ "execute": command.name }).to_string(),
        };
        text.push('\n');
        let descriptors: Vec<BorrowedFd<'_>> = command.descriptor.iter().map(AsFd::as_fd).collect();
        self.under_way = Some(tag);
        // Nothing is under way, so the socket is empty and all of it fits.
        let sent = sys::descriptors::send_with_descriptors(&self.socket, text.as_bytes(), &descriptors);
        self.failed = sent.err().map(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => QmpError::Gone,
            _ => QmpError::Socket(error),
        });
    }

    fn understand(&mut self, line: &[u8]) -> Result<Option<Said<T>>, QmpError> {
        let nonsense = |what: &str| {
            let text = String::from_utf8_lossy(line);
            QmpError::Nonsense(format!("{what}: {}", clean(&text, MAX_ERROR_BYTES)))
        };
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let said: Value = serde_json::from_slice(line).map_err(|_| nonsense("no JSON"))?;
        if let Some(greeting) = said.get("QMP") {
            if std::mem::replace(&mut self.greeted, true) {
                return Err(nonsense("a second greeting"));
            }
            return version(greeting)
                .map(|version| Some(Said::Hello(version)))
                .ok_or_else(|| nonsense("no version"));
        }
        if let Some(name) = said.get("event").and_then(Value::as_str) {
            let data = said.get("data").cloned().unwrap_or(Value::Null);
            return Ok(Some(Said::Event(Event { name: clean(name, MAX_ERROR_BYTES), data })));
        }
        let answer = match (said.get("return"), said.get("error")) {
            (Some(value), None) => Ok(value.clone()),
            (None, Some(error)) => {
                let text = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given");
                Err(clean(text, MAX_ERROR_BYTES))
            }
            _ => return Err(nonsense("neither an answer nor an event")),
        };
        let tag = self.under_way.take().ok_or_else(|| nonsense("an answer that nobody asked for"))?;
        Ok(Some(Said::Done(tag, answer)))
    }
}

impl<T> AsFd for Qmp<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn version(greeting: &Value) -> Option<Version> {
    let version = greeting.get("version")?.get("qemu")?;
    let number = |name| version.get(name).and_then(Value::as_u64);
    Some(Version { major: number("major")?, minor: number("minor")?, micro: number("micro")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    const HELLO: &str = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "x"}, "capabilities": []}}"#;

    fn pair() -> (Qmp<u8>, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, qemus) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        (Qmp::new(ours), qemus)
    }

    fn say(qemu: &OwnedFd, text: &str) {
        rustix::io::write(qemu, text.as_bytes()).unwrap();
    }

    fn asked(qemu: &OwnedFd) -> (String, usize) {
        let mut bytes = [0; 4096];
        let (length, descriptors) = sys::descriptors::receive_with_descriptors(qemu, &mut bytes, 2).unwrap();
        (String::from_utf8(bytes[..length].to_vec()).unwrap(), descriptors.len())
    }

    #[test]
    fn commands_go_one_by_one_and_answers_come_with_their_tags() {
        let (mut qmp, qemu) = pair();
        let (spare, _other) = sys::descriptors::socket_pair().unwrap();
        qmp.ask(1, Command::plain("qmp_capabilities"));
        qmp.ask(2, Command::give("s0", spare));
        assert!(qmp.is_owed(), "the greeting");
        // A line may come in pieces.
        say(&qemu, &HELLO[..20]);
        assert_eq!(qmp.hear().unwrap(), []);
        say(&qemu, &format!("{}\r\n", &HELLO[20..]));
        let seven = Version { major: 7, minor: 2, micro: 22 };
        assert_eq!(qmp.hear().unwrap(), [Said::Hello(seven)]);
        assert_eq!(asked(&qemu), ("{\"execute\":\"qmp_capabilities\"}\n".to_owned(), 0));
        say(&qemu, "{\"return\": {}}\n{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"c1\"}}\n");
        assert_eq!(
            qmp.hear().unwrap(),
            [
                Said::Done(1, Ok(json!({}))),
                Said::Event(Event { name: "DEVICE_DELETED".to_owned(), data: json!({ "device": "c1" }) })
            ]
        );
        assert_eq!(
            asked(&qemu),
            ("{\"arguments\":{\"fdname\":\"s0\"},\"execute\":\"getfd\"}\n".to_owned(), 1)
        );
        say(&qemu, "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\\u0007room\"}}\n");
        assert_eq!(qmp.hear().unwrap(), [Said::Done(2, Err("no room".to_owned()))]);
        assert!(!qmp.is_owed());
        drop(qemu);
        assert!(matches!(qmp.hear(), Err(QmpError::Gone)));
    }

    #[test]
    fn nonsense_ends_the_conversation() {
        let long = "x".repeat(READ_BYTES);
        for text in ["hello\n", "{\"return\": {}}\n", "{}\n", "{\"QMP\": {}}\n", "[1]\n"] {
            let (mut qmp, qemu) = pair();
            say(&qemu, text);
            assert!(matches!(qmp.hear(), Err(QmpError::Nonsense(_))), "{text:?}");
        }
        let (mut qmp, qemu) = pair();
        let ended = (0..=MAX_LINE_BYTES / READ_BYTES).find_map(|_| {
            say(&qemu, &long);
            qmp.hear().err()
        });
        assert!(matches!(ended, Some(QmpError::Nonsense(_))));
    }
}
