//! Offering a channel to programs of other domains, or a service with files to their consumers.

use super::awaiting::{FolderWatch, LOOK_AGAIN};
use super::client::{Control, ControlError, Notice};
use crate::wait::{timespec, wait_readable};
use channel::End;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use serde_json::Value;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use sys::known::Known;
use wire::control::{Consumer, Event, ServedService};

/// How long [`offer_channel`] waits for the node's daemon.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Offers the channel service `name` of this domain: from now on programs of other domains can open
/// it.
///
/// # Errors
/// [`ControlError::Refused`]: the topology places no such channel in this domain (`ENOENT`, `EPERM`), or another program offers it
/// already (`EBUSY`). [`ControlError`] for what else there is.
pub fn offer_channel(name: &str) -> Result<Offer, ControlError> {
    Offer::at(&Control::path(), name, Instant::now() + TIMEOUT)
}

/// An event of the service that a program offers.
#[derive(Debug)]
pub enum OfferEvent {
    /// Somebody consumes it.
    Consumer {
        /// Our end of the channel.
        end: End,
        /// The consumer's identity, as the daemon states it.
        consumer: Consumer,
        /// Number of the channel on this node, as the state tree shows it.
        channel: u64,
    },
    /// The settings changed: all of them, as admitted. Those that an offer begins with are
    /// [`Offer::service`]'s.
    Settings(Value),
    /// The verbs of a domain have changed; this holds for consumers of it that are there already.
    Verbs {
        /// The domain's name.
        domain: String,
        /// All that it may do now.
        verbs: Vec<String>,
    },
}

/// A channel service, or a service of kind `program`, that this program offers, until this is
/// dropped. Channels that were accepted live on.
///
/// Its descriptor ([`AsFd`]) stays the same as long as it lives, and becomes readable when there
/// may be somebody to accept. The death of the node's daemon is no error: the next daemon is told
/// of the offer as soon as it is there, by whoever accepts.
#[derive(Debug)]
pub struct Offer {
    service: ServedService,
    control: Control,
    /// Gathers what can happen behind one descriptor.
    events: Known,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The daemon is there.
    Offered,
    /// The daemon is gone; these tell when to look for the next one.
    Away { folder: Option<FolderWatch>, timer: Known },
    /// It was refused or taken away for good; the errno and why. No errno: it was withdrawn.
    Over { errno: Option<i32>, message: String },
}

impl Offer {
    /// Offers over the control socket at `path`, and waits for a daemon until the deadline.
    ///
    /// # Errors
    /// As [`offer_channel`].
    pub fn at(path: &Path, name: &str, deadline: Instant) -> Result<Self, ControlError> {
        let mut control = Control::connect_when_there(path, Some(deadline))?;
        let service = control.offer(name, deadline)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(ControlError::Watch)?;
        let events = Known::new(events);
        watch(&events, &control)?;
        Ok(Self { service, control, events, state: State::Offered })
    }

    /// Name of the service.
    pub fn name(&self) -> &str {
        &self.service.name
    }

    /// The service: its kind, and its settings as this has heard of them.
    pub fn service(&self) -> &ServedService {
        &self.service
    }

    /// Waits for the next program that opens the channel: our end, and who it is, as the daemon
    /// says. What else happens is passed over: new settings are those of new channels, which bring
    /// them along.
    ///
    /// # Errors
    /// [`ControlError::Deadline`]; [`ControlError::Withdrawn`] and [`ControlError::Refused`]: the
    /// offer is over. What else the control socket can do.
    pub fn accept(&mut self, deadline: Option<Instant>) -> Result<(End, Consumer), ControlError> {
        loop {
            if let OfferEvent::Consumer { end, consumer, .. } = self.next_event(deadline)? {
                return Ok((end, consumer));
            }
        }
    }

    /// The next program that has opened the channel, if there is one now.
    ///
    /// # Errors
    /// As [`Offer::accept`], but for the deadline.
    pub fn try_accept(&mut self) -> Result<Option<(End, Consumer)>, ControlError> {
        loop {
            match self.try_event()? {
                Some(OfferEvent::Consumer { end, consumer, .. }) => return Ok(Some((end, consumer))),
                Some(OfferEvent::Settings(_) | OfferEvent::Verbs { .. }) => {}
                None => return Ok(None),
            }
        }
    }

    /// Waits for the next thing that happens: consumers, settings, verbs.
    ///
    /// # Errors
    /// As [`Offer::accept`].
    pub fn next_event(&mut self, deadline: Option<Instant>) -> Result<OfferEvent, ControlError> {
        loop {
            if let Some(event) = self.try_event()? {
                return Ok(event);
            }
            let events = self.events.look().map_err(ControlError::Wait)?;
            if !wait_readable(events, deadline).map_err(ControlError::Wait)? {
                return Err(ControlError::Deadline);
            }
        }
    }

