//! In which order domains start, and whether there is one.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Domain, Service, ServiceKind, Topology};

impl Topology {
    /// The domains in the order in which they start; they stop in the opposite one.
    ///
    /// A domain starts after those that its `after` names. Where that leaves a choice, the domain
    /// that runs a service comes before those that mount it or may open it, the one that has a
    /// service or an endpoint before its backups, and names decide the rest. Two servers that mount
    /// each other's services are no error: frontends wait for a backend anyway.
    #[must_use]
    pub fn start_order(&self) -> Vec<&Domain> {
        let mut waiting: Vec<&Domain> = self.domains.iter().collect();
        let mut started: BTreeSet<&str> = BTreeSet::new();
        let mut order = Vec::with_capacity(waiting.len());
        while !waiting.is_empty() {
            let known: BTreeSet<&str> = waiting.iter().map(|domain| domain.name.as_str()).collect();
            let may = |domain: &&Domain| domain.after.iter().all(|name| !known.contains(name.as_str()));
            let best = |domain: &&Domain| may(domain) && self.stands_on(domain).is_subset(&started);
            // The last alternative is for a topology that was never admitted: it must end, too.
            let next = waiting.iter().position(best).or_else(|| waiting.iter().position(may)).unwrap_or(0);
            let domain = waiting.remove(next);
            started.insert(&domain.name);
            order.push(domain);
        }
        order
    }

    /// The other domains that `domain` starts after, where there is a choice: those that run what
    /// it mounts or may open, and those whose services and endpoints it is a backup of.
    #[must_use]
    pub fn stands_on<'a>(&'a self, domain: &Domain) -> BTreeSet<&'a str> {
        let services = self.services.iter().map(|service| (&service.domain, &service.backups));
        let endpoints = self.endpoints.iter().map(|endpoint| (&endpoint.domain, &endpoint.backups));
        let backed = services.chain(endpoints).filter(|(_, backups)| backups.contains(&domain.name));
        let primaries =
            backed.map(|(primary, _)| primary.as_str()).filter(|name| *name != domain.name.as_str());
        self.backends(domain).into_iter().chain(primaries).collect()
    }

    /// The other domains that run what `domain` mounts, or offer channels that it may open.
    #[must_use]
    pub fn backends<'a>(&'a self, domain: &Domain) -> BTreeSet<&'a str> {
        let mounts = |service: &Service| {
            domain.services.iter().any(|mount| mount.service == service.name)
                || domain.sockets.iter().any(|mount| mount.service == service.name)
        };
        let opens = |service: &Service| service.kind() == ServiceKind::Channel && service.opens(&domain.name);
        let uses = |service: &&Service| mounts(service) || opens(service);
        let hosts = self.services.iter().filter(uses).map(|service| service.domain.as_str());
        hosts.filter(|host| *host != domain.name.as_str()).collect()
    }
}

/// Cycles that are told at once: a tangle of 256 domains has millions, and whoever has eight
/// corrects these first.
const CYCLES_MAX: usize = 8;

/// Cycles of a graph, at most [`CYCLES_MAX`], each as the nodes on the way and the first one again;
/// none twice. Not all cycles of a tangle are listed, but there are none where the list is empty.
pub(crate) fn cycles<'a>(edges: &[(&'a str, &'a str)]) -> Vec<Vec<&'a str>> {
    let mut next: BTreeMap<&str, Vec<&'a str>> = BTreeMap::new();
    for (from, to) in edges {
        next.entry(from).or_default().push(to);
    }
    let mut done = BTreeSet::new();
    let mut found = Vec::new();
    for (from, _) in edges {
        walk(from, &next, &mut done, &mut found);
    }
    found
}

/// Walks depth-first from `start` with a stack of its own: a hostile file can't make it deep.
fn walk<'a>(
    start: &'a str,
    next: &BTreeMap<&str, Vec<&'a str>>,
    done: &mut BTreeSet<&'a str>,
    found: &mut Vec<Vec<&'a str>>,
) {
    let mut path: Vec<(&'a str, usize)> = if done.contains(start) { Vec::new() } else { vec![(start, 0)] };
    while let Some((node, taken)) = path.last_mut().filter(|_| found.len() < CYCLES_MAX) {
        let node = *node;
        let child = next.get(node).and_then(|children| children.get(*taken)).copied();
        *taken += 1;
        let Some(child) = child else {
            done.insert(node);
            path.pop();
            continue;
        };
        if let Some(at) = path.iter().position(|(on_path, _)| *on_path == child) {
            let mut cycle: Vec<&str> = path.iter().skip(at).map(|(name, _)| *name).collect();
            cycle.push(child);
            found.push(cycle);
        } else if !done.contains(child) {
            path.push((child, 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_found_once() {
        assert_eq!(cycles(&[("a", "b"), ("b", "c")]), Vec::<Vec<&str>>::new());
        assert_eq!(cycles(&[("a", "a")]), vec![vec!["a", "a"]]);
        assert_eq!(cycles(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]), vec![vec!["a", "b", "c", "a"]]);
        let names: Vec<String> = (0..256).map(|number| format!("d{number}")).collect();
        let all =
            |from: &'_ str| names.iter().map(move |to| (from.to_owned(), to.clone())).collect::<Vec<_>>();
        let dense: Vec<(String, String)> = names.iter().flat_map(|from| all(from)).collect();
        let dense: Vec<(&str, &str)> = dense.iter().map(|(from, to)| (from.as_str(), to.as_str())).collect();
        assert_eq!(cycles(&dense).len(), CYCLES_MAX);
        assert_eq!(cycles(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]), Vec::<Vec<&str>>::new());
    }
}
