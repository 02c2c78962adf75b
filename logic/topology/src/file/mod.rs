//! The file's own form: every key that there is, with its type. The reference page, the JSON schema
//! and the reader all come from here.

mod adaptation;
mod free;
mod values;

use std::path::{Path, PathBuf};

use crate::bounds::*;
use crate::model::{
    Accel, ChannelMode, DiskFormat, DiskHolds, DomainKind, EndpointVerb, Enforce, FrameFormat, JobPolicy,
    LocationKind, Network, NetworkClass, NodeChoice, Outside, RestartPolicy, ServiceKind, Signal, Verb,
    VolumeStore,
};
use crate::name::Name;
use crate::read::{Items, Named, table_form};
use crate::scalar::{
    Address, Bytes, Count, Filled, Hostname, Inside, Millis, Nanos, Processors, Rate, Suffix, Text, Upstream,
};

pub(crate) use adaptation::{AdaptationForm, BudgetRangeForm, RateRangeForm, RuleForm, SelectorForm};
pub(crate) use free::ProgramForm;
pub use values::is_secret_name;
pub(crate) use values::{
    CacheModeWord, Capability, DomainsForm, FrameSize, Label, PublishAt, RootForm, SecretName, ServiceAt,
    SettingsForm, TargetAt, UserForm, check_name,
};

/// The program and its arguments.
pub(crate) type Command = Items<Text, LIST_MAX, 1>;

table_form! {
    /// A topology: one distributed container, its domains, services and endpoints.
    TopologyForm as "a topology" {
        /// The distributed container's name: what `tombolo down NAME` and every listing call it.
        name: Name => required,
        /// The isolated execution environments, by name.
        domain: Named<DomainForm, DOMAINS_MAX> => required,
        /// The services, by name.
        service: Named<ServiceForm, SERVICES_MAX> => optional,
        /// The endpoints that have names, by name.
        endpoint: Named<EndpointForm, NAMED_ENDPOINTS_MAX> => optional,
        /// The virtual disks that outlive domains, by name.
        volume: Named<VolumeForm, VOLUMES_MAX> => optional,
        /// Addresses of the node at which others reach servers of domains that have only `lo`.
        publish: Named<PublishAt, PUBLISHED_MAX> => optional,
        /// How much there may be of what endpoints need.
        ipc: IpcForm => optional,
        /// Rules that move promises while domains run, by name.
        adaptation: Named<AdaptationForm, ADAPTATIONS_MAX> => optional,
    }
}

