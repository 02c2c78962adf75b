//! The peers of an endpoint: the state machine, the channels under it, and the set of doorbells to
//! sleep on.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use channel::{End, OpenError, OpenOptions};
use ipc::{Gone, Limits, NoPeer, Received, Rights, Unreceived};
use rustix::event::epoll;
use rustix::io::Errno;
use sys::known::Known;
use wire::ipc::Address;

use crate::failed::Trouble;
use crate::link::{Common, Pair};

/// Doorbells that are listened to at one look; those that are left ring on.
const HEARD_AT_ONCE: usize = 64;

/// Peers that moved, whose successors are not known yet, and for whom messages wait.
const UNRECEIVED_MAX: usize = 64;

/// In the set of doorbells: no slot, but the daemon's connection.
const CONTROL: u64 = u64::MAX;
/// In the set of doorbells: no slot, but whoever ends all calls.
const INTERRUPTER: u64 = u64::MAX - 1;
/// In the set of doorbells: no slot, but a grant of another node that is being copied from or to.
const LOAN: u64 = u64::MAX - 2;

/// Why two endpoints were not joined.
#[derive(Debug, thiserror::Error)]
pub enum IntroduceError {
    /// It can't be a peer of this endpoint.
    #[error(transparent)]
    NoPeer(#[from] NoPeer),
    /// The end of their channel can't be used.
    #[error("can't use the channel to endpoint {peer}")]
    Open {
        /// To whom it was meant to lead.
        peer: Address,
        /// The fault of the channel's end.
        #[source]
        source: OpenError,
    },
    /// The kernel refused to watch its doorbell.
    #[error("can't listen to endpoint {peer}")]
    Watch {
        /// The peer whose doorbell it is.
        peer: Address,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// The state of a peer beside that which the calls need.
#[derive(Debug)]
pub(crate) struct Info {
    pub address: Address,
    pub name: Option<String>,
    pub domain: Option<String>,
    /// The least generation of it whose replies it knows; 0: its own.
    pub continues: u32,
    /// Its doorbell is in the set.
    watched: bool,
}

/// Another endpoint, and the way to it.
#[derive(Debug)]
pub(crate) struct Introduction {
    pub address: Address,
    pub name: Option<String>,
    pub domain: Option<String>,
    pub rights: Rights,
    pub end: End,
    /// As the daemon says of it.
    pub continues: u32,
    /// It is a backup of this endpoint.
    pub backup: bool,
}

/// An endpoint that is on its way to another domain.
#[derive(Clone, Debug)]
pub(crate) struct Moving {
    /// The domain.
    pub to: String,
    /// The backup that is to have its place.
    pub backup: Address,
}

/// The news heard.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heard {
    /// The daemon has news.
    pub control: bool,
    /// There may be more than one look takes in.
    pub more: bool,
}

/// All peers of an endpoint.
#[derive(Debug)]
pub(crate) struct Pairs {
    pub logic: ipc::Endpoint<Pair>,
    pub common: Arc<Common>,
    infos: BTreeMap<u32, Info>,
    epoll: Known,
    batch_bytes: usize,
    /// Ends under other kernels, which hear no futex.
    apart: usize,
    /// The peers that have hung up, and may have left something that was not received yet.
    ended: Vec<Address>,
    /// Backups of this endpoint that have been told nothing yet.
    new_backups: Vec<Address>,
    /// The messages received but not handed out before this endpoint, or a peer, moved.
    pub inbox: VecDeque<(Received, Vec<u8>)>,
    /// The messages that moved peers have not received, and the peers' generations, by slot: for
    /// their successors.
    unreceived: BTreeMap<u32, (u32, Unreceived)>,
}

impl Pairs {
    pub fn new(address: Address, batch_bytes: usize) -> Result<Pairs, Trouble> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(Trouble::doing("make the set of an endpoint's doorbells"))?;
        Ok(Pairs {
            logic: ipc::Endpoint::new(address, Limits::default()),
            common: Arc::default(),
            infos: BTreeMap::new(),
            epoll: Known::new(epoll),
            batch_bytes,
            apart: 0,
            ended: Vec::new(),
            new_backups: Vec::new(),
            inbox: VecDeque::new(),
            unreceived: BTreeMap::new(),
        })
    }

    /// Joins a peer, over the end of a channel that was made for this pair alone.
    pub fn introduce(&mut self, introduction: Introduction) -> Result<(), IntroduceError> {
        let Introduction { address, name, domain, rights, end, continues, backup } = introduction;
        let open = |source| IntroduceError::Open { peer: address, source };
        let end = end.open_duplex(&OpenOptions::default()).map_err(open)?;
        let before = self.infos.get(&address.slot).map(|info| info.address);
        if let Some(before) = before.filter(|before| before.generation <= address.generation) {
            self.take_back(before);
            self.unwatch(before);
            let was_apart = self.logic.link(before).is_ok_and(|pair| !pair.end().has_futex());
            self.apart = self.apart.saturating_sub(usize::from(was_apart));
        }
        let apart = !end.has_futex();
        self.logic.bind(address, rights, Pair::new(end, self.batch_bytes, Arc::clone(&self.common)))?;
        self.apart = self.apart.saturating_add(usize::from(apart));
        self.infos.insert(address.slot, Info { address, name, domain, continues, watched: false });
        if backup {
            self.new_backups.push(address);
            self.logic.set_news(true);
        }
        self.watch(address).map_err(|errno| {
            // Nobody would hear it ring. It was bound a moment ago, so this parts from it.
            let _parted = self.unbind(address, Gone::Dead);
            IntroduceError::Watch { peer: address, source: errno.into() }
        })?;
        self.send_again(address);
        Ok(())
    }

    /// Before a peer is parted from that has moved: what it had not received is sent again when the
    /// one is known that has its place, and what it had sent is received.
    fn take_back(&mut self, peer: Address) {
        let (Ok(unreceived), Ok(received)) = (self.logic.take_back(peer), self.logic.drain_moved(peer))
        else {
            return;
        };
        if !received.is_empty() {
            self.inbox.extend(received);
            self.logic.set_news(true);
        }
        if unreceived.is_empty() {
            return;
        }
        let (generation, all) = self.unreceived.entry(peer.slot).or_default();
        *generation = peer.generation;
        all.messages.extend(unreceived.messages);
        all.notices |= unreceived.notices;
        if self.unreceived.len() > UNRECEIVED_MAX
            && let Some((slot, _)) = self.unreceived.pop_first()
        {
            tracing::warn!(
                slot,
                "messages to an endpoint that moved are dropped: nobody has taken its place"
            );
        }
    }

    /// Another one has a peer's place: parts from it, but for an answer that is still in the ring,
    /// after which it goes.
    pub fn supersede(&mut self, peer: Address, by: Address) {
        if self.logic.was_served_by_moved(peer) {
            self.ended.push(peer);
            return;
        }
        // Of one that was parted from before: just as well.
        let _parted = self.unbind(peer, Gone::Moved(by));
    }

    /// Whether something waits for whoever has the place of one that moved.
    pub fn has_unreceived(&self, slot: u32) -> bool {
        self.unreceived.contains_key(&slot)
    }

    /// Somebody new is known: it may have the place of one that moved. Its ring is empty, so all
    /// that was on its way to the other one fits.
    fn send_again(&mut self, to: Address) {
        let Some((generation, unreceived)) = self.unreceived.remove(&to.slot) else { return };
        if generation >= to.generation || !self.logic.send_again(to, &unreceived) {
            tracing::warn!(%to, "messages to an endpoint that moved are dropped: its successor does not take them");
        }
        if let Ok(pair) = self.logic.link_mut(to) {
            pair.flush();
        }
    }

    /// Whether a backup has come that has been told nothing yet.
    #[inline]
    pub fn has_new_backup(&self) -> bool {
        self.logic.has_news()
    }

    /// Backups that have come since this was asked last.
    pub fn take_new_backups(&mut self) -> Vec<Address> {
        self.logic.set_news(false);
        std::mem::take(&mut self.new_backups)
    }

    fn watch(&mut self, peer: Address) -> Result<(), Errno> {
        let Ok(pair) = self.logic.link_mut(peer) else { return Ok(()) };
        let data = epoll::EventData::new_u64(u64::from(peer.slot));
        epoll::add(self.epoll.look()?, pair.end().doorbell(), data, epoll::EventFlags::IN)?;
        if let Some(info) = self.infos.get_mut(&peer.slot) {
            info.watched = true;
        }
        Ok(())
    }

    /// Takes a doorbell out of the set that has hung up, or goes.
    fn unwatch(&mut self, peer: Address) {
        let Some(info) = self.infos.get_mut(&peer.slot).filter(|info| info.address == peer) else { return };
        if std::mem::take(&mut info.watched)
            && let Ok(pair) = self.logic.link_mut(peer)
        {
            // Not there any more: just as well.
            let _gone = self.epoll.look().and_then(|epoll| epoll::delete(epoll, pair.end().doorbell()));
        }
    }

    /// Parts from a peer. `why` is what those calls are told that still name it.
    pub fn unbind(&mut self, peer: Address, why: Gone) -> Result<(), NoPeer> {
        if self.logic.retell(peer, why) {
            return Ok(());
        }
        self.take_back(peer);
        self.unwatch(peer);
        let pair = self.logic.unbind(peer, why)?;
        self.infos.remove(&peer.slot);
        self.apart = self.apart.saturating_sub(usize::from(!pair.end().has_futex()));
        Ok(())
    }

    /// Takes over the rights with a peer, which the process that introduced them has changed.
    pub fn set_rights(&mut self, peer: Address, rights: Rights) -> Result<(), NoPeer> {
        self.logic.set_rights(peer, rights)
    }

    /// Returns the state of the peers, by slot.
    pub fn infos(&self) -> impl Iterator<Item = &Info> {
        self.infos.values()
    }

    /// Returns the state of one peer.
    pub fn info(&self, peer: Address) -> Option<&Info> {
        self.infos.get(&peer.slot).filter(|info| info.address == peer)
    }

    /// Whether a peer lives, as far as the kernel knows.
    pub fn is_alive(&self, peer: Address) -> bool {
        matches!(self.logic.end_of(peer), Ok(None))
            && self.logic.link(peer).is_ok_and(|pair| !pair.end().is_gone())
    }

    /// Whether all peers hear a futex.
    pub fn have_futexes(&self) -> bool {
        self.apart == 0
    }

    /// Becomes readable when there may be something to do.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Watches the daemon's connection.
    pub fn watch_control(&self, descriptor: BorrowedFd<'_>) -> Result<(), Trouble> {
        self.watch_other(descriptor, CONTROL)
    }

    /// Watches whoever ends all calls.
    pub fn watch_interrupter(&self, descriptor: BorrowedFd<'_>) -> Result<(), Trouble> {
        self.watch_other(descriptor, INTERRUPTER)
    }

    /// Watches a doorbell of a grant of another node, while something is copied.
    pub fn watch_loan(&self, descriptor: BorrowedFd<'_>) -> Result<(), Trouble> {
        self.watch_other(descriptor, LOAN)
    }

    /// Does so no more.
    pub fn unwatch_loan(&self, descriptor: BorrowedFd<'_>) {
        // Not there any more: just as well.
        let _gone = self.epoll.look().and_then(|epoll| epoll::delete(epoll, descriptor));
    }

    fn watch_other(&self, descriptor: BorrowedFd<'_>, token: u64) -> Result<(), Trouble> {
        let data = epoll::EventData::new_u64(token);
        let added = |epoll| epoll::add(epoll, descriptor, data, epoll::EventFlags::IN);
        match self.epoll.look().and_then(added) {
            // A number that was closed and used again by ourselves.
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(Trouble::doing("watch the daemon's connection of an endpoint")(errno)),
        }
    }

    /// Shows all peers what was held back.
    pub fn flush(&mut self) {
        for (_, pair) in self.logic.links_mut() {
            if pair.end().is_holding() {
                pair.flush();
            }
        }
    }

    /// Sleeps on all doorbells until the time is over, and listens to those that rang. May return
    /// early.
    pub fn sleep_on_all(&mut self, until: Option<Instant>) -> Result<Heard, Trouble> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        self.hear_within(left)
    }

