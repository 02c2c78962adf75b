//! What domains of this node are promised of the link, by name, and as the link has it: by number.

use crate::carrier::Carrier;
use link::Share;
use link::schedule::{MOST_CLASSES, REST};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use wire::link::Pair;

/// Numbers of domains begin here.
const FIRST: u32 = 16;

/// Classes by name. A domain has its number before it is promised anything, and after that.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    numbers: BTreeMap<String, u32>,
    /// What the whole carries, in bits per second; 0: there are no classes.
    whole_bits: u64,
    shares: BTreeMap<String, Share>,
}

impl Shares {
    /// All begins anew: the whole carries so many bits per second; 0: there are no classes.
    pub(crate) fn begin(&mut self, carrier: &dyn Carrier, rate_bits: u64) {
        carrier.set_whole(None);
        self.shares.clear();
        self.whole_bits = rate_bits;
        if rate_bits > 0 {
            carrier.set_whole(Some(rate_bits / 8));
        }
    }

    /// A domain is promised this from now on; `None`: nothing.
    pub(crate) fn set(&mut self, carrier: &dyn Carrier, name: &str, share: Option<Share>) {
        let number = self.number(name);
        if !carrier.set_share(number, share) {
            tracing::warn!(name, ?share, "this link has no such class");
            return;
        }
        match share {
            Some(share) => self.shares.insert(name.to_owned(), share),
            None => self.shares.remove(name),
        };
    }

    /// A pair belongs to a domain.
    pub(crate) fn classify(&mut self, carrier: &dyn Carrier, pair: Pair, name: &str) {
        carrier.classify(pair, self.number(name));
    }

    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let Ok(next) = u32::try_from(self.numbers.len()) else { return REST };
        if self.numbers.len() >= MOST_CLASSES {
            return REST;
        }
        self.numbers.insert(name.to_owned(), FIRST + next);
        FIRST + next
    }

    /// For the state tree.
    pub(crate) fn state(&self) -> Value {
        let shares = self.shares.iter().take(MOST_SHOWN).map(|(name, share)| {
            let share = json!({
                "rate_bits": share.rate_bytes * 8, "ceiling_bits": share.ceiling_bytes.saturating_mul(8),
                "burst_bytes": share.burst_bytes, "precedence": share.precedence,
            });
            (name.clone(), share)
        });
        json!({ "rate_bits": self.whole_bits, "classes": shares.collect::<serde_json::Map<_, _>>() })
    }
}

/// Classes that a state names: so many fit into a packet, beside pairs.
const MOST_SHOWN: usize = 64;
