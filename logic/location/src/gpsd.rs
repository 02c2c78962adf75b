//! The protocol of gpsd (gpsd_json(5)), as its clients speak it: requests that begin with `?`,
//! answers that are a JSON object a line.

use crate::fix::Fix;
use crate::sentences::sentences;
use serde_json::{Value, json};

/// Version of the protocol: that of gpsd 3.22, whose fields are a part of those of later ones.
const PROTOCOL: (u32, u32) = (3, 14);
/// Longest request, in bytes: a `?WATCH` with all of its fields has a quarter.
pub const REQUEST_BYTES_MAX: usize = 1024;
/// The mode of a position with a height, and without.
const MODES: (u32, u32) = (3, 2);

/// A client's wishes, and its unfinished request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Client {
    request: Vec<u8>,
    /// Whether it is told of each position.
    is_watching: bool,
    as_json: bool,
    as_nmea: bool,
}

/// A request that is longer than any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request has at most {REQUEST_BYTES_MAX} bytes")]
pub struct TooLong;

/// The facts of the receiver that a client may know.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known<'a> {
    /// The name of the source that counts.
    pub source: Option<&'a str>,
    /// Its last position.
    pub fix: Option<&'a Fix>,
}

/// The line with which a server greets.
#[must_use]
pub fn version() -> String {
    let release = concat!("tombolo ", env!("CARGO_PKG_VERSION"));
    line(
        &json!({ "class": "VERSION", "release": release, "rev": release, "proto_major": PROTOCOL.0, "proto_minor": PROTOCOL.1 }),
    )
}

impl Client {
    /// A client that only listens, to sentences of NMEA 0183: chart plotters and gpsd itself are.
    #[must_use]
    pub fn listener() -> Self {
        Self { is_watching: true, as_nmea: true, ..Self::default() }
    }

    /// Takes bytes of the client, and says what it is answered.
    ///
    /// # Errors
    /// [`TooLong`]: it speaks something else, and is to be hung up on.
    pub fn take(&mut self, bytes: &[u8], known: Known<'_>) -> Result<String, TooLong> {
        let mut answer = String::new();
        for &byte in bytes {
            // A request ends with a semicolon; one that has none, with its line.
            if byte == b';' || byte == b'\n' {
                let request = std::mem::take(&mut self.request);
                answer += &self.answer(request.trim_ascii(), known);
            } else if self.request.len() == REQUEST_BYTES_MAX {
                return Err(TooLong);
            } else {
                self.request.push(byte);
            }
        }
        Ok(answer)
    }

    /// Returns the message to the client on a new position.
    #[must_use]
    pub fn told(&self, source: &str, fix: &Fix) -> String {
        match (self.is_watching, self.as_json, self.as_nmea) {
            (true, true, nmea) => report(source, fix) + &if nmea { sentences(fix) } else { String::new() },
            (true, false, true) => sentences(fix),
            _ => String::new(),
        }
    }

    fn answer(&mut self, request: &[u8], known: Known<'_>) -> String {
        let text = String::from_utf8_lossy(request);
        let Some(request) = text.strip_prefix('?') else {
            return if text.is_empty() { String::new() } else { refused(&text) };
        };
        let (name, value) = request.split_once('=').unwrap_or((request, ""));
        match name.trim() {
            "VERSION" => version(),
            "DEVICES" => devices(known),
            "DEVICE" => device(known).map_or_else(String::new, |device| line(&device)),
            "WATCH" => self.watch(value, known),
            "POLL" => poll(known),
            _ => refused(&text),
        }
    }

    fn watch(&mut self, value: &str, known: Known<'_>) -> String {
        if !value.trim().is_empty() {
            let Ok(Value::Object(wishes)) = serde_json::from_str(value) else {
                return line(
                    &json!({ "class": "ERROR", "message": "Invalid WATCH: it takes a JSON object" }),
                );
            };
            let flag = |name: &str| wishes.get(name).and_then(Value::as_bool);
            self.is_watching = flag("enable").unwrap_or(true);
            self.as_json = flag("json").unwrap_or(self.as_json);
            self.as_nmea = flag("nmea").unwrap_or(self.as_nmea);
            // `raw` is what the receiver itself wrote; ours are several, so it is the same as NMEA.
            self.as_nmea |= wishes.get("raw").and_then(Value::as_u64).is_some_and(|raw| raw > 0);
        }
        let watch = json!({
            "class": "WATCH", "enable": self.is_watching, "json": self.as_json, "nmea": self.as_nmea,
            "raw": 0, "scaled": false, "timing": false, "split24": false, "pps": false,
        });
        devices(known) + &line(&watch)
    }
}

