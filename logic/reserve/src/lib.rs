//! Reservations: what is promised, whether it can be kept, and who has to give; without a clock.

#![forbid(unsafe_code)]

pub mod adapt;
mod admission;
pub mod changeover;
pub mod dispatch;
mod earliest_deadline;
mod effort;
mod fixed_priority;
mod fraction;
mod harmonic;
pub mod inside;
pub mod network;
pub mod node;
mod partition;
mod quick;
mod refusal;
mod simulate;
mod supply;
mod table;
mod task;
pub mod trace;
pub mod world;

pub use admission::{AdmitError, Rule};
pub use effort::{MOST_STEPS, Undecided};
pub use fixed_priority::Response;
pub use harmonic::Discord;
pub use partition::{Affinity, Heuristic, MOST_PROCESSORS, PlaceError, Placement, place};
pub use quick::{Proof, accept};
pub use refusal::{Change, Miss, Refusal, Remedy, Span};
pub use simulate::{Arrivals, Late, MOST_LATE, Outcome, Scenario, Slot, Stretch};
pub use supply::Supply;
pub use table::{MOST_RELEASES, Table, TableError, Turn};
pub use task::{Costs, CostsError, LONGEST_NS, LONGEST_SWITCH_NS, MOST_TASKS, Policy, Task, TaskError};
