//! The proxy: one process for each other node, through which everything goes that domains here and
//! there say to each other (`docs/spec/proxy.md`).
//!
//! It owns a link to the other node's proxy, and pumps ([`pump`]) between pairs of that and ends of
//! channels. Its daemon says which ends; what the other node asks for, its daemon decides. It
//! outlives its daemon: the next one finds it at its socket, and pairs have gone on meanwhile. When
//! it dies its pairs end as if the programs at their other ends had died.

mod carrier;
mod domains;
mod endpoints;
#[doc(hidden)]
pub mod fuzzing;
mod lender;
mod locators;
mod mail;
mod privilege;

mod pump;
mod rings;
mod shares;
mod start;
mod switch;
#[cfg(test)]
mod tests;

pub use carrier::Carrier;
pub use start::{StartError, run};

use link::{Event, Standing};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use session::packet::{self, Packet, PacketError};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use switch::{Over, Switch};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use wire::proxy::{Configure, Order, Report, TIMEOUT_MS, VERSION};

/// Reports that may wait for a daemon that does not read; then it is taken for gone, and the next
/// one hears what it has to know.
const MAX_WAITING_REPORTS: usize = 16 * 1024;
/// Events of the link that are taken in one turn.
const TURN: usize = 64;
/// How often it is looked whether there is a connection.
const LOOK: Duration = Duration::from_secs(1);
/// How long a daemon may take to read why its proxy ends.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Changes what can be changed of a link, by what its daemon says and gives.
pub type Reconfigure = Box<dyn FnMut(&Configure, Vec<OwnedFd>) + Send>;

/// A link that has been started.
pub struct Linked {
    /// The link.
    pub carrier: Arc<dyn Carrier>,
    /// The events. Where they wait to be taken, nothing more is received.
    pub events: mpsc::Receiver<Event>,
    /// Where it listens, as locators.
    pub listens: Vec<String>,
    /// Says all of these again when there are others.
    pub listening: mpsc::UnboundedReceiver<Vec<String>>,
    /// Changes what can be changed.
    pub configure: Reconfigure,
    /// Takes up what its node shows and believes, out of the opened files.
    pub trust: Box<dyn FnMut(Vec<OwnedFd>) + Send>,
}

impl std::fmt::Debug for Linked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Linked").field("carrier", &self.carrier).field("listens", &self.listens).finish()
    }
}

/// Serves until the link is over, or the daemon says so: why.
///
/// # Errors
/// The sockets can't be watched.
pub async fn serve(
    listener: OwnedFd,
    daemon: OwnedFd,
    configured: Configure,
    linked: Linked,
) -> io::Result<String> {
    let Linked { carrier, mut events, listens, mut listening, configure, trust } = linked;
    let (switch, mut ends) = Switch::new(Arc::clone(&carrier));
    let listener = watch(listener)?;
    let mut proxy = Proxy {
        switch,
        carrier,
        configured,
        configure,
        trust,
        listens,
        daemon: None,
        outbox: VecDeque::new(),
        up: false,
        down_since: Instant::now(),
    };
    proxy.attach(daemon)?;
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        proxy.collect();
        let turn = tokio::select! {
            event = events.recv() => match event {
                Some(event) => proxy.hear(event, &mut events),
                None => Err(Over("the link's driver has ended".into())),
            },
            ended = ends.recv() => {
                if let Some((pair, how)) = ended {
                    proxy.switch.pump_ended(pair, &how);
                }
                Ok(())
            }
            Some(at) = listening.recv() => {
                proxy.listens.clone_from(&at);
                proxy.switch.reports.push_back(Report::Listening { at });
                Ok(())
            }
            order = next_order(proxy.daemon.as_ref()) => proxy.obey(order),
            told = tell(proxy.daemon.as_ref(), proxy.outbox.front()) => {
                proxy.told(told);
                Ok(())
            }
            came = accept(&listener) => {
                proxy.attach(came?)?;
                Ok(())
            }
            _ = look.tick() => proxy.look(),
        };
        if let Err(Over(why)) = turn {
            proxy.switch.reports.push_back(Report::Over { why: why.clone() });
            proxy.collect();
            proxy.tell_rest().await;
            return Ok(why);
        }
    }
}

struct Proxy {
    switch: Switch,
    carrier: Arc<dyn Carrier>,
    configured: Configure,
    configure: Reconfigure,
    trust: Box<dyn FnMut(Vec<OwnedFd>) + Send>,
    listens: Vec<String>,
    daemon: Option<AsyncFd<OwnedFd>>,
    outbox: VecDeque<Report>,
    /// Both proxies speak, as the daemon knows it.
    up: bool,
    down_since: Instant,
}

