//! Barriers and queues under random steps, with servers that die and participants that die, against
//! what the rules say.

use coordination::{
    Asked, Expect, HolderId, Kind, MAX_PARTIES, MAX_PUSHES, Place, PushId, Pushed, Refusal, SessionId, State,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const BARRIER: &str = "barriers/phase";
const QUEUE: &str = "queues/jobs";
const GRACE: u64 = 100;
const PARTIES: usize = 3;
const ROOM: usize = 4;

type Records = BTreeMap<String, Vec<u8>>;

/// A server over a registry: a commit is all that was decided.
struct Server {
    state: State,
    head: Option<Vec<u8>>,
    records: Records,
    servers: u8,
}

impl Server {
    fn new() -> Self {
        let state = State::load(None, Vec::new(), HolderId([1; 16]), 0).expect("nothing is understood");
        Self { state, head: None, records: Records::new(), servers: 1 }
    }

    fn commit(&mut self) {
        while let Some(commit) = self.state.take_commit(3, 4096) {
            self.head = Some(commit.head);
            for (key, value) in commit.changes {
                match value {
                    Some(value) => self.records.insert(key, value),
                    None => self.records.remove(&key),
                };
            }
        }
    }

    /// The server dies: what was not committed never was.
    fn restart(&mut self, now: u64) {
        self.servers = self.servers.wrapping_add(1);
        let writer = HolderId([self.servers; 16]);
        self.state = State::load(self.head.as_deref(), self.records.clone(), writer, now + GRACE)
            .expect("its own records are understood");
        self.commit();
    }
}

fn holder(number: u64) -> HolderId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&number.to_le_bytes());
    HolderId(id)
}

#[derive(Debug, Clone)]
enum Step {
    /// Arrives, or takes an item.
    Come,
    /// Goes: closes, or is killed.
    Go(usize),
    /// Its node is lost, and it does not come back.
    Lose(usize),
    Wait(u64),
    /// The server dies; decisions that nobody was told are committed, or not. Of the participants
    /// these come back.
    Restart {
        commits: bool,
        back: u8,
    },
    Push,
    Done(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Come),
        2 => any::<usize>().prop_map(Step::Go),
        1 => any::<usize>().prop_map(Step::Lose),
        1 => (0..2 * GRACE).prop_map(Step::Wait),
        1 => (any::<bool>(), any::<u8>()).prop_map(|(commits, back)| Step::Restart { commits, back }),
        5 => Just(Step::Push),
        4 => any::<usize>().prop_map(Step::Done),
    ]
}

/// Whoever waits at the barrier, and has been told nothing yet.
struct Crowd {
    server: Server,
    now: u64,
    numbers: u64,
    waiting: BTreeMap<u64, SessionId>,
    /// Those who were told each generation.
    told: BTreeMap<u64, BTreeSet<u64>>,
    /// Those who arrived in each generation, and that was committed.
    arrived: BTreeMap<u64, BTreeSet<u64>>,
}

impl Crowd {
    fn new() -> Self {
        let mut server = Server::new();
        server.state.make(BARRIER, Kind::Barrier).expect("a barrier");
        server.state.set_parties(BARRIER, PARTIES as u32).expect("parties");
        server.commit();
        let (waiting, told, arrived) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { server, now: 0, numbers: 0, waiting, told, arrived }
    }

    fn generation(&self) -> u64 {
        self.server.state.node(BARRIER).expect("it is there").generation
    }

    /// Commits, and then tells.
    fn tell(&mut self) {
        self.server.commit();
        for grant in self.server.state.take_grants() {
            let (&number, _) =
                self.waiting.iter().find(|(_, session)| **session == grant.session).expect("it waits");
            self.waiting.remove(&number);
            assert!(self.told.entry(grant.token).or_default().insert(number), "told twice");
        }
        for session in self.server.state.take_broken() {
            self.waiting.retain(|_, waits| *waits != session);
        }
        let node = self.server.state.node(BARRIER).expect("it is there");
        assert!(node.awaited_in().count() < PARTIES, "enough are there, and it is not open");
    }

    fn come(&mut self) {
        self.numbers += 1;
        let (session, id) = (SessionId(self.numbers), holder(self.numbers));
        let generation = self.generation();
        self.server.state.arrive(BARRIER, (session, id), "a").expect("there is room");
        self.waiting.insert(self.numbers, session);
        self.arrived.entry(generation).or_default().insert(self.numbers);
    }

