//! The placing of machines on processors, and the test whether the jobs inside all machines stay in
//! time.

use super::{Model, ModelError, Team, Timed, Wish};
use crate::adapt::AdaptError;
use crate::admission::{AdmitError, Rule};
use crate::dispatch::Inside;
use crate::fraction;
use crate::inside;
use crate::node::{Node, NodeError, Promise};
use crate::partition::Heuristic;
use crate::task::Task;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

impl Model {
    /// The promise that each wish becomes, with a processor for each that wants one: machines that
    /// are somewhere stay where they are as long as that is allowed and fits, the others come by
    /// falling utilisation, each to the first of the heuristic's order that passes.
    pub(super) fn place(&self, changes: &[(&str, Wish)], may_move: bool) -> Result<Vec<Promise>, ModelError> {
        let mut on: BTreeMap<usize, Vec<(&str, Task)>> = BTreeMap::new();
        let changed: BTreeSet<&str> = changes.iter().map(|(name, _)| *name).collect();
        for number in self.open() {
            let rest = self.node.on_processor(number).filter(|(name, _)| !changed.contains(name));
            on.insert(number, rest.collect());
        }
        let mut places = vec![0; changes.len()];
        let mut left = Vec::new();
        for (index, (name, wish)) in changes.iter().enumerate() {
            let Some(task) = wish.task else { continue };
            let here = self.current(name);
            match here.filter(|number| wish.affinity.allows(*number) && on.contains_key(number)) {
                Some(number) => {
                    let together = on.entry(number).or_default();
                    together.push((name, task));
                    if may_move && !self.fits(together)? {
                        together.pop();
                        left.push(index);
                    } else {
                        places[index] = number;
                    }
                }
                None => left.push(index),
            }
        }
        let share = |index: &usize| {
            changes[*index].1.task.map_or(0, |task| fraction::up(task.budget_ns(), task.period_ns()))
        };
        left.sort_by_key(|index| (Reverse(share(index)), *index));
        let mut last = 0;
        for index in left {
            let (name, wish) = changes[index];
            let Some(task) = wish.task else { continue };
            let mut candidates: Vec<usize> =
                on.keys().copied().filter(|number| wish.affinity.allows(*number)).collect();
            self.order(&mut candidates, &on, last);
            let mut found = None;
            for &number in &candidates {
                let together = on.entry(number).or_default();
                together.push((name, task));
                if self.fits(together)? {
                    found = Some(number);
                    break;
                }
                together.pop();
            }
            // Where there is no place, the first is as good as any: who admits says what would
            // help.
            let number = found.or_else(|| self.current(name).filter(|number| candidates.contains(number)));
            let number =
                number.or_else(|| candidates.first().copied()).ok_or_else(|| self.nowhere(name, &wish))?;
            if found.is_none() {
                on.entry(number).or_default().push((name, task));
            }
            (places[index], last) = (number, number);
        }
        Ok(changes.iter().zip(places).map(|((_, wish), place)| wish.promise(place)).collect())
    }

    fn current(&self, name: &str) -> Option<usize> {
        self.node.promise(name)?.processor.map(|(number, _)| number)
    }

