//! The domains' shares of the link on this node: the numbers of their classes, and memory of the
//! proxy.
//!
//! A proxy has one cgroup for all whom it serves, so memory that one of them makes it take is
//! missing for all others. Every pair is therefore counted with all that it can make the proxy
//! hold, against one budget, before it is served. What a domain and its distributed container have
//! may not exceed what is left free: whoever comes late finds something, however greedy those
//! before were.

use link::schedule::{MAX_CLASSES, REST};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;
use wire::proxy::{MEMORY_BYTES, WINDOW_BYTES};

/// The proxy's own needs: its program, buffers of its connection and of handshakes, events and
/// reports on their way.
const OWN_BYTES: u64 = 128 << 20;
/// The bytes that all pairs together may make it hold.
pub(crate) const BUDGET_BYTES: u64 = MEMORY_BYTES - OWN_BYTES;
/// Numbers of domains begin here.
const FIRST: u32 = 16;
/// Domains that a state names: so many fit into a packet, beside pairs.
const MAX_SHOWN: usize = 64;

/// The bytes that a pair can make the proxy hold at most: the region of its rings (whoever touches
/// a page first is charged for it, and what a domain alleges to have written it need not have
/// touched), a record of each direction that is not whole, what waits for the other node, and what
/// has come from there.
pub(crate) const fn pair_bytes(region_bytes: u64) -> u64 {
    region_bytes.saturating_add(region_bytes / 2).saturating_add(2 * WINDOW_BYTES as u64)
}

/// There is not enough memory left for a pair.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "a channel takes up to {} KiB of the proxy's memory, and domain {name} may have {} KiB more of it ({} of {} KiB are free, {} KiB are taken by this domain, {} KiB \
     by its distributed container): close channels to that node, or take smaller rings (`ring_bytes`)",
    wanted / 1024, room / 1024, free / 1024, total / 1024, domain / 1024, container / 1024
)]
pub(crate) struct Lacks {
    name: String,
    wanted: u64,
    room: u64,
    free: u64,
    total: u64,
    domain: u64,
    container: u64,
}

/// A domain that has something.
#[derive(Debug, Default)]
struct Domain {
    class: u32,
    /// It was promised a share of the link.
    promised: bool,
    members: usize,
    bytes: u64,
}

#[derive(Debug)]
struct Table {
    total: u64,
    used: u64,
    /// By `DC/DOMAIN`.
    domains: BTreeMap<String, Domain>,
    /// Numbers that nobody has any more.
    free: Vec<u32>,
    /// So many were ever given out.
    numbers: u32,
}

/// All domains that have something. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Domains(Arc<Mutex<Table>>);

/// A pair's share; dropped, it is given back.
#[derive(Debug)]
pub(crate) struct Member {
    domains: Domains,
    name: String,
    bytes: u64,
    class: u32,
}

impl Member {
    /// The class of its domain.
    pub(crate) fn class(&self) -> u32 {
        self.class
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut table = self.domains.lock();
        table.used = table.used.saturating_sub(self.bytes);
        if let Some(domain) = table.domains.get_mut(&self.name) {
            domain.bytes = domain.bytes.saturating_sub(self.bytes);
            domain.members = domain.members.saturating_sub(1);
        }
        table.forget_if_idle(&self.name);
    }
}

impl Table {
    /// The domain of a name, with a number of its own as long as there are any.
    fn domain(&mut self, name: &str) -> &mut Domain {
        if !self.domains.contains_key(name) {
            let class = self.number();
            self.domains.insert(name.to_owned(), Domain { class, ..Domain::default() });
        }
        self.domains.entry(name.to_owned()).or_default()
    }

    fn number(&mut self) -> u32 {
        if let Some(number) = self.free.pop() {
            return number;
        }
        if usize::try_from(self.numbers).unwrap_or(usize::MAX) >= MAX_CLASSES {
            return REST;
        }
        self.numbers += 1;
        FIRST + self.numbers - 1
    }

    /// A domain that has nothing any more gives its number back.
    fn forget_if_idle(&mut self, name: &str) {
        let is_idle = |domain: &Domain| domain.members == 0 && !domain.promised;
        if self.domains.get(name).is_some_and(is_idle)
            && let Some(domain) = self.domains.remove(name)
            && domain.class >= FIRST
        {
            self.free.push(domain.class);
        }
    }

    /// The shares of a distributed container's domains together.
    fn of_container(&self, name: &str) -> u64 {
        let container = name.split_once('/').map_or(name, |(container, _)| container);
        let is_in = |of: &str| of.split_once('/').map_or(of, |(of, _)| of) == container;
        self.domains.iter().filter(|(of, _)| is_in(of)).map(|(_, domain)| domain.bytes).sum()
    }
}

