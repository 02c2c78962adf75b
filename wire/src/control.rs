//! The control protocol: what a member of a domain (a program, a server, the frontend) and the
//! node's daemon say to each other over the domain's control socket. Described in
//! `docs/spec/control.md`.
//!
//! The socket is a Unix `SOCK_SEQPACKET` socket at [`SOCKET_PATH`] inside the domain; the frontend
//! has a private one, inherited. One packet is one JSON object, of [`MAX_PACKET_BYTES`] at most; a
//! channel's descriptors travel with the packet that speaks of them (`SCM_RIGHTS`).

use serde::{Deserialize, Serialize};

/// Version of this protocol.
pub const VERSION: u32 = 1;
/// Longest packet in either direction, in bytes.
pub const MAX_PACKET_BYTES: usize = 64 * 1024;
/// Longest reason of a [`Request::Stay`].
pub const MAX_STAY_BYTES: usize = 512;
/// Where a domain finds its control socket.
pub const SOCKET_PATH: &str = "/run/tombolo/control.sock";
/// The variable that names the socket where it is not at [`SOCKET_PATH`].
pub const SOCKET_VARIABLE: &str = "TOMBOLO_CONTROL";
/// The variable that names a folder for a server of ours: what is in it outlives the server, and
/// goes with the domain.
pub const KEPT_VARIABLE: &str = "TOMBOLO_KEPT";
/// Longest wait for a server that one [`Request::Connect`] may ask for, in ms. A call that waits
/// takes one of its domain's connections, so a wait has an end; who wants to wait longer asks
/// again.
pub const MAX_WAIT_MS: u32 = 60_000;

/// Peers that an endpoint may name when it binds again: so many addresses fit into a packet.
pub const MAX_KNOWN_PEERS: usize = 1024;

