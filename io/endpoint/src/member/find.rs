//! Finding other endpoints: the daemon introduces those that may call each other.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use wire::control::{MAX_WAIT_MS, Request};
use wire::ipc::Address;

use super::{Answer, Member, NAME_BYTES_MAX, RETRY, Ticket, on_wire};
use crate::{Endpoint, Failed, Step};

/// The endpoint to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom<'a> {
    /// The endpoint that has this name now.
    Name(&'a str),
    /// This very one.
    Address(Address),
}

impl<'a> From<&'a str> for Whom<'a> {
    fn from(name: &'a str) -> Self {
        Whom::Name(name)
    }
}

impl From<Address> for Whom<'_> {
    fn from(address: Address) -> Self {
        Whom::Address(address)
    }
}

impl Whom<'_> {
    fn on_wire(self) -> wire::control::Whom {
        match self {
            Whom::Name(name) => wire::control::Whom::Name(name.to_owned()),
            Whom::Address(address) => wire::control::Whom::Address(on_wire(address)),
        }
    }
}

/// Why an endpoint was not found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// This endpoint was made by hand, and knows only those that it was introduced to.
    #[error(
        "this endpoint was made without a daemon, and was not introduced to that one: introduce it by hand"
    )]
    NoDaemon,
    /// Nobody has bound it.
    #[error("{message}")]
    NotBound {
        /// The daemon's message.
        message: String,
    },
    /// There is none of this name, or none that this endpoint may know of.
    #[error("{message}")]
    Unknown {
        /// The daemon's message, with the name that may have been meant.
        message: String,
    },
    /// It may not call this one, nor this one it.
    #[error("{message}")]
    NotAllowed {
        /// The daemon's message.
        message: String,
    },
    /// It is this endpoint itself.
    #[error("{message}")]
    Oneself {
        /// The daemon's message.
        message: String,
    },
    /// Another generation has its place.
    #[error("{message}")]
    WrongGeneration {
        /// The daemon's message.
        message: String,
    },
    /// There are as many pairs, or bytes, as there may be.
    #[error("{message}")]
    Limit {
        /// The daemon's message: it names the key of the topology file.
        message: String,
    },
    /// Refused for another reason.
    #[error("{message}")]
    Refused {
        /// The errno that fits.
        errno: i32,
        /// The daemon's message.
        message: String,
    },
    /// The channel to it can't be used.
    #[error("an endpoint was introduced to this one, but can't be spoken to: {why}")]
    Unusable {
        /// Why.
        why: String,
    },
    /// The time was over first.
    #[error("the endpoint was not found in time{}", .last.as_ref().map(|last| format!(": {last}")).unwrap_or_default())]
    TimedOut {
        /// The last obstacle.
        last: Option<String>,
    },
}

/// A search for an endpoint, in steps ([`Endpoint::step_find`]).
#[derive(Debug)]
pub struct Find {
    whom: Sought,
    waits: bool,
    asked: Option<Ticket>,
    /// Not before.
    again_at: Option<Instant>,
    last: Option<String>,
}

/// [`Whom`], owned.
#[derive(Clone, Debug)]
enum Sought {
    Name(String),
    Address(Address),
}

impl Find {
    /// A search that was not begun yet. `waits`: until it is bound; else it has to be bound.
    #[must_use]
    pub fn new<'a>(whom: impl Into<Whom<'a>>, waits: bool) -> Find {
        let whom = match whom.into() {
            Whom::Name(name) => Sought::Name(name.to_owned()),
            Whom::Address(address) => Sought::Address(address),
        };
        Find { whom, waits, asked: None, again_at: None, last: None }
    }

    fn whom(&self) -> Whom<'_> {
        match &self.whom {
            Sought::Name(name) => Whom::Name(name),
            Sought::Address(address) => Whom::Address(*address),
        }
    }

    fn is_too_long(&self) -> bool {
        matches!(&self.whom, Sought::Name(name) if name.len() > NAME_BYTES_MAX)
    }

    /// The question to the daemon that is under way.
    pub(crate) fn asked(&self) -> Option<Ticket> {
        self.asked
    }

    /// Handles an answer of the daemon; `None` if it does not end the search.
    fn answered(&mut self, answer: Answer) -> Option<Result<Address, FindError>> {
        self.asked = None;
        let (errno, message) = match answer {
            Answer::Introduced(Ok(address)) => return Some(Ok(address)),
            Answer::Introduced(Err(why)) => return Some(Err(FindError::Unusable { why })),
            Answer::Refused { errno, message } => (errno, message),
            Answer::Lost => return None,
            _ => (Errno::PROTO, "the daemon sent an answer of another kind".to_owned()),
        };
        let error = match errno {
            // Changed minds, and waits that were cut short.
            Errno::CANCELED => return None,
            Errno::TIMEDOUT if self.waits => return None,
            // It was introduced by the other one, and the event is on its way; or it does not read
            // its events now.
            Errno::ALREADY | Errno::AGAIN => return self.again(message),
            Errno::NOTCONN if self.waits => return self.again(message),
            Errno::NOTCONN | Errno::TIMEDOUT => FindError::NotBound { message },
            Errno::NOENT => FindError::Unknown { message },
            Errno::PERM | Errno::ACCESS => FindError::NotAllowed { message },
            Errno::INVAL => FindError::Oneself { message },
            Errno::STALE => FindError::WrongGeneration { message },
            Errno::USERS | Errno::MFILE | Errno::NOSPC => FindError::Limit { message },
            other => FindError::Refused { errno: other.raw_os_error(), message },
        };
        Some(Err(error))
    }

    fn again<T>(&mut self, message: String) -> Option<T> {
        self.last = Some(message);
        self.again_at = Some(Instant::now() + RETRY);
        None
    }
}

