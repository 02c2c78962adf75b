//! The directory service, asked by the C library's rules: links that are opened when first needed,
//! one for each thread that asks at the same time.

use crate::hosts::{Hosts, is_dns_address, is_dns_name};
use crate::order::Probes;
use rustix::io::Errno;
use session::{Blocking, CallError, Control};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};
use sys::name_abi::libc::{AF_INET, AF_INET6, AI_ALL, AI_CANONNAME, AI_V4MAPPED, c_int};
use sys::name_abi::{AddressInfo, Failure, Hints, Host, Names, Reply, fork_generation};
use wire::directory::{AddressQuery, Addresses, KIND, Names as NameList, file};

/// Threads of a process that may ask at the same time; more go to the C library, which asks the
/// stub.
const LINKS: usize = 16;
/// Wished bytes of a ring: the longest answer is about 1.4 KiB.
const RING_BYTES: u32 = 16 * 1024;
/// How long a look-up may take: what the C library takes for three servers and two attempts of five
/// seconds.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// How long getting a link may take. The daemon and the server answer at once, or are in trouble.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// After getting no link, how long not to try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The directory service of this domain.
#[derive(Debug)]
pub struct Directory {
    hosts: Hosts,
    /// Taken by `try_lock` only: in the child of a fork, those that other threads held stay locked
    /// for ever.
    links: [Mutex<Link>; LINKS],
}

/// A link, or why there is none.
#[derive(Debug)]
struct Link {
    /// Of which process, counted by forks.
    generation: u64,
    open: Option<Blocking>,
    /// Not before.
    retry: Option<Instant>,
    payload: Vec<u8>,
    /// A child of a fork must not share them: two processes would connect one socket.
    probes: Probes,
}

impl Link {
    const fn new() -> Self {
        Self { generation: 0, open: None, retry: None, payload: Vec::new(), probes: Probes::new() }
    }

    /// Asks, over a new link if the old one is broken. Look-ups change nothing, so they may be
    /// asked twice.
    fn ask<T>(&mut self, file: u32, read: impl Fn(Result<&[u8], Errno>) -> Reply<T>) -> Reply<T> {
        for _ in 0..2 {
            self.prepare();
            let Self { open: Some(open), payload, .. } = self else { return Reply::Elsewhere };
            let deadline = Instant::now() + CALL_LIMIT;
            let answer = open.call(file, payload, Some(deadline)).map(|answer| read(answer.result));
            match answer {
                Ok(reply) => return reply,
                Err(CallError::TimedOut) => return Reply::Failed(Failure::Again),
                Err(CallError::TooLong(_)) => return Reply::Elsewhere,
                Err(_) => self.open = None,
            }
        }
        self.retry = Some(Instant::now() + RETRY_AFTER);
        Reply::Elsewhere
    }

    fn addresses(&mut self, name: &str, (v4, v6): (bool, bool)) -> Reply<Addresses> {
        self.payload.clear();
        AddressQuery { v4, v6, name }.encode(&mut self.payload);
        self.ask(file::ADDRESSES, |answer| match answer.map(Addresses::decode) {
            Ok(Ok(found)) if is_printable(&found.canonical) => Reply::Found(found),
            Ok(_) => Reply::Failed(Failure::Permanent),
            Err(errno) => Reply::Failed(failure(errno)),
        })
    }

    /// Opens the link if it is not open in this process, and if that can be hoped for.
    fn prepare(&mut self) {
        let generation = fork_generation();
        if self.generation != generation {
            self.generation = generation;
            self.retry = None;
            self.probes = Probes::new();
            if let Some(of_parent) = self.open.take() {
                of_parent.abandon();
            }
        }
        let hopeless = self.retry.is_some_and(|retry| Instant::now() < retry);
        if self.open.is_none() && !hopeless {
            self.open = connect();
            self.retry = self.open.is_none().then(|| Instant::now() + RETRY_AFTER);
        }
    }
}

