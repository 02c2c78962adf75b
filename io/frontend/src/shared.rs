//! The core among its threads, and its world.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use sys::eventfd::Eventfd;
use wire::control::Request;

use crate::answers::{Answers, MARK};
use crate::core::Core;
use crate::daemon::Outbox;
use crate::device::{Device, Replied};
use crate::host::{Host, Outgoing};
use crate::ledger::Ledger;
use crate::link::{Link, STACK_BYTES};

/// An errno that the kernel takes in a reply; beyond are its own internal ones.
const ERRNO_MAX: i32 = 511;

/// The real world.
pub(crate) struct World {
    pub(crate) device: Arc<Device>,
    pub(crate) ledger: Ledger,
    pub(crate) links: Vec<Option<Link>>,
    pub(crate) outbox: Arc<Outbox>,
    /// Where answers for clients of 9P go.
    pub(crate) ninep: Option<Arc<Answers>>,
}

impl World {
    /// Makes `link` the one that the service's messages take.
    pub(crate) fn link(&mut self, service: usize, link: Link) {
        if self.links.len() <= service {
            self.links.resize_with(service + 1, || None);
        }
        if let Some(place) = self.links.get_mut(service) {
            *place = Some(link);
        }
    }
}

impl Host for World {
    fn reply(&mut self, unique: u64, errno: i32, parts: &[&[u8]]) -> bool {
        let errno =
            if (0..=ERRNO_MAX).contains(&errno) { errno } else { rustix::io::Errno::IO.raw_os_error() };
        let parts = if errno == 0 { parts } else { &[] };
        if unique & MARK != 0 {
            if let Some(answers) = &self.ninep {
                answers.put(unique, errno, parts);
            }
            return true;
        }
        match self.device.reply(unique, errno, parts) {
            Ok(replied) => replied == Replied::Taken,
            Err(error) => {
                tracing::error!(unique, errno, %error, "the kernel refuses a reply");
                false
            }
        }
    }

    fn notify_poll(&mut self, handle: u64) {
        if let Err(error) = self.device.notify_poll(handle) {
            tracing::error!(%error, "the kernel refuses a wake-up");
        }
    }

    fn save(&mut self, slot: usize, record: &[u8]) {
        if let Err(error) = self.ledger.save(slot, record) {
            tracing::error!(slot, %error, "the ledger can't be written");
        }
    }

    fn clear(&mut self, slot: usize) {
        if let Err(error) = self.ledger.clear(slot) {
            tracing::error!(slot, %error, "the ledger can't be written");
        }
    }

    fn send(&mut self, service: usize, message: Outgoing) {
        if let Some(Some(link)) = self.links.get(service) {
            link.send(message);
        }
    }

    fn unlink(&mut self, service: usize) {
        if let Some(link) = self.links.get_mut(service).and_then(Option::take) {
            link.hang_up();
        }
    }

    fn ask(&mut self, request: &Request) {
        self.outbox.send(request);
    }

    fn now(&self) -> u64 {
        sys::clock::clock_ns()
    }
}

/// The core and what wakes the thread that keeps its time.
pub(crate) struct Shared {
    core: Mutex<Core<World>>,
    alarm: Arc<Eventfd>,
}

impl Shared {
    pub(crate) fn new(core: Core<World>, alarm: Arc<Eventfd>) -> Self {
        Self { core: Mutex::new(core), alarm }
    }

    /// Lets `act` work on the core.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Core<World>) -> T) -> T {
        // A thread that panics ends the process (see `spawn`), so nobody sees what it left half
        // done.
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let ticked = core.is_ticking();
        let result = act(&mut core);
        if core.is_ticking() && !ticked {
            self.alarm.signal();
        }
        result
    }
}

/// Ends the process when it is dropped by a panic: a successor is better than a frontend that has
/// lost a thread.
pub(crate) struct OrAbort;

impl Drop for OrAbort {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Starts a thread with a small stack.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    builder
        .spawn(move || {
            let _guard = OrAbort;
            work();
        })
        .map(|_| ())
}
