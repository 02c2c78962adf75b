//! File trees: what the server of a service of kind `files` is told; described in
//! `docs/file-trees.md`.

use serde::{Deserialize, Serialize};

/// The kind of the service.
pub const KIND: &str = "files";
/// The verb that reads.
pub const READ: &str = "read";
/// The verb that changes.
pub const WRITE: &str = "write";
/// The variable that names the server's folder for trees whose file names no store.
pub const STORE_VARIABLE: &str = "TOMBOLO_FILES";

/// The admitted settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Its directory, as the server sees it; none: one below the folder that [`STORE_VARIABLE`]
    /// names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Bytes that its files may take on the disk.
    pub bytes: u64,
    /// Files and folders that there may be.
    pub inodes: u32,
}
