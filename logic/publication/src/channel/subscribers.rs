//! The subscribers of a channel: a cursor for each, and the treatment of slow ones.

use super::{Channel, HOLD_NS, HOLDS_MAX, Hold, SUBSCRIBERS_MAX};
use crate::judge::Judge;
use crate::log::{Cursor, EventHead};
use crate::store::Store;
use std::collections::VecDeque;
use thiserror::Error;

/// A subscription of a channel, by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SubscriptionId(pub(super) usize);

impl SubscriptionId {
    /// Its place: below [`Channel::subscription_places`].
    #[must_use]
    pub fn place(self) -> usize {
        self.0
    }
}

/// The treatment of a subscriber that is slower than the channel is long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// It loses the oldest events, which are counted.
    #[default]
    DropOldest,
    /// It gets the newest event only, whenever it asks.
    Latest,
    /// Publishers wait for it, each publication so many ms at the most; then it loses the oldest
    /// until it reads again.
    Wait(u64),
}

/// With which event a subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// With so many that are there, or as many as the channel's history has.
    Newest(u64),
    /// Where a predecessor of this service, or of the frontend, had come to.
    After(Position),
}

/// How far a subscriber has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The sequence number of the next event.
    pub next: u64,
    /// Events that it has had.
    pub delivered: u64,
    /// Events that it has lost.
    pub lost: u64,
}

/// Why a subscription can't be, or not so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SubscriptionRefused {
    /// [`SUBSCRIBERS_MAX`].
    #[error("a channel has {SUBSCRIBERS_MAX} subscriptions at the most")]
    Full,
    /// The channel makes no publisher wait, or not for so long.
    #[error("publishers of this channel wait {0} ms at the most")]
    Wait(u64),
    /// [`wire::events::FILTERS_MAX`].
    #[error(
        "a channel has {} different filters at the most, {} of them modules",
        wire::events::FILTERS_MAX,
        wire::events::module::PER_CHANNEL_MAX
    )]
    Filters,
}

/// A subscriber.
#[derive(Debug)]
pub struct Subscriber<K> {
    /// The subscriber's key.
    pub key: K,
    cursor: Cursor,
    filter: Option<usize>,
    overflow: Overflow,
    delivered: u64,
    lost: u64,
    /// The events that were sent and are perhaps not read yet: the end of each, and its cost. Only
    /// of subscribers that publishers wait for.
    sent: VecDeque<(Cursor, u64)>,
    sent_cost: u64,
    read: Cursor,
    /// Publishers have waited for it in vain.
    pub(super) overrun: bool,
}

impl<K> Subscriber<K> {
    /// Whether publishers wait before they take events behind its place.
    pub(super) fn holds_before(&self, until: Cursor) -> bool {
        matches!(self.overflow, Overflow::Wait(_)) && !self.overrun && self.read.offset < until.offset
    }
}

/// The next event of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Its head.
    pub head: EventHead,
    /// Where its bytes are: [`Channel::bytes`].
    pub at: Cursor,
    /// How far the subscriber has come with it.
    pub after: Position,
    behind: Cursor,
}

impl<S: Store, K: Copy + Eq> Channel<S, K> {
    /// One more subscription, which loses the oldest and has no filter.
    ///
    /// # Errors
    /// [`SubscriptionRefused::Full`].
    pub fn subscribe(&mut self, key: K, replay: Replay) -> Result<SubscriptionId, SubscriptionRefused> {
        let free = self.subscribers.iter().position(Option::is_none);
        if free.is_none() && self.subscribers.len() >= SUBSCRIBERS_MAX {
            return Err(SubscriptionRefused::Full);
        }
        let (cursor, delivered, lost) = self.beginning(replay);
        let subscriber = Subscriber {
            key,
            cursor,
            filter: None,
            overflow: Overflow::DropOldest,
            delivered,
            lost,
            sent: VecDeque::new(),
            sent_cost: 0,
            read: cursor,
            overrun: false,
        };
        let at = free.unwrap_or(self.subscribers.len());
        match self.subscribers.get_mut(at) {
            Some(place) => *place = Some(subscriber),
            None => self.subscribers.push(Some(subscriber)),
        }
        Ok(SubscriptionId(at))
    }

    fn beginning(&self, replay: Replay) -> (Cursor, u64, u64) {
        let (oldest, end) = (self.log.oldest(), self.log.end());
        let (wanted, delivered, lost) = match replay {
            Replay::Newest(count) => (end.sequence - count.min(self.kept.history).min(self.log.len()), 0, 0),
            // A log that is younger than the subscriber has other numbers.
            Replay::After(position) if position.next > end.sequence => {
                (oldest.sequence, position.delivered, position.lost)
            }
            Replay::After(position) => {
                let gone = oldest.sequence.saturating_sub(position.next);
                (position.next.max(oldest.sequence), position.delivered, position.lost.saturating_add(gone))
            }
        };
        let mut cursor = oldest;
        while cursor.sequence < wanted {
            match self.log.at(cursor) {
                Some((_, next)) => cursor = next,
                None => break,
            }
        }
        (cursor, delivered, lost)
    }

