//! Errors of the crates below, as `errno` and a sentence.

use crate::whole::Kind;
use channel::meeting::{AcceptError, MeetError, OfferError};
use channel::{CreateError, OpenError, ReceiveError, SendError};
use rustix::io::Errno;
use std::error::Error;
use std::io;
use sys::channel_abi::{Failure, Handle};

/// A failure with a sentence of ours.
pub fn failure(errno: Errno, text: impl Into<String>) -> Failure {
    Failure { errno: errno.raw_os_error(), text: text.into() }
}

/// An error with its causes in one sentence.
fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// The kernel's error, found somewhere among the causes.
fn kernels(error: &(dyn Error + 'static)) -> Option<Errno> {
    let mut next = Some(error);
    while let Some(error) = next {
        let errno = error.downcast_ref::<Errno>().copied();
        let said = errno.or_else(|| error.downcast_ref::<io::Error>().and_then(Errno::from_io_error));
        if said.is_some() {
            return said;
        }
        next = error.source();
    }
    None
}

/// An error with the errno that fits it; without one, what the kernel said.
pub fn of(errno: Option<Errno>, error: &(dyn Error + 'static)) -> Failure {
    failure(errno.or_else(|| kernels(error)).unwrap_or(Errno::IO), sentence(error))
}

pub fn closed(handle: Handle) -> Failure {
    failure(Errno::BADF, format!("the handle {handle} is closed, or never was one"))
}

/// A handle of another kind than the call is for.
pub fn wrong_kind(found: Kind, wanted: Kind) -> Failure {
    let hint = if (found, wanted) == (Kind::Offer, Kind::Channel) {
        ": tombolo_accept() gives its channels"
    } else {
        ""
    };
    failure(Errno::INVAL, format!("this handle is {found}, and the call is for {wanted}{hint}"))
}

pub fn busy(what: &str) -> Failure {
    failure(
        Errno::BUSY,
        format!(
            "another thread is {what}: threads that share a direction of a channel, or an endpoint, need a lock of their own"
        ),
    )
}

pub fn of_a_parent() -> Failure {
    failure(
        Errno::STALE,
        "this offer is the parent's of this process, which accepts its openers: close the handle here",
    )
}

pub fn would_wait(for_what: &str) -> Failure {
    failure(Errno::AGAIN, format!("there is no {for_what} now, and this call does not wait"))
}

pub fn timed_out(for_what: &str) -> Failure {
    failure(Errno::TIMEDOUT, format!("there was no {for_what} before the time was over"))
}

pub fn sending(error: &SendError) -> Failure {
    let errno = match error {
        SendError::Full => return would_wait("room"),
        SendError::TimedOut => return timed_out("room"),
        SendError::Closed => Some(Errno::PIPE),
        SendError::TooLong { .. } => Some(Errno::MSGSIZE),
        SendError::Corrupt(_) => Some(Errno::PROTO),
        SendError::Forked => Some(Errno::STALE),
        _ => None,
    };
    of(errno, error)
}

/// [`ReceiveError::Closed`] is the end of the file, and no failure, except where a caller makes it
/// one.
pub fn receiving(error: &ReceiveError) -> Failure {
    let errno = match error {
        ReceiveError::TimedOut => return timed_out("message"),
        ReceiveError::Closed => Some(Errno::NODATA),
        ReceiveError::Corrupt(_) => Some(Errno::PROTO),
        ReceiveError::Forked => Some(Errno::STALE),
        _ => None,
    };
    of(errno, error)
}

pub fn creating(error: &CreateError) -> Failure {
    let errno = match error {
        CreateError::RingBytes { .. } => Some(Errno::INVAL),
        _ => None,
    };
    of(errno, error)
}

pub fn opening(error: &OpenError) -> Failure {
    let errno = match error {
        OpenError::WrongMode { .. } => Some(Errno::PROTOTYPE),
        OpenError::Reopened { .. } => Some(Errno::ALREADY),
        // The kernel's word; anything else is that the region or the descriptors are not what they
        // should be.
        error => kernels(error).or(Some(Errno::PROTO)),
    };
    of(errno, error)
}

pub fn offering(error: &OfferError) -> Failure {
    let errno = match error {
        OfferError::PathTooLong { .. } => Some(Errno::NAMETOOLONG),
        OfferError::InUse { .. } => Some(Errno::ADDRINUSE),
        OfferError::NotASocket { .. } => Some(Errno::EXIST),
        OfferError::Locked { .. } => Some(Errno::AGAIN),
        OfferError::System { .. } => None,
    };
    of(errno, error)
}

pub fn accepting(error: &AcceptError) -> Failure {
    match error {
        AcceptError::Channel(error) => creating(error),
        AcceptError::TimedOut => timed_out("opener"),
        AcceptError::System(_) => of(None, error),
    }
}

pub fn meeting(error: &MeetError) -> Failure {
    let errno = match error {
        MeetError::PathTooLong { .. } => Some(Errno::NAMETOOLONG),
        MeetError::Stranger { .. } => Some(Errno::ACCESS),
        MeetError::Refused { errno, .. } => {
            let errno = i32::try_from(*errno).unwrap_or(0);
            Some(if errno == 0 { Errno::PROTO } else { Errno::from_raw_os_error(errno) })
        }
        MeetError::HungUp { .. } => Some(Errno::CONNREFUSED),
        MeetError::Greeting { .. } | MeetError::End { .. } => Some(Errno::PROTO),
        MeetError::TimedOut { .. } => Some(Errno::TIMEDOUT),
        MeetError::Connect { .. } | MeetError::System { .. } => None,
    };
    of(errno, error)
}

/// The kernel refused something to this library.
pub fn system(what: &str, error: &io::Error) -> Failure {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    failure(errno, format!("can't {what}: {error}"))
}
