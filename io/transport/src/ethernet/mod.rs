//! Raw Ethernet: a lane over frames of our own (`docs/spec/lane.md`). The two sides introduce themselves over TCP with TLS 1.3, whose session gives the
//! keys; from then on nothing but frames counts. That the TCP connection ends is a hint: the other side is asked whether it is there.

mod carrier;
mod covered;
mod keys;
mod station;

pub use station::Station;

use crate::connect::ConnectError;
use crate::listener::RefusedWhy;
use crate::locator::Locator;
use crate::shake::Known;
use crate::tls::{Material, server_name};
use carrier::Ethernet;
use covered::{Covered, bundle_frames};
use keys::Keys;
use lane::{Config, Lane};
use rustls::pki_types::CertificateDer;
use station::{LanePlace, Way};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use wire::cover::COVER_BYTES;
use wire::lane::{INTRODUCTION_BYTES, Introduction, introduction_flag};

/// What TLS says that introductions speak.
const ALPN: &[u8] = b"tombolo-lane/1";
/// The first frames come through within this time, or none do: less than a handshake may take, so that it can be said.
const FRAMES_LIMIT: Duration = Duration::from_secs(3);
/// The same of frames under a cover, which something in between may not like: there is time left to do without.
const COVERED_LIMIT: Duration = Duration::from_secs(1);

fn station(material: &Material) -> io::Result<Station> {
    let none = "this node sends no frames of its own: its proxy was given no socket for them (no interface of Ethernet bears the node's address, \
                or the daemon lacks CAP_NET_RAW)";
    material.station.clone().ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, none))
}

/// What both sides have agreed upon.
struct Agreed {
    place: LanePlace,
    theirs: Introduction,
    config: Config,
    /// Frames go under a cover.
    covered: bool,
}

/// Each says where it is reached, and hears where the other is. `covers`: frames may go under a cover.
async fn introduce<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    station: &Station,
    covers: bool,
) -> io::Result<Agreed> {
    let place = station.lane();
    let frame_bytes = u32::try_from(station.frame_bytes()).unwrap_or(u32::MAX);
    let flags = if covers { introduction_flag::COVER } else { 0 };
    let (number, lane, mac) = (station.number(), place.number, station.interface().mac);
    let ours = Introduction { station: number, lane, mac, frame_bytes, flags };
    stream.write_all(&ours.to_bytes()).await?;
    stream.flush().await?;
    let mut theirs = [0; INTRODUCTION_BYTES];
    stream.read_exact(&mut theirs).await?;
    let theirs =
        Introduction::read(&theirs).map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))?;
    let covered = flags & theirs.flags & introduction_flag::COVER != 0;
    let longest = usize::try_from(theirs.frame_bytes).unwrap_or(usize::MAX).min(station.frame_bytes());
    let frame_bytes = longest - if covered { COVER_BYTES } else { 0 };
    let bundle_frames = if covered { bundle_frames(frame_bytes) } else { 1 };
    let config = Config { station: theirs.station, lane: theirs.lane, frame_bytes, bundle_frames };
    Ok(Agreed { place, theirs, config, covered })
}

impl Agreed {
    fn carrier(self, keys: Keys, lifeline: TcpStream) -> io::Result<Ethernet> {
        let Self { place, theirs, config, covered } = self;
        let way = if covered {
            Way::Covered(Covered::new(place.station.interface().mac, &theirs))
        } else {
            Way::Bare(theirs.mac)
        };
        Ethernet::new(place, way, Lane::new(config), keys, lifeline)
    }

    /// That nothing comes through.
    fn nothing(&self) -> io::Error {
        let [a, b, c, d, e, f] = self.theirs.mac;
        let why = format!(
            "frames of {} bytes between {} and {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} don't come through: the nodes are on \
             different Ethernets, or what is between them takes shorter frames only",
            self.config.frame_bytes,
            self.place.station.interface().name
        );
        io::Error::new(io::ErrorKind::TimedOut, why)
    }
}

