//! The comparison, and its conditions.

use super::domains::{Domains, SERVICE};
use super::task::{Means, Work};
use crate::core_line::State;
use crate::report::{Column, column};
use crate::results::{Condition, Metric};
use std::path::Path;

/// The gap of a sparse round trip, in us: long enough that whoever waits sleeps.
const SPARSE_GAP_US: u64 = 200;
/// Round trips between two looks at the clock, where they take less than a us.
const BUSY_AT_ONCE: u32 = 8;
/// Size of the messages of a transfer.
const TRANSFER_MESSAGE_BYTES: usize = 32 << 10;
/// How often a set-up is done in one repetition.
const SET_UPS: u32 = 200;
/// Bytes held back in the batched arm: what a page holds.
const BATCH_BYTES: usize = 4096;
/// A ring as it is by default.
const RING_BYTES: u32 = 256 << 10;
/// A ring for streams: several pieces of 64 KiB at both ends.
const STREAM_RING_BYTES: u32 = 1 << 20;
/// A ring for messages of 1 MiB.
const LARGE_RING_BYTES: u32 = 4 << 20;
/// From this size on a stream needs the large ring.
const LARGE_BYTES: usize = 1 << 20;

/// The arms of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// A channel as it is by default: spins a while, then sleeps.
    Tombolo,
    /// A channel that holds small messages back until a page is full.
    Batched,
    /// A channel that never spins.
    Asleep,
    /// A channel that the daemon makes.
    Service,
    /// Two pipes.
    Pipe,
    /// Two pipes, written a page at a time.
    Pages,
    /// Unix stream sockets.
    Unix,
    /// TCP over loopback.
    Tcp,
    /// TCP between two network namespaces.
    Veth,
    /// iceoryx2, polling.
    Iceoryx,
    /// iceoryx2 with a listener.
    Listener,
    /// A ring without checks and sleep.
    Ring,
    /// One cache line.
    Line,
    /// `memcpy` in one process, walking over as much as a ring has.
    Copy,
    /// `memcpy` in one process, from and to the same places, in its caches.
    CacheCopy,
}

/// The surroundings that the arms need to know.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// A folder of the run.
    pub folder: &'a Path,
    /// The prefix of names outside of the folder.
    pub prefix: &'a str,
    /// Address of the follower over the veth.
    pub veth: &'a str,
    /// The node whose daemon makes channels; where there is none, that arm does not run.
    pub node: Option<&'a Domains>,
}

impl Arm {
    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tombolo => "tombolo",
            Self::Batched => "tombolo batched",
            Self::Asleep => "tombolo asleep",
            Self::Service => "tombolo by the daemon",
            Self::Pipe => "pipe",
            Self::Pages => "pipe, by pages",
            Self::Unix => "unix",
            Self::Tcp => "tcp",
            Self::Veth => "tcp veth",
            Self::Iceoryx => "iceoryx2",
            Self::Listener => "iceoryx2 listener",
            Self::Ring => "unchecked ring",
            Self::Line => "cache line",
            Self::Copy => "memcpy",
            Self::CacheCopy => "memcpy in cache",
        }
    }

    /// Whether it is other people's, and so in the worker that has iceoryx2.
    #[must_use]
    pub fn is_peer(self) -> bool {
        matches!(self, Self::Iceoryx | Self::Listener)
    }

    /// By what it carries messages in this case.
    #[must_use]
    pub fn means(self, case: Case, around: &Surroundings<'_>) -> Means {
        let ring_bytes = case.ring_bytes();
        let tombolo = |spin, batch_bytes| Means::Tombolo { spin, ring_bytes, batch_bytes };
        let iceoryx = |listener| Means::Iceoryx {
            listener,
            root: around.folder.to_path_buf(),
            prefix: around.prefix.to_owned(),
            ring_bytes,
        };
        match self {
            Self::Tombolo => tombolo(true, 0),
            Self::Batched => tombolo(true, BATCH_BYTES),
            Self::Asleep => tombolo(false, 0),
            Self::Service => Means::Service {
                offering: around.node.map(Domains::offering).unwrap_or_default(),
                opening: around.node.map(Domains::opening).unwrap_or_default(),
                name: SERVICE.into(),
            },
            Self::Pipe => Means::Pipe,
            Self::Pages => Means::Pages,
            Self::Unix => Means::Unix,
            Self::Tcp => Means::Tcp("127.0.0.1".into()),
            Self::Veth => Means::Tcp(around.veth.to_owned()),
            Self::Iceoryx => iceoryx(false),
            Self::Listener => iceoryx(true),
            Self::Ring => Means::Ring { ring_bytes },
            Self::Line => Means::Line,
            Self::Copy => Means::Copy { walk_bytes: ring_bytes as usize },
            Self::CacheCopy => Means::Copy { walk_bytes: case.bytes },
        }
    }
}

