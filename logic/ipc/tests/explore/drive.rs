//! Runs scripts on the machine that ships, one access to shared memory at a time, in every order.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use generator::{Generator, Gn};
use ipc::{
    Asked, Content, Endpoint, From, Limits, NoPeer, Poll, Pulse, Receive, ReceiveError, Received, RelayError,
    ReplyError, Request, RequestError, Rights, Send, SendError, Sleep,
};
use wire::ipc::Address;

use crate::script::{Call, Op, Outcome, Outcomes, tag};
use crate::stand::stand;
use crate::world::{Event, Still, TestLink, World, hash_of};

/// The scene that is explored.
#[derive(Clone, Debug)]
pub struct Scene {
    pub scripts: Vec<Vec<Call>>,
    /// The endpoint that may die, at any step.
    pub mortal: Option<usize>,
    /// Whether endpoints that wait long look for deadlocks: all do, where there can be one.
    pub searching: bool,
    /// By endpoint: whose label is greater.
    pub labels: [u64; 3],
    pub ring_bytes: u32,
    /// How often an endpoint may be interrupted between two steps of its own, in one run; a switch
    /// where it sleeps or ends is none. `None`: as often as there are steps.
    pub interruptions: Option<u8>,
    /// The two are on two nodes.
    pub far: bool,
}

/// The findings of an exploration.
pub struct Explored {
    /// All that came out, each with one way to it.
    pub outcomes: BTreeMap<Outcomes, Vec<u8>>,
    pub states: usize,
    pub steps: u64,
}

pub fn address(endpoint: usize) -> Address {
    Address { slot: u32::try_from(endpoint).expect("small") + 1, generation: 1 }
}

fn number(address: Address) -> usize {
    address.slot as usize - 1
}

/// One endpoint and its script.
struct Actor {
    world: Rc<World>,
    me: usize,
    endpoint: Endpoint<TestLink>,
    outcomes: Rc<RefCell<Outcomes>>,
    asked: Option<Asked>,
    label: u64,
    searching: bool,
}

impl Actor {
    fn new(scene: &Scene, world: &Rc<World>, outcomes: &Rc<RefCell<Outcomes>>, me: usize) -> Actor {
        let limits = Limits { hops: scene.scripts.len() as u64 + 1, receives_per_full_look: 2, drops: 8 };
        Actor {
            world: Rc::clone(world),
            me,
            endpoint: Endpoint::new(address(me), limits),
            outcomes: Rc::clone(outcomes),
            asked: None,
            label: scene.labels[me],
            searching: scene.searching,
        }
    }

    fn bind(&mut self, count: usize) {
        for other in (0..count).filter(|other| *other != self.me) {
            let link = TestLink {
                world: Rc::clone(&self.world),
                channel: self.world.channel_of(self.me, other),
                side: usize::from(self.me > other),
                looked: false,
            };
            self.endpoint.bind(address(other), Rights::ALL, link).expect("a stranger");
        }
    }

    fn run(mut self, script: &[Call], count: usize) {
        self.bind(count);
        for (index, call) in script.iter().enumerate() {
            let outcome = self.call(*call, index);
            self.outcomes.borrow_mut()[self.me].push(outcome);
            self.know(index, &outcome);
        }
        self.world.threads[self.me].still.set(Still::Finished);
    }

    fn know(&self, index: usize, what: &impl std::fmt::Debug) {
        let done = hash_of(&self.outcomes.borrow()[self.me]);
        self.world.know(format!("{index} {what:?} {done} {:?} {:?}", self.asked, self.endpoint));
    }

