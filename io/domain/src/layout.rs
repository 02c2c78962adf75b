//! Where the things of a node and of a domain are.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// Longest name of a distributed container or a domain, in bytes: two of them and a `+` stay a
/// valid file name, cgroup, host name and container id.
pub const MAX_NAME_BYTES: usize = 63;

/// Where one node keeps its things. Two layouts with other run directories, state directories and
/// cgroup names never meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The directory that is gone after a reboot (`/run/tombolo`); mode 0700.
    pub run_dir: PathBuf,
    /// The directory that survives a reboot (`/var/lib/tombolo`): unpacked images and logs.
    pub state_dir: PathBuf,
    /// Our directory in every cgroup hierarchy: `tombolo`, or `tombolo-HASH` for another run
    /// directory.
    pub cgroup_name: String,
    /// The binary `tombolo`: run as `PROGRAM monitor ...`, `PROGRAM internal-init`, `PROGRAM
    /// internal-exec ...`, and seen inside each container as `/run/tombolo/tombolo`.
    pub program: PathBuf,
}

impl Layout {
    /// Refuses relative paths and a cgroup name that is no single path component.
    ///
    /// # Errors
    /// [`Error::Specification`].
    pub fn check(&self) -> Result<()> {
        for (what, path) in
            [("run_dir", &self.run_dir), ("state_dir", &self.state_dir), ("program", &self.program)]
        {
            if !path.is_absolute() || path.components().any(|c| c == std::path::Component::ParentDir) {
                return Err(Error::Specification(format!(
                    "{what} {} is not an absolute path",
                    path.display()
                )));
            }
        }
        check_name("cgroup", &self.cgroup_name)
    }

    /// Where the OCI runtime keeps its state (`runc --root`).
    #[must_use]
    pub fn runtime_root(&self) -> PathBuf {
        self.run_dir.join("runc")
    }

    /// Where unpacked images are kept, by digest.
    #[must_use]
    pub fn images(&self) -> PathBuf {
        self.state_dir.join("images")
    }

    /// Where all the domains of all distributed containers are.
    #[must_use]
    pub fn domains(&self) -> PathBuf {
        self.run_dir.join("dc")
    }

    /// The places of one domain.
    ///
    /// # Errors
    /// [`Error::Name`] for a name that can't be a path component.
    pub fn domain(&self, dc: &str, name: &str) -> Result<DomainPaths> {
        let id = DomainId::new(dc, name)?;
        Ok(DomainPaths {
            dir: self.domains().join(dc).join(name),
            log: self.state_dir.join("logs").join(dc).join(format!("{name}.log")),
            cgroup: format!("{}/{dc}/{name}", self.cgroup_name),
            monitor_cgroup: format!("{}/{dc}/{name}+monitor", self.cgroup_name),
            id,
        })
    }
}

/// The name of a domain within a node: its distributed container's and its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DomainId {
    /// The distributed container.
    pub dc: String,
    /// The domain in it.
    pub name: String,
}

impl DomainId {
    /// Checks both names.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn new(dc: &str, name: &str) -> Result<Self> {
        check_name("distributed container", dc)?;
        check_name("domain", name)?;
        Ok(Self { dc: dc.to_owned(), name: name.to_owned() })
    }

    /// The id that the OCI runtime knows it by. Names hold no `+`, so two domains never share one.
    #[must_use]
    pub fn runtime_id(&self) -> String {
        format!("{}+{}", self.dc, self.name)
    }

    /// The domain with that [`DomainId::runtime_id`].
    #[must_use]
    pub fn from_runtime_id(id: &str) -> Option<Self> {
        let (dc, name) = id.split_once('+')?;
        Self::new(dc, name).ok()
    }
}

impl fmt::Display for DomainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.dc, self.name)
    }
}

/// The places of one domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainPaths {
    /// The domain.
    pub id: DomainId,
    /// Everything of this incarnation that is a file.
    pub dir: PathBuf,
    /// The current log; older pieces are beside it with `.1`, `.2`.
    pub log: PathBuf,
    /// Its cgroup, relative to each hierarchy's mount; limits sit here.
    pub cgroup: String,
    /// Its monitor's cgroup, outside of the domain's limits.
    pub monitor_cgroup: String,
}

impl DomainPaths {
    /// The folder that the domain sees as `/run/tombolo`; the daemon puts `control.sock` here.
    #[must_use]
    pub fn inside(&self) -> PathBuf {
        self.dir.join("inside")
    }
    /// The folder that a machine process sees as `/run/machine`, and may write to.
    #[must_use]
    pub fn machine(&self) -> PathBuf {
        self.dir.join("machine")
    }
    /// The monitor's last report ([`crate::status::Status`]).
    #[must_use]
    pub fn status(&self) -> PathBuf {
        self.dir.join("status.json")
    }
    /// The specification and layout, as the monitor reads it.
    #[must_use]
    pub fn spec(&self) -> PathBuf {
        self.dir.join("spec.json")
    }
    /// Locked (`flock`) by the monitor for as long as it lives.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.dir.join("monitor.lock")
    }
    /// The OCI bundle.
    #[must_use]
    pub fn bundle(&self) -> PathBuf {
        self.dir.join("bundle")
    }
    /// The cgroup of the domain's own processes.
    #[must_use]
    pub fn payload_cgroup(&self) -> String {
        format!("{}/payload", self.cgroup)
    }
}

fn check_name(what: &'static str, name: &str) -> Result<()> {
    let bytes = name.as_bytes();
    let fine = (1..=MAX_NAME_BYTES).contains(&bytes.len())
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b));
    if fine { Ok(()) } else { Err(Error::Name { what, name: name.to_owned() }) }
}

/// `path` without its leading `/`, for joining below another root.
pub(crate) fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_their_directory_are_refused() {
        for bad in ["", ".", "..", ".hidden", "a/b", "a+b", "-x", "ä", &"x".repeat(64)] {
            assert!(DomainId::new("dc", bad).is_err(), "{bad:?} was accepted");
            assert!(DomainId::new(bad, "domain").is_err(), "{bad:?} was accepted");
        }
        assert_eq!(DomainId::new("a.b", "c_1").map(|i| i.runtime_id()).ok().as_deref(), Some("a.b+c_1"));
    }

    #[test]
    fn a_runtime_id_names_one_domain() {
        let id = DomainId::from_runtime_id("a+b");
        assert_eq!(id.map(|i| i.to_string()).as_deref(), Some("a/b"));
        assert_eq!(DomainId::from_runtime_id("ab"), None);
        assert_eq!(DomainId::from_runtime_id("a+../b"), None);
    }
}