/// From a member to the daemon. `id` comes back in the reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Asks for the services that this domain mounts. Answered by [`Reply::Services`].
    Services {
        /// Comes back in the reply.
        id: u64,
    },
    /// A channel to a service, please. Answered by [`Reply::Connected`] with the descriptors of one
    /// end.
    Connect {
        /// Comes back in the reply.
        id: u64,
        /// Name of the service.
        service: String,
        /// `device` (the frontend only), `preload`, `stub` and `resolve` (the frontend only),
        /// `api`.
        entrance: String,
        /// Wished bytes of each ring; the daemon clamps it. 0: the daemon's choice.
        #[serde(default)]
        ring_bytes: u32,
        /// How long to wait for a server where there is none, in ms; the daemon clamps it to
        /// [`MAX_WAIT_MS`]. 0: not at all.
        #[serde(default, skip_serializing_if = "is_zero")]
        wait_ms: u32,
    },
    /// I am the server of the services that the topology places in this domain. Answered by
    /// [`Reply::Serving`]; then [`Event::Attach`] for each consumer.
    Serve {
        /// Comes back in the reply.
        id: u64,
    },
    /// I offer this service of kind `channel` or `program`, which the topology places in this
    /// domain. Answered by [`Reply::Serving`]; then [`Event::Attach`] for each consumer.
    Offer {
        /// Comes back in the reply.
        id: u64,
        /// Name of the service.
        service: String,
        /// Whether to wait where another program offers it, if the service has backups. The answer
        /// comes when this one has it.
        #[serde(default, skip_serializing_if = "is_false")]
        stand_by: bool,
        /// Whether this program has offered it to an earlier daemon, and has its consumers.
        #[serde(default, skip_serializing_if = "is_false")]
        serving: bool,
    },
    /// I have left this service, as [`Event::Leave`] wants, and stand by for it from now on.
    /// Answered by [`Reply::Serving`] when I have it again.
    StepBack {
        /// Comes back in the reply.
        id: u64,
        /// Name of the service.
        service: String,
    },
    /// I serve this service of kind `coordination`: a connection to where its state is kept, please
    /// (`docs/spec/coordination.md`). Answered by [`Reply::State`] with one descriptor.
    KeepState {
        /// Comes back in the reply.
        id: u64,
        /// Name of the service.
        service: String,
    },
    /// From a frontend, whose domain has memory with this service: make it what the files of its
    /// mount can be mapped to. Answered by [`Reply::Backed`].
    MapMemory {
        /// Comes back in the reply.
        id: u64,
        /// Name of the service.
        service: String,
    },
    /// Asks about this domain. Answered by [`Reply::About`].
    About {
        /// Comes back in the reply.
        id: u64,
    },
    /// The answer to [`Event::Inspect`].
    State {
        /// The event's number.
        id: u64,
        /// Counters and histograms, as they shall stand in the state tree.
        state: serde_json::Value,
    },
    /// I am the machine process of this domain, which is of kind `vm` (`docs/spec/machine.md`).
    /// Answered by [`Reply::Machine`]; then [`Event::Frontend`] whenever the guest is to run a
    /// frontend.
    Machine {
        /// Comes back in the reply.
        id: u64,
        /// The accelerator of the guest's instructions: `kvm` or `tcg`.
        accel: String,
        /// Version of QEMU.
        qemu: String,
    },
    /// From the machine process: how far the guest is. Not answered.
    Guest {
        /// How far.
        state: GuestState,
        /// Why, for a person; empty where nothing needs to be said.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
    },
    /// An endpoint, please: mine as long as this connection lives. Answered by [`Reply::Bound`].
    Bind {
        /// Comes back in the reply.
        id: u64,
        /// Its name in the topology, which places it in this domain; empty: one without a name,
        /// which calls and is not called.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        name: String,
        /// The token of an earlier [`Reply::Bound`], to be the same endpoint again after the
        /// daemon's death; else empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        token: String,
        /// With a token: whom it has a channel with, so that the daemon knows whom to tell of
        /// changes. At most [`MAX_KNOWN_PEERS`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        peers: Vec<EndpointAddress>,
    },
    /// A backup of the endpoint of this name, please (`docs/spec/movement.md`): an endpoint without
    /// a name that may take its place. Answered by [`Reply::Bound`].
    Back {
        /// Comes back in the reply.
        id: u64,
        /// Name of the endpoint, whose `backups` in the topology have this domain.
        name: String,
        /// As in [`Request::Bind`].
        #[serde(default, skip_serializing_if = "String::is_empty")]
        token: String,
        /// As in [`Request::Bind`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        peers: Vec<EndpointAddress>,
    },
    /// This backup of mine takes the place of its primary. Answered by [`Reply::Promoted`].
    Promote {
        /// Comes back in the reply.
        id: u64,
        /// Slot of the backup.
        endpoint: u32,
        /// The endpoint whose place it takes; without it, the one that has the name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        over: Option<EndpointAddress>,
        /// The least generation whose replies it knows; 0: its own will be.
        #[serde(default, skip_serializing_if = "is_zero")]
        continues: u32,
        /// Whether the primary is superseded if it is there.
        #[serde(default, skip_serializing_if = "is_false")]
        supersede: bool,
    },
    /// An endpoint of mine goes on without a backup, which must not take its place from now on.
    /// Answered by [`Reply::Done`]; until then it may be superseded.
    Release {
        /// Comes back in the reply.
        id: u64,
        /// Slot of the endpoint.
        endpoint: u32,
        /// The backup.
        backup: EndpointAddress,
    },
    /// To a daemon that does not know it: the least generation of an endpoint of mine whose replies
    /// it knows. Answered by [`Reply::Done`].
    Continues {
        /// Comes back in the reply.
        id: u64,
        /// Slot of the endpoint.
        endpoint: u32,
        /// The generation.
        from: u32,
    },
    /// An endpoint of mine does not move as [`Event::Migrate`] wants. Answered by [`Reply::Done`].
    Stay {
        /// Comes back in the reply.
        id: u64,
        /// Slot of the endpoint.
        endpoint: u32,
        /// The obstacle, for a person: `MAX_STAY_BYTES` at most.
        why: String,
    },
    /// This endpoint of mine ends. Answered by [`Reply::Done`].
    Unbind {
        /// Comes back in the reply.
        id: u64,
        /// Slot of the endpoint.
        endpoint: u32,
    },
    /// Introduce an endpoint of mine to another one. Answered by [`Reply::Introduced`] with the
    /// descriptors of one end; the other one is told by [`Event::Introduced`].
    Introduce {
        /// Comes back in the reply.
        id: u64,
        /// Slot of mine.
        endpoint: u32,
        /// To whom.
        to: Whom,
        /// How long to wait until it is bound, in ms; the daemon clamps it to [`MAX_WAIT_MS`]. 0:
        /// not at all.
        #[serde(default, skip_serializing_if = "is_zero")]
        wait_ms: u32,
    },
    /// A buffer that can be granted, please (`docs/spec/grants.md`): memory that the daemon makes,
    /// and that counts for this distributed container. Answered by [`Reply::Buffer`] with two
    /// descriptors: its data and its states.
    Buffer {
        /// Comes back in the reply.
        id: u64,
        /// Slot of the endpoint that shall own it.
        endpoint: u32,
        /// Bytes of data.
        bytes: u64,
        /// 0, or a buffer of mine of this size that it replaces and that is freed soon: until then
        /// it does not count.
        #[serde(default, skip_serializing_if = "is_zero_long")]
        replaces: u64,
    },
    /// A buffer of mine is not needed any more. All its grants end. Answered by [`Reply::Done`].
    Free {
        /// Comes back in the reply.
        id: u64,
        /// Slot of mine.
        endpoint: u32,
        /// The buffer.
        buffer: u64,
    },
    /// Grant a buffer of mine to another endpoint of this distributed container. Answered by
    /// [`Reply::Granted`].
    Grant {
        /// Comes back in the reply.
        id: u64,
        /// Slot of mine.
        endpoint: u32,
        /// The buffer.
        buffer: u64,
        /// To whom.
        to: EndpointAddress,
        /// The access that is granted.
        access: GrantAccess,
        /// Its place in the buffer's states, which the owner chooses.
        place: u32,
        /// 0 for a new grant; else the number of one of mine that stands for this buffer from now
        /// on, because what was granted has moved there.
        #[serde(default, skip_serializing_if = "is_zero_long")]
        grant: u64,
    },
    /// Take a grant of mine back. Answered by [`Reply::Done`].
    Revoke {
        /// Comes back in the reply.
        id: u64,
        /// Slot of mine.
        endpoint: u32,
        /// The grant.
        grant: u64,
    },
    /// Asks for the memory that a grant stands for: as its grantee, or as an endpoint with the
    /// privilege `copies`. Answered by [`Reply::Borrowed`] with two descriptors: the buffer's data
    /// and its states.
    Borrow {
        /// Comes back in the reply.
        id: u64,
        /// Slot of mine.
        endpoint: u32,
        /// The grant.
        grant: u64,
    },
}

