//! One call of a consumer, as a service's function sees it.

use crate::id::SessionId;
use crate::wake::{Handle, Later, Wake};
use rustix::io::Errno;
use session::{Context, ReplyTo};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use wire::control::Consumer;

/// The caller. Container, domain and verbs are the daemon's word; the rest is as good as the
/// domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The distributed container.
    pub dc: String,
    /// The domain.
    pub domain: String,
    /// The verbs that the caller may use here.
    pub verbs: Vec<String>,
    /// The entrance: `device` for files.
    pub entrance: String,
    /// User, group and process, as the domain's frontend says; none for texts and controls.
    pub process: Option<Process>,
}

/// The process that opened a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its number in the domain, or 0.
    pub pid: u32,
}

impl Caller {
    pub(crate) fn of(consumer: &Consumer, process: Option<Process>) -> Self {
        Self {
            dc: consumer.dc.clone(),
            domain: consumer.domain.clone(),
            verbs: consumer.verbs.clone(),
            entrance: consumer.entrance.clone(),
            process,
        }
    }

    /// Whether the topology file gives it this verb.
    #[must_use]
    pub fn may(&self, verb: &str) -> bool {
        self.verbs.iter().any(|one| one == verb)
    }
}

/// A function's answer: bytes, or the promise of a [`Later`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply(pub(crate) Option<Vec<u8>>);

impl From<Vec<u8>> for Reply {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Some(bytes))
    }
}

impl From<String> for Reply {
    fn from(text: String) -> Self {
        Self(Some(text.into_bytes()))
    }
}

impl From<&str> for Reply {
    fn from(text: &str) -> Self {
        Self(Some(text.as_bytes().to_vec()))
    }
}

impl From<&[u8]> for Reply {
    fn from(bytes: &[u8]) -> Self {
        Self(Some(bytes.to_vec()))
    }
}

impl From<()> for Reply {
    fn from((): ()) -> Self {
        Self(Some(Vec::new()))
    }
}

/// A call while its function runs.
pub struct Call<'c> {
    pub(crate) ctx: &'c mut dyn Context,
    pub(crate) wake: &'c Arc<Wake>,
    pub(crate) caller: &'c Caller,
    pub(crate) id: SessionId,
    pub(crate) flags: u32,
    pub(crate) capsule: &'c [u8],
    /// The request that can be answered later, the most bytes of its answer, and whether it will
    /// be.
    pub(crate) asked: Option<(ReplyTo, usize)>,
    pub(crate) over: Option<Arc<AtomicBool>>,
}

impl Call<'_> {
    /// Returns the caller.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        self.caller
    }

    /// Returns the session of the open file. Texts and controls are asked in one for each domain's
    /// channel.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.id
    }

    /// Flags of open(2).
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// When a session is opened: what [`Call::keep`] was given last, by an earlier server of it;
    /// empty in a new session. It has been in the consumer's hands: check it as you check a
    /// request.
    #[must_use]
    pub fn capsule(&self) -> &[u8] {
        self.capsule
    }

    /// Keeps the state of this session for the next server of it.
    ///
    /// # Errors
    /// `EMSGSIZE` where there are more than [`wire::service::MAX_CAPSULE_BYTES`].
    pub fn keep(&mut self, capsule: &[u8]) -> Result<(), Errno> {
        if capsule.len() > wire::service::MAX_CAPSULE_BYTES {
            return Err(Errno::MSGSIZE);
        }
        self.ctx.capsule(self.id.link, self.id.session, capsule);
        Ok(())
    }

    /// Says what poll(2) says of this open device from now on, in bits of [`wire::service::ready`].
    pub fn ready(&mut self, bits: u32) {
        self.ctx.ready(self.id.link, self.id.session, bits);
    }

    /// The memory that the caller's domain has with the service, if the topology file gives it
    /// some.
    #[must_use]
    pub fn memory(&self) -> Option<BorrowedFd<'_>> {
        self.ctx.memory(self.id.link)
    }

    /// Speaks to the service from other threads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(self.wake))
    }

    /// Answers this call later: return the reply, and give the other to who will have the answer.
    ///
    /// # Errors
    /// `EINVAL` in a function whose answer can't come later: an opening, a closing, and what
    /// changes a folder.
    pub fn later(&mut self) -> Result<(Reply, Later), Errno> {
        let (to, most_bytes) = self.asked.take().ok_or(Errno::INVAL)?;
        let over = Arc::new(AtomicBool::new(false));
        self.over = Some(Arc::clone(&over));
        Ok((Reply(None), Later { wake: Arc::clone(self.wake), to, over, most_bytes, answered: false }))
    }
}
