//! Keeping what was promised of processors: one trait, [`Enforcer`], and four ways.
//!
//! | kind | who decides | what it takes |
//! | --- | --- | --- |
//! | table | a real-time thread of ours for each processor, by `reserve`'s dispatcher | real-time class, cgroups |
//! | bandwidth | the kernel's quota for ordinary processes | cgroups |
//! | deadline | the kernel's earliest deadline first | real-time class |
//! | simulator | `reserve`'s dispatcher, in virtual time | nothing |
//!
//! A plan is prepared, which changes nothing, and committed, which is short. `docs/spec/reserve.md`
//! says what is kept, and how exactly.

#![forbid(unsafe_code)]

mod bandwidth;
mod boost;
pub mod core;
mod deadline;
mod enforcer;
mod error;
pub mod hierarchy;
mod jobs;
pub mod ledger;
pub mod members;
mod place;
mod plan;
mod remote;
mod room;
mod simulator;
mod table;

pub use bandwidth::Bandwidth;
pub use boost::Boost;
pub use deadline::Deadline;
pub use enforcer::{Ability, Committed, Effect, Enforcer, JobReport, Kind, Prepared, Report, VtmReport};
pub use error::{EnforceError, PlanError, Result};
pub use jobs::{Job, Jobs, MAX_PATTERN, MAX_RANKED, TURN_NS, Who, is_like};
pub use place::{Config, Site};
pub use plan::{MAX_CGROUP, MAX_ID, MAX_PIDS, MAX_VTMS, Members, Order, Outside, Plan, Vtm};
pub use remote::{Client, DISPATCHER_ROLE, GUARDIAN_ROLE, Launch, role_main};
pub use room::deadline_room;
pub use simulator::Simulator;
pub use table::{MAX_PPM, Table, means, means_of};

/// From when a slot counts as late, in ns: well over what a real-time thread takes to wake on a
/// virtual machine, and a twentieth of the shortest slots that make sense.
pub const LATE_NS: u64 = 500_000;
