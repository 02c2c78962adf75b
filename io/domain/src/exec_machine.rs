//! Another command in a guest: its standard streams, signals and terminal go through the machine
//! process (`docs/spec/machine.md`), which is at the other end of a socket in the machine's
//! directory.
//!
//! One thread and one `poll`. Nothing of ours blocks: what the guest writes waits until our
//! standard output takes it, and what we are given waits until the machine process does, so that a
//! signal always gets through.

use crate::error::{Context, Error, Result};
use crate::exec::ExecOptions;
use crate::exec_process::RawTerminal;
use crate::layout::DomainPaths;
use crate::machine;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::tcgetwinsize;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use sys::signals::SignalDescriptor;
use wire::guest::{self, ExecEnd, exec};

/// How much of the standard input is sent in one message, in bytes.
const INPUT_BYTES: usize = 16 * 1024;
/// How much is written at once where that can't block: what a pipe that is ready takes at the least
/// (`PIPE_BUF`).
const OUTPUT_BYTES: usize = 4096;
/// The number of `SIGPIPE` (signal(7)).
const PIPE_SIGNAL: u8 = 13;
/// Messages to the machine that may wait: signals and sizes that a person makes.
const MAX_WAITING: usize = 64;

/// Runs a command in the guest and returns its exit code.
pub(crate) fn run(paths: &DomainPaths, options: &ExecOptions) -> Result<i32> {
    let socket = connect(paths)?;
    let signals = SignalDescriptor::block(
        &[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH]
            .map(Signal::as_raw),
    )
    .doing("take signals")?;
    crate::exec::end_after(options.limit)?;
    let request = request(options)?;
    let mut talk = Talk {
        socket,
        signals,
        tty: options.tty,
        input: options.tty || options.interactive,
        waiting: VecDeque::from([request]),
        output: None,
        end: None,
    };
    // A terminal that is raw passes on every key, ctrl-C too; it is as before when this is dropped.
    let raw = if options.tty {
        talk.say_size();
        Some(RawTerminal::enter()?)
    } else {
        None
    };
    let end = talk.converse();
    drop(raw);
    match end? {
        ExecEnd::Ended(ending) => Ok(ending.code()),
        ExecEnd::Failed { error, code } => {
            eprintln!("tombolo exec: {}", printable(&error));
            Ok(code)
        }
    }
}

/// The first message: what is to run.
fn request(options: &ExecOptions) -> Result<Vec<u8>> {
    let workdir = options.workdir.as_ref().map(|path| path.to_string_lossy().into_owned());
    let wanted = guest::ExecOptions {
        tty: options.tty,
        interactive: options.interactive || options.tty,
        environment: options.environment.clone(),
        user: options.user.clone(),
        workdir,
        command: options.command.clone(),
    };
    let request = serde_json::to_vec(&wanted).map_err(std::io::Error::from).doing("encode the request")?;
    if request.len() > guest::MAX_PAYLOAD_BYTES / 2 {
        return Err(Error::Specification(format!(
            "exec: the command and its variables are longer than {} bytes, which is what a guest can be told at once",
            guest::MAX_PAYLOAD_BYTES / 2
        )));
    }
    Ok(request)
}

fn connect(paths: &DomainPaths) -> Result<OwnedFd> {
    let at = machine::socket(paths)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .doing("make a socket")?;
    // By the descriptor that was looked at: nobody can put another thing in its place meanwhile.
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", at.as_raw_fd()))
        .doing("name the machine's socket")?;
    rustix::net::connect(&socket, &address).doing("ask the machine of the domain")?;
    Ok(socket)
}

/// The conversation with the machine process.
struct Talk {
    socket: OwnedFd,
    signals: SignalDescriptor,
    tty: bool,
    /// Whether our standard input is still read.
    input: bool,
    /// Messages that the machine process has not taken yet.
    waiting: VecDeque<Vec<u8>>,
    /// The output of the guest that ours has not taken yet.
    output: Option<Output>,
    end: Option<ExecEnd>,
}

/// The bytes that are to be written, and where.
struct Output {
    error: bool,
    bytes: Vec<u8>,
    written: usize,
}

impl Output {
    fn stream(&self) -> BorrowedFd<'static> {
        if self.error { stderr() } else { stdout() }
    }
}

/// The descriptors that are ready after a wait.
#[derive(Default)]
struct Ready {
    signals: bool,
    hear: bool,
    say: bool,
    input: bool,
    output: bool,
}

impl Talk {
    /// Until the guest says how the command ended, and everything that it wrote is written.
    fn converse(&mut self) -> Result<ExecEnd> {
        loop {
            if self.output.is_none()
                && let Some(end) = self.end.take()
            {
                return Ok(end);
            }
            let ready = self.wait()?;
            if ready.signals {
                self.take_signals()?;
            }
            if ready.say {
                self.say()?;
            }
            if ready.output {
                self.write();
            }
            if ready.input {
                self.read_input()?;
            }
            if ready.hear {
                self.hear()?;
            }
        }
    }

