//! The loop of a server: one thread that waits for all its consumers, for the daemon, and for what
//! its services wait for.

use super::core::{Bound, Core, MAX_SERVICES, Source, describe};
use super::service::{LinkId, Readiness, Service};
use crate::control::{Control, ControlError};
use ring::Spin;
use rustix::event::epoll::{self, Event, EventFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use thiserror::Error;
use wire::control::ServedService;

/// Events fetched at once; more wait in the kernel for the next turn.
const EVENTS: usize = 64;
/// While links keep the loop busy, how long before it looks at its descriptors again.
const LOOK_WHEN_BUSY: Duration = Duration::from_micros(50);
/// The same while it only spins: a fetch costs a fraction of it.
const LOOK_WHEN_SPINNING: Duration = Duration::from_micros(5);
/// A consumer that reads none of its queued answers for so long is thrown out.
pub const STALL_LIMIT: Duration = Duration::from_secs(30);

/// Why a server can't go on.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The kernel gave no epoll instance, or waiting on it failed.
    #[error("the server can't wait for its consumers")]
    Wait(#[source] io::Error),
    /// The daemon can't be reached, or refused.
    #[error("the server can't serve")]
    Control(#[from] ControlError),
    /// A service can't go on.
    #[error("service {name} can't go on: {reason}")]
    Over {
        /// Its name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// A service can't be made with its settings.
    #[error("service {name} of kind {kind} can't be served: {reason}")]
    Service {
        /// Its name.
        name: String,
        /// Its kind.
        kind: String,
        /// Why not.
        reason: String,
    },
}

/// Makes a service from its admitted settings, or says why it can't.
pub type Make<'m> = Box<dyn FnMut(&ServedService) -> Result<Box<dyn Service>, String> + 'm>;

/// How a server has announced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    /// As the server of its domain: the daemon says which services.
    Host,
    /// As a program that offers the service of this name, of kind `program`.
    Program(String),
}

/// How long [`serve_program`] waits for the node's daemon.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A service that is being served.
pub(super) struct Served {
    /// As the daemon described it last.
    pub told: ServedService,
    /// The greeting of its consumers, encoded.
    pub hello: Vec<u8>,
    /// Itself.
    pub service: Box<dyn Service>,
}

impl Role {
    /// Tells a daemon; what to serve comes as a notice. `serving`: an earlier one has been told,
    /// and there may be consumers.
    pub(super) fn announce(&self, control: &mut Control, serving: bool) -> Result<(), ControlError> {
        match self {
            Self::Host => control.ask_serve(),
            Self::Program(name) => control.ask_offer_in_turn(name, serving),
        }
    }
}

/// A server: its services and their consumers.
pub struct Server<'m> {
    pub(super) core: Core,
    pub(super) services: Vec<Served>,
    pub(super) make: Make<'m>,
    pub(super) control: Control,
    pub(super) role: Role,
    pub(super) folder: Option<crate::control::FolderWatch>,
    /// While there is no daemon: when to look for one.
    pub(super) look_for_daemon: Option<Instant>,
    pub(super) last_link: u64,
    /// Links that did not set their sleeping flag: looked at in every round.
    awake: Vec<LinkId>,
    message: Vec<u8>,
    spin: Spin,
    stopped: bool,
    /// Whether it has left its service, and waits to have it again.
    pub(super) stands_by: bool,
    stall_limit: Duration,
}

/// Serves whatever the daemon behind `control` places here, until `stop` becomes readable; without
/// a `stop`, for good. `make` makes each service once. The daemon's death is survived: the links
/// stay, and the next daemon is told.
///
/// # Errors
/// [`ServeError`]; the loss of the daemon is none.
pub fn serve(control: Control, make: Make<'_>, stop: Option<BorrowedFd<'_>>) -> Result<(), ServeError> {
    Server::new(control, make)?.run(stop)
}

/// Serves the service of kind `program` called `name`, which the topology places in this domain,
/// for good. The service is told its settings by [`Service::settings`] before its first consumer
/// comes. The daemon's death is survived, as by [`serve`].
///
/// # Errors
/// [`ServeError::Control`] with [`ControlError::Refused`]: the topology places no such service here
/// (`ENOENT`, `EPERM`), or another program offers it (`EBUSY`); with [`ControlError::Withdrawn`]:
/// the file places it elsewhere now. [`ServeError::Service`]: it refuses its first settings.
pub fn serve_program(name: &str, service: impl Service + 'static) -> Result<(), ServeError> {
    let control = Control::connect_when_there(&Control::path(), Some(Instant::now() + TIMEOUT))?;
    Server::offering(control, name, Box::new(service))?.run(None)
}

impl Server<'static> {
    /// A server that has offered the service of kind `program` called `name`. It is told its
    /// settings before its first consumer comes.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn offering(control: Control, name: &str, service: Box<dyn Service>) -> Result<Self, ServeError> {
        let mut service = Some(service);
        let make = move |_: &ServedService| service.take().ok_or_else(|| "it was made before".to_owned());
        Server::announced(control, Box::new(make), Role::Program(name.to_owned()))
    }
}

