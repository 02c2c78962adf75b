//! Becoming an endpoint, and finding others.

use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use endpoint::{Address, BindError, Failed, Find, FindError, Options, Whom};
use tokio::task::{JoinError, spawn_blocking};

use crate::Endpoint;
use crate::wait::wait;

/// A thread that binds for a future is busy for so long at a time, so that a runtime whose future
/// was dropped is not kept from ending.
const TURN: Duration = Duration::from_millis(200);

impl Endpoint {
    /// Becomes the endpoint of this name, or one without a name. The daemon has to be there.
    /// Dropped before it is ready, the endpoint ends as soon as it has begun.
    ///
    /// # Errors
    /// See [`BindError`].
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub async fn bind(name: Option<&str>, options: &Options) -> Result<Endpoint, Failed<BindError>> {
        let (name, options) = (name.map(str::to_owned), options.clone());
        let bound = on_a_thread(move || endpoint::Endpoint::bind(name.as_deref(), &options)).await?;
        watched(bound)
    }

    /// The same, and waits until the daemon is there, and until no other program has the name.
    /// Without a deadline it waits as long as it takes.
    ///
    /// # Errors
    /// See [`BindError`].
    ///
    /// # Panics
    /// As [`Endpoint::bind`].
    pub async fn bind_by(
        name: Option<&str>,
        options: &Options,
        deadline: Option<Instant>,
    ) -> Result<Endpoint, Failed<BindError>> {
        loop {
            let (name, options) = (name.map(str::to_owned), options.clone());
            let turn = Instant::now() + TURN;
            let until = deadline.map_or(turn, |deadline| deadline.min(turn));
            let bind = move || endpoint::Endpoint::bind_by(name.as_deref(), &options, Some(until));
            match on_a_thread(bind).await {
                Err(Failed::Call(BindError::TimedOut { .. }))
                    if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
                bound => return watched(bound?),
            }
        }
    }

    /// Where an endpoint is that is bound now: introduces the two if they do not know each other.
    /// Dropped before it is ready, they may get to know each other nevertheless.
    ///
    /// # Errors
    /// See [`FindError`].
    pub async fn find(
        &mut self,
        whom: impl Into<Whom<'_>>,
        deadline: Option<Instant>,
    ) -> Result<Address, Failed<FindError>> {
        let call = Find::new(whom, false);
        wait(&mut self.inner, &mut self.bell, call, deadline).await
    }

    /// The same, and waits until it is bound.
    ///
    /// # Errors
    /// See [`FindError`].
    pub async fn wait_for_bind(
        &mut self,
        whom: impl Into<Whom<'_>>,
        deadline: Option<Instant>,
    ) -> Result<Address, Failed<FindError>> {
        let call = Find::new(whom, true);
        wait(&mut self.inner, &mut self.bell, call, deadline).await
    }

    /// Ends the endpoint, and waits until the daemon knows. Dropping it ends it as well.
    ///
    /// # Errors
    /// [`Failed::Daemon`]: the endpoint has ended all the same, with its connection.
    pub async fn unbind(self) -> Result<(), Failed<BindError>> {
        let Endpoint { bell, inner } = self;
        drop(bell);
        on_a_thread(move || inner.unbind()).await
    }
}

fn watched(endpoint: endpoint::Endpoint) -> Result<Endpoint, Failed<BindError>> {
    Endpoint::new(endpoint).map_err(|source| Failed::System {
        action: "have the runtime watch the doorbells of an endpoint",
        source,
    })
}

/// Does what blocks for a moment on a thread of the runtime that may.
async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failed<BindError>> + Send + 'static,
) -> Result<T, Failed<BindError>> {
    let ended = |error: JoinError| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(error) => {
            Failed::System { action: "bind on a thread of the runtime, which ends", source: error.into() }
        }
    };
    spawn_blocking(work).await.unwrap_or_else(|error| Err(ended(error)))
}
