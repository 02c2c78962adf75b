//! Moving budgets between virtual task machines: one transaction over processors, network, memory
//! and disk.
//!
//! The final state is admitted as a whole, or nothing happens. The steps go from one admitted state
//! to the next: first everybody shrinks to what is within both the old promise and the new one,
//! then everybody grows. A change that fails half-way goes back by the same states.

use crate::network::Class;
use crate::node::{Disk, MAX_MACHINES, Node, NodeError, Promise};
use crate::task::{Policy, Task};
use std::collections::BTreeSet;

/// Most steps that may be in each other's way: each is tried at each place.
pub const MAX_ORDERED: usize = 64;

/// Somebody's promise becomes another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The name of the promise.
    pub name: String,
    /// The former promise.
    pub from: Promise,
    /// The new promise.
    pub to: Promise,
}

impl Step {
    /// The step back.
    pub fn inverse(&self) -> Self {
        Self { name: self.name.clone(), from: self.to, to: self.from }
    }
}

/// An adaptation that was admitted: what to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    steps: Vec<Step>,
    shrinking: usize,
    after: Node,
}

/// Why nothing is changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdaptError {
    /// The final state can't be kept.
    #[error("{0}")]
    Refused(#[from] NodeError),
    /// The end is fine, and each way there breaks a promise for a moment.
    #[error(
        "`{name}` can't move before somebody makes room for it ({cause}); give it less for the time of the move, or move the others first"
    )]
    NoWay {
        /// The machine that is in the way of another, and that other.
        name: String,
        /// Why.
        cause: Box<NodeError>,
    },
    /// Twice the same.
    #[error("`{0}` is changed twice; give one change for each")]
    Twice(String),
    /// More moves than are put into an order.
    #[error(
        "{0} changes that move to other processors, or change periods or deadlines, are more than {MAX_ORDERED}, the most that are put into an order; make several adaptations of them"
    )]
    TooManyOrdered(usize),
    /// More changes than there can be machines.
    #[error("{0} changes are more than {MAX_MACHINES}, the most virtual task machines of one node")]
    TooMany(usize),
}

impl Transaction {
    /// The steps, first to last. After each step all promises can be kept.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// How many of the steps come first and only shrink. They have to have taken effect before the
    /// first that grows begins.
    pub fn shrinking(&self) -> usize {
        self.shrinking
    }

    /// The steps that undo the first `done` steps, in this order.
    pub fn undo(&self, done: usize) -> Vec<Step> {
        self.steps.iter().take(done).rev().map(Step::inverse).collect()
    }

    /// The node as it will be when all is done.
    pub fn after(&self) -> &Node {
        &self.after
    }

    /// The node when all is done.
    pub fn commit(self) -> Node {
        self.after
    }
}

impl Node {
    /// The transaction that gives each of the named the promise beside its name. A promise of
    /// nothing expels; a machine that is not there yet comes.
    ///
    /// # Errors
    /// Where that can't be kept, or not reached without breaking a promise on the way; nothing is
    /// changed then.
    pub fn adapt(&self, changes: &[(&str, Promise)]) -> Result<Transaction, AdaptError> {
        if changes.len() > MAX_MACHINES {
            return Err(AdaptError::TooMany(changes.len()));
        }
        let mut seen = BTreeSet::new();
        if let Some((name, _)) = changes.iter().find(|(name, _)| !seen.insert(*name)) {
            return Err(AdaptError::Twice((*name).to_owned()));
        }
        let current = |name: &str| self.promise(name).copied().unwrap_or_default();
        let (mut shrink, mut grow) = (Vec::new(), Vec::new());
        let mut after = self.clone();
        for (name, to) in changes {
            let (from, between) = (current(name), meet(&current(name), to));
            after.set(name, *to);
            let step = |from: Promise, to: Promise| Step { name: (*name).to_owned(), from, to };
            if from != between {
                shrink.push(step(from, between));
            }
            if between != *to {
                grow.push(step(between, *to));
            }
        }
        let names: Vec<&str> = grow.iter().map(|step| step.name.as_str()).collect();
        let newcomer = if let [only] = names.as_slice() { Some(*only) } else { None };
        let touched: Vec<usize> = self.touched(changes);
        after.check(&touched, &grown(&shrink, &grow), newcomer)?;
        let shrinking = shrink.len();
        let grow = if self.needs_order(&shrink, &grow) { self.in_order(&shrink, grow)? } else { grow };
        shrink.extend(grow);
        Ok(Transaction { steps: shrink, shrinking, after })
    }

    fn touched(&self, changes: &[(&str, Promise)]) -> Vec<usize> {
        let old = changes.iter().filter_map(|(name, _)| self.promise(name)?.processor);
        let new = changes.iter().filter_map(|(_, promise)| promise.processor);
        let numbers: BTreeSet<usize> = old.chain(new).map(|(number, _)| number).collect();
        numbers.into_iter().filter(|number| *number < self.capacity.processors).collect()
    }

