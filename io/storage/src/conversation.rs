//! A conversation with an engine's monitor: one question at a time, each with a time within which
//! it is answered.

use crate::StorageError;
use crate::error::at;
use qmp::{Command, Qmp, QmpError, Said};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long an engine may take for an answer that needs no disk, and for its first words.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// A conversation that has begun.
#[derive(Debug)]
pub(crate) struct Conversation {
    qmp: Qmp<()>,
}

impl Conversation {
    /// Connects to the monitor at a path, and waits for its first words.
    pub fn begin(path: &Path) -> Result<Self, StorageError> {
        let connect = || -> std::io::Result<_> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
            Ok(socket)
        };
        let socket = connect().map_err(at("connect to", path))?;
        let mut conversation = Self { qmp: Qmp::new(socket) };
        conversation.ask("to be spoken with", Command::plain("qmp_capabilities"), TIMEOUT)?;
        Ok(conversation)
    }

    /// Asks, and waits for the answer. After an error that is no refusal the conversation is over.
    pub fn ask(
        &mut self,
        what: &'static str,
        command: Command,
        patience: Duration,
    ) -> Result<Value, StorageError> {
        self.qmp.ask((), command);
        let deadline = Instant::now() + patience;
        loop {
            for said in self.qmp.hear()? {
                if let Said::Done((), answer) = said {
                    return answer.map_err(|why| StorageError::Refused { what, why });
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StorageError::Late { what: what.to_owned(), patience });
            }
            let mut polled = [PollFd::new(&self.qmp, PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut polled, Some(&session::timespec(left))))
                .map_err(|errno| QmpError::Socket(errno.into()))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn an_engine_that_says_nothing_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("monitor.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let fake = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut client, _) = listener.accept().unwrap();
            let hello = br#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}}}"#;
            client.write_all(hello).unwrap();
            client.write_all(b"\n").unwrap();
            let _asked = client.read(&mut [0; 4096]).unwrap();
            client.write_all(b"{\"return\": {}}\n").unwrap();
            client
        });
        let mut conversation = Conversation::begin(&path).unwrap();
        let _silent = fake.join().unwrap();
        let short = Duration::from_millis(20);
        let late = conversation.ask("to live", Command::plain("query-status"), short).unwrap_err();
        assert!(matches!(late, StorageError::Late { .. }), "{late}");
    }
}