/// Address of an endpoint inside its distributed container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointAddress {
    /// Its place.
    pub slot: u32,
    /// The incarnation of that place, from 1.
    pub generation: u32,
}

/// The endpoints that an endpoint wants to be introduced to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Whom {
    /// The endpoint that has this name.
    Name(String),
    /// This very one.
    Address(EndpointAddress),
}

/// A grantee's access to a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantAccess {
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

/// The rights of one endpoint against another, as the topology says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointRights {
    /// Send to it.
    pub send: bool,
    /// Ask it.
    pub request: bool,
    /// Notify it.
    pub notify: bool,
    /// Pass requests of others on to it.
    pub relay: bool,
    /// Receive messages of it.
    pub hears: bool,
    /// Receive requests of it.
    pub answers: bool,
    /// Receive requests that it passes on.
    pub answers_relayed: bool,
    /// Receive notices of it.
    pub heeds: bool,
}

/// An endpoint as another one is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointPeer {
    /// Where it is.
    pub address: EndpointAddress,
    /// Its name; empty where it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The domain of its program.
    pub domain: String,
    /// The rights of the receiver of this message against that endpoint.
    pub rights: EndpointRights,
    /// The least generation of this endpoint whose replies it knows (`docs/spec/movement.md`); 0:
    /// it has taken over from nobody.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub continues: u32,
    /// Whether it is a backup of the one who is told.
    #[serde(default, skip_serializing_if = "is_false")]
    pub backup: bool,
}

