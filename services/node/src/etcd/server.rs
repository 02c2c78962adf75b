//! The process of a node's etcd member: started without privileges in a cgroup of its own, found
//! again by the next daemon, ended with what is left of it.

use super::program;
use super::room::{Record, Room, USER};
use domain::Limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use sys::privilege::Modest;

/// The role of the process that becomes etcd.
pub const SERVER_ROLE: &str = "internal-etcd";
/// Below the node's cgroup: that of its etcd member.
const CGROUP: &str = domain::SPARED_CGROUP;
/// Memory of a member: its database (512 MiB, mapped), as much again for a copy that is sent to
/// another member, and what a busy one takes.
const MEMORY_BYTES: u64 = 1 << 30;
/// The bound below which Go keeps its heap, so that the kernel never has to.
const HEAP: &str = "GOMEMLIMIT=600MiB";
/// Threads of a member: Go's, some for each processor, and those that wait in the kernel.
const TASKS: u64 = 1_024;
/// Descriptors: connections of 64 nodes, several each, and files.
const DESCRIPTORS: u64 = 16_384;
/// How long a member may take to end; a leader hands over first.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The byte that tells the process that it is where it belongs.
const GO: u8 = b'!';

/// The ground on which members are started.
#[derive(Debug, Clone)]
pub(crate) struct Ground {
    pub(crate) state_dir: PathBuf,
    /// The binary that is run for each role.
    pub(crate) program: PathBuf,
    pub(crate) cgroups: domain::Cgroups,
    pub(crate) cgroup_name: String,
}

impl Ground {
    pub(crate) fn room(&self) -> Room {
        Room::new(&self.state_dir)
    }

    fn cgroup(&self) -> String {
        format!("{}/{CGROUP}", self.cgroup_name)
    }
}

/// A member's process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Readable when it has ended.
    pub(super) descriptor: OwnedFd,
}

fn etcd() -> io::Result<PathBuf> {
    program::find()
        .ok_or_else(|| io::Error::other(format!("there is no etcd on this machine: {}", program::ADVICE)))
}

/// Finds the process that an earlier daemon left, or starts one. A process that is left of another
/// one is ended first.
pub(super) fn find_or_start(ground: &Ground, record: &Record) -> io::Result<Process> {
    let program = etcd()?;
    let arguments = record.arguments();
    if let Some(found) = find(ground, &program, &arguments) {
        return Ok(found);
    }
    clear(ground)?;
    start(ground, &program, &arguments)
}

fn find(ground: &Ground, program: &Path, arguments: &[String]) -> Option<Process> {
    let processes = ground.cgroups.processes(&ground.cgroup());
    // More than one is what a start left that did not come to its end.
    let [pid] = processes[..] else { return None };
    let descriptor = sys::process::pidfd_open(pid).ok()?;
    let said = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let wanted =
        std::iter::once(program.as_os_str().as_bytes()).chain(arguments.iter().map(String::as_bytes));
    let wanted: Vec<u8> = wanted.flat_map(|word| [word, b"\0"].concat()).collect();
    (said == wanted && ground.cgroups.processes(&ground.cgroup()) == [pid])
        .then_some(Process { pid, descriptor })
}

fn start(ground: &Ground, program: &Path, arguments: &[String]) -> io::Result<Process> {
    let (room, cgroup) = (ground.room(), ground.cgroup());
    ground.cgroups.create(&cgroup).map_err(io::Error::other)?;
    let limits = Limits { cpu: None, memory_bytes: Some(MEMORY_BYTES), pids: Some(TASKS) };
    ground.cgroups.limit(&cgroup, &limits).map_err(io::Error::other)?;
    let log = room.log()?;
    let mut child = Command::new(&ground.program)
        .arg(SERVER_ROLE)
        .arg(program)
        .args(arguments)
        // etcd takes settings from its environment, too.
        .env_clear()
        .envs(HEAP.split_once('='))
        .current_dir(room.folder())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(log)
        // Ctrl-C at a daemon in the foreground is not for it.
        .process_group(0)
        .spawn()?;
    let pid = child.id();
    let descriptor = sys::process::pidfd_open(pid)?;
    let process = Process { pid, descriptor };
    let begun = ground.cgroups.join(&cgroup, pid).map_err(io::Error::other);
    // If this daemon dies here, the process finds the end of its input, and ends.
    let told = begun.and_then(|()| child.stdin.take().map_or(Ok(()), |mut input| input.write_all(&[GO])));
    if let Err(error) = told {
        drop(child.stdin.take());
        end(ground, &process)?;
        return Err(error);
    }
    Ok(process)
}

/// Waits for a process that has ended, where it is a child of this one.
pub(super) fn reap(process: &Process) {
    // ECHILD: an earlier daemon started it, and init waits for it.
    let _another_waits =
        waitid(WaitId::PidFd(process.descriptor.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
}

/// Ends a process: by its own will, or by the kernel's where that takes too long.
pub(super) fn end(ground: &Ground, process: &Process) -> io::Result<()> {
    // One that has ended already is as good.
    let _gone_already = sys::process::pidfd_send_signal(&process.descriptor, Signal::TERM);
    let patience = Timespec { tv_sec: END_TIMEOUT.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&process.descriptor, PollFlags::IN)], Some(&patience));
    if !matches!(ended, Ok(1..)) {
        tracing::warn!(pid = process.pid, "the etcd member does not end by itself, and is killed");
        let _gone_already = sys::process::pidfd_send_signal(&process.descriptor, Signal::KILL);
    }
    clear(ground)?;
    reap(process);
    Ok(())
}

/// Ends whatever is left of a member's processes.
pub(super) fn clear(ground: &Ground) -> io::Result<()> {
    ground.cgroups.kill(&ground.cgroup()).map_err(io::Error::other)?;
    Ok(())
}

/// Ends all that earlier daemons left of a member, on a node that has none.
pub(crate) fn sweep(ground: &Ground) -> io::Result<()> {
    clear(ground)?;
    ground.cgroups.remove(&ground.cgroup()).map_err(io::Error::other)?;
    ground.cgroups.remove_if_empty(&ground.cgroup_name);
    Ok(())
}

/// The process that becomes etcd: it waits until it is in its cgroup, gives up all privileges, and
/// runs the program that its arguments name. It is in the member's folder already, into which its
/// user would not find.
///
/// # Errors
/// One of these steps fails, or the daemon that started it has died.
pub fn server_main(mut arguments: impl Iterator<Item = OsString>) -> Result<Infallible, String> {
    let program = arguments.next().ok_or("no program")?;
    let mut told = [0];
    io::stdin().read_exact(&mut told).map_err(|error| format!("its daemon is gone: {error}"))?;
    let modest = Modest { identity: Some((USER, USER)), descriptors: DESCRIPTORS, locked_bytes: None };
    sys::privilege::drop_all(modest).map_err(|error| format!("can't give up privileges: {error}"))?;
    let error = Command::new(&program).args(arguments).stdin(Stdio::null()).exec();
    Err(format!("can't run {}: {error}", program.display()))
}
