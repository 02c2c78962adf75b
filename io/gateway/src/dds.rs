//! DDS by Cyclone DDS, which is a shared library: a program of its own, `tombolo-dds`, is linked
//! with it, and a connection is one run of that program. `docs/spec/dds-program.md` has its
//! arguments and what is said to it and by it.

use crate::engine::{
    Arrival, Connection, Engine, EngineError, Message, Receiver, Sender, Subscription, Told,
};
use crate::mqtt::ARRIVALS_MAX;
use crate::outbox::WINDOW;
use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use wire::events::EVENT_BYTES_MAX;

/// Characters of a topic's name.
const TOPIC_CHARS_MAX: usize = 255;
/// Bytes of what the program says: a sample, or some words.
const FRAME_BYTES_MAX: usize = EVENT_BYTES_MAX;
/// Frames that wait to be written to the program: two windows, and receipts.
const FRAMES_MAX: usize = 4 * WINDOW + 128 * ARRIVALS_MAX as usize;
/// Domains of DDS whose ports are ports (RTPS 9.6.2.3).
pub const DOMAIN_MAX: u32 = 232;
/// Most samples that one who comes late is given.
const HISTORY_MAX: u32 = 10_000;
/// Longest deadline and lease: a day.
const PERIOD_MAX: Duration = Duration::from_secs(86_400);
/// The configuration of Cyclone DDS where only this domain's own loopback may be spoken over.
const LOOPBACK: &str = "<General><Interfaces><NetworkInterface name=\"lo\"/></Interfaces><AllowMulticast>false</AllowMulticast></General>\
     <Discovery><ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>32</MaxAutoParticipantIndex>\
     <Peers><Peer address=\"127.0.0.1\"/></Peers></Discovery>";
/// The configuration in each case: longer samples are left out before they are put together, and
/// readers are asked soon whether they have all (after the 100 ms that are usual, a window of 64
/// events would come ten times in a second).
const BOUNDS: &str = "<Internal><MaxSampleSize>1MiB</MaxSampleSize>\
     <HeartbeatInterval min=\"1 ms\" minsched=\"1 ms\" max=\"8 s\">2 ms</HeartbeatInterval></Internal>";
/// Where Cyclone DDS finds its settings.
pub const SETTINGS: &str = "CYCLONEDDS_URI";

/// The quality of service of a topic, where it does not follow from its channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quality {
    /// Reliable or not; `None`: as its channel is.
    pub reliable: Option<bool>,
    /// The last samples are kept for who comes late.
    pub transient_local: bool,
    /// How many samples are kept; 0: as many as are right for the topic.
    pub history: u32,
    /// A sample is promised, or wanted, at least so often.
    pub deadline: Option<Duration>,
    /// Whoever writes proves so often that they live.
    pub lease: Option<Duration>,
    /// They prove it by writing, and not by their process.
    pub manual: bool,
    /// The topic may have any type; an event is a sample as it is serialized.
    pub any: bool,
}

impl Quality {
    /// Reads `KEY=VALUE,...`.
    ///
    /// # Errors
    /// The setting that can't be, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut quality = Self::default();
        for pair in text.split(',') {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is not KEY=VALUE"))?;
            match (key, value) {
                ("type", "event") => quality.any = false,
                ("type", "any") => quality.any = true,
                ("reliability", "reliable") => quality.reliable = Some(true),
                ("reliability", "best-effort") => quality.reliable = Some(false),
                ("durability", "volatile") => quality.transient_local = false,
                ("durability", "transient-local") => quality.transient_local = true,
                ("history", count) => {
                    let count = count.parse().ok().filter(|it| (1..=HISTORY_MAX).contains(it));
                    quality.history = count.ok_or_else(|| format!("history is 1 to {HISTORY_MAX}"))?;
                }
                ("deadline", time) => quality.deadline = Some(period(time)?),
                ("liveliness", value) => {
                    let (kind, time) =
                        value.split_once(':').ok_or("liveliness is automatic:TIME or manual:TIME")?;
                    quality.manual = match kind {
                        "automatic" => false,
                        "manual" => true,
                        _ => {
                            return Err(format!("liveliness is automatic:TIME or manual:TIME, not {kind:?}"));
                        }
                    };
                    quality.lease = Some(period(time)?);
                }
                _ => {
                    return Err(format!(
                        "{pair:?} is none of type=event|any, reliability=reliable|best-effort, durability=volatile|transient-local, \
                         history=COUNT, deadline=TIME, liveliness=automatic:TIME|manual:TIME"
                    ));
                }
            }
        }
        Ok(quality)
    }
}

fn period(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|it: char| !it.is_ascii_digit()).unwrap_or(text.len()));
    let number: Option<u64> = number.parse().ok();
    let time = match unit {
        "ms" => number.map(Duration::from_millis),
        "s" => number.map(Duration::from_secs),
        _ => None,
    };
    let time = time.filter(|it| !it.is_zero() && *it <= PERIOD_MAX);
    time.ok_or_else(|| format!("{text:?} is no time: 10ms, 2s, at most a day"))
}

