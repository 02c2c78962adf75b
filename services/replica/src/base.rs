//! The part that is the same in every role: the disk, the names, the words for the daemon.

use crate::engine::{Ask, Job};
use crate::input::Write;
use crate::names::Names;
use crate::peers::Ground;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use tokio::sync::mpsc::UnboundedSender;
use volume::{Node, Session, WriteId};
use wire::nbd::Reply;
use wire::replica::{Configure, Report};

/// The purpose of an answer of the engine.
#[derive(Debug)]
pub(crate) enum For {
    /// A client's write in a view.
    Own { view: u64, write: WriteId },
    /// A client's read in a view.
    Read { view: u64, read: u64 },
    /// An extent that is copied to another replica.
    Copy { view: u64, node: Node, session: Session, sequence: u64, offset: u64 },
    /// A write of another node's replica.
    Caller { session: Session, sequence: u64, replies: UnboundedSender<Reply>, _write: Write },
}

impl For {
    fn is_write(&self) -> bool {
        matches!(self, Self::Own { .. } | Self::Caller { .. })
    }
}

/// Asks the engine, and remembers what for.
#[derive(Debug)]
pub(crate) struct Disk {
    jobs: UnboundedSender<Job>,
    asked: BTreeMap<u64, For>,
    next: u64,
    /// Writes that are on their way to the disk, whoever they are from.
    writes: usize,
}

impl Disk {
    pub fn new(jobs: UnboundedSender<Job>) -> Self {
        Self { jobs, asked: BTreeMap::new(), next: 0, writes: 0 }
    }

    pub fn ask(&mut self, ask: Ask, what_for: For) {
        self.next += 1;
        self.writes += usize::from(what_for.is_write());
        self.asked.insert(self.next, what_for);
        // Its task lives as long as this.
        let _over = self.jobs.send(Job { token: self.next, ask });
    }

    pub fn answered(&mut self, token: u64) -> Option<For> {
        let what_for = self.asked.remove(&token)?;
        self.writes -= usize::from(what_for.is_write());
        Some(what_for)
    }

    /// Whether nothing is on its way to the disk.
    pub fn is_quiet(&self) -> bool {
        self.writes == 0
    }
}

/// The state that is the same in every role.
#[derive(Debug)]
pub(crate) struct Base {
    pub configured: Configure,
    pub names: Names,
    pub disk: Disk,
    pub ground: Ground,
    /// Words for the daemon.
    pub reports: VecDeque<Report>,
    /// Whether there is a daemon.
    pub has_daemon: bool,
    /// Until when the claim is certainly held.
    pub until_ns: u64,
    /// Where other replicas listened last.
    pub found: BTreeMap<String, SocketAddr>,
    /// Connections to others so far.
    pub connections: u64,
    pub extent_bytes: u64,
}

impl Base {
    /// Whether this node certainly holds its claim.
    pub fn holds(&self) -> bool {
        self.until_ns > now_ns()
    }

    pub fn report(&mut self, report: Report) {
        if self.has_daemon {
            self.reports.push_back(report);
        }
    }
}

/// Now, as `CLOCK_BOOTTIME` counts.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// Pieces of a volume at most: what differs is remembered for each.
const MAX_EXTENTS: u64 = 1 << 18;
/// Smallest piece, in bytes.
const MIN_EXTENT_BYTES: u64 = 64 << 10;

/// Bytes of a piece of a volume of this size.
pub(crate) fn extent_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(MAX_EXTENTS).next_power_of_two().max(MIN_EXTENT_BYTES)
}