    fn nth(&self, which: usize) -> Option<u64> {
        self.waiting.keys().nth(which % self.waiting.len().max(1)).copied()
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Come => self.come(),
            Step::Go(which) => {
                if let Some(number) = self.nth(which) {
                    let session = self.waiting.remove(&number).expect("it waits");
                    self.server.state.leave(session, holder(number));
                }
            }
            Step::Lose(which) => {
                if let Some(number) = self.nth(which) {
                    let session = self.waiting.remove(&number).expect("it waits");
                    self.server.state.orphan(session, holder(number), self.now + GRACE);
                }
            }
            Step::Wait(ms) => {
                self.now += ms;
                self.server.state.expire(self.now);
            }
            Step::Restart { commits, back } => self.restart(commits, back),
            Step::Push | Step::Done(_) => {}
        }
        self.tell();
    }

    fn restart(&mut self, commits: bool, back: u8) {
        // Somebody arrives, maybe as the last one, and nobody is told before the server dies.
        self.come();
        if commits {
            self.server.commit();
        } else {
            let generation = self.arrived.iter_mut().find(|(_, them)| them.contains(&self.numbers));
            generation.expect("it came").1.remove(&self.numbers);
        }
        self.server.restart(self.now);
        for (number, _) in std::mem::take(&mut self.waiting) {
            if back >> (number % 8) & 1 == 0 {
                continue;
            }
            self.numbers += 1;
            let session = SessionId(1 << 32 | self.numbers);
            match self.server.state.arrived_before(BARRIER, (session, holder(number)), "a") {
                Place::Waits => {
                    self.waiting.insert(number, session);
                }
                Place::Passed(generation) => {
                    assert!(self.told.entry(generation).or_default().insert(number), "told twice");
                }
                Place::Nowhere => assert!(!commits || back != 255, "what was committed is kept"),
            }
        }
    }
}

/// Whoever takes items, and what was pushed.
struct Workers {
    server: Server,
    now: u64,
    numbers: u64,
    /// Holders with the item that they were told of, if they were.
    workers: BTreeMap<u64, (SessionId, Option<u64>)>,
    /// Items by their bytes: pushed, with the answer told.
    pushed: Vec<u64>,
    waiting: BTreeMap<PushId, u64>,
    done: BTreeSet<u64>,
}

impl Workers {
    fn new() -> Self {
        let mut server = Server::new();
        server.state.make(QUEUE, Kind::Queue).expect("a queue");
        server.state.set_queue(QUEUE, ROOM as u32, true).expect("room");
        server.commit();
        let (workers, pushed, waiting, done) =
            (BTreeMap::new(), Vec::new(), BTreeMap::new(), BTreeSet::new());
        Self { server, now: 0, numbers: 0, workers, pushed, waiting, done }
    }

    fn tell(&mut self) {
        self.server.commit();
        for (push, result) in self.server.state.take_pushed() {
            result.expect("there is room in the service");
            self.pushed.push(self.waiting.remove(&push).expect("it waited"));
        }
        for grant in self.server.state.take_grants() {
            let worker = self.workers.values_mut().find(|(session, _)| *session == grant.session);
            worker.expect("it waits").1 = Some(grant.token);
        }
        let (items, given, pushes) = self.server.state.queue_of(QUEUE);
        assert!(items <= ROOM && given <= items);
        assert!(pushes == 0 || items == ROOM, "a push waits, and there is room");
        let told: Vec<u64> = self.workers.values().filter_map(|(_, item)| *item).collect();
        let different: BTreeSet<u64> = told.iter().copied().collect();
        assert_eq!(told.len(), different.len(), "an item is two workers'");
        let idle = self.workers.values().any(|(_, item)| item.is_none());
        assert!(!idle || given == items, "an item waits, and so does a worker");
        let again = State::load(
            self.server.head.as_deref(),
            self.server.records.clone(),
            HolderId([0; 16]),
            self.now,
        )
        .expect("it is understood");
        assert_eq!(again.size(), self.server.state.size());
        assert_eq!(
            again.given(QUEUE).collect::<Vec<_>>(),
            self.server.state.given(QUEUE).collect::<Vec<_>>()
        );
    }

    fn ask(&mut self, number: u64) {
        self.numbers += 1;
        let session = SessionId(self.numbers);
        let asked = self.server.state.take(QUEUE, (session, holder(number)), "a", false);
        let item = match asked.expect("there is room") {
            Asked::Granted(item) => Some(item),
            Asked::Waits => None,
        };
        self.workers.insert(number, (session, item));
    }

    fn nth(&self, which: usize) -> Option<u64> {
        self.workers.keys().nth(which % self.workers.len().max(1)).copied()
    }

