//! Raw Ethernet: a lane over frames of our own (`docs/spec/lane.md`). The two sides introduce
//! themselves over TCP with TLS 1.3, whose session gives the keys; from then on nothing but frames
//! counts. That the TCP connection ends is a hint: the other side is asked whether it is there.

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
use station::{LanePlace, Reach, Way};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use wire::cover::COVER_BYTES;
use wire::lane::{INTRODUCTION_BYTES, Introduction, LONG_FRAME_BYTES, introduction_flag};

/// The protocol of introductions, as TLS names it.
const ALPN: &[u8] = b"tombolo-lane/1";
/// The first frames come through within this time, or none do: less than a handshake may take, so
/// that it can be said.
const FRAMES_LIMIT: Duration = Duration::from_secs(3);
/// The same of frames under a cover, which something in between may not like: there is time left to
/// do without.
const COVERED_LIMIT: Duration = Duration::from_secs(1);
/// The same of long frames, which are cut on most ways that leave the machine.
const LONG_LIMIT: Duration = Duration::from_millis(250);

fn station(material: &Material) -> io::Result<Station> {
    let none = "this node sends no frames of its own: its proxy was given no socket for them (no interface of Ethernet bears the node's address, \
                or the daemon lacks CAP_NET_RAW)";
    material.station.clone().ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, none))
}

/// The agreement of both sides.
struct Agreed {
    place: LanePlace,
    theirs: Introduction,
    config: Config,
    reach: Reach,
}

/// The flags of a station: the frames that it may send and hear.
fn flags(reach: Reach) -> u16 {
    match reach {
        Reach::Bare => 0,
        Reach::Covered => introduction_flag::COVER,
        Reach::Long => introduction_flag::COVER | introduction_flag::LONG,
    }
}

/// The reach of both, where frames of so many bytes go over both interfaces as they are under a
/// cover.
fn agreed(flags: u16, sure_bytes: usize) -> Reach {
    if flags & introduction_flag::COVER == 0 {
        Reach::Bare
    } else if flags & introduction_flag::LONG == 0 || sure_bytes >= LONG_FRAME_BYTES {
        Reach::Covered
    } else {
        Reach::Long
    }
}

/// Each says where it is reached, and hears where the other is.
async fn introduce<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    station: &Station,
    reach: Reach,
) -> io::Result<Agreed> {
    let place = station.lane();
    let frame_bytes = u32::try_from(station.frame_bytes()).unwrap_or(u32::MAX);
    let flags = flags(reach);
    let (number, lane, mac) = (station.number(), place.number, station.interface().mac);
    let ours = Introduction { station: number, lane, mac, frame_bytes, flags };
    stream.write_all(&ours.to_bytes()).await?;
    stream.flush().await?;
    let mut theirs = [0; INTRODUCTION_BYTES];
    stream.read_exact(&mut theirs).await?;
    let theirs =
        Introduction::read(&theirs).map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))?;
    let longest = usize::try_from(theirs.frame_bytes).unwrap_or(usize::MAX).min(station.frame_bytes());
    let reach = agreed(flags & theirs.flags, longest - COVER_BYTES);
    let (frame_bytes, sure_bytes) = match reach {
        Reach::Bare => (longest, longest),
        Reach::Covered => (longest - COVER_BYTES, longest - COVER_BYTES),
        Reach::Long => (LONG_FRAME_BYTES, longest - COVER_BYTES),
    };
    let bundle_frames = if reach == Reach::Covered { bundle_frames(frame_bytes) } else { 1 };
    let (station, lane) = (theirs.station, theirs.lane);
    let config = Config { station, lane, frame_bytes, bundle_frames, sure_bytes };
    Ok(Agreed { place, theirs, config, reach })
}

impl Agreed {
    fn carrier(self, keys: Keys, lifeline: TcpStream) -> io::Result<Ethernet> {
        let Self { place, theirs, config, reach } = self;
        let way = match reach {
            Reach::Bare => Way::Bare(theirs.mac),
            Reach::Covered | Reach::Long => {
                Way::Covered(Covered::new(place.station.interface().mac, &theirs, config.sure_bytes))
            }
        };
        let single = (reach == Reach::Long).then_some((theirs.mac, config.sure_bytes));
        Ethernet::new(place, way, Lane::new(config), keys, lifeline)?.hears_both(single)
    }

