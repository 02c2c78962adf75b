//! Copies from and to granted buffers.

use std::time::Instant;

use endpoint::{Borrow, Buffer, CopyError, Copying, Failed, GrantId, Granted, Pieces, Step};

use crate::Endpoint;
use crate::call::Call;
use crate::wait::wait;

impl Endpoint {
    /// Gets hold of a grant, and waits where its owner is about to move it: copies after that do
    /// not wait.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub async fn borrow(
        &mut self,
        grant: GrantId,
        deadline: Option<Instant>,
    ) -> Result<Granted, Failed<CopyError>> {
        wait(&mut self.inner, &mut self.bell, Borrow::new(grant), deadline).await
    }

    /// Copies bytes of a granted buffer. The copy itself, some hundred microseconds for each MiB,
    /// is made at once, by the runtime's thread; only where the memory is on another node it waits.
    /// Dropped before it is ready, it has copied nothing, or some of it from another node.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub async fn copy_in(
        &mut self,
        from: GrantId,
        offset: u64,
        into: &mut [u8],
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        match self.inner.copy_in(from, offset, into, Some(Instant::now())) {
            Err(Failed::Call(CopyError::TimedOut(..))) => {
                let call = Inward { call: Copying::new(from), offset, into };
                wait(&mut self.inner, &mut self.bell, call, deadline).await
            }
            copied => copied,
        }
    }

    /// Copies bytes to a buffer that was granted to be written; as [`Endpoint::copy_in`]. Dropped
    /// before it is ready, bytes may still be written on another node.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub async fn copy_out(
        &mut self,
        from: &[u8],
        to: GrantId,
        offset: u64,
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        match self.inner.copy_out(from, to, offset, Some(Instant::now())) {
            Err(Failed::Call(CopyError::TimedOut(..))) => {
                let call = Outward { call: Copying::new(to), offset, from };
                wait(&mut self.inner, &mut self.bell, call, deadline).await
            }
            copied => copied,
        }
    }

    /// Copies bytes from one granted buffer to another; as [`Endpoint::copy_in`].
    ///
    /// # Errors
    /// See [`CopyError`].
    pub async fn copy(
        &mut self,
        from: (GrantId, u64),
        to: (GrantId, u64),
        length: usize,
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        loop {
            match self.inner.copy(from, to, length, Some(Instant::now())) {
                Err(Failed::Call(CopyError::TimedOut(..))) => {}
                copied => return copied,
            }
            let source = self.borrow(from.0, deadline).await?;
            let target = self.borrow(to.0, deadline).await?;
            if self.inner.is_elsewhere(from.0) || self.inner.is_elsewhere(to.0) {
                let pieces = Pieces::of((&source, from.1), (&target, to.1), length).map_err(Failed::Call)?;
                return self.copy_across((from.0, to.0), pieces, deadline).await;
            }
        }
    }

    /// Copies bytes of a granted buffer to a buffer of one's own; as [`Endpoint::copy_in`].
    ///
    /// # Errors
    /// See [`CopyError`].
    pub async fn copy_to_own(
        &mut self,
        (from, offset): (GrantId, u64),
        (own, own_offset): (&mut Buffer, u64),
        length: usize,
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        loop {
            let granted = self.borrow(from, deadline).await?;
            if self.inner.is_elsewhere(from) {
                let pieces = Pieces::to_own((&granted, offset), (own, own_offset), length)?;
                let mut bytes = vec![0; pieces.longest()];
                for (at, own_at, length) in pieces {
                    let piece = bytes.get_mut(..length).unwrap_or_default();
                    self.copy_in(from, at, piece, deadline).await?;
                    own.write(own_at, piece).map_err(Failed::of)?;
                }
                return Ok(());
            }
            let now = Some(Instant::now());
            match self.inner.copy_to_own((from, offset), (own, own_offset), length, now) {
                Err(Failed::Call(CopyError::TimedOut(..))) => {}
                copied => return copied,
            }
        }
    }

    /// Copies bytes of a buffer of one's own to one that was granted to be written; as
    /// [`Endpoint::copy_out`].
    ///
    /// # Errors
    /// See [`CopyError`].
    pub async fn copy_from_own(
        &mut self,
        (own, own_offset): (&Buffer, u64),
        (to, offset): (GrantId, u64),
        length: usize,
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        loop {
            let granted = self.borrow(to, deadline).await?;
            if self.inner.is_elsewhere(to) {
                let pieces = Pieces::from_own((own, own_offset), (&granted, offset), length)?;
                let mut bytes = vec![0; pieces.longest()];
                for (own_at, at, length) in pieces {
                    let piece = bytes.get_mut(..length).unwrap_or_default();
                    own.read(own_at, piece).map_err(Failed::of)?;
                    self.copy_out(piece, to, at, deadline).await?;
                }
                return Ok(());
            }
            let now = Some(Instant::now());
            match self.inner.copy_from_own((own, own_offset), (to, offset), length, now) {
                Err(Failed::Call(CopyError::TimedOut(..))) => {}
                copied => return copied,
            }
        }
    }

    async fn copy_across(
        &mut self,
        (from, to): (GrantId, GrantId),
        pieces: Pieces,
        deadline: Option<Instant>,
    ) -> Result<(), Failed<CopyError>> {
        let mut bytes = Vec::new();
        for (from_at, to_at, length) in pieces {
            bytes.resize(length, 0);
            self.copy_in(from, from_at, &mut bytes, deadline).await?;
            self.copy_out(&bytes, to, to_at, deadline).await?;
        }
        Ok(())
    }
}

/// From a granted buffer.
struct Inward<'a> {
    call: Copying,
    offset: u64,
    into: &'a mut [u8],
}

impl Call for Inward<'_> {
    type Done = ();
    type Error = CopyError;

    fn step(&mut self, endpoint: &mut endpoint::Endpoint, late: bool) -> Result<Step<()>, Failed<CopyError>> {
        endpoint.step_copy_in(&mut self.call, self.offset, self.into, late)
    }

    fn cancel(&mut self, endpoint: &mut endpoint::Endpoint) {
        endpoint.cancel_copy(&mut self.call);
    }
}

/// To a granted buffer.
struct Outward<'a> {
    call: Copying,
    offset: u64,
    from: &'a [u8],
}

impl Call for Outward<'_> {
    type Done = ();
    type Error = CopyError;

    fn step(&mut self, endpoint: &mut endpoint::Endpoint, late: bool) -> Result<Step<()>, Failed<CopyError>> {
        endpoint.step_copy_out(&mut self.call, self.from, self.offset, late)
    }

    fn cancel(&mut self, endpoint: &mut endpoint::Endpoint) {
        endpoint.cancel_copy(&mut self.call);
    }
}
