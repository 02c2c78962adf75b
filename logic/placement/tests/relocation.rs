//! A planned move in a made-up cluster of three nodes, whose daemons are killed and lose their
//! leases at any step: the domain never lives twice, and in the end the move is over and the domain
//! lives.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use placement::{
    Assigned, Cluster, Duty, Node, Relocation, Standing, Start, Step, Verdict, Want, Wish, duty, judge,
};
use std::collections::VecDeque;

const NAMES: [&str; 3] = ["a", "b", "c"];
/// The domain leaves the first node for the second.
const FROM: usize = 0;
const TO: usize = 1;
const SEEDS: u64 = 1000;
const FAULTY_TURNS: usize = 120;
const QUIET_TURNS: usize = 400;

/// A value and how often it was written.
type Cell<T> = (T, u64);

/// One write or one deed, as it was decided by what was read before.
#[derive(Clone, Copy, Debug)]
enum Deed {
    End,
    Start,
    Set(Step, u64),
    Place(usize, u64),
    Claim(u64),
    LetGo(u64),
}

#[derive(Clone, Debug, Default)]
struct Daemon {
    lives: bool,
    ready: bool,
    failed: bool,
    lost: bool,
    deeds: VecDeque<Deed>,
}

struct World {
    seed: u64,
    elsewhere: bool,
    fits: [bool; 3],
    step: Cell<Step>,
    placed: Cell<usize>,
    claim: Cell<Option<usize>>,
    nodes: [Daemon; 3],
}

impl World {
    fn new(seed: u64, elsewhere: bool, to_fits: bool) -> Self {
        let mut nodes = [Daemon::default(), Daemon::default(), Daemon::default()];
        (nodes[FROM].lives, nodes[FROM].ready) = (true, true);
        let (step, placed, claim) = ((Step::Asked, 1), (FROM, 1), (Some(FROM), 1));
        Self { seed: seed * 2 + 1, elsewhere, fits: [true, to_fits, true], step, placed, claim, nodes }
    }

    /// A number below `below` (xorshift64).
    fn random(&mut self, below: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        usize::try_from(self.seed >> 33).unwrap() % below
    }

    fn turn(&mut self, faults: bool) {
        let me = self.random(3);
        match self.random(if faults { 24 } else { 8 }) {
            // Whoever waits for the move has waited long enough.
            19 if matches!(self.step.0, Step::Given | Step::Taken) => {
                self.step = (Step::Back, self.step.1 + 1);
            }
            // Its daemon is killed, and the next one finds what runs.
            20 | 21 => {
                let lives = self.nodes[me].lives;
                let lost = self.nodes[me].lost;
                self.nodes[me] = Daemon { lives, ready: lives, lost, ..Daemon::default() };
            }
            // Nobody hears of it for longer than its lease.
            22 => self.lose(me),
            23 => self.nodes[me].lost = false,
            _ if self.nodes[me].lost => {}
            _ => match self.nodes[me].deeds.pop_front() {
                Some(deed) => self.perform(me, deed),
                None => self.nodes[me].deeds = self.decide(me),
            },
        }
        let lives: Vec<&str> = (0..3).filter(|&it| self.nodes[it].lives).map(|it| NAMES[it]).collect();
        assert!(lives.len() <= 1, "it lives on {lives:?}, at {:?}", self.step);
    }

    fn lose(&mut self, me: usize) {
        let node = &mut self.nodes[me];
        (node.lost, node.deeds) = (true, VecDeque::new());
        if self.claim.0 == Some(me) {
            self.claim = (None, self.claim.1 + 1);
            // What may run elsewhere ends before the lease does.
            if self.elsewhere {
                (node.lives, node.ready) = (false, false);
            }
        }
    }