table_form! {
    /// One isolated execution environment: a process of the node, a container, or a virtual
    /// machine.
    DomainForm as "a domain" {
        /// How it is isolated.
        kind: DomainKind => required,
        /// On which node it runs: a node's name, "any", or "spread": as few domains of the file
        /// that say so beside each other as can be.
        node: NodeChoice => "any",
        /// Labels that its node must have, with these values.
        labels: Named<Label, LABELS_MAX> => optional,
        /// Where its file tree comes from: "host" is a read-only view of the node's own system
        /// directories.
        root: RootForm => "host",
        /// Whether it may write to its root. Not for the root "host".
        writable: bool => false,
        /// How much what it writes to its root may take. Only with `writable`.
        layer: LayerForm => optional,
        /// Whether it is in a user namespace of its own: what the kernel counts by user (inotify,
        /// signals that wait, message queues) has bounds of its own then, and capabilities are
        /// about the container alone. Only for a container without the node's network.
        userns: bool => false,
        /// The program and its arguments, never through a shell. Absent where the domain runs the
        /// server of a service, where the image says it, or in a machine in which only `tombolo
        /// exec` runs something.
        command: Command => optional,
        /// Environment variables of the program.
        environment: Named<Text, LIST_MAX> => optional,
        /// Files of the node with further variables, a NAME=VALUE on each line; a later file counts
        /// before an earlier one, `environment` before all.
        env_file: Items<Filled, ENV_FILES_MAX> => optional,
        /// Secrets of the distributed container that the domain reads, each in a file of its name:
        /// a container in /run/secrets, a process in the folder that TOMBOLO_SECRETS names.
        /// `tombolo secret set` says their values.
        secrets: Items<SecretName, SECRETS_PER_DOMAIN_MAX> => optional,
        /// Files and directories of the node that the container sees.
        mounts: Items<MountForm, MOUNTS_MAX> => optional,
        /// The user that the program runs as: a name or a number, with a group after a colon if
        /// need be.
        user: UserForm => optional,
        /// The network that it sees: "none" is only `lo`. The default is "none"; a process shares
        /// the node's network. "host" in a machine is a card behind the node's network, by which it
        /// reaches out and nobody reaches in.
        network: Network => optional,
        /// Its own host name; the domain's name where nothing is said. Not for a process.
        hostname: Hostname => optional,
        /// The working directory: of a container an absolute path inside it, of a process a path on
        /// the node, relative to the file's directory.
        workdir: Filled => optional,
        /// The virtual machine. Only for the kind "vm".
        machine: MachineForm => optional,
        /// Capabilities that the program keeps; all others are dropped.
        capabilities: Items<Capability, LIST_MAX> => optional,
        /// Limits that the kernel enforces on the domain.
        limits: LimitsForm => optional,
        /// The reservation of the domain: admitted with all that the node has promised, and kept
        /// whatever others do.
        reserve: ReserveForm => optional,
        /// The restart policy: what happens when the program ends.
        restart: RestartForm => optional,
        /// How much of its output is kept.
        log: LogForm => optional,
        /// The services that it sees, by name: where below /srv, and by which native entrances.
        services: Named<ServiceAt, SERVICES_MAX> => optional,
        /// Whether clients of 9P2000.L see its /srv as well, at the socket 9p.sock in /run/tombolo.
        /// Not for a vm.
        nine_p: bool => false,
        /// The volumes that it has, by name. Each volume has one domain.
        volumes: Named<VolumeAtForm, VOLUMES_PER_DOMAIN_MAX> => optional,
        /// Lines of its resolv.conf beside the address of its stub.
        resolv: ResolvForm => optional,
        /// How it is asked to end.
        stop: StopForm => optional,
        /// Domains that must be ready before this one starts.
        after: Items<Filled, DOMAINS_MAX> => optional,
        /// How `up` knows that it is up; where nothing is said, it is up when its program runs.
        ready: ReadyForm => optional,
        /// How it is known that the domain, once up, still does what it should; one that does not
        /// is restarted by its policy.
        health: HealthForm => optional,
    }
}

table_form! {
    /// A file or directory of the node that a container sees.
    MountForm as "a mount" {
        /// The file or directory on the node, relative to the file's directory.
        source: Filled => required,
        /// Where the container sees it: an absolute path.
        target: Inside => required,
        /// Whether the container may only read it.
        read_only: bool => true,
    }
}

table_form! {
    /// A virtual machine.
    MachineForm as "a machine" {
        /// Processors that the guest sees.
        cpus: Count<1, MACHINE_CPUS_MAX> => MACHINE_CPUS_DEFAULT,
        /// Memory that the guest sees, in whole MiB.
        memory: Bytes<MACHINE_MEMORY_MIN, MACHINE_MEMORY_MAX> => "256MiB",
        /// The accelerator that runs its instructions.
        accel: Accel => "auto",
        /// A kernel of the node, relative to the file's directory: a file, or the root directory of
        /// an unpacked or installed kernel package. Where nothing is said, the node makes a small
        /// system of a kernel that it has.
        kernel: Filled => optional,
        /// The initramfs for a kernel that is a file.
        initramfs: Filled => optional,
        /// Words that are added to the kernel's command line.
        append: Text => optional,
        /// How long it may take from power-on until its agent speaks; then it is ended.
        boot_timeout: Millis<MACHINE_BOOT_MS_MIN, MACHINE_BOOT_MS_MAX> => "120s",
        /// A disk.
        disk: DiskForm => optional,
    }
}

table_form! {
    /// A disk of a virtual machine.
    DiskForm as "a disk" {
        /// The file on the node, relative to the file's directory.
        path: Filled => required,
        /// The format of its bytes. It is never guessed: a guest could write a header and read a
        /// file of the node.
        format: DiskFormat => required,
        /// Whether the guest may only read it.
        read_only: bool => false,
        /// The contents: the file tree of the command, a whole system that boots, or something
        /// else.
        holds: DiskHolds => "root",
    }
}

