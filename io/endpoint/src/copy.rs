//! Copying from what was granted, and to it: one `memcpy`, with a look at the grant's state before
//! and after.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use ipc::NoPeer;
use ipc::grants::{Access, OutOfRange, check_range};
use rustix::io::Errno;
use session::Memories;
use sys::memfd::{self, Reach};
use sys::region::Region;
use sys::view::{View, copy_between};
use wire::control::{GrantAccess, GrantedBuffer, Request};
use wire::grants::{STATE_BYTES, State, offset_of};
use wire::ipc::Address;

use crate::buffer::on_old_kernels;
use crate::granting::Unasked;
use crate::grants::{Data, Entry, GrantId, Granted, Memory};
use crate::loans::{Loan, Lost};
use crate::member::{Answer, Member, RETRY, Ticket, of_wire};
use crate::{Endpoint, Failed, Step};

mod own;
#[cfg(test)]
mod tests;

/// After so many copies the daemon's news are looked at: who copies only never waits, and would not
/// hear that an owner has ended.
const COPIES_PER_LOOK: u64 = 64;

/// Attempts that do not look at the clock: to find that a grant is not mapped, to copy, and to
/// follow one move.
const ATTEMPTS_FREE: u32 = 3;
/// How long it is asked for a grant whose node can't be reached, or does not answer: as long as a
/// link that is cut is waited for.
const UNREACHED: Duration = Duration::from_millis(wire::proxy::TIMEOUT_MS);

/// Why a copy was not made in time.
pub(crate) const MOVING: &str = "its owner is moving the buffer";
/// The same.
const UNSAID: &str = "the node's daemon has not said what it stands for";

/// Why bytes were not copied, or not all of them.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The daemon had to be asked, and could not be.
    #[error(transparent)]
    Unasked(#[from] Unasked),
    /// The bytes are not inside of the buffer.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The buffer was granted to be read.
    #[error("grant {0} is to be read, and can't be written: its owner has to grant a buffer to be written")]
    NotWritable(GrantId),
    /// There is no such grant, or none for this endpoint.
    #[error("{message}")]
    Unknown {
        /// The daemon's message.
        message: String,
    },
    /// It is of a buffer of this endpoint itself.
    #[error("{message}")]
    Own {
        /// The daemon's message.
        message: String,
    },
    /// It was taken back. Some bytes may have been copied; what was copied to the buffer does not
    /// show in it, unless it did before.
    #[error("grant {0} is over: its owner has revoked it, or freed the buffer")]
    Revoked(GrantId),
    /// Its owner has ended.
    #[error("grant {0} is over: its owner has ended")]
    Dead(GrantId),
    /// The time was over while the buffer moved, or the daemon was asked. Nothing was copied, or
    /// what was copied does not count.
    #[error("grant {0} could not be copied in time: {1}")]
    TimedOut(GrantId, &'static str),
    /// The buffer is on another node, which does not say whether the bytes were written: the link
    /// to it is cut, or slow, or has ended. They may still be written, in part or whole.
    #[error(
        "it is not known whether the buffer of grant {0}, on another node, was written: the link to that node is cut, slow, or has ended"
    )]
    NotKnown(GrantId),
    /// The memory can't be used.
    #[error("can't use the memory of grant {grant}: {why}")]
    Unusable {
        /// The grant.
        grant: GrantId,
        /// Why not.
        why: String,
    },
    /// Refused for another reason.
    #[error("{message}")]
    Refused {
        /// The errno that fits.
        errno: i32,
        /// The daemon's message.
        message: String,
    },
}

impl CopyError {
    fn of(grant: GrantId, was_mapped: bool, answer: Answer) -> CopyError {
        let (errno, message) = match answer {
            Answer::Refused { errno, message } => (errno, message),
            _ => (Errno::PROTO, "the daemon sent an answer of another kind".to_owned()),
        };
        match errno {
            // It was there, and the daemon that knew it is not.
            Errno::NOENT if was_mapped => CopyError::Revoked(grant),
            Errno::NOENT | Errno::PERM | Errno::ACCESS => CopyError::Unknown { message },
            Errno::KEYREVOKED => CopyError::Revoked(grant),
            Errno::OWNERDEAD => CopyError::Dead(grant),
            Errno::INVAL => CopyError::Own { message },
            _ => CopyError::Refused { errno: errno.raw_os_error(), message },
        }
    }
}

