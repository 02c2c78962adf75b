//! The order of addresses for a program: RFC 6724 section 6 with the default table, as the C
//! library does it, so that `getaddrinfo` gives the same first address with and without this
//! library. Left out: rule 9 for IPv4 (it takes the netmask of each device) and `/etc/gai.conf`.

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, connect, connect_unspec, getsockname, socket_with,
};
use std::cmp::Ordering;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use sys::known::Known;

/// A row of the policy table: prefix, its length, precedence, label.
type Policy = (Ipv6Addr, u32, u8, u8);

/// The default policy table of the C library: that of RFC 3484 with the additions of RFC 6724. The
/// longest prefix counts.
const POLICIES: [Policy; 8] = [
    (Ipv6Addr::LOCALHOST, 128, 50, 0),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96, 10, 4),
    (Ipv6Addr::UNSPECIFIED, 96, 20, 3),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, 40, 7),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, 30, 2),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, 40, 5),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, 40, 6),
    (Ipv6Addr::UNSPECIFIED, 0, 40, 1),
];

const SCOPE_LINK: u8 = 2;
const SCOPE_SITE: u8 = 5;
const SCOPE_GLOBAL: u8 = 14;
/// Where the kernel is asked for a route; nothing is sent.
const ANY_PORT: u16 = 53;

/// A destination and the address that we would speak to it from, if there is a way.
struct Candidate {
    to: IpAddr,
    from: Option<IpAddr>,
}

/// Sockets by which the kernel is asked for routes. They are kept, because making one costs ten
/// times as much as asking.
#[derive(Debug)]
pub struct Probes {
    v4: Option<Known>,
    v6: Option<Known>,
}

impl Probes {
    /// Without sockets: they are made when first needed.
    pub const fn new() -> Self {
        Self { v4: None, v6: None }
    }

    /// Sorts addresses, best first.
    pub fn sort(&mut self, addresses: Vec<IpAddr>) -> Vec<IpAddr> {
        if addresses.len() < 2 {
            return addresses;
        }
        sort_with(addresses, |to| self.source(to))
    }

    /// The address that the kernel would speak to `to` from.
    fn source(&mut self, to: IpAddr) -> Option<IpAddr> {
        let (kept, family) = match to {
            IpAddr::V4(_) => (&mut self.v4, AddressFamily::INET),
            IpAddr::V6(_) => (&mut self.v6, AddressFamily::INET6),
        };
        if kept.as_ref().is_none_or(|kept| !kept.is_there()) {
            *kept = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok().map(Known::new);
        }
        let socket = kept.as_ref()?.get().ok()?;
        connect(socket, &SocketAddr::new(to, ANY_PORT)).ok()?;
        let from = getsockname(socket).ok().and_then(|from| SocketAddr::try_from(from).ok());
        // The next route must not be looked up from this address. A socket that stays connected is
        // of no more use.
        if connect_unspec(socket).is_err() {
            *kept = None;
        }
        from.map(|from| from.ip())
    }
}

fn sort_with(addresses: Vec<IpAddr>, mut source: impl FnMut(IpAddr) -> Option<IpAddr>) -> Vec<IpAddr> {
    let mut candidates: Vec<Candidate> =
        addresses.into_iter().map(|to| Candidate { to, from: source(to) }).collect();
    // Stable: rule 10 leaves the order.
    candidates.sort_by(compare);
    candidates.into_iter().map(|candidate| candidate.to).collect()
}

fn compare(one: &Candidate, other: &Candidate) -> Ordering {
    // Rule 1: what can be reached.
    let reachable = other.from.is_some().cmp(&one.from.is_some());
    let sources = one.from.zip(other.from);
    let by_sources = sources.map_or(Ordering::Equal, |(one_from, other_from)| {
        // Rule 2: the scope of the source. Rule 5: its label.
        let scopes = |to, from| scope(to) == scope(from);
        let labels = |to, from| policy(to).3 == policy(from).3;
        scopes(other.to, other_from)
            .cmp(&scopes(one.to, one_from))
            .then(labels(other.to, other_from).cmp(&labels(one.to, one_from)))
    });
    // Rule 9: the longer prefix in common with the source.
    let common = sources.map_or(Ordering::Equal, |(one_from, other_from)| {
        common_prefix(other.to, other_from).cmp(&common_prefix(one.to, one_from))
    });
    let both_v6 = one.to.is_ipv6() && other.to.is_ipv6();
    reachable
        .then(by_sources)
        // Rule 6: precedence.
        .then(policy(other.to).2.cmp(&policy(one.to).2))
        // Rule 8: the smaller scope.
        .then(scope(one.to).cmp(&scope(other.to)))
        .then(if both_v6 { common } else { Ordering::Equal })
}

