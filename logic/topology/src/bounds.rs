//! How much a topology file may ask for. Each number says where it comes from; a file that goes
//! beyond one is refused with the number.

/// Bytes of a file: a hundred times what a person writes by hand, and read in a few milliseconds.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// Diagnostics of one file. An author who has more corrects these first.
pub const DIAGNOSTICS_MAX: usize = 64;

/// Domains of one file: each takes two processes and a cgroup, so more than this is a mistake on
/// one node.
pub const DOMAINS_MAX: usize = 256;

/// Services of one file, and services that one domain mounts.
pub const SERVICES_MAX: usize = 64;

/// Bytes of any one text: the longest path that Linux takes (`PATH_MAX`).
pub const TEXT_BYTES_MAX: usize = 4096;

/// Entries of a command, an environment, or another list that has no bound of its own.
pub const LIST_MAX: usize = 256;

/// Bind mounts of one domain.
pub const MOUNTS_MAX: usize = 64;

/// Bytes of a user's or group's name (`LOGIN_NAME_MAX` without its terminator).
pub const LOGIN_BYTES_MAX: usize = 255;

/// Bytes of a host name (`HOST_NAME_MAX`).
pub const HOSTNAME_BYTES_MAX: usize = 64;

/// Bytes of a domain name in a search list (RFC 1035, without the root's dot).
pub const SEARCH_BYTES_MAX: usize = 253;

/// Entries of a search list: what glibc took before it had no bound, and each costs a further
/// question.
pub const SEARCH_MAX: usize = 6;

/// `ndots` (`RES_MAXNDOTS`).
pub const NDOTS_MAX: u64 = 15;

/// Processor time: least, in thousandths. Less than a hundredth of a processor doesn't get a
/// program started.
pub const CPU_MILLI_MIN: u32 = 10;
/// Processor time: most. More processors than any node has.
pub const CPU_MILLI_MAX: u32 = 1_024_000;

