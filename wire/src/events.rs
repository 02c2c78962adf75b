//! Event channels: what their files, capsules, `ioctl`s and regions have in them. Described in
//! `docs/spec/events.md`.

use serde::{Deserialize, Serialize};

/// The kind of service.
pub const KIND: &str = "events";

/// Longest event, in bytes: what a record of a stream may have, with the header that a subscriber
/// may ask for.
pub const EVENT_BYTES_MAX: usize = 63 * 1024;
/// Longest name of a channel, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest text of a filter, in bytes: it goes along in the capsule of the subscription.
pub const FILTER_BYTES_MAX: usize = 512;
/// Parts that a filter may have: comparisons, connections, values of a list.
pub const FILTER_NODES_MAX: usize = 64;
/// Different fields that a filter may look at.
pub const FILTER_FIELDS_MAX: usize = 16;
/// Different filters of one channel: each has a bit in the events' headers.
pub const FILTERS_MAX: usize = 64;
/// Longest text of a channel's format, in bytes.
pub const FORMAT_BYTES_MAX: usize = 1024;
/// Fields of a layout.
pub const LAYOUT_FIELDS_MAX: usize = 64;
/// Bytes of the header before each event, where a subscriber has asked for it.
pub const HEADER_BYTES: usize = 48;

/// Words of `allow` in the topology file.
pub mod verb {
    /// Take part at all: whoever has another verb has this one, by the admission of the file.
    pub const USE: &str = "use";
    /// Publish.
    pub const PUBLISH: &str = "publish";
    /// Subscribe.
    pub const SUBSCRIBE: &str = "subscribe";
    /// Make and remove channels, and change how they are.
    pub const MANAGE: &str = "manage";
}

/// The file that a node of the tree stands for: the lowest bits of its serial, below the number of
/// the channel.
pub mod file {
    /// Bits of a serial that say which file of a channel it is.
    pub const BITS: u32 = 3;
    /// The channel's folder.
    pub const FOLDER: u32 = 0;
    /// Written: each write is an event.
    pub const PUB: u32 = 1;
    /// Read: each read is an event.
    pub const SUB: u32 = 2;
    /// How the channel is; lines change it.
    pub const CTL: u32 = 3;
    /// Counters.
    pub const STATS: u32 = 4;
    /// The newest event.
    pub const LAST: u32 = 5;
}

/// Numbers of `ioctl`s on an open subscription, all of type 0xd7.
pub mod ioctl {
    /// Reads [`super::Standing`]: `_IOR(0xd7, 0x60, 48)`.
    pub const STANDING: u32 = 0x8030_d760;
    /// Sets overflow, framing and history: `_IOW(0xd7, 0x61, 16)`.
    pub const SETTINGS: u32 = 0x4010_d761;
    /// Installs a filter, its text ended by NUL: `_IOW(0xd7, 0x62, 512)`.
    pub const FILTER: u32 = 0x4200_d762;
}

