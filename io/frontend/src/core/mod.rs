//! The frontend's decisions, without waiting: requests of the kernel, messages of backends and
//! events of the daemon go in, replies and messages come out through a [`Host`].
//!
//! Each change of a handle ends in [`Core::settle`]: first the ledger, then the backend, then the
//! kernel. So there is never more than one reply that the ledger knows and the kernel does not, and
//! it is the ledger's last word.

mod backend;
mod daemon;
mod defaults;
mod files;
mod locks;
mod memory;
mod names;
mod nodes;
mod offsets;
mod own;
mod parked;
#[cfg(test)]
mod simulation;
mod streams;
mod takeover;
mod targets;
mod xattrs;

use std::collections::{BTreeMap, HashMap};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wire::service::{Kind, Lock, OpenInfo, SESSION_NONE, VERSION_MIN};

use crate::counters::Counters;
use crate::handle::{Body, Flow, Handle, Last, Progress, Standing};
use crate::handover::Handover;
use crate::host::{Host, Outgoing};
use crate::stream::Stream;
use crate::trace::Traces;
use crate::tree::{Node, Tree};
pub(crate) use backend::Answer;
use daemon::Question;
pub(crate) use daemon::{NewLink, TICK_NS};
pub(crate) use locks::LOCKS_SLOT;
use parked::{Op, Parked};
use targets::Targets;

/// Most files that the programs of one domain have open at once; more get `EMFILE`.
pub(crate) const HANDLES_MAX: usize = 4096;
/// Bytes of lines and answers that all handles together may hold before writes get `EDQUOT`.
/// Answers may go to twice that, and then become `ENOBUFS`.
pub(crate) const HELD_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most calls that wait at once: more than a domain's process limit usually allows threads.
pub(crate) const PARKED_MAX: usize = 8192;
/// Bytes that calls which wait may keep of what their callers sent; more get `EAGAIN`, and writes
/// `EDQUOT`.
pub(crate) const PARKED_BYTES_MAX: usize = HELD_BYTES_MAX;
/// Slots of the ledger from here on hold the domain's defaults, one for each service: behind the
/// mount and the handles.
pub(crate) const DEFAULTS_FIRST: usize = 1 + HANDLES_MAX;
/// The name of this entrance in the protocols.
pub(crate) const ENTRANCE: &str = "device";
/// `O_TRUNC`.
pub(super) const TRUNCATE: u32 = 0o1000;
/// How long a call waits for a service without a backend, in ns; then it fails with `EHOSTDOWN`.
pub(crate) const DOWN_WAIT_NS: u64 = 10_000_000_000;

/// The parameters agreed with the kernel at `INIT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Agreed {
    pub(crate) minor: u32,
    pub(crate) resend: bool,
    /// Whether files may have memory behind them.
    #[serde(default)]
    pub(crate) passthrough: bool,
}

/// The content of slot 0 of the ledger, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) agreed: Option<Agreed>,
    pub(crate) takeovers: u64,
    pub(crate) tree: Tree,
    /// The kernel's numbers of the memories that the domain has with services, by the service's
    /// place in the tree.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) memories: BTreeMap<usize, u32>,
    /// Calls that the kernel will not send again (where it has no `FUSE_NOTIFY_RESEND`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) parked: Vec<u64>,
}

/// The caller of a request, and the time at which it was read, in ns of the monotonic clock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Call {
    pub(crate) unique: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
    pub(crate) arrived: u64,
}

impl Call {
    /// The same for the first sending of a request and for the second.
    fn key(&self) -> u64 {
        self.unique & !crate::abi::FUSE_UNIQUE_RESEND
    }
}

/// The purpose of an outstanding tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Open,
    Line,
    Text,
    /// A parked control write or ioctl, or one at an offset.
    Call(u64),
    /// A parked call about a lock.
    Lock(u64),
    /// A lock that a session had at the backend before.
    Claim,
    /// A parked call about a name or a node; of no handle.
    Node(u64),
    /// The domain's defaults, handed to the next backend; of no handle.
    Defaults,
}

/// A request that a backend has.
#[derive(Debug, Clone, Copy)]
struct Pending {
    service: usize,
    fh: u64,
    purpose: Purpose,
    /// When it was asked for, as far as that is known; else when it was sent.
    asked: u64,
}

