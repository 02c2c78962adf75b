//! An endpoint's connection to the daemon, which introduces it to others and hands out buffers.
//!
//! Nothing here waits. What was asked is answered when [`Member::take_in`] finds the answer; a
//! daemon that dies loses what it was asked, and the next one is told who this endpoint is.

mod bind;
mod find;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::{Gone, Rights};
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use session::{Bound, Control, ControlError, FolderWatch, Introduced, Memories, Notice};
use sys::known::Known;
use wire::control::{EndpointAddress, EndpointRights, Event, GrantedBuffer, MAX_STAY_BYTES, Reply, Request};
use wire::ipc::Address;

use crate::failed::Trouble;
use crate::grants::{Borrowings, Freed};
use crate::pairs::{Introduction, Pairs};

pub use bind::BindError;
pub(crate) use bind::bind_backup;
pub use find::{Find, FindError, Whom};

/// How long to trust that the folder of the daemon's socket tells of everything: a file system
/// without inotify tells nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Pause before what was refused for the moment is asked once more.
pub(crate) const RETRY: Duration = Duration::from_millis(20);
/// How long the daemon may take for its answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest name that is asked for: no topology has one.
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// News that are taken in at a time; the rest keeps the descriptor readable.
const TAKEN_AT_ONCE: usize = 256;

/// Number of a request, and the connection that it was made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    life: u64,
    id: u64,
}

/// An answer of the daemon.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A peer was introduced, and joined; or could not be joined, and why.
    Introduced(Result<Address, String>),
    /// A buffer, and its memories.
    Buffer(u64, Memories),
    /// A grant's number.
    Granted(u64),
    /// The buffer that a grant stands for, and its memories.
    Borrowed(GrantedBuffer, Memories),
    /// The end of a channel to what a grant of another node stands for.
    Lent(channel::End),
    /// It was done.
    Done,
    /// A backup has its primary's place: [`Member::take_promoted`] says which.
    Promoted,
    /// It was refused.
    Refused { errno: Errno, message: String },
    /// The daemon died before it had answered.
    Lost,
}

#[derive(Debug)]
enum State {
    /// The daemon is there, and knows this endpoint.
    Up,
    /// The daemon is there, and was told of this endpoint.
    Binding,
    /// The daemon is gone. The watch and the timer tell when to look for the next one.
    Away { folder: Option<FolderWatch>, not_before: Instant },
    /// The endpoint has ended; why, for a person.
    Over { message: String },
}

/// The connection of an endpoint that was bound at the daemon.
#[derive(Debug)]
pub(crate) struct Member {
    control: Control,
    state: State,
    /// The event sources, behind one descriptor: the connection, the folder of the daemon's socket,
    /// the timer.
    events: Known,
    timer: Known,
    address: Address,
    name: String,
    token: String,
    copies: bool,
    /// It is a backup of the endpoint with this name.
    backs: bool,
    /// The least generation whose replies it knows; 0: its own.
    continues: u32,
    /// The primary's place, which it has got.
    promoted: Option<Bound>,
    /// The domain where the administrator wants it.
    ordered_to: Option<String>,
    /// Counts the connections.
    life: u64,
    answers: BTreeMap<u64, Answer>,
    /// Requests whose answers are awaited.
    awaited: BTreeMap<u64, Kind>,
    /// Buffers that were dropped.
    freed: Freed,
    /// Those of them that the daemon could not be told of yet, because it does not read.
    unsaid: Vec<u64>,
    /// There may be more news than were taken in last.
    has_more: bool,
}

/// The treatment of an answer that nobody waits for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Awaited,
    Forgotten,
}

