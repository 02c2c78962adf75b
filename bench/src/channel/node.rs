//! A node of the bench's own, with two domains and a channel service between them: for channels that are made by the
//! daemon. The domains are processes that sleep; the workers speak over the domains' control sockets, which is what makes
//! them programs of these domains.

use crate::machine::{check_files, check_root, finish};
use crate::scenario::BenchError;
use crate::undo::Undo;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the distributed container, and of its service.
const DC: &str = "bench";
/// The service that the follower offers.
pub const SERVICE: &str = "messages";

/// Ends the daemon whose run directory is the argument: it was started by the bench alone.
const END_DAEMON: &str = "for process in /proc/[0-9]*; do \
    { tr '\\0' ' ' <\"$process/cmdline\"; } 2>/dev/null | grep -qF -- \"--run-dir $1 \" && \
    kill \"${process#/proc/}\" 2>/dev/null; done; true";

/// The node, once it is up.
#[derive(Debug)]
pub struct Node {
    run_dir: PathBuf,
}

impl Node {
    /// Brings it up, in `folder`, with the `tombolo` that lies beside `binary`; `undo` learns how it is brought down.
    ///
    /// # Errors
    /// Where it does not come up here.
    pub fn start(binary: &Path, folder: &Path, undo: &mut Undo) -> Result<Self, BenchError> {
        check_root()?;
        check_files(binary, &["tombolo"])?;
        let (binary, run_dir) = (binary.with_file_name("tombolo"), folder.join("run"));
        let tombolo = |arguments: &[&str]| {
            let mut command = Command::new(&binary);
            command
                .arg("--run-dir")
                .arg(&run_dir)
                .arg("--state-dir")
                .arg(folder.join("state"))
                .args(arguments);
            command
        };
        let mut later = |words: &[&OsStr]| undo.add(words).map_err(BenchError::io("noting what to clean up"));
        later(&["sh".as_ref(), "-c".as_ref(), END_DAEMON.as_ref(), "sh".as_ref(), run_dir.as_os_str()])?;
        let down = tombolo(&["down", "--all"]);
        later(&std::iter::once(down.get_program()).chain(down.get_args()).collect::<Vec<_>>())?;
        let file = folder.join("topology.toml");
        std::fs::write(&file, topology()).map_err(BenchError::io("writing the topology"))?;
        finish(tombolo(&["up", &file.to_string_lossy()]))?;
        Ok(Self { run_dir })
    }

    /// The control socket of the domain that offers.
    #[must_use]
    pub fn offering(&self) -> PathBuf {
        self.control("offering")
    }

    /// The control socket of the domain that opens.
    #[must_use]
    pub fn opening(&self) -> PathBuf {
        self.control("opening")
    }

    fn control(&self, domain: &str) -> PathBuf {
        self.run_dir.join("dc").join(DC).join(domain).join("inside/control.sock")
    }
}

fn topology() -> String {
    let domain = |name: &str| {
        format!(
            "\n[domain.{name}]\nkind = \"process\"\ncommand = [\"sleep\", \"infinity\"]\nstop = {{ signal = \"KILL\" }}\n"
        )
    };
    format!(
        "name = \"{DC}\"\n{}{}\n[service.{SERVICE}]\nkind = \"channel\"\ndomain = \"offering\"\n\
         allow = [{{ domains = [\"opening\"], verbs = [\"open\"] }}]\n",
        domain("offering"),
        domain("opening"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_sockets_are_where_the_node_has_them() {
        let node = Node { run_dir: "/r".into() };
        assert_eq!(node.opening(), Path::new("/r/dc/bench/opening/inside/control.sock"));
        assert!(topology().contains("[service.messages]") && topology().contains("[domain.offering]"));
    }
}
