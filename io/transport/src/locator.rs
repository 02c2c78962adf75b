//! Where a proxy can be reached, and by what.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use sys::tipc;
use thiserror::Error;

/// A kind of transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// TCP with TLS 1.3.
    Tcp,
    /// QUIC, one stream of it.
    Quic,
    /// Frames of Ethernet, after an introduction over TCP.
    Ethernet,
    /// TIPC with TLS 1.3.
    Tipc,
}

impl Kind {
    /// All kinds; the first is the default.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Quic, Self::Ethernet, Self::Tipc];

    /// Its name in a locator.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Quic => "quic",
            Self::Ethernet => "ethernet",
            Self::Tipc => "tipc",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An address, of whatever a transport stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// Of IP, with a port.
    Ip(SocketAddr),
    /// Of TIPC: a service, or a socket.
    Tipc(tipc::Address),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Tipc(address) => address.fmt(f),
        }
    }
}

/// The party that may take up so many places and no more: a machine, as far as its address says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Machine {
    Ip(IpAddr),
    /// A node of TIPC, by its number; a service may be anywhere.
    Tipc(Option<u32>),
}

impl Address {
    /// Of IP, for who needs that.
    ///
    /// # Errors
    /// `InvalidInput` for another.
    pub fn ip(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Ip(address) => Ok(*address),
            Self::Tipc(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "no address of IP")),
        }
    }

    /// Of TIPC, for who needs that.
    ///
    /// # Errors
    /// `InvalidInput` for another.
    pub fn tipc(&self) -> io::Result<tipc::Address> {
        match self {
            Self::Tipc(address) => Ok(*address),
            Self::Ip(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "no address of TIPC")),
        }
    }

    pub(crate) fn machine(&self) -> Machine {
        match self {
            Self::Ip(address) => Machine::Ip(address.ip()),
            Self::Tipc(tipc::Address::Socket { node, .. }) => Machine::Tipc(Some(*node)),
            Self::Tipc(tipc::Address::Service { .. }) => Machine::Tipc(None),
        }
    }
}

/// `tcp:ADDRESS:PORT`, `quic:ADDRESS:PORT` or `ethernet:ADDRESS:PORT`; an address of IPv6 stands in
/// brackets. That of raw Ethernet is where the two sides introduce themselves.
/// `tipc:SERVICE:INSTANCE`, or `tipc:@NODE:PORT` for one socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Locator {
    /// By what.
    pub kind: Kind,
    /// Where.
    pub address: Address,
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.address)
    }
}

/// A text that is no locator.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadLocator {
    /// No such kind of transport.
    #[error("`{0}` does not begin with a transport that there is: tcp:, quic:, ethernet: or tipc:")]
    Kind(String),
    /// Not an address with a port.
    #[error("`{0}` does not end with an address and a port: 10.0.0.1:7421 or [fd00::1]:7421")]
    Address(String),
    /// Not an address of TIPC.
    #[error(
        "`{0}` does not end with the number of a service, from {least} on, and of an instance (4711:1), or with a node and the number of a socket \
         (@1001002:1234)",
        least = tipc::RESERVED_SERVICES
    )]
    Tipc(String),
}

/// Reads the words behind `tipc:`; the kernel's own services are none of ours.
fn tipc_address(text: &str) -> Option<tipc::Address> {
    let (first, last) = text.split_once(':')?;
    let last = last.parse().ok()?;
    let Some(node) = first.strip_prefix('@') else {
        let service = first.parse().ok().filter(|service| *service >= tipc::RESERVED_SERVICES)?;
        return Some(tipc::Address::Service { service, instance: last });
    };
    let node = u32::from_str_radix(node, 16).ok()?;
    Some(tipc::Address::Socket { node, port: last })
}

impl FromStr for Locator {
    type Err = BadLocator;

    fn from_str(text: &str) -> Result<Self, BadLocator> {
        let of = |kind: Kind| Some((kind, text.strip_prefix(kind.name())?.strip_prefix(':')?));
        let (kind, address) =
            Kind::ALL.into_iter().find_map(of).ok_or_else(|| BadLocator::Kind(text.into()))?;
        let address = match kind {
            Kind::Tipc => {
                tipc_address(address).map(Address::Tipc).ok_or_else(|| BadLocator::Tipc(text.into()))?
            }
            Kind::Tcp | Kind::Quic | Kind::Ethernet => {
                Address::Ip(address.parse().map_err(|_| BadLocator::Address(text.into()))?)
            }
        };
        Ok(Self { kind, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in [
            "tcp:10.0.0.1:7421",
            "quic:[fd00::1]:7421",
            "ethernet:10.0.0.1:7421",
            "tcp:127.0.0.1:0",
            "tipc:4711:0",
            "tipc:@1001002:4294967295",
        ] {
            assert_eq!(text.parse::<Locator>().map(|locator| locator.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, expected) in [
            ("sctp:10.0.0.1:7421", BadLocator::Kind("sctp:10.0.0.1:7421".into())),
            ("tcp10.0.0.1:7421", BadLocator::Kind("tcp10.0.0.1:7421".into())),
            ("tcp:node-b:7421", BadLocator::Address("tcp:node-b:7421".into())),
            ("quic:10.0.0.1", BadLocator::Address("quic:10.0.0.1".into())),
            ("tipc:10.0.0.1:7421", BadLocator::Tipc("tipc:10.0.0.1:7421".into())),
            ("tipc:63:1", BadLocator::Tipc("tipc:63:1".into())),
            ("tipc:@node:1", BadLocator::Tipc("tipc:@node:1".into())),
            ("tcp:4711:1", BadLocator::Address("tcp:4711:1".into())),
        ] {
            assert_eq!(text.parse::<Locator>(), Err(expected));
        }
    }
}
