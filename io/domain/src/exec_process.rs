//! Another command in a process domain: the helper runs itself once more as the one that enters the
//! domain and becomes the command, and stays behind to pass signals, to copy between two terminals,
//! and to say how it ended.
//!
//! With a terminal, the command gets a new one rather than the caller's, so that it can't push
//! input into the caller's (`TIOCSTI`); without, it is put in a session of its own for the same
//! reason.

use crate::bundle::environment;
use crate::cgroup::Cgroups;
use crate::drop_privileges::drop_privileges;
use crate::error::{Context, Error, Result, chain};
use crate::exec::{CODE_LIMIT, Request, code, die_with_the_caller, failure_code, room, took_longer};
use crate::exec_start::{Outcome, START_TIMEOUT, has_started, not_started, pass_on, supervise};
use crate::incarnation::Incarnation;
use crate::layout::DomainPaths;
use crate::monitor::payload::runtime_log;
use crate::privilege::Accounts;
use crate::root::open_directory;
use crate::status::{Phase, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use sys::signals::{SignalDescriptor, unblock_in_child};

/// How much is copied between two terminals at once, in bytes.
const COPY_BYTES: usize = 16 * 1024;

/// The staying half.
pub(crate) fn run(
    incarnation: &Incarnation,
    paths: &DomainPaths,
    _status: &Status,
    request: &Request,
) -> Result<i32> {
    let started = runtime_log(paths).with_extension(format!("exec-{}.begun", std::process::id()));
    let outcome = run_until(incarnation, request, &started);
    // A file of this call, ours alone.
    let _ = std::fs::remove_file(&started);
    match outcome? {
        Outcome::Ended(ended) => Ok(code(ended)),
        Outcome::TooLong(limit) => {
            eprintln!("{}", took_longer(limit));
            Ok(CODE_LIMIT)
        }
        Outcome::NotStarted(after) => {
            Err(not_started(&paths.id.to_string(), after, &room(incarnation, paths)))
        }
    }
}

fn run_until(incarnation: &Incarnation, request: &Request, started: &Path) -> Result<Outcome> {
    let Request { run_dir, dc, name, options, .. } = request;
    let (run_dir, dc, name, options) = (run_dir.clone(), dc.clone(), name.clone(), options.clone());
    let request = Request { run_dir, dc, name, options, started: Some(started.to_owned()) };
    let request_text =
        serde_json::to_string(&request).map_err(std::io::Error::from).doing("encode the request")?;
    let mut command = Command::new(&incarnation.layout.program);
    command.arg("internal-enter").arg(request_text);
    if !request.options.tty {
        return supervise(command, started, request.options.limit);
    }
    let master =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).doing("open a terminal")?;
    grantpt(&master).and_then(|()| unlockpt(&master)).doing("open a terminal")?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
        .doing("open a terminal")?;
    for end in
        [Stdio::from(duplicate(&slave)?), Stdio::from(duplicate(&slave)?)].into_iter().zip([true, false])
    {
        if end.1 {
            command.stdin(end.0)
        } else {
            command.stdout(end.0)
        };
    }
    command.stderr(Stdio::from(slave));
    let signals = SignalDescriptor::block(
        &[Signal::CHILD, Signal::TERM, Signal::HUP, Signal::WINCH].map(Signal::as_raw),
    )
    .doing("take signals")?;
    copy_size(&master);
    let raw = RawTerminal::enter()?;
    let mut child =
        unblock_in_child(&mut command).spawn().doing(format!("run {:?}", command.get_program()))?;
    drop(command);
    let result = between_terminals(&mut child, &master, &signals, started);
    drop(raw);
    result
}

fn duplicate(descriptor: &OwnedFd) -> Result<OwnedFd> {
    descriptor.try_clone().doing("duplicate the terminal")
}

/// The caller's terminal as it was, when this is dropped.
pub(crate) struct RawTerminal(Termios);

impl RawTerminal {
    /// Makes the terminal raw.
    pub(crate) fn enter() -> Result<Self> {
        let before = tcgetattr(stdin()).doing("read the terminal's settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Drain, &raw).doing("make the terminal raw")?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs no settings.
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &self.0);
    }
}

fn copy_size(master: &OwnedFd) {
    if let Ok(size) = tcgetwinsize(stdin()) {
        // A wrong size is a blemish only.
        let _ = tcsetwinsize(master, size);
    }
}