/// A granted buffer as a grantee is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedBuffer {
    /// Its number in the distributed container, never used again.
    pub grant: u64,
    /// Number of the buffer that it stands for now.
    pub buffer: u64,
    /// Its place in the buffer's states.
    pub place: u32,
    /// The endpoint that has the buffer.
    pub owner: EndpointAddress,
    /// The endpoint that it was granted to.
    pub to: EndpointAddress,
    /// The access.
    pub access: GrantAccess,
    /// Bytes of data.
    pub bytes: u64,
}

/// How far the guest of a domain of kind `vm` is, as its machine process says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestState {
    /// It was switched on, and its agent has not spoken yet.
    Booting,
    /// Its command runs, or there is none and its services are there.
    Started,
    /// Its frontend serves `/srv`.
    FrontendUp,
    /// Its frontend has ended: the next [`Event::Frontend`] is awaited.
    FrontendDown,
}

impl GuestState {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Booting => "booting",
            Self::Started => "started",
            Self::FrontendUp => "frontend-up",
            Self::FrontendDown => "frontend-down",
        }
    }
}

/// From the daemon to a member.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// To [`Request::Services`].
    Services {
        /// The request's number.
        id: u64,
        /// All that the domain mounts.
        services: Vec<MountedService>,
    },
    /// To [`Request::Connect`]; one end's descriptors travel with it.
    Connected {
        /// The request's number.
        id: u64,
        /// Number of the channel on this node, as the state tree shows it.
        channel: u64,
        /// To a frontend: the server has the memory of this domain with the service
        /// ([`Request::MapMemory`]).
        #[serde(default, skip_serializing_if = "is_false")]
        memory: bool,
    },
    /// To [`Request::MapMemory`].
    Backed {
        /// The request's number.
        id: u64,
        /// The kernel's number for the memory, on this mount (`FUSE_DEV_IOC_BACKING_OPEN`).
        backing: u32,
    },
    /// To [`Request::Serve`] and [`Request::Offer`].
    Serving {
        /// The request's number.
        id: u64,
        /// The services to serve, with their admitted settings.
        services: Vec<ServedService>,
    },
    /// To [`Request::About`].
    About {
        /// The request's number.
        id: u64,
        /// The domain's corner of the state tree.
        about: serde_json::Value,
    },
    /// To [`Request::Machine`].
    Machine {
        /// The request's number.
        id: u64,
    },
    /// To [`Request::Bind`].
    Bound {
        /// The request's number.
        id: u64,
        /// Where it is.
        address: EndpointAddress,
        /// The token that makes it the same endpoint again, at a daemon that has not met it.
        token: String,
        /// Whether it may copy between buffers that were granted to others.
        copies: bool,
    },
    /// To [`Request::Promote`]: the backup is the endpoint from now on, and its own slot is
    /// nobody's.
    Promoted {
        /// The request's number.
        id: u64,
        /// Where it is.
        address: EndpointAddress,
        /// As in [`Reply::Bound`].
        token: String,
        /// As in [`Reply::Bound`].
        copies: bool,
    },
    /// To [`Request::Introduce`]; one end's descriptors travel with it.
    Introduced {
        /// The request's number.
        id: u64,
        /// The other endpoint.
        peer: EndpointPeer,
        /// Number of the channel on this node.
        channel: u64,
    },
    /// To [`Request::Buffer`]; the descriptors of its data and its states travel with it.
    Buffer {
        /// The request's number.
        id: u64,
        /// The buffer's number.
        buffer: u64,
    },
    /// To [`Request::Grant`].
    Granted {
        /// The request's number.
        id: u64,
        /// The grant's number.
        grant: u64,
    },
    /// To [`Request::Borrow`]; the descriptors of the buffer's data and its states travel with it.
    Borrowed {
        /// The request's number.
        id: u64,
        /// The buffer.
        buffer: GrantedBuffer,
    },
    /// To [`Request::Borrow`] of a grant of another node: the descriptors of the end of a channel
    /// travel with it, at whose other end the memory is (`docs/spec/loan.md`).
    Lent {
        /// The request's number.
        id: u64,
        /// The grant.
        grant: u64,
        /// Number of the channel on this node.
        channel: u64,
    },
    /// To [`Request::KeepState`]; the descriptor of the state connection travels with it.
    State {
        /// The request's number.
        id: u64,
    },
    /// To what has no other answer: it was done.
    Done {
        /// The request's number.
        id: u64,
    },
    /// The request was refused.
    Refused {
        /// The request's number; 0 where the packet was no request at all.
        id: u64,
        /// The errno that fits.
        errno: i32,
        /// The fault, and what to do about it.
        message: String,
    },
    /// Nobody asked: something happened.
    Event(Event),
}

