//! The dispatcher's process: one enforcer, one client at a time, and a guardian.

use std::ffi::OsString;
use std::fs;
use std::io::BufRead as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::schedule::Class;

use super::protocol::{self, Request, Response, VERSION};
use crate::enforcer::{Enforcer, Kind};
use crate::error::{Context, EnforceError, Result};
use crate::hierarchy::Hierarchies;
use crate::place::Config;
use crate::plan::Plan;
use crate::{Bandwidth, Deadline, Simulator, Table};

/// Between two looks at who came and went, in ms.
const SCAN_MS: i64 = 20;
/// How long a dispatcher that keeps nothing for anybody waits for somebody to come back.
const IDLE: Duration = Duration::from_secs(30);
/// How often it looks whether anybody is left.
const LOOK: Duration = Duration::from_secs(5);
/// Longest wait for an effect in one request: others wait for it, and nobody is scanned.
const MAX_EFFECT_MS: u64 = 1_000;
/// How long a client may take to send or take a message.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// Arguments: the folder, the cgroup, the kind.
pub fn main(arguments: &[OsString]) -> Result<()> {
    let [folder, group, kind] = arguments else {
        return Err(EnforceError::Dispatcher("a dispatcher takes a folder, a cgroup and a kind".to_owned()));
    };
    let strange = |what: &str| EnforceError::Dispatcher(format!("no {what} that we know"));
    let group = group.to_str().ok_or_else(|| strange("cgroup"))?;
    let kind: Kind = kind.to_str().unwrap_or_default().parse().map_err(EnforceError::Dispatcher)?;
    let folder = PathBuf::from(folder);
    fs::create_dir_all(&folder).at("make", &folder)?;
    let _ = rustix::process::setsid();
    let lock_path = folder.join("dispatcher.lock");
    let lock = fs::File::create(&lock_path).at("make", &lock_path)?;
    lock.try_lock().map_err(std::io::Error::from).at("lock", &lock_path)?;
    super::guardian::wait_for_the_last(&folder)?;
    leave_for_real_time();
    // Whatever the last one left is given back before anything else, by `new`.
    let config = Config::new(&folder, group);
    let enforcer: Box<dyn Enforcer> = match kind {
        Kind::Table => Box::new(Table::new(config)?),
        Kind::Bandwidth => Box::new(Bandwidth::new(config)?),
        Kind::Deadline => Box::new(Deadline::new(config)?),
        Kind::Simulator => Box::new(Simulator::new(1, 0)),
    };
    let guardian = Guardian::start(&folder)?;
    let path = folder.join("dispatcher.sock");
    if let Err(error) = fs::remove_file(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error).at("remove", &path);
    }
    let listener = UnixListener::bind(&path).at("listen at", &path)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(&path, mode).at("protect", &path)?;
    // Without it, it answers a bit later.
    let _ = sys::schedule::lock_memory();
    let _ = sys::schedule::set_class(0, Class::Fifo { priority: crate::boost::CONTROL_PRIORITY });
    println!("up");
    let mut dispatcher = Dispatcher {
        enforcer,
        kind,
        folder,
        listener,
        client: None,
        guardian,
        in_force: Plan::default(),
        prepared: None,
        before: None,
        lonely_since: None,
    };
    let ended = dispatcher.serve();
    let released = dispatcher.enforcer.release();
    // A socket that is gone is as it should be.
    let _ = fs::remove_file(&path);
    ended.and(released)
}

/// Where the kernel shares real time out among cgroups (version 1), only the first of them has any
/// to begin with: whoever started us may be in one that has none.
fn leave_for_real_time() {
    let Ok(Some(cpu)) = Hierarchies::discover().map(|found| found.cpu) else { return };
    let Some(own) = cpu.of_process(std::process::id()).filter(|own| *own != cpu.path) else { return };
    if crate::hierarchy::read(&own.join("cpu.rt_runtime_us")).is_ok_and(|value| value == "0") {
        // Where that can't be done, it is found out and told that there is no real-time class.
        let _ = crate::hierarchy::write(&cpu.path.join("cgroup.procs"), &std::process::id().to_string());
    }
}

struct Guardian {
    child: Child,
    ended: OwnedFd,
}

