//! Keys and locks: a server of `coordination::State` that runs as a domain of the cluster, clients
//! on all machines, and what they were told.
//!
//! The server answers nobody before the registry has what it decided, as `services/coordinator`
//! does: that order is written a second time here.

use crate::cluster::client::{ATTEMPT_NS, Client, DEADLINE_NS, Failed};
use crate::cluster::machine::Instance;
use crate::cluster::world::{Planted, World};
use crate::etcd::{Entry, Expected, Transaction, Value};
use crate::network::Place;
use crate::time::{Bell, MS};
use coordination::{Asked, Commit, Expect, HolderId, Kind, Refusal, SessionId, State};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Where the records are in the registry.
const PREFIX: &str = "coordination/dc/sync/";
const HEAD: &str = "head";
/// Changes and bytes of one commit: few, so that some need several.
const COMMIT_CHANGES: usize = 3;
const COMMIT_BYTES: usize = 4_096;
/// How long who is not heard of keeps what it holds.
const GRACE_MS: u64 = 2_000;
/// How long a session may be silent before it is not heard of.
const SILENCE_MS: u64 = 1_500;
/// Pause before the registry is asked again.
const PAUSE_NS: u64 = 200 * MS;
/// How long a client waits for an answer.
const TIMEOUT_NS: u64 = 1_000 * MS;
/// Keys that clients write, and locks that they take.
const KEYS: [&str; 2] = ["kv/one", "kv/two"];
const LOCK: &str = "locks/one";

/// A request of a client.
#[derive(Debug, Clone)]
pub enum Request {
    /// Sets a key.
    Put(&'static str, u64, Expect),
    /// Reads a key.
    Get(&'static str),
    /// Asks for the lock, and waits for it.
    Lock(HolderId),
    /// Says that the holder is there, and shows what it has.
    Resume(HolderId, u64),
    /// Gives the lock back.
    Leave(HolderId),
}

/// An answer to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Its revision.
    Written(u64),
    /// The revision and the value of a key; 0: there is none.
    Read(u64, u64),
    /// The token.
    Granted(u64),
    /// It is as it should be.
    Fine,
    /// It was not done.
    Refused(Refusal),
}

/// A client that waits for an answer.
#[derive(Default)]
pub struct Waiting {
    reply: Cell<Option<Reply>>,
    bell: Bell,
}

type Outcome = (usize, Rc<Waiting>, Reply);

/// A life of the server.
pub struct Server {
    world: Rc<World>,
    machine: usize,
    inbox: RefCell<VecDeque<(usize, Request, Rc<Waiting>)>>,
    bell: Bell,
    /// The revision of the head; `None`: the commit was another server's.
    committed: RefCell<Option<Result<u64, ()>>>,
}

/// The answers that clients were given, and what must be so of them.
#[derive(Default)]
pub struct History {
    /// The mutations of each key: revision and value, and the revision that a compare-and-swap
    /// replaced.
    mutations: BTreeMap<&'static str, BTreeMap<u64, (u64, Option<u64>)>>,
    /// The values that somebody has tried to write, and into which key: no value twice.
    drawn: BTreeMap<u64, &'static str>,
    /// The greatest revision of each key that somebody was told.
    told: BTreeMap<&'static str, u64>,
    /// The greatest token that was told.
    token: u64,
    /// Answers.
    pub answers: u64,
    /// Grants.
    pub grants: u64,
}

impl History {
    fn floor(&self, key: &'static str) -> u64 {
        self.told.get(key).copied().unwrap_or(0)
    }