/// Getting hold of a grant, in steps ([`Endpoint::step_borrow`]).
#[derive(Debug)]
pub struct Borrow {
    grant: GrantId,
    asked: Option<Ticket>,
    /// The daemon still names the buffer that the owner is leaving; over which connection it said
    /// so.
    awaits_move: Option<u64>,
    again_at: Option<Instant>,
    /// Since when the node of its owner can't be reached.
    unreached_since: Option<Instant>,
    /// It was there before.
    pub(crate) was_held: bool,
}

impl Borrow {
    /// One that was not begun yet.
    #[must_use]
    pub fn new(grant: GrantId) -> Borrow {
        let (unreached_since, was_held) = (None, false);
        Borrow { grant, asked: None, awaits_move: None, again_at: None, unreached_since, was_held }
    }

    /// Of a grant that was there before.
    pub(crate) fn again(grant: GrantId) -> Borrow {
        Borrow { was_held: true, ..Borrow::new(grant) }
    }
}

/// The direction of a copy.
#[derive(Debug)]
pub(crate) enum Way<'a> {
    In(&'a mut [u8]),
    Out(&'a [u8]),
}

impl Way<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Way::In(bytes) => bytes.len(),
            Way::Out(bytes) => bytes.len(),
        }
    }
}

impl Memory {
    /// Maps the memories of a granted buffer, after a look at their seals.
    pub(crate) fn map(memories: &Memories, access: Access, bytes: u64) -> Result<Memory, String> {
        let reach = if access == Access::Read { Reach::Read } else { Reach::Write };
        let size = |memory, reach| match memfd::check_granted(memory, reach) {
            Ok(Some(size)) => Ok(size),
            Ok(None) => Err("it was not sealed for those it is granted to".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let (found, states) = (size(&memories.data, reach)?, size(&memories.states, Reach::Read)?);
        if found < bytes || bytes == 0 || states < STATE_BYTES as u64 {
            return Err(format!("it has {found} bytes where {bytes} were granted"));
        }
        let length = usize::try_from(found).map_err(|error| error.to_string())?;
        let text = |error: std::io::Error| error.to_string();
        // What the owner has not taken memory for would be taken, and paid for, by us: then only
        // what is copied is touched.
        let is_filled = memfd::taken_bytes(&memories.data).map_err(text)? >= found;
        let data = match access {
            Access::Read => {
                let view = View::map(&memories.data, length).map_err(text)?;
                if is_filled {
                    view.populate().or_else(on_old_kernels).map_err(text)?;
                }
                Data::Read(view)
            }
            Access::Write => {
                let region = Region::map(&memories.data, length).map_err(text)?;
                if is_filled {
                    region.populate().or_else(on_old_kernels).map_err(text)?;
                }
                Data::Write(region)
            }
        };
        Ok(Memory { data, states: View::map(&memories.states, STATE_BYTES).map_err(text)? })
    }

    #[inline]
    fn copy(&self, offset: usize, way: &mut Way<'_>) -> bool {
        match (&self.data, way) {
            (Data::Read(view), Way::In(into)) => view.copy_out(offset, into),
            (Data::Write(region), Way::In(into)) => region.copy_out(offset, into),
            (Data::Write(region), Way::Out(from)) => region.copy_in(offset, from),
            (Data::Read(_), Way::Out(_)) => return false,
        }
        true
    }

    fn copy_to(&self, offset: usize, to: &Region, to_offset: usize, length: usize) {
        match &self.data {
            Data::Read(view) => view.copy_to(offset, to, to_offset, length),
            Data::Write(region) => copy_between(region, offset, to, to_offset, length),
        }
    }

    /// False: it may only be read.
    fn copy_from(&self, offset: usize, from: &Region, from_offset: usize, length: usize) -> bool {
        match &self.data {
            Data::Read(_) => false,
            Data::Write(region) => {
                copy_between(from, from_offset, region, offset, length);
                true
            }
        }
    }
}

/// Where a copy was made.
enum Made {
    Here,
    /// The memory is on another node: it is still to be made, over a loan.
    Nowhere,
}

/// The verdict on a copy, by the state of its grant after or before it.
enum Verdict {
    Good,
    Again,
}

impl Endpoint {
    /// Copies bytes of a granted buffer, from `offset` on. `deadline`: while its owner is about to
    /// move it, and for the daemon's answer at the first use.
    ///
    /// # Errors
    /// See [`CopyError`].
    #[inline]
    pub fn copy_in(
        &mut self,
        from: GrantId,
        offset: u64,
        into: &mut [u8],
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        self.copy_bytes(from, offset, Way::In(into), deadline)
    }

    /// Copies bytes to a buffer that was granted to be written. What a copy has written that ended
    /// well is in the buffer, whatever its owner does then.
    ///
    /// # Errors
    /// See [`CopyError`].
    #[inline]
    pub fn copy_out(
        &mut self,
        from: &[u8],
        to: GrantId,
        offset: u64,
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        self.copy_bytes(to, offset, Way::Out(from), deadline)
    }

    pub(crate) fn copy_bytes(
        &mut self,
        grant: GrantId,
        offset: u64,
        mut way: Way<'_>,
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        match self.on_memory(grant, (offset, way.len()), deadline, |memory, at| memory.copy(at, &mut way))? {
            Made::Here => Ok(()),
            Made::Nowhere => self.cross(grant, offset, &mut way, deadline),
        }
    }

    /// Makes a copy where the memory of a grant is, from an offset in it on, once or again, until
    /// the grant stands after it. `work` says whether the memory is good for it.
    #[inline]
    fn on_memory(
        &mut self,
        grant: GrantId,
        (offset, length): (u64, usize),
        deadline: Option<Instant>,
        mut work: impl FnMut(&Memory, usize) -> bool,
    ) -> Result<Made, Failed<CopyError>> {
        self.check_here()?;
        if self.member.is_some() && self.borrowings.uses().is_multiple_of(COPIES_PER_LOOK) {
            self.hear()?;
        }
        let mut attempts = 0;
        loop {
            // An owner that moves all the time, or says so, costs no more than the time.
            in_time(grant, &mut attempts, deadline)?;
            let entry = match self.borrowings.find(grant) {
                Some(entry) if entry.state() == State::Live => entry,
                _ => {
                    if self.loans.find(grant).is_none() {
                        self.hold(grant, deadline)?;
                    }
                    if self.loans.find(grant).is_some() {
                        return Ok(Made::Nowhere);
                    }
                    continue;
                }
            };
            let at = check(entry, offset, length)?;
            if !work(&entry.memory, at) {
                return Err(Failed::Call(CopyError::NotWritable(grant)));
            }
            // REVOKE, OVER: what was copied counts if the grant stands after it.
            fence(Ordering::SeqCst);
            let (state, life) = (entry.state(), entry.life);
            match self.verdict(grant, state, life).map_err(Failed::Call)? {
                Verdict::Good => return Ok(Made::Here),
                Verdict::Again => {}
            }
        }
    }

    /// Copies bytes from one granted buffer to another, which may be the same.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn copy(
        &mut self,
        (from, from_offset): (GrantId, u64),
        (to, to_offset): (GrantId, u64),
        length: usize,
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        self.check_here()?;
        let mut attempts = 0;
        loop {
            in_time(from, &mut attempts, deadline)?;
            self.hold(from, deadline)?;
            self.hold(to, deadline)?;
            if self.loans.find(from).is_some() || self.loans.find(to).is_some() {
                return self.copy_across((from, from_offset), (to, to_offset), length, deadline);
            }
            // Not there: the time it took to get hold of the other one was enough for this one to
            // go.
            let (Some(source), Some(target)) =
                (self.borrowings.find(from).cloned(), self.borrowings.find(to).cloned())
            else {
                continue;
            };
            let (at, to_at) = (check(&source, from_offset, length)?, check(&target, to_offset, length)?);
            let Data::Write(region) = &target.memory.data else {
                return Err(Failed::Call(CopyError::NotWritable(to)));
            };
            if source.buffer == target.buffer && at.abs_diff(to_at) < length {
                return self.copy_inside((from, from_offset), (to, to_offset), length, deadline);
            }
            source.memory.copy_to(at, region, to_at, length);
            fence(Ordering::SeqCst);
            let one = self.verdict(from, source.state(), source.life).map_err(Failed::Call)?;
            let other = self.verdict(to, target.state(), target.life).map_err(Failed::Call)?;
            if matches!((one, other), (Verdict::Good, Verdict::Good)) {
                return Ok(());
            }
        }
    }

    /// Copies between ranges that overlap: by way of memory of our own, so that a buffer that moves
    /// meanwhile does no harm.
    fn copy_inside(
        &mut self,
        (from, from_offset): (GrantId, u64),
        (to, to_offset): (GrantId, u64),
        length: usize,
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        let mut bytes = vec![0; length];
        self.copy_in(from, from_offset, &mut bytes, deadline)?;
        self.copy_out(&bytes, to, to_offset, deadline)
    }

    fn verdict(&mut self, grant: GrantId, state: State, life: u64) -> Result<Verdict, CopyError> {
        let over = match state {
            State::Live => match self.owner_died_with_daemon(grant, life) {
                true => CopyError::Dead(grant),
                false => return Ok(Verdict::Good),
            },
            State::Moved => return Ok(Verdict::Again),
            State::Revoked => CopyError::Revoked(grant),
            State::Dead => CopyError::Dead(grant),
        };
        self.borrowings.remove(grant);
        Err(over)
    }

    /// Of an owner that has ended after the daemon that would have said so, its channel tells.
    #[inline]
    fn owner_died_with_daemon(&mut self, grant: GrantId, life: u64) -> bool {
        if self.member.as_ref().is_none_or(|member| member.life() == life) {
            return false;
        }
        let Some(owner) = self.borrowings.find(grant).map(|entry| entry.granted.owner) else { return false };
        self.is_dead(owner)
    }

    pub(crate) fn is_dead(&self, peer: Address) -> bool {
        matches!(self.pairs.logic.end_of(peer), Ok(Some(_)) | Err(NoPeer::Dead(_)))
    }

    /// Whether the topology lets this endpoint copy between buffers that were granted to others.
    #[must_use]
    pub fn copies(&self) -> bool {
        self.member.as_ref().is_some_and(Member::copies)
    }

    /// Returns the grants that this endpoint has obtained.
    pub fn granted(&self) -> impl Iterator<Item = Granted> {
        self.borrowings.all().chain(self.loans.all())
    }

    /// Gets hold of a grant.
    #[cold]
    pub(crate) fn hold(
        &mut self,
        grant: GrantId,
        deadline: Option<Instant>,
    ) -> Result<Granted, Failed<CopyError>> {
        let mut call = Borrow::new(grant);
        loop {
            let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            match self.step_borrow(&mut call, late)? {
                Step::Ready(granted) => return Ok(granted),
                Step::Pending { again_at } => {
                    let until = again_at.into_iter().chain(deadline).min();
                    let waited = match self.loans.find(grant) {
                        Some(_) => self.await_loan(until),
                        None => self.await_daemon(until),
                    };
                    if let Err(trouble) = waited {
                        self.cancel_borrow(&mut call);
                        return Err(trouble.into());
                    }
                }
            }
        }
    }

    /// A step of getting hold of a grant, which does not wait: after it, a copy does not ask the
    /// daemon. `late`: its deadline has passed. [`Endpoint::descriptor`] becomes readable when
    /// another step is worth it.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn step_borrow(&mut self, call: &mut Borrow, late: bool) -> Result<Step<Granted>, Failed<CopyError>> {
        self.check_here()?;
        self.show_held();
        self.hear()?;
        let grant = call.grant;
        if let Some(loan) = self.loans.find(grant) {
            match loan.step_terms(&self.pairs) {
                Ok(Some(granted)) => {
                    self.cancel_borrow(call);
                    return Ok(Step::Ready(granted));
                }
                Ok(None) if late => {
                    self.loans.remove(grant, &self.pairs);
                    return Err(Failed::Call(CopyError::TimedOut(grant, UNSAID)));
                }
                Ok(None) => return Ok(Step::Pending { again_at: None }),
                Err(lost) => {
                    self.loans.remove(grant, &self.pairs);
                    match lost {
                        // It was over before it began: that is asked again.
                        Lost::Closed => return Ok(Step::Pending { again_at: Some(Instant::now() + RETRY) }),
                        Lost::Broken(why) => return Err(Failed::Call(CopyError::Unusable { grant, why })),
                        Lost::Trouble(trouble) => return Err(trouble.into()),
                    }
                }
            }
        }
        let known =
            self.borrowings.find(grant).map(|entry| (entry.granted, entry.state(), entry.life, entry.news));
        if let Some((granted, state, life, news)) = known {
            match self.verdict(grant, state, life) {
                Ok(Verdict::Good) => {
                    self.cancel_borrow(call);
                    return Ok(Step::Ready(granted));
                }
                Ok(Verdict::Again) if news => call.awaits_move = None,
                Ok(Verdict::Again) => {}
                Err(error) => {
                    self.cancel_borrow(call);
                    return Err(Failed::Call(error));
                }
            }
        } else {
            // Told that it is over, or never mapped: there is no move to wait for.
            call.awaits_move = None;
        }
        self.step_asking(call, known.map(|(granted, ..)| granted), late)
    }