    fn call(&mut self, call: Call, index: usize) -> Outcome {
        let tag = tag(self.me, index);
        let mut into = Vec::new();
        match call.op {
            Op::Send(to) | Op::Buffered(to) => {
                let rendezvous = matches!(call.op, Op::Send(_));
                let new = if rendezvous { Send::rendezvous } else { Send::buffered };
                let mut send = new(address(to), tag);
                let done = self.wait(call, index, |actor, pulse| {
                    let polled = actor.endpoint.poll_send(&mut send, b"", pulse);
                    actor.know(index, &send);
                    polled
                });
                sent(done)
            }
            Op::Request(to) => {
                let mut request = Request::new(address(to), tag, 8);
                let done = self.wait(call, index, |actor, pulse| {
                    let polled = actor.endpoint.poll_request(&mut request, b"", &mut into, pulse);
                    actor.know(index, &request);
                    polled
                });
                match done {
                    Ok(reply) => Outcome::Reply { source: number(reply.source), tag: reply.tag },
                    Err(RequestError::NoPeer(NoPeer::Dead(_))) => Outcome::Dead,
                    Err(RequestError::Deadlock { received, .. }) => Outcome::Deadlock { received },
                    Err(RequestError::TimedOut { received, .. }) => Outcome::TimedOut { received },
                    Err(RequestError::Unknown(_)) => Outcome::Unknown,
                    Err(_) => Outcome::Wrong,
                }
            }
            Op::ReceiveAny => self.receive(call, index, From::Any),
            Op::ReceiveOne(from) => self.receive(call, index, From::One(address(from))),
            Op::Reply => match self.asked {
                None => Outcome::Skipped,
                Some(asked) => match self.endpoint.reply(&asked, tag, b"") {
                    Ok(()) => self.answered(),
                    Err(ReplyError::Stale(_)) => Outcome::Stale,
                    Err(ReplyError::NoPeer(NoPeer::Dead(_))) => Outcome::Dead,
                    Err(_) => Outcome::Wrong,
                },
            },
            Op::Relay(to) => match self.asked {
                None => Outcome::Skipped,
                Some(asked) => match self.endpoint.relay(&asked, address(to), tag, b"") {
                    Ok(()) => self.answered(),
                    Err(RelayError::Stale(_)) => Outcome::Stale,
                    Err(RelayError::Full(_)) => Outcome::Full,
                    Err(RelayError::NoPeer(NoPeer::Dead(_))) => Outcome::Dead,
                    Err(_) => Outcome::Wrong,
                },
            },
            Op::Notify(to, bits) => match self.endpoint.notify(address(to), bits) {
                Ok(()) => Outcome::Done,
                Err(ipc::NotifyError::NoPeer(NoPeer::Dead(_))) => Outcome::Dead,
                Err(_) => Outcome::Wrong,
            },
        }
    }

    fn answered(&mut self) -> Outcome {
        self.asked = None;
        Outcome::Done
    }

    fn receive(&mut self, call: Call, index: usize, from: From) -> Outcome {
        let mut receive = Receive::new(from);
        let mut into = Vec::new();
        let done = self.wait(call, index, |actor, pulse| {
            let polled = actor.endpoint.poll_receive(&mut receive, &mut into, pulse);
            actor.know(index, &receive);
            polled
        });
        match done {
            Ok(Received { source, content: Content::Message { tag } }) => {
                Outcome::Message { source: number(source), tag }
            }
            Ok(Received { source, content: Content::Request { tag, asked } }) => {
                self.asked = Some(asked);
                Outcome::Request { source: number(source), tag }
            }
            Ok(Received { source, content: Content::Notices(bits) }) => {
                Outcome::Notices { source: number(source), bits }
            }
            Err(ReceiveError::TimedOut) => Outcome::TimedOut { received: false },
            Err(ReceiveError::Deadlock(_)) => Outcome::Deadlock { received: false },
            Err(ReceiveError::NoPeer(NoPeer::Dead(_))) => Outcome::Dead,
            Err(_) => Outcome::Wrong,
        }
    }

    fn wait<T>(&mut self, call: Call, index: usize, mut poll: impl FnMut(&mut Self, Pulse) -> Poll<T>) -> T {
        let mut pulse = Pulse::default();
        let mut may_search = self.searching && call.op.target().is_some();
        loop {
            let sleep = match poll(self, pulse) {
                Poll::Ready(done) => return done,
                Poll::Again => continue,
                Poll::Sleep(sleep) => sleep,
            };
            let channel = match sleep {
                Sleep::One(peer) => Some(self.world.channel_of(self.me, number(peer))),
                Sleep::All => None,
            };
            let me = &self.world.threads[self.me];
            me.still.set(Still::Asleep { channel, timed: call.timed, may_search });
            generator::yield_with(());
            me.still.set(Still::Step);
            self.world.read((me.event.get() as u8, may_search));
            match me.event.get() {
                Event::Rung => self.heard(channel),
                Event::Late => pulse.late = true,
                Event::Search => {
                    may_search = false;
                    pulse.label = Some(self.label * 16 + index as u64);
                }
            }
        }
    }

