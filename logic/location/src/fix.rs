//! A position at a moment.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;

/// Radius of the sphere that stands for the earth, in m (the mean radius of WGS 84).
const EARTH_RADIUS_M: f64 = 6_371_008.8;
/// Heights beyond these are no receiver's: the deepest sea, and the orbits of satellites that use
/// receivers.
const ALTITUDES_M: std::ops::RangeInclusive<f64> = -12_000.0..=100_000.0;
/// A speed beyond this is no receiver's: orbits are slower.
const SPEED_MAX_MPS: f64 = 10_000.0;
/// The least accurate position that says anything: the distance to the other side of the earth.
const ACCURACY_MAX_M: f64 = 20_040_000.0;

/// A position at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Fix {
    /// When it was measured, in ms since 1970 (UTC).
    pub time_ms: i64,
    /// Degrees north, WGS 84.
    pub latitude: f64,
    /// Degrees east.
    pub longitude: f64,
    /// Metres above mean sea level.
    pub altitude_m: Option<f64>,
    /// Metres per second over ground.
    pub speed_mps: Option<f64>,
    /// Direction of the movement, in degrees from true north.
    pub course_deg: Option<f64>,
    /// The true place is within this radius with 95 %, in m.
    pub accuracy_m: f64,
}

/// A value that no place on earth has.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{what} can't be {value}")]
pub struct Absurd {
    /// The quantity.
    pub what: &'static str,
    /// Its value.
    pub value: f64,
}

impl Fix {
    /// The fix, where each of its values can be true.
    ///
    /// # Errors
    /// The first value that can't.
    pub fn checked(self) -> Result<Self, Absurd> {
        let within = |what, value: f64, range: std::ops::RangeInclusive<f64>| {
            if range.contains(&value) { Ok(()) } else { Err(Absurd { what, value }) }
        };
        within("the latitude", self.latitude, -90.0..=90.0)?;
        within("the longitude", self.longitude, -180.0..=180.0)?;
        within("the accuracy", self.accuracy_m, 0.0..=ACCURACY_MAX_M)?;
        within("the altitude", self.altitude_m.unwrap_or(0.0), ALTITUDES_M)?;
        within("the speed", self.speed_mps.unwrap_or(0.0), 0.0..=SPEED_MAX_MPS)?;
        within("the course", self.course_deg.unwrap_or(0.0), 0.0..=360.0)?;
        Ok(self)
    }

    /// The distance between two positions along the surface, in m (by the haversine formula).
    #[must_use]
    pub fn distance_m(&self, other: &Self) -> f64 {
        let (from, to) = (self.latitude.to_radians(), other.latitude.to_radians());
        let half = |difference: f64| (difference / 2.0).sin().powi(2);
        let chord =
            half(to - from) + from.cos() * to.cos() * half((other.longitude - self.longitude).to_radians());
        2.0 * EARTH_RADIUS_M * chord.clamp(0.0, 1.0).sqrt().asin()
    }

    /// Whether both can be true at once: their circles, three times as large, meet.
    #[must_use]
    pub fn agrees(&self, other: &Self) -> bool {
        self.distance_m(other) <= 3.0 * (self.accuracy_m + other.accuracy_m)
    }

    /// Its time as ISO 8601 has it, with milliseconds: `2026-11-28T01:05:00.250Z`.
    #[must_use]
    pub fn time(&self) -> String {
        self.moment().to_rfc3339_opts(SecondsFormat::Millis, true)
    }

    pub(crate) fn moment(&self) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(self.time_ms).unwrap_or_default()
    }
}

/// The place so many metres east and north of another, near to it.
pub(crate) fn moved((latitude, longitude): (f64, f64), east_m: f64, north_m: f64) -> (f64, f64) {
    let north = latitude + (north_m / EARTH_RADIUS_M).to_degrees();
    let east = longitude + (east_m / (EARTH_RADIUS_M * latitude.to_radians().cos())).to_degrees();
    (north, east)
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)] // in a test, a panic is a message
    use super::*;

    /// Somewhere in Munich.
    pub(crate) fn somewhere() -> Fix {
        Fix {
            time_ms: 1_764_291_900_250,
            latitude: 48.137_2,
            longitude: 11.575_6,
            altitude_m: Some(519.0),
            speed_mps: Some(1.5),
            course_deg: Some(90.0),
            accuracy_m: 3.0,
        }
    }

    #[test]
    fn distances_are_those_of_the_sphere() {
        let here = somewhere();
        let (latitude, longitude) = moved((here.latitude, here.longitude), 300.0, -400.0);
        let there = Fix { latitude, longitude, ..here };
        assert!((here.distance_m(&there) - 500.0).abs() < 0.5, "{}", here.distance_m(&there));
        let pole = Fix { latitude: 90.0, ..here };
        let other = Fix { latitude: -90.0, ..here };
        assert!((pole.distance_m(&other) - 20_015_000.0).abs() < 1_000.0);
        assert!(here.agrees(&here) && !here.agrees(&there));
    }

    #[test]
    fn what_no_place_has_is_refused_by_name() {
        let here = somewhere();
        assert_eq!(here.checked(), Ok(here));
        for (fix, what) in [
            (Fix { latitude: 90.1, ..here }, "latitude"),
            (Fix { longitude: f64::NAN, ..here }, "longitude"),
            (Fix { accuracy_m: -1.0, ..here }, "accuracy"),
            (Fix { accuracy_m: f64::INFINITY, ..here }, "accuracy"),
            (Fix { altitude_m: Some(1e9), ..here }, "altitude"),
            (Fix { speed_mps: Some(-1.0), ..here }, "speed"),
            (Fix { course_deg: Some(400.0), ..here }, "course"),
        ] {
            assert!(fix.checked().unwrap_err().to_string().contains(what), "{what}");
        }
    }

    #[test]
    fn the_time_is_that_of_utc() {
        assert_eq!(somewhere().time(), "2025-11-28T01:05:00.250Z");
    }
}
