//! Where one is by the strengths of radio signals: a survey has measured them at known points of a
//! floor, and the points that look most like what is heard now say where that is. A filter follows
//! the movement.

use crate::fix::{Absurd, Fix, moved};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Points of a survey: most. A floor of a hundred metres by a hundred has 10,000, one for each
/// square metre.
const POINTS_MAX: usize = 10_000;
/// Points of a survey: least. With fewer nothing is between them.
const POINTS_MIN: usize = 3;
/// Beacons in one measurement: most.
const BEACONS_MAX: usize = 256;
/// Points may be so far from the origin, in m: within that the earth is flat enough.
const EXTENT_M: f64 = 10_000.0;
/// Strengths that receivers tell, in dBm.
const STRENGTHS_DBM: std::ops::RangeInclusive<f64> = -127.0..=20.0;
/// The strength of a beacon that is not heard, in dBm: below what receivers hear.
const SILENT_DBM: f64 = -100.0;
/// How many of the points that are most alike say where it is.
const NEIGHBOURS: usize = 4;
/// Added to each distance between signals, in dB, so that a point that fits exactly does not count
/// alone.
const SOFTENING_DB: f64 = 1.0;
/// How much a person or a cart changes speed, as a standard deviation in m/s² of white noise.
const ACCELERATION_MPS2: f64 = 0.5;
/// The least error of a single measurement, as a standard deviation in m: what bodies and doors do
/// to signals.
const MEASUREMENT_MIN_M: f64 = 1.5;
/// Without a measurement for so long, in ms, the movement before says nothing.
const FORGOTTEN_MS: i64 = 10_000;
/// From a standard deviation in each of two directions to the radius that has 95 %.
const RADII_95: f64 = 2.447_7;

/// Why a survey can't be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SurveyError {
    /// It is not in the format.
    #[error("it is no survey: {0}; docs/spec/location.md has the format")]
    Format(String),
    /// Too few or too many points.
    #[error("it has {0} points, and between {POINTS_MIN} and {POINTS_MAX} can be used")]
    Points(usize),
    /// A point is out of bounds.
    #[error("point {index}: {what}")]
    Point {
        /// Its index, from 0.
        index: usize,
        /// The fault.
        what: String,
    },
    /// Its origin is no place.
    #[error("its origin: {0}")]
    Origin(#[from] Absurd),
}

