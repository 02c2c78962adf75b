//! From a specification to a running domain, and to its end.

use crate::cgroup::{Cgroups, while_parents_vanish};
use crate::clock::rfc3339;
use crate::error::{Context, Error, Result};
use crate::image;
use crate::incarnation::Incarnation;
use crate::layout::{DomainId, DomainPaths, Layout};
use crate::machine;
use crate::monitor::KEPT_BASE;
use crate::monitor::control::{DaemonEnd, MAX_KEPT, Report, readable};
use crate::monitor::payload::runtime_log;
use crate::namespaces;
use crate::root::ImageRoot;
use crate::runtime::{CALL_TIMEOUT, Runtime};
use crate::spare;
use crate::spec::{DomainSpec, Root};
use crate::status::{Ending, Exit, MonitorLock, Phase, ProcessIdentity, Status};
use crate::sweep;
use crate::unused;
use crate::users;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// How long the monitor may take from being run to the domain being made, and from the go to the
/// command running: a call of the runtime and some mounts.
const BRING_UP_TIMEOUT: Duration = Duration::from_secs(CALL_TIMEOUT.as_secs() + 30);
/// How long the monitor may take, after the last process of its domain is gone, to write that down
/// and end.
const WIND_UP_TIMEOUT: Duration = Duration::from_secs(CALL_TIMEOUT.as_secs() + 30);
/// How often a first process is looked at before it is taken for one that hears, and the pause in
/// between: a fork takes less.
const DEAF_LOOKS: u32 = 5;
const DEAF_PAUSE: Duration = Duration::from_millis(2);

/// A monitor's process, as seen from the daemon.
#[derive(Debug)]
struct MonitorProcess {
    descriptor: OwnedFd,
    /// Ours to reap, unless it was adopted.
    child: Option<Mutex<Child>>,
}

impl MonitorProcess {
    /// Whether it has ended, after waiting for so long at most.
    fn has_ended(&self, timeout: Duration) -> Result<bool> {
        let ended = readable(self.descriptor.as_fd(), Some(timeout))?;
        if ended && let Some(child) = &self.child {
            // Its exit code says nothing that the status file does not say better.
            let _ = child.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
        }
        Ok(ended)
    }
}

impl Drop for MonitorProcess {
    fn drop(&mut self) {
        if self.has_ended(Duration::ZERO).unwrap_or(false) {
            return;
        }
        // One that is still alive is reaped when its time comes; when we end first, init does it.
        if let Some(child) = self.child.take() {
            let mut child = child.into_inner().unwrap_or_else(PoisonError::into_inner);
            let reaper = std::thread::Builder::new().name("reap-monitor".into()).stack_size(64 * 1024);
            if let Err(error) = reaper.spawn(move || child.wait()) {
                tracing::warn!(%error, "a monitor will stay a zombie until the daemon ends");
            }
        }
    }
}

/// A domain that exists and whose command waits. Dropping it undoes it in the background;
/// [`Created::abort`] waits for that.
#[derive(Debug)]
pub struct Created {
    layout: Layout,
    spec: DomainSpec,
    paths: DomainPaths,
    control: DaemonEnd,
    monitor: MonitorProcess,
    init: ProcessIdentity,
    init_descriptor: OwnedFd,
}

/// Sees to it that what precedes [`create`] finds room below the run directory, also when the disk
/// is full.
pub fn make_room(layout: &Layout) {
    spare::make_room(layout);
}

