//! The test bed: a node of its own (daemon, run and state directories) per test, a real name
//! server, and a proof that nothing is left behind.
//!
//! Every test asks [`Node::start`]; where the machine lacks something, it is told so and prints
//! `skipped: reason`.

pub mod clean;
pub mod cluster;
pub mod demo;
pub mod guest;
pub mod machines;
pub mod name_server;
pub mod node;
pub mod oci;
pub mod peer;
pub mod power_cut;
pub mod report;
pub mod siege;
pub mod tipc_guest;
pub mod wait;

pub use name_server::{NameServer, free_port};
pub use node::{Node, Run, topology};