/// A budget: least, in ns. Less is gone before the processor has turned to it.
pub const BUDGET_NS_MIN: u64 = 1_000;
/// A budget, period or deadline: most, an hour.
pub const PERIOD_NS_MAX: u64 = 3_600_000_000_000;
/// Jobs inside a reservation: as many as there are priorities for them between those of a
/// dispatcher and of jobs that nothing is promised to.
pub const JOBS_MAX: usize = 16;
/// Bytes of a pattern that jobs are found by.
pub const PATTERN_BYTES_MAX: usize = 255;
/// Bytes of a thread's name that the kernel keeps (`TASK_COMM_LEN` without its terminator).
pub const THREAD_NAME_BYTES_MAX: usize = 15;
/// Processors that a domain can name: the greatest number.
pub const PROCESSOR_MAX: u64 = 127;
/// A rate of the link: least, in bit/s. Less sends not a packet in ten seconds.
pub const RATE_BITS_MIN: u64 = 1_000;
/// A rate of the link: most, a hundred terabits.
pub const RATE_BITS_MAX: u64 = 100_000_000_000_000;
/// A burst: least, in bytes. A packet of Ethernet has to fit.
pub const BURST_BYTES_MIN: u64 = 2 << 10;
/// A burst: most, what the fastest link carries in some milliseconds.
pub const BURST_BYTES_MAX: u64 = 1 << 30;
/// A burst where the file says nothing: ten packets.
pub const BURST_BYTES_DEFAULT: u64 = 16 << 10;
/// Adaptations of one file: one for each domain.
pub const ADAPTATIONS_MAX: usize = DOMAINS_MAX;
/// Between two figures: least, in ms. A period of most reservations is over by then, and reading
/// them costs no part of a processor that matters.
pub const ADAPTATION_EVERY_MS_MIN: u64 = 50;
/// Between two figures, and of a pause: most, an hour.
pub const ADAPTATION_EVERY_MS_MAX: u64 = 3_600_000;
/// Between two figures where the file says nothing: five periods of a film's.
pub const ADAPTATION_EVERY_MS_DEFAULT: u64 = 200;
/// From a change until less is given, where the file says nothing.
pub const ADAPTATION_PAUSE_MS_DEFAULT: u64 = 2_000;
/// Changes in a minute: most, ten in a second.
pub const CHANGES_PER_MINUTE_MAX: u64 = adaptation::CHANGES_PER_MINUTE_MAX as u64;
/// Changes in a minute where the file says nothing: one in a second.
pub const CHANGES_PER_MINUTE_DEFAULT: u32 = 60;
/// Levels of quality: more than any program knows.
pub const LEVELS_MAX: u64 = 100;
/// The shortest time that a selector may have for an answer: a busy machine wakes nobody sooner.
pub const SELECTOR_TIMEOUT_MS_MIN: u64 = 100;
/// The longest: meanwhile nothing is adapted.
pub const SELECTOR_TIMEOUT_MS_MAX: u64 = 10_000;
/// The time of a selector where the file names none.
pub const SELECTOR_TIMEOUT_MS_DEFAULT: u64 = 1_000;
/// The longest time of an activator: later changes wait for it.
pub const ACTIVATOR_TIMEOUT_MS_MAX: u64 = 60_000;
/// The time of an activator where the file names none.
pub const ACTIVATOR_TIMEOUT_MS_DEFAULT: u64 = 5_000;
/// Domains that give to one adaptation: an arbiter tries them all for each part of what is wanted.
pub const GIVERS_MAX: usize = 16;
/// Priorities of adaptations: one for each.
pub const ADAPTATION_PRIORITY_MAX: u64 = 1_000;
/// Secrets of one domain.
pub const SECRETS_PER_DOMAIN_MAX: usize = 16;
/// Longest value of a secret, in bytes: a chain of certificates with its key, several times over.
pub const SECRET_BYTES_MAX: usize = 64 << 10;
/// Files with targets in one domain, of all its services.
pub const TARGETS_MAX: usize = 32;
/// Bytes of the path of such a file: all rows of a domain fit into one report of its frontend.
pub const TARGET_PATH_BYTES_MAX: usize = 128;
/// Shortest time of a target, in ns: less is a frontend's own work.
pub const TARGET_NS_MIN: u64 = 10_000;
/// Longest time of a target, in ns: a minute.
pub const TARGET_NS_MAX: u64 = 60_000_000_000;
/// Most calls or records in a second of a target: more than any frontend passes.
pub const TARGET_RATE_MAX: u64 = 1_000_000;
/// Samples in a row: some minutes.
pub const RULE_SAMPLES_MAX: u64 = 1_000;
/// Samples in a row that the controller's target is kept before less is given, where the file says
/// nothing.
pub const FEEDBACK_SAMPLES_DEFAULT: u32 = 10;
/// Disk: least, in bytes per second.
pub const IO_BYTES_MIN: u64 = 4 << 10;
/// Disk: most operations per second.
pub const IO_OPERATIONS_MAX: u64 = 1_000_000_000;

/// Memory: least. Less does not hold a runtime's own start.
pub const MEMORY_BYTES_MIN: u64 = 8 << 20;
/// Memory: most, a pebibyte. More than any node has.
pub const MEMORY_BYTES_MAX: u64 = 1 << 50;

/// A writable layer: least, in bytes. The files that a container finds made for it have to fit.
pub const LAYER_BYTES_MIN: u64 = 1 << 20;
/// A writable layer: most, a tebibyte. More memory than nodes give to one container.
pub const LAYER_BYTES_MAX: u64 = 1 << 40;
/// A writable layer where the file says nothing: what a package or two unpack to, and a small part
/// of a node's memory.
pub const LAYER_BYTES_DEFAULT: u64 = 256 << 20;
/// Files of a writable layer: least. The mount points of a container are some of them.
pub const LAYER_INODES_MIN: u64 = 256;
/// Files of a writable layer: most. Each takes a KiB of the kernel's memory, and is removed when
/// the container ends.
pub const LAYER_INODES_MAX: u64 = 4 << 20;
/// Files of a writable layer where the file says nothing: 64 MiB of the kernel's memory.
pub const LAYER_INODES_DEFAULT: u32 = 65_536;

/// Processes and threads: least. The frontend's own threads count too.
pub const PIDS_MIN: u64 = 16;
/// Processes and threads: most (`PID_MAX_LIMIT` of 64-bit Linux).
pub const PIDS_MAX: u64 = 4_194_304;
/// Processes and threads where the file says nothing: enough for a big server, too little for a
/// fork bomb.
pub const PIDS_DEFAULT: u32 = 1024;

