//! An endpoint: how it is made, and whom it knows.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use channel::{End, SpinPolicy};
use ipc::{Gone, NoPeer, Replies, Rights};
use sys::fork::Origin;
use wire::ipc::Address;

use crate::failed::{Failed, Trouble};
use crate::grants::Borrowings;
use crate::interrupt::Interrupter;
use crate::loans::Loans;
use crate::member::Member;
use crate::pairs::{Info, IntroduceError, Introduction, Moving, Pairs};
use crate::steps::Stepping;
use crate::waiting::Waiting;

/// The options of an endpoint.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where the daemon's control socket is; `None`: where every domain finds it.
    pub control: Option<PathBuf>,
    /// When to spin before sleeping.
    pub spin: SpinPolicy,
    /// Bytes up to which buffered messages to one peer are held back, so that it is shown, and
    /// woken for, many at once; at most a quarter of a pair's ring. 0: each shows at once. Whatever
    /// waits, and [`Endpoint::flush`], shows what was held back.
    pub batch_bytes: usize,
}

/// An endpoint of a distributed container. It makes one call at a time. Dropping it ends it: peers
/// find it dead.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) pairs: Pairs,
    pub(crate) member: Option<Member>,
    pub(crate) borrowings: Borrowings,
    pub(crate) loans: Loans,
    /// Buffers that were made by hand.
    pub(crate) buffers_alone: u64,
    pub(crate) waiting: Waiting,
    pub(crate) interrupter: Option<Interrupter>,
    /// The daemon's connection that stands in the set of doorbells.
    watched: Option<i32>,
    pub(crate) origin: Origin,
    name: Option<String>,
    /// Something was held back.
    pub(crate) holding: bool,
    /// The call that is made in steps.
    pub(crate) stepping: Option<Stepping>,
    /// The replies that callers may ask for once more, and the state for backups.
    pub(crate) replies: Replies,
    /// Backups that are relied upon: no reply is released that they have not taken.
    pub(crate) backups: Vec<Address>,
    /// It is on its way to another domain.
    pub(crate) moving: Option<Moving>,
}

/// Another endpoint, as this one knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer<'e> {
    /// Where it is.
    pub address: Address,
    /// Its name, if it has one and the daemon told it.
    pub name: Option<&'e str>,
    /// The domain that it lives in, if the daemon told it.
    pub domain: Option<&'e str>,
    /// The rights on the peer.
    pub rights: Rights,
    /// Whether it has not ended, as far as the kernel knows.
    pub alive: bool,
}

impl Endpoint {
    /// An endpoint without a daemon, which knows nobody: for tests, and for those who introduce by
    /// hand.
    ///
    /// # Errors
    /// [`Failed::System`].
    pub fn alone(address: Address, options: &Options) -> Result<Endpoint, Failed<IntroduceError>> {
        Ok(Endpoint::new(address, None, options)?)
    }

    pub(crate) fn new(
        address: Address,
        name: Option<String>,
        options: &Options,
    ) -> Result<Endpoint, Trouble> {
        let know = |source| Trouble::System { action: "find out which process makes an endpoint", source };
        Ok(Endpoint {
            pairs: Pairs::new(address, options.batch_bytes)?,
            member: None,
            borrowings: Borrowings::default(),
            loans: Loans::default(),
            buffers_alone: 0,
            waiting: Waiting::new(options.spin),
            interrupter: None,
            watched: None,
            origin: Origin::here().map_err(know)?,
            name,
            holding: false,
            stepping: None,
            replies: Replies::default(),
            backups: Vec::new(),
            moving: None,
        })
    }

    /// Introduces a peer by hand, over one end of a channel in messages mode that was made for this
    /// pair alone. Who was in its place before is parted from.
    ///
    /// # Errors
    /// See [`IntroduceError`].
    pub fn introduce(
        &mut self,
        peer: Address,
        rights: Rights,
        end: End,
    ) -> Result<(), Failed<IntroduceError>> {
        self.check_here()?;
        let introduction = Introduction {
            address: peer,
            name: None,
            domain: None,
            rights,
            end,
            continues: 0,
            backup: false,
        };
        self.pairs.introduce(introduction).map_err(Failed::Call)
    }

