//! The means that carry bytes and know no messages: pipes and sockets. All messages have one size,
//! so nothing else is needed.

use super::super::meeting::Meeting;
use super::super::task::{Role, Task};
use super::Transport;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A reader asks for this much at once: several small messages for one system call.
const READ_BYTES: usize = 64 << 10;
/// Bytes that a program which gathers its messages writes at once.
const PAGE_BYTES: usize = 4096;
/// The capacity of a pipe: the most that the kernel gives to anybody.
const PIPE_BYTES: usize = 1 << 20;

/// A stream of bytes, cut into messages.
#[derive(Debug)]
pub struct Bytes<R, W> {
    reader: R,
    writer: W,
    message_bytes: usize,
    /// A whole number of messages long.
    buffer: Vec<u8>,
    filled: usize,
    taken: usize,
}

impl<R: Read, W: Write> Bytes<R, W> {
    /// Messages of so many bytes, at least 1.
    pub fn new(reader: R, writer: W, message_bytes: usize) -> Self {
        let buffer = vec![0; message_bytes * (READ_BYTES / message_bytes).max(1)];
        Self { reader, writer, message_bytes, buffer, filled: 0, taken: 0 }
    }
}

impl<R: Read, W: Write> Transport for Bytes<R, W> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.writer.write_all(message)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        while self.filled - self.taken < self.message_bytes {
            if self.taken == self.filled {
                (self.taken, self.filled) = (0, 0);
            }
            let got = self.reader.read(&mut self.buffer[self.filled..])?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.filled += got;
        }
        let from = self.taken;
        self.taken += self.message_bytes;
        Ok(&self.buffer[from..self.taken])
    }
}

/// A connection that gives up when nothing goes for a while: between machines, a lost interrupt
/// stops it for good.
#[derive(Debug)]
pub struct Impatient(TcpStream);

impl Impatient {
    /// Gives up after so long.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn new(stream: TcpStream, patience: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self(stream))
    }

    /// Cut into messages of so many bytes.
    ///
    /// # Errors
    /// Those of dup(2).
    pub fn messages(self, message_bytes: usize) -> io::Result<impl Transport + use<>> {
        Ok(Bytes::new(Self(self.0.try_clone()?), self, message_bytes))
    }
}

impl Read for Impatient {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(stalled)
    }
}

impl Write for Impatient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(stalled)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Names a timeout in a person's words: nobody would understand those of setsockopt(2).
fn stalled(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "the connection stalled"),
        _ => error,
    }
}

/// A descriptor that does not block, asked again and again until it is ready: a program that would
/// rather use up its processor than sleep. It gives up where nothing goes for so long.
#[derive(Debug)]
pub struct Spinning<S> {
    stream: S,
    patience: Duration,
}

/// Attempts between two looks at the clock.
const ATTEMPTS: u32 = 1 << 12;

impl<S> Spinning<S> {
    /// Of a descriptor that has been told not to block.
    pub fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience }
    }

    fn until_ready<T>(&mut self, mut attempt: impl FnMut(&mut S) -> io::Result<T>) -> io::Result<T> {
        let begin = Instant::now();
        loop {
            for _ in 0..ATTEMPTS {
                match attempt(&mut self.stream) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                    done => return done,
                }
            }
            if begin.elapsed() > self.patience {
                return Err(stalled(io::ErrorKind::WouldBlock.into()));
            }
        }
    }
}

impl<S: Read> Read for Spinning<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.until_ready(|stream| stream.read(into))
    }
}

impl<S: Write> Write for Spinning<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.until_ready(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.until_ready(Write::flush)
    }
}

/// Two pipes, made by the leader.
pub fn pipe(meeting: &mut Meeting, task: &Task) -> io::Result<impl Transport + use<>> {
    let (reader, writer) = pipes(meeting, task)?;
    Ok(Bytes::new(reader, writer, task.bytes))
}

/// The same, written a page at a time.
pub fn pages(meeting: &mut Meeting, task: &Task) -> io::Result<impl Transport + use<>> {
    let (reader, writer) = pipes(meeting, task)?;
    Ok(Bytes::new(reader, BufWriter::with_capacity(PAGE_BYTES, writer), task.bytes))
}

