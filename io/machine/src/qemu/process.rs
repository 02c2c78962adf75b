//! The process that is QEMU, and the sockets by which it is spoken to.

use super::command_line::{self, Inherited};
use crate::order::{Accel, MachineOrder};
use qmp::clean;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags};
use rustix::pipe::PipeFlags;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Most bytes of QEMU's standard output and error that are kept: its last words.
const LAST_WORDS_BYTES: usize = 4096;
/// Longest form of them in a message, in bytes.
const SHOWN_BYTES: usize = 400;

/// How long a process that was killed may take to be gone.
const KILLED: Duration = Duration::from_secs(2);

/// A running QEMU.
#[derive(Debug)]
pub(crate) struct Qemu {
    child: Child,
    ended: OwnedFd,
    words: LastWords,
}

/// Our halves of the sockets, non-blocking.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// The monitor.
    pub qmp: OwnedFd,
    /// The guest's port.
    pub port: OwnedFd,
    /// The guest's console.
    pub console: OwnedFd,
}

impl Qemu {
    /// Starts it. It is killed when the calling thread ends. For a program that starts nothing else
    /// meanwhile: descriptors that QEMU is to have are open to every child until this returns.
    ///
    /// # Errors
    /// There is no such program, or it can't be started.
    pub fn start(order: &MachineOrder, accel: Accel) -> io::Result<(Self, Sockets)> {
        let (qmp, its_qmp) = sys::descriptors::stream_pair()?;
        let (port, its_port) = sys::descriptors::stream_pair()?;
        let (console, its_console) = sys::descriptors::stream_pair()?;
        let inherited = Inherited {
            qmp: its_qmp.as_raw_fd(),
            port: its_port.as_raw_fd(),
            console: its_console.as_raw_fd(),
        };
        let mut command = Command::new(&order.qemu);
        command.args(command_line::arguments(order, accel, inherited));
        let (child, words) = spawn(command, &[&its_qmp, &its_port, &its_console])?;
        for ours in [&qmp, &port, &console] {
            rustix::io::ioctl_fionbio(ours, true)?;
        }
        let ended = sys::process::pidfd_open(child.id())?;
        Ok((Self { child, ended, words }, Sockets { qmp, port, console }))
    }

    /// Its process, which is ours to wait for: the number is its own until then.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Readable when the process has ended.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Readable when it has written to its standard output or error; none when both are closed.
    pub fn words(&self) -> Option<BorrowedFd<'_>> {
        self.words.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Keeps what it has written. Never waits.
    pub fn read_words(&mut self) {
        self.words.read();
    }

    /// How it ended, if it has.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Kills it; it has ended soon.
    pub fn kill(&mut self) {
        // It may have ended by itself: then it is waited for all the same.
        drop(self.child.kill());
    }

    /// Its last words, for a person; empty if it said nothing.
    pub fn last_words(&mut self) -> String {
        self.words.read();
        self.words.shown()
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
        drop(self.child.wait());
    }
}

/// Starts a program with descriptors of ours under their own numbers, nothing to read, and one pipe
/// for all that it writes.
pub(crate) fn spawn(mut command: Command, descriptors: &[&OwnedFd]) -> io::Result<(Child, LastWords)> {
    let (pipe, its_words) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&pipe, true)?;
    command.stdin(Stdio::null()).stdout(its_words.try_clone()?).stderr(its_words).env_clear();
    sys::signals::unblock_in_child(sys::process::kill_with_parent(&mut command));
    for descriptor in descriptors {
        rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
    }
    let started = command.spawn();
    for descriptor in descriptors {
        rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
    }
    Ok((started?, LastWords { pipe: Some(pipe), bytes: Vec::new() }))
}

/// Waits so long for the end of a process, and kills it then: `None`. One that even then does not
/// end is left there: nothing that hangs holds the caller up.
pub(crate) fn end_of(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let in_time = has_ended(child, patience);
    if !matches!(in_time, Ok(true)) {
        // It may have ended by itself: then it is waited for all the same.
        drop(child.kill());
        if !has_ended(child, KILLED)? {
            return in_time.map(|_| None);
        }
    }
    let status = child.wait()?;
    Ok(in_time?.then_some(status))
}

fn has_ended(child: &Child, patience: Duration) -> io::Result<bool> {
    let ended = sys::process::pidfd_open(child.id())?;
    let mut polled = [PollFd::new(&ended, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&session::timespec(patience))))?;
    Ok(ready > 0)
}

/// The end of what a program wrote.
#[derive(Debug)]
pub(crate) struct LastWords {
    pipe: Option<OwnedFd>,
    bytes: Vec<u8>,
}

impl LastWords {
    /// Reads a bounded part of what is there. Never waits.
    pub fn read(&mut self) {
        let Some(pipe) = &self.pipe else { return };
        let mut bytes = [0; LAST_WORDS_BYTES];
        match rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut bytes[..])) {
            Ok(0) => self.pipe = None,
            Ok(read) => {
                self.bytes.extend_from_slice(bytes.get(..read).unwrap_or_default());
                let too_many = self.bytes.len().saturating_sub(LAST_WORDS_BYTES);
                self.bytes.drain(..too_many);
            }
            Err(Errno::AGAIN) => {}
            // Words that can't be read are words that were not said: the exit status speaks.
            Err(_) => self.pipe = None,
        }
    }

    /// All that is kept.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The last lines that fit.
    pub fn shown(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        let mut shown = String::new();
        for line in text.lines().rev().filter(|line| !line.trim().is_empty()) {
            let line = clean(line, SHOWN_BYTES);
            if shown.is_empty() {
                shown = line;
            } else if shown.len() + line.len() + 2 <= SHOWN_BYTES {
                shown = format!("{line}; {shown}");
            } else {
                break;
            }
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_the_last_that_fit() {
        let words = |text: String| LastWords { pipe: None, bytes: text.into_bytes() }.shown();
        assert_eq!(words("a\n\n  b\u{1b}[1m \n".to_owned()), "a; b [1m");
        let many: String = (0..200).map(|n| format!("line {n}\n")).collect();
        let shown = words(many);
        assert!(shown.ends_with("line 198; line 199") && shown.len() <= SHOWN_BYTES, "{shown}");
        assert_eq!(words(String::new()), "");
    }
}