/// Pause before a restart: least, in ms. Less would let a program that ends at once fill a
/// processor.
pub const BACKOFF_MS_MIN: u64 = 10;
/// Pause before a restart: most, one hour. Longer is a decision for a person.
pub const BACKOFF_MS_MAX: u64 = 3_600_000;
/// The first pause where the file says nothing.
pub const BACKOFF_MS_DEFAULT: u64 = 200;
/// The longest pause where the file says nothing.
pub const MAX_BACKOFF_MS_DEFAULT: u64 = 10_000;
/// Restarts in a row.
pub const RETRIES_MAX: u64 = 1_000_000;

/// A log file: least, in bytes. A few hundred lines.
pub const LOG_BYTES_MIN: u64 = 16 << 10;
/// A log file: most, a gibibyte.
pub const LOG_BYTES_MAX: u64 = 1 << 30;
/// A log file where the file says nothing.
pub const LOG_BYTES_DEFAULT: u64 = 1 << 20;
/// Log files of one domain.
pub const LOG_FILES_MAX: u64 = 100;
/// Log files where the file says nothing.
pub const LOG_FILES_DEFAULT: u32 = 3;

/// Time to end: most, ten minutes; a `down` waits for it.
pub const STOP_MS_MAX: u64 = 600_000;
/// Time to end where the file says nothing.
pub const STOP_MS_DEFAULT: u64 = 5_000;

/// Time to be ready: least, in ms.
pub const READY_MS_MIN: u64 = 100;
/// Time to be ready: most, ten minutes; an `up` waits for it.
pub const READY_MS_MAX: u64 = 600_000;
/// Time to be ready where the file says nothing.
pub const READY_MS_DEFAULT: u64 = 10_000;

/// Pause between two health checks, and time of one: least, in ms. Each check is a process of its
/// own.
pub const HEALTH_MS_MIN: u64 = 100;
/// Pause between two health checks, and time of one: most, one hour. More rarely, a person looks.
pub const HEALTH_MS_MAX: u64 = 3_600_000;
/// Pause between two health checks where the file says nothing.
pub const HEALTH_EVERY_MS_DEFAULT: u64 = 10_000;
/// Time of one health check where the file says nothing.
pub const HEALTH_TIMEOUT_MS_DEFAULT: u64 = 5_000;
/// Failures in a row after which a domain is restarted: most.
pub const HEALTH_FAILS_MAX: u64 = 1_000;
/// Failures in a row where the file says nothing: one may be a busy moment.
pub const HEALTH_FAILS_DEFAULT: u32 = 3;

/// Files with variables of one domain: one for all, one for this place, and some more.
pub const ENV_FILES_MAX: usize = 16;

/// Upstreams of a directory service: each failure costs a time-out, so more than a few are never
/// reached.
pub const UPSTREAMS_MAX: usize = 8;
/// How long holders of a coordination service that can't be reached keep what they hold: least, in
/// ms; a frontend needs a part of it to come back.
pub const GRACE_MS_MIN: u64 = 1_000;
/// The same: most, ten minutes; whoever waits for a lock of the dead longer than that is better
/// told.
pub const GRACE_MS_MAX: u64 = 600_000;
/// The same, where the file says nothing.
pub const GRACE_MS_DEFAULT: u64 = 10_000;
/// One attempt: least, in ms.
pub const ATTEMPT_MS_MIN: u64 = 10;
/// One attempt: most, one minute; programs give up sooner.
pub const ATTEMPT_MS_MAX: u64 = 60_000;
/// One attempt where the file says nothing.
pub const ATTEMPT_MS_DEFAULT: u64 = 2_000;
/// Further attempts.
pub const ATTEMPTS_MAX: u64 = 10;
/// Further attempts where the file says nothing.
pub const ATTEMPTS_DEFAULT: u32 = 2;
/// Requests at once of one domain: most; each holds memory in the backend.
pub const OUTSTANDING_MAX: u64 = 65_536;
/// Requests at once of one domain where the file says nothing.
pub const OUTSTANDING_PER_DOMAIN_DEFAULT: u32 = 256;
/// Sessions of one domain: most.
pub const SESSIONS_MAX: u64 = 65_536;
/// Sessions of one domain where the file says nothing.
pub const SESSIONS_DEFAULT: u32 = 256;
/// Answers in a cache: most; at some 500 bytes each, half a gigabyte.
pub const CACHE_ENTRIES_MAX: u64 = 1_000_000;
/// Answers in a cache where the file says nothing: some 2 MiB.
pub const CACHE_ENTRIES_DEFAULT: u32 = 4096;
/// Time that an answer is remembered: most, one week (RFC 8767 takes the same bound).
pub const TTL_MS_MAX: u64 = 604_800_000;
/// "No such name" is remembered this long where the file says nothing.
pub const NEGATIVE_TTL_MS_DEFAULT: u64 = 5_000;
/// Answers are remembered this long where the file says nothing.
pub const MAX_TTL_MS_DEFAULT: u64 = 3_600_000;