    /// Looks once, as epoll does, for the doorbells that have rung of those that it sleeps on.
    fn heard(&mut self, slept_on: Option<usize>) {
        for other in (0..self.world.endpoints).filter(|other| *other != self.me) {
            let channel = self.world.channel_of(self.me, other);
            if slept_on.is_some_and(|one| one != channel) {
                continue;
            }
            let side = usize::from(self.me > other);
            let rung = std::mem::take(&mut self.world.channels.borrow_mut()[channel].bells[side]);
            self.world.read(rung);
            if rung {
                self.endpoint.heard(address(other));
            }
        }
    }
}

fn sent(done: Result<(), SendError>) -> Outcome {
    match done {
        Ok(()) => Outcome::Done,
        Err(SendError::NoPeer(NoPeer::Dead(_))) => Outcome::Dead,
        Err(SendError::Deadlock(_)) => Outcome::Deadlock { received: false },
        Err(SendError::TimedOut(_)) => Outcome::TimedOut { received: false },
        Err(SendError::Unknown(_)) => Outcome::Unknown,
        Err(_) => Outcome::Wrong,
    }
}

/// The endpoints that have not begun, and their scripts.
type Stage = (Vec<Option<Actor>>, Vec<Vec<Call>>);

thread_local! {
    /// Where the endpoints of the next run find what they are: the generator takes no closure that
    /// is not `Send`.
    static NODES: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
    /// And the endpoints.
    static STAGE: RefCell<Stage> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// One endpoint of a run, from its start to its end.
fn act(me: usize) {
    let (actor, script, count) = STAGE.with_borrow_mut(|(actors, scripts)| {
        (actors[me].take().expect("once"), scripts[me].clone(), scripts.len())
    });
    generator::yield_with(());
    actor.world.read("has begun");
    actor.run(&script, count);
}

/// One that stands in, from its start to its end.
fn stand_in(near: usize) {
    let world = NODES.with_borrow(|world| Rc::clone(world.as_ref().expect("set before")));
    generator::yield_with(());
    stand(&world, near);
}

/// One run. Its next step is chosen from outside.
struct Run {
    world: Rc<World>,
    threads: Vec<Generator<'static, (), ()>>,
    outcomes: Rc<RefCell<Outcomes>>,
    /// The endpoint that made the last step, and the number of interruptions that are left.
    last: usize,
    interruptions: Option<u8>,
}

const RUN: u8 = 0;
const LATE: u8 = 1;
const SEARCH: u8 = 2;
const DIE: u8 = 3;
/// Words of stack for one endpoint: debug builds format what they know.
const STACK: usize = 0x4000;

impl Run {
    fn new(scene: &Scene) -> Run {
        let count = scene.scripts.len();
        let world = Rc::new(World::new(count, scene.ring_bytes, scene.far));
        let outcomes = Rc::new(RefCell::new(vec![Vec::new(); count]));
        let standing = if scene.far { count } else { 0 };
        let mut threads: Vec<_> = (0..count).map(|me| Gn::<()>::new_opt(STACK, move || act(me))).collect();
        threads.extend((0..standing).map(|near| Gn::<()>::new_opt(STACK, move || stand_in(near))));
        NODES.set(Some(Rc::clone(&world)));
        let actors = (0..count).map(|me| Some(Actor::new(scene, &world, &outcomes, me))).collect();
        STAGE.set((actors, scene.scripts.clone()));
        let mut run = Run { world, threads, outcomes, last: 0, interruptions: scene.interruptions };
        for me in 0..count + standing {
            run.resume(me);
        }
        run
    }

    fn resume(&mut self, me: usize) {
        self.world.running.set(me);
        self.threads[me].resume();
    }

    fn choices(&self, scene: &Scene) -> Vec<u8> {
        let mut choices = Vec::new();
        for (me, thread) in self.world.threads.iter().enumerate() {
            let at = u8::try_from(me * 4).expect("small");
            match thread.still.get() {
                Still::Step => choices.push(at + RUN),
                Still::Asleep { channel, timed, may_search } => {
                    let others = if me < scene.scripts.len() { self.world.endpoints } else { 0 };
                    let stands = me >= scene.scripts.len()
                        && channel.is_some_and(|near| self.world.channels.borrow()[near].bells[1 - near]);
                    let rung = stands
                        || (0..others).filter(|other| *other != me).any(|other| {
                            let one = self.world.channel_of(me, other);
                            let side = usize::from(me > other);
                            channel.is_none_or(|channel| channel == one)
                                && self.world.channels.borrow()[one].bells[side]
                        });
                    choices.extend(rung.then_some(at + RUN));
                    choices.extend(timed.then_some(at + LATE));
                    choices.extend(may_search.then_some(at + SEARCH));
                }
                Still::Finished | Still::Died => continue,
            }
            choices.extend((scene.mortal == Some(me)).then_some(at + DIE));
        }
        if self.interruptions == Some(0) && self.could_go_on() {
            choices.retain(|choice| usize::from(choice / 4) == self.last);
        }
        choices
    }

    fn could_go_on(&self) -> bool {
        self.world.threads[self.last].still.get() == Still::Step
    }

    fn state(&self) -> u64 {
        hash_of((self.world.state(), self.interruptions.map(|left| (left, self.last))))
    }

    fn choose(&mut self, choice: u8) {
        let me = usize::from(choice / 4);
        if me != self.last && self.could_go_on() {
            self.interruptions = self.interruptions.map(|left| left.saturating_sub(1));
        }
        self.last = me;
        let event = match choice % 4 {
            LATE => Event::Late,
            SEARCH => Event::Search,
            DIE => return self.world.kill(me),
            _ => Event::Rung,
        };
        self.world.threads[me].event.set(event);
        self.resume(me);
    }

    fn end(&self, scene: &Scene) -> Outcomes {
        let mut outcomes = self.outcomes.borrow().clone();
        for (me, done) in outcomes.iter_mut().enumerate() {
            if done.len() < scene.scripts[me].len() {
                let died = self.world.threads[me].still.get() == Still::Died;
                done.push(if died { Outcome::Died } else { Outcome::Blocked });
            }
        }
        outcomes
    }
}

/// More would take minutes: make the scene smaller, or allow fewer interruptions.
const STATES_MAX: usize = 3_000_000;

/// Goes every way.
pub fn explore(scene: &Scene) -> Explored {
    let mut explored = Explored { outcomes: BTreeMap::new(), states: 0, steps: 0 };
    let mut seen: HashSet<u64> = HashSet::new();
    let mut left: Vec<Vec<u8>> = vec![Vec::new()];
    while let Some(mut way) = left.pop() {
        let mut run = Run::new(scene);
        for choice in &way {
            run.choose(*choice);
        }
        loop {
            // Two ways into one state go on alike. (States are told apart by 64 bits: of a million,
            // two fall together once in 10^7 runs.)
            if !seen.insert(run.state()) {
                break;
            }
            assert!(seen.len() < STATES_MAX, "too much to explore: {scene:?}");
            let choices = run.choices(scene);
            let Some((first, others)) = choices.split_first() else {
                explored.outcomes.entry(run.end(scene)).or_insert(way);
                break;
            };
            for other in others {
                left.push(way.iter().copied().chain([*other]).collect());
            }
            way.push(*first);
            run.choose(*first);
        }
        explored.steps += run.world.steps.get();
    }
    explored.states = seen.len();
    explored
}

/// Goes one way to its end; `choose` picks one of so many.
pub fn walk(scene: &Scene, mut choose: impl FnMut(usize) -> usize) -> Outcomes {
    let mut run = Run::new(scene);
    loop {
        let choices = run.choices(scene);
        if choices.is_empty() {
            return run.end(scene);
        }
        run.choose(choices[choose(choices.len()) % choices.len()]);
    }
}
