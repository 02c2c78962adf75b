//! The level of quality that each domain is to keep to, where something adapts it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Levels by distributed container and domain; 0, the best, where nothing is said.
#[derive(Debug, Default)]
pub(crate) struct Levels(Mutex<BTreeMap<(String, String), u32>>);

impl Levels {
    /// The level of a domain.
    pub(crate) fn of(&self, dc: &str, domain: &str) -> u32 {
        let levels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        levels.get(&(dc.to_owned(), domain.to_owned())).copied().unwrap_or(0)
    }

    /// Says all levels anew.
    pub(crate) fn replace(&self, levels: BTreeMap<(String, String), u32>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = levels;
    }
}
