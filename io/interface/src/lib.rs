//! Addresses and routes of the network interfaces of the calling thread's network namespace, and
//! classes of what goes through them, by rtnetlink(7).

pub mod changes;
mod hook;
pub mod incoming;
mod netlink;
pub mod outgoing;
#[cfg(test)]
mod owned;
pub mod traffic;

use netlink::{NLM_F_CREATE, NLM_F_REPLACE, Netlink, attribute};
use rustix::net::AddressFamily;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A unique local address (RFC 4193) of our own, that no route leads to.
const OWN_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd74, 0x6f6d, 0x626f, 0x6c6f, 0, 0, 0, 53);
/// Index of `lo` in every network namespace: it is made first.
pub const LOOPBACK: u32 = 1;

// rtnetlink(7), netlink(7).
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
/// Usable at once: duplicates can't be, or nobody would be asked.
const IFA_F_NODAD: u8 = 2;
const IFF_UP: u32 = 1;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_HOST: u8 = 254;
const RT_TABLE_MAIN: u8 = 254;
/// The administrator's routes.
const RTPROT_STATIC: u8 = 4;
const RTN_UNICAST: u8 = 1;

/// Asks the kernel about interfaces.
#[derive(Debug)]
pub struct Interfaces(Netlink);

impl Interfaces {
    /// Of the calling thread's network namespace, for good.
    ///
    /// # Errors
    /// The errors of socket(2).
    pub fn open() -> io::Result<Self> {
        Netlink::open().map(Self)
    }

    /// Switches an interface on.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_up(&self, index: u32) -> io::Result<()> {
        // struct ifinfomsg: family, padding, type, index, flags, which of them change.
        let mut body = vec![0; 4];
        body.extend_from_slice(&index.to_ne_bytes());
        body.extend_from_slice(&IFF_UP.to_ne_bytes());
        body.extend_from_slice(&IFF_UP.to_ne_bytes());
        self.0.ask(RTM_NEWLINK, 0, &body)
    }

    /// Gives an interface an address; one that it has stays. On `lo` it reaches nowhere else.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn add_address(&self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        self.0.ask(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &address_body(index, address, prefix))
    }

    /// Sends by an interface what has no other way, to this gateway.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn add_default_route(&self, index: u32, gateway: Ipv4Addr) -> io::Result<()> {
        self.0.ask(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &route_body(index, gateway))
    }
}

/// Gives `lo` an address of each family that counts as one.
///
/// Programs that ask with `AI_ADDRCONFIG` (curl, browsers, `getent ahostsv4`) get only addresses of
/// families that the machine "has". glibc takes a family for absent when its one address is
/// 127.0.0.1 or ::1 (`__check_pf`), which would leave a domain without a network without any
/// answer. One more address on `lo` in each family says otherwise, and reaches nowhere.
///
/// # Errors
/// The kernel's error for IPv4. A namespace without IPv6 stays so.
pub fn add_loopback_addresses(address: Ipv4Addr) -> io::Result<()> {
    let interfaces = Interfaces::open()?;
    interfaces.add_address(LOOPBACK, IpAddr::V4(address), 32)?;
    if let Err(error) = interfaces.add_address(LOOPBACK, IpAddr::V6(OWN_IPV6), 128) {
        tracing::debug!(%error, "no IPv6 address for the loopback interface of a domain");
    }
    Ok(())
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    u8::try_from(family.as_raw()).unwrap_or(0)
}

/// struct ifaddrmsg: family, prefix, flags, scope, index.
fn address_body(index: u32, address: IpAddr, prefix: u8) -> Vec<u8> {
    let (flags, bytes) = match address {
        IpAddr::V4(v4) => (0, v4.octets().to_vec()),
        IpAddr::V6(v6) => (IFA_F_NODAD, v6.octets().to_vec()),
    };
    let scope = if index == LOOPBACK { RT_SCOPE_HOST } else { RT_SCOPE_UNIVERSE };
    let mut body = vec![family(address), prefix, flags, scope];
    body.extend_from_slice(&index.to_ne_bytes());
    for kind in [IFA_LOCAL, IFA_ADDRESS] {
        attribute(&mut body, kind, &bytes);
    }
    body
}

/// struct rtmsg: family, lengths of the two addresses, type of service, table, who made it, scope,
/// type, flags.
fn route_body(index: u32, gateway: Ipv4Addr) -> Vec<u8> {
    let family = family(IpAddr::V4(gateway));
    let mut body =
        vec![family, 0, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_UNICAST, 0, 0, 0, 0];
    attribute(&mut body, RTA_GATEWAY, &gateway.octets());
    attribute(&mut body, RTA_OIF, &index.to_ne_bytes());
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_has_the_lengths_that_it_says() {
        let v4 = address_body(LOOPBACK, Ipv4Addr::LOCALHOST.into(), 32);
        let v6 = address_body(LOOPBACK, Ipv6Addr::LOCALHOST.into(), 128);
        let route = route_body(2, Ipv4Addr::LOCALHOST);
        for (body, length) in [(v4, 40), (v6, 64), (route, 44)] {
            let message = netlink::message(RTM_NEWADDR, 0, &body);
            assert_eq!(message.len(), length);
            assert_eq!(u32::from_ne_bytes(message[..4].try_into().unwrap()) as usize, length);
        }
    }

    /// In a network namespace of its own, so that the machine's interfaces stay as they are.
    #[test]
    fn the_kernel_understands_what_is_asked() {
        let asked = std::thread::spawn(|| {
            sys::namespace::unshare(sys::namespace::UnshareFlags::NEWNET).map_err(|_| ())?;
            let interfaces = Interfaces::open().unwrap();
            interfaces.set_up(LOOPBACK).unwrap();
            let address = Ipv4Addr::new(10, 1, 2, 3);
            interfaces.add_address(LOOPBACK, address.into(), 8).unwrap();
            interfaces.add_default_route(LOOPBACK, Ipv4Addr::new(10, 1, 2, 9)).unwrap();
            assert!(interfaces.set_up(77).is_err());
            std::net::UdpSocket::bind((address, 0)).unwrap();
            Ok::<(), ()>(())
        });
        if asked.join().unwrap().is_err() {
            println!("skipped: a network namespace needs root");
        }
    }
}
