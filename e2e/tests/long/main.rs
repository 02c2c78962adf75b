//! The tests that boot a machine for minutes: `make test-long` runs them, `make test` counts them
//! as left out.

mod events;
mod guest;
#[path = "../all/leaks.rs"]
mod leaks;
#[path = "../all/siege.rs"]
mod siege;
mod siege_network;
mod sockets;
mod tipc;