/// How the link to a service's backend is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum LinkState {
    #[default]
    Down,
    /// The daemon was asked for a channel.
    Asked,
    /// The channel is there; the backend has to speak first.
    Greeting,
    Up,
}

/// The link to one service.
#[derive(Debug, Clone, Copy, Default)]
struct Link {
    state: LinkState,
    /// Counts the channels, so that the last words of an old one are not taken for the new one's.
    epoch: u64,
    /// The generation of the service's server that it goes to, as the daemon counts.
    generation: u64,
    /// Not to be tried before, in ns.
    retry_at: u64,
    /// Whether its server has the memory that the domain has with the service.
    memory: bool,
    /// Whether another server has come while the channel to the one before has not ended: its last
    /// words may still be in it.
    followed: bool,
}

/// A reply that is ready.
struct Ready {
    call: Call,
    errno: i32,
    payload: Vec<u8>,
}

impl Ready {
    fn ok(call: Call, payload: Vec<u8>) -> Self {
        Self { call, errno: 0, payload }
    }

    fn error(call: Call, errno: Errno) -> Self {
        Self { call, errno: errno.raw_os_error(), payload: Vec::new() }
    }
}

/// The whole state of a frontend.
pub(crate) struct Core<H> {
    pub(crate) host: H,
    tree: Tree,
    agreed: Option<Agreed>,
    offer_resend: bool,
    takeovers: u64,
    handles: Vec<Option<Handle>>,
    open_handles: usize,
    free: Vec<usize>,
    generation: u32,
    held: usize,
    pending: HashMap<u64, Pending>,
    parked: BTreeMap<u64, Parked>,
    /// Bytes that they keep.
    parked_bytes: usize,
    /// Calls that the predecessor may have answered, by key: the slot that knows the answer.
    replays: HashMap<u64, usize>,
    links: Vec<Link>,
    /// The domain's defaults at each service, sealed, as its backend stated them last.
    defaults: Vec<Vec<u8>>,
    last_tag: u64,
    last_question: u64,
    questions: HashMap<u64, Question>,
    memories: memory::Memories,
    /// Whether the daemon has said what the domain mounts.
    introduced: bool,
    daemon_there: bool,
    about: Value,
    quality: own::Quality,
    pub(crate) handover: Handover,
    pub(crate) traces: Traces,
    pub(crate) counters: Counters,
    targets: Targets,
    locks: locks::Locks,
    /// Whether something waits for a moment in time.
    ticking: bool,
}

impl<H: Host> Core<H> {
    /// A frontend of a mount that was never served.
    pub(crate) fn new(host: H, uid: u32, gid: u32, offer_resend: bool) -> Self {
        Self {
            host,
            tree: Tree::new(uid, gid),
            agreed: None,
            offer_resend,
            takeovers: 0,
            handles: Vec::new(),
            open_handles: 0,
            free: Vec::new(),
            generation: 0,
            held: 0,
            pending: HashMap::new(),
            parked: BTreeMap::new(),
            parked_bytes: 0,
            replays: HashMap::new(),
            links: Vec::new(),
            defaults: Vec::new(),
            last_tag: 0,
            last_question: 0,
            questions: HashMap::new(),
            memories: memory::Memories::default(),
            introduced: false,
            daemon_there: true,
            about: Value::Null,
            quality: own::Quality::default(),
            handover: Handover::default(),
            traces: Traces::default(),
            counters: Counters::default(),
            targets: Targets::default(),
            locks: locks::Locks::default(),
            ticking: false,
        }
    }

    fn link(&self, service: usize) -> Link {
        self.links.get(service).copied().unwrap_or_default()
    }

    fn is_up(&self, service: usize) -> bool {
        self.link(service).state == LinkState::Up
    }

    fn handle(&mut self, slot: usize) -> Option<&mut Handle> {
        self.handles.get_mut(slot)?.as_mut()
    }

    /// The slot of a live handle.
    fn slot(&self, fh: u64) -> Option<usize> {
        let slot = usize::try_from(fh & u64::from(u32::MAX)).ok()?;
        let handle = self.handles.get(slot)?.as_ref()?;
        (handle.fh == fh).then_some(slot)
    }

