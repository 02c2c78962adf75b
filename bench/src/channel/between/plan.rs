//! The comparison between machines, and its conditions.

use super::super::task::{Means, Waiting, Work};
use crate::report::{Column, column};
use crate::results::{Condition, Metric};
use std::path::PathBuf;

/// The service that the follower offers.
pub const SERVICE: &str = "messages";
/// Bytes of each ring: several messages of 64 KiB at both ends.
pub const RING: &str = "1MiB";
/// The gap of a sparse round trip, in ns: the follower sleeps by then, whatever it does first.
const SPARSE_GAP_NS: u64 = 1_000_000;
/// Round trips between two looks at the clock, where they take some us: a guest's clock may take
/// one itself.
const POLLED_AT_ONCE: u32 = 8;

/// The two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// The leader on the host, the follower in a guest.
    VmHost,
    /// Each in a guest of its own.
    VmVm,
}

/// The arms of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// A channel as it is by default.
    Tombolo,
    /// A channel whose ends never spin: they sleep where there is nothing, as the ends of a
    /// connection do.
    Asleep,
    /// A channel whose ends poll.
    Polled,
    /// TCP over virtio-net.
    Tcp,
    /// The same between ends that poll.
    TcpPolled,
}

impl Arm {
    /// Whether it goes by virtio-net.
    #[must_use]
    pub fn is_network(self) -> bool {
        matches!(self, Self::Tcp | Self::TcpPolled)
    }

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tombolo => "tombolo",
            Self::Asleep => "tombolo asleep",
            Self::Polled => "tombolo polled",
            Self::Tcp => "tcp over virtio-net",
            Self::TcpPolled => "tcp over virtio-net polled",
        }
    }

    /// By what it carries messages; `control` is of the worker's own domain, `address` and `port`
    /// are the follower's.
    #[must_use]
    pub fn means(self, control: PathBuf, (address, port): (&str, u16), anew: bool) -> Means {
        let offered = |waiting| Means::Offered { control, name: SERVICE.into(), waiting, anew };
        match self {
            Self::Tombolo => offered(Waiting::Adaptive),
            Self::Asleep => offered(Waiting::Sleep),
            Self::Polled => offered(Waiting::Poll),
            Self::Tcp => Means::Network { address: address.into(), port, polled: false },
            Self::TcpPolled => Means::Network { address: address.into(), port, polled: true },
        }
    }
}

/// The work of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A message there and one back, one at a time.
    RoundTrip,
    /// The same with gaps, in which the leader computes: who is asked sleeps.
    Sparse,
    /// Messages one after the other, from the leader to the follower.
    Stream,
    /// The other way.
    StreamBack,
}

/// One condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// The kind of work.
    pub kind: Kind,
    /// Bytes of a message.
    pub bytes: usize,
}

/// Round trips of 64 bytes.
pub const ROUND_TRIP_64: Case = Case { kind: Kind::RoundTrip, bytes: 64 };
/// Round trips of 4 KiB.
pub const ROUND_TRIP_4K: Case = Case { kind: Kind::RoundTrip, bytes: 4 << 10 };
/// Sparse round trips of 4 KiB.
pub const SPARSE_4K: Case = Case { kind: Kind::Sparse, bytes: 4 << 10 };
/// A stream, to the follower.
pub const STREAM: Case = Case { kind: Kind::Stream, bytes: 64 << 10 };
/// A stream, to the leader.
pub const STREAM_BACK: Case = Case { kind: Kind::StreamBack, bytes: 64 << 10 };

impl Ends {
    /// The cases between them, in the order of the report. Two guests are alike: one direction says
    /// it.
    #[must_use]
    pub fn cases(self) -> &'static [Case] {
        match self {
            Self::VmHost => &[ROUND_TRIP_64, ROUND_TRIP_4K, SPARSE_4K, STREAM, STREAM_BACK],
            Self::VmVm => &[ROUND_TRIP_64, ROUND_TRIP_4K, SPARSE_4K, STREAM],
        }
    }

    /// The case of a condition.
    #[must_use]
    pub fn case(self, condition: &Condition) -> Option<Case> {
        self.cases().iter().copied().find(|case| case.condition(self) == *condition)
    }
}

impl Case {
    /// Its name in the report.
    #[must_use]
    pub fn condition(self, ends: Ends) -> Condition {
        let work = match (self.kind, ends) {
            (Kind::RoundTrip, _) => "round trip",
            (Kind::Sparse, _) => "round trip after 1 ms",
            (Kind::Stream, Ends::VmHost) => "stream into the guest",
            (Kind::StreamBack, Ends::VmHost) => "stream out of the guest",
            (Kind::Stream | Kind::StreamBack, Ends::VmVm) => "stream",
        };
        let message =
            if self.bytes < 1024 { format!("{} B", self.bytes) } else { format!("{} KiB", self.bytes >> 10) };
        Condition(vec![("work", work.into()), ("message", message)])
    }

