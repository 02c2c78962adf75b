//! One open file of a camera, and who waits for its frames.

use std::collections::VecDeque;

use rustix::io::Errno;
use session::{Context, LinkId, ReplyTo};
use v4l2::{Answer, Areas, Call, Device, Refusal, Session};
use wire::service::ready;

/// Calls of one open file that may wait for a frame: a program has one, or one for each of its
/// threads.
const WAITING_MAX: usize = 64;

/// A call that waits for a frame.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// `DQBUF`, with what it brought.
    Dequeue(ReplyTo, Vec<u8>),
    /// read(2) of so many bytes.
    Read(ReplyTo, u32),
}

impl Waiting {
    pub(crate) fn to(&self) -> ReplyTo {
        match self {
            Self::Dequeue(to, _) | Self::Read(to, _) => *to,
        }
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Open {
    /// The camera's index.
    pub(crate) camera: usize,
    pub(crate) session: Session,
    /// Whether calls fail with `EAGAIN` where they would wait.
    pub(crate) nonblock: bool,
    pub(crate) waiting: VecDeque<Waiting>,
    /// The bits of poll(2) that the consumer was told last.
    told: u32,
}

impl Open {
    pub(crate) fn new(camera: usize, session: Session, nonblock: bool) -> Self {
        Self { camera, session, nonblock, waiting: VecDeque::new(), told: 0 }
    }

    /// Bytes that its frames take in a second.
    pub(crate) fn bytes_per_second(&self) -> u64 {
        let interval = self.session.interval();
        let bytes = u64::from(self.session.picture().bytes()) * u64::from(interval.denominator);
        bytes.checked_div(u64::from(interval.numerator)).unwrap_or(u64::MAX)
    }

    /// Keeps a call until there is a frame, or refuses it.
    pub(crate) fn wait(&mut self, ctx: &mut dyn Context, call: Waiting) {
        let refused = match self.nonblock {
            true => Some(Refusal::NotYet.errno()),
            false if self.waiting.len() >= WAITING_MAX => Some(Errno::AGAIN.raw_os_error()),
            false => None,
        };
        match refused {
            Some(errno) => ctx.answer(call.to(), Err(Errno::from_raw_os_error(errno)), &[]),
            None => self.waiting.push_back(call),
        }
    }

    /// Does an ioctl. `None`: it is answered when there is a frame.
    pub(crate) fn ioctl(
        &mut self,
        (number, data): (u32, &[u8]),
        device: &Device,
        areas: Option<&mut Areas>,
        now_ns: u64,
    ) -> Option<Result<Vec<u8>, Errno>> {
        match self.session.ioctl(Call { number, data, now_ns }, device, areas) {
            Ok(Answer::Done(bytes)) => Some(Ok(bytes)),
            Ok(Answer::Later) => None,
            Err(refusal) => Some(Err(Errno::from_raw_os_error(refusal.errno()))),
        }
    }

    /// Gives the state to the consumer, before the answer after which it counts.
    pub(crate) fn seal(&self, ctx: &mut dyn Context, to: ReplyTo) {
        ctx.capsule(to.link, to.session, &self.session.capsule());
    }

    /// Tells what poll(2) says, if that has changed.
    pub(crate) fn tell(&mut self, ctx: &mut dyn Context, link: LinkId, session: u64) {
        let bits = if self.session.is_readable() { ready::READ } else { 0 };
        if bits != self.told {
            self.told = bits;
            ctx.ready(link, session, bits);
        }
    }

    /// Ends all calls that wait.
    pub(crate) fn fail_waiting(&mut self, ctx: &mut dyn Context, errno: Errno) {
        for call in self.waiting.drain(..) {
            ctx.answer(call.to(), Err(errno), &[]);
        }
    }
}
