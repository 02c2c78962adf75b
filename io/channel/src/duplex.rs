//! Both halves of an end in one hand, for one who waits for many channels at once and for more than
//! messages: nothing here waits.
//!
//! The region has room behind the words of the rings for words that others agree on (`wire::ipc`).
//! A program that changes one of those wakes the peer as a message would: [`Duplex::take_sleeper`],
//! [`Duplex::wake`].

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use ring::{Peek, Piece, Prepared, Record, Sleep, Violation, Wake};
use sys::region::Region;
use wire::ring as layout;

use crate::shared::Where;
use crate::{End, Mode, OpenError, OpenOptions, ReceiveError, Receiver, SendError, Sender};

/// After so many looks at an empty ring, ask the kernel whether the peer lives, as a receiver does.
const LOOKS_PER_LIFE_CHECK: u32 = 1024;

/// Both halves of an opened end. Dropping it closes the channel.
#[derive(Debug)]
pub struct Duplex {
    sender: Sender,
    receiver: Receiver,
    /// The record that was looked at last, and not taken.
    looked: Option<Record>,
    looks: u32,
}

/// Where the peer of an end runs, as it alleges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// Nobody said.
    Unknown,
    /// On the processor of this thread: to spin would keep it from doing what we wait for.
    Here,
    /// On another.
    Elsewhere,
}

impl End {
    /// As [`End::open_with`], both halves together, for a channel that was made in
    /// [`Mode::Messages`].
    ///
    /// # Errors
    /// See [`OpenError`], among them [`OpenError::WrongMode`]; the end is closed then.
    pub fn open_duplex(self, options: &OpenOptions) -> Result<Duplex, OpenError> {
        let found = self.mode()?;
        if found != Mode::Messages {
            return Err(OpenError::WrongMode { found, wanted: Mode::Messages });
        }
        let (sender, receiver) = self.open_with(options)?;
        Ok(Duplex { sender, receiver, looked: None, looks: 0 })
    }
}

impl Duplex {
    /// The side of this end, 0 or 1.
    #[must_use]
    pub fn side(&self) -> usize {
        self.receiver.shared.side()
    }

    /// Bytes of one ring.
    #[must_use]
    pub fn ring_bytes(&self) -> u32 {
        u32::try_from(self.receiver.shared.ring_bytes()).unwrap_or(layout::RING_BYTES_MAX)
    }

    /// The region, for the words that are no business of the rings.
    #[inline]
    #[must_use]
    pub fn region(&self) -> &Region {
        self.receiver.shared.region()
    }

    /// Whether both ends share a kernel, so that one may sleep on a futex.
    #[must_use]
    pub fn has_futex(&self) -> bool {
        self.receiver.shared.kind().futexes
    }

    /// Offset in the region of the word in which this end says that it sleeps: its futex.
    #[must_use]
    pub fn futex(&self) -> usize {
        self.receiver.shared.sleeping()
    }