impl Endpoint {
    /// Where an endpoint is that is bound now: one that this endpoint knows already, or else the
    /// daemon introduces the two. `deadline`: for the daemon's answer, or for the next daemon where
    /// this one is away.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn find<'a>(
        &mut self,
        whom: impl Into<Whom<'a>>,
        deadline: Option<Instant>,
    ) -> Result<Address, Failed<FindError>> {
        self.search(&mut Find::new(whom, false), deadline)
    }

    /// The same, and waits until it is bound.
    ///
    /// # Errors
    /// See [`FindError`].
    pub fn wait_for_bind<'a>(
        &mut self,
        whom: impl Into<Whom<'a>>,
        deadline: Option<Instant>,
    ) -> Result<Address, Failed<FindError>> {
        self.search(&mut Find::new(whom, true), deadline)
    }

    fn search(&mut self, call: &mut Find, deadline: Option<Instant>) -> Result<Address, Failed<FindError>> {
        loop {
            let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            match self.step_find(call, late) {
                Ok(Step::Ready(address)) => return Ok(address),
                Ok(Step::Pending { again_at }) => {
                    let waited = self.await_daemon(again_at.into_iter().chain(deadline).min());
                    if let Err(trouble) = waited {
                        self.cancel_find(call);
                        return Err(trouble.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A step of a search, which does not wait. `late`: its deadline has passed.
    /// [`Endpoint::descriptor`] becomes readable when another step is worth it.
    ///
    /// # Errors
    /// See [`FindError`]; the search is over then.
    pub fn step_find(&mut self, call: &mut Find, late: bool) -> Result<Step<Address>, Failed<FindError>> {
        self.check_here()?;
        self.show_held();
        self.hear()?;
        if let Some(address) = self.known(call.whom()) {
            self.cancel_find(call);
            return Ok(Step::Ready(address));
        }
        let Some(member) = &mut self.member else { return Err(Failed::Call(FindError::NoDaemon)) };
        if let Some(message) = member.over() {
            return Err(Failed::Ended { why: message.to_owned() });
        }
        if let Some(answer) = call.asked.and_then(|ticket| member.answer(ticket))
            && let Some(found) = call.answered(answer)
        {
            return found.map(Step::Ready).map_err(Failed::Call);
        }
        if late {
            return Err(Failed::Call(give_up(call, member)));
        }
        if call.is_too_long() {
            let message = format!("no endpoint has a name of more than {NAME_BYTES_MAX} bytes");
            return Err(Failed::Call(FindError::Unknown { message }));
        }
        let now = Instant::now();
        if call.asked.is_none() && call.again_at.is_none_or(|at| at <= now) {
            call.again_at = None;
            call.asked = introduce(call, member);
            if call.asked.is_none() && member.is_up() {
                // The daemon does not read at the moment.
                call.again_at = Some(now + RETRY);
            }
        }
        Ok(Step::Pending { again_at: call.again_at.into_iter().chain(member.due()).min() })
    }

    /// Gives a search up that will not be stepped any more.
    pub fn cancel_find(&mut self, call: &mut Find) {
        if let (Some(member), Some(ticket)) = (&mut self.member, call.asked.take()) {
            member.forget(ticket);
        }
    }

    /// One that is known, and not known to have ended.
    fn known(&self, whom: Whom<'_>) -> Option<Address> {
        let is_it = |address: Address, name: Option<&str>| match whom {
            Whom::Name(sought) => name == Some(sought),
            Whom::Address(sought) => address == sought,
        };
        let known = self.pairs.infos().filter(|info| is_it(info.address, info.name.as_deref()));
        known.map(|info| info.address).find(|address| self.pairs.is_alive(*address))
    }
}

fn introduce(call: &Find, member: &mut Member) -> Option<Ticket> {
    let (endpoint, to) = (member.slot(), call.whom().on_wire());
    let wait_ms = if call.waits { MAX_WAIT_MS } else { 0 };
    member.ask(|id| Request::Introduce { id, endpoint, to, wait_ms })
}

fn give_up(call: &mut Find, member: &mut Member) -> FindError {
    if let Some(ticket) = call.asked.take() {
        member.forget(ticket);
    }
    let away = || (!member.is_up()).then(|| "the node's daemon is away".to_owned());
    FindError::TimedOut { last: call.last.take().or_else(away) }
}

impl Endpoint {
    /// Waits until the daemon's connection has news, the time is over, or the endpoint is
    /// interrupted.
    pub(crate) fn await_daemon(&mut self, until: Option<Instant>) -> Result<(), crate::failed::Trouble> {
        use rustix::event::{PollFd, PollFlags, poll};
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let control = self.member.as_ref().and_then(Member::descriptor);
        let interrupter = self.interrupter.as_ref().map(|interrupter| interrupter.descriptor());
        let mut polled: Vec<PollFd<'_>> = control
            .into_iter()
            .chain(interrupter)
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        let left =
            if control.is_none() { Some(left.map_or(RETRY, |left: Duration| left.min(RETRY))) } else { left };
        match poll(&mut polled, left.map(session::timespec).as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(crate::failed::Trouble::doing("wait for the daemon")(errno)),
        }
        drop(polled);
        self.check_here()?;
        self.take_in()
    }
}
