//! Until when a node may do what others would do in its place.
//!
//! A lease is kept by somebody else (etcd), who counts its time from when he *heard* a renewal. The
//! holder counts from when it *sent* it, which is earlier, and stops a margin before: so at no
//! moment do both believe that the other's time has come, whatever is lost or late between them, as
//! long as their clocks run at about one speed. (Gray and Cheriton, Leases, SOSP 1989.) The
//! holder's clock must go on while the machine sleeps, and can't be set: `CLOCK_BOOTTIME`.
//!
//! Nothing here waits or looks at a clock: times are handed in, in nanoseconds.

mod suspicions;

pub use suspicions::{Suspicion, SuspicionTiming, Suspicions};

/// How long a lease lasts, and how it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How long it lasts after each renewal.
    pub ttl_ns: u64,
    /// How long before its end the holder stops: for what it takes to stop, and for clocks that run
    /// at different speeds.
    pub margin_ns: u64,
    /// How long after a renewal was sent the next one is.
    pub renew_every_ns: u64,
}

/// The holder's next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Ask for a lease, now.
    Grant,
    /// Renew the one that there is, now.
    Renew,
    /// Nothing before this moment.
    Wait(u64),
}

/// One holder of one lease after the other.
#[derive(Debug, Clone)]
pub struct Holder {
    terms: Terms,
    /// Whether there is a lease that may still be.
    has_one: bool,
    /// Until when it is certainly held; 0: not at all.
    held_until: u64,
    /// When the last request was sent.
    sent: u64,
    /// Grows with every lease: answers about an earlier one count for nothing.
    lease: u64,
}

impl Holder {
    /// Nobody holds anything yet.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Self { terms, has_one: false, held_until: 0, sent: 0, lease: 0 }
    }

    /// A lease was granted for so long; it was asked for at `sent`. Nothing is held before
    /// [`Holder::renewed`].
    pub fn granted(&mut self, sent: u64, ttl_ns: u64) -> u64 {
        self.terms.ttl_ns = ttl_ns;
        self.has_one = true;
        self.held_until = 0;
        self.sent = sent;
        self.lease += 1;
        self.lease
    }

    /// The lease was renewed by what was sent at `sent`.
    pub fn renewed(&mut self, lease: u64, sent: u64) {
        if !self.has_one || lease != self.lease {
            return;
        }
        let until = sent.saturating_add(self.terms.ttl_ns).saturating_sub(self.terms.margin_ns);
        // Answers may come in another order than they were asked for.
        self.held_until = self.held_until.max(until);
        self.sent = self.sent.max(sent);
    }

    /// The lease is gone: others may have taken what depends on it.
    pub fn lost(&mut self, lease: u64) {
        if lease == self.lease {
            self.has_one = false;
            self.held_until = 0;
        }
    }

    /// Until when it is certainly held; 0: it is not.
    #[must_use]
    pub fn held_until(&self) -> u64 {
        self.held_until
    }

    /// Whether it is held now.
    #[must_use]
    pub fn is_held(&self, now: u64) -> bool {
        now < self.held_until
    }

    /// The next action.
    #[must_use]
    pub fn next(&self, now: u64) -> Next {
        let due = self.sent.saturating_add(self.terms.renew_every_ns);
        if !self.has_one {
            Next::Grant
        } else if now >= due {
            Next::Renew
        } else {
            Next::Wait(due)
        }
    }
}

#[cfg(test)]
mod tests;
