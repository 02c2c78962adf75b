//! The node's half of the guest's port, without the port: what a guest's bytes mean, and whether
//! they keep the rules.

use streams::{Heard, Outbox, SendError, Side, Streams};
use thiserror::Error;
use wire::guest::{self, BadFrame, Boot, Close, Decoder, End, Event, Hello, Message, Purpose};

/// A rule of the port that the guest broke. It is the end of its machine.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BrokenRule {
    /// Bytes that are no frames.
    #[error(transparent)]
    Frame(#[from] BadFrame),
    /// Streams that can't be.
    #[error(transparent)]
    Streams(#[from] streams::Broken),
    /// It does not read what it asks for.
    #[error(transparent)]
    Unread(#[from] streams::Overflow),
    /// It said something before it said who it is, or said that again.
    #[error("its first frame, and no other, is HELLO")]
    Hello,
    /// It is of another version.
    #[error(
        "it speaks version {found} of the port, and this node version {}: build its image with this version",
        guest::VERSION
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// It said what only a node says.
    #[error("it said what only a node says: {what}")]
    Role {
        /// The frame.
        what: &'static str,
    },
    /// It opened a stream that agents do not open.
    #[error("it opened a stream for {what}, which is not for it to open")]
    Purpose {
        /// The purpose of the stream.
        what: &'static str,
    },
    /// It gave up a channel that it does not have.
    #[error("it released channel {channel}, which it does not have")]
    Channel {
        /// The number.
        channel: u32,
    },
    /// A message of its command's output that does not say of which.
    #[error("a message of its output begins with neither 1 nor 2")]
    Output,
}

/// A message of a guest.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// Its introduction; nothing comes before.
    Hello(Hello),
    /// Its fate.
    Event(Event),
    /// A program of it is connected to its control socket.
    Member {
        /// The stream for its packets.
        stream: u32,
    },
    /// A message of a stream, which [`Guest::passed_on`] is to be told of.
    Data {
        /// The stream.
        stream: u32,
        /// The message.
        bytes: Vec<u8>,
    },
    /// Output of its command, the first byte saying where.
    Output {
        /// The stream.
        stream: u32,
        /// The message.
        bytes: Vec<u8>,
    },
    /// It closed a stream. When all of it is passed on, [`Guest::close`].
    Closed {
        /// The stream.
        stream: u32,
    },
    /// Nobody in the guest has this end any more.
    Release {
        /// The channel.
        channel: u32,
    },
    /// It answered a ping.
    Pong,
}

/// The node's half of a guest's port.
#[derive(Debug)]
pub struct Guest {
    decoder: Decoder,
    streams: Streams,
    outbox: Outbox,
    greeted: bool,
    /// The stream of its command's output, once it has opened it; 0 after it has closed it.
    output: Option<u32>,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            decoder: Decoder::default(),
            streams: Streams::new(Side::Node),
            outbox: Outbox::default(),
            greeted: false,
            output: None,
        }
    }
}

impl Guest {
    /// Whether it has said who it is. Nothing is said to it before.
    #[must_use]
    pub fn has_spoken(&self) -> bool {
        self.greeted
    }

    /// Reads bytes of the port as messages, however they are cut.
    ///
    /// # Errors
    /// [`BrokenRule`]; what was said before that in the same bytes is not acted on.
    pub fn hear(&mut self, mut bytes: &[u8]) -> Result<Vec<Said>, BrokenRule> {
        let mut said = Vec::new();
        while let Some(frame) = self.decoder.next(&mut bytes)? {
            let message = Message::read(frame)?;
            if self.greeted == matches!(message, Message::Hello(_)) {
                return Err(BrokenRule::Hello);
            }
            said.extend(match self.streams.hear(message)? {
                Heard::Opened { stream, purpose } => self.opened(stream, &purpose)?,
                Heard::Data { stream, bytes, end: _ } => Some(self.data(stream, bytes)?),
                Heard::Closed { stream, close: _ } => {
                    self.output = self.output.map(|output| if output == stream { 0 } else { output });
                    Some(Said::Closed { stream })
                }
                Heard::Other(message) => self.other(message)?,
                Heard::Room { .. } | Heard::Late(_) | Heard::Nothing => None,
            });
        }
        Ok(said)
    }

    fn opened(&mut self, stream: u32, purpose: &Purpose) -> Result<Option<Said>, BrokenRule> {
        let what = match purpose {
            Purpose::Control {} => return Ok(Some(Said::Member { stream })),
            Purpose::Output {} if self.output.is_none() => {
                self.output = Some(stream);
                return Ok(None);
            }
            Purpose::Output {} => "its output, a second time",
            Purpose::Frontend { .. } => "a frontend",
            Purpose::Entrances {} => "entrances",
            Purpose::Exec { .. } => "exec",
        };
        Err(BrokenRule::Purpose { what })
    }

