//! The comparison, and its conditions.

use super::means::{Hints, Means, Tuning, Way};
use crate::channel::task::Work;
use crate::core_line::State;
use crate::report::{Column, column};
use crate::results::{Condition, Metric};

/// The gap of a sparse round trip, in us: long enough that whoever waits sleeps.
const SPARSE_GAP_US: u64 = 200;
/// Bytes of messages that are held back: what a page holds.
const BATCH_BYTES: usize = 4096;
/// From this size on messages are bulk, whose table counts bytes and not messages.
const BULK_BYTES: usize = 4096;

/// The arms of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// Endpoints as they are by default: requests; buffered messages in batches; copies straight
    /// into the receiver's buffer, told of by messages, by the sender or half by each end.
    Tombolo,
    /// Endpoints that never spin.
    Asleep,
    /// Buffered messages, each shown at once.
    Unbatched,
    /// A rendezvous for each message.
    Rendezvous,
    /// Copies straight into the receiver's buffer, by the sender alone.
    OneSided,
    /// The same, told of by notices.
    ByNotices,
    /// Copies by way of a buffer of the sender's: both ends copy.
    Twice,
    /// Two pipes.
    Pipe,
    /// Two pipes, written a page at a time.
    Pages,
    /// Two named pipes.
    Fifo,
    /// POSIX message queues.
    Queue,
    /// Unix stream sockets.
    Unix,
    /// Unix sockets that keep messages apart.
    Seqpacket,
    /// TCP over loopback.
    Tcp,
    /// The same between ends that never sleep.
    TcpSpinning,
    /// Unix stream sockets between ends that never sleep.
    UnixSpinning,
    /// gRPC.
    Grpc,
    /// zenoh.
    Zenoh,
}

/// The kernel's own ways, one message a call: the promises compare with them.
pub const KERNEL: [Arm; 6] = [Arm::Pipe, Arm::Fifo, Arm::Queue, Arm::Unix, Arm::Seqpacket, Arm::Tcp];
/// All of these, and those whose ends never sleep: endpoints that spin are compared with them.
pub const KERNEL_SPINNING: [Arm; 8] = [
    Arm::Pipe,
    Arm::Fifo,
    Arm::Queue,
    Arm::Unix,
    Arm::Seqpacket,
    Arm::Tcp,
    Arm::TcpSpinning,
    Arm::UnixSpinning,
];

