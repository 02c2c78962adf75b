//! An address on `lo` that counts as one.
//!
//! Programs that ask with `AI_ADDRCONFIG` (curl, browsers, `getent ahostsv4`) get only addresses of families that the machine
//! "has". glibc takes a family for absent when its one address is 127.0.0.1 or ::1 (`__check_pf`), which would leave a
//! domain without a network without any answer. One more address on `lo` in each family says otherwise, and reaches nowhere.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;

/// A unique local address (RFC 4193) of our own, that no route leads to.
const IPV6: Ipv6Addr = Ipv6Addr::new(0xfd74, 0x6f6d, 0x626f, 0x6c6f, 0, 0, 0, 53);
/// Index of `lo` in every network namespace: it is made first.
const LO: u32 = 1;

// rtnetlink(7), netlink(7).
const RTM_NEWADDR: u16 = 20;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// Usable at once: duplicates can't be.
const IFA_F_NODAD: u8 = 2;
const RT_SCOPE_HOST: u8 = 254;

/// Gives `lo` of the calling thread's network namespace an address of each family.
///
/// # Errors
/// What the kernel says for IPv4. A namespace without IPv6 stays so.
pub(crate) fn add_addresses() -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    add(&socket, IpAddr::V4(crate::spec::STUB_ADDRESS))?;
    if let Err(error) = add(&socket, IpAddr::V6(IPV6)) {
        tracing::debug!(%error, "no IPv6 address for the loopback interface of a domain");
    }
    Ok(())
}

fn add(socket: &OwnedFd, address: IpAddr) -> io::Result<()> {
    rustix::net::send(socket, &message(address), SendFlags::empty())?;
    let mut answer = [0_u8; 256];
    let (_, length) = rustix::net::recv(socket, &mut answer, RecvFlags::empty())?;
    outcome(answer.get(..length).unwrap_or(&answer))
}

/// The request to add an address to `lo`.
fn message(address: IpAddr) -> Vec<u8> {
    let (family, bits, flags, bytes) = match address {
        IpAddr::V4(v4) => (AddressFamily::INET, 32, 0, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AddressFamily::INET6, 128, IFA_F_NODAD, v6.octets().to_vec()),
    };
    let family = u8::try_from(family.as_raw()).unwrap_or(0);
    let mut body = vec![family, bits, flags, RT_SCOPE_HOST];
    body.extend_from_slice(&LO.to_ne_bytes());
    for attribute in [IFA_LOCAL, IFA_ADDRESS] {
        let length = u16::try_from(4 + bytes.len()).unwrap_or(u16::MAX);
        body.extend_from_slice(&length.to_ne_bytes());
        body.extend_from_slice(&attribute.to_ne_bytes());
        body.extend_from_slice(&bytes);
    }
    let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend_from_slice(&length.to_ne_bytes());
    message.extend_from_slice(&RTM_NEWADDR.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&1_u32.to_ne_bytes());
    message.extend_from_slice(&0_u32.to_ne_bytes());
    message.extend_from_slice(&body);
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
        for (address, length) in [(IpAddr::V4(crate::spec::STUB_ADDRESS), 40), (IpAddr::V6(IPV6), 64)] {
            let message = message(address);
            assert_eq!(message.len(), length);
            assert_eq!(u32::from_ne_bytes(message[..4].try_into().unwrap()) as usize, length);
        }
    }
}
