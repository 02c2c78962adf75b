//! Locks of consumers on the files of a folder.
//!
//! A channel is a party of the table. When one ends, what its sessions held is kept for a while:
//! the frontend's successor may come for it, over a channel of its own. When the server itself is
//! new, consumers come for what they held at the one before, and nobody else gets anything until
//! they had the time.

use locks::{Held, Kind, LAST, Mode, Outcome, Owner, Range, Refusal, Table};
use rustix::io::Errno;
use session::{LinkId, ReplyTo};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use wire::control::Consumer;
use wire::service::{Lock, LockMode, lock};

/// How long the locks of a channel that has ended are kept for a successor of its consumer: some
/// times what the daemon takes to start one.
const KEPT: Duration = Duration::from_secs(5);
/// Channels of one domain whose locks are kept at a time; of more, the oldest are given up.
const MAX_KEPT: usize = 4;
/// The access mode in the flags of open(2), and its values.
const ACCESS: u32 = 3;
const READ_ONLY: u32 = 0;
const WRITE_ONLY: u32 = 1;

/// An answer that is due.
pub type Due = (ReplyTo, Result<Vec<u8>, Errno>);

/// A request for a lock in an open session.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub to: ReplyTo,
    /// The node that the session is open on.
    pub file: u32,
    pub lock: Lock,
    /// Whether only what is in its way is wanted.
    pub tests: bool,
}

/// A channel that has ended with locks.
#[derive(Debug)]
struct Ended {
    link: LinkId,
    dc: String,
    domain: String,
    until: Instant,
}

/// The locks of a service.
#[derive(Debug, Default)]
pub struct Locks {
    table: Table<u32>,
    waiting: HashMap<u64, ReplyTo>,
    last_ticket: u64,
    ended: Vec<Ended>,
    /// Until when only what was held at the server before is granted.
    grace: Option<Instant>,
    deferred: VecDeque<Asked>,
    due: Vec<Due>,
}

impl Locks {
    /// Grants nothing new until then.
    pub fn begin(&mut self, grace: Option<Instant>) {
        self.grace = grace;
    }

    /// Takes a request. `domain` is who asks, `flags` those of its open(2).
    pub fn ask(&mut self, asked: Asked, domain: &Consumer, flags: u32) {
        let Asked { to, lock, tests, .. } = asked;
        if let Err(errno) = check(&lock, tests, flags) {
            return self.due.push((to, Err(errno)));
        }
        let is_new = lock.mode != LockMode::None && lock.flags & lock::AGAIN == 0;
        if is_new && self.grace.is_some() {
            return self.deferred.push_back(asked);
        }
        if !is_new && lock.mode != LockMode::None {
            let result = self.again(&asked, domain);
            return self.due.push((to, result.map(|()| Vec::new())));
        }
        self.do_now(asked);
    }

    /// Whoever waits under this tag does so no more, and is told so.
    pub fn interrupt(&mut self, link: LinkId, tag: u64) {
        if let Some(to) = self.forget(link, tag) {
            self.due.push((to, Err(Errno::INTR)));
        }
    }

    /// Nobody wants an answer under this tag any more.
    pub fn forget(&mut self, link: LinkId, tag: u64) -> Option<ReplyTo> {
        let is_it = |to: &ReplyTo| to.link == link && to.tag == tag;
        if let Some(at) = self.deferred.iter().position(|asked| is_it(&asked.to)) {
            return self.deferred.remove(at).map(|asked| asked.to);
        }
        let ticket = self.waiting.iter().find(|(_, to)| is_it(to)).map(|(&ticket, _)| ticket)?;
        self.table.cancel(ticket);
        self.waiting.remove(&ticket)
    }

    /// A session is closed: what was set in it is given up.
    pub fn close(&mut self, link: LinkId, session: u64) {
        self.deferred.retain(|asked| (asked.to.link, asked.to.session) != (link, session));
        for ticket in self.table.close(link.0, session) {
            self.waiting.remove(&ticket);
        }
        self.settle();
    }

    /// A channel has ended. What its consumer held is kept for its successor.
    pub fn leave(&mut self, link: LinkId, consumer: &Consumer, now: Instant) {
        self.deferred.retain(|asked| asked.to.link != link);
        for ticket in self.table.withdraw(link.0) {
            self.waiting.remove(&ticket);
        }
        if self.table.count(link.0).0 == 0 {
            return;
        }
        let (dc, domain) = (consumer.dc.clone(), consumer.domain.clone());
        let of_domain: Vec<LinkId> =
            self.ended.iter().filter(|it| it.is_of(consumer)).map(|it| it.link).collect();
        for oldest in of_domain.iter().take((of_domain.len() + 1).saturating_sub(MAX_KEPT)) {
            self.give_up(*oldest);
        }
        self.ended.push(Ended { link, dc, domain, until: now + KEPT });
    }

    /// When [`Locks::expired`] is to be called.
    pub fn deadline(&self) -> Option<Instant> {
        self.ended.iter().map(|ended| ended.until).chain(self.grace).min()
    }

