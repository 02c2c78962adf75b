//! A process that runs for the node: the domain's command, or a further one. Its output goes out by
//! a stream, and what a further one reads comes in by it.

use crate::enter::{ENTER_ROLE, Failure, Request};
use crate::terminal;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use sys::aside;
use wire::guest::{Ending, ExecEnd, exec};

/// Most that is read of an output at once, in bytes.
const CHUNK_BYTES: usize = 16 * 1024;
/// How long the last output of a process that ended may take from its pipe to us.
const LEFT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest word of why nothing was executed, in bytes.
const MAX_FAILURE_BYTES: usize = 64 * 1024;

/// Standard output and standard error, by their places in [`Process::outputs`].
pub(crate) const OUTPUTS: [u8; 2] = [exec::STDOUT, exec::STDERR];

/// The input of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// Nothing.
    None,
    /// The bytes that the stream brings.
    Stream,
    /// The same, by a terminal, which is its output too.
    Terminal,
}

/// One that was started.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    /// Says why nothing was executed, or hangs up when something was.
    pub word: Option<OwnedFd>,
    failure: Option<Failure>,
    ending: Option<Ending>,
    left_until: Option<Instant>,
    terminal: Option<OwnedFd>,
    /// Where its input is written.
    pub input: Option<OwnedFd>,
    pub outputs: [Option<OwnedFd>; 2],
    /// Bounded by the stream's window.
    pending: VecDeque<Pending>,
}

