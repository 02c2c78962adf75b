//! One channel: who publishes, who has read how far, who loses what.

mod publishers;
mod subscribers;

pub use publishers::{Publisher, PublisherRefused};
pub use subscribers::{
    Delivery, Overflow, Position, Replay, Subscriber, SubscriptionId, SubscriptionRefused,
};

use crate::filter::{Fields, Filter};
use crate::log::{Cursor, EventHead, Kept, Log, LogError};
use crate::store::Store;
use publishers::Publishers;
use wire::events::FILTERS_MAX;

/// Subscriptions of one channel: a publication looks at each.
pub const SUBSCRIBERS_MAX: usize = 1024;
/// Subscribers that are gone for a moment, whose events are kept: one domain's frontend has this
/// many open at the most.
pub const HOLDS_MAX: usize = 128;
/// How long the events of a subscriber that publishers wait for are kept when its frontend, or this
/// service, has died, in ns: a successor is there in a fraction of it.
pub const HOLD_NS: u64 = 10_000_000_000;

/// The bounds of a channel: the events that it lets through and keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of the longest event.
    pub event_bytes: usize,
    /// Events that who comes late may have.
    pub history: u64,
    /// How long one publication may be made to wait for a subscriber, in ms. 0: none waits.
    pub wait_ms: u64,
}

/// The outcome of a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// It is in the channel, behind this cursor.
    At(Cursor),
    /// A subscriber that publishers wait for has not read what is in its place.
    Waits,
}

/// A filter that somebody has installed.
#[derive(Debug)]
struct Installed {
    filter: Filter,
    users: usize,
    /// The first event that it was evaluated for when that was published.
    since: u64,
}

/// Events that are kept for somebody who is gone for a moment.
#[derive(Debug, Clone, Copy)]
struct Hold {
    from: Cursor,
    until_ns: u64,
    /// How many are to come back.
    awaited: u64,
}

/// The counters of a channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events, since this process began.
    pub published: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Events that filters could not read: they are no JSON objects.
    pub unreadable: u64,
    /// Publications that had to wait.
    pub waited: u64,
    /// Records that were written a second time after a death, and not published again.
    pub doubles: u64,
}

/// A channel. `K` is what its owner knows a session by.
#[derive(Debug)]
pub struct Channel<S, K> {
    log: Log<S>,
    kept: Kept,
    filters: Vec<Option<Installed>>,
    subscribers: Vec<Option<Subscriber<K>>>,
    publishers: Publishers<K>,
    holds: Vec<Hold>,
    counters: Counters,
    scratch: Vec<u8>,
}

impl<S: Store, K: Copy + Eq> Channel<S, K> {
    /// An empty channel in all of `store`. `owner` is a number of the domain that made it.
    ///
    /// # Errors
    /// [`LogError::Damaged`], where the store is too small.
    pub fn new(store: S, serial: u32, name: &[u8], owner: u64, shape: Shape) -> Result<Self, LogError> {
        let kept = Kept {
            serial,
            name: name.to_vec(),
            owner,
            event_bytes: shape.event_bytes,
            history: shape.history,
            wait_ms: shape.wait_ms,
        };
        Ok(Self::with(Log::new(store, &kept)?, kept))
    }

    /// The channel that a predecessor has left in `store`. Events of subscribers that publishers
    /// waited for are kept for a while.
    ///
    /// # Errors
    /// [`LogError`], where there is none that can be taken up.
    pub fn take_up(store: S, now_ns: u64) -> Result<Self, LogError> {
        let (log, kept) = Log::take_up(store)?;
        let mut channel = Self::with(log, kept);
        channel.publishers.take_up(&channel.log, now_ns);
        let awaited = channel.log.holders();
        if awaited > 0 {
            let (from, until_ns) = (channel.log.oldest(), now_ns.saturating_add(HOLD_NS));
            channel.holds.push(Hold { from, until_ns, awaited });
        }
        Ok(channel)
    }

    fn with(log: Log<S>, kept: Kept) -> Self {
        Self {
            log,
            kept,
            filters: Vec::new(),
            subscribers: Vec::new(),
            publishers: Publishers::default(),
            holds: Vec::new(),
            counters: Counters::default(),
            scratch: Vec::new(),
        }
    }

    /// Its number.
    pub fn serial(&self) -> u32 {
        self.kept.serial
    }

    /// Its name.
    pub fn name(&self) -> &[u8] {
        &self.kept.name
    }

    /// The number of the domain that made it.
    pub fn owner(&self) -> u64 {
        self.kept.owner
    }

    /// Returns its bounds.
    pub fn shape(&self) -> Shape {
        Shape { event_bytes: self.kept.event_bytes, history: self.kept.history, wait_ms: self.kept.wait_ms }
    }

    /// Changes what it lets through and keeps, from the next event and the next subscriber on.
    pub fn reshape(&mut self, shape: Shape) {
        (self.kept.event_bytes, self.kept.history, self.kept.wait_ms) =
            (shape.event_bytes, shape.history, shape.wait_ms);
        self.log.keep(&self.kept);
    }

    /// The longest event that two of fit into the buffer.
    pub fn longest_event(&self) -> usize {
        (self.log.buffer() / 2) as usize - wire::events::region::EVENT_HEADER_BYTES - 8
    }

    /// Bytes of the buffer, and how many of them hold events.
    pub fn buffer(&self) -> (u64, u64) {
        (self.log.buffer(), self.log.used())
    }

    /// The sequence numbers of the oldest event and of the next one.
    pub fn sequences(&self) -> (u64, u64) {
        (self.log.oldest().sequence, self.log.end().sequence)
    }