    /// Does what is due by now.
    pub fn expired(&mut self, now: Instant) {
        let late = self.ended.iter().filter(|ended| ended.until <= now);
        for link in late.map(|ended| ended.link).collect::<Vec<_>>() {
            self.give_up(link);
        }
        if self.grace.is_some_and(|until| until <= now) {
            self.grace = None;
            for asked in std::mem::take(&mut self.deferred) {
                self.do_now(asked);
            }
        }
    }

    /// Takes the answers that are due.
    pub fn due(&mut self) -> Vec<Due> {
        std::mem::take(&mut self.due)
    }

    /// Locks that are held, and requests that wait.
    pub fn count(&self) -> (usize, usize) {
        (self.table.all().count(), self.waiting.len() + self.deferred.len())
    }

    fn give_up(&mut self, link: LinkId) {
        self.ended.retain(|ended| ended.link != link);
        self.table.leave(link.0);
        self.settle();
    }

    fn do_now(&mut self, Asked { to, file, lock, tests }: Asked) {
        let Some(request) = request(to, &lock) else {
            let (owner, kind, range) = (owner(to, &lock), kind(&lock), range(&lock));
            let result = self.table.unlock(file, owner, kind, range);
            self.settle();
            return self.due.push((to, result.map(|()| Vec::new()).map_err(errno)));
        };
        if tests {
            let found = self.table.test(file, &request);
            let found = found.map_or(Lock { mode: LockMode::None, ..lock }, |held| told(&held, to.link));
            return self.due.push((to, Ok(found.encode().to_vec())));
        }
        let waits = lock.flags & lock::WAIT != 0;
        self.last_ticket += u64::from(waits);
        let result = self.table.lock(file, request, waits.then_some(self.last_ticket));
        self.settle();
        match result {
            Ok(Outcome::Waits) => drop(self.waiting.insert(self.last_ticket, to)),
            Ok(Outcome::Granted) => self.due.push((to, Ok(Vec::new()))),
            Err(refusal) => self.due.push((to, Err(errno(refusal)))),
        }
    }

    /// Grants what the owner held before, if nobody else can have had it meanwhile.
    fn again(&mut self, asked: &Asked, domain: &Consumer) -> Result<(), Errno> {
        let Some(request) = request(asked.to, &asked.lock) else { return Err(Errno::INVAL) };
        let ended: Vec<LinkId> = self.ended.iter().filter(|it| it.is_of(domain)).map(|it| it.link).collect();
        let is_kept = ended.iter().any(|link| self.table.hand_over(asked.file, link.0, &request));
        let result = if is_kept || self.grace.is_some() {
            self.table.lock(asked.file, request, None).map(drop).map_err(errno)
        } else {
            Err(Errno::STALE)
        };
        self.settle();
        result
    }

    /// Answers those whose waiting has ended.
    fn settle(&mut self) {
        for (ticket, result) in self.table.settled() {
            if let Some(to) = self.waiting.remove(&ticket) {
                self.due.push((to, result.map(|()| Vec::new()).map_err(errno)));
            }
        }
    }
}

impl Ended {
    fn is_of(&self, consumer: &Consumer) -> bool {
        (&self.dc, &self.domain) == (&consumer.dc, &consumer.domain)
    }
}

/// The rules of fcntl(2); flock(2) asks for no access mode.
fn check(lock: &Lock, tests: bool, flags: u32) -> Result<(), Errno> {
    if tests && (lock.mode == LockMode::None || lock.flags & !lock::WHOLE != 0) {
        return Err(Errno::INVAL);
    }
    let is_record = lock.flags & lock::WHOLE == 0 && !tests;
    match (lock.mode, flags & ACCESS) {
        (LockMode::Exclusive, READ_ONLY) | (LockMode::Shared, WRITE_ONLY) if is_record => Err(Errno::BADF),
        _ => Ok(()),
    }
}

fn owner(to: ReplyTo, lock: &Lock) -> Owner {
    Owner { party: to.link.0, number: lock.owner }
}

fn kind(lock: &Lock) -> Kind {
    if lock.flags & lock::WHOLE == 0 { Kind::Record } else { Kind::Whole }
}

fn range(lock: &Lock) -> Range {
    let said = Range::new(lock.range.0, lock.range.1.min(LAST));
    said.filter(|_| kind(lock) == Kind::Record).unwrap_or(Range::ALL)
}

/// The lock that is asked for; `None` where one is given up.
fn request(to: ReplyTo, lock: &Lock) -> Option<Held> {
    let mode = match lock.mode {
        LockMode::None => return None,
        LockMode::Shared => Mode::Shared,
        LockMode::Exclusive => Mode::Exclusive,
    };
    let (owner, kind, range) = (owner(to, lock), kind(lock), range(lock));
    Some(Held { owner, kind, mode, range, via: to.session, process: lock.process })
}

/// A lock that was found, as the consumer at `link` is told of it: processes of other domains are
/// not its business.
fn told(held: &Held, link: LinkId) -> Lock {
    let mode = match held.mode {
        Mode::Shared => LockMode::Shared,
        Mode::Exclusive => LockMode::Exclusive,
    };
    let flags = if held.kind == Kind::Whole { lock::WHOLE } else { 0 };
    let process = if held.owner.party == link.0 { held.process } else { 0 };
    Lock { owner: 0, range: (held.range.first(), held.range.last()), process, mode, flags }
}

