//! Binding a cgroup to processors.

use super::{Cgroups, MAX_DEPTH, Part, Version, collect, directories, while_parents_vanish, write};
use crate::error::{Context, Error, Result};
use std::fs;
use std::io;
use std::path::Path;

impl Cgroups {
    /// Binds the cgroup `path`, and those below it that hold the domain's own processes, to these
    /// processors; `None`: to those of whoever is above.
    ///
    /// # Errors
    /// [`Error::Controller`] where there is no such controller; [`Error::File`] when the kernel
    /// refuses.
    pub fn pin(&self, path: &str, processors: Option<&[usize]>) -> Result<()> {
        let missing = Error::Controller { what: "processors of its own", controller: "cpuset" };
        let hierarchy = self.with("cpuset").ok_or(missing)?;
        let list =
            processors.map(|numbers| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
        let at = hierarchy.mount.join(path);
        if hierarchy.version == Version::Two {
            let mut above = hierarchy.mount.clone();
            for component in path.split('/') {
                // Whoever can't have the controller misses its file.
                let _ = write(&above.join("cgroup.subtree_control"), "+cpuset");
                above.push(component);
            }
            let file = at.join("cpuset.cpus");
            return match list {
                Some(list) => write(&file, &list),
                // An empty line takes it back; a write of no bytes at all would never come to the
                // kernel. Older kernels take none as long as there are processes (`ENOSPC`): then
                // it is all that is above.
                None => write(&file, "\n").or_else(|refused| match self.all_above(path) {
                    Some(all) => write(&file, &all),
                    None => Err(refused),
                }),
            };
        }
        if list.is_none() && !at.is_dir() {
            return Ok(());
        }
        while_parents_vanish(|| make(&hierarchy.mount, path))?;
        let payload = format!("{path}/{}", Part::Payload.name());
        let has_payload = self.hierarchies.iter().any(|other| other.mount.join(&payload).is_dir());
        if has_payload {
            make(&hierarchy.mount, &payload)?;
        }
        narrow(&at, list.as_deref(), MAX_DEPTH)?;
        // Who was started by us, and not by a container runtime, is in none of this hierarchy yet.
        for part in has_payload.then_some(payload.as_str()).into_iter().chain([path]) {
            let mut there = Vec::new();
            collect(&at, MAX_DEPTH, &mut there);
            for pid in self.payload_processes(part, has_payload && part == path) {
                if !there.contains(&pid) {
                    // One that has ended meanwhile needs no place.
                    let _ = write(&hierarchy.mount.join(part).join("cgroup.procs"), &pid.to_string());
                }
            }
        }
        Ok(())
    }

    /// The processes of a cgroup; `alone`: not of those below it.
    fn payload_processes(&self, path: &str, alone: bool) -> Vec<u32> {
        let mut found = Vec::new();
        for hierarchy in self.hierarchies.iter().filter(|hierarchy| hierarchy.holds_domains()) {
            collect(&hierarchy.mount.join(path), if alone { 0 } else { MAX_DEPTH }, &mut found);
        }
        found
    }

    /// The processors that the cgroup `path` is bound to, as the kernel lists them; `None`: it is
    /// not.
    #[must_use]
    pub fn pinned(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.with("cpuset")?.mount.join(path).join("cpuset.cpus")).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// All processors that whoever is in the cgroup above `path` may use, where the hierarchy is of
    /// version 2.
    fn all_above(&self, path: &str) -> Option<String> {
        let at = self.with("cpuset")?.mount.join(path);
        let text = fs::read_to_string(at.parent()?.join("cpuset.cpus.effective")).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }
}

/// Makes a cgroup of version 1 that processes can be put into: one without processors or memory
/// takes none.
fn make(mount: &Path, path: &str) -> Result<()> {
    let mut at = mount.to_owned();
    for component in path.split('/') {
        let above = at.clone();
        at.push(component);
        match fs::create_dir(&at) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(error).at("create cgroup", &at);
            }
            _ => {}
        }
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if read(&at.join(file))?.is_empty() {
                write(&at.join(file), &read(&above.join(file))?)?;
            }
        }
    }
    Ok(())
}

/// Narrows from below: a child may have no more than its parent, at any time, so the parent is wide
/// first, then those below are told, and then it is as it shall be.
fn narrow(at: &Path, list: Option<&str>, depth: usize) -> Result<()> {
    let above = at.parent().unwrap_or(at);
    let all = read(&above.join("cpuset.cpus"))?;
    let file = at.join("cpuset.cpus");
    write(&file, &all)?;
    if depth > 0 {
        for child in directories(at) {
            narrow(&at.join(child), list, depth - 1)?;
        }
    }
    match list {
        Some(list) => write(&file, list),
        None => Ok(()),
    }
}

fn read(path: &Path) -> Result<String> {
    Ok(fs::read_to_string(path).at("read", path)?.trim().to_owned())
}
