//! Whose processor time dispatch tables are to keep, and for whom they have no room.

use crate::look::Look;
use crate::model::{Enforce, Reserve, Topology};
use reserve::model::{Adaptation, Manager, Model, ModelError, Team, Wish};
use reserve::node::Node;
use reserve::{Means, Standing, Unkept, Wanting};
use std::collections::BTreeMap;

/// Somebody who is promised something.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// Its name, as the node has it.
    pub name: &'a str,
    /// What it is promised.
    pub reserve: &'a Reserve,
    /// Whether it has slots for that now.
    pub has: bool,
}

/// Those of all that want slots for whom a node that promises this has none.
#[must_use]
pub fn without_room<'a>(
    node: &Node,
    means: Means,
    asking: impl IntoIterator<Item = Asking<'a>>,
) -> Vec<Unkept> {
    let rule = node.capacity().rule;
    let mut on: BTreeMap<usize, Vec<Wanting>> = BTreeMap::new();
    for Asking { name, reserve, has } in asking {
        let promised = node.promise(name).and_then(|promise| promise.processor);
        let Some((number, task)) = promised.filter(|_| reserve.kept_by().0 == Enforce::Table) else {
            continue;
        };
        let standing = match (has, reserve.strict) {
            (true, _) => Standing::Has,
            (false, true) => Standing::Strict,
            (false, false) => Standing::Plain,
        };
        let jobs = reserve.policy.order().filter(|_| reserve.strict).map(|policy| {
            let timed = reserve.jobs.iter().filter_map(|(name, job)| Some((name.clone(), job.task().ok()?)));
            (policy, timed.collect())
        });
        on.entry(number).or_default().push(Wanting { name: name.to_owned(), task, standing, jobs });
    }
    on.into_values().flat_map(|wanting| means.at_least(rule.costs).share_out(rule.policy, wanting)).collect()
}

/// Those of a file for whom the node's tables have no room: a quota keeps them, or they are refused where they are `strict`.
#[must_use]
pub fn unkept(topology: &Topology, look: &dyn Look) -> Vec<Unkept> {
    let Some(model) = look.promised() else { return Vec::new() };
    let mut asked = Vec::new();
    for domain in &topology.domains {
        let name = format!("{}/{}", topology.name, domain.name);
        asked.extend(domain.reserve.as_ref().map(|reserve| (name, reserve)));
    }
    let asked: Vec<(&str, &Reserve)> =
        asked.iter().map(|(name, reserve)| (name.as_str(), *reserve)).collect();
    let link_bits = model.node().capacity().link.rate_bits;
    let wished = asked
        .iter()
        .filter_map(|(name, reserve)| Some((*name, reserve.wish(link_bits).ok()?, reserve.team().ok()?)));
    let wished: Vec<(&str, Wish, Team)> = wished.collect();
    match together(model, &wished) {
        Ok(admitted) => of_file(&admitted, look, &asked),
        // Whoever admits it says so.
        Err(_) => Vec::new(),
    }
}

/// Admits all of them at once.
pub(crate) fn together(model: &Model, wished: &[(&str, Wish, Team)]) -> Result<Adaptation, ModelError> {
    let wishes: Vec<(&str, Wish)> = wished.iter().map(|(name, wish, _)| (*name, *wish)).collect();
    let teams = wished.iter().map(|(name, _, team)| ((*name).to_owned(), team.clone())).collect();
    model.admit_teams(&wishes, teams)
}

/// Those of these for whom there is no room, beside all others.
pub(crate) fn of_file(admitted: &Adaptation, look: &dyn Look, asked: &[(&str, &Reserve)]) -> Vec<Unkept> {
    let Some(tables) = look.tables() else { return Vec::new() };
    let others = tables.others.iter().map(|(name, reserve, has)| Asking { name, reserve, has: *has });
    let own = asked.iter().map(|(name, reserve)| Asking { name, reserve, has: false });
    let mut found = without_room(admitted.transaction().after(), tables.means, others.chain(own));
    found.retain(|unkept| asked.iter().any(|(name, _)| *name == unkept.name));
    found
}
