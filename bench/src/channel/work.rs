//! The life of a worker: it meets the other, works with it, and tells.
//!
//! The conversation, a line each: the worker says `ready`; it is given a [`Task`]; a follower says
//! `waiting` when the leader may come; both say `primed` when what carries the messages stands;
//! both are given a line to begin, and answer with a [`Tale`]. The end of the input ends it.

use super::calls::mark;
use super::meeting::{Meeting, Place};
use super::task::{LAST, MORE, Means, Role, Tale, Task, Work};
use super::transport::{Job, Transport};
use super::{apart, exchange, idle, set_up};
use crate::histogram::Latencies;
use crate::talk::{next_line, processor_ns, say, switches};
use rustix::process::Signal;
use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use sys::clock::clock_ns;

/// Bytes between two looks at the clock while streaming: it costs a message of 64 bytes less than a
/// tenth of a ns.
const BYTES_PER_LOOK: usize = 16 << 10;

/// The conversation of a worker.
pub struct Talk<'a> {
    /// The messages to it.
    pub input: &'a mut dyn BufRead,
    /// Its messages.
    pub output: &'a mut dyn Write,
}

impl Talk<'_> {
    /// Says that all stands, and waits for the word to begin. False: there is none, it is over.
    ///
    /// # Errors
    /// Those of input and output.
    pub fn primed(&mut self) -> io::Result<bool> {
        say(self.output, "primed")?;
        Ok(next_line(self.input)?.is_some())
    }
}

/// Makes transports, by the worker that can: with `bench::channel::transport::with`, or with more.
pub type With = fn(&Task, &mut Meeting, Messages<'_, '_>) -> io::Result<Tale>;

