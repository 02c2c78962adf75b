//! Everything that a coordination service knows, and how it changes.

mod barriers;
mod queues;

pub use barriers::Place;
pub use queues::{PushId, Pushed};

use crate::holders::{Asked, Grant, Holder, HolderId, SessionId, Waiter};
use crate::names::{Root, check_path, parent_of, root_of};
use crate::node::{Kind, Node};
use crate::record::{self, Commit, FORMAT, Head, KEY_PREFIX};
use crate::{
    MAX_BYTES, MAX_HELD, MAX_HOLDERS, MAX_NODES, MAX_VALUE_BYTES, MAX_WAITERS, MAX_WAITERS_PER_LOCK, Refusal,
};
use queues::Queue;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Numbers of nodes are below this.
const SERIALS: u32 = 1 << 24;

/// The value that the writer of a key expects to replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Whatever is there.
    Anything,
    /// Nothing.
    Absent,
    /// The value of this revision.
    Revision(u64),
}

/// Something has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The count of changes after it.
    pub revision: u64,
    /// The change as a line: a verb, its arguments, a path.
    pub line: String,
}

/// See the module of the crate.
#[derive(Debug, Clone)]
pub struct State {
    head: Head,
    nodes: BTreeMap<String, Node>,
    serials: HashMap<u32, String>,
    /// Of all paths and values.
    bytes: usize,
    waiting: BTreeMap<String, VecDeque<Waiter>>,
    /// Paths of what each holder has: locks, and keys that live as long as its session.
    held: BTreeMap<HolderId, BTreeSet<String>>,
    /// Holders that are not heard of, and until when they have what they have, in ms.
    orphans: BTreeMap<HolderId, u64>,
    /// The sessions that are to be told of their barrier.
    arrivals: BTreeMap<HolderId, SessionId>,
    /// The items of each queue.
    queues: BTreeMap<String, Queue>,
    /// How many items there are in all queues.
    items: usize,
    /// How many items this server has numbered.
    numbered: u64,
    /// Paths of nodes that are not written down as they are.
    dirty: BTreeSet<String>,
    /// Queues and numbers of items that are not written down as they are.
    dirty_items: BTreeSet<(String, u64)>,
    /// Whether the head is to be written although no node is.
    begins: bool,
    events: Vec<Event>,
    grants: Vec<Grant>,
    broken: Vec<SessionId>,
    pushed: Vec<(PushId, Result<(), Refusal>)>,
}

impl State {
    /// Goes on from what is written down: with the head, if there is one, and with records by their
    /// keys. Everybody who holds something has until `grace_until` (ms) to be heard of. The first
    /// commit makes this server the one that writes.
    ///
    /// # Errors
    /// A record that is not understood: nothing is to be written then.
    pub fn load(
        head: Option<&[u8]>,
        records: impl IntoIterator<Item = (String, Vec<u8>)>,
        writer: HolderId,
        grace_until: u64,
    ) -> Result<Self, String> {
        let before = head.map(Head::decode).transpose()?;
        let head = match before {
            Some(before) => Head { writer, epoch: before.epoch + 1, commits: 0, ..before },
            None => Head { format: FORMAT, writer, epoch: 1, revision: 0, serial: 0, commits: 0 },
        };
        let mut state = Self {
            head,
            nodes: BTreeMap::new(),
            serials: HashMap::new(),
            bytes: 0,
            waiting: BTreeMap::new(),
            held: BTreeMap::new(),
            orphans: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            queues: BTreeMap::new(),
            items: 0,
            numbered: 0,
            dirty: BTreeSet::new(),
            dirty_items: BTreeSet::new(),
            begins: true,
            events: Vec::new(),
            grants: Vec::new(),
            broken: Vec::new(),
            pushed: Vec::new(),
        };
        let mut items = Vec::new();
        for (key, bytes) in records {
            if let Some((path, number)) = record::item_of(&key) {
                let item =
                    record::decode_item(&bytes).map_err(|what| format!("the record {key:?}: {what}"))?;
                items.push((path.to_owned(), number, item));
                continue;
            }
            let path = key.strip_prefix(KEY_PREFIX).unwrap_or_default();
            if check_path(path).is_err() {
                return Err(format!("the record {key:?} has no path"));
            }
            let node = record::decode(&bytes).map_err(|what| format!("the record {key:?}: {what}"))?;
            let holders = node.holders.iter().map(|holder| holder.id).chain(node.owner);
            for holder in holders {
                state.held.entry(holder).or_default().insert(path.to_owned());
                state.orphans.insert(holder, grace_until);
            }
            state.bytes += path.len() + node.value.len();
            state.serials.insert(node.serial, path.to_owned());
            state.nodes.insert(path.to_owned(), node);
        }
        for (path, number, item) in items {
            state.load_item(path, number, item, grace_until);
        }
        Ok(state)
    }

