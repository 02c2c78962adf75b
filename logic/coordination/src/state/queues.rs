//! Queues of items: bounded, in order, and each item is somebody's until he is done with it.
//!
//! Whoever takes an item has it until he says that he is done, and then it is gone; if he goes
//! before that, it is the first that somebody gets. So each item is dealt with once at the least.
//! Pushes wait for room in the order in which they came.

use super::State;
use crate::holders::{Asked, Grant, Holder, HolderId, Item, SessionId, Waiter};
use crate::names::{Root, root_of};
use crate::node::Kind;
use crate::{MAX_ITEMS, MAX_PUSHES, MAX_VALUE_BYTES, MAX_WAITERS, MAX_WAITERS_PER_LOCK, Refusal};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bits of an item's number below the number of the server that gave it: so no two items of a queue
/// ever had one number.
const NUMBER_BITS: u32 = 40;

/// Bytes of an item's number and the slash before it, in its path.
const NUMBER_BYTES: usize = 17;

/// A push that waits for room, as whoever runs the state numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PushId(pub u64);

/// The outcome of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// It is in the queue.
    Done,
    /// It waits for room, and will be told by [`State::take_pushed`].
    Waits,
}

/// The items of one queue.
#[derive(Debug, Clone, Default)]
pub(super) struct Queue {
    pub(super) items: BTreeMap<u64, Item>,
    /// Those that nobody has.
    free: BTreeSet<u64>,
    pushes: VecDeque<(PushId, Vec<u8>)>,
}

impl State {
    /// Says how many items a queue has room for, and whether they outlive the server.
    ///
    /// # Errors
    /// [`Refusal`]; [`Refusal::Busy`]: it has items, and would keep them otherwise than it does.
    pub fn set_queue(&mut self, path: &str, items: u32, durable: bool) -> Result<u64, Refusal> {
        if root_of(path) != Some(Root::Queues) || items == 0 || items as usize > MAX_ITEMS {
            return Err(Refusal::Unfit);
        }
        let revision = self.head.revision + 1;
        let has_items = self.queues.get(path).is_some_and(|queue| !queue.items.is_empty());
        let node = self.nodes.get_mut(path).ok_or(Refusal::Missing)?;
        if node.durable != durable && has_items {
            return Err(Refusal::Busy);
        }
        (node.count, node.durable, node.revision) = (items, durable, revision);
        self.count();
        self.dirty.insert(path.to_owned());
        self.tell(revision, format!("put {path}"));
        self.serve_pushes(path);
        Ok(revision)
    }

    /// Puts an item into a queue. Where `only_now`, it does not wait for room.
    ///
    /// # Errors
    /// [`Refusal`]; [`Refusal::Held`] where `only_now` and there is no room.
    pub fn push(
        &mut self,
        path: &str,
        value: Vec<u8>,
        push: PushId,
        only_now: bool,
    ) -> Result<Pushed, Refusal> {
        self.check_queue(path)?;
        if value.len() > MAX_VALUE_BYTES {
            return Err(Refusal::LongValue);
        }
        if self.has_room_for_item(path) && self.pushes_of(path) == 0 {
            return self.admit(path, value).map(|()| Pushed::Done);
        }
        if only_now {
            return Err(Refusal::Held);
        }
        if self.queues.values().map(|queue| queue.pushes.len()).sum::<usize>() >= MAX_PUSHES {
            return Err(Refusal::Crowded);
        }
        self.queues.entry(path.to_owned()).or_default().pushes.push_back((push, value));
        Ok(Pushed::Waits)
    }

    /// A push is not made any more, if it was not.
    pub fn forget_push(&mut self, push: PushId) {
        for queue in self.queues.values_mut() {
            queue.pushes.retain(|(waits, _)| *waits != push);
        }
    }

    /// Takes what became of pushes that waited, since this was called last.
    pub fn take_pushed(&mut self) -> Vec<(PushId, Result<(), Refusal>)> {
        std::mem::take(&mut self.pushed)
    }

