//! Locks of programs on open files, by fcntl(2) and flock(2).
//!
//! The kernel asks for all of them, or for none. Those on files of a tree whose backend knows locks
//! are the backend's, which grants them between domains; all others hold in this domain, and are
//! granted here. Either kind is written down, so that a successor knows who holds what.

use std::collections::{BTreeSet, HashMap, HashSet};

use locks::{Held, Kind as LockKind, LAST, MAX_LOCKS, Mode, Outcome, Owner, Range, Refusal, Table};
use polyfuse_kernel as fuse;
use rustix::io::Errno;
use wire::service::{Kind, Lock, LockMode, lock};
use zerocopy::IntoBytes;

use super::backend::Violation;
use super::names::take;
use super::parked::{Op, Parked};
use super::{Call, Core, Pending, Purpose, Ready};
use crate::handle::{Body, Flow, Handle, Standing};
use crate::host::{Host, Outgoing};
use crate::tree::{Node, SERVICES_MAX};

/// The slot of the ledger that has the locks: behind the domain's defaults.
pub(crate) const LOCKS_SLOT: usize = super::DEFAULTS_FIRST + SERVICES_MAX;
/// The domain, as the only party of its own table.
const PARTY: u64 = 0;
/// How long a caller waits for a backend's word who closes its file or has a signal, in ns: the
/// kernel lets nothing end such a call, not even the death of its process.
const WORD_NS: u64 = 2_000_000_000;
/// Bytes of one lock in the ledger.
const RECORD_BYTES: usize = 48;
/// Types of locks, from fcntl(2).
const SHARED: u32 = 0;
const EXCLUSIVE: u32 = 1;
const NONE: u32 = 2;

/// The locks of a domain's programs.
#[derive(Default)]
pub(super) struct Locks {
    /// By the node's number: those that are granted here, and those that backends have granted.
    table: Table<u64>,
    /// Open files that had a lock at a backend, and do not have it at the next one.
    lost: HashSet<u64>,
    /// Locks whose callers have gone before the backend's word, with their open files, by tag: what
    /// is granted then is given up again.
    unwanted: HashMap<u64, (u64, Lock)>,
}

/// A request for a lock at a backend.
#[derive(Debug, Clone, Copy)]
pub(super) struct LockAsk {
    pub(super) lock: Lock,
    /// Whether only what is in its way is wanted.
    pub(super) tests: bool,
    /// Whether a program closes its file, and is to hear of no errors.
    pub(super) closes: bool,
    /// Whether the caller has a signal. The answer says what it holds.
    pub(super) interrupted: bool,
    /// Until when the caller waits at the most.
    pub(super) until: u64,
}

impl LockAsk {
    /// The message to the backend.
    pub(super) fn message(&self) -> (Kind, Vec<u8>) {
        let kind = if self.tests { Kind::TestLock } else { Kind::Lock };
        (kind, self.lock.encode().to_vec())
    }
}

impl<H: Host> Core<H> {
    /// `SETLK` and `SETLKW`.
    pub(super) fn set_lock(&mut self, call: Call, body: &[u8], waits: bool) -> Result<(), Errno> {
        let (slot, mut lock) = self.wanted_lock(body)?;
        let fh = self.handle(slot).map_or(0, |handle| handle.fh);
        if lock.mode != LockMode::None {
            self.check_lost(fh)?;
            if self.locks.table.count(PARTY).0 >= MAX_LOCKS {
                return Err(Errno::NOLCK);
            }
            lock.flags |= if waits { lock::WAIT } else { 0 };
        }
        if self.has_lock_at_backend(slot) {
            self.forget_converted(slot, &lock);
            return self.ask_lock(call, slot, lock, false);
        }
        self.lock_here(call, slot, &lock)
    }

    /// `GETLK`.
    pub(super) fn get_lock(&mut self, call: Call, body: &[u8]) -> Result<(), Errno> {
        let (slot, lock) = self.wanted_lock(body)?;
        let (node, fh) = self.handle(slot).map(|handle| (handle.node, handle.fh)).ok_or(Errno::BADF)?;
        let request = held(&lock, fh).ok_or(Errno::INVAL)?;
        if self.has_lock_at_backend(slot) {
            return self.ask_lock(call, slot, lock, true);
        }
        let found = self.locks.table.test(node.number(), &request);
        self.answer(call, &shown(found.map(|held| told(&held))));
        Ok(())
    }