table_form! {
    /// Limits that the kernel enforces on a domain.
    LimitsForm as "limits" {
        /// Processors: 0.5 is half of one. No limit where nothing is said.
        cpu: Processors => optional,
        /// Memory, page cache included: "64MiB". No limit where nothing is said.
        memory: Bytes<MEMORY_BYTES_MIN, MEMORY_BYTES_MAX> => optional,
        /// Processes and threads.
        pids: Count<PIDS_MIN, PIDS_MAX> => PIDS_DEFAULT,
    }
}

table_form! {
    /// The layer of a container with a writable root: in memory, and gone with the domain. What it
    /// takes counts against `limits.memory`.
    LayerForm as "a layer" {
        /// Bytes of files.
        size: Bytes<LAYER_BYTES_MIN, LAYER_BYTES_MAX> => "256MiB",
        /// Files, directories and links.
        inodes: Count<LAYER_INODES_MIN, LAYER_INODES_MAX> => LAYER_INODES_DEFAULT,
    }
}

table_form! {
    /// The reservation of a domain.
    ReserveForm as "a reservation" {
        /// Processor time.
        cpu: ProcessorShareForm => optional,
        /// A class of the node's link.
        network: NetworkShareForm => optional,
        /// Memory that is left to it when others want more: "64MiB".
        memory: Bytes<MEMORY_BYTES_MIN, MEMORY_BYTES_MAX> => optional,
        /// Bandwidth of the node's disk.
        io: DiskShareForm => optional,
        /// The order of its jobs in its time.
        policy: JobPolicy => "round-robin",
        /// The jobs that are promised to be in time within the domain's own, by a name for each;
        /// for a policy other than "round-robin".
        jobs: Named<JobForm, JOBS_MAX> => optional,
        /// The mechanism that keeps the processor time.
        enforce: Enforce => "auto",
        /// The processes' state when the budget of a period is used up.
        outside: Outside => "held",
        /// Whether the domain is refused where the node lacks what it takes to keep all of this;
        /// otherwise it runs, and what is not guaranteed is told.
        strict: bool => false,
    }
}

table_form! {
    /// Processor time: so much in each period.
    ProcessorShareForm as "a reservation of processor time" {
        /// How much in each period, of one processor.
        budget: Nanos<BUDGET_NS_MIN, PERIOD_NS_MAX> => required,
        /// How often it is renewed.
        period: Nanos<BUDGET_NS_MIN, PERIOD_NS_MAX> => required,
        /// By when in each period it is had; where nothing is said, by its end.
        deadline: Nanos<BUDGET_NS_MIN, PERIOD_NS_MAX> => optional,
        /// The processor that gives it; where nothing is said, the node chooses.
        processor: Count<0, PROCESSOR_MAX> => optional,
    }
}

table_form! {
    /// A job: a process or a thread of the domain, with what it needs of the domain's processor
    /// time. One of `process` and `thread` says which.
    JobForm as "a job" {
        /// Processes by name, or by the whole command line; `*` stands for anything, `?` for one
        /// character.
        process: Text => optional,
        /// Threads by name, likewise.
        thread: Text => optional,
        /// How much it takes in each of its periods.
        budget: Nanos<BUDGET_NS_MIN, PERIOD_NS_MAX> => required,
        /// How often it begins, at most.
        period: Nanos<BUDGET_NS_MIN, PERIOD_NS_MAX> => required,
        /// By when it is done, after it began; where nothing is said, within its period.
        deadline: Nanos<BUDGET_NS_MIN, PERIOD_NS_MAX> => optional,
    }
}

table_form! {
    /// A class of the node's link.
    NetworkShareForm as "a reservation of the network" {
        /// The rate that is promised, headers included: "5mbit" is five million bits per second.
        rate: Rate<RATE_BITS_MIN, RATE_BITS_MAX> => required,
        /// The rate that it may use while others don't; where nothing is said, all of the link.
        ceiling: Rate<RATE_BITS_MIN, RATE_BITS_MAX> => optional,
        /// How much may come at once.
        burst: Bytes<BURST_BYTES_MIN, BURST_BYTES_MAX> => "16KiB",
        /// The class that says who gets first what others leave.
        class: NetworkClass => "best-effort",
    }
}

