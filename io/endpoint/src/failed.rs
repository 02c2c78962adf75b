//! Why a call has failed: what is its own, and what can befall any.

use std::io;

use session::ControlError;

/// Why a call has failed.
#[derive(Debug, thiserror::Error)]
pub enum Failed<E> {
    /// An error that belongs to the call.
    #[error(transparent)]
    Call(E),
    /// The kernel refused something.
    #[error("can't {action}")]
    System {
        /// The attempted action.
        action: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The daemon refused something, or is not there.
    #[error(transparent)]
    Daemon(ControlError),
    /// This process is a fork of the one whose endpoint it is.
    #[error(
        "this endpoint belongs to the process that bound it, of which this process is a fork: bind one of its own"
    )]
    Forked,
    /// The daemon has ended this endpoint: its name is gone from the topology, or another has it.
    /// Bind again.
    #[error("this endpoint has ended: {why}")]
    Ended {
        /// The daemon's reason.
        why: String,
    },
    /// An [`crate::Interrupter`] has ended this call, and ends all later ones.
    #[error("the endpoint was interrupted by another thread")]
    Interrupted,
    /// This endpoint is on its way to another domain, and receives and calls nobody meanwhile.
    #[error("this endpoint is moving: commit its migration, or roll it back, before the next call")]
    Moving,
}

impl<E> Failed<E> {
    /// The same of a call that this one was a part of.
    pub fn of<F: From<E>>(self) -> Failed<F> {
        match self {
            Failed::Call(error) => Failed::Call(error.into()),
            Failed::System { action, source } => Failed::System { action, source },
            Failed::Daemon(error) => Failed::Daemon(error),
            Failed::Forked => Failed::Forked,
            Failed::Ended { why } => Failed::Ended { why },
            Failed::Interrupted => Failed::Interrupted,
            Failed::Moving => Failed::Moving,
        }
    }
}

/// A failure that can befall any call.
#[derive(Debug)]
pub(crate) enum Trouble {
    System { action: &'static str, source: io::Error },
    Ended { why: String },
    Forked,
    Interrupted,
    Moving,
}

impl Trouble {
    /// Returns the failure of a call beside its own errors.
    pub(crate) fn of<E: std::fmt::Display>(failed: Failed<E>) -> Trouble {
        match failed {
            Failed::Call(why) => Trouble::Ended { why: why.to_string() },
            Failed::Daemon(why) => Trouble::Ended { why: why.to_string() },
            Failed::System { action, source } => Trouble::System { action, source },
            Failed::Forked => Trouble::Forked,
            Failed::Ended { why } => Trouble::Ended { why },
            Failed::Interrupted => Trouble::Interrupted,
            Failed::Moving => Trouble::Moving,
        }
    }

    /// For `map_err`.
    pub(crate) fn doing(action: &'static str) -> impl FnOnce(rustix::io::Errno) -> Trouble {
        move |errno| Trouble::System { action, source: errno.into() }
    }
}

impl<E> From<Trouble> for Failed<E> {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::System { action, source } => Failed::System { action, source },
            Trouble::Ended { why } => Failed::Ended { why },
            Trouble::Forked => Failed::Forked,
            Trouble::Interrupted => Failed::Interrupted,
            Trouble::Moving => Failed::Moving,
        }
    }
}
