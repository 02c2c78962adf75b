//! The shares of the link that domains of this node are promised, by name, and as the link has
//! them: by number.

use crate::carrier::Carrier;
use crate::domains::Domains;
use link::Share;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Classes by name.
#[derive(Debug)]
pub(crate) struct Shares {
    domains: Domains,
    /// The rate of the whole, in bits per second; 0: there are no classes.
    whole_bits: u64,
    shares: BTreeMap<String, Share>,
}

impl Shares {
    /// Nobody is promised anything.
    pub(crate) fn new(domains: Domains) -> Self {
        Self { domains, whole_bits: 0, shares: BTreeMap::new() }
    }

    /// All begins anew: the whole carries so many bits per second; 0: there are no classes.
    pub(crate) fn begin(&mut self, carrier: &dyn Carrier, rate_bits: u64) {
        carrier.set_whole(None);
        for (name, _) in std::mem::take(&mut self.shares) {
            self.domains.promise_nothing(&name);
        }
        self.whole_bits = rate_bits;
        if rate_bits > 0 {
            carrier.set_whole(Some(rate_bits / 8));
        }
    }

    /// A domain is promised this from now on; `None`: nothing.
    pub(crate) fn set(&mut self, carrier: &dyn Carrier, name: &str, share: Option<Share>) {
        let Some(share) = share else {
            self.shares.remove(name);
            if let Some(number) = self.domains.promise_nothing(name) {
                carrier.set_share(number, None);
            }
            return;
        };
        if carrier.set_share(self.domains.promise(name), Some(share)) {
            self.shares.insert(name.to_owned(), share);
            return;
        }
        tracing::warn!(name, ?share, "this link has no such class");
        if !self.shares.contains_key(name) {
            self.domains.promise_nothing(name);
        }
    }

    /// For the state tree.
    pub(crate) fn state(&self) -> Value {
        let shares = self.shares.iter().take(MAX_SHOWN).map(|(name, share)| {
            let share = json!({
                "rate_bits": share.rate_bytes.saturating_mul(8), "ceiling_bits": share.ceiling_bytes.saturating_mul(8),
                "burst_bytes": share.burst_bytes, "precedence": share.precedence,
            });
            (name.clone(), share)
        });
        json!({ "rate_bits": self.whole_bits, "classes": shares.collect::<serde_json::Map<_, _>>() })
    }
}

/// Classes that a state names: so many fit into a packet, beside pairs.
const MAX_SHOWN: usize = 64;
