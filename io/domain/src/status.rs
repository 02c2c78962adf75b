//! The monitor's knowledge of its domain, on disk: replaced as a whole, never half written.

use crate::error::{Context, Error, Result};
use crate::exchange;
use crate::layout::DomainPaths;
use crate::machine::Outcome;
use crate::spec::Kind;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Version of the status file; another one is not understood and its domain not adopted.
pub const VERSION: u32 = 1;

/// Room that is kept for the status, in bytes: a page, in which any fits whose outcome is not at
/// great length. How a domain ended can be written down when the disk is full.
const MAX_STATUS_BYTES: usize = 4096;

/// `status.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`].
    pub version: u32,
    /// The boot of the machine that it speaks of (`/proc/sys/kernel/random/boot_id`): process
    /// numbers mean nothing in another.
    pub boot_id: String,
    /// Kind of the domain.
    pub kind: Kind,
    /// The OCI runtime that made it, for containers.
    pub runtime: Option<PathBuf>,
    /// The monitor.
    pub monitor: ProcessIdentity,
    /// The domain's first process.
    pub init: ProcessIdentity,
    /// How far it is.
    pub phase: Phase,
    /// When the domain was made ready (RFC 3339).
    pub created_at: String,
    /// When its command was started.
    pub started_at: Option<String>,
    /// How it ended.
    pub exit: Option<Exit>,
}

/// How far an incarnation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Namespaces and mounts exist, the command waits.
    Created,
    /// The command runs.
    Running,
    /// It ended.
    Ended,
}

/// How an incarnation ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// In which way.
    pub ending: Ending,
    /// Whether the kernel killed a process of it for want of memory: the main one, or one whose
    /// death made it end.
    pub out_of_memory: bool,
    /// When (RFC 3339).
    pub at: String,
    /// How a machine ended, as its machine process said; a domain of another kind has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

impl Exit {
    /// The exit code that a shell would show: 128 + N for signal N.
    #[must_use]
    pub fn shell_code(&self) -> i32 {
        match self.ending {
            Ending::Code(code) => code,
            Ending::Signal(signal) => 128 + signal,
            Ending::Lost => 137,
        }
    }
}

/// In which way an incarnation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// Its main process exited.
    Code(i32),
    /// A signal ended its main process.
    Signal(i32),
    /// Its monitor died, and it was ended for that.
    Lost,
}

/// A process that can't be confused with a later one of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Its number in the machine's pid namespace.
    pub pid: u32,
    /// When it started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

impl ProcessIdentity {
    /// The process that has this number now.
    ///
    /// # Errors
    /// When there is none.
    pub fn of(pid: u32) -> Result<Self> {
        let path = PathBuf::from(format!("/proc/{pid}/stat"));
        let text = fs::read_to_string(&path).at("read", &path)?;
        let start_ticks = start_ticks(&text)
            .ok_or_else(|| Error::Damaged { path, message: "there is no start time in it".into() })?;
        Ok(Self { pid, start_ticks })
    }

    /// A pidfd of exactly this process; `None` when it is gone, even if another one has its number
    /// now.
    ///
    /// # Errors
    /// When the kernel refuses for another reason, such as a full table of descriptors.
    pub fn open(&self) -> Result<Option<OwnedFd>> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => return Ok(None),
            Err(error) => return Err(error).doing(format!("open process {}", self.pid)),
        };
        // The descriptor is of whoever had the number a moment ago. If that was a stranger, it
        // shows another start time, and if it was ours and died since, a stranger may show his: in
        // both cases the answer is None.
        Ok(Self::of(self.pid).ok().filter(|now| now == self).map(|_| descriptor))
    }
}

impl ProcessIdentity {
    /// Whether the kernel drops the signal for this process, the first of a pid namespace, because
    /// the program never said what to do with it: neither handled it, nor blocked it (a blocked one
    /// waits for `sigwait` or a signalfd), nor ignored it on purpose (such a program ends by
    /// itself, and has its time for that). `false` when that can't be told.
    pub(crate) fn is_deaf_to(&self, signal: i32) -> bool {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        Self::of(self.pid).is_ok_and(|now| now == *self) && minds(&text, signal) == Some(false)
    }
}