/// WebAssembly modules that filter and transform events: their exports and their bounds, as
/// `docs/spec/event-modules.md` has them.
pub mod module {
    /// Names of what a module exports.
    pub mod export {
        /// Its memory.
        pub const MEMORY: &str = "memory";
        /// `(length: i32) -> i32`: the address of room for so many bytes of an event.
        pub const BUFFER: &str = "buffer";
        /// `(address: i32, length: i32) -> i32`: 0, or the event passes.
        pub const FILTER: &str = "filter";
        /// `(address: i32, length: i32) -> i64`: address and length of what goes on.
        pub const TRANSFORM: &str = "transform";
    }
    /// The first bytes of a module.
    pub const MAGIC: [u8; 4] = *b"\0asm";
    /// The name of an installed module begins with this; the hash of its bytes follows.
    pub const NAME_PREFIX: &str = "module sha256:";
    /// Longest module, in bytes: it comes in one write.
    pub const BYTES_MAX: usize = super::EVENT_BYTES_MAX;
    /// Bytes of one module's memory: the stack of 1 MiB that compilers give it, and as much again.
    pub const MEMORY_BYTES_MAX: usize = 2 << 20;
    /// Entries of its table of functions.
    pub const TABLE_ENTRIES_MAX: usize = 4096;
    /// Calls within each other.
    pub const CALLS_MAX: usize = 256;
    /// Bytes of the engine's own stack for its locals.
    pub const STACK_BYTES_MAX: usize = 256 << 10;
    /// Fuel for an event: one unit is about one instruction.
    pub const FUEL_PER_EVENT: u64 = 20_000;
    /// Fuel beside, for each byte of the event.
    pub const FUEL_PER_BYTE: u64 = 16;
    /// Fuel of the start function, and of `buffer`.
    pub const FUEL_START: u64 = 1_000_000;
    /// Different modules that one domain has installed.
    pub const PER_DOMAIN_MAX: usize = 4;
    /// Different modules of one channel: each may cost a publication its fuel.
    pub const PER_CHANNEL_MAX: usize = 8;
    /// Modules of one service: what they use of its memory is bounded.
    pub const PER_SERVICE_MAX: usize = 64;
}

/// The region of a channel: offsets of words, in bytes. Sequences and places run freely.
pub mod region {
    /// "TOMBEVNT".
    pub const MAGIC: u64 = 0x544e_5645_424d_4f54;
    /// Version of the layout.
    pub const VERSION: u64 = 1;
    /// Where [`MAGIC`] stands; written last.
    pub const AT_MAGIC: usize = 0;
    /// The version.
    pub const AT_VERSION: usize = 8;
    /// Bytes of the buffer.
    pub const AT_BUFFER: usize = 16;
    /// The number of the channel.
    pub const AT_SERIAL: usize = 24;
    /// Behind the newest event.
    pub const AT_HEAD: usize = 64;
    /// The oldest event.
    pub const AT_TAIL: usize = 72;
    /// The sequence number of the next event.
    pub const AT_NEXT: usize = 80;
    /// Subscribers that publishers wait for.
    pub const AT_HOLDERS: usize = 88;
    /// The longest event.
    pub const AT_EVENT_BYTES: usize = 96;
    /// Events that who comes late may have.
    pub const AT_HISTORY: usize = 104;
    /// How long publishers may be made to wait, in ms.
    pub const AT_WAIT_MS: usize = 112;
    /// The domain that made it: a hash of its name.
    pub const AT_OWNER: usize = 120;
    /// Bytes of the channel's name, which follow.
    pub const AT_NAME: usize = 128;
    /// Bytes of the text of the channel's format, which follow. 0: JSON.
    pub const AT_FORMAT: usize = 1024;
    /// The table of publishers.
    pub const AT_PUBLISHERS: usize = 4096;
    /// Publishers of a channel that are remembered.
    pub const PUBLISHERS_MAX: usize = 256;
    /// Bytes of one: its number, how many records it has written, which domain it is in.
    pub const PUBLISHER_BYTES: usize = 24;
    /// The buffer.
    pub const AT_BUFFER_BYTES: usize = 16 * 1024;
    /// Bytes of an event's header: length, sequence, publisher, the publisher's own sequence, time,
    /// filters.
    pub const EVENT_HEADER_BYTES: usize = 48;
    /// In the place of a length: the next event is at the buffer's beginning.
    pub const SKIP: u64 = u64::MAX;
}

/// The admitted settings, as the server is told them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Bytes of all buffers together.
    pub memory_bytes: u64,
    /// Those of them that channels of one domain may have.
    pub memory_per_domain: u64,
    /// Channels that one domain may have made.
    pub channels_per_domain: u32,
    /// Open files to publish or subscribe by that one domain may have.
    pub sessions_per_domain: u32,
    /// The settings of a channel that a domain makes.
    pub made: ChannelSettings,
    /// The channels that the file names.
    pub channels: Vec<NamedChannel>,
}