    /// A write or a read of `key` has been told, which began when `floor` had been told.
    fn saw(
        &mut self,
        key: &'static str,
        (revision, value): (u64, u64),
        replaced: Option<u64>,
        (floor, is_write): (u64, bool),
    ) -> Result<(), String> {
        self.answers += 1;
        let told = self.told.entry(key).or_default();
        *told = (*told).max(revision);
        if revision < floor || (is_write && revision == floor) {
            return Err(format!("{key}: revision {revision} was told after {floor} had been"));
        }
        if revision == 0 {
            return Ok(());
        }
        let of_key = self.mutations.entry(key).or_default();
        let (known, replaced_before) = of_key.get(&revision).copied().unwrap_or((value, None));
        of_key.insert(revision, (value, replaced.or(replaced_before)));
        if known != value {
            return Err(format!("{key}: revision {revision} is {known} and {value}"));
        }
        if self.drawn.get(&value) != Some(&key) {
            return Err(format!("{key}: nobody wrote {value}, which was read"));
        }
        Ok(())
    }

    /// A writer that replaced a revision replaced the last one.
    fn check(&self) -> Result<(), String> {
        for (key, of_key) in &self.mutations {
            for (revision, (_, replaced)) in of_key {
                let Some(replaced) = replaced else { continue };
                if let Some((between, _)) = of_key.range(replaced + 1..*revision).next() {
                    return Err(format!("{key}: {revision} replaced {replaced}, and {between} was there"));
                }
            }
        }
        Ok(())
    }
}

/// Checks what can be seen only in the end.
pub fn check(world: &World) {
    let checked = world.history.borrow().check();
    if let Err(why) = checked {
        world.fail(why);
    }
}

fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

fn holder(world: &World) -> HolderId {
    let mut id = [0; 16];
    let words = [world.time.between(0, u64::MAX), world.time.between(0, u64::MAX)];
    id[..8].copy_from_slice(&words[0].to_le_bytes());
    id[8..].copy_from_slice(&words[1].to_le_bytes());
    HolderId(id)
}

/// The server's program, from the start of its domain to its end.
pub async fn serve(world: Rc<World>, machine: usize, instance: Rc<Instance>) {
    let server = Rc::new(Server {
        world: Rc::clone(&world),
        machine,
        inbox: RefCell::default(),
        bell: Bell::default(),
        committed: RefCell::default(),
    });
    world.servers.borrow_mut().insert(machine, Rc::clone(&server));
    server.run(&instance).await;
    let mut servers = world.servers.borrow_mut();
    if servers.get(&machine).is_some_and(|there| Rc::ptr_eq(there, &server)) {
        servers.remove(&machine);
    }
}

/// A session, as the server knows it.
struct Session {
    id: SessionId,
    client: usize,
    heard_ms: u64,
    /// The client that waits for the lock.
    waits: Option<Rc<Waiting>>,
}

/// The server's own memory.
struct Memory {
    state: State,
    head: u64,
    sessions: BTreeMap<HolderId, Session>,
    last_session: u64,
    pending: Vec<Outcome>,
    under_way: Option<Vec<Outcome>>,
}

impl Server {
    fn now_ms(&self) -> u64 {
        self.world.machines[self.machine].shows(&self.world.time) / MS
    }

    /// The registry is reached through the daemon: without one everything waits.
    async fn with_daemon<T, F: Future<Output = Result<T, Failed>>>(&self, ask: impl Fn(Client) -> F) -> T {
        loop {
            if self.world.machines[self.machine].daemon.borrow().is_some()
                && let Ok(told) = ask(Client::new(&self.world, self.machine)).await
            {
                return told;
            }
            self.world.time.pause(PAUSE_NS).await;
        }
    }

    async fn load(&self) -> Option<Memory> {
        let records = self.with_daemon(|client| async move { client.list(PREFIX).await }).await;
        let of = |(key, entry): (String, Entry)| (key[PREFIX.len()..].to_owned(), entry);
        let (heads, records): (Vec<_>, Vec<_>) =
            records.into_iter().map(of).partition(|(key, _)| key == HEAD);
        let head = heads.first().map(|(_, entry)| entry);
        let records = records.into_iter().map(|(key, entry)| (key, entry.value.to_vec()));
        let until = self.now_ms() + GRACE_MS;
        match State::load(head.map(|head| &*head.value), records, holder(&self.world), until) {
            Ok(mut state) => {
                // The first server makes what clients need; who comes later finds it.
                let _there = state.make(LOCK, Kind::Lock);
                Some(Memory {
                    state,
                    head: head.map_or(0, |head| head.revision),
                    sessions: BTreeMap::new(),
                    last_session: 0,
                    pending: Vec::new(),
                    under_way: None,
                })
            }
            Err(why) => {
                self.world.fail(format!("the state is damaged: {why}"));
                None
            }
        }
    }