    /// Asks for the next item of a queue, in the order of asking. Where `only_now`, nobody waits.
    /// The number of the item is its token.
    ///
    /// # Errors
    /// [`Refusal`]; [`Refusal::Held`] where `only_now` and there is none.
    pub fn take(
        &mut self,
        path: &str,
        (session, id): (SessionId, HolderId),
        domain: &str,
        only_now: bool,
    ) -> Result<Asked, Refusal> {
        self.check_queue(path)?;
        let line = self.waiting_for(path);
        if line == 0
            && let Some(number) = self.give(path, id, domain)
        {
            return Ok(Asked::Granted(number));
        }
        if only_now {
            return Err(Refusal::Held);
        }
        if line >= MAX_WAITERS_PER_LOCK || self.waiting() >= MAX_WAITERS {
            return Err(Refusal::Crowded);
        }
        let waiter = Waiter { session, id, domain: domain.to_owned() };
        self.waiting.entry(path.to_owned()).or_default().push_back(waiter);
        Ok(Asked::Waits)
    }

    /// The item that somebody has of a queue: its number and its bytes.
    #[must_use]
    pub fn item_of(&self, path: &str, id: HolderId) -> Option<(u64, &[u8])> {
        let prefix = format!("{path}/");
        let held = self.held.get(&id)?;
        let number = held.iter().find_map(|held| number_of(held.strip_prefix(&prefix)?))?;
        let item = self.queues.get(path)?.items.get(&number)?;
        Some((number, &item.value))
    }

    /// Somebody is heard of again who may have an item of a queue.
    pub fn resume_item(&mut self, path: &str, id: HolderId, domain: &str) -> Option<u64> {
        let (number, _) = self.item_of(path, id)?;
        let item = self.queues.get(path)?.items.get(&number)?;
        item.holder.as_ref().filter(|holder| holder.domain == domain)?;
        self.orphans.remove(&id);
        Some(number)
    }

    /// Somebody is done with the item that he has: it is gone.
    ///
    /// # Errors
    /// [`Refusal::Lost`]: he has it no more.
    pub fn done(&mut self, path: &str, id: HolderId, number: u64) -> Result<(), Refusal> {
        let queue = self.queues.get_mut(path).ok_or(Refusal::Lost)?;
        let has = |item: &Item| item.holder.as_ref().is_some_and(|holder| holder.id == id);
        if !queue.items.get(&number).is_some_and(has) {
            return Err(Refusal::Lost);
        }
        if let Some(item) = queue.items.remove(&number) {
            self.bytes -= cost(path, &item);
            self.items -= 1;
        }
        self.note_item(path, number);
        self.has_no_more(id, &item_path(path, number));
        self.serve_pushes(path);
        Ok(())
    }

    /// How many items a queue has, how many of these somebody has, and how many pushes wait for
    /// room.
    #[must_use]
    pub fn queue_of(&self, path: &str) -> (usize, usize, usize) {
        let Some(queue) = self.queues.get(path) else { return (0, 0, 0) };
        (queue.items.len(), queue.items.len() - queue.free.len(), queue.pushes.len())
    }

    /// The number and the domain of each item of a queue that somebody has.
    pub fn given(&self, path: &str) -> impl Iterator<Item = (u64, &str)> {
        let items = self.queues.get(path).into_iter().flat_map(|queue| &queue.items);
        items.filter_map(|(number, item)| Some((*number, item.holder.as_ref()?.domain.as_str())))
    }

    /// An item as it is written down. One of a queue that is no more is to be forgotten: its
    /// removal was under way.
    pub(super) fn load_item(&mut self, path: String, number: u64, item: Item, grace_until: u64) {
        if !self.nodes.get(&path).is_some_and(|node| node.kind == Kind::Queue && node.durable) {
            self.dirty_items.insert((path, number));
            return;
        }
        self.items += 1;
        self.bytes += cost(&path, &item);
        let queue = self.queues.entry(path.clone()).or_default();
        match &item.holder {
            Some(holder) => {
                self.held.entry(holder.id).or_default().insert(item_path(&path, number));
                self.orphans.insert(holder.id, grace_until);
            }
            None => {
                queue.free.insert(number);
            }
        }
        queue.items.insert(number, item);
    }