impl Member {
    fn new(control: Control, name: &str, bound: Bound) -> Result<Member, Trouble> {
        let doing = Trouble::doing;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(doing("make the set of what an endpoint's connection tells"))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(doing("make the timer of an endpoint's connection"))?;
        let (events, timer) = (Known::new(events), Known::new(timer));
        let freed = Freed::new().map_err(|source| Trouble::System { action: "make an event", source })?;
        watch(&events, &control)
            .and_then(|()| watch(&events, &timer))
            .and_then(|()| watch(&events, freed.event()))
            .map_err(doing("watch the daemon's connection"))?;
        let Bound { address, token, copies } = bound;
        Ok(Member {
            control,
            state: State::Up,
            events,
            timer,
            address: of_wire(address),
            name: name.to_owned(),
            token,
            copies,
            backs: false,
            continues: 0,
            promoted: None,
            ordered_to: None,
            life: 1,
            answers: BTreeMap::new(),
            awaited: BTreeMap::new(),
            freed,
            unsaid: Vec::new(),
            has_more: false,
        })
    }

    /// Returns the descriptor that becomes readable when there is news. It stays the same.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    /// When [`Member::take_in`] is due whether or not the descriptor becomes readable: an event
    /// loop may have been told once, and not again of the news that are left. The timer is part of
    /// the descriptor.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.has_more.then(Instant::now)
    }

    /// Where dropped buffers are noted.
    pub(crate) fn freed(&self) -> Freed {
        self.freed.clone()
    }

    /// How many buffers of this endpoint there are.
    pub(crate) fn count_buffers(&self) -> usize {
        self.freed.holders().saturating_sub(1)
    }

    /// Slot of the endpoint.
    pub(crate) fn slot(&self) -> u32 {
        self.address.slot
    }

    /// Counts the connections to daemons; what was made on an earlier one is not known to this one.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// The least generation of the endpoint whose replies it knows.
    pub(crate) fn continues(&self) -> u32 {
        if self.continues == 0 { self.address.generation } else { self.continues }
    }

    /// The domain where the administrator wants this endpoint, if it was said since this was asked
    /// last.
    pub(crate) fn take_order(&mut self) -> Option<String> {
        self.ordered_to.take()
    }

    /// Tells the administrator why this endpoint does not move.
    pub(crate) fn stay(&mut self, why: &str) {
        let why = why[..why.floor_char_boundary(MAX_STAY_BYTES)].to_owned();
        let endpoint = self.address.slot;
        if let Some(ticket) = self.ask(|id| Request::Stay { id, endpoint, why }) {
            self.forget(ticket);
        }
    }

    /// The place that a backup has got.
    pub(crate) fn take_promoted(&mut self) -> Option<Bound> {
        self.promoted.take()
    }

    /// The connection of a backup is the endpoint's from now on.
    pub(crate) fn becomes(&mut self, name: &str, bound: Bound, continues: u32) {
        let Bound { address, token, copies } = bound;
        (self.address, self.name, self.token, self.copies) =
            (of_wire(address), name.to_owned(), token, copies);
        (self.backs, self.continues) = (false, continues);
    }

    /// Whether the endpoint may copy for others.
    pub(crate) fn copies(&self) -> bool {
        self.copies
    }

    /// Why the endpoint has ended, if it has.
    pub(crate) fn over(&self) -> Option<&str> {
        match &self.state {
            State::Over { message } => Some(message),
            _ => None,
        }
    }

    fn is_away(&self) -> bool {
        matches!(self.state, State::Away { .. })
    }

    /// Whether a daemon can be asked.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up)
    }

    /// Asks for something; `None`: not now, because the daemon is away or does not read.
    /// [`Member::take_in`] will tell of a change.
    pub(crate) fn ask(&mut self, request: impl FnOnce(u64) -> Request) -> Option<Ticket> {
        if !self.is_up() {
            return None;
        }
        match self.control.start(request) {
            Ok(id) => {
                self.awaited.insert(id, Kind::Awaited);
                Some(Ticket { life: self.life, id })
            }
            Err(error) => {
                if error.is_gone() {
                    self.lost();
                } else {
                    self.rest(RETRY);
                }
                None
            }
        }
    }

    /// The answer, when it is there.
    pub(crate) fn answer(&mut self, ticket: Ticket) -> Option<Answer> {
        if ticket.life != self.life
            || !self.awaited.contains_key(&ticket.id) && !self.answers.contains_key(&ticket.id)
        {
            return Some(Answer::Lost);
        }
        self.answers.remove(&ticket.id)
    }

    /// Whether the place that a backup wants, or one of these answers, is there.
    pub(crate) fn has_news(&self, asked: impl IntoIterator<Item = Ticket>) -> bool {
        let is_pending = |ticket: Ticket| {
            ticket.life == self.life
                && self.awaited.contains_key(&ticket.id)
                && !self.answers.contains_key(&ticket.id)
        };
        self.promoted.is_some() || asked.into_iter().any(|ticket| !is_pending(ticket))
    }

    /// Nobody waits for this answer any more. A peer that it introduces is known all the same.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        if ticket.life != self.life {
            return;
        }
        if let Some(kind) = self.awaited.get_mut(&ticket.id) {
            *kind = Kind::Forgotten;
        }
        self.answers.remove(&ticket.id);
    }

    /// Frees a buffer, whose answer nobody waits for.
    pub(crate) fn free(&mut self, buffer: u64) {
        let endpoint = self.slot();
        let ticket = self.ask(|id| Request::Free { id, endpoint, buffer });
        match ticket {
            Some(ticket) => self.forget(ticket),
            // A daemon that is away knows none of it when it is back.
            None if self.is_up() => self.unsaid.push(buffer),
            None => {}
        }
    }

    /// Takes in whatever is there, without waiting.
    pub(crate) fn take_in(&mut self, pairs: &mut Pairs, borrowings: &mut Borrowings) {
        self.drain_timer();
        self.has_more = false;
        for taken in 1..=TAKEN_AT_ONCE {
            // What comes after a promotion is for the endpoint that the backup becomes.
            if self.promoted.is_some() || self.over().is_some() || self.is_away() && !self.find_daemon(pairs)
            {
                break;
            }
            match self.control.next_notice() {
                Ok(None) => break,
                Ok(Some(notice)) => {
                    self.has_more = taken == TAKEN_AT_ONCE;
                    self.noticed(notice, pairs, borrowings);
                }
                Err(error) if error.is_gone() => self.lost(),
                Err(error) => {
                    tracing::warn!(endpoint = %self.address, %error, "a packet of the daemon was dropped");
                }
            }
        }
        if self.over().is_some() {
            borrowings.clear();
        }
        let unsaid = std::mem::take(&mut self.unsaid);
        for buffer in self.freed.take(self.life).into_iter().chain(unsaid) {
            self.free(buffer);
        }
    }

    fn noticed(&mut self, notice: Notice, pairs: &mut Pairs, borrowings: &mut Borrowings) {
        match notice {
            Notice::Introduced { endpoint, introduced } if endpoint == self.slot() => {
                if let Err(why) = join(introduced, pairs) {
                    tracing::warn!(endpoint = %self.address, why, "an introduction came to nothing");
                }
            }
            Notice::Answer { id, answer } => self.answered(id, answer.message, answer.descriptors, pairs),
            Notice::Bound(bound) => self.bound_again(bound, pairs),
            Notice::Refused { errno, message } => {
                self.not_bound_again(Errno::from_raw_os_error(errno), message, pairs)
            }
            Notice::Event(event) => self.told(event, pairs, borrowings),
            // Of another endpoint, or for servers: not ours.
            Notice::Introduced { .. } | Notice::Attach { .. } | Notice::Serving(_) => {}
        }
    }

    fn told(&mut self, event: Event, pairs: &mut Pairs, borrowings: &mut Borrowings) {
        let slot = self.slot();
        match event {
            Event::Rights { endpoint, peer, rights } if endpoint == slot => {
                // Of one that we have parted from meanwhile: just as well.
                let _parted = pairs.set_rights(of_wire(peer), rights_of(rights));
            }
            Event::Migrate { endpoint, to } if endpoint == slot => {
                self.ordered_to = to;
                // Whoever waits for a message does not go on waiting.
                pairs.logic.set_news(true);
            }
            Event::Superseded { endpoint, peer, by } if endpoint == slot => {
                pairs.supersede(of_wire(peer), of_wire(by));
                if pairs.has_unreceived(peer.slot) {
                    let to = wire::control::Whom::Address(by);
                    let ticket = self.ask(|id| Request::Introduce { id, endpoint, to, wait_ms: 0 });
                    // Who finds it later sends it then.
                    ticket.into_iter().for_each(|ticket| self.forget(ticket));
                }
            }
            Event::Moved { endpoint, grant } if endpoint == slot => borrowings.moved(grant),
            Event::Revoked { endpoint, grant } if endpoint == slot => borrowings.revoked(grant),
            Event::Unbound { endpoint, message } if endpoint == slot => self.end(message, pairs),
            _ => {}
        }
    }

    fn answered(&mut self, id: u64, answer: Reply, descriptors: Vec<OwnedFd>, pairs: &mut Pairs) {
        let answer = match answer {
            Reply::Introduced { peer, channel, .. } => Answer::Introduced(
                channel::End::from_descriptors(descriptors)
                    .map_err(|error| error.to_string())
                    .and_then(|end| join(Introduced { peer, channel, end }, pairs)),
            ),
            Reply::Buffer { buffer, .. } => match two(descriptors) {
                Some(memories) => Answer::Buffer(buffer, memories),
                None => unusable("a buffer without its two memories"),
            },
            Reply::Borrowed { buffer, .. } => match two(descriptors) {
                Some(memories) => Answer::Borrowed(buffer, memories),
                None => unusable("a grant without its two memories"),
            },
            Reply::Lent { .. } => match channel::End::from_descriptors(descriptors) {
                Ok(end) => Answer::Lent(end),
                Err(_) => unusable("a grant of another node without the end of a channel"),
            },
            Reply::Granted { grant, .. } => Answer::Granted(grant),
            Reply::Done { .. } => Answer::Done,
            Reply::Promoted { address, token, copies, .. } => {
                (self.promoted, self.has_more) = (Some(Bound { address, token, copies }), true);
                Answer::Promoted
            }
            Reply::Refused { errno, message, .. } => {
                Answer::Refused { errno: Errno::from_raw_os_error(errno), message }
            }
            _ => unusable("an answer of another kind"),
        };
        if self.awaited.remove(&id) == Some(Kind::Awaited) {
            self.answers.insert(id, answer);
        } else if let Answer::Buffer(buffer, _) = answer {
            self.free(buffer);
        }
    }

    /// The connection is lost: look for the next daemon, at once.
    fn lost(&mut self) {
        self.leave(Duration::ZERO);
    }

    /// Leaves the connection, and looks for a daemon after a while.
    fn leave(&mut self, pause: Duration) {
        // A connection that has hung up would ring for ever.
        let _not_there = self.events.look().and_then(|events| epoll::delete(events, &self.control));
        let folder = self.control.watch_for_daemon();
        if let Some(folder) = &folder
            && let Err(errno) = watch(&self.events, folder)
        {
            tracing::debug!(endpoint = %self.address, %errno, "can't watch the daemon's folder, will look again");
        }
        self.life += 1;
        self.answers.clear();
        self.awaited.clear();
        self.unsaid.clear();
        self.state = State::Away { folder, not_before: Instant::now() + pause };
        // No time at all would stop the timer.
        self.rest(pause.max(Duration::from_nanos(1)));
    }

    /// Connects to the next daemon if it is there, and tells it who we are.
    fn find_daemon(&mut self, pairs: &Pairs) -> bool {
        if let State::Away { folder, not_before } = &self.state {
            if let Some(folder) = folder {
                folder.drain();
            }
            let left = not_before.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                self.rest(left);
                return false;
            }
        }
        self.rest(LOOK_AGAIN);
        match self.control.try_reconnect() {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                tracing::warn!(endpoint = %self.address, %error, "can't connect to the daemon again, will try");
                return false;
            }
        }
        let alive = |address: &Address| pairs.is_alive(*address);
        let peers = pairs.infos().map(|info| info.address).filter(alive).map(on_wire).collect();
        let asked = match self.backs {
            true => self.control.ask_back(&self.name, &self.token, peers),
            false => self.control.ask_bind(&self.name, &self.token, peers),
        };
        if asked.is_err() || watch(&self.events, &self.control).is_err() {
            return false;
        }
        self.stop_timer();
        self.state = State::Binding;
        true
    }

    fn bound_again(&mut self, bound: Bound, pairs: &mut Pairs) {
        if of_wire(bound.address) != self.address {
            return self.end("the next daemon has made it another endpoint".into(), pairs);
        }
        self.token = bound.token;
        self.copies = bound.copies;
        self.state = State::Up;
        if self.continues != 0 && self.control.tell_continues(self.address.slot, self.continues).is_err() {
            self.lost();
        }
    }

    fn not_bound_again(&mut self, errno: Errno, message: String, pairs: &mut Pairs) {
        match errno {
            // Our old connection is not seen dead yet, or the daemon is about to end.
            Errno::BUSY | Errno::AGAIN => self.leave(RETRY),
            _ => self.end(message, pairs),
        }
    }

    /// The endpoint is none any more: its channels end.
    fn end(&mut self, message: String, pairs: &mut Pairs) {
        let peers: Vec<Address> = pairs.infos().map(|info| info.address).collect();
        for peer in peers {
            let _parted = pairs.unbind(peer, Gone::Dead);
        }
        let _not_there = self.events.look().and_then(|events| epoll::delete(events, &self.control));
        self.stop_timer();
        self.life += 1;
        self.answers.clear();
        self.awaited.clear();
        self.unsaid.clear();
        self.state = State::Over { message };
    }

    /// Has the descriptor become readable after a while.
    fn rest(&self, duration: Duration) {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.set_timer(&Itimerspec { it_interval: none, it_value: session::timespec(duration) });
    }

    fn stop_timer(&self) {
        self.rest(Duration::ZERO);
    }

    fn set_timer(&self, times: &Itimerspec) {
        let set = |timer| rustix::time::timerfd_settime(timer, TimerfdTimerFlags::empty(), times);
        if let Err(errno) = self.timer.look().and_then(set) {
            tracing::warn!(endpoint = %self.address, %errno, "can't set the timer of the daemon's connection");
        }
    }

    fn drain_timer(&self) {
        let mut expirations = Vec::with_capacity(size_of::<u64>());
        // Not expired, or read: either way it rings no more.
        let _expired =
            self.timer.look().and_then(|timer| rustix::io::read(timer, spare_capacity(&mut expirations)));
    }

    /// Ends the endpoint at the daemon.
    fn unbind(&mut self) -> Result<(), ControlError> {
        if self.is_up() {
            self.control.unbind(self.address.slot, Instant::now() + ANSWER_TIMEOUT)
        } else {
            Ok(())
        }
    }
}