impl Arm {
    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tombolo => "tombolo",
            Self::Asleep => "tombolo asleep",
            Self::Unbatched => "tombolo unbatched",
            Self::Rendezvous => "tombolo rendezvous",
            Self::OneSided => "tombolo, one copies",
            Self::ByNotices => "tombolo by notices",
            Self::Twice => "tombolo, both copy",
            Self::Pipe => "pipe",
            Self::Pages => "pipe, by pages",
            Self::Fifo => "fifo",
            Self::Queue => "message queue",
            Self::Unix => "unix",
            Self::Seqpacket => "seqpacket",
            Self::Tcp => "tcp",
            Self::TcpSpinning => "tcp spinning",
            Self::UnixSpinning => "unix spinning",
            Self::Grpc => "grpc",
            Self::Zenoh => "zenoh",
        }
    }

    /// Whether it is other people's, and so in the worker that links them.
    #[must_use]
    pub fn is_peer(self) -> bool {
        matches!(self, Self::Grpc | Self::Zenoh)
    }

    /// Its way in this case.
    #[must_use]
    pub fn way(self, case: Case) -> Way {
        match (self, case.kind) {
            (Self::Tombolo, Kind::Stream | Kind::Pairs(_)) => Way::Messages { batch_bytes: BATCH_BYTES },
            (Self::Tombolo, Kind::Copy) => Way::Places { hints: Hints::Messages },
            (Self::Tombolo, _) => Way::Requests { spin: true },
            (Self::Asleep, _) => Way::Requests { spin: false },
            (Self::Unbatched, _) => Way::Messages { batch_bytes: 0 },
            (Self::Rendezvous, _) => Way::Sends,
            (Self::OneSided, _) => Way::Places { hints: Hints::Messages },
            (Self::ByNotices, _) => Way::Places { hints: Hints::Notices },
            (Self::Twice, _) => Way::Slots,
            (Self::Pipe, _) => Way::Pipe,
            (Self::Pages, _) => Way::Pages,
            (Self::Fifo, _) => Way::Fifo,
            (Self::Queue, _) => Way::Queue,
            (Self::Unix, _) => Way::Unix,
            (Self::Seqpacket, _) => Way::Seqpacket,
            (Self::Tcp, _) => Way::Tcp,
            (Self::TcpSpinning, _) => Way::TcpSpinning,
            (Self::UnixSpinning, _) => Way::UnixSpinning,
            (Self::Grpc, _) => Way::Grpc,
            (Self::Zenoh, _) => Way::Zenoh,
        }
    }

    /// The tunings that are tried in this case, of which the quickest is kept; one alone is not
    /// tried.
    #[must_use]
    pub fn tunings(self, case: Case) -> Vec<Tuning> {
        let plain = Tuning::plain(case.bytes);
        if case.is_round_trip() {
            return vec![plain];
        }
        let buffers = |sizes: &[usize]| -> Vec<Tuning> {
            sizes.iter().map(|&buffer_bytes| Tuning { buffer_bytes, ..plain }).collect()
        };
        let pieces = |sizes: &[(usize, usize)]| -> Vec<Tuning> {
            let sized =
                |&(buffer_bytes, piece)| Tuning { buffer_bytes, piece_bytes: case.bytes.min(piece), ..plain };
            sizes.iter().map(sized).collect()
        };
        match self {
            Self::Pipe | Self::Fifo => buffers(&[0, 256 << 10, 1 << 20]),
            Self::Pages => vec![plain],
            Self::Unix => buffers(&[0, 1 << 20, 4 << 20]),
            Self::Seqpacket => pieces(&[(0, 64 << 10), (1 << 20, 64 << 10), (4 << 20, 256 << 10)]),
            Self::Tcp => {
                let gathering = Tuning { gathers: true, ..plain };
                [buffers(&[0, 1 << 20, 4 << 20]), vec![gathering]].concat()
            }
            // The first is what everybody may have.
            Self::Queue => pieces(&[(0, 8 << 10), (1 << 20, 64 << 10), (4 << 20, 256 << 10)]),
            // The parts are whole messages, two at least.
            Self::Tombolo if case.kind == Kind::Copy => {
                let halves = Tuning { halves: true, ..plain };
                [buffers(&[256 << 10, 1 << 20]), vec![halves]].concat()
            }
            Self::OneSided | Self::ByNotices => buffers(&[256 << 10, 1 << 20]),
            Self::Twice => pieces(&[(512 << 10, 32 << 10), (1 << 20, 64 << 10), (2 << 20, 256 << 10)]),
            // Those of several pairs share the processors' caches.
            Self::Tombolo if case.pairs() > 1 => buffers(&[64 << 10, 128 << 10, 256 << 10, 1 << 20]),
            Self::Tombolo | Self::Unbatched | Self::Rendezvous | Self::Asleep => {
                buffers(&[256 << 10, 1 << 20])
            }
            Self::Grpc if case.kind == Kind::Copy => pieces(&[(0, 64 << 10), (0, 1 << 20)]),
            Self::TcpSpinning | Self::UnixSpinning | Self::Grpc | Self::Zenoh => vec![plain],
        }
    }

    /// By what it carries messages in this case.
    #[must_use]
    pub fn means(self, case: Case, tuning: Tuning) -> Means {
        Means { way: self.way(case), tuning }
    }
}

/// The work of the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Round trips, as fast as they go, on two processors.
    RoundTrip,
    /// Round trips with gaps.
    Sparse,
    /// Round trips, both ends on one processor.
    OneProcessor,
    /// Messages one after the other.
    Stream,
    /// The same, of so many pairs at once, wherever the scheduler puts them.
    Pairs(usize),
    /// Round trips of so many pairs at once, wherever the scheduler puts them.
    PairsRoundTrip(usize),
    /// Bulk, looked at where it arrives.
    Copy,
}

/// One condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// The kind of work.
    pub kind: Kind,
    /// Bytes of a message.
    pub bytes: usize,
}

const fn case(kind: Kind, bytes: usize) -> Case {
    Case { kind, bytes }
}

/// Round trips of 64 bytes.
pub const ROUND_TRIP: Case = case(Kind::RoundTrip, 64);
/// Messages of 64 bytes.
pub const STREAM_64: Case = case(Kind::Stream, 64);
/// Messages of 64 bytes, of 2, 4 and 8 pairs.
pub const PAIRS: [Case; 3] = [case(Kind::Pairs(2), 64), case(Kind::Pairs(4), 64), case(Kind::Pairs(8), 64)];
/// Bulk of 4 KiB, 64 KiB, 1 MiB and 16 MiB.
pub const COPIES: [Case; 4] = [
    case(Kind::Copy, 4 << 10),
    case(Kind::Copy, 64 << 10),
    case(Kind::Copy, 1 << 20),
    case(Kind::Copy, 16 << 20),
];