/// A message of the daemon that answers no request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// To a server: a new consumer; one end's descriptors travel with it.
    Attach {
        /// The served service.
        service: String,
        /// Number of the channel on this node.
        channel: u64,
        /// The consumer.
        consumer: Consumer,
        /// Whether the memory that the consumer's domain has with the service follows the
        /// descriptors of the channel's end: a memfd that keeps its size.
        #[serde(default, skip_serializing_if = "is_false")]
        memory: bool,
    },
    /// To a server: the settings of a service changed.
    Settings {
        /// The served service.
        service: String,
        /// All of them, as admitted.
        settings: serde_json::Value,
    },
    /// To a server: what a domain may do has changed; verbs of its open channels change with it.
    Verbs {
        /// The served service.
        service: String,
        /// The domain.
        domain: String,
        /// All that it may do now.
        verbs: Vec<String>,
    },
    /// To a frontend: a service has a (new) server: connect again. Also after its death, then `up`
    /// is false.
    Service {
        /// Name of the service.
        service: String,
        /// Whether a server is there.
        up: bool,
        /// Counts the servers that this service has had.
        generation: u64,
    },
    /// To a frontend: the services that the domain mounts have changed.
    Services {
        /// All that the domain mounts.
        services: Vec<MountedService>,
    },
    /// To a program that offers a service: the topology no longer lets this domain offer it.
    /// Channels that are open stay so.
    Withdrawn {
        /// The offered service.
        service: String,
        /// Why, for a person.
        message: String,
    },
    /// To a program that offers a service of kind `program`: another one is to have it. It takes no
    /// more from its consumers, answers what it has taken, says `Leave` to each of them
    /// (`docs/spec/service.md`), and then [`Request::StepBack`].
    Leave {
        /// The offered service.
        service: String,
    },
    /// To a machine process: have the guest run a frontend, in the place of one that may be there.
    /// Two descriptors travel with it: the private sockets of the frontend and of its entrances.
    Frontend {
        /// The order of a frontend in words, without the descriptors of a node's own.
        order: serde_json::Value,
    },
    /// To an endpoint: somebody was introduced to it; one end's descriptors travel with it.
    Introduced {
        /// Slot of the endpoint that is told.
        endpoint: u32,
        /// The other endpoint.
        peer: EndpointPeer,
        /// Number of the channel on this node.
        channel: u64,
    },
    /// To an endpoint: what it may do with a peer has changed with the topology.
    Rights {
        /// Slot of the endpoint that is told.
        endpoint: u32,
        /// The other endpoint.
        peer: EndpointAddress,
        /// All that it may do now.
        rights: EndpointRights,
    },
    /// To an endpoint: a peer that may still run has been superseded, and nothing of it counts any
    /// more.
    Superseded {
        /// Slot of the endpoint that is told.
        endpoint: u32,
        /// The endpoint that was superseded.
        peer: EndpointAddress,
        /// The endpoint that has its place now.
        by: EndpointAddress,
    },
    /// To an endpoint: the node's administrator wants it to move to a backup in this domain, or to
    /// stay. It moves when it receives next, or says why not by [`Request::Stay`].
    Migrate {
        /// Slot of the endpoint that is told.
        endpoint: u32,
        /// The domain; none: what was said before is taken back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// To an endpoint: a grant that it has borrowed stands for another buffer now. It borrows it
    /// again to learn which.
    Moved {
        /// Slot of the endpoint that is told.
        endpoint: u32,
        /// The grant.
        grant: u64,
    },
    /// To an endpoint: a grant that it has borrowed is over.
    Revoked {
        /// Slot of the endpoint that is told.
        endpoint: u32,
        /// The grant.
        grant: u64,
    },
    /// To an endpoint: it is none any more, because the topology no longer places it here.
    Unbound {
        /// Slot of the endpoint.
        endpoint: u32,
        /// Why, for a person.
        message: String,
    },
    /// To frontends and servers: say your state ([`Request::State`]).
    Inspect {
        /// Comes back in the answer.
        id: u64,
    },
}

