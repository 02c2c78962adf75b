//! One channel: who publishes, who has read how far, who loses what.

mod publishers;
mod subscribers;

pub use publishers::{Publisher, PublisherRefused};
pub use subscribers::{
    Delivery, Overflow, Position, Replay, Subscriber, SubscriptionId, SubscriptionRefused,
};

use crate::filter::{Fields, Filter, Format};
use crate::judge::{Judge, Replacement};
use crate::log::{Cursor, EventHead, Kept, Log, LogError};
use crate::store::Store;
use modules::Usage;
use publishers::Publishers;
use wire::events::FILTERS_MAX;
use wire::events::module::PER_CHANNEL_MAX;

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
    filter: Judge,
    users: usize,
    /// The first event that it was evaluated for when that was published.
    since: u64,
}

/// A filter of a channel, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstalledFilter<'c> {
    /// Its text, or the name of a module.
    pub text: &'c str,
    /// The cost of an event.
    pub cost: usize,
    /// The first event that it was evaluated for when that was published.
    pub since: u64,
    /// Subscriptions that have it.
    pub users: usize,
    /// The resources that it has used, if it is a module.
    pub usage: Option<Usage>,
}

/// Old events that modules are asked about in one round ([`Channel::begin_round`]), and the fuel
/// that ends a round: about a millisecond.
const ASKED_MAX: u64 = 64;
const ASKED_FUEL_MAX: u64 = 500_000;

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
    /// Events that filters could not read: they are not of the channel's format.
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
    format: Format,
    filters: Vec<Option<Installed>>,
    subscribers: Vec<Option<Subscriber<K>>>,
    publishers: Publishers<K>,
    holds: Vec<Hold>,
    counters: Counters,
    scratch: Vec<u8>,
    /// Old events that modules were asked about in this round, and their fuel.
    asked: u64,
    asked_fuel: u64,
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
            format: Format::Json.to_string(),
        };
        Ok(Self::with(Log::new(store, &kept)?, kept, Format::Json))
    }

    /// The channel that a predecessor has left in `store`. Events of subscribers that publishers
    /// waited for are kept for a while.
    ///
    /// # Errors
    /// [`LogError`], where there is none that can be taken up.
    pub fn take_up(store: S, now_ns: u64) -> Result<Self, LogError> {
        let (log, kept) = Log::take_up(store)?;
        let format = Format::parse(&kept.format).map_err(|_| LogError::Damaged("format"))?;
        let mut channel = Self::with(log, kept, format);
        channel.publishers.take_up(&channel.log, now_ns);
        let awaited = channel.log.holders();
        if awaited > 0 {
            let (from, until_ns) = (channel.log.oldest(), now_ns.saturating_add(HOLD_NS));
            channel.holds.push(Hold { from, until_ns, awaited });
        }
        Ok(channel)
    }

    fn with(log: Log<S>, kept: Kept, format: Format) -> Self {
        Self {
            log,
            kept,
            format,
            filters: Vec::new(),
            subscribers: Vec::new(),
            publishers: Publishers::default(),
            holds: Vec::new(),
            counters: Counters::default(),
            scratch: Vec::new(),
            asked: 0,
            asked_fuel: 0,
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

    /// The filters that are installed.
    pub fn filters(&self) -> impl Iterator<Item = InstalledFilter<'_>> {
        self.filters.iter().flatten().map(|it| InstalledFilter {
            text: it.filter.text(),
            cost: it.filter.cost(),
            since: it.since,
            users: it.users,
            usage: it.filter.usage(),
        })
    }

    /// The subscriptions whose module has failed, and why. They are to end.
    pub fn failed(&self) -> Vec<(SubscriptionId, String)> {
        if !self.filters.iter().flatten().any(|it| it.filter.failure().is_some()) {
            return Vec::new();
        }
        let reason = |at: usize| Some(self.filters.get(at)?.as_ref()?.filter.failure()?.to_string());
        let ids = (0..self.subscribers.len()).map(SubscriptionId);
        ids.filter_map(|id| Some((id, reason(self.filter_of(id)?)?))).collect()
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

    /// Whether an event of these bytes passes a filter, which need not be installed.
    pub fn lets_through(&self, filter: &Filter, event: &[u8]) -> bool {
        filter.passes_event(&self.format, event)
    }

    /// How its events are read for filters.
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// Has events read otherwise, from the next one on.
    pub fn set_format(&mut self, format: Format) {
        self.kept.format = format.to_string();
        self.format = format;
        self.log.keep(&self.kept);
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
        let sequence = self.log.end().sequence;
        let mut passed = self.passed_expressions(bytes);
        for (at, it) in self.filters.iter_mut().enumerate() {
            if let Some(it) = it
                && it.filter.is_module()
            {
                passed |= u64::from(it.filter.passes(&self.format, sequence, bytes)) << at;
            }
        }
        passed
    }

    fn passed_expressions(&mut self, bytes: &[u8]) -> u64 {
        let expressions: Vec<&Filter> =
            self.filters.iter().flatten().filter_map(|it| it.filter.expression()).collect();
        if expressions.is_empty() {
            return 0;
        }
        let fields = Fields::read(&self.format, bytes, &expressions);
        self.counters.unreadable += u64::from(!fields.is_readable());
        let bit = |(at, it): (usize, &Option<Installed>)| {
            let expression = it.as_ref().and_then(|it| it.filter.expression());
            u64::from(expression.is_some_and(|it| it.passes(&fields))) << at
        };
        self.filters.iter().enumerate().map(bit).fold(0, |all, bit| all | bit)
    }

    /// The place of a filter of this text, which one more subscriber has.
    fn share(&mut self, text: &str) -> Option<usize> {
        let same = |it: &Option<Installed>| it.as_ref().is_some_and(|it| it.filter.text() == text);
        let at = self.filters.iter().position(same)?;
        self.filters.get_mut(at)?.as_mut()?.users += 1;
        Some(at)
    }

    /// Installs a filter for one more subscriber; those of one text are one.
    fn install(&mut self, filter: Judge) -> Option<usize> {
        if let Some(at) = self.share(filter.text()) {
            return Some(at);
        }
        let modules = self.filters.iter().flatten().filter(|it| it.filter.is_module()).count();
        if filter.is_module() && modules >= PER_CHANNEL_MAX {
            return None;
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
        let Some(Some(installed)) = self.filters.get_mut(at) else { return true };
        if head.sequence >= installed.since {
            return head.passed >> at & 1 != 0;
        }
        self.scratch.clear();
        self.log.bytes(cursor, &mut self.scratch);
        let before = installed.filter.fuel();
        let passes = installed.filter.passes(&self.format, head.sequence, &self.scratch);
        let used = installed.filter.fuel() - before;
        self.note_asked(used);
        passes
    }

    /// Begins a round of deliveries: in each, modules are asked about a few old events at the most.
    pub fn begin_round(&mut self) {
        (self.asked, self.asked_fuel) = (0, 0);
    }

    fn note_asked(&mut self, fuel: u64) {
        self.asked += 1;
        self.asked_fuel = self.asked_fuel.saturating_add(fuel);
    }

    fn may_ask(&self) -> bool {
        self.asked < ASKED_MAX && self.asked_fuel < ASKED_FUEL_MAX
    }

    /// Whether a module has yet to be asked about an event.
    fn unjudged(&self, filter: Option<usize>, head: &EventHead) -> bool {
        let installed = filter.and_then(|at| self.filters.get(at)?.as_ref());
        installed.is_some_and(|it| it.filter.is_module() && head.sequence < it.since)
    }

    /// Puts what a subscription gets in the place of the event of a delivery into `event`, which
    /// has the event's bytes.
    pub fn replace(&mut self, id: SubscriptionId, delivery: &Delivery, event: &mut Vec<u8>) -> Replacement {
        let (filter, may_ask) = (self.filter_of(id), self.may_ask());
        let installed = filter.and_then(|at| self.filters.get_mut(at)?.as_mut());
        let Some(installed) = installed else { return Replacement::There };
        let before = installed.filter.fuel();
        let replacement = installed.filter.replace(delivery.head.sequence, event, may_ask);
        let used = installed.filter.fuel() - before;
        if used > 0 {
            self.note_asked(used);
        }
        replacement
    }

    /// Whether the events of a subscription are other ones than those that were published.
    pub fn replaces(&self, id: SubscriptionId) -> bool {
        let installed = self.filter_of(id).and_then(|at| self.filters.get(at)?.as_ref());
        installed.is_some_and(|it| it.filter.transforms())
    }

    /// Appends the bytes of the event behind a cursor that a [`Delivery`] or [`Published::At`]
    /// named.
    pub fn bytes(&self, cursor: Cursor, into: &mut Vec<u8>) {
        self.log.bytes(cursor, into);
    }
}

#[cfg(test)]
mod tests;
