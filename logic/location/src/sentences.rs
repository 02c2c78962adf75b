//! A position as sentences of NMEA 0183: GGA, RMC and GST, which say place, height, movement, time
//! and accuracy.

use crate::fix::Fix;
use std::fmt::Write as _;

/// The dilution of precision that stands for an accuracy: readers take 15 m for one (gpsd's
/// `H_UERE_NO_DGPS`).
const DILUTION_M: f64 = 15.0;
/// From the radius that has 95 % to standard deviations in two directions that are alike.
const DEVIATION_OF_RADIUS: f64 = 2.0 * std::f64::consts::SQRT_2;
/// Knots of a metre per second.
const KNOTS_PER_MPS: f64 = 3600.0 / 1852.0;

/// The three sentences, each with its end. The talker is `GN`: a position of any source.
#[must_use]
pub fn sentences(fix: &Fix) -> String {
    let moment = fix.moment();
    let hundredths = moment.timestamp_subsec_millis() / 10;
    let (time, date) = (format!("{}.{hundredths:02}", moment.format("%H%M%S")), moment.format("%d%m%y"));
    let place = format!("{},{}", angle(fix.latitude, 2, ["N", "S"]), angle(fix.longitude, 3, ["E", "W"]));
    let number = |value: Option<f64>, places: usize| {
        value.map_or_else(String::new, |value| format!("{value:.places$}"))
    };
    let dilution = (fix.accuracy_m / DILUTION_M).clamp(0.1, 99.9);
    let deviation = fix.accuracy_m / DEVIATION_OF_RADIUS;
    let speed = number(fix.speed_mps.map(|speed| speed * KNOTS_PER_MPS), 2);
    let course = number(fix.course_deg, 1);
    [
        format!("GNRMC,{time},A,{place},{speed},{course},{date},,,A"),
        format!("GNGGA,{time},{place},1,04,{dilution:.1},{},M,,M,,", number(fix.altitude_m, 1)),
        format!("GNGST,{time},,,,,{deviation:.2},{deviation:.2},"),
    ]
    .iter()
    .fold(String::new(), |mut all, body| {
        let checksum = body.bytes().fold(0, |sum, byte| sum ^ byte);
        let _strings_take_all = write!(all, "${body}*{checksum:02X}\r\n");
        all
    })
}

/// Degrees and minutes, as `4808.23200,N`.
fn angle(degrees: f64, digits: usize, [positive, negative]: [&str; 2]) -> String {
    let side = if degrees < 0.0 { negative } else { positive };
    // In hundred-thousandths of a minute, so that 59.999999 minutes do not become 60.
    let units = (degrees.abs() * 60.0 * 100_000.0).round() as u64;
    let (whole, rest) = (units / 6_000_000, units % 6_000_000);
    format!("{whole:0digits$}{:02}.{:05},{side}", rest / 100_000, rest % 100_000)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // in a test, a panic is a message
    use super::*;
    use crate::Receiver;
    use crate::fix::tests::somewhere;
    use proptest::prelude::*;

    #[test]
    fn a_position_is_three_sentences() {
        let text = sentences(&somewhere());
        let lines: Vec<&str> = text.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines[0].starts_with("$GNRMC,010500.25,A,4808.23200,N,01134.53600,E,2.92,90.0,281125,,,A*"),
            "{text}"
        );
        assert!(
            lines[1].starts_with("$GNGGA,010500.25,4808.23200,N,01134.53600,E,1,04,0.2,519.0,M,,M,,*"),
            "{text}"
        );
        assert!(lines.iter().all(|line| line.len() <= 80));
    }

    proptest! {
        #[test]
        fn a_receiver_reads_what_was_written(
            latitude in -90.0_f64..=90.0, longitude in -180.0_f64..=180.0, accuracy in 0.5_f64..1_000.0,
            seconds in 500_000_000_i64..2_000_000_000
        ) {
            let fix = Fix { latitude, longitude, accuracy_m: accuracy, time_ms: seconds * 1_000, ..somewhere() };
            let mut receiver = Receiver::new(15.0);
            let mut found = None;
            for back in [2, 1, 0] {
                for line in sentences(&Fix { time_ms: fix.time_ms - back * 1_000, ..fix }).lines() {
                    found = receiver.line(line.as_bytes(), fix.time_ms).unwrap().or(found);
                }
            }
            let found = found.unwrap();
            prop_assert_eq!(found.time_ms, fix.time_ms);
            prop_assert!(found.distance_m(&fix) < 0.05, "{} m", found.distance_m(&fix));
            prop_assert!((found.accuracy_m - accuracy).abs() < 0.02);
        }
    }
}