    /// The descriptor that an event loop watches: readable when the peer rang, hung up when it is
    /// gone.
    #[must_use]
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.receiver.descriptors().doorbell
    }

    /// Takes the rings off the doorbell, and notices the death of the peer.
    ///
    /// # Errors
    /// [`ReceiveError::Doorbell`], [`ReceiveError::Forked`].
    pub fn drain_doorbell(&mut self) -> Result<(), ReceiveError> {
        self.receiver.drain_doorbell()
    }

    /// Holds messages back until they are so many bytes together: see [`Sender::set_batch_bytes`].
    pub fn set_batch_bytes(&mut self, bytes: usize) {
        self.sender.set_batch_bytes(bytes);
    }

    /// Whether there are messages that the peer does not see yet.
    #[inline]
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.sender.producer.is_holding()
    }

    /// Sends a message that is a head, in little-endian words, and a body, or holds it back. False:
    /// there is no room for it now.
    ///
    /// # Errors
    /// [`SendError`], other than `Full` and `TimedOut`. After [`SendError::Doorbell`] the message
    /// is in the ring nevertheless.
    #[inline]
    pub fn send<const N: usize>(&mut self, head: [u64; N], body: &[u8]) -> Result<bool, SendError> {
        if let Some(sent) = self.sender.send_headed_at_once(head, body) {
            return sent.map(|()| true);
        }
        self.send_any(head, body)
    }

    #[cold]
    fn send_any<const N: usize>(&mut self, head: [u64; N], body: &[u8]) -> Result<bool, SendError> {
        let head = head.map(u64::to_le_bytes);
        let head = head.as_flattened();
        match self.sender.try_send_vectored(&[head, body]) {
            Ok(()) => Ok(true),
            Err(SendError::Full) => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// The messages that were sent, or held back, and that the peer has not consumed, the oldest
    /// first. They are read back from memory that the peer can write. Empty, if it has broken a
    /// rule.
    #[must_use]
    pub fn unconsumed(&mut self) -> Vec<Vec<u8>> {
        self.sender.producer.unconsumed().unwrap_or_default()
    }

    /// Shows the peer what was held back.
    ///
    /// # Errors
    /// As [`Sender::flush`].
    pub fn flush(&mut self) -> Result<(), SendError> {
        self.sender.flush()
    }

    /// Takes the next message, if `judge` accepts its first `N` words and how many bytes follow,
    /// and there is nothing out of the ordinary about it: what follows replaces what is in `into`.
    /// `None`: nothing was done, and [`Duplex::look`] finds out what there is.
    #[inline]
    pub fn take_at_once<const N: usize, T>(
        &mut self,
        into: &mut Vec<u8>,
        judge: impl FnOnce([u64; N], usize) -> Option<T>,
    ) -> Option<T> {
        if self.looked.is_some() || self.receiver.shared.is_closed_here() {
            return None;
        }
        let taken = self.receiver.consumer.take_headed_at_once(into, judge)?;
        self.looks = 0;
        self.receiver.count_one();
        Some(taken)
    }

    /// The first bytes of the next message, and how long it is; it stays where it is. A message
    /// that is shorter than `N` has zeros behind it. `None`: there is none.
    ///
    /// # Errors
    /// The rule that the peer has broken; the channel is closed then.
    #[inline]
    pub fn look<const N: usize>(&mut self) -> Result<Option<([u8; N], usize)>, Violation> {
        let record = match self.looked {
            Some(record) => record,
            None => match self.next()? {
                Some(record) => record,
                None => return Ok(None),
            },
        };
        self.looked = Some(record);
        let mut first = [0; N];
        let length = record.len();
        let there = length.min(N);
        if there == N {
            let _inside = self.receiver.consumer.copy(&record, 0, &mut first);
        } else if let Some(first) = first.get_mut(..there) {
            let _inside = self.receiver.consumer.copy(&record, 0, first);
        }
        Ok(Some((first, length)))
    }

    #[inline]
    fn next(&mut self) -> Result<Option<Record>, Violation> {
        let record = match self.receiver.consumer.peek() {
            Ok(Peek::Message(record)) => record,
            Ok(Peek::Empty { wake }) => {
                // Nobody who keeps to the rules waits for room here; who does all the same is woken
                // if that can be done.
                let _woken = self.receiver.shared.wake_sender(wake);
                self.find_nothing();
                return Ok(None);
            }
            Err(why) => {
                self.refuse();
                return Err(why);
            }
        };
        if record.piece() != Piece::Whole {
            self.refuse();
            let alleged = record.piece().kind();
            return Err(Violation::Kind { position: record.position(), alleged });
        }
        Ok(Some(record))
    }

    #[inline]
    fn find_nothing(&mut self) {
        self.looks += 1;
        if self.looks >= LOOKS_PER_LIFE_CHECK {
            self.looks = 0;
            let _noticed = self.receiver.shared.is_peer_gone();
        }
    }

    /// Moves what follows the first `at` bytes of the message that was looked at into `into`
    /// (replacing what was there), and gives its room back. False: nothing was looked at, or it is
    /// shorter.
    #[inline]
    pub fn take(&mut self, at: usize, into: &mut Vec<u8>) -> bool {
        let Some(record) = self.looked.take() else { return false };
        into.clear();
        let inside = self.receiver.consumer.append_from(&record, at, into);
        // As in `next`: a failure to wake concerns nobody who keeps to the rules.
        let _woken = self.receiver.release(record);
        inside
    }

    /// Whether something stands next in the ring, be it good or bad.
    #[inline]
    #[must_use]
    pub fn has_something(&self) -> bool {
        self.looked.is_some() || self.receiver.consumer.has_something()
    }

    /// Says to the peer that this end is going to sleep, and fences: who looks at ring and words
    /// after this and finds nothing will be woken. `blind`: it may miss that all the same, so sleep
    /// for a moment only.
    pub fn listen(&mut self, how: Sleep) -> Prepared {
        self.receiver.publish_here();
        let prepared = self.receiver.consumer.listen(how);
        let _woken = self.receiver.shared.wake_sender(prepared.wake);
        prepared
    }

    /// Takes back what [`Duplex::listen`] has said.
    pub fn stop_listening(&mut self) {
        self.receiver.cancel_wait();
    }

    /// Takes it off the peer that it sleeps, and says how to wake it. Fence before.
    #[inline]
    #[must_use = "a sleeper has to be woken"]
    pub fn take_sleeper(&self) -> Wake {
        let shared = &self.receiver.shared;
        let word = shared.peers_sleeping();
        if shared.region().load_u64(word, Relaxed) == 0 {
            return Wake::Nobody;
        }
        Wake::of(shared.region().swap_u64(word, 0, AcqRel))
    }

    /// Wakes the peer as it wants to be woken.
    ///
    /// # Errors
    /// [`SendError::Doorbell`].
    pub fn wake(&self, wake: Wake) -> Result<(), SendError> {
        self.receiver.shared.wake_receiver(wake).map_err(SendError::Doorbell)
    }

    /// Whether either end is closed, or the peer is known to be dead. After this, the ring and the
    /// words show all that the peer did before.
    #[inline]
    #[must_use]
    pub fn is_closed(&self) -> bool {
        !self.receiver.shared.is_sound()
    }

    /// As [`Duplex::is_closed`], and asks the kernel whether the peer lives.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.receiver.shared.is_closed_here() || self.receiver.shared.is_peer_gone()
    }

    /// Closes the channel because the peer has broken a rule.
    pub fn refuse(&mut self) {
        self.receiver.shared.close(layout::END_REFUSED);
    }

    /// Where the peer alleges to run.
    #[must_use]
    pub fn whereabouts(&self) -> Whereabouts {
        // Who only receives, or changes words, says so as a receiver.
        let as_sender = self.receiver.consumer.peer_processor();
        let peer = as_sender.or_else(|| self.sender.producer.peer_processor());
        match self.receiver.shared.kind().place(peer, sys::processor::current) {
            Where::Unknown => Whereabouts::Unknown,
            Where::Together => Whereabouts::Here,
            Where::Apart => Whereabouts::Elsewhere,
        }
    }

    /// An adaptive spin for this channel, by what its maker has measured.
    #[must_use]
    pub fn spin(&self) -> ring::Spin {
        ring::Spin::new(self.region().load_u64(layout::OFFSET_SPIN_NS, Relaxed))
    }
}