    /// Returns the error that nothing comes through.
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
async fn heard(
    agreed: Agreed,
    keys: Keys,
    lifeline: TcpStream,
    (limit, enough): (Duration, fn(&Lane) -> bool),
) -> io::Result<Ethernet> {
    let nothing = agreed.nothing();
    let mut carrier = agreed.carrier(keys, lifeline)?;
    match tokio::time::timeout(limit, carrier.heard(enough)).await {
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
    let mut reach = station.reach_to(address);
    loop {
        let error = match attempt(locator, material, peer, (&station, address, &mut reach)).await {
            Ok(known) => return Ok(known),
            Err(error) => error,
        };
        let silent = matches!(&error, ConnectError::NotReady { source, .. } if source.kind() == io::ErrorKind::TimedOut);
        let Some(less) = reach.less().filter(|_| silent) else { return Err(error) };
        tracing::info!(%locator, failed = ?reach, then = ?less, "frames don't come through in this way");
        station.limit_to(address, less);
        reach = less;
    }
}

/// Connects, with such frames as `reach` says if the other side has it so, or with less; says then
/// what was agreed upon.
async fn attempt(
    locator: Locator,
    material: &Material,
    peer: &str,
    (station, address, reach): (&Station, SocketAddr, &mut Reach),
) -> Result<Known, ConnectError> {
    let unreachable = |source| ConnectError::Unreachable { locator, source };
    let not_ready = |source| ConnectError::NotReady { locator, source };
    let name = server_name(peer).map_err(|_| ConnectError::Name(peer.to_owned()))?;
    let mut config_tls = rustls::ClientConfig::clone(&material.client);
    config_tls.alpn_protocols = vec![ALPN.to_vec()];
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
    let agreed = introduce(&mut stream, station, *reach).await.map_err(not_ready)?;
    *reach = agreed.reach;
    let waits: (Duration, fn(&Lane) -> bool) = match agreed.reach {
        Reach::Bare => (FRAMES_LIMIT, Lane::has_heard),
        Reach::Covered => (COVERED_LIMIT, Lane::has_heard),
        Reach::Long => (LONG_LIMIT, Lane::has_exchanged),
    };
    let mut carrier = heard(agreed, keys, stream.into_inner().0, waits).await.map_err(not_ready)?;
    carrier.leads_to(address);
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
    let reach = station.reach();
    let agreed = introduce(&mut stream, &station, reach).await.map_err(RefusedWhy::Handshake)?;
    let enough = if agreed.reach == Reach::Long { Lane::has_data } else { Lane::has_heard };
    let asks_less = agreed.reach.less().is_some();
    let carrier = heard(agreed, keys, stream.into_inner().0, (FRAMES_LIMIT, enough)).await;
    let carrier = carrier.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionReset if asks_less => RefusedWhy::Again,
        _ => RefusedWhy::Handshake(error),
    })?;
    Ok((Box::new(carrier), Ok(who)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_frames_are_for_two_that_know_them_where_others_would_be_shorter() {
        let all = flags(Reach::Long);
        assert_eq!(agreed(all, 1452), Reach::Long);
        assert_eq!(agreed(all, LONG_FRAME_BYTES), Reach::Covered);
        // Proxies of before know covers, or nothing.
        assert_eq!(agreed(all & flags(Reach::Covered), 1452), Reach::Covered);
        assert_eq!(agreed(all & flags(Reach::Bare), 1452), Reach::Bare);
        assert_eq!(agreed(introduction_flag::LONG, 1452), Reach::Bare, "a flag that is nothing by itself");
    }

    #[test]
    fn what_did_not_come_through_is_not_tried_again_at_once() {
        let [here, there] = [7, 8].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let file = || std::os::fd::OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let interface = sys::ethernet::Interface { name: "one".into(), index: 1, mac: [2; 6], mtu: 1500 };
        let station = Station::of((file(), Some(file())), interface, 7).unwrap();
        assert_eq!(station.reach_to(here), Reach::Long);
        station.limit_to(here, Reach::Covered);
        assert_eq!((station.reach_to(here), station.reach_to(there)), (Reach::Covered, Reach::Long));
        station.limit_to(here, Reach::Bare);
        assert_eq!(station.reach_to(here), Reach::Bare);
        assert_eq!(station.uncovered().unwrap().reach_to(there), Reach::Bare);
    }
}