/// The format of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    origin: Origin,
    points: Vec<FilePoint>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Origin {
    latitude: f64,
    longitude: f64,
    #[serde(default)]
    altitude_m: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePoint {
    east_m: f64,
    north_m: f64,
    dbm: BTreeMap<String, f64>,
}

/// A point with what was heard there, by the number of the beacon.
#[derive(Debug, Clone)]
struct Point {
    at: [f64; 2],
    dbm: Vec<f64>,
}

/// A survey of a floor.
#[derive(Debug, Clone)]
pub struct Survey {
    origin: (f64, f64),
    altitude_m: Option<f64>,
    beacons: Vec<String>,
    points: Vec<Point>,
}

impl Survey {
    /// Reads a survey.
    ///
    /// # Errors
    /// [`SurveyError`], with the point that is wrong.
    pub fn parse(json: &[u8]) -> Result<Self, SurveyError> {
        let file: File =
            serde_json::from_slice(json).map_err(|error| SurveyError::Format(error.to_string()))?;
        if !(POINTS_MIN..=POINTS_MAX).contains(&file.points.len()) {
            return Err(SurveyError::Points(file.points.len()));
        }
        let Origin { latitude, longitude, altitude_m } = file.origin;
        fix_at((latitude, longitude), altitude_m, 0, 0.0).checked()?;
        for (index, point) in file.points.iter().enumerate() {
            point.check().map_err(|what| SurveyError::Point { index, what })?;
        }
        let mut beacons: Vec<String> =
            file.points.iter().flat_map(|point| point.dbm.keys().cloned()).collect();
        beacons.sort_unstable();
        beacons.dedup();
        if beacons.len() > BEACONS_MAX {
            let what =
                format!("all points have {} beacons, of which {BEACONS_MAX} are the most", beacons.len());
            return Err(SurveyError::Format(what));
        }
        let dbm = |point: &FilePoint| {
            beacons.iter().map(|name| point.dbm.get(name).copied().unwrap_or(SILENT_DBM)).collect()
        };
        let points = file
            .points
            .iter()
            .map(|point| Point { at: [point.east_m, point.north_m], dbm: dbm(point) })
            .collect();
        Ok(Self { origin: (latitude, longitude), altitude_m, beacons, points })
    }

    /// Metres east and north of the origin, and the standard deviation of that in each direction;
    /// `None` where no beacon of the survey is heard.
    fn locate(&self, heard: &BTreeMap<String, f64>) -> Option<([f64; 2], f64)> {
        let known = self.beacons.iter().any(|beacon| heard.contains_key(beacon));
        if !known {
            return None;
        }
        let heard: Vec<f64> =
            self.beacons.iter().map(|beacon| heard.get(beacon).copied().unwrap_or(SILENT_DBM)).collect();
        let mut alike: Vec<(f64, [f64; 2])> =
            self.points.iter().map(|point| (point.distance_db(&heard), point.at)).collect();
        let count = NEIGHBOURS.min(alike.len());
        alike.select_nth_unstable_by(count - 1, |a, b| a.0.total_cmp(&b.0));
        let nearest = &alike[..count];
        let weight = |distance: f64| (distance + SOFTENING_DB).recip();
        let total: f64 = nearest.iter().map(|&(distance, _)| weight(distance)).sum();
        let mean = [0, 1].map(|axis| {
            nearest.iter().map(|&(distance, at)| weight(distance) * at[axis]).sum::<f64>() / total
        });
        let spread = |at: [f64; 2]| (at[0] - mean[0]).powi(2) + (at[1] - mean[1]).powi(2);
        let variance =
            nearest.iter().map(|&(distance, at)| weight(distance) * spread(at)).sum::<f64>() / total / 2.0;
        Some((mean, variance.sqrt().max(MEASUREMENT_MIN_M)))
    }
}

impl FilePoint {
    fn check(&self) -> Result<(), String> {
        for (axis, value) in [("east_m", self.east_m), ("north_m", self.north_m)] {
            if !(-EXTENT_M..=EXTENT_M).contains(&value) {
                return Err(format!("`{axis}` is {value}, and at most {EXTENT_M} can be used"));
            }
        }
        if self.dbm.is_empty() {
            return Err("no beacon was heard there".to_owned());
        }
        match self.dbm.iter().find(|(_, dbm)| !STRENGTHS_DBM.contains(dbm)) {
            Some((beacon, dbm)) => Err(format!("beacon {beacon:?} was heard with {dbm} dBm")),
            None => Ok(()),
        }
    }
}

impl Point {
    /// The root mean square of the differences, in dB.
    fn distance_db(&self, heard: &[f64]) -> f64 {
        let squares: f64 = self.dbm.iter().zip(heard).map(|(a, b)| (a - b).powi(2)).sum();
        (squares / heard.len() as f64).sqrt()
    }
}

fn fix_at((latitude, longitude): (f64, f64), altitude_m: Option<f64>, time_ms: i64, accuracy_m: f64) -> Fix {
    Fix { time_ms, latitude, longitude, altitude_m, speed_mps: None, course_deg: None, accuracy_m }
}

/// A Kalman filter of position and speed along one axis.
#[derive(Debug, Clone, Copy)]
struct Axis {
    position: f64,
    speed: f64,
    /// Variances of position and speed, and their covariance.
    variance: [f64; 3],
}

impl Axis {
    fn at(position: f64, deviation: f64) -> Self {
        // Nobody in a building is faster than some 2 m/s.
        Self { position, speed: 0.0, variance: [deviation.powi(2), 4.0, 0.0] }
    }

    fn predict(&mut self, seconds: f64) {
        let [position, speed, both] = self.variance;
        let noise = ACCELERATION_MPS2.powi(2);
        self.position += self.speed * seconds;
        self.variance = [
            position + 2.0 * seconds * both + seconds.powi(2) * speed + noise * seconds.powi(4) / 4.0,
            speed + noise * seconds.powi(2),
            both + seconds * speed + noise * seconds.powi(3) / 2.0,
        ];
    }

    fn correct(&mut self, measured: f64, deviation: f64) {
        let [position, speed, both] = self.variance;
        let total = position + deviation.powi(2);
        let (gain, gain_speed) = (position / total, both / total);
        let innovation = measured - self.position;
        self.position += gain * innovation;
        self.speed += gain_speed * innovation;
        self.variance = [(1.0 - gain) * position, speed - gain_speed * both, (1.0 - gain) * both];
    }
}

/// Follows one receiver through a survey.
#[derive(Debug, Clone)]
pub struct Tracker {
    survey: Survey,
    /// East and north, and when they were true.
    axes: Option<([Axis; 2], i64)>,
}

impl Tracker {
    /// A tracker that knows nothing yet.
    #[must_use]
    pub fn new(survey: Survey) -> Self {
        Self { survey, axes: None }
    }

    /// Takes what is heard at a moment, in dBm by beacon; `None` where nothing of the survey is.
    pub fn hear(&mut self, heard: &BTreeMap<String, f64>, time_ms: i64) -> Option<Fix> {
        let (at, deviation) = self.survey.locate(heard)?;
        let kept = self.axes.filter(|&(_, then)| (0..=FORGOTTEN_MS).contains(&(time_ms - then)));
        let axes = match kept {
            Some((mut axes, then)) => {
                let seconds = (time_ms - then) as f64 / 1_000.0;
                for (axis, measured) in axes.iter_mut().zip(at) {
                    axis.predict(seconds);
                    axis.correct(measured, deviation);
                }
                axes
            }
            None => at.map(|position| Axis::at(position, deviation)),
        };
        self.axes = Some((axes, time_ms));
        let [east, north] = axes;
        let variance = (east.variance[0] + north.variance[0]) / 2.0;
        // Points that are alike for the same reason are wrong together, which a filter can't know:
        // a single error always remains.
        let accuracy_m = RADII_95 * (variance + deviation.powi(2)).sqrt();
        let place = moved(self.survey.origin, east.position, north.position);
        let speed = east.speed.hypot(north.speed);
        let course = east.speed.atan2(north.speed).to_degrees().rem_euclid(360.0);
        let fix = Fix {
            speed_mps: Some(speed),
            course_deg: Some(course),
            ..fix_at(place, self.survey.altitude_m, time_ms, accuracy_m)
        };
        fix.checked().ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // in a test, a panic is a message
    use super::*;
    use serde_json::json;

    /// A floor of 40 m by 24 m with a beacon in each corner and two in the middle; one point for
    /// every four metres.
    const FLOOR: [f64; 2] = [40.0, 24.0];
    const BEACONS: [(&str, [f64; 2]); 6] = [
        ("south-west", [0.0, 0.0]),
        ("south-east", [40.0, 0.0]),
        ("north-west", [0.0, 24.0]),
        ("north-east", [40.0, 24.0]),
        ("middle-west", [14.0, 12.0]),
        ("middle-east", [27.0, 12.0]),
    ];
    /// The path loss of an office: -45 dBm at a metre, an exponent of 2.4 (log-distance model,
    /// ITU-R P.1238).
    const AT_A_METRE_DBM: f64 = -45.0;
    const EXPONENT: f64 = 2.4;
    /// Shadowing by people and walls, as a standard deviation in dB.
    const SHADOWING_DB: f64 = 4.0;

    fn strength(at: [f64; 2], beacon: [f64; 2]) -> f64 {
        let distance = (at[0] - beacon[0]).hypot(at[1] - beacon[1]).max(1.0);
        AT_A_METRE_DBM - 10.0 * EXPONENT * distance.log10()
    }

    fn survey() -> Survey {
        let mut points = Vec::new();
        for east in 0..=10 {
            for north in 0..=6 {
                let at = [f64::from(east) * 4.0, f64::from(north) * 4.0];
                let dbm: BTreeMap<&str, f64> =
                    BEACONS.map(|(name, place)| (name, strength(at, place))).into();
                points.push(json!({ "east_m": at[0], "north_m": at[1], "dbm": dbm }));
            }
        }
        let text = json!({ "origin": { "latitude": 48.0, "longitude": 11.0 }, "points": points }).to_string();
        Survey::parse(text.as_bytes()).unwrap()
    }

    /// Numbers from a seed, about normal: the sum of twelve.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            let uniform = |state: &mut u64| {
                *state =
                    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (*state >> 11) as f64 / (1_u64 << 53) as f64
            };
            (0..12).map(|_| uniform(&mut self.0)).sum::<f64>() - 6.0
        }
    }

    /// Errors and accuracies along a walk around the floor, four measurements a second.
    fn walk(seed: u64) -> Vec<(f64, f64)> {
        let (mut tracker, mut noise) = (Tracker::new(survey()), Noise(seed));
        (0..400)
            .map(|step| {
                let angle = f64::from(step) / 400.0 * std::f64::consts::TAU;
                let at = [FLOOR[0] / 2.0 + 14.0 * angle.cos(), FLOOR[1] / 2.0 + 8.0 * angle.sin()];
                let heard = BEACONS.map(|(name, place)| {
                    (name.to_owned(), strength(at, place) + SHADOWING_DB * noise.next())
                });
                let fix = tracker.hear(&heard.into(), i64::from(step) * 250).unwrap();
                let (latitude, longitude) = moved((48.0, 11.0), at[0], at[1]);
                (fix.distance_m(&Fix { latitude, longitude, ..fix }), fix.accuracy_m)
            })
            .collect()
    }

    #[test]
    fn a_walk_is_followed_and_the_accuracy_is_honest() {
        let mut found: Vec<(f64, f64)> = (1..=10).flat_map(walk).collect();
        let honest = found.iter().filter(|(error, accuracy)| error <= accuracy).count();
        assert!(honest * 100 >= found.len() * 95, "{honest} of {} are within the radius", found.len());
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (median, accuracy) = (found[found.len() / 2].0, found[found.len() / 2].1);
        assert!(median < 2.5, "half of the positions are off by {median:.2} m or more");
        assert!(accuracy < 10.0, "the radius says something: {accuracy:.1} m");
    }

    #[test]
    fn signals_of_nobody_say_nothing() {
        let mut tracker = Tracker::new(survey());
        assert_eq!(tracker.hear(&BTreeMap::from([("stranger".to_owned(), -50.0)]), 0), None);
        assert_eq!(tracker.hear(&BTreeMap::new(), 0), None);
    }

    #[test]
    fn a_tracker_that_heard_nothing_for_long_begins_anew() {
        let mut tracker = Tracker::new(survey());
        let at = |place: [f64; 2]| -> BTreeMap<String, f64> {
            BEACONS.map(|(name, beacon)| (name.to_owned(), strength(place, beacon))).into()
        };
        let first = tracker.hear(&at([4.0, 4.0]), 0).unwrap();
        let later = tracker.hear(&at([36.0, 20.0]), 60_000).unwrap();
        assert!(first.distance_m(&later) > 30.0, "{}", first.distance_m(&later));
        // So does one whose clock went back.
        let back = tracker.hear(&at([4.0, 4.0]), 1_000).unwrap();
        assert!(first.distance_m(&back) < 0.1);
    }

    #[test]
    fn surveys_that_do_not_fit_are_refused_with_the_point() {
        let point = json!({ "east_m": 1, "north_m": 2, "dbm": { "a": -50 } });
        let with = |last: serde_json::Value| json!({ "origin": { "latitude": 1, "longitude": 2 }, "points": [point, point, last] });
        assert!(Survey::parse(with(point.clone()).to_string().as_bytes()).is_ok());
        for (value, words) in [
            (
                with(json!({ "east_m": 1e6, "north_m": 2, "dbm": { "a": -50 } })),
                "point 2: `east_m` is 1000000",
            ),
            (with(json!({ "east_m": 1, "north_m": 2, "dbm": {} })), "point 2: no beacon"),
            (
                with(json!({ "east_m": 1, "north_m": 2, "dbm": { "a": 900 } })),
                "point 2: beacon \"a\" was heard with 900",
            ),
            (with(json!({ "east_m": 1, "dbm": { "a": -50 } })), "it is no survey: missing field `north_m`"),
            (json!({ "origin": { "latitude": 1, "longitude": 2 }, "points": [point] }), "it has 1 points"),
            (
                json!({ "origin": { "latitude": 91, "longitude": 2 }, "points": [point, point, point] }),
                "its origin: the latitude",
            ),
        ] {
            let error = Survey::parse(value.to_string().as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(matches!(Survey::parse(b"words"), Err(SurveyError::Format(_))));
    }
}
