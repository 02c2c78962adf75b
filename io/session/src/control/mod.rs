//! The client of a domain's control socket.

mod awaiting;
mod client;
pub mod packet;

pub use awaiting::FolderWatch;
pub use client::{Control, ControlError, Notice};
