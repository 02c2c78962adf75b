//! Positions out of the sentences of NMEA 0183 that a satellite receiver writes: those of one
//! moment come as several lines.

use crate::fix::{Absurd, Fix};
use crate::nmea::{LineError, Sentence};
use chrono::{DateTime, Days, NaiveDate, NaiveDateTime, NaiveTime, Utc};

/// Metres per second of a knot.
const MPS_PER_KNOT: f64 = 1852.0 / 3600.0;
/// From standard deviations in two directions to the radius that has 95 % (twice the distance root
/// mean square).
const RADII_95: f64 = 2.0;
/// A receiver whose clock is so far from ours has not set it yet, or writes what was recorded; its
/// date then counts as it is.
const HALF_DAY_S: i64 = 12 * 60 * 60;

/// The kinds of sentences that are understood, as bits.
const GGA: u8 = 1;
const RMC: u8 = 2;
const GST: u8 = 4;

/// The facts of one moment so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Epoch {
    time: NaiveTime,
    /// The kinds of sentences that have come.
    kinds: u8,
    place: Option<(f64, f64)>,
    altitude_m: Option<f64>,
    dilution: Option<f64>,
    speed_mps: Option<f64>,
    course_deg: Option<f64>,
    accuracy_m: Option<f64>,
    /// Whether the receiver says that it has no position.
    is_void: bool,
}

/// Reads the lines of one receiver.
#[derive(Debug, Clone)]
pub struct Receiver {
    /// The receiver's error of a distance to a satellite, with 95 %, in m; the accuracy is so many
    /// times the dilution of precision.
    range_error_m: f64,
    date: Option<NaiveDate>,
    epoch: Epoch,
    /// The kinds that the moment before had: when all of them are there, the moment is complete.
    kinds_before: u8,
    /// Whether the moment's fix has been given.
    is_given: bool,
    /// The last accuracy that the receiver told itself.
    accuracy_before_m: Option<f64>,
}

impl Receiver {
    /// A receiver whose distances to satellites are as good as `range_error_m` with 95 %.
    #[must_use]
    pub fn new(range_error_m: f64) -> Self {
        Self {
            range_error_m,
            date: None,
            epoch: Epoch::default(),
            kinds_before: 0,
            is_given: true,
            accuracy_before_m: None,
        }
    }

    /// Takes a line, with or without its end, at `now_ms` since 1970. Gives the fix of a moment as
    /// soon as its sentences are there.
    ///
    /// # Errors
    /// [`LineError`]; the line then counts for nothing.
    pub fn line(&mut self, line: &[u8], now_ms: i64) -> Result<Option<Fix>, LineError> {
        let sentence = Sentence::parse(line)?;
        // Of the many sentences that there are three say where we are.
        let (time, kind) = match sentence {
            Sentence::Gga { time, .. } => (time, GGA),
            Sentence::Rmc { time, .. } => (time, RMC),
            Sentence::Gst { time, .. } => (time, GST),
            Sentence::Other => return Ok(None),
        };
        let Some(time) = time else { return Ok(None) };
        let before = self.turn_to(time, now_ms);
        let mut epoch = self.epoch;
        epoch.take(&sentence);
        if let Sentence::Rmc { date: Some(date), .. } = sentence {
            self.date = Some(date);
        }
        epoch.kinds |= kind;
        self.epoch = epoch;
        self.accuracy_before_m = epoch.accuracy_m.or(self.accuracy_before_m);
        let is_complete = self.kinds_before != 0 && self.kinds_before & !epoch.kinds == 0;
        let now = if is_complete && !self.is_given { self.give(now_ms) } else { Ok(None) };
        // A moment that was cut off, and one that is complete, are never both there: the first was
        // given by its end.
        match before {
            Ok(Some(fix)) => Ok(Some(now.ok().flatten().unwrap_or(fix))),
            Ok(None) => now,
            Err(error) => now.and_then(|fix| fix.map_or(Err(error.into()), |fix| Ok(Some(fix)))),
        }
    }

    /// Begins another moment where this is not its time; the one before is given if it was not.
    fn turn_to(&mut self, time: NaiveTime, now_ms: i64) -> Result<Option<Fix>, Absurd> {
        if self.epoch.kinds != 0 && self.epoch.time == time {
            return Ok(None);
        }
        let given = if self.epoch.kinds != 0 && !self.is_given { self.give(now_ms) } else { Ok(None) };
        self.kinds_before = self.epoch.kinds;
        self.epoch = Epoch { time, ..Epoch::default() };
        self.is_given = false;
        given.map_err(|error| match error {
            LineError::Absurd(absurd) => absurd,
            LineError::Malformed | LineError::Checksum { .. } => Absurd { what: "the line", value: f64::NAN },
        })
    }

