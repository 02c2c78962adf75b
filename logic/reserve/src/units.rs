//! Sizes as a person reads them.

use std::fmt;

/// A size in the unit that suits it, to a tenth of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u128);

/// Binary units, as memory has them.
const OF_BYTES: [(&str, u128); 5] =
    [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl Bytes {
    /// At least that much, in tenths of its unit: what is asked to go has to be enough.
    #[must_use]
    pub fn at_least(bytes: u128) -> Self {
        Self(rounded_up(bytes, &OF_BYTES))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        tell(self.0, &OF_BYTES, "B", f)
    }
}

fn unit(number: u128, units: &[(&'static str, u128)]) -> Option<(&'static str, u128)> {
    units.iter().copied().find(|(_, factor)| number >= *factor)
}

/// The least number that is shown as it is and is not below this one.
fn rounded_up(number: u128, units: &[(&'static str, u128)]) -> u128 {
    let Some((_, factor)) = unit(number, units) else { return number };
    // The first number of which as many tenths are shown.
    let tenths = number.saturating_mul(10).div_ceil(factor);
    tenths.saturating_mul(factor).div_ceil(10)
}

fn tell(
    number: u128,
    units: &[(&'static str, u128)],
    smallest: &str,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let Some((name, factor)) = unit(number, units) else { return write!(f, "{number} {smallest}") };
    if number.is_multiple_of(factor) {
        return write!(f, "{} {name}", number / factor);
    }
    let tenths = number.saturating_mul(10) / factor;
    write!(f, "{}.{} {name}", tenths / 10, tenths % 10)
}

/// A share, given in millionths, shown in hundredths without losing any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Percent(pub u64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0 / 10_000)?;
        let rest = format!("{:04}", self.0 % 10_000);
        let rest = rest.trim_end_matches('0');
        if !rest.is_empty() {
            write!(f, ".{rest}")?;
        }
        f.write_str(" %")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_shown_in_percent() {
        let shown = |ppm: u64| Percent(ppm).to_string();
        assert_eq!(
            (shown(930_000), shown(0), shown(975_001)),
            ("93 %".into(), "0 %".into(), "97.5001 %".into())
        );
    }

    #[test]
    fn sizes_are_shown_in_their_units() {
        let shown = |bytes: u128| Bytes(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1_023), "1023 B");
        assert_eq!(shown(64 << 20), "64 MiB");
        assert_eq!(shown(12_342_042 << 10), "11.7 GiB");
        assert_eq!(shown(u128::from(u64::MAX)), "16383.9 PiB");
    }

    #[test]
    fn what_is_rounded_up_is_enough() {
        for number in
            [0, 1, 1_023, 1_024, 1_025, (1 << 20) - 1, (1 << 20) + 1, 12_342_042 << 10, u128::from(u64::MAX)]
        {
            let up = Bytes::at_least(number);
            assert!(up.0 >= number, "{number}");
        }
        assert_eq!(Bytes::at_least(1_025).to_string(), "1.1 KiB");
    }
}
