//! An endpoint: who it is, whom it is bound to, and what a call needs to know of time.

use std::cell::Cell;
use std::collections::BTreeMap;

use wire::ipc as layout;
use wire::ipc::{Address, PATH_HOPS_MAX};

use crate::peer::Peer;
use crate::search::Search;
use crate::{Broken, Link, NoPeer, Way, Word};

/// The rights of one endpoint on another, as given by the one that introduced them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Send to it.
    pub send: bool,
    /// Ask it.
    pub request: bool,
    /// Notify it.
    pub notify: bool,
    /// Pass requests of others on to it.
    pub relay: bool,
    /// Receive messages of it.
    pub hears: bool,
    /// Receive requests of it.
    pub answers: bool,
    /// Receive notices of it.
    pub heeds: bool,
    /// Receive requests that it passes on.
    pub answers_relayed: bool,
}

impl Rights {
    /// Everything.
    pub const ALL: Rights = Rights {
        send: true,
        request: true,
        notify: true,
        relay: true,
        hears: true,
        answers: true,
        heeds: true,
        answers_relayed: true,
    };

    /// Nothing.
    pub const NONE: Rights = Rights {
        send: false,
        request: false,
        notify: false,
        relay: false,
        hears: false,
        answers: false,
        heeds: false,
        answers_relayed: false,
    };
}

/// Why a peer is not bound any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// It has ended.
    Dead,
    /// It broke a rule, and was cut off.
    Broken(Broken),
    /// It is elsewhere.
    Moved(Address),
}

/// Bounds that a test makes small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A label of the search for deadlocks is passed on so many times.
    pub hops: u64,
    /// After so many receives, peers are looked at that have not rung: whoever never sleeps hears
    /// no doorbell.
    pub receives_per_full_look: u32,
    /// So many records that nobody wants are dropped at a time; then the caller may look at its
    /// clock.
    pub drops: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { hops: PATH_HOPS_MAX, receives_per_full_look: 64, drops: 64 }
    }
}

/// The news about time that a poll gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// The call's deadline has passed.
    pub late: bool,
    /// It has passed for so long that what another node may still answer is not waited for any
    /// more.
    pub overdue: bool,
    /// The call has waited long enough to look for deadlocks: a label for that, random, at least 1
    /// and below 2^56. Looking costs a little with every peer, so a few milliseconds are right.
    /// Once said, it is remembered.
    pub label: Option<u64>,
    /// The caller does not sleep: it looks again at once, so peers need not be told that it
    /// listens.
    pub spins: bool,
}

/// The result of polling a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a call that is not ready has to be polled again"]
pub enum Poll<T> {
    /// The call is over.
    Ready(T),
    /// Poll again soon; look at the clock first.
    Again,
    /// Nothing can be done until what is named rings or hangs up, or the time is over.
    Sleep(Sleep),
}

/// The doorbells to sleep on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// The one peer's. No other can end this call.
    One(Address),
    /// All peers'. Say [`Endpoint::heard`] for each that has rung or hung up.
    All,
}

/// A place of the table.
#[derive(Clone, Copy, Debug)]
enum Entry {
    /// Index of the peer.
    Bound(usize),
    /// There was one.
    Gone { generation: u32, why: Gone },
}

/// An endpoint of one distributed container. One call at a time.
#[derive(Debug)]
pub struct Endpoint<L> {
    address: Address,
    pub(crate) limits: Limits,
    table: BTreeMap<u32, Entry>,
    pub(crate) peers: Vec<Peer<L>>,
    /// Index of the peer whose turn it is to be received from.
    pub(crate) turn: usize,
    /// Receives until those are looked at, too, that have not rung.
    pub(crate) receives: u32,
    /// Number of the last call.
    pub(crate) calls: u64,
    /// Index of the peer that was found last: most calls are to the same as the one before.
    found: Cell<usize>,
    /// Some peer has been told that we listen, and not that we stopped.
    pub(crate) listens: bool,
    /// Some peer is quiet, or was lately.
    pub(crate) quiet: bool,
    pub(crate) search: Option<Search>,
    /// It receives nothing: see [`Endpoint::seal`].
    pub(crate) sealed: bool,
    /// Of the peer that was parted from last while a call to it may have waited: the call's word,
    /// which nobody changes any more.
    pub(crate) parted: Option<(Address, u64)>,
    /// See [`Endpoint::has_news`].
    news: bool,
}

impl<L: Link> Endpoint<L> {
    /// An endpoint that is bound to nobody.
    #[must_use]
    pub fn new(address: Address, limits: Limits) -> Endpoint<L> {
        Endpoint {
            address,
            limits,
            table: BTreeMap::new(),
            peers: Vec::new(),
            turn: 0,
            receives: 0,
            calls: 0,
            found: Cell::new(0),
            listens: false,
            quiet: false,
            search: None,
            sealed: false,
            parted: None,
            news: false,
        }
    }

