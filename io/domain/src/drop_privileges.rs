//! From root with everything to the user and the capabilities that a process domain has. For a
//! process with one thread, before `execve`.

use crate::bundle::open_files;
use crate::error::{Context, Result};
use crate::privilege::{Identity, capability};
use rustix::io::Errno;
use rustix::process::{Gid, Resource, Rlimit, Uid, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// Keeps the named capabilities in all five sets, drops all others, becomes the user, and gives up
/// gaining privileges by `execve`.
pub(crate) fn drop_privileges(identity: &Identity, capabilities: &[String]) -> Result<()> {
    let mut kept = CapabilitySet::empty();
    for name in capabilities {
        kept |= capability(name)?;
    }
    let (soft, hard) = open_files();
    setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: Some(hard) })
        .doing("limit open files")?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).doing("limit core dumps")?;
    for one in CapabilitySet::all().iter().filter(|c| !kept.contains(*c)) {
        match remove_capability_from_bounding_set(one) {
            // The kernel knows fewer of them than the library.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error).doing("drop capabilities from the bounding set"),
        }
    }
    set_keep_capabilities(true).doing("keep capabilities across the change of user")?;
    let groups: Vec<Gid> = identity.groups.iter().map(|&g| Gid::from_raw(g)).collect();
    set_thread_groups(&groups).doing("set groups")?;
    let (gid, uid) = (Gid::from_raw(identity.gid), Uid::from_raw(identity.uid));
    set_thread_res_gid(gid, gid, gid).doing("set the group")?;
    set_thread_res_uid(uid, uid, uid).doing("set the user")?;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: kept };
    set_capabilities(None, sets).doing("drop capabilities")?;
    clear_ambient_capability_set().doing("clear ambient capabilities")?;
    for one in kept.iter() {
        configure_capability_in_ambient_set(one, true).doing("keep a capability for the command")?;
    }
    set_no_new_privs(true).doing("give up gaining privileges")
}
