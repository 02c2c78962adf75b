//! A service, admitted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::camera::CameraSettings;
use super::events::EventsSettings;
use super::files::FilesSettings;
use super::location::LocationSettings;
use super::socket::SocketSettings;
use crate::name::{Name, NameError};

/// One service: what it is, where it runs, and who may use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Unique in its distributed container.
    pub name: Name,
    /// The domain in which its backend runs.
    pub domain: Name,
    /// The domains whose programs stand by for the one that offers it; only of a program.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub backups: BTreeSet<Name>,
    /// The verbs that domains may use; a domain that is not listed may use none. Every set has at
    /// least one verb.
    pub allow: BTreeMap<Name, BTreeSet<Verb>>,
    /// Memory that each domain that mounts it has with its server, in bytes, and that its files can
    /// be mapped to. 0: there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub memory_bytes: u64,
    /// Its kind, and the settings of that kind.
    pub settings: Settings,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl Service {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ServiceKind {
        match self.settings {
            Settings::Directory(_) => ServiceKind::Directory,
            Settings::Channel(_) => ServiceKind::Channel,
            Settings::Program(_) => ServiceKind::Program,
            Settings::Socket(_) => ServiceKind::Socket,
            Settings::Coordination(_) => ServiceKind::Coordination,
            Settings::Events(_) => ServiceKind::Events,
            Settings::Camera(_) => ServiceKind::Camera,
            Settings::Location(_) => ServiceKind::Location,
            Settings::Files(_) => ServiceKind::Files,
        }
    }

    /// The settings of its channels, where they are opened by its name: of a channel service, and
    /// between the relays of a socket service.
    #[must_use]
    pub fn channel(&self) -> Option<&ChannelSettings> {
        match &self.settings {
            Settings::Channel(settings) => Some(settings),
            Settings::Socket(_) => Some(&RELAY_CHANNELS),
            Settings::Directory(_)
            | Settings::Program(_)
            | Settings::Coordination(_)
            | Settings::Events(_)
            | Settings::Camera(_)
            | Settings::Location(_)
            | Settings::Files(_) => None,
        }
    }

    /// The settings of a socket service, if it is one.
    #[must_use]
    pub fn socket(&self) -> Option<&SocketSettings> {
        match &self.settings {
            Settings::Socket(settings) => Some(settings),
            Settings::Directory(_)
            | Settings::Channel(_)
            | Settings::Program(_)
            | Settings::Coordination(_)
            | Settings::Events(_)
            | Settings::Camera(_)
            | Settings::Location(_)
            | Settings::Files(_) => None,
        }
    }

    /// Whether members of `domain` may open channels of it by its name.
    #[must_use]
    pub fn opens(&self, domain: &str) -> bool {
        match self.kind() {
            ServiceKind::Directory
            | ServiceKind::Program
            | ServiceKind::Coordination
            | ServiceKind::Events
            | ServiceKind::Camera
            | ServiceKind::Location
            | ServiceKind::Files => false,
            ServiceKind::Channel => self.allows(domain, &Verb::Open),
            ServiceKind::Socket => self.allows(domain, &Verb::Connect),
        }
    }

    /// Whether programs of `domain` may offer it, where programs offer such a service: those of its
    /// own, and of its backups.
    #[must_use]
    pub fn is_offered_in(&self, domain: &str) -> bool {
        self.domain.as_str() == domain || self.backups.contains(domain)
    }

    /// Whether programs of `domain` may use `verb`.
    #[must_use]
    pub fn allows(&self, domain: &str, verb: &Verb) -> bool {
        self.allow.get(domain).is_some_and(|verbs| verbs.contains(verb))
    }
}

/// The kind of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceKind {
    /// Names in, addresses out.
    Directory,
    /// Channels between programs of domains: one program offers, others open. It has no server of
    /// ours and no files.
    Channel,
    /// Files whose server is a program of the domain: it offers the service and speaks the service
    /// protocol.
    Program,
    /// Cameras: devices of V4L2 that are files.
    Camera,
    /// Connections to a stream socket of the server's domain. The relays of both domains are ours,
    /// the server and its clients are not.
    Socket,
    /// Keys, locks and the like, which live as long as somebody wants them, whatever dies: kept by
    /// the daemon, in the registry.
    Coordination,
    /// Event channels, which domains publish to and subscribe to.
    Events,
    /// A receiver of positions with several sources.
    Location,
    /// A file tree that several domains share.
    Files,
}