table_form! {
    /// Bandwidth of the node's disk: either, or both.
    DiskShareForm as "a reservation of the disk" {
        /// Bytes in each second.
        bytes: Bytes<IO_BYTES_MIN, MEMORY_BYTES_MAX> => optional,
        /// Operations in each second.
        operations: Count<1, IO_OPERATIONS_MAX> => optional,
    }
}

table_form! {
    /// A restart policy: what happens when a program ends.
    RestartForm as "a restart policy" {
        /// When it is started again; where nothing is said, a server always and a command on
        /// failure.
        policy: RestartPolicy => optional,
        /// The first pause before a restart; each further one is twice as long.
        backoff: Millis<BACKOFF_MS_MIN, BACKOFF_MS_MAX> => "200ms",
        /// The longest pause before a restart.
        max_backoff: Millis<BACKOFF_MS_MIN, BACKOFF_MS_MAX> => "10s",
        /// Restarts in a row after which the domain is given up; no end where nothing is said.
        max_retries: Count<0, RETRIES_MAX> => optional,
        /// Whether it is started on another node when its own is lost.
        elsewhere: bool => false,
    }
}

table_form! {
    /// How much of a domain's output is kept.
    LogForm as "log limits" {
        /// Size at which a log file is rotated.
        max_size: Bytes<LOG_BYTES_MIN, LOG_BYTES_MAX> => "1MiB",
        /// Log files that are kept, the current one included.
        files: Count<1, LOG_FILES_MAX> => LOG_FILES_DEFAULT,
    }
}

table_form! {
    /// Lines of a domain's resolv.conf beside the address of its stub.
    ResolvForm as "resolv" {
        /// Suffixes for short names, in order.
        search: Items<Suffix, SEARCH_MAX> => optional,
        /// Names with fewer dots than this try the search list first.
        ndots: Count<0, NDOTS_MAX> => 1,
    }
}

table_form! {
    /// How a domain is asked to end.
    StopForm as "stop" {
        /// The signal that asks.
        signal: Signal => "TERM",
        /// How long it may take before it is killed; where nothing is said, 5s, and 10s for a
        /// machine.
        timeout: Millis<0, STOP_MS_MAX> => optional,
    }
}

table_form! {
    /// How `up` knows that a domain is up: by `tcp` or by `command`.
    ReadyForm as "readiness" {
        /// A connection to this address, from the node's network, is accepted. Only with network =
        /// "host".
        tcp: Address => optional,
        /// This command, run inside the domain, ends with 0.
        command: Command => optional,
        /// How long `up` waits before it fails and rolls back; where nothing is said, 10s, and 60s
        /// for a machine.
        timeout: Millis<READY_MS_MIN, READY_MS_MAX> => optional,
    }
}

table_form! {
    /// How it is known that a domain still does what it should.
    HealthForm as "a health check" {
        /// This command, run inside the domain, ends with 0.
        command: Command => required,
        /// The pause between two checks.
        every: Millis<HEALTH_MS_MIN, HEALTH_MS_MAX> => "10s",
        /// How long one check may take; then it is ended and has failed.
        timeout: Millis<HEALTH_MS_MIN, HEALTH_MS_MAX> => "5s",
        /// After so many failures in a row the domain is restarted.
        fails: Count<1, HEALTH_FAILS_MAX> => HEALTH_FAILS_DEFAULT,
    }
}

table_form! {
    /// The target of an address of the node.
    PublishForm as "what is published" {
        /// The domain whose program listens. A container with network = "none".
        domain: Filled => required,
        /// The port at which it listens, at 127.0.0.1 in its domain.
        port: Count<1, PORT_MAX> => required,
        /// Connections that may be open at a time; more wait in the backlog.
        max_connections: Count<1, CONNECTIONS_MAX> => CONNECTIONS_PER_DOMAIN_DEFAULT,
        /// New connections in a second; where nothing is said, as many as come.
        connections_per_second: Count<1, CONNECTIONS_PER_SECOND_MAX> => optional,
    }
}