    /// The fix of the moment.
    fn give(&mut self, now_ms: i64) -> Result<Option<Fix>, LineError> {
        self.is_given = true;
        let Epoch { place, is_void, dilution, .. } = self.epoch;
        let Some((latitude, longitude)) = place.filter(|_| !is_void) else { return Ok(None) };
        let by_dilution = dilution.map(|dilution| dilution * self.range_error_m);
        let accuracy_m =
            self.epoch.accuracy_m.or(self.accuracy_before_m).or(by_dilution).unwrap_or(self.range_error_m);
        let fix = Fix {
            time_ms: self.moment(now_ms).and_utc().timestamp_millis(),
            latitude,
            longitude,
            altitude_m: self.epoch.altitude_m,
            speed_mps: self.epoch.speed_mps,
            course_deg: self.epoch.course_deg,
            accuracy_m,
        };
        Ok(Some(fix.checked()?))
    }

    /// The moment's date and time. A receiver that never tells the date means the time of day that
    /// is nearest to now.
    fn moment(&self, now_ms: i64) -> NaiveDateTime {
        let now: DateTime<Utc> = DateTime::from_timestamp_millis(now_ms).unwrap_or_default();
        let time = self.epoch.time;
        if let Some(date) = self.date {
            return date.and_time(time);
        }
        let moment = now.date_naive().and_time(time);
        let ahead = (moment - now.naive_utc()).num_seconds();
        let moved = match ahead {
            ahead if ahead > HALF_DAY_S => moment.checked_sub_days(Days::new(1)),
            ahead if ahead < -HALF_DAY_S => moment.checked_add_days(Days::new(1)),
            _ => None,
        };
        moved.unwrap_or(moment)
    }
}

