//! Classes of the node's link, of what goes out and of what comes in, and of what domains say to
//! each other on the node: one for each who is promised some of it. A packet belongs to the cgroup
//! that its socket was made in, whatever its program asks of the socket. Proxies, which carry what
//! many say, have one each.

use admin::reserve::{LinkSettings, NodeSettings};
use domain::Cgroups;
use interface::incoming::{self, Incoming};
use interface::outgoing::{self, Outgoing};
use interface::traffic::{Class, Counted, FIRST_CLASS, Traffic, priority};
use reserve::node::Promise;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use sys::packet_class::{Owners, Sockets};

/// Numbers of classes go up to here: there are more of them than promises, so one is always free.
const LAST_CLASS: u16 = 0xfff0;
/// The interface by which domains of a node reach each other.
const LOOPBACK: &str = "lo";
/// The prefix of proxies' names: no domain is called so.
const PROXY: &str = "+links/";
/// Share of the link that a proxy has for itself where all of it is promised.
const PROXY_SHARE: u64 = 100;
/// How much a proxy may send at once, in bytes: some of its own longest writes to a socket.
const PROXY_BURST_BYTES: u64 = 64 << 10;

/// The beginning of each caveat that is about all of the network.
const NOT_KEPT: &str = "the network is not kept";

/// The link that classes are kept on.
#[derive(Debug, Default)]
pub(crate) struct Links {
    kept: Option<Kept>,
    /// Where something of ours may be, also while nothing is kept: the interface, and whether the
    /// loopback as well.
    made: Option<(String, bool)>,
    classes: BTreeMap<String, Given>,
    /// Cgroups of proxies, by node.
    proxies: BTreeMap<String, String>,
    /// Why there are no classes now, where there should be.
    trouble: Option<String>,
}

/// Where classes are.
#[derive(Debug)]
struct Kept {
    link: LinkSettings,
    between_bits: Option<u64>,
    owners: Owners,
    outgoing: Outgoing,
    incoming: Option<(Incoming, Sockets)>,
    between: Option<Outgoing>,
    /// The ones that are missing, and why.
    lacks: Vec<String>,
}

/// A class that somebody has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Given {
    number: u16,
    class: Class,
    cgroup: Owner,
}

/// A cgroup of version 2 that packets belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    /// Its number, which no other one ever has.
    number: u64,
    directory: PathBuf,
}

/// Bytes that have gone through the class of one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) sent: Option<u64>,
    pub(crate) received: Option<u64>,
    pub(crate) between: Option<u64>,
}

/// The queue of the class of one, on its way out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    /// Packets that have gone out.
    pub(crate) sent: u64,
    /// Packets that found no room.
    pub(crate) dropped: u64,
    /// Bytes that wait.
    pub(crate) bytes: u64,
}

impl Kept {
    fn open(settings: &NodeSettings) -> Result<Self, String> {
        let link = settings.link.clone().ok_or("nothing is said of the node's link")?;
        let failed = |error: io::Error| format!("can't make classes on {}: {}", link.device, said(&error));
        // An earlier daemon's programs know whose packets those are that are sent meanwhile.
        let found = outgoing::owners_found(&link.device).map_err(failed)?;
        let owners = found.map_or_else(Owners::new, Ok).map_err(failed)?;
        let outgoing = Outgoing::open(&link.device, link.rate_bits, &owners).map_err(failed)?;
        let mut lacks = Vec::new();
        let mut told =
            |what: &str, error: io::Error| lacks.push(format!("{what} is not kept: {}", said(&error)));
        let incoming = match link.device.as_str() {
            // What it brings is what was sent over it.
            LOOPBACK => None,
            device => {
                open_incoming(device, link.rate_bits).map_err(|error| told("what comes in", error)).ok()
            }
        };
        let between = settings.between_bits.filter(|_| link.device != LOOPBACK).and_then(|rate_bits| {
            Outgoing::open(LOOPBACK, rate_bits, &owners)
                .map_err(|error| told("what domains of this node say to each other", error))
                .ok()
        });
        Ok(Self { link, between_bits: settings.between_bits, owners, outgoing, incoming, between, lacks })
    }

