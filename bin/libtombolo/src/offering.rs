//! Offers: from where channels come, one for each opener.

use crate::failure::{self, failure, would_wait};
use crate::naming::Name;
use crate::polling::{PollSet, deadline_of, poll_until};
use channel::meeting::{self, Absent, Admission};
use channel::{Config, End, HugePages, Mode};
use rustix::io::Errno;
use session::{Control, ControlError};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::channel_abi::{Failure, Options, Outcome, Patience};
use sys::eventfd::Eventfd;
use sys::fork::Origin;

/// How long an offerer, or the node's daemon, may take for its answer where the caller says nothing
/// about waiting.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// An end, and who is at the other one.
pub type Met = (End, String);

/// An offer in use.
#[derive(Debug)]
pub struct Offering {
    source: Source,
    /// Readable when another thread closes the offer.
    lifeline: Arc<Eventfd>,
    poll: Option<PollSet>,
    /// The options of its channels.
    options: Options,
    /// The process that offers.
    origin: Origin,
}

/// Ends the waits for an offer's openers. In a fork's child it does nothing: the event is the
/// parent's, too.
#[derive(Debug)]
pub struct Ender {
    lifeline: Arc<Eventfd>,
    origin: Origin,
}

impl Ender {
    pub fn end(&self) {
        if self.origin.is_here() {
            self.lifeline.signal();
        }
    }
}

#[derive(Debug)]
enum Source {
    Path(meeting::Offer),
    Service(Box<session::Offer>),
}

/// The configuration of a channel that this side makes, from its options.
pub fn config_of(options: &Options) -> Config {
    let mut config = Config { mode: mode_of(options), ..Config::default() };
    if options.ring_bytes != 0 {
        config.ring_bytes = options.ring_bytes;
    }
    if options.has(Options::HUGE_PAGES) {
        config.huge_pages = HugePages::IfFree;
    }
    config
}

/// The mode that the options want.
pub fn mode_of(options: &Options) -> Mode {
    if options.has(Options::STREAM) { Mode::Stream } else { Mode::Messages }
}

fn admission_of(options: &Options) -> Admission {
    if options.has(Options::ANY_USER) { Admission::AnyUser } else { Admission::SameUser }
}

fn who(peer: &meeting::Credentials) -> String {
    format!("uid {} pid {}", peer.uid, peer.pid)
}

impl Offering {
    pub fn new(name: Name<'_>, options: &Options) -> Outcome<Self> {
        let source = match name {
            Name::Path(path) => {
                let config = config_of(options);
                // Refused here, and not to the first opener.
                if !wire::ring::is_ring_bytes(u64::from(config.ring_bytes)) {
                    let error = channel::CreateError::RingBytes { ring_bytes: config.ring_bytes };
                    return Err(failure::creating(&error));
                }
                let offer = meeting::Offer::new(path, config, admission_of(options));
                Source::Path(offer.map_err(|error| failure::offering(&error))?)
            }
            Name::Service(service) => {
                let path = Control::path();
                check_daemon(&path, options)?;
                let offer = session::Offer::at(&path, service, answer_by(options));
                Source::Service(Box::new(offer.map_err(|error| daemon_refused(&error, Errno::ADDRINUSE))?))
            }
        };
        let lifeline =
            Eventfd::new().map_err(|error| failure::system("make the event of an offer", &error))?;
        let origin = Origin::here().map_err(|error| failure::system("remember who offers", &error))?;
        Ok(Self { source, lifeline: Arc::new(lifeline), poll: None, options: *options, origin })
    }

    /// Returns a handle that wakes waiters for openers when the offering is closed.
    pub fn ender(&self) -> Ender {
        Ender { lifeline: Arc::clone(&self.lifeline), origin: self.origin }
    }

    /// Whether this process offers, and not a parent of it.
    pub fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// The options of its channels.
    pub fn options(&self) -> Options {
        self.options
    }

    pub fn accept(&mut self, patience: Patience) -> Outcome<Met> {
        let deadline = deadline_of(patience);
        loop {
            if let Some(met) = self.try_accept()? {
                return Ok(met);
            }
            if let Some(poll) = &mut self.poll {
                poll.lower();
            }
            if patience == Patience::Never {
                return Err(would_wait("opener"));
            }
            if !self.sleep(deadline)? {
                return Err(failure::timed_out("opener"));
            }
            if self.is_closed() {
                return Err(failure(Errno::BADF, "this offer was closed by another thread"));
            }
        }
    }

