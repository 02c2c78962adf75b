//! The managers, which admit, reserve, expel and adapt.

use super::{Adaptation, Id, Model, ModelError, Team, Wish, check_name};
use crate::adapt::AdaptError;
use crate::admission::Rule;
use crate::node::{NodeError, Promise};
use std::collections::{BTreeMap, BTreeSet};

/// Manages what is promised.
pub trait Manager {
    /// Whether machines could be promised this, all of it together; nothing is changed. The
    /// adaptation can be committed.
    ///
    /// # Errors
    /// The task that would miss its deadline, or the resource that is short, and the remedy.
    fn admit(&self, changes: &[(&str, Wish)]) -> Result<Adaptation, ModelError>;

    /// The same, with the teams that some of these machines get; the others keep theirs, and a new
    /// one has the default.
    ///
    /// # Errors
    /// As [`Manager::admit`]; also where a job inside would be late.
    fn admit_teams(
        &self,
        changes: &[(&str, Wish)],
        teams: BTreeMap<String, Team>,
    ) -> Result<Adaptation, ModelError>;

    /// Promises a machine this, besides nothing that it had.
    ///
    /// # Errors
    /// As [`Manager::admit`].
    fn reserve(&mut self, machine: &str, wish: Wish) -> Result<Promise, ModelError>;

    /// Takes back all that was promised to a machine, with its jobs.
    ///
    /// # Errors
    /// Where there is none of that name.
    fn expel(&mut self, machine: &str) -> Result<(), ModelError>;

    /// Changes several promises in one step.
    ///
    /// # Errors
    /// As [`Manager::admit`]; nothing is changed then.
    fn adapt(&mut self, changes: &[(&str, Wish)]) -> Result<(), ModelError>;

    /// The resources of a machine, from its parts down to the node's.
    ///
    /// # Errors
    /// Where there is none of that name.
    fn resources(&self, machine: &str) -> Result<Vec<Id>, ModelError>;

    /// The order, and the cost of a switch.
    fn policy(&self) -> Rule;

    /// Another policy, where all that is promised can be kept by it.
    ///
    /// # Errors
    /// The task that would miss its deadline.
    fn set_policy(&mut self, rule: Rule) -> Result<(), ModelError>;
}

impl Manager for Model {
    fn admit(&self, changes: &[(&str, Wish)]) -> Result<Adaptation, ModelError> {
        self.admit_teams(changes, BTreeMap::new())
    }

    fn admit_teams(
        &self,
        changes: &[(&str, Wish)],
        teams: BTreeMap<String, Team>,
    ) -> Result<Adaptation, ModelError> {
        for (machine, team) in &teams {
            team.jobs.keys().try_for_each(|job| check_name(job))?;
            if team.jobs.len() > super::MAX_JOBS {
                return Err(ModelError::TooManyJobs(machine.clone()));
            }
        }
        let mut seen = BTreeSet::new();
        for (name, _) in changes {
            check_name(name)?;
            if !seen.insert(*name) {
                return Err(AdaptError::Twice((*name).to_owned()).into());
            }
        }
        let mut promises = self.place(changes, false)?;
        let named = |promises: &[Promise]| -> Vec<(&str, Promise)> {
            changes.iter().zip(promises).map(|((name, _), promise)| (*name, *promise)).collect()
        };
        let mut transaction = self.node.adapt(&named(&promises));
        // Those who may go elsewhere do where nobody can stay.
        if let Err(AdaptError::Refused(NodeError::Processor { .. })) = &transaction {
            let moved = self.place(changes, true)?;
            if moved != promises
                && let Ok(found) = self.node.adapt(&named(&moved))
            {
                (promises, transaction) = (moved, Ok(found));
            }
        }
        let (named, transaction) = (named(&promises), transaction?);
        let after = transaction.after();
        let before = named.iter().filter_map(|(name, _)| self.node.promise(name)?.processor);
        let coming = named.iter().filter_map(|(_, promise)| promise.processor);
        let touched: BTreeSet<usize> = before.chain(coming).map(|(number, _)| number).collect();
        self.check_inside(after, &touched, &teams)?;
        let affinities = changes.iter().map(|(name, wish)| ((*name).to_owned(), wish.affinity)).collect();
        Ok(Adaptation { transaction, affinities, teams, revision: self.revision })
    }

    fn reserve(&mut self, machine: &str, wish: Wish) -> Result<Promise, ModelError> {
        self.adapt(&[(machine, wish)])?;
        Ok(self.node.promise(machine).copied().unwrap_or_default())
    }

    fn expel(&mut self, machine: &str) -> Result<(), ModelError> {
        self.known(machine)?;
        self.adapt(&[(machine, Wish::default())])
    }

    fn adapt(&mut self, changes: &[(&str, Wish)]) -> Result<(), ModelError> {
        let adaptation = self.admit(changes)?;
        self.commit(adaptation)
    }

    fn resources(&self, machine: &str) -> Result<Vec<Id>, ModelError> {
        Ok(self.below(self.known(machine)?.id))
    }

    fn policy(&self) -> Rule {
        self.node.capacity().rule
    }

    fn set_policy(&mut self, rule: Rule) -> Result<(), ModelError> {
        let mut capacity = self.node.capacity().clone();
        capacity.rule = rule;
        let node = self.node.with_capacity(capacity)?;
        let all: BTreeSet<usize> = (0..node.capacity().processors).collect();
        self.check_inside(&node, &all, &BTreeMap::new())?;
        self.node = node;
        self.revision += 1;
        Ok(())
    }
}