    /// Returns the places where there is something to set, with the class for each.
    fn places(&self, wanted: &Class) -> Vec<(&Traffic, Class)> {
        let mut places = vec![(self.outgoing.traffic(), *wanted)];
        places.extend(self.incoming.as_ref().map(|(incoming, _)| (incoming.traffic(), *wanted)));
        if let (Some(between), Some(rate_bits)) = (&self.between, self.between_bits) {
            // Who may use the whole link may use all of it here, too.
            let whole = wanted.ceiling_bits >= self.link.rate_bits;
            let ceiling_bits = if whole { rate_bits } else { wanted.ceiling_bits };
            places.push((between.traffic(), Class { ceiling_bits, ..*wanted }));
        }
        places
    }

    /// Sets a class everywhere, or leaves it everywhere as it was.
    fn set(&self, number: u16, wanted: &Class, before: Option<&Class>) -> io::Result<()> {
        let mut done: Vec<&Traffic> = Vec::new();
        for (traffic, class) in self.places(wanted) {
            if let Err(error) = traffic.set(number, &class) {
                let old = before.map(|class| self.places(class)).unwrap_or_default();
                for traffic in done {
                    let old = old.iter().find(|(place, _)| place.index() == traffic.index());
                    let back =
                        old.map_or_else(|| traffic.remove(number), |(_, class)| traffic.set(number, class));
                    if let Err(error) = back {
                        tracing::warn!(device = traffic.device(), %error, "a class can't be set back");
                    }
                }
                let words = format!("{}: {error}", traffic.device());
                return Err(io::Error::new(error.kind(), words));
            }
            done.push(traffic);
        }
        Ok(())
    }

    /// Gives a class what one is promised, and the packets of its cgroup to the class.
    fn give(&self, given: &Given) -> io::Result<()> {
        self.set(given.number, &given.class, None)?;
        self.own(&given.cgroup, given.number)
    }

    /// Packets of a cgroup go through the class from now on: those that its sockets send, and those
    /// that come for sockets which it makes.
    fn own(&self, cgroup: &Owner, number: u16) -> io::Result<()> {
        self.owners.set(cgroup.number, priority(number))?;
        let Some((_, sockets)) = &self.incoming else { return Ok(()) };
        match File::open(&cgroup.directory) {
            Ok(directory) => sockets.set_for_cgroup(directory.as_fd(), priority(number)),
            // Nobody is in it any more.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn remove(&self, given: &Given) -> io::Result<()> {
        self.owners.remove(given.cgroup.number)?;
        let number = given.number;
        let all = self.places(&Class { rate_bits: 0, ceiling_bits: 0, burst_bytes: 0, precedence: 0 });
        let removed: Vec<io::Result<()>> = all.iter().map(|(traffic, _)| traffic.remove(number)).collect();
        removed.into_iter().collect()
    }

    fn close(&self) -> io::Result<()> {
        let incoming = self.incoming.as_ref().map_or(Ok(()), |(incoming, _)| incoming.close());
        let between = self.between.as_ref().map_or(Ok(()), Outgoing::close);
        self.outgoing.close().and(incoming).and(between)
    }

    /// Whether the interface is the one that it was, and nobody has taken away what was made of it.
    fn is_whole(&self) -> bool {
        self.outgoing.is_whole()
            && self.incoming.as_ref().is_none_or(|(incoming, _)| incoming.is_whole())
            && self.between.as_ref().is_none_or(Outgoing::is_whole)
    }
}

impl Links {
    /// Keeps the class of one, or takes it away where there is none; what can't be kept is told.
    pub(crate) fn keep(
        &mut self,
        name: &str,
        cgroup: &str,
        promise: &Promise,
        settings: &NodeSettings,
        cgroups: &Cgroups,
    ) -> Vec<String> {
        match self.change(name, cgroup, promise, settings, cgroups) {
            Ok(caveats) => caveats,
            Err(why) => vec![format!("{NOT_KEPT}: {why}")],
        }
    }

