//! Calls that wait: none of them holds a thread.

use rustix::io::Errno;

use super::locks::LockAsk;
use super::nodes::NodeAsk;
use super::{Call, Core, PARKED_BYTES_MAX, PARKED_MAX, Ready};
use crate::handle::Body;
use crate::host::Host;

/// The overhead of a line in a vector of its own, beside its bytes.
const LINE_OVERHEAD_BYTES: usize = 32;

/// The operation of a parked call.
#[derive(Debug)]
pub(super) enum Op {
    Open,
    Read {
        size: usize,
    },
    Write {
        data: Vec<u8>,
    },
    /// A record that is written, and whose answer the write waits for.
    Record {
        data: Vec<u8>,
    },
    /// A write to a `Control` file: its lines, and the next to be done.
    Command {
        lines: Vec<Vec<u8>>,
        next: usize,
        size: usize,
    },
    /// A read of a text that is not there yet.
    Text {
        offset: u64,
        size: usize,
    },
    Ioctl {
        number: u32,
        data: Vec<u8>,
        out_size: usize,
    },
    ReadAt {
        offset: u64,
        size: usize,
    },
    /// A write at an offset, and how much of it is done.
    WriteAt {
        offset: u64,
        data: Vec<u8>,
        done: usize,
    },
    Sync,
    /// A lock at a backend.
    Lock(LockAsk),
    /// A lock that is granted here, and not yet.
    LockHere,
    /// A call about a name or a node that only a backend knows.
    Node(Box<NodeAsk>),
    /// An open of `about.json`.
    About,
    /// A look into a service that has not said yet what it exports: the request itself, to be taken
    /// again.
    Again {
        request: Vec<u8>,
    },
}

impl Op {
    /// Bytes of the caller's that it keeps, and about what keeping them in pieces costs.
    fn bytes(&self) -> usize {
        match self {
            Op::Write { data } | Op::Record { data } | Op::Ioctl { data, .. } | Op::WriteAt { data, .. } => {
                data.len()
            }
            Op::Node(ask) => ask.payload.len(),
            Op::Command { lines, .. } => lines.iter().map(|line| line.len() + LINE_OVERHEAD_BYTES).sum(),
            Op::Again { request } => request.len(),
            Op::Open | Op::Read { .. } | Op::ReadAt { .. } | Op::Text { .. } => 0,
            Op::Sync | Op::Lock(_) | Op::LockHere | Op::About => 0,
        }
    }
}

/// A call that is not answered yet.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) call: Call,
    /// Its handle; none for names.
    pub(super) slot: Option<usize>,
    pub(super) op: Op,
    /// The tag by which the backend knows the call.
    pub(super) tag: Option<u64>,
    /// Until when it waits for a backend (or for the daemon), in ns.
    pub(super) deadline: u64,
    /// The call's share in the sum of the bytes that parked calls keep.
    bytes: usize,
}

impl<H: Host> Core<H> {
    /// Keeps a call for later. Where too many wait already, or would keep too much, it fails with
    /// `EAGAIN`.
    pub(super) fn park(&mut self, call: Call, slot: Option<usize>, op: Op, deadline: u64) -> bool {
        let bytes = op.bytes();
        if self.parked.len() >= PARKED_MAX || self.parked_bytes + bytes > PARKED_BYTES_MAX {
            self.refuse(call, Errno::AGAIN);
            return false;
        }
        self.ticking |= matches!(op, Op::About | Op::Again { .. } | Op::Node(_));
        self.parked_bytes += bytes;
        self.parked.insert(call.key(), Parked { call, slot, op, tag: None, deadline, bytes });
        self.counters.parked_most = self.counters.parked_most.max(self.parked.len() as u64);
        self.note_parked();
        true
    }

    /// Takes a parked call out.
    pub(super) fn unpark(&mut self, key: u64) -> Option<Parked> {
        let parked = self.drop_parked(key)?;
        if let Some(handle) = parked.slot.and_then(|slot| self.handle(slot)) {
            handle.calls.retain(|&other| other != key);
            match &mut handle.body {
                Body::Session(session) => {
                    session.readers.retain(|&other| other != key);
                    session.writers.retain(|&other| other != key);
                }
                Body::Text(text, _) => text.waiting.retain(|&other| other != key),
                Body::Own(_) => {}
            }
        }
        self.note_parked();
        Some(parked)
    }

    /// Takes a parked call out whose handle is no more, or knows already.
    pub(super) fn drop_parked(&mut self, key: u64) -> Option<Parked> {
        let parked = self.parked.remove(&key)?;
        self.parked_bytes = self.parked_bytes.saturating_sub(parked.bytes);
        Some(parked)
    }

    /// A kernel that sends nothing again leaves it to us to remember what a successor has to fail.
    fn note_parked(&mut self) {
        if self.agreed.is_some_and(|agreed| !agreed.resend) {
            self.save_facts();
        }
    }

    /// `FUSE_INTERRUPT`: the caller has a signal. A call that was answered already is nobody's
    /// business.
    pub(super) fn interrupt(&mut self, key: u64) {
        self.counters.interrupts += 1;
        if self.interrupt_lock(key) {
            return;
        }
        let Some(parked) = self.unpark(key) else { return };
        self.fail(parked, Errno::INTR);
    }

    /// Ends a call that was taken out of the parked ones with an error.
    pub(super) fn fail(&mut self, parked: Parked, errno: Errno) {
        if let Some(tag) = parked.tag {
            self.cancel(tag);
        }
        match parked.op {
            Op::LockHere => self.cancel_lock(parked.call.key()),
            Op::Lock(ask) if ask.closes => return self.answer(parked.call, &[]),
            _ => {}
        }
        let Some(slot) = parked.slot else { return self.refuse(parked.call, errno) };
        if matches!(parked.op, Op::Open | Op::About) || self.is_unopened(slot) {
            self.refuse(parked.call, errno);
            return self.discard(slot);
        }
        if let Some(handle) = self.handle(slot) {
            handle.ended(parked.call.key());
        }
        self.settle(slot, Some(Ready::error(parked.call, errno)));
    }

    fn is_unopened(&mut self, slot: usize) -> bool {
        self.handle(slot).is_some_and(|handle| !handle.opened)
    }
}
