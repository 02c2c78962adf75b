//! The making of a guest's command: a process of our own that takes its place, its user and its
//! descriptors, and then executes it. It says over a socket why it could not; that hangs up when it
//! could.

use accounts::Accounts;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first word of this role's command line.
pub const ENTER_ROLE: &str = "internal-guest";

/// Longest request, in bytes: what a frame carries, with the environment of the domain.
const MAX_REQUEST_BYTES: usize = 192 * 1024;
/// Standard input, output and error.
const STREAMS: usize = 3;
/// Exit codes, as shells have them.
const CODE_FAILED: i32 = 125;
const CODE_NOT_EXECUTABLE: i32 = 126;
const CODE_NOT_FOUND: i32 = 127;
/// Open files of a command, at first and at most: what a container's has.
const OPEN_FILES: (u64, u64) = (1024, 524_288);
/// Where programs are looked for, unless the environment says otherwise.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The terminal that a further process believes to have, unless told otherwise.
const DEFAULT_TERMINAL: &str = "xterm";

/// The command that is to be executed, and its user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// The root that it sees as `/`; none: ours.
    pub root: Option<PathBuf>,
    pub user: Option<String>,
    pub workdir: Option<String>,
    pub environment: Vec<(String, String)>,
    pub command: Vec<String>,
    /// Its standard input is a terminal, which it is to have for its own.
    pub tty: bool,
}

/// Why nothing was executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub error: String,
    pub code: i32,
}

impl Failure {
    pub fn new(error: String) -> Self {
        Self { error, code: CODE_FAILED }
    }

    fn of_execution(program: &str, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::NotFound => CODE_NOT_FOUND,
            io::ErrorKind::PermissionDenied => CODE_NOT_EXECUTABLE,
            _ if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => CODE_NOT_EXECUTABLE,
            _ => CODE_FAILED,
        };
        Self { error: format!("cannot execute {program:?}: {error}"), code }
    }
}

/// The role: takes the request from its standard input and becomes the command. Returns only when
/// it fails, with the exit code.
#[must_use]
pub fn enter_main() -> i32 {
    let socket = match std::io::stdin().as_fd().try_clone_to_owned() {
        Ok(socket) => socket,
        Err(error) => {
            eprintln!("tombolo {ENTER_ROLE}: {error}; it is run by the agent, not by hand");
            return CODE_FAILED;
        }
    };
    let failure = become_the_command(&socket);
    let told = serde_json::to_vec(&failure)
        .map_err(io::Error::from)
        .and_then(|said| sys::descriptors::send_with_descriptors(&socket, &said, &[]));
    if told.is_err() {
        eprintln!("tombolo {ENTER_ROLE}: {}", failure.error);
    }
    failure.code
}

fn become_the_command(socket: &OwnedFd) -> Failure {
    match prepare(socket) {
        Ok((mut command, program)) => Failure::of_execution(&program, &command.exec()),
        Err(failure) => failure,
    }
}

fn failed<E: Into<io::Error>>(what: &str) -> impl FnOnce(E) -> Failure + '_ {
    move |error| Failure::new(format!("cannot {what}: {}", error.into()))
}

fn prepare(socket: &OwnedFd) -> Result<(Command, String), Failure> {
    let mut bytes = vec![0; MAX_REQUEST_BYTES];
    let (length, streams) = sys::descriptors::receive_with_descriptors(socket, &mut bytes, STREAMS)
        .map_err(failed("take the agent's request"))?;
    let request: Request = serde_json::from_slice(bytes.get(..length).unwrap_or(&bytes))
        .map_err(|error| Failure::new(format!("the agent's request is not understood: {error}")))?;
    let [input, output, error] = <[OwnedFd; STREAMS]>::try_from(streams)
        .map_err(|_| Failure::new("the agent's request lacks descriptors".into()))?;
    rustix::stdio::dup2_stdin(&input).map_err(failed("take the standard input"))?;
    rustix::stdio::dup2_stdout(&output).map_err(failed("take the standard output"))?;
    rustix::stdio::dup2_stderr(&error).map_err(failed("take the standard error"))?;
    rustix::process::setsid().map_err(failed("begin a session"))?;
    if request.tty {
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()).map_err(failed("take the terminal"))?;
    }
    forget_protection();
    limit_open_files().map_err(failed("limit open files"))?;
    if let Some(root) = &request.root {
        rustix::process::chroot(root).map_err(failed("enter the root"))?;
        std::env::set_current_dir("/").map_err(failed("enter the root"))?;
    }
    command(&request)
}

/// The agent is the last that the kernel kills for want of memory; its children are like any other
/// process. A kernel that has no such setting protects nobody.
fn forget_protection() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "0") {
        tracing::debug!(%error, "a command keeps the agent's place among those that are killed for want of memory");
    }
}

/// As in a container; where root may not give more than it has, that.
fn limit_open_files() -> rustix::io::Result<()> {
    let limit = |hard: u64| Rlimit { current: Some(OPEN_FILES.0.min(hard)), maximum: Some(hard) };
    let ours = getrlimit(Resource::Nofile).maximum.unwrap_or(OPEN_FILES.1);
    setrlimit(Resource::Nofile, limit(OPEN_FILES.1))
        .or_else(|_| setrlimit(Resource::Nofile, limit(OPEN_FILES.1.min(ours))))
}

fn command(request: &Request) -> Result<(Command, String), Failure> {
    let [program, arguments @ ..] = request.command.as_slice() else {
        return Err(Failure::new("the command is empty".into()));
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", flags, Mode::empty()).map_err(failed("open the root"))?;
    let identity = Accounts::read(root)
        .and_then(|accounts| accounts.resolve(request.user.as_deref()))
        .map_err(|error| Failure::new(error.to_string()))?;
    let user = Uid::from_raw(identity.uid);
    // So that the command may open `/dev/stdout` again, and its terminal is its own.
    for stream in [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
        if request.tty || identity.uid != 0 {
            rustix::fs::fchown(stream, Some(user), None).map_err(failed("give the output to the user"))?;
        }
    }
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    command.env("PATH", DEFAULT_PATH).env("HOME", identity.home.as_deref().unwrap_or("/"));
    if request.tty {
        command.env("TERM", DEFAULT_TERMINAL);
    }
    command.envs(request.environment.iter().map(|(key, value)| (key, value)));
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let groups: Vec<Gid> = identity.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    set_thread_groups(&groups).map_err(failed("set the groups"))?;
    let group = Gid::from_raw(identity.gid);
    set_thread_res_gid(group, group, group).map_err(failed("set the group"))?;
    set_thread_res_uid(user, user, user).map_err(failed("set the user"))?;
    let workdir = Path::new(request.workdir.as_deref().unwrap_or("/"));
    std::env::set_current_dir(workdir)
        .map_err(|error| Failure::new(format!("cannot enter {}: {error}", workdir.display())))?;
    Ok((command, program.clone()))
}
