//! The OCI runtime: which one, and how it is called.

use crate::bundle::DEFAULT_PATH;
use crate::cgroup::Cgroups;
use crate::error::{Context, Error, Result};
use crate::layout::Layout;
use crate::spec::RuntimeChoice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Deserialize;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use sys::signals::unblock_in_child;

/// How long one call of the runtime may take; it takes some 50 ms.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest log of one call that is looked at, in bytes.
const MAX_LOG_BYTES: usize = 256 * 1024;

/// A runtime and where it keeps its state.
#[derive(Debug, Clone)]
pub(crate) struct Runtime {
    pub program: PathBuf,
    root: PathBuf,
}

impl Runtime {
    /// Finds the one that was asked for.
    pub fn choose(layout: &Layout, choice: RuntimeChoice) -> Result<Self> {
        let candidates: &[&str] = match choice {
            RuntimeChoice::Auto => &["runc", "crun"],
            RuntimeChoice::Runc => &["runc"],
            RuntimeChoice::Crun => &["crun"],
        };
        let mut reasons = Vec::new();
        for name in candidates {
            match find_program(name).ok_or_else(|| format!("is not in {DEFAULT_PATH}")).and_then(works) {
                Ok(program) => return Ok(Self::known(layout, program)),
                Err(reason) => reasons.push(format!("{name} {reason}")),
            }
        }
        Err(Error::NoRuntime(reasons.join(", ")))
    }

    /// The one at a known place.
    pub fn known(layout: &Layout, program: PathBuf) -> Self {
        Self { program, root: layout.runtime_root() }
    }

    /// A call that speaks about our containers, yet without a verb. What it says goes to `log`.
    pub fn command(&self, log: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(&self.root).arg("--log").arg(log).args(["--log-format", "json"]);
        command
    }

    /// Makes the call `verb arguments...`; `prepare` sets its standard streams, which the container
    /// inherits with `create`.
    pub fn call<I, S>(
        &self,
        verb: &str,
        arguments: I,
        log: &Path,
        prepare: impl FnOnce(&mut Command),
    ) -> Result<()>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let name = self.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let what = format!("{name} {verb}");
        // A log of an earlier call would be taken for this one's.
        let _ = fs::remove_file(log);
        let mut command = self.command(log);
        command.arg(verb).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        prepare(&mut command);
        // The monitor reads its signals; the runtime and its container are to get theirs.
        let mut child =
            unblock_in_child(&mut command).spawn().doing(format!("run {}", self.program.display()))?;
        // The command holds the ends of pipes that it gave to the child.
        drop(command);
        match wait_bounded(&mut child, CALL_TIMEOUT)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(Error::Runtime { command: what, message: said(log, status) }),
            None => Err(Error::Runtime {
                command: what,
                message: format!("no end after {CALL_TIMEOUT:?}; killed"),
            }),
        }
    }

    /// Ends and forgets a container; one that it does not know is no error.
    pub fn delete(&self, id: &str, log: &Path) -> Result<()> {
        if !self.root.join(id).exists() {
            return Ok(());
        }
        let result = self.call("delete", ["--force", id], log, |_| {});
        // State that the runtime was killed over while writing it is not understood even by `delete
        // --force`.
        match sys::tree::remove(&self.root.join(id)) {
            Err(e) => result.and(Err(e).at("remove", self.root.join(id))),
            Ok(()) => Ok(()),
        }
    }
}

/// Waits for a child's end for so long, and kills it then (`None`).
pub(crate) fn wait_bounded(child: &mut Child, timeout: Duration) -> Result<Option<ExitStatus>> {
    let wait = "wait for a child";
    let pid =
        i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH).doing(wait)?;
    let descriptor = pidfd_open(pid, PidfdFlags::empty()).doing(wait)?;
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    let ended = loop {
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other.doing(wait)? > 0,
        }
    };
    if !ended {
        child.kill().doing("kill a child that does not end")?;
    }
    let status = child.wait().doing(wait)?;
    Ok(ended.then_some(status))
}

/// The last error in a runtime's log.
pub(crate) fn last_error(log: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct Line {
        level: String,
        msg: String,
    }
    let bytes = fs::read(log).ok()?;
    let text = String::from_utf8_lossy(bytes.get(bytes.len().saturating_sub(MAX_LOG_BYTES)..)?).into_owned();
    let lines = text.lines().rev().filter_map(|l| serde_json::from_str::<Line>(l).ok());
    lines.filter(|l| l.level == "error" || l.level == "fatal").map(|l| l.msg).next()
}

fn said(log: &Path, status: ExitStatus) -> String {
    last_error(log).unwrap_or_else(|| format!("{status}, without a word in {}", log.display()))
}

/// Looks for one of the system's programs, in the same folders for the daemon, the monitors and
/// every report: what the caller's `PATH` says must not decide which runtime a domain is made by.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(DEFAULT_PATH).map(|folder| folder.join(name)).find(|program| {
        use std::os::unix::fs::PermissionsExt;
        fs::metadata(program).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

/// crun refuses every container, with these words, where controllers are spread over both cgroup
/// versions.
fn works(program: PathBuf) -> std::result::Result<PathBuf, String> {
    let is_crun = program.file_name() == Some(OsStr::new("crun"));
    if is_crun && Cgroups::discover().is_ok_and(|c| c.is_mixed()) {
        return Err("does not work here (\"cgroups in hybrid mode not supported, drop all controllers from cgroupv2\")".into());
    }
    Ok(program)
}