    fn save_facts(&mut self) {
        let resends = self.agreed.is_none_or(|agreed| agreed.resend);
        let parked = if resends { Vec::new() } else { self.kernels_parked() };
        let facts = Facts {
            agreed: self.agreed,
            takeovers: self.takeovers,
            tree: self.tree.clone(),
            memories: self.memories.numbers.clone(),
            parked,
        };
        match serde_json::to_vec(&facts) {
            Ok(record) => self.host.save(0, &record),
            Err(error) => tracing::error!(%error, "the facts of the mount can't be written down"),
        }
    }

    /// Calls of the kernel that wait. A client of 9P asks its successor anew.
    fn kernels_parked(&self) -> Vec<u64> {
        let uniques = self.parked.values().map(|parked| parked.call.unique);
        uniques.filter(|unique| unique & crate::answers::MARK == 0).collect()
    }

    /// Answers a call that changes nothing.
    fn answer(&mut self, call: Call, payload: &[u8]) {
        self.host.reply(call.unique, 0, &[payload]);
    }

    fn refuse(&mut self, call: Call, errno: Errno) {
        self.host.reply(call.unique, errno.raw_os_error(), &[]);
    }

    /// Takes a free handle.
    fn allocate(
        &mut self,
        node: Node,
        (flags, idempotent): (u32, bool),
        call: Call,
        body: Body,
    ) -> Result<usize, Errno> {
        if self.open_handles >= HANDLES_MAX {
            self.counters.refused_opens += 1;
            return Err(Errno::MFILE);
        }
        let slot = self.free.pop().unwrap_or(self.handles.len());
        if slot == self.handles.len() {
            self.handles.push(None);
        }
        self.generation = self.generation.wrapping_add(1).max(1);
        let handle = Handle {
            fh: u64::from(self.generation) << 32 | slot as u64,
            node,
            flags,
            idempotent,
            passes: call.unique & crate::answers::MARK != 0,
            uid: call.uid,
            gid: call.gid,
            pid: call.pid,
            opened: false,
            open_ns: 0,
            poll: None,
            last: Last::default(),
            commands: Vec::new(),
            calls: Vec::new(),
            body,
            held: 0,
            dirty: false,
        };
        self.open_handles += 1;
        if let Some(place) = self.handles.get_mut(slot) {
            *place = Some(handle);
        }
        Ok(slot)
    }

    /// Brings the world up to what a handle has become: the ledger, then its backend, then whoever
    /// waits.
    fn settle(&mut self, slot: usize, mut ready: Option<Ready>) {
        loop {
            let messages = self.stage(slot);
            let Some(handle) = self.handles.get_mut(slot).and_then(Option::as_mut) else { break };
            if let Some(session) = handle.session() {
                streams::note_failures(session);
            }
            if let Some(ready) = &mut ready {
                handle.last = Last {
                    unique: ready.call.key(),
                    errno: ready.errno,
                    payload: std::mem::take(&mut ready.payload),
                };
                handle.dirty = true;
            }
            let held = handle.held_bytes();
            self.held = (self.held + held).saturating_sub(handle.held);
            handle.held = held;
            if std::mem::take(&mut handle.dirty) && handle.opened && !handle.passes {
                self.host.save(slot + 1, &crate::record::encode(handle));
            }
            let service = handle.service().unwrap_or(0);
            for message in messages {
                self.host.send(service, message);
            }
            if let Some(ready) = ready.take() {
                let taken = self.host.reply(ready.call.unique, ready.errno, &[&handle.last.payload]);
                self.counters.unheard += u64::from(!taken);
                note_acceptance(handle, ready.call, self.host.now());
            }
            ready = self.next_ready(slot);
            if ready.is_none() {
                break;
            }
        }
        self.wake(slot);
    }

    /// Wakes who polls, when there is something that it was not told yet.
    fn wake(&mut self, slot: usize) {
        let Some(handle) = self.handles.get_mut(slot).and_then(Option::as_mut) else { return };
        let ready = handle.ready();
        let Some(poll) = &mut handle.poll else { return };
        // What has ended meanwhile is news when it comes back: an edge.
        poll.seen &= ready;
        let Some(poll) = handle.poll.filter(|poll| ready & poll.events & !poll.seen != 0) else { return };
        // Whoever is woken asks again, and thereby waits again.
        handle.poll = None;
        self.host.notify_poll(poll.handle);
    }

