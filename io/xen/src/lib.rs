//! Channels between domains of a Xen hypervisor, as `docs/spec/xen.md` says: one [`offer`]s to a
//! domain, by a name, and a program there [`open`]s. Each gets an end like any other
//! ([`channel::Sender`], [`channel::Receiver`]).
//!
//! Nothing of ours runs in the hypervisor, in dom0 or in a kernel. Both need root, and the modules
//! `xen-evtchn`, and `xen-gntalloc` (to offer) or `xen-gntdev` (to open).

mod bell;
mod error;
mod granted;
mod life;
mod offer;
mod open;
mod runs;
mod store;

pub use bell::Bell;
pub use error::{OfferError, OpenError};
pub use offer::offer;
pub use open::open;
pub use store::StoreError;

/// An end of a channel between two domains, not yet opened. Dropped unopened, it closes the
/// channel.
pub type End = channel::Mapped<Bell>;
