//! Copies between what was granted and a buffer of one's own, which never pass through plain
//! memory: both ends of a transfer can each make a part of it.

use std::time::Instant;

use super::{CopyError, Made};
use crate::buffer::Buffer;
use crate::crossing::Pieces;
use crate::grants::GrantId;
use crate::{Endpoint, Failed};

impl Endpoint {
    /// Copies bytes of a granted buffer to a buffer of one's own; as [`Endpoint::copy_in`]. From
    /// another node they come in pieces.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn copy_to_own(
        &mut self,
        (from, offset): (GrantId, u64),
        (own, own_offset): (&mut Buffer, u64),
        length: usize,
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        let own_at = own.check(own_offset, length).map_err(Failed::of)?;
        let made = self.on_memory(from, (offset, length), deadline, |memory, at| {
            memory.copy_to(at, &own.store.data, own_at, length);
            true
        })?;
        if let Made::Here = made {
            return Ok(());
        }
        let granted = self.hold(from, deadline)?;
        let pieces = Pieces::to_own((&granted, offset), (own, own_offset), length)?;
        let mut bytes = vec![0; pieces.longest()];
        for (at, own_at, length) in pieces {
            let piece = bytes.get_mut(..length).unwrap_or_default();
            self.copy_in(from, at, piece, deadline)?;
            own.write(own_at, piece).map_err(Failed::of)?;
        }
        Ok(())
    }

    /// Copies bytes of a buffer of one's own to one that was granted to be written; as
    /// [`Endpoint::copy_out`]. To another node they go in pieces.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn copy_from_own(
        &mut self,
        (own, own_offset): (&Buffer, u64),
        (to, offset): (GrantId, u64),
        length: usize,
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        let own_at = own.check(own_offset, length).map_err(Failed::of)?;
        let made = self.on_memory(to, (offset, length), deadline, |memory, at| {
            memory.copy_from(at, &own.store.data, own_at, length)
        })?;
        if let Made::Here = made {
            return Ok(());
        }
        let granted = self.hold(to, deadline)?;
        let pieces = Pieces::from_own((own, own_offset), (&granted, offset), length)?;
        let mut bytes = vec![0; pieces.longest()];
        for (own_at, at, length) in pieces {
            let piece = bytes.get_mut(..length).unwrap_or_default();
            own.read(own_at, piece).map_err(Failed::of)?;
            self.copy_out(piece, to, at, deadline)?;
        }
        Ok(())
    }
}