    fn push(&mut self) {
        self.numbers += 1;
        let value = self.numbers;
        match self.server.state.push(QUEUE, value.to_le_bytes().to_vec(), PushId(value), false) {
            Ok(Pushed::Done) => self.pushed.push(value),
            Ok(Pushed::Waits) => {
                self.waiting.insert(PushId(value), value);
            }
            Err(refusal) => panic!("{refusal}"),
        }
    }

    /// The worker's item, and its bytes; of all that nobody has or had before it, it is the first.
    fn done(&mut self, number: u64) {
        let Some((session, Some(item))) = self.workers.get(&number).copied() else { return };
        let (same, value) = self.server.state.item_of(QUEUE, holder(number)).expect("it has it");
        assert_eq!(same, item);
        let value = u64::from_le_bytes(value.try_into().expect("eight bytes"));
        self.server.state.done(QUEUE, holder(number), item).expect("it has it");
        assert!(self.done.insert(value), "done twice");
        assert_eq!(self.server.state.done(QUEUE, holder(number), item), Err(Refusal::Lost));
        self.workers.remove(&number);
        self.server.state.leave(session, holder(number));
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Come if self.workers.len() < 8 => {
                self.numbers += 1;
                self.ask(self.numbers);
            }
            Step::Come => {}
            Step::Push => self.push(),
            Step::Go(which) | Step::Lose(which) if !self.workers.is_empty() => {
                let number = self.nth(which).expect("there are some");
                let (session, _) = self.workers.remove(&number).expect("it is there");
                if matches!(step, Step::Go(_)) {
                    self.server.state.leave(session, holder(number));
                } else {
                    self.server.state.orphan(session, holder(number), self.now + GRACE);
                }
            }
            Step::Go(_) | Step::Lose(_) => {}
            Step::Wait(ms) => {
                self.now += ms;
                self.server.state.expire(self.now);
            }
            Step::Done(which) => {
                if let Some(number) = self.nth(which) {
                    self.done(number);
                }
            }
            Step::Restart { back, .. } => {
                self.server.restart(self.now);
                // Pushes that waited were told that the server has gone; whoever takes items comes
                // back, or is late.
                self.waiting.clear();
                for (number, (_, item)) in std::mem::take(&mut self.workers) {
                    if back >> (number % 8) & 1 == 0 {
                        continue;
                    }
                    let kept = self.server.state.resume_item(QUEUE, holder(number), "a");
                    assert_eq!(kept, item, "what it was told is kept");
                    match item {
                        Some(_) => {
                            self.numbers += 1;
                            self.workers.insert(number, (SessionId(self.numbers), item));
                        }
                        None => self.ask(number),
                    }
                }
            }
        }
        self.tell();
    }
}

proptest! {
    #[test]
    fn as_many_as_were_said_pass_a_barrier_together_or_nobody(steps in prop::collection::vec(step(), 1..80)) {
        let mut crowd = Crowd::new();
        for step in &steps {
            crowd.take(step);
        }
        for (generation, told) in &crowd.told {
            let arrived = &crowd.arrived[generation];
            prop_assert_eq!(arrived.len(), PARTIES, "generation {}", generation);
            prop_assert!(told.is_subset(arrived));
        }
        // Everybody goes, whoever is not heard of too: nobody is in it any more.
        for (number, session) in std::mem::take(&mut crowd.waiting) {
            crowd.server.state.leave(session, holder(number));
        }
        crowd.server.state.expire(u64::MAX);
        crowd.tell();
        prop_assert_eq!(crowd.server.state.node(BARRIER).expect("it is there").awaited_in().count(), 0);
    }

    #[test]
    fn each_item_of_a_durable_queue_is_done_once_and_none_is_lost(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = Workers::new();
        for step in &steps {
            world.take(step);
        }
        // Whoever is left goes, and one worker does the rest, in the order in which they were
        // pushed.
        for (number, (session, _)) in std::mem::take(&mut world.workers) {
            world.server.state.leave(session, holder(number));
        }
        world.server.state.expire(u64::MAX);
        world.tell();
        let before = world.done.clone();
        let mut rest = Vec::new();
        while world.server.state.queue_of(QUEUE).0 > 0 {
            world.numbers += 1;
            let number = world.numbers;
            world.ask(number);
            let (_, value) = world.server.state.item_of(QUEUE, holder(number)).expect("there is one");
            rest.push(u64::from_le_bytes(value.try_into().expect("eight bytes")));
            world.done(number);
            world.tell();
        }
        prop_assert!(rest.is_sorted(), "{:?}", rest);
        let pushed: BTreeSet<u64> = world.pushed.iter().copied().collect();
        prop_assert_eq!(&world.done, &pushed, "{:?} {:?}", before, rest);
    }
}

