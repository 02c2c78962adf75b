//! The messages between the bench and its two workers.

use crate::histogram::Latencies;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// First byte of every message but the last.
pub const MORE: u8 = 0;
/// First byte of the last message, and of its answer.
pub const LAST: u8 = 1;

/// The role of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sends first, looks at the clock, and measures.
    Lead,
    /// Listens, receives, answers.
    Follow,
}

/// By what messages go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Means {
    /// A channel of ours.
    Tombolo {
        /// Whether it may spin before it sleeps.
        spin: bool,
        /// Bytes of a ring.
        ring_bytes: u32,
        /// How many bytes of messages are held back until they show; 0: none.
        batch_bytes: usize,
    },
    /// Two pipes.
    Pipe,
    /// Two pipes, written a page at a time: a program that gathers its messages by itself.
    Pages,
    /// A pair of Unix stream sockets.
    Unix,
    /// TCP; the follower listens at this address.
    Tcp(String),
    /// UDP; the follower listens at this address. What is lost is not sent again.
    Udp(String),
    /// Echoes of ICMP: the kernel at this address answers, and the follower does nothing.
    Icmp(String),
    /// One cache line: the limit of any round trip. It carries nothing.
    Line,
    /// A ring without checks, doorbells and sleep: the limit of a ring.
    Ring {
        /// Bytes of a ring.
        ring_bytes: u32,
    },
    /// `memcpy` in one process: the limit of any copy.
    Copy {
        /// From and to how many bytes it copies, one message after the other and from the start
        /// again.
        walk_bytes: usize,
    },
    /// A channel of ours that the daemon makes; for set-ups only.
    Service {
        /// Control socket of the domain that offers, where the follower lives.
        offering: PathBuf,
        /// Control socket of the domain that opens, where the leader lives.
        opening: PathBuf,
        /// The service.
        name: String,
    },
    /// A channel of ours between two domains, of which one may be a virtual machine: the follower
    /// offers it, the leader opens it.
    Offered {
        /// Control socket of the worker's own domain.
        control: PathBuf,
        /// The service.
        name: String,
        /// How both ends wait.
        waiting: Waiting,
        /// Whether the channel of the task before is closed and another made, in place of going on
        /// with it.
        anew: bool,
    },
    /// TCP between two machines: the follower listens at this address and port, and whoever waits
    /// too long says so.
    Network {
        /// Address of the follower.
        address: String,
        /// Port, one that nobody has used.
        port: u16,
        /// Whether the ends ask again and again, and never sleep.
        polled: bool,
    },
    /// iceoryx2, publish and subscribe.
    Iceoryx {
        /// Whether the receiver sleeps on a listener, in place of polling.
        listener: bool,
        /// Where it keeps its files.
        root: PathBuf,
        /// The prefix of all of its names in `/dev/shm`.
        prefix: String,
        /// Bytes in flight.
        ring_bytes: u32,
    },
    /// A way of `tombolo bench ipc`.
    Ipc(crate::ipc::means::Means),
    /// A way of `tombolo bench link`.
    Link(crate::links::means::Means),
}

/// How an end of a channel waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Waiting {
    /// It sleeps at once.
    Sleep,
    /// As it does by default: it spins as long as that pays, then sleeps.
    Adaptive,
    /// It asks again and again, and never sleeps.
    Poll,
}

/// The work with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// A message there, a message back, one at a time.
    RoundTrips {
        /// Round trips between two looks at the clock, which takes some 20 ns.
        at_once: u32,
        /// How long the leader computes between two of them, in ns.
        gap_ns: u64,
        /// How long to work before the measured window, in ns.
        warm_up_ns: u64,
        /// The measured window, in ns.
        window_ns: u64,
    },
    /// Numbered requests and their answers by a schedule.
    Exchange(Exchange),
    /// Messages one after the other, for a time.
    Stream {
        /// As above.
        warm_up_ns: u64,
        /// As above.
        window_ns: u64,
    },
    /// The same from the follower to the leader, who still is the one to look at the clock.
    StreamBack {
        /// As above.
        warm_up_ns: u64,
        /// As above.
        window_ns: u64,
    },
    /// Bulk one after the other, for a time; each is looked at where it arrives.
    Copies {
        /// As above.
        warm_up_ns: u64,
        /// As above.
        window_ns: u64,
    },
    /// So many messages one after the other.
    Transfer {
        /// How many.
        messages: u64,
    },
    /// From the first contact to the first answer, again and again.
    SetUp {
        /// How often.
        times: u32,
    },
    /// Many channels, of which each has carried a message there and back, and on which both ends
    /// sleep.
    Idle {
        /// How many.
        channels: u32,
    },
    /// A message there and back; then both ends sleep until the leader is given a line, and a
    /// message ends it.
    Rest,
}

/// Requests that are answered, each with a number and a checksum, so that a peer that answers
/// something else is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// When requests are due.
    pub pace: Pace,
    /// How long the server computes for each, in ns.
    pub work_ns: u64,
    /// How long requests are due, in ns.
    pub window_ns: u64,
    /// The seed of schedule and payloads.
    pub seed: u64,
}

/// When requests are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// As soon as the one before was answered: a closed loop.
    Closed,
    /// One after each interval.
    Periodic {
        /// In ns.
        interval_ns: u64,
    },
    /// Independently of each other.
    Poisson {
        /// In ns, on average.
        interval_ns: u64,
    },
}

/// One task; the leader's and the follower's differ in the role and the processor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The role.
    pub role: Role,
    /// By what.
    pub means: Means,
    /// The work.
    pub work: Work,
    /// Bytes of a message, at least 1.
    pub bytes: usize,
    /// A path that is free for a Unix socket, by which the two find each other; [`Means::Offered`]
    /// and [`Means::Network`] need none.
    pub meeting: PathBuf,
    /// The processor to stay on; `None`: wherever the scheduler wants it.
    pub processor: Option<u32>,
}

/// The account of the work.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Tale {
    /// How long each operation of the window took.
    pub latencies: Latencies,
    /// Operations in the window.
    pub operations: u64,
    /// How long the window was, in ns.
    pub window_ns: u64,
    /// From the word to begin to the end of the work, in ns.
    pub elapsed_ns: u64,
    /// Processor time of this process, in ns, since the word to begin.
    pub processor_ns: u64,
    /// Context switches of the thread that worked since the word to begin.
    pub switches: u64,
    /// Bytes of rings that were resident, beyond which an idle channel's memory counts.
    pub resident_bytes: u64,
    /// How long each operation took since it was sent, where `latencies` count since it was due.
    #[serde(default)]
    pub uncorrected: Latencies,
    /// Requests that nobody answered.
    #[serde(default)]
    pub unanswered: u64,
    /// Messages whose number or checksum was not right.
    #[serde(default)]
    pub wrong: u64,
    /// Operations at the beginning that are not among the latencies, because they were of the
    /// warm-up.
    #[serde(default)]
    pub warm_up: u64,
    /// Whether there was no end of the warm-up: then all operations are among the latencies.
    #[serde(default)]
    pub is_unsettled: bool,
}
