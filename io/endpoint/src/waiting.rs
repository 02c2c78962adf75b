//! How a call waits: it looks again for a moment, then sleeps for another on futexes, then on
//! doorbells for as long as it takes.

use std::time::{Duration, Instant};

use channel::{Sleep as How, Spin, SpinPolicy, Whereabouts};
use ipc::{Poll, Pulse, Sleep};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use sys::futex::Woken;
use sys::region::Region;
use wire::ipc::Address;

use crate::Endpoint;
use crate::failed::Trouble;
use crate::link::Pair;
use crate::member::Member;
use crate::pairs::Pairs;

#[cfg(test)]
mod tests;

/// Longest sleep on a futex, which tells nothing of a peer's death, nor of what the daemon says.
/// More than a tick of the kernel's clock: a timer that ends before the next tick has to be set in
/// the processor and taken back, at each sleep, which in a virtual machine costs more than the
/// sleep itself.
pub(crate) const NAP: Duration = Duration::from_millis(5);
/// A call that has waited so long looks for deadlocks, which costs a little with every peer.
pub(crate) const SEARCH_AFTER: Duration = Duration::from_millis(10);
/// How long a call whose time is over waits for another node to say whether it was received: many
/// round trips of a link that works, and little for a person where the link is cut.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_millis(100);
/// An endpoint that always finds something looks so often for the daemon's messages: a system call,
/// and seldom enough to cost nothing.
pub(crate) const HEAR_EVERY: Duration = Duration::from_millis(1);
/// Looks in a row before the first look at the clock, and between two.
const LOOKS_PER_CLOCK: u32 = 16;
/// So many messages in a row make a stream, in which a moment's delay costs nobody anything.
const BURST_MESSAGES: u32 = 4;
/// How long a receiver that has caught up with a stream looks away, in pauses of the processor:
/// some 0.3 us.
const BACK_OFF_PAUSES: u32 = 32;
/// With more peers than this, saying to each that we sleep on a futex costs more than a doorbell.
const NAP_PEERS_MAX: usize = 16;

/// The state of an endpoint's waiting.
#[derive(Debug)]
pub(crate) struct Waiting {
    policy: SpinPolicy,
    /// Short sleeps have paid of late: somebody ended them.
    short: bool,
    /// The peer from which we have received last.
    pub latest: Option<Address>,
    /// Messages in a row that were there when we looked.
    pub burst: u32,
    /// When it was last looked for news without having to wait.
    pub heard: Instant,
}

impl Waiting {
    pub fn new(policy: SpinPolicy) -> Waiting {
        Waiting { policy, short: true, latest: None, burst: 0, heard: Instant::now() }
    }
}

/// The conditions that end a call, beside the event that it waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub deadline: Option<Instant>,
    /// It waits for one peer alone, so there can be a deadlock.
    pub searches: bool,
}

impl Patience {
    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// When it ends in any case, once it is late.
    fn end_of(&self, late_since: Instant) -> Instant {
        self.deadline.map_or(late_since, |deadline| deadline.max(late_since)) + ANSWER_WITHIN
    }
}

/// A random label for a search.
pub(crate) fn label() -> Result<u64, Trouble> {
    let mut bytes = [0; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes[..7], flags))
        .map_err(Trouble::doing("draw a random number for the search for deadlocks"))?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

impl Endpoint {
    /// Polls until the call is over.
    #[inline]
    pub(crate) fn drive<T>(
        &mut self,
        patience: Patience,
        mut poll: impl FnMut(&mut ipc::Endpoint<Pair>, Pulse) -> Poll<T>,
    ) -> Result<T, Trouble> {
        self.check_here()?;
        self.pairs.bury();
        match poll(&mut self.pairs.logic, Pulse { spins: true, ..Pulse::default() }) {
            Poll::Ready(done) => Ok(done),
            looked => self.wait_for(looked, patience, &mut poll),
        }
    }

