//! Many connections over one channel (`docs/spec/socket.md`): numbers, windows, half-close and
//! reset, the same for both ends.
//!
//! [`Mux`] decides and never waits: what the peer said goes in ([`Mux::hear`]), what is to be said
//! comes out as frames. It holds no bytes of any stream. [`Rate`] says how fast connections may
//! come.

mod rate;

pub use rate::Rate;

use std::collections::HashMap;
use wire::socket::{Frame, WINDOW_BYTES};

/// The consumed bytes of a window at which they are given back: a sender whose receiver keeps up
/// always has room.
const GRANT_BYTES: u32 = WINDOW_BYTES / 4;

/// The end of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where clients connect: it opens connections.
    Mount,
    /// Where the server is.
    Server,
}

/// All connections of one end of a channel.
#[derive(Debug)]
pub struct Mux {
    side: Side,
    open: HashMap<u64, Flow>,
    /// The number of the connection that was opened last.
    last: u64,
    greeted: bool,
}

/// One connection.
#[derive(Debug)]
struct Flow {
    /// The bytes that we may send.
    ours: u32,
    /// The bytes that the peer may send.
    theirs: u32,
    /// The bytes of the peer's that were consumed and not given back yet.
    consumed: u32,
    we_finished: bool,
    they_finished: bool,
}

/// The meaning of a frame of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A client has connected; port 0 where it has none.
    Opened {
        /// Its number.
        connection: u64,
        /// The client's port.
        port: u16,
    },
    /// Bytes have come. Say [`Mux::consumed`] when they have been passed on.
    Data {
        /// Of which connection.
        connection: u64,
    },
    /// We may send more than before.
    Room {
        /// On which connection.
        connection: u64,
    },
    /// No more bytes come.
    Finished {
        /// Of which connection.
        connection: u64,
    },
    /// It is over, and bytes that were not passed on are lost.
    Reset {
        /// The connection.
        connection: u64,
    },
    /// It is about a connection that is over here, or has no consequence.
    Nothing,
}

/// A rule that the peer broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// It speaks another version.
    #[error("it speaks version {version} of connections over a channel, and we {}", wire::socket::VERSION)]
    Version {
        /// Its version.
        version: u32,
    },
    /// Its first frame is no greeting, or another one is.
    #[error("it greets, but not once and first")]
    Greeting,
    /// It opens a connection under a number that is not the next one, or is not the end that opens.
    #[error("it opened connection {connection}, which is not its to open now")]
    Number {
        /// The number.
        connection: u64,
    },
    /// It speaks of a connection that was never opened.
    #[error("it speaks of connection {connection}, which was never opened")]
    NotOpen {
        /// The number.
        connection: u64,
    },
    /// It sent more than it was allowed.
    #[error("it sent {bytes} bytes on connection {connection}, where {left} were left of its window")]
    Window {
        /// The connection.
        connection: u64,
        /// The bytes that it sent.
        bytes: usize,
        /// The bytes that it might have sent.
        left: u32,
    },
    /// It allows more than a window.
    #[error("it allows more than {WINDOW_BYTES} bytes on connection {connection}")]
    Credit {
        /// The connection.
        connection: u64,
    },
    /// It sends on a connection on which it has said that it does not.
    #[error("it sends on connection {connection} after it finished")]
    Finished {
        /// The connection.
        connection: u64,
    },
}

impl Mux {
    /// No connections yet.
    #[must_use]
    pub fn new(side: Side) -> Self {
        Self { side, open: HashMap::new(), last: 0, greeted: false }
    }

    /// Connections that are open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Opens a connection: what to say. Only of [`Side::Mount`].
    pub fn open(&mut self, port: u16) -> (u64, Frame) {
        self.last += 1;
        let connection = self.last;
        self.open.insert(connection, Flow::new());
        (connection, Frame::Open { connection, port })
    }

    /// Bytes that may be sent on a connection now.
    #[must_use]
    pub fn room(&self, connection: u64) -> usize {
        let flow = self.open.get(&connection).filter(|flow| !flow.we_finished);
        flow.and_then(|flow| usize::try_from(flow.ours).ok()).unwrap_or(0)
    }

    /// So many bytes of [`Mux::room`] were sent.
    pub fn sent(&mut self, connection: u64, bytes: usize) {
        if let Some(flow) = self.open.get_mut(&connection) {
            flow.ours = flow.ours.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
        }
    }

    /// So many bytes that the peer sent were passed on: what to say, if anything.
    pub fn consumed(&mut self, connection: u64, bytes: usize) -> Option<Frame> {
        let flow = self.open.get_mut(&connection)?;
        flow.consumed = flow.consumed.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if flow.they_finished || flow.consumed < GRANT_BYTES {
            return None;
        }
        let granted = std::mem::take(&mut flow.consumed);
        flow.theirs = flow.theirs.saturating_add(granted).min(WINDOW_BYTES);
        Some(Frame::Credit { connection, bytes: granted })
    }

