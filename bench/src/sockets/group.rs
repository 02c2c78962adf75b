//! A control group of what a launch starts outside of any node: its processor time is counted
//! there, and what is left of it is ended by it.

use crate::control_group;
use crate::machine::inside;
use crate::scenario::BenchError;
use crate::undo::Undo;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Joins the group whose list of processes is the argument, and becomes what follows.
const JOIN: &str = "echo $$ >\"$0\" && exec \"$@\"";
/// Ends whoever is in the group that is the argument, and takes it away.
const END: &str = "n=0; while [ -d \"$1\" ] && ! rmdir \"$1\" 2>/dev/null; do \
    xargs -r kill -9 <\"$1/cgroup.procs\" 2>/dev/null; n=$((n + 1)); [ $n -lt 500 ] || exit 1; sleep 0.02; done";

/// The group.
#[derive(Debug)]
pub struct Group {
    folder: PathBuf,
    name: String,
}

impl Group {
    /// Makes one where processor time is counted, in either version of control groups.
    ///
    /// # Errors
    /// Where the machine has no control groups for us.
    pub fn make(undo: &mut Undo) -> Result<Self, BenchError> {
        let root = Path::new(control_group::ROOT);
        let version_1 = ["cpuacct", "cpu,cpuacct"].map(|controller| root.join(controller));
        let top = version_1.into_iter().find(|folder| folder.is_dir()).unwrap_or_else(|| root.to_path_buf());
        let name = format!("tombolo-bench-sockets-{}", std::process::id());
        let folder = top.join(&name);
        let end: [&OsStr; 5] =
            ["sh".as_ref(), "-c".as_ref(), END.as_ref(), "sh".as_ref(), folder.as_os_str()];
        undo.add(&end).map_err(BenchError::io("noting what to clean up"))?;
        fs::create_dir(&folder).map_err(BenchError::io(format!("making {}", folder.display())))?;
        Ok(Self { folder, name })
    }

    /// A command in the group and in the network namespace of a process.
    pub fn inside(&self, space: u32, program: impl AsRef<OsStr>) -> Command {
        let joined = inside(space, program);
        let mut command = Command::new("sh");
        command.args(["-c", JOIN]).arg(self.folder.join("cgroup.procs"));
        command.arg(joined.get_program()).args(joined.get_args());
        command
    }

    /// Processor time of everything that is or was in it, in ns.
    #[must_use]
    pub fn processor_ns(&self) -> Option<u64> {
        control_group::processor_ns(&self.name)
    }
}
