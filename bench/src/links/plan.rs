//! The comparison, and its conditions.

use super::means::{Direction, Way};
use crate::channel::plan::size;
use crate::channel::task::Work;
use crate::report::{Column, column};
use crate::results::{Condition, Metric};

/// From this size on the table counts bytes.
const BULK_BYTES: usize = 16 << 10;

/// The arms of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// A link over TCP with TLS, as the messages are.
    Link,
    /// The same, whose ends never spin.
    Asleep,
    /// A link with LZ4.
    Lz4,
    /// The same, with Zstandard.
    Zstd,
    /// The same, with whatever it finds best.
    Auto,
    /// A link over QUIC.
    Quic,
    /// The same, with whatever it finds best.
    QuicAuto,
    /// A link over raw Ethernet, with frames as long as those of any switch.
    Ethernet,
    /// A link over TCP with TLS, on a network that takes long frames.
    LongLink,
    /// The same over raw Ethernet.
    LongEthernet,
    /// A link over TCP with TLS, on a network within one machine, which takes the longest frames
    /// that there are.
    LongestLink,
    /// The same over raw Ethernet.
    LongestEthernet,
    /// A link over TIPC with TLS.
    Tipc,
    /// A socket.
    Tcp,
    /// A socket whose ends never sleep.
    TcpSpinning,
    /// A socket with TLS 1.3.
    Tls,
    /// gRPC.
    Grpc,
    /// gRPC over TLS 1.3.
    GrpcTls,
    /// zenoh over TCP.
    Zenoh,
}

use Arm::{
    Asleep, Auto, Ethernet, Grpc, GrpcTls, Link, LongEthernet, LongLink, LongestEthernet, LongestLink, Lz4,
    Quic, QuicAuto, Tcp, TcpSpinning, Tipc, Tls, Zenoh, Zstd,
};

/// Longest payload of the frames of any switch, in bytes.
pub const MTU: u32 = 1500;
/// The frames that switches between the nodes of a cluster take, where they are told to ("jumbo
/// frames").
pub const LONG_MTU: u32 = 9000;
/// The frames that the networks within one machine take: bridges and pairs of veth.
pub const MAX_MTU: u32 = 65_535;

impl Arm {
    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Link => "link",
            Asleep => "link asleep",
            Lz4 => "link lz4",
            Zstd => "link zstd",
            Auto => "link auto",
            Quic => "link quic",
            QuicAuto => "link quic auto",
            Ethernet => "link ethernet",
            LongLink => "link, mtu 9000",
            LongEthernet => "link ethernet, mtu 9000",
            LongestLink => "link, mtu 65535",
            LongestEthernet => "link ethernet, mtu 65535",
            Tipc => "link tipc",
            Tcp => "tcp",
            TcpSpinning => "tcp spinning",
            Tls => "tls",
            Grpc => "grpc",
            GrpcTls => "grpc tls",
            Zenoh => "zenoh",
        }
    }

    /// Whether it is other people's, and so in the worker that links them.
    #[must_use]
    pub fn is_peer(self) -> bool {
        matches!(self, Grpc | GrpcTls | Zenoh)
    }

    /// Longest payload of a frame of the network that it runs on.
    #[must_use]
    pub fn mtu(self) -> u32 {
        match self {
            LongLink | LongEthernet => LONG_MTU,
            LongestLink | LongestEthernet => MAX_MTU,
            _ => MTU,
        }
    }

    /// Its way.
    #[must_use]
    pub fn way(self) -> Way {
        let link = |transport: &str, compression: &str| Way::Link {
            transport: transport.into(),
            compression: compression.into(),
            spin: self != Asleep,
        };
        match self {
            Link | Asleep | LongLink | LongestLink => link("tcp", "none"),
            Ethernet | LongEthernet | LongestEthernet => link("ethernet", "none"),
            Lz4 => link("tcp", "lz4"),
            Zstd => link("tcp", "zstd"),
            Auto => link("tcp", "auto"),
            Quic => link("quic", "none"),
            QuicAuto => link("quic", "auto"),
            Tipc => link("tipc", "none"),
            Tcp => Way::Tcp,
            TcpSpinning => Way::TcpSpinning,
            Tls => Way::Tls,
            Grpc => Way::Grpc { tls: false },
            GrpcTls => Way::Grpc { tls: true },
            Zenoh => Way::Zenoh,
        }
    }
}

