//! Descriptors of nodes that are open in the store: a cache of bounded size, for everything in it
//! can be opened again by its place.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

struct Kept {
    descriptor: Arc<OwnedFd>,
    used: u64,
}

/// Descriptors by the numbers of their nodes; the one that was not used for longest gives way.
pub struct Descriptors {
    kept: HashMap<u32, Kept>,
    most: usize,
    uses: u64,
}

impl Descriptors {
    pub fn new(most: usize) -> Self {
        Self { kept: HashMap::new(), most, uses: 0 }
    }

    pub fn get(&mut self, serial: u32) -> Option<Arc<OwnedFd>> {
        self.uses += 1;
        let kept = self.kept.get_mut(&serial)?;
        kept.used = self.uses;
        Some(Arc::clone(&kept.descriptor))
    }

    pub fn put(&mut self, serial: u32, descriptor: OwnedFd) -> Arc<OwnedFd> {
        if self.kept.len() >= self.most
            && let Some(oldest) =
                self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(&serial, _)| serial)
        {
            self.kept.remove(&oldest);
        }
        self.uses += 1;
        let descriptor = Arc::new(descriptor);
        self.kept.insert(serial, Kept { descriptor: Arc::clone(&descriptor), used: self.uses });
        descriptor
    }

    pub fn drop_of(&mut self, serial: u32) {
        self.kept.remove(&serial);
    }
}