    /// The next thing that has happened, if something has.
    ///
    /// # Errors
    /// As [`Offer::accept`], but for the deadline.
    pub fn try_event(&mut self) -> Result<Option<OfferEvent>, ControlError> {
        loop {
            match &self.state {
                State::Offered => {}
                State::Away { .. } => {
                    if !self.find_daemon()? {
                        return Ok(None);
                    }
                }
                State::Over { errno: Some(errno), message } => {
                    return Err(ControlError::Refused { errno: *errno, message: message.clone() });
                }
                State::Over { errno: None, message } => return Err(ControlError::Withdrawn(message.clone())),
            }
            match self.control.next_notice() {
                Ok(None) => return Ok(None),
                Ok(Some(notice)) => {
                    if let Some(event) = self.noticed(notice) {
                        return Ok(Some(event));
                    }
                }
                Err(error) if error.is_gone() => self.await_daemon()?,
                Err(error) => tracing::warn!(%error, "a packet of the daemon was dropped"),
            }
        }
    }

    /// Returns the event by which the program is told of a notice, if there is one.
    fn noticed(&mut self, notice: Notice) -> Option<OfferEvent> {
        match notice {
            Notice::Attach { service, consumer, end, channel, .. } if service == self.service.name => {
                return Some(OfferEvent::Consumer { end, consumer, channel });
            }
            Notice::Event(Event::Settings { service, settings }) if service == self.service.name => {
                return self.settings(settings);
            }
            Notice::Event(Event::Verbs { service, domain, verbs }) if service == self.service.name => {
                return Some(OfferEvent::Verbs { domain, verbs });
            }
            // The next daemon has taken the offer, perhaps with other settings than the one before.
            Notice::Serving(services) => {
                let own = services.into_iter().find(|served| served.name == self.service.name);
                return own.and_then(|served| self.settings(served.settings));
            }
            Notice::Refused { errno, message } => self.state = State::Over { errno: Some(errno), message },
            Notice::Event(Event::Withdrawn { service, message }) if service == self.service.name => {
                self.state = State::Over { errno: None, message };
            }
            // The rest is for servers, frontends and endpoints.
            _ => {}
        }
        None
    }

    fn settings(&mut self, settings: Value) -> Option<OfferEvent> {
        let changed = self.service.settings != settings;
        self.service.settings.clone_from(&settings);
        changed.then_some(OfferEvent::Settings(settings))
    }

    /// Begins to look for the next daemon.
    fn await_daemon(&mut self) -> Result<(), ControlError> {
        // The connection that is lost would ring for ever.
        let deleted = self.events.look().and_then(|events| epoll::delete(events, &self.control));
        match deleted {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(ControlError::Watch(errno)),
        }
        let folder = self.control.watch_for_daemon();
        let timer = timer().map_err(ControlError::Watch)?;
        watch(&self.events, &timer)?;
        if let Some(folder) = &folder {
            watch(&self.events, folder)?;
        }
        self.state = State::Away { folder, timer };
        Ok(())
    }

    /// Connects to the next daemon if it is there, and tells it of the offer.
    fn find_daemon(&mut self) -> Result<bool, ControlError> {
        if let State::Away { folder, timer } = &self.state {
            if let Some(folder) = folder {
                folder.drain();
            }
            let mut expirations = Vec::with_capacity(size_of::<u64>());
            let read =
                timer.look().and_then(|timer| rustix::io::read(timer, spare_capacity(&mut expirations)));
            match read {
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(ControlError::Wait(errno)),
            }
        }
        if !self.control.try_reconnect()? {
            return Ok(false);
        }
        if let Err(error) = self.control.ask_offer(&self.service.name) {
            // It went again: the timer and the folder still tell of the next one.
            return if error.is_gone() { Ok(false) } else { Err(error) };
        }
        watch(&self.events, &self.control)?;
        // Closed, they ring no more.
        self.state = State::Offered;
        Ok(true)
    }
}

impl AsFd for Offer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

fn watch(events: &Known, source: impl AsFd) -> Result<(), ControlError> {
    let data = epoll::EventData::new_u64(0);
    let added = events.look().and_then(|events| epoll::add(events, source, data, epoll::EventFlags::IN));
    added.map_err(ControlError::Watch)
}

/// Rings every [`LOOK_AGAIN`].
fn timer() -> Result<Known, Errno> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let every = timespec(LOOK_AGAIN);
    let times = Itimerspec { it_interval: every, it_value: every };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)?;
    Ok(Known::new(timer))
}
