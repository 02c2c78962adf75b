//! Locations: what the server of a service of kind `location` is told; described in
//! `docs/spec/location.md`.

use serde::{Deserialize, Serialize};

/// The kind of the service.
pub const KIND: &str = "location";
/// The verb that reads positions.
pub const READ: &str = "locate";
/// The verb that chooses sources and accuracy.
pub const CHOOSE: &str = "choose";
/// The file with the last position, as JSON.
pub const POSITION: &str = "position";
/// The stream of positions, a JSON object a line.
pub const FIXES: &str = "fixes";
/// The stream of sentences of NMEA 0183.
pub const NMEA: &str = "nmea";
/// The file that says what each source does, as JSON.
pub const STATE: &str = "state";
/// The file that takes choices.
pub const CONTROL: &str = "ctl";

/// The admitted settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Its sources; at least one.
    pub sources: Vec<Source>,
    /// The accuracy that is wanted, in m: the radius with 95 %.
    pub accuracy_m: u32,
    /// How long a source has to be better before it counts, in ms.
    pub hold_ms: u64,
    /// A source without a position for so long has none, in ms.
    pub timeout_ms: u64,
    /// The port of the server's own `lo` at which it speaks gpsd's protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpsd_port: Option<u16>,
    /// The port of the server's own `lo` at which it sends sentences of NMEA 0183.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nmea_port: Option<u16>,
}

/// One source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Its name.
    pub name: String,
    /// The form of its data.
    pub kind: SourceKind,
    /// The device, named pipe or file in the server's domain that it is read from. A file is
    /// replayed at its own pace, again and again.
    pub path: String,
    /// The survey of a floor; of signals only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survey: Option<String>,
    /// The error of a distance to a satellite with 95 %, in m; of a receiver only.
    pub range_error_m: u32,
    /// The power that it draws, in mW.
    pub power_mw: u32,
}

/// The words of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// Sentences of NMEA 0183, by a satellite receiver.
    Nmea,
    /// Strengths of radio signals, a JSON object a line.
    Signals,
}