/// Whether this can be a topic of DDS.
#[must_use]
pub fn is_dds_topic(name: &str) -> bool {
    let allowed = |it: char| it.is_ascii_alphanumeric() || "_/.:-".contains(it);
    !name.is_empty() && name.len() <= TOPIC_CHARS_MAX && name.chars().all(allowed)
}

/// The engine.
#[derive(Debug)]
pub struct Dds {
    program: PathBuf,
    domain: u32,
    /// Only the loopback of this domain is spoken over.
    near: bool,
    qualities: BTreeMap<String, Quality>,
    /// Topics that are published, in the order of their numbers, and whether they are reliable.
    published: Vec<(String, bool)>,
}

impl Dds {
    /// An engine that has joined nothing yet. Without `near` the network is what `CYCLONEDDS_URI`
    /// says.
    #[must_use]
    pub fn new(program: PathBuf, domain: u32, near: bool, qualities: BTreeMap<String, Quality>) -> Self {
        Self { program, domain, near, qualities, published: Vec::new() }
    }

    /// The arguments of a topic: `docs/spec/dds-program.md`.
    fn arguments(&self, way: &str, topic: &str, waits: bool) -> [String; 10] {
        let quality = self.qualities.get(topic).copied().unwrap_or_default();
        let milliseconds = |time: Option<Duration>| time.map_or(0, |it| it.as_millis()).to_string();
        let either = |is: bool, yes: &str, no: &str| if is { yes.to_owned() } else { no.to_owned() };
        [
            way.to_owned(),
            either(waits, "waits", "drops"),
            either(quality.reliable.unwrap_or(waits), "reliable", "best-effort"),
            either(quality.transient_local, "transient-local", "volatile"),
            quality.history.to_string(),
            milliseconds(quality.deadline),
            either(quality.manual, "manual", "automatic"),
            milliseconds(quality.lease),
            either(quality.any, "any", "event"),
            topic.to_owned(),
        ]
    }

    fn settings(&self) -> String {
        let said = std::env::var(SETTINGS).unwrap_or_default();
        match (self.near, said.is_empty()) {
            (true, _) => format!("{LOOPBACK},{BOUNDS}"),
            (false, true) => BOUNDS.to_owned(),
            (false, false) => format!("{said},{BOUNDS}"),
        }
    }
}

impl Engine for Dds {
    fn publishes(&mut self, topic: &str, reliable: bool) {
        self.published.push((topic.to_owned(), reliable));
    }

    fn connect(&mut self, subscriptions: &[Subscription]) -> Result<Connection, EngineError> {
        let mut command = Command::new(&self.program);
        command.arg(self.domain.to_string()).env(SETTINGS, self.settings());
        for (topic, reliable) in &self.published {
            command.args(self.arguments("out", topic, *reliable));
        }
        for it in subscriptions {
            command.args(self.arguments("in", &it.filter, it.reliable));
        }
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned
            .map_err(|error| EngineError(format!("can't start {}: {error}", self.program.display())))?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(EngineError("there is no pipe to the program".into()));
        };
        let mut listener = Listener {
            from: BufReader::new(from),
            program: Program(child),
            frames: writer(to)?,
            published: self.published.len(),
            receipts: subscriptions.iter().map(|it| it.reliable).collect(),
        };
        match listener.frame()? {
            (b'c', ..) => {}
            (b'e', _, words) => return Err(EngineError(words_of(&words))),
            _ => return Err(nonsense()),
        }
        let topics = self.published.iter().enumerate();
        let topics = topics.map(|(at, (name, _))| (Arc::from(name.as_str()), at as u16)).collect();
        let sender = Speaker { frames: listener.frames.clone(), topics };
        // A topic counts for a message's length, and does not for its sample's.
        Ok(Connection {
            sender: Box::new(sender),
            receiver: Box::new(listener),
            longest: EVENT_BYTES_MAX + TOPIC_CHARS_MAX,
        })
    }
}

fn nonsense() -> EngineError {
    EngineError("tombolo-dds says what is not in the protocol: is it of this version?".into())
}

fn words_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Starts the thread that writes frames to the program: whoever sends does not wait for it.
fn writer(mut to: ChildStdin) -> Result<SyncSender<Vec<u8>>, EngineError> {
    let (frames, written) = sync_channel::<Vec<u8>>(FRAMES_MAX);
    let write = move || {
        for frame in written {
            if to.write_all(&frame).is_err() {
                // The program has ended, which its reader sees.
                return;
            }
        }
    };
    let started = std::thread::Builder::new().name("to-dds".into()).spawn(write);
    started.map(|_| frames).map_err(|error| EngineError(format!("a thread: {error}")))
}