/// The work of the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Round trips.
    RoundTrip,
    /// Messages one after the other.
    Stream,
    /// Copies out of a buffer of the other node, one after the other.
    CopyIn,
    /// The same into one.
    CopyOut,
}

/// One condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// The kind of work.
    pub kind: Kind,
    /// Bytes of a message.
    pub bytes: usize,
    /// Pairs that share the link.
    pub pairs: u32,
}

const fn stream(bytes: usize, pairs: u32) -> Case {
    Case { kind: Kind::Stream, bytes, pairs }
}

/// Round trips of 64 bytes.
pub const ROUND_TRIP: Case = Case { kind: Kind::RoundTrip, bytes: 64, pairs: 1 };
/// Messages of 64 bytes.
pub const STREAM_64: Case = stream(64, 1);
/// Messages of 1 KiB.
pub const STREAM_1K: Case = stream(1 << 10, 1);
/// Bulk.
pub const BULK: Case = stream(256 << 10, 1);

const fn copy(kind: Kind, bytes: usize) -> Case {
    Case { kind, bytes, pairs: 1 }
}

/// Copies out of a buffer of the other node: short ones, which cost a round trip, and long ones,
/// which stream.
pub const COPIES_IN: [Case; 3] =
    [copy(Kind::CopyIn, 4 << 10), copy(Kind::CopyIn, 64 << 10), copy(Kind::CopyIn, 1 << 20)];
/// The same into one.
pub const COPIES_OUT: [Case; 3] =
    [copy(Kind::CopyOut, 4 << 10), copy(Kind::CopyOut, 64 << 10), copy(Kind::CopyOut, 1 << 20)];

/// All conditions, in the order of the report.
pub const CASES: [Case; 14] = [
    ROUND_TRIP,
    STREAM_64,
    STREAM_1K,
    stream(16 << 10, 1),
    BULK,
    stream(64, 8),
    stream(64, 32),
    stream(16 << 10, 32),
    COPIES_IN[0],
    COPIES_IN[1],
    COPIES_IN[2],
    COPIES_OUT[0],
    COPIES_OUT[1],
    COPIES_OUT[2],
];

impl Case {
    /// Its name in the report.
    #[must_use]
    pub fn condition(self) -> Condition {
        let work = match self.kind {
            Kind::RoundTrip => "round trip",
            Kind::Stream => "stream",
            Kind::CopyIn => "copy in",
            Kind::CopyOut => "copy out",
        };
        let pairs = self.pairs.to_string();
        Condition(vec![("work", work.into()), ("message", size(self.bytes)), ("pairs", pairs)])
    }

    /// The case of a condition.
    #[must_use]
    pub fn of(condition: &Condition) -> Option<Self> {
        CASES.into_iter().find(|case| case.condition() == *condition)
    }