    fn data(&self, stream: u32, bytes: Vec<u8>) -> Result<Said, BrokenRule> {
        if self.output != Some(stream) {
            return Ok(Said::Data { stream, bytes });
        }
        match bytes.first() {
            Some(&(guest::output::STDOUT | guest::output::STDERR)) => Ok(Said::Output { stream, bytes }),
            _ => Err(BrokenRule::Output),
        }
    }

    fn other(&mut self, message: Message) -> Result<Option<Said>, BrokenRule> {
        let what = match message {
            Message::Hello(hello) if hello.version != guest::VERSION => {
                return Err(BrokenRule::Version { found: hello.version });
            }
            Message::Hello(hello) => {
                self.greeted = true;
                return Ok(Some(Said::Hello(hello)));
            }
            Message::Event(event) => return Ok(Some(Said::Event(event))),
            Message::Release { channel } => return Ok(Some(Said::Release { channel })),
            Message::Pong(_) => return Ok(Some(Said::Pong)),
            Message::Ping(bytes) => {
                self.say(&Message::Pong(bytes))?;
                return Ok(None);
            }
            Message::Boot(_) => "BOOT",
            Message::Hangup { .. } => "HANGUP",
            Message::Ring { .. } => "RING",
            Message::Shutdown(_) => "SHUTDOWN",
            // The streams have taken these.
            Message::Open { .. } | Message::Data { .. } | Message::Credit { .. } => "a frame of a stream",
            Message::Close { .. } | Message::End { .. } => "a frame of a stream",
        };
        Err(BrokenRule::Role { what })
    }

    /// Says what the guest is to be.
    ///
    /// # Errors
    /// [`BrokenRule::Unread`].
    pub fn boot(&mut self, boot: Boot) -> Result<(), BrokenRule> {
        self.say(&Message::Boot(Box::new(boot)))
    }

    /// Says something that is about no stream.
    ///
    /// # Errors
    /// [`BrokenRule::Unread`].
    pub fn say(&mut self, message: &Message) -> Result<(), BrokenRule> {
        Ok(self.outbox.push(message)?)
    }

    /// Opens a stream. `None`: there are as many as may be.
    ///
    /// # Errors
    /// [`BrokenRule::Unread`].
    pub fn open(&mut self, purpose: Purpose) -> Result<Option<u32>, BrokenRule> {
        let Ok((stream, message)) = self.streams.open(purpose) else { return Ok(None) };
        self.say(&message)?;
        Ok(Some(stream))
    }

    /// Whether a message of any length may be sent on a stream now.
    #[must_use]
    pub fn has_room(&self, stream: u32) -> bool {
        self.outbox.wants_more() && self.streams.has_room(stream)
    }

