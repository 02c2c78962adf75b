//! Errors of endpoints, as `errno` and a sentence: the table of `include/tombolo/endpoint.h`.

use crate::failure::{self, failure};
use endpoint::{
    AskError, BackupError, BindError, BufferError, CopyError, Failed, FindError, GrantError, MigrateError,
    NoPeer, NotifyError, OutOfRange, ReceiveError, RelayError, ReplyError, RequestError, SendError,
    StateError, TellError, Unasked,
};
use rustix::io::Errno;
use session::ControlError;
use std::error::Error;
use sys::channel_abi::{Failure, Patience};

/// The errno of what belongs to one call.
pub trait Refusal: Error + 'static {
    /// `None`: what the kernel said, somewhere among the causes.
    fn errno(&self, patience: Patience) -> Option<Errno>;
}

/// A time that is over, for those who would wait and for those who would not.
fn over(patience: Patience) -> Errno {
    if patience == Patience::Never { Errno::AGAIN } else { Errno::TIMEDOUT }
}

impl Refusal for NoPeer {
    fn errno(&self, _: Patience) -> Option<Errno> {
        Some(match self {
            Self::Unbound(_) => Errno::NOTCONN,
            Self::Oneself(_) => Errno::INVAL,
            Self::WrongGeneration { .. } => Errno::STALE,
            Self::Dead(_) => Errno::PIPE,
            Self::Moved { .. } => Errno::REMCHG,
            Self::Broken(..) => Errno::PROTO,
        })
    }
}

impl Refusal for SendError {
    fn errno(&self, patience: Patience) -> Option<Errno> {
        match self {
            Self::NoPeer(why) => why.errno(patience),
            Self::Refused(_) => Some(Errno::PERM),
            Self::TooLong { .. } => Some(Errno::MSGSIZE),
            Self::Deadlock(_) => Some(Errno::DEADLK),
            Self::TimedOut(_) => Some(over(patience)),
            Self::Unknown(_) => Some(Errno::COMM),
        }
    }
}

impl Refusal for RequestError {
    fn errno(&self, patience: Patience) -> Option<Errno> {
        match self {
            Self::NoPeer(why) => why.errno(patience),
            Self::Refused(_) => Some(Errno::PERM),
            Self::TooLong { .. } => Some(Errno::MSGSIZE),
            Self::Deadlock { .. } => Some(Errno::DEADLK),
            Self::TimedOut { received: true, .. } => Some(Errno::TIME),
            Self::TimedOut { received: false, .. } => Some(over(patience)),
            Self::Unknown(_) => Some(Errno::COMM),
            Self::Elsewhere(_) => Some(Errno::HOSTUNREACH),
        }
    }
}

impl Refusal for ReceiveError {
    fn errno(&self, patience: Patience) -> Option<Errno> {
        match self {
            Self::NoPeer(why) => why.errno(patience),
            Self::Deadlock(_) => Some(Errno::DEADLK),
            Self::TimedOut => Some(over(patience)),
        }
    }
}

impl Refusal for NotifyError {
    fn errno(&self, patience: Patience) -> Option<Errno> {
        match self {
            Self::NoPeer(why) => why.errno(patience),
            Self::Refused(_) => Some(Errno::PERM),
        }
    }
}

impl Refusal for ReplyError {
    fn errno(&self, patience: Patience) -> Option<Errno> {
        match self {
            Self::NoPeer(why) => why.errno(patience),
            Self::TooLong { .. } | Self::StateTooLong { .. } => Some(Errno::MSGSIZE),
            Self::Stale(_) => Some(Errno::CANCELED),
            Self::NoRoom(_) => Some(Errno::NOBUFS),
        }
    }
}

impl Refusal for RelayError {
    fn errno(&self, patience: Patience) -> Option<Errno> {
        match self {
            Self::NoPeer(why) => why.errno(patience),
            Self::Refused(_) => Some(Errno::PERM),
            Self::TooLong { .. } => Some(Errno::MSGSIZE),
            Self::Stale(_) => Some(Errno::CANCELED),
            Self::Full(_) => Some(Errno::AGAIN),
            Self::NoRoom(_) => Some(Errno::NOBUFS),
        }
    }
}

impl Refusal for BindError {
    fn errno(&self, _: Patience) -> Option<Errno> {
        match self {
            Self::NoDaemon(why) => Some(of_daemon(why).unwrap_or(Errno::CONNREFUSED)),
            Self::Unknown { .. } => Some(Errno::NOENT),
            Self::Busy { .. } => Some(Errno::ADDRINUSE),
            Self::NotAllowed { .. } => Some(Errno::PERM),
            Self::Limit { .. } => Some(Errno::USERS),
            Self::Refused { errno, .. } => said(*errno),
            Self::TimedOut { .. } => Some(Errno::TIMEDOUT),
        }
    }
}

impl Refusal for FindError {
    fn errno(&self, _: Patience) -> Option<Errno> {
        match self {
            Self::NoDaemon | Self::NotBound { .. } => Some(Errno::NOTCONN),
            Self::Unknown { .. } => Some(Errno::NOENT),
            Self::NotAllowed { .. } => Some(Errno::PERM),
            Self::Oneself { .. } => Some(Errno::INVAL),
            Self::WrongGeneration { .. } => Some(Errno::STALE),
            Self::Limit { .. } => Some(Errno::USERS),
            Self::Refused { errno, .. } => said(*errno),
            Self::Unusable { .. } => Some(Errno::PROTO),
            Self::TimedOut { .. } => Some(Errno::TIMEDOUT),
        }
    }
}

