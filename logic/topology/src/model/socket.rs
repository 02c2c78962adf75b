//! Sockets of domains: where the server of a socket service listens, and where those who mount it see it.

use std::fmt;
use std::net::SocketAddr;
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
}

/// The settings of a socket service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketSettings {
    /// Where the server listens in its domain.
    pub to: SocketPlace,
    /// Whether each connection begins with a header of the PROXY protocol, version 2, that says which domain has connected.
    pub proxy: bool,
    /// Connections of all domains that may be open at a time.
    pub max_connections: u32,
    /// Those of them that one domain may have; never more than [`SocketSettings::max_connections`].
    pub connections_per_domain: u32,
    /// New connections of one domain in a second; `None`: as many as come.
    pub connections_per_second: Option<u32>,
}