/// The work of the two workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Round trips, as fast as they go, on two processors.
    Busy,
    /// Round trips with gaps.
    Sparse,
    /// Round trips, both ends on one processor.
    OneProcessor,
    /// Messages one after the other.
    Stream,
    /// 1 GiB.
    Transfer,
    /// The same, traced.
    Calls,
    /// From the first contact to the first answer.
    SetUp,
}

/// One condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// The kind of work.
    pub kind: Kind,
    /// Bytes of a message.
    pub bytes: usize,
}

const fn case(kind: Kind, bytes: usize) -> Case {
    Case { kind, bytes }
}

/// Busy round trips of 64 bytes.
pub const BUSY: Case = case(Kind::Busy, 64);
/// Sparse round trips.
pub const SPARSE: Case = case(Kind::Sparse, 64);
/// Round trips on one processor.
pub const ONE_PROCESSOR: Case = case(Kind::OneProcessor, 64);
/// Streams of 64 bytes, 32 KiB and 64 KiB.
pub const STREAM_64: Case = case(Kind::Stream, 64);
/// See [`STREAM_64`].
pub const STREAM_32K: Case = case(Kind::Stream, 32 << 10);
/// See [`STREAM_64`].
pub const STREAM_64K: Case = case(Kind::Stream, 64 << 10);
/// 1 GiB in 32 KiB.
pub const TRANSFER: Case = case(Kind::Transfer, TRANSFER_MESSAGE_BYTES);
/// 1 GiB, traced.
pub const CALLS: Case = case(Kind::Calls, TRANSFER_MESSAGE_BYTES);
/// Set-up.
pub const SET_UP: Case = case(Kind::SetUp, 64);

/// All conditions, in the order of the report.
pub const CASES: [Case; 13] = [
    BUSY,
    case(Kind::Busy, 4 << 10),
    case(Kind::Busy, 64 << 10),
    SPARSE,
    ONE_PROCESSOR,
    STREAM_64,
    case(Kind::Stream, 4 << 10),
    STREAM_32K,
    STREAM_64K,
    case(Kind::Stream, 1 << 20),
    TRANSFER,
    CALLS,
    SET_UP,
];

impl Case {
    /// Its name in the report.
    #[must_use]
    pub fn condition(self) -> Condition {
        let work = match self.kind {
            Kind::Busy => "busy round trip",
            Kind::Sparse => "sparse round trip",
            Kind::OneProcessor => "round trip on one processor",
            Kind::Stream => "stream",
            Kind::Transfer => "1 GiB",
            Kind::Calls => "1 GiB, traced",
            Kind::SetUp => "set-up",
        };
        Condition(vec![("work", work.into()), ("message", size(self.bytes))])
    }