    /// Returns the messages that the handle's backend has to be sent, if it is there.
    fn stage(&mut self, slot: usize) -> Vec<Outgoing> {
        let Some(service) = self.handles.get(slot).and_then(Option::as_ref).and_then(Handle::service) else {
            return Vec::new();
        };
        if !self.is_up(service) {
            self.ticking = true;
            return Vec::new();
        }
        let traced = self.traces.on();
        let now = self.host.now();
        let claims = self.handles.get(slot).and_then(Option::as_ref).map(|handle| self.claims(handle));
        let Some(handle) = self.handles.get_mut(slot).and_then(Option::as_mut) else { return Vec::new() };
        let file = file_of(handle.node);
        let is_once = !handle.idempotent;
        let exported = self.tree.services.get(service).and_then(|service| service.export.as_ref());
        let tells_flags = exported.is_some_and(|export| export.version > VERSION_MIN);
        let tags = Tags { service, fh: handle.fh, last: &mut self.last_tag, pending: &mut self.pending };
        let mut stage = Stage { file, is_once, tells_flags, tags, out: Vec::new() };
        stage.open(handle, &claims.unwrap_or_default(), now);
        stage.credit(handle);
        stage.lines(handle, traced, now);
        stage.text(handle, now);
        let blocked = matches!(&handle.body, Body::Session(session) if session.standing != Standing::Open);
        if !blocked {
            stage.calls(handle, &mut self.parked);
        }
        stage.out
    }
}

/// Gives tags to requests of one handle.
struct Tags<'a> {
    service: usize,
    fh: u64,
    last: &'a mut u64,
    pending: &'a mut HashMap<u64, Pending>,
}

impl Tags<'_> {
    fn issue(&mut self, purpose: Purpose, asked: u64) -> u64 {
        *self.last += 1;
        let (service, fh) = (self.service, self.fh);
        self.pending.insert(*self.last, Pending { service, fh, purpose, asked });
        *self.last
    }
}

/// Messages of one handle to its backend, in the making.
struct Stage<'a> {
    file: u32,
    /// Whether what was asked of the file must not be asked again.
    is_once: bool,
    /// Whether the backend knows of an opener's flags.
    tells_flags: bool,
    tags: Tags<'a>,
    out: Vec<Outgoing>,
}

