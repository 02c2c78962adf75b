//! The compression that brings bytes over soonest: by what each costs, how small it makes them, and
//! what it costs to carry them.

/// A way to make bodies smaller; each takes more of a processor than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// As they are.
    None,
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd,
}

/// A way that is not taken is looked at again after so many bytes of bodies, by turns: a sample of
/// 16 KiB of 4 MiB costs half a per cent.
const SAMPLE_EVERY_BYTES: u64 = 4 << 20;
/// A new measurement counts for such a part of the mean.
const MEAN_PARTS: u64 = 8;
/// A way that takes more of a processor is taken when it is better by such a part: so none is
/// changed for nothing.
const BETTER_PARTS: u64 = 10;
/// Ratios are in such parts.
const WHOLE: u64 = 1024;

/// The figures of a way.
#[derive(Debug, Clone, Copy)]
struct Measure {
    /// The cost, in ps per byte of the body.
    cost_ps: u64,
    /// The part of the body that is left, of [`WHOLE`].
    left: u64,
}

/// Chooses a way, and says what to look at.
#[derive(Debug)]
pub struct Thrift {
    /// Of LZ4 and Zstandard.
    ways: [Option<Measure>; 2],
    /// The cost of a carried byte, in ps.
    carry_ps: Option<u64>,
    way: Way,
    /// Bytes until the next sample.
    until_sample: u64,
    next_sample: Way,
}

impl Default for Thrift {
    fn default() -> Self {
        Self { ways: [None; 2], carry_ps: None, way: Way::None, until_sample: 0, next_sample: Way::Lz4 }
    }
}

fn mean(old: Option<u64>, new: u64) -> u64 {
    old.map_or(new, |old| old - old / MEAN_PARTS + new / MEAN_PARTS)
}

/// Of what takes `ns` for `bytes`, the ps of a byte: at most a second.
fn ps_per_byte(bytes: u64, ns: u64) -> u64 {
    (ns.saturating_mul(1000) / bytes.max(1)).min(1_000_000_000_000)
}

impl Thrift {
    /// The way to take now.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// A body of so many bytes goes out: a way that is to be tried on a part of it, only to measure
    /// it.
    pub fn sample(&mut self, bytes: usize) -> Option<Way> {
        self.until_sample = self.until_sample.saturating_sub(bytes as u64);
        if self.until_sample > 0 {
            return None;
        }
        self.until_sample = if self.ways.iter().any(Option::is_none) { 0 } else { SAMPLE_EVERY_BYTES };
        let now = self.next_sample;
        self.next_sample = if now == Way::Lz4 { Way::Zstd } else { Way::Lz4 };
        // The way that is taken is measured anyway.
        Some(now).filter(|way| *way != self.way)
    }

    /// A body was compressed.
    pub fn squeezed(&mut self, way: Way, plain: u64, carried: u64, ns: u64) {
        let place = match way {
            Way::None => return,
            Way::Lz4 => 0,
            Way::Zstd => 1,
        };
        let Some(known) = self.ways.get_mut(place) else { return };
        let left = (carried.saturating_mul(WHOLE) / plain.max(1)).min(WHOLE);
        *known = Some(Measure {
            cost_ps: mean(known.map(|known| known.cost_ps), ps_per_byte(plain, ns)),
            left: mean(known.map(|known| known.left), left),
        });
        self.choose();
    }

    /// So many bytes went out in so many ns, the wait for the transport included.
    pub fn carried(&mut self, bytes: u64, ns: u64) {
        self.carry_ps = Some(mean(self.carry_ps, ps_per_byte(bytes, ns)));
        self.choose();
    }

    /// The cost of a body's byte by a way, in ps.
    fn cost(&self, way: Way) -> Option<u64> {
        let carry_ps = self.carry_ps?;
        let of = |place: usize| {
            let known = (*self.ways.get(place)?)?;
            Some(known.cost_ps + carry_ps.saturating_mul(known.left) / WHOLE)
        };
        match way {
            Way::None => Some(carry_ps),
            Way::Lz4 => of(0),
            Way::Zstd => of(1),
        }
    }

    fn choose(&mut self) {
        let Some(now) = self.cost(self.way) else { return };
        let all = [Way::None, Way::Lz4, Way::Zstd].into_iter();
        let best = all.filter_map(|way| Some((self.cost(way)?, way))).min_by_key(|(cost, _)| *cost);
        // What costs less of a processor needs no more than to be better.
        let enough = |way: Way| if way < self.way { now } else { now - now / BETTER_PARTS };
        if let Some((cost, way)) = best
            && cost < enough(way)
        {
            self.way = way;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network of so many bytes per us, and bodies of which so much is left; LZ4 takes 1 GB/s and
    /// Zstandard 300 MB/s.
    fn chosen(bytes_per_us: u64, left: [u64; 2]) -> Way {
        let mut thrift = Thrift::default();
        run(&mut thrift, bytes_per_us, left);
        thrift.way()
    }

    fn run(thrift: &mut Thrift, bytes_per_us: u64, left: [u64; 2]) {
        let body = 262_144;
        let squeeze = |thrift: &mut Thrift, way| {
            let (left, ns_per_kb) = if way == Way::Lz4 { (left[0], 1000) } else { (left[1], 3300) };
            thrift.squeezed(way, body, body * left / 100, body * ns_per_kb / 1000);
            body * left / 100
        };
        for _ in 0..2000 {
            if let Some(way) = thrift.sample(262_144) {
                squeeze(thrift, way);
            }
            let way = thrift.way();
            let carried = if way == Way::None { body } else { squeeze(thrift, way) };
            thrift.carried(carried, carried * 1000 / bytes_per_us);
        }
    }

    #[test]
    fn a_quick_network_carries_bodies_as_they_are() {
        assert_eq!(chosen(10_000, [40, 25]), Way::None);
    }

    #[test]
    fn a_slow_one_carries_what_is_smallest() {
        assert_eq!(chosen(12, [40, 25]), Way::Zstd);
    }

    #[test]
    fn in_between_what_is_quickest_to_make() {
        assert_eq!(chosen(300, [40, 35]), Way::Lz4);
    }

    #[test]
    fn what_does_not_get_smaller_is_left_alone() {
        for bytes_per_us in [1, 100, 10_000] {
            assert_eq!(chosen(bytes_per_us, [100, 100]), Way::None);
        }
    }

    #[test]
    fn it_follows_what_changes() {
        let mut thrift = Thrift::default();
        for (bytes_per_us, left, way) in [
            (12, [40, 25], Way::Zstd),
            (12, [100, 100], Way::None),
            (12, [40, 25], Way::Zstd),
            (10_000, [40, 25], Way::None),
        ] {
            run(&mut thrift, bytes_per_us, left);
            assert_eq!(thrift.way(), way);
        }
    }

    #[test]
    fn nothing_overflows() {
        let mut thrift = Thrift::default();
        for value in [0, 1, u64::MAX] {
            for way in [Way::None, Way::Lz4, Way::Zstd] {
                thrift.squeezed(way, value, u64::MAX, u64::MAX);
                thrift.squeezed(way, value, 0, 0);
            }
            thrift.carried(value, u64::MAX);
            thrift.carried(value, 0);
        }
    }
}
