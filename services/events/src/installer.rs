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

/// A module that is being checked.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) to: ReplyTo,
    pub(crate) serial: u32,
    pub(crate) owner: u64,
    pub(crate) name: String,
    pub(crate) bytes: Bytes,
    pub(crate) what: For,
}

impl Order {
    pub(crate) fn key(&self) -> SessionKey {
        (self.to.link, self.to.session)
    }
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

    /// Forgets the orders that nobody waits for any more.
    pub(crate) fn forget(&mut self, gone: impl Fn(&Order) -> bool) {
        self.orders.retain(|_, order| !gone(order));
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
