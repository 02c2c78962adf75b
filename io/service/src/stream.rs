//! Streams: records that a service publishes, and what each reader has had of them.
//!
//! All readers share one history. A reader is a place in it, so one that does not read holds
//! nothing.

use crate::id::SessionId;
use crate::wake::Wake;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use wire::service::MAX_RECORD_BYTES;

/// Records that a stream keeps unless it says otherwise: at a hundred each second, a pause of two
/// seconds loses nothing.
pub const HISTORY_RECORDS: usize = 256;
/// Bytes that they have together at the most: 16 records of the longest.
pub const HISTORY_BYTES: usize = 1024 * 1024;
/// A capsule of a stream: the epoch of its numbers, and the number of the last record.
const CAPSULE_BYTES: usize = 16;

/// One open file.
struct Reader {
    /// Place of its next record among all that were published here.
    place: u64,
    /// It has had records up to this number from an earlier server.
    after: u64,
    dropped: u64,
}

/// How a stream keeps and numbers its records.
#[derive(Debug, Clone, Copy)]
pub struct StreamOptions {
    /// The last records, which are kept for readers that are behind; at least one.
    pub history: usize,
    /// Their bytes at the most; at least [`MAX_RECORD_BYTES`].
    pub history_bytes: usize,
    /// Whether a new reader begins with the oldest of them, not with the next record.
    pub replay: bool,
    /// Whether the service gives each record its number ([`Stream::publish_numbered`]), by which
    /// readers go on at the next server.
    pub numbered: bool,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { history: HISTORY_RECORDS, history_bytes: HISTORY_BYTES, replay: false, numbered: false }
    }
}

struct History {
    options: StreamOptions,
    records: VecDeque<(u64, Arc<[u8]>)>,
    bytes: usize,
    first_place: u64,
    last_number: u64,
    readers: HashMap<SessionId, Reader>,
    published: u64,
    dropped: u64,
    /// The thread that serves the readers; none while nobody does.
    serving: Option<ThreadId>,
}

struct Shared {
    history: Mutex<History>,
    changed: Condvar,
    wake: Arc<Wake>,
    /// The epoch of a capsule's numbering: another process's means nothing here, unless the service
    /// numbers records itself.
    epoch: u64,
}

/// A file of records. Clones publish to the same file, from any thread.
#[derive(Clone)]
pub struct Stream(Arc<Shared>);

impl Stream {
    pub(crate) fn new(options: StreamOptions, wake: Arc<Wake>) -> Self {
        let epoch = if options.numbered { 0 } else { RandomState::new().hash_one(0_u8) | 1 };
        let options = StreamOptions {
            history: options.history.max(1),
            history_bytes: options.history_bytes.max(MAX_RECORD_BYTES),
            ..options
        };
        let history = History {
            options,
            records: VecDeque::new(),
            bytes: 0,
            first_place: 0,
            last_number: 0,
            readers: HashMap::new(),
            published: 0,
            dropped: 0,
            serving: None,
        };
        Self(Arc::new(Shared { history: Mutex::new(history), changed: Condvar::new(), wake, epoch }))
    }

    /// Gives a record to all readers, now or as soon as they take it. Waits for nobody: a reader
    /// that has fallen out of the history loses the oldest records, which are counted.
    ///
    /// # Errors
    /// `EMSGSIZE` beyond [`MAX_RECORD_BYTES`]; `EINVAL` in a stream that is numbered.
    pub fn publish(&self, record: impl AsRef<[u8]>) -> Result<(), Errno> {
        self.put(record.as_ref(), None, None)
    }

    /// The same for a stream that is numbered: the record's own number, which grows.
    ///
    /// # Errors
    /// As [`Stream::publish`]; `EINVAL` for a number that does not grow, and in a stream that is
    /// not numbered.
    pub fn publish_numbered(&self, number: u64, record: impl AsRef<[u8]>) -> Result<(), Errno> {
        self.put(record.as_ref(), Some(number), None)
    }

    /// Publishes when no reader loses a record by it; waits until then, at most for `patience`.
    ///
    /// # Errors
    /// As [`Stream::publish`]; `ETIMEDOUT`, and nothing is published; `EAGAIN` where the thread
    /// that serves would have to wait for itself.
    pub fn publish_when_read(&self, record: impl AsRef<[u8]>, patience: Duration) -> Result<(), Errno> {
        self.put(record.as_ref(), None, Some(patience))
    }

    fn put(&self, record: &[u8], number: Option<u64>, patience: Option<Duration>) -> Result<(), Errno> {
        if record.len() > MAX_RECORD_BYTES {
            return Err(Errno::MSGSIZE);
        }
        let mut history = self.lock();
        if history.options.numbered != number.is_some() {
            return Err(Errno::INVAL);
        }
        if let Some(patience) = patience {
            history = self.wait_for_readers(history, record.len(), patience)?;
        }
        let following = number.unwrap_or(history.last_number + 1);
        if following <= history.last_number || i64::try_from(following).is_err() {
            return Err(Errno::INVAL);
        }
        history.push(following, record.into());
        drop(history);
        self.0.wake.leave(|inbox| inbox.published = true);
        Ok(())
    }