    #[cold]
    fn wait_for<T>(
        &mut self,
        looked: Poll<T>,
        patience: Patience,
        poll: &mut impl FnMut(&mut ipc::Endpoint<Pair>, Pulse) -> Poll<T>,
    ) -> Result<T, Trouble> {
        self.show_held();
        // Whose answers always come while it spins never sleeps, and would never hear of another
        // daemon.
        self.hear_at_times()?;
        let mut pulse = Pulse::default();
        let mut begun = None;
        let mut late_since = None;
        // What was looked at a moment ago is not looked at again.
        let mut looked = Some(looked);
        loop {
            pulse.late = patience.is_over();
            let end = pulse.late.then(|| patience.end_of(*late_since.get_or_insert_with(Instant::now)));
            pulse.overdue = end.is_some_and(|end| Instant::now() >= end);
            if pulse.late && (begun.is_some() || self.pairs.logic.relies_on_doorbells()) {
                // Who has rung has something, and who has hung up is dead: a short sleep on a futex
                // does not tell.
                self.hear()?;
            }
            let spun = match looked.take().filter(|_| !pulse.late) {
                Some(looked) => looked,
                None => poll(&mut self.pairs.logic, Pulse { spins: true, ..pulse }),
            };
            let sleep = match spun {
                Poll::Ready(done) => return self.end(done),
                Poll::Again => {
                    self.check_here()?;
                    continue;
                }
                Poll::Sleep(sleep) => sleep,
            };
            if sleep == Sleep::All {
                // Nobody is being called: who is dead and has nothing left may go.
                self.pairs.bury();
                self.check_bound()?;
            }
            if let Some(done) = self.spin(sleep, patience, pulse, poll) {
                return self.end(done);
            }
            let naps = self.naps(sleep);
            self.prepare_sleep(naps, sleep);
            let sleep = match poll(&mut self.pairs.logic, pulse) {
                Poll::Ready(done) => return self.end(done),
                Poll::Again => continue,
                Poll::Sleep(sleep) => sleep,
            };
            let since = *begun.get_or_insert_with(Instant::now);
            let search_at = (patience.searches && pulse.label.is_none()).then(|| since + SEARCH_AFTER);
            let until = end.or(patience.deadline).into_iter().chain(search_at).min();
            self.sleep(sleep, naps, until)?;
            self.check_here()?;
            if search_at.is_some_and(|at| Instant::now() >= at) {
                pulse.label = Some(label()?);
            }
        }
    }

    fn end<T>(&mut self, done: T) -> Result<T, Trouble> {
        self.tell_trouble().map(|()| done)
    }

    /// Returns as an error the kernel's refusal to wake a peer, if there was one.
    pub(crate) fn tell_trouble(&mut self) -> Result<(), Trouble> {
        match self.pairs.common.take_trouble() {
            Some(channel::SendError::Doorbell(source)) => {
                Err(Trouble::System { action: "ring the doorbell of a peer", source })
            }
            _ => Ok(()),
        }
    }

    /// Shows peers what was held back: nobody waits before that.
    #[inline]
    pub(crate) fn show_held(&mut self) {
        if std::mem::take(&mut self.holding) {
            self.pairs.flush();
        }
    }

    /// After a burst, leaves the sender a moment alone with the line that it writes, instead of
    /// snatching each message as it comes: the next look finds several.
    pub(crate) fn back_off(&mut self) {
        let burst = std::mem::take(&mut self.waiting.burst);
        if burst < BURST_MESSAGES || self.waiting.policy == SpinPolicy::Never {
            return;
        }
        let Some(peer) = self.waiting.latest else { return };
        let elsewhere = self.pairs.logic.link(peer).map(|pair| pair.end().whereabouts());
        if elsewhere == Ok(Whereabouts::Elsewhere) {
            for _ in 0..BACK_OFF_PAUSES {
                std::hint::spin_loop();
            }
        }
    }

