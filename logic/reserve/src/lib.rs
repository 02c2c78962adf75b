//! Reservations: what is promised, whether it can be kept, and who has to give; without a clock.
//!
//! | question | answer |
//! | --- | --- |
//! | do these tasks meet their deadlines on one processor? | [`Rule::admit`]: how that is known, or a [`Refusal`] that says who would miss, by how much, and
//! what would help |
//! | on several? | [`place`] |
//! | who runs when? | [`Table::build`]; and one decision at a time, [`dispatch::Dispatcher`] |
//! | do the jobs inside a virtual task machine, on what its table gives? | [`inside::admit`] on [`Table::supply`] |
//! | can this node promise that, of processor, network, memory and disk? | [`node::Node`] |
//! | and a dispatch table, with what its switches cost and the kernel leaves it? | [`Means::share_out`] |
//! | and the kernel's deadline class? | [`DeadlineRoom::share_out`] |
//! | and move it from one to another? | [`node::Node::adapt`], a [`adapt::Transaction`]; [`changeover::first_moment`] says when tables change |
//! | what is there, above and below, and who makes, admits, moves and suspends it? | [`model::Model`] |
//! | what would come of it? | [`Scenario::run`] for tasks under a policy, [`world::run`] for jobs under a dispatcher, [`trace::replay`] |
//!
//! All in whole nanoseconds, bits and bytes; nothing that decides is a float. All input is a
//! stranger's, so each number and each analysis has a bound, and what can't be told within it is
//! refused. `docs/spec/reserve.md` is the arithmetic.

#![forbid(unsafe_code)]

pub mod adapt;
mod admission;
pub mod changeover;
mod deadlines;
pub mod dispatch;
mod earliest_deadline;
mod effort;
mod fixed_priority;
mod fraction;
mod harmonic;
pub mod inside;
mod means;
pub mod model;
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
mod units;
pub mod world;

pub use admission::{AdmitError, Rule};
pub use deadlines::{DEADLINE_PERIODS_NS, DeadlineRoom, LEAST_DEADLINE_BUDGET_NS};
pub use effort::{MAX_STEPS, Undecided};
pub use fixed_priority::Response;
pub use harmonic::Discord;
pub use means::{Means, Standing, Unkept, Wanting};
pub use partition::{Affinity, Heuristic, MAX_PROCESSORS, PlaceError, Placement, place};
pub use quick::{Proof, accept};
pub use refusal::{Change, Miss, Refusal, Remedy, Span};
pub use simulate::{Arrivals, Late, MAX_LATE, Outcome, Scenario, Slot, Stretch};
pub use supply::Supply;
pub use table::{MAX_RELEASES, Table, TableError, Turn};
pub use task::{Costs, CostsError, MAX_NS, MAX_SWITCH_NS, MAX_TASKS, Policy, Task, TaskError};
pub use units::{Bytes, Percent};
