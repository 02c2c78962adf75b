//! Volumes in the admin protocol.

use serde::{Deserialize, Serialize};

/// One volume of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRow {
    /// Its distributed container.
    pub dc: String,
    /// Its name.
    pub name: String,
    /// `raw` or `qcow2`.
    pub format: String,
    /// `file` or `memory`.
    pub store: String,
    /// Bytes that its domain sees.
    pub bytes: u64,
    /// Bytes that it takes on the disk.
    pub allocated: u64,
    /// `idle`: no engine; `serving`: a domain has it; `waiting`: a domain has it, and its engine is
    /// started again, or another node may still be the primary; `replica`: another node serves it,
    /// and may write here.
    pub state: String,
    /// The domain that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The engine's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// How often its engine was started again since its domain has it.
    pub restarts: u64,
    /// Names of its snapshots, oldest first.
    pub snapshots: Vec<String>,
    /// With several replicas: the view, which grows with every claim.
    #[serde(default, skip_serializing_if = "is_none")]
    pub view: u64,
    /// With several replicas: the node that serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// Where it has several: its replicas, by node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<ReplicaRow>,
    /// Why it is not served, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The engine's NBD socket on the node, while there is an engine; its export is `volume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<std::path::PathBuf>,
}

/// One replica of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaRow {
    /// Its node.
    pub node: String,
    /// `current`: it has every acknowledged write; `resyncing`; `behind`; `lost`: it is about to be
    /// struck off.
    pub state: String,
    /// While it is resynced: how much of the volume it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resynced_percent: Option<u8>,
    /// Bytes that it may lack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind_bytes: Option<u64>,
    /// Why it is not connected, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_none(view: &u64) -> bool {
    *view == 0
}

/// `POST /v1/volumes/create`: make an empty volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// `DC/NAME`.
    pub name: String,
    /// Bytes, a multiple of 512.
    pub bytes: u64,
    /// `raw` or `qcow2`.
    pub format: topology::DiskFormat,
    /// `file` or `memory`.
    pub store: topology::VolumeStore,
}

/// `POST /v1/volumes/change`: do something with a volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeVolume {
    /// `DC/NAME`, or `NAME` where it is the only one.
    pub name: String,
    /// The change.
    pub change: Change,
}

/// A change of a volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Change {
    /// Let it grow, while no domain has it.
    Resize {
        /// Bytes, a multiple of 512.
        bytes: u64,
    },
    /// Remember what it is like now.
    Snapshot {
        /// Under which name.
        name: String,
    },
    /// Forget a snapshot.
    Forget {
        /// Its name.
        name: String,
    },
    /// Make it what it was, while no domain has it.
    Restore {
        /// The snapshot.
        name: String,
    },
    /// Delete it and all that it holds, while no domain has it.
    Remove,
}
