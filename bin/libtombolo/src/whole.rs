//! Objects behind handles that have no two directions: one thread at a time is in a call for one.

use crate::buffer::Owned;
use crate::member::{Member, Standby};
use crate::offering::{self, Offering};
use endpoint::Interrupter;
use std::fmt;
use sys::fork::Origin;

/// The kind of object that a handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Channel,
    Offer,
    Endpoint,
    Backup,
    Buffer,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Channel => "a channel",
            Self::Offer => "an offer",
            Self::Endpoint => "an endpoint",
            Self::Backup => "a backup of an endpoint",
            Self::Buffer => "a buffer of an endpoint",
        })
    }
}

/// One that has no directions.
#[derive(Debug)]
pub enum Whole {
    Offer(Box<Offering>),
    Endpoint(Box<Member>),
    Backup(Box<Standby>),
    Buffer(Box<Owned>),
}

/// Ends the waits of one, from another thread.
#[derive(Debug)]
pub enum Ender {
    Offer(offering::Ender),
    /// In a fork's child it does nothing: what it signals is the parent's, too.
    Endpoint(Interrupter, Origin),
    /// The same.
    Backup(Interrupter, Origin),
    /// Nobody waits for it.
    Buffer,
}

impl Whole {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Offer(_) => Kind::Offer,
            Self::Endpoint(_) => Kind::Endpoint,
            Self::Backup(_) => Kind::Backup,
            Self::Buffer(_) => Kind::Buffer,
        }
    }

    /// Returns a handle that wakes its waiters when it is closed.
    pub fn ender(&self) -> Ender {
        match self {
            Self::Offer(offering) => Ender::Offer(offering.ender()),
            Self::Endpoint(member) => Ender::Endpoint(member.interrupter(), member.origin()),
            Self::Backup(standby) => Ender::Backup(standby.interrupter(), standby.origin()),
            Self::Buffer(_) => Ender::Buffer,
        }
    }
}

impl Ender {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Offer(_) => Kind::Offer,
            Self::Endpoint(..) => Kind::Endpoint,
            Self::Backup(..) => Kind::Backup,
            Self::Buffer => Kind::Buffer,
        }
    }

    pub fn end(&self) {
        match self {
            Self::Offer(ender) => ender.end(),
            Self::Endpoint(interrupter, origin) | Self::Backup(interrupter, origin) if origin.is_here() => {
                interrupter.interrupt();
            }
            Self::Endpoint(..) | Self::Backup(..) | Self::Buffer => {}
        }
    }
}

/// One kind of those.
pub trait Part: Sized {
    const KIND: Kind;
    /// The words for another thread's use that keeps a call out.
    const IN_USE: &str;
    /// It, if it is of this kind.
    fn of(whole: &mut Whole) -> Option<&mut Self>;
}

impl Part for Offering {
    const KIND: Kind = Kind::Offer;
    const IN_USE: &str = "accepting openers of this offer";

    fn of(whole: &mut Whole) -> Option<&mut Self> {
        match whole {
            Whole::Offer(offering) => Some(offering),
            _ => None,
        }
    }
}

impl Part for Member {
    const KIND: Kind = Kind::Endpoint;
    const IN_USE: &str = "in a call of this endpoint";

    fn of(whole: &mut Whole) -> Option<&mut Self> {
        match whole {
            Whole::Endpoint(member) => Some(member),
            _ => None,
        }
    }
}

impl Part for Standby {
    const KIND: Kind = Kind::Backup;
    const IN_USE: &str = "in a call of this backup";

    fn of(whole: &mut Whole) -> Option<&mut Self> {
        match whole {
            Whole::Backup(standby) => Some(standby),
            _ => None,
        }
    }
}

impl Part for Owned {
    const KIND: Kind = Kind::Buffer;
    const IN_USE: &str = "in a call for this buffer";

    fn of(whole: &mut Whole) -> Option<&mut Self> {
        match whole {
            Whole::Buffer(owned) => Some(owned),
            _ => None,
        }
    }
}