    /// As [`Links::keep`], where the whole is taken back when this can't be done.
    ///
    /// # Errors
    /// Why the class is as it was before.
    pub(crate) fn change(
        &mut self,
        name: &str,
        cgroup: &str,
        promise: &Promise,
        settings: &NodeSettings,
        cgroups: &Cgroups,
    ) -> Result<Vec<String>, String> {
        let Some(class) = promise.network else {
            self.drop_class(name);
            return Ok(Vec::new());
        };
        let wanted = Class {
            rate_bits: class.rate_bits,
            ceiling_bits: class.ceiling_bits,
            burst_bytes: class.burst_bytes,
            precedence: class.precedence,
        };
        self.put(name, cgroup, &wanted, settings, cgroups)?;
        self.put_proxies(settings, cgroups);
        Ok(self.kept.as_ref().map(|kept| kept.lacks.clone()).unwrap_or_default())
    }

    fn put(
        &mut self,
        name: &str,
        cgroup: &str,
        wanted: &Class,
        settings: &NodeSettings,
        cgroups: &Cgroups,
    ) -> Result<(), String> {
        let cgroup = identify(cgroup, cgroups)?;
        let known = self.classes.get(name).cloned();
        let number = known.as_ref().map_or_else(|| self.free(name), |known| known.number);
        let before = known.as_ref().map(|known| &known.class);
        if self.kept.is_none() {
            self.renew(settings)?;
        }
        let kept = self.kept.take().ok_or("there are no classes")?;
        let set = kept.set(number, wanted, before).map_err(|error| said(&error));
        let whole = set.is_ok() || kept.is_whole();
        self.kept = Some(kept);
        if let Err(why) = set {
            // Somebody has taken away what was made: it is made anew, once, where nobody else is
            // there now.
            if whole {
                return Err(why);
            }
            self.renew(settings).map_err(|again| format!("{why}; {again}"))?;
            let kept = self.kept.as_ref().ok_or("there are no classes")?;
            kept.set(number, wanted, None).map_err(|error| said(&error))?;
        }
        let kept = self.kept.as_ref().ok_or("there are no classes")?;
        if let Some(known) = known.filter(|known| known.cgroup != cgroup) {
            // It runs anew, in a cgroup that has taken the place of the one before.
            kept.owners.remove(known.cgroup.number).map_err(|error| said(&error))?;
        }
        kept.own(&cgroup, number)
            .map_err(|error| format!("whose packets they are can't be told: {}", said(&error)))?;
        self.classes.insert(name.to_owned(), Given { number, class: *wanted, cgroup });
        Ok(())
    }

    fn open(&mut self, settings: &NodeSettings) -> Result<Kept, String> {
        let opened = Kept::open(settings);
        self.trouble = opened.as_ref().err().cloned();
        if let Ok(kept) = &opened {
            self.made = Some((kept.link.device.clone(), kept.between.is_some()));
        }
        opened
    }

    /// Makes all classes anew where they should be.
    fn renew(&mut self, settings: &NodeSettings) -> Result<(), String> {
        self.kept = None;
        let kept = self.open(settings)?;
        for (name, given) in &self.classes {
            kept.give(given).map_err(|error| format!("{name}: {error}"))?;
        }
        self.kept = Some(kept);
        Ok(())
    }