    fn step_asking(
        &mut self,
        call: &mut Borrow,
        known: Option<Granted>,
        late: bool,
    ) -> Result<Step<Granted>, Failed<CopyError>> {
        let grant = call.grant;
        let Some(member) = &mut self.member else { return Err(Failed::Call(Unasked::NoDaemon.into())) };
        if let Some(message) = member.over() {
            return Err(Failed::Ended { why: message.to_owned() });
        }
        // A daemon that died has told nobody of the move.
        if call.awaits_move.is_some_and(|life| life != member.life()) {
            call.awaits_move = None;
        }
        if let Some(answer) = call.asked.and_then(|ticket| member.answer(ticket)) {
            call.asked = None;
            let life = member.life();
            match answer {
                Answer::Lost => {}
                Answer::Borrowed(buffer, memories) => return self.borrowed(call, &buffer, &memories, life),
                Answer::Lent(end) => {
                    let unusable =
                        |why: channel::OpenError| CopyError::Unusable { grant, why: why.to_string() };
                    let loan = Loan::open(grant, end).map_err(unusable).map_err(Failed::Call)?;
                    self.loans.insert(loan, &self.pairs);
                    return Ok(Step::Pending { again_at: Some(Instant::now()) });
                }
                Answer::Refused { errno: Errno::AGAIN, message } if self.is_far_grant(grant) => {
                    let since = *call.unreached_since.get_or_insert_with(Instant::now);
                    if !late && since.elapsed() > UNREACHED {
                        let errno = Errno::AGAIN.raw_os_error();
                        return Err(Failed::Call(CopyError::Refused { errno, message }));
                    }
                    call.again_at = Some(Instant::now() + RETRY);
                }
                other => {
                    return Err(Failed::Call(CopyError::of(grant, known.is_some() || call.was_held, other)));
                }
            }
        }
        let Some(member) = &mut self.member else { return Err(Failed::Call(Unasked::NoDaemon.into())) };
        if late {
            let why = match known {
                Some(_) => MOVING,
                None if call.unreached_since.is_some() => "the node of its owner can't be reached now",
                None => UNSAID,
            };
            self.cancel_borrow(call);
            return Err(Failed::Call(CopyError::TimedOut(grant, why)));
        }
        let rests = call.unreached_since.is_some() && call.again_at.is_some_and(|at| at > Instant::now());
        if rests {
            return Ok(Step::Pending { again_at: call.again_at });
        }
        call.again_at = None;
        if call.asked.is_none() && call.awaits_move.is_none() {
            let (endpoint, number) = (member.slot(), grant.number());
            self.borrowings.ask_again(grant);
            call.asked = member.ask(|id| Request::Borrow { id, endpoint, grant: number });
            if call.asked.is_none() && member.is_up() {
                call.again_at = Some(Instant::now() + RETRY);
            }
        }
        Ok(Step::Pending { again_at: call.again_at.into_iter().chain(member.due()).min() })
    }

