//! Moving the bytes of one channel: between its frames and the sockets of one domain, on one
//! thread.
//!
//! Nothing is read from a socket before there is room for it in the ring and in the connection's
//! window, so nothing waits on the sending side but in the kernel. What comes is always taken from
//! the ring: what a socket does not take waits in the connection's own memory, a window at most. So
//! a client that never reads stops its own connection, and no other.

use crate::counts::{Connected, Counts};
use crate::held::Held;
use crate::local::Local;
use channel::{End, ReceiveError, Receiver, SendError, Sender};
use mux::{Heard, Mux, Side};
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use wire::socket::{DATA_BYTES_MAX, Frame, HEADER_BYTES, VERSION};

/// Frames that are taken from the ring before sockets are looked at again.
const FRAMES_PER_TURN: usize = 64;
/// Reads of sockets before the ring is looked at again.
const READS_PER_TURN: usize = 64;
/// Events that are taken from the kernel at a time.
const EVENTS: usize = 256;
/// Frames that may wait for room in the ring beside bytes of streams. A peer that reads leaves a
/// few for each connection; one that asks and does not read the answers is hung up on.
const OWED_MAX: usize = 1 << 18;

const DATA_BELL: u64 = u64::MAX;
const ROOM_BELL: u64 = u64::MAX - 1;
/// The token of the descriptor that [`Ends`] may have watched.
pub(crate) const DOOR: u64 = u64::MAX - 2;

/// Why a channel is over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Over {
    /// The relay at its other end is gone.
    #[error("the relay at the other end has ended")]
    Gone,
    /// The peer broke a rule.
    #[error("the relay at the other end broke a rule: {0}")]
    Broken(String),
    /// This side can't go on.
    #[error("a channel can't be served: {0}")]
    Failed(String),
}

impl From<Errno> for Over {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno.to_string())
    }
}

impl From<ReceiveError> for Over {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Closed => Self::Gone,
            ReceiveError::Corrupt(violation) => Self::Broken(violation.to_string()),
            other => Self::Failed(crate::said(&other)),
        }
    }
}

impl From<SendError> for Over {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Closed => Self::Gone,
            SendError::Corrupt(violation) => Self::Broken(violation.to_string()),
            other => Self::Failed(crate::said(&other)),
        }
    }
}

/// The difference between a service's mount and its server's place.
pub(crate) trait Ends {
    /// The side of the channel.
    const SIDE: Side;

    /// A connection that a client has opened over there: the socket to the server and what goes in
    /// front of the stream, or why not.
    fn connect(&mut self, port: u16) -> Result<(Local, Vec<u8>, Connected), Errno>;

    /// The next client that is there and may come in. `Err`: nobody may before so long; no time:
    /// not before the door opens again.
    fn accept(&mut self, open: usize) -> Result<(Local, Connected), Option<Duration>>;

    /// Somebody may be at the door.
    fn knocked(&mut self);
}

/// One connection.
struct Connection {
    local: Local,
    held: Held,
    /// The kernel may have bytes for us.
    readable: bool,
    /// It may take some.
    writable: bool,
    /// It is not known yet whether the server accepts.
    connecting: bool,
    /// It stands in [`Pump::ready`].
    queued: bool,
    /// The socket has ended, and the peer knows.
    sent_finish: bool,
    /// The peer sends no more.
    heard_finish: bool,
    /// The socket was told so, behind all bytes.
    finished: bool,
    _counted: Connected,
}

pub(crate) struct Pump<E> {
    ends: E,
    sender: Sender,
    receiver: Receiver,
    mux: Mux,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    /// Connections that may have something to read.
    ready: VecDeque<u64>,
    /// Frames that go before any bytes.
    owed: VecDeque<Frame>,
    /// The record for which there was no room in the ring.
    wants_bytes: Option<usize>,
    scratch: Vec<u8>,
    counts: Arc<Counts>,
}

