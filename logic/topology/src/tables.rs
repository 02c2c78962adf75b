//! The domains whose processor time dispatch tables or the kernel's deadline class are to keep, and
//! those for which they have no room.

use crate::look::Look;
use crate::model::{Enforce, Reserve, Topology};
use reserve::model::{Adaptation, Manager, Model, ModelError, Team, Wish};
use reserve::node::Node;
use reserve::{DeadlineRoom, Means, Standing, Unkept, Wanting};
use std::collections::BTreeMap;

/// Somebody who is promised something.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// Its name, as the node has it.
    pub name: &'a str,
    /// The promise to it.
    pub reserve: &'a Reserve,
    /// Whether it has slots or deadlines for that now.
    pub has: bool,
}

/// Those of all that want slots, or deadlines, for whom a node that promises this has none. The
/// room for deadlines is looked at where somebody wants some.
#[must_use]
pub fn without_room<'a>(
    node: &Node,
    means: Means,
    room: impl FnOnce() -> DeadlineRoom,
    asking: impl IntoIterator<Item = Asking<'a>>,
) -> Vec<Unkept> {
    let rule = node.capacity().rule;
    let mut on: BTreeMap<usize, Vec<Wanting>> = BTreeMap::new();
    let mut deadlines = Vec::new();
    for Asking { name, reserve, has } in asking {
        let promised = node.promise(name).and_then(|promise| promise.processor);
        let keeper = reserve.kept_by().0;
        let is_kept_so = matches!(keeper, Enforce::Table | Enforce::Deadline);
        let Some((number, task)) = promised.filter(|_| is_kept_so) else { continue };
        let standing = match (has, reserve.strict) {
            (true, _) => Standing::Has,
            (false, true) => Standing::Strict,
            (false, false) => Standing::Plain,
        };
        let jobs = reserve.policy.order().filter(|_| reserve.strict).map(|policy| {
            let timed = reserve.jobs.iter().filter_map(|(name, job)| Some((name.clone(), job.task().ok()?)));
            (policy, timed.collect())
        });
        let wanting = Wanting { name: name.to_owned(), task, standing, jobs };
        if keeper == Enforce::Table {
            on.entry(number).or_default().push(wanting)
        } else {
            deadlines.push(wanting)
        }
    }
    let tables =
        on.into_values().flat_map(|wanting| means.at_least(rule.costs).share_out(rule.policy, wanting));
    let mut unkept: Vec<Unkept> = tables.collect();
    if !deadlines.is_empty() {
        unkept.extend(room().share_out(deadlines));
    }
    unkept
}

/// Those of a file for whom the node's tables, or the kernel's deadline class, have no room: a
/// quota keeps them, or they are refused where they are `strict`.
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
    let mut found =
        without_room(admitted.transaction().after(), tables.means, || tables.room, others.chain(own));
    found.retain(|unkept| asked.iter().any(|(name, _)| *name == unkept.name));
    found
}