    /// Nothing more will be sent on a connection: what to say, if it was not said before.
    pub fn finish(&mut self, connection: u64) -> Option<Frame> {
        let flow = self.open.get_mut(&connection).filter(|flow| !flow.we_finished)?;
        flow.we_finished = true;
        if flow.they_finished {
            self.open.remove(&connection);
        }
        Some(Frame::Finish { connection })
    }

    /// Ends a connection at once: what to say, if it was open. What comes of it from now on is
    /// [`Heard::Nothing`].
    pub fn reset(&mut self, connection: u64, errno: u32) -> Option<Frame> {
        self.open.remove(&connection).map(|_| Frame::Reset { connection, errno })
    }

    /// Takes a frame of the peer; `body` are the bytes behind its header.
    ///
    /// # Errors
    /// [`Broken`]: the peer is not to be listened to any more.
    pub fn hear(&mut self, frame: Frame, body: usize) -> Result<Heard, Broken> {
        if let Frame::Hello { version } = frame {
            return self.hear_hello(version);
        }
        if !self.greeted {
            return Err(Broken::Greeting);
        }
        match frame {
            Frame::Hello { .. } => Err(Broken::Greeting),
            Frame::Open { connection, port } => self.hear_open(connection, port),
            Frame::Data { connection } => self.hear_data(connection, body),
            Frame::Credit { connection, bytes } => self.hear_credit(connection, bytes),
            Frame::Finish { connection } => self.hear_finish(connection),
            Frame::Reset { connection, .. } => {
                self.known(connection)?;
                let was_open = self.open.remove(&connection).is_some();
                Ok(if was_open { Heard::Reset { connection } } else { Heard::Nothing })
            }
        }
    }

    fn hear_hello(&mut self, version: u32) -> Result<Heard, Broken> {
        if self.greeted {
            return Err(Broken::Greeting);
        }
        if version != wire::socket::VERSION {
            return Err(Broken::Version { version });
        }
        self.greeted = true;
        Ok(Heard::Nothing)
    }

    fn hear_open(&mut self, connection: u64, port: u16) -> Result<Heard, Broken> {
        if self.side != Side::Server || Some(connection) != self.last.checked_add(1) {
            return Err(Broken::Number { connection });
        }
        self.last = connection;
        self.open.insert(connection, Flow::new());
        Ok(Heard::Opened { connection, port })
    }

    /// Refuses a number that no connection ever had.
    fn known(&self, connection: u64) -> Result<(), Broken> {
        if (1..=self.last).contains(&connection) { Ok(()) } else { Err(Broken::NotOpen { connection }) }
    }

    /// The connection that a frame of the peer is about; `None`: it is over here.
    fn named(&mut self, connection: u64) -> Result<Option<&mut Flow>, Broken> {
        self.known(connection)?;
        Ok(self.open.get_mut(&connection))
    }

    fn hear_data(&mut self, connection: u64, bytes: usize) -> Result<Heard, Broken> {
        let Some(flow) = self.named(connection)? else { return Ok(Heard::Nothing) };
        if flow.they_finished {
            return Err(Broken::Finished { connection });
        }
        let left = flow.theirs;
        let rest = u32::try_from(bytes).ok().and_then(|bytes| left.checked_sub(bytes));
        flow.theirs = rest.ok_or(Broken::Window { connection, bytes, left })?;
        Ok(Heard::Data { connection })
    }

    fn hear_credit(&mut self, connection: u64, bytes: u32) -> Result<Heard, Broken> {
        let Some(flow) = self.named(connection)? else { return Ok(Heard::Nothing) };
        let all = flow.ours.checked_add(bytes).filter(|all| *all <= WINDOW_BYTES);
        flow.ours = all.ok_or(Broken::Credit { connection })?;
        Ok(Heard::Room { connection })
    }

    fn hear_finish(&mut self, connection: u64) -> Result<Heard, Broken> {
        let Some(flow) = self.named(connection)? else { return Ok(Heard::Nothing) };
        if flow.they_finished {
            return Err(Broken::Finished { connection });
        }
        flow.they_finished = true;
        if flow.we_finished {
            self.open.remove(&connection);
        }
        Ok(Heard::Finished { connection })
    }
}

impl Flow {
    fn new() -> Self {
        Self {
            ours: WINDOW_BYTES,
            theirs: WINDOW_BYTES,
            consumed: 0,
            we_finished: false,
            they_finished: false,
        }
    }
}