impl Process {
    /// Starts one.
    ///
    /// # Errors
    /// The error of making its streams or of starting it; nothing was executed then.
    pub fn spawn(program: &Path, request: &Request, input: Input) -> io::Result<Self> {
        let (streams, ours) = make_streams(input)?;
        let (word, theirs) = sys::descriptors::socket_pair()?;
        let child = Command::new(program)
            .arg(ENTER_ROLE)
            .arg0("tombolo")
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .current_dir("/")
            .spawn()?;
        let number = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = number.ok_or_else(|| io::Error::other("a process without a number"))?;
        let said = serde_json::to_vec(request)?;
        let streams: Vec<_> = streams.iter().map(AsFd::as_fd).collect();
        let sent = sys::descriptors::send_with_descriptors(&word, &said, &streams);
        rustix::io::ioctl_fionbio(&word, true)?;
        let mut process = Self {
            pid,
            word: Some(word),
            failure: None,
            ending: None,
            left_until: None,
            terminal: ours.terminal,
            input: ours.input,
            outputs: ours.outputs,
            pending: VecDeque::new(),
        };
        if let Err(error) = sent {
            // It will be reaped like any other.
            process.signal(Signal::KILL.as_raw());
            process.failure = Some(Failure::new(format!("what is to run could not be said: {error}")));
        }
        Ok(process)
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Looks whether something was executed; whether that became known now.
    pub fn hear_word(&mut self) -> bool {
        let Some(word) = &self.word else { return false };
        let mut bytes = vec![0; MAX_FAILURE_BYTES];
        let heard = rustix::io::retry_on_intr(|| {
            rustix::net::recv(word, &mut *bytes, RecvFlags::DONTWAIT).map(|(_, length)| length)
        });
        match heard {
            Err(Errno::AGAIN) => return false,
            Ok(length) if length > 0 => {
                let said = bytes.get(..length).and_then(|said| serde_json::from_slice(said).ok());
                self.failure = said.or_else(|| Some(Failure::new("it did not say why".into())));
            }
            // Its end of the socket closed: by execve(2), or by its death, which `ended` tells.
            _ => {}
        }
        self.word = None;
        self.failure.is_none() && self.ending.is_none()
    }

    /// It was reaped.
    pub fn reaped(&mut self, ending: Ending) {
        self.hear_word();
        self.ending = Some(ending);
        self.left_until = Some(Instant::now() + LEFT_TIMEOUT);
        if self.terminal.is_none() {
            self.outputs.iter().flatten().for_each(aside::finish);
        }
    }

    /// How long what is left of the output of one that ended is waited for: whoever splices into it
    /// may hold it for as long as they like.
    pub fn left_until(&self) -> Option<Instant> {
        self.left_until.filter(|_| self.outputs.iter().any(Option::is_some))
    }

    /// How it ended, when it has and all that it wrote is on its way.
    pub fn outcome(&self) -> Option<ExecEnd> {
        if self.outputs.iter().any(Option::is_some) {
            return None;
        }
        let ending = self.ending?;
        Some(match &self.failure {
            Some(Failure { error, code }) => ExecEnd::Failed { error: error.clone(), code: *code },
            None => ExecEnd::Ended(ending),
        })
    }

    pub fn has_ended(&self) -> bool {
        self.ending.is_some()
    }

    /// Takes a piece of an output, as a message of the stream; none where there is none now. An
    /// output that is at its end is closed; one of a process that ended is at its end when nothing
    /// more is there, whoever else may have it open ([`aside::finish`]).
    pub fn read(&mut self, which: usize, room: usize) -> Option<Vec<u8>> {
        let output = self.outputs.get_mut(which)?;
        let descriptor = output.as_ref()?;
        let tag = OUTPUTS.get(which).copied()?;
        let mut message = vec![0; room.min(1 + CHUNK_BYTES)];
        let (first, space) = message.split_first_mut()?;
        *first = tag;
        if space.is_empty() {
            return None;
        }
        match rustix::io::retry_on_intr(|| rustix::io::read(descriptor, &mut *space)) {
            Ok(length) if length > 0 => {
                self.left_until = self.ending.map(|_| Instant::now() + LEFT_TIMEOUT);
                message.truncate(1 + length);
                return Some(message);
            }
            Err(Errno::AGAIN) if self.ending.is_none() || self.terminal.is_none() => {}
            // The end; of a terminal it is EIO.
            _ => *output = None,
        }
        None
    }

    /// A message of a further process's stream, but for input. Whether it is one.
    pub fn control(&mut self, message: &[u8]) -> bool {
        match message {
            [exec::SIGNAL, signal] => self.signal(i32::from(*signal)),
            [exec::SIZE, c0, c1, r0, r1] => {
                if let Some(terminal) = &self.terminal {
                    terminal::resize(terminal, [*c0, *c1, *r0, *r1]);
                }
            }
            _ => return false,
        }
        true
    }

    /// Signals it, if it was not reaped yet: then its number is its own.
    pub fn signal(&self, signal: i32) {
        if let (None, Some(signal)) = (&self.ending, Signal::from_named_raw(signal)) {
            // It may have ended this moment.
            let _gone = rustix::process::kill_process(self.pid, signal);
        }
    }

    /// Kills it with its session's first group: a further process does not outlive who asked for
    /// it.
    pub fn kill(&self) {
        if self.ending.is_none() {
            let _gone = rustix::process::kill_process_group(self.pid, Signal::KILL);
            let _gone = rustix::process::kill_process(self.pid, Signal::KILL);
        }
    }

    /// Input has come: a message of the stream.
    pub fn put(&mut self, message: Vec<u8>) {
        let length = message.len();
        let bytes = match message {
            end if length <= 1 && self.terminal.is_some() => [end, terminal::END_OF_INPUT.to_vec()].concat(),
            bytes => bytes,
        };
        self.pending.push_back(Pending { bytes, done: 1, length });
    }

    /// Whether input waits until somebody reads.
    pub fn has_input(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Writes input as far as it is taken: the lengths of the messages that are done with.
    pub fn write(&mut self) -> Vec<usize> {
        let mut consumed = Vec::new();
        while let Some(pending) = self.pending.front_mut() {
            let rest = pending.bytes.get(pending.done..).unwrap_or_default();
            if rest.is_empty() && pending.length <= 1 {
                self.input = None;
            } else if let (Some(input), false) = (&self.input, rest.is_empty()) {
                match rustix::io::retry_on_intr(|| rustix::io::write(input, rest)) {
                    Ok(bytes) => pending.done += bytes,
                    Err(Errno::AGAIN) => break,
                    // Nobody reads it any more.
                    Err(_) => self.input = None,
                }
                continue;
            }
            consumed.push(pending.length);
            self.pending.pop_front();
        }
        consumed
    }
}

/// Input that was not written yet.
#[derive(Debug)]
struct Pending {
    /// A tag, then what is to be written.
    bytes: Vec<u8>,
    /// How much of it is done with.
    done: usize,
    /// Bytes of the message as it came.
    length: usize,
}

/// Our sides of a process's streams.
struct Ours {
    terminal: Option<OwnedFd>,
    input: Option<OwnedFd>,
    outputs: [Option<OwnedFd>; 2],
}

/// Makes standard input, output and error of a process, and our sides of them, non-blocking.
fn make_streams(input: Input) -> io::Result<([OwnedFd; 3], Ours)> {
    if input == Input::Terminal {
        let (master, slave) = terminal::open()?;
        let (input, output) = (Some(master.try_clone()?), Some(master.try_clone()?));
        let theirs = [slave.try_clone()?, slave.try_clone()?, slave];
        return Ok((theirs, Ours { terminal: Some(master), input, outputs: [output, None] }));
    }
    let (out, out_theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    let (error, error_theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    let (out, error) = (aside::reader(out)?, aside::reader(error)?);
    let (theirs, ours) = match input {
        Input::Stream => {
            let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
            (theirs, Some(aside::writer(ours)?))
        }
        _ => (std::fs::File::open("/dev/null")?.into(), None),
    };
    Ok((
        [theirs, out_theirs, error_theirs],
        Ours { terminal: None, input: ours, outputs: [Some(out), Some(error)] },
    ))
}