/// Processors of a machine: most. Emulation does not use more, and few nodes have them.
pub const MACHINE_CPUS_MAX: u64 = 64;
/// Processors of a machine where the file says nothing.
pub const MACHINE_CPUS_DEFAULT: u32 = 1;
/// Memory of a machine: least. Less does not hold a kernel and an initramfs.
pub const MACHINE_MEMORY_MIN: u64 = 64 << 20;
/// Memory of a machine: most, a tebibyte: what the address bits of any processor that runs guests
/// reach.
pub const MACHINE_MEMORY_MAX: u64 = 1 << 40;
/// Memory of a machine where the file says nothing: a kernel, our agent, and room for a small
/// program.
pub const MACHINE_MEMORY_DEFAULT: u64 = 256 << 20;
/// Memory that QEMU must have beside the guest's: its own code and tables, and 64 MiB of translated
/// code. A limit that leaves less is refused.
pub const MACHINE_OVERHEAD_MIN: u64 = 128 << 20;
/// Memory that QEMU has beside the guest's where the file sets no limit: also disk caches, and
/// channels.
pub const MACHINE_OVERHEAD_DEFAULT: u64 = 256 << 20;
/// Threads and processes of a machine: least. QEMU has up to 64 threads for its disk, and one for
/// each processor.
pub const MACHINE_PIDS_MIN: u32 = 192;
/// Time to be ready of a machine where the file says nothing: an emulated guest boots in some
/// seconds, on a busy node in several times that.
pub const MACHINE_READY_MS_DEFAULT: u64 = 60_000;
/// Time to end of a machine where the file says nothing: it also switches off.
pub const MACHINE_STOP_MS_DEFAULT: u64 = 10_000;
/// Time from a machine's power-on to its agent's first words: least. No kernel boots in less.
pub const MACHINE_BOOT_MS_MIN: u64 = 1_000;
/// Time from a machine's power-on to its agent's first words: most, an hour: a system of its own
/// that first checks its disk.
pub const MACHINE_BOOT_MS_MAX: u64 = 3_600_000;
/// Time from a machine's power-on to its agent's first words where the file says nothing: that of
/// an emulated guest on a busy node, and several times more.
pub const MACHINE_BOOT_MS_DEFAULT: u64 = 120_000;
/// Bytes that can be added to a kernel's command line: x86 takes 2048 in all, and ours are some of
/// them.
pub const APPEND_BYTES_MAX: usize = 1024;

