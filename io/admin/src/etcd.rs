//! The cluster's etcd, as `node etcd` shows it, and copies of it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The etcd that the cluster stands on: `/v1/cluster/etcd`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdView {
    /// Whether it is the cluster's own.
    pub own: bool,
    /// Where this node asks it.
    pub endpoints: Vec<String>,
    /// Its members.
    pub members: Vec<EtcdMemberRow>,
    /// Nodes that can't have a member of the cluster's own, and why.
    pub cannot: BTreeMap<String, String>,
    /// The process of this node's member.
    pub pid: Option<u32>,
    /// How often this daemon has started it again.
    pub restarts: u64,
    /// Why it does not run.
    pub why: Option<String>,
}

/// A member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdMemberRow {
    /// Its number, in hexadecimal digits.
    pub id: String,
    /// The node that it is on; none: a member of an etcd that is not the cluster's own, or of a
    /// node that was removed.
    pub node: Option<String>,
    /// Its name; empty: it has not come yet.
    pub name: String,
    /// Whether it counts for a majority; else it learns what the others hold.
    pub votes: bool,
    /// Whether it leads the others.
    pub leads: bool,
    /// Where clients reach it.
    pub at: Vec<String>,
}

/// `POST /v1/cluster/etcd/backup`: write a copy of all that etcd holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupRequest {
    /// Where to; absolute. Nothing must be there.
    pub file: PathBuf,
}
