//! Giving up what a process does not need once it has its descriptors.

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};
use std::io;

/// The bounds of a process from now on.
#[derive(Debug, Clone, Copy)]
pub struct Modest {
    /// Its user and group; `None`: those that it has.
    pub identity: Option<(u32, u32)>,
    /// Most descriptors.
    pub descriptors: u64,
    /// Most bytes that it may lock in memory; `None`: as many as it may now.
    pub locked_bytes: Option<u64>,
}

/// Makes the calling thread, and every thread that it starts from now on, unprivileged for good:
/// nothing that it might run could gain a capability again, and its memory is dumped nowhere.
///
/// # Errors
/// Those of setgroups(2), setresgid(2), setresuid(2), capset(2), prctl(2), setrlimit(2).
pub fn drop_all(modest: Modest) -> io::Result<()> {
    limit(Resource::Nofile, modest.descriptors)?;
    limit(Resource::Core, 0)?;
    if let Some(bytes) = modest.locked_bytes {
        limit(Resource::Memlock, bytes)?;
    }
    if let Some((uid, gid)) = modest.identity {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        empty_bounding_set()?;
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, none)?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let now = rustix::process::getrlimit(resource);
    let most = now.maximum.map_or(most, |maximum| most.min(maximum));
    Ok(rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}

fn empty_bounding_set() -> io::Result<()> {
    for capability in CapabilitySet::all().iter() {
        // EINVAL: a capability that this kernel does not have.
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