    /// `FLUSH`: a program closes one of its descriptors of a file, and thereby gives up its locks
    /// of fcntl(2) on it. Never fails: close(2) would tell of it, and there is nothing to be done.
    pub(super) fn flush(&mut self, call: Call, body: &[u8]) -> Result<(), Errno> {
        let (flush, _) = take::<fuse::fuse_flush_in>(body)?;
        let owner = Owner { party: PARTY, number: flush.lock_owner };
        let slot = self.slot(flush.fh);
        let node = slot.and_then(|slot| self.handle(slot)).map(|handle| handle.node.number());
        let (Some(slot), Some(node)) = (slot, node) else {
            self.answer(call, &[]);
            return Ok(());
        };
        let is_its = |held: &Held| held.owner == owner && held.kind == LockKind::Record;
        if self.locks.table.of(node).iter().any(is_its) {
            // All of them: that leaves no more than there were.
            let _ = self.locks.table.unlock(node, owner, LockKind::Record, Range::ALL);
            self.locks_changed();
            let service = self.handle(slot).and_then(|handle| handle.service());
            if self.has_lock_at_backend(slot) && service.is_some_and(|service| self.is_up(service)) {
                let range = (0, LAST);
                let lock = Lock { owner: owner.number, range, process: 0, mode: LockMode::None, flags: 0 };
                let until = call.arrived.saturating_add(WORD_NS);
                let ask = LockAsk { lock, tests: false, closes: true, interrupted: false, until };
                self.ticking = true;
                return self.park_call(call, slot, Op::Lock(ask), false);
            }
        }
        self.answer(call, &[]);
        Ok(())
    }

    /// The open file, and the lock that the kernel asks about.
    fn wanted_lock(&self, body: &[u8]) -> Result<(usize, Lock), Errno> {
        let (wanted, _) = take::<fuse::fuse_lk_in>(body)?;
        let slot = self.slot(wanted.fh).ok_or(Errno::BADF)?;
        let mode = match wanted.lk.typ {
            SHARED => LockMode::Shared,
            EXCLUSIVE => LockMode::Exclusive,
            NONE => LockMode::None,
            _ => return Err(Errno::INVAL),
        };
        let range = (wanted.lk.start, wanted.lk.end.min(LAST));
        if range.0 > range.1 {
            return Err(Errno::INVAL);
        }
        let flags = if wanted.lk_flags & fuse::FUSE_LK_FLOCK != 0 { lock::WHOLE } else { 0 };
        Ok((slot, Lock { owner: wanted.owner, range, process: wanted.lk.pid, mode, flags }))
    }

    /// Whether locks on an open file are its backend's.
    fn has_lock_at_backend(&self, slot: usize) -> bool {
        let Some(handle) = self.handles.get(slot).and_then(Option::as_ref) else { return false };
        let has_offsets = matches!(&handle.body, Body::Session(it) if it.flow == Flow::Offsets);
        let Node::File(service, _) = handle.node else { return false };
        has_offsets && handle.node.is_of_backend() && self.tree.has_locks(service)
    }

    /// A backend gives a lock of flock(2) up before it grants another mode, or does not: the next
    /// one is not to be asked for it.
    fn forget_converted(&mut self, slot: usize, lock: &Lock) {
        let Some(wanted) = held(lock, 0).filter(|held| held.kind == LockKind::Whole) else { return };
        let Some(node) = self.handle(slot).map(|handle| handle.node.number()) else { return };
        let is_other =
            |held: &Held| held.owner == wanted.owner && held.kind == wanted.kind && held.mode != wanted.mode;
        if self.locks.table.of(node).iter().any(is_other) {
            let _ = self.locks.table.unlock(node, wanted.owner, wanted.kind, Range::ALL);
            self.locks_changed();
        }
    }

    fn ask_lock(&mut self, call: Call, slot: usize, lock: Lock, tests: bool) -> Result<(), Errno> {
        let ask = LockAsk { lock, tests, closes: false, interrupted: false, until: u64::MAX };
        self.park_call(call, slot, Op::Lock(ask), false)
    }