    /// Whether steps may be in each other's way. They are not where everybody stays on the
    /// processor: all states on the way ask for no more than the last one (or the first), and with
    /// less to do nobody is late who was not. That holds under earliest deadline first, and with
    /// fixed priorities as long as these follow the deadlines, which are within the periods.
    fn needs_order(&self, shrink: &[Step], grow: &[Step]) -> bool {
        let moves = grow.iter().any(|step| matches!((step.from.processor, step.to.processor), (Some((one, _)), Some((other, _))) if one != other));
        let reorders = |step: &Step| match (step.from.processor, step.to.processor) {
            (Some((_, one)), Some((_, other))) => {
                one.period_ns() != other.period_ns()
                    || one.deadline_ns() != other.deadline_ns()
                    || one.jitter_ns() != other.jitter_ns()
            }
            _ => false,
        };
        let fixed = self.capacity.rule.policy != Policy::EarliestDeadline;
        moves || (fixed && shrink.iter().chain(grow).any(reorders))
    }

    /// Puts steps that grow into an order in which each leads to what can be kept: always the first
    /// that does. The result of shrinking is looked at, too.
    fn in_order(&self, shrink: &[Step], grow: Vec<Step>) -> Result<Vec<Step>, AdaptError> {
        let count = shrink.len().max(grow.len());
        if count > MAX_ORDERED {
            return Err(AdaptError::TooManyOrdered(count));
        }
        let mut state = self.clone();
        for step in shrink {
            state = state.try_step(step).map_err(|cause| no_way(step, cause))?;
        }
        let (mut left, mut ordered) = (grow, Vec::new());
        while !left.is_empty() {
            let mut first_refusal = None;
            let mut found = None;
            for (place, step) in left.iter().enumerate() {
                match state.try_step(step) {
                    Ok(next) => {
                        found = Some((place, next));
                        break;
                    }
                    Err(cause) => {
                        first_refusal.get_or_insert((place, cause));
                    }
                }
            }
            match (found, first_refusal) {
                (Some((place, next)), _) => {
                    state = next;
                    ordered.push(left.remove(place));
                }
                (None, Some((place, cause))) => return Err(no_way(&left[place], cause)),
                (None, None) => break,
            }
        }
        Ok(ordered)
    }

    /// The node after a step, if all can be kept then.
    fn try_step(&self, step: &Step) -> Result<Self, NodeError> {
        let mut next = self.clone();
        next.set(&step.name, step.to);
        let touched = self.touched(&[(step.name.as_str(), step.to)]);
        let names: Vec<String> = next.promises.keys().cloned().collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        next.check(&touched, &all, Some(&step.name))?;
        Ok(next)
    }
}

fn no_way(step: &Step, cause: NodeError) -> AdaptError {
    AdaptError::NoWay { name: step.name.clone(), cause: Box::new(cause) }
}

/// The machines that ask for more in some respect, or for something else: their processors have to
/// be looked at from there down.
fn grown<'a>(shrink: &'a [Step], grow: &'a [Step]) -> Vec<&'a str> {
    let differs_otherwise = |step: &&Step| match (step.from.processor, step.to.processor) {
        (Some((_, one)), Some((_, other))) => one.with_budget(other.budget_ns()) != Ok(other),
        _ => false,
    };
    let other = shrink.iter().filter(differs_otherwise);
    grow.iter().chain(other).map(|step| step.name.as_str()).collect()
}

/// The promise that is within both, in every respect.
fn meet(one: &Promise, other: &Promise) -> Promise {
    let processor = match (one.processor, other.processor) {
        (Some((number, task)), Some((there, target))) if number == there => {
            Some((number, meet_tasks(&task, &target)))
        }
        // On its way to another processor it keeps what it may: its move is one step, and grows.
        (Some((number, task)), Some((_, target))) => {
            Some((number, task.with_budget(task.budget_ns().min(target.budget_ns())).unwrap_or(task)))
        }
        _ => None,
    };
    let network = match (one.network, other.network) {
        (Some(class), Some(target)) => Some(meet_classes(&class, &target)),
        _ => None,
    };
    Promise {
        processor,
        network,
        memory_bytes: one.memory_bytes.min(other.memory_bytes),
        disk: Disk {
            bytes: one.disk.bytes.min(other.disk.bytes),
            operations: one.disk.operations.min(other.disk.operations),
        },
    }
}

fn meet_tasks(one: &Task, other: &Task) -> Task {
    let easier = Task::new(one.budget_ns().min(other.budget_ns()), one.period_ns().max(other.period_ns()))
        .and_then(|task| task.with_deadline(one.deadline_ns().max(other.deadline_ns())))
        .and_then(|task| task.with_jitter(one.jitter_ns().min(other.jitter_ns())));
    // Both are tasks, so this is one: less work, more time.
    easier.unwrap_or(*one)
}

fn meet_classes(one: &Class, other: &Class) -> Class {
    Class {
        rate_bits: one.rate_bits.min(other.rate_bits),
        ceiling_bits: one.ceiling_bits.min(other.ceiling_bits),
        burst_bytes: one.burst_bytes.min(other.burst_bytes),
        precedence: one.precedence.max(other.precedence),
    }
}
