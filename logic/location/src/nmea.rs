//! The three sentences of NMEA 0183 that say where one is. The fields are those of the standard's
//! version 4.11, of which later fields are passed over.

use crate::fix::Absurd;
use chrono::{NaiveDate, NaiveTime};

/// Longest line that is looked at, in bytes. NMEA 0183 has 82; some receivers write longer ones of
/// their own.
const LINE_BYTES_MAX: usize = 256;

/// Why a line says no position.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LineError {
    /// It is no sentence.
    #[error("no sentence of NMEA 0183")]
    Malformed,
    /// It was changed on its way.
    #[error("its checksum is {calculated:02X}, and it says {said:02X}")]
    Checksum {
        /// Of what it contains.
        calculated: u8,
        /// Of what it says.
        said: u8,
    },
    /// A value that no place has.
    #[error(transparent)]
    Absurd(#[from] Absurd),
}

/// A sentence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Sentence {
    /// Place, height, and how good the satellites' directions are.
    Gga {
        time: Option<NaiveTime>,
        place: Option<(f64, f64)>,
        is_valid: bool,
        dilution: Option<f64>,
        altitude_m: Option<f64>,
    },
    /// Place, movement and date.
    Rmc {
        time: Option<NaiveTime>,
        place: Option<(f64, f64)>,
        is_valid: bool,
        speed_knots: Option<f64>,
        course_deg: Option<f64>,
        date: Option<NaiveDate>,
    },
    /// Standard deviations of latitude and longitude, in m.
    Gst { time: Option<NaiveTime>, deviations_m: Option<(f64, f64)> },
    /// Any other.
    Other,
}

impl Sentence {
    /// Reads a line, with or without its end.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, LineError> {
        let line = line.trim_ascii();
        let text = str::from_utf8(line).ok().filter(|text| text.len() <= LINE_BYTES_MAX && text.is_ascii());
        let body = text.and_then(|text| text.strip_prefix('$')).ok_or(LineError::Malformed)?;
        let (body, said) = body.split_once('*').ok_or(LineError::Malformed)?;
        let said = u8::from_str_radix(said, 16).map_err(|_| LineError::Malformed)?;
        let calculated = body.bytes().fold(0, |sum, byte| sum ^ byte);
        if calculated != said {
            return Err(LineError::Checksum { calculated, said });
        }
        let mut fields = body.split(',');
        let address = fields.next().unwrap_or_default();
        let fields = Fields(fields.collect());
        // Two letters of the talker, three of the kind.
        match address.get(2..).filter(|_| address.len() == 5) {
            Some("GGA") => fields.gga(),
            Some("RMC") => fields.rmc(),
            Some("GST") => fields.gst(),
            _ => Some(Self::Other),
        }
        .ok_or(LineError::Malformed)
    }
}

/// The fields behind the address, the first of which has number 0. An empty field is none; one that
/// can't be read makes the sentence none.
struct Fields<'a>(Vec<&'a str>);

impl<'a> Fields<'a> {
    fn text(&self, number: usize) -> Option<&'a str> {
        self.0.get(number).copied().filter(|text| !text.is_empty())
    }

    fn number(&self, number: usize) -> Option<Option<f64>> {
        self.text(number).map(decimal).map_or(Some(None), |value| value.map(Some))
    }

    fn time(&self, number: usize) -> Option<Option<NaiveTime>> {
        self.text(number).map(time).map_or(Some(None), |value| value.map(Some))
    }

    /// Two fields of an angle each: its digits and its side.
    fn place(&self, first: usize) -> Option<Option<(f64, f64)>> {
        let all = [0, 1, 2, 3].map(|offset| self.text(first + offset));
        let [Some(latitude), Some(north), Some(longitude), Some(east)] = all else { return Some(None) };
        Some(Some((angle(latitude, 2, north, ["N", "S"])?, angle(longitude, 3, east, ["E", "W"])?)))
    }

    fn gga(&self) -> Option<Sentence> {
        let quality = self.number(5)?;
        Some(Sentence::Gga {
            time: self.time(0)?,
            place: self.place(1)?,
            is_valid: quality.is_some_and(|quality| quality >= 1.0),
            dilution: self.number(7)?,
            altitude_m: self.number(8)?,
        })
    }

    fn rmc(&self) -> Option<Sentence> {
        Some(Sentence::Rmc {
            time: self.time(0)?,
            is_valid: self.text(1) == Some("A"),
            place: self.place(2)?,
            speed_knots: self.number(6)?,
            course_deg: self.number(7)?,
            date: self.text(8).map(date).map_or(Some(None), |value| value.map(Some))?,
        })
    }

    fn gst(&self) -> Option<Sentence> {
        let both = self.number(5)?.zip(self.number(6)?);
        Some(Sentence::Gst { time: self.time(0)?, deviations_m: both })
    }
}

/// A number of digits with at most one point and one sign. Neither an exponent nor a word is one
/// here.
fn decimal(text: &str) -> Option<f64> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| is_plain)
}

/// `hhmmss`, with or without a fraction.
fn time(text: &str) -> Option<NaiveTime> {
    let two = |from: usize| text.get(from..from + 2)?.parse::<u32>().ok();
    let fraction = match text.get(6..)? {
        "" => 0.0,
        rest => rest.strip_prefix('.').and(decimal(rest))?,
    };
    let nanoseconds = (fraction * 1e9) as u32;
    NaiveTime::from_hms_nano_opt(two(0)?, two(2)?, two(4)?, nanoseconds)
}

/// `ddmmyy`. Years from 80 on are those of the last century, before which there were no receivers.
fn date(text: &str) -> Option<NaiveDate> {
    let two = |from: usize| text.get(from..from + 2)?.parse::<u32>().ok();
    let year = i32::try_from(two(4)?).ok()?;
    let century = if year >= 80 { 1900 } else { 2000 };
    NaiveDate::from_ymd_opt(century + year, two(2)?, two(0)?).filter(|_| text.len() == 6)
}

/// Degrees and minutes without a border: `4808.232`, `N`.
fn angle(text: &str, digits: usize, side: &str, sides: [&str; 2]) -> Option<f64> {
    let (degrees, minutes) = (text.get(..digits)?, text.get(digits..)?);
    let (degrees, minutes) = (decimal(degrees)?, decimal(minutes)?);
    let value = Some(degrees + minutes / 60.0).filter(|_| (0.0..60.0).contains(&minutes))?;
    match sides.iter().position(|one| *one == side)? {
        0 => Some(value),
        _ => Some(-value),
    }
}