/// A channel that the file names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedChannel {
    /// Its name.
    pub name: String,
    /// Its settings.
    pub settings: ChannelSettings,
    /// The domains whose subscriptions have a filter that the file gives them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subscribers: Vec<GivenFilter>,
}

/// A filter that the file gives to all subscriptions of a domain: they have no other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenFilter {
    /// The domain.
    pub domain: String,
    /// The filter.
    pub judge: GivenJudge,
}

/// The judge of a [`GivenFilter`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GivenJudge {
    /// An expression.
    Filter(String),
    /// A WebAssembly module: its file, as the server's domain sees it.
    Module(String),
}

/// The settings of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelSettings {
    /// Bytes of its buffer.
    pub buffer_bytes: u64,
    /// Bytes of its longest event.
    pub event_bytes: u32,
    /// Events that who comes late may have.
    pub history: u64,
    /// How long a publication may be made to wait, in ms.
    pub wait_ms: u64,
    /// How its events are read for filters; where nothing is said, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
}

/// The head before an event, where a subscriber has asked for it. 48 bytes: sequence 0, publisher
/// 8, the publisher's own sequence 16, time of publication in ns since 1970 24, events that were
/// lost before it 32, bytes of the event 40 (4), reserved 44.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventHeader {
    /// The event's number in its channel: 1, 2, 3 ...
    pub sequence: u64,
    /// The number of the publisher.
    pub publisher: u64,
    /// The event's number among those of its publisher.
    pub publisher_sequence: u64,
    /// When it was published, in ns since 1970.
    pub published_ns: u64,
    /// Events that this subscriber has lost so far, all together.
    pub lost: u64,
    /// Bytes of the event.
    pub length: u32,
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl EventHeader {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let words = [self.sequence, self.publisher, self.publisher_sequence, self.published_ns, self.lost];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[40..44].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// The header at the beginning of a record, and the event behind it; `None` where it is none.
    #[must_use]
    pub fn decode(record: &[u8]) -> Option<(Self, &[u8])> {
        let (head, event) = record.split_first_chunk::<HEADER_BYTES>()?;
        let length = u64_at(head, 40);
        let header = Self {
            sequence: u64_at(head, 0),
            publisher: u64_at(head, 8),
            publisher_sequence: u64_at(head, 16),
            published_ns: u64_at(head, 24),
            lost: u64_at(head, 32),
            length: u32::try_from(length).ok()?,
        };
        (event.len() as u64 == length).then_some((header, event))
    }
}

/// How a subscription stands: what the `ioctl` reads. 48 bytes, six words in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standing {
    /// Events that were delivered.
    pub delivered: u64,
    /// Events that were lost.
    pub lost: u64,
    /// The sequence number of the next event that it may get.
    pub next: u64,
    /// The sequence number of the channel's next event.
    pub channel_next: u64,
    /// The cost of its filter for each event; 0: it has none.
    pub filter_cost: u64,
    /// From which event on its filter holds.
    pub filter_since: u64,
}

/// Bytes of a [`Standing`].
pub const STANDING_BYTES: usize = 48;

impl Standing {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; STANDING_BYTES] {
        let mut bytes = [0; STANDING_BYTES];
        let words =
            [self.delivered, self.lost, self.next, self.channel_next, self.filter_cost, self.filter_since];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_wire_and_lies_about_no_length() {
        let header =
            EventHeader { sequence: 7, publisher: 1 << 60, lost: 3, length: 2, ..EventHeader::default() };
        let record = [&header.encode()[..], b"ab"].concat();
        assert_eq!(EventHeader::decode(&record), Some((header, &b"ab"[..])));
        assert_eq!(EventHeader::decode(&record[..49]), None);
        assert_eq!(EventHeader::decode(&record[..40]), None);
    }
}