    /// Sets or gives up a lock that holds in this domain.
    fn lock_here(&mut self, call: Call, slot: usize, lock: &Lock) -> Result<(), Errno> {
        let (node, fh) =
            self.handle(slot).map(|handle| (handle.node.number(), handle.fh)).ok_or(Errno::BADF)?;
        let waits = lock.flags & lock::WAIT != 0;
        let result = match held(lock, fh) {
            Some(request) => self.locks.table.lock(node, request, waits.then(|| call.key())),
            None => self.give_up_lock(node, lock).map(|()| Outcome::Granted),
        };
        if result == Ok(Outcome::Waits) && !self.park(call, Some(slot), Op::LockHere, u64::MAX) {
            self.locks.table.cancel(call.key());
        }
        self.locks_changed();
        match result {
            Ok(Outcome::Granted) => self.answer(call, &[]),
            Ok(Outcome::Waits) => {}
            Err(refusal) => return Err(errno(refusal)),
        }
        Ok(())
    }

    fn give_up_lock(&mut self, node: u64, lock: &Lock) -> Result<(), Refusal> {
        let owner = Owner { party: PARTY, number: lock.owner };
        self.locks.table.unlock(node, owner, kind(lock), range(lock))
    }

    /// A backend has answered a request for a lock.
    pub(super) fn lock_answered(
        &mut self,
        service: usize,
        slot: usize,
        (tag, key): (u64, u64),
        result: Result<&[u8], Errno>,
    ) {
        if let Some((fh, lock)) = self.locks.unwanted.remove(&tag) {
            if result.is_ok() {
                self.give_back(service, slot, fh, lock);
            }
            return;
        }
        let Some(Parked { call, op: Op::Lock(ask), .. }) = self.unpark(key) else { return };
        let handle = self.handle(slot).map(|handle| (handle.node.number(), handle.fh));
        let Some((node, fh)) = handle else { return self.refuse(call, Errno::BADF) };
        let ready = match result {
            _ if ask.closes => Ready::ok(call, Vec::new()),
            Err(errno) => Ready::error(call, errno),
            Ok(bytes) if ask.tests => match Lock::decode(bytes) {
                Ok(found) => Ready::ok(call, shown((found.mode != LockMode::None).then_some(found))),
                Err(error) => {
                    self.refuse(call, Errno::IO);
                    return self.violated(service, &Violation::Node(error));
                }
            },
            Ok(_) => {
                match held(&ask.lock, fh) {
                    Some(granted) => self.locks.table.note(node, &granted),
                    // The backend has done it: no bound is in the way of noting that.
                    None => drop(self.give_up_lock(node, &ask.lock)),
                }
                self.locks_changed();
                Ready::ok(call, Vec::new())
            }
        };
        self.settle(slot, Some(ready));
    }

    /// Gives up a lock that was granted to a caller who has gone.
    fn give_back(&mut self, service: usize, slot: usize, fh: u64, lock: Lock) {
        let Some(Node::File(_, file)) = self.handle(slot).map(|handle| handle.node) else { return };
        self.last_tag += 1;
        // No call is parked under this key: its answer is nobody's.
        let (tag, purpose, asked) = (self.last_tag, Purpose::Lock(0), self.host.now());
        self.pending.insert(tag, Pending { service, fh, purpose, asked });
        let flags = lock.flags & lock::WHOLE;
        let payload = Lock { mode: LockMode::None, flags, ..lock }.encode().to_vec();
        self.host.send(service, Outgoing::Tree { kind: Kind::Lock, session: fh, tag, file, payload });
    }

    /// Lets go of callers that have waited long enough for a backend's word. Whether others do.
    pub(super) fn end_overdue_locks(&mut self, now: u64) -> bool {
        let until = |parked: &Parked| match parked.op {
            Op::Lock(ask) => ask.until,
            _ => u64::MAX,
        };
        let overdue = self.parked.iter().filter(|(_, parked)| until(parked) <= now);
        let overdue: Vec<u64> = overdue.map(|(&key, _)| key).collect();
        for key in overdue {
            let Some(mut parked) = self.unpark(key) else { continue };
            let fh = parked.slot.and_then(|slot| self.handle(slot)).map(|handle| handle.fh);
            if let (Op::Lock(ask), Some(tag), Some(fh)) = (&parked.op, parked.tag.take(), fh)
                && !ask.closes
            {
                self.locks.unwanted.insert(tag, (fh, ask.lock));
            }
            self.fail(parked, Errno::INTR);
        }
        self.parked.values().any(|parked| until(parked) != u64::MAX)
    }