impl Proxy {
    /// A daemon is there; one that was there before is not any more.
    fn attach(&mut self, socket: OwnedFd) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        self.daemon = Some(watch(socket)?);
        self.switch.daemon_came();
        self.outbox.clear();
        self.outbox.push_back(Report::Hello {
            version: VERSION,
            pid: std::process::id(),
            configured: Some(self.configured.clone()),
            listens: self.listens.clone(),
            up: self.up,
        });
        Ok(())
    }

    fn hear(&mut self, event: Event, more: &mut mpsc::Receiver<Event>) -> Result<(), Over> {
        let mut next = Some(event);
        let mut taken = 0;
        while let Some(event) = next {
            self.up |= matches!(event, Event::Up { .. });
            self.switch.hear(event)?;
            taken += 1;
            next = if taken < TURN { more.try_recv().ok() } else { None };
        }
        Ok(())
    }

    /// Puts what there is for the daemon into its outbox.
    fn collect(&mut self) {
        self.outbox.extend(self.switch.reports.drain(..));
        if self.daemon.is_none() {
            self.outbox.clear();
        } else if self.outbox.len() > MAX_WAITING_REPORTS {
            tracing::warn!("the daemon does not read: taken for gone");
            self.daemon = None;
            self.outbox.clear();
        }
    }

    fn obey(&mut self, order: Result<Packet<Order>, PacketError>) -> Result<(), Over> {
        match order {
            Ok(Packet { message: Order::Configure(wanted), descriptors }) => {
                (self.configure)(&wanted, descriptors);
                let Configure { peer_at, transport, compression, .. } = wanted;
                // The rest of it is what this proxy was started with.
                (self.configured.peer_at, self.configured.transport, self.configured.compression) =
                    (peer_at, transport, compression);
                Ok(())
            }
            Ok(Packet { message: Order::Trust {}, descriptors }) => {
                (self.trust)(descriptors);
                Ok(())
            }
            Ok(packet) => self.switch.obey(packet.message, packet.descriptors),
            Err(error) if error.is_about_one_packet() => {
                tracing::warn!(%error, "the daemon says what is not understood");
                Ok(())
            }
            Err(_gone) => {
                tracing::info!("the daemon is gone; pairs go on");
                self.daemon = None;
                Ok(())
            }
        }
    }

    fn told(&mut self, told: Result<(), PacketError>) {
        match told {
            Ok(()) => drop(self.outbox.pop_front()),
            Err(error) if error.is_about_one_packet() => {
                tracing::error!(%error, "the daemon can't be told");
                self.outbox.pop_front();
            }
            Err(_gone) => self.daemon = None,
        }
    }

    /// The last words, as far as the daemon reads them at once.
    async fn tell_rest(&mut self) {
        while !self.outbox.is_empty() {
            let told = tell(self.daemon.as_ref(), self.outbox.front());
            match tokio::time::timeout(LAST_WORDS, told).await {
                Ok(told) if self.daemon.is_some() => self.told(told),
                _ => return,
            }
        }
    }

    /// Whether there is a connection; a proxy whose pairs have waited too long for one ends, and
    /// they with it.
    fn look(&mut self) -> Result<(), Over> {
        if self.carrier.standing() == Standing::Up {
            self.down_since = Instant::now();
            return Ok(());
        }
        if std::mem::take(&mut self.up) {
            self.switch.reports.push_back(Report::Down { why: self.carrier.loss() });
        }
        let patience = Duration::from_millis(TIMEOUT_MS);
        if self.switch.has_pairs() && self.down_since.elapsed() > patience {
            return Err(Over(format!(
                "there was no connection to the other node for {} s: {}",
                patience.as_secs(),
                self.carrier.loss()
            )));
        }
        Ok(())
    }
}

fn watch(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // Deprecated for types whose descriptor can change or close while it is watched. An `OwnedFd`
    // can do neither: it stays open and the same until the `AsyncFd` lets go of it.
    #[allow(
        deprecated,
        reason = "an `OwnedFd` keeps what the unsafe constructor asks for, and `unsafe` lives in `sys`"
    )]
    AsyncFd::with_interest(socket, Interest::READABLE | Interest::WRITABLE)
}

/// The next packet of the daemon; never comes back where there is none.
async fn next_order(daemon: Option<&AsyncFd<OwnedFd>>) -> Result<Packet<Order>, PacketError> {
    let Some(daemon) = daemon else { return std::future::pending().await };
    loop {
        let mut ready = daemon.readable().await.map_err(PacketError::Socket)?;
        match packet::receive(daemon.get_ref()) {
            Err(PacketError::NotReady) => ready.clear_ready(),
            received => return received,
        }
    }
}

/// Tells the daemon; never comes back where there is none, or nothing to tell.
async fn tell(daemon: Option<&AsyncFd<OwnedFd>>, report: Option<&Report>) -> Result<(), PacketError> {
    let (Some(daemon), Some(report)) = (daemon, report) else { return std::future::pending().await };
    loop {
        let mut ready = daemon.writable().await.map_err(PacketError::Socket)?;
        match packet::send(daemon.get_ref(), report, &[]) {
            Err(PacketError::NotReady) => ready.clear_ready(),
            sent => return sent,
        }
    }
}

async fn accept(listener: &AsyncFd<OwnedFd>) -> io::Result<OwnedFd> {
    loop {
        let mut ready = listener.readable().await?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener.get_ref(), flags) {
            Ok(socket) => return Ok(socket),
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
