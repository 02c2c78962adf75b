//! The interface that a service implements, and the calls that it may make to the loop that runs
//! it.

use rustix::io::Errno;
use serde_json::Value;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;
use wire::control::Consumer;
use wire::service::{Export, Kind, OpenInfo, Phase};

/// One consumer's channel. Never used again after the consumer is gone, so that a late answer
/// reaches nobody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// The request that an answer is for. A service keeps it for as long as the answer takes; an answer
/// to a request that was cancelled, or whose consumer is gone, is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReplyTo {
    /// The link of the request.
    pub link: LinkId,
    /// In which session; [`wire::service::SESSION_NONE`] for the domain's defaults.
    pub session: u64,
    /// The consumer's number for it, unique among the outstanding ones of the link.
    pub tag: u64,
    /// The index of the file of the export; for `control` the number of the `ioctl`.
    pub file: u32,
    /// Whether the consumer asked for the phases.
    pub traced: bool,
    /// When the loop took the request out of the ring: the start of the `queue` phase.
    pub received: Instant,
}

/// The readiness of a watched descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Readiness {
    /// Reading will not wait.
    pub readable: bool,
    /// Writing will not wait.
    pub writable: bool,
    /// There is an error or a hang-up to fetch.
    pub error: bool,
}

/// The events of a descriptor that a service waits for. Level-triggered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Interest {
    /// When reading will not wait.
    Read,
    /// When writing will not wait.
    Write,
    /// Both.
    Both,
}

/// The loop, as a service sees it during a call. Tests of a service implement it themselves.
pub trait Context {
    /// The time of this round. Services take time from here, so that tests can say what it is.
    fn now(&self) -> Instant;

    /// Answers a request: bytes of any length (they are sent in pieces), or an errno. `phases` are
    /// sent if the request is [`ReplyTo::traced`]. Never waits: what the consumer's ring has no
    /// room for is queued, and a consumer that lets the queue overflow is detached.
    fn answer(&mut self, to: ReplyTo, answer: Result<&[u8], Errno>, phases: &[Phase]);

    /// Gives the consumer the state of a session ([`wire::service::MAX_CAPSULE_BYTES`] at most) to
    /// keep for the next backend; it comes back in [`OpenInfo::capsule`]. That of
    /// [`wire::service::SESSION_NONE`], the domain's defaults, comes back by [`Service::restore`];
    /// an empty one is forgotten.
    fn capsule(&mut self, link: LinkId, session: u64, capsule: &[u8]);

    /// Sends one record of a stream, and the state of the session after it (empty: none is kept).
    /// Answers whether the reader's credit was enough, and whether its channel had room; if not,
    /// nothing was sent: [`Service::credit`] tells when there is more, and [`Service::room`] when
    /// there is room.
    fn record(&mut self, link: LinkId, session: u64, record: &[u8], capsule: &[u8]) -> bool {
        let _ = (link, session, record, capsule);
        false
    }

    /// Returns the credit that is left of a stream's reader, in bytes with the overhead of each
    /// record.
    fn credit_left(&self, link: LinkId, session: u64) -> u64 {
        let _ = (link, session);
        0
    }

    /// Says what poll(2) says of an open device from now on, in bits of [`wire::service::ready`].
    /// Said once, it holds until something else is.
    fn ready(&mut self, link: LinkId, session: u64, ready: u32) {
        let _ = (link, session, ready);
    }

