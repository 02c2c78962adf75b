//! Raw Ethernet: a lane over frames of our own (`docs/spec/lane.md`). The two sides introduce themselves over TCP with TLS 1.3, whose session gives the
//! keys; from then on nothing but frames counts. That the TCP connection ends is a hint: the other side is asked whether it is there.

mod carrier;
mod keys;
mod station;

pub use station::Station;

use crate::connect::ConnectError;
use crate::listener::RefusedWhy;
use crate::locator::Locator;
use crate::tcp::Known;
use crate::tls::{Material, server_name};
use carrier::Ethernet;
use keys::Keys;
use lane::{Config, Lane};
use rustls::pki_types::CertificateDer;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use wire::lane::{INTRODUCTION_BYTES, Introduction};

/// What TLS says that introductions speak.
const ALPN: &[u8] = b"tombolo-lane/1";
/// The first frames come through within this time, or none do: less than a handshake may take, so that it can be said.
const FRAMES_LIMIT: Duration = Duration::from_secs(3);

fn station(material: &Material) -> io::Result<Station> {
    let none = "this node sends no frames of its own: its proxy was given no socket for them (no interface of Ethernet bears the node's address, \
                or the daemon lacks CAP_NET_RAW)";
    material.station.clone().ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, none))
}

/// Each says where it is reached, and hears where the other is.
async fn introduce<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    station: &Station,
    lane: u32,
) -> io::Result<Introduction> {
    let frame_bytes = u32::try_from(station.frame_bytes()).unwrap_or(u32::MAX);
    let ours = Introduction { station: station.number(), lane, mac: station.interface().mac, frame_bytes };
    stream.write_all(&ours.to_bytes()).await?;
    stream.flush().await?;
    let mut theirs = [0; INTRODUCTION_BYTES];
    stream.read_exact(&mut theirs).await?;
    Introduction::read(&theirs).map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))
}

fn config(station: &Station, theirs: &Introduction) -> Config {
    let frame_bytes = usize::try_from(theirs.frame_bytes).unwrap_or(usize::MAX);
    let frame_bytes = frame_bytes.min(station.frame_bytes());
    Config { station: theirs.station, lane: theirs.lane, frame_bytes }
}

/// Waits until a frame has come.
async fn hear(carrier: &mut Ethernet, station: &Station, theirs: &Introduction) -> io::Result<()> {
    let heard = tokio::time::timeout(FRAMES_LIMIT, carrier.heard()).await;
    heard.unwrap_or_else(|_| {
        let [a, b, c, d, e, f] = theirs.mac;
        let bytes = config(station, theirs).frame_bytes;
        let why = format!(
            "frames of {bytes} bytes between {} and {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} don't come through: the nodes are on \
             different Ethernets, or what is between them takes shorter frames only",
            station.interface().name
        );
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    })
}

pub(crate) async fn connect(
    locator: Locator,
    material: &Material,
    peer: &str,
) -> Result<Known, ConnectError> {
    let unreachable = |source| ConnectError::Unreachable { locator, source };
    let not_ready = |source| ConnectError::NotReady { locator, source };
    let station = station(material).map_err(unreachable)?;
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
    let place = station.lane();
    let theirs = introduce(&mut stream, &station, place.number).await.map_err(not_ready)?;
    let lane = Lane::new(config(&station, &theirs));
    let lifeline = stream.into_inner().0;
    let mut carrier = Ethernet::new(place, theirs.mac, lane, keys, lifeline).map_err(unreachable)?;
    hear(&mut carrier, &station, &theirs).await.map_err(not_ready)?;
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
    let place = station.lane();
    let theirs = introduce(&mut stream, &station, place.number).await.map_err(RefusedWhy::Handshake)?;
    let lane = Lane::new(config(&station, &theirs));
    let lifeline = stream.into_inner().0;
    let carrier = Ethernet::new(place, theirs.mac, lane, keys, lifeline).map_err(RefusedWhy::Handshake)?;
    let mut carrier = carrier;
    hear(&mut carrier, &station, &theirs).await.map_err(RefusedWhy::Handshake)?;
    Ok((Box::new(carrier), Ok(who)))
}