    async fn run(self: &Rc<Self>, instance: &Instance) {
        let Some(mut memory) = self.load().await else { return };
        let machine = self.machine;
        self.world.tell(|| format!("n{machine} serves keys and locks, epoch {}", memory.state.epoch()));
        while !instance.is_over.get() {
            let until = self.world.time.now() + 250 * MS;
            self.bell.wait(&self.world.time, until).await;
            if let Some(committed) = self.committed.borrow_mut().take() {
                let Ok(revision) = committed else {
                    self.world.tell(|| format!("the server on n{machine} is superseded"));
                    return;
                };
                memory.head = revision;
                for outcome in memory.under_way.take().unwrap_or_default() {
                    self.answer(outcome);
                }
            }
            let asked: Vec<_> = self.inbox.borrow_mut().drain(..).collect();
            for (client, request, waiting) in asked {
                self.decide(&mut memory, client, &request, &waiting);
            }
            self.lose_silent(&mut memory);
            memory.state.expire(self.now_ms());
            self.flush(&mut memory);
        }
    }

    fn decide(&self, memory: &mut Memory, client: usize, request: &Request, waiting: &Rc<Waiting>) {
        let state = &mut memory.state;
        let domain = format!("c{client}");
        let reply = match request {
            Request::Put(key, value, expect) => {
                state.put(key, value.to_string().as_bytes(), *expect, None).map(Reply::Written)
            }
            Request::Get(key) => Ok(state.node(key).map_or(Reply::Read(0, 0), |node| {
                let value = String::from_utf8_lossy(&node.value).parse().unwrap_or(0);
                Reply::Read(node.revision, value)
            })),
            Request::Lock(id) => {
                if memory.sessions.contains_key(id) {
                    return;
                }
                memory.last_session += 1;
                let session = SessionId(memory.last_session);
                let asked = state.ask(LOCK, (session, *id), &domain, false);
                let waits = matches!(asked, Ok(Asked::Waits)).then(|| Rc::clone(waiting));
                let heard_ms = self.now_ms();
                let is_waiting = waits.is_some();
                memory.sessions.insert(*id, Session { id: session, client, heard_ms, waits });
                if is_waiting {
                    return;
                }
                asked.map(|asked| match asked {
                    Asked::Granted(token) => Reply::Granted(token),
                    Asked::Waits => Reply::Fine,
                })
            }
            Request::Resume(id, token) => {
                let resumed = state.resume(LOCK, *id, *token, &domain);
                if resumed.is_ok() {
                    let last = &mut memory.last_session;
                    let session = memory.sessions.entry(*id).or_insert_with(|| {
                        *last += 1;
                        Session { id: SessionId(*last), client, heard_ms: 0, waits: None }
                    });
                    session.heard_ms = self.now_ms();
                }
                resumed.map(|()| Reply::Fine)
            }
            Request::Leave(id) => {
                if let Some(session) = memory.sessions.remove(id) {
                    state.leave(session.id, *id);
                }
                Ok(Reply::Fine)
            }
        };
        let reply = reply.unwrap_or_else(Reply::Refused);
        memory.pending.push((client, Rc::clone(waiting), reply));
    }