    /// The arms that take part.
    #[must_use]
    pub fn arms(self) -> &'static [Arm] {
        use Arm::{
            Asleep, Batched, CacheCopy, Copy, Iceoryx, Line, Listener, Pages, Pipe, Ring, Service, Tcp,
            Tombolo, Unix, Veth,
        };
        match self.kind {
            Kind::Busy if self.bytes == BUSY.bytes => {
                &[Tombolo, Asleep, Pipe, Unix, Tcp, Veth, Iceoryx, Listener, Ring, Line]
            }
            Kind::Busy => &[Tombolo, Asleep, Pipe, Unix, Tcp, Veth, Iceoryx, Listener, Ring],
            Kind::Sparse => &[Tombolo, Asleep, Pipe, Unix, Tcp, Veth, Listener, Ring],
            Kind::OneProcessor => &[Tombolo, Asleep, Pipe, Unix, Tcp, Veth, Listener],
            Kind::Stream if self.bytes <= BATCH_BYTES => {
                &[Tombolo, Batched, Pipe, Pages, Unix, Tcp, Veth, Iceoryx, Ring, Copy, CacheCopy]
            }
            Kind::Stream => &[Tombolo, Pipe, Unix, Tcp, Veth, Iceoryx, Ring, Copy, CacheCopy],
            Kind::Transfer => &[Tombolo, Pipe, Unix, Tcp, Veth, Iceoryx],
            Kind::Calls => &[Tombolo, Pipe, Unix, Tcp, Veth, Iceoryx],
            Kind::SetUp => &[Tombolo, Service, Unix, Tcp],
        }
    }

    /// The arm that the others are compared with.
    #[must_use]
    pub fn base(self) -> Arm {
        match self.kind {
            Kind::Transfer | Kind::Calls => Arm::Tcp,
            Kind::SetUp => Arm::Unix,
            _ => Arm::Pipe,
        }
    }

    /// The columns of its table.
    #[must_use]
    pub fn columns(self) -> &'static [Column] {
        const ROUND_TRIP: [Column; 4] = [
            column("near p50 us", "near_p50_us", Metric::P50, 2).within(State::Near).and_ratio(),
            column("far p50 us", "far_p50_us", Metric::P50, 2).within(State::Far).and_ratio(),
            column("p99 us", "p99_us", Metric::P99, 2),
            column("cpu us/op", "processor_us", Metric::Processor, 2),
        ];
        const ONE: [Column; 3] = [
            column("p50 us", "p50_us", Metric::P50, 2).and_ratio(),
            column("p99 us", "p99_us", Metric::P99, 2),
            column("cpu us/op", "processor_us", Metric::Processor, 2),
        ];
        const MESSAGES: [Column; 3] = [
            column("near per s", "near_per_s", Metric::Rate, 0).within(State::Near).and_ratio(),
            column("far per s", "far_per_s", Metric::Rate, 0).within(State::Far).and_ratio(),
            column("cpu us/op", "processor_us", Metric::Processor, 3),
        ];
        const STREAM: [Column; 3] = [
            column("near GiB/s", "near_gib_s", Metric::Bandwidth, 2).within(State::Near).and_ratio(),
            column("far GiB/s", "far_gib_s", Metric::Bandwidth, 2).within(State::Far).and_ratio(),
            column("cpu us/op", "processor_us", Metric::Processor, 2),
        ];
        const TRANSFER: [Column; 3] = [
            column("GiB/s", "gib_s", Metric::Bandwidth, 2).and_ratio(),
            column("cpu ms", "processor_ms", Metric::ProcessorTotal, 1).and_ratio(),
            column("switches", "switches", Metric::Switches, 0).and_ratio(),
        ];
        const CALLS: [Column; 1] = [column("system calls", "calls", Metric::Calls, 0).and_ratio()];
        match self.kind {
            Kind::Busy | Kind::Sparse => &ROUND_TRIP,
            Kind::OneProcessor | Kind::SetUp => &ONE,
            Kind::Stream if self.bytes < BATCH_BYTES => &MESSAGES,
            Kind::Stream => &STREAM,
            Kind::Transfer => &TRANSFER,
            Kind::Calls => &CALLS,
        }
    }

    /// The work of the workers.
    #[must_use]
    pub fn work(self, timing: &Timing) -> Work {
        let &Timing { warm_up_ns, window_ns, transfer_bytes, traced_bytes, .. } = timing;
        let messages = |bytes| bytes / self.bytes as u64;
        let gap_ns = if self.kind == Kind::Sparse { SPARSE_GAP_US * 1_000 } else { 0 };
        match self.kind {
            Kind::Busy => Work::RoundTrips { at_once: BUSY_AT_ONCE, gap_ns, warm_up_ns, window_ns },
            Kind::Sparse | Kind::OneProcessor => {
                Work::RoundTrips { at_once: 1, gap_ns, warm_up_ns, window_ns }
            }
            Kind::Stream => Work::Stream { warm_up_ns, window_ns },
            Kind::Transfer => Work::Transfer { messages: messages(transfer_bytes) },
            Kind::Calls => Work::Transfer { messages: messages(traced_bytes) },
            Kind::SetUp => Work::SetUp { times: SET_UPS },
        }
    }

    fn ring_bytes(self) -> u32 {
        match self.kind {
            Kind::Stream if self.bytes >= LARGE_BYTES => LARGE_RING_BYTES,
            Kind::Stream | Kind::Transfer | Kind::Calls => STREAM_RING_BYTES,
            _ => RING_BYTES,
        }
    }

    /// The case of a condition.
    #[must_use]
    pub fn of(condition: &Condition) -> Option<Self> {
        CASES.into_iter().find(|case| case.condition() == *condition)
    }
}

