//! The thread that checks modules, one after the other, and what it has to do.

use crate::library::Bytes;
use crate::session_table::SessionKey;
use modules::{Module, ModuleError};
use publication::SubscriptionId;
use session::ReplyTo;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use sys::eventfd::Eventfd;
use wire::service::OpenInfo;

/// The descriptor that tells when modules are ready.
pub(crate) const TOKEN: u32 = 1;

/// The request that a module is for.
#[derive(Debug)]
pub(crate) enum For {
    /// It was written to a subscription.
    Subscription(SubscriptionId),
    /// A subscription that had it is opened again, after a death.
    Opening(OpenInfo),
}

/// A module of a domain that is being checked for a channel. It is counted until it was checked,
/// also where nobody waits for it any more: so nobody has the thread do more than he may have.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) serial: u32,
    pub(crate) owner: u64,
    pub(crate) name: String,
    pub(crate) bytes: Bytes,
    pub(crate) waiting: Vec<(ReplyTo, For)>,
}

/// The thread, and what it has to do.
#[derive(Debug)]
struct Thread {
    orders: Sender<(u64, Bytes)>,
    done: Receiver<(u64, Result<Module, ModuleError>)>,
}

/// Checks modules.
#[derive(Debug)]
pub(crate) struct Installer {
    pub(crate) bell: Arc<Eventfd>,
    thread: Option<Thread>,
    pub(crate) orders: BTreeMap<u64, Order>,
    last: u64,
}

impl Installer {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { bell: Arc::new(Eventfd::new()?), thread: None, orders: BTreeMap::new(), last: 0 })
    }

    /// Forgets requests that nobody waits for any more.
    pub(crate) fn forget(&mut self, gone: impl Fn(&ReplyTo) -> bool) {
        for order in self.orders.values_mut() {
            order.waiting.retain(|(to, _)| !gone(to));
        }
    }

    /// Whether a module is being checked for this session.
    pub(crate) fn is_asked_by(&self, (link, session): SessionKey) -> bool {
        let mut waiting = self.orders.values().flat_map(|order| &order.waiting);
        waiting.any(|(to, _)| (to.link, to.session) == (link, session))
    }

    /// The order of this domain for the same module and channel.
    pub(crate) fn find(&mut self, owner: u64, serial: u32, name: &str) -> Option<&mut Order> {
        let mut orders = self.orders.values_mut();
        orders.find(|it| it.owner == owner && it.serial == serial && it.name == name)
    }

    pub(crate) fn order(&mut self, order: Order) -> io::Result<()> {
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => begin(Arc::clone(&self.bell))?,
        };
        self.last += 1;
        let sent = thread.orders.send((self.last, Arc::clone(&order.bytes)));
        // A thread that has ended is begun anew by the next order.
        sent.map_err(|_| io::Error::other("the thread that checks modules has ended"))?;
        self.thread = Some(thread);
        self.orders.insert(self.last, order);
        Ok(())
    }

    pub(crate) fn done(&mut self) -> Vec<(Order, Result<Module, ModuleError>)> {
        self.bell.drain();
        let results = self.thread.iter().flat_map(|thread| thread.done.try_iter());
        results.filter_map(|(number, result)| Some((self.orders.remove(&number)?, result))).collect()
    }
}

fn begin(bell: Arc<Eventfd>) -> io::Result<Thread> {
    let (orders, ordered) = channel::<(u64, Bytes)>();
    let (results, done) = channel();
    std::thread::Builder::new().name("modules".into()).spawn(move || {
        for (number, bytes) in ordered {
            if results.send((number, Module::install(&bytes))).is_err() {
                return;
            }
            bell.signal();
        }
    })?;
    Ok(Thread { orders, done })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use session::LinkId;
    use std::time::Instant;

    /// A domain that writes modules and leaves, again and again, would fill the thread's queue.
    #[test]
    fn an_order_counts_until_it_was_checked_also_when_nobody_waits_for_it() {
        let mut installer = Installer::new().unwrap();
        let of = |link: u64| ReplyTo {
            link: LinkId(link),
            session: 1,
            tag: 1,
            file: 0,
            traced: false,
            received: Instant::now(),
        };
        let waiting = vec![(of(1), For::Opening(OpenInfo::default()))];
        let bytes: Bytes = (*b"no module").into();
        installer.order(Order { serial: 3, owner: 7, name: "it".into(), bytes, waiting }).unwrap();
        assert!(installer.is_asked_by((LinkId(1), 1)) && !installer.is_asked_by((LinkId(2), 1)));
        installer.forget(|to| to.link == LinkId(1));
        assert!(!installer.is_asked_by((LinkId(1), 1)));
        assert!(installer.find(7, 3, "it").is_some() && installer.find(8, 3, "it").is_none());
        assert_eq!(installer.orders.len(), 1);
        poll(&mut [PollFd::new(&installer.bell, PollFlags::IN)], None).unwrap();
        let done = installer.done();
        assert!(done.len() == 1 && done[0].0.waiting.is_empty() && done[0].1.is_err());
        assert!(installer.orders.is_empty());
    }
}