/// A carrier by which frames come, if they do within this time.
async fn heard(agreed: Agreed, keys: Keys, lifeline: TcpStream, limit: Duration) -> io::Result<Ethernet> {
    let nothing = agreed.nothing();
    let mut carrier = agreed.carrier(keys, lifeline)?;
    match tokio::time::timeout(limit, carrier.heard()).await {
        Ok(heard) => heard.map(|()| carrier),
        Err(_) => Err(nothing),
    }
}

pub(crate) async fn connect(
    locator: Locator,
    material: &Material,
    peer: &str,
) -> Result<Known, ConnectError> {
    let unreachable = |source| ConnectError::Unreachable { locator, source };
    let station = station(material).map_err(unreachable)?;
    let address = locator.address.ip().map_err(unreachable)?;
    if station.covers_to(address) {
        match attempt(locator, material, peer, (&station, true)).await {
            Err(ConnectError::NotReady { source, .. }) if source.kind() == io::ErrorKind::TimedOut => {
                tracing::info!(%locator, "no frames under a cover come through: they go bare");
                station.bare_to(address);
            }
            made => return made,
        }
    }
    attempt(locator, material, peer, (&station, false)).await
}

/// Connects, with frames under a cover if the other side has it so, or without.
async fn attempt(
    locator: Locator,
    material: &Material,
    peer: &str,
    (station, covers): (&Station, bool),
) -> Result<Known, ConnectError> {
    let unreachable = |source| ConnectError::Unreachable { locator, source };
    let not_ready = |source| ConnectError::NotReady { locator, source };
    let name = server_name(peer).map_err(|_| ConnectError::Name(peer.to_owned()))?;
    let mut config_tls = rustls::ClientConfig::clone(&material.client);
    config_tls.alpn_protocols = vec![ALPN.to_vec()];
    let address = locator.address.ip().map_err(unreachable)?;
    let socket = TcpStream::connect(address).await.map_err(unreachable)?;
    socket.set_nodelay(true).map_err(unreachable)?;
    let handshake = |error: io::Error| ConnectError::Handshake { locator, why: error.to_string() };
    let connected = TlsConnector::from(Arc::new(config_tls)).connect(name, socket).await;
    let mut stream = connected.map_err(handshake)?;
    let session = stream.get_ref().1;
    let who = (material.who)(session.peer_certificates().unwrap_or_default());
    let export = |to: &mut [u8], label: &[u8], context: &[u8]| {
        session.export_keying_material(to, label, Some(context)).map(drop)
    };
    let keys = Keys::of(export, true).map_err(handshake)?;
    let agreed = introduce(&mut stream, station, covers).await.map_err(not_ready)?;
    let limit = if agreed.covered { COVERED_LIMIT } else { FRAMES_LIMIT };
    let carrier = heard(agreed, keys, stream.into_inner().0, limit).await.map_err(not_ready)?;
    Ok((Box::new(carrier), who))
}

pub(crate) async fn accept(socket: TcpStream, material: &Material) -> Result<Known, RefusedWhy> {
    let station = station(material).map_err(RefusedWhy::Handshake)?;
    let mut config_tls = rustls::ServerConfig::clone(&material.server);
    config_tls.alpn_protocols = vec![ALPN.to_vec()];
    socket.set_nodelay(true).map_err(RefusedWhy::Handshake)?;
    let accepted = TlsAcceptor::from(Arc::new(config_tls)).accept(socket).await;
    let mut stream = accepted.map_err(RefusedWhy::Handshake)?;
    let session = stream.get_ref().1;
    let chain: &[CertificateDer<'_>] = session.peer_certificates().unwrap_or_default();
    // A stranger is told nothing of the station.
    let who = (material.who)(chain).map_err(RefusedWhy::Nobody)?;
    let export = |to: &mut [u8], label: &[u8], context: &[u8]| {
        session.export_keying_material(to, label, Some(context)).map(drop)
    };
    let keys = Keys::of(export, false).map_err(RefusedWhy::Handshake)?;
    let covers = station.covers();
    let agreed = introduce(&mut stream, &station, covers).await.map_err(RefusedWhy::Handshake)?;
    let carrier = heard(agreed, keys, stream.into_inner().0, FRAMES_LIMIT).await;
    Ok((Box::new(carrier.map_err(RefusedWhy::Handshake)?), Ok(who)))
}