impl Domains {
    /// Nobody has anything of so many bytes.
    pub(crate) fn new(total: u64) -> Self {
        let table = Table { total, used: 0, domains: BTreeMap::new(), free: Vec::new(), numbers: 0 };
        Self(Arc::new(Mutex::new(table)))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pair of the domain takes so many bytes.
    ///
    /// # Errors
    /// [`Lacks`].
    pub(crate) fn take(&self, name: &str, bytes: u64) -> Result<Member, Lacks> {
        let mut table = self.lock();
        let free = table.total.saturating_sub(table.used);
        let domain = table.domains.get(name).map_or(0, |domain| domain.bytes);
        let container = table.of_container(name);
        // With them, what the domain and its container have is no more than what is free then.
        let room = free.saturating_sub(domain).saturating_sub(container) / 3;
        if bytes > room {
            let (total, name) = (table.total, name.to_owned());
            return Err(Lacks { name, wanted: bytes, room, free, total, domain, container });
        }
        table.used = table.used.saturating_add(bytes);
        let domain = table.domain(name);
        domain.bytes = domain.bytes.saturating_add(bytes);
        domain.members += 1;
        let class = domain.class;
        drop(table);
        Ok(Member { domains: self.clone(), name: name.to_owned(), bytes, class })
    }

    /// The number of a domain that is promised something.
    pub(crate) fn promise(&self, name: &str) -> u32 {
        let mut table = self.lock();
        let domain = table.domain(name);
        domain.promised = true;
        domain.class
    }

    /// It is promised nothing any more. The number that it had.
    pub(crate) fn promise_nothing(&self, name: &str) -> Option<u32> {
        let mut table = self.lock();
        let domain = table.domains.get_mut(name)?;
        domain.promised = false;
        let class = domain.class;
        table.forget_if_idle(name);
        Some(class)
    }

    /// For the state tree.
    pub(crate) fn state(&self) -> Value {
        let table = self.lock();
        let domains = table.domains.iter().filter(|(_, domain)| domain.members > 0).take(MAX_SHOWN);
        let domains: serde_json::Map<_, _> =
            domains.map(|(name, domain)| (name.clone(), domain.bytes.into())).collect();
        json!({ "total_bytes": table.total, "used_bytes": table.used, "domains": domains })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 1 << 20;

    /// Takes as much as it gets, in units.
    fn greedy(domains: &Domains, name: &str) -> Vec<Member> {
        std::iter::from_fn(|| domains.take(name, UNIT).ok()).collect()
    }

    #[test]
    fn who_comes_late_finds_something_however_greedy_those_before_were() {
        let domains = Domains::new(384 * UNIT);
        let first = greedy(&domains, "flood/one");
        assert_eq!(first.len(), 128, "a third, where a domain is alone");
        let siblings: Vec<_> = (0..100).flat_map(|n| greedy(&domains, &format!("flood/{n}"))).collect();
        assert!(first.len() + siblings.len() <= 192, "a container never has more than half");
        assert!(greedy(&domains, "shop/web").len() >= 60);
        let others: Vec<_> = (0..3).flat_map(|n| greedy(&domains, &format!("greedy{n}/all"))).collect();
        assert!(!others.is_empty() && domains.take("late/one", UNIT).is_ok());
    }

    #[test]
    fn what_is_given_back_is_there_again_and_all_of_it() {
        let domains = Domains::new(384 * UNIT);
        let all = [greedy(&domains, "shop/web"), greedy(&domains, "lab/x")];
        let Err(lacks) = domains.take("shop/web", UNIT) else { panic!("it has all that it may have") };
        let text = lacks.to_string();
        for part in ["1024 KiB", "shop/web", "393216 KiB", "smaller rings"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        drop(all);
        assert_eq!(domains.state()["used_bytes"], 0);
        assert_eq!(greedy(&domains, "shop/web").len(), 128);
    }

    /// Numbers were given out for good: after some thousand domains that had come and gone no other
    /// one had a class.
    #[test]
    fn a_number_is_free_again_when_its_domain_has_nothing_any_more() {
        let domains = Domains::new(384 * UNIT);
        let stays = domains.promise("shop/web");
        for round in 0..3 * MAX_CLASSES {
            let member = domains.take(&format!("lab/{round}"), UNIT).unwrap();
            assert!(member.class() >= FIRST && member.class() != stays, "round {round}");
        }
        let member = domains.take("shop/web", UNIT).unwrap();
        assert_eq!((member.class(), domains.promise_nothing("shop/web")), (stays, Some(stays)));
        assert_eq!(domains.promise("shop/web"), stays, "as long as it has a pair");
        domains.promise_nothing("shop/web");
        drop(member);
        assert_eq!(domains.promise_nothing("shop/web"), None);
        let all: Vec<u32> = (0..MAX_CLASSES).map(|n| domains.promise(&format!("lab/{n}"))).collect();
        assert!(all.iter().all(|class| *class >= FIRST));
        assert_eq!(domains.promise("lab/one-too-many"), REST);
    }

    #[test]
    fn enormous_numbers_are_refused() {
        let domains = Domains::new(u64::MAX);
        assert!(domains.take("a/b", u64::MAX).is_err());
        assert_eq!(pair_bytes(u64::MAX), u64::MAX);
    }
}