/// A ring of a channel: least, in bytes (`wire::ring::RING_BYTES_MIN`).
pub const RING_BYTES_MIN: u64 = 4 << 10;
/// A ring of a channel: most, in bytes (`wire::ring::RING_BYTES_MAX`).
pub const RING_BYTES_MAX: u64 = 16 << 20;
/// A ring of a channel where the file says nothing: several pieces of 64 KiB in flight.
pub const RING_BYTES_DEFAULT: u32 = 256 << 10;
/// Channels of one service: most; each takes some twenty descriptors in the program that offers it
/// and two in the daemon.
pub const CHANNELS_MAX: u64 = 4096;
/// Channels of one service where the file says nothing.
pub const CHANNELS_DEFAULT: u32 = 256;
/// Channels of one service that one domain has: most; a domain has no more than these of all
/// services together.
pub const CHANNELS_PER_DOMAIN_MAX: u64 = 256;
/// Bytes of each ring between two relays of a socket service (`wire::socket::RING_BYTES`).
pub const RELAY_RING_BYTES: u32 = 256 * 1024;
/// Channels between the relays of one socket service (`wire::socket::CHANNELS_MAX`).
pub const RELAY_CHANNELS_MAX: u32 = 512;
/// Those of one domain (`wire::socket::CHANNELS_PER_DOMAIN`).
pub const RELAY_CHANNELS_PER_DOMAIN: u32 = 2;
/// Connections of one socket service: most; each is a descriptor in two relays, which have some
/// 131,000 each.
pub const CONNECTIONS_MAX: u64 = 65_536;
/// Connections of one socket service where the file says nothing.
pub const CONNECTIONS_DEFAULT: u32 = 4096;
/// Connections of one domain to one service where the file says nothing: a quarter of all. If none
/// of their programs reads, they take 128 MiB of the domain's memory.
pub const CONNECTIONS_PER_DOMAIN_DEFAULT: u32 = 1024;
/// New connections in a second: most that can be said; a relay makes fewer.
pub const CONNECTIONS_PER_SECOND_MAX: u64 = 1_000_000;
/// Bytes of the path of a Unix socket: most (unix(7), less the zero at the end).
pub const UNIX_PATH_BYTES_MAX: usize = 107;
/// Addresses that one file publishes.
pub const PUBLISHED_MAX: usize = 64;
/// Those of them that lead to one domain: its relay is handed a descriptor of each in one packet,
/// beside two others (`sys::descriptors::DESCRIPTORS_MAX`).
pub const PUBLISHED_PER_DOMAIN_MAX: usize = 16;
/// The greatest port (RFC 9293).
pub const PORT_MAX: u64 = 65_535;
/// Channels of one service that one domain has where the file says nothing: a quarter of all, so
/// that no domain takes every one.
pub const CHANNELS_PER_DOMAIN_DEFAULT: u32 = 64;

/// Endpoints with names of one file: more than this is not written by hand, and the file must stay
/// below its own bound.
pub const NAMED_ENDPOINTS_MAX: usize = 4096;
/// Endpoints that are bound at a time: most. Each takes a connection of its program, or a part of
/// one, and some KiB in the daemon.
pub const ENDPOINTS_MAX: u64 = 16_384;
/// Endpoints that are bound at a time where the file says nothing.
pub const ENDPOINTS_DEFAULT: u32 = 256;
/// Endpoints without a name of one domain where the file says nothing: an eighth of all, so that no
/// domain takes every one.
pub const ANONYMOUS_PER_DOMAIN_DEFAULT: u32 = 32;
/// Pairs: most. Of each the daemon holds two descriptors.
pub const PAIRS_MAX: u64 = 16_384;
/// Pairs where the file says nothing.
pub const PAIRS_DEFAULT: u32 = 1024;
/// Shared memory of endpoints: least, in bytes. Less does not hold the largest pair of small rings
/// and a buffer.
pub const IPC_BYTES_MIN: u64 = 64 << 10;
/// Shared memory of endpoints where the file says nothing, in bytes.
pub const IPC_BYTES_DEFAULT: u64 = 256 << 20;
/// Buffers: most. The daemon holds a descriptor of each.
pub const BUFFERS_MAX: u64 = 16_384;
/// Buffers where the file says nothing.
pub const BUFFERS_DEFAULT: u32 = 256;
/// Grants: most. Each is some hundred bytes in the daemon.
pub const GRANTS_MAX: u64 = 65_536;
/// Grants where the file says nothing.
pub const GRANTS_DEFAULT: u32 = 1024;

