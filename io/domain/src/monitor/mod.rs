//! The monitor: the parent of one incarnation of a domain.
//!
//! It makes the domain, waits for the daemon's word, starts the command, writes down its output and
//! its end, and holds descriptors that must outlive daemon and frontend. It is one thread and one
//! `poll`; beside it one for each stream of output, which the domain can hold up ([`sys::aside`]).
//! The daemon may die: before the start the monitor undoes everything, afterwards it goes on.
//! `docs/spec/monitor.md` describes what it says and writes.

pub(crate) mod control;
pub(crate) mod payload;

use crate::cgroup::Cgroups;
use crate::clock::rfc3339;
use crate::error::{Context, Error, Result, chain};
use crate::hold;
use crate::incarnation::Incarnation;
use crate::layout::DomainPaths;
use crate::log::{LogWriter, Stream};
use crate::machine;
use crate::spec::Kind;
use crate::status::{self, Ending, Exit, MonitorLock, Phase, ProcessIdentity, Status};
use control::{MAX_KEPT, MonitorEnd, Order, Report};
use payload::{Payload, Streams};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitOptions, WaitStatus, getpid, set_child_subreaper, setsid, wait};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use sys::aside;
use sys::signals::SignalDescriptor;

/// The number of the first kept descriptor in the monitor; the others follow. Far above what a
/// monitor opens otherwise.
pub const KEPT_BASE: RawFd = 100;
/// How long the last output of a domain that ended may take from its pipes to us.
const LEFT_TIMEOUT: Duration = Duration::from_secs(2);
/// How much output is read at once, in bytes: what a pipe holds by default.
const READ_BYTES: usize = 64 * 1024;

/// The entry of `tombolo monitor DC NAME RUN_DIR`, which only [`crate::create`] runs. Returns the
/// exit code.
#[must_use]
pub fn monitor_main(arguments: &[OsString]) -> i32 {
    let mut control = match MonitorEnd::from_stdin() {
        Ok(control) => control,
        Err(error) => {
            eprintln!("tombolo monitor: {error}; it is run by the daemon, not by hand");
            return 2;
        }
    };
    match bring_up(arguments, &mut control) {
        Ok(mut monitor) => monitor.supervise(control),
        Err(error) => {
            // Without a daemon there is nobody to tell.
            let _ = control.report(&Report::Failed { message: chain(&error) });
            1
        }
    }
}

fn bring_up(arguments: &[OsString], control: &mut MonitorEnd) -> Result<Monitor> {
    let [dc, name, run_dir] = arguments else {
        return Err(Error::Specification("usage: tombolo monitor DC NAME RUN_DIR".into()));
    };
    let (dc, name) = (dc.to_string_lossy(), name.to_string_lossy());
    let (incarnation, paths) = Incarnation::read(Path::new(run_dir), &dc, &name)?;
    let hold = incarnation.spec.held.then(|| PathBuf::from(run_dir));
    let lock = MonitorLock::take(&paths)?.ok_or_else(|| Error::AlreadyRuns(paths.id.to_string()))?;
    let cgroups = Cgroups::discover()?;
    leave_the_daemon(&cgroups, &paths)?;
    let log = LogWriter::open(&paths.log, incarnation.spec.log.clone())?;
    let signals =
        SignalDescriptor::block(&[Signal::CHILD, Signal::TERM, Signal::INT, Signal::HUP].map(Signal::as_raw))
            .doing("take signals")?;
    cgroups.create(&paths.payload_cgroup())?;
    let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC).doing("make a pipe")?;
    let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC).doing("make a pipe")?;
    let streams = Streams { stdout: their_stdout, stderr: their_stderr };
    let payload = Payload::create(&incarnation, &paths, streams).inspect_err(|_| {
        // Whatever was half made is in these cgroups; the error that made us undo it is the one to
        // tell.
        let _ = cgroups.kill(&paths.payload_cgroup());
        let _ = cgroups.remove(&paths.payload_cgroup());
    })?;
    let init = ProcessIdentity::of(payload.init())?;
    let status = Status {
        version: status::VERSION,
        boot_id: status::boot_id()?,
        kind: incarnation.spec.kind,
        runtime: payload.runtime(),
        monitor: ProcessIdentity::of(std::process::id())?,
        init,
        phase: Phase::Created,
        created_at: rfc3339(SystemTime::now()),
        started_at: None,
        exit: None,
    };
    status.write(&paths)?;
    control.report(&Report::Created { init })?;
    // Not before all that forks has forked: they have threads of their own.
    let reader = |pipe| aside::reader(pipe).doing("read the domain's output").map(Some);
    let streams = [reader(stdout)?, reader(stderr)?];
    Ok(Monitor {
        paths,
        cgroups,
        log,
        signals,
        streams,
        payload,
        status,
        kept: Vec::new(),
        ended: None,
        hold,
        _lock: lock,
    })
}

