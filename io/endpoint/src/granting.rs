//! Making buffers, granting them, and taking that back.

use std::io;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use ipc::grants::Access;
use rustix::io::Errno;
use sys::view::copy_between;
use wire::control::{GrantAccess, Request};
use wire::grants::{PLACE_FIRST, PLACES, State};
use wire::ipc::Address;

use crate::buffer::{Buffer, Given, Store};
use crate::failed::Trouble;
use crate::grants::GrantId;
use crate::member::{ANSWER_TIMEOUT, Answer, Member, on_wire};
use crate::{Endpoint, Failed};

/// Grants that a buffer may have at a time.
const PLACES_MAX: usize = (PLACES - PLACE_FIRST) as usize;
/// How often a grant is asked for where each daemon dies before it answers.
const TRIES: u32 = 3;

/// Why the daemon was not asked, or did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unasked {
    /// This endpoint was made by hand.
    #[error("this endpoint was made without a daemon: bind one at the daemon, or hand buffers over by hand")]
    NoDaemon,
    /// The daemon is away, or busy.
    #[error("the node's daemon did not answer in time: is it running? Try again when it is")]
    TimedOut,
}

/// Why there is no buffer, or it was not freed.
#[derive(Debug, thiserror::Error)]
pub enum BufferError {
    /// The daemon was not asked.
    #[error(transparent)]
    Unasked(#[from] Unasked),
    /// As many buffers, or as many bytes, as there may be are there.
    #[error("{message}")]
    Limit {
        /// The daemon's message: it names the key of the topology file.
        message: String,
    },
    /// No buffer has so many bytes.
    #[error("{message}")]
    Size {
        /// The daemon's message.
        message: String,
    },
    /// Buffers do not work here: this is a virtual machine.
    #[error("{message}")]
    NotHere {
        /// The daemon's message.
        message: String,
    },
    /// It belongs to another endpoint.
    #[error("this buffer belongs to endpoint {0}, and that one alone frees it")]
    NotOurs(Address),
    /// Refused for another reason.
    #[error("{message}")]
    Refused {
        /// The errno that fits.
        errno: i32,
        /// The daemon's message.
        message: String,
    },
}

/// Why a buffer was not granted, or a grant not taken back.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// The daemon was not asked.
    #[error(transparent)]
    Unasked(#[from] Unasked),
    /// It belongs to another endpoint.
    #[error("this buffer belongs to endpoint {0}, and that one alone grants it")]
    NotOurs(Address),
    /// Others have it by the word of a daemon that has died since.
    #[error(
        "this buffer was granted at a daemon that has died since, and can't be granted further at the next one: revoke those grants, \
         or make another buffer"
    )]
    EarlierDaemon,
    /// It has no such grant.
    #[error("this buffer has no grant {0}: it was never made, or was taken back before")]
    NoGrant(GrantId),
    /// As many grants as there may be are there.
    #[error("{message}")]
    Limit {
        /// The daemon's message: it names the key of the topology file.
        message: String,
    },
    /// The endpoint is not bound.
    #[error("{message}")]
    NotBound {
        /// The daemon's message.
        message: String,
    },
    /// Another generation has its place.
    #[error("{message}")]
    WrongGeneration {
        /// The daemon's message.
        message: String,
    },
    /// Neither endpoint may call the other.
    #[error("{message}")]
    NotAllowed {
        /// The daemon's message.
        message: String,
    },
    /// It can't be granted to that one: it is this endpoint itself, or in a virtual machine.
    #[error("{message}")]
    NotTo {
        /// The daemon's message.
        message: String,
    },
    /// There is no memory to move to.
    #[error("can't move the buffer away from those who had it")]
    NoMemory(#[source] io::Error),
    /// Refused for another reason.
    #[error("{message}")]
    Refused {
        /// The errno that fits.
        errno: i32,
        /// The daemon's message.
        message: String,
    },
}

impl BufferError {
    fn of(errno: Errno, message: String) -> BufferError {
        match errno {
            Errno::USERS | Errno::NOSPC | Errno::MFILE => BufferError::Limit { message },
            Errno::INVAL => BufferError::Size { message },
            Errno::OPNOTSUPP => BufferError::NotHere { message },
            _ => BufferError::Refused { errno: errno.raw_os_error(), message },
        }
    }
}