table_form! {
    /// A service in one domain.
    ServiceAtForm as "a service's place" {
        /// The directory below /srv; /srv/NAME where nothing is said. Of a socket, which must say
        /// it: where programs connect to.
        at: Filled => optional,
        /// A DNS stub at 127.0.0.53 and a resolv.conf that says so; where nothing is said, in every
        /// domain that has only `lo`.
        stub: bool => optional,
        /// The socket that stock libnss-resolve talks to; where nothing is said, as `stub`.
        resolve: bool => optional,
        /// libtombolo_preload.so in the LD_PRELOAD of the program.
        preload: bool => false,
        /// The targets of files of the service here, by the names of the files.
        targets: Named<TargetAt, TARGETS_MAX> => optional,
    }
}

table_form! {
    /// The targets of a file of a service in a domain: one at least.
    TargetForm as "a target" {
        /// Within this time 99 of 100 calls are answered.
        p99: Nanos<TARGET_NS_MIN, TARGET_NS_MAX> => optional,
        /// Within this time each call is answered.
        deadline: Nanos<TARGET_NS_MIN, TARGET_NS_MAX> => optional,
        /// So many calls are answered, or records of a stream come, in a second.
        rate: Count<1, TARGET_RATE_MAX> => optional,
        /// No older than this is the last record of a stream that is read.
        age: Nanos<TARGET_NS_MIN, TARGET_NS_MAX> => optional,
    }
}

table_form! {
    /// A volume in one domain.
    VolumeAtForm as "a volume's place" {
        /// The folder in which a container finds the volume's NBD socket, `nbd.sock`;
        /// /run/volumes/NAME where nothing is said. A machine has a disk with the volume's name as
        /// its serial number.
        at: Inside => optional,
    }
}

table_form! {
    /// A virtual disk that outlives the domain that uses it.
    VolumeForm as "a volume" {
        /// Bytes that its domain sees, a multiple of 512. A greater number in the file lets it
        /// grow; it never shrinks.
        size: Bytes<VOLUME_BYTES_MIN, VOLUME_BYTES_MAX> => required,
        /// How they lie in its file: "qcow2" has snapshots.
        format: DiskFormat => "raw",
        /// The medium that they are kept in.
        store: VolumeStore => "file",
        /// Nodes of the cluster that have all of its bytes. With two or three it survives the loss
        /// of one: a write is acknowledged when all that count have it.
        replicas: Count<1, VOLUME_REPLICAS_MAX> => 1,
    }
}

table_form! {
    /// A named thing that domains use: what it is, where it runs, who may use it.
    ServiceForm as "a service" {
        /// The kind of the service.
        kind: ServiceKind => required,
        /// The domain in which its backend runs; of a channel and of a program's service, the one
        /// whose program offers it; of a socket, the one whose program listens.
        domain: Filled => required,
        /// The domains whose programs stand by for the one that offers it, take its place when it
        /// dies, and can be moved to; only of a program.
        backups: Items<Filled, LIST_MAX> => optional,
        /// The domains that may use its verbs. Nobody may unless it is said here.
        allow: Items<AllowForm, LIST_MAX, 1> => required,
        /// Memory that each domain that mounts it has with its server, to which its files can be
        /// mapped; only of a program and a camera. Where nothing is said, a program has none and a
        /// camera 64MiB. A running domain has what it started with.
        memory: Bytes<SERVICE_MEMORY_MIN, SERVICE_MEMORY_MAX> => optional,
        /// Where the server of a socket listens in its domain. A socket must have it, and nothing
        /// else can.
        to: Filled => optional,
        /// The settings of its kind. A directory and a camera must have them; those of a program
        /// are what the program is told.
        settings: SettingsForm => beside,
    }
}

table_form! {
    /// A permission: these domains may use these verbs.
    AllowForm as "a permission" {
        /// A list of domains, or "*" for every domain of the file.
        domains: DomainsForm => required,
        /// The verbs that they may use.
        verbs: Items<Verb, 8, 1> => required,
    }
}

