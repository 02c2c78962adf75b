//! Copies from and to granted buffers.

use std::time::Instant;

use endpoint::{Borrow, CopyError, Failed, GrantId, Granted};

use crate::Endpoint;
use crate::wait::wait;

impl Endpoint {
    /// Gets hold of a grant, and waits where its owner is about to move it: copies after that do not wait.
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

    /// Copies bytes of a granted buffer. The copy itself, some hundred microseconds for each MiB, is made at once, by the runtime's thread. Dropped before it
    /// is ready, it has copied nothing.
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
        loop {
            match self.inner.copy_in(from, offset, into, Some(Instant::now())) {
                Err(Failed::Call(CopyError::TimedOut(..))) => self.borrow(from, deadline).await?,
                copied => return copied,
            };
        }
    }

    /// Copies bytes to a buffer that was granted to be written; as [`Endpoint::copy_in`].
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
        loop {
            match self.inner.copy_out(from, to, offset, Some(Instant::now())) {
                Err(Failed::Call(CopyError::TimedOut(..))) => self.borrow(to, deadline).await?,
                copied => return copied,
            };
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
            self.borrow(from.0, deadline).await?;
            self.borrow(to.0, deadline).await?;
        }
    }
}
