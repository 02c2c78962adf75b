//! Locations, admitted.

use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The settings of a location service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocationSettings {
    /// Its sources, each with a name of its own; at least one.
    pub sources: Vec<LocationSource>,
    /// The accuracy that is wanted, in m.
    pub accuracy_m: u32,
    /// How long a source has to be better before it counts.
    pub hold_ms: u64,
    /// A source without a position for so long has none.
    pub timeout_ms: u64,
    /// The port of the server's `lo` that speaks gpsd's protocol.
    pub gpsd_port: Option<u16>,
    /// The port of the server's `lo` that sends sentences of NMEA 0183.
    pub nmea_port: Option<u16>,
}

/// One source of positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocationSource {
    /// Its name.
    pub name: Name,
    /// The kind of its data.
    pub kind: LocationKind,
    /// The path that it is read from, in the server's domain.
    pub path: PathBuf,
    /// The survey of a floor, in the server's domain; of signals only.
    pub survey: Option<PathBuf>,
    /// The error of a receiver's distance to a satellite with 95 %, in m.
    pub range_error_m: u32,
    /// The power that it draws.
    pub power_mw: u32,
}

/// The words of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocationKind {
    /// Sentences of NMEA 0183.
    Nmea,
    /// Strengths of radio signals.
    Signals,
}
