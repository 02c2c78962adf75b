//! The lives of domains: from a step of a change to an incarnation with all that it needs, to its
//! end.

mod about;
pub(crate) mod adopt;
pub(crate) mod change;
mod changes;
mod events;
mod exit;
pub(crate) mod frontends;
pub(crate) mod handover;
mod health;
pub(crate) mod host;
pub(crate) mod incarnation;
mod inside;
mod levels;
pub(crate) mod lifecycle;
mod listener;
pub(crate) mod machines;
pub(crate) mod prepare;
pub(crate) mod ready;
pub(crate) mod relays;
pub(crate) mod spec;
mod store;
pub(crate) mod supervisor;
pub(crate) mod targets;
mod teller;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod turns;

pub(crate) use changes::{Change, Changes, Ending, Wish};
pub(crate) use events::Events;
pub(crate) use exit::exit_text;
pub(crate) use health::{HealthView, command_in, end_left, gather, last_line};
pub use health::{MARKED_ROLE, marked_main};
pub(crate) use levels::Levels;
pub(crate) use machines::qemu;
pub use prepare::free_to_publish;
pub use store::LoadError;
pub(crate) use store::{Desired, Domains, Ground, Known};
pub(crate) use teller::Teller;
