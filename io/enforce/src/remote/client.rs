//! The client: the same trait, in another process. It starts a dispatcher where there is none, and
//! finds the one that there is.

use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::protocol::{self, Request, Response, VERSION};
use crate::enforcer::{Ability, Committed, Effect, Enforcer, Kind, Prepared, Report};
use crate::error::{Context, EnforceError, Result};
use crate::plan::Plan;

/// How long an answer may take: longer than the dispatcher waits for anything.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How to start a dispatcher, and where it is.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program that has this crate's roles.
    pub program: PathBuf,
    /// The folder of its socket and ledger.
    pub folder: PathBuf,
    /// The cgroup of those that it makes.
    pub group: String,
    /// The kind of enforcement that it is to do.
    pub kind: Kind,
}

/// An enforcer in a process of its own.
#[derive(Debug)]
pub struct Client {
    launch: Launch,
    stream: UnixStream,
    ability: Ability,
    pid: u32,
    guardian: u32,
}

impl Client {
    /// Finds the dispatcher of that folder, or starts one. One of another kind or version gives
    /// everything back first, and ends.
    ///
    /// # Errors
    /// Where it does not come up, with what it said.
    pub fn start(launch: Launch) -> Result<Self> {
        if let Ok(stream) = UnixStream::connect(launch.folder.join("dispatcher.sock")) {
            match Self::greet(launch.clone(), stream) {
                Ok(client) if client.ability.kind == launch.kind => return Ok(client),
                Ok(mut other) => drop(other.ask(&Request::Stop)?),
                Err(error) => tracing::info!(%error, "the dispatcher that was there is replaced"),
            }
        }
        let mut command = Command::new(&launch.program);
        command.arg(super::DISPATCHER_ROLE).arg(&launch.folder).arg(&launch.group).arg(launch.kind.name());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // One that is just ending holds its lock for some moments more.
        let end = Instant::now() + ANSWER_TIMEOUT;
        loop {
            let mut child = command.spawn().at("start", &launch.program)?;
            let mut said = String::new();
            if let Some(out) = child.stdout.take() {
                BufReader::new(out).read_line(&mut said).doing("hear of the dispatcher")?;
            }
            if said.trim_end() == "up" {
                // Whose child it is does not matter to it; when it ends, somebody has to wait for
                // it.
                std::thread::spawn(move || child.wait());
                break;
            }
            let mut why = String::new();
            if let Some(err) = child.stderr.take() {
                BufReader::new(err).read_line(&mut why).doing("hear why")?;
            }
            child.wait().doing("see the dispatcher end")?;
            if !why.contains("dispatcher.lock") || Instant::now() > end {
                return Err(EnforceError::Dispatcher(format!("it did not come up: {}", why.trim_end())));
            }
        }
        let path = launch.folder.join("dispatcher.sock");
        let stream = UnixStream::connect(&path).at("connect to", path)?;
        Self::greet(launch, stream)
    }

