//! A cluster in one process, from one seed. What decides is the product's own (`lease`,
//! `placement`, `coordination`); clocks, network, machines and the registry are simulated.
//! `docs/simulation.md` says what is checked, what is not, and how a seed that fails is replayed.

pub mod cluster;
pub mod etcd;
pub mod network;
mod random;
pub mod scale;
pub mod time;

pub use random::Random;
