//! Questions to the core, in the form in which the kernel puts them, and what waits for their
//! answers.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use polyfuse_kernel as fuse;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::permission::Peer;
use crate::answers::{Answered, MARK};
use crate::shared::Shared;

/// One message of a client, while it is under way.
#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) number: u64,
    pub(super) tag: u16,
    /// Bytes of an answer that it may bring.
    pub(super) promised: usize,
    /// Bytes of its message, which is kept until its end.
    pub(super) held: usize,
    /// The client has given it up, or is gone.
    pub(super) interrupted: Cell<bool>,
    /// Tags of the `Tflush` that wait for its end.
    pub(super) flushes: RefCell<Vec<u16>>,
    /// The core's question that it waits for.
    asked: Cell<Option<u64>>,
}

impl Job {
    pub(super) fn new(number: u64, tag: u16, promised: usize, held: usize) -> Self {
        Self { number, tag, promised, held, ..Self::default() }
    }
}

type Place = Rc<RefCell<Option<Answered>>>;

/// All questions that are not answered yet.
pub(super) struct Questions {
    shared: Arc<Shared>,
    last: Cell<u64>,
    waiting: RefCell<HashMap<u64, (u64, Place)>>,
}

impl Questions {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, last: Cell::new(0), waiting: RefCell::default() }
    }

    fn send(&self, unique: u64, (opcode, node): (u32, u64), peer: Peer, parts: &[&[u8]]) {
        let head_bytes = size_of::<fuse::fuse_in_header>();
        let bytes = head_bytes + parts.iter().map(|part| part.len()).sum::<usize>();
        let head = fuse::fuse_in_header {
            len: bytes as u32,
            opcode,
            unique,
            nodeid: node,
            uid: peer.uid,
            gid: peer.gid,
            pid: peer.pid,
            padding: 0,
        };
        let mut request = Vec::with_capacity(bytes);
        request.extend_from_slice(head.as_bytes());
        parts.iter().for_each(|part| request.extend_from_slice(part));
        self.shared.with(|core| core.request(&request));
    }

    fn number(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get() | MARK
    }

    /// Asks, and comes back with the answer.
    pub(super) async fn ask(
        &self,
        job: &Job,
        what: (u32, u64),
        peer: Peer,
        parts: &[&[u8]],
    ) -> Result<Vec<u8>, Errno> {
        if job.interrupted.get() {
            return Err(Errno::INTR);
        }
        let unique = self.number();
        let place = Place::default();
        self.waiting.borrow_mut().insert(unique, (job.number, Rc::clone(&place)));
        job.asked.set(Some(unique));
        self.send(unique, what, peer, parts);
        let answered = std::future::poll_fn(|_| match place.borrow_mut().take() {
            Some(answered) => Poll::Ready(answered),
            None => Poll::Pending,
        });
        let answered = answered.await;
        job.asked.set(None);
        match answered.errno {
            0 => Ok(answered.bytes),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }

    /// Gives a job up: its question ends with `EINTR`, if it waits.
    pub(super) fn interrupt(&self, job: &Job, peer: Peer) {
        job.interrupted.set(true);
        if let Some(unique) = job.asked.get() {
            let interrupt = fuse::fuse_interrupt_in { unique };
            self.send(self.number(), (fuse::FUSE_INTERRUPT, 0), peer, &[interrupt.as_bytes()]);
        }
    }

    /// Closes an open file. Nobody waits for the answer.
    pub(super) fn release(&self, node: u64, fh: u64, peer: Peer) {
        let release = fuse::fuse_release_in { fh, ..Default::default() };
        self.send(self.number(), (fuse::FUSE_RELEASE, node), peer, &[release.as_bytes()]);
    }

    /// Puts an answer where its question waits for it; the number of the job that can go on.
    pub(super) fn answered(&self, answered: Answered) -> Option<u64> {
        let (job, place) = self.waiting.borrow_mut().remove(&answered.unique)?;
        *place.borrow_mut() = Some(answered);
        Some(job)
    }
}