/// All conditions, in the order of the report.
pub const CASES: [Case; 16] = [
    ROUND_TRIP,
    case(Kind::Sparse, 64),
    case(Kind::OneProcessor, 64),
    case(Kind::PairsRoundTrip(2), 64),
    case(Kind::PairsRoundTrip(4), 64),
    case(Kind::PairsRoundTrip(8), 64),
    STREAM_64,
    case(Kind::Stream, 512),
    case(Kind::Stream, 4 << 10),
    PAIRS[0],
    PAIRS[1],
    PAIRS[2],
    COPIES[0],
    COPIES[1],
    COPIES[2],
    COPIES[3],
];

impl Case {
    /// Its name in the report.
    #[must_use]
    pub fn condition(self) -> Condition {
        let work = match self.kind {
            Kind::RoundTrip => "round trip".into(),
            Kind::Sparse => "sparse round trip".into(),
            Kind::OneProcessor => "round trip on one processor".into(),
            Kind::Stream => "stream".into(),
            Kind::Pairs(pairs) => format!("stream of {pairs} pairs"),
            Kind::PairsRoundTrip(pairs) => format!("round trip of {pairs} pairs"),
            Kind::Copy => "copy".into(),
        };
        Condition(vec![("work", work), ("message", crate::channel::plan::size(self.bytes))])
    }

    /// Whether it is of round trips.
    #[must_use]
    pub fn is_round_trip(self) -> bool {
        use Kind::{OneProcessor, PairsRoundTrip, RoundTrip, Sparse};
        matches!(self.kind, RoundTrip | Sparse | OneProcessor | PairsRoundTrip(_))
    }

    /// Pairs of workers that take part.
    #[must_use]
    pub fn pairs(self) -> usize {
        if let Kind::Pairs(pairs) | Kind::PairsRoundTrip(pairs) = self.kind { pairs } else { 1 }
    }

    /// The arms that take part.
    #[must_use]
    pub fn arms(self) -> &'static [Arm] {
        use Arm::{
            Asleep, ByNotices, Fifo, Grpc, OneSided, Pages, Pipe, Queue, Rendezvous, Seqpacket, Tcp,
            TcpSpinning, Tombolo, Twice, Unbatched, Unix, UnixSpinning, Zenoh,
        };
        match self.kind {
            Kind::RoundTrip | Kind::Sparse => &[
                Tombolo,
                Asleep,
                Pipe,
                Fifo,
                Queue,
                Unix,
                UnixSpinning,
                Seqpacket,
                Tcp,
                TcpSpinning,
                Grpc,
                Zenoh,
            ],
            // Ends that never sleep would take turns by the scheduler's slices there.
            Kind::OneProcessor | Kind::PairsRoundTrip(_) => {
                &[Tombolo, Asleep, Pipe, Fifo, Queue, Unix, Seqpacket, Tcp, Grpc, Zenoh]
            }
            Kind::Stream if self.bytes < BULK_BYTES => {
                &[Tombolo, Unbatched, Rendezvous, Pipe, Pages, Fifo, Queue, Unix, Seqpacket, Tcp, Grpc, Zenoh]
            }
            Kind::Stream => {
                &[Tombolo, Unbatched, Rendezvous, Pipe, Fifo, Queue, Unix, Seqpacket, Tcp, Grpc, Zenoh]
            }
            Kind::Pairs(_) => &[Tombolo, Rendezvous, Pipe, Fifo, Queue, Unix, Seqpacket, Tcp, Grpc, Zenoh],
            Kind::Copy => {
                &[Tombolo, OneSided, ByNotices, Twice, Pipe, Fifo, Queue, Unix, Seqpacket, Tcp, Grpc, Zenoh]
            }
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
        const SEVERAL: [Column; 4] = [
            column("p50 us", "p50_us", Metric::P50, 2).and_ratio(),
            column("p99 us", "p99_us", Metric::P99, 2),
            column("per s", "per_s", Metric::Rate, 0).and_ratio(),
            column("cpu us/op", "processor_us", Metric::Processor, 2),
        ];
        const MESSAGES: [Column; 3] = [
            column("near per s", "near_per_s", Metric::Rate, 0).within(State::Near).and_ratio(),
            column("far per s", "far_per_s", Metric::Rate, 0).within(State::Far).and_ratio(),
            column("cpu us/op", "processor_us", Metric::Processor, 3),
        ];
        const PAIRS: [Column; 2] = [
            column("per s", "per_s", Metric::Rate, 0).and_ratio(),
            column("cpu us/op", "processor_us", Metric::Processor, 3),
        ];
        const BYTES: [Column; 3] = [
            column("near GiB/s", "near_gib_s", Metric::Bandwidth, 2).within(State::Near).and_ratio(),
            column("far GiB/s", "far_gib_s", Metric::Bandwidth, 2).within(State::Far).and_ratio(),
            column("cpu us/op", "processor_us", Metric::Processor, 2),
        ];
        match self.kind {
            Kind::RoundTrip | Kind::Sparse => &ROUND_TRIP,
            Kind::OneProcessor => &ONE,
            Kind::PairsRoundTrip(_) => &SEVERAL,
            Kind::Pairs(_) => &PAIRS,
            Kind::Stream if self.bytes < BULK_BYTES => &MESSAGES,
            Kind::Stream | Kind::Copy => &BYTES,
        }
    }

