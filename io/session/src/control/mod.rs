//! The client of a domain's control socket.

mod awaiting;
mod client;
pub mod packet;

pub use awaiting::FolderWatch;
pub(crate) use awaiting::LOOK_AGAIN;
pub use client::{Control, ControlError, Notice};
pub use packet::PacketError;
