//! What tests look into, and a store that outlives its daemon.

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

/// What daemons that follow each other keep.
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
