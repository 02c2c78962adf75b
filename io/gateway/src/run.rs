//! The threads of a gateway: one for each channel, and one for the engine.

use crate::engine::{Arrival, Connection, Engine, EngineError, Message, Subscription, Told};
use crate::mqtt::ARRIVALS_MAX;
use crate::outbox::Outbox;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;
use wire::events::EVENT_BYTES_MAX;

/// How long to wait before the first attempt to connect again, and before later ones.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(5);
/// Errno of an event that is longer than its channel takes.
const EMSGSIZE: i32 = 90;

/// A channel whose events go out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outward {
    /// The channel's folder.
    pub folder: PathBuf,
    /// Where they go.
    pub topic: String,
    /// The filter that they pass; `None`: all of them.
    pub filter: Option<String>,
}

/// A channel whose events come from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inward {
    /// The pattern of their topics.
    pub filter: String,
    /// The channel's folder.
    pub folder: PathBuf,
}

/// Why a gateway ends.
#[derive(Debug, Error)]
pub enum GatewayError {
    /// A file of a channel.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The service does not take a subscription.
    #[error("{}: the subscription is refused: {reason}", path.display())]
    Subscription {
        /// The file.
        path: PathBuf,
        /// Its words.
        reason: String,
    },
    /// A channel was removed, or may not be read any more.
    #[error("{}: the channel has ended", .0.display())]
    Ended(PathBuf),
    /// A thread can't be started, or has ended.
    #[error("a thread: {0}")]
    Thread(io::Error),
}

/// Whoever wants to know what happens, for people.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

type Failures = mpsc::Sender<GatewayError>;

/// Carries events until a channel can't be used any more; a connection that is lost is made again.
pub fn run(engine: Box<dyn Engine>, outward: &[Outward], inward: &[Inward], say: &Say) -> GatewayError {
    let (failures, failed) = mpsc::channel();
    match start(engine, outward, inward, say, &failures) {
        Err(error) => error,
        Ok(()) => {
            drop(failures);
            failed.recv().unwrap_or_else(|_| GatewayError::Thread(io::Error::other("all have ended")))
        }
    }
}

fn start(
    mut engine: Box<dyn Engine>,
    outward: &[Outward],
    inward: &[Inward],
    say: &Say,
    failures: &Failures,
) -> Result<(), GatewayError> {
    let outbox = Arc::new(Outbox::default());
    for Outward { folder, topic, filter } in outward {
        let (reliable, from) = subscribed(folder, filter.as_deref())?;
        engine.publishes(topic, reliable);
        let (outbox, say) = (Arc::clone(&outbox), Arc::clone(say));
        let (topic, path) = (Arc::<str>::from(topic.as_str()), folder.join("sub"));
        spawn("reads", failures, move || read(from, &path, (&topic, reliable), &outbox, &say))?;
    }
    let (mut subscriptions, mut inboxes) = (Vec::new(), Vec::new());
    let connections = Arc::new(AtomicU64::new(0));
    for Inward { filter, folder } in inward {
        let path = folder.join("pub");
        let to = OpenOptions::new().write(true).open(&path).map_err(|error| at(&path, error))?;
        subscriptions.push(Subscription { filter: filter.clone(), reliable: wait_ms(folder)? > 0 });
        let (inbox, arrivals) = mpsc::sync_channel(2 * usize::from(ARRIVALS_MAX));
        inboxes.push(inbox);
        let (say, connections) = (Arc::clone(say), Arc::clone(&connections));
        spawn("writes", failures, move || write(to, &path, &arrivals, &connections, &say))?;
    }
    let say = Arc::clone(say);
    let (refused, full) = (Counter::default(), Counter::default());
    let link = Link { subscriptions, inboxes, connections, outbox, say, refused, full };
    spawn("engine", failures, move || link.keep(engine))
}

/// Ends the gateway with the thread that has this, also where that panics: an engine's library is
/// not ours.
struct EndOf(Failures);

impl Drop for EndOf {
    fn drop(&mut self) {
        // What the thread itself has said comes before this.
        let _told = self.0.send(GatewayError::Thread(io::Error::other("it has ended")));
    }
}

