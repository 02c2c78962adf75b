//! The outcomes that a script may have: a kernel in the middle that knows everything and does one
//! thing at a time, with the rendezvous of MINIX and what we add to it.

use std::collections::{BTreeSet, HashSet};

use crate::drive::Scene;
use crate::script::{Call, Op, Outcome, Outcomes, tag};

/// Number of a call: who made it, and the how-many-eth it is.
type Id = (usize, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    Message,
    Send,
    Request,
    Forward { requester: usize, id: Id },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    what: What,
    tag: u32,
    id: Id,
    /// Its caller still waits for it to be received.
    live: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Reply { tag: u32 },
    Refer { to: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// The next call has not begun.
    Idle,
    Room,
    /// A rendezvous; taken or not.
    Sent {
        taken: bool,
    },
    /// A request; who has to answer.
    Asked {
        by: usize,
        taken: bool,
    },
    Receiving,
    /// The checks of a reply, a relay or a notice are done.
    Checked,
    /// Of a relay: whoever is to answer knows.
    Forwarded,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    stage: Stage,
    outcomes: Vec<Outcome>,
    dead: bool,
    /// Requester, number, whether it came over another.
    asked: Option<(usize, Id, bool)>,
    /// Waits that ended by a time-out or a death since this one's call began: bit 3 * waiter +
    /// target. Who looks for a deadlock may have seen them still.
    ended: u16,
    /// The queues of others that were empty at some time since this receive began: bit 2 * peer,
    /// its notices; next bit, its queue.
    empty: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kernel {
    processes: Vec<Process>,
    /// From, to.
    queues: Vec<Vec<Vec<Entry>>>,
    notices: Vec<Vec<u64>>,
    /// To whom, from whom, to which call.
    answers: Vec<(usize, usize, Id, Answer)>,
}

/// All that may come of a scene.
pub fn allowed(scene: &Scene) -> BTreeSet<Outcomes> {
    let count = scene.scripts.len();
    let process =
        Process { stage: Stage::Idle, outcomes: Vec::new(), dead: false, asked: None, ended: 0, empty: 0 };
    let start = Kernel {
        processes: vec![process; count],
        queues: vec![vec![Vec::new(); count]; count],
        notices: vec![vec![0; count]; count],
        answers: Vec::new(),
    };
    let (mut seen, mut found, mut left) = (HashSet::new(), BTreeSet::new(), vec![start]);
    while let Some(mut kernel) = left.pop() {
        kernel.observe(scene);
        if !seen.insert(kernel.clone()) {
            continue;
        }
        let next = kernel.steps(scene);
        if next.is_empty() {
            found.insert(kernel.end(scene));
        }
        left.extend(next);
        left.extend(kernel.death(scene));
    }
    found
}

fn window(scene: &Scene) -> usize {
    wire::ipc::window_bytes(scene.ring_bytes) / wire::ipc::record_bytes(0)
}

impl Kernel {
    fn call(&self, scene: &Scene, me: usize) -> Option<Call> {
        let process = &self.processes[me];
        if process.dead { None } else { scene.scripts[me].get(process.outcomes.len()).copied() }
    }

    fn id(&self, me: usize) -> Id {
        (me, self.processes[me].outcomes.len())
    }

    fn has_room(&self, scene: &Scene, from: usize, to: usize) -> bool {
        self.queues[from][to].len() < window(scene)
    }

    fn has_live(&self, from: usize, to: usize) -> bool {
        self.queues[from][to].iter().any(|entry| entry.live)
    }

    fn answer(&self, me: usize, by: usize) -> Option<usize> {
        let id = self.id(me);
        self.answers.iter().position(|(to, from, of, _)| (*to, *from, *of) == (me, by, id))
    }

    /// For whom `me` waits, with nothing that it could do itself.
    fn waits_for(&self, scene: &Scene, me: usize) -> Option<usize> {
        let op = self.call(scene, me)?.op;
        match self.processes[me].stage {
            Stage::Room => op.target().filter(|to| !self.has_room(scene, me, *to)),
            Stage::Sent { taken: false } => op.target(),
            Stage::Asked { by, .. } => self.answer(me, by).is_none().then_some(by),
            Stage::Receiving => {
                op.target().filter(|from| self.notices[*from][me] == 0 && !self.has_live(*from, me))
            }
            _ => None,
        }
    }

    /// Notes what is so now, for those who may have seen it.
    fn observe(&mut self, scene: &Scene) {
        let count = self.processes.len();
        for me in 0..count {
            let waiting = self.processes[me].stage != Stage::Idle && self.call(scene, me).is_some();
            let receiving = self.processes[me].stage == Stage::Receiving;
            let mut empty = 0;
            for peer in (0..count).filter(|_| receiving) {
                empty |= u8::from(self.notices[peer][me] == 0) << (2 * peer);
                empty |= u8::from(!self.has_live(peer, me)) << (2 * peer + 1);
            }
            let process = &mut self.processes[me];
            process.ended = if waiting { process.ended } else { 0 };
            process.empty = if receiving { process.empty | empty } else { 0 };
        }
    }

    fn is_in_cycle(&self, scene: &Scene, me: usize) -> bool {
        let mut waits = self.processes[me].ended;
        for other in 0..self.processes.len() {
            let target = match self.processes[other].stage {
                // Its reply may come in the very moment in which it gives up.
                Stage::Asked { by, .. } if other == me => Some(by),
                _ => self.waits_for(scene, other),
            };
            waits |= target.map_or(0, |target| 1 << (3 * other + target));
        }
        let next = |of: u8| (0..9).filter(move |bit| waits >> bit & 1 == 1 && of >> (bit / 3) & 1 == 1);
        let mut reached = 1_u8 << me;
        let mut round = false;
        for _ in 0..3 {
            let further = next(reached).fold(0, |further, bit| further | 1 << (bit % 3));
            round |= further >> me & 1 == 1;
            reached |= further;
        }
        round
    }

    /// The wait of `me` ends, and not by what it waited for.
    fn break_wait(&mut self, scene: &Scene, me: usize) {
        if let Some(target) = self.waits_for(scene, me) {
            for process in &mut self.processes {
                process.ended |= 1 << (3 * me + target);
            }
        }
    }

    fn end(&self, scene: &Scene) -> Outcomes {
        let mut outcomes = Vec::new();
        for (me, process) in self.processes.iter().enumerate() {
            let mut done = process.outcomes.clone();
            if process.dead {
                done = vec![Outcome::Died];
            } else if done.len() < scene.scripts[me].len() {
                done.push(Outcome::Blocked);
            }
            outcomes.push(done);
        }
        outcomes
    }

    fn steps(&self, scene: &Scene) -> Vec<Kernel> {
        let mut next = Vec::new();
        for me in 0..self.processes.len() {
            if let Some(call) = self.call(scene, me) {
                self.steps_of(scene, me, call, &mut next);
            }
        }
        next
    }

    /// The endpoint that may die does. After its last call as well: what that did may be all that
    /// it did of it.
    fn death(&self, scene: &Scene) -> Option<Kernel> {
        let mortal = scene.mortal.filter(|mortal| !self.processes[*mortal].dead)?;
        Some(self.with(|kernel| {
            kernel.break_wait(scene, mortal);
            kernel.processes[mortal].dead = true;
        }))
    }

    /// As this, but for what `change` does.
    fn with(&self, change: impl FnOnce(&mut Kernel)) -> Kernel {
        let mut kernel = self.clone();
        change(&mut kernel);
        kernel
    }

    fn done(&self, me: usize, outcome: Outcome) -> Kernel {
        self.with(|kernel| kernel.finish(me, outcome))
    }

    fn times_out(&self, scene: &Scene, me: usize, received: bool) -> Kernel {
        self.with(|kernel| {
            kernel.break_wait(scene, me);
            kernel.withdraw(me);
            kernel.finish(me, Outcome::TimedOut { received });
        })
    }

    fn finish(&mut self, me: usize, outcome: Outcome) {
        self.processes[me].outcomes.push(outcome);
        self.processes[me].stage = Stage::Idle;
    }

    fn at(&self, me: usize, stage: Stage) -> Kernel {
        self.with(|kernel| kernel.processes[me].stage = stage)
    }

    fn withdraw(&mut self, me: usize) {
        let id = self.id(me);
        for entry in self.queues[me].iter_mut().flatten().filter(|entry| entry.id == id) {
            entry.live = false;
        }
    }

    fn give_up(&self, me: usize, outcome: Outcome) -> Kernel {
        self.with(|kernel| {
            kernel.withdraw(me);
            kernel.finish(me, outcome);
        })
    }

    fn steps_of(&self, scene: &Scene, me: usize, call: Call, next: &mut Vec<Kernel>) {
        let dead = |peer: usize| self.processes[peer].dead;
        let is_in_cycle = || scene.searching && self.is_in_cycle(scene, me);
        match (self.processes[me].stage, call.op) {
            (Stage::Idle, Op::Send(to) | Op::Buffered(to) | Op::Request(to)) => {
                next.push(if dead(to) { self.done(me, Outcome::Dead) } else { self.at(me, Stage::Room) });
            }
            (Stage::Idle, Op::ReceiveAny | Op::ReceiveOne(_)) => next.push(self.at(me, Stage::Receiving)),
            (Stage::Idle, op) => self.check(scene, me, op, next),
            (Stage::Room, op) => {
                let to = op.target().expect("has one");
                if self.has_room(scene, me, to) {
                    next.push(self.with(|kernel| kernel.push(me, to, op)));
                }
                if dead(to) {
                    next.push(self.done(me, Outcome::Dead));
                }
                if call.timed {
                    next.push(self.times_out(scene, me, false));
                }
                if is_in_cycle() {
                    next.push(self.done(me, Outcome::Deadlock { received: false }));
                }
            }
            (Stage::Sent { taken: true }, _) => next.push(self.done(me, Outcome::Done)),
            (Stage::Sent { taken: false }, op) => {
                if dead(op.target().expect("has one")) {
                    next.push(self.give_up(me, Outcome::Dead));
                }
                if call.timed {
                    next.push(self.times_out(scene, me, false));
                }
                if is_in_cycle() {
                    next.push(self.give_up(me, Outcome::Deadlock { received: false }));
                }
            }
            (Stage::Asked { by, taken }, _) => {
                if let Some(at) = self.answer(me, by) {
                    next.push(self.with(|kernel| kernel.hear(me, by, at)));
                } else if dead(by) {
                    next.push(self.give_up(me, Outcome::Dead));
                }
                if call.timed {
                    next.push(self.times_out(scene, me, taken));
                }
                if is_in_cycle() {
                    next.push(self.give_up(me, Outcome::Deadlock { received: taken }));
                }
            }
            (Stage::Receiving, _) => self.receive(scene, me, call, is_in_cycle(), next),
            (Stage::Checked, op) => next.push(self.with(|kernel| kernel.act(me, op))),
            (Stage::Forwarded, op) => next.push(self.with(|kernel| {
                let (Op::Relay(to), Some((requester, id, _))) = (op, kernel.processes[me].asked) else {
                    return;
                };
                kernel.answers.push((requester, me, id, Answer::Refer { to }));
                kernel.processes[me].asked = None;
                kernel.finish(me, Outcome::Done);
            })),
        }
    }

    fn push(&mut self, me: usize, to: usize, op: Op) {
        let id = self.id(me);
        let (what, stage) = match op {
            Op::Send(_) => (What::Send, Stage::Sent { taken: false }),
            Op::Request(_) => (What::Request, Stage::Asked { by: to, taken: false }),
            _ => (What::Message, Stage::Idle),
        };
        self.queues[me][to].push(Entry { what, tag: tag(me, id.1), id, live: true });
        if what == What::Message {
            self.finish(me, Outcome::Done);
        } else {
            self.processes[me].stage = stage;
        }
    }

    fn hear(&mut self, me: usize, by: usize, at: usize) {
        match self.answers.remove(at).3 {
            Answer::Reply { tag } => self.finish(me, Outcome::Reply { source: by, tag }),
            Answer::Refer { to } => self.processes[me].stage = Stage::Asked { by: to, taken: true },
        }
    }

    fn receive(&self, scene: &Scene, me: usize, call: Call, is_in_cycle: bool, next: &mut Vec<Kernel>) {
        let op = call.op;
        let count = self.processes.len();
        let from = |peer: &usize| *peer != me && op.target().is_none_or(|one| one == *peer);
        let mut timed_out = call.timed;
        for peer in (0..count).filter(from) {
            let bits = self.notices[peer][me];
            if bits != 0 {
                next.push(self.with(|kernel| {
                    kernel.notices[peer][me] = 0;
                    kernel.finish(me, Outcome::Notices { source: peer, bits });
                }));
            }
            if let Some(entry) = self.queues[peer][me].first().copied() {
                next.push(self.with(|kernel| kernel.take(me, peer, entry)));
            }
            timed_out &= self.processes[me].empty >> (2 * peer) & 3 == 3;
        }
        if timed_out {
            next.push(self.times_out(scene, me, false));
        }
        if is_in_cycle {
            next.push(self.done(me, Outcome::Deadlock { received: false }));
        }
        if let Some(one) = op.target()
            && self.processes[one].dead
            && self.notices[one][me] == 0
            && !self.has_live(one, me)
        {
            next.push(self.done(me, Outcome::Dead));
        }
    }

    fn take(&mut self, me: usize, peer: usize, entry: Entry) {
        self.queues[peer][me].remove(0);
        if !entry.live {
            return;
        }
        let Entry { what, tag, id, .. } = entry;
        let message = Outcome::Message { source: peer, tag };
        let outcome = match what {
            What::Message => message,
            What::Send => {
                self.processes[peer].stage = Stage::Sent { taken: true };
                message
            }
            What::Request => {
                self.processes[peer].stage = Stage::Asked { by: me, taken: true };
                self.processes[me].asked = Some((peer, id, false));
                Outcome::Request { source: peer, tag }
            }
            What::Forward { requester, id } => {
                self.processes[me].asked = Some((requester, id, true));
                Outcome::Request { source: requester, tag }
            }
        };
        self.finish(me, outcome);
    }

    /// The first half of a call that does not wait: what it finds.
    fn check(&self, scene: &Scene, me: usize, op: Op, next: &mut Vec<Kernel>) {
        let dead = |peer: usize| self.processes[peer].dead;
        if let Op::Notify(to, _) = op {
            next.push(if dead(to) { self.done(me, Outcome::Dead) } else { self.at(me, Stage::Checked) });
            return;
        }
        let Some((requester, id, forwarded)) = self.processes[me].asked else {
            next.push(self.done(me, Outcome::Skipped));
            return;
        };
        // It waits for this very answer; or it will, and has not heard of the relay yet.
        let waits = self.id(requester) == id
            && match self.processes[requester].stage {
                Stage::Asked { by, .. } => by == me || forwarded,
                _ => false,
            };
        if dead(requester) {
            next.push(self.done(me, Outcome::Dead));
        }
        if let Op::Relay(to) = op {
            if dead(to) {
                next.push(self.done(me, Outcome::Dead));
                return;
            }
            if !self.has_room(scene, me, to) {
                next.push(self.done(me, Outcome::Full));
                return;
            }
        }
        // Who died waiting still waits, as far as its word says.
        if waits {
            next.push(self.at(me, Stage::Checked));
        } else {
            next.push(self.done(me, Outcome::Stale));
        }
        if forwarded && !waits {
            // Who gave up before it heard of the relay does not say so here.
            next.push(self.at(me, Stage::Checked));
        }
    }

    fn act(&mut self, me: usize, op: Op) {
        let own = tag(me, self.id(me).1);
        match (op, self.processes[me].asked) {
            (Op::Notify(to, bits), _) => {
                self.notices[me][to] |= bits;
                self.finish(me, Outcome::Done);
            }
            (Op::Reply, Some((requester, id, _))) => {
                self.answers.push((requester, me, id, Answer::Reply { tag: own }));
                self.processes[me].asked = None;
                self.finish(me, Outcome::Done);
            }
            (Op::Relay(to), Some((requester, id, _))) => {
                let what = What::Forward { requester, id };
                let id = self.id(me);
                self.queues[me][to].push(Entry { what, tag: own, id, live: true });
                self.processes[me].stage = Stage::Forwarded;
            }
            _ => self.finish(me, Outcome::Skipped),
        }
    }
}