impl ServiceKind {
    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Channel => "channel",
            Self::Program => "program",
            Self::Socket => "socket",
            Self::Coordination => "coordination",
            Self::Events => "events",
            Self::Camera => "camera",
            Self::Location => "location",
            Self::Files => "files",
        }
    }

    /// Whether the domain that hosts such a service runs a server of ours for it.
    #[must_use]
    pub fn has_server(self) -> bool {
        match self {
            Self::Directory
            | Self::Coordination
            | Self::Events
            | Self::Camera
            | Self::Location
            | Self::Files => true,
            Self::Channel | Self::Program | Self::Socket => false,
        }
    }

    /// Whether such a service has files, which domains mount.
    #[must_use]
    pub fn has_files(self) -> bool {
        match self {
            Self::Directory
            | Self::Program
            | Self::Coordination
            | Self::Events
            | Self::Camera
            | Self::Location
            | Self::Files => true,
            Self::Channel | Self::Socket => false,
        }
    }

    /// Whether its server can have memory with the domains that mount it.
    #[must_use]
    pub fn has_memory(self) -> bool {
        match self {
            Self::Program | Self::Camera => true,
            Self::Directory
            | Self::Channel
            | Self::Socket
            | Self::Coordination
            | Self::Events
            | Self::Location
            | Self::Files => false,
        }
    }

    /// The verbs that such a service knows; `None`: it names its verbs itself, and any name can be
    /// one.
    #[must_use]
    pub fn verbs(self) -> Option<&'static [Verb]> {
        match self {
            Self::Directory => Some(&[Verb::Resolve, Verb::Control]),
            Self::Channel => Some(&[Verb::Open]),
            Self::Socket => Some(&[Verb::Connect]),
            Self::Coordination => Some(&[Verb::Observe, Verb::Coordinate]),
            Self::Events => Some(&[Verb::Publish, Verb::Subscribe, Verb::Manage]),
            Self::Camera => Some(&[Verb::Watch]),
            Self::Location => Some(&[Verb::Locate, Verb::Choose]),
            Self::Files => Some(&[Verb::Read, Verb::Write]),
            Self::Program => None,
        }
    }
}

/// Something that a domain can be allowed to do with a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Verb {
    /// Ask for names, and change time-outs, retries, search list and format of one's own sessions.
    Resolve,
    /// Choose upstreams for one's own sessions, and whatever the file `ctl` can. A domain that may
    /// choose upstreams can make the backend send packets to any address that the backend reaches.
    Control,
    /// Open channels to the program that offers them.
    Open,
    /// Connect to the socket.
    Connect,
    /// See keys, and be told of changes.
    Observe,
    /// Change keys, take locks.
    Coordinate,
    /// Publish events.
    Publish,
    /// Subscribe to events.
    Subscribe,
    /// Make and remove event channels.
    Manage,
    /// Take part in event channels at all: whoever has one of the other three is given it.
    Use,
    /// Open cameras, and take their frames.
    Watch,
    /// Read positions.
    Locate,
    /// Choose among the sources of positions, for all.
    Choose,
    /// A verb that a service of kind `program` names. A word that has a variant of its own is never
    /// here.
    Named(Name),
    /// Read files.
    Read,
    /// Change files, make and remove them. This right includes reading.
    Write,
}

impl Verb {
    /// The verbs that services of ours know.
    pub const KNOWN: [Self; 15] = [
        Self::Resolve,
        Self::Control,
        Self::Open,
        Self::Connect,
        Self::Watch,
        Self::Locate,
        Self::Choose,
        Self::Read,
        Self::Write,
        Self::Observe,
        Self::Coordinate,
        Self::Publish,
        Self::Subscribe,
        Self::Manage,
        Self::Use,
    ];

    /// Checks the form of a word, which is that of a name.
    ///
    /// # Errors
    /// The fault, for a person.
    pub fn parse(word: &str) -> Result<Self, NameError> {
        match Self::KNOWN.into_iter().find(|known| known.as_str() == word) {
            Some(known) => Ok(known),
            None => Name::parse(word).map(Self::Named),
        }
    }