fn policy(address: IpAddr) -> Policy {
    let bits = v6(address).to_bits();
    let matches = |policy: &&Policy| {
        let (prefix, length, ..) = **policy;
        length == 0 || (bits ^ prefix.to_bits()) >> (128 - length) == 0
    };
    // The table is sorted by length, the last row matches everything.
    POLICIES.iter().find(matches).copied().unwrap_or(POLICIES[POLICIES.len() - 1])
}

fn scope(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(address) if address.is_loopback() || address.is_link_local() => SCOPE_LINK,
        IpAddr::V4(_) => SCOPE_GLOBAL,
        IpAddr::V6(address) if address.is_multicast() => address.octets()[1] & 15,
        IpAddr::V6(address) if address.is_loopback() || address.is_unicast_link_local() => SCOPE_LINK,
        IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfec0 => SCOPE_SITE,
        IpAddr::V6(_) => SCOPE_GLOBAL,
    }
}

fn common_prefix(one: IpAddr, other: IpAddr) -> u32 {
    (v6(one).to_bits() ^ v6(other).to_bits()).leading_zeros()
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_socket_forgets_the_last_route() {
        let mut probes = Probes::new();
        let loopback: IpAddr = "127.0.0.2".parse().expect("an address");
        let first = probes.source(loopback);
        assert_eq!(first, "127.0.0.1".parse().ok());
        assert_eq!(probes.source("127.0.0.1".parse().expect("an address")), first);
        assert!(probes.v4.is_some() && probes.v6.is_none());
        assert_eq!(probes.source("::1".parse().expect("an address")), "::1".parse().ok());
        assert_eq!(probes.source(loopback), first);
    }

    fn sorted(addresses: &[&str], source: impl Fn(IpAddr) -> Option<IpAddr>) -> Vec<String> {
        let addresses = addresses.iter().map(|text| text.parse().expect("an address")).collect();
        sort_with(addresses, source).iter().map(IpAddr::to_string).collect()
    }

    fn from(v4: Option<&str>, v6: Option<&str>) -> impl Fn(IpAddr) -> Option<IpAddr> {
        let parse = |text: Option<&str>| text.map(|text| text.parse::<IpAddr>().expect("an address"));
        let (v4, v6) = (parse(v4), parse(v6));
        move |to| if to.is_ipv4() { v4 } else { v6 }
    }

    #[test]
    fn without_any_route_ipv6_comes_first_and_the_order_stays() {
        let order = sorted(&["192.0.2.1", "192.0.2.2", "2001:db8::2", "2001:db8::1"], |_| None);
        assert_eq!(order, ["2001:db8::2", "2001:db8::1", "192.0.2.1", "192.0.2.2"]);
    }

    #[test]
    fn what_can_be_reached_comes_first() {
        let order = sorted(&["2001:db8::1", "192.0.2.1"], from(Some("192.0.2.9"), None));
        assert_eq!(order, ["192.0.2.1", "2001:db8::1"]);
        let order = sorted(&["192.0.2.1", "2001:db8::1"], from(Some("192.0.2.9"), Some("2001:db8::9")));
        assert_eq!(order, ["2001:db8::1", "192.0.2.1"]);
    }

    /// The examples of RFC 6724 section 10.2 that the default table decides.
    #[test]
    fn the_examples_of_the_standard_hold() {
        let order =
            sorted(&["2001:db8:1::1", "198.51.100.121"], from(Some("169.254.13.78"), Some("2001:db8:1::2")));
        assert_eq!(order, ["2001:db8:1::1", "198.51.100.121"]);
        let order =
            sorted(&["2001:db8:1::1", "198.51.100.121"], from(Some("198.51.100.117"), Some("fe80::1")));
        assert_eq!(order, ["198.51.100.121", "2001:db8:1::1"]);
        let order = sorted(&["2001:db8:1::1", "fe80::1"], |to| {
            let text = if scope(to) == SCOPE_LINK { "fe80::2" } else { "2001:db8:1::2" };
            text.parse().ok()
        });
        assert_eq!(order, ["fe80::1", "2001:db8:1::1"]);
        let near = |_| "2001:db8:1::2".parse().ok();
        assert_eq!(sorted(&["2001:db8:3::1", "2001:db8:1::1"], near), ["2001:db8:1::1", "2001:db8:3::1"]);
    }
}
