//! The service itself: its channels, who takes part, and what the loop calls.

use crate::given::{GivenFilters, given_of};
use crate::installer::{Installer, TOKEN};
use crate::library::Library;
use crate::names::{check_name, number_of};
use crate::region::{CHANNELS_MAX, ChannelMemory, Memories};
use crate::session_table::{Link, Session, SessionKey, SubscriberState};
use publication::{Channel, Format, NamedModule, Publisher, Shape};
use rustix::io::Errno;
use serde_json::{Value, json};
use session::{Context, LinkId, Readiness, ReplyTo, Service};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};
use wire::control::Consumer;
use wire::events::{EVENT_BYTES_MAX, KIND, Settings, file, verb};
use wire::service::{Behaviour, Export, FileExport, Kind, OWN_FOLDER, OpenInfo, SERIAL_BITS, VERSION};

/// Bytes of publications that wait for slow subscribers, of one domain: some sixteen of the
/// longest.
pub const WAITING_BYTES_MAX: usize = 1 << 20;
/// Numbers that channels can have.
const SERIALS: u32 = 1 << (SERIAL_BITS - file::BITS);
/// Domains that the state tree describes: some 8 KiB of its packet.
const DESCRIBED_DOMAINS_MAX: usize = 64;
/// The exported folder in which all channels are.
pub(crate) const ROOT: u32 = 0;

/// A publication that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) to: ReplyTo,
    pub(crate) publisher: Publisher,
    pub(crate) bytes: Vec<u8>,
    pub(crate) until_ns: u64,
}

/// A channel, and what concerns those who have it open.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) channel: Channel<ChannelMemory, SessionKey>,
    /// By the place of a subscription.
    pub(crate) subscribers: Vec<Option<SubscriberState>>,
    pub(crate) waiting: VecDeque<Waiting>,
    /// A number that stands for its name in capsules.
    pub(crate) identity: u64,
    /// Since when, in ns since 1970.
    pub(crate) changed_ns: u64,
}

/// A domain's resources, and its refusals.
#[derive(Debug, Default)]
pub(crate) struct Tenant {
    pub(crate) name: String,
    pub(crate) channels: u32,
    pub(crate) bytes: u64,
    pub(crate) sessions: u32,
    pub(crate) waiting_bytes: usize,
    pub(crate) published: u64,
    pub(crate) refused: u64,
    /// Why something was refused last, for people.
    pub(crate) refusal: String,
}

/// The event service.
#[derive(Debug)]
pub struct Events {
    pub(crate) settings: Settings,
    pub(crate) memories: Memories,
    pub(crate) channels: BTreeMap<u32, Open>,
    pub(crate) names: HashMap<Vec<u8>, u32>,
    pub(crate) tenants: HashMap<u64, Tenant>,
    pub(crate) links: HashMap<LinkId, Link>,
    pub(crate) sessions: HashMap<SessionKey, Session>,
    /// Channels in which something has a time: publications that wait, events that are kept for who
    /// is gone.
    pub(crate) timed: BTreeSet<u32>,
    pub(crate) last_serial: u32,
    pub(crate) last_publisher: u64,
    /// Bytes of all buffers.
    pub(crate) bytes: u64,
    /// The first reading of the loop's clock.
    pub(crate) origin: Instant,
    /// The event that was looked at last, and where it is: read once for all its subscribers.
    pub(crate) event: Vec<u8>,
    pub(crate) event_at: Option<(u32, u64)>,
    /// Scratch room, so that a delivery allocates nothing.
    pub(crate) record: Vec<u8>,
    pub(crate) capsule: Vec<u8>,
    /// The bytes that go on in an event's place.
    pub(crate) replaced: Vec<u8>,
    pub(crate) installer: Installer,
    pub(crate) library: Library,
    pub(crate) given: GivenFilters,
    /// The module of the subscription that is just opened again.
    pub(crate) arrived: Option<NamedModule>,
    /// Subscriptions, by channel and place, whose modules are to be asked about more old events.
    pub(crate) later: VecDeque<(u32, usize)>,
}

