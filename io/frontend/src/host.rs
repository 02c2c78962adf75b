//! The effects of the core on the world.  core does to the world. Nothing here waits.

use wire::control;
use wire::service::{Kind, OpenInfo};

/// A message to a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outgoing {
    Open {
        session: u64,
        tag: u64,
        file: u32,
        info: OpenInfo,
    },
    Request {
        session: u64,
        tag: u64,
        file: u32,
        line: Vec<u8>,
        traced: bool,
    },
    Control {
        session: u64,
        tag: u64,
        number: u32,
        data: Vec<u8>,
    },
    /// About the tree, or for bytes at an offset.
    Tree {
        kind: Kind,
        session: u64,
        tag: u64,
        file: u32,
        payload: Vec<u8>,
    },
    /// So many more bytes of records are taken.
    Credit {
        session: u64,
        bytes: u32,
    },
    Cancel {
        tag: u64,
    },
    Close {
        session: u64,
    },
}

/// The world of a [`crate::core::Core`]: the kernel, the ledger, the backends, the daemon, the
/// clock.
pub(crate) trait Host {
    /// Answers the request `unique` of the kernel; `errno` 0 is success. False: nobody waits for it
    /// any more.
    fn reply(&mut self, unique: u64, errno: i32, parts: &[&[u8]]) -> bool;
    /// Wakes whoever polls with this handle.
    fn notify_poll(&mut self, handle: u64);
    /// Puts a record into a slot of the ledger.
    fn save(&mut self, slot: usize, record: &[u8]);
    /// Empties a slot of the ledger.
    fn clear(&mut self, slot: usize);
    /// Sends a message to the backend of a service, or keeps it until there is room.
    fn send(&mut self, service: usize, message: Outgoing);
    /// Gives up the link to a service.
    fn unlink(&mut self, service: usize);
    /// Asks the daemon.
    fn ask(&mut self, request: &control::Request);
    /// The monotonic clock, in ns.
    fn now(&self) -> u64;
}
