//! The protocol between the daemon and the monitor while a domain comes up
//! (`docs/spec/monitor.md`), over a socket pair that is the monitor's standard input. Its end, from
//! either side, means that the other is gone.

use crate::error::{Context, Error, Result};
use crate::status::ProcessIdentity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Most descriptors that a monitor keeps for one domain: a FUSE connection, a ledger, some sockets.
pub const MAX_KEPT: usize = 32;
/// Most of them in one message.
const MAX_PER_MESSAGE: usize = 16;
/// Longest report of a monitor, in bytes; an error with its causes is far shorter.
const MAX_REPORT_BYTES: usize = 64 * 1024;

const KEEP: u8 = b'K';
const START: u8 = b'S';

/// From the monitor, one JSON object per line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "report")]
pub(crate) enum Report {
    /// The domain exists and its command waits.
    Created {
        /// Its first process.
        init: ProcessIdentity,
    },
    /// The command runs.
    Started,
    /// It could not be brought up, and is undone.
    Failed {
        /// Why, with all causes.
        message: String,
    },
}

/// From the daemon, one byte each, `K` with descriptors.
#[derive(Debug)]
pub(crate) enum Order {
    /// Hold these for as long as you live.
    Keep(Vec<OwnedFd>),
    /// Start the command.
    Start,
    /// The daemon is gone.
    Gone,
}

/// The daemon's end.
#[derive(Debug)]
pub(crate) struct DaemonEnd {
    stream: UnixStream,
    received: Vec<u8>,
}

impl DaemonEnd {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, received: Vec::new() }
    }

    pub fn keep(&self, descriptors: &[OwnedFd]) -> Result<()> {
        for some in descriptors.chunks(MAX_PER_MESSAGE) {
            let borrowed: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PER_MESSAGE))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            // The space is for as many as a chunk has at the most.
            ancillary.push(SendAncillaryMessage::ScmRights(&borrowed));
            sendmsg(&self.stream, &[IoSlice::new(&[KEEP])], &mut ancillary, SendFlags::NOSIGNAL)
                .doing("pass descriptors to the monitor")?;
        }
        Ok(())
    }

    pub fn start(&mut self) -> Result<()> {
        self.stream.write_all(&[START]).doing("tell the monitor to start the command")
    }

    /// The next report; `None` when the monitor is gone.
    pub fn report(&mut self, domain: &str, timeout: Duration) -> Result<Option<Report>> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(end) = self.received.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                let report = serde_json::from_slice(&line);
                return report
                    .map(Some)
                    .map_err(|e| failed(domain, format!("said something else than a report: {e}")));
            }
            if self.received.len() > MAX_REPORT_BYTES {
                return Err(failed(domain, format!("sent a report of more than {MAX_REPORT_BYTES} bytes")));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !readable(self.stream.as_fd(), Some(left))? {
                return Err(failed(domain, format!("did not report within {timeout:?}")));
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(None),
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
                other => self.received.extend_from_slice(&buffer[..other.doing("hear the monitor")?]),
            }
        }
    }
}

fn failed(domain: &str, what: String) -> Error {
    Error::Monitor { domain: domain.to_owned(), what }
}

/// Waits until `descriptor` is readable or hung up, for `timeout` at most, and tells whether it is.
pub(crate) fn readable(descriptor: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool> {
    let deadline = timeout.map(|t| Instant::now() + t);
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let left =
            left.map(|l| Timespec { tv_sec: l.as_secs() as i64, tv_nsec: i64::from(l.subsec_nanos()) });
        match poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other.doing("wait")? > 0),
        }
    }
}

/// The monitor's end.
#[derive(Debug)]
pub(crate) struct MonitorEnd(UnixStream);

impl MonitorEnd {
    /// Takes it from the standard input, which becomes `/dev/null`.
    pub fn from_stdin() -> Result<Self> {
        let stream = take_stdin()?;
        Ok(Self(UnixStream::from(stream)))
    }

    pub fn report(&mut self, report: &Report) -> Result<()> {
        let mut line = serde_json::to_vec(report).map_err(std::io::Error::from).doing("encode a report")?;
        line.push(b'\n');
        self.0.write_all(&line).doing("report to the daemon")
    }

    /// The next order; waits for it.
    pub fn order(&self) -> Result<Order> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PER_MESSAGE))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let received =
            recvmsg(&self.0, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let received = match received {
            Err(rustix::io::Errno::CONNRESET) => return Ok(Order::Gone),
            other => other.doing("hear the daemon")?,
        };
        let kept: Vec<OwnedFd> = ancillary
            .drain()
            .filter_map(|m| if let RecvAncillaryMessage::ScmRights(fds) = m { Some(fds) } else { None })
            .flatten()
            .collect();
        Ok(match (received.bytes, byte) {
            (0, _) => Order::Gone,
            (_, [KEEP]) => Order::Keep(kept),
            (_, [START]) => Order::Start,
            (_, [other]) => {
                return Err(std::io::Error::other(format!("byte {other:#x}")))
                    .doing("understand the daemon's order");
            }
        })
    }
}

impl AsFd for MonitorEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Moves the standard input to another number, close-on-exec, and puts `/dev/null` in its place.
pub(crate) fn take_stdin() -> Result<OwnedFd> {
    let taken = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)
        .doing("take the socket from the standard input")?;
    let null = std::fs::File::open("/dev/null").at("open", "/dev/null")?;
    rustix::stdio::dup2_stdin(&null).doing("replace the standard input")?;
    Ok(taken)
}