    /// Keeps what the daemon says that a grant stands for.
    fn borrowed(
        &mut self,
        call: &mut Borrow,
        buffer: &GrantedBuffer,
        memories: &Memories,
        life: u64,
    ) -> Result<Step<Granted>, Failed<CopyError>> {
        // Only what came after this answer can have told of a move: the question made the daemon
        // forget what came before, and the answer would name another buffer if it had moved by
        // then. Both may have come at once.
        let same = self
            .borrowings
            .find(call.grant)
            .filter(|entry| entry.buffer == buffer.buffer && entry.life == life)
            .map(|entry| entry.news);
        let access = if buffer.access == GrantAccess::Read { Access::Read } else { Access::Write };
        let (owner, bytes) = (of_wire(buffer.owner), buffer.bytes);
        let granted = Granted { grant: call.grant, owner, access, bytes };
        let entry = self.mapped(granted, (buffer.buffer, buffer.place), memories, life)?;
        let state = entry.state();
        self.borrowings.insert(entry);
        match self.verdict(call.grant, state, life).map_err(Failed::Call)? {
            Verdict::Good => Ok(Step::Ready(granted)),
            Verdict::Again if same == Some(false) => {
                call.awaits_move = Some(life);
                Ok(Step::Pending { again_at: None })
            }
            Verdict::Again => Ok(Step::Pending { again_at: Some(Instant::now()) }),
        }
    }

