//! Services of kind `socket`: connections over one channel between two relays, and what a relay is
//! told by its daemon. Described in `docs/spec/socket.md`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of this page.
pub const VERSION: u32 = 1;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;
/// Most bytes of a stream behind one header: four frames fill a ring's half, so that one end copies
/// in while the other copies out.
pub const DATA_BYTES_MAX: usize = 32 * 1024;
/// Bytes of a connection that may be on their way in one direction, or wait at the receiver: the
/// most that a client that never reads makes its own relay hold.
pub const WINDOW_BYTES: u32 = 128 * 1024;
/// Bytes of each ring of the channel between two relays.
pub const RING_BYTES: u32 = 256 * 1024;
/// Channels that one domain may have to a service: its relay's, and the one of the relay before,
/// whose end was not noticed yet.
pub const CHANNELS_PER_DOMAIN: u32 = 2;
/// Channels of one service: two for each domain of the largest topology.
pub const CHANNELS_MAX: u32 = 512;
/// Longest packet between a daemon and a relay, in bytes: counts of all domains and services of the
/// largest topology.
pub const PACKET_BYTES_MAX: usize = 128 * 1024;

/// Offset of the kind, 1 byte.
pub const HEADER_KIND: usize = 0;
/// Offset of the amount, 4 bytes.
pub const HEADER_AMOUNT: usize = 4;
/// Offset of the connection's number, 8 bytes.
pub const HEADER_CONNECTION: usize = 8;

/// The first frame of both ends: the version that it speaks.
pub const KIND_HELLO: u8 = 1;
/// A connection was accepted where the service is mounted.
pub const KIND_OPEN: u8 = 2;
/// Bytes of the stream.
pub const KIND_DATA: u8 = 3;
/// More bytes may be sent.
pub const KIND_CREDIT: u8 = 4;
/// No more bytes come from this side.
pub const KIND_FINISH: u8 = 5;
/// The connection is over, and bytes on their way are lost.
pub const KIND_RESET: u8 = 6;

/// A frame: its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// See [`KIND_HELLO`].
    Hello {
        /// The version that the sender speaks.
        version: u32,
    },
    /// See [`KIND_OPEN`].
    Open {
        /// Its number: 1, 2, 3 and so on.
        connection: u64,
        /// The client's port; 0 where it has none.
        port: u16,
    },
    /// See [`KIND_DATA`]. The bytes stand behind the header.
    Data {
        /// Of which connection.
        connection: u64,
    },
    /// See [`KIND_CREDIT`].
    Credit {
        /// Of which connection.
        connection: u64,
        /// So many more, at least 1.
        bytes: u32,
    },
    /// See [`KIND_FINISH`].
    Finish {
        /// Of which connection.
        connection: u64,
    },
    /// See [`KIND_RESET`].
    Reset {
        /// Of which connection.
        connection: u64,
        /// Why, as an errno of Linux; for counting, nothing depends on it.
        errno: u32,
    },
}

/// A record that is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It is shorter than a header, or has bytes behind one that has none.
    #[error("a record of {length} bytes is no frame of that kind")]
    Length {
        /// Bytes of the record.
        length: usize,
    },
    /// Nobody knows that kind.
    #[error("there is no frame of kind {kind}")]
    Kind {
        /// The kind.
        kind: u8,
    },
    /// Something is in the header that has no meaning for its kind.
    #[error("a frame of kind {kind} says something that has no meaning")]
    Meaning {
        /// The kind.
        kind: u8,
    },
}

impl Frame {
    /// The header.
    #[must_use]
    pub fn header(self) -> [u8; HEADER_BYTES] {
        let (kind, amount, connection) = match self {
            Self::Hello { version } => (KIND_HELLO, version, 0),
            Self::Open { connection, port } => (KIND_OPEN, u32::from(port), connection),
            Self::Data { connection } => (KIND_DATA, 0, connection),
            Self::Credit { connection, bytes } => (KIND_CREDIT, bytes, connection),
            Self::Finish { connection } => (KIND_FINISH, 0, connection),
            Self::Reset { connection, errno } => (KIND_RESET, errno, connection),
        };
        let mut header = [0; HEADER_BYTES];
        let (front, number) = header.split_at_mut(HEADER_CONNECTION);
        let (first, amount_at) = front.split_at_mut(HEADER_AMOUNT);
        first.fill(0);
        if let Some(first) = first.first_mut() {
            *first = kind;
        }
        amount_at.copy_from_slice(&amount.to_le_bytes());
        number.copy_from_slice(&connection.to_le_bytes());
        header
    }

