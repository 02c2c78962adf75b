//! Random steps of sessions and servers, against what the rules say.

use coordination::{Asked, Expect, HolderId, Kind, MAX_WAITERS_PER_LOCK, Refusal, SessionId, State};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A grace, in ms of the tests' clock.
const GRACE: u64 = 100;

/// The registry: a head that is only replaced by who knows it, and records.
#[derive(Debug, Default, Clone)]
struct Registry {
    head: Option<Vec<u8>>,
    revision: u64,
    records: BTreeMap<String, Vec<u8>>,
}

/// A server and what it knows of the registry.
struct Server {
    state: State,
    believes: u64,
}

impl Server {
    fn start(registry: &Registry, number: u8, now: u64) -> Self {
        let records = registry.records.iter().map(|(key, value)| (key.clone(), value.clone()));
        let state = State::load(registry.head.as_deref(), records, HolderId([number; 16]), now + GRACE)
            .expect("it is allowed");
        Self { state, believes: registry.revision }
    }

    /// Whether everything that it decided is committed; if not, it is superseded.
    fn commit(&mut self, registry: &mut Registry) -> bool {
        while let Some(commit) = self.state.take_commit(3, 4096) {
            if registry.revision != self.believes {
                return false;
            }
            registry.revision += 1;
            self.believes = registry.revision;
            registry.head = Some(commit.head);
            for (key, value) in commit.changes {
                match value {
                    Some(value) => registry.records.insert(key, value),
                    None => registry.records.remove(&key),
                };
            }
        }
        registry.revision == self.believes
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// A session asks for a lock.
    Ask {
        lock: u8,
    },
    /// A session is over.
    Leave {
        which: usize,
    },
    /// A session's channel is lost; it shows what it has after so long.
    Lose {
        which: usize,
        comes_back: bool,
    },
    Wait {
        ms: u64,
    },
    /// The server dies, with or without what it had decided being committed; who holds something
    /// comes back or not.
    Restart {
        commits: bool,
        all_come_back: bool,
    },
    /// The server goes on, but another one has begun: whatever it decides is told to nobody.
    Supersede,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2_u8).prop_map(|lock| Step::Ask { lock }),
        4 => any::<usize>().prop_map(|which| Step::Leave { which }),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(which, comes_back)| Step::Lose { which, comes_back }),
        1 => (0..2 * GRACE).prop_map(|ms| Step::Wait { ms }),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(commits, all)| Step::Restart { commits, all_come_back: all }),
        1 => Just(Step::Supersede),
    ]
}

/// A session as its program sees it: what it was told.
#[derive(Debug, Clone)]
struct Client {
    id: SessionId,
    holder: HolderId,
    lock: u8,
    token: Option<u64>,
}

struct World {
    registry: Registry,
    server: Server,
    clients: Vec<Client>,
    now: u64,
    servers: u8,
    sessions: u64,
    /// The greatest token of each lock that anybody was told.
    greatest: BTreeMap<u8, u64>,
}

fn path(lock: u8) -> String {
    // One lock, and one semaphore of two.
    if lock == 0 { "locks/one".into() } else { "semaphores/two".into() }
}

impl World {
    fn new() -> Self {
        let registry = Registry::default();
        let server = Server::start(&registry, 1, 0);
        let mut world = Self {
            registry,
            server,
            clients: Vec::new(),
            now: 0,
            servers: 1,
            sessions: 0,
            greatest: BTreeMap::new(),
        };
        world.server.state.make("locks/one", Kind::Lock).expect("it is allowed");
        world.server.state.make("semaphores/two", Kind::Lock).expect("it is allowed");
        world.server.state.set_count("semaphores/two", 2).expect("it is allowed");
        assert!(world.server.commit(&mut world.registry));
        world
    }

