//! The frames that carry JSON.

use super::BadFrame;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The agent's first words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`super::VERSION`] of the agent.
    pub version: u32,
    /// The agent's program version.
    pub program: String,
    /// The guest's kernel.
    pub kernel: String,
    /// Whether programs of the guest hear a peer by interrupts; if not, the node says
    /// [`super::Message::Ring`].
    pub interrupts: bool,
}

/// The order of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Boot {
    /// [`super::VERSION`] of the node.
    pub version: u32,
    /// The distributed container.
    pub dc: String,
    /// The domain.
    pub domain: String,
    /// Its host name.
    pub hostname: String,
    /// The command; empty: nothing runs but what `exec` starts.
    pub command: Vec<String>,
    /// Its environment, in this order.
    pub environment: Vec<(String, String)>,
    /// `NAME`, `UID`, `NAME:GROUP`, `UID:GID`; none: root.
    pub user: Option<String>,
    /// Where it starts; none: `/`.
    pub workdir: Option<String>,
    /// Whether it waits until the frontend serves `/srv`.
    pub services: bool,
    /// Text of `/etc/resolv.conf`; none: as it is.
    pub resolv_conf: Option<String>,
    /// Whether the frontend gets the sockets of the DNS stub.
    pub stub: bool,
    /// Whether the frontend gets the resolver's socket.
    pub resolve: bool,
    /// The first network card; none: left alone.
    pub network: Option<Network>,
    /// The root that the command and `exec` see as `/`; none: the initramfs.
    pub root: Option<Root>,
}

/// The network of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// IPv4 address and length of its prefix: `10.0.2.15/24`.
    pub address: String,
    /// Where everything else goes.
    pub gateway: String,
}

/// The file system that a guest's command sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Root {
    /// The block device: `/dev/vda`.
    pub device: String,
    /// Its file system: `ext4`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}

/// The guest's fate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// The command runs; or there is none, and `/srv` is served.
    Started {},
    /// The command has ended; then the guest switches off.
    Exited(Exited),
    /// The guest could not be what the node said; then it switches off.
    Failed {
        /// Why.
        message: String,
    },
    /// The frontend came, or went.
    Frontend {
        /// Whether it came up, or went.
        up: bool,
        /// Why it went.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawExited", into = "RawExited")]
pub struct Exited {
    /// Its code or signal.
    pub ending: Ending,
    /// Whether the guest's kernel killed for want of memory.
    pub out_of_memory: bool,
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Ending {
    /// The exit code as a shell has it: the code, or 128 and the signal's number.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => signal.saturating_add(128),
        }
    }
}

/// Neither a code nor a signal, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the end of a process is a code or a signal")]
pub struct BadEnding;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExited {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(default, skip_serializing_if = "is_false")]
    out_of_memory: bool,
}

impl TryFrom<RawExited> for Exited {
    type Error = BadEnding;

    fn try_from(raw: RawExited) -> Result<Self, BadEnding> {
        let ending = match (raw.code, raw.signal) {
            (Some(code), None) => Ending::Code(code),
            (None, Some(signal)) => Ending::Signal(signal),
            _ => return Err(BadEnding),
        };
        Ok(Self { ending, out_of_memory: raw.out_of_memory })
    }
}

impl From<Exited> for RawExited {
    fn from(exited: Exited) -> Self {
        let (code, signal) = match exited.ending {
            Ending::Code(code) => (Some(code), None),
            Ending::Signal(signal) => (None, Some(signal)),
        };
        Self { code, signal, out_of_memory: exited.out_of_memory }
    }
}

/// The purpose of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "purpose", rename_all = "snake_case", deny_unknown_fields)]
pub enum Purpose {
    /// From the agent: a connection of a member of the domain; packets of the control protocol.
    Control {},
    /// From the node: the private socket of a frontend, which is to run.
    Frontend {
        /// Its order, as the frontend understands it.
        order: serde_json::Value,
        /// The stream of its entrances, which was opened before.
        entrances: u32,
    },
    /// From the node: the private socket of a frontend's entrances.
    Entrances {},
    /// From the node: a further process in the guest.
    Exec {
        /// The options.
        options: ExecOptions,
    },
    /// From the agent: what the command writes.
    Output {},
}

/// A further process in the guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecOptions {
    /// Whether it gets a terminal.
    pub tty: bool,
    /// Whether its standard input is the asker's; if not, it has none.
    pub interactive: bool,
    /// Added to the environment of the domain.
    pub environment: Vec<(String, String)>,
    /// As in [`Boot`]; none: the domain's.
    pub user: Option<String>,
    /// Where it starts; none: where the domain's command does.
    pub workdir: Option<String>,
    /// The command.
    pub command: Vec<String>,
}

/// How a process that [`Purpose::Exec`] started ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawExecEnd", into = "RawExecEnd")]
pub enum ExecEnd {
    /// It ran.
    Ended(Ending),
    /// It never ran.
    Failed {
        /// Why.
        error: String,
        /// The code that a shell would say: 127 where there is no such program, 126 where it can't
        /// be run.
        code: i32,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExecEnd {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
}

impl TryFrom<RawExecEnd> for ExecEnd {
    type Error = BadEnding;

    fn try_from(raw: RawExecEnd) -> Result<Self, BadEnding> {
        match (raw.error, raw.code, raw.signal) {
            (None, Some(code), None) => Ok(Self::Ended(Ending::Code(code))),
            (None, None, Some(signal)) => Ok(Self::Ended(Ending::Signal(signal))),
            (Some(error), Some(code), None) => Ok(Self::Failed { error, code }),
            _ => Err(BadEnding),
        }
    }
}

impl From<ExecEnd> for RawExecEnd {
    fn from(end: ExecEnd) -> Self {
        match end {
            ExecEnd::Ended(Ending::Code(code)) => Self { error: None, code: Some(code), signal: None },
            ExecEnd::Ended(Ending::Signal(signal)) => Self { error: None, code: None, signal: Some(signal) },
            ExecEnd::Failed { error, code } => Self { error: Some(error), code: Some(code), signal: None },
        }
    }
}

/// Why a stream ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Close {
    /// 0: as it should; otherwise the errno that fits.
    pub errno: i32,
    /// The fault, for a person; empty: none.
    pub message: String,
}

/// An end of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// The node's number of the channel.
    pub channel: u32,
    /// Where its PCI device is: device and function of the port on bus 0, then those behind it
    /// (`1c.3/00.0`).
    pub device: String,
    /// The end: 0 or 1.
    pub side: u8,
    /// Bytes of the region that belong to the channel; BAR 2 may be larger.
    pub bytes: u64,
}

/// The guest is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shutdown {
    /// The signal that the command is sent first.
    pub signal: i32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

pub(super) fn read<T: serde::de::DeserializeOwned>(kind: u8, payload: &[u8]) -> Result<T, BadFrame> {
    serde_json::from_slice(payload).map_err(|error| BadFrame::Json { kind, why: error.to_string() })
}

pub(super) fn write<T: Serialize>(said: &T) -> Vec<u8> {
    // Our types have string keys and no sums of maps: there is no way in which they can't be
    // written.
    serde_json::to_vec(said).unwrap_or_default()
}
