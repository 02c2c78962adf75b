//! The daemon: the control plane of a node. It admits topologies, keeps desired and actual state in the registry, starts
//! and watches domains, introduces the two ends of each channel to each other, and gets out of the way.
//!
//! [`daemon::run`] is the daemon itself, [`client`] speaks to it over its admin socket in the types of [`admin`].

mod adopt;
mod api;
mod broker;
mod change;
mod cluster;
mod control;
mod follow;
mod frontends;
mod ground;
mod guarded;
mod host;
mod incarnation;
mod inside;
mod listener;
mod lock;
mod machines;
mod metrics;
mod node;
mod numbers;
mod own_log;
mod proxies;
mod ready;
mod remote;
mod reserve;
mod settings;
mod spec;
mod supervisor;
mod tree;
mod turns;
mod watched;

pub mod admin;
pub mod client;
pub mod daemon;
pub mod place;

pub use change::look;
pub use cluster::{ClusterError, PEER_PORT};
pub use ground::GroundError;
pub use own_log::{MAX_LOG_BYTES, set_aside};
pub use remote::{PIPES_ROLE, pipes_main};
pub use reserve::{Looking, looking, ranges};
