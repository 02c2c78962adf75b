//! Write a service: a program that serves files to the domains that the topology lets see them.
//!
//! A [`Service`] has a name, a state, and files; each file has functions, which are given the state
//! and the [`Call`], and answer with bytes or an [`Errno`]. All are called in one thread, so none
//! needs a lock, and none may take long: what takes long is answered by [`Call::later`] from a
//! thread or a task of tokio. `docs/services.md` is the tour, `docs/spec/service.md` the protocol.

mod call;
mod engine;
mod file;
mod folder;
mod id;
mod locks;
mod service;
mod stream;
mod tree;
mod wake;

pub use call::{Call, Caller, Process, Reply};
pub use file::File;
pub use folder::{Folder, Listing, Node, ROOT};
pub use id::SessionId;
pub use rustix::io::Errno;
pub use service::{Error, MAX_FILES, Offered, Service};
pub use session::{Control, ControlError, ServeError};
pub use stream::{HISTORY_BYTES, HISTORY_RECORDS, Stream, StreamOptions};
pub use wake::{Handle, Later};
pub use wire::service::{Attributes, Behaviour, ready};
