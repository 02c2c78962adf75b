//! Event channels to and from other messaging systems. A gateway is a program of a domain like any
//! other: it reads and writes the channels' files, and so it may what its domain may.
//! `docs/events.md` is for users.
//!
//! Inside: `engine` is the trait that a messaging system implements, `mqtt` and `dds` implement it,
//! `outbox` keeps what the other side has not taken over yet, and `run` has a thread for each
//! channel and one for the engine.

mod dds;
mod engine;
mod mqtt;
mod outbox;
mod run;

pub use dds::{DOMAIN_MAX, Dds, Quality, SETTINGS, is_dds_topic};
pub use engine::{Arrival, Connection, Engine, EngineError, Message, Receiver, Sender, Subscription, Told};
pub use mqtt::{Broker, Mqtt, is_filter, is_topic};
pub use outbox::{Outbox, WINDOW};
pub use run::{GatewayError, Inward, Outward, Say, run};