impl Epoch {
    fn take(&mut self, sentence: &Sentence) {
        match *sentence {
            Sentence::Gga { place, is_valid, dilution, altitude_m, .. } => {
                self.is_void |= !is_valid;
                self.place = place.or(self.place);
                (self.altitude_m, self.dilution) = (altitude_m, dilution);
            }
            Sentence::Rmc { place, is_valid, speed_knots, course_deg, .. } => {
                self.is_void |= !is_valid;
                self.place = self.place.or(place);
                self.speed_mps = speed_knots.map(|knots| knots * MPS_PER_KNOT);
                self.course_deg = course_deg;
            }
            Sentence::Gst { deviations_m, .. } => {
                self.accuracy_m = deviations_m.map(|(north, east)| RADII_95 * north.hypot(east));
            }
            Sentence::Other => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // in a test, a panic is a message
    use super::*;
    use proptest::prelude::*;

    /// 2026-11-28 12:00:00 UTC.
    const NOON_MS: i64 = 1_795_867_200_000;

    fn line(body: &str) -> String {
        let checksum = body.bytes().fold(0, |sum, byte| sum ^ byte);
        format!("${body}*{checksum:02X}\r\n")
    }

    fn gga(time: &str, minutes: &str) -> String {
        line(&format!("GNGGA,{time},48{minutes},N,01134.536,E,1,10,0.8,519.0,M,46.9,M,,"))
    }

    fn rmc(time: &str) -> String {
        line(&format!("GNRMC,{time},A,4808.232,N,01134.536,E,002.9,090.0,281126,,,A"))
    }

    fn fixes(receiver: &mut Receiver, lines: &[String]) -> Vec<Fix> {
        lines.iter().filter_map(|line| receiver.line(line.as_bytes(), NOON_MS).unwrap()).collect()
    }

    #[test]
    fn a_moment_is_given_with_its_last_sentence() {
        let mut receiver = Receiver::new(15.0);
        // The first moment ends when the second begins: nobody knows before how many sentences
        // there are.
        let first = [rmc("115958.00"), gga("115958.00", "08.232")];
        assert_eq!(fixes(&mut receiver, &first), []);
        let second = fixes(&mut receiver, &[rmc("115959.00")]);
        assert_eq!(second.len(), 1);
        let second = fixes(&mut receiver, &[gga("115959.00", "08.232")]);
        let [fix] = second[..] else { panic!("{second:?}") };
        assert_eq!(fix.time_ms, NOON_MS - 1_000);
        assert!((fix.latitude - 48.1372).abs() < 1e-6 && (fix.longitude - 11.5756).abs() < 1e-6);
        assert!((fix.accuracy_m - 12.0).abs() < 1e-5, "0.8 times 15: {fix:?}");
        assert!(fix.speed_mps.is_some_and(|speed| (speed - 1.492).abs() < 0.01));
        assert_eq!((fix.course_deg, fix.altitude_m), (Some(90.0), Some(519.0)));
    }

    #[test]
    fn what_the_receiver_says_of_its_accuracy_counts_more() {
        let mut receiver = Receiver::new(15.0);
        let gst = |time: &str| line(&format!("GNGST,{time},,,,,1.5,2.0,4.0"));
        for time in ["115957.00", "115958.00"] {
            fixes(&mut receiver, &[gga(time, "08.232"), gst(time)]);
        }
        let found = fixes(&mut receiver, &[gga("115959.00", "08.232"), gst("115959.00")]);
        let [fix] = found[..] else { panic!("{found:?}") };
        assert!((fix.accuracy_m - 5.0).abs() < 1e-5, "twice the root of 1.5 and 2.0: {fix:?}");
    }

    #[test]
    fn without_a_date_the_time_is_the_nearest() {
        let mut receiver = Receiver::new(15.0);
        let midnight = NOON_MS - 12 * 3_600_000;
        fixes(&mut receiver, &[gga("235957.00", "08.232"), gga("235958.00", "08.232")]);
        let fix = receiver.line(gga("235959.00", "08.232").as_bytes(), midnight + 500).unwrap().unwrap();
        assert_eq!(fix.time_ms, midnight - 1_000);
    }

    #[test]
    fn a_receiver_without_a_position_gives_none() {
        let mut receiver = Receiver::new(15.0);
        let void = |time: &str| line(&format!("GNRMC,{time},V,,,,,,,281126,,,N"));
        let empty = |time: &str| line(&format!("GNGGA,{time},,,,,0,00,99.9,,M,,M,,"));
        for time in ["115957.00", "115958.00", "115959.00"] {
            assert_eq!(fixes(&mut receiver, &[void(time), empty(time)]), []);
        }
    }

    #[test]
    fn lines_that_are_none_are_refused_and_change_nothing() {
        let mut receiver = Receiver::new(15.0);
        fixes(&mut receiver, &[rmc("115958.00"), gga("115958.00", "08.232"), rmc("115959.00")]);
        let torn = gga("115959.00", "08.232").replace("48", "49");
        assert!(matches!(receiver.line(torn.as_bytes(), NOON_MS), Err(LineError::Checksum { .. })));
        for nonsense in [&b"\xff\xfe"[..], b"", b"$", b"GNGGA", &[b'$'; 300]] {
            assert_eq!(receiver.line(nonsense, NOON_MS), Err(LineError::Malformed), "{nonsense:?}");
        }
        let other = line("GPGSV,1,1,01,01,40,083,46");
        assert_eq!(receiver.line(other.as_bytes(), NOON_MS), Ok(None));
        assert!(receiver.line(gga("115959.00", "08.232").as_bytes(), NOON_MS).unwrap().is_some());
        // It goes on after a place that there is not.
        let absurd = line("GNGGA,120000.00,9908.232,N,01134.536,E,1,10,0.8,519.0,M,46.9,M,,");
        receiver.line(rmc("120000.00").as_bytes(), NOON_MS).unwrap();
        assert!(receiver.line(absurd.as_bytes(), NOON_MS).is_err());
        receiver.line(rmc("120001.00").as_bytes(), NOON_MS).unwrap();
        assert!(receiver.line(gga("120001.00", "08.232").as_bytes(), NOON_MS).unwrap().is_some());
    }

    proptest! {
        #[test]
        fn no_line_ends_it(lines in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..20)) {
            let mut receiver = Receiver::new(15.0);
            for line in lines {
                let _any = receiver.line(&line, NOON_MS);
            }
        }

        #[test]
        fn no_sentence_ends_it(fields in proptest::collection::vec("[0-9.NSEWAV-]{0,12}", 0..20), kind in "(GGA|RMC|GST)") {
            let mut receiver = Receiver::new(15.0);
            for time in ["115958.00", "115959.00"] {
                let text = line(&format!("GN{kind},{time},{}", fields.join(",")));
                if let Ok(Some(fix)) = receiver.line(text.as_bytes(), NOON_MS) {
                    prop_assert!(fix.checked().is_ok());
                }
            }
        }
    }
}