    pub(crate) fn mapped(
        &mut self,
        granted: Granted,
        (buffer, place): (u64, u32),
        memories: &Memories,
        life: u64,
    ) -> Result<Entry, Failed<CopyError>> {
        let unusable = |why| Failed::Call(CopyError::Unusable { grant: granted.grant, why });
        let place = offset_of(place).ok_or_else(|| unusable(format!("there is no place {place} in it")))?;
        let memory = match self.borrowings.memory_of(buffer, life) {
            Some(memory) => memory,
            None => Arc::new(Memory::map(memories, granted.access, granted.bytes).map_err(unusable)?),
        };
        Ok(Entry::new(granted, memory, (buffer, place), life))
    }

    /// Gives up getting hold of a grant that will not be stepped any more.
    pub fn cancel_borrow(&mut self, call: &mut Borrow) {
        if let (Some(member), Some(ticket)) = (&mut self.member, call.asked.take()) {
            member.forget(ticket);
        }
    }
}

/// Whether another attempt may be made.
#[inline]
fn in_time(grant: GrantId, attempts: &mut u32, deadline: Option<Instant>) -> Result<(), Failed<CopyError>> {
    *attempts = attempts.saturating_add(1);
    if *attempts > ATTEMPTS_FREE && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        return Err(Failed::Call(CopyError::TimedOut(grant, MOVING)));
    }
    Ok(())
}

fn check(entry: &Entry, offset: u64, length: usize) -> Result<usize, Failed<CopyError>> {
    let length = u64::try_from(length).unwrap_or(u64::MAX);
    check_range(offset, length, entry.granted.bytes).map_err(CopyError::OutOfRange).map_err(Failed::Call)?;
    Ok(usize::try_from(offset).unwrap_or(usize::MAX))
}