/// From the masks in `/proc/PID/status`.
fn minds(status: &str, signal: i32) -> Option<bool> {
    let bit = 1_u64.checked_shl(u32::try_from(signal).ok()?.checked_sub(1)?)?;
    let mask = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    Some((mask("SigCgt:")? | mask("SigBlk:")? | mask("SigIgn:")?) & bit != 0)
}

/// Field 22; the command name before it may hold spaces and brackets.
fn start_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The identity of this boot.
pub(crate) fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(path).at("read", path)?.trim().to_owned())
}

impl Status {
    /// Reads a domain's status; `None` when there is none, or when it speaks of another boot.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a file that is not ours.
    pub fn read(paths: &DomainPaths) -> Result<Option<Self>> {
        let path = paths.status();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).at("read", path),
        };
        let status: Self = serde_json::from_slice(&text)
            .map_err(|e| Error::Damaged { path: path.clone(), message: e.to_string() })?;
        if status.version != VERSION {
            return Err(Error::Damaged {
                path,
                message: format!("version {} is not {VERSION}", status.version),
            });
        }
        Ok((status.boot_id == boot_id()?).then_some(status))
    }

    /// Replaces the status.
    pub(crate) fn write(&self, paths: &DomainPaths) -> Result<()> {
        let path = paths.status();
        let text = serde_json::to_vec_pretty(self).map_err(std::io::Error::from).at("encode", &path)?;
        exchange::replace(&path, &text, MAX_STATUS_BYTES)
    }
}

/// Writes beside `path`, readable by us only, and renames: a reader sees the old text or the new
/// one.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec_pretty(value).map_err(std::io::Error::from).at("encode", path)?;
    let temporary = path.with_extension("new");
    let mut file = fs::OpenOptions::new();
    let mut file =
        file.write(true).create(true).truncate(true).mode(0o600).open(&temporary).at("create", &temporary)?;
    file.write_all(&text).at("write", &temporary)?;
    fs::rename(&temporary, path).at("rename", &temporary)
}

/// The lock that a monitor holds while it lives; the kernel lets go of it with the process, however
/// it ends.
#[derive(Debug)]
pub(crate) struct MonitorLock(#[expect(dead_code, reason = "held, never read")] File);

impl MonitorLock {
    /// Takes the lock; `None` while a monitor has it.
    pub fn take(paths: &DomainPaths) -> Result<Option<Self>> {
        let path = paths.lock();
        let mut file = fs::OpenOptions::new();
        let file = file.write(true).create(true).truncate(false).mode(0o600).open(&path).at("open", &path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).at("lock", &path),
        }
    }

    /// Whether a monitor has it.
    pub fn is_held(paths: &DomainPaths) -> Result<bool> {
        if !paths.lock().exists() {
            return Ok(false);
        }
        Ok(Self::take(paths)?.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_can_not_forge_the_start_time() {
        let stat = "7 (a) R 1 2) S 1 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 2";
        assert_eq!(start_ticks(stat), Some(4711));
        assert_eq!(start_ticks("7 (a"), None);
    }

    #[test]
    fn a_program_minds_a_signal_that_it_handles_blocks_or_ignores() {
        let status =
            "Name:\tx\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000000004\nSigCgt:\t0000000000004000\n";
        assert_eq!([15, 2, 3].map(|s| minds(status, s)), [Some(true); 3]);
        assert_eq!(minds(status, 1), Some(false));
        assert_eq!((minds("", 15), minds(status, 0), minds(status, 900)), (None, None, None));
    }

    #[test]
    fn a_reused_number_is_a_stranger() {
        let me = ProcessIdentity::of(std::process::id()).expect("myself");
        assert!(me.open().expect("open").is_some());
        let stranger = ProcessIdentity { start_ticks: me.start_ticks + 1, ..me };
        assert!(stranger.open().expect("open").is_none());
        assert!(ProcessIdentity { pid: u32::MAX, start_ticks: 0 }.open().expect("open").is_none());
    }
}
