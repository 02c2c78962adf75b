//! Where the server of a service is: channels come from the relays of the domains that mount it,
//! and connections go to the server.

use crate::counts::{Connected, Counts, Served as ServedCounts};
use crate::local::Local;
use crate::proxy_header;
use crate::pump::{Ends, Over, Pump};
use channel::End;
use mux::{Rate, Side};
use rustix::io::Errno;
use session::{ControlError, Offer};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::control::Consumer;
use wire::socket::{Mounted, Order, Place, Served};

/// How long an offer that was refused is not made again: the topology is about to change, or
/// another program of the domain offers it.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// How long the daemon may take; it is waited for again after that.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A service of this domain.
pub(crate) struct Serve {
    pub(crate) served: Served,
    pub(crate) dc: String,
    pub(crate) counts: Arc<ServedCounts>,
    /// The Unix sockets at which this relay listens itself, where the server must not be.
    pub(crate) own: Arc<[String]>,
}

impl Serve {
    /// Offers the service for as long as the process lives.
    pub(crate) fn run(self) {
        let name = self.served.service.as_str();
        loop {
            let why = match self.offer() {
                Ok(never) => match never {},
                Err(error) => error,
            };
            tracing::info!(service = name, error = crate::said(&why), "the service can't be offered now");
            // tidy(sleep): nothing tells when the offer would be accepted.
            std::thread::sleep(REFUSED_PAUSE);
        }
    }

    fn offer(&self) -> Result<std::convert::Infallible, ControlError> {
        let name = self.served.service.as_str();
        let mut offer = Offer::at(crate::control_socket(), name, Instant::now() + TIMEOUT)?;
        loop {
            let (end, consumer) = offer.accept(None)?;
            self.attend(end, consumer);
        }
    }

    /// Serves one channel on a thread of its own.
    fn attend(&self, end: End, consumer: Consumer) {
        let counts = self.counts.of(&consumer.domain);
        let client = (self.dc.clone(), consumer.domain.clone());
        let mut server =
            Server::new(self.served.clone(), client, Arc::clone(&self.counts), Arc::clone(&counts));
        server.own = Arc::clone(&self.own);
        let (service, domain) = (self.served.service.clone(), consumer.domain);
        let work = move || {
            let over = match Pump::new(end, server, None, counts) {
                Ok(pump) => pump.run(),
                Err(over) => over,
            };
            match over {
                Over::Gone => tracing::debug!(service, domain, "the domain's relay is gone"),
                over => tracing::warn!(service, domain, "its channel is closed: {over}"),
            }
        };
        if let Err(why) = crate::spawn("served", work) {
            tracing::warn!(service = self.served.service, why, "a domain's channel is not served");
        }
    }
}

/// The server, as one domain reaches it, or whoever comes to one address of the node.
pub(crate) struct Server {
    served: Served,
    dc: String,
    domain: String,
    rate: Option<Rate>,
    since: Instant,
    /// See [`Serve::own`].
    own: Arc<[String]>,
    /// Whether it was said already that it leads to this relay.
    warned: bool,
    all: Arc<ServedCounts>,
    counts: Arc<Counts>,
}

impl Server {
    /// `client`: who connects, as a header of the PROXY protocol says it.
    pub(crate) fn new(
        served: Served,
        (dc, domain): (String, String),
        all: Arc<ServedCounts>,
        counts: Arc<Counts>,
    ) -> Self {
        // A domain's own relay keeps to the rate with a smaller burst, so that it is never refused
        // for jitter.
        let per_second = served.limits.connections_per_second;
        let rate = per_second.map(|per_second| Rate::new(per_second, per_second.saturating_mul(2)));
        Self {
            served,
            dc,
            domain,
            rate,
            since: Instant::now(),
            own: Arc::default(),
            warned: false,
            all,
            counts,
        }
    }

    /// Connects to the server. `ELOOP`: a link leads to a place at which this relay listens itself.
    fn reach(&mut self) -> Result<Local, Errno> {
        if !leads_to_one_of(&self.served.to, &self.own) {
            return Local::connect(&self.served.to);
        }
        if !std::mem::replace(&mut self.warned, true) {
            let (service, to) = (&self.served.service, &self.served.to);
            tracing::warn!(service, %to, "`to` leads by a link to a socket that this domain mounts, perhaps in a circle: write the place itself");
        }
        Err(Errno::LOOP)
    }
}

impl Ends for Server {
    const SIDE: Side = Side::Server;

    fn connect(&mut self, port: u16) -> Result<(Local, Vec<u8>, Connected), Errno> {
        let limits = &self.served.limits;
        let now = self.since.elapsed();
        if !self.all.has_room(&self.counts, limits)
            || self.rate.as_mut().is_some_and(|rate| rate.take(now).is_err())
        {
            return Err(Errno::USERS);
        }
        let local = self.reach()?;
        let front = if self.served.proxy {
            proxy_header::header(&self.dc, &self.domain, port, &self.served.to)
        } else {
            Vec::new()
        };
        Ok((local, front, self.counts.connected(Some(&self.all.total))))
    }

    fn accept(&mut self, _open: usize) -> Result<(Local, Connected), Option<Duration>> {
        Err(None)
    }

    fn knocked(&mut self) {}
}

/// Where the server of a service must not be: at the Unix sockets of its domain's other mounts, by
/// whatever link. Admission compares places as they are written, so that every circle that it does
/// not see has such a link in it; the very place of a mount it has judged.
pub(crate) fn own_places(order: &Order, to: &Place) -> Arc<[String]> {
    let unix = |mounted: &Mounted| match &mounted.at {
        Place::Unix(path) => Some(path.clone()),
        Place::Tcp(_) => None,
    };
    let judged = order.mounts.iter().any(|mounted| mounted.at == *to);
    order.mounts.iter().filter(|_| !judged).filter_map(unix).collect()
}

/// Whether this is the same socket as one of those, seen before anybody connects: a connection
/// would wait in its backlog, and go round.
fn leads_to_one_of(to: &Place, own: &[String]) -> bool {
    let Place::Unix(path) = to else { return false };
    let file = |path: &str| rustix::fs::stat(path).map(|file| (file.st_dev, file.st_ino)).ok();
    !own.is_empty() && file(path).is_some_and(|server| own.iter().any(|at| file(at) == Some(server)))
}
