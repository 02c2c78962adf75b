//! Two nodes of one cluster, each with a proxy's part of a link, and the faults between them.

use super::faults::{Faults, Road, goes_by_relay};
use super::{Done, Failure, within};
use link::{Config, Event, Over, Timing};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, SystemTime};
use tokio::task::JoinHandle;
use transport::{
    Address, COMPRESSIONS, Compression, Dial, Driver, Events, Handle, Kind, Listener, Locator, Settings,
    Station, Tls, start,
};
use trust::Authority;
use wire::link::{Hello, TIPC_SERVICE, VERSION, VERSION_OLDEST};

/// The node that connects.
pub const NEAR: &str = "near";
/// The node that listens.
pub const FAR: &str = "far";
/// A silent peer is lost after so many ms.
const SILENCE_MS: u32 = 1000;
/// The same where the way goes by another machine, which is emulated.
const SILENCE_BY_RELAY_MS: u32 = 4000;
/// Window of a pair.
pub const WINDOW_BYTES: u32 = 1 << 20;
/// Longest message.
pub const MESSAGE_BYTES: u32 = 600_000;

/// Those who can prove that they are nodes. Where the calling thread's network has the cables of
/// [`CABLES`], they have stations at them.
pub struct Cluster {
    authority: Authority,
    /// Between the two cables; it is fair where nobody says otherwise.
    road: Option<Road>,
}

/// A cable of this name says that the kernel of [`FAR`] knows nothing of frames under a cover.
pub const BARE: &str = "bare";

/// The commands that make them: each node has one end of a cable, called as the node is, and the
/// path has the other two.
pub const CABLES: &str = "ip link set lo up \
    && ip link add near type veth peer name near-way && ip link add far type veth peer name far-way \
    && for name in near near-way far far-way; do ip link set $name mtu ${MTU:-1500} up || exit; done";

impl Cluster {
    /// A new one.
    ///
    /// # Errors
    /// Where no key can be made.
    pub fn new(name: &str) -> Done<Self> {
        let authority =
            Authority::new(name, SystemTime::now()).map_err(Failure::during("make an authority"))?;
        Self::of(authority)
    }

    /// That of an authority which another process may have as well.
    ///
    /// # Errors
    /// Where the cables are there and can't be used.
    pub fn of(authority: Authority) -> Done<Self> {
        Ok(Self { authority, road: Road::open()? })
    }

    /// The credentials of a node of it.
    ///
    /// # Errors
    /// Where no key can be made.
    pub fn tls(&self, node: &str) -> Done<Tls> {
        let identity =
            self.authority.identity(node, SystemTime::now()).map_err(Failure::during("make an identity"))?;
        let tls = Tls::of(&identity).map_err(Failure::during("use an identity"))?;
        if self.road.is_some() {
            let station = Station::open(node).map_err(Failure::during("open a station"))?;
            let bare = node == FAR && sys::ethernet::interface(BARE).is_ok();
            tls.set_station(if bare { station.uncovered() } else { Some(station) });
        }
        Ok(tls)
    }

    /// The kinds of transports that its nodes have beside `kind`. That of TIPC is not touched where
    /// nobody asks for it.
    fn kinds(&self, kind: Kind) -> impl Iterator<Item = Kind> {
        let road = self.road.is_some();
        Kind::ALL.into_iter().filter(move |other| match other {
            Kind::Tcp | Kind::Quic => true,
            Kind::Ethernet => road,
            Kind::Tipc => kind == Kind::Tipc,
        })
    }
}

/// A locator of this machine with any port.
#[must_use]
pub fn local(kind: Kind) -> Locator {
    let address = match kind {
        Kind::Tipc => Address::Tipc(sys::tipc::Address::Service { service: TIPC_SERVICE, instance: 0 }),
        Kind::Tcp | Kind::Quic | Kind::Ethernet => Address::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
    };
    Locator { kind, address }
}

/// Whether a kind is carried by a stream of the kernel's, which ends where it is cut.
#[must_use]
pub fn is_stream(kind: Kind) -> bool {
    matches!(kind, Kind::Tcp | Kind::Tipc)
}

/// A silent peer is lost after so many ms.
#[must_use]
pub fn silence_ms() -> u32 {
    if goes_by_relay() { SILENCE_BY_RELAY_MS } else { SILENCE_MS }
}

/// The configuration of the sides of a bed: side 0 is near.
#[must_use]
pub fn config(side: u8, epoch: u64) -> Config {
    let hello = Hello {
        oldest: VERSION_OLDEST,
        newest: VERSION,
        side,
        compressions: COMPRESSIONS,
        pairs: 64,
        window_bytes: WINDOW_BYTES,
        message_bytes: MESSAGE_BYTES,
        silence_ms: silence_ms(),
    };
    Config { epoch, hello, queue_bytes: 1 << 20, timing: Timing::default() }
}

