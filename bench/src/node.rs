//! A node of a bench's own: a run and a state directory below the bench's folder, and whatever its
//! topology says.

use crate::machine::{check_files, check_root, finish};
use crate::scenario::BenchError;
use crate::undo::Undo;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Ends the daemon whose run directory is the argument: it was started by the bench alone.
const END_DAEMON: &str = "for process in /proc/[0-9]*; do \
    { tr '\\0' ' ' <\"$process/cmdline\"; } 2>/dev/null | grep -qF -- \"--run-dir $1 \" && \
    kill \"${process#/proc/}\" 2>/dev/null; done; true";

/// The node, once it is up.
#[derive(Debug)]
pub struct Node {
    binary: PathBuf,
    folder: PathBuf,
}

impl Node {
    /// Brings up what the topology says, in `folder`, with the `tombolo` that lies beside `binary`;
    /// `undo` learns how it is brought down.
    ///
    /// # Errors
    /// Where it does not come up here.
    pub fn start(binary: &Path, folder: &Path, undo: &mut Undo, topology: &str) -> Result<Self, BenchError> {
        check_root()?;
        check_files(binary, &["tombolo"])?;
        let this = Self { binary: binary.with_file_name("tombolo"), folder: folder.to_path_buf() };
        let mut later = |words: &[&OsStr]| undo.add(words).map_err(BenchError::io("noting what to clean up"));
        let run_dir = this.run_dir();
        later(&["sh".as_ref(), "-c".as_ref(), END_DAEMON.as_ref(), "sh".as_ref(), run_dir.as_os_str()])?;
        let down = this.tombolo(&["down", "--all"]);
        later(&std::iter::once(down.get_program()).chain(down.get_args()).collect::<Vec<_>>())?;
        let file = folder.join("topology.toml");
        fs::write(&file, topology).map_err(BenchError::io("writing the topology"))?;
        finish(this.tombolo(&["up", &file.to_string_lossy()]))?;
        Ok(this)
    }

    /// Where it runs.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// `tombolo ARGUMENTS` for this node.
    #[must_use]
    pub fn tombolo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        let state = self.folder.join("state");
        command.arg("--run-dir").arg(self.run_dir()).arg("--state-dir").arg(state).args(arguments);
        command
    }

    /// The control socket of a domain.
    #[must_use]
    pub fn control(&self, dc: &str, domain: &str) -> PathBuf {
        self.domain(dc, domain).join("inside/control.sock")
    }

    /// The folder that the node keeps of a domain while it runs.
    #[must_use]
    pub fn domain(&self, dc: &str, domain: &str) -> PathBuf {
        self.run_dir().join("dc").join(dc).join(domain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_sockets_are_where_the_node_has_them() {
        let node = Node { binary: "/b/tombolo".into(), folder: "/f".into() };
        assert_eq!(node.control("bench", "a"), Path::new("/f/run/dc/bench/a/inside/control.sock"));
        let command = format!("{:?}", node.tombolo(&["ps"]));
        assert_eq!(command, r#""/b/tombolo" "--run-dir" "/f/run" "--state-dir" "/f/state" "ps""#);
    }
}
