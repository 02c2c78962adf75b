//! The replicas of a volume: who may write, when a write is acknowledged, who takes over.
//! `docs/spec/volume.md` has the rules.
//!
//! A volume has one [`Record`] in the registry, which is only replaced by compare-and-swap. The
//! [`Primary`] of a view sends each write to all replicas that the record lists as current, and
//! acknowledges it when all of them have it on stable storage. A replica that fails is struck off
//! the record before anything else is acknowledged. So every current replica has every acknowledged
//! write, whoever dies. (This is primary-backup replication with a configuration service: Oki and
//! Liskov, Viewstamped Replication, PODC 1988; Lamport, Malkhi and Zhou, Vertical Paxos and
//! primary-backup replication, PODC 2009.)
//!
//! Nothing here waits, reads a clock, or knows a disk: events come in, actions come out.

mod backup;
pub mod named;
mod primary;
mod record;

pub use backup::{Backup, Session, Verdict};
pub use primary::{Action, Event, Extent, MAX_COPIES, MAX_WAITING, Primary, WriteId};
pub use record::{Node, Record, Refusal};
