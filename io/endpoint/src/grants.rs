//! The grants that an endpoint has received and mapped.

use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Mutex, PoisonError};

use ipc::grants::Access;
use sys::eventfd::Eventfd;
use sys::region::Region;
use sys::view::View;
use wire::grants::State;
use wire::ipc::Address;

/// Grants that are kept mapped; the one that was not used for the longest time goes first, and
/// comes again when it is used.
const MAPPED_MAX: usize = 256;

/// Number of a grant: the owner sends it to the one it has granted a buffer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId(u64);

impl GrantId {
    /// The grant of this number.
    #[must_use]
    pub const fn new(number: u64) -> GrantId {
        GrantId(number)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for GrantId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A grant that this endpoint has mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Its number.
    pub grant: GrantId,
    /// The owner of the buffer.
    pub owner: Address,
    /// The permitted access.
    pub access: Access,
    /// Bytes of the buffer.
    pub bytes: u64,
}

/// The memories of a buffer that was granted to this endpoint.
#[derive(Debug)]
pub(crate) struct Memory {
    pub data: Data,
    pub states: View,
}

/// The data of a buffer, as far as this endpoint may touch it.
#[derive(Debug)]
pub(crate) enum Data {
    Read(View),
    Write(Region),
}

/// A grant that is mapped.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub granted: Granted,
    pub memory: Arc<Memory>,
    /// Number of the buffer that it stands for.
    pub buffer: u64,
    /// Where its state stands.
    pub place: usize,
    /// The connection to a daemon over which it came.
    pub life: u64,
    /// The daemon has told that it stands for another buffer now.
    pub news: bool,
    used: u64,
}

impl Entry {
    pub fn new(granted: Granted, memory: Arc<Memory>, (buffer, place): (u64, usize), life: u64) -> Entry {
        Entry { granted, memory, buffer, place, life, news: false, used: 0 }
    }

    /// Returns the state that its owner reports.
    #[inline]
    pub fn state(&self) -> State {
        State::of(self.memory.states.load_u64(self.place, Acquire))
    }
}

/// All grants that are mapped.
#[derive(Debug, Default)]
pub(crate) struct Borrowings {
    entries: Vec<Entry>,
    /// Where the one stands that was used last.
    latest: usize,
    uses: u64,
}

impl Borrowings {
    /// Where a grant stands.
    #[inline]
    pub fn find(&mut self, grant: GrantId) -> Option<&Entry> {
        if self.entries.get(self.latest).is_none_or(|entry| entry.granted.grant != grant) {
            self.latest = self.entries.iter().position(|entry| entry.granted.grant == grant)?;
        }
        self.uses += 1;
        let entry = self.entries.get_mut(self.latest)?;
        entry.used = self.uses;
        Some(entry)
    }

    /// How often any was looked for.
    #[inline]
    pub fn uses(&self) -> u64 {
        self.uses
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = Granted> {
        self.entries.iter().map(|entry| entry.granted)
    }

    /// The memories of a buffer that another grant stands for as well.
    pub fn memory_of(&self, buffer: u64, life: u64) -> Option<Arc<Memory>> {
        let entry = self.entries.iter().find(|entry| (entry.buffer, entry.life) == (buffer, life))?;
        Some(Arc::clone(&entry.memory))
    }

    /// Keeps a grant, in the place of what it stood for before.
    pub fn insert(&mut self, entry: Entry) {
        self.remove(entry.granted.grant);
        if self.entries.len() >= MAPPED_MAX {
            let oldest = self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.used);
            if let Some((oldest, _)) = oldest {
                self.entries.swap_remove(oldest);
            }
        }
        self.latest = self.entries.len();
        self.uses += 1;
        self.entries.push(Entry { used: self.uses, ..entry });
    }

    /// Unmaps a grant.
    pub fn remove(&mut self, grant: GrantId) {
        self.entries.retain(|entry| entry.granted.grant != grant);
    }

    /// The daemon says that a grant stands for another buffer now.
    pub fn moved(&mut self, grant: u64) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.granted.grant.0 == grant) {
            entry.news = true;
        }
    }

    /// The daemon is about to be asked about a grant: what it told before is known.
    pub fn ask_again(&mut self, grant: GrantId) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.granted.grant == grant) {
            entry.news = false;
        }
    }

    /// The daemon says that a grant is over.
    pub fn revoked(&mut self, grant: u64) {
        self.remove(GrantId(grant));
    }

    /// Unmaps all.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}

/// Numbers of buffers that were dropped, for the endpoint to free at the daemon. A buffer does not
/// know its endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Freed(Arc<Dropped>);

#[derive(Debug)]
struct Dropped {
    buffers: Mutex<Vec<(u64, u64)>>,
    event: Eventfd,
}

impl Freed {
    pub fn new() -> std::io::Result<Freed> {
        Ok(Freed(Arc::new(Dropped { buffers: Mutex::default(), event: Eventfd::new()? })))
    }

    /// How many have this list in hand: the endpoint, and each of its buffers.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Returns the event that becomes readable when there are some.
    pub fn event(&self) -> &Eventfd {
        &self.0.event
    }

    /// A buffer of this connection is not needed any more.
    pub fn push(&self, life: u64, buffer: u64) {
        self.0.buffers.lock().unwrap_or_else(PoisonError::into_inner).push((life, buffer));
        self.0.event.signal();
    }

    /// Those of this connection. Others are not known to the daemon.
    pub fn take(&self, life: u64) -> Vec<u64> {
        if !self.0.event.drain() {
            return Vec::new();
        }
        let mut buffers = self.0.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *buffers)
            .into_iter()
            .filter(|(of, _)| *of == life)
            .map(|(_, buffer)| buffer)
            .collect()
    }
}
