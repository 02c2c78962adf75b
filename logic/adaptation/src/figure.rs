//! A monitor's figures: whole thousandths, read from text that a program wrote or made of two
//! counters.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest text of a figure, in bytes: a number of ten digits with a fraction and a line's end, and
/// room to spare.
pub const FIGURE_BYTES_MAX: usize = 64;
/// Greatest figure: a thousand million. Nanoseconds of a second, bits of a link and requests of a
/// busy service fit.
pub const FIGURE_MAX: u64 = 1_000_000_000;
/// Digits of a fraction that count; further ones are cut off.
const FRACTION_DIGITS: usize = 3;
const THOUSAND: u64 = 1_000;

/// A figure in thousandths: 2.5 is 2,500.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Figure(pub u64);

/// Why a text is no figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FigureError {
    /// Nothing was written yet.
    #[error("nothing was written")]
    Empty,
    /// It is longer than any number.
    #[error("{0} bytes were written, and a figure has {FIGURE_BYTES_MAX} at most")]
    TooLong(usize),
    /// It is no decimal number.
    #[error("a figure is a number such as 12 or 0.5, without sign, exponent or unit")]
    NoNumber,
    /// It is a number that nothing has.
    #[error("a figure is {FIGURE_MAX} at most")]
    TooGreat,
}

impl Figure {
    /// A whole number.
    #[must_use]
    pub fn whole(number: u64) -> Self {
        Self(number.min(FIGURE_MAX) * THOUSAND)
    }

    /// Reads what a program wrote: digits, and a fraction after a point if there is one.
    ///
    /// # Errors
    /// Where it is no such number, or beyond [`FIGURE_MAX`].
    pub fn parse(text: &[u8]) -> Result<Self, FigureError> {
        if text.len() > FIGURE_BYTES_MAX {
            return Err(FigureError::TooLong(text.len()));
        }
        let text = text.trim_ascii();
        if text.is_empty() {
            return Err(FigureError::Empty);
        }
        let (whole, fraction) = match text.iter().position(|byte| *byte == b'.') {
            Some(at) => (&text[..at], text.get(at + 1..).unwrap_or_default()),
            None => (text, &b"0"[..]),
        };
        let number = digits(whole)?;
        digits_only(fraction)?;
        let kept = fraction.get(..FRACTION_DIGITS).unwrap_or(fraction);
        let scale = (kept.len()..FRACTION_DIGITS).fold(1, |scale, _| scale * 10);
        let milli = number * THOUSAND + digits(kept)? * scale;
        if milli > FIGURE_MAX * THOUSAND { Err(FigureError::TooGreat) } else { Ok(Self(milli)) }
    }
}

fn digits_only(text: &[u8]) -> Result<(), FigureError> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(FigureError::NoNumber);
    }
    Ok(())
}

fn digits(text: &[u8]) -> Result<u64, FigureError> {
    digits_only(text)?;
    text.iter().try_fold(0_u64, |sum, byte| {
        let sum = sum * 10 + u64::from(byte - b'0');
        if sum > FIGURE_MAX { Err(FigureError::TooGreat) } else { Ok(sum) }
    })
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / THOUSAND, self.0 % THOUSAND);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let fraction = format!("{rest:03}");
        write!(f, "{whole}.{}", fraction.trim_end_matches('0'))
    }
}

/// Two counters that only grow, such as missed periods and all periods: what share of the second
/// the first was since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    last: Option<(u64, u64)>,
}

impl Share {
    /// Takes what the counters are now. The share since the last look is a percentage, 100 at most;
    /// `None` where nothing was counted since, at the first look, and where a counter went back
    /// (another process counts now).
    pub fn look(&mut self, part: u64, whole: u64) -> Option<Figure> {
        let (part_before, whole_before) = self.last.replace((part, whole))?;
        let (parts, wholes) = (part.checked_sub(part_before)?, whole.checked_sub(whole_before)?);
        if wholes == 0 {
            return None;
        }
        let milli = u128::from(parts.min(wholes)) * 100 * u128::from(THOUSAND) / u128::from(wholes);
        u64::try_from(milli).ok().map(Figure)
    }

    /// Takes what the counters are now, and divides what each has grown by: `first * scale /
    /// second`, as a mean or a rate.
    pub fn ratio(&mut self, first: u64, second: u64, scale: u64) -> Option<Figure> {
        let (first_before, second_before) = self.last.replace((first, second))?;
        let (firsts, seconds) = (first.checked_sub(first_before)?, second.checked_sub(second_before)?);
        if seconds == 0 {
            return None;
        }
        let milli = u128::from(firsts) * u128::from(scale) * u128::from(THOUSAND) / u128::from(seconds);
        Some(Figure(u64::try_from(milli).unwrap_or(u64::MAX).min(FIGURE_MAX * THOUSAND)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_everything_else_is_refused() {
        let read = |text: &str| Figure::parse(text.as_bytes());
        assert_eq!(read("12\n"), Ok(Figure(12_000)));
        assert_eq!(read(" 0.5 "), Ok(Figure(500)));
        assert_eq!(read("2.0009"), Ok(Figure(2_000)));
        assert_eq!(read("1000000000"), Ok(Figure(FIGURE_MAX * 1_000)));
        for text in ["NaN", "inf", "-1", "+1", "1e308", "0x10", "1.", ".5", "1.2.3", "1 2", "\u{663}"] {
            assert_eq!(read(text), Err(FigureError::NoNumber), "{text}");
        }
        assert_eq!(read("\n"), Err(FigureError::Empty));
        assert_eq!(read("1000000001"), Err(FigureError::TooGreat));
        assert_eq!(read("1000000000.001"), Err(FigureError::TooGreat));
        assert_eq!(read(&"9".repeat(63)), Err(FigureError::TooGreat));
        assert_eq!(read(&"0".repeat(65)), Err(FigureError::TooLong(65)));
        assert_eq!(
            [Figure(12_000), Figure(500), Figure(2_050)].map(|figure| figure.to_string()),
            ["12", "0.5", "2.05"]
        );
    }

    #[test]
    fn counters_that_went_back_say_nothing() {
        let mut share = Share::default();
        assert_eq!(share.look(0, 0), None);
        assert_eq!(share.look(1, 4), Some(Figure(25_000)));
        assert_eq!(share.look(1, 4), None);
        assert_eq!(share.look(0, 2), None, "another process counts");
        assert_eq!(share.look(9, 4), Some(Figure(100_000)), "more parts than wholes are all of them");
        let mut mean = Share::default();
        assert_eq!(mean.ratio(0, 0, 1), None);
        assert_eq!(mean.ratio(u64::MAX, 1, 1_000), Some(Figure(FIGURE_MAX * 1_000)));
    }
}