impl Stage<'_> {
    fn open(&mut self, handle: &mut Handle, claims: &[Lock], now: u64) {
        let calls = !handle.calls.is_empty();
        let (uid, gid, pid) = (handle.uid, handle.gid, handle.pid);
        // A file that is opened again is not cut again.
        let flags = if handle.opened { handle.flags & !TRUNCATE } else { handle.flags };
        let flags = if self.tells_flags { flags } else { 0 };
        let Some(session) = handle.session() else { return };
        let waits = calls || session.entries.iter().any(|entry| entry.progress == Progress::Queued);
        if session.standing == Standing::Lost || session.standing == Standing::Refused && waits {
            session.standing = Standing::Opening;
            let capsule = match &session.flow {
                Flow::Stream(stream) => stream.latest.clone(),
                _ => session.capsule.clone(),
            };
            let info = OpenInfo { uid, gid, pid, entrance: ENTRANCE.into(), flags, capsule };
            let tag = self.tags.issue(Purpose::Open, now);
            let (session, file) = (self.tags.fh, self.file);
            self.out.push(Outgoing::Open { session, tag, file, info });
            // Before anything else is asked in it.
            for claim in claims {
                let (kind, tag) = (Kind::Lock, self.tags.issue(Purpose::Claim, now));
                let payload = claim.encode().to_vec();
                self.out.push(Outgoing::Tree { kind, session, tag, file, payload });
            }
        }
    }

    fn lines(&mut self, handle: &mut Handle, traced: bool, now: u64) {
        let Some(session) = handle.session().filter(|session| session.standing == Standing::Open) else {
            return;
        };
        let queued = session.entries.iter_mut().filter(|entry| entry.progress == Progress::Queued);
        let before = self.out.len();
        for entry in queued {
            let tag = self.tags.issue(Purpose::Line, entry.times.asked);
            let line = entry.line.clone();
            self.out.push(Outgoing::Request { session: self.tags.fh, tag, file: self.file, line, traced });
            entry.progress = Progress::Sent(tag);
            entry.times.sent = now;
        }
        handle.dirty |= self.out.len() > before;
    }

    /// Takes up more records of a stream, when there is room for them again.
    fn credit(&mut self, handle: &mut Handle) {
        let Some(session) = handle.session().filter(|session| session.standing == Standing::Open) else {
            return;
        };
        if let Some(bytes) = session.stream().and_then(Stream::more) {
            self.out.push(Outgoing::Credit { session: self.tags.fh, bytes });
        }
    }

    fn text(&mut self, handle: &mut Handle, now: u64) {
        let Some(text) = handle.text() else { return };
        if std::mem::take(&mut text.wanted) {
            let tag = self.tags.issue(Purpose::Text, now);
            text.fetching = Some(tag);
            self.request(tag, Vec::new());
        }
    }

    fn calls(&mut self, handle: &mut Handle, all: &mut BTreeMap<u64, Parked>) {
        for key in &handle.calls.clone() {
            if all.get(key).is_none_or(|parked| parked.tag.is_some()) {
                continue;
            }
            let is_ioctl = matches!(all.get(key).map(|parked| &parked.op), Some(Op::Ioctl { .. }));
            if is_ioctl && self.is_once && !handle.begun(*key, |other| all.contains_key(&other)) {
                // As many as the ledger remembers are under way: it goes when one of them has
                // ended.
                continue;
            }
            let Some(parked) = all.get_mut(key) else { continue };
            let asked = parked.call.arrived;
            match &parked.op {
                Op::Ioctl { number, data, .. } => {
                    let tag = self.tags.issue(Purpose::Call(*key), asked);
                    parked.tag = Some(tag);
                    let (session, number, data) = (self.tags.fh, *number, data.clone());
                    self.out.push(Outgoing::Control { session, tag, number, data });
                }
                Op::Record { data } => {
                    let tag = self.tags.issue(Purpose::Call(*key), asked);
                    parked.tag = Some(tag);
                    let (session, file, line) = (self.tags.fh, self.file, data.clone());
                    self.out.push(Outgoing::Request { session, tag, file, line, traced: false });
                }
                Op::ReadAt { .. } | Op::WriteAt { .. } | Op::Sync => {
                    let Some((kind, payload)) = offsets::message(&parked.op) else { continue };
                    let tag = self.tags.issue(Purpose::Call(*key), asked);
                    parked.tag = Some(tag);
                    let (session, file) = (self.tags.fh, self.file);
                    self.out.push(Outgoing::Tree { kind, session, tag, file, payload });
                }
                Op::Lock(ask) => {
                    let (kind, payload) = ask.message();
                    let tag = self.tags.issue(Purpose::Lock(*key), asked);
                    parked.tag = Some(tag);
                    let (session, file) = (self.tags.fh, self.file);
                    self.out.push(Outgoing::Tree { kind, session, tag, file, payload });
                }
                Op::Command { lines, next, .. } => {
                    let Some(line) = lines.get(*next).cloned() else { continue };
                    let tag = self.tags.issue(Purpose::Call(*key), asked);
                    parked.tag = Some(tag);
                    self.request(tag, line);
                }
                _ => {}
            }
        }
    }

    /// A request outside of any session.
    fn request(&mut self, tag: u64, line: Vec<u8>) {
        let (session, file) = (SESSION_NONE, self.file);
        self.out.push(Outgoing::Request { session, tag, file, line, traced: false });
    }
}

/// Notes when the write was answered that brought requests.
fn note_acceptance(handle: &mut Handle, call: Call, now: u64) {
    let Some(session) = handle.session() else { return };
    let brought = session.entries.iter_mut().rev().take_while(|entry| entry.times.asked == call.arrived);
    brought.for_each(|entry| entry.times.accepted = now);
}

/// The file's id in its export.
fn file_of(node: Node) -> u32 {
    match node {
        Node::File(_, id) => id,
        _ => 0,
    }
}
