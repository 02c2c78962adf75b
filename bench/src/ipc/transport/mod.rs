//! The ways that this worker has: endpoints, and what the kernel offers.

mod endpoint;
mod flow;
mod grants;
mod halves;
pub mod kernel;
mod records;

use super::means::{Means, Way};
use crate::channel::meeting::Meeting;
use crate::channel::task::{Means as Chosen, Tale, Task, Work};
use crate::channel::transport::{self as channels, Bytes, Job as _, Spinning};
use crate::channel::work::Messages;
use flow::Flow;
use records::{Queues, Records, Seqpacket};
use rustix::net::SocketType;
use std::io::{self, BufWriter};
use std::time::Duration;

/// The number of bytes that a program which gathers its messages by itself writes at once.
const PAGE_BYTES: usize = 4096;
/// How long an end that never sleeps waits for the other side: longer than any window.
const SPINNING_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes this end of what the task asks for, and does the job with it.
///
/// # Errors
/// Where it can't be made, among them `Unsupported` for ways that need another worker; those of the
/// job.
pub fn with(task: &Task, meeting: &mut Meeting, job: Messages<'_, '_>) -> io::Result<Tale> {
    match &task.means {
        Chosen::Ipc(means) if matches!(task.work, Work::Copies { .. }) => copies(means, task, meeting, job),
        Chosen::Ipc(means) => messages(means, task, meeting, job),
        _ => channels::with(task, meeting, job),
    }
}

fn messages(means: &Means, task: &Task, meeting: &mut Meeting, job: Messages<'_, '_>) -> io::Result<Tale> {
    let (bytes, tuning) = (task.bytes, &means.tuning);
    match means.way {
        Way::Requests { spin } => job.run(endpoint::Requests::open(meeting, task, tuning, spin)?),
        Way::Messages { batch_bytes } => {
            job.run(endpoint::Mail::open(meeting, task, tuning, Some(batch_bytes))?)
        }
        Way::Sends => job.run(endpoint::Mail::open(meeting, task, tuning, None)?),
        Way::Pipe => {
            let (reader, writer) = kernel::pipe(meeting, task, tuning)?;
            job.run(Bytes::new(reader, writer, bytes))
        }
        Way::Pages => {
            let (reader, writer) = kernel::pipe(meeting, task, tuning)?;
            job.run(Bytes::new(reader, BufWriter::with_capacity(PAGE_BYTES, writer), bytes))
        }
        Way::Fifo => {
            let (reader, writer) = kernel::fifo(meeting, task, tuning)?;
            job.run(Bytes::new(reader, writer, bytes))
        }
        Way::Queue => job.run(Records::new(Queues(kernel::queues(meeting, task, tuning)?), bytes, bytes)),
        Way::Unix => {
            let socket = kernel::unix(meeting, task, tuning, SocketType::STREAM)?;
            let (reader, writer) = kernel::unix_halves(socket)?;
            job.run(Bytes::new(reader, writer, bytes))
        }
        Way::Seqpacket => {
            let socket = kernel::unix(meeting, task, tuning, SocketType::SEQPACKET)?;
            job.run(Records::new(Seqpacket(socket), bytes, bytes))
        }
        Way::Tcp => {
            let (reader, writer) = kernel::tcp(meeting, task, tuning)?;
            job.run(Bytes::new(reader, writer, bytes))
        }
        Way::TcpSpinning => {
            let (reader, writer) = kernel::tcp(meeting, task, tuning)?;
            writer.set_nonblocking(true)?;
            job.run(Bytes::new(spinning(reader), spinning(writer), bytes))
        }
        Way::UnixSpinning => {
            let (reader, writer) =
                kernel::unix_halves(kernel::unix(meeting, task, tuning, SocketType::STREAM)?)?;
            writer.set_nonblocking(true)?;
            job.run(Bytes::new(spinning(reader), spinning(writer), bytes))
        }
        Way::Slots | Way::Places { .. } | Way::Grpc | Way::Zenoh => Err(unsupported(means.way)),
    }
}

fn copies(means: &Means, task: &Task, meeting: &mut Meeting, job: Messages<'_, '_>) -> io::Result<Tale> {
    let (bytes, tuning) = (task.bytes, &means.tuning);
    match means.way {
        Way::Slots => job.copy(grants::Slots::open(meeting, task, tuning)?),
        Way::Places { .. } if tuning.halves => job.copy(halves::Halves::open(meeting, task)?),
        Way::Places { hints } => job.copy(grants::Places::open(meeting, task, tuning, hints)?),
        Way::Pipe => {
            let (reader, writer) = kernel::pipe(meeting, task, tuning)?;
            job.copy(Flow::new(reader, writer, bytes))
        }
        Way::Fifo => {
            let (reader, writer) = kernel::fifo(meeting, task, tuning)?;
            job.copy(Flow::new(reader, writer, bytes))
        }
        Way::Queue => {
            job.copy(Records::new(Queues(kernel::queues(meeting, task, tuning)?), bytes, tuning.piece_bytes))
        }
        Way::Unix => {
            let socket = kernel::unix(meeting, task, tuning, SocketType::STREAM)?;
            let (reader, writer) = kernel::unix_halves(socket)?;
            job.copy(Flow::new(reader, writer, bytes))
        }
        Way::Seqpacket => {
            let socket = kernel::unix(meeting, task, tuning, SocketType::SEQPACKET)?;
            job.copy(Records::new(Seqpacket(socket), bytes, tuning.piece_bytes))
        }
        Way::Tcp => {
            let (reader, writer) = kernel::tcp(meeting, task, tuning)?;
            job.copy(Flow::new(reader, writer, bytes))
        }
        Way::Requests { .. }
        | Way::Messages { .. }
        | Way::Sends
        | Way::Pages
        | Way::TcpSpinning
        | Way::UnixSpinning
        | Way::Grpc
        | Way::Zenoh => Err(unsupported(means.way)),
    }
}

/// Both halves are one open socket, so that one of them told all.
fn spinning<S>(half: S) -> Spinning<S> {
    Spinning::new(half, SPINNING_TIMEOUT)
}

fn unsupported(way: Way) -> io::Error {
    let what = format!("{way:?} is not for this work, or not in this worker; `ipc-peer` has gRPC and zenoh");
    io::Error::new(io::ErrorKind::Unsupported, what)
}
