//! The client of a domain's control socket.

mod awaiting;
mod client;
mod endpoints;
mod offer;
mod open;
pub mod packet;

pub use awaiting::FolderWatch;
pub(crate) use awaiting::LOOK_AGAIN;
pub use client::{Control, ControlError, Notice};
pub use endpoints::{Bound, Grant, Introduced, Memories};
pub use offer::{Offer, OfferEvent, offer_channel};
pub use open::{open_channel, open_channel_at};
pub use packet::PacketError;
