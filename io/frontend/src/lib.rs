//! The frontend of a domain: its services as files, by a FUSE session of our own.
//!
//! One process for each domain serves the mount at `/srv`. What the files mean is in
//! `docs/files.md`; the protocol with the kernel in `docs/spec/files.md`; what a successor finds in
//! `docs/spec/ledger.md`. The core decides without waiting, so that nothing blocks the thread that
//! reads the kernel's requests: calls that have to wait are parked.

mod abi;
mod answers;
mod core;
mod counters;
mod daemon;
mod device;
mod handle;
mod handover;
mod histogram;
mod host;
mod launch;
mod ledger;
mod lines;
mod link;
mod ninep;
mod privilege;
mod record;
mod shared;
mod stream;
mod trace;
mod tree;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_json::Value;
use sys::eventfd::Eventfd;
use thiserror::Error;

use crate::core::Core;
use crate::daemon::Outbox;
use crate::device::Device;
use crate::handover::Handover;
use crate::ledger::Ledger;
use crate::shared::{Shared, World};

pub use crate::device::{MountOptions, mount_detached, open_device};
pub use crate::handover::HANDOVER_BYTES_MAX;
pub use crate::launch::{Entrances, Handed, Launch, LaunchError, LaunchOrder, receive_launch, send_launch};
pub use crate::privilege::Identity;

/// Slots of the ledger: one for the mount, one for each open file, one for each service's defaults,
/// one for locks.
const _: () = assert!(crate::core::LOCKS_SLOT < crate::ledger::SLOTS_MAX);

/// A frontend's configuration.
#[derive(Debug)]
pub struct Config {
    /// `/dev/fuse`, mounted already ([`mount_detached`]).
    pub fuse: OwnedFd,
    /// Private control socket to the daemon (`wire::control`).
    pub control: OwnedFd,
    /// A memfd that somebody else holds too; its contents are a predecessor's if `successor`.
    pub ledger: OwnedFd,
    /// Whether another frontend has served this mount before: the kernel will not introduce itself
    /// again.
    pub successor: bool,
    /// The identity to assume; `None` keeps user and group (for tests without root), not the
    /// capabilities.
    pub identity: Option<Identity>,
    /// User and group that own the files.
    pub owner: (u32, u32),
    /// A Unix stream socket that listens: who connects to it is shown the tree by 9P2000.L
    /// (`docs/spec/ninep.md`).
    pub ninep: Option<OwnedFd>,
    /// The file that holds what one life of the domain leaves for the next one; none: there is no
    /// such file.
    pub handover: Option<OwnedFd>,
    /// Whether to make use of a kernel that can send requests again. `false` is for tests of what
    /// older kernels do.
    pub resend: bool,
}

/// Why a frontend could not start, or had to stop.
#[derive(Debug, Error)]
pub enum FrontendError {
    /// The ledger can't be used.
    #[error("can't use the ledger: is the descriptor a memfd?")]
    Ledger(#[source] io::Error),
    /// Privileges can't be given up; going on with them is out of the question.
    #[error("can't give up privileges")]
    Privileges(#[source] io::Error),
    /// No descriptor or thread is to be had.
    #[error("can't start a frontend's threads")]
    Start(#[source] io::Error),
    /// The device failed.
    #[error("can't read requests from /dev/fuse: is the descriptor mounted?")]
    Device(#[source] io::Error),
}

/// A frontend that has its descriptors, has given up its privileges and has told the daemon so.
pub struct Frontend {
    shared: Arc<Shared>,
    device: Arc<Device>,
    resends: bool,
    successor: bool,
}

impl std::fmt::Debug for Frontend {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Frontend").field("successor", &self.successor).finish_non_exhaustive()
    }
}

/// The handle through which other entrances of the same process notify the frontend.
#[derive(Clone)]
pub struct Observer(Arc<Shared>);

impl std::fmt::Debug for Observer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Observer").finish()
    }
}

impl Observer {
    /// Counts a request that went through `entrance` (`stub`, `resolve`): it took `ns` from
    /// question to answer.
    pub fn latency(&self, service: &str, entrance: &str, ns: u64) {
        self.0.with(|core| core.counters.latency(service, entrance, ns));
    }