    /// The memory that the consumer's domain has with the service, if it has some: a memfd that
    /// keeps its size, and that files of [`wire::service::Behaviour::Device`] are mapped to. All
    /// channels of a frontend of one incarnation of the domain, and of its successors, have the
    /// same one.
    fn memory(&self, link: LinkId) -> Option<BorrowedFd<'_>> {
        let _ = link;
        None
    }

    /// Ends a stream: nothing more is read of it, or this errno.
    fn end(&mut self, link: LinkId, session: u64, errno: Option<Errno>) {
        let _ = (link, session, errno);
    }

    /// Throws a consumer out; `reason` goes to the log. [`Service::detach`] follows after the
    /// current call.
    fn detach(&mut self, link: LinkId, reason: &str);

    /// Watches a descriptor: [`Service::ready`] is called with `token`. The descriptor stays the
    /// service's, which calls [`Context::unwatch`] before it closes it.
    ///
    /// # Errors
    /// The error of `epoll_ctl`.
    fn watch(&mut self, descriptor: BorrowedFd<'_>, token: u32, interest: Interest) -> io::Result<()>;

    /// Changes what is wanted of a watched descriptor.
    ///
    /// # Errors
    /// The error of `epoll_ctl`.
    fn rewatch(&mut self, descriptor: BorrowedFd<'_>, token: u32, interest: Interest) -> io::Result<()>;

    /// Ends a watch. An event that was already fetched may still come.
    ///
    /// # Errors
    /// The error of `epoll_ctl`.
    fn unwatch(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()>;
}

/// A service: it decides, and the loop ([`crate::serve`]) waits. All calls come from one thread,
/// none may block.
///
/// Each call of [`open`](Service::open), [`restore`](Service::restore),
/// [`request`](Service::request) and [`control`](Service::control) is answered once, by
/// [`Context::answer`], now or later. The loop has checked the framing: sessions are open, tags are
/// unique, files exist and the consumer holds the verb of the file.
pub trait Service {
    /// Its files. Sent to each consumer.
    fn export(&self) -> Export;

    /// Called once, before everything else that has a context: the place to watch descriptors of
    /// one's own.
    fn start(&mut self, ctx: &mut dyn Context) {
        let _ = ctx;
    }

    /// A new consumer, as the daemon describes it.
    fn attach(&mut self, ctx: &mut dyn Context, link: LinkId, consumer: &Consumer);

    /// A consumer is gone: forget its sessions and requests. Nothing sent to it arrives any more.
    fn detach(&mut self, ctx: &mut dyn Context, link: LinkId);

    /// A consumer opens session `to.session` on `to.file`. If the answer is an errno, the session
    /// is not open. A session that an earlier backend had comes with its capsule, which came
    /// through the consumer: distrust it.
    fn open(&mut self, ctx: &mut dyn Context, to: ReplyTo, info: &OpenInfo);

    /// A consumer hands back the last capsule of [`wire::service::SESSION_NONE`], before it opens
    /// its sessions again. It came through the consumer, and another consumer of the domain may
    /// have been faster: distrust it. Answered like an opening. A service that never seals that
    /// session has nothing to restore.
    fn restore(&mut self, ctx: &mut dyn Context, to: ReplyTo, capsule: &[u8]) {
        let _ = capsule;
        ctx.answer(to, Err(Errno::OPNOTSUPP), &[]);
    }

    /// A request in an open session or in [`wire::service::SESSION_NONE`].
    fn request(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]);

    /// An `ioctl`; `to.file` is its number, `payload` its data.
    fn control(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]);

    /// A request about the tree, about bytes at an offset or about locks on them ([`Kind::Lookup`]
    /// to [`Kind::Sync`], [`Kind::Follow`] to [`Kind::TestLock`]); `to.file` is the folder or the
    /// node, the payload is what `wire::service` decodes for `kind`. Answered like a request. The
    /// loop has checked that the consumer holds the verb of the exported folder, and for changes
    /// that of changing it.
    fn tree(&mut self, ctx: &mut dyn Context, to: ReplyTo, kind: Kind, payload: &[u8]) {
        let _ = (kind, payload);
        ctx.answer(to, Err(Errno::OPNOTSUPP), &[]);
    }

    /// The reader of a stream takes more: [`Context::record`] may succeed now.
    fn credit(&mut self, ctx: &mut dyn Context, link: LinkId, session: u64) {
        let _ = (ctx, link, session);
    }

    /// The channel of a consumer has room again, after [`Context::record`] found none.
    fn room(&mut self, ctx: &mut dyn Context, link: LinkId) {
        let _ = (ctx, link);
    }

    /// Nobody waits for this request any more; an answer to it would be dropped.
    fn cancel(&mut self, ctx: &mut dyn Context, link: LinkId, tag: u64);

    /// Whoever asked for the lock of this tag ([`Kind::Lock`]) waits no more: it is answered with
    /// `EINTR`, now, unless it was answered already.
    fn interrupt(&mut self, ctx: &mut dyn Context, link: LinkId, tag: u64) {
        let _ = (ctx, link, tag);
    }

    /// A session is over; [`cancel`](Service::cancel) was called for each of its outstanding
    /// requests.
    fn close(&mut self, ctx: &mut dyn Context, link: LinkId, session: u64);

    /// The admitted settings changed.
    ///
    /// # Errors
    /// Why they can't be used, for the log; the service goes on with the old ones.
    fn settings(&mut self, ctx: &mut dyn Context, settings: &Value) -> Result<(), String>;

    /// Handles a change of the verbs of a link's domain. The loop checks the files' verbs by
    /// itself.
    fn verbs(&mut self, ctx: &mut dyn Context, link: LinkId, verbs: &[String]) {
        let _ = (ctx, link, verbs);
    }

    /// A watched descriptor is ready.
    fn ready(&mut self, ctx: &mut dyn Context, token: u32, readiness: Readiness);

    /// When [`expired`](Service::expired) shall be called; asked after each round of calls.
    fn deadline(&self) -> Option<Instant>;

    /// The deadline is over.
    fn expired(&mut self, ctx: &mut dyn Context);

    /// Why it can't go on: the server ends, and whoever started it decides what next.
    fn over(&self) -> Option<&str> {
        None
    }

    /// Counters and histograms for the state tree of the node.
    fn state(&self) -> Value;

    /// The part of [`state`](Service::state) that the consumer of `link` may see: what concerns its
    /// own domain.
    fn state_for(&self, link: LinkId) -> Value;
}
