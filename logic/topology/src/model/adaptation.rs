//! An adaptation as the file says it, admitted.

use crate::name::Name;
use adaptation::Settings;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A watch over one domain, which moves the promise to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adaptation {
    /// Unique in its distributed container.
    pub name: Name,
    /// The domain whose promise moves.
    pub domain: Name,
    /// The figure that is watched.
    pub monitor: Monitor,
    /// How often, in ms.
    pub every_ms: u64,
    /// The selector, and the ranges in which the promise moves.
    pub settings: Settings,
    /// The program that selects, where rules and the controller do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<SelectorProgram>,
    /// The WebAssembly module that does so, by its file on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<PathBuf>,
    /// The command that is told what is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activator: Option<ActivatorProgram>,
    /// The domains that give where the node has no room, the first ones first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<Giving>,
    /// The order where several want the same: the greater goes first.
    pub priority: u32,
    /// Whether it only says what it would do.
    pub dry_run: bool,
}

/// A program of the user's that says what is wanted, a line for each sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectorProgram {
    /// Where it runs.
    pub domain: Name,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How long it may take to answer a sample, in ms.
    pub timeout_ms: u64,
}

/// A command of the user's that is told what is in force, after each change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivatorProgram {
    /// Where it runs.
    pub domain: Name,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How long a run may take, in ms.
    pub timeout_ms: u64,
}

/// A domain that gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Giving {
    /// The domain that gives.
    pub domain: Name,
    /// Budget that is left to it at least, in ns; `None`: it gives none.
    pub least_cpu_ns: Option<u64>,
    /// Rate that is left to it at least, in bits per second; `None`: it gives none.
    pub least_network_bits: Option<u64>,
}

/// The figure that is watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Monitor {
    /// The figure that the domain's program writes.
    Quality,
    /// Periods of its reservation, or slots of its table, that were missed, in percent.
    Misses,
    /// The time that its processes waited for this, in percent.
    Pressure(Pressed),
    /// The mean time that a request to this service took, in ms.
    Latency(Name),
    /// The mean difference between the time of one request to this service and that of the next, in
    /// ms.
    Jitter(Name),
    /// Requests to this service in a second.
    Rate(Name),
    /// The use of the targets that the domain asks of this service, in percent: of the one that is
    /// used most.
    Targets(Name),
    /// Packets of its class of the link that found no room in the queue, in percent.
    Loss,
    /// The time until what waits in its class of the link has gone out, in ms.
    Queue,
}

/// The resource that processes wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pressed {
    /// A processor.
    Cpu,
    /// Memory.
    Memory,
    /// A disk.
    Io,
}

impl Pressed {
    /// The kernel's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Io => "io",
        }
    }
}

/// The word of a monitor in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MonitorWord {
    Quality,
    Misses,
    CpuPressure,
    MemoryPressure,
    IoPressure,
    Latency,
    Jitter,
    Rate,
    Targets,
    Loss,
    Queue,
}

impl std::fmt::Display for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Quality => f.write_str("quality"),
            Self::Misses => f.write_str("misses"),
            Self::Pressure(pressed) => write!(f, "{}-pressure", pressed.as_str()),
            Self::Latency(service) => write!(f, "latency of {service}"),
            Self::Jitter(service) => write!(f, "jitter of {service}"),
            Self::Rate(service) => write!(f, "rate of {service}"),
            Self::Targets(service) => write!(f, "targets of {service}"),
            Self::Loss => f.write_str("loss"),
            Self::Queue => f.write_str("queue"),
        }
    }
}
