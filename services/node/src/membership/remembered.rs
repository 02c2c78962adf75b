//! The nodes of the cluster when its registry could be asked last: a daemon that starts while it
//! can't be goes on with that.
//!
//! It says where nodes are and which numbers they have, so that links go on. Nothing is placed by
//! it, and nobody is believed because of it.

use super::NodeRecord;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Longest file that is read, in bytes: thrice what as many nodes as there are numbers need.
const BYTES_MAX: u64 = 8 << 20;

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("members.json")
}

/// Reads the remembered nodes: none, where there are none, or none that this version understands.
pub(super) fn load(state_dir: &Path) -> BTreeMap<String, NodeRecord> {
    let path = path(state_dir);
    let read = || {
        if fs::metadata(&path)?.len() > BYTES_MAX {
            return Err(io::Error::other("it is longer than any that this node writes"));
        }
        serde_json::from_slice(&fs::read(&path)?).map_err(io::Error::other)
    };
    read().unwrap_or_else(|error: io::Error| {
        if error.kind() != io::ErrorKind::NotFound {
            tracing::warn!(path = %path.display(), %error, "who was in the cluster is not known until its registry answers");
        }
        BTreeMap::new()
    })
}

/// Replaces it. It is not forced to the disk: after a power failure nothing runs on that would need
/// it.
pub(super) fn store(state_dir: &Path, members: &BTreeMap<String, NodeRecord>) -> io::Result<()> {
    let path = path(state_dir);
    let new = path.with_extension("new");
    fs::write(&new, serde_json::to_vec(members).map_err(io::Error::other)?)?;
    fs::rename(&new, &path)
}

/// This machine is in another cluster from now on.
pub(super) fn forget(state_dir: &Path) -> io::Result<()> {
    match fs::remove_file(path(state_dir)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
