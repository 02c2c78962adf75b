//! File trees, admitted.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The settings of a file tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesSettings {
    /// Its directory, as the server's domain sees it; none: one that the node has for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<PathBuf>,
    /// Bytes that its files may take on the disk.
    pub bytes: u64,
    /// Files and folders that there may be.
    pub inodes: u32,
}
