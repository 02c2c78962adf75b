//! A command in a domain of this node whose streams are with a caller on another.
//!
//! One loop. Nothing waits for the caller to read but the command's output, nothing for the command
//! to read but the caller's input, and signals get through in any case: so much input as is not
//! taken is kept here, and no more is let come.

use super::pipes::Pipes;
use crate::admin::{Code, ExecRequest, Problem};
use crate::base::watched;
use crate::membership::Stream;
use domain::{ExecOptions, Layout};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use sys::aside;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::process::{Child, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wire::remote::{Broken, Decoder, FromCaller, INPUT_WINDOW_BYTES, frame, put};

/// Commands that callers on other nodes may have here at a time.
const MAX_COMMANDS: usize = 64;
/// How much is read at once, in bytes.
const PIECE_BYTES: usize = 16 * 1024;
/// The longest pipe that everybody may make (`fs.pipe-max-size`, pipe(7)), in bytes.
const PIPE_BYTES: usize = 1 << 20;
/// The bytes that a command that has ended may have left in its two pipes and on the way from
/// there.
const LEFT_BYTES: usize = 2 * (PIPE_BYTES + aside::HELD_BYTES);
/// How long to wait for that. Other processes that have the pipe open are not waited for: the end
/// comes behind what is there ([`aside::finish`]).
const LEFT_TIMEOUT: Duration = Duration::from_secs(2);
/// The same for a terminal, which has no such end while somebody else has it open.
const TERMINAL_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a command has after it was told that its caller is gone, and again after it was told to
/// end.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Exit code where nobody can say.
const CODE_UNKNOWN: i32 = 125;

/// Places for commands.
#[derive(Debug, Clone)]
pub(crate) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_COMMANDS)))
    }
}

/// A command that has been started.
pub(crate) struct Running {
    child: Child,
    input: Option<AsyncFd<OwnedFd>>,
    output: Option<AsyncFd<OwnedFd>>,
    errors: Option<AsyncFd<OwnedFd>>,
    /// Whether `output` is a terminal's master.
    terminal: bool,
    _place: OwnedSemaphorePermit,
}

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// The domain does not run; too many commands run; the kernel refuses.
    pub(crate) fn start(
        places: &Places,
        layout: &Layout,
        (dc, domain): (&str, &str),
        request: ExecRequest,
    ) -> Result<Self, Problem> {
        let failed = |error: io::Error| Problem::new(Code::Failed, format!("can't run it: {error}"));
        let place = Arc::clone(&places.0).try_acquire_owned().map_err(|_| {
            let message = format!("{MAX_COMMANDS} commands of other nodes run here already");
            Problem::new(Code::Failed, message).help("end some, or say it on this node")
        })?;
        let (terminal, interactive) = (request.tty, request.interactive);
        let size = request.size;
        let options = ExecOptions {
            tty: terminal,
            interactive,
            environment: request.environment,
            user: request.user,
            workdir: request.workdir,
            limit: None,
            command: request.command,
        };
        let command = domain::exec_command(layout, dc, domain, &options)
            .map_err(|error| Problem::new(Code::Failed, error.to_string()))?;
        let mut command = Command::from(command);
        // So that what it starts hears of its caller's end, and of the size of its terminal.
        command.process_group(0).kill_on_drop(true);
        let (input, output, errors) = if terminal {
            with_terminal(&mut command, size)
        } else {
            with_pipes(&mut command, interactive, layout)
        }
        .map_err(failed)?;
        let child = command.spawn().map_err(failed)?;
        Ok(Self { child, input, output, errors, terminal, _place: place })
    }

    fn group(&self) -> Option<Pid> {
        self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
    }

    /// To what stands for the command here, which passes it on.
    fn signal(&self, number: u8) {
        let passed = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
        let signal = passed.into_iter().find(|signal| signal.as_raw() == i32::from(number));
        if let (Some(pid), Some(signal)) = (self.group(), signal) {
            // Not waited for yet, so its number is its own; it may have ended this moment.
            let _gone = kill_process(pid, signal);
        }
    }

    fn resize(&self, columns: u16, rows: u16) {
        let Some(master) = self.output.as_ref().filter(|_| self.terminal) else { return };
        // A wrong size is a blemish only.
        let _kept = tcsetwinsize(master.get_ref(), winsize(columns, rows));
        if let Some(group) = self.group() {
            let _gone = kill_process_group(group, Signal::WINCH);
        }
    }

    /// Its caller is gone: it is told so, as by a terminal that hangs up, then asked to end, and
    /// then killed.
    async fn hang_up(mut self) {
        (self.input, self.output, self.errors) = (None, None, None);
        for signal in [Signal::HUP, Signal::TERM] {
            if let Some(group) = self.group() {
                let _gone = kill_process_group(group, signal);
            }
            if tokio::time::timeout(END_TIMEOUT, self.child.wait()).await.is_ok() {
                return;
            }
        }
        if let Err(error) = self.child.kill().await {
            tracing::warn!(%error, "a command whose caller is gone can't be killed");
        }
    }
}

