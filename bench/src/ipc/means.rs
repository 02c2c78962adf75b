//! By what the messages of `tombolo bench ipc` go.

use serde::{Deserialize, Serialize};

/// The way, and what can be chosen about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Means {
    /// The way.
    pub way: Way,
    /// The tuning.
    pub tuning: Tuning,
}

/// A way of messages between two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Endpoints: a request, and the reply to it. One that never spins sleeps at once.
    Requests {
        /// Whether an endpoint spins before it sleeps.
        spin: bool,
    },
    /// Endpoints: buffered messages.
    Messages {
        /// Bytes of messages that are held back; 0: none.
        batch_bytes: usize,
    },
    /// Endpoints: a rendezvous for each message.
    Sends,
    /// Endpoints: the sender copies into a buffer that the receiver has granted.
    Places {
        /// The hints which part is full or free.
        hints: Hints,
    },
    /// Endpoints: the sender writes into a buffer that it has granted, the receiver copies out of
    /// it; messages say which part is full or free.
    Slots,
    /// Two pipes.
    Pipe,
    /// Two pipes, written a page at a time: what a program does that gathers its messages by
    /// itself.
    Pages,
    /// Two named pipes.
    Fifo,
    /// Two POSIX message queues.
    Queue,
    /// A pair of Unix stream sockets.
    Unix,
    /// A pair of Unix sockets that keep messages apart (`SOCK_SEQPACKET`).
    Seqpacket,
    /// TCP over loopback.
    Tcp,
    /// The same between ends that never sleep.
    TcpSpinning,
    /// Unix stream sockets between ends that never sleep.
    UnixSpinning,
    /// gRPC by tonic: one call that streams both ways, over a Unix socket.
    Grpc,
    /// zenoh: two peers, each publishes what the other subscribes to.
    Zenoh,
}

/// The means by which a part of a granted buffer is said to be full, or free again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hints {
    /// A bit of a notice for each part.
    Notices,
    /// A message without payload for each part, whose tag is its number.
    Messages,
}

/// The choices within a way. A run tries several, and keeps the quickest of each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// Bytes of what holds messages on their way, in each direction: a pipe, a socket's buffers, a
    /// ring; 0: as it is by default.
    pub buffer_bytes: usize,
    /// Bytes that go at once: a long message is cut into such pieces where a way does not take it
    /// whole.
    pub piece_bytes: usize,
    /// Whether each end copies a half of every message, where the sender copies into a buffer of
    /// the receiver's.
    pub halves: bool,
    /// Whether a stream socket may hold small messages back (without `TCP_NODELAY`).
    pub gathers: bool,
}

impl Tuning {
    /// With everything as it is by default, for messages of so many bytes.
    #[must_use]
    pub const fn plain(message_bytes: usize) -> Self {
        Self { buffer_bytes: 0, piece_bytes: message_bytes, halves: false, gathers: false }
    }
}