    /// Sessions that are not heard of: what they hold is kept for a while.
    fn lose_silent(&self, memory: &mut Memory) {
        let now = self.now_ms();
        let silent = memory.sessions.iter().filter(|(_, session)| session.heard_ms + SILENCE_MS <= now);
        let silent: Vec<HolderId> = silent.map(|(id, _)| *id).collect();
        for id in silent {
            if let Some(session) = memory.sessions.remove(&id) {
                memory.state.orphan(session.id, id, now + GRACE_MS);
            }
        }
    }

    fn flush(self: &Rc<Self>, memory: &mut Memory) {
        for grant in memory.state.take_grants() {
            let session = memory.sessions.values_mut().find(|session| session.id == grant.session);
            if let Some(session) = session
                && let Some(waiting) = session.waits.take()
            {
                memory.pending.push((session.client, waiting, Reply::Granted(grant.token)));
            }
        }
        if self.world.config.planted == Some(Planted::EarlyAnswer) {
            for outcome in std::mem::take(&mut memory.pending) {
                self.answer(outcome);
            }
        }
        if memory.under_way.is_some() {
            return;
        }
        let commit = memory.state.take_commit(COMMIT_CHANGES, COMMIT_BYTES);
        let whole = commit.as_ref().is_none_or(|commit| commit.whole);
        if commit.is_none() && memory.pending.is_empty() {
            return;
        }
        memory.under_way = Some(if whole { std::mem::take(&mut memory.pending) } else { Vec::new() });
        let (of, head) = (Rc::clone(self), memory.head);
        self.world.time.spawn(self.world.machines[self.machine].owner(), async move {
            let done = of.commit(head, commit).await;
            *of.committed.borrow_mut() = Some(done);
            of.bell.ring(&of.world.time);
        });
    }

    /// Has it written, if no other server has written since; without a commit: looks that none has.
    async fn commit(&self, expected: u64, commit: Option<Commit>) -> Result<u64, ()> {
        let expected_head = if expected == 0 { Expected::Absent } else { Expected::Revision(expected) };
        let mut transaction = Transaction { read: vec![key(HEAD)], ..Transaction::default() };
        let mut head: Option<Value> = None;
        if let Some(commit) = commit {
            let value: Value = commit.head.into();
            head = Some(Rc::clone(&value));
            transaction.when = vec![(key(HEAD), expected_head)];
            transaction.then = vec![(key(HEAD), Some((value, 0)))];
            let changes = commit.changes.into_iter();
            transaction
                .then
                .extend(changes.map(|(name, value)| (key(&name), value.map(|value| (value.into(), 0)))));
        }
        let ask = |client: Client| {
            let transaction = transaction.clone();
            async move { client.transact(transaction, DEADLINE_NS, ATTEMPT_NS).await }
        };
        let (met, revision, read) = self.with_daemon(ask).await;
        let there = read.into_iter().next().flatten();
        match head {
            Some(_) if met => Ok(revision),
            // It was written already, and only the answer was lost: the head names its writer.
            Some(head) => there.filter(|there| there.value == head).map(|there| there.revision).ok_or(()),
            None if there.map_or(0, |there| there.revision) == expected => Ok(expected),
            None => Err(()),
        }
    }