fn pipes(meeting: &mut Meeting, task: &Task) -> io::Result<(File, File)> {
    let (reader, writer) = match task.role {
        Role::Lead => {
            let (there_out, there_in) = large_pipe()?;
            let (back_out, back_in) = large_pipe()?;
            meeting.give(b"pipes", &[there_out, back_in])?;
            (back_out, there_in)
        }
        Role::Follow => {
            let (_, descriptors) = meeting.take(2)?;
            let [reader, writer] =
                <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| io::ErrorKind::InvalidData)?;
            (reader, writer)
        }
    };
    Ok((reader.into(), writer.into()))
}

fn large_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // What is over the limit of an unprivileged user stays as it is: 64 KiB.
    let _enlarged = rustix::pipe::fcntl_setpipe_size(&writer, PIPE_BYTES);
    Ok((reader, writer))
}

/// A pair of sockets, made by the leader.
pub fn unix(meeting: &mut Meeting, task: &Task) -> io::Result<impl Transport + use<>> {
    let stream = match task.role {
        Role::Lead => {
            let (here, there) = UnixStream::pair()?;
            meeting.give(b"socket", &[there])?;
            here
        }
        Role::Follow => {
            let (_, descriptors) = meeting.take(1)?;
            UnixStream::from(descriptors.into_iter().next().ok_or(io::ErrorKind::UnexpectedEof)?)
        }
    };
    Ok(Bytes::new(stream.try_clone()?, stream, task.bytes))
}

/// A connection to the follower. Buffers are left to the kernel, which fits them to the traffic.
pub fn tcp(meeting: &mut Meeting, task: &Task, address: &str) -> io::Result<impl Transport + use<>> {
    let stream = match task.role {
        Role::Lead => {
            let (port, _) = meeting.take(0)?;
            let port = String::from_utf8_lossy(&port).parse().map_err(io::Error::other)?;
            TcpStream::connect((address, port))?
        }
        Role::Follow => {
            let listener = TcpListener::bind((address, 0))?;
            let port = listener.local_addr()?.port().to_string();
            meeting.give::<OwnedFd>(port.as_bytes(), &[])?;
            listener.accept()?.0
        }
    };
    stream.set_nodelay(true)?;
    Ok(Bytes::new(stream.try_clone()?, stream, task.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time, then three, and so on: messages never come as they were sent.
    struct Ragged(Vec<u8>, usize);

    impl Read for Ragged {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.0.len().min(into.len()).min(self.1);
            self.1 += 2;
            into[..count].copy_from_slice(&self.0[..count]);
            self.0.drain(..count);
            Ok(count)
        }
    }

    #[test]
    fn an_end_that_spins_gets_what_comes_and_gives_up_where_nothing_does() {
        let (here, mut there) = UnixStream::pair().expect("a pair");
        here.set_nonblocking(true).expect("told");
        let mut spinning = Spinning::new(here, Duration::from_millis(20));
        let mut buffer = [0; 4];
        assert_eq!(spinning.read(&mut buffer).expect_err("nothing came").kind(), io::ErrorKind::TimedOut);
        there.write_all(b"word").expect("sent");
        assert_eq!(spinning.read(&mut buffer).expect("it came"), 4);
        spinning.write_all(b"back").expect("sent");
        there.read_exact(&mut buffer).expect("it came");
        assert_eq!(&buffer, b"back");
    }

    #[test]
    fn messages_are_whole_however_the_bytes_come() {
        let sent: Vec<u8> = (0..71_680_u32).map(|n| n as u8).collect();
        for message_bytes in [1, 7, 64, 71_680] {
            let mut bytes = Bytes::new(Ragged(sent.clone(), 1), io::sink(), message_bytes);
            let mut got = Vec::new();
            for _ in 0..sent.len() / message_bytes {
                got.extend_from_slice(bytes.receive().expect("a message"));
            }
            assert!(got == sent, "messages of {message_bytes}");
            assert_eq!(bytes.receive().expect_err("no more").kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