    fn holder(&mut self) -> (SessionId, HolderId) {
        self.sessions += 1;
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.sessions.to_le_bytes());
        (SessionId(self.sessions), HolderId(id))
    }

    /// Commits, and only then tells: tokens grow, and nobody has a lock that is another's.
    fn tell(&mut self, mut granted: Vec<(SessionId, u64)>) {
        granted.extend(self.server.state.take_grants().into_iter().map(|grant| (grant.session, grant.token)));
        if !self.server.commit(&mut self.registry) {
            return;
        }
        for (session, token) in granted {
            let Some(client) = self.clients.iter_mut().find(|client| client.id == session) else { continue };
            let greatest = self.greatest.entry(client.lock).or_default();
            assert!(token > *greatest, "token {token} of {} after {greatest}", path(client.lock));
            *greatest = token;
            client.token = Some(token);
        }
        self.check();
    }

    /// Checks that the server has what its records say, and that no more hold a lock than may;
    /// whoever was told that it holds one and is heard of does.
    fn check(&self) {
        for lock in 0..2 {
            let node = self.server.state.node(&path(lock)).expect("it is there");
            let held: BTreeSet<u64> = node.held_by().map(|(token, _)| token).collect();
            assert!(held.len() <= node.count as usize);
            let told =
                self.clients.iter().filter(|client| client.lock == lock).filter_map(|client| client.token);
            for token in told {
                assert!(held.contains(&token), "{token} is held: {held:?}");
            }
        }
        let again = Server::start(&self.registry, 0, self.now);
        for (path, node) in self.server.state.below("") {
            assert_eq!(again.state.node(path), Some(node), "{path} is not as it is written down");
        }
        assert_eq!(again.state.size(), self.server.state.size());
    }

    /// Clients of a server that is no more: those that hold something show it to the next, if they
    /// come back in time; the others ask again.
    fn restart(&mut self, come_back: bool) {
        self.servers = self.servers.wrapping_add(1);
        self.server = Server::start(&self.registry, self.servers, self.now);
        assert!(self.server.commit(&mut self.registry));
        let mut kept = Vec::new();
        for mut client in std::mem::take(&mut self.clients) {
            let Some(token) = client.token.filter(|_| come_back) else { continue };
            self.sessions += 1;
            client.id = SessionId(self.sessions);
            self.server
                .state
                .resume(&path(client.lock), client.holder, token, "a")
                .expect("it was told, so it is kept");
            kept.push(client);
        }
        self.clients = kept;
        self.tell(Vec::new());
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Ask { lock } => {
                let (id, holder) = self.holder();
                self.clients.push(Client { id, holder, lock, token: None });
                match self.server.state.ask(&path(lock), (id, holder), "a", false) {
                    Ok(Asked::Granted(token)) => self.tell(vec![(id, token)]),
                    Ok(Asked::Waits) => self.tell(Vec::new()),
                    Err(refusal) => panic!("{refusal}"),
                }
            }
            Step::Leave { which } if !self.clients.is_empty() => {
                let client = self.clients.remove(which % self.clients.len());
                self.server.state.leave(client.id, client.holder);
                self.tell(Vec::new());
            }
            Step::Lose { which, comes_back } if !self.clients.is_empty() => {
                let mut client = self.clients.remove(which % self.clients.len());
                self.server.state.orphan(client.id, client.holder, self.now + GRACE);
                if let (true, Some(token)) = (comes_back, client.token) {
                    self.sessions += 1;
                    client.id = SessionId(self.sessions);
                    self.server
                        .state
                        .resume(&path(client.lock), client.holder, token, "a")
                        .expect("it is in time");
                    self.clients.push(client);
                }
                self.tell(Vec::new());
            }
            Step::Wait { ms } => {
                self.now += ms;
                self.server.state.expire(self.now);
                self.tell(Vec::new());
            }
            Step::Restart { commits, all_come_back } => {
                // Something was decided and nobody was told: it may be written down, or not.
                let (id, holder) = self.holder();
                let _decided = self.server.state.ask("locks/one", (id, holder), "a", false);
                if commits {
                    self.server.commit(&mut self.registry);
                }
                self.restart(all_come_back);
            }
            Step::Supersede => {
                let (id, holder) = self.holder();
                let mut next = Server::start(&self.registry, self.servers.wrapping_add(100), self.now);
                assert!(next.commit(&mut self.registry));
                let before = self.registry.clone();
                let _decided = self.server.state.ask("locks/one", (id, holder), "a", false);
                let _decided = self.server.state.put("kv/stale", b"1", Expect::Anything, None);
                assert!(!self.server.commit(&mut self.registry), "two servers write");
                assert_eq!(self.registry.records, before.records);
                self.restart(true);
            }
            Step::Leave { .. } | Step::Lose { .. } => {}
        }
    }
}

