//! Our standard output and error, written without ever waiting for who reads them.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

/// The number of bytes that is written at a time: a pipe has room for as many whenever it says that
/// it has some (`PIPE_BUF`).
const WRITE_BYTES: usize = 4096;
/// Most bytes of our own lines that wait; more are dropped, for nobody reads them.
const OWN_BYTES: usize = 128 * 1024;

/// A message that waits to be written.
#[derive(Debug)]
struct Waiting {
    bytes: Vec<u8>,
    written: usize,
    /// The stream that it came on, and its length there.
    of: Option<(u32, usize)>,
}

/// One of the two.
#[derive(Debug)]
pub(crate) struct Writer {
    is_error: bool,
    waiting: VecDeque<Waiting>,
    own_bytes: usize,
}

impl Writer {
    pub fn output() -> Self {
        Self { is_error: false, waiting: VecDeque::new(), own_bytes: 0 }
    }

    pub fn error() -> Self {
        Self { is_error: true, ..Self::output() }
    }

    /// A message of a stream, whose first byte is none of what is written.
    pub fn pass_on(&mut self, stream: u32, message: Vec<u8>) {
        let of = Some((stream, message.len()));
        self.waiting.push_back(Waiting { bytes: message, written: 1, of });
    }

    /// A line of our own.
    pub fn line(&mut self, line: &str) {
        if self.own_bytes + line.len() < OWN_BYTES {
            self.own_bytes += line.len() + 1;
            self.waiting.push_back(Waiting { bytes: format!("{line}\n").into_bytes(), written: 0, of: None });
        }
    }

    /// The descriptor to poll for room; none while nothing waits.
    pub fn descriptor(&self) -> Option<BorrowedFd<'static>> {
        (!self.waiting.is_empty())
            .then(|| if self.is_error { rustix::stdio::stderr() } else { rustix::stdio::stdout() })
    }

    /// Writes a part, if there is room: the streams and lengths of messages that are through.
    pub fn write(&mut self) -> Vec<(u32, usize)> {
        let mut through = Vec::new();
        while let (Some(first), true) = (self.waiting.front_mut(), has_room(self.is_error)) {
            let rest = first.bytes.get(first.written..).unwrap_or_default();
            let now = rest.get(..WRITE_BYTES).unwrap_or(rest);
            match write_some(self.is_error, now) {
                Ok(written) => first.written += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Nobody reads any more: the guest is not held up for that.
                Err(_) => first.written = first.bytes.len(),
            }
            if first.written < first.bytes.len() {
                continue;
            }
            match first.of {
                Some(of) => through.push(of),
                None => self.own_bytes = self.own_bytes.saturating_sub(first.bytes.len()),
            }
            self.waiting.pop_front();
        }
        through
    }
}

fn write_some(is_error: bool, bytes: &[u8]) -> io::Result<usize> {
    let descriptor = if is_error { rustix::stdio::stderr() } else { rustix::stdio::stdout() };
    Ok(rustix::io::retry_on_intr(|| rustix::io::write(descriptor, bytes))?)
}

fn has_room(is_error: bool) -> bool {
    let descriptor = if is_error { rustix::stdio::stderr() } else { rustix::stdio::stdout() };
    let mut polled = [PollFd::new(&descriptor, PollFlags::OUT)];
    let at_once = Timespec::default();
    matches!(rustix::io::retry_on_intr(|| poll(&mut polled, Some(&at_once))), Ok(ready) if ready > 0)
}
