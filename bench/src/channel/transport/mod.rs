//! The ways of messages that are compared, behind one trait that costs nothing: the loops of the
//! bench are compiled for each of them.

mod bytes;
mod copy;
mod datagrams;
mod line;
mod ring;
mod tombolo;

use super::meeting::Meeting;
use super::task::{Means, Role, Task};
use std::io;

pub use bytes::{Bytes, Impatient, Spinning};
pub use tombolo::Tombolo;

/// One end of something that carries messages of one size.
pub trait Transport {
    /// Sends a message; it may be held back until [`Transport::flush`].
    ///
    /// # Errors
    /// Where the other end is gone, or the kernel refuses.
    fn send(&mut self, message: &[u8]) -> io::Result<()>;

    /// Lets go of what was held back.
    ///
    /// # Errors
    /// As [`Transport::send`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Waits for the next message, which is then in memory of this process alone.
    ///
    /// # Errors
    /// Where the other end is gone, or the kernel refuses.
    fn receive(&mut self) -> io::Result<&[u8]>;
}

impl<T: Transport> Transport for &mut T {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        (**self).send(message)
    }

    fn flush(&mut self) -> io::Result<()> {
        (**self).flush()
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        (**self).receive()
    }
}

/// The work with a transport, once it stands.
pub trait Job {
    /// Does it.
    ///
    /// # Errors
    /// Those of the transport and of the conversation.
    fn run(self, transport: impl Transport) -> io::Result<super::task::Tale>;
}

/// Makes this end of what the task asks for, and does the job with it.
///
/// # Errors
/// Where it can't be made, among them `Unsupported` for means that need another worker; those of
/// the job.
pub fn with(task: &Task, meeting: &mut Meeting, job: impl Job) -> io::Result<super::task::Tale> {
    match &task.means {
        &Means::Tombolo { spin, ring_bytes, batch_bytes } => {
            job.run(Tombolo::open(meeting, task, spin, ring_bytes, batch_bytes)?)
        }
        Means::Pipe => job.run(bytes::pipe(meeting, task)?),
        Means::Pages => job.run(bytes::pages(meeting, task)?),
        Means::Unix => job.run(bytes::unix(meeting, task)?),
        Means::Tcp(address) => job.run(bytes::tcp(meeting, task, address)?),
        Means::Udp(address) => job.run(datagrams::udp(meeting, task, address)?),
        Means::Icmp(address) => job.run(datagrams::echo(task, address)?),
        Means::Line => job.run(line::Line::open(meeting, task)?),
        &Means::Ring { ring_bytes } => job.run(ring::Ring::open(meeting, task, ring_bytes)?),
        &Means::Copy { walk_bytes } => job.run(copy::Copy::new(walk_bytes)),
        Means::Offered { .. } | Means::Network { .. } => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "machines meet by a service or an address, and not by a path",
        )),
        Means::Service { .. } => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "a service of the daemon is measured by its set-up",
        )),
        Means::Ipc(_) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "ways of `tombolo bench ipc` are not in this worker; `ipc-worker` and `ipc-peer` have them",
        )),
        Means::Link(_) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "ways of `tombolo bench link` are not in this worker; `link-worker` and `ipc-peer` have them",
        )),
        Means::Iceoryx { .. } => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "iceoryx2 is not in this worker; `channel-peer` has it",
        )),
    }
}

/// A shared region that the leader has made and the follower got.
fn shared_region(meeting: &mut Meeting, role: Role, bytes: usize) -> io::Result<sys::region::Region> {
    let memory = match role {
        Role::Lead => {
            let memory = sys::memfd::sealed("tombolo-bench", bytes as u64)?;
            meeting.give(b"region", std::slice::from_ref(&memory))?;
            memory
        }
        Role::Follow => {
            let (_, descriptors) = meeting.take(1)?;
            descriptors.into_iter().next().ok_or(io::ErrorKind::UnexpectedEof)?
        }
    };
    sys::region::Region::map(&memory, bytes)
}
