//! Taking over without the word of who keeps the leases.
//!
//! The keeper of leases may give each its whole time anew: etcd does after it has elected another
//! leader. The others need not wait for that. One of them writes a *doubt* of the holder, where the
//! leases are kept. A holder counts a renewal only if it was told, at a moment after it sent it,
//! that no doubt of it stood; one that lives takes the doubt away. So as long as a doubt stands,
//! all that its holder counts was sent before the doubt was written, and has ended when its term
//! has passed since:
//!
//! ```text
//! sent < written <= told
//! the holder stops at   sent + (ttl - margin)   by its clock
//! another takes over at told + ttl or later     by its own, if the doubt stands then
//! ```
//!
//! which leaves the margin for stopping, and for clocks that run at different speeds, as for a
//! lease that ends by itself. Whoever is told late, or was stopped meanwhile, counts from later: it
//! waits longer, never shorter.

use std::collections::BTreeMap;

/// When holders are doubted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspicion {
    /// After how long without an answer to an own renewal.
    pub slow_ns: u64,
    /// How long after that the others are doubted again, at first.
    pub pause_ns: u64,
    /// The longest that this grows to, while answers stay slow.
    pub longest_pause_ns: u64,
}

/// A doubt that stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubt {
    /// The life of the holder that is doubted.
    pub life: u64,
    /// The doubt's number: no two have one.
    pub revision: u64,
    /// From when on its holder has stopped.
    pub ripe_at: u64,
}

/// The doubts that one knows of, of all holders.
#[derive(Debug, Clone)]
pub struct Doubts {
    suspicion: Suspicion,
    standing: BTreeMap<String, Doubt>,
    /// Before this nobody is doubted again.
    rest_until: u64,
    pause_ns: u64,
}

impl Doubts {
    /// Nobody is doubted yet.
    #[must_use]
    pub fn new(suspicion: Suspicion) -> Self {
        Self { suspicion, standing: BTreeMap::new(), rest_until: 0, pause_ns: suspicion.pause_ns }
    }

    /// From when on a renewal that was sent at `sent`, and is not answered, makes one doubt the
    /// others.
    #[must_use]
    pub fn due(&self, sent: u64) -> u64 {
        sent.saturating_add(self.suspicion.slow_ns).max(self.rest_until)
    }

    /// All others are doubted now.
    pub fn doubted_all(&mut self, now: u64) {
        let longest = self.suspicion.longest_pause_ns;
        // While answers stay slow, doubts get rarer; who had nothing to doubt for as long as it
        // rested last begins anew.
        let quiet = now.saturating_sub(self.rest_until) > self.pause_ns;
        self.pause_ns =
            if quiet { self.suspicion.pause_ns } else { self.pause_ns.saturating_mul(2).min(longest) };
        self.rest_until = now.saturating_add(self.pause_ns);
    }

    /// A doubt of this life of a holder stands, whoever wrote it; its leases last `ttl_ns` after
    /// each renewal. `now`: after one was told so.
    pub fn stands(&mut self, holder: &str, life: u64, revision: u64, ttl_ns: u64, now: u64) {
        let known = self.standing.get(holder);
        if known.is_some_and(|known| (known.life, known.revision) == (life, revision)) {
            return;
        }
        let doubt = Doubt { life, revision, ripe_at: now.saturating_add(ttl_ns) };
        self.standing.insert(holder.to_owned(), doubt);
    }

    /// Nothing more is to be done about the doubt of a holder.
    pub fn over(&mut self, holder: &str) {
        self.standing.remove(holder);
    }

    /// The doubts whose holders have stopped, if they still stand: that is to be asked in the same
    /// moment in which one takes over.
    #[must_use]
    pub fn ripe(&self, now: u64) -> Vec<(String, Doubt)> {
        let ripe = self.standing.iter().filter(|(_, doubt)| doubt.ripe_at <= now);
        ripe.map(|(holder, doubt)| (holder.clone(), *doubt)).collect()
    }

    /// When the next is.
    #[must_use]
    pub fn next_ripe(&self) -> Option<u64> {
        self.standing.values().map(|doubt| doubt.ripe_at).min()
    }
}

#[cfg(test)]
mod tests;
