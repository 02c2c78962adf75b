//! Adaptations in the admin protocol.

use adaptation::Amounts;
use serde::{Deserialize, Serialize};
use topology::{nanos_text, rate_text};

/// One adaptation, as `adaptation ls` lists it: an element of `/v1/adaptations`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdaptationRow {
    /// `DC/NAME`.
    pub name: String,
    /// `DC/DOMAIN`: whose promise moves.
    pub domain: String,
    /// The monitor.
    pub monitor: String,
    /// `watching`, `blind` (there is no figure), `paused`, `dry-run` or `idle` (its domain does not
    /// run here).
    pub state: String,
    /// The last figure.
    pub figure: Option<String>,
    /// Why there is none, or what was decided last, and why.
    pub why: String,
    /// Its amounts now; those that do not move are absent.
    pub has: Amounts,
    /// The amounts of its file.
    pub file: Amounts,
    /// The least amounts.
    pub least: Amounts,
    /// The most; the level is the worst.
    pub most: Amounts,
    /// The amounts that it wants and may not have, with those that would fit; absent: it has what
    /// it wants.
    pub refused: Option<String>,
    /// The last change of it.
    pub last_change: Option<AdaptationChange>,
    /// Changes under this daemon.
    pub changes: u64,
    /// Wishes that could not be had in whole, under this daemon.
    pub refusals: u64,
    /// How often a figure is read, in ms.
    pub every_ms: u64,
    /// The priority: the greater goes first.
    pub priority: u32,
    /// Its activator; absent: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activator: Option<ActivatorState>,
}

/// A command that is told what is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActivatorState {
    /// How often it was run under this daemon.
    pub runs: u64,
    /// Why the last run failed; absent: it did not.
    pub trouble: Option<String>,
}

/// A change that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdaptationChange {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The change, and its reason.
    pub what: String,
    /// From the reading of the figure until the kernel had taken all of it, in us.
    pub took_us: u64,
}

/// Pauses an adaptation, lets it go on, or sets by hand what it moves: `POST /v1/adaptations/set`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetAdaptation {
    /// NAME or DC/NAME.
    pub name: String,
    /// Whether it is paused; absent: as it is. A setting by hand pauses it.
    #[serde(default)]
    pub paused: Option<bool>,
    /// The budget of the processor, in ns.
    #[serde(default)]
    pub cpu_ns: Option<u64>,
    /// The rate of the link, in bits per second.
    #[serde(default)]
    pub network_bits: Option<u64>,
    /// The level of quality.
    #[serde(default)]
    pub level: Option<u32>,
    /// Whether all of these are to be as the file says.
    #[serde(default)]
    pub file: bool,
}

/// `cpu 8ms, network 2mbit, level 1`; a level only where there are several.
#[must_use]
pub fn amounts_text(amounts: &Amounts, levels: u32) -> String {
    let cpu = amounts.cpu_ns.map(|ns| format!("cpu {}", nanos_text(ns)));
    let network = amounts.network_bits.map(|bits| format!("network {}", rate_text(bits)));
    let level = (levels > 1).then(|| format!("level {}", amounts.level));
    let parts: Vec<String> = [cpu, network, level].into_iter().flatten().collect();
    parts.join(", ")
}
