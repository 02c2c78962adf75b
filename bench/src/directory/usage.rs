//! The processor time and memory that the node of the bench uses, as the kernel counts them.

use super::place::Place;
use crate::control_group;
use crate::usage::{charged_bytes, daemon_bytes};
use std::fs;

/// Processor time, in ns, of all domains of the node (frontends, the backend and the workers in
/// them included) and of the name server; `None` where the kernel does not count.
#[must_use]
pub fn node_processor_ns(place: &Place) -> Option<u64> {
    let group = control_group::of_node(&place.run_dir())?;
    Some(control_group::processor_ns(&group)? + name_server_processor_ns(place)?)
}

/// Processor time of the name server, in ns. It has one thread.
#[must_use]
pub fn name_server_processor_ns(place: &Place) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{}/schedstat", place.name_server())).ok()?;
    text.split(' ').next()?.parse().ok()
}

/// Memory of everything of the node, in bytes: the charge of its control groups (kernel memory
/// included), and the daemon's proportional share.
#[must_use]
pub fn node_memory_bytes(place: &Place) -> Option<u64> {
    Some(charged_bytes(&place.run_dir())? + daemon_bytes(&place.run_dir())?)
}
