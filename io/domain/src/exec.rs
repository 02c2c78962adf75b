//! Another command in a running domain, the way `docker exec` does it.
//!
//! The caller gets a [`Command`] that runs our own helper with the caller's standard streams. In a
//! container the helper lets the OCI runtime do it, so that the same filter, capabilities and
//! namespaces hold; in a process domain it does so itself. Exit codes: the command's own, 128 + N
//! after signal N, 127 not found, 126 not executable, 125 when it could not be tried.

use crate::cgroup::Cgroups;
use crate::error::{Context, Error, Result, chain};
use crate::exec_start::{self, Outcome};
use crate::layout::Layout;
use crate::monitor::payload::runtime_log;
use crate::runtime::{Runtime, last_error};
use crate::spec::Kind;
use crate::status::{Phase, Status};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

/// Its time was over, as of timeout(1).
pub(crate) const CODE_LIMIT: i32 = 124;
/// It could not be tried.
const CODE_FAILED: i32 = 125;
/// The program can't be executed.
const CODE_NOT_EXECUTABLE: i32 = 126;
/// There is no such program.
const CODE_NOT_FOUND: i32 = 127;

/// How a command is to be run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecOptions {
    /// With a terminal of its own (`-t`); the caller's standard input must be one.
    pub tty: bool,
    /// With the caller's standard input (`-i`); otherwise it has none.
    pub interactive: bool,
    /// Variables on top of the domain's.
    pub environment: Vec<(String, String)>,
    /// As whom, as in [`crate::DomainSpec::user`]; absent: as the domain's own command.
    pub user: Option<String>,
    /// Where; absent: as the domain's own command.
    pub workdir: Option<PathBuf>,
    /// How long the helper waits for it; then the helper ends, and with it what a guest or a
    /// process domain runs for it.
    pub limit: Option<std::time::Duration>,
    /// Program and arguments.
    pub command: Vec<String>,
}

/// The helper's order, as its one argument.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub run_dir: PathBuf,
    pub dc: String,
    pub name: String,
    pub options: ExecOptions,
    /// Where it is written that the command begins.
    #[serde(default)]
    pub started: Option<PathBuf>,
}

/// A command that runs another one in the domain; its standard streams are the caller's unless it
/// sets others.
///
/// # Errors
/// [`Error::NotRunning`], or [`Error::Specification`] for an empty command.
pub fn exec_command(layout: &Layout, dc: &str, name: &str, options: &ExecOptions) -> Result<Command> {
    let paths = layout.domain(dc, name)?;
    let status = Status::read(&paths)?.filter(|s| s.phase == Phase::Running);
    status.ok_or_else(|| Error::NotRunning(paths.id.to_string()))?;
    if options.command.first().is_none_or(String::is_empty) {
        return Err(Error::Specification("exec: no command was given".into()));
    }
    let request = Request {
        run_dir: layout.run_dir.clone(),
        dc: dc.to_owned(),
        name: name.to_owned(),
        options: options.clone(),
        started: None,
    };
    let request =
        serde_json::to_string(&request).map_err(std::io::Error::from).doing("encode the request")?;
    let mut command = Command::new(&layout.program);
    command.arg("internal-exec").arg(request);
    if !options.interactive && !options.tty {
        command.stdin(std::process::Stdio::null());
    }
    Ok(command)
}

/// The entry of `tombolo internal-exec REQUEST`. Returns the exit code.
#[must_use]
pub fn exec_main(arguments: &[OsString]) -> i32 {
    match run(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tombolo exec: {}", chain(&error));
            failure_code(&error)
        }
    }
}

/// The exit code of a command that could not be executed.
pub(crate) fn failure_code(error: &Error) -> i32 {
    let Error::Step { source, .. } = error else { return CODE_FAILED };
    match source.kind() {
        std::io::ErrorKind::NotFound => CODE_NOT_FOUND,
        std::io::ErrorKind::PermissionDenied => CODE_NOT_EXECUTABLE,
        _ if source.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => CODE_NOT_EXECUTABLE,
        _ => CODE_FAILED,
    }
}

fn run(arguments: &[OsString]) -> Result<i32> {
    let request =
        arguments.first().and_then(|a| a.to_str()).and_then(|a| serde_json::from_str::<Request>(a).ok());
    let request =
        request.ok_or_else(|| Error::Specification("usage: tombolo internal-exec REQUEST".into()))?;
    let (incarnation, paths) =
        crate::incarnation::Incarnation::read(&request.run_dir, &request.dc, &request.name)?;
    let status = Status::read(&paths)?.filter(|s| s.phase == Phase::Running);
    let status = status.ok_or_else(|| Error::NotRunning(paths.id.to_string()))?;
    if request.options.tty && !rustix::termios::isatty(rustix::stdio::stdin()) {
        return Err(Error::Specification("exec: the standard input is not a terminal; leave out -t".into()));
    }
    match status.kind {
        Kind::Container => in_container(&incarnation, &paths, &status, &request.options),
        Kind::Vm => crate::exec_machine::run(&paths, &request.options),
        Kind::Process => crate::exec_process::run(&incarnation, &paths, &status, &request),
    }
}