fn spawn(
    name: &str,
    failures: &Failures,
    body: impl FnOnce() -> GatewayError + Send + 'static,
) -> Result<(), GatewayError> {
    let ended = EndOf(failures.clone());
    let run = move || {
        // Where nobody listens, another thread has ended the gateway already.
        let _told = ended.0.send(body());
    };
    thread::Builder::new().name(name.into()).spawn(run).map(drop).map_err(GatewayError::Thread)
}

fn at(path: &Path, error: io::Error) -> GatewayError {
    GatewayError::File { path: path.to_owned(), error }
}

/// How long publishers of a channel may be made to wait, in ms: a channel with such a time is
/// reliable.
fn wait_ms(folder: &Path) -> Result<u64, GatewayError> {
    let path = folder.join("ctl");
    let text = fs::read_to_string(&path).map_err(|error| at(&path, error))?;
    let wait = text.lines().find_map(|line| line.strip_prefix("wait ")?.parse().ok());
    Ok(wait.unwrap_or(0))
}

/// A subscription as reliable as its channel can be.
fn subscribed(folder: &Path, filter: Option<&str>) -> Result<(bool, File), GatewayError> {
    let wait_ms = wait_ms(folder)?;
    let path = folder.join("sub");
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    let mut from = opened.map_err(|error| at(&path, error))?;
    let overflow = if wait_ms > 0 { format!("overflow wait {wait_ms}") } else { "overflow drop".into() };
    let filter = filter.map_or_else(String::new, |filter| format!("filter {filter}\n"));
    let lines = format!("{overflow}\n{filter}");
    match from.write_all(lines.as_bytes()) {
        Ok(()) => Ok((wait_ms > 0, from)),
        Err(error) => Err(explained(folder, path, error)),
    }
}

/// The service says in `stats` why it has refused something.
fn explained(folder: &Path, path: PathBuf, error: io::Error) -> GatewayError {
    let stats = fs::read_to_string(folder.join("stats")).unwrap_or_default();
    match stats.lines().find_map(|line| line.strip_prefix("refused ")) {
        Some(reason) => GatewayError::Subscription { path, reason: reason.to_owned() },
        None => at(&path, error),
    }
}

