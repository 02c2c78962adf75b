//! Requests that wait for an answer, by the numbers that the program knows them by.

use endpoint::{Address, Asked};
use std::collections::HashMap;

/// So many requests are kept before anybody looks whether those who asked are still there.
const PRUNE_AT_LEAST: usize = 64;

/// Requests that were received. Of two of one endpoint only the newer can be answered, so there is at most one of each.
#[derive(Debug)]
pub struct Requests {
    /// Number of the last one.
    last: u64,
    asked: HashMap<u64, Asked>,
    numbers: HashMap<Address, u64>,
    prune_at: usize,
}

impl Requests {
    pub fn new() -> Self {
        Self { last: 0, asked: HashMap::new(), numbers: HashMap::new(), prune_at: PRUNE_AT_LEAST }
    }

    /// Keeps a request; `is_there` says of an endpoint whether it can still be answered. Returns the number.
    pub fn keep(&mut self, asked: Asked, is_there: impl Fn(Address) -> bool) -> u64 {
        if self.asked.len() >= self.prune_at {
            self.asked.retain(|_, asked| is_there(asked.requester()));
            self.numbers.retain(|requester, _| is_there(*requester));
            self.prune_at = PRUNE_AT_LEAST.max(2 * self.asked.len());
        }
        self.last += 1;
        if let Some(older) = self.numbers.insert(asked.requester(), self.last) {
            self.asked.remove(&older);
        }
        self.asked.insert(self.last, asked);
        self.last
    }

    pub fn find(&self, number: u64) -> Option<Asked> {
        self.asked.get(&number).copied()
    }

    /// It has been answered, or nobody waits for it.
    pub fn forget(&mut self, number: u64) {
        if let Some(asked) = self.asked.remove(&number) {
            self.numbers.remove(&asked.requester());
        }
    }
}
