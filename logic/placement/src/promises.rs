//! The promises that nodes can make: the same admission that a node does itself, by what it says
//! that it has and has promised.

use crate::{Lack, Node, Want};
use reserve::Heuristic;
use reserve::model::{Manager, Model, Team, Wish};
use reserve::node::{Capacity, Promise};
use reserve::{Affinity, Task, TaskError};
use std::collections::BTreeMap;
use topology::Reserve;

/// The reservations of one node, as it says them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Promises {
    /// The capacity that it has; `None`: it does not say, so nobody knows what it can promise.
    pub capacity: Option<Capacity>,
    /// The promises to domains of the cluster, by `DC/DOMAIN`. They count for those that are there.
    pub domains: BTreeMap<String, Given>,
    /// The promises to others. They always count.
    pub others: BTreeMap<String, Given>,
    /// Domains that it has refused to run without all of their promise, by `DC/DOMAIN`, and why.
    pub refused: BTreeMap<String, String>,
}

/// The promise to one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The reservation in its file; `None`: it has none.
    pub file: Option<Reserve>,
    /// The reservation that it has now.
    pub now: Reserve,
    /// The processor that gives it, numbered from 0.
    pub processor: Option<usize>,
}

impl Given {
    /// The wish that asks for just that.
    fn asked(&self, link_bits: u64) -> Option<(Wish, Team)> {
        let (wish, team) = asked(&self.now, link_bits).ok()?;
        let affinity = self.processor.map_or(wish.affinity, |number| Affinity::only([number]));
        Some((Wish { affinity, ..wish }, team))
    }
}

/// The wish of a reservation, with the jobs inside.
fn asked(reserve: &Reserve, link_bits: u64) -> Result<(Wish, Team), TaskError> {
    Ok((reserve.wish(link_bits)?, reserve.team()?))
}

/// The promised part of a node, of the resource that is promised most of, in thousandths.
pub(crate) fn share(node: &Node, taken: &BTreeMap<String, Reserve>) -> u64 {
    let Some(capacity) = &node.promises.capacity else { return 1000 };
    let link_bits = capacity.link.rate_bits;
    let mut sums = [0_u128; 5];
    for (_, (wish, _)) in wishes(node, taken, "", link_bits) {
        let time =
            |task: Task| u128::from(task.budget_ns()) * 1000 * 1000 / u128::from(task.period_ns().max(1));
        let more = [
            wish.task.map_or(0, time),
            wish.network.map_or(0, |class| u128::from(class.rate_bits)),
            u128::from(wish.memory_bytes),
            u128::from(wish.disk.bytes),
            u128::from(wish.disk.operations),
        ];
        for (sum, more) in sums.iter_mut().zip(more) {
            *sum = sum.saturating_add(more);
        }
    }
    let has = [
        u128::try_from(capacity.processors).unwrap_or(u128::MAX).saturating_mul(1000 * 1000),
        u128::from(link_bits),
        u128::from(capacity.memory_bytes),
        u128::from(capacity.disk.bytes),
        u128::from(capacity.disk.operations),
    ];
    let shares = sums.iter().zip(has).map(|(sum, has)| sum.saturating_mul(1000) / has.max(1));
    u64::try_from(shares.max().unwrap_or(0)).unwrap_or(u64::MAX)
}

/// The capacity that a node has left to promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    /// Of each of its processors, in millionths.
    pub processors_ppm: Vec<u64>,
    /// Of its link, in bits per second; `None`: it has none for that.
    pub network_bits: Option<u64>,
    /// Of its memory.
    pub memory_bytes: u64,
    /// Of its disk, a second.
    pub disk_bytes: u64,
    /// The same in operations.
    pub disk_operations: u64,
}

/// The capacity that is left on a node when those that are booked there have theirs. A promise with
/// a deadline before its period's end may need more than is missing from the whole.
pub(crate) fn free(node: &Node, taken: &BTreeMap<String, Reserve>) -> Option<Free> {
    let capacity = node.promises.capacity.clone()?;
    let link_bits = capacity.link.rate_bits;
    let mut model = Model::new(capacity.clone(), Heuristic::WorstFit).ok()?;
    fill(&mut model, &wishes(node, taken, "", link_bits));
    let node = model.node();
    let of_processor = |number: usize| {
        let ppm = |task: Task| {
            (u128::from(task.budget_ns()) * 1_000_000).div_ceil(u128::from(task.period_ns().max(1)))
        };
        let taken: u128 = node.on_processor(number).map(|(_, task)| ppm(task)).sum();
        1_000_000_u64.saturating_sub(u64::try_from(taken).unwrap_or(u64::MAX))
    };
    let sum = |of: fn(&Promise) -> u64| -> u64 {
        node.promises().fold(0, |sum, (_, promise)| sum.saturating_add(of(promise)))
    };
    let network = sum(|promise| promise.network.map_or(0, |class| class.rate_bits));
    Some(Free {
        processors_ppm: (0..capacity.processors).map(of_processor).collect(),
        network_bits: (link_bits > 0).then(|| link_bits.saturating_sub(network)),
        memory_bytes: capacity.memory_bytes.saturating_sub(sum(|promise| promise.memory_bytes)),
        disk_bytes: capacity.disk.bytes.saturating_sub(sum(|promise| promise.disk.bytes)),
        disk_operations: capacity.disk.operations.saturating_sub(sum(|promise| promise.disk.operations)),
    })
}