/// A position as gpsd reports it.
#[must_use]
pub fn report(source: &str, fix: &Fix) -> String {
    line(&tpv(source, fix))
}

fn tpv(source: &str, fix: &Fix) -> Value {
    let mode = if fix.altitude_m.is_some() { MODES.0 } else { MODES.1 };
    let mut report = json!({
        "class": "TPV", "device": source, "mode": mode, "time": fix.time(),
        "lat": fix.latitude, "lon": fix.longitude, "eph": fix.accuracy_m,
    });
    for (name, value) in [
        ("altMSL", fix.altitude_m),
        ("alt", fix.altitude_m),
        ("speed", fix.speed_mps),
        ("track", fix.course_deg),
    ] {
        if let Some(value) = value {
            report[name] = value.into();
        }
    }
    report
}

fn device(known: Known<'_>) -> Option<Value> {
    let source = known.source?;
    Some(
        json!({ "class": "DEVICE", "path": source, "driver": "tombolo", "activated": known.fix.map(Fix::time) }),
    )
}

fn devices(known: Known<'_>) -> String {
    let all: Vec<Value> = device(known).into_iter().collect();
    line(&json!({ "class": "DEVICES", "devices": all }))
}

fn poll(known: Known<'_>) -> String {
    let (time, active) = (known.fix.map(Fix::time), u32::from(known.fix.is_some()));
    let reports: Vec<Value> =
        known.source.zip(known.fix).map(|(source, fix)| tpv(source, fix)).into_iter().collect();
    line(&json!({ "class": "POLL", "time": time, "active": active, "tpv": reports, "gst": [], "sky": [] }))
}

fn refused(request: &str) -> String {
    line(&json!({ "class": "ERROR", "message": format!("Unrecognized request '{request}'") }))
}

fn line(value: &Value) -> String {
    format!("{value}\r\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // in a test, a panic is a message
    use super::*;
    use crate::fix::tests::somewhere;
    use proptest::prelude::*;

    const NOTHING: Known<'_> = Known { source: None, fix: None };

    fn classes(answer: &str) -> Vec<String> {
        let of = |line: &str| {
            let value: Value = serde_json::from_str(line).unwrap();
            value["class"].as_str().unwrap().to_owned()
        };
        answer.lines().map(of).collect()
    }

    #[test]
    fn a_client_watches() {
        let (fix, mut client) = (somewhere(), Client::default());
        let known = Known { source: Some("gps"), fix: Some(&fix) };
        assert_eq!(client.told("gps", &fix), "");
        let answer = client.take(b"?WATCH={\"enable\":true,\"json\":true}\n", known).unwrap();
        assert_eq!(classes(&answer), ["DEVICES", "WATCH"]);
        let report: Value = serde_json::from_str(client.told("gps", &fix).trim()).unwrap();
        assert_eq!(
            (&report["device"], &report["mode"], &report["eph"]),
            (&"gps".into(), &3.into(), &3.0.into())
        );
        assert_eq!(report["time"], "2025-11-28T01:05:00.250Z");
        client.take(b"?WATCH={\"enable\":true,\"json\":false,\"nmea\":true};", known).unwrap();
        assert!(client.told("gps", &fix).starts_with("$GNRMC,"));
        client.take(b"?WATCH={\"enable\":false};", known).unwrap();
        assert_eq!(client.told("gps", &fix), "");
    }

    #[test]
    fn a_request_may_come_in_pieces_and_several_at_once() {
        let mut client = Client::default();
        assert_eq!(client.take(b"?VER", NOTHING).unwrap(), "");
        assert_eq!(
            classes(&client.take(b"SION;?POLL;?DEVICES;\r\n", NOTHING).unwrap()),
            ["VERSION", "POLL", "DEVICES"]
        );
    }

    #[test]
    fn nonsense_is_an_error_and_what_never_ends_is_refused() {
        let mut client = Client::default();
        for request in [&b"hello\n"[..], b"?NOSUCH;", b"?WATCH=[];", b"?WATCH={;", b"\xff\xfe\n"] {
            assert_eq!(classes(&client.take(request, NOTHING).unwrap()), ["ERROR"], "{request:?}");
        }
        assert_eq!(client.take(&[b'x'; REQUEST_BYTES_MAX + 1], NOTHING), Err(TooLong));
    }

    proptest! {
        #[test]
        fn each_answer_is_lines_of_json(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let mut client = Client::default();
            if let Ok(answer) = client.take(&bytes, NOTHING) {
                classes(&answer);
            }
        }
    }
}
