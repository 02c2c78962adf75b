//! The service over a registry that answers late, to several servers of which one is the one: what
//! callers are told is linearizable.
//!
//! The checker tries every order (Wing and Gong, Testing and verifying concurrent objects, JPDC
//! 1993): each call took effect at one moment between its being made and its being answered, and
//! one that was never answered at any moment after it was made, or not at all.

use crate::coordinator::Coordinator;
use crate::store::{Heard, Record, Store};
use proptest::prelude::*;
use rustix::io::Errno;
use session::{Context, Interest, LinkId, ReplyTo, Service};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::Instant;
use sys::eventfd::Eventfd;
use wire::control::Consumer;
use wire::coordination::{Ask, file};
use wire::service::{Phase, SESSION_NONE};

/// The registry that all servers write to.
#[derive(Default)]
struct Registry {
    head: Option<Vec<u8>>,
    revision: u64,
    records: BTreeMap<String, Vec<u8>>,
}

impl Registry {
    fn take(&mut self, ask: Ask) -> Heard {
        match ask {
            Ask::Load => {
                let head = self.head.iter().map(|head| (String::new(), self.revision, head.clone()));
                let records = self.records.iter().map(|(key, value)| (key.clone(), 1, value.clone()));
                Heard::Loaded(head.chain(records).collect::<Vec<Record>>())
            }
            Ask::Commit { expected, .. } if expected != self.revision => Heard::Superseded,
            Ask::Commit { head, changes, .. } => {
                if !head.is_empty() {
                    self.revision += 1;
                    self.head = Some(head);
                }
                for (key, value) in changes {
                    match value {
                        Some(value) => self.records.insert(key, value),
                        None => self.records.remove(&key),
                    };
                }
                Heard::Committed(self.revision)
            }
        }
    }
}

/// The way of one server to it: what was asked, and what is on its way back.
#[derive(Default)]
struct Way {
    asked: VecDeque<Ask>,
    back: VecDeque<Heard>,
}

struct Wire(Rc<RefCell<Way>>, Eventfd);

impl Store for Wire {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.1.as_fd()
    }
    fn ask(&mut self, ask: Ask) {
        self.0.borrow_mut().asked.push_back(ask);
    }
    fn heard(&mut self) -> Option<Heard> {
        self.0.borrow_mut().back.pop_front()
    }
}

/// The loop, which notes what is answered.
struct Loop {
    now: Instant,
    answers: Vec<(u64, Result<Vec<u8>, Errno>)>,
}

impl Context for Loop {
    fn now(&self) -> Instant {
        self.now
    }
    fn answer(&mut self, to: ReplyTo, answer: Result<&[u8], Errno>, _: &[Phase]) {
        self.answers.push((to.tag, answer.map(<[u8]>::to_vec)));
    }
    fn capsule(&mut self, _: LinkId, _: u64, _: &[u8]) {}
    fn detach(&mut self, _: LinkId, _: &str) {}
    fn watch(&mut self, _: BorrowedFd<'_>, _: u32, _: Interest) -> io::Result<()> {
        Ok(())
    }
    fn rewatch(&mut self, _: BorrowedFd<'_>, _: u32, _: Interest) -> io::Result<()> {
        Ok(())
    }
    fn unwatch(&mut self, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }
}

struct Server {
    service: Coordinator,
    way: Rc<RefCell<Way>>,
}

impl Server {
    fn start(ctx: &mut Loop) -> Self {
        let way: Rc<RefCell<Way>> = Rc::default();
        let wire = Wire(Rc::clone(&way), Eventfd::new().unwrap());
        let mut service = Coordinator::new("sync", 1000, Box::new(wire));
        service.start(ctx);
        let (dc, domain, entrance) = ("lab".to_owned(), "a".to_owned(), "device".to_owned());
        service.attach(ctx, LinkId(1), &Consumer { dc, domain, entrance, verbs: Vec::new() });
        Self { service, way }
    }

    /// Delivers the ask that was made first to the registry; its answer is on its way.
    fn deliver(&mut self, registry: &mut Registry) {
        let ask = self.way.borrow_mut().asked.pop_front();
        if let Some(ask) = ask {
            let heard = registry.take(ask);
            self.way.borrow_mut().back.push_back(heard);
        }
    }

