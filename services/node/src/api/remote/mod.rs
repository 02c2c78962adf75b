//! Requests on one node about a domain of another that take their time: commands that run there,
//! logs that are followed, files by 9P (`docs/spec/remote.md`). The daemon of the caller's node
//! passes them on and looks at none.

mod command;
mod log;
mod ninep;
mod pipes;
mod upgrade;

pub(crate) use command::{Places as Commands, Running, attend};
pub(crate) use log::{Places as Readers, lines};
pub(crate) use ninep::{Places as Trees, Tree};
pub use pipes::{PIPES_ROLE, pipes_main};
pub(crate) use upgrade::{Asked, asked, bridge};