fn frame(kind: u8, topic: u16, bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(7 + bytes.len());
    frame.extend_from_slice(&(bytes.len() as u32 + 3).to_le_bytes());
    frame.push(kind);
    frame.extend_from_slice(&topic.to_le_bytes());
    frame.extend_from_slice(bytes);
    frame
}

struct Speaker {
    frames: SyncSender<Vec<u8>>,
    topics: BTreeMap<Arc<str>, u16>,
}

impl Sender for Speaker {
    fn send(&self, message: &Message) -> Result<(), EngineError> {
        let topic = self.topics.get(&message.topic).copied();
        let topic =
            topic.ok_or_else(|| EngineError(format!("nobody said that {} goes out", message.topic)))?;
        let sent = self.frames.try_send(frame(b'm', topic, &message.bytes));
        sent.map_err(|_| EngineError("tombolo-dds takes nothing any more".into()))
    }
}

/// The running program: it ends with its connection.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

struct Listener {
    from: BufReader<ChildStdout>,
    program: Program,
    frames: SyncSender<Vec<u8>>,
    /// Topics that are published have the first numbers.
    published: usize,
    /// Whether the samples of a subscription are given receipts.
    receipts: Vec<bool>,
}

impl Listener {
    fn frame(&mut self) -> Result<(u8, u16, Vec<u8>), EngineError> {
        let mut head = [0; 7];
        if self.from.read_exact(&mut head).is_err() {
            return Err(self.ended());
        }
        let [a, b, c, d, kind, e, f] = head;
        let length = (u32::from_le_bytes([a, b, c, d]) as usize).checked_sub(3);
        let length = length.filter(|it| *it <= FRAME_BYTES_MAX).ok_or_else(nonsense)?;
        let mut bytes = vec![0; length];
        if self.from.read_exact(&mut bytes).is_err() {
            return Err(self.ended());
        }
        Ok((kind, u16::from_le_bytes([e, f]), bytes))
    }

    /// Says how the program has ended.
    fn ended(&mut self) -> EngineError {
        EngineError(match self.program.0.wait().map(|status| status.code()) {
            // The dynamic linker's, which has said which library is not there.
            Ok(Some(127)) => {
                "tombolo-dds finds no Cyclone DDS: install libddsc0debian where this domain runs".into()
            }
            Ok(Some(code)) => format!("tombolo-dds has ended with {code}"),
            Ok(None) => "tombolo-dds was killed".into(),
            Err(error) => format!("tombolo-dds: {error}"),
        })
    }

    fn arrival(&self, topic: u16, bytes: Vec<u8>) -> Result<Told, EngineError> {
        let subscription = usize::from(topic).checked_sub(self.published).ok_or_else(nonsense)?;
        let wants_receipt = *self.receipts.get(subscription).ok_or_else(nonsense)?;
        let frames = self.frames.clone();
        let receipt = move || {
            // Where the connection is over, there is nobody to tell.
            let _told = frames.try_send(frame(b'r', topic, &[]));
        };
        let receipt: Option<Box<dyn FnOnce() + Send>> =
            if wants_receipt { Some(Box::new(receipt)) } else { None };
        Ok(Told::Came(Arrival { subscription, bytes, receipt }))
    }
}

impl Receiver for Listener {
    fn next(&mut self) -> Result<Told, EngineError> {
        match self.frame()? {
            (b't', ..) => Ok(Told::Taken),
            (b'g', ..) => Ok(Told::Gone),
            (b'n', _, words) => Ok(Told::Refused(words_of(&words))),
            (b's', _, words) => Ok(Told::Noted(words_of(&words))),
            (b'a', topic, bytes) => self.arrival(topic, bytes),
            (b'e', _, words) => Err(EngineError(words_of(&words))),
            _ => Err(nonsense()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualities_are_read_or_refused_in_words() {
        let all = "type=any,reliability=best-effort,durability=transient-local,history=8,deadline=100ms,liveliness=manual:2s";
        let wanted = Quality {
            reliable: Some(false),
            transient_local: true,
            history: 8,
            deadline: Some(Duration::from_millis(100)),
            lease: Some(Duration::from_secs(2)),
            manual: true,
            any: true,
        };
        assert_eq!(Quality::parse(all), Ok(wanted));
        for (text, why) in [
            ("", "KEY=VALUE"),
            ("history=0", "history is"),
            ("history=-1", "history is"),
            ("deadline=5", "no time"),
            ("deadline=0ms", "no time"),
            ("deadline=99999999999999999999s", "no time"),
            ("liveliness=2s", "automatic:TIME"),
            ("liveliness=never:2s", "automatic:TIME"),
            ("durability=persistent", "is none of"),
            ("type=int", "is none of"),
        ] {
            let said = Quality::parse(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn topics_are_told_apart_from_nonsense() {
        assert!(is_dds_topic("rt/chatter") && is_dds_topic("a") && is_dds_topic("Plant_1.alarms"));
        for name in ["", "a b", "a\0", "ä", "+", &"a".repeat(256)] {
            assert!(!is_dds_topic(name), "{name}");
        }
    }
}
