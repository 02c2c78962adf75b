//! Volumes: virtual disks of this node that outlive the domains which have them. Each has a record
//! in the registry, a file, and an engine while a domain has it.
//!
//! Domains know of this room what [`Volumes`] says. The engine of a volume outlives the daemon; the
//! next one takes it over if it is what the record says, and starts another one if it is not.

mod book;
mod changes;
mod keep;
mod replicas;
mod serving;

pub(crate) use keep::Keeper;
pub(crate) use replicas::{About, DROP_PATH, FIND_PATH, Listens, MAKE_PATH};

use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use topology::Domain;

/// Below the run and state directories, and (with a plus) the node's cgroup: what belongs to
/// volumes.
const VOLUMES: &str = "volumes";

/// Something that takes its time.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The volumes, as the lives of domains use them.
pub(crate) trait Volumes: fmt::Debug + Send + Sync {
    /// Has all volumes of a domain served from now on, and makes those that are not there.
    fn attach<'a>(&'a self, dc: &'a str, domain: &'a Domain) -> Later<'a, Result<(), String>>;
    /// The domain is gone: its volumes are written and no longer served. Their data stay.
    fn detach<'a>(&'a self, dc: &'a str, domain: &'a str) -> Later<'a, ()>;
}

/// The folder of a volume's NBD socket on the node, which domains see.
pub(crate) fn share(run_dir: &Path, dc: &str, volume: &str) -> PathBuf {
    run_folder(run_dir, dc, volume).join(storage::SHARE)
}

fn run_folder(run_dir: &Path, dc: &str, volume: &str) -> PathBuf {
    run_dir.join(VOLUMES).join(dc).join(volume)
}