/// Volumes of one distributed container: each has an engine, a process of some 20 MiB, while its
/// domain runs.
pub const VOLUMES_MAX: usize = 64;
/// Volumes of one domain: a machine has as many disks at the most.
pub const VOLUMES_PER_DOMAIN_MAX: usize = 16;
/// Smallest volume, in bytes: what file systems and tools take.
pub const VOLUME_BYTES_MIN: u64 = 1 << 20;
/// Largest volume, in bytes: the longest file of ext4.
pub const VOLUME_BYTES_MAX: u64 = 16 << 40;
/// Nodes that have a replica of a volume at most: more protect from more losses at a time than
/// etcd's three members survive.
pub const VOLUME_REPLICAS_MAX: u64 = 3;
/// The unit of a volume's size, in bytes: a sector, which every client can address.
pub const VOLUME_STEP_BYTES: u64 = 512;
/// Bytes of the name of a volume in a machine: it is the serial number of the disk (virtio-blk has
/// room for 20).
pub const VOLUME_SERIAL_BYTES_MAX: usize = 20;

/// Buffers of all channels of an event service: most, in bytes.
pub const EVENT_MEMORY_BYTES_MAX: u64 = 16 << 30;
/// Buffers of all channels where the file says nothing, in bytes.
pub const EVENT_MEMORY_BYTES_DEFAULT: u64 = 64 << 20;
/// Buffers of the channels that one domain has made where the file says nothing: a quarter of all,
/// so that no domain takes every one.
pub const EVENT_MEMORY_PER_DOMAIN_DEFAULT: u64 = 16 << 20;
/// The buffer of one channel: least, in bytes. Two pages.
pub const EVENT_BUFFER_BYTES_MIN: u64 = 8 << 10;
/// The buffer of one channel: most, in bytes. Its remains are looked through when a server starts.
pub const EVENT_BUFFER_BYTES_MAX: u64 = 256 << 20;
/// The buffer of one channel where the file says nothing, in bytes.
pub const EVENT_BUFFER_BYTES_DEFAULT: u64 = 256 << 10;
/// The longest event: most, in bytes. A record of the service protocol with a header before it.
pub const EVENT_BYTES_MAX: u64 = 63 << 10;
/// The longest event where the file says nothing, in bytes.
pub const EVENT_BYTES_DEFAULT: u32 = 63 << 10;
/// Events for who comes late: most. More than any buffer has.
pub const EVENT_HISTORY_MAX: u64 = 4_000_000_000;
/// Events for who comes late where the file says nothing: as many as the buffer has.
pub const EVENT_HISTORY_DEFAULT: u32 = 4_000_000_000;
/// How long a publication may be made to wait: most, in ms. A publisher that waits longer has
/// stopped.
pub const EVENT_WAIT_MS_MAX: u64 = 60_000;
/// Domains to whose subscriptions of one channel the file gives a filter: most.
pub const EVENT_SUBSCRIBERS_MAX: usize = 64;
/// All filters that the file gives to subscriptions of one service: most, in bytes. A server is
/// told its settings in one packet.
pub const EVENT_FILTERS_BYTES_MAX: usize = 16 << 10;
/// Channels that a file names: more are made by programs.
pub const EVENT_CHANNELS_MAX: usize = 256;
/// Channels that one domain may have made: most. A service has 8192.
pub const EVENT_CHANNELS_PER_DOMAIN_MAX: u64 = 4096;
/// Channels that one domain may have made where the file says nothing.
pub const EVENT_CHANNELS_PER_DOMAIN_DEFAULT: u32 = 64;
/// Open files of one domain: most. A consumer has 16,384 sessions.
pub const EVENT_SESSIONS_PER_DOMAIN_MAX: u64 = 8192;
/// Open files of one domain where the file says nothing: a frontend has 128 streams.
pub const EVENT_SESSIONS_PER_DOMAIN_DEFAULT: u32 = 256;

/// Labels that one domain can ask for: each is a sentence of a refusal.
pub const LABELS_MAX: usize = 16;

/// Bytes of what a label says.
pub const LABEL_BYTES_MAX: usize = 63;

