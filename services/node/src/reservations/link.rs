//! The link while classes are on it: it may go, come back or be another one; and proxies, which
//! have classes of their own, come and go.

use super::{Book, State};
use crate::base::watched;
use interface::changes::Changes;
use reserve::network::Class;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::sync::watch;
use wire::proxy::Order;

/// The promises of the link, as proxies keep them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    /// The rate of the link, in bits per second; 0: none of it is promised.
    link_bits: u64,
    by_name: BTreeMap<String, Class>,
}

impl Shares {
    /// Returns the orders for a proxy that knows the promises of before.
    pub(crate) fn orders(&self, before: &Self) -> Vec<Order> {
        let order = |name: &String, class: Option<&Class>| Order::Share {
            name: name.clone(),
            rate_bits: class.map_or(0, |class| class.rate_bits),
            ceiling_bits: class.map_or(0, |class| class.ceiling_bits),
            burst_bytes: class.map_or(0, |class| class.burst_bytes),
            precedence: class.map_or(0, |class| class.precedence),
        };
        let mut orders = Vec::new();
        let anew = Self::default();
        let same = self.link_bits == before.link_bits;
        if !same {
            orders.push(Order::Whole { rate_bits: self.link_bits });
        }
        // With the whole, all of them begin anew.
        let before = if same { before } else { &anew };
        if self.link_bits == 0 {
            return orders;
        }
        // Who gives goes before who gets.
        let gone = before.by_name.keys().filter(|name| !self.by_name.contains_key(*name));
        orders.extend(gone.map(|name| order(name, None)));
        let rate = |name: &String| before.by_name.get(name).map_or(0, |class| class.rate_bits);
        let changed = self.by_name.iter().filter(|(name, class)| before.by_name.get(*name) != Some(*class));
        let (less, more): (Vec<_>, Vec<_>) = changed.partition(|(name, class)| class.rate_bits < rate(name));
        orders.extend(less.into_iter().chain(more).map(|(name, class)| order(name, Some(class))));
        orders
    }
}

impl Book {
    /// Tells proxies what is promised now, and the cluster that it may be something else.
    pub(super) fn publish(&self, state: &State) {
        self.has_changed();
        let promises = state.model.node().promises();
        let by_name: BTreeMap<String, Class> =
            promises.filter_map(|(name, promise)| Some((name.to_owned(), promise.network?))).collect();
        let link_bits = if by_name.is_empty() { 0 } else { state.model.node().capacity().link.rate_bits };
        let now = Shares { link_bits, by_name };
        self.shares.send_if_modified(|shares| std::mem::replace(shares, now.clone()) != now);
    }

    /// Returns the promises of the link, and their changes.
    pub(crate) fn shares(&self) -> watch::Receiver<Shares> {
        self.shares.subscribe()
    }

    /// Looks whether the link is still what classes were made on, and makes them anew where it has
    /// come back.
    pub(crate) fn look_at_link(&self) {
        let mut state = self.lock();
        let settings = state.settings.clone();
        state.links.look(&settings);
    }

    /// A proxy for a node is about to be started in this cgroup, or was found there.
    pub(crate) fn proxy_came(&self, node: &str, cgroup: &str) {
        let mut state = self.lock();
        let settings = state.settings.clone();
        state.links.proxy_came(node, cgroup, &settings, self.actuator.cgroups());
    }

    /// There is no proxy for a node any more, and none will come.
    pub(crate) fn proxy_left(&self, node: &str) {
        self.lock().links.proxy_left(node);
    }
}

/// Looks at the link whenever an interface has changed, as long as the daemon lives.
pub(crate) async fn follow(book: Arc<Book>) {
    let opened = Changes::open().and_then(|changes| watched(changes.into(), Interest::READABLE));
    let changes = match opened {
        Ok(changes) => changes,
        Err(error) => {
            tracing::warn!(%error, "it is not heard when the link goes or comes back");
            return;
        }
    };
    loop {
        let Ok(mut ready) = changes.readable().await else { return };
        interface::changes::drain(changes.get_ref());
        ready.clear_ready();
        let book = Arc::clone(&book);
        if crate::base::BOOK.run(move || book.look_at_link()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(link_bits: u64, rates: &[(&str, u64)]) -> Shares {
        let class =
            |rate_bits| Class { rate_bits, ceiling_bits: link_bits, burst_bytes: 16_384, precedence: 0 };
        let by_name = rates.iter().map(|(name, rate)| ((*name).to_owned(), class(*rate))).collect();
        Shares { link_bits, by_name }
    }

    fn said(orders: &[Order]) -> Vec<String> {
        let one = |order: &Order| match order {
            Order::Whole { rate_bits } => format!("whole {rate_bits}"),
            Order::Share { name, rate_bits, .. } => format!("{name} {rate_bits}"),
            other => format!("{other:?}"),
        };
        orders.iter().map(one).collect()
    }

    #[test]
    fn a_proxy_is_told_what_has_changed_and_who_gives_before_who_gets() {
        let none = Shares::default();
        let first = shares(1_000, &[("a", 100), ("b", 200)]);
        assert_eq!(said(&first.orders(&none)), ["whole 1000", "a 100", "b 200"]);
        assert!(first.orders(&first).is_empty());
        let moved = shares(1_000, &[("a", 150), ("b", 150)]);
        assert_eq!(said(&moved.orders(&first)), ["b 150", "a 150"]);
        let gone = shares(1_000, &[("a", 300)]);
        assert_eq!(said(&gone.orders(&moved)), ["b 0", "a 300"]);
        assert_eq!(said(&shares(2_000, &[("a", 300)]).orders(&gone)), ["whole 2000", "a 300"]);
        assert_eq!(said(&none.orders(&gone)), ["whole 0"]);
    }
}