    /// The processors that take somebody.
    pub(super) fn open(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.node.capacity().processors).filter(|number| !self.closed.contains(number))
    }

    fn nowhere(&self, name: &str, wish: &Wish) -> ModelError {
        let processors = self.node.capacity().processors;
        let wanted = (0..crate::partition::MAX_PROCESSORS).find(|number| wish.affinity.allows(*number));
        let processor = wanted.unwrap_or(processors);
        NodeError::NoProcessor { name: name.to_owned(), processor, processors }.into()
    }

    fn order(&self, candidates: &mut [usize], on: &BTreeMap<usize, Vec<(&str, Task)>>, last: usize) {
        let taken = |number: &usize| -> u128 {
            on.get(number).map_or(0, |all| {
                all.iter().map(|(_, task)| fraction::up(task.budget_ns(), task.period_ns())).sum()
            })
        };
        let count = self.node.capacity().processors.max(1);
        match self.heuristic {
            Heuristic::FirstFit => {}
            Heuristic::BestFit => candidates.sort_by_key(|number| Reverse(taken(number))),
            Heuristic::WorstFit => candidates.sort_by_key(taken),
            Heuristic::NextFit => candidates.sort_by_key(|number| (number + count - last) % count),
        }
    }

    fn fits(&self, together: &[(&str, Task)]) -> Result<bool, ModelError> {
        // In the order in which the node will look at them.
        let mut sorted = together.to_vec();
        sorted.sort_by_key(|(name, _)| *name);
        let tasks: Vec<Task> = sorted.iter().map(|(_, task)| *task).collect();
        match self.node.capacity().rule.holds(&tasks) {
            Ok(holds) => Ok(holds),
            // Who admits says so in better words.
            Err(AdmitError::Undecided(_) | AdmitError::TooMany(_)) => Ok(false),
            Err(refused) => Err(ModelError::Adapt(AdaptError::Refused(NodeError::Processor {
                processor: 0,
                names: sorted.iter().map(|(name, _)| (*name).to_owned()).collect(),
                cause: refused,
            }))),
        }
    }

    /// Whether all jobs that were promised to be in time are, on a node, on these processors;
    /// `teams` are those that differ from what is in force.
    pub(super) fn check_inside(
        &self,
        node: &Node,
        processors: &BTreeSet<usize>,
        teams: &BTreeMap<String, Team>,
    ) -> Result<(), ModelError> {
        for &processor in processors {
            let timed: Vec<(&str, Jobs)> = node
                .on_processor(processor)
                .filter_map(|(name, _)| self.timed_jobs(node, name, teams.get(name)).map(|jobs| (name, jobs)))
                .collect();
            let Some((first, _)) = timed.first() else { continue };
            let (names, table) = node.table(processor).map_err(|cause| ModelError::NoTable {
                machine: (*first).to_owned(),
                processor,
                cause,
            })?;
            for (name, jobs) in timed {
                let Some(place) = names.iter().position(|other| *other == name) else { continue };
                inside::admit(jobs.rule, &jobs.tasks, &table.supply(place), None).map_err(|cause| {
                    ModelError::Inside { machine: name.to_owned(), jobs: jobs.names, cause }
                })?;
            }
        }
        Ok(())
    }

    /// The jobs of a machine that were promised to be in time, and how long each takes at worst on
    /// what the table of all that is promised gives it; none where its team goes by turns, or
    /// nothing of a processor is promised to it.
    pub fn timed(&self, name: &str) -> Vec<Timed> {
        let Some(jobs) = self.timed_jobs(&self.node, name, None) else { return Vec::new() };
        let on = self.current(name).and_then(|number| self.node.table(number).ok());
        let place = on.as_ref().and_then(|(names, _)| names.iter().position(|other| *other == name));
        let supply = on.as_ref().zip(place).map(|((_, table), place)| table.supply(place));
        let responses =
            supply.and_then(|supply| inside::responses(jobs.rule, &jobs.tasks, &supply).ok().flatten());
        let response = |index: usize| responses.as_ref().and_then(|all| all.get(index)).copied();
        let all = jobs.names.into_iter().zip(jobs.tasks).enumerate();
        all.map(|(index, (name, task))| Timed { name, task, response: response(index) }).collect()
    }

    /// The jobs of a machine that have deadlines, where its team keeps any.
    fn timed_jobs(&self, node: &Node, name: &str, coming: Option<&Team>) -> Option<Jobs> {
        let machine = self.machines.get(name);
        let inside = coming.map(|team| team.inside).or_else(|| Some(machine?.inside))?;
        let Inside::By(policy) = inside else { return None };
        let (names, tasks): (Vec<String>, Vec<Task>) = match coming {
            Some(team) => team.jobs.iter().map(|(name, task)| (name.clone(), *task)).unzip(),
            None => {
                let all = machine?.jobs.iter();
                all.filter_map(|(name, job)| Some((name.clone(), job.task?))).unzip()
            }
        };
        let rule = Rule { policy, costs: node.capacity().rule.costs };
        (!tasks.is_empty()).then_some(Jobs { rule, names, tasks })
    }
}

/// Jobs that were promised to be in time, in the order of their names.
struct Jobs {
    rule: Rule,
    names: Vec<String>,
    tasks: Vec<Task>,
}