/// Returns the lack for which a node has refused a domain that tried it.
pub(crate) fn refused(node: &Node, want: &Want) -> Option<Lack> {
    let why = node.promises.refused.get(&want.name())?;
    want.reserve.as_ref().map(|_| Lack::Refused { why: why.clone() })
}

/// The capacity that a node lacks for the reservation of a domain; `taken`: the promises to those
/// that are booked there.
pub(crate) fn lack(node: &Node, taken: &BTreeMap<String, Reserve>, want: &Want) -> Option<Lack> {
    let reserve = want.reserve.as_ref()?;
    let name = want.name();
    let Some(capacity) = node.promises.capacity.clone() else { return Some(Lack::Silent) };
    let link_bits = capacity.link.rate_bits;
    let (wish, team) = match own(node, &name, reserve, link_bits) {
        Ok(wish) => wish,
        Err(why) => return Some(Lack::Promise { why }),
    };
    let admitted =
        Model::new(capacity, Heuristic::WorstFit).map_err(|error| error.to_string()).and_then(|mut model| {
            fill(&mut model, &wishes(node, taken, &name, link_bits));
            let teams = BTreeMap::from([(name.clone(), team)]);
            model.admit_teams(&[(name.as_str(), wish)], teams).map(drop).map_err(|error| error.to_string())
        });
    admitted.err().map(|why| Lack::Promise { why })
}

/// The wish of a domain on a node: the node's own promise, where that differs from the domain's
/// file.
fn own(node: &Node, name: &str, reserve: &Reserve, link_bits: u64) -> Result<(Wish, Team), String> {
    let given = node.promises.domains.get(name).filter(|given| given.file.as_ref() == Some(reserve));
    asked(given.map_or(reserve, |given| &given.now), link_bits).map_err(|error| error.to_string())
}

/// All that is promised on a node but to one; those of whom the node says so first, where it says.
fn wishes(
    node: &Node,
    taken: &BTreeMap<String, Reserve>,
    but: &str,
    link_bits: u64,
) -> Vec<(String, (Wish, Team))> {
    let known = |name: &str, reserve: &Reserve| {
        node.promises.domains.get(name).filter(|given| given.file.as_ref() == Some(reserve))
    };
    let others = node.promises.others.iter().map(|(name, given)| (name.clone(), given.asked(link_bits)));
    let there = taken.iter().filter(|(name, _)| *name != but);
    let (given, fresh): (Vec<_>, Vec<_>) = there.partition(|(name, reserve)| known(name, reserve).is_some());
    let given = given
        .into_iter()
        .map(|(name, reserve)| (name.clone(), known(name, reserve).and_then(|given| given.asked(link_bits))));
    let fresh = fresh.into_iter().map(|(name, reserve)| (name.clone(), asked(reserve, link_bits).ok()));
    others.chain(given).chain(fresh).filter_map(|(name, asked)| Some((name, asked?))).collect()
}

/// Promises all that, or as much of it as there is: who is booked and finds no room on a processor
/// has the rest, and who finds none at all is there without a promise. Those whose processor is
/// known come first, or others would take what is theirs.
fn fill(model: &mut Model, all: &[(String, (Wish, Team))]) {
    let mut promise = |some: &[(&str, Wish)], teams: BTreeMap<String, Team>| {
        model.admit_teams(some, teams).and_then(|adaptation| model.commit(adaptation)).is_ok()
    };
    let share = |wish: &Wish| {
        let task = wish
            .task
            .map(|task| u128::from(task.budget_ns()) * 1_000_000 / u128::from(task.period_ns().max(1)));
        std::cmp::Reverse(task.unwrap_or(0))
    };
    let (bound, any): (Vec<_>, Vec<_>) =
        all.iter().partition(|(_, (wish, _))| wish.affinity != Affinity::ANY);
    for mut some in [bound, any] {
        let together: Vec<(&str, Wish)> =
            some.iter().map(|(name, (wish, _))| (name.as_str(), *wish)).collect();
        if promise(&together, some.iter().map(|(name, (_, team))| (name.clone(), team.clone())).collect()) {
            continue;
        }
        some.sort_by_key(|(name, (wish, _))| (share(wish), name.as_str()));
        for (name, (wish, team)) in some {
            let own = BTreeMap::from([(name.clone(), team.clone())]);
            if !promise(&[(name.as_str(), *wish)], own) {
                let _without_a_promise =
                    promise(&[(name.as_str(), Wish { task: None, ..*wish })], BTreeMap::new());
            }
        }
    }
}
