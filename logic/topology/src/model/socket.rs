//! Sockets of domains: where the server of a socket service listens, and where those who mount it
//! see it.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::name::Name;

/// Where in a domain a stream socket is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SocketPlace {
    /// A TCP address of the domain's loopback interface; its port is not 0.
    Tcp(SocketAddr),
    /// A Unix socket: an absolute path in the domain, without `.` and `..`, at most 107 bytes.
    Unix(PathBuf),
}

impl fmt::Display for SocketPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket service as one domain sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketMount {
    /// The service.
    pub service: Name,
    /// Where the domain's programs connect to; unique in the domain.
    pub at: SocketPlace,
    /// The name, in lower case, for whose address the domain's directories give that of `at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl SocketMount {
    /// The address that stands for a name in each domain that gives it to a socket: one of
    /// 127.64.0.0/10, of which `lo` has all.
    #[must_use]
    pub fn address_of(name: &str) -> Ipv4Addr {
        // FNV-1a: the same in every version, so that an address that somebody has remembered stays
        // right.
        let hash = name
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Ipv4Addr::from_bits(NAMED_NETWORK | (hash & NAMED_MASK))
    }
}

/// The first address of names' sockets, and the bits that tell them apart.
const NAMED_NETWORK: u32 = 0x7f40_0000;
/// See [`NAMED_NETWORK`].
const NAMED_MASK: u32 = 0x003f_ffff;

impl fmt::Display for SocketMount {
    /// The place as the file has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, &self.at) {
            (Some(name), SocketPlace::Tcp(address)) => write!(f, "tcp:{name}:{}", address.port()),
            (_, at) => at.fmt(f),
        }
    }
}

/// An address of the node at which others reach a server of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The node's; its port is not 0. No two of a file can't both be had.
    pub at: SocketAddr,
    /// The server's port at 127.0.0.1 in the domain.
    pub port: u16,
    /// Connections that may be open at a time.
    pub max_connections: u32,
    /// New connections in a second; `None`: as many as come.
    pub connections_per_second: Option<u32>,
}

impl Published {
    /// Whether the two addresses can't be listened at at once: one is the other, or all of its
    /// family. The kernel also has `[::]` take the port of version 4 (ipv6(7)).
    #[must_use]
    pub fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
        let all = |address: SocketAddr| address.ip().is_unspecified();
        let same_family = a.is_ipv4() == b.is_ipv4();
        let both = |address: SocketAddr| all(address) && address.is_ipv6();
        a.port() == b.port() && (a.ip() == b.ip() || same_family && (all(a) || all(b)) || both(a) || both(b))
    }
}

/// The settings of a socket service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketSettings {
    /// Where the server listens in its domain.
    pub to: SocketPlace,
    /// Whether each connection begins with a header of the PROXY protocol, version 2, that says
    /// which domain has connected.
    pub proxy: bool,
    /// Connections of all domains that may be open at a time.
    pub max_connections: u32,
    /// Those of them that one domain may have; never more than [`SocketSettings::max_connections`].
    pub connections_per_domain: u32,
    /// New connections of one domain in a second; `None`: as many as come.
    pub connections_per_second: Option<u32>,
}