/// Makes the domain: its directory, cgroup with limits, monitor, namespaces and mounts. The command
/// waits for [`Created::start`].
///
/// The monitor holds duplicates of `keep` for as long as it lives ([`Running::kept`]). What an
/// earlier incarnation left behind is cleared away first, its frontend included, except for
/// `inside/`, into which the caller may have put the control socket already.
///
/// # Errors
/// [`Error::AlreadyRuns`]; what is impossible in the specification; whatever the monitor reports.
/// After an error nothing is left.
pub fn create(layout: &Layout, spec: &DomainSpec, keep: &[OwnedFd]) -> Result<Created> {
    layout.check()?;
    spec.check()?;
    if keep.len() > MAX_KEPT {
        return Err(Error::Specification(format!(
            "{} descriptors to keep, and {MAX_KEPT} is the most",
            keep.len()
        )));
    }
    let paths = layout.domain(&spec.dc, &spec.name)?;
    make_directories(layout, &paths)?;
    if MonitorLock::is_held(&paths)? {
        return Err(Error::AlreadyRuns(paths.id.to_string()));
    }
    sweep::clear_incarnation(layout, &paths)?;
    // What it had is free now: for this start, and before somebody else takes it.
    spare::keep(layout);
    spare::make_room(layout);
    let _images = unused::hold(&layout.images())?;
    let image = match &spec.root {
        Root::Image { path, tag } => Some(unpack(layout, path, tag.as_deref())?),
        Root::Host | Root::Directory(_) => None,
    };
    let made = make(layout, spec, &paths, image, keep);
    made.inspect_err(|_| {
        // The error that made us undo it is the one to tell.
        if let Err(error) = sweep::clear_incarnation(layout, &paths) {
            tracing::warn!(domain = %paths.id, %error, "could not clear away a domain that was not brought up");
        }
    })
}

/// Unpacks an image unless it is there already, so that [`create`] finds it: this may take minutes.
///
/// # Errors
/// [`Error::Image`].
pub fn unpack_image(layout: &Layout, path: &Path, tag: Option<&str>) -> Result<()> {
    let _images = unused::hold(&layout.images())?;
    unpack(layout, path, tag).map(drop)
}

fn unpack(layout: &Layout, path: &Path, tag: Option<&str>) -> Result<ImageRoot> {
    image::prepare(&layout.images(), path, tag)
        .map_err(|source| Error::Image { path: path.to_owned(), source })
}

/// Makes a folder of a domain, with those above it; what is there is as good. The end of another
/// domain may remove one above that looks empty while this is done: then it is made again.
///
/// # Errors
/// When it can't be made.
pub fn make_folder(path: &Path, mode: u32) -> Result<()> {
    let make = || fs::DirBuilder::new().recursive(true).mode(mode).create(path).at("create", path);
    while_parents_vanish(make)
}

fn make_directories(layout: &Layout, paths: &DomainPaths) -> Result<()> {
    for dir in [&layout.run_dir, &layout.state_dir, &layout.runtime_root(), &paths.dir] {
        make_folder(dir, 0o700)?;
    }
    let inside = paths.inside();
    make_folder(&inside, 0o755)?;
    // The place on which our binary is bound.
    let program = inside.join("tombolo");
    fs::OpenOptions::new().append(true).create(true).open(&program).at("create", &program).map(drop)
}

fn make(
    layout: &Layout,
    spec: &DomainSpec,
    paths: &DomainPaths,
    image: Option<ImageRoot>,
    keep: &[OwnedFd],
) -> Result<Created> {
    let cgroups = Cgroups::discover()?;
    cgroups.create_for_domain(&paths.cgroup)?;
    cgroups.limit(&paths.cgroup, &spec.limits)?;
    Incarnation { layout: layout.clone(), spec: spec.clone(), image }.write(paths)?;
    if let Some(machine) = &spec.machine {
        machine::prepare(paths, machine)?;
    }
    let (ours, theirs) = UnixStream::pair().doing("make a socket pair for the monitor")?;
    let monitor = spawn_monitor(layout, paths, theirs)?;
    let mut control = DaemonEnd::new(ours);
    control.keep(keep)?;
    let domain = paths.id.to_string();
    let init = match control.report(&domain, BRING_UP_TIMEOUT)? {
        Some(Report::Created { init }) => init,
        other => return Err(refused(domain, other)),
    };
    let gone =
        || Error::BringUp { domain: paths.id.to_string(), message: "its first process ended at once".into() };
    let init_descriptor = init.open()?.ok_or_else(gone)?;
    if spec.userns {
        users::bound(&layout.program, &init)?;
    }
    let (layout, spec, paths) = (layout.clone(), spec.clone(), paths.clone());
    Ok(Created { layout, spec, paths, control, monitor, init, init_descriptor })
}

fn refused(domain: String, report: Option<Report>) -> Error {
    match report {
        Some(Report::Failed { message }) => Error::BringUp { domain, message },
        Some(Report::Created { .. } | Report::Started) => {
            Error::Monitor { domain, what: "reported something out of turn".into() }
        }
        None => Error::Monitor { domain, what: "ended without a word (killed?)".into() },
    }
}