    fn greet(launch: Launch, stream: UnixStream) -> Result<Self> {
        let timed = stream.set_read_timeout(Some(ANSWER_TIMEOUT));
        timed.and_then(|()| stream.set_write_timeout(Some(ANSWER_TIMEOUT))).doing("bound the wait")?;
        protocol::send(&stream, &Request::Hello { version: VERSION })?;
        match protocol::receive(&stream)? {
            Response::Hello { version: VERSION, ability, pid, guardian, .. } => {
                Ok(Self { launch, stream, ability, pid, guardian })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The process that looks after it, as it was at the start.
    #[must_use]
    pub fn guardian(&self) -> u32 {
        self.guardian
    }

    /// The plan that is in force: what a daemon that has just started finds.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn in_force(&mut self) -> Result<Plan> {
        match self.ask(&Request::InForce)? {
            Response::Plan(plan) => Ok(plan),
            other => Err(unexpected(&other)),
        }
    }

    /// Has it give everything back, and end; its guardian, too. When this returns, both are gone,
    /// and their folder is nobody's.
    ///
    /// # Errors
    /// Where it does not answer, or does not end.
    pub fn stop(mut self) -> Result<()> {
        // There may be another guardian than at the start.
        if let Response::Hello { guardian, .. } = self.ask(&Request::Hello { version: VERSION })? {
            self.guardian = guardian;
        }
        // One that has ended by now is not waited for.
        let both = [self.pid, self.guardian].map(sys::process::pidfd_open);
        self.ask(&Request::Stop)?;
        both.into_iter().flatten().try_for_each(|process| ended(&process))
    }

    /// Starts another one where this one is dead. What was in force is not: prepare and commit it
    /// again.
    ///
    /// # Errors
    /// As [`Client::start`].
    pub fn restart(&mut self) -> Result<()> {
        *self = Self::start(self.launch.clone())?;
        Ok(())
    }

    fn ask(&mut self, request: &Request) -> Result<Response> {
        protocol::send(&self.stream, request)?;
        match protocol::receive(&self.stream)? {
            Response::Refused { stale: true, .. } => Err(EnforceError::Stale),
            Response::Refused { nothing: true, .. } => Err(EnforceError::NothingToUndo),
            Response::Refused { why, .. } => Err(EnforceError::Dispatcher(why)),
            response => Ok(response),
        }
    }

    fn committed(&mut self, request: &Request) -> Result<Committed> {
        let begun_ns = sys::clock::clock_ns();
        let _boost = crate::boost::Boost::begin();
        match self.ask(request)? {
            Response::Committed(committed) => {
                Ok(Committed { commit_ns: sys::clock::clock_ns() - begun_ns, ..committed })
            }
            other => Err(unexpected(&other)),
        }
    }

    fn done(&mut self, request: &Request) -> Result<()> {
        match self.ask(request)? {
            Response::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// Waits for the end of a process.
fn ended(process: &OwnedFd) -> Result<()> {
    let timeout = Timespec { tv_sec: ANSWER_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
    let mut wait = [PollFd::new(process, PollFlags::IN)];
    let seen = rustix::io::retry_on_intr(|| poll(&mut wait, Some(&timeout)));
    match seen.doing("wait for the end of a dispatcher")? {
        0 => Err(EnforceError::Lost("it was asked to end, and does not".to_owned())),
        _ => Ok(()),
    }
}

fn unexpected(response: &Response) -> EnforceError {
    let mut text = format!("{response:?}");
    text.truncate(text.char_indices().map(|(at, _)| at).take_while(|at| *at <= 100).last().unwrap_or(0));
    EnforceError::Dispatcher(format!("it answered something else: {text}"))
}

impl Enforcer for Client {
    fn kind(&self) -> Kind {
        self.ability.kind
    }

    fn ability(&self) -> &Ability {
        &self.ability
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Prepared> {
        plan.check()?;
        match self.ask(&Request::Prepare(plan.clone()))? {
            Response::Prepared(prepared) => Ok(prepared),
            other => Err(unexpected(&other)),
        }
    }

    fn commit(&mut self, prepared: &Prepared) -> Result<Committed> {
        self.committed(&Request::Commit(prepared.clone()))
    }

    fn roll_back(&mut self) -> Result<Committed> {
        self.committed(&Request::RollBack)
    }

    fn effect(&mut self, at_most: Duration) -> Result<Effect> {
        let end = Instant::now() + at_most;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let at_most_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            match self.ask(&Request::Effect { at_most_ms })? {
                Response::Effect(effect) if effect.after_ns.is_some() || left.is_zero() => return Ok(effect),
                Response::Effect(_) => {}
                other => return Err(unexpected(&other)),
            }
        }
    }

    fn report(&mut self) -> Result<Report> {
        match self.ask(&Request::Report)? {
            Response::Report(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    fn scan(&mut self) -> Result<()> {
        self.done(&Request::Scan)
    }

    fn release(&mut self) -> Result<()> {
        self.done(&Request::Release)
    }
}