    /// Looks whether the link is still what classes were made on, and makes them anew where it has
    /// come back. Says whether something has changed.
    pub(crate) fn look(&mut self, settings: &NodeSettings) -> bool {
        if self.classes.is_empty() || self.kept.as_ref().is_some_and(Kept::is_whole) {
            return false;
        }
        let before = self.trouble.clone();
        self.trouble = self.renew(settings).err();
        if let Some(link) = &settings.link {
            match &self.trouble {
                None => tracing::info!(device = link.device, "the classes of the link are made anew"),
                Some(why) if before.is_none() => {
                    tracing::warn!(device = link.device, why, "the classes of the link are gone");
                    if let Err(error) = incoming::sweep(&link.device) {
                        tracing::debug!(%error, "what is left of the link can't be looked at");
                    }
                }
                Some(_) => {}
            }
        }
        before != self.trouble
    }

    /// Whether classes are where they should be.
    pub(crate) fn is_kept(&self) -> bool {
        self.trouble.is_none()
    }

    /// Returns the caveat about the network for a domain that is promised some of it; none where
    /// its other caveats say it already.
    pub(crate) fn caveat_beside(&self, known: &[String]) -> Option<String> {
        let is_said = known.iter().any(|caveat| caveat.starts_with(NOT_KEPT));
        self.trouble.as_ref().filter(|_| !is_said).map(|why| format!("{NOT_KEPT} now: {why}"))
    }

    /// A proxy is there, or about to be: its packets belong to a class of its own.
    pub(crate) fn proxy_came(
        &mut self,
        node: &str,
        cgroup: &str,
        settings: &NodeSettings,
        cgroups: &Cgroups,
    ) {
        self.proxies.insert(node.to_owned(), cgroup.to_owned());
        self.put_proxies(settings, cgroups);
    }

    /// The node is no more in the cluster.
    pub(crate) fn proxy_left(&mut self, node: &str) {
        self.proxies.remove(node);
        self.drop_class(&format!("{PROXY}{node}"));
    }

    /// Gives each proxy its class, beside those of domains. Its domains do not use their promised
    /// share otherwise while it sends for them; so it gets that before everybody who borrows, and
    /// little of its own.
    fn put_proxies(&mut self, settings: &NodeSettings, cgroups: &Cgroups) {
        let Some(link) = settings.link.as_ref().filter(|_| self.has_domains()) else { return };
        let domains = self.classes.iter().filter(|(name, _)| !name.starts_with(PROXY));
        let promised: u64 = domains.map(|(_, given)| given.class.rate_bits).sum();
        let free = link.rate_bits.saturating_sub(promised).max(link.rate_bits / PROXY_SHARE);
        let count = u64::try_from(self.proxies.len()).unwrap_or(u64::MAX).max(1);
        let class = Class {
            rate_bits: (promised.min(free) / count).max(link.rate_bits / PROXY_SHARE / count).max(8),
            ceiling_bits: link.rate_bits,
            burst_bytes: PROXY_BURST_BYTES,
            precedence: 0,
        };
        for (node, cgroup) in self.proxies.clone() {
            let name = format!("{PROXY}{node}");
            let is_given = |given: &Given| {
                given.class == class && identify(&cgroup, cgroups).is_ok_and(|owner| owner == given.cgroup)
            };
            if self.classes.get(&name).is_some_and(is_given) {
                continue;
            }
            if let Err(why) = self.put(&name, &cgroup, &class, settings, cgroups) {
                tracing::warn!(node, why, "the proxy for the node has no class of the link");
            }
        }
    }

    fn has_domains(&self) -> bool {
        self.classes.keys().any(|name| !name.starts_with(PROXY))
    }

    /// A number that nobody has; the same for the same name wherever that is free, for the sockets
    /// of its programs have it.
    fn free(&self, name: &str) -> u16 {
        let first = first_number(name);
        let span = LAST_CLASS - FIRST_CLASS;
        let taken =
            |number: &u16| self.classes.iter().any(|(other, given)| given.number == *number && other != name);
        let numbers = (0..span).map(|step| {
            let offset = (u32::from(first - FIRST_CLASS) + u32::from(step)) % u32::from(span);
            FIRST_CLASS + u16::try_from(offset).unwrap_or(0)
        });
        numbers.into_iter().find(|number| !taken(number)).unwrap_or(FIRST_CLASS)
    }

