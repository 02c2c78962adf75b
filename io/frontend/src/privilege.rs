//! Giving up what a frontend does not need once it has its descriptors.

use std::io;

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};

/// Most descriptors: a few for itself, and those of the links (an end has five) of [`crate::tree::SERVICES_MAX`]
/// services, old and new ones together.
const DESCRIPTORS_MAX: u64 = 512;

/// An unprivileged user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its number; not 0.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Makes the calling thread, and every thread that it starts from now on, unprivileged for good.
///
/// # Errors
/// Those of setgroups(2), setresgid(2), setresuid(2), capset(2), prctl(2), setrlimit(2).
pub(crate) fn drop_all(identity: Option<Identity>) -> io::Result<()> {
    limit(Resource::Nofile, DESCRIPTORS_MAX)?;
    limit(Resource::Core, 0)?;
    limit(Resource::Memlock, 0)?;
    if let Some(Identity { uid, gid }) = identity {
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

/// Nothing that this process might run could gain a capability again.
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
