//! Processes of engines and tools: started without privileges, awaited for a bounded time.

use crate::StorageError;
use crate::error::at;
use crate::role::{Order, ROLE};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Gid, OFlags, Uid};
use rustix::process::Signal;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

/// How long a process that was killed may take to be gone: a write that hangs in a disk keeps it.
pub(crate) const KILLED: Duration = Duration::from_secs(5);
/// Longest last words, in bytes.
const WORDS_BYTES: usize = 400;
/// Where programs are looked for.
const FOLDERS: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin"];

/// The job of a process.
pub(crate) struct Job {
    pub tool: &'static str,
    pub package: &'static str,
    /// `{N}` stands for the number of the Nth descriptor.
    pub arguments: Vec<String>,
    pub user: u32,
    pub descriptors: Vec<OwnedFd>,
}

fn find(tool: &'static str, package: &'static str) -> Result<PathBuf, StorageError> {
    let found = FOLDERS.iter().map(|folder| Path::new(folder).join(tool)).find(|path| path.is_file());
    found.ok_or_else(|| StorageError::Program {
        program: tool,
        package,
        cause: io::ErrorKind::NotFound.into(),
    })
}

/// A tool with nothing to read, and nothing of our environment.
pub(crate) fn command(tool: &'static str, package: &'static str) -> Result<Command, StorageError> {
    let mut command = Command::new(find(tool, package)?);
    command.env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Ok(command)
}

/// Runs a tool to its end.
pub(crate) fn run(mut command: Command, tool: &'static str, patience: Duration) -> Result<(), StorageError> {
    let cannot = |cause| StorageError::Program { program: tool, package: "qemu-utils", cause };
    let child = command.process_group(0).spawn().map_err(cannot)?;
    finish(child, tool, patience)
}

/// Waits until a tool has done its work.
pub(crate) fn finish(mut child: Child, tool: &'static str, patience: Duration) -> Result<(), StorageError> {
    let ended = sys::process::pidfd_open(child.id()).and_then(|ended| awaited(&ended, patience));
    if !matches!(ended, Ok(true)) {
        // It may have ended by itself: then it is waited for all the same.
        drop(child.kill());
    }
    let done = child.wait();
    let words = last_words(child.stderr.take());
    match (ended, done) {
        (Ok(true), Ok(status)) if status.success() => Ok(()),
        (Ok(true), Ok(status)) => {
            Err(StorageError::Ended { program: tool, words: format!("{words} ({status})") })
        }
        (Ok(false), _) => Err(StorageError::Late { what: tool.to_owned(), patience }),
        (Err(cause), _) | (_, Err(cause)) => {
            Err(StorageError::Ended { program: tool, words: format!("it can't be awaited: {cause}") })
        }
    }
}

/// Opens an image for reading and writing, and gives it to the user who is to serve it. Never
/// follows a link.
pub(crate) fn open_image(path: &Path, user: u32) -> Result<File, StorageError> {
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
    let file =
        File::options().read(true).write(true).custom_flags(flags).open(path).map_err(at("open", path))?;
    let metadata = file.metadata().map_err(at("look at", path))?;
    if !metadata.is_file() {
        return Err(at("use", path)(io::Error::other("it is no regular file")));
    }
    rustix::fs::fchown(&file, Some(Uid::from_raw(user)), Some(Gid::from_raw(user)))
        .map_err(|errno| at("give away", path)(errno.into()))?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).map_err(at("give away", path))?;
    Ok(file)
}

/// Starts a process without privileges; `place` puts it where it belongs before it is told what it
/// is.
pub(crate) fn start(
    program: &Path,
    job: Job,
    place: impl FnOnce(u32) -> io::Result<()>,
) -> Result<Child, StorageError> {
    let Job { tool, package, arguments, user, descriptors } = job;
    let cannot = |cause| StorageError::Program { program: tool, package, cause };
    let order = Order { program: find(tool, package)?, arguments, user };
    let order = serde_json::to_vec(&order).map_err(|e| cannot(e.into()))?;
    let (ours, its) = sys::descriptors::socket_pair().map_err(cannot)?;
    let mut command = Command::new(program);
    command.arg(ROLE).env_clear().current_dir("/").process_group(0);
    command.stdin(Stdio::from(its)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(cannot)?;
    drop(command);
    let given: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let told =
        place(child.id()).and_then(|()| sys::descriptors::send_with_descriptors(&ours, &order, &given));
    if let Err(cause) = told {
        drop(child.kill());
        drop(child.wait());
        return Err(cannot(cause));
    }
    Ok(child)
}

/// The last of what a process wrote to its standard error, without waiting for more.
pub(crate) fn last_words(stderr: Option<ChildStderr>) -> String {
    let Some(mut stderr) = stderr else { return "it said nothing".to_owned() };
    let mut bytes = [0; 4096];
    let read = rustix::io::ioctl_fionbio(&stderr, true).map_err(io::Error::from);
    let read = read.and_then(|()| stderr.read(&mut bytes)).unwrap_or(0);
    let words = qmp::clean(&String::from_utf8_lossy(bytes.get(..read).unwrap_or_default()), WORDS_BYTES);
    if words.is_empty() { "it said nothing".to_owned() } else { words }
}

/// Waits so long until the process behind a pidfd has ended; whether it has.
pub(crate) fn awaited(ended: impl AsFd, patience: Duration) -> io::Result<bool> {
    let mut polled = [PollFd::new(&ended, PollFlags::IN)];
    Ok(rustix::io::retry_on_intr(|| poll(&mut polled, Some(&session::timespec(patience))))? > 0)
}

/// Kills the process behind a pidfd, and waits until it is gone; whether it is.
pub(crate) fn kill(ended: impl AsFd) -> io::Result<bool> {
    match sys::process::pidfd_send_signal(&ended, Signal::KILL) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
            return Ok(true);
        }
        Err(error) => return Err(error),
    }
    awaited(ended, KILLED)
}