    /// Takes the class of one away; with the last one, the link is as it was before.
    pub(crate) fn drop_class(&mut self, name: &str) {
        let Some(given) = self.classes.remove(name) else { return };
        if !self.has_domains() {
            return self.forget();
        }
        let Some(kept) = &self.kept else { return };
        if let Err(error) = kept.remove(&given) {
            tracing::warn!(name, %error, "its class of the link can't be taken away");
        }
    }

    /// The link is as it was before; classes are to be made anew.
    pub(crate) fn forget(&mut self) {
        self.classes.clear();
        self.trouble = None;
        let Some((device, between)) = self.made.take() else { return };
        let closed = match self.kept.take() {
            Some(kept) => kept.close(),
            // Somebody has taken a part of it away; the rest is still ours.
            None => sweep_all(&device, between),
        };
        if let Err(error) = closed {
            tracing::warn!(device, %error, "the classes of the link can't be taken away");
        }
    }

    /// Takes away what an earlier daemon left on the link and nobody needs: all of it where `names`
    /// are none, else the classes of others.
    pub(crate) fn clear_left(&self, settings: &NodeSettings, names: &BTreeSet<String>) {
        let Some(link) = settings.link.as_ref().filter(|_| self.classes.is_empty()) else { return };
        let cleared = if names.is_empty() {
            sweep_all(&link.device, settings.between_bits.is_some())
        } else {
            let numbers: BTreeSet<u16> = names.iter().map(|name| first_number(name)).collect();
            prune(&link.device, &numbers)
        };
        if let Err(error) = cleared {
            tracing::debug!(device = link.device, %error, "what an earlier daemon left on the link can't be looked at");
        }
    }

    /// Returns the queue of the class of one domain; `None`: it has no class here.
    pub(crate) fn queue(&self, name: &str) -> Option<Queue> {
        let (given, kept) = (self.classes.get(name)?, self.kept.as_ref()?);
        let counted: Counted = kept.outgoing.traffic().one(given.number).ok()?;
        let Counted { sent_packets: sent, dropped, queued_bytes: bytes, .. } = counted;
        Some(Queue { sent, dropped, bytes })
    }