    /// Listens to all doorbells that have rung. Not to some: an event loop may be told once, and
    /// not again of those that are left. And not for ever: whoever rings all the time is heard once
    /// or twice.
    pub fn hear(&mut self) -> Result<Heard, Trouble> {
        let looks = 2 + self.infos.len() / HEARD_AT_ONCE;
        let mut heard = Heard::default();
        for _ in 0..looks {
            let now = self.hear_within(Some(Duration::ZERO))?;
            heard.control |= now.control;
            if !now.more {
                break;
            }
        }
        Ok(heard)
    }

    fn hear_within(&mut self, at_most: Option<Duration>) -> Result<Heard, Trouble> {
        let timeout = at_most.map(session::timespec);
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
                HEARD_AT_ONCE];
        let waited = self.epoll.look().and_then(|epoll| epoll::wait(epoll, &mut events, timeout.as_ref()));
        let count = match waited {
            Ok(count) => count,
            // A signal's handler has run: the caller looks again.
            Err(Errno::INTR) => 0,
            Err(errno) => return Err(Trouble::doing("wait on an endpoint's doorbells")(errno)),
        };
        let mut heard = Heard { control: false, more: count == HEARD_AT_ONCE };
        for event in events.iter().take(count) {
            match event.data.u64() {
                CONTROL => heard.control = true,
                // The flag says the same; whoever copies listens to the other.
                INTERRUPTER | LOAN => {}
                slot => self.hear_slot(slot)?,
            }
        }
        Ok(heard)
    }

    fn hear_slot(&mut self, slot: u64) -> Result<(), Trouble> {
        let info = u32::try_from(slot).ok().and_then(|slot| self.infos.get(&slot));
        let Some(peer) = info.map(|info| info.address) else { return Ok(()) };
        self.hear_peer(peer)
    }

    /// Parts from those that have ended, as soon as what they sent has been received: their
    /// channels go, and who names them hears that they are dead. Not in the midst of a call to one
    /// of them.
    #[inline]
    pub fn bury(&mut self) {
        if !self.ended.is_empty() {
            self.bury_those_without_legacy();
        }
    }

    #[cold]
    fn bury_those_without_legacy(&mut self) {
        for peer in std::mem::take(&mut self.ended) {
            match self.logic.has_something(peer) {
                Ok(true) => self.ended.push(peer),
                Ok(false) => {
                    let why = match self.logic.end_of(peer) {
                        Ok(Some(NoPeer::Broken(_, why))) => Gone::Broken(why),
                        _ => Gone::Dead,
                    };
                    // It was bound a moment ago; if not, there is nothing to part from.
                    let _parted = self.unbind(peer, why);
                }
                Err(_) => {}
            }
        }
    }

    /// Listens to one peer's doorbell.
    pub fn hear_peer(&mut self, peer: Address) -> Result<(), Trouble> {
        let Ok(pair) = self.logic.link_mut(peer) else { return Ok(()) };
        let drained = pair.end_mut().drain_doorbell();
        let closed = pair.end().is_closed();
        self.logic.heard(peer);
        if closed {
            // It has hung up, or will: it is heard of for good, and once is enough.
            self.unwatch(peer);
            self.ended.push(peer);
        }
        match drained {
            Ok(()) => Ok(()),
            Err(channel::ReceiveError::Doorbell(source)) => {
                Err(Trouble::System { action: "listen to the doorbell of a peer", source })
            }
            Err(_) => Err(Trouble::Forked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_in_the_place_of_another_kernels_leaves_no_trace_of_it() {
        let address = |generation| Address { slot: 2, generation };
        let mut pairs = Pairs::new(Address { slot: 1, generation: 1 }, 0).expect("an endpoint");
        let mut others = Vec::new();
        for (generation, apart) in [(1, true), (2, true), (3, false)] {
            let config = channel::Config { apart, ..channel::Config::default() };
            let (end, other) = channel::pair(&config).expect("a channel");
            others.push(other);
            let address = address(generation);
            let introduction = Introduction {
                address,
                name: None,
                domain: None,
                rights: Rights::ALL,
                end,
                continues: 0,
                backup: false,
            };
            pairs.introduce(introduction).expect("a peer");
            assert_eq!(pairs.have_futexes(), !apart, "{address}");
        }
    }
}
