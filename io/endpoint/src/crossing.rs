//! Copies from and to buffers of other nodes: over a loan, in steps, and between two grants of
//! which one is far.

use std::time::Instant;

use ipc::grants::{Access, check_range};

use crate::buffer::Buffer;
use crate::copy::{Borrow, CopyError, MOVING, Way};
use crate::failed::Trouble;
use crate::grants::{GrantId, Granted};
use crate::loans::{Crossed, Crossing, Failure};
use crate::member::{Member, RETRY};
use crate::{Endpoint, Failed, Step};

/// Bytes that are copied at a time between two grants of which one is of another node: so a copy of
/// any length takes so much memory.
const BOUNCE_BYTES: usize = 1024 * 1024;

/// A copy from or to one grant, in steps ([`Endpoint::step_copy_in`], [`Endpoint::step_copy_out`]).
#[derive(Debug)]
pub struct Copying {
    grant: GrantId,
    borrow: Borrow,
    crossing: Crossing,
    /// Its owner is about to move it, on another node: ask again then.
    not_before: Option<Instant>,
}

impl Copying {
    /// One that was not begun yet.
    #[must_use]
    pub fn new(grant: GrantId) -> Copying {
        Copying { grant, borrow: Borrow::new(grant), crossing: Crossing::default(), not_before: None }
    }
}

/// A copy between two grants, or a grant and a buffer of one's own, of which one has its memory on
/// another node, piece by piece: where each stands, and how long it is. Of ranges that overlap the
/// end comes first that is not written before it was read.
#[derive(Debug)]
pub struct Pieces {
    from: u64,
    to: u64,
    length: usize,
    done: usize,
    any: bool,
}

impl Pieces {
    /// # Errors
    /// [`CopyError::OutOfRange`], [`CopyError::NotWritable`]: before anything is written.
    pub fn of(
        (source, from): (&Granted, u64),
        (target, to): (&Granted, u64),
        length: usize,
    ) -> Result<Pieces, CopyError> {
        let wanted = u64::try_from(length).unwrap_or(u64::MAX);
        check_range(from, wanted, source.bytes)?;
        check_range(to, wanted, target.bytes)?;
        if target.access == Access::Read {
            return Err(CopyError::NotWritable(target.grant));
        }
        Ok(Pieces { from, to, length, done: 0, any: false })
    }

    /// Of a copy to a buffer of one's own.
    ///
    /// # Errors
    /// [`CopyError::OutOfRange`], before anything is written; [`Failed::Forked`].
    pub fn to_own(
        (source, from): (&Granted, u64),
        (own, to): (&Buffer, u64),
        length: usize,
    ) -> Result<Pieces, Failed<CopyError>> {
        own.check(to, length).map_err(Failed::of)?;
        let wanted = u64::try_from(length).unwrap_or(u64::MAX);
        check_range(from, wanted, source.bytes).map_err(CopyError::from).map_err(Failed::Call)?;
        Ok(Pieces { from, to, length, done: 0, any: false })
    }

    /// Of a copy from a buffer of one's own.
    ///
    /// # Errors
    /// [`CopyError::OutOfRange`], [`CopyError::NotWritable`]: before anything is written;
    /// [`Failed::Forked`].
    pub fn from_own(
        (own, from): (&Buffer, u64),
        (target, to): (&Granted, u64),
        length: usize,
    ) -> Result<Pieces, Failed<CopyError>> {
        if target.access == Access::Read {
            return Err(Failed::Call(CopyError::NotWritable(target.grant)));
        }
        let Pieces { from: to, to: from, .. } = Pieces::to_own((target, to), (own, from), length)?;
        Ok(Pieces { from, to, length, done: 0, any: false })
    }
}

impl Pieces {
    /// Bytes of the longest.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.length.min(BOUNCE_BYTES)
    }
}

impl Iterator for Pieces {
    type Item = (u64, u64, usize);