    /// Reads the header of a record of `length` bytes.
    ///
    /// # Errors
    /// [`FrameError`]: the peer is not to be listened to any more.
    pub fn read(header: [u8; HEADER_BYTES], length: usize) -> Result<Self, FrameError> {
        let [kind, zeros @ .., a0, a1, a2, a3, n0, n1, n2, n3, n4, n5, n6, n7] = header;
        let amount = u32::from_le_bytes([a0, a1, a2, a3]);
        let connection = u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
        let frame = match kind {
            KIND_HELLO => Self::Hello { version: amount },
            KIND_OPEN => {
                let port = u16::try_from(amount).map_err(|_| FrameError::Meaning { kind })?;
                Self::Open { connection, port }
            }
            KIND_DATA => Self::Data { connection },
            KIND_CREDIT => Self::Credit { connection, bytes: amount },
            KIND_FINISH => Self::Finish { connection },
            KIND_RESET => Self::Reset { connection, errno: amount },
            _ => return Err(FrameError::Kind { kind }),
        };
        let silent = matches!(frame, Self::Data { .. } | Self::Finish { .. });
        let empty_credit = matches!(frame, Self::Credit { bytes: 0, .. });
        let nobody = (kind == KIND_HELLO) != (connection == 0);
        if zeros != [0; HEADER_AMOUNT - 1] || (silent && amount != 0) || empty_credit || nobody {
            return Err(FrameError::Meaning { kind });
        }
        let body = length.checked_sub(HEADER_BYTES).ok_or(FrameError::Length { length })?;
        let allowed = if kind == KIND_DATA { 1..=DATA_BYTES_MAX } else { 0..=0 };
        if allowed.contains(&body) { Ok(frame) } else { Err(FrameError::Length { length }) }
    }
}

/// Where a relay connects to, or listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Place {
    /// A TCP address of the domain's loopback interface.
    Tcp(std::net::SocketAddr),
    /// A Unix stream socket: an absolute path in the domain.
    Unix(String),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

/// How much there may be of a socket service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Connections of all domains that may be open at a time.
    pub max_connections: u32,
    /// Those of them that one domain may have.
    pub connections_per_domain: u32,
    /// New connections of one domain in a second; `None`: as many as come.
    pub connections_per_second: Option<u32>,
}

/// A socket service that a domain mounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mounted {
    /// The service.
    pub service: String,
    /// Where its programs connect to.
    pub at: Place,
    /// How much there may be of it.
    pub limits: Limits,
}

/// A socket service whose server runs in a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Served {
    /// The service.
    pub service: String,
    /// Where the server listens.
    pub to: Place,
    /// Whether each connection begins with a header of the PROXY protocol, version 2.
    pub proxy: bool,
    /// How much there may be of it.
    pub limits: Limits,
}

/// An address of the node at which others reach a server of the domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The node's.
    pub at: std::net::SocketAddr,
    /// Where the server listens in the domain.
    pub to: Place,
    /// How much there may be of it.
    pub limits: Limits,
}

/// The order of a domain's relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// The distributed container.
    pub dc: String,
    /// The domain.
    pub domain: String,
    /// Sorted by service.
    pub mounts: Vec<Mounted>,
    /// Sorted by service.
    pub serves: Vec<Served>,
    /// Sorted by address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub publishes: Vec<Published>,
}

/// A daemon's packet to a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ask {
    /// The first packet, with descriptors: a pidfd of the domain's first process, the folder of its
    /// control socket, and a listening socket of the node for each of [`Order::publishes`].
    Start(Order),
    /// The first packet to a relay that is in its domain already, as in a guest: with one
    /// descriptor, the folder of its control socket. The order publishes nothing.
    StartInside(Order),
    /// Answered by the order that was taken: another daemon looks whether it still holds.
    Order,
    /// Answered by counts.
    State,
    /// The relay ends, and its connections are reset. Not answered.
    End,
}

/// A relay's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// It listens everywhere, and has given up its privileges.
    Started,
    /// It can't do what it was told; it ends.
    Failed(String),
    /// See [`Ask::Order`].
    Order(Order),
    /// See [`Ask::State`].
    State(Value),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(frame: Frame) -> usize {
        HEADER_BYTES + usize::from(matches!(frame, Frame::Data { .. }))
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        let connection = 1 << 40;
        for frame in [
            Frame::Hello { version: VERSION },
            Frame::Open { connection, port: 65_535 },
            Frame::Data { connection },
            Frame::Credit { connection, bytes: WINDOW_BYTES },
            Frame::Finish { connection },
            Frame::Reset { connection, errno: 104 },
        ] {
            assert_eq!(Frame::read(frame.header(), length(frame)), Ok(frame));
        }
    }

    #[test]
    fn what_is_no_frame_is_refused_by_name() {
        let header = |kind: u8, amount: u32, connection: u64| {
            let mut header = Frame::Credit { connection, bytes: amount }.header();
            header[HEADER_KIND] = kind;
            header
        };
        let refused = |header, length| Frame::read(header, length).unwrap_err();
        assert_eq!(refused(header(9, 0, 1), 16), FrameError::Kind { kind: 9 });
        for (kind, amount, connection) in [
            (KIND_HELLO, 1, 1),
            (KIND_OPEN, 65_536, 1),
            (KIND_OPEN, 80, 0),
            (KIND_DATA, 1, 1),
            (KIND_CREDIT, 0, 1),
            (KIND_FINISH, 1, 1),
        ] {
            assert_eq!(refused(header(kind, amount, connection), 16), FrameError::Meaning { kind });
        }
        let mut reserved = header(KIND_FINISH, 0, 1);
        reserved[1] = 1;
        assert_eq!(refused(reserved, 16), FrameError::Meaning { kind: KIND_FINISH });
        assert_eq!(refused(header(KIND_DATA, 0, 1), 16), FrameError::Length { length: 16 });
        let long = HEADER_BYTES + DATA_BYTES_MAX + 1;
        assert_eq!(refused(header(KIND_DATA, 0, 1), long), FrameError::Length { length: long });
        assert_eq!(refused(header(KIND_FINISH, 0, 1), 17), FrameError::Length { length: 17 });
        assert_eq!(refused(header(KIND_FINISH, 0, 1), 15), FrameError::Length { length: 15 });
    }
}