fn spawn_monitor(layout: &Layout, paths: &DomainPaths, control: UnixStream) -> Result<MonitorProcess> {
    let child = Command::new(&layout.program)
        .args(["monitor", &paths.id.dc, &paths.id.name])
        .arg(&layout.run_dir)
        .stdin(Stdio::from(OwnedFd::from(control)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .env_clear()
        .env("PATH", crate::bundle::DEFAULT_PATH)
        .spawn()
        .doing(format!("run {} monitor", layout.program.display()))?;
    // Not reaped yet, so the number is its own.
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH);
    let descriptor =
        pid.and_then(|p| pidfd_open(p, PidfdFlags::empty())).doing("open the monitor's process")?;
    Ok(MonitorProcess { descriptor, child: Some(Mutex::new(child)) })
}

impl Created {
    /// The number of its first process, in the machine's pid namespace.
    #[must_use]
    pub fn init_pid(&self) -> u32 {
        self.init.pid
    }

    /// A pidfd of it: the key to its namespaces ([`crate::attach_mount`],
    /// [`crate::in_network_namespace`]).
    #[must_use]
    pub fn init_descriptor(&self) -> BorrowedFd<'_> {
        self.init_descriptor.as_fd()
    }

    /// Has the monitor hold more descriptors, numbered on from those given to [`create`].
    ///
    /// # Errors
    /// When the monitor is gone.
    pub fn keep(&self, descriptors: &[OwnedFd]) -> Result<()> {
        self.control.keep(descriptors)
    }

    /// Starts the command.
    ///
    /// # Errors
    /// The error of the runtime or of `execve`; nothing is left then.
    pub fn start(mut self) -> Result<Running> {
        let domain = self.paths.id.to_string();
        let answer = self.control.start().and_then(|()| self.control.report(&domain, BRING_UP_TIMEOUT));
        match answer {
            Ok(Some(Report::Started)) => {}
            Ok(other) => {
                self.undo()?;
                return Err(refused(domain, other));
            }
            Err(error) => {
                self.undo()?;
                return Err(error);
            }
        }
        let Self { layout, spec, paths, monitor, init, init_descriptor, .. } = self;
        Ok(Running { layout, spec, paths, monitor, init, init_descriptor: Some(init_descriptor) })
    }

    /// Undoes it, and returns when nothing is left.
    ///
    /// # Errors
    /// When something can't be cleared away.
    pub fn abort(self) -> Result<()> {
        self.undo()
    }

    fn undo(self) -> Result<()> {
        let Self { layout, paths, control, monitor, .. } = self;
        drop(control);
        if !monitor.has_ended(WIND_UP_TIMEOUT)? {
            tracing::warn!(domain = %paths.id, "the monitor does not end; it is killed");
        }
        sweep::clear_incarnation(&layout, &paths)
    }
}

/// A domain that was started. Dropping it leaves the domain alone; [`adopt`] finds it again.
#[derive(Debug)]
pub struct Running {
    layout: Layout,
    spec: DomainSpec,
    paths: DomainPaths,
    monitor: MonitorProcess,
    init: ProcessIdentity,
    init_descriptor: Option<OwnedFd>,
}

impl Running {
    /// The identity of this domain.
    #[must_use]
    pub fn id(&self) -> &DomainId {
        &self.paths.id
    }

    /// The specification that it was made from.
    #[must_use]
    pub fn spec(&self) -> &DomainSpec {
        &self.spec
    }

    /// The number of its first process, in the machine's pid namespace.
    #[must_use]
    pub fn init_pid(&self) -> u32 {
        self.init.pid
    }

