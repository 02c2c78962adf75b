//! The work of a client, and of the server that it asks.
//!
//! The first byte of a connection says what is wanted. A client says `ready`; it is given a
//! [`Task`] as JSON, works, and answers with a [`Tale`]. The end of its input ends it.

use crate::histogram::Latencies;
use crate::talk::{next_line, say};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;
use sys::clock::clock_ns;

/// Bytes of a question and of its answer.
pub const QUESTION_BYTES: usize = 64;
/// The server's buffer, and the longest piece of a stream.
const PIECE_BYTES: usize = 64 * 1024;
/// Longer than any single call should take: what is stuck is told, not waited for.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Echoes questions.
const ECHO: u8 = b'e';
/// Reads to the end and says how many bytes came.
const COUNT: u8 = b'c';
/// Answers one byte and closes.
const CLOSE: u8 = b'x';

/// The kind of work that a client does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Questions and answers of [`QUESTION_BYTES`], one after the other.
    RoundTrip,
    /// As many bytes as go, in writes of so many.
    Stream(usize),
    /// Connections, one after the other, with a byte each way.
    Connections,
    /// So many connections, each with one question and its answer, which stay open until the next
    /// task.
    Hold(usize),
    /// Another program, which does the asking and prints what it has measured: its words.
    Program(Vec<String>),
}

/// The task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// `tcp:ADDRESS:PORT` or `unix:PATH`.
    pub place: String,
    /// The work to do there.
    pub work: Work,
    /// How long before the measured window, in ns.
    pub warm_up_ns: u64,
    /// The measured window, in ns.
    pub window_ns: u64,
}

/// The account of the work.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Tale {
    /// How long each operation of the window took; of a stream's writes nothing is noted.
    pub latencies: Latencies,
    /// Operations within the window.
    pub operations: u64,
    /// How long they took in all, in ns.
    pub window_ns: u64,
    /// The output of another program.
    pub said: String,
}

impl Tale {
    fn new() -> Self {
        Self { latencies: Latencies::new(), operations: 0, window_ns: 0, said: String::new() }
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn connect(place: &str) -> io::Result<Self> {
        if let Some(path) = place.strip_prefix("unix:") {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            return Ok(Self::Unix(stream));
        }
        let stream = TcpStream::connect(place.strip_prefix("tcp:").unwrap_or(place))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self::Tcp(stream))
    }