    fn next(&mut self) -> Option<(u64, u64, usize)> {
        // A copy of nothing looks at both grants all the same.
        if std::mem::replace(&mut self.any, true) && self.done >= self.length {
            return None;
        }
        let now = (self.length - self.done).min(BOUNCE_BYTES);
        let at = if self.to > self.from { self.length - self.done - now } else { self.done };
        self.done += now;
        let at = u64::try_from(at).unwrap_or(u64::MAX);
        Some((self.from + at, self.to + at, now))
    }
}

impl Endpoint {
    /// Copies between two grants of which one is of another node, by way of memory of our own.
    /// Ranges that overlap arrive as they were before, because the copy begins at the end that is
    /// not written first.
    pub(crate) fn copy_across(
        &mut self,
        (from, from_offset): (GrantId, u64),
        (to, to_offset): (GrantId, u64),
        length: usize,
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        let (source, target) = (self.hold(from, deadline)?, self.hold(to, deadline)?);
        let pieces =
            Pieces::of((&source, from_offset), (&target, to_offset), length).map_err(Failed::Call)?;
        let mut bytes = vec![0; pieces.longest()];
        for (from_at, to_at, length) in pieces {
            let piece = bytes.get_mut(..length).unwrap_or_default();
            self.copy_in(from, from_at, piece, deadline)?;
            self.copy_out(piece, to, to_at, deadline)?;
        }
        Ok(())
    }

    /// Whether a grant that this endpoint has got hold of ([`Endpoint::step_borrow`]) has its
    /// memory on another node.
    pub fn is_elsewhere(&mut self, grant: GrantId) -> bool {
        self.loans.find(grant).is_some()
    }

    /// Copies over a link.
    #[cold]
    pub(crate) fn cross(
        &mut self,
        grant: GrantId,
        offset: u64,
        way: &mut Way<'_>,
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        let mut call = Copying::new(grant);
        loop {
            let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            match self.step_copy(&mut call, offset, way, late)? {
                Step::Ready(()) => return Ok(()),
                Step::Pending { again_at } => {
                    // Once it is late, the other node is waited for as long as it says.
                    let until = again_at.into_iter().chain(deadline.filter(|_| !late)).min();
                    if let Err(trouble) = self.await_loan(until) {
                        self.cancel_copy(&mut call);
                        return Err(trouble.into());
                    }
                }
            }
        }
    }

    /// Sleeps until a doorbell rings, that of a loan among them.
    pub(crate) fn await_loan(&mut self, until: Option<Instant>) -> Result<(), Trouble> {
        let due = self.member.as_ref().and_then(Member::due);
        let heard = self.pairs.sleep_on_all(until.into_iter().chain(due).min())?;
        self.check_here()?;
        if heard.control || due.is_some() {
            self.take_in()?;
        }
        Ok(())
    }

