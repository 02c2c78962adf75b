//! The operations of programs on open files.

use polyfuse_kernel as fuse;
use rustix::io::Errno;
use wire::service::{Behaviour, MAX_CONTROL_BYTES, MAX_REQUEST_BYTES, Node as Described};
use zerocopy::IntoBytes;

use super::names::take;
use super::nodes::Then;
use super::parked::Op;
use super::{Call, Core, DOWN_WAIT_NS, HELD_BYTES_MAX, Ready};
use crate::abi;
use crate::device::TRANSFER_BYTES_MAX;
use crate::handle::{Body, Flow, Handle, Poll, Progress, READABLE, Session, Standing, Text, WRITABLE};
use crate::host::Host;
use crate::lines;
use crate::trace::Origin;
use crate::tree::Node;

/// The access mode in the flags of open(2), and its values.
const ACCESS: u32 = 3;
const READ_ONLY: u32 = 0;
const WRITE_ONLY: u32 = 1;
/// `O_APPEND`.
const APPEND: u32 = 0o2000;
/// `O_NONBLOCK`.
const NONBLOCK: u32 = 0o4000;
/// `TCGETS`: what isatty(3) asks of every file. Answered here, so that it costs no backend a
/// message.
const TCGETS: u32 = 0x5401;

impl<H: Host> Core<H> {
    pub(super) fn open(&mut self, call: Call, node: Node, body: &[u8], request: &[u8]) -> Result<(), Errno> {
        let (open, _) = take::<fuse::fuse_open_in>(body)?;
        self.counters.opens += 1;
        match node {
            Node::Own(own) => self.open_own(call, own, open.flags),
            Node::File(service, id) if node.is_of_backend() => {
                self.stat_described(call, (service, id), Then::Open(open.flags))
            }
            Node::File(service, id) => self.open_file(call, (service, id), open.flags, request),
            _ => Err(Errno::ISDIR),
        }
    }

    /// The topology's verbs and the export's mode hold for everybody, root included.
    fn may_open(&self, service: usize, id: u32, flags: u32) -> Result<(Behaviour, bool), Errno> {
        let service =
            self.tree.services.get(service).filter(|service| service.present).ok_or(Errno::STALE)?;
        let file = service.file(id).ok_or(Errno::STALE)?;
        if !is_open_to(file.mode, flags) || !service.allows(file) {
            return Err(Errno::ACCESS);
        }
        Ok((file.behaviour, file.idempotent))
    }

    fn open_file(
        &mut self,
        call: Call,
        (service, id): (usize, u32),
        flags: u32,
        request: &[u8],
    ) -> Result<(), Errno> {
        let what = self.may_open(service, id, flags)?;
        let nonblock = flags & NONBLOCK != 0;
        if what.0 == Behaviour::Device && self.awaits_memory(call, service, nonblock, request) {
            return Ok(());
        }
        self.open_behaviour(call, (service, id), what, flags)
    }

    /// Opens a file that its backend has described.
    pub(super) fn open_described(
        &mut self,
        call: Call,
        service: usize,
        node: &Described,
        flags: u32,
    ) -> Result<(), Errno> {
        let (sees, changes) = self.tree.rights((service, node.number)).ok_or(Errno::STALE)?;
        let writes = flags & ACCESS != READ_ONLY;
        // What the mode of a plain file means, and to whom, the kernel knows: whoever makes a file
        // that nobody may write to writes to it.
        let is_closed = node.behaviour != Behaviour::Random && !is_open_to(node.mode.into(), flags);
        if !sees || writes && changes != Some(true) || is_closed {
            return Err(Errno::ACCESS);
        }
        self.open_behaviour(call, (service, node.number), (node.behaviour, node.idempotent), flags)
    }

