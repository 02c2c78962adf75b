//! The cluster's own etcd, restored while no daemon runs.

use super::lock::Lock;
use crate::etcd::Ground;
use crate::membership::restore;
use admin::place::Place;
use admin::{Code, Problem};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Where a node finds the cluster's own etcd from now on.
#[derive(Debug)]
pub enum Restore<'a> {
    /// Here, with what this copy holds.
    Copy(&'a Path),
    /// At the node with this address, where a copy was restored.
    At(SocketAddr),
}

/// Restores it. Returns where it is then.
///
/// # Errors
/// A daemon runs; what [`Restore`] says can't be.
pub fn restore_etcd(place: &Place, program: PathBuf, what: &Restore<'_>) -> Result<String, Problem> {
    if !rustix::process::geteuid().is_root() {
        return Err(Problem::new(Code::Refused, "only root restores the cluster's etcd"));
    }
    if !place.state_dir.is_dir() {
        let message =
            format!("there is no {}: this machine is no node of a cluster", place.state_dir.display());
        return Err(Problem::new(Code::NotRunning, message));
    }
    let _held = Lock::take(&place.state_dir).map_err(|error| {
        Problem::new(Code::Taken, error.to_string())
            .help("stop the daemon on every node first: `systemctl stop tombolo`; what runs goes on, but for what may start elsewhere")
    })?;
    let cgroups =
        domain::Cgroups::discover().map_err(|error| Problem::new(Code::Failed, error.to_string()))?;
    let ground =
        Ground { state_dir: place.state_dir.clone(), program, cgroups, cgroup_name: place.cgroup_name() };
    match what {
        Restore::Copy(copy) => restore::from_copy(&ground, copy),
        Restore::At(at) => restore::elsewhere(&ground, *at),
    }
}