    /// The word in the file.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Resolve => "resolve",
            Self::Control => "control",
            Self::Open => "open",
            Self::Connect => "connect",
            Self::Observe => "observe",
            Self::Coordinate => "coordinate",
            Self::Publish => "publish",
            Self::Subscribe => "subscribe",
            Self::Manage => "manage",
            Self::Use => "use",
            Self::Watch => "watch",
            Self::Locate => "locate",
            Self::Choose => "choose",
            Self::Read => "read",
            Self::Write => "write",
            Self::Named(name) => name.as_str(),
        }
    }
}

impl TryFrom<String> for Verb {
    type Error = NameError;
    fn try_from(word: String) -> Result<Self, NameError> {
        Self::parse(&word)
    }
}

impl From<Verb> for String {
    fn from(verb: Verb) -> Self {
        verb.as_str().to_owned()
    }
}

/// The settings of a service, by its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Settings {
    /// A directory service.
    Directory(DirectorySettings),
    /// A channel service.
    Channel(ChannelSettings),
    /// A service of a program.
    Program(ProgramSettings),
    /// A socket service.
    Socket(SocketSettings),
    /// A coordination service.
    Coordination(CoordinationSettings),
    /// An event service.
    Events(EventsSettings),
    /// A camera service.
    Camera(CameraSettings),
    /// A location service.
    Location(LocationSettings),
    /// A file tree.
    Files(FilesSettings),
}

/// The settings of a coordination service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoordinationSettings {
    /// How long whoever holds something and can't be reached keeps it.
    pub grace_ms: u64,
}

/// The settings of a service whose server is a program of its domain: what the file says, for the
/// program to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramSettings {
    /// The table of the file as JSON, bounded by [`crate::bounds::PROGRAM_SETTINGS_BYTES_MAX`] and
    /// [`crate::bounds::PROGRAM_SETTINGS_DEPTH_MAX`].
    pub table: serde_json::Map<String, serde_json::Value>,
}

/// The channels between the relays of a socket service: one for each domain that mounts it, and
/// room for a relay's successor.
const RELAY_CHANNELS: ChannelSettings = ChannelSettings {
    ring_bytes: crate::bounds::RELAY_RING_BYTES,
    mode: ChannelMode::Messages,
    max_channels: crate::bounds::RELAY_CHANNELS_MAX,
    channels_per_domain: crate::bounds::RELAY_CHANNELS_PER_DOMAIN,
};

/// The settings of a channel service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelSettings {
    /// Bytes of each of the two rings of a channel: a power of two.
    pub ring_bytes: u32,
    /// The mode of its channels.
    pub mode: ChannelMode,
    /// Channels of the service that may be open at a time.
    pub max_channels: u32,
    /// Those of them that one consuming domain may have; never more than
    /// [`ChannelSettings::max_channels`].
    pub channels_per_domain: u32,
}

/// The mode of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChannelMode {
    /// Messages: each arrives whole.
    Messages,
    /// Bytes, without borders.
    Stream,
}

impl ChannelMode {
    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Stream => "stream",
        }
    }
}

/// The settings of a directory service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectorySettings {
    /// The name servers that are asked, in order of preference; at least one.
    pub upstream: Vec<SocketAddr>,
    /// How long one attempt waits for one upstream.
    pub timeout_ms: u64,
    /// Further attempts after the first.
    pub retries: u32,
    /// Suffixes that are tried for names with no dot, in order.
    pub search: Vec<String>,
    /// Requests of one domain that may wait or be worked on at once.
    pub outstanding_per_domain: u32,
    /// Sessions (open files and connections) that one domain may have.
    pub sessions_per_domain: u32,
    /// The cache of its answers, and the domains that share it.
    pub cache: Cache,
    /// Names of sockets that domains mount, and the address of each in that domain.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<Name, BTreeMap<String, Ipv4Addr>>,
}

/// The cache of a directory service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// The domains that share it.
    pub mode: CacheMode,
    /// Answers that one cache holds at the most.
    pub entries: u32,
    /// How long "there is no such name" is remembered at the most.
    pub negative_ttl_ms: u64,
    /// How long any answer is remembered at the most, whatever its record says.
    pub max_ttl_ms: u64,
}

/// The domains that share a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheMode {
    /// There is none.
    None,
    /// Each domain has its own.
    Private,
    /// These domains, sorted, at least two, share one; every other domain has its own.
    Shared(Vec<Name>),
}