    /// The work of the workers, for so long.
    #[must_use]
    pub fn work(self, warm_up_ns: u64, window_ns: u64) -> Work {
        let gap_ns = if self.kind == Kind::Sparse { SPARSE_GAP_US * 1_000 } else { 0 };
        match self.kind {
            Kind::RoundTrip | Kind::Sparse | Kind::OneProcessor | Kind::PairsRoundTrip(_) => {
                Work::RoundTrips { at_once: 1, gap_ns, warm_up_ns, window_ns }
            }
            Kind::Stream | Kind::Pairs(_) => Work::Stream { warm_up_ns, window_ns },
            Kind::Copy => Work::Copies { warm_up_ns, window_ns },
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
    /// Work before the window, in ns.
    pub warm_up_ns: u64,
    /// The window, in ns.
    pub window_ns: u64,
    /// The window of several pairs, which take their time until all are at work, in ns.
    pub pairs_window_ns: u64,
    /// The window of one trial of a tuning, in ns.
    pub trial_ns: u64,
    /// Whether several tunings are tried; if not, each way has its first, which everybody may have.
    pub tries: bool,
}

impl Plan {
    /// The plan that can be quoted.
    #[must_use]
    pub fn full() -> Self {
        Self {
            launches: 4,
            rounds: 3,
            warm_up_ns: 15_000_000,
            window_ns: 60_000_000,
            pairs_window_ns: 150_000_000,
            trial_ns: 20_000_000,
            tries: true,
        }
    }

    /// To see that it works.
    #[must_use]
    pub fn quick() -> Self {
        let full = Self::full();
        Self { launches: 1, rounds: 2, window_ns: 30_000_000, pairs_window_ns: 60_000_000, ..full }
    }

    /// The window of a trial of a case, in ns: that of several pairs is longer, as with the window.
    #[must_use]
    pub fn trial_ns(&self, case: Case) -> u64 {
        if case.pairs() > 1 { self.pairs_window_ns / 2 } else { self.trial_ns }
    }

    /// The window of a case, in ns.
    #[must_use]
    pub fn window_ns(&self, case: Case) -> u64 {
        if case.pairs() > 1 { self.pairs_window_ns } else { self.window_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_condition_is_one_case_and_has_ours_and_all_of_the_kernels_arms() {
        for case in CASES {
            assert_eq!(Case::of(&case.condition()), Some(case));
            assert!(case.arms().contains(&Arm::Tombolo), "{case:?}");
            assert!(KERNEL.iter().all(|arm| case.arms().contains(arm)), "{case:?}");
        }
    }

    #[test]
    fn a_tuning_suits_its_message() {
        for case in CASES {
            for arm in case.arms() {
                let tunings = arm.tunings(case);
                assert!(!tunings.is_empty());
                for tuning in tunings {
                    let Tuning { buffer_bytes, piece_bytes, .. } = tuning;
                    assert!(piece_bytes > 0 && case.bytes.is_multiple_of(piece_bytes), "{case:?} {arm:?}");
                    let records = [Arm::Queue, Arm::Seqpacket, Arm::Twice].contains(arm);
                    let fits = buffer_bytes == 0 || piece_bytes <= buffer_bytes;
                    assert!(fits || !records, "{case:?} {arm:?}");
                }
            }
        }
    }
}