/// Its own session, cgroup and mount namespace, so that neither the end of the daemon nor that of
/// its service ends us, and no mount that we make is seen by others. What the host mounts and
/// unmounts later still shows: a monitor must not keep file systems busy.
fn leave_the_daemon(cgroups: &Cgroups, paths: &DomainPaths) -> Result<()> {
    match setsid() {
        Ok(_) | Err(Errno::PERM) => {}
        Err(error) => return Err(error).doing("start a session"),
    }
    set_child_subreaper(Some(getpid())).doing("become the reaper of the domain's orphans")?;
    cgroups.create(&paths.monitor_cgroup)?;
    cgroups.join(&paths.monitor_cgroup, std::process::id())?;
    sys::namespace::unshare(sys::namespace::UnshareFlags::NEWNS)
        .doing("make a mount namespace (are we root?)")?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .at("make private the mounts of", "/")
}

struct Monitor {
    paths: DomainPaths,
    cgroups: Cgroups,
    log: LogWriter,
    signals: SignalDescriptor,
    streams: [Option<OwnedFd>; 2],
    payload: Payload,
    status: Status,
    /// Held, never used: others fetch them by `pidfd_getfd`.
    kept: Vec<OwnedFd>,
    ended: Option<WaitStatus>,
    /// The run directory, where the domain ends with the node's hold on its claims.
    hold: Option<PathBuf>,
    _lock: MonitorLock,
}

impl Monitor {
    /// Until the domain ends. Returns our exit code.
    fn supervise(&mut self, control: MonitorEnd) -> i32 {
        let mut control = Some(control);
        let mut buffer = vec![0; READ_BYTES];
        while self.ended.is_none() {
            if let Err(error) = self.turn(&mut control, &mut buffer) {
                self.log.remark(&chain(&error));
                if let Some(mut control) = control.take() {
                    // The daemon may be gone; its absence is no further reason to fail.
                    let _ = control.report(&Report::Failed { message: chain(&error) });
                }
                self.kill();
                self.reap();
                break;
            }
        }
        let before_start = self.status.phase == Phase::Created;
        if let Some(mut control) = control.take() {
            let message = "its first process ended before it was started".to_owned();
            let _ = control.report(&Report::Failed { message });
        }
        let exit = self.exit();
        self.kill();
        self.drain_last(&mut buffer);
        self.log.finish();
        self.forget();
        self.conclude(before_start, exit)
    }

