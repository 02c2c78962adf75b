//! What is said on one node about a domain of another and takes its time: commands that run there, logs that are followed
//! (`docs/spec/remote.md`). The daemon of the caller's node passes both on and looks at neither.

mod command;
mod log;
mod upgrade;

pub(crate) use command::{Places as Commands, Running, attend};
pub(crate) use log::{Places as Readers, lines};
pub(crate) use upgrade::{Asked, Stream, asked, bridge, switched};