impl Refusal for AskError {
    fn errno(&self, patience: Patience) -> Option<Errno> {
        match self {
            Self::Find(why) => why.errno(patience),
            Self::Request(why) => why.errno(patience),
            Self::Unknown { .. } => Some(Errno::COMM),
        }
    }
}

impl Refusal for TellError {
    fn errno(&self, patience: Patience) -> Option<Errno> {
        match self {
            Self::Find(why) => why.errno(patience),
            Self::Send(why) => why.errno(patience),
        }
    }
}

impl Refusal for MigrateError {
    fn errno(&self, _: Patience) -> Option<Errno> {
        Some(match self {
            Self::Moving { .. } => Errno::ALREADY,
            Self::NotMoving | Self::NoName => Errno::INVAL,
            Self::NoRoom { .. } => Errno::NODEV,
            Self::Unanswered { .. } | Self::Calling => Errno::BUSY,
            Self::Buffers { .. } | Self::Granted { .. } | Self::OtherNode { .. } => Errno::OPNOTSUPP,
            Self::RolledBack { .. } => Errno::CANCELED,
        })
    }
}

impl Refusal for BackupError {
    fn errno(&self, patience: Patience) -> Option<Errno> {
        match self {
            Self::Find(why) => why.errno(patience),
            Self::TakenOver => Some(Errno::ALREADY),
        }
    }
}

impl Refusal for StateError {
    fn errno(&self, _: Patience) -> Option<Errno> {
        match self {
            Self::TooLong { .. } => Some(Errno::MSGSIZE),
        }
    }
}

impl Refusal for Unasked {
    fn errno(&self, _: Patience) -> Option<Errno> {
        Some(match self {
            Self::NoDaemon => Errno::OPNOTSUPP,
            Self::TimedOut => Errno::TIMEDOUT,
        })
    }
}

impl Refusal for OutOfRange {
    fn errno(&self, _: Patience) -> Option<Errno> {
        Some(Errno::RANGE)
    }
}

impl Refusal for BufferError {
    fn errno(&self, patience: Patience) -> Option<Errno> {
        match self {
            Self::Unasked(why) => why.errno(patience),
            Self::Limit { .. } => Some(Errno::USERS),
            Self::Size { .. } | Self::NotOurs(_) => Some(Errno::INVAL),
            Self::NotHere { .. } => Some(Errno::OPNOTSUPP),
            Self::Refused { errno, .. } => said(*errno),
        }
    }
}

impl Refusal for GrantError {
    fn errno(&self, patience: Patience) -> Option<Errno> {
        match self {
            Self::Unasked(why) => why.errno(patience),
            Self::NotOurs(_) | Self::NotTo { .. } => Some(Errno::INVAL),
            Self::EarlierDaemon => Some(Errno::CONNRESET),
            Self::NoGrant(_) => Some(Errno::NOENT),
            Self::Limit { .. } => Some(Errno::USERS),
            Self::NotBound { .. } => Some(Errno::NOTCONN),
            Self::WrongGeneration { .. } => Some(Errno::STALE),
            Self::NotAllowed { .. } => Some(Errno::PERM),
            Self::NoMemory(_) => None,
            Self::Refused { errno, .. } => said(*errno),
        }
    }
}

impl Refusal for CopyError {
    fn errno(&self, patience: Patience) -> Option<Errno> {
        match self {
            Self::Unasked(why) => why.errno(patience),
            Self::OutOfRange(why) => why.errno(patience),
            Self::NotWritable(_) => Some(Errno::ACCESS),
            Self::Unknown { .. } => Some(Errno::NOENT),
            Self::Own { .. } => Some(Errno::INVAL),
            Self::Revoked(_) => Some(Errno::KEYREVOKED),
            Self::Dead(_) => Some(Errno::OWNERDEAD),
            Self::TimedOut(..) => Some(Errno::TIMEDOUT),
            Self::NotKnown(_) => Some(Errno::COMM),
            Self::Unusable { .. } => Some(Errno::PROTO),
            Self::Refused { errno, .. } => said(*errno),
        }
    }
}

/// The errno that the daemon has named.
fn said(errno: i32) -> Option<Errno> {
    (errno > 0).then(|| Errno::from_raw_os_error(errno))
}

/// The failure that the program gets for a call's error.
pub fn of<E: Refusal>(error: &Failed<E>, patience: Patience) -> Failure {
    match error {
        Failed::Call(why) => failure::of(why.errno(patience), why),
        Failed::Daemon(why) => failure::of(of_daemon(why), why),
        // The handle is being closed by another thread.
        Failed::Interrupted => failure(Errno::BADF, "the endpoint was closed by another thread"),
        Failed::Moving => failure::of(Some(Errno::INPROGRESS), error),
        Failed::Ended { .. } => failure::of(Some(Errno::SHUTDOWN), error),
        Failed::Forked => failure::of(Some(Errno::STALE), error),
        Failed::System { .. } => failure::of(None, error),
    }
}

/// The errno of the daemon's refusal, or of its silence.
fn of_daemon(error: &ControlError) -> Option<Errno> {
    match error {
        ControlError::Refused { errno, .. } => said(*errno),
        ControlError::Connect { .. } => Some(Errno::CONNREFUSED),
        ControlError::Deadline => Some(Errno::TIMEDOUT),
        error if error.is_gone() => Some(Errno::CONNREFUSED),
        _ => None,
    }
}
