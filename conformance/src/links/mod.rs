//! The duties of every transport of links, under any faults: two drivers, and in the path between
//! them a process that misbehaves.

pub mod faults;
pub mod scenarios;
pub mod stage;
pub mod talk;

pub use scenarios::{SCENARIOS, Scenario};
pub use stage::{Bed, Cluster};

use std::time::Duration;

/// How long anything may take, on a machine that has other things to do as well.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// The expectation that did not hold.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

impl Failure {
    /// Names what was being done when something else went wrong.
    pub fn during<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self(format!("{what}: {error}"))
    }
}

/// The outcome of something.
pub type Done<T = ()> = Result<T, Failure>;

/// Judges.
///
/// # Errors
/// The check that did not hold.
pub fn ensure(holds: bool, what: impl FnOnce() -> String) -> Done {
    if holds { Ok(()) } else { Err(Failure(what())) }
}

/// Waits, with patience.
///
/// # Errors
/// The name of the thing that did not come.
pub async fn within<T>(what: &'static str, wait: impl Future<Output = T>) -> Done<T> {
    // A machine in between that is emulated beside others takes its time.
    let patience = if faults::goes_by_relay() { 8 * TIMEOUT } else { TIMEOUT };
    tokio::time::timeout(patience, wait).await.map_err(|_| Failure(format!("{what}: it did not come")))
}