    /// Whether whoever drives this endpoint has something to do before it waits for messages: it
    /// said so, and nothing here looks at it.
    #[inline]
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.news
    }

    /// See [`Endpoint::has_news`].
    pub fn set_news(&mut self, news: bool) {
        self.news = news;
    }

    /// Returns the endpoint's own address.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// Binds a peer over the link that whoever introduced both has made for this pair alone. A peer
    /// that was bound in its place is unbound.
    ///
    /// # Errors
    /// [`NoPeer::Oneself`], and [`NoPeer::WrongGeneration`] when a later one is or was there.
    pub fn bind(&mut self, peer: Address, rights: Rights, link: L) -> Result<(), NoPeer> {
        if peer.slot == self.address.slot {
            return Err(NoPeer::Oneself(peer));
        }
        match self.table.get(&peer.slot) {
            Some(Entry::Bound(index)) => {
                let found = self.peers.get(*index).map_or(0, |bound| bound.address.generation);
                if found > peer.generation {
                    return Err(NoPeer::WrongGeneration { asked: peer, found });
                }
                self.remove(*index);
            }
            Some(Entry::Gone { generation, .. }) if *generation > peer.generation => {
                return Err(NoPeer::WrongGeneration { asked: peer, found: *generation });
            }
            _ => {}
        }
        link.store(Way::Out, Word::Path, self.published());
        if self.sealed {
            link.store(Way::In, Word::Sealed, 1);
        }
        self.table.insert(peer.slot, Entry::Bound(self.peers.len()));
        self.peers.push(Peer::new(peer, rights, link));
        Ok(())
    }

    /// Unbinds a peer and returns its link. `why` is what those are told who still name it.
    ///
    /// # Errors
    /// See [`NoPeer`].
    pub fn unbind(&mut self, peer: Address, why: Gone) -> Result<L, NoPeer> {
        let index = self.index(peer)?;
        let link = self.remove(index);
        self.table.insert(peer.slot, Entry::Gone { generation: peer.generation, why });
        link.ok_or(NoPeer::Unbound(peer))
    }

    /// As [`Endpoint::unbind`], of one that has been unbound already: only what is told of it
    /// changes. False: it was not.
    pub fn retell(&mut self, peer: Address, why: Gone) -> bool {
        match self.table.get_mut(&peer.slot) {
            Some(Entry::Gone { generation, why: told }) if *generation == peer.generation => {
                *told = why;
                true
            }
            _ => false,
        }
    }

    fn remove(&mut self, index: usize) -> Option<L> {
        if index >= self.peers.len() {
            return None;
        }
        let removed = self.peers.swap_remove(index);
        self.part(&removed);
        if let Some(moved) = self.peers.get(index) {
            self.table.insert(moved.address.slot, Entry::Bound(index));
        }
        Some(removed.link)
    }

    /// A peer that is parted from receives nothing more: what has become of the call that waits for
    /// it is decided now.
    fn part(&mut self, removed: &Peer<L>) {
        let found = removed.link.load(Way::Out, Word::Call);
        let (id, state) = layout::call_of(found);
        if id != self.calls || id == 0 {
            return;
        }
        let over = layout::call_word(id, layout::CALL_OVER);
        let word = match state {
            // CALL: it was received a moment ago, or never will be.
            layout::CALL_WAITING => match removed.link.replace(Way::Out, Word::Call, found, over) {
                before if before == found => over,
                taken => taken,
            },
            _ => found,
        };
        self.parted = Some((removed.address, word));
    }

    /// Returns the peers that it is bound to, in no order.
    pub fn peers(&self) -> impl Iterator<Item = Address> {
        self.peers.iter().map(|peer| peer.address)
    }

    /// The link to a peer.
    ///
    /// # Errors
    /// See [`NoPeer`].
    pub fn link(&self, peer: Address) -> Result<&L, NoPeer> {
        let index = self.index(peer)?;
        self.peers.get(index).map(|peer| &peer.link).ok_or(NoPeer::Unbound(peer))
    }

    /// A peer's doorbell has rung, or its channel has hung up.
    pub fn heard(&mut self, peer: Address) {
        if let Ok(index) = self.index(peer)
            && let Some(peer) = self.peers.get_mut(index)
        {
            peer.quiet = false;
        }
    }

    /// As [`Endpoint::heard`], of all: what they have been told of our listening may not reach us
    /// any more.
    pub fn heard_all(&mut self) {
        self.quiet = false;
        for peer in &mut self.peers {
            peer.quiet = false;
        }
    }

    /// The link to a peer, for whatever is no business of the calls.
    ///
    /// # Errors
    /// See [`NoPeer`].
    pub fn link_mut(&mut self, peer: Address) -> Result<&mut L, NoPeer> {
        self.peer(peer).map(|peer| &mut peer.link)
    }

    /// The links to all peers, in no order.
    pub fn links_mut(&mut self) -> impl Iterator<Item = (Address, &mut L)> {
        self.peers.iter_mut().map(|peer| (peer.address, &mut peer.link))
    }

    /// Whether some peer is not looked at before it is heard: whoever must know whether there is
    /// something, listens to the doorbells first.
    #[must_use]
    pub fn relies_on_doorbells(&self) -> bool {
        self.quiet
    }

    /// How many peers it is bound to.
    #[must_use]
    pub fn count(&self) -> usize {
        self.peers.len()
    }

    /// Returns the rights of this endpoint on a peer.
    ///
    /// # Errors
    /// See [`NoPeer`].
    pub fn rights(&self, peer: Address) -> Result<Rights, NoPeer> {
        let index = self.index(peer)?;
        self.peers.get(index).map(|peer| peer.rights).ok_or(NoPeer::Unbound(peer))
    }

    /// Takes over the rights of this endpoint with a peer, which the process that introduced them
    /// has changed. Calls that are under way go on by what they began with; what comes from the
    /// peer is judged by this from now on.
    ///
    /// # Errors
    /// See [`NoPeer`].
    pub fn set_rights(&mut self, peer: Address, rights: Rights) -> Result<(), NoPeer> {
        let peer = self.peer(peer)?;
        if rights.heeds && !peer.rights.heeds {
            // What was set when it was not allowed is not heard later, either.
            peer.link.take_bits(Way::In, Word::Notices);
        }
        peer.rights = rights;
        Ok(())
    }

    /// Why a peer can't be called any more; `None`: it can.
    ///
    /// # Errors
    /// See [`NoPeer`], when it is not bound.
    pub fn end_of(&self, peer: Address) -> Result<Option<NoPeer>, NoPeer> {
        let index = self.index(peer)?;
        Ok(self.peers.get(index).and_then(Peer::end))
    }

    /// Whether a peer has left something that could be received, be it good or bad.
    ///
    /// # Errors
    /// See [`NoPeer`], when it is not bound.
    pub fn has_something(&mut self, peer: Address) -> Result<bool, NoPeer> {
        self.peer(peer).map(Peer::has_left_something)
    }

    /// Most bytes of payload of a message to a peer, or of it.
    ///
    /// # Errors
    /// See [`NoPeer`].
    pub fn payload_bytes_max(&self, peer: Address) -> Result<usize, NoPeer> {
        let index = self.index(peer)?;
        self.peers.get(index).map(Peer::payload_bytes_max).ok_or(NoPeer::Unbound(peer))
    }

    /// The peer at `address`, if it is the one that was found last. No more than that: whatever is
    /// written beside a message delays it.
    #[inline]
    pub(crate) fn peer_of_last_time(&mut self, address: Address) -> Option<&mut Peer<L>> {
        let found = self.found.get();
        self.peers.get_mut(found).filter(|known| known.address == address)
    }

    /// Where a peer stands, or why it does not.
    #[inline]
    pub(crate) fn index(&self, peer: Address) -> Result<usize, NoPeer> {
        let found = self.found.get();
        if self.peers.get(found).is_some_and(|known| known.address == peer) {
            return Ok(found);
        }
        let index = self.look_up(peer)?;
        self.found.set(index);
        Ok(index)
    }

    fn look_up(&self, peer: Address) -> Result<usize, NoPeer> {
        if peer.slot == self.address.slot {
            return Err(match peer.generation == self.address.generation {
                true => NoPeer::Oneself(peer),
                false => NoPeer::WrongGeneration { asked: peer, found: self.address.generation },
            });
        }
        let (found, index) = match *self.table.get(&peer.slot).ok_or(NoPeer::Unbound(peer))? {
            Entry::Bound(index) => {
                (self.peers.get(index).map_or(0, |bound| bound.address.generation), Ok(index))
            }
            Entry::Gone { generation, why: Gone::Dead } => (generation, Err(NoPeer::Dead(peer))),
            Entry::Gone { generation, why: Gone::Broken(why) } => {
                (generation, Err(NoPeer::Broken(peer, why)))
            }
            Entry::Gone { generation, why: Gone::Moved(to) } => {
                (generation, Err(NoPeer::Moved { from: peer, to }))
            }
        };
        if found == peer.generation { index } else { Err(NoPeer::WrongGeneration { asked: peer, found }) }
    }

    /// The peer at `address`, alive or not.
    pub(crate) fn peer(&mut self, address: Address) -> Result<&mut Peer<L>, NoPeer> {
        let index = self.index(address)?;
        self.peers.get_mut(index).ok_or(NoPeer::Unbound(address))
    }
}