impl<E: Ends> Pump<E> {
    /// Takes an end of a channel into use. `door` is a descriptor whose readiness [`Ends::knocked`]
    /// is to hear of.
    pub(crate) fn new(end: End, ends: E, door: Option<&OwnedFd>, counts: Arc<Counts>) -> Result<Self, Over> {
        let (sender, receiver) = end.open().map_err(|e| Over::Failed(crate::said(&e)))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, receiver.descriptors().doorbell, EventData::new_u64(DATA_BELL), EventFlags::IN)?;
        epoll::add(&epoll, sender.descriptors().doorbell, EventData::new_u64(ROOM_BELL), EventFlags::IN)?;
        if let Some(door) = door {
            epoll::add(&epoll, door, EventData::new_u64(DOOR), EventFlags::IN | EventFlags::ET)?;
        }
        Ok(Self {
            ends,
            sender,
            receiver,
            mux: Mux::new(E::SIDE),
            epoll,
            connections: HashMap::new(),
            ready: VecDeque::new(),
            owed: VecDeque::from([Frame::Hello { version: VERSION }]),
            wants_bytes: None,
            scratch: vec![0; DATA_BYTES_MAX],
            counts,
        })
    }

    /// Moves bytes until the channel is over. All connections are reset then.
    pub(crate) fn run(mut self) -> Over {
        let over = loop {
            if let Err(over) = self.turn() {
                break over;
            }
        };
        for _ in &self.connections {
            self.counts.reset();
        }
        over
    }

    fn turn(&mut self) -> Result<(), Over> {
        let heard = self.hear()?;
        let (accepted, wait) = self.accept()?;
        let said = self.say()?;
        if heard || accepted || said {
            return self.look(Some(Duration::ZERO));
        }
        if !self.receiver.prepare_wait() {
            return self.look(Some(Duration::ZERO));
        }
        let wants = self.wants_bytes.take();
        let sleeps = match wants {
            Some(bytes) => self.sender.prepare_wait(bytes),
            None => Ok(true),
        };
        let looked = match sleeps {
            Ok(sleeps) => self.look(if sleeps { wait } else { Some(Duration::ZERO) }),
            Err(error) => Err(error.into()),
        };
        self.receiver.cancel_wait();
        if wants.is_some() {
            self.sender.cancel_wait();
        }
        looked
    }

    /// Takes what the kernel has to tell, waiting for it so long; no time: as long as it takes.
    fn look(&mut self, wait: Option<Duration>) -> Result<(), Over> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        let timeout = wait.and_then(|wait| Timespec::try_from(wait).ok());
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        for event in events {
            // The fields of a packed structure are copied out before they are used.
            let (flags, data) = (event.flags, event.data);
            match data.u64() {
                DATA_BELL => self.receiver.drain_doorbell()?,
                ROOM_BELL => self.sender.drain_doorbell()?,
                DOOR => self.ends.knocked(),
                connection => self.happened(connection, flags),
            }
        }
        Ok(())
    }

    /// Something has happened to a socket.
    fn happened(&mut self, number: u64, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if flags.contains(EventFlags::ERR)
            && let Some(errno) = connection.local.error()
        {
            return self.reset(number, errno);
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP) {
            connection.readable = true;
        }
        if flags.intersects(EventFlags::OUT | EventFlags::HUP) {
            connection.writable = true;
            connection.connecting = false;
            self.flush(number);
        }
        self.queue(number);
    }

    /// Has a connection read from, if there may be something and it may be sent.
    fn queue(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let may = connection.readable && !connection.queued && !connection.sent_finish;
        if may && !connection.connecting && self.mux.room(number) > 0 {
            connection.queued = true;
            self.ready.push_back(number);
        }
    }

    /// Takes frames from the ring; whether there were any.
    fn hear(&mut self) -> Result<bool, Over> {
        for taken in 0..FRAMES_PER_TURN {
            let scratch = &mut self.scratch;
            let frame = self.receiver.try_read(|alleged| {
                let length = alleged.len();
                let body = length.saturating_sub(HEADER_BYTES).min(DATA_BYTES_MAX);
                let copied = scratch.get_mut(..body).is_some_and(|into| alleged.copy_to(HEADER_BYTES, into));
                (alleged.array::<HEADER_BYTES>(0), length, copied || body == 0)
            })?;
            let Some((header, length, copied)) = frame else { return Ok(taken > 0) };
            let header =
                header.filter(|_| copied).ok_or_else(|| Over::Broken("a record is too short".into()))?;
            let frame = Frame::read(header, length).map_err(|e| Over::Broken(e.to_string()))?;
            let body = length - HEADER_BYTES;
            let heard = self.mux.hear(frame, body).map_err(|e| Over::Broken(e.to_string()))?;
            self.heard(heard, body)?;
        }
        Ok(true)
    }

    fn heard(&mut self, heard: Heard, body: usize) -> Result<(), Over> {
        match heard {
            Heard::Opened { connection, port } => self.opened(connection, port)?,
            Heard::Data { connection } => self.pass_on(connection, body),
            Heard::Room { connection } => self.queue(connection),
            Heard::Finished { connection: number } => {
                if let Some(connection) = self.connections.get_mut(&number) {
                    connection.heard_finish = true;
                    self.flush(number);
                }
            }
            Heard::Reset { connection } => {
                if self.connections.remove(&connection).is_some() {
                    self.counts.reset();
                }
            }
            Heard::Nothing => {}
        }
        if self.owed.len() > OWED_MAX {
            return Err(Over::Broken(format!("it does not read, and {OWED_MAX} frames wait for it")));
        }
        Ok(())
    }

    fn opened(&mut self, number: u64, port: u16) -> Result<(), Over> {
        match self.ends.connect(port) {
            Ok((local, front, counted)) => self.take_in(number, local, (Held::of_ours(front), counted), true),
            Err(errno) => {
                self.counts.refused();
                self.owed.extend(self.mux.reset(number, errno.raw_os_error().unsigned_abs()));
                Ok(())
            }
        }
    }

    fn take_in(
        &mut self,
        number: u64,
        local: Local,
        (held, counted): (Held, Connected),
        connecting: bool,
    ) -> Result<(), Over> {
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &local, EventData::new_u64(number), events)?;
        let connection = Connection {
            local,
            held,
            readable: false,
            writable: false,
            connecting,
            queued: false,
            sent_finish: false,
            heard_finish: false,
            finished: false,
            _counted: counted,
        };
        self.connections.insert(number, connection);
        Ok(())
    }

    /// Lets clients in; whether there were any, and how long to wait before the next may come.
    fn accept(&mut self) -> Result<(bool, Option<Duration>), Over> {
        let mut any = false;
        loop {
            match self.ends.accept(self.connections.len()) {
                Ok((local, counted)) => {
                    let (number, frame) = self.mux.open(local.peer_port());
                    self.owed.push_back(frame);
                    self.take_in(number, local, (Held::default(), counted), false)?;
                    any = true;
                }
                Err(wait) => return Ok((any, wait)),
            }
        }
    }

    /// Gives bytes of the scratch to a socket; what it does not take waits.
    fn pass_on(&mut self, number: u64, body: usize) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let bytes = self.scratch.get(..body).unwrap_or_default();
        let mut taken = 0;
        if connection.writable && connection.held.is_empty() {
            match connection.local.write(bytes) {
                Ok(written) => taken = written,
                Err(Errno::AGAIN) => {}
                Err(errno) => return self.reset(number, errno),
            }
            connection.writable = taken == bytes.len();
        }
        connection.held.push(bytes.get(taken..).unwrap_or_default());
        self.consumed(number, taken);
    }

    /// Gives what waits to a socket, and ends the connection if that was the last of it.
    fn flush(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let mut taken = 0;
        while connection.writable && !connection.held.is_empty() {
            match connection.local.write(connection.held.waiting()) {
                Ok(written) => taken += connection.held.took(written),
                Err(Errno::AGAIN) => connection.writable = false,
                Err(errno) => return self.reset(number, errno),
            }
        }
        let ends = connection.heard_finish && connection.held.is_empty() && !connection.connecting;
        // Once: a socket that has ended in both directions is not connected any more, and may still
        // have bytes for us.
        if ends
            && !std::mem::replace(&mut connection.finished, ends)
            && let Err(errno) = connection.local.finish()
        {
            return self.reset(number, errno);
        }
        let over = ends && connection.sent_finish;
        self.consumed(number, taken);
        if over && let Some(connection) = self.connections.remove(&number) {
            connection.local.close();
        }
    }

    fn consumed(&mut self, number: u64, bytes: usize) {
        if bytes > 0 {
            self.count_in(bytes);
            self.owed.extend(self.mux.consumed(number, bytes));
        }
    }

    /// Bytes have reached a socket of this domain.
    fn count_in(&self, bytes: usize) {
        match E::SIDE {
            Side::Mount => self.counts.received(bytes),
            Side::Server => self.counts.sent(bytes),
        }
    }

    /// Bytes have left one.
    fn count_out(&self, bytes: usize) {
        match E::SIDE {
            Side::Mount => self.counts.sent(bytes),
            Side::Server => self.counts.received(bytes),
        }
    }

    /// Ends a connection at once, on both sides.
    fn reset(&mut self, number: u64, errno: Errno) {
        match self.connections.remove(&number) {
            Some(connection) if connection.connecting => self.counts.refused(),
            Some(_) => self.counts.reset(),
            None => {}
        }
        self.owed.extend(self.mux.reset(number, errno.raw_os_error().unsigned_abs()));
    }

    /// Puts frames and bytes of sockets into the ring; whether there were any.
    fn say(&mut self) -> Result<bool, Over> {
        self.wants_bytes = None;
        let mut any = false;
        while let Some(frame) = self.owed.front() {
            match self.sender.try_send(&frame.header()) {
                Ok(()) => drop(self.owed.pop_front()),
                Err(SendError::Full) => {
                    self.wants_bytes = Some(HEADER_BYTES);
                    return Ok(any);
                }
                Err(error) => return Err(error.into()),
            }
            any = true;
        }
        for _ in 0..READS_PER_TURN {
            let Some(number) = self.ready.pop_front() else { return Ok(any) };
            match self.read(number)? {
                Read::Full(bytes) => {
                    self.ready.push_front(number);
                    self.wants_bytes = Some(bytes);
                    return Ok(any);
                }
                Read::Some => {
                    any = true;
                    self.ready.push_back(number);
                }
                Read::Nothing => {
                    if let Some(connection) = self.connections.get_mut(&number) {
                        connection.queued = false;
                    }
                    // What was owed because of it goes before the next bytes.
                    any |= !self.owed.is_empty();
                }
            }
        }
        Ok(true)
    }

    /// Reads from a socket straight into the ring's next record.
    fn read(&mut self, number: u64) -> Result<Read, Over> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(Read::Nothing) };
        let room = self.mux.room(number).min(DATA_BYTES_MAX);
        if room == 0 || !connection.readable {
            return Ok(Read::Nothing);
        }
        let mut loan = match self.sender.try_loan(HEADER_BYTES + room) {
            Ok(loan) => loan,
            Err(SendError::Full) => return Ok(Read::Full(HEADER_BYTES + room)),
            Err(error) => return Err(error.into()),
        };
        let into = self.scratch.get_mut(..room).unwrap_or_default();
        match connection.local.read(into) {
            Ok(0) => {
                self.ended(number);
                Ok(Read::Nothing)
            }
            Ok(read) => {
                let bytes = self.scratch.get(..read).unwrap_or_default();
                let written = loan.write_at(0, &Frame::Data { connection: number }.header())
                    && loan.write_at(HEADER_BYTES, bytes);
                debug_assert!(written, "the loan is as long as the room");
                loan.commit_first(HEADER_BYTES + read)?;
                self.mux.sent(number, read);
                self.count_out(read);
                Ok(Read::Some)
            }
            Err(Errno::AGAIN) => {
                connection.readable = false;
                Ok(Read::Nothing)
            }
            Err(errno) => {
                self.reset(number, errno);
                Ok(Read::Nothing)
            }
        }
    }

    /// A socket has come to its end.
    fn ended(&mut self, number: u64) {
        self.owed.extend(self.mux.finish(number));
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.sent_finish = true;
        connection.readable = false;
        let over = connection.heard_finish && connection.held.is_empty();
        if over && let Some(connection) = self.connections.remove(&number) {
            connection.local.close();
        }
    }
}

/// The outcome of reading a socket.
enum Read {
    /// Bytes, and there may be more.
    Some,
    /// Nothing now, or for good.
    Nothing,
    /// The ring has no room for so many bytes.
    Full(usize),
}

#[cfg(test)]
mod tests;