    fn open_behaviour(
        &mut self,
        call: Call,
        (service, id): (usize, u32),
        (behaviour, idempotent): (Behaviour, bool),
        flags: u32,
    ) -> Result<(), Errno> {
        if flags & NONBLOCK != 0 && !self.is_up(service) {
            return Err(Errno::AGAIN);
        }
        let deadline = call.arrived.saturating_add(DOWN_WAIT_NS);
        let body = match behaviour {
            Behaviour::Session => Body::Session(Box::default()),
            Behaviour::Control => Body::Text(Text::default(), true),
            Behaviour::Text => Body::Text(Text { wanted: true, deadline, ..Text::default() }, false),
            Behaviour::Stream if !self.has_room_for_stream() => return Err(Errno::MFILE),
            Behaviour::Stream => {
                let flow = Flow::Stream(Box::default());
                Body::Session(Box::new(Session { flow, ..Session::default() }))
            }
            Behaviour::Random => {
                Body::Session(Box::new(Session { flow: Flow::Offsets, ..Session::default() }))
            }
            Behaviour::Device => {
                Body::Session(Box::new(Session { flow: Flow::Device(0), ..Session::default() }))
            }
            Behaviour::Folder => return Err(Errno::ISDIR),
            Behaviour::Symlink => return Err(Errno::LOOP),
        };
        // A write to the end, done twice, would be there twice.
        let idempotent = idempotent && !(behaviour == Behaviour::Random && flags & APPEND != 0);
        let slot = self.allocate(Node::File(service, id), (flags, idempotent), call, body)?;
        if behaviour == Behaviour::Control {
            self.finish_open(slot, call);
            return Ok(());
        }
        if !self.park(call, Some(slot), Op::Open, deadline) {
            self.discard(slot);
            return Ok(());
        }
        if let Some(handle) = self.handle(slot) {
            match &mut handle.body {
                Body::Text(text, _) => text.waiting.push(call.key()),
                _ => handle.calls.push(call.key()),
            }
        }
        self.settle(slot, None);
        Ok(())
    }

    /// Hands a new handle to the kernel.
    pub(super) fn finish_open(&mut self, slot: usize, call: Call) {
        if let Some(ready) = self.opened(slot, call) {
            self.settle(slot, Some(ready));
        }
    }

    /// The reply that hands a new handle to the kernel.
    fn opened(&mut self, slot: usize, call: Call) -> Option<Ready> {
        let now = self.host.now();
        let memory = self.memory_behind(slot);
        let handle = self.handle(slot)?;
        handle.opened = true;
        handle.dirty = true;
        handle.open_ns = now.saturating_sub(call.arrived);
        let mut open_flags = fuse::FOPEN_DIRECT_IO | abi::FOPEN_PARALLEL_DIRECT_WRITES;
        if memory.is_some() {
            // The kernel takes no flags of a stream with it.
            open_flags |= abi::FOPEN_PASSTHROUGH;
        } else if matches!(&handle.body, Body::Session(session) if session.flow != Flow::Offsets) {
            open_flags |= fuse::FOPEN_STREAM | fuse::FOPEN_NONSEEKABLE;
        }
        let out = fuse::fuse_open_out { fh: handle.fh, open_flags, padding: memory.unwrap_or(0) };
        Some(Ready::ok(call, out.as_bytes().to_vec()))
    }