/// The targets of one file of a service that a domain mounts: each is there or not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The name of the file in the service's folder.
    pub file: String,
    /// 99 of 100 calls are answered within this time, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<u64>,
    /// Each call is answered within this time, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ns: Option<u64>,
    /// So many calls are answered, or records come, in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// The last record of the stream is no older than this, in ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ns: Option<u64>,
}

/// A service as a domain sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountedService {
    /// Its name.
    pub name: String,
    /// Its kind, `directory` for one.
    pub kind: String,
    /// Folder below `/srv`.
    pub at: String,
    /// The verbs that the domain may use.
    pub verbs: Vec<String>,
    /// Whether a server is there now.
    pub up: bool,
    /// Counts the servers that it has had.
    pub generation: u64,
    /// The targets that the topology file asks of its files here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
}

/// A service as its server sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServedService {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// The admitted settings: for `directory` a `wire::directory::Settings`, for `channel` a
    /// [`ChannelSettings`], for `program` the table of the topology file.
    pub settings: serde_json::Value,
}

/// The admitted settings of a channel service: what each of its channels is like, and how many
/// there may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelSettings {
    /// Bytes of each of the two rings.
    pub ring_bytes: u32,
    /// Whether it moves messages or a stream of bytes.
    pub mode: ChannelMode,
    /// Channels of the service that may be open at a time.
    pub max_channels: u32,
    /// Those of them that one consuming domain may have.
    pub channels_per_domain: u32,
}

/// The unit that a channel moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChannelMode {
    /// Messages: each arrives whole, or not at all.
    Messages,
    /// Bytes, without borders.
    Stream,
}

/// The party at the other end of a channel, as the daemon (not the peer) says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumer {
    /// The distributed container.
    pub dc: String,
    /// The domain: key of private caches, quotas and counters.
    pub domain: String,
    /// The entrance: `device`, `preload`, `stub`, `resolve`, `api`.
    pub entrance: String,
    /// The verbs that the domain may use.
    pub verbs: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_zero_long(number: &u64) -> bool {
    *number == 0
}