/// Memory that one domain has with one service: least, in bytes. Less does not hold two small
/// frames.
pub const SERVICE_MEMORY_MIN: u64 = 64 << 10;
/// Memory that one domain has with one service: most, in bytes: the 32 buffers that V4L2 allows, of
/// 1920x1080 pixels, are 127 MiB.
pub const SERVICE_MEMORY_MAX: u64 = 256 << 20;
/// Memory that one domain has with a camera where the file says nothing: 32 buffers of 640x480
/// pixels three times over.
pub const CAMERA_MEMORY_DEFAULT: u64 = 64 << 20;
/// Services with which one domain has memory: the daemon, the domain's monitor and the server hold
/// a descriptor of each.
pub const MEMORIES_PER_DOMAIN_MAX: usize = 8;
/// Cameras of one service: each is a file, of which a frontend shows 32 (`frontend`'s `FILES_MAX`),
/// and two are others.
pub const CAMERAS_MAX: usize = 16;
/// Pixels of a side of a frame: least; less has no room for the number in a test pattern.
pub const FRAME_SIDE_MIN: u32 = 16;
/// Pixels of a side of a frame: most.
pub const FRAME_SIDE_MAX: u32 = 4096;
/// Frames in a second: most.
pub const FRAME_RATE_MAX: u64 = 240;
/// Frames in a second of a camera where the file says nothing.
pub const FRAME_RATE_DEFAULT: u32 = 30;
/// Size of a frame where the file says nothing: width and height.
pub const FRAME_SIZE_DEFAULT: (u32, u32) = (640, 480);
/// Open files of cameras that one domain may have: most.
pub const CAMERA_SESSIONS_MAX: u64 = 64;
/// Open files of cameras that one domain may have where the file says nothing.
pub const CAMERA_SESSIONS_DEFAULT: u32 = 16;

/// Sources of positions of one service: each has a thread.
pub const SOURCES_MAX: usize = 16;
/// The accuracy that is wanted, in m: most; beyond that no source is needed.
pub const ACCURACY_MAX: u64 = 1_000_000;
/// The accuracy that is wanted where the file says nothing, in m: what a receiver of satellites has
/// under the open sky.
pub const ACCURACY_DEFAULT: u32 = 10;
/// How long a source has to be better before it counts: most, an hour.
pub const HOLD_MS_MAX: u64 = 3_600_000;
/// How long a source has to be better before it counts, where the file says nothing.
pub const HOLD_MS_DEFAULT: u64 = 2_000;
/// A source without a position for so long has none: least; receivers of ten positions a second
/// must not lose it by one late line.
pub const LOCATION_TIMEOUT_MS_MIN: u64 = 100;
/// A source without a position for so long has none: most, ten minutes.
pub const LOCATION_TIMEOUT_MS_MAX: u64 = 600_000;
/// A source without a position for so long has none, where the file says nothing: two positions of
/// one a second are lost.
pub const LOCATION_TIMEOUT_MS_DEFAULT: u64 = 3_000;
/// Bytes of a file tree: least, some small files.
pub const FILES_BYTES_MIN: u64 = 64 * 1024;
/// Bytes of a file tree: most, a disk of today.
pub const FILES_BYTES_MAX: u64 = 64 << 40;
/// Bytes of a file tree where the file says nothing.
pub const FILES_BYTES_DEFAULT: u64 = 1 << 30;
/// Files and folders of a tree: least.
pub const FILES_INODES_MIN: u64 = 16;
/// Files and folders of a tree: most; numbers of nodes have 24 bits, and each takes its server some
/// 100 bytes of memory.
pub const FILES_INODES_MAX: u64 = 4_000_000;
/// Files and folders of a tree where the file says nothing.
pub const FILES_INODES_DEFAULT: u32 = 100_000;
/// The error of a distance to a satellite, in m: most.
pub const RANGE_ERROR_MAX: u64 = 10_000;
/// The error of a distance to a satellite where the file says nothing, in m: what gpsd takes for
/// receivers without corrections.
pub const RANGE_ERROR_DEFAULT: u32 = 15;
/// The power of a source, in mW: most, a kilowatt.
pub const POWER_MAX: u64 = 1_000_000;

/// Settings of a service of kind `program`: bytes of their JSON. They travel in one packet of the
/// control socket (64 KiB), beside the service's name and kind, and a program that wants more reads
/// a file.
pub const PROGRAM_SETTINGS_BYTES_MAX: usize = 16 << 10;
/// Settings of a service of kind `program`: tables and lists within each other. Readers of JSON go
/// deeper, those of the smallest languages among them.
pub const PROGRAM_SETTINGS_DEPTH_MAX: usize = 16;
