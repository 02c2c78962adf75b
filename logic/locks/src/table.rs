//! The table of locks and waiters.

use crate::{Held, Kind, Mode, Owner, Range};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use thiserror::Error;

/// Most locks of one party, each range counted: a database takes some for each of its processes.
pub const MAX_LOCKS: usize = 2048;
/// Most requests of one party that wait. A release goes through the waiters of its file, and for
/// each through the locks there: with both bounds reached, that takes a millisecond.
pub const MAX_WAITERS: usize = 256;

/// A lock that somebody wants. [`Kind::Whole`] is of [`Range::ALL`].
pub type Request = Held;

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The owner holds the lock.
    Granted,
    /// It waits; [`Table::settled`] says how that ends.
    Waits,
}

/// Why a request came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Another owner has what excludes it, and the request does not wait.
    #[error("another owner holds a lock that excludes it")]
    Held,
    /// It would wait for an owner that waits for it.
    #[error("its owner would wait for itself")]
    Deadlock,
    /// The party has [`MAX_LOCKS`] or [`MAX_WAITERS`].
    #[error("its party has as many locks or waiters as it may have")]
    Full,
}

/// The end of a wait: the ticket that the request was given, and whether its owner holds the lock.
pub type Settled = (u64, Result<(), Refusal>);

#[derive(Debug, Clone)]
struct Waiter<F> {
    file: F,
    request: Request,
}

/// All locks on files that are told apart by `F`.
///
/// Requests are tried against what is held, not against who waits. When something is given up, the
/// waiters of its file are tried in the order of their coming.
#[derive(Debug, Clone)]
pub struct Table<F> {
    held: BTreeMap<F, Vec<Held>>,
    /// By ticket, and by file in the order of their coming.
    waiters: HashMap<u64, Waiter<F>>,
    queues: BTreeMap<F, Vec<u64>>,
    /// Locks and waiters of each party.
    counts: HashMap<u64, (usize, usize)>,
    settled: Vec<Settled>,
}

impl<F> Default for Table<F> {
    fn default() -> Self {
        Self {
            held: BTreeMap::new(),
            waiters: HashMap::new(),
            queues: BTreeMap::new(),
            counts: HashMap::new(),
            settled: Vec::new(),
        }
    }
}