    /// Begins anew with so many events that are there.
    pub fn rewind(&mut self, id: SubscriptionId, count: u64) {
        let (cursor, ..) = self.beginning(Replay::Newest(count));
        if let Some(subscriber) = self.subscriber_mut(id) {
            (subscriber.cursor, subscriber.read) = (cursor, cursor);
        }
    }

    /// Says what becomes of it when it is slow.
    ///
    /// # Errors
    /// [`SubscriptionRefused::Wait`].
    pub fn set_overflow(
        &mut self,
        id: SubscriptionId,
        overflow: Overflow,
    ) -> Result<(), SubscriptionRefused> {
        if let Overflow::Wait(ms) = overflow
            && (ms > self.kept.wait_ms || ms == 0)
        {
            return Err(SubscriptionRefused::Wait(self.kept.wait_ms));
        }
        if let Some(subscriber) = self.subscriber_mut(id) {
            subscriber.overflow = overflow;
            subscriber.read = subscriber.cursor;
            subscriber.sent.clear();
            subscriber.sent_cost = 0;
        }
        self.count_holders();
        Ok(())
    }

    /// Installs a filter in the place of the one before, or none, for all events that it has not
    /// had yet.
    ///
    /// # Errors
    /// [`SubscriptionRefused::Filters`]; the one before stays.
    pub fn set_filter(
        &mut self,
        id: SubscriptionId,
        filter: Option<impl Into<Judge>>,
    ) -> Result<(), SubscriptionRefused> {
        let installed = match filter {
            Some(filter) => Some(self.install(filter.into()).ok_or(SubscriptionRefused::Filters)?),
            None => None,
        };
        let before = self.subscriber_mut(id).and_then(|it| std::mem::replace(&mut it.filter, installed));
        self.uninstall(before);
        Ok(())
    }

    /// Gives it the filter of this text that the channel has already, if it has. Whether it has.
    pub fn share_filter(&mut self, id: SubscriptionId, text: &str) -> bool {
        let Some(installed) = self.share(text) else { return false };
        let before = self.subscriber_mut(id).and_then(|it| it.filter.replace(installed));
        self.uninstall(before);
        true
    }

    pub(super) fn filter_of(&self, id: SubscriptionId) -> Option<usize> {
        self.subscriber(id)?.filter
    }

    /// Ends a subscription: for good, or what it has not read is kept for a while, if publishers
    /// waited for it.
    pub fn unsubscribe(&mut self, id: SubscriptionId, for_good: bool, now_ns: u64) {
        let Some(gone) = self.subscribers.get_mut(id.0).and_then(Option::take) else { return };
        self.uninstall(gone.filter);
        let holds = matches!(gone.overflow, Overflow::Wait(_)) && !gone.overrun;
        if holds && !for_good && self.holds.len() < HOLDS_MAX {
            let until_ns = now_ns.saturating_add(HOLD_NS);
            self.holds.push(Hold { from: gone.read, until_ns, awaited: 1 });
        }
        self.count_holders();
    }

    /// A subscriber that publishers wait for is back, at this place: what was kept for it is its
    /// own again.
    pub fn returned(&mut self, position: Position) {
        let before = self.holds.iter_mut().filter(|hold| hold.from.sequence <= position.next);
        if let Some(hold) = before.max_by_key(|hold| hold.from.sequence) {
            hold.awaited = hold.awaited.saturating_sub(1);
        }
        self.holds.retain(|hold| hold.awaited > 0);
        self.count_holders();
    }

    fn count_holders(&mut self) {
        let waits = |it: &&Subscriber<K>| matches!(it.overflow, Overflow::Wait(_));
        let holders = self.subscribers.iter().flatten().filter(waits).count() as u64;
        let awaited: u64 = self.holds.iter().map(|hold| hold.awaited).sum();
        self.log.keep_holders(holders.saturating_add(awaited));
    }

    fn subscriber_mut(&mut self, id: SubscriptionId) -> Option<&mut Subscriber<K>> {
        self.subscribers.get_mut(id.0)?.as_mut()
    }

    fn subscriber(&self, id: SubscriptionId) -> Option<&Subscriber<K>> {
        self.subscribers.get(id.0)?.as_ref()
    }

    /// How many subscribe.
    pub fn subscription_count(&self) -> usize {
        self.subscribers.iter().flatten().count()
    }

    /// Places of subscriptions that were ever taken, for [`Channel::subscription_at`].
    pub fn subscription_places(&self) -> usize {
        self.subscribers.len()
    }

    /// The subscription of this place.
    pub fn subscription_at(&self, place: usize) -> Option<(SubscriptionId, K)> {
        self.subscribers.get(place)?.as_ref().map(|it| (SubscriptionId(place), it.key))
    }

    /// How far a subscriber has come.
    pub fn position(&self, id: SubscriptionId) -> Position {
        self.subscriber(id).map_or(Position::default(), |it| Position {
            next: it.cursor.sequence,
            delivered: it.delivered,
            lost: it.lost,
        })
    }