type Ends = (Option<AsyncFd<OwnedFd>>, Option<AsyncFd<OwnedFd>>, Option<AsyncFd<OwnedFd>>);

fn with_pipes(command: &mut Command, interactive: bool, layout: &Layout) -> io::Result<Ends> {
    let ours = |end: OwnedFd, interest| watched(end, interest).map(Some);
    let mut pipes = Pipes::default();
    let mut input = None;
    command.stdin(Stdio::null());
    if interactive {
        let (theirs, end) = pipe_with(PipeFlags::CLOEXEC)?;
        command.stdin(Stdio::from(theirs));
        input = ours(pipes.writer(end)?, Interest::WRITABLE)?;
    }
    let (output, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    command.stdout(Stdio::from(theirs));
    let (errors, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    command.stderr(Stdio::from(theirs));
    let mut reader = |pipe| ours(pipes.reader(pipe)?, Interest::READABLE);
    let (output, errors) = (reader(output)?, reader(errors)?);
    pipes.start(layout)?;
    Ok((input, output, errors))
}

fn with_terminal(command: &mut Command, size: Option<(u16, u16)>) -> io::Result<Ends> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    if let Some((columns, rows)) = size {
        tcsetwinsize(&slave, winsize(columns, rows))?;
    }
    command
        .stdin(Stdio::from(slave.try_clone()?))
        .stdout(Stdio::from(slave.try_clone()?))
        .stderr(Stdio::from(slave));
    rustix::io::ioctl_fionbio(&master, true)?;
    let input = watched(master.try_clone()?, Interest::WRITABLE)?;
    Ok((Some(input), Some(watched(master, Interest::READABLE)?), None))
}

fn winsize(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Serves a command to its caller until it has ended, or the caller is gone.
pub(crate) async fn attend(stream: Result<Box<dyn Stream>, String>, mut running: Running) {
    let ended = match stream {
        Ok(stream) => converse(stream, &mut running).await,
        Err(why) => Err(why),
    };
    match ended {
        Ok(()) => {}
        Err(why) => {
            tracing::info!(why, "the caller of a command is gone");
            running.hang_up().await;
        }
    }
}

/// The bytes between a command and its caller.
#[derive(Default)]
struct Between {
    decoder: Decoder,
    /// Input that the command has not taken.
    waiting: VecDeque<u8>,
    /// Input of which the caller was not told that it is taken; and how much of that is.
    held: usize,
    taken: usize,
    /// Nothing follows that.
    input_over: bool,
    /// The bytes for the caller.
    outbox: Vec<u8>,
    sent: usize,
    unflushed: bool,
    /// How it ended, and how much may be left of what it wrote.
    ended: Option<(i32, usize)>,
}

async fn converse(stream: Box<dyn Stream>, running: &mut Running) -> Result<(), String> {
    let (mut from, mut to) = tokio::io::split(stream);
    let mut between = Between::default();
    let (mut piece, mut read, mut complaints) =
        (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    loop {
        between.say_what_was_taken();
        let idle = between.outbox.is_empty();
        let patience = if running.terminal { TERMINAL_TIMEOUT } else { LEFT_TIMEOUT };
        if let (Some((code, _)), true, None, None) = (between.ended, idle, &running.output, &running.errors) {
            put(frame::ENDED, &code.to_le_bytes(), &mut between.outbox);
            let last = async {
                to.write_all(&between.outbox).await?;
                to.shutdown().await
            };
            last.await.map_err(|error| error.to_string())?;
            // TCP takes back what was said when a connection is closed on input that nobody has
            // read (RFC 1122, 4.2.2.13): the caller closes.
            let rest = async { while from.read(&mut piece).await.is_ok_and(|length| length > 0) {} };
            if tokio::time::timeout(END_TIMEOUT, rest).await.is_err() {
                tracing::debug!("the caller of a command that has ended does not hang up");
            }
            return Ok(());
        }
        tokio::select! {
            // What a command has left comes before the end of the wait for it.
            biased;
            came = from.read(&mut piece) => match came {
                Ok(0) => return Err("it hung up".into()),
                Ok(length) => {
                    between.decoder.push(piece.get(..length).unwrap_or_default());
                    between.hear(running).map_err(|broken| broken.to_string())?;
                }
                Err(error) => return Err(error.to_string()),
            },
            sent = send(&mut to, between.outbox.get(between.sent..).unwrap_or_default()), if !idle || between.unflushed => match sent {
                Ok(0) if !idle => return Err("it takes nothing".into()),
                Ok(length) => between.sent(length),
                Err(error) => return Err(error.to_string()),
            },
            took = write_some(running.input.as_ref(), between.waiting.as_slices().0), if !between.waiting.is_empty() => {
                between.took(took, running);
            }
            got = read_some(running.output.as_ref(), &mut read), if idle => {
                let got = between.got(frame::STDOUT, &got, &read);
                if !got {
                    running.output = None;
                }
            }
            got = read_some(running.errors.as_ref(), &mut complaints), if idle => {
                let got = between.got(frame::STDERR, &got, &complaints);
                if !got {
                    running.errors = None;
                }
            }
            status = running.child.wait(), if between.ended.is_none() => {
                let code = status.ok().and_then(|status| status.code()).unwrap_or(CODE_UNKNOWN);
                between.ended = Some((code, LEFT_BYTES));
                if !running.terminal {
                    let outputs = [&running.output, &running.errors];
                    outputs.into_iter().flatten().for_each(|output| aside::finish(output.get_ref()));
                }
                (running.input, between.waiting) = (None, VecDeque::new());
            }
            // tidy(sleep): whoever holds the command's pipes is not waited for for ever.
            () = tokio::time::sleep(patience), if idle && between.ended.is_some() => {
                (running.output, running.errors) = (None, None);
            }
        }
    }
}

impl Between {
    /// Takes the caller's frames.
    fn hear(&mut self, running: &mut Running) -> Result<(), Broken> {
        while let Some((kind, content)) = self.decoder.next_frame()? {
            match FromCaller::read(kind, content)? {
                FromCaller::Input([]) => self.input_over = true,
                FromCaller::Input(input) => {
                    self.held += input.len();
                    if self.held > INPUT_WINDOW_BYTES {
                        return Err(Broken::Window);
                    }
                    if running.input.is_some() && !self.input_over {
                        self.waiting.extend(input);
                    } else {
                        // Nobody reads it; the caller goes on as at a pipe that is never full.
                        self.taken += input.len();
                    }
                }
                FromCaller::Signal(number) => running.signal(number),
                FromCaller::Size { columns, rows } => running.resize(columns, rows),
            }
        }
        self.close_input(running);
        Ok(())
    }

    /// The caller may send so much more. Only when it has taken all that there was for it: who does
    /// not read can't make this grow.
    fn say_what_was_taken(&mut self) {
        if self.taken > 0 && self.outbox.is_empty() {
            let taken = std::mem::take(&mut self.taken);
            self.held -= taken;
            // At most the window.
            put(frame::TAKEN, &(taken as u32).to_le_bytes(), &mut self.outbox);
        }
    }

    fn sent(&mut self, length: usize) {
        self.unflushed = length > 0;
        self.sent += length;
        if self.sent >= self.outbox.len() {
            self.outbox.clear();
            self.sent = 0;
        }
    }

    /// The command has taken some of its input, or can't.
    fn took(&mut self, took: io::Result<usize>, running: &mut Running) {
        let length = match took {
            Ok(length) => length,
            Err(_nobody_reads) => {
                running.input = None;
                self.waiting.len()
            }
        };
        self.waiting.drain(..length.min(self.waiting.len()));
        self.taken += length;
        self.close_input(running);
    }

    fn close_input(&self, running: &mut Running) {
        // A terminal has no end of input but the one that is typed.
        if self.input_over && self.waiting.is_empty() && !running.terminal {
            running.input = None;
        }
    }

    /// The command wrote something; whether more may come.
    fn got(&mut self, kind: u8, got: &io::Result<usize>, bytes: &[u8]) -> bool {
        let Ok(length @ 1..) = *got else { return false };
        put(kind, bytes.get(..length).unwrap_or_default(), &mut self.outbox);
        match &mut self.ended {
            Some((_, left)) => {
                *left = left.saturating_sub(length);
                *left > 0
            }
            None => true,
        }
    }
}

/// Sends some of what there is, or, where there is nothing, what is kept back below.
async fn send(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<usize> {
    if bytes.is_empty() { to.flush().await.map(|()| 0) } else { to.write(bytes).await }
}

/// Never comes back where there is nothing to read from.
async fn read_some(from: Option<&AsyncFd<OwnedFd>>, bytes: &mut [u8]) -> io::Result<usize> {
    let Some(from) = from else { return std::future::pending().await };
    loop {
        let mut ready = from.readable().await?;
        match rustix::io::read(from.get_ref(), &mut *bytes) {
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(Errno::INTR) => {}
            // A terminal that nobody has open any more.
            Err(Errno::IO) => return Ok(0),
            read => return Ok(read?),
        }
    }
}

/// Never comes back where there is nothing to write to.
async fn write_some(to: Option<&AsyncFd<OwnedFd>>, bytes: &[u8]) -> io::Result<usize> {
    let Some(to) = to else { return std::future::pending().await };
    loop {
        let mut ready = to.writable().await?;
        match rustix::io::write(to.get_ref(), bytes) {
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(Errno::INTR) => {}
            written => return Ok(written?),
        }
    }
}