/// Joins a peer. Returns its address, or why not.
fn join(introduced: Introduced, pairs: &mut Pairs) -> Result<Address, String> {
    let Introduced { peer, end, .. } = introduced;
    let (continues, backup) = (peer.continues, peer.backup);
    let address = of_wire(peer.address);
    let name = Some(peer.name).filter(|name| !name.is_empty());
    let rights = rights_of(peer.rights);
    let domain = Some(peer.domain);
    let introduction = Introduction { address, name, domain, rights, end, continues, backup };
    pairs.introduce(introduction).map(|()| address).map_err(|error| with_cause(&error))
}

/// An error's text and those of its causes.
pub(crate) fn with_cause(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn two(descriptors: Vec<OwnedFd>) -> Option<Memories> {
    let [data, states]: [OwnedFd; 2] = descriptors.try_into().ok()?;
    Some(Memories { data, states })
}

fn unusable(what: &str) -> Answer {
    Answer::Refused { errno: Errno::PROTO, message: format!("the daemon sent {what}") }
}

fn watch(events: &Known, source: impl AsFd) -> Result<(), Errno> {
    epoll::add(events.look()?, source, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

pub(crate) fn of_wire(address: EndpointAddress) -> Address {
    Address { slot: address.slot, generation: address.generation }
}

pub(crate) fn on_wire(address: Address) -> EndpointAddress {
    EndpointAddress { slot: address.slot, generation: address.generation }
}

fn rights_of(told: EndpointRights) -> Rights {
    let EndpointRights { send, request, notify, relay, hears, answers, answers_relayed, heeds } = told;
    Rights { send, request, notify, relay, hears, answers, answers_relayed, heeds }
}