    /// The arms that take part.
    #[must_use]
    pub fn arms(self) -> &'static [Arm] {
        match self.kind {
            Kind::RoundTrip => &[Arm::Tombolo, Arm::Asleep, Arm::Polled, Arm::Tcp, Arm::TcpPolled],
            Kind::Sparse => &[Arm::Tombolo, Arm::Asleep, Arm::Tcp],
            Kind::Stream | Kind::StreamBack => &[Arm::Tombolo, Arm::Tcp],
        }
    }

    /// The columns of its table.
    #[must_use]
    pub fn columns(self) -> &'static [Column] {
        const ROUND_TRIP: [Column; 4] = [
            column("p50 us", "p50_us", Metric::P50, 1).and_ratio(),
            column("p99 us", "p99_us", Metric::P99, 1),
            column("host cpu us/op", "host_processor_us", Metric::Processor, 1).and_ratio(),
            column("worker in guest us/op", "guest_processor_us", Metric::GuestProcessor, 1).and_ratio(),
        ];
        // Its processor time is that of the computing leader.
        const SPARSE: [Column; 2] = [
            column("p50 us", "p50_us", Metric::P50, 1).and_ratio(),
            column("p99 us", "p99_us", Metric::P99, 1),
        ];
        const STREAM: [Column; 3] = [
            column("GiB/s", "gib_s", Metric::Bandwidth, 2).and_ratio(),
            column("host cpu us/op", "host_processor_us", Metric::Processor, 1).and_ratio(),
            column("worker in guest us/op", "guest_processor_us", Metric::GuestProcessor, 1).and_ratio(),
        ];
        match self.kind {
            Kind::RoundTrip => &ROUND_TRIP,
            Kind::Sparse => &SPARSE,
            Kind::Stream | Kind::StreamBack => &STREAM,
        }
    }

    /// The work of the workers.
    #[must_use]
    pub fn work(self, arm: Arm, timing: &Timing) -> Work {
        let &Timing { warm_up_ns, window_ns, .. } = timing;
        let at_once = if arm == Arm::Polled { POLLED_AT_ONCE } else { 1 };
        match self.kind {
            Kind::RoundTrip => Work::RoundTrips { at_once, gap_ns: 0, warm_up_ns, window_ns },
            Kind::Sparse => Work::RoundTrips { at_once, gap_ns: SPARSE_GAP_NS, warm_up_ns, window_ns },
            Kind::Stream => Work::Stream { warm_up_ns, window_ns },
            Kind::StreamBack => Work::StreamBack { warm_up_ns, window_ns },
        }
    }
}

/// The plan of a run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Fresh guests.
    pub launches: usize,
    /// Rounds of each launch.
    pub rounds: usize,
    /// How long.
    pub timing: Timing,
}

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Work before the window, in ns: an emulator translates what it runs for the first time.
    pub warm_up_ns: u64,
    /// The window, in ns.
    pub window_ns: u64,
    /// From the last message, or from the start of the workers, to being watched, in ns: a guest
    /// has some work left when a program has started or a device was plugged in.
    pub settle_ns: u64,
    /// How long an idle guest is watched, in ns, with a channel and without.
    pub idle_ns: u64,
    /// How often, each.
    pub idle_rounds: usize,
}

impl Plan {
    /// The plan that can be quoted.
    #[must_use]
    pub fn full() -> Self {
        let timing = Timing {
            warm_up_ns: 60_000_000,
            window_ns: 250_000_000,
            settle_ns: 2_000_000_000,
            idle_ns: 2_000_000_000,
            idle_rounds: 5,
        };
        Self { launches: 5, rounds: 5, timing }
    }

    /// To see that it works.
    #[must_use]
    pub fn quick() -> Self {
        let timing = Timing {
            warm_up_ns: 50_000_000,
            window_ns: 100_000_000,
            settle_ns: 1_500_000_000,
            idle_ns: 1_000_000_000,
            idle_rounds: 3,
        };
        Self { launches: 1, rounds: 3, timing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_condition_is_one_case_with_tcp_in_it() {
        for ends in [Ends::VmHost, Ends::VmVm] {
            for &case in ends.cases() {
                assert_eq!(ends.case(&case.condition(ends)), Some(case));
                assert!(case.arms().contains(&Arm::Tcp) && case.arms().contains(&Arm::Tombolo), "{case:?}");
            }
        }
    }
}