    /// A signal for a caller who waits for a lock at a backend: the backend is told, and its answer
    /// is the caller's. False: there is no such caller.
    pub(super) fn interrupt_lock(&mut self, key: u64) -> bool {
        let Some(Parked { op: Op::Lock(ask), tag: Some(tag), .. }) = self.parked.get_mut(&key) else {
            return false;
        };
        if ask.tests {
            return false;
        }
        let (tag, tells) = (*tag, !ask.closes && !ask.interrupted);
        if tells {
            (ask.interrupted, ask.until) = (true, self.host.now().saturating_add(WORD_NS));
            self.ticking = true;
        }
        if let Some(pending) = self.pending.get(&tag).filter(|_| tells) {
            self.host.send(pending.service, Outgoing::Cancel { tag });
        }
        true
    }

    /// The backend that had a request for a lock is lost: the next one is asked, where the caller
    /// still waits.
    pub(super) fn lose_lock(&mut self, (tag, key): (u64, u64), deadline: u64) {
        self.locks.unwanted.remove(&tag);
        let Some(parked) = self.parked.get_mut(&key) else { return };
        (parked.tag, parked.deadline) = (None, deadline);
        let Op::Lock(ask) = parked.op else { return };
        if (ask.closes || ask.interrupted)
            && let Some(parked) = self.unpark(key)
        {
            self.fail(parked, Errno::INTR);
        }
    }

    /// The locks that a session had at the backend before, as the next one is asked for them.
    pub(super) fn claims(&self, handle: &Handle) -> Vec<Lock> {
        // On the way of every call: most have their session.
        if matches!(&handle.body, Body::Session(session) if session.standing == Standing::Open) {
            return Vec::new();
        }
        let of = self.locks.table.of(handle.node.number()).iter();
        let again = |held: &Held| {
            let told = told(held);
            Lock { owner: held.owner.number, flags: told.flags | lock::AGAIN, ..told }
        };
        of.filter(|held| held.via == handle.fh).map(again).collect()
    }

    /// The next backend has answered a claim. An open file that has lost a lock is not read or
    /// written any more: its program believes that nobody else does.
    pub(super) fn claim_answered(&mut self, slot: usize, refused: Option<Errno>) {
        let Some(errno) = refused else { return };
        let Some((node, fh)) = self.handle(slot).map(|handle| (handle.node, handle.fh)) else { return };
        tracing::warn!(node = node.number(), %errno, "a lock is lost: its file can't be used any more");
        self.locks.lost.insert(fh);
        self.locks.table.close(PARTY, fh);
        self.locks_changed();
    }

    /// Refuses what is done with an open file whose lock is lost.
    pub(super) fn check_lost(&self, fh: u64) -> Result<(), Errno> {
        if self.locks.lost.contains(&fh) { Err(Errno::IO) } else { Ok(()) }
    }

    /// An open file is no more: what was locked through it is given up here. A backend does so by
    /// itself.
    pub(super) fn close_locks(&mut self, fh: u64) {
        let was_lost = self.locks.lost.remove(&fh);
        let pending = &mut self.pending;
        self.locks.unwanted.retain(|tag, (of, _)| {
            let stays = *of != fh;
            if !stays {
                pending.remove(tag);
            }
            stays
        });
        let before = self.locks.table.count(PARTY);
        for key in self.locks.table.close(PARTY, fh) {
            if let Some(parked) = self.unpark(key) {
                self.refuse(parked.call, Errno::BADF);
            }
        }
        if was_lost || self.locks.table.count(PARTY) != before {
            self.locks_changed();
        }
    }

    /// A caller waits no more for a lock that is granted here.
    pub(super) fn cancel_lock(&mut self, key: u64) {
        self.locks.table.cancel(key);
    }

    /// Writes down who holds what, and answers those whose waiting has ended.
    fn locks_changed(&mut self) {
        let settled = self.locks.table.settled();
        let record = self.encode_locks();
        if record.is_empty() {
            self.host.clear(LOCKS_SLOT);
        } else {
            self.host.save(LOCKS_SLOT, &record);
        }
        for (key, result) in settled {
            if let Some(parked) = self.unpark(key) {
                match result {
                    Ok(()) => self.answer(parked.call, &[]),
                    Err(refusal) => self.refuse(parked.call, errno(refusal)),
                }
            }
        }
    }