table_form! {
    /// An address with a name to which programs send messages.
    EndpointForm as "an endpoint" {
        /// The domain whose programs may bind it, one at a time.
        domain: Filled => required,
        /// The endpoints that may use it, and how. Where nothing is said nobody calls it: it only
        /// calls.
        allow: Items<EndpointAllowForm, LIST_MAX> => optional,
        /// The endpoints that it may call, if they allow it. Where nothing is said: all that allow
        /// it.
        calls: Items<Filled, LIST_MAX> => optional,
        /// Whether it may copy between buffers that were granted to others.
        copies: bool => false,
        /// The domains whose programs may be its backups, and take over from the one that has bound
        /// it.
        backups: Items<Filled, LIST_MAX> => optional,
    }
}

table_form! {
    /// A permission of an endpoint: these endpoints, and all endpoints of these domains, may do
    /// this with it.
    EndpointAllowForm as "a permission of an endpoint" {
        /// Endpoints, by name.
        endpoints: Items<Filled, LIST_MAX> => optional,
        /// All endpoints of these domains, with and without a name; "*" for every domain of the
        /// file.
        domains: DomainsForm => optional,
        /// The verbs that they may use.
        verbs: Items<EndpointVerb, 8, 1> => required,
    }
}

table_form! {
    /// How much a distributed container may have of what endpoints need.
    IpcForm as "limits of endpoints" {
        /// Endpoints that are bound at a time.
        endpoints: Count<1, ENDPOINTS_MAX> => ENDPOINTS_DEFAULT,
        /// Those of them that one domain may have without a name; where nothing is said, 32 or
        /// `endpoints`, whichever is less.
        anonymous_per_domain: Count<0, ENDPOINTS_MAX> => optional,
        /// Pairs of endpoints that were introduced to each other.
        pairs: Count<1, PAIRS_MAX> => PAIRS_DEFAULT,
        /// Bytes of each of the two rings of a pair, a power of two.
        ring_bytes: Bytes<RING_BYTES_MIN, RING_BYTES_MAX> => "256KiB",
        /// Bytes of shared memory: regions of pairs, and buffers.
        bytes: Bytes<IPC_BYTES_MIN, MEMORY_BYTES_MAX> => "256MiB",
        /// Buffers that can be granted.
        buffers: Count<0, BUFFERS_MAX> => BUFFERS_DEFAULT,
        /// Grants of buffers.
        grants: Count<0, GRANTS_MAX> => GRANTS_DEFAULT,
    }
}

table_form! {
    /// The settings of a directory service.
    DirectoryForm as "settings of a directory" {
        /// The name servers that are asked, in order of preference; port 53 where none is said.
        upstream: Items<Upstream, UPSTREAMS_MAX, 1> => required,
        /// How long one attempt waits for one upstream.
        timeout: Millis<ATTEMPT_MS_MIN, ATTEMPT_MS_MAX> => "2s",
        /// Further attempts after the first.
        retries: Count<0, ATTEMPTS_MAX> => ATTEMPTS_DEFAULT,
        /// Suffixes that the service tries for names without a dot, in order.
        search: Items<Suffix, SEARCH_MAX> => optional,
        /// Requests that one domain may have at once.
        outstanding_per_domain: Count<1, OUTSTANDING_MAX> => OUTSTANDING_PER_DOMAIN_DEFAULT,
        /// Sessions (open files and connections) that one domain may have.
        sessions_per_domain: Count<1, SESSIONS_MAX> => SESSIONS_DEFAULT,
        /// The cache, and for whom it is.
        cache: CacheForm => optional,
    }
}

table_form! {
    /// The settings of a channel: what each one is like, and how many there may be.
    ChannelForm as "settings of a channel" {
        /// Bytes of each of the two rings of a channel, a power of two.
        ring_bytes: Bytes<RING_BYTES_MIN, RING_BYTES_MAX> => "256KiB",
        /// The unit that its channels move.
        mode: ChannelMode => "messages",
        /// Channels of the service that may be open at a time.
        max_channels: Count<1, CHANNELS_MAX> => CHANNELS_DEFAULT,
        /// Those of them that one domain may have; where nothing is said, 64 or `max_channels`,
        /// whichever is less.
        channels_per_domain: Count<1, CHANNELS_PER_DOMAIN_MAX> => optional,
    }
}

