//! The bounds of a user namespace: what the kernel counts by user in it.
//!
//! The kernel counts in the namespace and in all above it, and bounds each by what is said there.
//! Without a namespace of its own root in a container shares the counts of the machine's root, and
//! may use all of them up; with one it has a part of them.

use crate::error::{Context, Error, Result, chain};
use crate::status::ProcessIdentity;
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The role that bounds a namespace: a process of one thread, for no other may enter one.
/// `internal-bound-users PID TICKS`.
pub(crate) const ROLE: &str = "internal-bound-users";
/// Below `/proc/sys/user` of the namespace (namespaces(7)): counts of which it has a part of what
/// the machine's root has.
const SHARED: [&str; 2] = ["max_inotify_instances", "max_inotify_watches"];
/// The divisor of that part.
const PART: u64 = 8;
/// The same of user namespaces below it: none.
const NONE: &str = "max_user_namespaces";
/// Limits of processes that are counted by user: signals that wait, and bytes of message queues, by
/// the names of the OCI specification.
pub(crate) const RLIMITS: [(&str, u64); 2] = [("RLIMIT_SIGPENDING", 4_096), ("RLIMIT_MSGQUEUE", 819_200)];

/// Bounds the user namespace that a process is the first of.
pub(crate) fn bound(program: &Path, init: &ProcessIdentity) -> Result<()> {
    let done = Command::new(program)
        .arg(ROLE)
        .arg(init.pid.to_string())
        .arg(init.start_ticks.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .env_clear()
        .output()
        .doing("bound the domain's user namespace")?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    Err(Error::Step { what: "bound the domain's user namespace".into(), source: std::io::Error::other(said) })
}

/// See [`ROLE`]. Returns the exit code.
pub(crate) fn bound_main(arguments: &[OsString]) -> i32 {
    match bound_own(arguments) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{}", chain(&error));
            1
        }
    }
}

fn bound_own(arguments: &[OsString]) -> Result<()> {
    let number = |index: usize| arguments.get(index)?.to_str()?.parse::<u64>().ok();
    let init = number(0).and_then(|pid| u32::try_from(pid).ok()).zip(number(1));
    let (pid, start_ticks) = init.ok_or_else(|| Error::Specification(format!("usage: {ROLE} PID TICKS")))?;
    let gone =
        || Error::Step { what: "enter the domain".into(), source: std::io::Error::other("it has ended") };
    let init = ProcessIdentity { pid, start_ticks }.open()?.ok_or_else(gone)?;
    let file = |name: &str| Path::new("/proc/sys/user").join(name);
    let part = |name: &str| -> Result<(PathBuf, u64)> {
        let file = file(name);
        let all: u64 = std::fs::read_to_string(&file).at("read", &file)?.trim().parse().unwrap_or(PART);
        Ok((file, (all / PART).max(1)))
    };
    let mut bounds = SHARED.map(part).into_iter().collect::<Result<Vec<_>>>()?;
    bounds.push((file(NONE), 0));
    move_into_thread_name_spaces(init.as_fd(), ThreadNameSpaceType::USER)
        .doing("enter the domain's user namespace")?;
    // From here on these files are those of the namespace.
    bounds.into_iter().try_for_each(|(file, most)| std::fs::write(&file, most.to_string()).at("write", &file))
}