/// The time of the world's clock, in ns since 1970.
pub(crate) fn wall_ns() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Events {
    /// A service with these settings, and with what a predecessor has left in the memories.
    ///
    /// # Errors
    /// A file system's error.
    pub(crate) fn new(settings: Settings, memories: Memories, library: Library) -> std::io::Result<Self> {
        let mut events = Self {
            given: given_of(&settings),
            settings,
            memories,
            channels: BTreeMap::new(),
            names: HashMap::new(),
            tenants: HashMap::new(),
            links: HashMap::new(),
            sessions: HashMap::new(),
            timed: BTreeSet::new(),
            last_serial: 0,
            last_publisher: 0,
            bytes: 0,
            origin: Instant::now(),
            event: Vec::new(),
            event_at: None,
            record: Vec::new(),
            capsule: Vec::new(),
            replaced: Vec::new(),
            installer: Installer::new()?,
            library,
            arrived: None,
            later: VecDeque::new(),
        };
        events.take_up()?;
        events.follow_file();
        Ok(events)
    }

    fn take_up(&mut self) -> std::io::Result<()> {
        for memory in self.memories.left()? {
            match Channel::take_up(memory, 0) {
                Ok(channel) if self.can_be(&channel) => {
                    self.last_serial = self.last_serial.max(channel.serial());
                    self.add(channel);
                }
                Ok(channel) => {
                    tracing::warn!(serial = channel.serial(), "a channel was left twice, and is left out")
                }
                Err(error) => tracing::warn!(%error, "what was left of a channel is no channel"),
            }
        }
        Ok(())
    }

    fn can_be(&self, channel: &Channel<ChannelMemory, SessionKey>) -> bool {
        check_name(channel.name()).is_ok()
            && channel.serial() < SERIALS
            && !self.names.contains_key(channel.name())
            && !self.channels.contains_key(&channel.serial())
    }

    /// Enters a channel.
    fn add(&mut self, channel: Channel<ChannelMemory, SessionKey>) {
        let (serial, name) = (channel.serial(), channel.name().to_vec());
        let (owner, bytes) = (channel.owner(), channel.buffer().0);
        self.bytes += bytes;
        if owner != 0 {
            let tenant = self.tenants.entry(owner).or_default();
            tenant.channels += 1;
            tenant.bytes += bytes;
        }
        if channel.next_hold_ns().is_some() {
            self.timed.insert(serial);
        }
        let identity = number_of(&name);
        self.names.insert(name, serial);
        let open = Open {
            channel,
            subscribers: Vec::new(),
            waiting: VecDeque::new(),
            identity,
            changed_ns: wall_ns(),
        };
        self.channels.insert(serial, open);
    }

    /// Makes a channel. `owner` is 0 where the file names it, and then no quota of a domain holds.
    pub(crate) fn make(
        &mut self,
        name: &[u8],
        owner: u64,
        like: &wire::events::ChannelSettings,
    ) -> Result<u32, Errno> {
        check_name(name)?;
        if self.names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        if self.channels.len() >= CHANNELS_MAX || self.bytes + like.buffer_bytes > self.settings.memory_bytes
        {
            return Err(Errno::NOSPC);
        }
        if owner != 0 {
            let tenant = self.tenants.entry(owner).or_default();
            let most = self.settings.memory_per_domain;
            if tenant.channels >= self.settings.channels_per_domain || tenant.bytes + like.buffer_bytes > most
            {
                tenant.refused += 1;
                return Err(Errno::DQUOT);
            }
        }
        let serial = self.free_serial();
        let memory = self.memories.make(serial, like.buffer_bytes).map_err(|error| {
            tracing::warn!(%error, "there is no memory for a channel");
            Errno::from_io_error(&error).unwrap_or(Errno::NOSPC)
        })?;
        let shape = shape_of(like);
        let mut channel = Channel::new(memory, serial, name, owner, shape).map_err(|error| {
            self.memories.remove(serial);
            tracing::warn!(%error, "a channel can't be made");
            Errno::INVAL
        })?;
        channel.set_format(format_of(like));
        self.add(channel);
        Ok(serial)
    }

    /// A number that no channel has, and that was given the longest ago.
    fn free_serial(&mut self) -> u32 {
        loop {
            // 0 is the folder of all channels. There are far more numbers than channels.
            self.last_serial = (self.last_serial + 1) % SERIALS;
            if self.last_serial != 0 && !self.channels.contains_key(&self.last_serial) {
                return self.last_serial;
            }
        }
    }

    /// Removes a channel. Who has it open reads the end, and writes get `ESTALE`.
    pub(crate) fn remove(&mut self, ctx: &mut dyn Context, serial: u32) {
        let Some(open) = self.channels.remove(&serial) else { return };
        self.names.remove(open.channel.name());
        self.timed.remove(&serial);
        let (owner, bytes) = (open.channel.owner(), open.channel.buffer().0);
        self.bytes -= bytes;
        if let Some(tenant) = self.tenants.get_mut(&owner) {
            tenant.channels -= 1;
            tenant.bytes -= bytes;
        }
        for state in open.subscribers.iter().flatten() {
            ctx.end(state.key.0, state.key.1, None);
        }
        for waiting in open.waiting {
            self.free_waiting(waiting.to.link, waiting.bytes.len());
            ctx.answer(waiting.to, Err(Errno::STALE), &[]);
        }
        self.memories.remove(serial);
    }

    /// Brings the channels to what the file says. One that cannot be made is for the log: the
    /// others are there.
    fn follow_file(&mut self) {
        for named in self.settings.channels.clone() {
            match self.names.get(named.name.as_bytes()) {
                Some(&serial) => {
                    if let Some(open) = self.channels.get_mut(&serial) {
                        reshape(open, &named.settings);
                    }
                }
                None => {
                    if let Err(errno) = self.make(named.name.as_bytes(), 0, &named.settings) {
                        tracing::error!(channel = named.name, %errno, "a channel of the file can't be made");
                    }
                }
            }
        }
    }

    /// The loop's time, in ns since this service was made.
    pub(crate) fn now_ns(&self, ctx: &dyn Context) -> u64 {
        let since = ctx.now().saturating_duration_since(self.origin);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The domain behind a link.
    pub(crate) fn tenant(&mut self, link: LinkId) -> Option<&mut Tenant> {
        let owner = self.links.get(&link)?.owner;
        self.tenants.get_mut(&owner)
    }

    pub(crate) fn free_waiting(&mut self, link: LinkId, bytes: usize) {
        if let Some(tenant) = self.tenant(link) {
            tenant.waiting_bytes = tenant.waiting_bytes.saturating_sub(bytes);
        }
    }
}

/// The shape of a channel that has these settings.
pub(crate) fn shape_of(like: &wire::events::ChannelSettings) -> Shape {
    let event_bytes = (like.event_bytes as usize).clamp(1, EVENT_BYTES_MAX);
    Shape { event_bytes, history: like.history, wait_ms: like.wait_ms }
}

/// The format of a channel that has these settings: what the file says was admitted.
fn format_of(like: &wire::events::ChannelSettings) -> Format {
    let parsed = like.format.as_deref().map_or(Ok(Format::Json), Format::parse);
    parsed.unwrap_or_else(|error| {
        tracing::error!(%error, "a channel's events are read as JSON");
        Format::Json
    })
}

/// Buffers stay as they were made; the rest holds from the next event on.
fn reshape(open: &mut Open, like: &wire::events::ChannelSettings) {
    let longest = open.channel.longest_event();
    let shape = shape_of(like);
    open.channel.reshape(Shape { event_bytes: shape.event_bytes.min(longest), ..shape });
    open.channel.set_format(format_of(like));
}

impl Service for Events {
    fn export(&self) -> Export {
        let root = FileExport {
            id: ROOT,
            name: Some(OWN_FOLDER.into()),
            mode: 0o755,
            behaviour: Behaviour::Folder,
            idempotent: true,
            verb: verb::USE.into(),
            change: Some(verb::USE.into()),
        };
        Export { version: VERSION, kind: KIND.into(), files: vec![root] }
    }

    fn start(&mut self, ctx: &mut dyn Context) {
        self.origin = self.origin.min(ctx.now());
        self.watch_installer(ctx);
    }

    fn attach(&mut self, _: &mut dyn Context, link: LinkId, consumer: &Consumer) {
        let owner = number_of(consumer.domain.as_bytes()).max(1);
        let tenant = self.tenants.entry(owner).or_default();
        tenant.name.clone_from(&consumer.domain);
        self.links.insert(link, Link::new(owner, &consumer.verbs));
    }

    fn detach(&mut self, ctx: &mut dyn Context, link: LinkId) {
        let gone: Vec<SessionKey> = self.sessions.keys().filter(|key| key.0 == link).copied().collect();
        for key in gone {
            self.end_session(ctx, key, false);
        }
        self.drop_waiting(ctx, |waiting| waiting.to.link == link);
        self.forget_orders(link, None);
        self.links.remove(&link);
    }

    fn open(&mut self, ctx: &mut dyn Context, to: ReplyTo, info: &OpenInfo) {
        if !self.awaits_module(to, info) {
            self.open_now(ctx, to, info);
        }
    }

    fn request(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        self.take_request(ctx, to, payload);
    }

    fn control(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        match self.take_ioctl(ctx, to, payload) {
            Ok(data) => ctx.answer(to, Ok(&data), &[]),
            Err(errno) => ctx.answer(to, Err(errno), &[]),
        }
    }

    fn tree(&mut self, ctx: &mut dyn Context, to: ReplyTo, kind: Kind, payload: &[u8]) {
        match self.take_tree(ctx, to, kind, payload) {
            Ok(data) => ctx.answer(to, Ok(&data), &[]),
            Err(errno) => ctx.answer(to, Err(errno), &[]),
        }
    }

    fn credit(&mut self, ctx: &mut dyn Context, link: LinkId, session: u64) {
        self.take_credit(ctx, (link, session));
    }

    fn room(&mut self, ctx: &mut dyn Context, link: LinkId) {
        let keys: Vec<SessionKey> = self.sessions.keys().filter(|key| key.0 == link).copied().collect();
        for key in keys {
            self.unblock(ctx, key);
        }
    }

    fn cancel(&mut self, ctx: &mut dyn Context, link: LinkId, tag: u64) {
        self.drop_waiting(ctx, |waiting| waiting.to.link == link && waiting.to.tag == tag);
        self.forget_orders(link, Some(tag));
    }

    fn close(&mut self, ctx: &mut dyn Context, link: LinkId, session: u64) {
        self.end_session(ctx, (link, session), true);
    }

    fn settings(&mut self, ctx: &mut dyn Context, settings: &Value) -> Result<(), String> {
        self.settings = serde_json::from_value(settings.clone()).map_err(|error| error.to_string())?;
        let named: BTreeSet<&[u8]> = self.settings.channels.iter().map(|it| it.name.as_bytes()).collect();
        let of_file = self.channels.iter().filter(|(_, open)| open.channel.owner() == 0);
        let gone: Vec<u32> = of_file
            .filter(|(_, open)| !named.contains(open.channel.name()))
            .map(|(&serial, _)| serial)
            .collect();
        for serial in gone {
            self.remove(ctx, serial);
        }
        self.follow_file();
        self.follow_given(ctx);
        Ok(())
    }

    fn verbs(&mut self, ctx: &mut dyn Context, link: LinkId, verbs: &[String]) {
        let Some(known) = self.links.get_mut(&link) else { return };
        *known = Link::new(known.owner, verbs);
        if !known.subscribes {
            self.end_subscriptions(ctx, link);
        }
    }

    fn ready(&mut self, ctx: &mut dyn Context, token: u32, _: Readiness) {
        if token == TOKEN {
            self.take_modules(ctx);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        if !self.later.is_empty() {
            // At once, after everything else had its turn.
            return Some(self.origin);
        }
        let due = self.timed.iter().filter_map(|serial| {
            let open = self.channels.get(serial)?;
            let waits = open.waiting.front().map(|waiting| waiting.until_ns);
            waits.into_iter().chain(open.channel.next_hold_ns()).min()
        });
        due.min().map(|ns| self.origin + Duration::from_nanos(ns))
    }

    fn expired(&mut self, ctx: &mut dyn Context) {
        self.time_is_over(ctx);
        // One at a time: between two of them everything else has its turn.
        if let Some((serial, place)) = self.later.pop_front() {
            self.deliver_to(ctx, serial, place);
        }
    }

    fn state(&self) -> Value {
        let (channels, left_out) = self.describe_channels();
        let named = self.tenants.values().filter(|tenant| !tenant.name.is_empty());
        let tenants = named.take(DESCRIBED_DOMAINS_MAX).map(|tenant| {
            let state = json!({
                "channels": tenant.channels, "bytes": tenant.bytes, "sessions": tenant.sessions,
                "published": tenant.published, "refused": tenant.refused, "waiting_bytes": tenant.waiting_bytes,
            });
            (tenant.name.clone(), state)
        });
        json!({
            "kept": self.memories.are_kept(),
            "bytes": self.bytes,
            "memory_bytes": self.settings.memory_bytes,
            "channels": channels,
            "left_out": left_out,
            "domains": tenants.collect::<serde_json::Map<_, _>>(),
        })
    }

    fn state_for(&self, link: LinkId) -> Value {
        let tenant = self.links.get(&link).and_then(|link| self.tenants.get(&link.owner));
        tenant.map_or(Value::Null, |tenant| {
            json!({ "channels": tenant.channels, "bytes": tenant.bytes, "sessions": tenant.sessions, "published": tenant.published })
        })
    }
}
