//! Pictures and intervals.

use wire::camera::Format;

/// The format and the size of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Picture {
    /// How its pixels lie.
    pub format: Format,
    /// Pixels of a line.
    pub width: u32,
    /// Lines.
    pub height: u32,
}

impl Picture {
    /// Bytes of a line.
    #[must_use]
    pub fn line_bytes(self) -> u32 {
        self.width.saturating_mul(self.format.pixel_bytes())
    }

    /// Bytes of a frame.
    #[must_use]
    pub fn bytes(self) -> u32 {
        self.line_bytes().saturating_mul(self.height)
    }
}

/// The time between two frames: a fraction of a second, as V4L2 has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interval {
    /// Above.
    pub numerator: u32,
    /// Below.
    pub denominator: u32,
}

impl Interval {
    /// Returns the interval of `rate` frames in a second.
    #[must_use]
    pub const fn of_rate(rate: u32) -> Self {
        Self { numerator: 1, denominator: rate }
    }

    /// When the frame of this number is due after the first one, in ns, to the nearest below.
    #[must_use]
    pub fn due_ns(self, number: u64) -> u64 {
        let ns = u128::from(number) * 1_000_000_000 * u128::from(self.numerator);
        let due = ns.checked_div(u128::from(self.denominator)).unwrap_or(0);
        u64::try_from(due).unwrap_or(u64::MAX)
    }

    /// How many frames are due within `ns` after the first one, that one included: the number of
    /// the next one.
    #[must_use]
    pub fn number_after(self, ns: u64) -> u64 {
        let below = 1_000_000_000 * u128::from(self.numerator);
        let whole = (u128::from(ns) * u128::from(self.denominator)).checked_div(below).unwrap_or(0);
        let number = u64::try_from(whole).unwrap_or(u64::MAX - 1);
        // Times are rounded down, so the next one may be due already.
        let next = if self.due_ns(number + 1) <= ns { number + 1 } else { number };
        next + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_due_counts() {
        for rate in [1, 7, 30, 240] {
            let interval = Interval::of_rate(rate);
            for number in 0..1000 {
                let due = interval.due_ns(number);
                assert_eq!(interval.number_after(due), number + 1, "{rate} {number}");
                assert_eq!(interval.number_after(due + 1), number + 1, "{rate} {number}");
            }
        }
    }
}