    fn try_accept(&mut self) -> Outcome<Option<Met>> {
        match &mut self.source {
            Source::Path(offer) => {
                let met = offer.try_accept().map_err(|error| failure::accepting(&error))?;
                Ok(met.map(|(end, peer)| (end, who(&peer))))
            }
            Source::Service(offer) => {
                let met = offer.try_accept().map_err(|error| daemon_refused(&error, Errno::BUSY))?;
                Ok(met.map(|(end, peer)| (end, format!("domain {}/{}", peer.dc, peer.domain))))
            }
        }
    }

    /// Waits for an opener, or the end of the offer; false: the time was over. Signals do not end
    /// it.
    fn sleep(&self, deadline: Option<Instant>) -> Outcome<bool> {
        loop {
            match poll_until(&[self.source(), self.lifeline.as_fd()], deadline) {
                Err(failure) if failure.errno == Errno::INTR.raw_os_error() => {}
                slept => return slept,
            }
        }
    }

    pub fn wait(&mut self, patience: Patience) -> Outcome<bool> {
        poll_until(&[self.source(), self.lifeline.as_fd()], deadline_of(patience))
    }

    pub fn poll_descriptor(&mut self) -> Outcome<RawFd> {
        if let Some(poll) = &self.poll {
            return Ok(poll.descriptor());
        }
        let poll = PollSet::new(&[self.source(), self.lifeline.as_fd()])?;
        Ok(self.poll.insert(poll).descriptor())
    }

    fn source(&self) -> BorrowedFd<'_> {
        match &self.source {
            Source::Path(offer) => offer.as_fd(),
            Source::Service(offer) => offer.as_fd(),
        }
    }

    fn is_closed(&self) -> bool {
        // Drained or not, the one that closes it takes it apart next.
        self.lifeline.drain()
    }
}

/// Opens what is offered under a name.
pub fn open(name: Name<'_>, options: &Options) -> Outcome<Met> {
    match name {
        Name::Path(path) => {
            let absent = if options.wait_ns == 0 { Absent::Fail } else { Absent::Wait };
            let deadline = if options.wait_ns == 0 { Some(answer_by(options)) } else { wait_until(options) };
            let met = meeting::open(path, admission_of(options), absent, deadline);
            let (end, peer) = met.map_err(|error| failure::meeting(&error))?;
            Ok((end, who(&peer)))
        }
        Name::Service(service) => {
            let path = Control::path();
            check_daemon(&path, options)?;
            let deadline = if options.wait_ns == 0 { Some(Instant::now()) } else { wait_until(options) };
            let end = session::open_channel_at(&path, service, deadline);
            Ok((end.map_err(|error| daemon_refused(&error, Errno::BUSY))?, format!("service {service}")))
        }
    }
}

/// Until when to wait for an offerer; `None`: for ever.
fn wait_until(options: &Options) -> Option<Instant> {
    let wait = Duration::from_nanos(u64::try_from(options.wait_ns).ok()?);
    Instant::now().checked_add(wait)
}

fn answer_by(options: &Options) -> Instant {
    let now = Instant::now();
    wait_until(options).unwrap_or(now).max(now + ANSWER_TIMEOUT)
}

/// Where nobody wants to wait, a daemon that is not there is an error at once, and one that says
/// what to do.
fn check_daemon(path: &std::path::Path, options: &Options) -> Outcome<()> {
    if options.wait_ns != 0 || path.exists() {
        return Ok(());
    }
    let text = format!(
        "there is no control socket at {}: a name without a '/' is a service of a domain, so run this inside of one (`tombolo up`), \
         or use a path",
        path.display()
    );
    Err(failure(Errno::CONNREFUSED, text))
}

/// Makes a failure of the daemon's refusal; `taken` is its errno for a thing that another program
/// has.
pub fn daemon_refused(error: &ControlError, taken: Errno) -> Failure {
    let errno = match error {
        ControlError::Refused { errno, .. } if *errno == Errno::BUSY.raw_os_error() => Some(taken),
        ControlError::Refused { errno, .. } if *errno == Errno::PERM.raw_os_error() => Some(Errno::ACCESS),
        ControlError::Refused { errno, .. } if *errno > 0 => Some(Errno::from_raw_os_error(*errno)),
        ControlError::Connect { .. } => Some(Errno::CONNREFUSED),
        ControlError::Deadline => Some(Errno::TIMEDOUT),
        ControlError::Withdrawn(_) => Some(Errno::ACCESS),
        error if error.is_gone() => Some(Errno::CONNREFUSED),
        _ => None,
    };
    failure::of(errno, error)
}