    /// A pidfd of its first process; `None` if that had ended already when the domain was adopted.
    #[must_use]
    pub fn init_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.init_descriptor.as_ref().map(AsFd::as_fd)
    }

    /// A pidfd of its monitor.
    #[must_use]
    pub fn monitor_descriptor(&self) -> BorrowedFd<'_> {
        self.monitor.descriptor.as_fd()
    }

    /// Readable (for `poll`, `epoll`, tokio's `AsyncFd`) once the domain has ended and
    /// [`Running::exit`] knows how.
    #[must_use]
    pub fn wait_descriptor(&self) -> BorrowedFd<'_> {
        self.monitor.descriptor.as_fd()
    }

    /// How it ended; `None` while it runs. When the monitor was killed, this ends the domain.
    ///
    /// # Errors
    /// When the status can't be read, or a process without a monitor can't be killed.
    pub fn exit(&self) -> Result<Option<Exit>> {
        if !self.monitor.has_ended(Duration::ZERO)? {
            return Ok(None);
        }
        self.conclusion().map(Some)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// As [`Running::exit`].
    pub fn wait(&self) -> Result<Exit> {
        while !self.monitor.has_ended(Duration::from_secs(3600))? {}
        self.conclusion()
    }

    /// Asks it to end, kills it when it has not ended after `grace` (absent: as its specification
    /// says), and waits.
    ///
    /// # Errors
    /// As [`Running::exit`].
    pub fn stop(&self, grace: Option<Duration>) -> Result<Exit> {
        let grace = grace.unwrap_or(Duration::from_millis(self.spec.stop.timeout_ms));
        let grace = self.ask_to_end(grace)?;
        if !self.monitor.has_ended(grace)? {
            self.kill()?;
        }
        self.conclusion()
    }

    /// Asks it to end, and returns how long it is worth waiting for that: `grace`, or nothing.
    ///
    /// The kernel drops a signal for a container's first process, process 1 of its pid namespace,
    /// if that process never said what to do with it. Waiting would be idle then. A program that
    /// ignores the signal on purpose has its time.
    ///
    /// # Errors
    /// When it can't be looked at or asked.
    pub fn ask_to_end(&self, grace: Duration) -> Result<Duration> {
        let signal = Signal::from_named_raw(self.spec.stop.signal).unwrap_or(Signal::TERM);
        if grace.is_zero() || self.spec.kind.is_container() && self.is_deaf(signal)? {
            return Ok(Duration::ZERO);
        }
        if let Some(init) = &self.init_descriptor {
            match pidfd_send_signal(init, signal) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error).doing(format!("ask domain {} to end", self.paths.id)),
            }
        }
        Ok(grace)
    }

    /// Sends its first process a signal. The kernel drops one that the first process of a container
    /// does not handle, other than KILL and STOP.
    ///
    /// # Errors
    /// [`Error::NotRunning`]; no such signal.
    pub fn signal(&self, signal: i32) -> Result<()> {
        let signal = Signal::from_named_raw(signal)
            .ok_or_else(|| Error::Specification(format!("{signal} is the number of no signal")))?;
        pidfd_send_signal(self.init_or_error()?, signal)
            .doing(format!("send a signal to the first process of domain {}", self.paths.id))
    }

    /// Whether the first process does not hear `signal`. A shell blocks every signal for the moment
    /// of a fork, and would then look as if it waited for this one: so it is looked at more than
    /// once. Whoever has a handler is never found deaf.
    fn is_deaf(&self, signal: Signal) -> Result<bool> {
        for _ in 0..DEAF_LOOKS {
            if self.init.is_deaf_to(signal.as_raw()) {
                return Ok(true);
            }
            if self.monitor.has_ended(DEAF_PAUSE)? {
                break;
            }
        }
        Ok(false)
    }

    /// Kills all of its processes, and waits for the monitor to say so.
    fn kill(&self) -> Result<()> {
        let cgroups = Cgroups::discover()?;
        cgroups.kill(&self.paths.payload_cgroup())?;
        if !self.monitor.has_ended(WIND_UP_TIMEOUT)? {
            tracing::warn!(domain = %self.paths.id, "the monitor does not end; it is killed");
            cgroups.kill(&self.paths.monitor_cgroup)?;
        }
        Ok(())
    }

    /// The exit that the monitor wrote at its end, or that follows from its having written nothing.
    fn conclusion(&self) -> Result<Exit> {
        // It has ended, and is not left as a zombie.
        self.monitor.has_ended(WIND_UP_TIMEOUT)?;
        if let Some(status) = Status::read(&self.paths)?
            && status.init == self.init
            && let Some(exit) = status.exit
        {
            return Ok(exit);
        }
        conclude_lost(&self.layout, &self.paths)
    }

    /// A duplicate of the `index`-th descriptor that the monitor keeps.
    ///
    /// # Errors
    /// When the monitor is gone, or keeps fewer.
    pub fn kept(&self, index: usize) -> Result<OwnedFd> {
        let number =
            i32::try_from(index).ok().and_then(|i| KEPT_BASE.checked_add(i)).ok_or(rustix::io::Errno::BADF);
        number
            .and_then(|n| pidfd_getfd(&self.monitor.descriptor, n, PidfdGetfdFlags::empty()))
            .doing(format!("fetch descriptor {index} from the monitor of {}", self.paths.id))
    }

    /// Attaches a mount in its mount namespace; see [`crate::attach_mount`].
    ///
    /// # Errors
    /// [`Error::NotRunning`], or as there.
    pub fn attach_mount(&self, mount: &OwnedFd, target: &str) -> Result<()> {
        namespaces::attach_mount(self.init_or_error()?, mount, target)
    }

    fn init_or_error(&self) -> Result<BorrowedFd<'_>> {
        self.init_descriptor().ok_or_else(|| Error::NotRunning(self.paths.id.to_string()))
    }
}