    /// Returns the treatment of a subscription that is slow, and its filter: text, cost, and the
    /// first event that it holds for.
    pub fn terms(&self, id: SubscriptionId) -> (Overflow, Option<(&str, usize, u64)>) {
        let Some(subscriber) = self.subscriber(id) else { return (Overflow::DropOldest, None) };
        let installed = subscriber.filter.and_then(|at| self.filters.get(at)?.as_ref());
        let filter = installed.map(|it| (it.filter.text(), it.filter.cost(), it.since));
        (subscriber.overflow, filter)
    }

    /// How long a publication waits for the slowest that it waits for, in ms.
    pub fn patience_ms(&self) -> u64 {
        let waits = self.subscribers.iter().flatten().filter_map(|it| match it.overflow {
            Overflow::Wait(ms) if !it.overrun => Some(ms),
            _ => None,
        });
        let held = if self.holds.is_empty() { 0 } else { self.kept.wait_ms };
        waits.max().unwrap_or(0).max(held)
    }

    /// Whether [`Channel::next`] has more to look at, although it found nothing: a module is asked
    /// about a few old events in each round.
    pub fn has_unjudged(&self, id: SubscriptionId) -> bool {
        let Some(subscriber) = self.subscriber(id).filter(|it| it.filter.is_some()) else { return false };
        self.log.at(subscriber.cursor).is_some_and(|(head, _)| self.unjudged(subscriber.filter, &head))
    }

    /// A delivery goes nowhere: the module that judged it when it was published judges it otherwise
    /// now.
    pub fn pass_by(&mut self, id: SubscriptionId, delivery: &Delivery) {
        if let Some(subscriber) = self.subscriber_mut(id) {
            subscriber.cursor = delivery.behind;
        }
    }

    /// The next event of a subscription, if there is one. Events that its filter stops are passed
    /// by.
    pub fn next(&mut self, id: SubscriptionId) -> Option<Delivery> {
        let (mut cursor, filter, overflow) = {
            let subscriber = self.subscriber(id)?;
            (subscriber.cursor, subscriber.filter, subscriber.overflow)
        };
        let (mut found, mut superseded) = (None, 0);
        while let Some((head, behind)) = self.log.at(cursor) {
            if self.unjudged(filter, &head) && !self.may_ask() {
                break;
            }
            if self.passes(filter, &head, cursor) {
                superseded += u64::from(found.is_some());
                found = Some((head, cursor, behind));
                if overflow != Overflow::Latest {
                    break;
                }
            }
            cursor = behind;
        }
        let subscriber = self.subscriber_mut(id)?;
        subscriber.cursor = found.map_or(cursor, |(_, at, _)| at);
        subscriber.lost += superseded;
        if subscriber.sent.is_empty() {
            subscriber.read = subscriber.cursor;
        }
        let (head, at, behind) = found?;
        let after =
            Position { next: behind.sequence, delivered: subscriber.delivered + 1, lost: subscriber.lost };
        Some(Delivery { head, at, after, behind })
    }

    /// An event was sent, at this cost of the reader's credit.
    pub fn sent(&mut self, id: SubscriptionId, delivery: &Delivery, cost: u64) {
        let Some(subscriber) = self.subscriber_mut(id) else { return };
        subscriber.cursor = delivery.behind;
        subscriber.delivered += 1;
        if matches!(subscriber.overflow, Overflow::Wait(_)) {
            subscriber.sent.push_back((delivery.behind, cost));
            subscriber.sent_cost += cost;
        }
    }

    /// The reader holds no more than `unread` of what it was sent: the rest is read. Whether that
    /// lets publishers go on.
    pub fn read_up_to(&mut self, id: SubscriptionId, unread: u64) -> bool {
        let Some(subscriber) = self.subscriber_mut(id) else { return false };
        let before = subscriber.read;
        while subscriber.sent_cost > unread {
            let Some((behind, cost)) = subscriber.sent.pop_front() else { break };
            subscriber.sent_cost -= cost;
            subscriber.read = behind;
        }
        let has_read = subscriber.read != before;
        if has_read {
            subscriber.overrun = false;
        }
        has_read
    }

    /// The events before `until` go: those among them that a subscriber was to have are lost to it.
    pub(super) fn lose_for(&mut self, id: SubscriptionId, until: Cursor) {
        let Some(subscriber) = self.subscriber(id) else { return };
        let (mut cursor, filter) = (subscriber.cursor, subscriber.filter);
        let mut lost = 0;
        while cursor.offset < until.offset {
            let Some((head, behind)) = self.log.at(cursor) else { break };
            // What a module was never asked about counts.
            let counts = self.unjudged(filter, &head) || self.passes(filter, &head, cursor);
            lost += u64::from(counts);
            cursor = behind;
        }
        if let Some(subscriber) = self.subscriber_mut(id) {
            subscriber.cursor = cursor;
            subscriber.lost += lost;
            if subscriber.read.offset < until.offset {
                subscriber.read = until;
            }
        }
    }
}