    /// One wait and what it brought. An error means that the domain can't go on.
    fn turn(&mut self, control: &mut Option<MonitorEnd>, buffer: &mut [u8]) -> Result<()> {
        let (signalled, ordered) = {
            let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
            fds.extend(control.iter().map(|c| PollFd::new(c, PollFlags::IN)));
            fds.extend(self.streams.iter().flatten().map(|s| PollFd::new(s, PollFlags::IN)));
            // Looked at again when what it said last has passed: the daemon has moved it on
            // meanwhile, or it is over.
            let left = self.hold.as_deref().map(hold::left);
            if left.is_some_and(|left| left.is_zero()) {
                drop(fds);
                self.let_go();
                return Ok(());
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).doing("wait for the domain"),
            }
            let happened = |i: usize| fds.get(i).is_some_and(|f| !f.revents().is_empty());
            (happened(0), control.is_some() && happened(1))
        };
        self.drain(buffer);
        if signalled {
            self.take_signals()?;
        }
        if ordered && self.ended.is_none() {
            self.obey(control)?;
        }
        Ok(())
    }

    /// The node is cut off: somebody else may start the domain from now on.
    fn let_go(&mut self) {
        self.hold = None;
        self.log.remark(
            "this node is cut off from its cluster; the domain ends here before it is started elsewhere",
        );
        self.kill();
    }

    fn take_signals(&mut self) -> Result<()> {
        while let Some(signal) = self.signals.take().doing("take signals")? {
            if [Signal::TERM, Signal::INT].map(Signal::as_raw).contains(&signal) {
                self.log.remark("asked to end by a signal");
                self.kill();
            }
        }
        self.reap();
        Ok(())
    }

    fn obey(&mut self, control: &mut Option<MonitorEnd>) -> Result<()> {
        let Some(end) = control else { return Ok(()) };
        match end.order()? {
            Order::Keep(descriptors) => descriptors.into_iter().try_for_each(|d| self.keep(d)),
            Order::Start => {
                self.payload.start()?;
                self.status.phase = Phase::Running;
                self.status.started_at = Some(rfc3339(SystemTime::now()));
                self.status.write(&self.paths)?;
                let reported = control.take().map_or(Ok(()), |mut c| c.report(&Report::Started));
                if reported.is_err() {
                    self.log.remark("the daemon was gone when the domain had started; it goes on");
                }
                Ok(())
            }
            Order::Gone => {
                control.take();
                self.kill();
                self.reap();
                Err(std::io::Error::other("the daemon ended before it said go")).doing("start the domain")
            }
        }
    }

    fn keep(&mut self, descriptor: OwnedFd) -> Result<()> {
        let wanted = KEPT_BASE + RawFd::try_from(self.kept.len()).unwrap_or(RawFd::MAX - KEPT_BASE);
        if self.kept.len() >= MAX_KEPT {
            return Err(std::io::Error::from(Errno::MFILE))
                .doing(format!("keep more than {MAX_KEPT} descriptors"));
        }
        let kept = rustix::io::fcntl_dupfd_cloexec(&descriptor, wanted).doing("keep a descriptor")?;
        if kept.as_raw_fd() != wanted {
            return Err(std::io::Error::from(Errno::BUSY))
                .doing(format!("keep a descriptor as number {wanted}"));
        }
        self.kept.push(kept);
        Ok(())
    }

    /// Collects the dead: the first process, and orphans of the domain that came to us.
    fn reap(&mut self) {
        let init = i32::try_from(self.status.init.pid).unwrap_or_default();
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid.as_raw_nonzero().get() == init {
                self.ended = Some(status);
            }
        }
    }

    fn exit(&self) -> Exit {
        let ending = match self.ended.map(|s| (s.exit_status(), s.terminating_signal())) {
            Some((Some(code), _)) => Ending::Code(code),
            Some((_, Some(signal))) => Ending::Signal(signal),
            _ => Ending::Lost,
        };
        let oom_kills = self.cgroups.usage(&self.paths.payload_cgroup()).memory.oom_kills.unwrap_or(0);
        // A shell whose child was killed says 137; it may also have coped, and then the memory is
        // not why it ended.
        let by_kill = matches!(ending, Ending::Signal(9) | Ending::Code(137));
        let outcome = (self.status.kind == Kind::Vm).then(|| machine::outcome(&self.paths)).flatten();
        // Of a machine it is QEMU that is killed, and its parent tells.
        let by_kill =
            by_kill || outcome.as_ref().is_some_and(|outcome| outcome.outcome == machine::QEMU_DIED);
        let in_guest = outcome.as_ref().is_some_and(|outcome| outcome.out_of_memory);
        let out_of_memory = in_guest || (oom_kills > 0 && by_kill);
        Exit { ending, out_of_memory, at: rfc3339(SystemTime::now()), outcome }
    }

    fn kill(&mut self) {
        if let Err(error) = self.cgroups.kill(&self.paths.payload_cgroup()) {
            self.log.remark(&chain(&error));
        }
    }

    fn forget(&mut self) {
        let forgotten = self.payload.forget();
        let removed = self.cgroups.remove(&self.paths.payload_cgroup()).map(drop);
        for error in [forgotten, removed].into_iter().filter_map(Result::err) {
            self.log.remark(&chain(&error));
        }
    }

    /// Reads what there is of both streams; the end of one closes it.
    fn drain(&mut self, buffer: &mut [u8]) {
        for (slot, stream) in self.streams.iter_mut().zip([Stream::Stdout, Stream::Stderr]) {
            // Bounded, so that a domain which writes without pause can't keep us from its signals.
            for _ in 0..16 {
                let Some(pipe) = slot.as_ref() else { break };
                match rustix::io::read(pipe.as_fd(), &mut *buffer) {
                    Ok(0) => *slot = None,
                    Ok(bytes) => self.log.output(stream, &buffer[..bytes]),
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(error) => {
                        self.log.remark(&format!("the domain's output can't be read: {error}"));
                        *slot = None;
                    }
                }
            }
        }
    }

    /// Reads what is left when all processes of the domain are gone, whoever else may have been
    /// given its streams.
    fn drain_last(&mut self, buffer: &mut [u8]) {
        let deadline = Instant::now() + LEFT_TIMEOUT;
        self.streams.iter().flatten().for_each(aside::finish);
        loop {
            self.drain(buffer);
            let mut fds: Vec<PollFd<'_>> =
                self.streams.iter().flatten().map(|stream| PollFd::new(stream, PollFlags::IN)).collect();
            let left = deadline.saturating_duration_since(Instant::now());
            if fds.is_empty() || left.is_zero() {
                break;
            }
            let left = Timespec::try_from(left).ok();
            if let Err(error) = poll(&mut fds, left.as_ref())
                && error != Errno::INTR
            {
                break;
            }
        }
        if self.streams.iter().any(Option::is_some) {
            self.log.remark("some of its last output can't be read: somebody else holds the pipe");
        }
    }

    fn conclude(&mut self, before_start: bool, exit: Exit) -> i32 {
        if before_start {
            // Never started: nothing of it is to be found, as if it had not been tried.
            let removed = std::fs::remove_file(self.paths.status()).at("remove", self.paths.status());
            return i32::from(removed.is_err() || self.ended.is_none());
        }
        self.status.phase = Phase::Ended;
        self.status.exit = Some(exit);
        match self.status.write(&self.paths) {
            Ok(()) => 0,
            Err(error) => {
                self.log.remark(&chain(&error));
                1
            }
        }
    }
}
