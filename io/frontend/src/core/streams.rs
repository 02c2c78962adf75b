//! Streams: records that backends send by themselves, and records that programs write.

use rustix::io::Errno;

use super::backend::Violation;
use super::{Call, Core, DOWN_WAIT_NS, Ready};
use crate::handle::{Flow, Handle, Progress, Session};
use crate::host::{Host, Outgoing};
use crate::stream::STREAMS_MAX;

/// The access mode in the flags of open(2): for writing only.
const WRITE_ONLY: u32 = 1;
const ACCESS: u32 = 3;

impl<H: Host> Core<H> {
    /// Whether one more stream may be opened.
    pub(super) fn has_room_for_stream(&self) -> bool {
        let is_stream = |handle: &&Handle| matches!(&handle.body, crate::handle::Body::Session(session) if matches!(session.flow, Flow::Stream(_)));
        self.handles.iter().flatten().filter(is_stream).count() < STREAMS_MAX
    }

    pub(super) fn is_stream(&mut self, slot: usize) -> bool {
        self.handle(slot).and_then(Handle::session).and_then(Session::stream).is_some()
    }

    /// The backend has opened the session: it may send as much as fits.
    pub(super) fn begin_stream(&mut self, slot: usize) {
        let Some(handle) = self.handle(slot).filter(|handle| handle.flags & ACCESS != WRITE_ONLY) else {
            return;
        };
        let (fh, service) = (handle.fh, handle.service());
        let polls = handle.poll.is_some();
        let Some(session) = handle.session() else { return };
        let waits = polls || !session.readers.is_empty();
        let bytes = session.stream().map(|stream| {
            if waits {
                // It may have asked the backend that is lost.
                stream.want();
            }
            stream.begin()
        });
        if let (Some(bytes), Some(service)) = (bytes.filter(|&bytes| bytes > 0), service) {
            self.host.send(service, Outgoing::Credit { session: fh, bytes });
        }
    }

    /// The backend of a stream is lost.
    pub(super) fn stream_interrupted(&mut self, slot: usize) {
        let Some(handle) = self.handle(slot) else { return };
        let (idempotent, reads) = (handle.idempotent, handle.flags & ACCESS != WRITE_ONLY);
        if let Some(stream) = handle.session().and_then(Session::stream) {
            stream.interrupted(idempotent || !reads, Errno::CONNRESET.raw_os_error());
        }
    }

    /// A record of a stream, and the state of the session after it.
    pub(crate) fn record(&mut self, service: usize, epoch: u64, fh: u64, (record, capsule): (&[u8], &[u8])) {
        if !self.is_current(service, epoch) {
            return;
        }
        // It may have crossed with our Close.
        let Some(slot) = self.slot(fh) else { return };
        let Some(handle) = self.handle(slot).filter(|handle| handle.service() == Some(service)) else {
            return;
        };
        let stream = handle.session().and_then(Session::stream);
        if !stream.is_some_and(|stream| stream.came(record, capsule)) {
            return self.violated(service, &Violation::Credit);
        }
        self.counters.records += 1;
        self.aim_record(service, slot);
        self.settle(slot, None);
    }

    /// The backend has ended a stream.
    pub(crate) fn stream_ended(&mut self, service: usize, epoch: u64, fh: u64, errno: Option<Errno>) {
        if !self.is_current(service, epoch) {
            return;
        }
        let Some(slot) = self.slot(fh) else { return };
        let Some(handle) = self.handle(slot).filter(|handle| handle.service() == Some(service)) else {
            return;
        };
        handle.dirty = true;
        if let Some(stream) = handle.session().and_then(Session::stream) {
            stream.ended = Some(errno.map_or(0, Errno::raw_os_error));
        }
        self.settle(slot, None);
    }

    /// Takes a record that a program writes: `None` where it has to wait for those before it.
    pub(super) fn accept_record(&mut self, call: Call, slot: usize, data: &[u8]) -> Option<Ready> {
        let now = self.host.now();
        let handle = self.handle(slot)?;
        let session = handle.session()?;
        if let Some(errno) = session.stream().and_then(|stream| stream.refused.take()) {
            handle.dirty = true;
            return Some(Ready::error(call, Errno::from_raw_os_error(errno)));
        }
        if data.len() > wire::service::MAX_RECORD_BYTES {
            return Some(Ready::error(call, Errno::MSGSIZE));
        }
        if session.room() == 0 {
            return None;
        }
        session.ask(data.to_vec(), call.arrived, now.saturating_add(DOWN_WAIT_NS));
        handle.dirty = true;
        Some(Ready::ok(call, super::files::written(data.len())))
    }

    /// The backend has taken a record, or refused it.
    pub(super) fn record_taken(&mut self, slot: usize, tag: u64, refused: Option<Errno>) {
        let Some(handle) = self.handle(slot) else { return };
        handle.dirty = true;
        let Some(session) = handle.session() else { return };
        session.entries.retain(|entry| entry.progress != Progress::Sent(tag));
        if let (Some(errno), Some(stream)) = (refused, session.stream()) {
            stream.refused = Some(errno.raw_os_error());
        }
        self.settle(slot, None);
    }
}

/// Records that can't be delivered any more are told at the next write.
pub(super) fn note_failures(session: &mut Session) {
    if !matches!(session.flow, Flow::Stream(_)) {
        return;
    }
    let failed = session.entries.iter().find_map(|entry| match entry.progress {
        Progress::Failed(errno) => Some(errno),
        _ => None,
    });
    let Some(errno) = failed else { return };
    session.entries.retain(|entry| !matches!(entry.progress, Progress::Failed(_)));
    if let Some(stream) = session.stream() {
        stream.refused = Some(errno);
    }
}