impl<'m> Server<'m> {
    /// A server that has announced itself.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn new(control: Control, make: Make<'m>) -> Result<Self, ServeError> {
        Self::announced(control, make, Role::Host)
    }

    fn announced(mut control: Control, make: Make<'m>, role: Role) -> Result<Self, ServeError> {
        allow_descriptors();
        let core = Core::new().map_err(ServeError::Wait)?;
        role.announce(&mut control, false)?;
        core.watch_source(&control, Source::Control).map_err(ServeError::Wait)?;
        Ok(Self {
            core,
            services: Vec::new(),
            make,
            control,
            role,
            folder: None,
            look_for_daemon: None,
            last_link: 0,
            awake: Vec::new(),
            message: Vec::new(),
            spin: Spin::default(),
            stopped: false,
            stands_by: false,
            stall_limit: STALL_LIMIT,
        })
    }

    /// Throws consumers out that read none of their queued answers for `limit` ([`STALL_LIMIT`]
    /// unless set).
    pub fn set_stall_limit(&mut self, limit: Duration) {
        self.stall_limit = limit;
    }

    /// Serves until `stop` becomes readable.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn run(&mut self, stop: Option<BorrowedFd<'_>>) -> Result<(), ServeError> {
        if let Some(stop) = stop {
            self.core.watch_source(stop, Source::Stop).map_err(ServeError::Wait)?;
        }
        let mut looked = Instant::now();
        while !self.stopped {
            self.core.now = Instant::now();
            let busy = self.turn();
            self.expire();
            self.part()?;
            self.go_on()?;
            if busy {
                if self.core.now.duration_since(looked) >= LOOK_WHEN_BUSY {
                    self.fetch(Some(Duration::ZERO))?;
                    looked = self.core.now;
                }
                continue;
            }
            if self.spin_for_more()? {
                continue;
            }
            if self.all_asleep() {
                self.fetch(self.time_left())?;
                looked = Instant::now();
            }
        }
        Ok(())
    }

    /// Whether all services can go on.
    fn go_on(&self) -> Result<(), ServeError> {
        let over = self.services.iter().find_map(|served| Some((served, served.service.over()?)));
        over.map_or(Ok(()), |(served, reason)| {
            Err(ServeError::Over { name: served.told.name.clone(), reason: reason.to_owned() })
        })
    }

    /// Gives each link that may have something its turn. Whether any of them had.
    fn turn(&mut self) -> bool {
        let mut busy = false;
        for at in 0..self.awake.len() {
            let Some(&id) = self.awake.get(at) else { break };
            busy |= self.serve_link(id);
            self.throw_out();
        }
        self.awake.retain(|id| self.core.links.contains_key(id));
        busy
    }

    fn serve_link(&mut self, id: LinkId) -> bool {
        super::turn::serve_link(&mut self.core, &mut self.services, &mut self.message, id)
    }

    /// Wakes a link: from now on it is looked at in every round.
    pub(super) fn wake(&mut self, id: LinkId) {
        let Some(link) = self.core.links.get_mut(&id) else { return };
        if link.asleep {
            link.asleep = false;
            link.receiver.cancel_wait();
        }
        if !self.awake.contains(&id) {
            self.awake.push(id);
        }
    }

    /// Looks again for as long as sleeping and being woken would cost, where that can pay.
    fn spin_for_more(&mut self) -> Result<bool, ServeError> {
        let apart = |id: &LinkId| self.core.links.get(id).is_some_and(|link| link.receiver.is_peer_apart());
        if self.awake.is_empty() || !self.awake.iter().all(apart) {
            return Ok(false);
        }
        let budget = Duration::from_nanos(self.spin.begin());
        let start = Instant::now();
        let mut looked = start;
        while self.core.now.duration_since(start) < budget {
            self.core.now = Instant::now();
            let mut found = self.turn();
            if !found && self.core.now.duration_since(looked) >= LOOK_WHEN_SPINNING {
                looked = self.core.now;
                found = self.fetch(Some(Duration::ZERO))?;
            }
            if found || self.stopped {
                self.spin.end(true);
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        if !budget.is_zero() {
            self.spin.end(false);
        }
        Ok(false)
    }

    /// Sets every sleeping flag. False: something came in between.
    fn all_asleep(&mut self) -> bool {
        while let Some(id) = self.awake.pop() {
            let Some(link) = self.core.links.get_mut(&id) else { continue };
            // A consumer that does not read its answers is not listened to; its room doorbell wakes
            // it. Nor is anybody whom this leaves.
            if link.is_stalled() || self.core.leaving.is_some() {
                continue;
            }
            if !link.receiver.prepare_wait() {
                self.awake.push(id);
                return false;
            }
            link.asleep = true;
        }
        true
    }

    fn time_left(&self) -> Option<Duration> {
        let services = self.services.iter().filter_map(|served| served.service.deadline());
        let stalls = self.core.links.values().filter_map(|link| link.stalled_since());
        let stalls = stalls.map(|since| since + self.stall_limit);
        let leaving = self.core.leaving.filter(|_| !self.core.links.is_empty());
        let first = services.chain(stalls).chain(self.look_for_daemon).chain(leaving).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    /// Tells services and stalled links that their time is over.
    fn expire(&mut self) {
        let now = self.core.now;
        for (number, served) in self.services.iter_mut().enumerate() {
            if served.service.deadline().is_some_and(|deadline| deadline <= now) {
                served.service.expired(&mut Bound { core: &mut self.core, service: number });
            }
        }
        self.throw_out();
        if self.look_for_daemon.is_some_and(|when| when <= now) {
            self.find_daemon();
        }
    }

    /// Throws out the consumers that have read nothing for too long.
    fn give_up_stalled(&mut self) {
        let (now, limit) = (self.core.now, self.stall_limit);
        let stalled = self.core.links.values().filter(|link| {
            link.stalled_since().is_some_and(|since| now.saturating_duration_since(since) >= limit)
        });
        let reason = || format!("it reads none of its answers for {limit:?}");
        self.core.doomed.extend(stalled.map(|link| (link.id, reason())));
        self.throw_out();
    }

    /// Fetches events, waiting for them at most `timeout`, and deals with them. Whether there were
    /// any.
    fn fetch(&mut self, timeout: Option<Duration>) -> Result<bool, ServeError> {
        let empty = Event { flags: EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; EVENTS];
        let timeout = timeout.map(crate::wait::timespec);
        let count = match epoll::wait(self.core.epoll(), &mut events, timeout.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(errno) => return Err(ServeError::Wait(errno.into())),
        };
        self.core.now = Instant::now();
        for event in events.iter().take(count) {
            let data = event.data;
            if let Some(source) = Source::decode(data.u64()) {
                self.happened(source, event.flags)?;
                self.throw_out();
            }
        }
        self.give_up_stalled();
        Ok(count > 0)
    }

    fn happened(&mut self, source: Source, flags: EventFlags) -> Result<(), ServeError> {
        match source {
            Source::Stop => self.stopped = true,
            Source::Control => self.hear_daemon()?,
            Source::Folder => self.find_daemon(),
            Source::Data(id) => {
                self.wake(id);
                if let Some(link) = self.core.links.get_mut(&id)
                    && let Err(error) = link.receiver.drain_doorbell()
                {
                    self.core.doomed.push((id, describe(&error)));
                }
            }
            Source::Room(id) => self.room(id),
            Source::Service { service, token } => {
                if let Some(served) = self.services.get_mut(service) {
                    let readiness = Readiness {
                        readable: flags.contains(EventFlags::IN),
                        writable: flags.contains(EventFlags::OUT),
                        error: flags.intersects(EventFlags::ERR | EventFlags::HUP),
                    };
                    served.service.ready(&mut Bound { core: &mut self.core, service }, token, readiness);
                }
            }
        }
        Ok(())
    }

    fn room(&mut self, id: LinkId) {
        let now = self.core.now;
        let Some(link) = self.core.links.get_mut(&id) else { return };
        let result = link.hear_room().and_then(|()| link.flush(now));
        let told = link.owes_room && !link.is_stalled();
        let service = link.service;
        if told {
            link.owes_room = false;
        }
        self.core.sent(id, result);
        if let (true, Some(served)) = (told, self.services.get_mut(service)) {
            served.service.room(&mut Bound { core: &mut self.core, service }, id);
        }
        self.wake(id);
    }

    /// Lets go of the consumers that are to be thrown out, and tells their services.
    pub(super) fn throw_out(&mut self) {
        while let Some((id, reason)) = self.core.doomed.pop() {
            let Some(link) = self.core.links.remove(&id) else { continue };
            let consumer = &link.consumer;
            tracing::debug!(
                domain = consumer.domain,
                entrance = consumer.entrance,
                channel = link.channel,
                reason,
                "a consumer is detached"
            );
            self.core.unwatch_source(link.receiver.descriptors().doorbell);
            self.core.unwatch_source(link.room_doorbell());
            if let Some(served) = self.services.get_mut(link.service) {
                served.service.detach(&mut Bound { core: &mut self.core, service: link.service }, id);
            }
        }
    }

    /// Whether one more service can be numbered.
    pub(super) fn has_place(&self) -> bool {
        self.services.len() < MAX_SERVICES
    }
}

/// A link takes six descriptors, and the usual soft limit is 1024: takes what the hard limit
/// allows.
fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(errno) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%errno, "can't raise the limit of open descriptors");
    }
}