impl Guardian {
    fn start(folder: &Path) -> Result<Self> {
        let exe = "/proc/self/exe";
        let mut command = Command::new(exe);
        // As whoever lists processes knows us.
        if let Some(name) = std::env::args_os().next() {
            command.arg0(name);
        }
        command.arg(super::GUARDIAN_ROLE).arg(folder).arg(std::process::id().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().at("start", exe)?;
        let mut said = String::new();
        if let Some(out) = child.stdout.take() {
            std::io::BufReader::new(out).read_line(&mut said).doing("hear of the guardian")?;
        }
        if said.trim_end() != "up" {
            return Err(EnforceError::Dispatcher("the guardian did not come up".to_owned()));
        }
        let ended = sys::process::pidfd_open(child.id()).doing("watch the guardian")?;
        Ok(Self { child, ended })
    }
}

struct Dispatcher {
    enforcer: Box<dyn Enforcer>,
    kind: Kind,
    folder: PathBuf,
    listener: UnixListener,
    client: Option<UnixStream>,
    guardian: Guardian,
    in_force: Plan,
    prepared: Option<Plan>,
    before: Option<Plan>,
    lonely_since: Option<Instant>,
}

impl Dispatcher {
    fn serve(&mut self) -> Result<()> {
        let (mut looked, mut scanned) = (Instant::now(), Instant::now());
        loop {
            let (new, asked, orphaned) = self.wait()?;
            if orphaned {
                // A zombie until it is waited for.
                let _ = self.guardian.child.wait();
                self.guardian = Guardian::start(&self.folder)?;
            }
            if new {
                let (stream, _) = self.listener.accept().doing("take a client")?;
                if trusted(&stream) {
                    // The last one to come is the one: it is the daemon that lives.
                    self.client = Some(stream);
                }
            } else if asked && !self.answer()? {
                return Ok(());
            }
            if scanned.elapsed().as_millis() >= SCAN_MS.unsigned_abs().into() {
                if let Err(error) = self.enforcer.scan() {
                    tracing::warn!(%error, "a scan failed");
                }
                scanned = Instant::now();
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                if self.is_forsaken() {
                    return Ok(());
                }
            }
        }
    }

    /// Waits: a new client, a question, the guardian's end.
    fn wait(&self) -> Result<(bool, bool, bool)> {
        let busy = !self.in_force.vtms.is_empty();
        let wait_ms = if busy { SCAN_MS } else { 1_000 };
        let timeout = Timespec { tv_sec: wait_ms / 1_000, tv_nsec: (wait_ms % 1_000) * 1_000_000 };
        let mut fds = vec![
            PollFd::new(&self.listener, PollFlags::IN),
            PollFd::new(&self.guardian.ended, PollFlags::IN),
        ];
        fds.extend(self.client.as_ref().map(|client| PollFd::new(client, PollFlags::IN)));
        rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout))).doing("wait for questions")?;
        let is = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
        Ok((is(0), is(2), is(1)))
    }

    /// Nobody asks, and nobody is kept anything for.
    fn is_forsaken(&mut self) -> bool {
        let alive = self.enforcer.report().is_ok_and(|report| report.vtms.iter().any(|vtm| vtm.jobs > 0));
        if self.client.is_some() || alive {
            self.lonely_since = None;
            return false;
        }
        self.lonely_since.get_or_insert_with(Instant::now).elapsed() >= IDLE
    }

    /// Answers the client. `false`: that was to be the end.
    fn answer(&mut self) -> Result<bool> {
        let Some(client) = self.client.take() else { return Ok(true) };
        let timed = client.set_read_timeout(Some(CLIENT_TIMEOUT));
        timed.and_then(|()| client.set_write_timeout(Some(CLIENT_TIMEOUT))).doing("bound a client's time")?;
        // One that has gone, or talks nonsense, is let go; what is in force stays.
        let Ok(request) = protocol::receive::<Request>(&client) else { return Ok(true) };
        let stops = matches!(request, Request::Stop);
        let response = self.respond(request).unwrap_or_else(|error| Response::refused(&error));
        if stops {
            // Given back first, then answered.
            self.enforcer.release()?;
        }
        if protocol::send(&client, &response).is_ok() {
            self.client = Some(client);
        }
        Ok(!stops)
    }

    fn respond(&mut self, request: Request) -> Result<Response> {
        Ok(match request {
            Request::Hello { .. } => Response::Hello {
                version: VERSION,
                kind: self.kind,
                ability: self.enforcer.ability().clone(),
                pid: std::process::id(),
                guardian: self.guardian.child.id(),
            },
            Request::Prepare(plan) => {
                let prepared = self.enforcer.prepare(&plan)?;
                self.prepared = Some(plan);
                Response::Prepared(prepared)
            }
            Request::Commit(prepared) => {
                let committed = self.enforcer.commit(&prepared)?;
                let plan = self.prepared.take().unwrap_or_default();
                self.before = Some(std::mem::replace(&mut self.in_force, plan));
                Response::Committed(committed)
            }
            Request::RollBack => {
                let committed = self.enforcer.roll_back()?;
                self.in_force = self.before.take().unwrap_or_default();
                Response::Committed(committed)
            }
            Request::Effect { at_most_ms } => {
                let at_most = Duration::from_millis(at_most_ms.min(MAX_EFFECT_MS));
                Response::Effect(self.enforcer.effect(at_most)?)
            }
            Request::Report => Response::Report(self.enforcer.report()?),
            Request::Scan => {
                self.enforcer.scan()?;
                Response::Done
            }
            Request::Release => {
                self.enforcer.release()?;
                (self.in_force, self.before) = (Plan::default(), None);
                Response::Done
            }
            Request::InForce => Response::Plan(self.in_force.clone()),
            Request::Stop => Response::Done,
        })
    }
}

/// Whether the other end is of our user: what it asks for, it may do itself.
fn trusted(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}