    /// Looks again and again while that may pay.
    fn spin<T>(
        &mut self,
        sleep: Sleep,
        patience: Patience,
        pulse: Pulse,
        poll: &mut impl FnMut(&mut ipc::Endpoint<Pair>, Pulse) -> Poll<T>,
    ) -> Option<T> {
        let Endpoint { pairs, waiting, .. } = self;
        let policy = waiting.policy;
        let peer = match sleep {
            Sleep::One(peer) => peer,
            Sleep::All => waiting.latest.or_else(|| pairs.logic.peers().next())?,
        };
        let mut look = |logic: &mut ipc::Endpoint<Pair>| match poll(logic, Pulse { spins: true, ..pulse }) {
            Poll::Ready(done) => Some(done),
            Poll::Again | Poll::Sleep(_) => None,
        };
        let pair = pairs.logic.link_mut(peer).ok()?;
        match pair.end().whereabouts() {
            Whereabouts::Unknown => return None,
            // To spin would keep it from what we wait for: it gets the processor.
            Whereabouts::Here if !pair.spin.may_give_way() => return None,
            Whereabouts::Here => {
                let since = Instant::now();
                let found = give_way(policy, || look(&mut pairs.logic));
                let took_ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                learn(pairs, peer, |spin| spin.gave_way(found.is_some(), took_ns));
                return found;
            }
            Whereabouts::Elsewhere if policy == SpinPolicy::Never => return None,
            Whereabouts::Elsewhere => {}
        }
        let budget = pair.spin.begin();
        if budget == 0 {
            return None;
        }
        let end = Instant::now() + Duration::from_nanos(budget);
        let end = patience.deadline.map_or(end, |deadline| deadline.min(end));
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if let Some(done) = look(&mut pairs.logic) {
                    learn(pairs, peer, |spin| spin.end(true));
                    return Some(done);
                }
                std::hint::spin_loop();
            }
            // Either may have been moved to the other's processor meanwhile.
            let moved = pairs.logic.link_mut(peer).ok()?.end().whereabouts() != Whereabouts::Elsewhere;
            if moved {
                return None;
            }
            if Instant::now() >= end {
                learn(pairs, peer, |spin| spin.end(false));
                return None;
            }
        }
    }

    /// Whether to sleep on futexes, for a moment, before doorbells.
    fn naps(&mut self, sleep: Sleep) -> bool {
        self.waiting.short
            && match sleep {
                Sleep::One(peer) => self.pairs.logic.link_mut(peer).is_ok_and(|pair| pair.end().has_futex()),
                Sleep::All => {
                    let count = self.pairs.logic.count();
                    self.pairs.have_futexes() && (1..=NAP_PEERS_MAX).contains(&count)
                }
            }
    }

    /// Settles how peers will have to wake us whom we tell from now on that we sleep.
    fn prepare_sleep(&mut self, naps: bool, sleep: Sleep) {
        self.pairs.common.set_nap(naps);
        if naps && sleep == Sleep::All {
            // Who has been told of a doorbell must hear of the futex.
            self.pairs.logic.heard_all();
        }
    }

    fn sleep(&mut self, sleep: Sleep, naps: bool, until: Option<Instant>) -> Result<(), Trouble> {
        if naps {
            self.nap(sleep, until);
            return Ok(());
        }
        let due = self.member.as_ref().and_then(Member::due);
        let blind = self.pairs.common.is_blind().then(|| Instant::now() + NAP);
        let until = until.into_iter().chain(due).chain(blind).min();
        let since = Instant::now();
        let control = match sleep {
            Sleep::One(peer) => self.sleep_on_one(peer, until)?,
            Sleep::All => self.pairs.sleep_on_all(until)?.control,
        };
        self.waiting.short = since.elapsed() < NAP;
        if control || due.is_some_and(|due| due <= Instant::now()) {
            self.take_in()?;
        }
        Ok(())
    }

    /// Sleeps on one peer's doorbell; true: the daemon has news.
    fn sleep_on_one(&mut self, peer: Address, until: Option<Instant>) -> Result<bool, Trouble> {
        let timeout = until.map(|until| session::timespec(until.saturating_duration_since(Instant::now())));
        let Ok(pair) = self.pairs.logic.link(peer) else { return Ok(false) };
        let bell = pair.end().doorbell();
        let control = self.member.as_ref().and_then(Member::descriptor);
        let interrupter = self.interrupter.as_ref().map(|interrupter| interrupter.descriptor());
        // What is not there is the bell once more.
        let mut polled = [bell, control.unwrap_or(bell), interrupter.unwrap_or(bell)]
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Trouble::doing("wait on the doorbell of a peer")(errno)),
        }
        let [rung, news, _] = polled.map(|polled| !polled.revents().is_empty());
        let news = news && control.is_some();
        if rung {
            self.pairs.hear_peer(peer)?;
        }
        Ok(news)
    }

    /// Sleeps on futexes, for a moment.
    fn nap(&mut self, sleep: Sleep, until: Option<Instant>) {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let at_most = left.map_or(NAP, |left| left.min(NAP));
        let woken = match sleep {
            Sleep::One(peer) => match self.pairs.logic.link(peer) {
                Ok(pair) => pair.end().region().sleep(pair.end().futex(), How::OnFutex.bits(), at_most),
                Err(_) => Woken::Perhaps,
            },
            Sleep::All => self.nap_on_all(at_most),
        };
        if sleep == Sleep::All {
            // Who was told of the futex must hear of whatever comes next.
            self.pairs.logic.heard_all();
        }
        // A time that the deadline has cut short teaches nothing.
        if woken == Woken::Never || woken == Woken::TimeOver && at_most == NAP {
            self.waiting.short = false;
        }
    }

    fn nap_on_all(&mut self, at_most: Duration) -> Woken {
        // Those that this call does not wait for have been told nothing.
        let told = self.pairs.logic.links_mut().filter(|(_, pair)| pair.hears_futex());
        let words: Vec<(&Region, usize, u64)> =
            told.map(|(_, pair)| (pair.end().region(), pair.end().futex(), How::OnFutex.bits())).collect();
        match words.as_slice() {
            [(region, futex, word)] => region.sleep(*futex, *word, at_most),
            words => Region::sleep_on_any(words, at_most),
        }
    }
}

/// Tells a peer's spin how it went.
fn learn(pairs: &mut Pairs, peer: Address, how: impl FnOnce(&mut Spin)) {
    if let Ok(pair) = pairs.logic.link_mut(peer) {
        how(&mut pair.spin);
    }
}

/// Lets the peer have the processor that both share: that is the switch which a sleep costs as
/// well.
fn give_way<T>(policy: SpinPolicy, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    (0..policy.ways()).find_map(|_| {
        std::thread::yield_now();
        look()
    })
}