fn between_terminals(
    child: &mut Child,
    master: &OwnedFd,
    signals: &SignalDescriptor,
    started: &Path,
) -> Result<Outcome> {
    let begun = Instant::now();
    let mut start_over = Some(begun + START_TIMEOUT);
    let mut input_open = true;
    let mut ended = None;
    loop {
        let mut fds = vec![PollFd::new(signals, PollFlags::IN), PollFd::new(master, PollFlags::IN)];
        let input = stdin();
        if input_open {
            fds.push(PollFd::new(&input, PollFlags::IN));
        }
        let left = start_over.map(timespec);
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing("wait for the terminals"),
        }
        if start_over.is_some_and(|end| end <= Instant::now()) {
            if !has_started(started) {
                child.kill().doing("kill what was begun")?;
                // It ends as soon as the domain lets it; the kernel sees to that, and nobody waits.
                let _ended = child.try_wait();
                return Ok(Outcome::NotStarted(begun.elapsed()));
            }
            start_over = None;
        }
        let happened: Vec<bool> = fds.iter().map(|f| !f.revents().is_empty()).collect();
        if happened.get(2) == Some(&true) {
            input_open = copy(stdin(), master.as_fd());
        }
        let output_open = happened.get(1) != Some(&true) || copy(master.as_fd(), stdout());
        while let Some(signal) = signals.take().doing("take signals")? {
            if signal == Signal::WINCH.as_raw() {
                copy_size(master);
            } else if signal != Signal::CHILD.as_raw() {
                pass_on(child, signal);
            }
        }
        ended = match ended {
            None => child.try_wait().doing("wait for the command")?,
            known => known,
        };
        if let Some(status) = ended {
            rest_of_output(master);
            return Ok(Outcome::Ended(status));
        }
        if !output_open {
            // Nobody has the terminal open any more; the command ends, or goes on without it.
            return Ok(Outcome::Ended(child.wait().doing("wait for the command")?));
        }
    }
}

/// The time until then, for poll(2).
fn timespec(end: Instant) -> Timespec {
    let left = end.saturating_duration_since(Instant::now());
    let tv_sec = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::from(left.subsec_nanos()) }
}

/// Takes what the terminal still holds after the command's end, without waiting for others that may
/// have it open.
fn rest_of_output(master: &OwnedFd) {
    if rustix::io::ioctl_fionbio(master, true).is_ok() {
        while copy(master.as_fd(), stdout()) {}
    }
}

/// One read and its writes; tells whether more may come.
fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> bool {
    let mut buffer = [0; COPY_BYTES];
    let read = match rustix::io::read(from, &mut buffer) {
        Ok(0) => return false,
        Ok(read) => read,
        Err(error) => return error == Errno::INTR,
    };
    let mut rest = buffer.get(..read).unwrap_or_default();
    while !rest.is_empty() {
        match rustix::io::write(to, rest) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

/// The entry of `tombolo internal-enter REQUEST`, which only the staying half runs. Returns only
/// when it fails, with the exit code.
#[must_use]
pub fn enter_main(arguments: &[OsString]) -> i32 {
    let error = match enter(arguments) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    eprintln!("tombolo exec: {}", chain(&error));
    failure_code(&error)
}

fn enter(arguments: &[OsString]) -> Result<std::convert::Infallible> {
    let request =
        arguments.first().and_then(|a| a.to_str()).and_then(|a| serde_json::from_str::<Request>(a).ok());
    let request =
        request.ok_or_else(|| Error::Specification("usage: tombolo internal-enter REQUEST".into()))?;
    let (incarnation, paths) = Incarnation::read(&request.run_dir, &request.dc, &request.name)?;
    let Incarnation { layout, spec, .. } = incarnation;
    // Before the domain's cgroup and mounts: there it may find no room, and not the file.
    let mut started =
        request.started.as_ref().map(|path| File::create(path).at("create", path)).transpose()?;
    let not_running = || Error::NotRunning(paths.id.to_string());
    let status = Status::read(&paths)?.filter(|s| s.phase == Phase::Running).ok_or_else(not_running)?;
    let init = status.init.open()?.ok_or_else(not_running)?;
    setsid().doing("start a session")?;
    if request.options.tty {
        ioctl_tiocsctty(stdin()).doing("take the terminal")?;
    }
    Cgroups::discover()?.join(&paths.payload_cgroup(), std::process::id())?;
    // Its network, too: whoever calls may be in another namespace than the domain.
    let both = ThreadNameSpaceType::MOUNT | ThreadNameSpaceType::NETWORK;
    move_into_thread_name_spaces(init.as_fd(), both).doing("enter the domain")?;
    drop(init);
    let user = request.options.user.as_deref().or(spec.user.as_deref());
    let identity = Accounts::read(open_directory(Path::new("/"))?)?.resolve(user)?;
    let mut variables = spec.environment.clone();
    if layout.run_dir != Path::new(crate::bundle::INSIDE) {
        let socket = paths.inside().join("control.sock").to_string_lossy().into_owned();
        variables.insert(0, (wire::control::SOCKET_VARIABLE.to_owned(), socket));
    }
    variables.extend(request.options.environment.iter().cloned());
    let variables = environment(&[], &variables, identity.home.as_deref());
    let workdir = request.options.workdir.or(spec.workdir).unwrap_or_else(|| "/".into());
    std::env::set_current_dir(&workdir).at("enter", &workdir)?;
    let [program, rest @ ..] = request.options.command.as_slice() else {
        return Err(Error::Specification("exec: no command was given".into()));
    };
    drop_privileges(&identity, &spec.capabilities)?;
    die_with_the_caller()?;
    let mut command = Command::new(program);
    command.args(rest).env_clear().envs(variables.iter().filter_map(|v| v.split_once('=')));
    if let Some(started) = &mut started {
        started.write_all(b"begun").doing("say that the command begins")?;
    }
    let error = command.exec();
    Err(error).doing(format!("execute {program:?}"))
}