    fn finish(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serves at a place for as long as the process lives, each connection on a thread of its own; says
/// `ready` when it listens.
///
/// # Errors
/// Where it can't listen.
pub fn serve(place: &str) -> io::Result<()> {
    let accept: Box<dyn Fn() -> io::Result<Stream>> = if let Some(path) = place.strip_prefix("unix:") {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        Box::new(move || Ok(Stream::Unix(listener.accept()?.0)))
    } else {
        let listener = TcpListener::bind(place.strip_prefix("tcp:").unwrap_or(place))?;
        Box::new(move || {
            let stream = listener.accept()?.0;
            stream.set_nodelay(true)?;
            Ok(Stream::Tcp(stream))
        })
    };
    say(&mut io::stdout().lock(), "ready")?;
    loop {
        // Of a client that is gone before it is let in.
        let Ok(stream) = accept() else { continue };
        // What one client does wrong ends its own connection.
        std::thread::spawn(move || attend(stream));
    }
}

fn attend(mut stream: Stream) -> io::Result<()> {
    let mut wish = [0];
    stream.read_exact(&mut wish)?;
    match wish {
        [ECHO] => {
            let mut question = [0; QUESTION_BYTES];
            while stream.read_exact(&mut question).is_ok() {
                stream.write_all(&question)?;
            }
            Ok(())
        }
        [COUNT] => {
            let (mut piece, mut count) = (vec![0; PIECE_BYTES], 0_u64);
            loop {
                match stream.read(&mut piece)? {
                    0 => return stream.write_all(&count.to_le_bytes()),
                    read => count += read as u64,
                }
            }
        }
        _ => stream.write_all(&wish),
    }
}

/// Leads a client's conversation until its input ends.
///
/// # Errors
/// Where the input is no conversation, or the server is not there.
pub fn converse(input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    say(output, "ready")?;
    let mut held = Vec::new();
    while let Some(line) = next_line(input)? {
        let task: Task = serde_json::from_str(&line).map_err(io::Error::other)?;
        held.clear();
        let tale = perform(&task, &mut held)?;
        say(output, &serde_json::to_string(&tale).map_err(io::Error::other)?)?;
    }
    Ok(())
}

fn perform(task: &Task, held: &mut Vec<Stream>) -> io::Result<Tale> {
    match &task.work {
        Work::Stream(bytes) => stream(task, (*bytes).min(PIECE_BYTES)),
        Work::Program(words) => run(words),
        Work::Hold(count) => hold(task, *count, held),
        Work::RoundTrip => {
            let mut stream = Stream::connect(&task.place)?;
            stream.write_all(&[ECHO])?;
            let mut question = [7; QUESTION_BYTES];
            repeat(task, || {
                stream.write_all(&question)?;
                stream.read_exact(&mut question)
            })
        }
        Work::Connections => repeat(task, || {
            let mut stream = Stream::connect(&task.place)?;
            stream.write_all(&[CLOSE])?;
            stream.read_exact(&mut [0])?;
            // The server closes first, so that no port of the client's waits for late packets.
            stream.read(&mut [0]).map(drop)
        }),
    }
}

fn repeat(task: &Task, mut act: impl FnMut() -> io::Result<()>) -> io::Result<Tale> {
    let begin = clock_ns() + task.warm_up_ns;
    let mut tale = Tale::new();
    loop {
        let before = clock_ns();
        act()?;
        let after = clock_ns();
        if before < begin {
            continue;
        }
        tale.latencies.record(after - before);
        tale.operations += 1;
        tale.window_ns = after - begin;
        if tale.window_ns >= task.window_ns {
            return Ok(tale);
        }
    }
}

/// Writes for as long as the window is, and counts what the server says has come, by the time at
/// which it says so.
fn stream(task: &Task, bytes: usize) -> io::Result<Tale> {
    let mut stream = Stream::connect(&task.place)?;
    stream.write_all(&[COUNT])?;
    let piece = vec![7; bytes];
    let begin = clock_ns();
    let end = begin + task.warm_up_ns + task.window_ns;
    let mut writes = 0;
    while clock_ns() < end {
        stream.write_all(&piece)?;
        writes += 1;
    }
    stream.finish()?;
    let mut count = [0; 8];
    stream.read_exact(&mut count)?;
    if u64::from_le_bytes(count) != writes * bytes as u64 {
        return Err(io::Error::other("the server has other bytes than were sent"));
    }
    Ok(Tale { operations: writes, window_ns: clock_ns() - begin, ..Tale::new() })
}

fn hold(task: &Task, count: usize, held: &mut Vec<Stream>) -> io::Result<Tale> {
    let begin = clock_ns();
    for _ in 0..count {
        let mut stream = Stream::connect(&task.place)?;
        stream.write_all(&[ECHO])?;
        stream.write_all(&[7; QUESTION_BYTES])?;
        stream.read_exact(&mut [0; QUESTION_BYTES])?;
        held.push(stream);
    }
    Ok(Tale { operations: count as u64, window_ns: clock_ns() - begin, ..Tale::new() })
}

fn run(words: &[String]) -> io::Result<Tale> {
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let begin = clock_ns();
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("{program} failed ({}): {said}{complaint}", output.status)));
    }
    Ok(Tale { window_ns: clock_ns() - begin, said, ..Tale::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_work_is_done_and_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = format!("unix:{}", folder.path().join("server.sock").display());
        let at = place.clone();
        std::thread::spawn(move || serve(&at));
        let begun = std::time::Instant::now();
        while Stream::connect(&place).is_err() {
            assert!(begun.elapsed() < TIMEOUT, "nobody listens");
            std::thread::yield_now();
        }
        for work in [Work::RoundTrip, Work::Stream(64), Work::Stream(PIECE_BYTES), Work::Connections] {
            let task = Task { place: place.clone(), work, warm_up_ns: 0, window_ns: 1_000_000 };
            let mut output = Vec::new();
            let input = serde_json::to_string(&task).expect("JSON") + "\n";
            converse(&mut input.as_bytes(), &mut output).expect("a good conversation");
            let output = String::from_utf8(output).expect("text");
            let lines: Vec<&str> = output.lines().collect();
            let tale: Tale = serde_json::from_str(lines[1]).expect("a tale");
            assert!(lines[0] == "ready" && tale.operations > 0 && tale.window_ns > 0, "{tale:?}");
        }
        let mut held = Vec::new();
        let task = Task { place, work: Work::Hold(3), warm_up_ns: 0, window_ns: 0 };
        assert_eq!(perform(&task, &mut held).expect("they are let in").operations, 3);
        assert_eq!(held.len(), 3);
        let words = |program: &str| Work::Program(vec![program.into(), "said".into()]);
        let task = |program| Task { work: words(program), ..task.clone() };
        assert_eq!(perform(&task("echo"), &mut held).expect("it runs").said, "said\n");
        assert!(perform(&task("false"), &mut held).is_err());
    }
}