    fn wait(&self) -> Result<Ready> {
        let wants_input = self.input && self.waiting.is_empty() && self.end.is_none();
        let mut talk = PollFlags::empty();
        if self.output.is_none() && self.end.is_none() {
            talk |= PollFlags::IN;
        }
        if !self.waiting.is_empty() {
            talk |= PollFlags::OUT;
        }
        let input = stdin();
        let output = self.output.as_ref().map(Output::stream);
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        let mut place = |fd| {
            fds.push(fd);
            fds.len() - 1
        };
        // One that is not waited for would still tell of its hang-up, again and again.
        let at_talk = (!talk.is_empty()).then(|| place(PollFd::new(&self.socket, talk)));
        let at_input = wants_input.then(|| place(PollFd::new(&input, PollFlags::IN)));
        let at_output = output.as_ref().map(|stream| place(PollFd::new(stream, PollFlags::OUT)));
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing("wait for the guest"),
        }
        let seen =
            |at: Option<usize>| at.and_then(|at| fds.get(at)).map_or(PollFlags::empty(), PollFd::revents);
        let over = PollFlags::HUP | PollFlags::ERR;
        Ok(Ready {
            signals: !seen(Some(0)).is_empty(),
            hear: talk.contains(PollFlags::IN) && seen(at_talk).intersects(PollFlags::IN | over),
            say: talk.contains(PollFlags::OUT) && seen(at_talk).intersects(PollFlags::OUT | over),
            input: !seen(at_input).is_empty(),
            output: !seen(at_output).is_empty(),
        })
    }

    fn take_signals(&mut self) -> Result<()> {
        while let Some(signal) = self.signals.take().doing("take signals")? {
            if signal == Signal::WINCH.as_raw() {
                if self.tty {
                    self.say_size();
                }
            } else if let Ok(number) = u8::try_from(signal) {
                self.put(vec![exec::SIGNAL, number]);
            }
        }
        Ok(())
    }

    fn say_size(&mut self) {
        if let Ok(size) = tcgetwinsize(stdin()) {
            let mut message = vec![exec::SIZE];
            message.extend(size.ws_col.to_le_bytes());
            message.extend(size.ws_row.to_le_bytes());
            self.put(message);
        }
    }

    /// A machine process that takes nothing is told no more: what it was told is enough to end the
    /// command.
    fn put(&mut self, message: Vec<u8>) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(message);
        }
    }

    fn say(&mut self) -> Result<()> {
        while let Some(message) = self.waiting.front() {
            match rustix::net::send(&self.socket, message, SendFlags::NOSIGNAL) {
                Ok(_) => {
                    self.waiting.pop_front();
                }
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                // What it said before it hung up is still to be heard.
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    self.waiting.clear();
                    self.input = false;
                    return Ok(());
                }
                Err(error) => return Err(error).doing("speak to the machine of the domain"),
            }
        }
        Ok(())
    }

    fn read_input(&mut self) -> Result<()> {
        let mut message = vec![0; 1 + INPUT_BYTES];
        message[0] = exec::STDIN;
        let read = match rustix::io::read(stdin(), &mut message[1..]) {
            Ok(read) => read,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            // A terminal that is gone gives no more.
            Err(_) => 0,
        };
        self.input = read > 0;
        message.truncate(1 + read);
        self.put(message);
        self.say()
    }

    fn hear(&mut self) -> Result<()> {
        let mut message = vec![0; guest::MAX_PAYLOAD_BYTES];
        let length = match rustix::net::recv(&self.socket, message.as_mut_slice(), RecvFlags::empty()) {
            Ok((length, _)) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(Errno::CONNRESET) => 0,
            Err(error) => return Err(error).doing("hear the machine of the domain"),
        };
        message.truncate(length);
        let Some((kind, rest)) = message.split_first() else {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof))
                .doing("follow the command: the machine of the domain has ended, or its guest has");
        };
        match *kind {
            exec::STDOUT | exec::STDERR => {
                let error = *kind == exec::STDERR;
                self.output =
                    Some(Output { error, bytes: rest.to_vec(), written: 0 }).filter(|o| !o.bytes.is_empty());
            }
            exec::ENDED => {
                let end = serde_json::from_slice(rest).map_err(std::io::Error::from);
                self.end = Some(end.doing("understand how the command ended")?);
            }
            // What a later version may say beside.
            _ => {}
        }
        Ok(())
    }

    /// Writes a little: a stream that is ready takes so much without blocking.
    fn write(&mut self) {
        let Some(output) = &mut self.output else { return };
        let rest = output.bytes.get(output.written..).unwrap_or_default();
        let piece = rest.get(..OUTPUT_BYTES).unwrap_or(rest);
        match rustix::io::write(output.stream(), piece) {
            Ok(written) => output.written += written,
            Err(Errno::AGAIN | Errno::INTR) => return,
            // The command hears of a reader that has gone away as it would on this side.
            Err(_) => {
                self.output = None;
                self.put(vec![exec::SIGNAL, PIPE_SIGNAL]);
                return;
            }
        }
        if output.written >= output.bytes.len() {
            self.output = None;
        }
    }
}

/// A guest's words, unable to steer the reader's terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