    /// The answer comes.
    fn hear(&mut self, ctx: &mut Loop) {
        if self.service.over().is_none() {
            self.service.hear(ctx);
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Call {
    Get,
    Put(u64),
    /// Believes this revision.
    Cas(u64, u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    /// The revision, and what was there.
    Value(Option<(u64, u64)>),
    Put(u64),
    Stale,
}

#[derive(Debug, Clone)]
struct Made {
    call: Call,
    made: usize,
    answered: Option<(usize, Told)>,
}

/// The key's state: its revision, where that is known, and its value.
type There = Option<(Option<u64>, u64)>;

/// The possible states after a call that took effect now; none: it can't have been answered so.
fn effect(there: There, made: &Made) -> Vec<There> {
    let answer = made.answered.as_ref().map(|(_, told)| told);
    let is = |revision: u64| there.is_some_and(|(now, _)| now.is_none_or(|now| now == revision));
    match (&made.call, answer) {
        (Call::Get, None) => vec![there],
        (Call::Get, Some(Told::Value(None))) if there.is_none() => vec![there],
        (Call::Get, Some(Told::Value(Some((revision, value))))) => match there {
            Some((now, is)) if is == *value && now.is_none_or(|now| now == *revision) => {
                vec![Some((Some(*revision), *value))]
            }
            _ => Vec::new(),
        },
        (Call::Put(value), None) => vec![Some((None, *value))],
        (Call::Put(value), Some(Told::Put(revision))) => vec![Some((Some(*revision), *value))],
        (Call::Cas(believed, value), None) if is(*believed) => vec![Some((None, *value)), there],
        (Call::Cas(..), None) => vec![there],
        (Call::Cas(believed, value), Some(Told::Put(revision))) if is(*believed) => {
            vec![Some((Some(*revision), *value))]
        }
        (Call::Cas(believed, _), Some(Told::Stale)) => match there {
            Some((Some(now), _)) if now == *believed => Vec::new(),
            _ => vec![there],
        },
        _ => Vec::new(),
    }
}

fn is_linearizable(left: &[Made], there: There) -> bool {
    if left.iter().all(|made| made.answered.is_none()) {
        return true;
    }
    let first_answer = left.iter().filter_map(|made| made.answered.as_ref().map(|(at, _)| *at)).min();
    (0..left.len()).any(|at| {
        let next = &left[at];
        if first_answer.is_some_and(|answer| next.made > answer) {
            return false;
        }
        let rest: Vec<Made> = [&left[..at], &left[at + 1..]].concat();
        effect(there, next).into_iter().any(|after| is_linearizable(&rest, after))
    })
}

#[derive(Debug, Clone)]
enum Step {
    Call(u8),
    Deliver(usize),
    Hear(usize),
    /// Another server begins, beside those that there are; calls go to it from now on.
    Begin,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_u8).prop_map(Step::Call),
        6 => (0..3_usize).prop_map(Step::Deliver),
        6 => (0..3_usize).prop_map(Step::Hear),
        1 => Just(Step::Begin),
    ]
}

struct World {
    registry: Registry,
    servers: Vec<Server>,
    ctx: Loop,
    calls: Vec<Made>,
    time: usize,
    /// The last revision that somebody was told.
    known: u64,
}

impl World {
    fn new() -> Self {
        let mut ctx = Loop { now: Instant::now(), answers: Vec::new() };
        let servers = vec![Server::start(&mut ctx)];
        Self { registry: Registry::default(), servers, ctx, calls: Vec::new(), time: 0, known: 0 }
    }

    fn call(&mut self, which: u8) {
        let number = self.calls.len() as u64;
        let (call, line) = match which {
            0 => (Call::Get, "get kv/x".to_owned()),
            1 => (Call::Put(number), format!("put kv/x {number}")),
            _ => (Call::Cas(self.known.max(1), number), format!("cas kv/x {} {number}", self.known.max(1))),
        };
        self.calls.push(Made { call, made: self.time, answered: None });
        let to = ReplyTo {
            link: LinkId(1),
            session: SESSION_NONE,
            tag: number,
            file: file::CTL,
            traced: false,
            received: self.ctx.now,
        };
        let Some(server) = self.servers.last_mut() else { return };
        server.service.request(&mut self.ctx, to, line.as_bytes());
    }

    fn note_answers(&mut self) {
        for (tag, answer) in std::mem::take(&mut self.ctx.answers) {
            let Some(made) = usize::try_from(tag).ok().and_then(|tag| self.calls.get_mut(tag)) else {
                continue;
            };
            let text = answer.map(|bytes| String::from_utf8(bytes).unwrap());
            let number = |text: &str| text.trim().parse::<u64>().unwrap();
            let told = match (&made.call, text) {
                (Call::Get, Ok(text)) => {
                    let (revision, value) = text.split_once(' ').unwrap();
                    Told::Value(Some((number(revision), number(value))))
                }
                (Call::Get, Err(Errno::NOENT)) => Told::Value(None),
                (Call::Put(_) | Call::Cas(..), Ok(text)) => Told::Put(number(&text)),
                (Call::Cas(..), Err(Errno::STALE)) => Told::Stale,
                (call, other) => panic!("{call:?}: {other:?}"),
            };
            if let Told::Value(Some((revision, _))) | Told::Put(revision) = told {
                self.known = self.known.max(revision);
            }
            assert!(made.answered.is_none(), "answered twice");
            made.answered = Some((self.time, told));
        }
    }

    fn take(&mut self, step: &Step) {
        self.time += 1;
        let servers = self.servers.len();
        match *step {
            Step::Call(which) if self.calls.len() < 10 => self.call(which),
            Step::Call(_) => {}
            Step::Deliver(which) => self.servers[which % servers].deliver(&mut self.registry),
            Step::Hear(which) => self.servers[which % servers].hear(&mut self.ctx),
            Step::Begin if servers < 3 => self.servers.push(Server::start(&mut self.ctx)),
            Step::Begin => {}
        }
        self.note_answers();
    }
}

proptest! {
    #[test]
    fn what_callers_are_told_is_linearizable_whichever_servers_there_are(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
        // The last server is heard out: it answers everybody who asked it.
        for _ in 0..20 {
            let last = world.servers.len() - 1;
            world.take(&Step::Deliver(last));
            world.take(&Step::Hear(last));
        }
        prop_assert!(is_linearizable(&world.calls, None), "{:#?}", world.calls);
    }
}

#[test]
fn the_checker_sees_a_stale_read() {
    let made = |call, made, at, told| Made { call, made, answered: Some((at, told)) };
    let good = [
        made(Call::Put(1), 0, 1, Told::Put(1)),
        made(Call::Put(2), 2, 5, Told::Put(2)),
        made(Call::Get, 3, 4, Told::Value(Some((1, 1)))),
        made(Call::Cas(2, 3), 6, 7, Told::Put(3)),
    ];
    assert!(is_linearizable(&good, None));
    let mut stale = good.to_vec();
    stale.push(made(Call::Get, 8, 9, Told::Value(Some((2, 2)))));
    assert!(!is_linearizable(&stale, None));
}