fn errno(refusal: Refusal) -> Errno {
    match refusal {
        Refusal::Held => Errno::AGAIN,
        Refusal::Deadlock => Errno::DEADLK,
        Refusal::Full => Errno::NOLCK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consumer(domain: &str) -> Consumer {
        let (dc, entrance) = ("house".into(), "device".into());
        Consumer { dc, domain: domain.into(), entrance, verbs: Vec::new() }
    }

    struct Bed {
        locks: Locks,
        now: Instant,
        tag: u64,
    }

    impl Bed {
        fn new() -> Self {
            Self { locks: Locks::default(), now: Instant::now(), tag: 0 }
        }

        /// Asks for all bytes, in session 5 of a link; the tag.
        fn ask(&mut self, link: u64, domain: &str, mode: LockMode, flags: u8) -> u64 {
            self.tag += 1;
            let (link, received) = (LinkId(link), self.now);
            let to = ReplyTo { link, session: 5, tag: self.tag, file: 1, traced: false, received };
            let lock = Lock { owner: 7, range: (0, LAST), process: 42, mode, flags };
            self.locks.ask(Asked { to, file: 1, lock, tests: false }, &consumer(domain), 2);
            self.tag
        }

        fn due(&mut self) -> Vec<(u64, Option<Errno>)> {
            self.locks.due().into_iter().map(|(to, result)| (to.tag, result.err())).collect()
        }

        fn pass(&mut self, time: Duration) {
            self.now += time;
            self.locks.expired(self.now);
        }
    }

    use lock::{AGAIN, WAIT};
    const ALONE: LockMode = LockMode::Exclusive;

    #[test]
    fn a_waiter_that_is_interrupted_is_told_and_holds_nothing() {
        let mut bed = Bed::new();
        let held = bed.ask(1, "hall", ALONE, 0);
        let waits = bed.ask(2, "attic", ALONE, WAIT);
        let next = bed.ask(3, "cellar", ALONE, WAIT);
        assert_eq!(bed.due(), [(held, None)]);
        bed.locks.interrupt(LinkId(2), waits);
        assert_eq!(bed.due(), [(waits, Some(Errno::INTR))]);
        bed.locks.close(LinkId(1), 5);
        assert_eq!(bed.due(), [(next, None)]);
        bed.locks.interrupt(LinkId(3), next);
        assert_eq!(bed.due(), [], "it was granted, and said so");
    }

    #[test]
    fn a_successor_of_a_frontend_gets_what_its_predecessor_held_and_others_wait() {
        let mut bed = Bed::new();
        bed.ask(1, "hall", ALONE, 0);
        let waits = bed.ask(2, "attic", ALONE, WAIT);
        bed.due();
        bed.locks.leave(LinkId(1), &consumer("hall"), bed.now);
        let stranger = bed.ask(2, "attic", ALONE, AGAIN);
        let again = bed.ask(3, "hall", ALONE, AGAIN);
        assert_eq!(bed.due(), [(stranger, Some(Errno::STALE)), (again, None)]);
        bed.pass(KEPT);
        assert_eq!(bed.due(), [], "it is the successor's");
        bed.locks.leave(LinkId(3), &consumer("hall"), bed.now);
        bed.pass(KEPT);
        assert_eq!(bed.due(), [(waits, None)]);
        let late = bed.ask(4, "hall", ALONE, AGAIN);
        assert_eq!(bed.due(), [(late, Some(Errno::STALE))]);
    }

    #[test]
    fn a_new_server_grants_what_was_held_before_it_grants_anything_else() {
        let mut bed = Bed::new();
        let grace = Duration::from_secs(3);
        bed.locks.begin(Some(bed.now + grace));
        let new = bed.ask(2, "attic", ALONE, 0);
        let again = bed.ask(1, "hall", ALONE, AGAIN);
        let twice = bed.ask(3, "cellar", ALONE, AGAIN);
        assert_eq!(bed.due(), [(again, None), (twice, Some(Errno::AGAIN))]);
        bed.pass(grace);
        assert_eq!(bed.due(), [(new, Some(Errno::AGAIN))]);
        assert_eq!(bed.locks.deadline(), None);
    }

    #[test]
    fn a_domain_that_comes_and_goes_keeps_no_more_than_its_share() {
        let mut bed = Bed::new();
        for link in 1..=20 {
            bed.tag += 1;
            let to = ReplyTo {
                link: LinkId(link),
                session: 5,
                tag: bed.tag,
                file: 1,
                traced: false,
                received: bed.now,
            };
            let lock = Lock { owner: 7, range: (link, link), process: 0, mode: ALONE, flags: 0 };
            bed.locks.ask(Asked { to, file: 1, lock, tests: false }, &consumer("hall"), 2);
            bed.locks.leave(LinkId(link), &consumer("hall"), bed.now);
        }
        assert_eq!(bed.locks.count(), (MAX_KEPT, 0));
    }
}