proptest! {
    #[test]
    fn exclusion_and_tokens_hold_whatever_dies(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
        // When everybody has gone and all time is over, nobody holds anything.
        for client in std::mem::take(&mut world.clients) {
            world.server.state.leave(client.id, client.holder);
        }
        world.server.state.expire(u64::MAX);
        world.tell(Vec::new());
        for lock in 0..2 {
            prop_assert_eq!(world.server.state.node(&path(lock)).expect("it is allowed").held_by().count(), 0);
            prop_assert_eq!(world.server.state.waiting_for(&path(lock)), 0);
        }
    }

    /// Keys against a map that knows nothing but what the rules say.
    #[test]
    fn keys_are_what_a_map_is(steps in prop::collection::vec((0..5_u8, 0..4_u8, 0..3_u8, any::<u8>()), 1..60)) {
        let mut registry = Registry::default();
        let mut server = Server::start(&registry, 1, 0);
        let mut map: BTreeMap<String, (u64, u8)> = BTreeMap::new();
        let mut last = 0;
        for (what, key, belief, value) in steps {
            let path = format!("kv/{key}");
            let there = map.get(&path).copied();
            let expect = match belief {
                0 => Expect::Anything,
                1 => Expect::Absent,
                _ => Expect::Revision(there.map_or(u64::MAX, |(revision, _)| revision)),
            };
            let meets = match expect {
                Expect::Anything => true,
                Expect::Absent => there.is_none(),
                Expect::Revision(_) => there.is_some(),
            };
            if what == 4 {
                assert!(server.commit(&mut registry));
                server = Server::start(&registry, key.wrapping_add(value), 0);
            } else if what == 3 {
                let removed = server.state.remove(&path, expect);
                prop_assert_eq!(removed.is_ok(), there.is_some() && expect != Expect::Absent);
                if let Ok(revision) = removed {
                    prop_assert!(revision > last);
                    last = revision;
                    map.remove(&path);
                }
            } else {
                let put = server.state.put(&path, &[value], expect, None);
                prop_assert_eq!(put.is_ok(), meets, "{:?} {:?}", put, expect);
                if let Ok(revision) = put {
                    prop_assert!(revision > last);
                    last = revision;
                    map.insert(path.clone(), (revision, value));
                }
            }
            for (path, (revision, value)) in &map {
                let node = server.state.node(path).expect("it was put");
                prop_assert_eq!((node.revision, node.value.as_slice()), (*revision, &[*value][..]));
            }
            prop_assert_eq!(server.state.size().0, map.len());
        }
    }

    #[test]
    fn any_record_is_understood_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let records = vec![("n/kv/a".to_owned(), bytes.clone())];
        let _understood = State::load(None, records, HolderId([1; 16]), 0);
        let _understood = State::load(Some(&bytes), Vec::new(), HolderId([1; 16]), 0);
    }
}

#[test]
fn the_line_of_a_lock_and_what_one_session_holds_have_bounds() {
    let mut state = State::load(None, Vec::new(), HolderId([9; 16]), 0).expect("it is allowed");
    state.make("locks/a", Kind::Lock).expect("it is allowed");
    let session = |number: u64| {
        let mut id = [1; 16];
        id[..8].copy_from_slice(&number.to_le_bytes());
        (SessionId(number), HolderId(id))
    };
    for number in 0..=MAX_WAITERS_PER_LOCK as u64 {
        state.ask("locks/a", session(number), "a", false).expect("it is allowed");
    }
    assert_eq!(state.ask("locks/a", session(u64::MAX), "a", false), Err(Refusal::Crowded));
    let owner = session(7).1;
    for number in 0..coordination::MAX_HELD {
        if let Err(refusal) = state.put(&format!("kv/{number}"), b"", Expect::Absent, Some(owner)) {
            panic!("{number}: {refusal}");
        }
    }
    assert_eq!(state.put("kv/more", b"", Expect::Absent, Some(owner)), Err(Refusal::Greedy));
    assert_eq!(state.remove("locks/a", Expect::Anything), Err(Refusal::Busy));
}

#[test]
fn a_key_of_a_session_that_somebody_else_writes_is_nobodys() {
    let mut state = State::load(None, Vec::new(), HolderId([9; 16]), 0).expect("it is allowed");
    let owner = HolderId([1; 16]);
    state.put("kv/a", b"mine", Expect::Absent, Some(owner)).expect("it is allowed");
    state.put("kv/a", b"ours", Expect::Anything, None).expect("it is allowed");
    state.leave(SessionId(1), owner);
    assert_eq!(state.node("kv/a").map(|node| node.value.clone()), Some(b"ours".to_vec()));
}