/// A link to the first directory service that the domain mounts. Without a daemon or a server there
/// is none, and the program resolves as it would without this library; there is nobody to tell.
fn connect() -> Option<Blocking> {
    // The program's, before there is any: it may close whatever number it likes.
    sys::known::live_in_a_foreign_program();
    let deadline = Instant::now() + CONNECT_LIMIT;
    let mut control = Control::connect(&Control::path()).ok()?;
    let services = control.services(deadline).ok()?;
    let service = services.iter().find(|service| service.kind == KIND)?;
    let (_, end) = control.connect_service(&service.name, "preload", RING_BYTES, deadline).ok()?;
    Blocking::open(end, Some(deadline)).ok()
}

impl Directory {
    /// Without links.
    pub const fn new() -> Self {
        Self { hosts: Hosts::new("/etc/hosts"), links: [const { Mutex::new(Link::new()) }; LINKS] }
    }

    /// A link that no other thread uses now.
    fn link(&self) -> Option<MutexGuard<'_, Link>> {
        self.links.iter().find_map(|link| match link.try_lock() {
            Ok(link) => Some(link),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })
    }

    fn is_ours(&self, name: &str) -> bool {
        is_dns_name(name) && !self.hosts.has_name(name)
    }

    fn addresses(&self, name: &str, families: (bool, bool)) -> Reply<Addresses> {
        let Some(mut link) = self.link() else { return Reply::Elsewhere };
        link.addresses(name, families)
    }

    fn names(&self, address: IpAddr) -> Reply<Vec<String>> {
        let Some(mut link) = self.link() else { return Reply::Elsewhere };
        link.payload.clear();
        match address {
            IpAddr::V4(address) => link.payload.extend_from_slice(&address.octets()),
            IpAddr::V6(address) => link.payload.extend_from_slice(&address.octets()),
        }
        link.ask(file::NAMES, |answer| match answer.map(NameList::decode) {
            Ok(Ok(NameList(mut names))) => {
                names.retain(|name| is_printable(name));
                Reply::Found(names)
            }
            Ok(Err(_)) => Reply::Failed(Failure::Permanent),
            Err(errno) => Reply::Failed(failure(errno)),
        })
    }
}

/// Whether a name is one that the C library would let through to a program, which may print it or
/// pass it to a shell: names come from whoever runs the name server of an address.
fn is_printable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('-')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// The C library's failure for an upstream that failed with this errno. A domain that may not
/// resolve gets the same as from the stub, which refuses.
fn failure(errno: Errno) -> Failure {
    match errno {
        Errno::NOENT | Errno::INVAL | Errno::NAMETOOLONG => Failure::NoName,
        Errno::NODATA => Failure::NoData,
        Errno::OPNOTSUPP => Failure::Permanent,
        _ => Failure::Again,
    }
}

impl Names for Directory {
    fn address_info(&self, node: &str, hints: Hints) -> Reply<AddressInfo> {
        if !self.is_ours(node) {
            return Reply::Elsewhere;
        }
        let Some(mut link) = self.link() else { return Reply::Elsewhere };
        let found = match link.addresses(node, wanted(hints)) {
            Reply::Found(found) => found,
            Reply::Failed(failure) => return Reply::Failed(failure),
            Reply::Elsewhere => return Reply::Elsewhere,
        };
        let official = found.as_asked(node).unwrap_or(found.canonical);
        let canonical = has(hints, AI_CANONNAME).then_some(official);
        let addresses = fit(found.addresses, hints);
        if addresses.is_empty() {
            return Reply::Failed(Failure::NoData);
        }
        Reply::Found(AddressInfo { canonical, addresses: link.probes.sort(addresses) })
    }

    fn host_by_name(&self, name: &str, v6: bool) -> Reply<Host> {
        if !self.is_ours(name) {
            return Reply::Elsewhere;
        }
        let mut found = match self.addresses(name, (!v6, v6)) {
            Reply::Found(found) => found,
            Reply::Failed(failure) => return Reply::Failed(failure),
            Reply::Elsewhere => return Reply::Elsewhere,
        };
        found.addresses.retain(|address| address.is_ipv6() == v6);
        if found.addresses.is_empty() {
            return Reply::Failed(Failure::NoData);
        }
        let (official, aliases) = match found.as_asked(name) {
            Some(as_asked) => (as_asked, Vec::new()),
            None => (found.canonical, vec![name.strip_suffix('.').unwrap_or(name).to_owned()]),
        };
        Reply::Found(Host { name: official, aliases, addresses: found.addresses })
    }

