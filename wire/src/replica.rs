//! The registry's records of a volume's replicas, and the messages between a replica's process and
//! its node's daemon. Described in `docs/spec/volume.md`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Version of this page.
pub const VERSION: u32 = 1;
/// Prefix of the registry's keys for [`VolumeRecord`]s: `DC/NAME` follows.
pub const RECORDS: &str = "replicas/";
/// Prefix of the registry's keys, bound to a node's lease, of who may be the primary.
pub const CLAIMS: &str = "primary/";
/// The first argument of our binary that asks for a replica's process.
pub const ROLE: &str = "replica";
/// Names of replicas between nodes, as TLS agrees on them (ALPN).
pub const PROTOCOL: &[u8] = b"tombolo-volume/1";
/// Where a node's replicas listen for other nodes, or the next free port behind: each has one.
pub const PORT: u16 = 7440;
/// Ports that are tried.
pub const PORTS: u16 = 256;
/// Longest word with which a connection between replicas begins, in bytes.
pub const MAX_GREETING_BYTES: usize = 1024;

/// The registry's record of a volume's replicas, at `replicas/DC/NAME`. Nodes are named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Told apart from every other volume, an earlier one of this name among them.
    pub id: String,
    /// Bytes that its domain sees.
    pub bytes: u64,
    /// Grows with every claim.
    pub view: u64,
    /// The only node that may acknowledge writes, in this view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// The nodes whose replicas have every acknowledged write. Never empty.
    pub current: Vec<String>,
    /// The nodes that have a replica, in the order of their names.
    pub replicas: Vec<String>,
    /// Whether all current replicas are equal.
    pub settled: bool,
}

/// The word of a primary's process to that of another replica, when it has connected: a line of
/// JSON. The other one answers [`Greeted`], and requests of NBD follow if that is so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Greeting {
    /// The volume's, of its record.
    pub id: String,
    /// The view in which the caller is the primary.
    pub view: u64,
}

/// The answer to a [`Greeting`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Greeted {
    /// Why there is no session; none: there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The configuration of a replica's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configure {
    /// `DC/NAME`, for the log.
    pub name: String,
    /// The volume's, of its record.
    pub id: String,
    /// This node.
    pub node: String,
    /// The folder with this node's certificate and key.
    pub identity: String,
    /// Bytes of the volume.
    pub bytes: u64,
    /// All nodes with a replica, in the order of their names.
    pub replicas: Vec<String>,
    /// Bytes each second that are copied to a replica which is resynced.
    pub resync_bytes: u64,
    /// The user and the group that it becomes.
    pub user: u32,
    /// Where it listens for other nodes.
    pub at: SocketAddr,
}

/// An order of the daemon's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// First of all. With the listening socket for clients, that for other nodes, and the folder
    /// with the engine's socket.
    Configure(Configure),
    /// The node shows and believes something else; with the files of its identity.
    Trust {},
    /// Takes no writes of other nodes any more, and says when nothing is on its way to the disk.
    Prepare {},
    /// This node has claimed the volume.
    Serve {
        /// The record that the registry has since.
        record: VolumeRecord,
        /// The revision of that record.
        revision: u64,
        /// See [`Order::Hold`].
        until_ns: u64,
    },
    /// The claim came to nothing, or is over: other nodes may write here.
    StandBy {},
    /// This node certainly holds the claim so long (`CLOCK_BOOTTIME`, ns); 0: no longer.
    Hold {
        /// Until when.
        until_ns: u64,
    },
    /// The registry's record after a change was tried, or at any time.
    Registry {
        /// The record.
        record: VolumeRecord,
        /// Its revision.
        revision: u64,
    },
    /// The answer to [`Report::Ask`].
    Answer {
        /// The question.
        id: u64,
        /// The registry's record; none: it can't be asked, or has no such volume.
        record: Option<VolumeRecord>,
    },
    /// The answer to [`Report::Find`].
    Found {
        /// The node.
        node: String,
        /// Where its replica listens; none: it can't be asked, or has no replica that serves.
        at: Option<SocketAddr>,
        /// Why not.
        why: String,
    },
    /// Finishes what is under way, and leaves as the primary.
    Release {},
}

/// The role of a replica's process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Other nodes may write here.
    #[default]
    StandBy,
    /// Nobody may write here: this node is about to claim the volume.
    Prepared,
    /// It serves clients.
    Primary,
}

/// How another replica is, as the primary sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerState {
    /// `current`, `resyncing`, `behind` or `lost` (it was current, and is being struck off).
    pub state: String,
    /// Bytes that it may lack.
    pub behind_bytes: u64,
    /// Why it is not connected, where that is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// How a replica's process is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Its role.
    pub part: Part,
    /// The view in which it is the primary, or takes writes; 0: in none.
    pub view: u64,
    /// Whether the claim is certainly held.
    pub holds: bool,
    /// Clients that are connected.
    pub clients: usize,
    /// The other replicas, while this is the primary.
    pub peers: BTreeMap<String, PeerState>,
    /// Writes acknowledged in this view.
    pub acknowledged: u64,
}

/// A report of a replica's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Report {
    /// To each daemon that connects.
    Hello {
        /// See [`VERSION`].
        version: u32,
        /// Its process number.
        pid: u32,
        /// The configuration that it was given; none: nothing yet.
        configured: Option<Box<Configure>>,
        /// How it is.
        condition: Condition,
        /// The record that it knows, and its revision, where it is the primary.
        record: Option<(VolumeRecord, u64)>,
    },
    /// How it is now.
    Condition(Condition),
    /// Nothing is on its way to the disk, and nobody may write there: the answer to
    /// [`Order::Prepare`].
    Quiet {},
    /// The record is to be replaced, if it still has this revision.
    Change {
        /// The next one.
        record: VolumeRecord,
        /// The revision that is believed to be there.
        revision: u64,
    },
    /// Asks for the registry's record now, because somebody wants to write.
    Ask {
        /// Comes back.
        id: u64,
    },
    /// Where does this node's replica listen, in this view?
    Find {
        /// The node.
        node: String,
        /// The view.
        view: u64,
    },
    /// The view is over; clients are cut off.
    Ended {
        /// It.
        view: u64,
    },
}
