//! The two ends of what the kernel offers, with buffers of a chosen size.

use super::super::means::Tuning;
use crate::channel::meeting::Meeting;
use crate::channel::task::{Role, Task};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use sys::message_queue;

/// Where TCP goes.
const LOOPBACK: &str = "127.0.0.1";

/// A descriptor to read from, and one to write to.
pub type Ends = (File, File);

fn sized_pipe(end: impl AsFd, tuning: &Tuning) {
    if tuning.buffer_bytes > 0 {
        // What is over the limit of an unprivileged user stays as it is: 64 KiB.
        let _resized = rustix::pipe::fcntl_setpipe_size(end, tuning.buffer_bytes);
    }
}

/// Two pipes, made by the leader.
pub fn pipe(meeting: &mut Meeting, task: &Task, tuning: &Tuning) -> io::Result<Ends> {
    let make = || -> io::Result<_> {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        sized_pipe(&writer, tuning);
        Ok((reader, writer))
    };
    match task.role {
        Role::Lead => {
            let ((there_out, there_in), (back_out, back_in)) = (make()?, make()?);
            meeting.give(b"pipes", &[there_out, back_in])?;
            Ok((back_out.into(), there_in.into()))
        }
        Role::Follow => {
            let [reader, writer] = given(meeting)?;
            Ok((reader.into(), writer.into()))
        }
    }
}

/// Two named pipes, made by the leader beside the place of the meeting. Their names are gone once
/// both have opened them.
pub fn fifo(meeting: &mut Meeting, task: &Task, tuning: &Tuning) -> io::Result<Ends> {
    let [there, back] = ["there", "back"].map(|way| task.meeting.with_extension(way));
    let write = |path: &Path| File::options().write(true).open(path);
    match task.role {
        Role::Lead => {
            for path in [&there, &back] {
                mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR)?;
            }
            meeting.give::<OwnedFd>(b"fifos", &[])?;
            // Both open the same one first: an open waits for the other side's.
            let writer = write(&there)?;
            let reader = File::open(&back)?;
            sized_pipe(&writer, tuning);
            for path in [&there, &back] {
                std::fs::remove_file(path)?;
            }
            Ok((reader, writer))
        }
        Role::Follow => {
            meeting.take(0)?;
            let reader = File::open(&there)?;
            let writer = write(&back)?;
            sized_pipe(&writer, tuning);
            Ok((reader, writer))
        }
    }
}

/// Two message queues, made by the leader; the first is read from, the second written to.
pub fn queues(meeting: &mut Meeting, task: &Task, tuning: &Tuning) -> io::Result<[OwnedFd; 2]> {
    match task.role {
        Role::Lead => {
            let (there, back) = (queue(tuning)?, queue(tuning)?);
            meeting.give(b"queues", &[there.as_fd(), back.as_fd()])?;
            Ok([back, there])
        }
        Role::Follow => given(meeting),
    }
}

/// A message queue without a name. A tuning that says nothing gets what the system gives to
/// everybody.
///
/// # Errors
/// Those of mq_open(3): a kernel without queues, or limits below what is asked for.
pub fn queue(tuning: &Tuning) -> io::Result<OwnedFd> {
    /// Messages in a queue where nothing is chosen: what `/proc/sys/fs/mqueue/msg_max` says on most
    /// machines.
    const MESSAGES: usize = 10;
    // Without this right there are as many as everybody may have.
    let _raised = setrlimit(Resource::Msgqueue, Rlimit { current: None, maximum: None });
    let messages = if tuning.buffer_bytes == 0 { MESSAGES } else { tuning.buffer_bytes / tuning.piece_bytes };
    /// Tells the queues of one process apart, for the moment that they have names.
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("/tombolo-bench-{}-{number}", std::process::id());
    let name = CString::new(name).map_err(io::Error::other)?;
    let made = message_queue::create(&name, messages.max(1), tuning.piece_bytes)?;
    message_queue::unlink(&name)?;
    Ok(made)
}

/// A pair of Unix sockets, made by the leader.
pub fn unix(meeting: &mut Meeting, task: &Task, tuning: &Tuning, kind: SocketType) -> io::Result<OwnedFd> {
    let socket = match task.role {
        Role::Lead => {
            let (here, there) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
            sized_socket(&there, tuning)?;
            meeting.give(b"socket", &[there])?;
            here
        }
        Role::Follow => {
            let [socket] = given(meeting)?;
            return Ok(socket);
        }
    };
    sized_socket(&socket, tuning)?;
    Ok(socket)
}

/// The two halves of a stream socket.
pub fn unix_halves(socket: OwnedFd) -> io::Result<(UnixStream, UnixStream)> {
    let stream = UnixStream::from(socket);
    Ok((stream.try_clone()?, stream))
}

/// A TCP connection to the follower. Buffers of no chosen size are fitted to the traffic by the
/// kernel.
pub fn tcp(meeting: &mut Meeting, task: &Task, tuning: &Tuning) -> io::Result<(TcpStream, TcpStream)> {
    let stream = match task.role {
        Role::Lead => {
            let (port, _) = meeting.take(0)?;
            let port = String::from_utf8_lossy(&port).parse().map_err(io::Error::other)?;
            TcpStream::connect((LOOPBACK, port))?
        }
        Role::Follow => {
            let listener = TcpListener::bind((LOOPBACK, 0))?;
            let port = listener.local_addr()?.port().to_string();
            meeting.give::<OwnedFd>(port.as_bytes(), &[])?;
            listener.accept()?.0
        }
    };
    sized_socket(&stream, tuning)?;
    stream.set_nodelay(!tuning.gathers)?;
    Ok((stream.try_clone()?, stream))
}

/// Up to the system's limit.
fn sized_socket(socket: impl AsFd, tuning: &Tuning) -> io::Result<()> {
    if tuning.buffer_bytes > 0 {
        set_socket_send_buffer_size(&socket, tuning.buffer_bytes)?;
        set_socket_recv_buffer_size(&socket, tuning.buffer_bytes)?;
    }
    Ok(())
}

/// The descriptors that the leader has given.
pub fn given<const COUNT: usize>(meeting: &mut Meeting) -> io::Result<[OwnedFd; COUNT]> {
    let (_, descriptors) = meeting.take(COUNT)?;
    descriptors.try_into().map_err(|_| io::ErrorKind::InvalidData.into())
}