    pub(super) fn read(&mut self, call: Call, body: &[u8]) -> Result<(), Errno> {
        let (read, _) = take::<fuse::fuse_read_in>(body)?;
        self.counters.reads += 1;
        let slot = self.slot(read.fh).ok_or(Errno::BADF)?;
        self.check_lost(read.fh)?;
        let has_offsets =
            matches!(self.handle(slot).and_then(Handle::session), Some(it) if it.flow == Flow::Offsets);
        if read.read_flags & fuse::FUSE_READ_LOCKOWNER == 0 && !has_offsets {
            // Not for a caller of read(2) but for the page cache, on behalf of sendfile(2) or
            // splice(2), or of mmap(2): what a session says once must not be kept there. Whoever is
            // refused reads instead, as it must be ready to (sendfile(2), EINVAL). The kernel
            // throws away what it keeps of bytes at offsets whenever a file is opened or mapped.
            return Err(Errno::INVAL);
        }
        let size = (read.size as usize).min(TRANSFER_BYTES_MAX);
        let nonblock = read.flags & NONBLOCK != 0;
        let handle = self.handle(slot).ok_or(Errno::BADF)?;
        match &mut handle.body {
            Body::Own(text) => {
                let piece = piece(text, read.offset, size).to_vec();
                self.answer(call, &piece);
                Ok(())
            }
            Body::Text(..) => self.read_text(call, slot, read.offset, size, nonblock),
            Body::Session(session) if session.flow.is_transferred() => {
                self.park_call(call, slot, Op::ReadAt { offset: read.offset, size }, nonblock)
            }
            Body::Session(session) if matches!(session.flow, Flow::Stream(_)) => {
                self.read_session(call, slot, size, nonblock);
                Ok(())
            }
            Body::Session(session) => {
                let deadline = call.arrived.saturating_add(DOWN_WAIT_NS);
                if !session.partial.is_empty() && session.entries.is_empty() {
                    // Whoever would read the end of file has said what he wanted to say.
                    let line = std::mem::take(&mut session.partial);
                    session.ask(line, call.arrived, deadline);
                    handle.dirty = true;
                    self.counters.lines += 1;
                }
                self.read_session(call, slot, size, nonblock);
                Ok(())
            }
        }
    }

    fn read_session(&mut self, call: Call, slot: usize, size: usize, nonblock: bool) {
        let waits = |session: &Session| match &session.flow {
            Flow::Stream(stream) => !stream.readable(),
            _ => {
                let first = session.entries.front().map(|entry| &entry.progress);
                matches!(first, Some(Progress::Queued | Progress::Sent(_)))
            }
        };
        let Some(session) = self.handle(slot).and_then(Handle::session) else { return };
        let ready = session.readers.is_empty() && !waits(session);
        if !ready && let Some(stream) = session.stream() {
            stream.want();
        }
        if nonblock && !ready {
            return self.settle(slot, Some(Ready::error(call, Errno::AGAIN)));
        }
        let deadline = u64::MAX;
        if self.park(call, Some(slot), Op::Read { size }, deadline)
            && let Some(session) = self.handle(slot).and_then(Handle::session)
        {
            session.readers.push_back(call.key());
        }
        self.settle(slot, None);
    }

    fn read_text(
        &mut self,
        call: Call,
        slot: usize,
        offset: u64,
        size: usize,
        nonblock: bool,
    ) -> Result<(), Errno> {
        let deadline = call.arrived.saturating_add(DOWN_WAIT_NS);
        let handle = self.handle(slot).ok_or(Errno::BADF)?;
        let service = handle.service().unwrap_or(0);
        if let Body::Text(text, control) = &mut handle.body {
            let stale = *control && offset == 0 && text.waiting.is_empty();
            if (stale || text.text.is_none()) && text.fetching.is_none() {
                text.text = None;
                text.wanted = true;
                text.deadline = deadline;
            }
            if let Some(Ok(whole)) = &text.text {
                let piece = piece(whole, offset, size).to_vec();
                self.answer(call, &piece);
                return Ok(());
            }
        }
        if nonblock && !self.is_up(service) {
            return Err(Errno::AGAIN);
        }
        if self.park(call, Some(slot), Op::Text { offset, size }, deadline)
            && let Some(text) = self.handle(slot).and_then(Handle::text)
        {
            text.waiting.push(call.key());
        }
        self.settle(slot, None);
        Ok(())
    }