impl From<BufferError> for GrantError {
    fn from(error: BufferError) -> GrantError {
        match error {
            BufferError::Unasked(why) => GrantError::Unasked(why),
            BufferError::Limit { message } => GrantError::Limit { message },
            BufferError::NotOurs(owner) => GrantError::NotOurs(owner),
            BufferError::Size { message } | BufferError::NotHere { message } => GrantError::NotTo { message },
            BufferError::Refused { errno, message } => GrantError::Refused { errno, message },
        }
    }
}

impl GrantError {
    fn of(errno: Errno, message: String) -> GrantError {
        match errno {
            Errno::USERS | Errno::NOSPC | Errno::MFILE => GrantError::Limit { message },
            Errno::NOTCONN => GrantError::NotBound { message },
            Errno::STALE => GrantError::WrongGeneration { message },
            Errno::PERM | Errno::ACCESS => GrantError::NotAllowed { message },
            Errno::INVAL | Errno::OPNOTSUPP => GrantError::NotTo { message },
            _ => GrantError::Refused { errno: errno.raw_os_error(), message },
        }
    }
}

/// The daemon to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Daemon {
    /// The one that this connection leads to: what is asked for concerns things that no other
    /// knows.
    Of(u64),
    /// The one that is there, or the next one.
    Any,
}

/// The result of a request to the daemon.
pub(crate) enum Said {
    Answer(Answer),
    Unasked(Unasked),
}

impl Endpoint {
    /// Asks the daemon and waits for its answer. Where it is away: the next one, or nobody.
    pub(crate) fn ask_daemon(
        &mut self,
        whom: Daemon,
        request: impl Fn(u64, u32) -> Request,
    ) -> Result<Said, Trouble> {
        self.check_here()?;
        self.show_held();
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut ticket = None;
        loop {
            self.take_in()?;
            let Some(member) = &mut self.member else { return Ok(Said::Unasked(Unasked::NoDaemon)) };
            if let Some(message) = member.over() {
                return Err(Trouble::Ended { why: message.to_owned() });
            }
            if let Some(answer) = ticket.and_then(|ticket| member.answer(ticket)) {
                return Ok(Said::Answer(answer));
            }
            if whom != Daemon::Any && whom != Daemon::Of(member.life()) {
                return Ok(Said::Answer(Answer::Lost));
            }
            if Instant::now() >= deadline {
                if let Some(ticket) = ticket {
                    member.forget(ticket);
                }
                return Ok(Said::Unasked(Unasked::TimedOut));
            }
            if ticket.is_none() && member.is_up() {
                let slot = member.slot();
                ticket = member.ask(|id| request(id, slot));
            }
            self.await_daemon(Some(deadline))?;
        }
    }

