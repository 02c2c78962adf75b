//! Waiting for what wakes a half of an end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use channel::Descriptors;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::coop;

/// After so many turns in which a task found nothing and was not let sleep either, it lets others
/// run: a peer that rings for nothing, or shows bytes of messages that never end, must not keep the
/// runtime's thread.
const TURNS: u32 = 16;

/// The doorbell and the lifeline of a half. Duplicates, because both halves watch the one lifeline,
/// and a descriptor is watched once.
#[derive(Debug)]
pub(crate) struct Bells {
    doorbell: AsyncFd<OwnedFd>,
    lifeline: AsyncFd<OwnedFd>,
}

fn watch(descriptor: BorrowedFd<'_>) -> io::Result<AsyncFd<OwnedFd>> {
    // Deprecated for types whose descriptor can change or close while it is watched. An `OwnedFd`
    // can do neither: it stays open and the same until the `AsyncFd` lets go of it.
    #[allow(
        deprecated,
        reason = "an `OwnedFd` keeps what the unsafe constructor asks for, and `unsafe` lives in `sys`"
    )]
    AsyncFd::with_interest(descriptor.try_clone_to_owned()?, Interest::READABLE)
}

impl Bells {
    pub(crate) fn new(descriptors: &Descriptors<'_>) -> io::Result<Bells> {
        Ok(Bells {
            doorbell: watch(descriptors.doorbell.as_fd())?,
            lifeline: watch(descriptors.lifeline.as_fd())?,
        })
    }

    /// Whether one has rung; if not, whoever polls is woken when one does.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut rang = false;
        // Both are asked, so that both wake us.
        for bell in [&self.doorbell, &self.lifeline] {
            if let Poll::Ready(guard) = bell.poll_read_ready(cx) {
                // Before the rings are taken off: one that comes after that makes it ready again.
                guard?.clear_ready();
                rang = true;
            }
        }
        if rang { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

/// A half of an end that is polled.
pub(crate) trait Half {
    /// The error of a doorbell.
    type Error;

    /// The descriptors to wait on.
    fn bells(&self) -> &Bells;

    /// Says to the peer that we are going to sleep. False: do not.
    fn prepare_wait(&mut self) -> Result<bool, Self::Error>;

    /// Says that we are awake.
    fn cancel_wait(&mut self);

    /// Takes off the rings.
    fn drain(&mut self) -> Result<(), Self::Error>;

    /// The error for a wait that the kernel refused.
    fn refused(error: io::Error) -> Self::Error;
}

/// Polls `look` until it finds something, within what a task may take at a time.
pub(crate) fn poll<H: Half, T>(
    half: &mut H,
    cx: &mut Context<'_>,
    mut look: impl FnMut(&mut H) -> Poll<Result<T, H::Error>>,
) -> Poll<Result<T, H::Error>> {
    let budget = ready!(coop::poll_proceed(cx));
    for _ in 0..TURNS {
        if let Poll::Ready(found) = look(half) {
            budget.made_progress();
            return Poll::Ready(found);
        }
        if !half.prepare_wait()? {
            continue;
        }
        // Pending: the peer goes on knowing that we sleep, whether this task is polled again or
        // gives up.
        let rang = ready!(half.bells().poll(cx));
        half.cancel_wait();
        rang.map_err(H::refused)?;
        half.drain()?;
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}
