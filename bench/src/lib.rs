//! The core that every bench shares, and the scenarios.
//!
//! A figure of ours comes from a run with its peers beside it. A run has *launches* (all processes
//! fresh), each launch has *rounds*, each round runs every *arm* once, in an order that rotates.
//! Before and after each repetition the round trip of a cache line between two processors is
//! measured, because on virtual machines it moves several-fold within seconds: ratios compare only
//! repetitions that ran in the same state. Values are medians over launches, with bootstrap
//! confidence intervals over launches.

pub mod channel;
pub mod choice;
pub mod compare;
pub mod control_group;
pub mod core_line;
pub mod directory;
pub mod environment;
pub mod histogram;
pub mod idle;
pub mod ipc;
pub mod links;
pub mod machine;
pub mod machines;
pub mod node;
pub mod promise;
pub mod report;
pub mod reserve;
pub mod results;
pub mod run;
pub mod scenario;
pub mod services;
pub mod sockets;
pub mod talk;
pub mod undo;
pub mod usage;
pub mod worker;

pub use ::statistics;
pub use promise::{Promise, Relation, Verdict};
pub use results::{Repetition, Results};
pub use run::{run, scenarios};
pub use scenario::{Arguments, BenchError, Scenario, Summary};
