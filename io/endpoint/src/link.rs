//! The channel of one pair, as the state machine of the calls wants it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, fence};
use std::sync::{Mutex, PoisonError};

use channel::{Duplex, SendError, Sleep, Spin, Wake};
use ipc::{Broken, Link, Way, Word};
use wire::ipc as layout;
use wire::ipc::{Address, HEADER_BYTES, HEADER_WORDS, Header, Kind};

/// The state that all pairs of an endpoint have in common.
#[derive(Debug, Default)]
pub(crate) struct Common {
    /// The present listener is going to sleep on futexes.
    nap: AtomicBool,
    /// Some peer may miss that we sleep.
    blind: AtomicBool,
    /// Counts the times that this was settled.
    round: AtomicU64,
    troubled: AtomicBool,
    /// The kernel's last refusal, until it can be reported.
    trouble: Mutex<Option<SendError>>,
}

impl Common {
    /// Says how the endpoint is going to sleep.
    pub fn set_nap(&self, nap: bool) {
        self.nap.store(nap, Relaxed);
        self.blind.store(false, Relaxed);
        self.round.fetch_add(1, Relaxed);
    }

    pub fn is_blind(&self) -> bool {
        self.blind.load(Relaxed)
    }

    fn note(&self, trouble: SendError) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(trouble);
        self.troubled.store(true, Relaxed);
    }

    /// Takes the kernel's refusal since the last call, if there was one.
    pub fn take_trouble(&self) -> Option<SendError> {
        if !self.troubled.swap(false, Relaxed) {
            return None;
        }
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// An opened end of a pair's channel.
#[derive(Debug)]
pub(crate) struct Pair {
    end: Duplex,
    /// Where the words of each direction stand in the region.
    out: usize,
    inward: usize,
    ring_bytes: u32,
    common: Arc<Common>,
    /// How the peer wanted to be woken whose sleep we have just ended.
    wake: Cell<Wake>,
    fault: Option<Broken>,
    /// In which round the peer was told of our futex last.
    told: u64,
    /// Whether to look again before a sleep has paid, with this peer.
    pub spin: Spin,
}

impl Pair {
    pub fn new(mut end: Duplex, batch_bytes: usize, common: Arc<Common>) -> Pair {
        end.set_batch_bytes(batch_bytes);
        let words = |side: usize| layout::OFFSET_WORDS + side * layout::WORDS_STRIDE;
        let (out, inward) = (words(end.side()), words(1 - end.side()));
        let ring_bytes = end.ring_bytes();
        let spin = end.spin();
        Pair {
            end,
            out,
            inward,
            ring_bytes,
            common,
            wake: Cell::new(Wake::Nobody),
            fault: None,
            told: 0,
            spin,
        }
    }

    pub fn end(&self) -> &Duplex {
        &self.end
    }

    pub fn end_mut(&mut self) -> &mut Duplex {
        &mut self.end
    }

    /// Whether the peer has been told, for this sleep, that a futex wakes us.
    pub fn hears_futex(&self) -> bool {
        self.told == self.common.round.load(Relaxed)
    }

    /// Shows the peer what was held back.
    pub fn flush(&mut self) {
        let flushed = self.end.flush();
        self.heed(flushed);
    }

    #[inline]
    fn at(&self, way: Way, word: Word) -> usize {
        (if way == Way::Out { self.out } else { self.inward }) + word.offset()
    }

    /// A wake-up that failed concerns whoever makes the call; that the channel is closed, the state
    /// machine sees by itself.
    #[inline]
    fn heed(&self, done: Result<(), SendError>) {
        match done {
            Ok(()) | Err(SendError::Closed | SendError::Forked) => {}
            Err(why) => self.common.note(why),
        }
    }
}

impl Link for Pair {
    #[inline]
    fn ring_bytes(&self) -> u32 {
        self.ring_bytes
    }

    #[inline]
    fn load(&self, way: Way, word: Word) -> u64 {
        self.end.region().load_u64(self.at(way, word), Acquire)
    }

    #[inline]
    fn store(&self, way: Way, word: Word, value: u64) {
        self.end.region().store_u64(self.at(way, word), value, Release);
    }

    fn replace(&self, way: Way, word: Word, old: u64, new: u64) -> u64 {
        self.end.region().replace_u64(self.at(way, word), old, new, AcqRel)
    }

    fn set_bits(&self, way: Way, word: Word, bits: u64) {
        self.end.region().or_u64(self.at(way, word), bits, AcqRel);
    }

    fn take_bits(&self, way: Way, word: Word) -> u64 {
        self.end.region().swap_u64(self.at(way, word), 0, AcqRel)
    }

    #[inline]
    fn fence(&self) {
        fence(SeqCst);
    }

    #[inline]
    fn commit(&mut self, header: &Header, payload: &[u8]) -> bool {
        let sent = match self.end.send(header.to_words(), payload) {
            Ok(sent) => sent,
            Err(SendError::Corrupt(_)) => {
                self.fault = Some(Broken::Channel);
                false
            }
            Err(why @ SendError::Doorbell(_)) => {
                self.common.note(why);
                true
            }
            // Closed: the state machine looks at that next.
            Err(_) => false,
        };
        if header.kind != Kind::Message && self.end.is_holding() {
            self.flush();
        }
        sent
    }

    #[inline]
    fn take_message(&mut self, source: Address, most: usize, into: &mut Vec<u8>) -> Option<u32> {
        self.end.take_at_once(into, |header: [u64; HEADER_WORDS], length| {
            if length > most { None } else { Header::tag_of_message(header, source, length) }
        })
    }

    #[inline]
    fn look(&mut self) -> Result<Option<Header>, Broken> {
        match self.end.look::<HEADER_BYTES>() {
            Ok(None) => Ok(None),
            Ok(Some((header, length))) => Ok(Some(Header::read(header, length)?)),
            Err(_) => Err(Broken::Channel),
        }
    }

    #[inline]
    fn take(&mut self, into: &mut Vec<u8>) {
        // What was looked at has a header, or the peer has been cut off.
        let _taken = self.end.take(HEADER_BYTES, into);
    }

    fn unconsumed(&mut self) -> Vec<Vec<u8>> {
        self.end.unconsumed()
    }

    fn listen(&mut self) {
        let naps = self.common.nap.load(Relaxed);
        let how = if naps { Sleep::OnFutex } else { Sleep::OnDoorbell };
        self.told = if naps { self.common.round.load(Relaxed) } else { 0 };
        if self.end.listen(how).blind {
            self.common.blind.store(true, Relaxed);
        }
    }

    fn stop_listening(&mut self) {
        self.end.stop_listening();
    }

    #[inline]
    fn take_listener(&self) -> bool {
        let wake = self.end.take_sleeper();
        self.wake.set(wake);
        wake.is_needed()
    }

    fn ring(&self) {
        let rung = self.end.wake(self.wake.replace(Wake::Nobody));
        self.heed(rung);
    }

    #[inline]
    fn is_closed(&self) -> bool {
        self.end.is_closed()
    }

    fn close(&mut self) {
        self.end.refuse();
    }

    fn fault(&self) -> Option<Broken> {
        self.fault
    }
}