    /// Whether a queue has items, or somebody waits for one or for room.
    pub(super) fn is_in_use(&self, path: &str) -> bool {
        let (items, _, pushes) = self.queue_of(path);
        items + pushes + self.waiting_for(path) > 0
    }

    /// Somebody goes who has an item: it is the first that the next gets.
    pub(super) fn return_item(&mut self, path: &str, id: HolderId) {
        let Some((path, number)) = path.rsplit_once('/').and_then(|(path, n)| Some((path, number_of(n)?)))
        else {
            return;
        };
        let Some(queue) = self.queues.get_mut(path) else { return };
        let Some(item) = queue.items.get_mut(&number) else { return };
        if item.holder.take_if(|holder| holder.id == id).is_some() {
            queue.free.insert(number);
            self.note_item(path, number);
            self.serve_takers(path);
        }
    }

    fn check_queue(&self, path: &str) -> Result<(), Refusal> {
        let node = self.nodes.get(path).ok_or(Refusal::Missing)?;
        if node.kind == Kind::Queue { Ok(()) } else { Err(Refusal::Unfit) }
    }

    fn has_room_for_item(&self, path: &str) -> bool {
        let most = self.nodes.get(path).map_or(0, |node| node.count as usize);
        self.queue_of(path).0 < most
    }

    fn pushes_of(&self, path: &str) -> usize {
        self.queue_of(path).2
    }

    fn admit(&mut self, path: &str, value: Vec<u8>) -> Result<(), Refusal> {
        let item = Item { value, holder: None };
        self.room_for(1, cost(path, &item))?;
        self.numbered += 1;
        let number = self.head.epoch << NUMBER_BITS | self.numbered;
        self.items += 1;
        self.bytes += cost(path, &item);
        let queue = self.queues.entry(path.to_owned()).or_default();
        queue.free.insert(number);
        queue.items.insert(number, item);
        self.note_item(path, number);
        self.serve_takers(path);
        Ok(())
    }

    /// An item of a queue that outlives the server is to be written down.
    fn note_item(&mut self, path: &str, number: u64) {
        if self.nodes.get(path).is_some_and(|node| node.durable) {
            self.dirty_items.insert((path.to_owned(), number));
        }
    }

    /// Gives the first item that nobody has; its number.
    fn give(&mut self, path: &str, id: HolderId, domain: &str) -> Option<u64> {
        let queue = self.queues.get_mut(path)?;
        let number = queue.free.pop_first()?;
        let item = queue.items.get_mut(&number)?;
        item.holder = Some(Holder { id, token: number, domain: domain.to_owned() });
        self.held.entry(id).or_default().insert(item_path(path, number));
        self.note_item(path, number);
        Some(number)
    }

    /// Gives items to those who wait for them, as long as there are any.
    fn serve_takers(&mut self, path: &str) {
        while self.queues.get(path).is_some_and(|queue| !queue.free.is_empty()) {
            let Some(line) = self.waiting.get_mut(path) else { return };
            let next = line.pop_front();
            if line.is_empty() {
                self.waiting.remove(path);
            }
            let Some(Waiter { session, id, domain }) = next else { return };
            if let Some(token) = self.give(path, id, &domain) {
                self.grants.push(Grant { session, path: path.to_owned(), token });
            }
        }
    }

    /// Lets pushes in that wait, as long as there is room.
    fn serve_pushes(&mut self, path: &str) {
        while self.has_room_for_item(path) {
            let next = self.queues.get_mut(path).and_then(|queue| queue.pushes.pop_front());
            let Some((push, value)) = next else { return };
            let admitted = self.admit(path, value);
            self.pushed.push((push, admitted));
        }
    }
}

/// The path of an item, among those that somebody has.
fn item_path(path: &str, number: u64) -> String {
    format!("{path}/{number:016x}")
}

fn number_of(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// The share of an item in the bytes of the service.
fn cost(path: &str, item: &Item) -> usize {
    path.len() + NUMBER_BYTES + item.value.len()
}
