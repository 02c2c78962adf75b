//! Where a node keeps its things.

use domain::Layout;
use std::io;
use std::path::{Path, PathBuf};

/// The run directory where none is named.
pub const DEFAULT_RUN_DIR: &str = "/run/tombolo";
/// The state directory where none is named.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/tombolo";
/// Names the run directory.
pub const RUN_DIR_VARIABLE: &str = "TOMBOLO_RUN_DIR";
/// Names the state directory.
pub const STATE_DIR_VARIABLE: &str = "TOMBOLO_STATE_DIR";
/// Says what is logged.
pub const LOG_VARIABLE: &str = "TOMBOLO_LOG";

/// By which socket somebody speaks to a daemon: that is who may, and what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Root's, in the run directory.
    Root,
    /// Of the group that may do everything.
    Change,
    /// Of the group that may look.
    Look,
}

impl Access {
    /// All of them; who may more comes first.
    pub const ALL: [Self; 3] = [Self::Root, Self::Change, Self::Look];

    /// The group whose members have it where no other one is named.
    #[must_use]
    pub fn usual_group(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Change => "tombolo-admin",
            Self::Look => "tombolo",
        }
    }
}

/// The two directories that make a node what it is: a daemon with others is another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Gone after a reboot; absolute.
    pub run_dir: PathBuf,
    /// Survives a reboot; absolute.
    pub state_dir: PathBuf,
}

impl Place {
    /// A node's place; relative paths are taken from the working directory.
    ///
    /// # Errors
    /// The working directory is needed and gone.
    pub fn new(run_dir: &Path, state_dir: &Path) -> io::Result<Self> {
        Ok(Self { run_dir: std::path::absolute(run_dir)?, state_dir: std::path::absolute(state_dir)? })
    }

    /// The admin API's socket.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.run_dir.join(ADMIN_SOCKET)
    }

    /// The folder with the socket for somebody. Those of groups lie beside the run directory, which
    /// nobody but root may enter.
    #[must_use]
    pub fn socket_folder(&self, access: Access) -> PathBuf {
        let beside = |suffix| {
            // Without a slash at its end.
            let mut path = self.run_dir.components().collect::<PathBuf>().into_os_string();
            path.push(suffix);
            PathBuf::from(path)
        };
        match access {
            Access::Root => self.run_dir.components().collect(),
            Access::Change => beside(".change"),
            Access::Look => beside(".look"),
        }
    }

    /// Returns the log of a daemon that `up` started.
    #[must_use]
    pub fn daemon_log(&self) -> PathBuf {
        self.state_dir.join("daemon.log")
    }

    /// The registry's file.
    #[must_use]
    pub fn registry(&self) -> PathBuf {
        self.state_dir.join("registry.redb")
    }

    /// Our directory in every cgroup hierarchy: nodes with different run directories do not share
    /// one.
    #[must_use]
    pub fn cgroup_name(&self) -> String {
        if self.run_dir == Path::new(DEFAULT_RUN_DIR) {
            return "tombolo".into();
        }
        let hash = fnv1a(self.run_dir.as_os_str().as_encoded_bytes());
        format!("tombolo-{hash:016x}")
    }

    /// The layout of its domains; `program` is the binary that is run for each role.
    #[must_use]
    pub fn layout(&self, program: PathBuf) -> Layout {
        Layout {
            run_dir: self.run_dir.clone(),
            state_dir: self.state_dir.clone(),
            cgroup_name: self.cgroup_name(),
            program,
        }
    }
}

/// File name of the admin API's sockets, each in its folder.
pub const ADMIN_SOCKET: &str = "daemon.sock";

/// The 64-bit FNV-1a hash. Any hash would do that is the same in every version and process.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_other_run_directories_have_other_cgroups_and_always_the_same() {
        let name = |run: &str| Place { run_dir: run.into(), state_dir: "/s".into() }.cgroup_name();
        assert_eq!(name("/run/tombolo"), "tombolo");
        assert_ne!(name("/tmp/a"), name("/tmp/b"));
        assert_eq!(name("/tmp/a"), "tombolo-6cc13bddf2746ce7");
    }

    #[test]
    fn sockets_of_groups_lie_beside_the_run_directory() {
        let place = Place::new(Path::new("/run/tombolo/"), Path::new("/s")).unwrap();
        let folders = Access::ALL.map(|access| place.socket_folder(access));
        assert_eq!(
            folders.map(|folder| folder.display().to_string()),
            ["/run/tombolo", "/run/tombolo.change", "/run/tombolo.look"]
        );
    }
}