    fn decide(&self, me: usize) -> VecDeque<Deed> {
        let node = &self.nodes[me];
        let claimed = self.claim.0.map(|it| NAMES[it].to_owned());
        let assigned = Assigned { placed: Some(NAMES[self.placed.0].to_owned()), claimed };
        let start = match (node.failed, node.ready) {
            (true, _) => Start::Failed,
            (false, true) => Start::Ready,
            (false, false) => Start::Pending,
        };
        let relocation = Relocation { from: NAMES[FROM], to: NAMES[TO], step: self.step.0 };
        let is_lost = |name: &str| self.nodes[NAMES.iter().position(|it| *it == name).unwrap()].lost;
        let heir = if self.step.0 == Step::Back { FROM } else { TO };
        let hand_on = |heir| [Deed::Place(heir, self.placed.1), Deed::LetGo(self.claim.1)];
        match duty(NAMES[me], relocation, &assigned, start, is_lost) {
            Duty::None => {}
            Duty::Give => {
                return [Deed::End, Deed::Set(Step::Given, self.step.1)]
                    .into_iter()
                    .chain(hand_on(TO))
                    .collect();
            }
            Duty::HandOn => return std::iter::once(Deed::End).chain(hand_on(heir)).collect(),
            Duty::PlaceHere => return [Deed::Place(me, self.placed.1)].into(),
            Duty::Set(step) => return [Deed::Set(step, self.step.1)].into(),
            Duty::TakeBack => {
                return [Deed::Set(Step::Back, self.step.1), Deed::Place(me, self.placed.1)].into();
            }
        }
        let standing = |lost: bool| if lost { Standing::Lost } else { Standing::Ready };
        let nodes = (0..3).map(|it| Node::new(NAMES[it], standing(self.nodes[it].lost))).collect();
        let want = Want { elsewhere: self.elsewhere, ..Want::new("shop", "web", Wish::Any) };
        match judge(NAMES[me], &Cluster::new(nodes), &want, &assigned) {
            Verdict::Run if !node.lives && !node.failed => [Deed::Start].into(),
            Verdict::PlaceHere => [Deed::Place(me, self.placed.1)].into(),
            Verdict::Claim { .. } => [Deed::Claim(self.claim.1), Deed::Place(me, self.placed.1)].into(),
            Verdict::Leave | Verdict::Wait { .. } if node.lives => [Deed::End].into(),
            _ => VecDeque::new(),
        }
    }

    fn perform(&mut self, me: usize, deed: Deed) {
        let done = match deed {
            Deed::End => {
                let node = &mut self.nodes[me];
                (node.lives, node.ready, node.failed) = (false, false, false);
                true
            }
            Deed::Start => {
                (self.nodes[me].lives, self.nodes[me].ready) = (self.fits[me], self.fits[me]);
                self.nodes[me].failed = !self.fits[me];
                true
            }
            Deed::Set(step, seen) => swap(&mut self.step, seen, step),
            Deed::Place(node, seen) => swap(&mut self.placed, seen, node),
            Deed::Claim(seen) => self.claim.0.is_none() && swap(&mut self.claim, seen, Some(me)),
            Deed::LetGo(seen) => swap(&mut self.claim, seen, None),
        };
        if !done {
            self.nodes[me].deeds.clear();
        }
    }
}

/// Compare and swap.
fn swap<T>(cell: &mut Cell<T>, seen: u64, value: T) -> bool {
    let is_first = cell.1 == seen;
    if is_first {
        *cell = (value, seen + 1);
    }
    is_first
}

/// The ends of many moves: how often each step was the last.
fn ends(elsewhere: bool, to_fits: bool, faults: bool) -> Vec<Step> {
    let run = |seed| {
        let mut world = World::new(seed, elsewhere, to_fits);
        for _ in 0..FAULTY_TURNS {
            world.turn(faults);
        }
        for node in &mut world.nodes {
            node.lost = false;
        }
        for _ in 0..QUIET_TURNS {
            world.turn(false);
        }
        assert!(world.step.0.is_last(), "seed {seed} ends at {:?}", world.step);
        let holder = world.claim.0.unwrap_or_else(|| panic!("seed {seed}: nobody has it"));
        assert!(world.nodes[holder].lives || !world.fits[holder], "seed {seed}: it lives nowhere");
        world.step.0
    };
    (0..SEEDS).map(run).collect()
}

#[test]
fn without_faults_it_arrives_or_returns() {
    assert!(ends(false, true, false).iter().all(|step| *step == Step::Done));
    assert!(ends(false, false, false).iter().all(|step| *step == Step::Returned));
}

#[test]
fn whoever_dies_at_any_step_it_never_lives_twice_and_the_move_comes_to_an_end() {
    for (elsewhere, to_fits) in [(false, true), (false, false), (true, true), (true, false)] {
        let ends = ends(elsewhere, to_fits, true);
        // The faults come at steps that matter: with them, each end is reached that there is.
        for step in [Step::Done, Step::Returned].into_iter().filter(|step| to_fits || *step != Step::Done) {
            assert!(ends.contains(&step), "no move ends {step:?} with {elsewhere} {to_fits}");
        }
    }
}

#[test]
fn steps_have_words_and_no_other_word_is_a_step() {
    for step in Step::ALL {
        assert_eq!(Step::parse(step.as_str()), Some(step));
    }
    assert_eq!(Step::parse("Asked"), None);
}