    /// A step of a copy of bytes of a granted buffer, which does not wait: pass the same place each
    /// time. `late`: its deadline has passed. [`Endpoint::descriptor`] becomes readable when
    /// another step is worth it.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn step_copy_in(
        &mut self,
        call: &mut Copying,
        offset: u64,
        into: &mut [u8],
        late: bool,
    ) -> Result<Step<()>, Failed<CopyError>> {
        self.step_copy(call, offset, &mut Way::In(into), late)
    }

    /// A step of a copy to a granted buffer; as [`Endpoint::step_copy_in`].
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn step_copy_out(
        &mut self,
        call: &mut Copying,
        from: &[u8],
        offset: u64,
        late: bool,
    ) -> Result<Step<()>, Failed<CopyError>> {
        self.step_copy(call, offset, &mut Way::Out(from), late)
    }

    fn step_copy(
        &mut self,
        call: &mut Copying,
        offset: u64,
        way: &mut Way<'_>,
        late: bool,
    ) -> Result<Step<()>, Failed<CopyError>> {
        self.check_here()?;
        self.show_held();
        let grant = call.grant;
        loop {
            if let Some(at) = call.not_before.filter(|at| *at > Instant::now()) {
                if late {
                    return Err(Failed::Call(CopyError::TimedOut(grant, MOVING)));
                }
                self.hear()?;
                return Ok(Step::Pending { again_at: Some(at) });
            }
            call.not_before = None;
            if let Some(loan) = self.loans.find(grant).filter(|loan| loan.granted().is_some()) {
                call.borrow.was_held = true;
                let crossed = loan.step(&mut call.crossing, offset, way, late, &self.pairs);
                match self.crossed(grant, crossed)? {
                    Crossed::Good => return Ok(Step::Ready(())),
                    Crossed::Wait(again_at) => {
                        self.hear()?;
                        return Ok(Step::Pending { again_at });
                    }
                    Crossed::Moved => call.not_before = Some(Instant::now() + RETRY),
                    Crossed::Gone => {}
                }
                call.crossing = Crossing::default();
                continue;
            }
            match self.step_borrow(&mut call.borrow, late)? {
                Step::Pending { again_at } => return Ok(Step::Pending { again_at }),
                Step::Ready(_) if self.loans.find(grant).is_some() => {
                    call.borrow = Borrow::again(grant);
                }
                // It is on this node: a copy does not wait, but for a move.
                Step::Ready(_) => {
                    let now = Some(Instant::now());
                    let copied = match way {
                        Way::In(into) => self.copy_bytes(grant, offset, Way::In(into), now),
                        Way::Out(from) => self.copy_bytes(grant, offset, Way::Out(from), now),
                    };
                    match copied {
                        Err(Failed::Call(CopyError::TimedOut(..))) if !late => {
                            call.borrow = Borrow::again(grant);
                        }
                        copied => return copied.map(Step::Ready),
                    }
                }
            }
        }
    }

    /// Handles the result of a step over a loan; a loan that is of no more use goes.
    fn crossed(
        &mut self,
        grant: GrantId,
        crossed: Result<Crossed, Failure>,
    ) -> Result<Crossed, Failed<CopyError>> {
        let owner = self.loans.find(grant).and_then(|loan| loan.granted()).map(|granted| granted.owner);
        let stays = match &crossed {
            Ok(Crossed::Good | Crossed::Wait(_)) => true,
            Ok(Crossed::Moved | Crossed::Gone) => false,
            Err(Failure::Call(_)) => self.loans.find(grant).is_some_and(|loan| !loan.is_busy()),
            Err(_) => false,
        };
        if !stays {
            self.loans.remove(grant, &self.pairs);
        }
        match crossed {
            // Of an owner that has ended after the daemon that would have said so, its channel
            // tells.
            Ok(Crossed::Good) if owner.is_some_and(|owner| self.is_dead(owner)) => {
                self.loans.remove(grant, &self.pairs);
                Err(Failed::Call(CopyError::Dead(grant)))
            }
            Ok(crossed) => Ok(crossed),
            Err(Failure::Gone) => Ok(Crossed::Gone),
            Err(Failure::Call(error) | Failure::Over(error)) => Err(Failed::Call(error)),
            Err(Failure::Trouble(trouble)) => Err(trouble.into()),
        }
    }

    /// Gives up a copy that will not be stepped any more. Of one to another node, bytes may still
    /// be written.
    pub fn cancel_copy(&mut self, call: &mut Copying) {
        self.cancel_borrow(&mut call.borrow);
        if self.loans.find(call.grant).is_some_and(|loan| loan.is_busy()) {
            self.loans.remove(call.grant, &self.pairs);
        }
    }

    /// Whether a grant is of another node, as far as its number says.
    pub(crate) fn is_far_grant(&self, grant: GrantId) -> bool {
        wire::grants::node_of_grant(grant.number()) != u64::from(wire::ipc::node_of_slot(self.address().slot))
    }
}