    /// Changes by hand what may be done with a peer.
    ///
    /// # Errors
    /// See [`NoPeer`].
    pub fn set_rights(&mut self, peer: Address, rights: Rights) -> Result<(), Failed<NoPeer>> {
        self.check_here()?;
        self.pairs.set_rights(peer, rights).map_err(Failed::Call)
    }

    /// Parts by hand from a peer; `why` is what calls are told that still name it.
    ///
    /// # Errors
    /// See [`NoPeer`].
    pub fn part(&mut self, peer: Address, why: Gone) -> Result<(), Failed<NoPeer>> {
        self.check_here()?;
        self.pairs.unbind(peer, why).map_err(Failed::Call)
    }

    /// Returns the endpoint's address.
    #[must_use]
    pub fn address(&self) -> Address {
        self.pairs.logic.address()
    }

    /// Its name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the peers to which it was introduced and from which it has not parted, by slot.
    pub fn peers(&self) -> impl Iterator<Item = Peer<'_>> {
        self.pairs.infos().map(|info| self.peer_of(info))
    }

    /// One of them: whoever was received from last is among them.
    #[must_use]
    pub fn peer(&self, address: Address) -> Option<Peer<'_>> {
        self.pairs.info(address).map(|info| self.peer_of(info))
    }

    fn peer_of<'e>(&self, info: &'e Info) -> Peer<'e> {
        Peer {
            address: info.address,
            name: info.name.as_deref(),
            domain: info.domain.as_deref(),
            rights: self.pairs.logic.rights(info.address).unwrap_or(Rights::NONE),
            alive: self.pairs.is_alive(info.address),
        }
    }

    /// Most bytes of payload of a message to a peer, and of one of it.
    ///
    /// # Errors
    /// See [`NoPeer`].
    pub fn payload_bytes_max(&self, peer: Address) -> Result<usize, NoPeer> {
        self.pairs.logic.payload_bytes_max(peer)
    }

    /// A handle by which another thread ends the calls of this endpoint.
    ///
    /// # Errors
    /// [`Failed::System`].
    pub fn interrupter(&mut self) -> Result<Interrupter, Failed<IntroduceError>> {
        self.check_here()?;
        if let Some(interrupter) = &self.interrupter {
            return Ok(interrupter.clone());
        }
        let make =
            |source| Trouble::System { action: "make the event that ends an endpoint's calls", source };
        let interrupter = Interrupter::new().map_err(make)?;
        self.pairs.watch_interrupter(interrupter.descriptor())?;
        Ok(self.interrupter.insert(interrupter).clone())
    }

    /// For event loops: becomes readable when another step ([`Endpoint::step_receive`] and its
    /// like) is worth it, or a try after [`Endpoint::prepare`].
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.pairs.descriptor()
    }

    /// Every call begins by this.
    #[inline]
    pub(crate) fn check_here(&self) -> Result<(), Trouble> {
        if self.moving.is_some() {
            return Err(Trouble::Moving);
        }
        self.check_process()
    }

    /// The same, of whatever ends a migration.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Trouble> {
        if !self.origin.is_here() {
            return Err(Trouble::Forked);
        }
        match &self.interrupter {
            Some(interrupter) if interrupter.is_interrupted() => Err(Trouble::Interrupted),
            _ => Ok(()),
        }
    }

    /// Takes in whatever has come from the daemon, without waiting.
    pub(crate) fn take_in(&mut self) -> Result<(), Trouble> {
        let Some(member) = &mut self.member else { return Ok(()) };
        member.take_in(&mut self.pairs, &mut self.borrowings);
        if member.over().is_some() {
            self.loans.clear(&self.pairs);
        }
        self.watch_member()
    }

    /// Has the daemon's connection in the set of doorbells.
    pub(crate) fn watch_member(&mut self) -> Result<(), Trouble> {
        let descriptor = self.member.as_ref().and_then(Member::descriptor);
        let number = descriptor.as_ref().map(|descriptor| descriptor.as_fd().as_raw_fd());
        if let Some(descriptor) = descriptor
            && number != self.watched
        {
            self.pairs.watch_control(descriptor)?;
        }
        self.watched = number;
        Ok(())
    }
}
