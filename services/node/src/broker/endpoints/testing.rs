//! A view into the broker for tests, and a store that outlives its daemon.

use super::{Endpoints, Reserved, Store, Table};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use wire::control::EndpointAddress;

#[derive(Debug, Default)]
struct Written {
    reserved: Option<Reserved>,
    names: BTreeMap<String, BTreeMap<String, u32>>,
    writes: usize,
}

/// The record that daemons hand on to each other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Written>>);

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap()
    }

    pub(crate) fn writes(&self) -> usize {
        self.lock().writes
    }
}

impl Store for Kept {
    fn load(&self) -> io::Result<Option<Reserved>> {
        Ok(self.lock().reserved.clone())
    }

    fn save(&self, reserved: &Reserved) -> io::Result<()> {
        let mut kept = self.lock();
        kept.reserved = Some(reserved.clone());
        kept.writes += 1;
        Ok(())
    }

    fn load_names(&self, dc: &str) -> io::Result<BTreeMap<String, u32>> {
        Ok(self.lock().names.get(dc).cloned().unwrap_or_default())
    }

    fn save_names(&self, dc: &str, names: &BTreeMap<String, u32>) -> io::Result<()> {
        self.lock().names.insert(dc.to_owned(), names.clone());
        Ok(())
    }
}

impl super::Inner {
    /// Bytes that a container's endpoints take.
    pub(crate) fn ipc_use(&self, dc: &str) -> u64 {
        self.ipc_bytes(dc)
    }
}

/// One container's, as tests see it.
pub(crate) struct Seen<'a>(&'a Table);

impl Endpoints {
    pub(crate) fn table(&self, dc: &str) -> Seen<'_> {
        Seen(self.tables.get(dc).unwrap())
    }

    /// Has a slot come to its last generation.
    pub(crate) fn exhaust(&mut self, dc: &str, slot: u32) {
        self.tables.get_mut(dc).unwrap().slots.get_mut(&slot).unwrap().last = u32::MAX;
    }
}

impl Seen<'_> {
    pub(crate) fn pair_count(&self) -> usize {
        self.0.pairs.len()
    }

    pub(crate) fn slot_count(&self) -> usize {
        self.0.slots.len()
    }

    pub(crate) fn missed_count(&self) -> usize {
        self.0.missed
    }

    pub(crate) fn bound_count(&self) -> usize {
        self.0.bound
    }

    pub(crate) fn is_bound(&self, address: EndpointAddress) -> bool {
        self.0.at(address).is_some()
    }
}

impl Endpoints {
    /// Checks the invariants, which hold at any time.
    pub(crate) fn check(&self) {
        let mut bound = 0;
        for (dc, table) in &self.tables {
            bound += check_table(self, dc, table);
        }
        assert_eq!(bound, self.of_member.values().map(std::collections::BTreeSet::len).sum::<usize>());
        assert!(self.met_again.is_empty() && self.returned.is_none());
    }
}

fn check_table(all: &Endpoints, dc: &str, table: &Table) -> usize {
    let there = || table.slots.iter().filter_map(|(slot, entry)| Some((*slot, entry, entry.bound.as_ref()?)));
    assert_eq!(there().count(), table.bound);
    let mut anonymous: BTreeMap<&str, usize> = BTreeMap::new();
    for (slot, entry, bound) in there() {
        assert!(all.of_member.get(&bound.member).is_some_and(|slots| slots.contains(&slot)));
        assert!(bound.generation >= 1 && bound.generation <= entry.last);
        match &entry.name {
            Some(name) => assert_eq!(table.names.get(name), Some(&slot)),
            None => *anonymous.entry(&bound.domain).or_default() += 1,
        }
        for peer in &bound.peers {
            assert!(table.pairs.contains_key(&super::pair_of(slot, *peer)), "{slot} {peer}");
            let far = table.far.contains_key(peer);
            assert!(far || table.bound(*peer).is_some_and(|(other, _)| other.peers.contains(&slot)));
        }
        assert!(!table.free.contains(&slot));
    }
    let counted: BTreeMap<&str, usize> =
        table.anonymous.iter().map(|(of, count)| (of.as_str(), *count)).collect();
    assert_eq!(counted, anonymous);
    let far: usize = table.far.values().map(|peer| peer.pairs).sum();
    assert_eq!(there().map(|(.., bound)| bound.peers.len()).sum::<usize>(), 2 * table.pairs.len() - far);
    assert_eq!(there().map(|(.., bound)| bound.missed.len()).sum::<usize>(), table.missed);
    for (key, pair) in &table.pairs {
        assert!(key.0 < key.1);
        if let Some(channel) = pair.channel {
            assert!(all.regions.is_open(channel, dc));
        }
    }
    table.buffers.check();
    table.bound
}
