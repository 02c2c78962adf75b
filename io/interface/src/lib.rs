//! Addresses and routes of the network interfaces of the calling thread's network namespace, by rtnetlink(7).

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

/// A unique local address (RFC 4193) of our own, that no route leads to.
const OWN_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd74, 0x6f6d, 0x626f, 0x6c6f, 0, 0, 0, 53);
/// Index of `lo` in every network namespace: it is made first.
pub const LOOPBACK: u32 = 1;

// rtnetlink(7), netlink(7).
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
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
/// Bytes of a message's header.
const HEADER_BYTES: usize = 16;
/// Longest answer that is looked at, in bytes: an error with the head of what it is about.
const ANSWER_BYTES: usize = 1024;

/// Asks the kernel about interfaces.
#[derive(Debug)]
pub struct Interfaces(OwnedFd);

impl Interfaces {
    /// Of the calling thread's network namespace, for good.
    ///
    /// # Errors
    /// Those of socket(2).
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        Ok(Self(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?))
    }

    /// Switches an interface on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_up(&self, index: u32) -> io::Result<()> {
        // struct ifinfomsg: family, padding, type, index, flags, which of them change.
        let mut body = vec![0; 4];
        body.extend_from_slice(&index.to_ne_bytes());
        body.extend_from_slice(&IFF_UP.to_ne_bytes());
        body.extend_from_slice(&IFF_UP.to_ne_bytes());
        self.ask(RTM_NEWLINK, 0, &body)
    }

    /// Gives an interface an address; one that it has stays. On `lo` it reaches nowhere else.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add_address(&self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        self.ask(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &address_body(index, address, prefix))
    }

    /// Sends by an interface what has no other way, to this gateway.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add_default_route(&self, index: u32, gateway: Ipv4Addr) -> io::Result<()> {
        self.ask(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &route_body(index, gateway))
    }

    fn ask(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        let flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        rustix::net::send(&self.0, &message(kind, flags, body), SendFlags::empty())?;
        let mut answer = [0_u8; ANSWER_BYTES];
        let (_, length) = rustix::net::recv(&self.0, &mut answer, RecvFlags::empty())?;
        outcome(answer.get(..length).unwrap_or(&answer))
    }
}

/// Gives `lo` an address of each family that counts as one.
///
/// Programs that ask with `AI_ADDRCONFIG` (curl, browsers, `getent ahostsv4`) get only addresses of families that the machine
/// "has". glibc takes a family for absent when its one address is 127.0.0.1 or ::1 (`__check_pf`), which would leave a
/// domain without a network without any answer. One more address on `lo` in each family says otherwise, and reaches nowhere.
///
/// # Errors
/// What the kernel says for IPv4. A namespace without IPv6 stays so.
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

fn attribute(body: &mut Vec<u8>, kind: u16, bytes: &[u8]) {
    let length = u16::try_from(4 + bytes.len()).unwrap_or(u16::MAX);
    body.extend_from_slice(&length.to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(bytes);
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

/// struct rtmsg: family, lengths of the two addresses, type of service, table, who made it, scope, type, flags.
fn route_body(index: u32, gateway: Ipv4Addr) -> Vec<u8> {
    let family = family(IpAddr::V4(gateway));
    let mut body =
        vec![family, 0, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_UNICAST, 0, 0, 0, 0];
    attribute(&mut body, RTA_GATEWAY, &gateway.octets());
    attribute(&mut body, RTA_OIF, &index.to_ne_bytes());
    body
}

fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
    let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
    message.extend_from_slice(&length.to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&1_u32.to_ne_bytes());
    message.extend_from_slice(&0_u32.to_ne_bytes());
    message.extend_from_slice(body);
    message
}

/// What the kernel answered: an `NLMSG_ERROR` with 0 is success.
fn outcome(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes);
    let code = answer.get(16..20).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, code) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_success_an_errno_or_nonsense() {
        let answer = |kind: u16, code: i32| {
            let mut bytes = vec![0; 36];
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes[16..20].copy_from_slice(&code.to_ne_bytes());
            outcome(&bytes)
        };
        assert!(answer(NLMSG_ERROR, 0).is_ok());
        assert_eq!(answer(NLMSG_ERROR, -1).unwrap_err().raw_os_error(), Some(1));
        assert!(answer(3, 0).is_err() && outcome(&[]).is_err());
    }

    #[test]
    fn the_request_has_the_lengths_that_it_says() {
        let v4 = address_body(LOOPBACK, Ipv4Addr::LOCALHOST.into(), 32);
        let v6 = address_body(LOOPBACK, Ipv6Addr::LOCALHOST.into(), 128);
        let route = route_body(2, Ipv4Addr::LOCALHOST);
        for (body, length) in [(v4, 40), (v6, 64), (route, 44)] {
            let message = message(RTM_NEWADDR, 0, &body);
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