    pub(super) fn write(&mut self, call: Call, body: &[u8]) -> Result<(), Errno> {
        let (write, data) = take::<fuse::fuse_write_in>(body)?;
        let data = data.get(..write.size as usize).ok_or(Errno::INVAL)?;
        self.counters.writes += 1;
        let slot = self.slot(write.fh).ok_or(Errno::BADF)?;
        self.check_lost(write.fh)?;
        let nonblock = write.flags & NONBLOCK != 0;
        let full = self.held + self.parked_bytes + data.len() > HELD_BYTES_MAX;
        let handle = self.handle(slot).ok_or(Errno::BADF)?;
        let node = handle.node;
        match &handle.body {
            Body::Own(_) => self.write_own(call, node, (write.offset, data)),
            _ if full => Err(Errno::DQUOT),
            Body::Text(_, false) => Err(Errno::BADF),
            Body::Text(_, true) => self.write_control(call, slot, data, nonblock),
            Body::Session(session) if session.flow.is_transferred() => {
                let op = Op::WriteAt { offset: write.offset, data: data.to_vec(), done: 0 };
                self.park_call(call, slot, op, nonblock)
            }
            Body::Session(session) if session.waits_for_answers() => {
                if data.len() > wire::service::MAX_RECORD_BYTES {
                    return Err(Errno::MSGSIZE);
                }
                self.park_call(call, slot, Op::Record { data: data.to_vec() }, nonblock)
            }
            Body::Session(session) => {
                if !session.writers.is_empty() {
                    if nonblock {
                        return Err(Errno::AGAIN);
                    }
                    self.park_write(call, slot, data.to_vec());
                    return Ok(());
                }
                match self.accept(call, slot, data) {
                    Some(ready) => self.settle(slot, Some(ready)),
                    None if nonblock => return Err(Errno::AGAIN),
                    None => self.park_write(call, slot, data.to_vec()),
                }
                Ok(())
            }
        }
    }

    fn park_write(&mut self, call: Call, slot: usize, data: Vec<u8>) {
        if self.park(call, Some(slot), Op::Write { data }, u64::MAX)
            && let Some(session) = self.handle(slot).and_then(Handle::session)
        {
            session.writers.push_back(call.key());
        }
    }

    /// Takes what fits of a write; `None` where it has to wait for answers to come.
    fn accept(&mut self, call: Call, slot: usize, data: &[u8]) -> Option<Ready> {
        if self.is_stream(slot) {
            return self.accept_record(call, slot, data);
        }
        let now = self.host.now();
        let handle = self.handle(slot)?;
        let session = handle.session()?;
        let unread = session.is_unread();
        let split = match lines::split(&session.partial, data, session.room()) {
            Ok(split) => split,
            Err(errno) => {
                // The rest of a line that is refused must not be taken for another one.
                session.partial.clear();
                handle.dirty = true;
                return Some(Ready::error(call, errno));
            }
        };
        if split.used == 0 && !data.is_empty() {
            // Answers that nobody reads make no room by themselves; waiting for that would be for
            // ever.
            return unread.then(|| Ready::error(call, Errno::DQUOT));
        }
        let lines = split.lines.len() as u64;
        session.partial = split.partial;
        for line in split.lines {
            session.ask(line, call.arrived, now.saturating_add(DOWN_WAIT_NS));
        }
        handle.dirty = true;
        self.counters.lines += lines;
        let out = fuse::fuse_write_out { size: split.used as u32, padding: 0 };
        Some(Ready::ok(call, out.as_bytes().to_vec()))
    }

    /// A write to a `Control` file: whole lines, of which the last needs no newline.
    fn write_control(&mut self, call: Call, slot: usize, data: &[u8], nonblock: bool) -> Result<(), Errno> {
        if data.contains(&0) {
            return Err(Errno::INVAL);
        }
        let lines = data.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let lines: Vec<Vec<u8>> = lines.map(<[u8]>::to_vec).collect();
        if lines.iter().any(|line| line.len() > MAX_REQUEST_BYTES) {
            return Err(Errno::MSGSIZE);
        }
        if lines.is_empty() {
            self.answer(call, fuse::fuse_write_out { size: data.len() as u32, padding: 0 }.as_bytes());
            return Ok(());
        }
        let next = self.resumed(call, slot)?.unwrap_or_default();
        let op = Op::Command { lines, next, size: data.len() };
        self.park_call(call, slot, op, nonblock)
    }