    /// The locks that a successor has to know. Those of clients of 9P end with the frontend.
    fn encode_locks(&self) -> Vec<u8> {
        let stays = |fh: u64| {
            let handle = self.slot(fh).and_then(|slot| self.handles.get(slot)?.as_ref());
            handle.is_some_and(|handle| !handle.passes)
        };
        let mut record = Vec::new();
        for (node, held) in self.locks.table.all().filter(|(_, held)| stays(held.via)) {
            let (first, last) = (held.range.first(), held.range.last());
            for word in [node, held.owner.number, held.via, first, last] {
                record.extend_from_slice(&word.to_le_bytes());
            }
            record.extend_from_slice(&held.process.to_le_bytes());
            let is_exclusive = held.mode == Mode::Exclusive;
            record.extend([u8::from(is_exclusive), u8::from(held.kind == LockKind::Whole), 0, 0]);
        }
        // An open file whose lock is lost is a record of zeros but for its handle.
        for fh in self.locks.lost.iter().filter(|&&fh| stays(fh)) {
            let mut lost = [0; RECORD_BYTES];
            lost[16..24].copy_from_slice(&fh.to_le_bytes());
            record.extend_from_slice(&lost);
        }
        record
    }

    /// Takes over a predecessor's locks. Those on files that it had open and that are not known
    /// here are gone: nobody would ever give them up.
    pub(super) fn take_locks(&mut self, record: &[u8]) {
        let mut unknown: BTreeSet<u64> = BTreeSet::new();
        for bytes in record.chunks_exact(RECORD_BYTES) {
            let Some((node, held)) = decode(bytes) else { continue };
            if self.slot(held.via).is_none() {
                unknown.insert(held.via);
            } else if node == 0 {
                self.locks.lost.insert(held.via);
            } else {
                self.locks.table.note(node, &held);
            }
        }
        if !unknown.is_empty() {
            tracing::error!(files = unknown.len(), "the ledger has locks of files that are not open");
        }
    }
}

fn decode(bytes: &[u8]) -> Option<(u64, Held)> {
    let (words, rest) = bytes.as_chunks::<8>();
    let &[node, number, via, first, last, tail] = words else { return None };
    let word = u64::from_le_bytes;
    let [p0, p1, p2, p3, exclusive, whole, _, _] = tail;
    let held = Held {
        owner: Owner { party: PARTY, number: word(number) },
        kind: if whole == 0 { LockKind::Record } else { LockKind::Whole },
        mode: if exclusive == 0 { Mode::Shared } else { Mode::Exclusive },
        range: Range::new(word(first), word(last))?,
        via: word(via),
        process: u32::from_le_bytes([p0, p1, p2, p3]),
    };
    rest.is_empty().then_some((word(node), held))
}

fn kind(lock: &Lock) -> LockKind {
    if lock.flags & lock::WHOLE == 0 { LockKind::Record } else { LockKind::Whole }
}

fn range(lock: &Lock) -> Range {
    let said = Range::new(lock.range.0, lock.range.1);
    said.filter(|_| kind(lock) == LockKind::Record).unwrap_or(Range::ALL)
}

/// The lock that is asked for through an open file; `None` where one is given up.
fn held(lock: &Lock, fh: u64) -> Option<Held> {
    let mode = match lock.mode {
        LockMode::None => return None,
        LockMode::Shared => Mode::Shared,
        LockMode::Exclusive => Mode::Exclusive,
    };
    let owner = Owner { party: PARTY, number: lock.owner };
    Some(Held { owner, kind: kind(lock), mode, range: range(lock), via: fh, process: lock.process })
}

fn told(held: &Held) -> Lock {
    let mode = match held.mode {
        Mode::Shared => LockMode::Shared,
        Mode::Exclusive => LockMode::Exclusive,
    };
    let flags = if held.kind == LockKind::Whole { lock::WHOLE } else { 0 };
    let range = (held.range.first(), held.range.last());
    Lock { owner: 0, range, process: held.process, mode, flags }
}

/// The lock that is in the way, as the kernel is told.
fn shown(found: Option<Lock>) -> Vec<u8> {
    let mut lk = fuse::fuse_file_lock { typ: NONE, ..Default::default() };
    if let Some(lock) = found {
        lk.typ = if lock.mode == LockMode::Exclusive { EXCLUSIVE } else { SHARED };
        (lk.start, lk.end, lk.pid) = (lock.range.0, lock.range.1, lock.process);
    }
    fuse::fuse_lk_out { lk }.as_bytes().to_vec()
}

fn errno(refusal: Refusal) -> Errno {
    match refusal {
        Refusal::Held => Errno::AGAIN,
        Refusal::Deadlock => Errno::DEADLK,
        Refusal::Full => Errno::NOLCK,
    }
}

#[cfg(test)]
mod tests;