    /// A buffer of `bytes` bytes, all zero. `access`: what others may do with it, once it is
    /// granted to them.
    ///
    /// # Errors
    /// See [`BufferError`].
    pub fn buffer(&mut self, bytes: usize, access: Access) -> Result<Buffer, Failed<BufferError>> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let store = match self.counted(Daemon::Any, bytes, 0)? {
            Ok(store) => store.map_err(no_memory)?,
            Err(error) => return Err(Failed::Call(error)),
        };
        let freed = self.member.as_ref().map(Member::freed);
        Ok(self.buffer_over(store, bytes, access, freed))
    }

    pub(crate) fn buffer_over(
        &self,
        store: Store,
        bytes: u64,
        access: Access,
        freed: Option<crate::grants::Freed>,
    ) -> Buffer {
        let (owner, origin) = (self.address(), self.origin);
        Buffer { store, bytes, access, owner, given: Vec::new(), sealed: false, freed, origin }
    }

    /// Memory that the daemon makes and counts.
    fn counted(
        &mut self,
        whom: Daemon,
        bytes: u64,
        replaces: u64,
    ) -> Result<Result<io::Result<Store>, BufferError>, Trouble> {
        let make = |id, endpoint| Request::Buffer { id, endpoint, bytes, replaces };
        loop {
            return Ok(match self.ask_daemon(whom, make)? {
                Said::Unasked(why) => Err(why.into()),
                Said::Answer(Answer::Buffer(number, memories)) => {
                    let life = self.member.as_ref().map_or(0, Member::life);
                    let store = Store::map(&memories, bytes, (number, life));
                    if let (Err(_), Some(member)) = (&store, &mut self.member) {
                        member.free(number);
                    }
                    Ok(store)
                }
                // The one that it replaces is not known to the next daemon.
                Said::Answer(Answer::Lost) if whom == Daemon::Any && replaces == 0 => continue,
                Said::Answer(answer) => Err(refused(answer, BufferError::of)),
            });
        }
    }

    /// Frees a buffer at the daemon now. Dropping it does the same, with this endpoint's next look
    /// at the daemon's connection.
    ///
    /// # Errors
    /// See [`BufferError`]; the buffer's grants have ended all the same.
    pub fn free(&mut self, mut buffer: Buffer) -> Result<(), Failed<BufferError>> {
        self.check_here()?;
        if buffer.owner != self.address() {
            return Err(Failed::Call(BufferError::NotOurs(buffer.owner)));
        }
        buffer.mark_revoked();
        if self.member.as_ref().is_none_or(|member| member.life() != buffer.store.life) {
            return Ok(());
        }
        buffer.freed = None;
        let number = buffer.store.number;
        match self.ask_daemon(Daemon::Of(buffer.store.life), |id, endpoint| Request::Free {
            id,
            endpoint,
            buffer: number,
        })? {
            // A daemon that died has forgotten it.
            Said::Answer(Answer::Done | Answer::Lost) => Ok(()),
            Said::Answer(answer) => Err(Failed::Call(refused(answer, BufferError::of))),
            Said::Unasked(why) => Err(Failed::Call(why.into())),
        }
    }

    /// Grants a buffer to another endpoint. That one needs the grant's number: send it in a
    /// message.
    ///
    /// # Errors
    /// See [`GrantError`].
    pub fn grant(&mut self, buffer: &mut Buffer, to: Address) -> Result<GrantId, Failed<GrantError>> {
        self.check_owned(buffer)?;
        for _ in 0..TRIES {
            let life = self.member.as_ref().map_or(0, Member::life);
            if buffer.store.life != life && !buffer.given.is_empty() {
                return Err(Failed::Call(GrantError::EarlierDaemon));
            }
            if buffer.given.len() >= PLACES_MAX {
                return Err(Failed::Call(full()));
            }
            if buffer.store.life != life || !buffer.store.has_place() {
                let fresh = self.fresh(buffer, true)?;
                self.leave(buffer, fresh, None)?;
            }
            match self.grant_at(buffer, to, GrantId::new(0))? {
                Ok(grant) => return Ok(grant),
                Err(Said::Answer(Answer::Lost)) => {}
                Err(Said::Answer(answer)) => return Err(Failed::Call(refused(answer, GrantError::of))),
                Err(Said::Unasked(why)) => return Err(Failed::Call(why.into())),
            }
        }
        Err(Failed::Call(refused(Answer::Lost, GrantError::of)))
    }

    fn check_owned(&self, buffer: &Buffer) -> Result<(), Failed<GrantError>> {
        self.check_here()?;
        if buffer.owner == self.address() && buffer.origin == self.origin {
            return Ok(());
        }
        Err(Failed::Call(GrantError::NotOurs(buffer.owner)))
    }

    /// Grants a buffer at its next place: anew, or under a number that it has.
    fn grant_at(
        &mut self,
        buffer: &mut Buffer,
        to: Address,
        grant: GrantId,
    ) -> Result<Result<GrantId, Said>, Trouble> {
        let Some((number, place)) = buffer.store.next_place() else {
            return Ok(Err(Said::Answer(Answer::Refused {
                errno: Errno::USERS,
                message: full().to_string(),
            })));
        };
        buffer.store.set(place, State::Live);
        let of = buffer.store.number;
        let access = match buffer.access {
            Access::Read => GrantAccess::Read,
            Access::Write => GrantAccess::Write,
        };
        let (to_wire, grant) = (on_wire(to), grant.number());
        let asked = self.ask_daemon(Daemon::Of(buffer.store.life), |id, endpoint| Request::Grant {
            id,
            endpoint,
            buffer: of,
            to: to_wire,
            access,
            place: number,
            grant,
        });
        match asked {
            Ok(Said::Answer(Answer::Granted(grant))) => {
                let grant = GrantId::new(grant);
                buffer.given.push(Given { grant, to, place });
                Ok(Ok(grant))
            }
            Ok(other) => {
                buffer.store.set(place, State::Revoked);
                Ok(Err(other))
            }
            Err(trouble) => {
                buffer.store.set(place, State::Revoked);
                Err(trouble)
            }
        }
    }

    /// Takes a grant back. From here on nothing that the one who had it does shows in this buffer,
    /// nor does what this endpoint writes to the buffer show to that one. The buffer moves to other
    /// memory for that; other grants of it go on.
    ///
    /// It never fails because the daemon is away: then all grants of the buffer end with this one.
    ///
    /// # Errors
    /// See [`GrantError`]. [`GrantError::NoMemory`]: nothing has changed.
    pub fn revoke(&mut self, buffer: &mut Buffer, grant: GrantId) -> Result<(), Failed<GrantError>> {
        self.check_owned(buffer)?;
        if !buffer.given.iter().any(|given| given.grant == grant) {
            return Err(Failed::Call(GrantError::NoGrant(grant)));
        }
        let fresh = self.fresh(buffer, false)?;
        self.leave(buffer, fresh, Some(grant))
    }

    /// Moves a buffer to other memory, with those grants that go on.
    fn leave(
        &mut self,
        buffer: &mut Buffer,
        fresh: Store,
        over: Option<GrantId>,
    ) -> Result<(), Failed<GrantError>> {
        let follow = fresh.life == buffer.store.life && fresh.life != 0;
        for given in &buffer.given {
            let ends = !follow || Some(given.grant) == over;
            buffer.store.set(given.place, if ends { State::Revoked } else { State::Moved });
        }
        // REVOKE: whose copy ends well has looked at its state before this, so we see all that it
        // wrote.
        fence(Ordering::SeqCst);
        copy_between(&buffer.store.data, 0, &fresh.data, 0, buffer.len());
        let left = std::mem::replace(&mut buffer.store, fresh);
        buffer.sealed = false;
        let mut done = Ok(());
        for given in std::mem::take(&mut buffer.given) {
            if follow && Some(given.grant) != over && done.is_ok() {
                // One that can't follow is over for whoever asks the daemon.
                done = self.grant_at(buffer, given.to, given.grant).map(drop);
            }
        }
        // With it, the daemon ends what still stands for it.
        if let Some(member) = self.member.as_mut().filter(|member| member.life() == left.life) {
            member.free(left.number);
        }
        Ok(done?)
    }

    /// Memory to move to: that of the daemon, or else our own, if the buffer need not be granted
    /// again.
    fn fresh(&mut self, buffer: &Buffer, to_grant: bool) -> Result<Store, Failed<GrantError>> {
        let life = self.member.as_ref().filter(|member| member.is_up()).map(Member::life);
        if to_grant || life.is_some() {
            let replaces = if life == Some(buffer.store.life) { buffer.store.number } else { 0 };
            let whom = match life {
                Some(life) if replaces != 0 || !to_grant => Daemon::Of(life),
                _ => Daemon::Any,
            };
            match self.counted(whom, buffer.bytes, replaces)? {
                Ok(store) => return store.map_err(GrantError::NoMemory).map_err(Failed::Call),
                Err(error) if to_grant => return Err(Failed::Call(error.into())),
                Err(error) => {
                    tracing::debug!(%error, "a buffer moves to memory that the daemon does not know")
                }
            }
        }
        Store::make(buffer.bytes, (0, 0)).map_err(GrantError::NoMemory).map_err(Failed::Call)
    }
}

pub(crate) fn full() -> GrantError {
    GrantError::Limit {
        message: format!(
            "a buffer has {PLACES_MAX} grants at a time at most: revoke some, or make another buffer"
        ),
    }
}

fn refused<E>(answer: Answer, of: impl Fn(Errno, String) -> E) -> E {
    match answer {
        Answer::Refused { errno, message } => of(errno, message),
        Answer::Lost => of(Errno::AGAIN, "the node's daemon has died meanwhile: try again".to_owned()),
        _ => of(Errno::PROTO, "the daemon sent an answer of another kind".to_owned()),
    }
}

pub(crate) fn no_memory(source: io::Error) -> Trouble {
    Trouble::System { action: "map the memory of a buffer", source }
}
