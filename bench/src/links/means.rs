//! By what the messages of `tombolo bench link` go.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;

/// The way, and what it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Means {
    /// The way.
    pub way: Way,
    /// Pairs that share it.
    pub pairs: u32,
    /// Address of the follower.
    pub address: IpAddr,
    /// Where this worker's certificate is.
    pub identity: PathBuf,
    /// The node at the other side.
    pub peer: String,
    /// The program whose role a proxy is.
    pub program: PathBuf,
}

/// A way of messages from node to node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// A link of ours.
    Link {
        /// Name of the transport.
        transport: String,
        /// Name of the compression.
        compression: String,
        /// Whether who waits spins before it sleeps.
        spin: bool,
    },
    /// A socket.
    Tcp,
    /// A socket whose ends never sleep.
    TcpSpinning,
    /// A socket with TLS 1.3.
    Tls,
    /// gRPC by tonic.
    Grpc {
        /// Whether over TLS 1.3.
        tls: bool,
    },
    /// zenoh: two peers over TCP.
    Zenoh,
    /// Copies between a buffer of the follower's and the leader's memory, by both nodes' proxies.
    Copies {
        /// Name of the transport between the proxies.
        transport: String,
        /// The direction of the bytes.
        direction: Direction,
    },
    /// Questions and answers over a socket, of which one carries as many bytes as a copy.
    Asked {
        /// Whether with TLS 1.3.
        tls: bool,
        /// The direction of the bytes.
        direction: Direction,
    },
}

/// The direction of a copy's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// To the leader.
    In,
    /// To the follower.
    Out,
}