table_form! {
    /// The settings of a socket: how much there may be of it, and what its server is told.
    SocketForm as "settings of a socket" {
        /// Connections of all domains that may be open at a time.
        max_connections: Count<1, CONNECTIONS_MAX> => CONNECTIONS_DEFAULT,
        /// Those of them that one domain may have; where nothing is said, 1024 or
        /// `max_connections`, whichever is less.
        connections_per_domain: Count<1, CONNECTIONS_MAX> => optional,
        /// New connections of one domain in a second; where nothing is said, as many as come.
        connections_per_second: Count<1, CONNECTIONS_PER_SECOND_MAX> => optional,
        /// Whether each connection begins with a header of the PROXY protocol, version 2, that says
        /// which domain has connected.
        proxy: bool => false,
    }
}

table_form! {
    /// The settings of a coordination service.
    CoordinationForm as "settings of a coordination" {
        /// How long whoever holds something and can't be reached keeps it: longer than its
        /// frontend, a link and this service's server take to come back.
        grace: Millis<GRACE_MS_MIN, GRACE_MS_MAX> => "10s",
    }
}

table_form! {
    /// The settings of a camera service.
    CamerasForm as "settings of a camera service" {
        /// Its cameras: each one is a file.
        cameras: Items<CameraForm, CAMERAS_MAX, 1> => required,
        /// Open files that one domain may have, of all of them.
        sessions_per_domain: Count<1, CAMERA_SESSIONS_MAX> => CAMERA_SESSIONS_DEFAULT,
    }
}

table_form! {
    /// The settings of a location service.
    LocationForm as "settings of a location service" {
        /// Its sources of positions, of which one counts: the one that draws least power among
        /// those that are as accurate as is wanted, and where none is, the most accurate.
        sources: Items<SourceForm, SOURCES_MAX, 1> => required,
        /// The accuracy that is wanted, in metres: the radius within which the true place is with
        /// 95 %.
        accuracy: Count<1, ACCURACY_MAX> => ACCURACY_DEFAULT,
        /// How long a source has to be better before it counts. One without positions is left at
        /// once.
        hold: Millis<0, HOLD_MS_MAX> => "2s",
        /// A source that tells no position for so long has none.
        timeout: Millis<LOCATION_TIMEOUT_MS_MIN, LOCATION_TIMEOUT_MS_MAX> => "3s",
        /// The port of the server's own `lo` at which it speaks gpsd's protocol; 2947 by custom. A
        /// socket service leads other domains there.
        gpsd: Count<1, 65_535> => optional,
        /// The port of the server's own `lo` at which it sends sentences of NMEA 0183; 10110 by
        /// custom.
        nmea: Count<1, 65_535> => optional,
    }
}

table_form! {
    /// The settings of a file tree.
    FilesForm as "settings of a file tree" {
        /// The directory that it is kept in, as the server's domain sees it: one of its `mounts`.
        /// Where nothing is said, a directory of the node's state directory, which outlives the
        /// domain.
        store: Inside => optional,
        /// Bytes that its files may take on the disk.
        bytes: Bytes<FILES_BYTES_MIN, FILES_BYTES_MAX> => "1GiB",
        /// Files and folders that there may be in it.
        inodes: Count<FILES_INODES_MIN, FILES_INODES_MAX> => FILES_INODES_DEFAULT,
    }
}

table_form! {
    /// A source of positions.
    SourceForm as "a source of positions" {
        /// Its name, which readers see.
        name: Name => required,
        /// The kind of the source.
        kind: LocationKind => required,
        /// The device, named pipe or file in the server's domain that it is read from. A file is
        /// replayed at its own pace, again and again.
        path: Inside => required,
        /// The survey of the floor, in the server's domain. Only of signals.
        survey: Inside => optional,
        /// The error of the receiver's distances to satellites with 95 %, in metres, where it does
        /// not tell its accuracy itself. Only of `nmea`.
        range_error: Count<1, RANGE_ERROR_MAX> => RANGE_ERROR_DEFAULT,
        /// The power that it draws, in mW.
        power: Count<0, POWER_MAX> => 0,
    }
}

