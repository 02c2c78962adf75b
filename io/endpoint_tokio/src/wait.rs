//! Waiting: for the descriptor that says that another step is worth it, and for times.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use endpoint::{Endpoint, Failed, Step};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::coop;
use tokio::time::Sleep;

use crate::call::Call;

/// After so many steps that came to nothing and did not let it sleep either, a task lets others
/// run: a peer that rings for nothing must not keep the runtime's thread.
const TURNS: u32 = 16;

/// The bell that wakes a task that waits for its endpoint.
#[derive(Debug)]
pub(crate) struct Bell {
    descriptor: AsyncFd<OwnedFd>,
    /// Made at the first call that has a time.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Bell {
    /// Watches a descriptor: a duplicate of it, which stays open as long as it is watched.
    pub fn new(descriptor: BorrowedFd<'_>) -> io::Result<Bell> {
        // Deprecated for types whose descriptor can change or close while it is watched. An
        // `OwnedFd` can do neither.
        #[allow(
            deprecated,
            reason = "an `OwnedFd` keeps what the unsafe constructor asks for, and `unsafe` lives in `sys`"
        )]
        let descriptor = AsyncFd::with_interest(descriptor.try_clone_to_owned()?, Interest::READABLE)?;
        Ok(Bell { descriptor, timer: None })
    }

    /// Ready when it has rung, or the time has come; if not, whoever polls is woken then.
    fn poll(&mut self, cx: &mut Context<'_>, until: Option<Instant>) -> Poll<io::Result<()>> {
        if let Some(until) = until {
            let until = until.into();
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
            if timer.deadline() != until {
                timer.as_mut().reset(until);
            }
            if timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
        }
        // Cleared before the next step takes off what rang: a ring that comes after that makes it
        // ready again.
        ready!(self.descriptor.poll_read_ready(cx))?.clear_ready();
        Poll::Ready(Ok(()))
    }
}

/// A call that is being waited for. Dropped before it is over, it is given up.
struct InFlight<'e, C: Call> {
    endpoint: &'e mut Endpoint,
    bell: &'e mut Bell,
    call: C,
    deadline: Option<Instant>,
    is_over: bool,
}

impl<C: Call> Drop for InFlight<'_, C> {
    fn drop(&mut self) {
        if !self.is_over {
            self.call.cancel(self.endpoint);
        }
    }
}

impl<C: Call> InFlight<'_, C> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<C::Done, Failed<C::Error>>> {
        let budget = ready!(coop::poll_proceed(cx));
        for _ in 0..TURNS {
            let late = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
            let again_at = match self.call.step(self.endpoint, late) {
                Ok(Step::Ready(done)) => {
                    self.is_over = true;
                    budget.made_progress();
                    return Poll::Ready(Ok(done));
                }
                Err(why) => {
                    // What went wrong beside the call leaves it under way.
                    self.is_over = matches!(why, Failed::Call(_));
                    return Poll::Ready(Err(why));
                }
                Ok(Step::Pending { again_at }) => again_at,
            };
            // A call that is late may still hear from another node what became of it.
            let deadline = self.deadline.filter(|_| !late || again_at.is_none());
            let until = deadline.into_iter().chain(again_at).min();
            if let Err(source) = ready!(self.bell.poll(cx, until)) {
                return Poll::Ready(Err(Failed::System { action: "wait for an endpoint", source }));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Waits for a call.
pub(crate) async fn wait<C: Call>(
    endpoint: &mut Endpoint,
    bell: &mut Bell,
    call: C,
    deadline: Option<Instant>,
) -> Result<C::Done, Failed<C::Error>> {
    let mut call = InFlight { endpoint, bell, call, deadline, is_over: false };
    poll_fn(|cx| call.poll(cx)).await
}
