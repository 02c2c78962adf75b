//! The daemon: the control plane of a node. It admits topologies, keeps desired and actual state in
//! the registry, starts and watches domains, introduces the two ends of each channel to each other,
//! and gets out of the way.
//!
//! [`daemon::run`] is the daemon itself; [`admin`] has the types and the client of its admin
//! socket.

mod adaptations;
mod api;
mod base;
mod broker;
mod coordination;
mod domains;
mod etcd;
mod links;
mod membership;
mod placement;
mod reservations;
mod secrets;
mod volumes;

pub mod daemon;
pub mod doctor;

pub use api::remote::{PIPES_ROLE, pipes_main};
pub use base::{look, module_bytes};
pub use daemon::ground::GroundError;
pub use daemon::own_log::{MAX_LOG_BYTES, set_aside};
pub use domains::{MARKED_ROLE, free_to_publish, marked_main};
pub use etcd::{SERVER_ROLE, server_main};
pub use membership::{ClusterError, PEER_PORT};
pub use reservations::{BookError, Looking, looking, ranges};
