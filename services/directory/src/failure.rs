//! Why a request has no answer, and the errno that says so. The table stands in
//! `docs/spec/directory.md`.

use rustix::io::Errno;
use thiserror::Error;

/// Why a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum Failure {
    /// NXDOMAIN: the name does not exist.
    #[error("the name does not exist")]
    NoSuchName,
    /// NOERROR without a record of the type.
    #[error("the name has no record of this type")]
    NoData,
    /// SERVFAIL, or an rcode that no other entry speaks of.
    #[error("the upstream could not answer")]
    ServerFailure,
    /// No upstream answered in time.
    #[error("no upstream answered in time")]
    TimedOut,
    /// REFUSED, or nobody listens at the upstream's port.
    #[error("the upstream refused")]
    Refused,
    /// The kernel has no way to any upstream.
    #[error("no upstream can be reached")]
    Unreachable,
    /// The query is no query: text, DNS message, `ioctl` data, control line.
    #[error("the query is malformed")]
    Malformed,
    /// A name over 253 bytes or a label over 63.
    #[error("the name is too long")]
    NameTooLong,
    /// The upstream's answer can't be understood, or contradicts itself.
    #[error("the upstream's answer makes no sense")]
    BadAnswer,
    /// An answer too large for one response.
    #[error("the answer is too large")]
    TooLarge,
    /// A type or operation that is never asked: ANY, AXFR, IXFR, OPT, updates.
    #[error("this kind of query is not asked")]
    Unsupported,
    /// The domain lacks the verb.
    #[error("the domain lacks the verb for this")]
    NotAllowed,
    /// A session that is not there.
    #[error("there is no such session")]
    NoSuchSession,
    /// No such `ioctl`.
    #[error("there is no such ioctl")]
    NoSuchControl,
    /// The domain has as many sessions open as it may.
    #[error("the domain has too many sessions open")]
    TooManySessions,
    /// The domain has as many requests outstanding as it may.
    #[error("the domain has too many requests outstanding")]
    TooManyOutstanding,
    /// The server has no descriptor or memory for another look-up.
    #[error("the server is out of resources")]
    OutOfResources,
}

/// How many failures there are: the length of per-failure counters.
pub const FAILURES: usize = Failure::ALL.len();

impl Failure {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 17] = [
        Self::NoSuchName,
        Self::NoData,
        Self::ServerFailure,
        Self::TimedOut,
        Self::Refused,
        Self::Unreachable,
        Self::Malformed,
        Self::NameTooLong,
        Self::BadAnswer,
        Self::TooLarge,
        Self::Unsupported,
        Self::NotAllowed,
        Self::NoSuchSession,
        Self::NoSuchControl,
        Self::TooManySessions,
        Self::TooManyOutstanding,
        Self::OutOfResources,
    ];

    /// The errno that a program sees.
    pub const fn errno(self) -> Errno {
        match self {
            Self::NoSuchName => Errno::NOENT,
            Self::NoData => Errno::NODATA,
            Self::ServerFailure => Errno::REMOTEIO,
            Self::TimedOut => Errno::TIMEDOUT,
            Self::Refused => Errno::CONNREFUSED,
            Self::Unreachable => Errno::HOSTUNREACH,
            Self::Malformed => Errno::INVAL,
            Self::NameTooLong => Errno::NAMETOOLONG,
            Self::BadAnswer => Errno::BADMSG,
            Self::TooLarge => Errno::MSGSIZE,
            Self::Unsupported => Errno::OPNOTSUPP,
            Self::NotAllowed => Errno::ACCESS,
            Self::NoSuchSession => Errno::SRCH,
            Self::NoSuchControl => Errno::NOTTY,
            Self::TooManySessions => Errno::MFILE,
            Self::TooManyOutstanding => Errno::DQUOT,
            Self::OutOfResources => Errno::NOBUFS,
        }
    }

    /// The errno's name, as counters and the documentation spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSuchName => "ENOENT",
            Self::NoData => "ENODATA",
            Self::ServerFailure => "EREMOTEIO",
            Self::TimedOut => "ETIMEDOUT",
            Self::Refused => "ECONNREFUSED",
            Self::Unreachable => "EHOSTUNREACH",
            Self::Malformed => "EINVAL",
            Self::NameTooLong => "ENAMETOOLONG",
            Self::BadAnswer => "EBADMSG",
            Self::TooLarge => "EMSGSIZE",
            Self::Unsupported => "EOPNOTSUPP",
            Self::NotAllowed => "EACCES",
            Self::NoSuchSession => "ESRCH",
            Self::NoSuchControl => "ENOTTY",
            Self::TooManySessions => "EMFILE",
            Self::TooManyOutstanding => "EDQUOT",
            Self::OutOfResources => "ENOBUFS",
        }
    }

    /// The weight of a failed attempt among several: an answer beats silence, silence beats no way
    /// there.
    pub(crate) const fn weight(self) -> u8 {
        match self {
            Self::OutOfResources => 0,
            Self::Unreachable => 1,
            Self::TimedOut => 2,
            Self::Refused => 3,
            Self::BadAnswer => 4,
            Self::TooLarge => 5,
            _ => 6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_an_errno_and_a_place_of_its_own() {
        for (place, failure) in Failure::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, place);
            let twins = Failure::ALL.into_iter().filter(|other| other.errno() == failure.errno()).count();
            assert_eq!(twins, 1, "{failure:?} shares its errno");
        }
    }

    #[test]
    fn the_specification_lists_each_errno() {
        let page = include_str!("../../../docs/spec/directory.md");
        for failure in Failure::ALL {
            assert!(page.contains(&format!("| `{}` |", failure.name())), "{} is not listed", failure.name());
        }
    }
}