    /// Where a control write goes on that the predecessor had begun. An ioctl that it had begun on
    /// a file of which nothing may be asked twice does not.
    fn resumed(&mut self, call: Call, slot: usize) -> Result<Option<usize>, Errno> {
        let Some(handle) = self.handle(slot) else { return Ok(None) };
        let Some(next) = handle.ended(call.key()) else { return Ok(None) };
        tracing::debug!(unique = call.key(), next, "a call of the predecessor's goes on");
        if handle.idempotent { Ok(Some(next as usize)) } else { Err(Errno::CONNRESET) }
    }

    /// Parks a call that a backend answers.
    pub(super) fn park_call(&mut self, call: Call, slot: usize, op: Op, nonblock: bool) -> Result<(), Errno> {
        let service = self.handle(slot).and_then(|handle| handle.service()).ok_or(Errno::BADF)?;
        if nonblock && !self.is_up(service) {
            return Err(Errno::AGAIN);
        }
        let command = if let Op::Command { next, .. } = &op { Some(*next as u32) } else { None };
        if !self.park(call, Some(slot), op, call.arrived.saturating_add(DOWN_WAIT_NS)) {
            return Ok(());
        }
        if let Some(handle) = self.handle(slot) {
            handle.calls.push(call.key());
            if let Some(next) = command {
                handle.commanded(call.key(), next);
            }
        }
        self.settle(slot, None);
        Ok(())
    }

    pub(super) fn ioctl(&mut self, call: Call, body: &[u8]) -> Result<(), Errno> {
        let (ioctl, data) = take::<fuse::fuse_ioctl_in>(body)?;
        self.counters.ioctls += 1;
        if ioctl.flags & (fuse::FUSE_IOCTL_DIR | fuse::FUSE_IOCTL_UNRESTRICTED) != 0 || ioctl.cmd == TCGETS {
            return Err(Errno::NOTTY);
        }
        let slot = self.slot(ioctl.fh).ok_or(Errno::BADF)?;
        let handle = self.handle(slot).ok_or(Errno::BADF)?;
        let nonblock = handle.flags & NONBLOCK != 0;
        if !matches!(handle.body, Body::Session(_)) {
            return Err(Errno::NOTTY);
        }
        let (size, writes, reads) =
            (ioctl.cmd >> 16 & 0x3fff, ioctl.cmd >> 30 & 1 != 0, ioctl.cmd >> 31 != 0);
        let wanted = (if writes { size } else { 0 }, if reads { size } else { 0 });
        if (ioctl.in_size, ioctl.out_size) != wanted || size as usize > MAX_CONTROL_BYTES {
            return Err(Errno::INVAL);
        }
        let data = data.get(..ioctl.in_size as usize).ok_or(Errno::INVAL)?.to_vec();
        self.resumed(call, slot)?;
        let op = Op::Ioctl { number: ioctl.cmd, data, out_size: ioctl.out_size as usize };
        self.park_call(call, slot, op, nonblock)
    }

    /// Asks the backend of a file with bytes at offsets to keep what was written; of others nothing
    /// is kept.
    pub(super) fn fsync(&mut self, call: Call, body: &[u8]) -> Result<(), Errno> {
        let (sync, _) = take::<fuse::fuse_fsync_in>(body)?;
        let slot = self.slot(sync.fh).ok_or(Errno::BADF)?;
        self.check_lost(sync.fh)?;
        let handle = self.handle(slot).ok_or(Errno::BADF)?;
        if matches!(&handle.body, Body::Session(session) if session.flow == Flow::Offsets) {
            return self.park_call(call, slot, Op::Sync, false);
        }
        self.answer(call, &[]);
        Ok(())
    }