    fn host_by_address(&self, address: IpAddr) -> Reply<Host> {
        if !is_dns_address(address) || self.hosts.has_address(address) {
            return Reply::Elsewhere;
        }
        match self.names(address) {
            Reply::Found(names) => {
                let mut names = names.into_iter();
                let Some(name) = names.next() else { return Reply::Failed(Failure::NoData) };
                Reply::Found(Host { name, aliases: names.collect(), addresses: vec![address] })
            }
            Reply::Failed(failure) => Reply::Failed(failure),
            Reply::Elsewhere => Reply::Elsewhere,
        }
    }
}

/// The families to ask for: IPv4 and IPv6.
fn wanted(hints: Hints) -> (bool, bool) {
    let v4 = hints.family != AF_INET6 || has(hints, AI_V4MAPPED);
    (v4, hints.family != AF_INET)
}

/// The addresses as the hints want them. IPv4 addresses for who wants IPv6 and allows it: with
/// `AI_ALL` in any case, otherwise where there is nothing else.
fn fit(addresses: Vec<IpAddr>, hints: Hints) -> Vec<IpAddr> {
    let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = addresses.into_iter().partition(IpAddr::is_ipv4);
    let mapped = |v4: Vec<IpAddr>| {
        v4.into_iter().map(|address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().into(),
            v6 @ IpAddr::V6(_) => v6,
        })
    };
    match hints.family {
        AF_INET => v4,
        AF_INET6 if has(hints, AI_V4MAPPED) && (v6.is_empty() || has(hints, AI_ALL)) => {
            v6.into_iter().chain(mapped(v4)).collect()
        }
        AF_INET6 => v6,
        _ => v4.into_iter().chain(v6).collect(),
    }
}

fn has(hints: Hints, flag: c_int) -> bool {
    hints.flags & flag != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(family: c_int, flags: c_int, addresses: &[&str]) -> Vec<String> {
        let addresses = addresses.iter().map(|text| text.parse().expect("an address")).collect();
        fit(addresses, Hints { flags, family }).iter().map(IpAddr::to_string).collect()
    }

    #[test]
    fn families_and_mapping_follow_the_hints() {
        let both = ["192.0.2.1", "2001:db8::1"];
        assert_eq!(fitted(0, 0, &both), both);
        assert_eq!(fitted(AF_INET, AI_V4MAPPED, &both), ["192.0.2.1"]);
        assert_eq!(fitted(AF_INET6, AI_ALL, &both), ["2001:db8::1"]);
        assert_eq!(fitted(AF_INET6, AI_V4MAPPED, &both), ["2001:db8::1"]);
        assert_eq!(fitted(AF_INET6, AI_V4MAPPED | AI_ALL, &both), ["2001:db8::1", "::ffff:192.0.2.1"]);
        assert_eq!(fitted(AF_INET6, AI_V4MAPPED, &both[..1]), ["::ffff:192.0.2.1"]);
        assert_eq!(fitted(AF_INET6, 0, &both[..1]), Vec::<String>::new());
        assert_eq!(wanted(Hints { flags: 0, family: AF_INET6 }), (false, true));
        assert_eq!(wanted(Hints { flags: AI_V4MAPPED, family: AF_INET6 }), (true, true));
        assert_eq!(wanted(Hints { flags: 0, family: AF_INET }), (true, false));
    }

    #[test]
    fn names_that_are_no_host_names_do_not_reach_programs() {
        assert!(is_printable("host.example") && is_printable("_x.host-1.example."));
        for name in ["", "-rf.example", "a b", "$(id).example", "a\u{1b}[2J", "a\0b", "b\u{fc}cher"] {
            assert!(!is_printable(name), "{name:?}");
        }
    }
}
