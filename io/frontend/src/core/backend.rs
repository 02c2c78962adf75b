//! The messages of backends, and the fate of requests when a backend dies.

use polyfuse_kernel as fuse;
use rustix::io::Errno;
use session::tags;
use thiserror::Error;
use wire::service::{DecodeError, Export, Phase, SESSION_NONE, Terms};
use zerocopy::IntoBytes;

use super::offsets;
use super::parked::Op;
use super::{Core, DOWN_WAIT_NS, HELD_BYTES_MAX, LinkState, Pending, Purpose, Ready};
use crate::handle::{Body, Flow, Handle, Progress, Session, Standing};
use crate::host::{Host, Outgoing};
use crate::tree::{self, Moment};

/// How long to wait before a link is tried again that was refused or lost while its service is said
/// to be up, in ns.
pub(super) const RETRY_NS: u64 = 1_000_000_000;

/// One whole answer of a backend.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) tag: u64,
    pub(crate) result: Result<&'a [u8], Errno>,
    pub(crate) phases: Vec<Phase>,
}

/// A message that no correct backend sends; its link is given up.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Violation {
    #[error("its export is refused: {0}")]
    Export(#[from] tree::TreeError),
    #[error("it answered the request {0}, which was never made")]
    Tag(u64),
    #[error("it answered an ioctl that has room for {room} bytes with {found}")]
    Ioctl { room: usize, found: usize },
    #[error("it answered a read of {room} bytes with {found}, or a write with what is no count")]
    Offset { room: usize, found: usize },
    #[error("what it says of a node is impossible: {0}")]
    Node(#[from] DecodeError),
    #[error("the node that it names is below another folder")]
    Folder,
    #[error("it said what poll says of a file that is no device")]
    Ready,
    #[error("it sent a record beyond the reader's credit, or to who reads no stream")]
    Credit,
}

impl<H: Host> Core<H> {
    /// Whether a channel of that epoch is still the service's.
    pub(super) fn is_current(&self, service: usize, epoch: u64) -> bool {
        let link = self.link(service);
        link.epoch == epoch && matches!(link.state, LinkState::Greeting | LinkState::Up)
    }

    /// The backend's first words.
    pub(crate) fn greeted(&mut self, service: usize, epoch: u64, export: Export) {
        if !self.is_current(service, epoch) {
            return;
        }
        if let Err(error) = tree::check_export(&export) {
            return self.violated(service, &error.into());
        }
        let Some(node) = self.tree.services.get_mut(service) else { return };
        if node.export.as_ref() != Some(&export) {
            node.export = Some(export);
            node.changed = Moment::now();
            self.save_facts();
        }
        if let Some(link) = self.links.get_mut(service) {
            link.state = LinkState::Up;
        }
        self.counters.links += 1;
        self.hand_over_defaults(service);
        self.take_again(false);
        self.settle_service(service);
    }

    /// Brings everything to the backend that waits for it: sessions first, because a control line
    /// may be about one.
    fn settle_service(&mut self, service: usize) {
        let mut slots = self.slots_of(service);
        slots.sort_by_key(|&slot| self.handle(slot).is_some_and(|handle| handle.session().is_none()));
        for slot in slots {
            self.settle(slot, None);
        }
        self.ask_nodes(service);
    }

    fn slots_of(&self, service: usize) -> Vec<usize> {
        let ours = |handle: &Option<Handle>| handle.as_ref().and_then(Handle::service) == Some(service);
        self.handles.iter().enumerate().filter(|(_, handle)| ours(handle)).map(|(slot, _)| slot).collect()
    }

    pub(super) fn violated(&mut self, service: usize, violation: &Violation) {
        let name = self.tree.services.get(service).map(|s| s.mounted.name.as_str()).unwrap_or_default();
        tracing::warn!(service = name, %violation, "the link to a backend is given up");
        self.counters.violations += 1;
        self.lose(service);
    }

    /// The channel has ended, or its messages can't be understood (`broken`).
    pub(crate) fn link_ended(&mut self, service: usize, epoch: u64, broken: bool) {
        if self.is_current(service, epoch) {
            self.counters.violations += u64::from(broken);
            self.lose(service);
        }
    }

    /// The backend leaves its service to another one. What it has not taken waits for that one,
    /// whatever it is; `taken` are the tags of what it has taken and does not answer, which ends as
    /// with its death.
    pub(crate) fn left(&mut self, service: usize, epoch: u64, taken: &[u8]) {
        if self.is_current(service, epoch) {
            self.part(service, Some(taken));
        }
    }

    /// Gives a link up. What may be asked again waits for the next backend, the rest ends with
    /// `ECONNRESET`.
    pub(super) fn lose(&mut self, service: usize) {
        self.part(service, None);
    }

    /// Lets go of a link. `taken`: the requests that its backend has taken and does not answer,
    /// where it says so; else it may have taken any.
    fn part(&mut self, service: usize, taken: Option<&[u8]>) {
        let untouched = |tag: u64| taken.is_some_and(|taken| tags(taken).all(|of| of != tag));
        let retry_at = self.host.now().saturating_add(RETRY_NS);
        if let Some(link) = self.links.get_mut(service) {
            self.counters.links_lost += u64::from(link.state == LinkState::Up && taken.is_none());
            link.state = LinkState::Down;
            link.retry_at = retry_at;
        }
        self.ticking = true;
        self.host.unlink(service);
        let lost: Vec<(u64, Pending)> =
            self.pending.extract_if(|_, pending| pending.service == service).collect();
        for slot in self.slots_of(service) {
            if let Some(session) = self.handle(slot).and_then(Handle::session) {
                session.standing = Standing::Lost;
                session.capsule_next = None;
                if let Flow::Device(bits) = &mut session.flow {
                    *bits = 0;
                }
            }
            self.stream_interrupted(slot);
        }
        for (tag, pending) in lost {
            self.lose_request(tag, pending, untouched(tag));
        }
        for slot in self.slots_of(service) {
            self.settle(slot, None);
        }
        self.follow(service);
    }

    /// `untouched`: the backend has not taken it.
    fn lose_request(&mut self, tag: u64, pending: Pending, untouched: bool) {
        let deadline = self.host.now().saturating_add(DOWN_WAIT_NS);
        if let Purpose::Node(key) = pending.purpose {
            return self.lose_node(key, deadline, untouched);
        }
        let Some(slot) = self.slot(pending.fh) else { return };
        let Some(again) = self.handle(slot).map(|handle| handle.idempotent || untouched) else { return };
        let is_lock = matches!(pending.purpose, Purpose::Lock(_) | Purpose::Claim);
        if again || is_lock {
            self.counters.asked_again += 1;
        } else if pending.purpose != Purpose::Open {
            self.counters.lost += 1;
        }
        match pending.purpose {
            // The next session asks for its locks by itself.
            Purpose::Open | Purpose::Claim | Purpose::Defaults | Purpose::Node(_) => {}
            Purpose::Lock(key) => self.lose_lock((tag, key), deadline),
            Purpose::Line => {
                let Some(handle) = self.handle(slot) else { return };
                handle.dirty = true;
                let Some(session) = handle.session() else { return };
                let Some(entry) = session.entries.iter_mut().find(|e| e.progress == Progress::Sent(tag))
                else {
                    return;
                };
                entry.deadline = deadline;
                entry.progress = lost_line(again);
                if !again {
                    entry.line = Vec::new();
                }
            }
            Purpose::Text => {
                if let Some(text) = self.handle(slot).and_then(Handle::text) {
                    text.fetching = None;
                    text.wanted = again;
                    text.deadline = deadline;
                    if !again {
                        text.text = Some(Err(Errno::CONNRESET));
                    }
                }
            }
            Purpose::Call(key) => {
                if again {
                    if let Some(parked) = self.parked.get_mut(&key) {
                        (parked.tag, parked.deadline) = (None, deadline);
                    }
                } else if let Some(mut parked) = self.unpark(key) {
                    parked.tag = None;
                    self.fail(parked, Errno::CONNRESET);
                }
            }
        }
    }

    /// The state of a session changed. It counts from the next answer on: the request that caused
    /// it is not done before, and may be asked again.
    pub(crate) fn capsule(&mut self, service: usize, epoch: u64, fh: u64, capsule: &[u8]) {
        if !self.is_current(service, epoch) {
            return;
        }
        if fh == SESSION_NONE {
            return self.keep_defaults(service, capsule);
        }
        let Some(slot) = self.slot(fh) else { return };
        let Some(handle) = self.handle(slot).filter(|handle| handle.service() == Some(service)) else {
            return;
        };
        let calls = !handle.calls.is_empty();
        let Some(session) = handle.session() else { return };
        if calls || session.outstanding() > 0 {
            session.capsule_next = Some(capsule.to_vec());
        } else {
            session.keep(capsule.to_vec());
            handle.dirty = true;
            self.settle(slot, None);
        }
    }

    /// Records the bits that poll(2) reports for an open device from now on.
    pub(crate) fn readied(&mut self, service: usize, epoch: u64, fh: u64, bits: u32) {
        if !self.is_current(service, epoch) {
            return;
        }
        let Some(slot) = self.slot(fh) else { return };
        let Some(handle) = self.handle(slot).filter(|handle| handle.service() == Some(service)) else {
            return;
        };
        let device = handle.session().and_then(|session| match &mut session.flow {
            Flow::Device(bits) => Some(bits),
            _ => None,
        });
        match device {
            Some(known) => {
                *known = bits;
                self.wake(slot);
            }
            None => self.violated(service, &Violation::Ready),
        }
    }

    /// An answer.
    pub(crate) fn answered(&mut self, service: usize, epoch: u64, answer: Answer<'_>) {
        if !self.is_current(service, epoch) {
            return;
        }
        let Some(pending) = self.pending.get(&answer.tag).copied().filter(|p| p.service == service) else {
            if answer.tag == 0 || answer.tag > self.last_tag || self.pending.contains_key(&answer.tag) {
                return self.violated(service, &Violation::Tag(answer.tag));
            }
            // It crossed with our Cancel or Close.
            self.counters.late += 1;
            return;
        };
        self.pending.remove(&answer.tag);
        self.counters.answers += 1;
        self.counters.errors += u64::from(answer.result.is_err());
        match pending.purpose {
            Purpose::Defaults => return self.defaults_taken(service, answer.result.map(drop)),
            Purpose::Node(key) => return self.node_answered(service, key, answer.result),
            _ => {}
        }
        let Some(slot) = self.slot(pending.fh) else { return };
        self.aim_answered(service, slot, pending.asked, pending.purpose);
        if let Some(handle) = self.handle(slot)
            && let Some(session) = handle.session()
            && let Some(capsule) = session.capsule_next.take()
        {
            session.keep(capsule);
            handle.dirty = true;
        }
        match pending.purpose {
            Purpose::Open => self.open_answered(service, slot, answer.result),
            Purpose::Line if self.is_stream(slot) => self.record_taken(slot, answer.tag, answer.result.err()),
            Purpose::Line => self.line_answered(slot, answer),
            Purpose::Text => {
                let held = self.held;
                if let Some(text) = self.handle(slot).and_then(Handle::text) {
                    text.fetching = None;
                    text.text = Some(match answer.result {
                        Ok(bytes) if held + bytes.len() > 2 * HELD_BYTES_MAX => Err(Errno::NOBUFS),
                        result => result.map(<[u8]>::to_vec),
                    });
                }
                self.settle(slot, None);
            }
            Purpose::Call(key) => self.call_answered(service, slot, key, answer.result),
            Purpose::Lock(key) => self.lock_answered(service, slot, (answer.tag, key), answer.result),
            Purpose::Claim => self.claim_answered(slot, answer.result.err()),
            Purpose::Defaults | Purpose::Node(_) => {}
        }
    }

    fn open_answered(&mut self, service: usize, slot: usize, result: Result<&[u8], Errno>) {
        let stream = self.handle(slot).and_then(Handle::session).and_then(Session::stream);
        if let (Some(stream), Ok(bytes)) = (stream, result) {
            match Terms::decode(bytes) {
                Ok(terms) => (stream.terms, stream.adopted) = (terms, false),
                Err(error) => return self.violated(service, &error.into()),
            }
        }
        self.session_opened(slot, result.err());
    }

    fn session_opened(&mut self, slot: usize, refused: Option<Errno>) {
        let Some(handle) = self.handle(slot) else { return };
        let calls = handle.calls.clone();
        let Some(session) = handle.session() else { return };
        session.standing = if refused.is_some() { Standing::Refused } else { Standing::Open };
        if let Some(errno) = refused {
            for entry in &mut session.entries {
                if entry.progress == Progress::Queued {
                    entry.progress = Progress::Failed(errno.raw_os_error());
                    entry.line = Vec::new();
                }
            }
            handle.dirty = true;
        } else {
            self.begin_stream(slot);
        }
        for key in calls {
            let opens = matches!(self.parked.get(&key).map(|parked| &parked.op), Some(Op::Open));
            if let Some(errno) = refused {
                if let Some(parked) = self.unpark(key) {
                    self.fail(parked, errno);
                }
            } else if opens && let Some(parked) = self.unpark(key) {
                return self.finish_open(slot, parked.call);
            }
        }
        self.settle(slot, None);
    }

    fn line_answered(&mut self, slot: usize, answer: Answer<'_>) {
        let now = self.host.now();
        let held = self.held;
        let Some(handle) = self.handle(slot) else { return };
        handle.dirty = true;
        let Some(session) = handle.session() else { return };
        let Some(entry) = session.entries.iter_mut().find(|e| e.progress == Progress::Sent(answer.tag))
        else {
            return;
        };
        entry.progress = match answer.result {
            Ok(bytes) if held + bytes.len() > 2 * HELD_BYTES_MAX => {
                Progress::Failed(Errno::NOBUFS.raw_os_error())
            }
            Ok(bytes) => Progress::Answered(bytes.to_vec()),
            Err(errno) => Progress::Failed(errno.raw_os_error()),
        };
        entry.line = Vec::new();
        entry.times.answered = now;
        if !answer.phases.is_empty() {
            entry.times.phases = Some(answer.phases);
        }
        self.settle(slot, None);
    }

    fn call_answered(&mut self, service: usize, slot: usize, key: u64, result: Result<&[u8], Errno>) {
        let Some(parked) = self.parked.get_mut(&key) else { return };
        parked.tag = None;
        let call = parked.call;
        let ready = match (&mut parked.op, result) {
            (_, Err(errno)) => Ready::error(call, errno),
            (Op::Ioctl { out_size, .. }, Ok(data)) if data.len() > *out_size => {
                let violation = Violation::Ioctl { room: *out_size, found: data.len() };
                if let Some(parked) = self.unpark(key) {
                    self.fail(parked, Errno::IO);
                }
                return self.violated(service, &violation);
            }
            (Op::Ioctl { .. }, Ok(data)) => {
                let out = fuse::fuse_ioctl_out::default();
                Ready::ok(call, [out.as_bytes(), data].concat())
            }
            (Op::ReadAt { .. } | Op::WriteAt { .. } | Op::Sync, Ok(data)) => {
                match offsets::answered(&mut parked.op, data) {
                    Ok(Some(payload)) => Ready::ok(call, payload),
                    Ok(None) => return self.settle(slot, None),
                    Err(violation) => {
                        if let Some(parked) = self.unpark(key) {
                            self.fail(parked, Errno::IO);
                        }
                        return self.violated(service, &violation);
                    }
                }
            }
            (Op::Record { data }, Ok(bytes)) => {
                let size = data.len();
                match Terms::decode(bytes) {
                    Ok(None) => {}
                    Ok(terms) => {
                        if let Some(stream) =
                            self.handle(slot).and_then(Handle::session).and_then(Session::stream)
                        {
                            stream.terms = terms;
                        }
                    }
                    Err(error) => {
                        if let Some(parked) = self.unpark(key) {
                            self.fail(parked, Errno::IO);
                        }
                        return self.violated(service, &error.into());
                    }
                }
                Ready::ok(call, super::files::written(size))
            }
            (Op::Command { lines, next, size }, Ok(_)) => {
                *next += 1;
                if *next < lines.len() {
                    let done = *next as u32;
                    if let Some(handle) = self.handle(slot) {
                        handle.commanded(key, done);
                    }
                    return self.settle(slot, None);
                }
                let out = fuse::fuse_write_out { size: *size as u32, padding: 0 };
                Ready::ok(call, out.as_bytes().to_vec())
            }
            _ => return,
        };
        self.unpark(key);
        if let Some(handle) = self.handle(slot) {
            handle.ended(key);
        }
        self.settle(slot, Some(ready));
    }

    /// Says that nobody waits for a request any more.
    pub(super) fn cancel(&mut self, tag: u64) {
        if let Some(pending) = self.pending.remove(&tag)
            && self.is_up(pending.service)
        {
            self.host.send(pending.service, Outgoing::Cancel { tag });
        }
    }

    pub(super) fn close_session(&mut self, service: usize, session: u64) {
        self.host.send(service, Outgoing::Close { session });
    }

    /// Fails what has waited too long for a backend.
    pub(super) fn expire(&mut self, now: u64) {
        let down: Vec<usize> = (0..self.tree.services.len()).filter(|&at| !self.is_up(at)).collect();
        for service in down {
            self.expire_nodes(service, now);
            for slot in self.slots_of(service) {
                let Some(handle) = self.handle(slot) else { continue };
                let changed = match &mut handle.body {
                    Body::Session(session) => expire_lines(session, now),
                    Body::Text(text, _) if text.wanted && text.deadline <= now => {
                        text.wanted = false;
                        text.text = Some(Err(Errno::HOSTDOWN));
                        1
                    }
                    _ => 0,
                };
                handle.dirty |= changed > 0;
                let late: Vec<u64> = handle.calls.clone();
                self.counters.waited_in_vain += changed;
                for key in late {
                    if self
                        .parked
                        .get(&key)
                        .is_some_and(|parked| parked.tag.is_none() && parked.deadline <= now)
                        && let Some(parked) = self.unpark(key)
                    {
                        self.counters.waited_in_vain += 1;
                        self.fail(parked, Errno::HOSTDOWN);
                    }
                }
                if changed > 0 {
                    self.settle(slot, None);
                }
            }
        }
    }
}

/// The fate of a request that its backend had.
fn lost_line(again: bool) -> Progress {
    if again { Progress::Queued } else { Progress::Failed(Errno::CONNRESET.raw_os_error()) }
}

fn expire_lines(session: &mut Session, now: u64) -> u64 {
    let mut expired = 0;
    for entry in &mut session.entries {
        if entry.progress == Progress::Queued && entry.deadline <= now {
            entry.progress = Progress::Failed(Errno::HOSTDOWN.raw_os_error());
            entry.line = Vec::new();
            expired += 1;
        }
    }
    expired
}