    fn answer(&self, (client, waiting, reply): Outcome) {
        if let Reply::Granted(token) = reply {
            let mut history = self.world.history.borrow_mut();
            let before = std::mem::replace(&mut history.token, token);
            history.grants += 1;
            drop(history);
            if token <= before {
                self.world.fail(format!("token {token} was granted after {before}"));
            }
        }
        let to = client_machine(&self.world, client);
        let [at, _] =
            self.world.network.arrivals(&self.world.time, Place::Machine(self.machine), Place::Machine(to));
        if let Some(at) = at {
            let time = self.world.time.clone();
            self.world.time.at(at, move || {
                waiting.reply.set(Some(reply));
                waiting.bell.ring(&time);
            });
        }
    }
}

fn client_machine(world: &World, client: usize) -> usize {
    client % world.machines.len()
}

/// Clients of all kinds, on machines one after the other; they live as long as the world.
pub fn begin(world: &Rc<World>) {
    for client in 0..world.machines.len().max(3) {
        let of = Rc::clone(world);
        world.time.spawn(crate::cluster::trouble::FATE, async move { keys(of, client).await });
        let of = Rc::clone(world);
        world.time.spawn(crate::cluster::trouble::FATE, async move { locks(of, client).await });
    }
}

/// Asks the server that is known to run, if there is one. `None`: nobody knows whether it was done.
async fn ask(world: &Rc<World>, client: usize, request: Request) -> Option<Reply> {
    let waiting = Rc::new(Waiting::default());
    let until = world.time.now() + TIMEOUT_NS;
    let from = client_machine(world, client);
    // Whoever is a server: also one that is about to be superseded.
    let servers: Vec<usize> = world.servers.borrow().keys().copied().collect();
    if !servers.is_empty() && world.machines[from].is_on.get() {
        let to = servers[world.time.index(servers.len())];
        let [at, _] = world.network.arrivals(&world.time, Place::Machine(from), Place::Machine(to));
        if let Some(at) = at {
            let (of, waits) = (Rc::clone(world), Rc::clone(&waiting));
            world.time.at(at, move || {
                let server = of.servers.borrow().get(&to).cloned();
                if let Some(server) = server {
                    server.inbox.borrow_mut().push_back((client, request, waits));
                    server.bell.ring(&of.time);
                }
            });
        }
    }
    loop {
        if let Some(reply) = waiting.reply.take() {
            return Some(reply);
        }
        if world.time.now() >= until {
            return None;
        }
        waiting.bell.wait(&world.time, until).await;
    }
}

/// Writes and reads keys.
async fn keys(world: Rc<World>, client: usize) {
    let mut known: BTreeMap<&str, u64> = BTreeMap::new();
    loop {
        world.time.pause(world.time.between(20, 900) * MS).await;
        let key = KEYS[world.time.index(KEYS.len())];
        let (floor, value) = {
            let mut history = world.history.borrow_mut();
            let value = history.drawn.len() as u64 + 1;
            history.drawn.insert(value, key);
            (history.floor(key), value)
        };
        let expect = match known.get(key) {
            Some(revision) if world.time.per_mille(500) => Expect::Revision(*revision),
            _ => Expect::Anything,
        };
        let writes = world.time.per_mille(500);
        let request = if writes { Request::Put(key, value, expect) } else { Request::Get(key) };
        let reply = ask(&world, client, request).await;
        let mut history = world.history.borrow_mut();
        let seen = match reply {
            Some(Reply::Written(revision)) => {
                known.insert(key, revision);
                let replaced = if let Expect::Revision(replaced) = expect { Some(replaced) } else { None };
                history.saw(key, (revision, value), replaced, (floor, true))
            }
            Some(Reply::Read(revision, value)) => {
                known.insert(key, revision);
                history.saw(key, (revision, value), None, (floor, false))
            }
            _ => Ok(()),
        };
        drop(history);
        if let Err(why) = seen {
            world.fail(why);
        }
    }
}

/// Takes the lock, holds it for a while, and gives it back, or dies with it.
async fn locks(world: Rc<World>, client: usize) {
    loop {
        world.time.pause(world.time.between(200, 3_000) * MS).await;
        let id = holder(&world);
        let Some(Reply::Granted(token)) = ask(&world, client, Request::Lock(id)).await else { continue };
        let until = world.time.now() + world.time.between(100, 4_000) * MS;
        let mut has_it = true;
        while has_it && world.time.now() < until {
            world.time.pause(300 * MS).await;
            let shown = ask(&world, client, Request::Resume(id, token)).await;
            has_it = !matches!(shown, Some(Reply::Refused(_)));
        }
        if has_it && world.time.per_mille(800) {
            // Where that is not heard, its time is over soon.
            let _late = ask(&world, client, Request::Leave(id)).await;
        }
    }
}