    pub(super) fn poll(&mut self, call: Call, body: &[u8]) -> Result<(), Errno> {
        let (poll, _) = take::<fuse::fuse_poll_in>(body)?;
        self.counters.polls += 1;
        let slot = self.slot(poll.fh).ok_or(Errno::BADF)?;
        let handle = self.handle(slot).ok_or(Errno::BADF)?;
        let revents = handle.ready();
        let waiting = handle.session().and_then(Session::stream).filter(|_| revents & READABLE == 0);
        let wants = waiting.map(crate::stream::Stream::want).is_some();
        if poll.flags & fuse::FUSE_POLL_SCHEDULE_NOTIFY != 0 {
            let events = if poll.events == 0 { READABLE | WRITABLE } else { poll.events };
            handle.poll = Some(Poll::joined(handle.poll, poll.kh, events, revents));
            handle.dirty = true;
        }
        // Not through the ledger's last word: a poll that is asked twice is answered twice.
        let record = (handle.dirty && handle.opened && !handle.passes).then(|| crate::record::encode(handle));
        handle.dirty = false;
        if let Some(record) = record {
            self.host.save(slot + 1, &record);
        }
        self.answer(call, fuse::fuse_poll_out { revents, padding: 0 }.as_bytes());
        if wants {
            // A stream whose records come on demand is asked for one.
            self.settle(slot, None);
        }
        Ok(())
    }

    pub(super) fn release(&mut self, call: Call, body: &[u8]) -> Result<(), Errno> {
        let (release, _) = take::<fuse::fuse_release_in>(body)?;
        if let Some(slot) = self.slot(release.fh) {
            self.discard(slot);
            let took = self.host.now().saturating_sub(call.arrived);
            self.traces.closed(release.fh, took);
        }
        self.answer(call, &[]);
        Ok(())
    }

    /// Ends a handle, here, in the ledger and at its backend.
    pub(super) fn discard(&mut self, slot: usize) {
        if let Some(fh) = self.handle(slot).map(|handle| handle.fh) {
            self.close_locks(fh);
        }
        let Some(handle) = self.handles.get_mut(slot).and_then(Option::take) else { return };
        self.free.push(slot);
        self.open_handles = self.open_handles.saturating_sub(1);
        self.held = self.held.saturating_sub(handle.held);
        if handle.opened && !handle.passes {
            self.host.clear(slot + 1);
        }
        self.close_own(&handle);
        let mut waiting = handle.calls.clone();
        let mut tags = Vec::new();
        match &handle.body {
            Body::Session(session) => {
                waiting.extend(session.readers.iter().chain(&session.writers));
                tags.extend(session.entries.iter().filter_map(|entry| match entry.progress {
                    Progress::Sent(tag) => Some(tag),
                    _ => None,
                }));
            }
            Body::Text(text, _) => {
                waiting.extend(&text.waiting);
                tags.extend(text.fetching);
            }
            Body::Own(_) => {}
        }
        for key in waiting {
            if let Some(parked) = self.drop_parked(key) {
                tags.extend(parked.tag);
                self.refuse(parked.call, Errno::BADF);
            }
        }
        self.forget_session(&handle, &tags);
    }

    fn forget_session(&mut self, handle: &Handle, tags: &[u64]) {
        let Some(service) = handle.service() else { return };
        let opened = match &handle.body {
            Body::Session(session) => matches!(session.standing, Standing::Opening | Standing::Open),
            _ => false,
        };
        if opened {
            // Closing a session cancels what it has outstanding.
            self.pending.retain(|tag, _| !tags.contains(tag));
            self.pending
                .retain(|_, pending| pending.fh != handle.fh || pending.purpose != super::Purpose::Open);
            if self.is_up(service) {
                self.close_session(service, handle.fh);
            }
        } else {
            tags.iter().for_each(|&tag| self.cancel(tag));
        }
    }