/// One side.
pub struct Side {
    /// The user's side of the link.
    pub handle: Handle,
    /// The events.
    pub events: Events,
    /// The driver that runs.
    pub driver: JoinHandle<Over>,
}

impl Side {
    /// Starts a driver.
    ///
    /// # Errors
    /// Where the configuration is none.
    pub fn start(settings: Settings) -> Done<Self> {
        let (handle, events, driver): (_, _, Driver) =
            start(settings).map_err(Failure::during("start a driver"))?;
        Ok(Self { handle, events, driver: tokio::spawn(driver.run()) })
    }

    /// Waits until the link is up; whether it was before.
    ///
    /// # Errors
    /// Where it does not come up.
    pub async fn up(&mut self) -> Done<bool> {
        loop {
            match self.next().await? {
                Event::Up { resumed, .. } => return Ok(resumed),
                Event::Silent => {}
                other => return Err(Failure(format!("{other:?} before it was up"))),
            }
        }
    }

    /// Waits for what happens next.
    ///
    /// # Errors
    /// Where nothing does.
    pub async fn next(&mut self) -> Done<Event> {
        within("an event", self.events.next()).await?.ok_or_else(|| Failure("the driver has ended".into()))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The two, joined through the faults.
pub struct Bed {
    /// The cluster of the nodes.
    pub cluster: Cluster,
    /// The side that connects.
    pub near: Side,
    /// The side that listens.
    pub far: Side,
    /// The path between them, for each kind of transport that there is.
    pub faults: BTreeMap<Kind, Faults>,
    /// Of the far side, TCP first.
    pub locators: Vec<Locator>,
    accepting: Vec<JoinHandle<()>>,
}

impl Drop for Bed {
    fn drop(&mut self) {
        for task in &self.accepting {
            task.abort();
        }
    }
}

/// Hands whoever is accepted to the link.
pub fn accept(mut listener: Listener, handle: Handle) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok(connection) => {
                    if let Err(error) = handle.adopt(connection) {
                        println!("{error}");
                    }
                }
                Err(refused) => println!("{refused}"),
            }
        }
    })
}

impl Bed {
    /// Both sides, the link being made by `kind`.
    ///
    /// # Errors
    /// Where a part of it can't be made.
    pub async fn make(kind: Kind, compression: Compression) -> Done<Self> {
        let cluster = Cluster::new("conformance")?;
        let tls = cluster.tls(FAR)?;
        // One side looks for what comes before it sleeps, and the other is told.
        let settings = |peer: &str, side, dial| Settings {
            peer: peer.to_owned(),
            link: config(side, 1),
            compression,
            dial,
            spin: Duration::from_micros(if side == 0 { 50 } else { 0 }),
        };
        let far = Side::start(settings(NEAR, 1, None))?;
        let (mut faults, mut locators, mut accepting) = (BTreeMap::new(), Vec::new(), Vec::new());
        for kind in cluster.kinds(kind) {
            let listener = Listener::bind(local(kind), tls.clone()).await;
            let listener = listener.map_err(Failure::during("listen"))?;
            let locator = listener.locator();
            let between = match locator.address {
                Address::Tipc(address) => Faults::tipc(address)?,
                Address::Ip(address) => match kind {
                    Kind::Quic => Faults::udp(address).await?,
                    Kind::Ethernet => Faults::frames(address, cluster.road.as_ref()).await?,
                    Kind::Tcp | Kind::Tipc => Faults::tcp(address).await?,
                },
            };
            faults.insert(kind, between);
            locators.push(locator);
            accepting.push(accept(listener, far.handle.clone()));
        }
        let there = faults.get(&kind).ok_or_else(|| Failure(format!("{kind} can't be had here")))?;
        let locators_through = vec![Locator { kind, address: there.address }];
        let dial = Dial { locators: locators_through, tls: cluster.tls(NEAR)? };
        let near = Side::start(settings(FAR, 0, Some(dial)))?;
        Ok(Self { cluster, near, far, faults, locators, accepting })
    }

    /// The way to the far side by a kind, through its faults.
    #[must_use]
    pub fn through(&self, kind: Kind) -> Locator {
        Locator { kind, address: self.faults(kind).address }
    }

    /// The faults of a kind.
    #[must_use]
    pub fn faults(&self, kind: Kind) -> &Faults {
        &self.faults[&kind]
    }
}
