//! The link as its user sees it: pairs, messages, connections, time.

use crate::broken::{BadConfig, Broken, OpenError, Over, SendError};
use crate::config::{Config, Transport};
use crate::connection::Connection;
use crate::messages::Messages;
use crate::pairs::Pairs;
use crate::schedule::Share;
use wire::link::{Hello, OPEN_BYTES_MAX, Pair, RECORD_HEADER_BYTES, Refusal, record};

/// One side of a link, one incarnation of it.
#[derive(Debug)]
pub struct Link {
    pub(crate) config: Config,
    pub(crate) peer: Option<Peer>,
    pub(crate) connection: Connection,
    pub(crate) pairs: Pairs,
    pub(crate) over: Option<Over>,
    /// The last packet, which says why.
    pub(crate) farewell: Option<Farewell>,
    /// Packets that were for or from another incarnation.
    pub(crate) stale: u64,
}

/// The incarnation at the other side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub epoch: u64,
    pub hello: Hello,
    pub version: u16,
    /// It was up once.
    pub met: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Farewell {
    Refusal { to: u64, refusal: Refusal },
    Goodbye { reason: u32 },
}

/// The fate of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It goes out when the peer allows, and again until the peer has it.
    Queued,
    /// There is no room; [`Event::Room`] says when there is.
    Full,
}

/// Why a pair is closed that we have not closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The peer closed it, for a reason whose numbers are the users'. All that it had queued before
    /// was delivered.
    ByPeer(u32),
    /// The peer is another incarnation, and knows nothing of it. Messages of either side may be
    /// lost, the last ones.
    Reborn,
}

/// Something for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The peer is there, and speaks.
    Up {
        /// The version that is spoken.
        version: u16,
        /// It is the incarnation that was there before, and pairs go on.
        resumed: bool,
    },
    /// The peer has opened a pair.
    Opened {
        /// The pair.
        pair: Pair,
        /// The alleged purpose.
        content: Vec<u8>,
    },
    /// Messages that came together. Each counts for the pair's window until [`Link::consumed`].
    Messages {
        /// Of which pair.
        pair: Pair,
        /// The messages.
        messages: Messages,
    },
    /// A message that did not fit before does now.
    Room(Pair),
    /// A pair is closed. Nothing more comes of it.
    Closed {
        /// The pair.
        pair: Pair,
        /// Why.
        why: Closed,
    },
    /// Nothing was heard for too long: this connection is of no use. It is taken for cut; its
    /// transport is to be closed.
    Silent,
    /// The link is over, with all its pairs.
    Over(Over),
}

/// How it stands with the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// There is none.
    Down,
    /// There is one, and the peer has not answered.
    Greeting,
    /// Both speak.
    Up,
    /// See [`Over`].
    Over(Over),
}

/// The memory of a link, in bytes but for the pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Pairs in the table.
    pub pairs: usize,
    /// Of messages that go out.
    pub outward: usize,
    /// Of messages that are not whole.
    pub inward: usize,
}

impl Link {
    /// A link without a connection.
    ///
    /// # Errors
    /// See [`BadConfig`].
    pub fn new(config: Config) -> Result<Self, BadConfig> {
        Ok(Self {
            config: config.check()?,
            peer: None,
            connection: Connection::Down,
            pairs: Pairs::new(config.queue_bytes),
            over: None,
            farewell: None,
            stale: 0,
        })
    }