    /// Returns the traffic through the class of one domain.
    pub(crate) fn moved(&self, name: &str) -> Moved {
        let (Some(given), Some(kept)) = (self.classes.get(name), &self.kept) else { return Moved::default() };
        let sent =
            |traffic: &Traffic| traffic.one(given.number).ok().map(|counted: Counted| counted.sent_bytes);
        Moved {
            sent: sent(kept.outgoing.traffic()),
            received: kept.incoming.as_ref().and_then(|(incoming, _)| sent(incoming.traffic())),
            between: kept.between.as_ref().and_then(|between| sent(between.traffic())),
        }
    }
}

/// Takes away all that is ours of an interface, and of the loopback; what somebody else has made
/// stays. An interface that is gone has nothing.
fn sweep_all(device: &str, between: bool) -> io::Result<()> {
    let outgoing = outgoing::sweep(device).or_else(|error| match error.raw_os_error() {
        Some(code) if code == Errno::NODEV.raw_os_error() => Ok(()),
        _ => Err(error),
    });
    let between = if between { outgoing::sweep(LOOPBACK) } else { Ok(()) };
    outgoing.and(incoming::sweep(device)).and(between)
}

/// The number that a class has by its name, where nobody else has it.
fn first_number(name: &str) -> u16 {
    // FNV-1a, 32 bits.
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    FIRST_CLASS + u16::try_from(hash % u32::from(LAST_CLASS - FIRST_CLASS)).unwrap_or(0)
}

/// Takes away all classes but those of these numbers, and whom else they belonged to. One whose
/// number was taken goes too, and is made anew with its first packet waiting.
fn prune(device: &str, numbers: &BTreeSet<u16>) -> io::Result<()> {
    if let Some(owners) = outgoing::owners_found(device)? {
        let wanted: BTreeSet<u32> = numbers.iter().map(|number| priority(*number)).collect();
        owners.retain(|found| wanted.contains(&found))?;
    }
    let Some(traffic) = Traffic::found(device)? else { return Ok(()) };
    let found = traffic.counted()?;
    let mut others =
        found.iter().filter(|counted| counted.class >= FIRST_CLASS && !numbers.contains(&counted.class));
    others.try_for_each(|counted| traffic.remove(counted.class))
}

/// Leads what comes in by a link through classes. Sockets that are open keep theirs where an
/// earlier daemon did the same.
fn open_incoming(device: &str, rate_bits: u64) -> io::Result<(Incoming, Sockets)> {
    let sockets = incoming::sockets_found(device)?.map_or_else(Sockets::new, Ok)?;
    Ok((Incoming::open(device, rate_bits, &sockets)?, sockets))
}

/// The cgroup by which the kernel knows whose packets are whose.
fn identify(cgroup: &str, cgroups: &Cgroups) -> Result<Owner, String> {
    let directory = cgroups.unified(cgroup).ok_or(
        "whose packets they are can't be told: there is no control group of version 2 beside those of version 1",
    )?;
    match std::fs::metadata(&directory) {
        Ok(found) => Ok(Owner { number: found.ino(), directory }),
        Err(error) => Err(format!("can't look at {}: {error}", directory.display())),
    }
}

/// Returns the error in words, with the capability that the daemon lacks where that is the reason.
fn said(error: &io::Error) -> String {
    let lacks = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; the daemon takes CAP_NET_ADMIN for that, and CAP_BPF or CAP_SYS_ADMIN to tell whose packets they are: start it as root"
        }
        _ => "",
    };
    format!("{error}{lacks}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use admin::reserve::LinkSettings;
    use std::process::Command;

    /// Once two lines said that the network was not kept, one of them "now", with the same reason.
    #[test]
    fn a_network_that_is_not_kept_is_told_once() {
        let mut links = Links::default();
        assert_eq!(links.caveat_beside(&[]), None);
        links.trouble = Some("no such interface".to_owned());
        let other = "memory is not kept: this kernel has no control group for it".to_owned();
        // It was kept, and is so no longer.
        let told = links.caveat_beside(std::slice::from_ref(&other)).unwrap();
        assert_eq!(told, "the network is not kept now: no such interface");
        // It never was.
        let nowhere = Cgroups::discover().unwrap();
        let class = reserve::network::Class { rate_bits: 8, ceiling_bits: 8, burst_bytes: 1, precedence: 0 };
        let promise = Promise { network: Some(class), ..Promise::default() };
        let link = Some(LinkSettings { device: "no-such-link".into(), rate_bits: 8 });
        let settings = NodeSettings { link, ..super::super::settings::found() };
        let known = links.keep("shop/web", "tombolo-of-nobody", &promise, &settings, &nowhere);
        assert!(known.len() == 1 && !links.is_kept(), "{known:?}");
        assert_eq!(links.caveat_beside(&known), None);
        assert!(links.caveat_beside(&[other]).is_some());
    }

    /// In a network namespace and a cgroup of their own: what a program of the cgroup sends is
    /// counted at its class, and at the rest no more.
    #[test]
    fn what_a_cgroup_sends_goes_through_its_class() {
        let done = std::thread::spawn(|| {
            let cgroups = Cgroups::discover().map_err(|error| error.to_string())?;
            sys::namespace::unshare(sys::namespace::UnshareFlags::NEWNET)
                .map_err(|error| error.to_string())?;
            interface::Interfaces::open().unwrap().set_up(interface::LOOPBACK).unwrap();
            let cgroup = format!("tombolo-test-classes-{}", std::process::id());
            cgroups.create(&cgroup).map_err(|error| error.to_string())?;
            let result = send_through(&cgroups, &cgroup);
            cgroups.remove(&cgroup).unwrap();
            result
        });
        if let Err(reason) = done.join().unwrap() {
            println!("skipped: {reason}");
        }
    }

    fn send_through(cgroups: &Cgroups, cgroup: &str) -> Result<(), String> {
        let Some(at) = cgroups.unified(cgroup) else { return Err("no control groups of version 2".into()) };
        let link = Some(LinkSettings { device: "lo".into(), rate_bits: 100_000_000 });
        let settings = NodeSettings { link, ..super::super::settings::found() };
        let class = reserve::network::Class {
            rate_bits: 5_000_000,
            ceiling_bits: 100_000_000,
            burst_bytes: 16 << 10,
            precedence: 0,
        };
        let promise = Promise { network: Some(class), ..Promise::default() };
        let mut links = Links::default();
        assert!(
            links.keep("shop/none", cgroup, &promise, &super::super::settings::found(), cgroups)[0]
                .contains("nothing is said")
        );
        let caveats = links.keep("shop/web", cgroup, &promise, &settings, cgroups);
        if !caveats.is_empty() {
            return Err(caveats.join("; "));
        }
        let sent = |links: &Links| links.moved("shop/web").sent;
        assert_eq!(sent(&links), Some(0));
        let line = format!(
            "echo $$ > {}/cgroup.procs; exec bash -c 'echo hello > /dev/udp/127.0.0.1/9999'",
            at.display()
        );
        let done = Command::new("sh").args(["-c", &line]).status().unwrap();
        assert!(done.success());
        let mut first = sent(&links).unwrap();
        assert!(first > 20, "{first}");
        // Whatever it asks of its sockets.
        for option in [
            "SOL_SOCKET, socket.SO_PRIORITY, 0",
            "SOL_SOCKET, socket.SO_PRIORITY, 6",
            "IPPROTO_IP, socket.IP_TOS, 8",
        ] {
            let program = format!(
                "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(socket.{option}); s.sendto(bytes(500), ('127.0.0.1', 9999))"
            );
            let line = format!("echo $$ > {}/cgroup.procs; exec python3 -c \"{program}\"", at.display());
            assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success());
            let now = sent(&links).unwrap();
            assert!(now >= first + 500, "{option}: {first} {now}");
            first = now;
        }
        let outside =
            Command::new("bash").args(["-c", "echo hello > /dev/udp/127.0.0.1/9999"]).status().unwrap();
        assert!(outside.success());
        assert_eq!(sent(&links), Some(first));
        // Another rate while it sends is the same class.
        let less =
            Promise { network: Some(reserve::network::Class { rate_bits: 1_000_000, ..class }), ..promise };
        assert_eq!(links.keep("shop/web", cgroup, &less, &settings, cgroups), Vec::<String>::new());
        assert_eq!(sent(&links), Some(first));
        links.keep("shop/web", cgroup, &Promise::default(), &settings, cgroups);
        assert_eq!((sent(&links), links.kept.is_none()), (None, true));
        links.clear_left(&settings, &BTreeSet::new());
        Ok(())
    }

    #[test]
    fn numbers_of_classes_follow_from_names_and_are_nobody_elses() {
        let mut links = Links::default();
        for number in 0..2_000 {
            let name = format!("shop/d{number}");
            let class = links.free(&name);
            assert!((FIRST_CLASS..LAST_CLASS).contains(&class));
            assert!(links.classes.values().all(|other| other.number != class));
            assert_eq!(class, links.free(&name));
            let given = Given {
                number: class,
                class: Class { rate_bits: 8, ceiling_bits: 8, burst_bytes: 2_000, precedence: 0 },
                cgroup: Owner { number: 1, directory: PathBuf::new() },
            };
            links.classes.insert(name, given);
        }
    }
}