    /// The next waiting call of a handle that can be answered now.
    pub(super) fn next_ready(&mut self, slot: usize) -> Option<Ready> {
        let handle = self.handles.get_mut(slot)?.as_mut()?;
        match &mut handle.body {
            Body::Own(_) => None,
            Body::Text(text, _) => {
                text.text.as_ref()?;
                let key = *text.waiting.first()?;
                self.ready_text(slot, key)
            }
            Body::Session(session) => {
                if let Some(&key) = session.readers.front()
                    && let Some(ready) = self.ready_read(slot, key)
                {
                    return Some(ready);
                }
                let &key = self.handle(slot)?.session()?.writers.front()?;
                let Some(Op::Write { data }) = self.parked.get_mut(&key).map(|parked| &mut parked.op) else {
                    return None;
                };
                let data = std::mem::take(data);
                let call = self.parked.get(&key)?.call;
                let ready = self.accept(call, slot, &data);
                if ready.is_some() {
                    self.unpark(key);
                } else if let Some(parked) = self.parked.get_mut(&key) {
                    parked.op = Op::Write { data };
                }
                ready
            }
        }
    }

    fn ready_read(&mut self, slot: usize, key: u64) -> Option<Ready> {
        let Op::Read { size } = self.parked.get(&key)?.op else { return None };
        let handle = self.handles.get_mut(slot)?.as_mut()?;
        if let Some(stream) = handle.session()?.stream() {
            let taken = stream.read(size)?;
            handle.dirty = true;
            if let (Some(capsule), Some(session)) = (taken.capsule, handle.session()) {
                session.capsule = capsule;
            }
            let parked = self.unpark(key)?;
            return Some(Ready { call: parked.call, errno: taken.errno, payload: taken.bytes });
        }
        let taken = handle.session()?.read(size)?;
        handle.dirty = true;
        let (fh, node, open_ns) = (handle.fh, handle.node, handle.open_ns);
        let parked = self.unpark(key)?;
        if let (Some(times), Node::File(at, id)) = (taken.finished, node)
            && let Some(service) = self.tree.services.get(at)
        {
            let name = &service.mounted.name;
            if times.answered > 0 {
                self.counters.latency(name, super::ENTRANCE, times.answered.saturating_sub(times.asked));
            }
            if times.phases.is_some() {
                let file = service.file(id).and_then(|file| file.name.as_deref()).unwrap_or_default();
                let kind = &service.mounted.kind;
                let origin = Origin { kind, service: name, file, session: fh, open_ns };
                let read = (parked.call.arrived, self.host.now());
                self.traces.add(&origin, times, read);
            }
        }
        Some(Ready { call: parked.call, errno: taken.errno, payload: taken.bytes })
    }

    fn ready_text(&mut self, slot: usize, key: u64) -> Option<Ready> {
        let parked = self.unpark(key)?;
        let text = self.handles.get_mut(slot)?.as_mut()?.text()?;
        let whole = match text.text.clone()? {
            Ok(whole) => whole,
            Err(errno) => {
                // The next read may try again.
                if text.waiting.is_empty() {
                    text.text = None;
                }
                if matches!(parked.op, Op::Open) {
                    self.refuse(parked.call, errno);
                    self.discard(slot);
                    return None;
                }
                return Some(Ready::error(parked.call, errno));
            }
        };
        match parked.op {
            Op::Text { offset, size } => Some(Ready::ok(parked.call, piece(&whole, offset, size).to_vec())),
            _ => self.opened(slot, parked.call),
        }
    }
}

/// The reply to a write of which so many bytes were taken.
pub(super) fn written(bytes: usize) -> Vec<u8> {
    fuse::fuse_write_out { size: bytes as u32, padding: 0 }.as_bytes().to_vec()
}

/// Whether a file of this mode can be opened so by anybody.
fn is_open_to(mode: u32, flags: u32) -> bool {
    let reads = flags & ACCESS != WRITE_ONLY;
    let writes = flags & ACCESS != READ_ONLY;
    (!reads || mode & 0o444 != 0) && (!writes || mode & 0o222 != 0)
}

/// The part of a text that a read at `offset` takes.
fn piece(text: &[u8], offset: u64, size: usize) -> &[u8] {
    let rest = usize::try_from(offset).ok().and_then(|offset| text.get(offset..)).unwrap_or_default();
    rest.get(..size).unwrap_or(rest)
}