    /// How many changes there were.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.head.revision
    }

    /// How many servers there were, this one included.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.head.epoch
    }

    /// Returns the node of this path.
    #[must_use]
    pub fn node(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path)
    }

    /// The path of the node with this number.
    #[must_use]
    pub fn path_of(&self, serial: u32) -> Option<&str> {
        self.serials.get(&serial).map(String::as_str)
    }

    /// Returns the content of a folder, which may be a root: names and nodes, by their numbers.
    #[must_use]
    pub fn children(&self, folder: &str) -> Vec<(&str, &Node)> {
        let prefix = format!("{folder}/");
        let below = self.nodes.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix));
        let mut found: Vec<(&str, &Node)> = below
            .filter_map(|(path, node)| {
                let name = path.get(prefix.len()..)?;
                (!name.contains('/')).then_some((name, node))
            })
            .collect();
        found.sort_by_key(|(_, node)| node.serial);
        found
    }

    /// Everything whose path begins so, by path.
    pub fn below<'s>(&'s self, prefix: &'s str) -> impl Iterator<Item = (&'s str, &'s Node)> {
        let from =
            self.nodes.range(prefix.to_owned()..).take_while(move |(path, _)| path.starts_with(prefix));
        from.map(|(path, node)| (path.as_str(), node))
    }

    /// How many nodes and items there are, and bytes of paths and values.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.nodes.len() + self.items, self.bytes)
    }

    /// How many wait for a lock.
    #[must_use]
    pub fn waiting_for(&self, path: &str) -> usize {
        self.waiting.get(path).map_or(0, VecDeque::len)
    }

    /// How many wait for anything.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum::<usize>() + self.arrivals.len()
    }

    /// Makes a folder, an empty key, or a lock, barrier or queue of which nobody has anything.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn make(&mut self, path: &str, kind: Kind) -> Result<&Node, Refusal> {
        let root = check_path(path)?;
        let fits = kind == root.kind() || root == Root::Keys && kind == Kind::Folder;
        if !fits {
            return Err(Refusal::Unfit);
        }
        if self.nodes.contains_key(path) {
            return Err(Refusal::Exists);
        }
        self.folder_of(path)?;
        self.room_for(1, path.len())?;
        let revision = self.count();
        let serial = self.next_serial().ok_or(Refusal::Full)?;
        self.bytes += path.len();
        self.serials.insert(serial, path.to_owned());
        self.dirty.insert(path.to_owned());
        self.tell(revision, format!("put {path}"));
        Ok(self.nodes.entry(path.to_owned()).or_insert(Node::new(kind, serial, revision)))
    }

    /// Sets a key, which is made where there is none; its revision. With an `owner` the key lives
    /// as long as that one's session.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn put(
        &mut self,
        path: &str,
        value: &[u8],
        expect: Expect,
        owner: Option<HolderId>,
    ) -> Result<u64, Refusal> {
        if check_path(path)? != Root::Keys {
            return Err(Refusal::Unfit);
        }
        if value.len() > MAX_VALUE_BYTES {
            return Err(Refusal::LongValue);
        }
        let (there, was) = match self.nodes.get(path) {
            Some(node) if node.kind == Kind::Folder => return Err(Refusal::IsFolder),
            Some(node) => (Some(node.revision), node.value.len()),
            None => (None, 0),
        };
        match (expect, there) {
            (Expect::Anything, _) | (Expect::Absent, None) => {}
            (Expect::Absent, Some(_)) => return Err(Refusal::Exists),
            (Expect::Revision(believed), Some(revision)) if believed == revision => {}
            (Expect::Revision(_), _) => return Err(Refusal::Stale),
        }
        let grown = value.len().saturating_sub(was);
        if there.is_none() {
            self.folder_of(path)?;
            self.room_for(1, path.len() + grown)?;
        } else {
            self.room_for(0, grown)?;
        }
        if let Some(owner) = owner {
            self.room_of(owner, path)?;
        }
        let serial = match there {
            Some(_) => None,
            None => Some(self.next_serial().ok_or(Refusal::Full)?),
        };
        let revision = self.count();
        if let Some(serial) = serial {
            self.bytes += path.len();
            self.serials.insert(serial, path.to_owned());
            self.nodes.insert(path.to_owned(), Node::new(Kind::Key, serial, revision));
        }
        let before = self.nodes.get_mut(path).and_then(|node| {
            self.bytes = self.bytes - node.value.len() + value.len();
            node.value = value.to_vec();
            node.revision = revision;
            std::mem::replace(&mut node.owner, owner)
        });
        if let Some(before) = before.filter(|before| Some(*before) != owner) {
            self.has_no_more(before, path);
        }
        if let Some(owner) = owner {
            self.held.entry(owner).or_default().insert(path.to_owned());
        }
        self.dirty.insert(path.to_owned());
        self.tell(revision, format!("put {path}"));
        Ok(revision)
    }

    /// Takes something away: a key, an empty folder, an empty queue, and a lock or barrier that
    /// nobody holds or waits for.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn remove(&mut self, path: &str, expect: Expect) -> Result<u64, Refusal> {
        let node = self.nodes.get(path).ok_or(Refusal::Missing)?;
        match expect {
            Expect::Anything => {}
            Expect::Revision(revision) if revision == node.revision => {}
            Expect::Absent | Expect::Revision(_) => return Err(Refusal::Stale),
        }
        match node.kind {
            Kind::Folder if !self.children(path).is_empty() => return Err(Refusal::NotEmpty),
            Kind::Lock if !node.holders.is_empty() || self.waiting_for(path) > 0 => {
                return Err(Refusal::Busy);
            }
            Kind::Barrier if node.arrived().next().is_some() => return Err(Refusal::Busy),
            Kind::Queue if self.is_in_use(path) => return Err(Refusal::Busy),
            Kind::Folder | Kind::Key | Kind::Lock | Kind::Barrier | Kind::Queue => {}
        }
        Ok(self.take_away(path))
    }

    /// Says how many may hold a semaphore at a time. Its present holders keep it.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn set_count(&mut self, path: &str, count: u32) -> Result<u64, Refusal> {
        if root_of(path) != Some(Root::Semaphores) || count == 0 || count as usize > MAX_HOLDERS {
            return Err(Refusal::Unfit);
        }
        let revision = self.head.revision + 1;
        let node = self.nodes.get_mut(path).ok_or(Refusal::Missing)?;
        node.count = count;
        node.revision = revision;
        self.count();
        self.dirty.insert(path.to_owned());
        self.tell(revision, format!("put {path}"));
        self.serve_next(path);
        Ok(revision)
    }

    /// Asks for a lock, in the order of asking. Where `only_now`, nobody waits.
    ///
    /// # Errors
    /// [`Refusal`]; [`Refusal::Held`] where `only_now` and it is held, or others wait.
    pub fn ask(
        &mut self,
        path: &str,
        (session, id): (SessionId, HolderId),
        domain: &str,
        only_now: bool,
    ) -> Result<Asked, Refusal> {
        let node = self.nodes.get(path).ok_or(Refusal::Missing)?;
        if node.kind != Kind::Lock {
            return Err(Refusal::Unfit);
        }
        self.room_of(id, path)?;
        let queue = self.waiting_for(path);
        if node.has_room() && queue == 0 {
            return Ok(Asked::Granted(self.grant(path, id, domain)));
        }
        if only_now {
            return Err(Refusal::Held);
        }
        if queue >= MAX_WAITERS_PER_LOCK || self.waiting() >= MAX_WAITERS {
            return Err(Refusal::Crowded);
        }
        let waiter = Waiter { session, id, domain: domain.to_owned() };
        self.waiting.entry(path.to_owned()).or_default().push_back(waiter);
        Ok(Asked::Waits)
    }

    /// A holder is heard of again: it shows what it has of a lock.
    ///
    /// # Errors
    /// [`Refusal::Lost`]: it has it no more.
    pub fn resume(&mut self, path: &str, id: HolderId, token: u64, domain: &str) -> Result<(), Refusal> {
        let node = self.nodes.get(path).ok_or(Refusal::Lost)?;
        let has = |holder: &Holder| holder.id == id && holder.token == token && holder.domain == domain;
        if !node.holders.iter().any(has) {
            return Err(Refusal::Lost);
        }
        self.orphans.remove(&id);
        Ok(())
    }

    /// A session with keys is heard of again.
    ///
    /// # Errors
    /// [`Refusal::Lost`]: it has none any more.
    pub fn resume_keys(&mut self, id: HolderId) -> Result<(), Refusal> {
        if !self.held.contains_key(&id) {
            return Err(Refusal::Lost);
        }
        self.orphans.remove(&id);
        Ok(())
    }

    /// A session is over: what it has is given back, and it waits for nothing.
    pub fn leave(&mut self, session: SessionId, id: HolderId) {
        self.stop_waiting(session);
        self.orphans.remove(&id);
        for path in self.held.remove(&id).unwrap_or_default() {
            self.give_back(&path, id);
        }
    }

    /// A session is not heard of any more: it waits for nothing, and has what it has until `until`
    /// (ms).
    pub fn orphan(&mut self, session: SessionId, id: HolderId, until: u64) {
        self.stop_waiting(session);
        if self.held.contains_key(&id) {
            self.orphans.insert(id, until);
        }
    }

    /// Ends what holders have whose time is over.
    pub fn expire(&mut self, now: u64) {
        let over: Vec<HolderId> =
            self.orphans.iter().filter(|(_, until)| **until <= now).map(|(id, _)| *id).collect();
        for id in over {
            self.orphans.remove(&id);
            for path in self.held.remove(&id).unwrap_or_default() {
                self.give_back(&path, id);
            }
        }
    }

    /// When the next holder's time is over, in ms.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        self.orphans.values().copied().min()
    }

    /// Takes the records that are to be written: as many as fit into so many changes and bytes.
    /// `None`: nothing.
    pub fn take_commit(&mut self, most: usize, bytes: usize) -> Option<Commit> {
        if self.unwritten() == 0 && !self.begins {
            return None;
        }
        let (mut changes, mut used) = (Vec::new(), 0);
        while let Some((key, value)) = self.first_dirty() {
            let cost = key.len() + value.as_ref().map_or(0, Vec::len) + 16;
            if !changes.is_empty() && (changes.len() == most || used + cost > bytes) {
                break;
            }
            used += cost;
            if self.dirty.pop_first().is_none() {
                self.dirty_items.pop_first();
            }
            changes.push((key, value));
        }
        self.begins = false;
        self.head.commits += 1;
        Some(Commit { head: self.head.encode(), changes, whole: self.unwritten() == 0 })
    }

    /// The record that is to be written first: nodes, then items.
    fn first_dirty(&self) -> Option<(String, Option<Vec<u8>>)> {
        if let Some(path) = self.dirty.first() {
            return Some((format!("{KEY_PREFIX}{path}"), self.nodes.get(path).map(record::encode)));
        }
        let (path, number) = self.dirty_items.first()?;
        let item = self.queues.get(path).and_then(|queue| queue.items.get(number));
        Some((record::item_key(path, *number), item.map(record::encode_item)))
    }

    /// How many nodes and items are to be written.
    #[must_use]
    pub fn unwritten(&self) -> usize {
        self.dirty.len() + self.dirty_items.len()
    }

    /// Takes the changes since this was called last.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Takes the grants to sessions that waited, since this was called last.
    pub fn take_grants(&mut self) -> Vec<Grant> {
        std::mem::take(&mut self.grants)
    }

    fn count(&mut self) -> u64 {
        self.head.revision += 1;
        self.head.revision
    }

    fn tell(&mut self, revision: u64, line: String) {
        self.events.push(Event { revision, line });
    }

    /// A number that no node has. It comes back after 2^24 others at the earliest.
    fn next_serial(&mut self) -> Option<u32> {
        // There are far fewer nodes than numbers.
        for _ in 0..=MAX_NODES {
            self.head.serial = (self.head.serial + 1) % SERIALS;
            if self.head.serial != 0 && !self.serials.contains_key(&self.head.serial) {
                return Some(self.head.serial);
            }
        }
        None
    }

    /// The folder in which something is to be made.
    fn folder_of(&self, path: &str) -> Result<(), Refusal> {
        let parent = parent_of(path).ok_or(Refusal::Name)?;
        if !parent.contains('/') {
            return Ok(());
        }
        match self.nodes.get(parent) {
            Some(node) if node.kind == Kind::Folder => Ok(()),
            Some(_) => Err(Refusal::NotFolder),
            None => Err(Refusal::Missing),
        }
    }

    fn room_for(&self, nodes: usize, bytes: usize) -> Result<(), Refusal> {
        let full =
            nodes > 0 && self.size().0 + nodes > MAX_NODES || bytes > 0 && self.bytes + bytes > MAX_BYTES;
        if full { Err(Refusal::Full) } else { Ok(()) }
    }

    fn room_of(&self, id: HolderId, path: &str) -> Result<(), Refusal> {
        let full = self.held.get(&id).is_some_and(|held| held.len() >= MAX_HELD && !held.contains(path));
        if full { Err(Refusal::Greedy) } else { Ok(()) }
    }

    fn take_away(&mut self, path: &str) -> u64 {
        let revision = self.count();
        if let Some(node) = self.nodes.remove(path) {
            self.bytes -= path.len() + node.value.len();
            self.serials.remove(&node.serial);
            for id in node.holders.iter().map(|holder| holder.id).chain(node.owner) {
                self.has_no_more(id, path);
            }
        }
        self.queues.remove(path);
        self.dirty.insert(path.to_owned());
        self.tell(revision, format!("rm {path}"));
        revision
    }

    fn has_no_more(&mut self, id: HolderId, path: &str) {
        let Some(held) = self.held.get_mut(&id) else { return };
        held.remove(path);
        if held.is_empty() {
            self.held.remove(&id);
            self.orphans.remove(&id);
        }
    }

    fn grant(&mut self, path: &str, id: HolderId, domain: &str) -> u64 {
        let token = self.count();
        if let Some(node) = self.nodes.get_mut(path) {
            node.revision = token;
            node.holders.push(Holder { id, token, domain: domain.to_owned() });
        }
        self.held.entry(id).or_default().insert(path.to_owned());
        self.dirty.insert(path.to_owned());
        self.tell(token, format!("held {token} {domain} {path}"));
        token
    }

    /// Gives back one thing that a holder had, of which [`State::held`] says nothing any more.
    fn give_back(&mut self, path: &str, id: HolderId) {
        let Some(node) = self.nodes.get_mut(path) else { return self.return_item(path, id) };
        if node.owner == Some(id) {
            self.take_away(path);
            return;
        }
        if node.kind == Kind::Barrier {
            return self.leave_barrier(path, id);
        }
        let before = node.holders.len();
        node.holders.retain(|holder| holder.id != id);
        if node.holders.len() == before {
            return;
        }
        let revision = self.count();
        if let Some(node) = self.nodes.get_mut(path) {
            node.revision = revision;
        }
        self.dirty.insert(path.to_owned());
        self.tell(revision, format!("free {path}"));
        self.serve_next(path);
    }

    /// Lets those have it who are next, as long as there is room.
    fn serve_next(&mut self, path: &str) {
        while self.nodes.get(path).is_some_and(Node::has_room) {
            let Some(queue) = self.waiting.get_mut(path) else { return };
            let next = queue.pop_front();
            if queue.is_empty() {
                self.waiting.remove(path);
            }
            let Some(Waiter { session, id, domain }) = next else { return };
            let token = self.grant(path, id, &domain);
            self.grants.push(Grant { session, path: path.to_owned(), token });
        }
    }

    fn stop_waiting(&mut self, session: SessionId) {
        self.waiting.retain(|_, queue| {
            queue.retain(|waiter| waiter.session != session);
            !queue.is_empty()
        });
        self.arrivals.retain(|_, waiting| *waiting != session);
        // Who was granted something and has not been told it holds it, and gives it back as any
        // holder.
        self.grants.retain(|grant| grant.session != session);
    }
}
