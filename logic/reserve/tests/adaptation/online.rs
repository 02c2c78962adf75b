//! The same without a table, where somebody else decides from moment to moment: when may budgets
//! change?
//!
//! Two rules are shown, by simulation in unit steps from every offset and for every moment of the
//! request. *Quiet*: all change at once where nothing is left over; that holds under every policy.
//! *Own boundaries*: whoever shrinks does so with its next period, and whoever grows with its first
//! period after all have shrunk; that holds under earliest deadline first with deadlines at the
//! ends of periods. (For fixed priorities we know no proof, so they wait for a quiet moment.)

use reserve::{Policy, Rule, Task};

/// One task in unit steps.
#[derive(Clone)]
struct Line {
    task: Task,
    next: u64,
    deadline: u64,
    left: u64,
}

struct World {
    policy: Policy,
    lines: Vec<Line>,
    now: u64,
    late: bool,
}

impl World {
    fn new(policy: Policy, tasks: &[Task], offsets: &[u64]) -> Self {
        let line = |(task, offset): (&Task, &u64)| Line { task: *task, next: *offset, deadline: 0, left: 0 };
        Self { policy, lines: tasks.iter().zip(offsets).map(line).collect(), now: 0, late: false }
    }

    fn is_quiet(&self) -> bool {
        self.lines.iter().all(|line| line.left == 0)
    }

    /// Begins the periods that begin now.
    fn release(&mut self) {
        for line in self.lines.iter_mut().filter(|line| line.next == self.now) {
            self.late |= line.left > 0;
            line.left = line.task.budget_ns();
            line.deadline = self.now + line.task.deadline_ns();
            line.next += line.task.period_ns();
        }
    }

    /// Runs one unit.
    fn step(&mut self) {
        self.late |= self.lines.iter().any(|line| line.left > 0 && line.deadline <= self.now);
        let key = |line: &Line| match self.policy {
            Policy::RateMonotonic => line.task.period_ns(),
            Policy::DeadlineMonotonic => line.task.deadline_ns(),
            Policy::EarliestDeadline => line.deadline,
        };
        let first = (0..self.lines.len())
            .filter(|index| self.lines[*index].left > 0)
            .min_by_key(|index| key(&self.lines[*index]));
        if let Some(first) = first {
            self.lines[first].left -= 1;
        }
        self.now += 1;
    }
}

fn differs(one: &Task, other: &Task) -> bool {
    one != other
}

/// All change at the first quiet moment; who changes begins a period there, and the others go on
/// with theirs.
fn change_when_quiet(world: &mut World, to: &[Task], asked: u64) -> Option<u64> {
    let begin = world.now;
    while world.now < asked || !world.is_quiet() {
        world.release();
        world.step();
        if world.now > begin + asked + 1_000 {
            return None;
        }
    }
    for (line, task) in world.lines.iter_mut().zip(to).filter(|(line, task)| differs(&line.task, task)) {
        (line.task, line.next) = (*task, world.now);
    }
    Some(world.now)
}

/// Everybody changes at an own boundary: first who shrinks, then who grows.
fn change_at_boundaries(world: &mut World, to: &[Task], asked: u64) {
    while world.now < asked {
        world.release();
        world.step();
    }
    for shrinking in [true, false] {
        let changing = |line: &Line, task: &Task| {
            differs(&line.task, task) && (task.budget_ns() < line.task.budget_ns()) == shrinking
        };
        while world.lines.iter().zip(to).any(|(line, task)| changing(line, task)) {
            let now = world.now;
            for (line, task) in
                world.lines.iter_mut().zip(to).filter(|(line, task)| changing(line, task) && line.next == now)
            {
                line.task = *task;
            }
            world.release();
            world.step();
        }
    }
}

fn run_on(world: &mut World, time: u64) {
    for _ in 0..time {
        world.release();
        world.step();
    }
}

fn task(budget: u64, period: u64, deadline: u64) -> Task {
    Task::new(budget, period).unwrap().with_deadline(deadline).unwrap()
}

fn offsets() -> impl Iterator<Item = [u64; 3]> {
    (0..4).flat_map(|one| (0..6).map(move |other| [0, one, other]))
}

/// Modes of three tasks, most of them with a full processor.
fn modes() -> Vec<[Task; 3]> {
    vec![
        [task(2, 4, 4), task(1, 6, 6), task(3, 12, 12)],
        [task(1, 4, 4), task(2, 6, 6), task(5, 12, 12)],
        [task(1, 4, 2), task(1, 6, 5), task(4, 12, 12)],
        [task(1, 4, 4), task(3, 6, 6), task(3, 12, 12)],
        [task(2, 4, 3), task(1, 6, 6), task(2, 12, 12)],
    ]
}

#[test]
fn a_quiet_moment_is_good_under_every_policy() {
    let (mut changes, mut longest) = (0, 0);
    for policy in Policy::ALL {
        let held: Vec<[Task; 3]> =
            modes().into_iter().filter(|set| Rule::new(policy).holds(set).unwrap()).collect();
        for from in &held {
            for to in held.iter().filter(|to| *to != from) {
                for (offsets, asked) in
                    offsets().flat_map(|offsets| (0..24).map(move |asked| (offsets, asked)))
                {
                    let mut world = World::new(policy, from, &offsets);
                    let changed = change_when_quiet(&mut world, to, asked).expect("a quiet moment comes");
                    run_on(&mut world, 60);
                    assert!(!world.late, "{policy} {from:?} to {to:?} from {offsets:?}, asked at {asked}");
                    (changes, longest) = (changes + 1, longest.max(changed - asked));
                }
            }
        }
    }
    println!("{changes} changes; the longest waited {longest} of a hyperperiod of 12");
    assert!(changes > 10_000 && longest <= 12);
}

/// Modes in which only budgets differ.
const BUDGETS: [[u64; 3]; 5] = [[2, 1, 4], [1, 2, 5], [1, 3, 3], [2, 2, 2], [3, 1, 1]];

fn budgets(policy: Policy) -> Vec<[Task; 3]> {
    let set = |[one, other, third]: [u64; 3]| [task(one, 4, 4), task(other, 6, 6), task(third, 12, 12)];
    BUDGETS.into_iter().map(set).filter(|set| Rule::new(policy).holds(set).unwrap()).collect()
}

/// How many changes at own boundaries were tried, and how many of them made somebody late.
fn at_boundaries(policy: Policy) -> (u64, u64) {
    let (mut changes, mut late) = (0, 0);
    let modes = budgets(policy);
    for from in &modes {
        for to in modes.iter().filter(|to| *to != from) {
            for (offsets, asked) in offsets().flat_map(|offsets| (0..24).map(move |asked| (offsets, asked))) {
                let mut world = World::new(policy, from, &offsets);
                change_at_boundaries(&mut world, to, asked);
                run_on(&mut world, 60);
                (changes, late) = (changes + 1, late + u64::from(world.late));
            }
        }
    }
    (changes, late)
}

#[test]
fn own_boundaries_are_good_where_the_earliest_deadline_goes_first() {
    let (changes, late) = at_boundaries(Policy::EarliestDeadline);
    println!("{changes} changes under earliest deadline first, {late} with somebody late");
    assert!(changes > 5_000);
    assert_eq!(late, 0);
}
