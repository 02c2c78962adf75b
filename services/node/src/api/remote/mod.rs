//! Requests on one node about a domain of another that take their time: commands that run there,
//! logs that are followed (`docs/spec/remote.md`). The daemon of the caller's node passes both on
//! and looks at neither.

mod command;
mod log;
mod pipes;
mod upgrade;

pub(crate) use command::{Places as Commands, Running, attend};
pub(crate) use log::{Places as Readers, lines};
pub use pipes::{PIPES_ROLE, pipes_main};
pub(crate) use upgrade::{Asked, asked, bridge, switched};
