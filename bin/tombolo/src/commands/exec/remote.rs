//! This end of a command that runs on another node (`docs/spec/remote.md`): standard streams,
//! signals, and the terminal.

use rustix::stdio::stdin;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, Read, Write};
use std::task::Poll;
use terminal::Failure;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use wire::remote::{Decoder, INPUT_WINDOW_BYTES, ToCaller, frame, put};

/// How much is read at once, in bytes.
const PIECE_BYTES: usize = 16 * 1024;
/// Exit code of a program that writes where nobody reads: 128 and the number of `SIGPIPE`
/// (signal(7)).
const NOBODY_READS: i32 = 128 + 13;

/// Columns and rows of this terminal.
pub fn size() -> Result<(u16, u16), Failure> {
    if !isatty(stdin()) {
        return Err(Failure::new("the standard input is not a terminal").help("leave out -t"));
    }
    let size = tcgetwinsize(stdin()).map_err(io::Error::from)?;
    Ok((size.ws_col, size.ws_row))
}

/// The terminal as it was, when this is dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Drain, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs no settings.
        let _gone = tcsetattr(stdin(), OptionalActions::Drain, &self.0);
    }
}

/// The signals that end programs, each passed on by its number.
struct Signals(Vec<(u8, Signal)>);

impl Signals {
    fn take() -> io::Result<Self> {
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
            SignalKind::quit(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
        ];
        let take = |kind: SignalKind| Ok((u8::try_from(kind.as_raw_value()).unwrap_or(0), signal(kind)?));
        Ok(Self(kinds.into_iter().map(take).collect::<io::Result<_>>()?))
    }

    /// The number of the next one.
    async fn next(&mut self) -> u8 {
        std::future::poll_fn(|context| {
            for (number, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The bytes between us and the command.
#[derive(Default)]
struct Between {
    decoder: Decoder,
    outbox: Vec<u8>,
    /// Input that was sent and not taken.
    under_way: usize,
}

/// Passes everything on until the command has ended: its exit code.
pub async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    terminal: bool,
    input: bool,
) -> Result<i32, Failure> {
    let mut signals = Signals::take()?;
    let mut resized = signal(SignalKind::window_change())?;
    let _raw = if terminal { Some(Raw::enter()?) } else { None };
    let (mut from, mut to) = tokio::io::split(stream);
    let (mut between, mut stdin) = (Between::default(), if input { Some(read_input()?) } else { None });
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let idle = between.outbox.is_empty();
        let room = idle && between.under_way + PIECE_BYTES <= INPUT_WINDOW_BYTES;
        tokio::select! {
            came = from.read(&mut piece) => {
                let length = came.map_err(|error| broken(&error.to_string()))?;
                if length == 0 {
                    return Err(broken("it ended in the middle"));
                }
                between.decoder.push(piece.get(..length).unwrap_or_default());
                if let Some(code) = between.hear()? {
                    return Ok(code);
                }
            }
            wrote = to.write(&between.outbox), if !idle => {
                let length = wrote.map_err(|error| broken(&error.to_string()))?;
                between.outbox.drain(..length);
                if between.outbox.is_empty() {
                    to.flush().await.map_err(|error| broken(&error.to_string()))?;
                }
            }
            typed = next(stdin.as_mut()), if room => {
                let typed = typed.unwrap_or_default();
                put(frame::STDIN, &typed, &mut between.outbox);
                between.under_way += typed.len();
                if typed.is_empty() {
                    stdin = None;
                }
            }
            number = signals.next() => put(frame::SIGNAL, &[number], &mut between.outbox),
            Some(()) = resized.recv(), if terminal => {
                let (columns, rows) = size()?;
                let [c0, c1] = columns.to_le_bytes();
                let [r0, r1] = rows.to_le_bytes();
                put(frame::SIZE, &[c0, c1, r0, r1], &mut between.outbox);
            }
        }
    }
}

impl Between {
    /// Takes the frames that have come; returns the exit code, if the command has ended.
    fn hear(&mut self) -> Result<Option<i32>, Failure> {
        while let Some((kind, content)) =
            self.decoder.next_frame().map_err(|error| broken(&error.to_string()))?
        {
            let written = match ToCaller::read(kind, content).map_err(|error| broken(&error.to_string()))? {
                ToCaller::Output(output) => write(io::stdout().lock(), output),
                ToCaller::Errors(errors) => write(io::stderr().lock(), errors),
                ToCaller::Taken(bytes) => {
                    self.under_way = self.under_way.saturating_sub(bytes as usize);
                    Ok(())
                }
                ToCaller::Ended(code) => return Ok(Some(code)),
            };
            if written.is_err() {
                return Ok(Some(NOBODY_READS));
            }
        }
        Ok(None)
    }
}

fn write(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// Reads the standard input, whatever it is; a piece without bytes is its end. The thread ends with
/// the process.
fn read_input() -> io::Result<mpsc::Receiver<Vec<u8>>> {
    let (pieces, input) = mpsc::channel(1);
    std::thread::Builder::new().name("stdin".into()).spawn(move || {
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let length = match io::stdin().lock().read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // What can't be read has ended.
                read => read.unwrap_or(0),
            };
            piece.truncate(length);
            if pieces.blocking_send(piece).is_err() || length == 0 {
                return;
            }
        }
    })?;
    Ok(input)
}

/// Never comes back where there is nothing to read from.
async fn next(input: Option<&mut mpsc::Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    match input {
        Some(input) => input.recv().await,
        None => std::future::pending().await,
    }
}

fn broken(why: &str) -> Failure {
    Failure::new(format!("the connection to the node that runs it broke: {why}"))
        .help("the command is hung up on there; `tombolo node ls` and `tombolo ps` show what is left")
}
