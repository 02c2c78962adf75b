//! The header of the PROXY protocol, version 2, that tells a server who has connected
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>, section 2.2).

use std::net::{Ipv4Addr, SocketAddr};
use wire::socket::Place;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, a connection on behalf of somebody.
const VERSION_AND_COMMAND: u8 = 0x21;
/// TCP over IPv4.
const FAMILY: u8 = 0x11;
/// Bytes of two addresses and two ports.
const ADDRESS_BYTES: usize = 12;
/// The type of what follows the addresses: a host's name, here DOMAIN.DC.
const AUTHORITY: u8 = 0x02;

/// The address that stands for a domain: always the same in 127.128.0.0/9, which leads nowhere but
/// to the server's own `lo`.
pub(crate) fn address_of(dc: &str, domain: &str) -> Ipv4Addr {
    let bytes = dc.bytes().chain([b'/']).chain(domain.bytes());
    // FNV-1a: the same in every version, so that a server's rules for addresses keep their meaning.
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    Ipv4Addr::from(0x7f80_0000 | (hash & 0x007f_ffff))
}

/// The header for a connection of `domain`, whose client has this port, to a server at `to`.
pub(crate) fn header(dc: &str, domain: &str, port: u16, to: &Place) -> Vec<u8> {
    let (server, server_port) = match to {
        Place::Tcp(SocketAddr::V4(address)) => (*address.ip(), address.port()),
        Place::Tcp(SocketAddr::V6(address)) => (Ipv4Addr::LOCALHOST, address.port()),
        Place::Unix(_) => (Ipv4Addr::LOCALHOST, 0),
    };
    let name = format!("{domain}.{dc}");
    let name_bytes = u16::try_from(name.len()).unwrap_or(u16::MAX);
    let rest = u16::try_from(ADDRESS_BYTES + 3 + name.len()).unwrap_or(u16::MAX);
    let mut header = SIGNATURE.to_vec();
    header.extend([VERSION_AND_COMMAND, FAMILY]);
    header.extend(rest.to_be_bytes());
    header.extend(address_of(dc, domain).octets());
    header.extend(server.octets());
    header.extend(port.to_be_bytes());
    header.extend(server_port.to_be_bytes());
    header.push(AUTHORITY);
    header.extend(name_bytes.to_be_bytes());
    header.extend(name.bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_the_one_of_the_specification() {
        let to = Place::Tcp(([127, 0, 0, 1], 80).into());
        let header = header("shop", "web", 40_000, &to);
        let (front, rest) = header.split_at(16);
        assert_eq!(front, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x17");
        assert_eq!(rest.len(), 0x17);
        assert_eq!(rest[..4], address_of("shop", "web").octets());
        assert_eq!(rest[4..], *b"\x7f\0\0\x01\x9c\x40\0\x50\x02\0\x08web.shop");
    }

    #[test]
    fn each_domain_has_an_address_of_its_own() {
        let of = |domain| address_of("shop", domain);
        assert_eq!(of("web"), of("web"));
        assert!(of("web") != of("robot") && of("web").octets()[0] == 127 && of("web").octets()[1] >= 128);
    }
}
