//! The settings of an event service, admitted.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::name::Name;

/// The settings of an event service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsSettings {
    /// Bytes of the buffers of all channels together.
    pub memory_bytes: u64,
    /// Those of them that channels which one domain has made may have.
    pub memory_per_domain: u64,
    /// Channels that one domain may have made.
    pub channels_per_domain: u32,
    /// Open files, to publish or to subscribe, that one domain may have.
    pub sessions_per_domain: u32,
    /// The settings of a channel that a domain makes.
    pub made: EventChannel,
    /// The channels that are always there.
    pub channels: BTreeMap<Name, EventChannel>,
}

/// The settings of an event channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventChannel {
    /// Bytes of its buffer.
    pub buffer_bytes: u64,
    /// Bytes of its longest event.
    pub event_bytes: u32,
    /// Events that who comes late may have.
    pub history: u32,
    /// How long a publication may be made to wait for a subscriber.
    pub wait_ms: u64,
    /// How its events are read for filters; where nothing is said, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// The filters of these domains' subscriptions: they are shown nothing else.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub subscribers: BTreeMap<Name, EventFilter>,
}

/// A filter that the file gives to subscriptions of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventFilter {
    /// An expression.
    Filter(String),
    /// A WebAssembly module: its file, as the server's domain sees it.
    Module(PathBuf),
}