fn in_container(
    incarnation: &crate::incarnation::Incarnation,
    paths: &crate::layout::DomainPaths,
    status: &Status,
    options: &ExecOptions,
) -> Result<i32> {
    let program = status.runtime.clone().ok_or_else(|| Error::NoRuntime("the status names none".into()))?;
    let is_runc = program.file_name().is_some_and(|name| name == "runc");
    let runtime = Runtime::known(&incarnation.layout, program);
    let log = runtime_log(paths).with_extension(format!("exec-{}.log", std::process::id()));
    let mut command = runtime.command(&log);
    // crun takes this from its own default, not from the container's configuration.
    command.args(["exec", "--no-new-privs"]);
    if options.tty {
        command.arg("--tty");
    }
    if let Some(user) = &options.user {
        let image_accounts = accounts_of(status)?;
        let identity = image_accounts.resolve(Some(user))?;
        command.arg("--user").arg(format!("{}:{}", identity.uid, identity.gid));
        if is_runc {
            let of_group = |group: &u32| ["--additional-gids".to_owned(), group.to_string()];
            command.args(identity.groups.iter().flat_map(of_group));
        } else if !identity.groups.is_empty() {
            eprintln!(
                "tombolo exec: crun gives a command no supplementary groups; it runs without {:?}",
                identity.groups
            );
        }
    }
    if let Some(workdir) = &options.workdir {
        command.arg("--cwd").arg(workdir);
    }
    for (key, value) in &options.environment {
        command.arg("--env").arg(format!("{key}={value}"));
    }
    let started = log.with_extension("pid");
    command.arg("--pid-file").arg(&started);
    command.arg(paths.id.runtime_id()).args(&options.command);
    enter_network(status)?;
    let ended = exec_start::supervise(command, &started, options.limit);
    let complaint = last_error(&log);
    // Files of this call, ours alone; what they said is known.
    let _ = std::fs::remove_file(&log);
    let _ = std::fs::remove_file(&started);
    let ended = match ended? {
        Outcome::Ended(ended) => ended,
        Outcome::TooLong(limit) => {
            eprintln!("{}", took_longer(limit));
            return Ok(CODE_LIMIT);
        }
        Outcome::NotStarted(after) => {
            return Err(exec_start::not_started(&paths.id.to_string(), after, &room(incarnation, paths)));
        }
    };
    match complaint {
        Some(message) if could_not_try(ended, is_runc, &message) => Ok(code_of(&message)),
        _ => Ok(code(ended)),
    }
}

/// The domain's use of its limits, as text for a sentence.
pub(crate) fn room(
    incarnation: &crate::incarnation::Incarnation,
    paths: &crate::layout::DomainPaths,
) -> String {
    const MIB: u64 = 1 << 20;
    let Ok(usage) = Cgroups::discover().map(|cgroups| cgroups.usage(&paths.cgroup)) else {
        return "its cgroups can't be read".into();
    };
    let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let of = |limit: Option<u64>| limit.map_or_else(String::new, |limit| format!(" of {limit}"));
    let limits = &incarnation.spec.limits;
    format!(
        "memory {}{} MiB, processes {}{}",
        number(usage.memory.used_bytes.map(|bytes| bytes / MIB)),
        of(limits.memory_bytes.map(|bytes| bytes / MIB)),
        number(usage.pids),
        of(limits.pids)
    )
}

/// Enters the domain's network: where that is the host's, the runtime would leave the command in
/// the namespace of whoever calls.
fn enter_network(status: &Status) -> Result<()> {
    let init = status.init.open()?.ok_or_else(|| Error::Step {
        what: "enter the domain".into(),
        source: std::io::Error::other("it has ended"),
    })?;
    move_into_thread_name_spaces(init.as_fd(), ThreadNameSpaceType::NETWORK)
        .doing("enter the domain's network")
}

/// Whether it was the runtime that failed, and has said so on the standard error. Its exit code
/// alone does not tell: 1 and 255 are also codes of commands. crun logs nothing but its own errors;
/// runc does.
fn could_not_try(ended: ExitStatus, is_runc: bool, message: &str) -> bool {
    match ended.code() {
        Some(255) if !is_runc => true,
        Some(0) => false,
        _ => is_runc && message.contains("exec failed"),
    }
}

/// The accounts as the domain itself sees them now.
fn accounts_of(status: &Status) -> Result<crate::privilege::Accounts> {
    let gone =
        || Error::Step { what: "enter the domain".into(), source: std::io::Error::other("it has ended") };
    let init = status.init.open()?.ok_or_else(gone)?;
    let root = crate::root::open_directory(&PathBuf::from(format!("/proc/{}/root", status.init.pid)))?;
    // Opened after the pidfd, by number: if the process has ended meanwhile, it may be a
    // stranger's.
    if status.init.open()?.is_none() {
        return Err(gone());
    }
    drop(init);
    Ok(crate::privilege::Accounts::read(root)?)
}

fn code_of(message: &str) -> i32 {
    let lower = message.to_lowercase();
    if lower.contains("permission denied")
        || lower.contains("exec format error")
        || lower.contains("is a directory")
    {
        CODE_NOT_EXECUTABLE
    } else if lower.contains("not found") || lower.contains("no such file") {
        CODE_NOT_FOUND
    } else {
        CODE_FAILED
    }
}

/// The exit code that a shell would say.
pub(crate) fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(CODE_FAILED)
}

/// Ends the helper when its time is over. Behind the block of signals, which the thread then has,
/// too.
pub(crate) fn end_after(limit: Option<std::time::Duration>) -> Result<()> {
    let Some(limit) = limit else { return Ok(()) };
    let end = move || {
        // tidy(sleep): the time limit is what is waited for.
        std::thread::sleep(limit);
        eprintln!("{}", took_longer(limit));
        std::process::exit(CODE_LIMIT);
    };
    std::thread::Builder::new().name("limit".into()).spawn(end).doing("keep the time limit")?;
    Ok(())
}

pub(crate) fn took_longer(limit: std::time::Duration) -> String {
    format!("tombolo exec: it took longer than {:.1} s", limit.as_secs_f64())
}

/// For the helper's own child: it does not outlive the helper.
pub(crate) fn die_with_the_caller() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).doing("follow the caller into death")
}