    /// Returns its counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The filters that are installed: text, cost, since when, for how many.
    pub fn filters(&self) -> impl Iterator<Item = (&str, usize, u64, usize)> {
        self.filters.iter().flatten().map(|it| (it.filter.text(), it.filter.cost(), it.since, it.users))
    }

    /// Appends the newest event.
    pub fn newest(&mut self, into: &mut Vec<u8>) -> Option<EventHead> {
        let (mut cursor, mut newest) = (self.log.oldest(), None);
        while let Some((head, next)) = self.log.at(cursor) {
            newest = Some((head, cursor));
            cursor = next;
        }
        let (head, cursor) = newest?;
        self.log.bytes(cursor, into);
        Some(head)
    }

    /// Publishes an event of a publisher, whose length is within [`Shape::event_bytes`].
    pub fn publish(&mut self, publisher: Publisher, wall_ns: u64, bytes: &[u8]) -> Published {
        let until = self.log.makes_room(bytes.len());
        if until != self.log.oldest() {
            if self.blockers(until) {
                return Published::Waits;
            }
            self.lose(until);
        }
        let passed = self.passed(bytes);
        let (number, sequence) = self.publishers.count(publisher, &mut self.log);
        let head = EventHead {
            sequence: 0,
            publisher: number,
            publisher_sequence: sequence,
            published_ns: wall_ns,
            passed,
            length: bytes.len(),
        };
        let at = self.log.end();
        self.log.append(&head, bytes);
        self.publishers.counted(publisher, &mut self.log);
        self.counters.published += 1;
        self.counters.bytes += bytes.len() as u64;
        Published::At(at)
    }

    /// Notes that a publication waits.
    pub fn note_waiting(&mut self) {
        self.counters.waited += 1;
    }

    /// A publication of so many bytes has waited long enough: those it waited for lose events from
    /// now on, until they read again.
    pub fn overrun(&mut self, length: usize) {
        let until = self.log.makes_room(length);
        self.holds.retain(|hold| hold.from.offset >= until.offset);
        for subscriber in self.subscribers.iter_mut().flatten() {
            if subscriber.holds_before(until) {
                subscriber.overrun = true;
            }
        }
    }

    /// Lets go of what was kept for those who did not come back. Whether anything was.
    pub fn expire_holds(&mut self, now_ns: u64) -> bool {
        let before = self.holds.len();
        self.holds.retain(|hold| hold.until_ns > now_ns);
        self.holds.len() < before
    }

    /// When the next of what is kept for those who are gone expires.
    pub fn next_hold_ns(&self) -> Option<u64> {
        self.holds.iter().map(|hold| hold.until_ns).min()
    }

    fn blockers(&self, until: Cursor) -> bool {
        self.holds.iter().any(|hold| hold.from.offset < until.offset)
            || self.subscribers.iter().flatten().any(|subscriber| subscriber.holds_before(until))
    }

    /// Lets go of the oldest events; whoever has not read them has lost them.
    fn lose(&mut self, until: Cursor) {
        for at in 0..self.subscribers.len() {
            self.lose_for(SubscriptionId(at), until);
        }
        self.log.let_go(until);
    }

    /// Returns the filters that an event passes; its bytes are read once for all of them.
    fn passed(&mut self, bytes: &[u8]) -> u64 {
        if self.filters.is_empty() {
            return 0;
        }
        let installed: Vec<&Filter> = self.filters.iter().flatten().map(|it| &it.filter).collect();
        let fields = Fields::read(bytes, &installed);
        self.counters.unreadable += u64::from(!fields.is_object());
        let bit = |(at, it): (usize, &Option<Installed>)| {
            let passes = it.as_ref().is_some_and(|it| it.filter.passes(&fields));
            u64::from(passes) << at
        };
        self.filters.iter().enumerate().map(bit).fold(0, |all, bit| all | bit)
    }

    /// Installs a filter for one more subscriber; those of one text are one.
    fn install(&mut self, filter: Filter) -> Option<usize> {
        let same = |it: &Option<Installed>| it.as_ref().is_some_and(|it| it.filter.text() == filter.text());
        if let Some(at) = self.filters.iter().position(same) {
            if let Some(Some(installed)) = self.filters.get_mut(at) {
                installed.users += 1;
            }
            return Some(at);
        }
        let since = self.log.end().sequence;
        let installed = Some(Installed { filter, users: 1, since });
        let free = self.filters.iter().position(Option::is_none);
        match free {
            Some(at) => *self.filters.get_mut(at)? = installed,
            None if self.filters.len() < FILTERS_MAX => self.filters.push(installed),
            None => return None,
        }
        Some(free.unwrap_or(self.filters.len() - 1))
    }

    fn uninstall(&mut self, at: Option<usize>) {
        let Some(place) = at.and_then(|at| self.filters.get_mut(at)) else { return };
        if let Some(installed) = place {
            installed.users -= 1;
            if installed.users == 0 {
                *place = None;
            }
        }
        while self.filters.last().is_some_and(Option::is_none) {
            self.filters.pop();
        }
    }

    /// Whether an event passes the filter of this place. Those that were published before it was
    /// installed are read now.
    fn passes(&mut self, filter: Option<usize>, head: &EventHead, cursor: Cursor) -> bool {
        let Some(at) = filter else { return true };
        let Some(Some(installed)) = self.filters.get(at) else { return true };
        if head.sequence >= installed.since {
            return head.passed >> at & 1 != 0;
        }
        self.scratch.clear();
        self.log.bytes(cursor, &mut self.scratch);
        installed.filter.passes_bytes(&self.scratch)
    }

    /// Appends the bytes of the event behind a cursor that a [`Delivery`] or [`Published::At`]
    /// named.
    pub fn bytes(&self, cursor: Cursor, into: &mut Vec<u8>) {
        self.log.bytes(cursor, into);
    }
}

#[cfg(test)]
mod tests;