/// Reads a channel.
fn read(
    mut from: File,
    path: &Path,
    (topic, reliable): (&Arc<str>, bool),
    outbox: &Outbox,
    say: &Say,
) -> GatewayError {
    let mut event = vec![0; EVENT_BYTES_MAX + 1];
    let long = Counter::default();
    loop {
        match from.read(&mut event) {
            Ok(0) => return GatewayError::Ended(path.to_owned()),
            Ok(length) => {
                let bytes = event.get(..length).unwrap_or_default().into();
                if !outbox.put(Message { topic: Arc::clone(topic), bytes, reliable }) {
                    long.tell(say, |count| {
                        format!("{}: {count} events were longer than the other side takes", path.display())
                    });
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return at(path, error),
        }
    }
}

/// A message that has come, over which connection.
struct Received {
    connection: u64,
    reliable: bool,
    arrival: Arrival,
}

/// Writes a channel. `connections` is the number of the connection that there is.
fn write(
    mut to: File,
    path: &Path,
    arrivals: &mpsc::Receiver<Received>,
    connections: &AtomicU64,
    say: &Say,
) -> GatewayError {
    let long = Counter::default();
    for Received { connection, reliable, arrival } in arrivals {
        if reliable && connection != connections.load(Ordering::Acquire) {
            // It comes again over the next connection.
            continue;
        }
        match write_whole(&mut to, &arrival.bytes) {
            Ok(()) => {}
            // It would be too long whenever it came again.
            Err(error) if error.raw_os_error() == Some(EMSGSIZE) => long.tell(say, |count| {
                format!("{}: {count} messages were longer than the channel's events", path.display())
            }),
            Err(error) => return at(path, error),
        }
        if let Some(receipt) = arrival.receipt {
            receipt();
        }
    }
    GatewayError::Thread(io::Error::other("that of the engine has ended"))
}

/// One write is one event.
fn write_whole(to: &mut File, event: &[u8]) -> io::Result<()> {
    loop {
        match to.write(event) {
            Ok(written) if written == event.len() => return Ok(()),
            Ok(written) => return Err(io::Error::other(format!("{written} bytes of an event were taken"))),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Counts what goes wrong, and tells of it ever more seldom.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    fn tell(&self, say: &Say, what: impl Fn(u64) -> String) {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            say(&what(count));
        }
    }
}

/// The engine's thread.
struct Link {
    subscriptions: Vec<Subscription>,
    inboxes: Vec<SyncSender<Received>>,
    connections: Arc<AtomicU64>,
    outbox: Arc<Outbox>,
    say: Say,
    refused: Counter,
    full: Counter,
}

impl Link {
    /// Connects, again and again.
    fn keep(&self, mut engine: Box<dyn Engine>) -> GatewayError {
        let mut pause = AGAIN_FIRST;
        let mut told = String::new();
        loop {
            let error = match engine.connect(&self.subscriptions) {
                Ok(connection) => {
                    (self.say)("connected");
                    let since = Instant::now();
                    let error = match self.carry(connection) {
                        Ok(ended) => return ended,
                        Err(error) => error,
                    };
                    self.outbox.end();
                    // Who takes a connection and ends it at once is not asked ever more often.
                    if since.elapsed() > AGAIN_MAX {
                        pause = AGAIN_FIRST;
                    }
                    told.clear();
                    error
                }
                Err(error) => error,
            };
            // The same reason again and again is told once.
            if told != error.0 {
                (self.say)(&format!("there is no connection, and it is tried again: {error}"));
                told = error.0;
            }
            // tidy(sleep): nothing tells when the other side is there again.
            thread::sleep(pause);
            pause = (2 * pause).min(AGAIN_MAX);
        }
    }

    fn carry(&self, connection: Connection) -> Result<GatewayError, EngineError> {
        let Connection { sender, mut receiver, longest } = connection;
        self.connections.fetch_add(1, Ordering::Release);
        let left_out = self.outbox.begin(sender, longest)?;
        if left_out > 0 {
            (self.say)(&format!("{left_out} events were longer than the other side takes now"));
        }
        loop {
            match receiver.next()? {
                Told::Taken => drop(self.outbox.taken()),
                Told::Gone => self.outbox.gone(),
                Told::Noted(words) => (self.say)(&words),
                Told::Refused(why) => {
                    let topic = self.outbox.taken().map_or_else(String::new, |it| it.topic.to_string());
                    self.refused.tell(&self.say, |count| {
                        format!("{count} events were refused; the last for {topic}: {why}")
                    });
                }
                Told::Came(arrival) => {
                    if let Some(ended) = self.came(arrival)? {
                        return Ok(ended);
                    }
                }
            }
        }
    }

    /// Hands a message to the thread of its channel. The engine's thread waits for nobody.
    fn came(&self, arrival: Arrival) -> Result<Option<GatewayError>, EngineError> {
        let place = arrival.subscription;
        let (Some(inbox), Some(subscription)) = (self.inboxes.get(place), self.subscriptions.get(place))
        else {
            if let Some(receipt) = arrival.receipt {
                receipt();
            }
            return Ok(None);
        };
        let (connection, reliable) = (self.connections.load(Ordering::Relaxed), subscription.reliable);
        match inbox.try_send(Received { connection, reliable, arrival }) {
            Ok(()) => Ok(None),
            // There is room for as many as may have no receipt; others are of earlier connections.
            Err(TrySendError::Full(_)) if reliable => {
                Err(EngineError(format!("a channel does not take what comes of {}", subscription.filter)))
            }
            Err(TrySendError::Full(_)) => {
                self.full.tell(&self.say, |count| {
                    format!("{count} messages came faster than their channels take them, and are lost")
                });
                Ok(None)
            }
            Err(TrySendError::Disconnected(_)) => {
                Ok(Some(GatewayError::Thread(io::Error::other("that of a channel has ended"))))
            }
        }
    }
}