    fn wait_for_readers<'h>(
        &'h self,
        mut history: MutexGuard<'h, History>,
        length: usize,
        patience: Duration,
    ) -> Result<MutexGuard<'h, History>, Errno> {
        let deadline = Instant::now() + patience;
        while history.is_full_for(length) && history.somebody_lacks_the_first() {
            if history.serving == Some(std::thread::current().id()) {
                return Err(Errno::AGAIN);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Errno::TIMEDOUT);
            }
            let waited = self.0.changed.wait_timeout(history, left);
            history = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(history)
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.0.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn serve(&self) {
        self.lock().serving = Some(std::thread::current().id());
    }

    /// A reader comes, perhaps with the capsule of the last record that it had, which is whatever
    /// it says.
    pub(crate) fn open(&self, reader: SessionId, capsule: &[u8]) -> Result<(), Errno> {
        let mut history = self.lock();
        let newest = history.first_place + history.records.len() as u64;
        let (mut place, mut after) = (if history.options.replay { history.first_place } else { newest }, 0);
        if !capsule.is_empty() {
            let capsule: &[u8; CAPSULE_BYTES] = capsule.try_into().map_err(|_| Errno::INVAL)?;
            let (epoch, number) = capsule.split_at(CAPSULE_BYTES / 2);
            let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
            place = history.first_place;
            after = if word(epoch) == self.0.epoch { word(number) } else { 0 };
        }
        let missed = match history.records.front() {
            Some((first, _)) if after > 0 && !history.options.numbered => first.saturating_sub(after + 1),
            _ => 0,
        };
        history.dropped += missed;
        history.readers.insert(reader, Reader { place, after, dropped: missed });
        Ok(())
    }

    pub(crate) fn close(&self, reader: SessionId) {
        self.lock().readers.remove(&reader);
        self.0.changed.notify_all();
    }

    /// Sends the reader what it lacks, by `send` (the record and the capsule after it), until that
    /// says no.
    pub(crate) fn pump(&self, id: SessionId, mut send: impl FnMut(&[u8], &[u8]) -> bool) {
        loop {
            // The lock ends with this statement: sending takes time, and publishers do not wait for
            // it.
            let next = self.lock().next_of(id);
            let Some((place, number, record)) = next else { return };
            let mut capsule = [0; CAPSULE_BYTES];
            capsule[..CAPSULE_BYTES / 2].copy_from_slice(&self.0.epoch.to_le_bytes());
            capsule[CAPSULE_BYTES / 2..].copy_from_slice(&number.to_le_bytes());
            if !send(&record, &capsule) {
                return;
            }
            if let Some(reader) = self.lock().readers.get_mut(&id) {
                reader.place = place + 1;
            }
            self.0.changed.notify_all();
        }
    }

    pub(crate) fn state(&self) -> Value {
        let history = self.lock();
        json!({ "published": history.published, "dropped": history.dropped, "readers": history.readers.len() })
    }

    pub(crate) fn dropped_by(&self, reader: SessionId) -> u64 {
        self.lock().readers.get(&reader).map_or(0, |reader| reader.dropped)
    }
}

impl History {
    fn is_full_for(&self, length: usize) -> bool {
        let full =
            self.records.len() >= self.options.history || self.bytes + length > self.options.history_bytes;
        full && !self.records.is_empty()
    }

    fn somebody_lacks_the_first(&self) -> bool {
        self.readers.values().any(|reader| reader.place <= self.first_place)
    }

    fn push(&mut self, number: u64, record: Arc<[u8]>) {
        while self.is_full_for(record.len()) {
            if let Some((_, oldest)) = self.records.pop_front() {
                self.bytes -= oldest.len();
                self.first_place += 1;
            }
        }
        self.bytes += record.len();
        self.records.push_back((number, record));
        self.last_number = number;
        self.published += 1;
    }

    /// The reader's next record: its place, its number, its bytes.
    fn next_of(&mut self, id: SessionId) -> Option<(u64, u64, Arc<[u8]>)> {
        let reader = self.readers.get_mut(&id)?;
        let lost = self.first_place.saturating_sub(reader.place);
        reader.dropped += lost;
        self.dropped += lost;
        reader.place += lost;
        loop {
            let at = usize::try_from(reader.place - self.first_place).ok()?;
            let (number, record) = self.records.get(at)?;
            if *number > reader.after {
                return Some((reader.place, *number, Arc::clone(record)));
            }
            reader.place += 1;
        }
    }
}
