//! The ways that are compared, and the servers that are asked by each.

/// A way from a client to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// TCP over `lo` of one namespace.
    Loopback,
    /// TCP over veths and a bridge.
    Veth,
    /// A Unix socket.
    Unix,
    /// Two socats, from one namespace to the other through a Unix socket.
    Socat,
    /// pasta, of passt, which splices between two namespaces.
    Pasta,
    /// slirp4netns, a TCP in user mode between two namespaces.
    Slirp,
    /// A socket service: the listeners of two containers.
    Listener,
}

/// All of them.
pub const ARMS: [Arm; 7] =
    [Arm::Loopback, Arm::Veth, Arm::Unix, Arm::Socat, Arm::Pasta, Arm::Slirp, Arm::Listener];

impl Arm {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth => "veth",
            Self::Unix => "unix",
            Self::Socat => "socat",
            Self::Pasta => "pasta",
            Self::Slirp => "slirp4netns",
            Self::Listener => "tombolo",
        }
    }
}

/// A server, which listens in each place that an arm leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// The bench's own.
    Worker,
    /// redis.
    Redis,
    /// nginx.
    Nginx,
}

/// All of them.
pub const SERVERS: [Server; 3] = [Server::Worker, Server::Redis, Server::Nginx];

impl Server {
    /// Its name: of its domain, of its service and of its Unix socket.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Redis => "redis",
            Self::Nginx => "nginx",
        }
    }

    /// Where it listens, and where a socket service is mounted.
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Self::Worker => 7000,
            Self::Redis => 6379,
            Self::Nginx => 8081,
        }
    }

    /// Where forwarders listen for it.
    #[must_use]
    pub fn forwarded_port(self) -> u16 {
        match self {
            Self::Worker => 7001,
            Self::Redis => 7002,
            Self::Nginx => 7003,
        }
    }
}