    /// Whether the port has taken most of what was said: if not, the guest needs no further rings.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        self.outbox.wants_more()
    }

    /// Sends a message, and with it an end of a channel. `Ok(false)`: the stream is closed, or has
    /// no room, and nothing was sent.
    ///
    /// # Errors
    /// [`BrokenRule::Unread`].
    pub fn send(&mut self, stream: u32, bytes: Vec<u8>, end: Option<End>) -> Result<bool, BrokenRule> {
        let sent = match end {
            Some(end) => self.streams.send_end(stream, end, bytes).map(Vec::from),
            None => self.streams.send(stream, bytes).map(|message| vec![message]),
        };
        match sent {
            Ok(messages) => {
                messages.iter().try_for_each(|message| self.say(message))?;
                Ok(true)
            }
            Err(SendError::Closed | SendError::NoRoom) => Ok(false),
        }
    }

    /// A message that came on a stream has gone where it should.
    ///
    /// # Errors
    /// [`BrokenRule::Unread`].
    pub fn passed_on(&mut self, stream: u32, bytes: usize) -> Result<(), BrokenRule> {
        self.streams.consumed(stream, bytes).map_or(Ok(()), |message| self.say(&message))
    }

    /// Closes our side of a stream.
    ///
    /// # Errors
    /// [`BrokenRule::Unread`].
    pub fn close(&mut self, stream: u32, errno: i32, message: &str) -> Result<(), BrokenRule> {
        let close = Close { errno, message: message.to_owned() };
        self.streams.close(stream, close).map_or(Ok(()), |message| self.say(&message))
    }

    /// Bytes for the port.
    #[must_use]
    pub fn waiting(&self) -> &[u8] {
        self.outbox.waiting()
    }

    /// The port has taken so many of them.
    pub fn wrote(&mut self, bytes: usize) {
        self.outbox.wrote(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::guest::Exited;

    fn hello() -> Message {
        let program = "0.1.0".to_owned();
        Message::Hello(Hello { version: guest::VERSION, program, kernel: "6.1".into(), interrupts: true })
    }

    fn bytes(messages: &[Message]) -> Vec<u8> {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| message.encode(&mut bytes));
        bytes
    }

    fn broken(messages: &[Message]) -> BrokenRule {
        let mut guest = Guest::default();
        guest.hear(&bytes(&[hello()])).unwrap();
        guest.hear(&bytes(messages)).unwrap_err()
    }

    #[test]
    fn a_guest_says_who_it_is_and_then_what_it_likes() {
        let mut guest = Guest::default();
        let output = |text: &[u8]| Message::Data { stream: 4, bytes: text.to_vec() };
        let said = guest
            .hear(&bytes(&[
                hello(),
                Message::Open { stream: 2, purpose: Purpose::Control {} },
                Message::Open { stream: 4, purpose: Purpose::Output {} },
                output(b"\x01out"),
                Message::Data { stream: 2, bytes: b"{}".to_vec() },
                Message::Release { channel: 9 },
                Message::Ping(*b"12345678"),
                Message::Event(Event::Started {}),
            ]))
            .unwrap();
        assert!(matches!(said[0], Said::Hello(_)));
        assert_eq!(said[1], Said::Member { stream: 2 });
        assert_eq!(said[2], Said::Output { stream: 4, bytes: b"\x01out".to_vec() });
        assert_eq!(said[3], Said::Data { stream: 2, bytes: b"{}".to_vec() });
        assert_eq!(said[4..], [Said::Release { channel: 9 }, Said::Event(Event::Started {})]);
        assert_eq!(guest.waiting(), bytes(&[Message::Pong(*b"12345678")]));
    }

    #[test]
    fn each_broken_rule_is_named() {
        let mut guest = Guest::default();
        assert_eq!(guest.hear(&bytes(&[Message::Pong([0; 8])])), Err(BrokenRule::Hello));
        assert_eq!(broken(&[hello()]), BrokenRule::Hello);
        let Message::Hello(newer) = hello() else { unreachable!() };
        let newer = Message::Hello(Hello { version: 2, ..newer });
        let told = Guest::default().hear(&bytes(&[newer])).unwrap_err();
        assert!(told.to_string().contains("version 2"), "{told}");
        let role = |what| BrokenRule::Role { what };
        assert_eq!(broken(&[Message::Hangup { channel: 1 }]), role("HANGUP"));
        assert_eq!(broken(&[Message::Ring { channel: 1, vector: 0 }]), role("RING"));
        let purpose = |what| BrokenRule::Purpose { what };
        let open = |stream, purpose| Message::Open { stream, purpose };
        assert_eq!(broken(&[open(2, Purpose::Entrances {})]), purpose("entrances"));
        let twice = [open(2, Purpose::Output {}), open(4, Purpose::Output {})];
        assert_eq!(broken(&twice), purpose("its output, a second time"));
        let data = Message::Data { stream: 2, bytes: vec![7] };
        assert_eq!(broken(&[open(2, Purpose::Output {}), data.clone()]), BrokenRule::Output);
        assert!(matches!(broken(&[data]), BrokenRule::Streams(streams::Broken::NotOpen { stream: 2 })));
        let mut guest = Guest::default();
        assert!(matches!(guest.hear(&[0xff; 12]), Err(BrokenRule::Frame(BadFrame::Length { .. }))));
    }

    #[test]
    fn a_guest_that_asks_and_does_not_read_is_found_out() {
        let mut guest = Guest::default();
        guest.hear(&bytes(&[hello()])).unwrap();
        let pings = bytes(&vec![Message::Ping([7; 8]); 1000]);
        let told = (0..1000).find_map(|_| guest.hear(&pings).err());
        assert!(matches!(told, Some(BrokenRule::Unread(_))));
    }

    #[test]
    fn what_an_exited_command_says_is_heard_in_order() {
        let mut guest = Guest::default();
        let exited = Exited { ending: wire::guest::Ending::Code(0), out_of_memory: false };
        let messages = bytes(&[hello(), Message::Event(Event::Exited(exited))]);
        // However they are cut.
        let said: Vec<Said> = messages.chunks(3).flat_map(|piece| guest.hear(piece).unwrap()).collect();
        assert_eq!(said[1..], [Said::Event(Event::Exited(exited))]);
    }
}