    /// Returns the frontend's part of the state tree: services, counters, latencies.
    #[must_use]
    pub fn state(&self) -> Value {
        self.0.with(|core| core.state())
    }
}

impl Frontend {
    /// Takes the descriptors, gives up all privileges of the calling thread, and introduces itself
    /// to the daemon. Call it before any other thread is started: threads that are there already
    /// keep what they have.
    ///
    /// # Errors
    /// [`FrontendError`].
    pub fn start(config: Config) -> Result<Self, FrontendError> {
        let (ledger, records) = if config.successor {
            Ledger::adopt(config.ledger).map_err(FrontendError::Ledger)?
        } else {
            (Ledger::create(config.ledger).map_err(FrontendError::Ledger)?, Vec::new())
        };
        privilege::drop_all(config.identity).map_err(FrontendError::Privileges)?;
        let alarm = Arc::new(Eventfd::new().map_err(FrontendError::Start)?);
        let outbox = Arc::new(Outbox::new(config.control, Arc::clone(&alarm)).map_err(FrontendError::Start)?);
        let device = Arc::new(Device::new(config.fuse));
        let answers = config.ninep.as_ref().map(|_| answers::Answers::new()).transpose();
        let answers = answers.map_err(FrontendError::Start)?.map(Arc::new);
        let world = World {
            device: Arc::clone(&device),
            ledger,
            links: Vec::new(),
            outbox: Arc::clone(&outbox),
            ninep: answers.clone(),
        };
        let mut core = Core::new(world, config.owner.0, config.owner.1, config.resend);
        core.handover = Handover::new(config.handover);
        let resends = if config.successor { core.take_over(records) } else { false };
        let shared = Arc::new(Shared::new(core, Arc::clone(&alarm)));
        shared.with(|core| core.introduce());
        let listener = Arc::clone(&shared);
        shared::spawn("daemon", move || daemon::run(&listener, &outbox, &alarm))
            .map_err(FrontendError::Start)?;
        if let (Some(listener), Some(answers)) = (config.ninep, answers) {
            ninep::spawn(Arc::clone(&shared), answers, listener).map_err(FrontendError::Start)?;
        }
        Ok(Self { shared, device, resends, successor: config.successor })
    }

    /// For the other entrances of this process.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer(Arc::clone(&self.shared))
    }

    /// Serves the mount until it is gone.
    ///
    /// # Errors
    /// [`FrontendError::Device`].
    pub fn serve(self) -> Result<(), FrontendError> {
        let _guard = shared::OrAbort;
        if self.successor {
            if self.resends {
                self.device.notify_resend().map_err(FrontendError::Device)?;
            }
            self.shared.with(Core::wake_all);
        }
        let mut buffer = device::request_buffer();
        while let Some(bytes) = self.device.next(&mut buffer).map_err(FrontendError::Device)? {
            let request = buffer.get(..bytes).unwrap_or_default();
            self.shared.with(|core| core.request(request));
        }
        Ok(())
    }
}

/// A frontend's whole life: [`Frontend::start`] and [`Frontend::serve`].
///
/// # Errors
/// [`FrontendError`].
pub fn run(config: Config) -> Result<(), FrontendError> {
    Frontend::start(config)?.serve()
}

#[cfg(test)]
mod tests {
    /// The rows of a page's tables whose second column begins with a number.
    fn numbers(page: &str) -> Vec<(&str, u64)> {
        let rows = page.lines().filter_map(|line| {
            let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
            let (name, value) = (cells.next()?, cells.next()?);
            let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
            Some((name, value.get(..digits)?.parse().ok()?))
        });
        rows.collect()
    }

    #[test]
    fn the_pages_say_the_bounds_that_the_code_has() {
        use crate::{core, handle, ledger, stream, tree};
        let page = include_str!("../../../docs/spec/files.md");
        let bounds = numbers(page.split_once("## Bounds").unwrap().1);
        let wanted = [
            core::HANDLES_MAX,
            core::PARKED_MAX,
            core::PARKED_BYTES_MAX,
            handle::OUTSTANDING_MAX,
            handle::ASKED_BYTES_MAX,
            handle::UNREAD_MAX,
            handle::UNREAD_BYTES_MAX,
            core::HELD_BYTES_MAX,
            stream::WINDOW_BYTES,
            stream::STREAMS_MAX,
            tree::SERVICES_MAX,
            tree::FILES_MAX,
            tree::NAME_BYTES_MAX,
        ];
        assert_eq!(bounds.iter().map(|(_, n)| *n as usize).collect::<Vec<_>>(), wanted, "{bounds:?}");
        let page = include_str!("../../../docs/spec/ledger.md");
        let slots = numbers(page.split_once("## Slots").unwrap().1);
        let wanted =
            [2 * ledger::HALF_BYTES, ledger::HALF_BYTES, ledger::HEAD_BYTES as u64, ledger::SLOTS_MAX as u64];
        assert_eq!(slots.iter().take(4).map(|(_, n)| *n).collect::<Vec<_>>(), wanted, "{slots:?}");
    }
}