#[test]
fn whoever_goes_before_it_opens_breaks_the_barrier_for_all_who_wait() {
    let mut state = Server::new().state;
    state.make(BARRIER, Kind::Barrier).expect("a barrier");
    let come = |state: &mut State, n: u64| state.arrive(BARRIER, (SessionId(n), holder(n)), "a");
    assert_eq!(come(&mut state, 1), Err(Refusal::Unfit), "nobody has said how many pass");
    state.set_parties(BARRIER, 2).expect("two");
    come(&mut state, 1).expect("it waits");
    assert_eq!(state.set_parties(BARRIER, 1), Err(Refusal::Busy));
    assert_eq!(state.remove(BARRIER, Expect::Anything), Err(Refusal::Busy));
    state.leave(SessionId(1), holder(1));
    assert!(state.take_broken().is_empty(), "nobody else waited");
    state.set_parties(BARRIER, 3).expect("three");
    come(&mut state, 2).expect("it waits");
    come(&mut state, 3).expect("it waits");
    state.leave(SessionId(3), holder(3));
    assert_eq!(state.take_broken(), [SessionId(2)]);
    for n in 4..=6 {
        come(&mut state, n).expect("it waits");
    }
    let told: Vec<(SessionId, u64)> = state.take_grants().iter().map(|it| (it.session, it.token)).collect();
    assert_eq!(
        told,
        [(SessionId(4), 3), (SessionId(5), 3), (SessionId(6), 3)],
        "generations 1 and 2 are broken"
    );
    state.leave(SessionId(4), holder(4));
    assert!(state.take_broken().is_empty(), "what is passed is passed");
}

#[test]
fn parties_pushes_and_items_have_bounds() {
    let mut state = Server::new().state;
    state.make(BARRIER, Kind::Barrier).expect("a barrier");
    for wrong in [0, MAX_PARTIES as u32 + 1, u32::MAX] {
        assert_eq!(state.set_parties(BARRIER, wrong), Err(Refusal::Unfit), "{wrong}");
    }
    state.make(QUEUE, Kind::Queue).expect("a queue");
    for wrong in [0, u32::MAX] {
        assert_eq!(state.set_queue(QUEUE, wrong, true), Err(Refusal::Unfit), "{wrong}");
    }
    state.set_queue(QUEUE, 1, false).expect("room for one");
    let push = |state: &mut State, n: u64, only_now| state.push(QUEUE, vec![7; 100], PushId(n), only_now);
    assert_eq!(push(&mut state, 0, true), Ok(Pushed::Done));
    assert_eq!(push(&mut state, 0, true), Err(Refusal::Held), "it is full");
    assert_eq!(state.set_queue(QUEUE, 1, true), Err(Refusal::Busy), "it has an item");
    assert_eq!(state.remove(QUEUE, Expect::Anything), Err(Refusal::Busy));
    let long = vec![0; coordination::MAX_VALUE_BYTES + 1];
    assert_eq!(state.push(QUEUE, long, PushId(1), false), Err(Refusal::LongValue));
    for n in 0..MAX_PUSHES as u64 {
        assert_eq!(push(&mut state, n, false), Ok(Pushed::Waits));
    }
    assert_eq!(push(&mut state, 1 << 20, false), Err(Refusal::Crowded));
    state.forget_push(PushId(0));
    assert_eq!(push(&mut state, 1 << 20, false), Ok(Pushed::Waits), "one has gone");
    // The bytes of all items count among those of the service.
    state.set_queue(QUEUE, 4000, false).expect("room");
    let mut pushed = 0;
    let full = loop {
        match state.push(QUEUE, vec![0; coordination::MAX_VALUE_BYTES], PushId(0), true) {
            Ok(_) => pushed += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(full, Refusal::Full);
    assert!((100..=128).contains(&pushed), "{pushed}");
}

#[test]
fn items_of_a_queue_that_is_not_durable_are_not_written_down() {
    let mut server = Server::new();
    server.state.make(QUEUE, Kind::Queue).expect("a queue");
    server.commit();
    server.state.push(QUEUE, b"item".to_vec(), PushId(0), true).expect("there is room");
    assert!(server.state.take_commit(100, 10_000).is_none(), "nothing is to be written");
    server.restart(0);
    assert_eq!(server.state.queue_of(QUEUE), (0, 0, 0));
    assert!(server.state.node(QUEUE).is_some());
}
