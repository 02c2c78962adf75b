//! The tests that boot a machine for minutes: `make test-long` runs them, `make test` counts them
//! as left out.

mod events;
mod file_suites;
mod guest;
#[path = "../all/leaks.rs"]
mod leaks;
mod machine_conformance;
#[path = "../all/machine_outcomes.rs"]
mod machine_outcomes;
mod million_files;
mod neighbours;
mod power_cut;
mod service_views;
#[path = "../all/siege.rs"]
mod siege;
mod siege_network;
mod sockets;
mod tipc;
mod video;