    /// How it stands.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match (self.over, &self.connection) {
            (Some(over), _) => Standing::Over(over),
            (None, Connection::Down) => Standing::Down,
            (None, Connection::On(on)) if on.up => Standing::Up,
            (None, Connection::On(_)) => Standing::Greeting,
        }
    }

    /// The longest message that can be sent, in bytes; `None` before the peer was met.
    #[must_use]
    pub fn message_bytes_max(&self) -> Option<usize> {
        let takes = usize::try_from(self.peer?.hello.message_bytes).unwrap_or(usize::MAX);
        Some(takes.min(self.config.queue_bytes - RECORD_HEADER_BYTES))
    }

    /// The last measured round trip, in ms.
    #[must_use]
    pub fn round_trip_ms(&self) -> Option<u64> {
        self.connection.on()?.round_trip_ms
    }

    /// Packets that were refused because they were for or from another incarnation, or came without
    /// a connection.
    #[must_use]
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// Compressions that both take: bit `1 << number` for each.
    #[must_use]
    pub fn compressions(&self) -> u8 {
        self.peer.map_or(0, |peer| peer.hello.compressions & self.config.hello.compressions)
    }

    /// The memory that is held.
    pub fn held(&mut self) -> Held {
        let pairs = self.pairs.len();
        self.pairs.iter().fold(Held { pairs, ..Held::default() }, |held, (_, entry)| Held {
            outward: held.outward + entry.out.held(),
            inward: held.inward + entry.inn.kept(),
            ..held
        })
    }

    /// Bytes that are held of one pair, in both directions, also after it was closed; 0: of none
    /// that is there.
    pub fn held_of(&mut self, pair: Pair) -> usize {
        self.pairs.get(pair).map_or(0, |entry| entry.out.held() + entry.inn.kept())
    }

    /// Opens a pair. `content` says for whom it is.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&mut self, content: &[u8]) -> Result<Pair, OpenError> {
        if let Some(over) = self.over {
            return Err(OpenError::Over(over));
        }
        let peer = self.peer.ok_or(OpenError::NotYet)?;
        if content.len() > OPEN_BYTES_MAX {
            return Err(OpenError::Long { found: content.len(), most: OPEN_BYTES_MAX });
        }
        let many = OpenError::Many { most: peer.hello.pairs };
        let pair = self.pairs.open(&self.config.hello, &peer.hello).ok_or(many)?;
        if let Some(entry) = self.pairs.get(pair) {
            entry.out.push(record::OPEN, [content, &[]]);
        }
        self.settle(pair);
        Ok(pair)
    }

    /// Queues a message.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send(&mut self, pair: Pair, message: &[u8]) -> Result<Sent, SendError> {
        self.send_parts(pair, [message, &[]])
    }

    /// Queues a message that lies in two pieces.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn send_parts(&mut self, pair: Pair, parts: [&[u8]; 2]) -> Result<Sent, SendError> {
        let queued = self.send_all_parts(pair, [parts])?;
        Ok(if queued == 1 { Sent::Queued } else { Sent::Full })
    }

    /// Queues messages that lie in two pieces each, as long as they fit; says how many. Where one
    /// did not fit, [`Event::Room`] says when it does.
    ///
    /// # Errors
    /// That of the first; one that is refused behind others says so when it is sent again.
    pub fn send_all_parts<'a>(
        &mut self,
        pair: Pair,
        messages: impl IntoIterator<Item = [&'a [u8]; 2]>,
    ) -> Result<usize, SendError> {
        if let Some(over) = self.over {
            return Err(SendError::Over(over));
        }
        let most = self.message_bytes_max().unwrap_or(0);
        let queue_bytes = self.config.queue_bytes;
        let entry = self.pairs.get(pair).filter(|entry| entry.announced && !entry.out.is_closed());
        let entry = entry.ok_or(SendError::NotOpen(pair))?;
        let mut queued = 0;
        for parts in messages {
            let length = parts.iter().map(|part| part.len()).sum();
            if length > most {
                if queued == 0 {
                    return Err(SendError::Long { found: length, most });
                }
                break;
            }
            let needs = RECORD_HEADER_BYTES + length;
            if entry.out.held() + needs > queue_bytes {
                entry.out.wanted = needs;
                break;
            }
            entry.out.push(record::MESSAGE, parts);
            queued += 1;
        }
        // One that is in the queue already has its turn, and is looked at then.
        if queued > 0 && !entry.is_queued() {
            self.settle(pair);
        }
        Ok(queued)
    }

    /// Sets the order of pairs that have something to send: all in turn (`None`), or by classes,
    /// all of which together send so many bytes per second at most.
    pub fn set_whole(&mut self, rate_bytes: Option<u64>) {
        self.pairs.schedule.set_whole(rate_bytes);
    }

    /// A class gets this from now on, or is no more. False: there are no classes
    /// ([`Link::set_whole`]), this one can't be changed, or there are
    /// [`MAX_CLASSES`](crate::schedule::MAX_CLASSES).
    pub fn set_share(&mut self, class: u32, share: Option<Share>) -> bool {
        self.pairs.schedule.set(class, share)
    }

    /// From its next message on a pair belongs to a class; to that of the rest, as long as it is
    /// not there. It was of [`CONTROL`](crate::schedule::CONTROL).
    pub fn classify(&mut self, pair: Pair, class: u32) {
        if let Some(entry) = self.pairs.get(pair) {
            entry.class = class;
        }
    }

    /// A message of `bytes` bytes was passed on: as many more may come.
    pub fn consumed(&mut self, pair: Pair, bytes: usize) {
        self.consumed_all(pair, 1, bytes);
    }

    /// The same of several messages, which have `bytes` bytes together.
    pub fn consumed_all(&mut self, pair: Pair, messages: usize, bytes: usize) {
        if let Some(entry) = self.pairs.get(pair) {
            entry.inn.consume(messages.saturating_mul(RECORD_HEADER_BYTES).saturating_add(bytes));
            self.settle(pair);
        }
    }

    /// Closes a pair: what waits is sent first. Messages that come from now on are dropped, and no
    /// event tells of it.
    pub fn close(&mut self, pair: Pair, reason: u32) {
        self.close_how(pair, reason, false);
    }

    /// Closes a pair, and drops what waits as far as the peer can't have it. It needs no window, so
    /// it gets through to a peer that does not take anything.
    pub fn abandon(&mut self, pair: Pair, reason: u32) {
        self.close_how(pair, reason, true);
    }

    pub(crate) fn close_how(&mut self, pair: Pair, reason: u32, now: bool) {
        if let Some(entry) = self.pairs.get(pair) {
            entry.out.close(reason, now);
            entry.inn.discard();
            self.settle(pair);
        }
    }

    /// Ends the association. Messages that were not sent are lost; the peer is told, if there is a
    /// connection.
    pub fn goodbye(&mut self, reason: u32) {
        if self.over.is_none() {
            self.end(Over::Ended, Some(Farewell::Goodbye { reason }));
        }
    }

    /// There is a connection: a new one, whatever was before. Its transport may be another than
    /// before.
    ///
    /// # Errors
    /// [`BadConfig::Datagram`].
    pub fn connected(&mut self, now_ms: u64, transport: Transport) -> Result<(), BadConfig> {
        self.connection = Connection::new(now_ms, transport.check()?);
        self.pairs.rewind(self.config.hello.side);
        Ok(())
    }

    /// The connection is cut. Pairs stay.
    pub fn disconnected(&mut self) {
        self.connection = Connection::Down;
    }

    /// The transport has brought what is no packet, or what can't be unpacked: the peer broke a
    /// rule.
    pub fn refuse(&mut self, broken: Broken) -> Option<Event> {
        self.over.is_none().then(|| Event::Over(self.broken(broken)))
    }

    pub(crate) fn settle(&mut self, pair: Pair) {
        self.pairs.settle(pair, self.config.hello.side);
    }

    pub(crate) fn end(&mut self, over: Over, farewell: Option<Farewell>) {
        self.over = Some(over);
        self.farewell = farewell;
        self.pairs = Pairs::new(self.config.queue_bytes);
    }

    pub(crate) fn broken(&mut self, broken: Broken) -> Over {
        let to = self.peer.map_or(0, |peer| peer.epoch);
        let refusal = self.refusal(wire::link::refusal::BROKEN);
        let over = Over::Broken(broken);
        self.end(over, Some(Farewell::Refusal { to, refusal }));
        over
    }

    pub(crate) fn refusal(&self, reason: u32) -> Refusal {
        Refusal { reason, oldest: self.config.hello.oldest, newest: self.config.hello.newest }
    }
}