    /// The arms that take part. Other people's have no pairs that share it.
    #[must_use]
    pub fn arms(self) -> &'static [Arm] {
        match (self.kind, self.pairs) {
            (Kind::RoundTrip, _) => &[
                Link,
                Asleep,
                Auto,
                Quic,
                Ethernet,
                LongestEthernet,
                Tipc,
                Tcp,
                TcpSpinning,
                Tls,
                Grpc,
                GrpcTls,
                Zenoh,
            ],
            (Kind::Stream, 1) => &[
                Link,
                Lz4,
                Zstd,
                Auto,
                Quic,
                QuicAuto,
                Ethernet,
                LongLink,
                LongEthernet,
                LongestLink,
                LongestEthernet,
                Tipc,
                Tcp,
                Tls,
                Grpc,
                GrpcTls,
                Zenoh,
            ],
            (Kind::Stream, _) => &[Link, Auto, Quic, Ethernet, Tipc],
            (Kind::CopyIn | Kind::CopyOut, _) => &[Link, Quic, Ethernet, Tipc, Tcp, Tls],
        }
    }

    /// The way of one of them.
    #[must_use]
    pub fn way(self, arm: Arm) -> Way {
        let direction = match self.kind {
            Kind::CopyIn => Direction::In,
            Kind::CopyOut => Direction::Out,
            Kind::RoundTrip | Kind::Stream => return arm.way(),
        };
        match arm.way() {
            Way::Link { transport, .. } => Way::Copies { transport, direction },
            Way::Tls => Way::Asked { tls: true, direction },
            _ => Way::Asked { tls: false, direction },
        }
    }

    /// Whether proxies take part.
    #[must_use]
    pub fn has_proxies(self) -> bool {
        matches!(self.kind, Kind::CopyIn | Kind::CopyOut)
    }

    /// The columns of its table.
    #[must_use]
    pub fn columns(self) -> &'static [Column] {
        const ROUND_TRIP: [Column; 3] = [
            column("p50 us", "p50_us", Metric::P50, 1).and_ratio(),
            column("p99 us", "p99_us", Metric::P99, 1),
            column("cpu us/op", "processor_us", Metric::Processor, 1),
        ];
        const MESSAGES: [Column; 2] = [
            column("per s", "per_s", Metric::Rate, 0).and_ratio(),
            column("cpu us/op", "processor_us", Metric::Processor, 3),
        ];
        const BYTES: [Column; 2] = [
            column("GiB/s", "gib_s", Metric::Bandwidth, 2).and_ratio(),
            column("cpu us/op", "processor_us", Metric::Processor, 1),
        ];
        // What the proxies use is not counted, so neither is the processor time of the rest.
        const COPIES: [Column; 2] = [
            column("p50 us", "p50_us", Metric::P50, 1).and_ratio(),
            column("GiB/s", "gib_s", Metric::Bandwidth, 2),
        ];
        match self.kind {
            Kind::CopyIn | Kind::CopyOut => &COPIES,
            Kind::RoundTrip => &ROUND_TRIP,
            Kind::Stream if self.bytes < BULK_BYTES => &MESSAGES,
            Kind::Stream => &BYTES,
        }
    }

    /// The work of the workers, for so long.
    #[must_use]
    pub fn work(self, warm_up_ns: u64, window_ns: u64) -> Work {
        match self.kind {
            Kind::RoundTrip | Kind::CopyIn | Kind::CopyOut => {
                Work::RoundTrips { at_once: 1, gap_ns: 0, warm_up_ns, window_ns }
            }
            Kind::Stream => Work::Stream { warm_up_ns, window_ns },
        }
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
    /// The window, in ns: many of the kernel's time-outs, and of a link's states.
    pub window_ns: u64,
}

impl Plan {
    /// The plan that can be quoted.
    #[must_use]
    pub fn full() -> Self {
        Self { launches: 4, rounds: 3, warm_up_ns: 50_000_000, window_ns: 250_000_000 }
    }

    /// To see that it works.
    #[must_use]
    pub fn quick() -> Self {
        Self { launches: 1, rounds: 2, warm_up_ns: 20_000_000, window_ns: 80_000_000 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_condition_is_one_case_and_has_a_link_over_each_transport() {
        for case in CASES {
            assert_eq!(Case::of(&case.condition()), Some(case));
            assert!([Link, Quic, Ethernet, Tipc].iter().all(|arm| case.arms().contains(arm)), "{case:?}");
        }
    }
}
