//! A volume as a domain has it, admitted.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::machine::DiskFormat;
use crate::name::Name;

/// A volume, and where its one domain finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeMount {
    /// Unique in its distributed container.
    pub name: Name,
    /// The folder with its NBD socket, absolute; `None` for a machine, which has a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<PathBuf>,
    /// Bytes that the domain sees, a multiple of 512.
    pub bytes: u64,
    /// How they lie in the volume's file.
    pub format: DiskFormat,
    /// The store that they are kept in.
    pub store: VolumeStore,
    /// Nodes that have all of them; one: the node of its domain alone.
    #[serde(default = "alone", skip_serializing_if = "is_alone")]
    pub replicas: u8,
}

fn alone() -> u8 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_alone(replicas: &u8) -> bool {
    *replicas == alone()
}

impl VolumeMount {
    /// Whether it survives the loss of a node.
    #[must_use]
    pub fn is_replicated(&self) -> bool {
        self.replicas > 1
    }
}

/// The store that a volume's bytes are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeStore {
    /// A file in the state directory.
    File,
    /// A file in the run directory, which is in memory.
    Memory,
}

impl VolumeStore {
    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Memory => "memory",
        }
    }
}
