//! The engine of a volume: a `qemu-storage-daemon` that has one image, exports it by NBD at a Unix
//! socket, and nothing else.
//!
//! It has a user of its own and no privilege: what it needs (the image, the socket for its monitor,
//! the socket of its export) is opened by us and handed over. What it says is checked; each
//! question has a time within which it is answered. All calls wait: call them where waiting is
//! allowed. The binary that starts engines has to call [`role_main`] when its first argument is
//! [`ROLE`], before it starts a thread.

mod conversation;
mod engine;
mod error;
mod facts;
mod image;
mod process;
mod role;

pub use engine::{Engine, Recipe, SHARE, SOCKET, listen_for_domains, sweep};
pub use error::StorageError;
pub use facts::{Facts, MAX_SNAPSHOTS};
pub use image::{Format, MAX_BYTES, MIN_BYTES, SECTOR_BYTES, check_size, create, restore};
pub use role::{ROLE, role_main};

use serde::{Deserialize, Serialize};

/// The engine's program.
pub const ENGINE: &str = "qemu-storage-daemon";
/// The program that makes images, and restores snapshots.
pub const IMAGES: &str = "qemu-img";
/// The name of an engine's only export.
pub const EXPORT: &str = "volume";

/// The limits of all clients of an engine together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes in each second; none: as many as there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Operations in each second; none: as many as there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations: Option<u64>,
}