/// The plan of a run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Fresh starts of everything.
    pub launches: usize,
    /// Rounds of each launch.
    pub rounds: usize,
    /// How long, how much.
    pub timing: Timing,
}

impl Plan {
    /// The plan that can be quoted: enough rounds that each arm meets each state of the machine, in
    /// windows that are shorter than the machine keeps a state.
    #[must_use]
    pub fn full() -> Self {
        let timing = Timing {
            warm_up_ns: 15_000_000,
            window_ns: 60_000_000,
            transfer_bytes: 1 << 30,
            traced_bytes: 1 << 30,
            idle_channels: 1_000,
            idle_ns: 2_000_000_000,
        };
        Self { launches: 5, rounds: 5, timing }
    }

    /// To see that it works.
    #[must_use]
    pub fn quick() -> Self {
        let full = Self::full().timing;
        let timing = Timing { window_ns: 30_000_000, traced_bytes: 1 << 27, idle_ns: 1_000_000_000, ..full };
        Self { launches: 1, rounds: 3, timing }
    }
}

/// How long things take, and how much they are.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Work before the window, in ns.
    pub warm_up_ns: u64,
    /// The window, in ns.
    pub window_ns: u64,
    /// Bytes of a transfer.
    pub transfer_bytes: u64,
    /// Bytes of a traced transfer.
    pub traced_bytes: u64,
    /// Idle channels.
    pub idle_channels: u32,
    /// How long idle channels are watched, in ns.
    pub idle_ns: u64,
}

/// `64 B`, `32 KiB`.
pub(crate) fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_condition_is_one_case_and_has_its_base() {
        for case in CASES {
            assert_eq!(Case::of(&case.condition()), Some(case));
            assert!(case.arms().contains(&case.base()), "{case:?}");
            assert!(case.arms().contains(&Arm::Tombolo), "{case:?}");
        }
    }

    #[test]
    fn a_message_fits_its_ring_and_a_transfer_is_what_it_says() {
        for case in CASES {
            assert!(case.bytes <= case.ring_bytes() as usize / 4, "{case:?}");
        }
        let timing = Plan::full().timing;
        assert_eq!(TRANSFER.work(&timing), Work::Transfer { messages: 32_768 });
        assert_eq!(CALLS.work(&timing), TRANSFER.work(&timing));
    }
}