impl<F: Ord + Copy> Table<F> {
    /// Asks for a lock. With a `ticket` (one that nobody waits with) it waits where it must. A lock
    /// of flock(2) that its owner holds in the other mode is given up first, whatever comes of the
    /// request.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn lock(&mut self, file: F, request: Request, ticket: Option<u64>) -> Result<Outcome, Refusal> {
        let converts = request.kind == Kind::Whole && self.converts(file, &request);
        if converts {
            self.set(file, &request, None);
        }
        let taken = self.take(file, &request);
        // What was given up or handed over, or excludes less than before, lets others in.
        if converts || matches!(taken, Ok(true) | Err(Refusal::Full)) {
            self.retry(file);
        }
        if taken != Err(Refusal::Held) {
            return taken.map(|_| Outcome::Granted);
        }
        let Some(ticket) = ticket else { return Err(Refusal::Held) };
        if self.is_deadlock(file, &request) {
            return Err(Refusal::Deadlock);
        }
        let waiting = &mut self.counts.entry(request.owner.party).or_default().1;
        if *waiting >= MAX_WAITERS {
            return Err(Refusal::Full);
        }
        *waiting += 1;
        self.waiters.insert(ticket, Waiter { file, request });
        self.queues.entry(file).or_default().push(ticket);
        Ok(Outcome::Waits)
    }

    /// Gives up what an owner holds of a range.
    ///
    /// # Errors
    /// [`Refusal::Full`] where that would leave its party one lock more than it may have.
    pub fn unlock(&mut self, file: F, owner: Owner, kind: Kind, range: Range) -> Result<(), Refusal> {
        let request = Held { owner, kind, mode: Mode::Shared, range, via: 0, process: 0 };
        let splits = kind == Kind::Record && range != Range::ALL;
        if splits && !self.has_room(file, &request, None) {
            return Err(Refusal::Full);
        }
        if self.set(file, &request, None) {
            self.retry(file);
        }
        Ok(())
    }

    /// Returns a lock that excludes the one that is asked for, if there is one: that with the first
    /// byte.
    #[must_use]
    pub fn test(&self, file: F, request: &Request) -> Option<Held> {
        let excluding = self.of(file).iter().filter(|held| held.excludes(request));
        excluding.min_by_key(|held| held.range.first()).copied()
    }

    /// Notes a lock that somebody else has granted. Whatever excludes it stays, and bounds do not
    /// count.
    pub fn note(&mut self, file: F, granted: &Held) {
        self.set(file, granted, Some(granted.mode));
    }

    /// Takes a waiter out; false: it does not wait any more.
    pub fn cancel(&mut self, ticket: u64) -> bool {
        self.remove_waiter(ticket).is_some()
    }

    /// Gives up what was set through an open file of a party. Returns the tickets of those that
    /// waited through it, which do so no more.
    pub fn close(&mut self, party: u64, via: u64) -> Vec<u64> {
        self.give_up(party, |held| held.via == via)
    }

    /// Gives up all that a party has, as [`Table::close`].
    pub fn leave(&mut self, party: u64) -> Vec<u64> {
        self.give_up(party, |_| true)
    }

    /// Takes out all waiters of a party, which keeps what it holds. Returns their tickets.
    pub fn withdraw(&mut self, party: u64) -> Vec<u64> {
        self.remove_waiters(|held| held.owner.party == party)
    }

    /// Takes out what a party holds of a range, for another party that stands for the same and is
    /// about to take it. Returns whether that was all of the range, in this mode or a stricter one;
    /// only then nobody else gets it.
    pub fn hand_over(&mut self, file: F, party: u64, request: &Request) -> bool {
        let mut owners: BTreeSet<Owner> = BTreeSet::new();
        let mut missing = vec![request.range];
        for held in self.of(file) {
            let is_it = held.owner.party == party
                && held.owner.number == request.owner.number
                && held.kind == request.kind
                && held.range.overlaps(request.range);
            if is_it && (held.mode == Mode::Exclusive || request.mode == Mode::Shared) {
                missing = missing.into_iter().flat_map(|range| cut(range, held.range)).collect();
                owners.insert(held.owner);
            }
        }
        for owner in owners {
            self.set(file, &Held { owner, ..*request }, None);
        }
        if !missing.is_empty() {
            self.retry(file);
        }
        missing.is_empty()
    }

    /// Takes the waits that have ended since this was called last.
    pub fn settled(&mut self) -> Vec<Settled> {
        std::mem::take(&mut self.settled)
    }

    /// All locks, with their files.
    pub fn all(&self) -> impl Iterator<Item = (F, &Held)> {
        self.held.iter().flat_map(|(file, held)| held.iter().map(|held| (*file, held)))
    }

    /// The locks on a file.
    #[must_use]
    pub fn of(&self, file: F) -> &[Held] {
        self.held.get(&file).map_or(&[], Vec::as_slice)
    }

    /// How many locks a party has, and how many of its requests wait.
    #[must_use]
    pub fn count(&self, party: u64) -> (usize, usize) {
        self.counts.get(&party).copied().unwrap_or_default()
    }

    /// Whether the owner holds a lock of flock(2) in the other mode.
    fn converts(&self, file: F, request: &Request) -> bool {
        let other = |held: &Held| {
            held.owner == request.owner && held.kind == Kind::Whole && held.mode != request.mode
        };
        self.of(file).iter().any(other)
    }

    /// Grants a request, if nothing excludes it. Whether its owner gave something up by that.
    fn take(&mut self, file: F, request: &Request) -> Result<bool, Refusal> {
        if self.of(file).iter().any(|held| held.excludes(request)) {
            return Err(Refusal::Held);
        }
        if !self.has_room(file, request, Some(request.mode)) {
            return Err(Refusal::Full);
        }
        let gave_up = self.set(file, request, Some(request.mode));
        self.end_circles(request);
        Ok(gave_up)
    }

    /// Whether the party may have the locks that a change leaves it.
    fn has_room(&self, file: F, request: &Request, mode: Option<Mode>) -> bool {
        let before = self.count(request.owner.party).0;
        // A change adds two at the most: the lock itself, and one for what it splits.
        if before + 2 <= MAX_LOCKS {
            return true;
        }
        let mut held = self.of(file).to_vec();
        let old = held.len();
        change(&mut held, request, mode);
        let after = (before + held.len()).saturating_sub(old);
        after <= MAX_LOCKS || after <= before
    }

    /// Changes what the owner holds of the range: to `mode`, or to nothing. Whether it gave
    /// something up by that.
    fn set(&mut self, file: F, request: &Request, mode: Option<Mode>) -> bool {
        let held = self.held.entry(file).or_default();
        let before = held.len();
        let gave_up = change(held, request, mode);
        let after = held.len();
        if held.is_empty() {
            self.held.remove(&file);
        }
        self.recount(request.owner.party, |count| count.0 = (count.0 + after).saturating_sub(before));
        gave_up
    }

    fn recount(&mut self, party: u64, change: impl FnOnce(&mut (usize, usize))) {
        let count = self.counts.entry(party).or_default();
        change(count);
        if *count == (0, 0) {
            self.counts.remove(&party);
        }
    }

    fn give_up(&mut self, party: u64, which: impl Fn(&Held) -> bool) -> Vec<u64> {
        if self.count(party) == (0, 0) {
            return Vec::new();
        }
        let which = |held: &Held| held.owner.party == party && which(held);
        let gone = self.remove_waiters(which);
        let mut freed = Vec::new();
        let mut lost = 0;
        for (&file, held) in &mut self.held {
            let before = held.len();
            held.retain(|held| !which(held));
            if held.len() < before {
                lost += before - held.len();
                freed.push(file);
            }
        }
        self.held.retain(|_, held| !held.is_empty());
        self.recount(party, |count| count.0 = count.0.saturating_sub(lost));
        freed.into_iter().for_each(|file| self.retry(file));
        gone
    }

    fn remove_waiters(&mut self, which: impl Fn(&Held) -> bool) -> Vec<u64> {
        let which = self.waiters.iter().filter(|(_, waiter)| which(&waiter.request));
        let gone: Vec<u64> = which.map(|(&ticket, _)| ticket).collect();
        for &ticket in &gone {
            self.remove_waiter(ticket);
        }
        gone
    }

    fn remove_waiter(&mut self, ticket: u64) -> Option<Waiter<F>> {
        let waiter = self.waiters.remove(&ticket)?;
        if let Some(queue) = self.queues.get_mut(&waiter.file) {
            queue.retain(|&other| other != ticket);
            if queue.is_empty() {
                self.queues.remove(&waiter.file);
            }
        }
        self.recount(waiter.request.owner.party, |count| count.1 = count.1.saturating_sub(1));
        Some(waiter)
    }

    /// Tries the waiters of a file, until none of them gets anything: who gets one lock may give
    /// another up by that.
    fn retry(&mut self, file: F) {
        let mut goes_on = true;
        while std::mem::take(&mut goes_on) {
            for ticket in self.queues.get(&file).cloned().unwrap_or_default() {
                let Some(request) = self.waiters.get(&ticket).map(|waiter| waiter.request) else { continue };
                let taken = self.take(file, &request);
                if taken == Err(Refusal::Held) {
                    continue;
                }
                goes_on |= taken == Ok(true);
                self.remove_waiter(ticket);
                self.settled.push((ticket, taken.map(|_| ())));
            }
        }
    }

    /// Ends waits of an owner that has just got a lock, by which it may have begun to wait for
    /// itself: only an owner with several threads waits and gets something.
    fn end_circles(&mut self, got: &Request) {
        if got.kind == Kind::Whole {
            return;
        }
        while let Some(ticket) = self.circle(got.owner) {
            self.remove_waiter(ticket);
            self.settled.push((ticket, Err(Refusal::Deadlock)));
        }
    }

    /// The wait of an owner by which it waits for itself.
    fn circle(&self, owner: Owner) -> Option<u64> {
        let waits = || self.waits_of(owner);
        let blockers = waits().flat_map(|(_, waiter)| self.blockers(waiter.file, &waiter.request));
        // All at once first: there is none but for the rarest.
        if !self.reaches(blockers.collect(), owner) {
            return None;
        }
        waits().find(|(_, waiter)| self.is_deadlock(waiter.file, &waiter.request)).map(|(ticket, _)| ticket)
    }

    /// Whether the request's owner would wait for itself. Locks of flock(2) are not looked at: they
    /// belong to open files, which nobody knows to be waited with.
    fn is_deadlock(&self, file: F, request: &Request) -> bool {
        if request.kind == Kind::Whole {
            return false;
        }
        self.reaches(self.blockers(file, request).collect(), request.owner)
    }

    /// Whether one of these owners is `sought`, or waits for it.
    fn reaches(&self, mut next: Vec<Owner>, sought: Owner) -> bool {
        let mut seen: BTreeSet<Owner> = BTreeSet::new();
        while let Some(owner) = next.pop() {
            if owner == sought {
                return true;
            }
            if seen.insert(owner) {
                let waits = self.waits_of(owner);
                next.extend(waits.flat_map(|(_, waiter)| self.blockers(waiter.file, &waiter.request)));
            }
        }
        false
    }

    fn waits_of(&self, owner: Owner) -> impl Iterator<Item = (u64, &Waiter<F>)> {
        let waiters = self.waiters.iter().map(|(&ticket, waiter)| (ticket, waiter));
        waiters
            .filter(move |(_, waiter)| waiter.request.owner == owner && waiter.request.kind == Kind::Record)
    }

    fn blockers<'t>(&'t self, file: F, request: &'t Request) -> impl Iterator<Item = Owner> + 't {
        self.of(file).iter().filter(|held| held.excludes(request)).map(|held| held.owner)
    }
}

/// The parts of a range that another one leaves.
fn cut(range: Range, other: Range) -> Vec<Range> {
    if range.overlaps(other) { range.without(other).collect() } else { vec![range] }
}

/// Changes what an owner holds of a range, to `mode` or to nothing: what it held there is split,
/// and what touches it in the same mode is joined. Whether something was split or is gone.
fn change(all: &mut Vec<Held>, request: &Request, mode: Option<Mode>) -> bool {
    let is_its = |held: &Held| held.owner == request.owner && held.kind == request.kind;
    let mut joined = request.range;
    let mut parts = Vec::new();
    let mut gave_up = false;
    all.retain(|held| {
        let same = is_its(held) && mode == Some(held.mode) && held.range.touches(request.range);
        let cuts = is_its(held) && held.range.overlaps(request.range);
        if same {
            joined = joined.joined(held.range);
        } else if cuts {
            gave_up = true;
            parts.extend(held.range.without(request.range).map(|range| Held { range, ..*held }));
        }
        !same && !cuts
    });
    all.extend(parts);
    if let Some(mode) = mode {
        all.push(Held { mode, range: joined, ..*request });
    }
    gave_up
}