/// The whole of a worker's program.
#[must_use]
pub fn main(with: With) -> ExitCode {
    let worked = || {
        // One that spins for a peer that died with the bench would spin for ever.
        sys::process::set_parent_death_signal(Some(Signal::KILL))?;
        let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
        converse(&mut Talk { input: &mut input, output: &mut output }, with)
    };
    match worked() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Leads the conversation until the input ends.
///
/// # Errors
/// Where the input is no conversation, or the work fails.
pub fn converse(talk: &mut Talk<'_>, with: With) -> io::Result<()> {
    say(talk.output, "ready")?;
    let mut apart = apart::Doors::default();
    let allowed = sys::processor::allowed()?;
    while let Some(line) = next_line(talk.input)? {
        let task: Task = serde_json::from_str(&line).map_err(io::Error::other)?;
        // One task may have stayed on a processor, and the next may go where the scheduler wants
        // it.
        sys::processor::pin(task.processor.as_ref().map_or(&allowed, std::slice::from_ref))?;
        let tale = match task.work {
            _ if task.means.is_apart() => apart.carry(&task, talk)?,
            Work::SetUp { times } => set_up::run(&task, times, talk)?,
            Work::Idle { channels } => idle::run(&task, channels, talk)?,
            _ => carry(&task, talk, with)?,
        };
        say(talk.output, &serde_json::to_string(&tale).map_err(io::Error::other)?)?;
    }
    Ok(())
}

fn carry(task: &Task, talk: &mut Talk<'_>, with: With) -> io::Result<Tale> {
    let mut meeting = meet(task, talk)?;
    if matches!(task.means, Means::Icmp(_)) && task.role == Role::Follow {
        // The kernel answers for it.
        if talk.primed()? {
            meeting.until_gone()?;
        }
        return Ok(Tale::default());
    }
    with(task, &mut meeting, Messages::new(task, talk))
}

/// Meets the other worker.
///
/// # Errors
/// Where the other does not come.
pub fn meet(task: &Task, talk: &mut Talk<'_>) -> io::Result<Meeting> {
    match task.role {
        Role::Lead => Meeting::go(&task.meeting),
        Role::Follow => {
            let place = Place::make(&task.meeting)?;
            say(talk.output, "waiting")?;
            place.meet()
        }
    }
}

/// The job of round trips and streams.
pub struct Messages<'a, 't> {
    /// The task.
    pub(crate) task: &'a Task,
    /// With whom it is spoken of.
    pub(crate) talk: &'a mut Talk<'t>,
}

impl<'a, 't> Messages<'a, 't> {
    /// The job of this task.
    pub fn new(task: &'a Task, talk: &'a mut Talk<'t>) -> Self {
        Self { task, talk }
    }
}

impl Job for Messages<'_, '_> {
    fn run(self, mut transport: impl Transport) -> io::Result<Tale> {
        if self.task.work == Work::Rest {
            let usage = Usage::now()?;
            return usage.since(rest(&mut transport, self.task, self.talk)?);
        }
        if !self.talk.primed()? {
            return Ok(Tale::default());
        }
        let usage = Usage::now()?;
        let tale = match (self.task.role, self.task.work) {
            (Role::Lead, Work::RoundTrips { at_once, gap_ns, warm_up_ns, window_ns }) => {
                let times = Times { at_once, gap_ns, warm_up_ns, window_ns };
                ask(&mut transport, self.task.bytes, &times)?
            }
            (Role::Lead, Work::Exchange(exchange)) => {
                exchange::ask(&mut transport, self.task.bytes, &exchange)?
            }
            (Role::Follow, Work::Exchange(exchange)) => {
                exchange::answer(&mut transport, self.task.bytes, &exchange)?
            }
            (Role::Follow, Work::RoundTrips { .. }) => answer(&mut transport, self.task.bytes)?,
            (Role::Lead, Work::Stream { warm_up_ns, window_ns }) => {
                pour(&mut transport, self.task.bytes, warm_up_ns, window_ns)?
            }
            (Role::Lead, Work::Transfer { messages }) => transfer(&mut transport, self.task.bytes, messages)?,
            (Role::Lead, Work::StreamBack { warm_up_ns, window_ns }) => {
                measure(&mut transport, self.task.bytes, warm_up_ns, window_ns)?
            }
            (Role::Follow, Work::StreamBack { warm_up_ns, window_ns }) => {
                pour(&mut transport, self.task.bytes, warm_up_ns, window_ns)?
            }
            (Role::Follow, _) => drink(&mut transport, self.task.bytes)?,
            (Role::Lead, _) => return Err(io::Error::from(io::ErrorKind::InvalidInput)),
        };
        usage.since(tale)
    }
}

/// The resources that this process has used so far.
#[derive(Debug)]
pub struct Usage {
    clock_ns: u64,
    processor_ns: u64,
    switches: u64,
}

impl Usage {
    /// Up to now.
    ///
    /// # Errors
    /// Where `/proc` does not tell.
    pub fn now() -> io::Result<Self> {
        Ok(Self { switches: switches()?, clock_ns: clock_ns(), processor_ns: processor_ns() })
    }

    /// Writes into the tale what was used since.
    ///
    /// # Errors
    /// Where `/proc` does not tell.
    pub fn since(self, tale: Tale) -> io::Result<Tale> {
        let (processor_ns, elapsed_ns) = (processor_ns() - self.processor_ns, clock_ns() - self.clock_ns);
        Ok(Tale { processor_ns, elapsed_ns, switches: switches()? - self.switches, ..tale })
    }
}

struct Times {
    at_once: u32,
    gap_ns: u64,
    warm_up_ns: u64,
    window_ns: u64,
}

/// A message of so many bytes; the first says whether it is the last.
fn message(bytes: usize, first: u8) -> Vec<u8> {
    let mut message: Vec<u8> = (0..bytes.max(1)).map(|at| at as u8).collect();
    message[0] = first;
    message
}

/// Sends and waits for the answer, again and again.
fn ask(transport: &mut impl Transport, bytes: usize, times: &Times) -> io::Result<Tale> {
    let question = message(bytes, MORE);
    let mut latencies = Latencies::new();
    let at_once = u64::from(times.at_once.max(1));
    let start = clock_ns();
    let (opens, closes) = (start + times.warm_up_ns, start + times.warm_up_ns + times.window_ns);
    let (mut operations, mut first, mut last) = (0, 0, 0);
    let mut begin = start;
    while begin < closes {
        for _ in 0..at_once {
            transport.send(&question)?;
            transport.flush()?;
            black_box(transport.receive()?);
        }
        let end = clock_ns();
        if begin >= opens {
            first = if operations == 0 { begin } else { first };
            (operations, last) = (operations + at_once, end);
            latencies.record((end - begin) / at_once);
        }
        begin = if times.gap_ns == 0 { end } else { compute_until(end + times.gap_ns) };
    }
    finish(transport, bytes)?;
    Ok(Tale { latencies, operations, window_ns: last - first, ..Tale::default() })
}

/// Keeps the processor busy, as a program does that has other things to do.
fn compute_until(instant_ns: u64) -> u64 {
    loop {
        let now = clock_ns();
        if now >= instant_ns {
            return now;
        }
        std::hint::spin_loop();
    }
}

/// Sends the last message and waits for the answer to it.
fn finish(transport: &mut impl Transport, bytes: usize) -> io::Result<()> {
    transport.send(&message(bytes, LAST))?;
    transport.flush()?;
    let answer = transport.receive()?;
    if answer.first() == Some(&LAST) { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Answers every message with one of its size, up to the last.
fn answer(transport: &mut impl Transport, bytes: usize) -> io::Result<Tale> {
    let mut reply = message(bytes, MORE);
    while reply[0] != LAST {
        let question = black_box(transport.receive()?);
        reply[0] = question.first().copied().unwrap_or(LAST);
        transport.send(&reply)?;
        transport.flush()?;
    }
    Ok(Tale::default())
}

/// Sends message after message until the window is over and all have arrived.
fn pour(transport: &mut impl Transport, bytes: usize, warm_up_ns: u64, window_ns: u64) -> io::Result<Tale> {
    let drop = message(bytes, MORE);
    let per_look = (BYTES_PER_LOOK / bytes.max(1)).max(1) as u64;
    let mut pour_until = |instant_ns: u64| -> io::Result<u64> {
        let mut count = 0;
        while clock_ns() < instant_ns {
            for _ in 0..per_look {
                transport.send(&drop)?;
            }
            count += per_look;
        }
        Ok(count)
    };
    let start = clock_ns();
    pour_until(start + warm_up_ns)?;
    // What is on its way now and arrives in the window does not count: an error against the fast,
    // and a small one.
    let opens = clock_ns();
    let operations = pour_until(opens + window_ns)?;
    finish(transport, bytes)?;
    Ok(Tale { operations, window_ns: clock_ns() - opens, ..Tale::default() })
}

/// Sends so many messages.
fn transfer(transport: &mut impl Transport, bytes: usize, messages: u64) -> io::Result<Tale> {
    let drop = message(bytes, MORE);
    mark();
    let begin = clock_ns();
    for _ in 1..messages {
        transport.send(&drop)?;
    }
    finish(transport, bytes)?;
    let window_ns = clock_ns() - begin;
    mark();
    Ok(Tale { operations: messages, window_ns, ..Tale::default() })
}

/// Receives message after message, counts those after the warm-up, and answers the last.
fn measure(
    transport: &mut impl Transport,
    bytes: usize,
    warm_up_ns: u64,
    window_ns: u64,
) -> io::Result<Tale> {
    let start = clock_ns();
    let (mut operations, mut opened, mut closed) = (0, None, start);
    while black_box(transport.receive()?).first() != Some(&LAST) {
        let now = clock_ns();
        match opened {
            // The sender has a clock of its own, which may go on a little longer.
            Some(opened) if now <= opened + window_ns => (operations, closed) = (operations + 1, now),
            None if now >= start + warm_up_ns => (opened, closed) = (Some(now), now),
            _ => {}
        }
    }
    transport.send(&message(bytes, LAST))?;
    transport.flush()?;
    Ok(Tale { operations, window_ns: closed - opened.unwrap_or(closed), ..Tale::default() })
}

/// A message there and back, then sleep, as long as nobody has anything to say.
fn rest(transport: &mut impl Transport, task: &Task, talk: &mut Talk<'_>) -> io::Result<Tale> {
    if task.role == Role::Follow {
        black_box(transport.receive()?);
        transport.send(&message(task.bytes, MORE))?;
        transport.flush()?;
        say(talk.output, "primed")?;
        drink(transport, task.bytes)?;
        // The word to begin is for both.
        next_line(talk.input)?;
        return Ok(Tale::default());
    }
    transport.send(&message(task.bytes, MORE))?;
    transport.flush()?;
    black_box(transport.receive()?);
    if talk.primed()? {
        finish(transport, task.bytes)?;
    }
    Ok(Tale { operations: 1, ..Tale::default() })
}

/// Receives message after message, and answers the last.
fn drink(transport: &mut impl Transport, bytes: usize) -> io::Result<Tale> {
    mark();
    while black_box(transport.receive()?).first() != Some(&LAST) {}
    transport.send(&message(bytes, LAST))?;
    transport.flush()?;
    mark();
    Ok(Tale::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::task::Means;
    use crate::channel::transport;
    use std::path::Path;
    use std::sync::mpsc;

    fn task(role: Role, means: Means, work: Work, folder: &Path) -> Task {
        let processor = Some(sys::processor::allowed().expect("our processors")[0]);
        Task { role, means, work, bytes: 64, meeting: folder.join("meeting"), processor }
    }

    /// The messages of a worker, and word that there is one.
    struct Heard(Vec<u8>, mpsc::Sender<()>);

    impl Write for Heard {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            // Nobody listens to the leader.
            let _ = self.1.send(());
            Ok(())
        }
    }

    fn tale(task: &Task, said: mpsc::Sender<()>) -> Tale {
        let input = format!("{}\n\n", serde_json::to_string(task).expect("JSON"));
        let mut output = Heard(Vec::new(), said);
        let talk = &mut Talk { input: &mut input.as_bytes(), output: &mut output };
        converse(talk, |task, meeting, job| transport::with(task, meeting, job)).expect("it works");
        let text = String::from_utf8(output.0).expect("text");
        serde_json::from_str(text.lines().last().unwrap_or_default()).expect("a tale")
    }

    /// Both workers in one process, in two threads. They share a processor: only what can sleep
    /// ends in time.
    fn tales(means: &Means, work: Work) -> (Tale, Tale) {
        let folder = tempfile::tempdir().expect("a folder");
        let [lead, follow] =
            [Role::Lead, Role::Follow].map(|role| task(role, means.clone(), work, folder.path()));
        let (said, hears) = mpsc::channel();
        std::thread::scope(|scope| {
            let follow = scope.spawn(move || tale(&follow, said));
            // `ready`, `waiting`.
            (0..2).for_each(|_| hears.recv().expect("the follower speaks"));
            let lead = tale(&lead, mpsc::channel().0);
            (lead, follow.join().expect("no panic"))
        })
    }

    const SLEEPERS: [Means; 4] = [
        Means::Tombolo { spin: false, ring_bytes: 1 << 16, batch_bytes: 0 },
        Means::Pipe,
        Means::Unix,
        Means::Tcp(String::new()),
    ];

    fn loopback(means: &Means) -> Means {
        if matches!(means, Means::Tcp(_)) { Means::Tcp("127.0.0.1".into()) } else { means.clone() }
    }

    #[test]
    fn round_trips_are_counted_and_timed() {
        for means in &SLEEPERS {
            let work = Work::RoundTrips { at_once: 2, gap_ns: 0, warm_up_ns: 0, window_ns: 3_000_000 };
            let (lead, _) = tales(&loopback(means), work);
            assert!(lead.operations >= 2 && lead.latencies.count() * 2 == lead.operations, "{means:?}");
            assert!(lead.window_ns > 0 && lead.processor_ns > 0, "{means:?}: {lead:?}");
        }
    }

    #[test]
    fn streams_and_transfers_arrive_whole() {
        for means in &SLEEPERS {
            let (lead, _) = tales(&loopback(means), Work::Stream { warm_up_ns: 0, window_ns: 2_000_000 });
            assert!(lead.operations > 0 && lead.window_ns >= 2_000_000, "{means:?}");
            let (lead, follow) = tales(&loopback(means), Work::Transfer { messages: 1_000 });
            assert_eq!(lead.operations, 1_000, "{means:?}");
            assert!(follow.processor_ns > 0);
        }
    }

    #[test]
    fn what_a_worker_does_not_have_it_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().to_path_buf();
        let means = Means::Iceoryx { listener: false, root, prefix: "x".into(), ring_bytes: 1 };
        let task = task(Role::Lead, means, Work::Transfer { messages: 1 }, folder.path());
        let place = Place::make(&task.meeting).expect("a place");
        let line = serde_json::to_string(&task).expect("JSON") + "\n";
        let talk = &mut Talk { input: &mut line.as_bytes(), output: &mut Vec::new() };
        let error = converse(talk, |task, meeting, job| transport::with(task, meeting, job)).expect_err("no");
        assert!(error.to_string().contains("channel-peer"), "{error}");
        drop(place);
    }
}