table_form! {
    /// The settings of an event service: how much there may be of it, and the channels that are
    /// always there.
    EventsForm as "settings of events" {
        /// Bytes of the buffers of all channels together.
        memory: Bytes<EVENT_BUFFER_BYTES_MIN, EVENT_MEMORY_BYTES_MAX> => "64MiB",
        /// Those of them that channels which one domain has made may have; where nothing is said,
        /// 16 MiB or `memory`, whichever is less.
        memory_per_domain: Bytes<0, EVENT_MEMORY_BYTES_MAX> => optional,
        /// Channels that one domain may have made.
        channels_per_domain: Count<0, EVENT_CHANNELS_PER_DOMAIN_MAX> => EVENT_CHANNELS_PER_DOMAIN_DEFAULT,
        /// Open files, to publish or to subscribe, that one domain may have.
        sessions_per_domain: Count<1, EVENT_SESSIONS_PER_DOMAIN_MAX> => EVENT_SESSIONS_PER_DOMAIN_DEFAULT,
        /// The settings of a channel that a domain makes with `mkdir`.
        made: EventChannelForm => optional,
        /// The channels that are always there. What is not said of one is as in `made`.
        channels: Named<EventChannelForm, EVENT_CHANNELS_MAX> => optional,
    }
}

table_form! {
    /// The settings of an event channel.
    EventChannelForm as "an event channel" {
        /// Bytes of its buffer: the newest events that fit are kept. Taken when the channel is
        /// made.
        buffer: Bytes<EVENT_BUFFER_BYTES_MIN, EVENT_BUFFER_BYTES_MAX> => optional,
        /// Bytes of its longest event.
        event: Bytes<1, EVENT_BYTES_MAX> => optional,
        /// Events that who comes late may ask for.
        history: Count<0, EVENT_HISTORY_MAX> => optional,
        /// How long a publication may be made to wait for a subscriber that is to lose nothing;
        /// "0s": not at all.
        wait: Millis<0, EVENT_WAIT_MS_MAX> => optional,
        /// How its events are read for filters: "json", "cbor", or "layout" and the fields that lie
        /// at fixed places, as in "layout temperature:f32@0 zone:text[8]@4".
        format: Filled => "json",
        /// The domains whose subscriptions have a filter of the file, and no other. Only of a
        /// channel that the file names.
        subscribers: Named<EventSubscriberForm, EVENT_SUBSCRIBERS_MAX> => optional,
    }
}

table_form! {
    /// The filter that all subscriptions of a domain have: an expression, or a module.
    EventSubscriberForm as "a subscriber of an event channel" {
        /// Only events that pass this expression.
        filter: Filled => optional,
        /// Only what this WebAssembly module lets through, or makes of it: its file in the server's
        /// domain, below one of that domain's `mounts`.
        module: Inside => optional,
    }
}

table_form! {
    /// A camera: a device of V4L2 that is a file. Where no file of frames is named, it shows a test
    /// pattern.
    CameraForm as "a camera" {
        /// The name of its file, below the place of the service.
        name: Name => required,
        /// A file of raw frames in the server's domain, each as large as `size` and `format` say.
        /// It is shown again and again.
        file: Inside => optional,
        /// How the pixels lie. A test pattern shows whatever a program asks for; then this is for
        /// those that ask for nothing, as are `size` and `rate`.
        format: FrameFormat => "yuyv",
        /// Width and height, in pixels: both even.
        size: FrameSize => "640x480",
        /// Frames in a second.
        rate: Count<1, FRAME_RATE_MAX> => FRAME_RATE_DEFAULT,
    }
}

table_form! {
    /// The cache of a directory service.
    CacheForm as "a cache" {
        /// The domains that share it.
        mode: CacheModeWord => "private",
        /// With mode "shared": the domains that share one cache; every other one has its own.
        share: Items<Filled, DOMAINS_MAX, 2> => optional,
        /// Answers that one cache holds.
        entries: Count<1, CACHE_ENTRIES_MAX> => CACHE_ENTRIES_DEFAULT,
        /// How long "there is no such name" is remembered at the most.
        negative_ttl: Millis<0, TTL_MS_MAX> => "5s",
        /// How long any answer is remembered at the most.
        max_ttl: Millis<0, TTL_MS_MAX> => "1h",
    }
}

/// A path on the node, made absolute. It is not looked at: links and `..` are the kernel's
/// business.
pub(crate) fn on_node(base: &Path, text: &str) -> PathBuf {
    // Collecting the components drops `.` and doubled slashes.
    base.join(text).components().collect()
}
