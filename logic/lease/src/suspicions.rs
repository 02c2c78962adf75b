//! Taking over without the word of who keeps the leases.
//!
//! The keeper of leases may give each its whole time anew: etcd does after it has elected another
//! leader. The others need not wait for that. One of them writes a *suspicion* of the holder, where
//! the leases are kept. A holder counts a renewal only if it was told, at a moment after it sent
//! it, that no suspicion of it stood; one that lives takes the suspicion away. So as long as a
//! suspicion stands, all that its holder counts was sent before the suspicion was written, and has
//! ended when its term has passed since:
//!
//! ```text
//! sent < written <= told
//! the holder stops at   sent + (ttl - margin)   by its clock
//! another takes over at told + ttl or later     by its own, if the suspicion stands then
//! ```
//!
//! which leaves the margin for stopping, and for clocks that run at different speeds, as for a
//! lease that ends by itself. Whoever is told late, or was stopped meanwhile, counts from later: it
//! waits longer, never shorter.

use std::collections::BTreeMap;

/// When holders are suspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuspicionTiming {
    /// After how long without an answer to an own renewal.
    pub slow_ns: u64,
    /// How long after that the others are suspected again, at first.
    pub pause_ns: u64,
    /// The longest that this grows to, while answers stay slow.
    pub longest_pause_ns: u64,
}

/// A suspicion that stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspicion {
    /// The life of the holder that is suspected.
    pub life: u64,
    /// The suspicion's number: no two have one.
    pub revision: u64,
    /// From when on its holder has stopped.
    pub ripe_at: u64,
}

/// The suspicions that one knows of, of all holders.
#[derive(Debug, Clone)]
pub struct Suspicions {
    timing: SuspicionTiming,
    standing: BTreeMap<String, Suspicion>,
    /// Before this nobody is suspected again.
    rest_until: u64,
    pause_ns: u64,
}

impl Suspicions {
    /// Nobody is suspected yet.
    #[must_use]
    pub fn new(timing: SuspicionTiming) -> Self {
        Self { timing, standing: BTreeMap::new(), rest_until: 0, pause_ns: timing.pause_ns }
    }

    /// From when on a renewal that was sent at `sent`, and is not answered, makes one suspicion the
    /// others.
    #[must_use]
    pub fn due(&self, sent: u64) -> u64 {
        sent.saturating_add(self.timing.slow_ns).max(self.rest_until)
    }

    /// All others are suspected now.
    pub fn suspected_all(&mut self, now: u64) {
        let longest = self.timing.longest_pause_ns;
        // While answers stay slow, suspicions get rarer; who had nothing to suspect for as long as
        // it rested last begins anew.
        let quiet = now.saturating_sub(self.rest_until) > self.pause_ns;
        self.pause_ns =
            if quiet { self.timing.pause_ns } else { self.pause_ns.saturating_mul(2).min(longest) };
        self.rest_until = now.saturating_add(self.pause_ns);
    }

    /// A suspicion of this life of a holder stands, whoever wrote it; its leases last `ttl_ns`
    /// after each renewal. `now`: after one was told so.
    pub fn stands(&mut self, holder: &str, life: u64, revision: u64, ttl_ns: u64, now: u64) {
        let known = self.standing.get(holder);
        if known.is_some_and(|known| (known.life, known.revision) == (life, revision)) {
            return;
        }
        let suspicion = Suspicion { life, revision, ripe_at: now.saturating_add(ttl_ns) };
        self.standing.insert(holder.to_owned(), suspicion);
    }

    /// Nothing more is to be done about the suspicion of a holder.
    pub fn over(&mut self, holder: &str) {
        self.standing.remove(holder);
    }

    /// The suspicions whose holders have stopped, if they still stand: that is to be asked in the
    /// same moment in which one takes over.
    #[must_use]
    pub fn ripe(&self, now: u64) -> Vec<(String, Suspicion)> {
        let ripe = self.standing.iter().filter(|(_, suspicion)| suspicion.ripe_at <= now);
        ripe.map(|(holder, suspicion)| (holder.clone(), *suspicion)).collect()
    }

    /// When the next is.
    #[must_use]
    pub fn next_ripe(&self) -> Option<u64> {
        self.standing.values().map(|suspicion| suspicion.ripe_at).min()
    }
}

#[cfg(test)]
mod tests;
