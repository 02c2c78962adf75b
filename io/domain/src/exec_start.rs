//! The start of a command in a domain that may be full: bounded, and with nothing left behind where
//! it fails.
//!
//! The runtime's own processes join the domain's cgroups before they become the command. Where the
//! domain has used its memory up they wait there for the kernel to find some, which a hostile
//! domain never lets it. So whether the command has been started is known by the file to which the
//! runtime writes its process id, and what has not started in time is killed with all that the
//! runtime has begun for it.

use crate::error::{Context, Error, Result};
use crate::monitor::control::readable;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use sys::signals::{SignalDescriptor, unblock_in_child};

/// How long a start may take. It takes some 50 ms, and a second or two on a machine that is
/// overloaded.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a start may take once the caller has asked for the end: the signal may have come while
/// the command began, which then has it.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the end of what was killed is awaited. The kernel ends it without us, too, but not
/// before the domain lets it.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// How a command in a container has ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The runtime has ended by itself, with or without having started the command.
    Ended(ExitStatus),
    /// The command did not end in the time that it had.
    TooLong(Duration),
    /// Nothing was started in the time that a start may take.
    NotStarted(Duration),
}

/// Runs the runtime, which writes into the file `started` as soon as the command runs, to its end.
/// Signals that end programs are passed on.
pub(crate) fn supervise(mut command: Command, started: &Path, limit: Option<Duration>) -> Result<Outcome> {
    let signals = SignalDescriptor::block(
        &[Signal::CHILD, Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2]
            .map(Signal::as_raw),
    )
    .doing("take signals")?;
    // What the runtime leaves at its death becomes a child of ours, which can be ended.
    sys::process::set_child_subreaper().doing("adopt what the runtime leaves")?;
    let begun = Instant::now();
    let mut child =
        unblock_in_child(&mut command).spawn().doing(format!("run {:?}", command.get_program()))?;
    drop(command);
    let mut start_over = Some(begun + START_TIMEOUT);
    loop {
        let end = [start_over, limit.map(|limit| begun + limit)].into_iter().flatten().min();
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let in_time = readable(signals.as_fd(), left)?;
        while let Some(signal) = signals.take().doing("take signals")? {
            if signal == Signal::CHILD.as_raw() {
                continue;
            }
            pass_on(&child, signal);
            start_over = start_over.map(|end| end.min(Instant::now() + SIGNAL_TIMEOUT));
        }
        if let Some(status) = child.try_wait().doing("wait for the command")? {
            return Ok(Outcome::Ended(status));
        }
        if in_time {
            continue;
        }
        if start_over.is_some() && has_started(started) {
            start_over = None;
            continue;
        }
        let took = begun.elapsed();
        end_all(&mut child, &signals)?;
        return Ok(if start_over.is_some() { Outcome::NotStarted(took) } else { Outcome::TooLong(took) });
    }
}

/// Whether something was written into the file that says so.
pub(crate) fn has_started(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|file| file.len() > 0)
}

/// Kills the runtime and what it has begun, and waits for their end for a bounded time.
fn end_all(child: &mut Child, signals: &SignalDescriptor) -> Result<()> {
    let over = Instant::now() + KILL_TIMEOUT;
    child.kill().doing("kill the runtime")?;
    loop {
        while signals.take().doing("take signals")?.is_some() {}
        let _status = child.try_wait().doing("wait for the runtime")?;
        let left = children()?;
        for pid in &left {
            // They are children that were not waited for, so their numbers are still their own.
            let _ended = kill_process(*pid, Signal::KILL);
            let _status = waitpid(Some(*pid), WaitOptions::NOHANG);
        }
        let patience = over.saturating_duration_since(Instant::now());
        if left.is_empty() || patience.is_zero() {
            return Ok(());
        }
        readable(signals.as_fd(), Some(patience))?;
    }
}

/// The children of this process.
fn children() -> Result<Vec<Pid>> {
    let tasks = Path::new("/proc/self/task");
    let mut found = Vec::new();
    for task in fs::read_dir(tasks).at("read", tasks)?.flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
    }
    Ok(found)
}

/// The error of a command that was not started, with what the domain lacks.
pub(crate) fn not_started(domain: &str, after: Duration, room: &str) -> Error {
    let why = format!(
        "nothing was started within {:.1} s, so it was given up: the domain leaves no room for another process ({room}); \
         end something in it, raise its limits, or restart it",
        after.as_secs_f64()
    );
    Error::Step {
        what: format!("start the command in {domain}"),
        source: std::io::Error::new(std::io::ErrorKind::TimedOut, why),
    }
}

/// To a child that was not waited for yet, so its number is still its own.
pub(crate) fn pass_on(child: &Child, signal: i32) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
        // It may have ended this moment.
        let _ = rustix::process::kill_process(pid, signal);
    }
}