/// The monitor was killed: ends what it watched over, and writes down that this is how it ended.
fn conclude_lost(layout: &Layout, paths: &DomainPaths) -> Result<Exit> {
    let cgroups = Cgroups::discover()?;
    cgroups.kill(&paths.monitor_cgroup)?;
    cgroups.kill(&paths.payload_cgroup())?;
    let exit =
        Exit { ending: Ending::Lost, out_of_memory: false, at: rfc3339(SystemTime::now()), outcome: None };
    if let Some(mut status) = Status::read(paths)? {
        if let Some(program) = status.runtime.clone() {
            Runtime::known(layout, program).delete(&paths.id.runtime_id(), &runtime_log(paths))?;
        }
        status.phase = Phase::Ended;
        status.exit = Some(exit.clone());
        status.write(paths)?;
    }
    cgroups.remove(&paths.payload_cgroup())?;
    cgroups.remove(&paths.monitor_cgroup)?;
    Ok(exit)
}

/// The finding of [`adopt`].
#[derive(Debug)]
pub enum Adopted {
    /// Nothing of this name, or nothing that was ever started.
    Nothing,
    /// It runs, and its monitor is alive.
    Running(Box<Running>),
    /// It ended while nobody looked, this way.
    Ended(Exit),
}

/// Finds a domain that an earlier daemon started. One whose monitor was killed is ended, and
/// reported as [`Ending::Lost`]; one that was not started yet is undone by its monitor, which this
/// waits for.
///
/// # Errors
/// [`Error::Damaged`] for files that are not ours, and whatever keeps us from looking.
pub fn adopt(layout: &Layout, dc: &str, name: &str) -> Result<Adopted> {
    let paths = layout.domain(dc, name)?;
    let Some(status) = Status::read(&paths)? else { return Ok(Adopted::Nothing) };
    if let Some(exit) = status.exit {
        return Ok(Adopted::Ended(exit));
    }
    let monitor = if MonitorLock::is_held(&paths)? { status.monitor.open()? } else { None };
    let Some(descriptor) = monitor else {
        // It may have ended between the two looks.
        return match Status::read(&paths)? {
            Some(Status { exit: Some(exit), .. }) => Ok(Adopted::Ended(exit)),
            None => Ok(Adopted::Nothing),
            Some(Status { phase: Phase::Created, .. }) => {
                sweep::clear_incarnation(layout, &paths).map(|()| Adopted::Nothing)
            }
            Some(_) => conclude_lost(layout, &paths).map(Adopted::Ended),
        };
    };
    let monitor = MonitorProcess { descriptor, child: None };
    if status.phase == Phase::Created {
        monitor.has_ended(WIND_UP_TIMEOUT)?;
        sweep::clear_incarnation(layout, &paths)?;
        return Ok(Adopted::Nothing);
    }
    let (incarnation, paths) = Incarnation::read(&layout.run_dir, dc, name)?;
    let init_descriptor = status.init.open()?;
    let (layout, spec) = (layout.clone(), incarnation.spec);
    Ok(Adopted::Running(Box::new(Running {
        layout,
        spec,
        paths,
        monitor,
        init: status.init,
        init_descriptor,
    })))
}
