//! The two kinds of domain, as the monitor handles them: made so that the command waits, started,
//! ended.

use super::control::readable;
use crate::bundle::Bundle;
use crate::error::{Context, Error, Result};
use crate::incarnation::Incarnation;
use crate::layout::DomainPaths;
use crate::privilege::Accounts;
use crate::root::{self, ImageRoot};
use crate::runtime::Runtime;
use crate::spec::Kind;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use sys::signals::unblock_in_child;

/// How long the init helper may take for its mounts and privileges, and for `execve`.
const INIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest complaint of the init helper, in bytes.
const MAX_COMPLAINT_BYTES: u64 = 64 * 1024;
/// The byte with which the init helper says that it waits for the start.
pub(crate) const READY: u8 = b'R';

/// A domain that was made.
#[derive(Debug)]
pub(super) enum Payload {
    /// By an OCI runtime.
    Container {
        /// The runtime.
        runtime: Runtime,
        /// Its id there.
        id: String,
        /// Where the runtime's log of a call goes.
        log: PathBuf,
        /// Its first process.
        init: u32,
    },
    /// By the init helper.
    Process {
        /// Our end of its socket.
        control: UnixStream,
        /// Its process.
        init: u32,
    },
}

/// Ends of the pipes that the domain writes to.
pub(super) struct Streams {
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

impl Payload {
    /// Makes the domain; its command waits for [`Payload::start`].
    pub fn create(incarnation: &Incarnation, paths: &DomainPaths, streams: Streams) -> Result<Self> {
        match incarnation.spec.kind {
            Kind::Container | Kind::Vm => create_container(incarnation, paths, streams),
            Kind::Process => create_process(incarnation, paths, streams),
        }
    }

    /// The number of its first process.
    pub fn init(&self) -> u32 {
        match self {
            Self::Container { init, .. } | Self::Process { init, .. } => *init,
        }
    }

    /// The runtime that made it.
    pub fn runtime(&self) -> Option<PathBuf> {
        match self {
            Self::Container { runtime, .. } => Some(runtime.program.clone()),
            Self::Process { .. } => None,
        }
    }

    /// Starts the command.
    pub fn start(&mut self) -> Result<()> {
        match self {
            Self::Container { runtime, id, log, .. } => runtime.call("start", [id.as_str()], log, |_| {}),
            Self::Process { control, .. } => {
                control.write_all(b"S").doing("tell the init helper to start the command")?;
                complaint(control)
            }
        }
    }

    /// Forgets it, once its processes are gone.
    pub fn forget(&self) -> Result<()> {
        match self {
            Self::Container { runtime, id, log, .. } => runtime.delete(id, log),
            Self::Process { .. } => Ok(()),
        }
    }
}

/// Where the runtime's log of the last call is.
pub(crate) fn runtime_log(paths: &DomainPaths) -> PathBuf {
    paths.dir.join("runtime.log")
}

fn create_container(incarnation: &Incarnation, paths: &DomainPaths, streams: Streams) -> Result<Payload> {
    let Incarnation { layout, spec, image } = incarnation;
    let runtime = Runtime::choose(layout, spec.runtime)?;
    let root = root::prepare(paths, spec, image.as_ref())?;
    let none = ImageRoot::default();
    let image = image.as_ref().unwrap_or(&none);
    let user = spec.user.as_deref().or(image.user.as_deref());
    let identity = Accounts::read(&root.directory)?.resolve(user)?;
    Bundle { layout, paths, spec, image, root: &root, identity: &identity }.write()?;
    drop(root);
    let (id, log, pid_file) = (paths.id.runtime_id(), runtime_log(paths), paths.dir.join("init.pid"));
    runtime.delete(&id, &log)?;
    let arguments = [
        "--bundle".as_ref(),
        paths.bundle().into_os_string().as_os_str(),
        "--pid-file".as_ref(),
        pid_file.as_os_str(),
        id.as_ref(),
    ]
    .map(std::ffi::OsStr::to_owned);
    let made = runtime.call("create", arguments, &log, |command| {
        command.stdout(streams.stdout).stderr(streams.stderr);
    });
    let init = made.and_then(|()| read_pid(&pid_file));
    match init {
        Ok(init) => Ok(Payload::Container { runtime, id, log, init }),
        Err(error) => {
            // The error that made us undo it is the one to tell.
            let _ = runtime.delete(&id, &log);
            Err(error)
        }
    }
}

fn read_pid(file: &Path) -> Result<u32> {
    let text = fs::read_to_string(file).at("read", file)?;
    text.trim()
        .parse()
        .map_err(|_| Error::Damaged { path: file.to_owned(), message: "it holds no process number".into() })
}

fn create_process(incarnation: &Incarnation, paths: &DomainPaths, streams: Streams) -> Result<Payload> {
    let layout = &incarnation.layout;
    let (mut control, theirs) = UnixStream::pair().doing("make a socket pair for the init helper")?;
    let mut command = Command::new(&layout.program);
    command
        .args(["internal-init", &paths.id.dc, &paths.id.name])
        .arg(&layout.run_dir)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(streams.stdout)
        .stderr(streams.stderr)
        .current_dir("/")
        .env_clear();
    let child = unblock_in_child(&mut command)
        .spawn()
        .doing(format!("run {} internal-init", layout.program.display()))?;
    // It holds our copies of the ends that are the child's.
    drop(command);
    let init = child.id();
    if !readable(control.as_fd(), Some(INIT_TIMEOUT))? {
        return Err(Error::Monitor {
            domain: paths.id.to_string(),
            what: "waited in vain for its init helper".into(),
        });
    }
    let mut first = [0];
    match control.read(&mut first).doing("hear the init helper")? {
        1 if first == [READY] => Ok(Payload::Process { control, init }),
        0 => Err(std::io::Error::other("it ended without a word")).doing("run the init helper"),
        _ => Err(said(&mut control, first[0])),
    }
}

/// The helper's socket closes with a successful `execve`; otherwise it says what went wrong.
fn complaint(control: &mut UnixStream) -> Result<()> {
    if !readable(control.as_fd(), Some(INIT_TIMEOUT))? {
        return Err(std::io::Error::from(std::io::ErrorKind::TimedOut)).doing("start the command");
    }
    let mut first = [0];
    match control.read(&mut first).doing("hear the init helper")? {
        0 => Ok(()),
        _ => Err(said(control, first[0])),
    }
}

fn said(control: &mut UnixStream, first: u8) -> Error {
    let mut text = vec![first];
    // Whatever could be read of it is the best that there is to say.
    let _ = control.take(MAX_COMPLAINT_BYTES).read_to_end(&mut text);
    Error::Step {
        what: "start the process".into(),
        source: std::io::Error::other(String::from_utf8_lossy(&text).into_owned()),
    }
}
