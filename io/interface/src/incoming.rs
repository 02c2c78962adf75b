//! Classes of what comes in by a link. The kernel queues nothing there, so it goes through an intermediate device (`ifb`) first, which has the same classes as the link. Whose a packet is says the
//! priority of the socket that waits for it, by a program for each packet ([`sys::packet_class`]).
//!
//! What is made is told from what others have by names: the device is `tombolo` and the number of the link, the filter is `tombolo`.

use super::netlink::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Netlink, attribute, attributes, four, text};
use super::traffic::{
    Counted, HEAD_BYTES, MAJOR, RTM_DELQDISC, RTM_GETQDISC, RTM_NEWQDISC, TCA_KIND, TCA_OPTIONS, Traffic,
    head, index_of,
};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsRawFd;

// linux/rtnetlink.h, linux/if_link.h, linux/pkt_sched.h, linux/pkt_cls.h
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
const IFF_UP: u32 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
/// Bytes of struct ifinfomsg.
const LINK_BYTES: usize = 16;
const TC_H_CLSACT: u32 = 0xffff_fff1;
const CLSACT: u32 = 0xffff_0000;
/// Where filters of what comes in are, and of what goes out.
const INGRESS: u32 = 0xffff_fff2;
const EGRESS: u32 = 0xffff_fff3;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
/// What the program says is what is done.
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
const ETH_P_ALL: u16 = 3;
/// The filter's place among others, and what is in front of the number of its link in the name of the device.
const PLACE: u32 = 0x7462;
const NAME: &str = "tombolo";
/// Packets that wait in each class: those of an Ethernet. An `ifb` would have 32.
const QUEUE_PACKETS: u32 = 1_000;

/// What comes in by one link, in classes.
#[derive(Debug)]
pub struct Incoming {
    netlink: Netlink,
    /// Number of the link.
    index: u32,
    /// Number of the device in between.
    between: u32,
    traffic: Traffic,
}

/// A filter that somebody has put there.
#[derive(Debug, PartialEq, Eq)]
enum Filter {
    Ours,
    Other(String),
}

impl Incoming {
    /// Leads what comes in through classes; what an earlier process has made of it stays, with its classes.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] where somebody else looks at what comes in, who is left alone; [`io::ErrorKind::Unsupported`] where the kernel has no `ifb` or no `clsact`; what
    /// the kernel says.
    pub fn open(device: &str, rate_bits: u64) -> io::Result<Self> {
        let index = index_of(device)?;
        let netlink = Netlink::open()?;
        let name = name_of(index);
        let found = device_in_between(&netlink, &name)?;
        foreign(&netlink, index, found.is_some(), device)?;
        let fresh = found.is_none();
        let between = match found {
            Some(between) => between,
            None => make_device(&netlink, &name)?,
        };
        let traffic = match Traffic::open(&name, rate_bits) {
            Ok(traffic) => traffic,
            Err(error) => {
                if fresh {
                    // What was begun is taken back; that it can't be is worth less than why.
                    let _why_counts = remove_device(&netlink, between);
                }
                return Err(error);
            }
        };
        let incoming = Self { netlink, index, between, traffic };
        if let Err(error) = incoming.lead() {
            if fresh {
                let _why_counts = incoming.close();
            }
            return Err(error);
        }
        Ok(incoming)
    }

    /// Leads packets to the device in between, and reads back that they are.
    fn lead(&self) -> io::Result<()> {
        let mut body = head(self.index, CLSACT, TC_H_CLSACT, 0);
        attribute(&mut body, TCA_KIND, b"clsact\0");
        match self.netlink.ask(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, &body) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(absent("clsact", error)),
        }
        let program = sys::packet_class::load(MAJOR, self.between)?;
        let mut options = Vec::new();
        attribute(&mut options, TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes());
        attribute(&mut options, TCA_BPF_NAME, b"tombolo\0");
        attribute(&mut options, TCA_BPF_FLAGS, &TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes());
        let mut body = self.filter();
        attribute(&mut body, TCA_KIND, b"bpf\0");
        attribute(&mut body, TCA_OPTIONS, &options);
        self.netlink
            .ask(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_REPLACE, &body)
            .map_err(|error| absent("filters by programs", error))?;
        if filters(&self.netlink, self.index, INGRESS)? == [Filter::Ours] {
            return Ok(());
        }
        Err(io::Error::other("the kernel has not the filter that was asked for"))
    }

    fn filter(&self) -> Vec<u8> {
        head(self.index, 1, INGRESS, PLACE << 16 | u32::from(ETH_P_ALL.to_be()))
    }

    /// Its classes.
    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Whether packets still go through them: nobody has taken the device or the filter away.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        filters(&self.netlink, self.index, INGRESS).is_ok_and(|found| found.contains(&Filter::Ours))
            && matches!(device_in_between(&self.netlink, &name_of(self.index)), Ok(Some(found)) if found == self.between)
    }

    /// All classes, as they are.
    ///
    /// # Errors
    /// As [`Traffic::counted`].
    pub fn counted(&self) -> io::Result<Vec<Counted>> {
        self.traffic.counted()
    }

    /// Packets come in by the direct way again, and nothing is left. What somebody else has put beside it stays.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn close(&self) -> io::Result<()> {
        clear(&self.netlink, self.index, Some(self.between))
    }
}

/// Takes away what is left of a link: of one that is here (a process that led its packets was killed), and of all that are gone.
///
/// # Errors
/// What the kernel says; there being nothing is no error.
pub fn sweep(device: &str) -> io::Result<()> {
    let netlink = Netlink::open()?;
    let links = links(&netlink)?;
    let here: BTreeSet<u32> = links.iter().map(|link| link.index).collect();
    for link in links.iter().filter(|link| link.kind == "ifb") {
        let Some(of) = link.name.strip_prefix(NAME).and_then(|number| number.parse().ok()) else { continue };
        let named = links.iter().find(|link| link.index == of).is_some_and(|link| link.name == device);
        if named || !here.contains(&of) {
            clear(&netlink, of, Some(link.index))?;
        }
    }
    Ok(())
}

fn name_of(index: u32) -> String {
    format!("{NAME}{index}")
}

/// The filter goes first, so that no packet is led to where there is nothing.
fn clear(netlink: &Netlink, index: u32, between: Option<u32>) -> io::Result<()> {
    let gone = |done: io::Result<()>| match done {
        // The link is no more, or there was none.
        Err(error) if matches!(error.raw_os_error(), Some(NODEV | NOENT | INVAL)) => Ok(()),
        done => done,
    };
    if filters(netlink, index, INGRESS).unwrap_or_default().contains(&Filter::Ours) {
        let body = head(index, 1, INGRESS, PLACE << 16 | u32::from(ETH_P_ALL.to_be()));
        let mut body = body;
        attribute(&mut body, TCA_KIND, b"bpf\0");
        gone(netlink.ask(RTM_DELTFILTER, 0, &body))?;
    }
    let others =
        [INGRESS, EGRESS].iter().any(|at| !filters(netlink, index, *at).unwrap_or_default().is_empty());
    if !others && discipline(netlink, index)?.as_deref() == Some("clsact") {
        gone(netlink.ask(RTM_DELQDISC, 0, &head(index, CLSACT, TC_H_CLSACT, 0)))?;
    }
    between.map_or(Ok(()), |between| gone(remove_device(netlink, between)))
}

const NOENT: i32 = 2;
const NODEV: i32 = 19;
const INVAL: i32 = 22;

/// Whether somebody else looks at what comes in. `begun`: an earlier process of ours was there, so a discipline without filters is its.
fn foreign(netlink: &Netlink, index: u32, begun: bool, device: &str) -> io::Result<()> {
    let Some(kind) = discipline(netlink, index)? else { return Ok(()) };
    let found = if kind == "clsact" { filters(netlink, index, INGRESS)? } else { Vec::new() };
    let other =
        found.iter().find_map(|filter| if let Filter::Other(what) = filter { Some(what) } else { None });
    let what = match other {
        Some(what) => what.clone(),
        None if kind == "clsact" && (begun || found.contains(&Filter::Ours)) => return Ok(()),
        None => kind,
    };
    let words = format!(
        "somebody else has `{what}` where packets come in at {device}, which stays (`tc qdisc show dev {device}`)"
    );
    Err(io::Error::new(io::ErrorKind::AlreadyExists, words))
}

/// What there is where packets come in: `clsact`, `ingress`.
fn discipline(netlink: &Netlink, index: u32) -> io::Result<Option<String>> {
    let all = netlink.dump(RTM_GETQDISC, &head(index, 0, 0, 0), RTM_NEWQDISC)?;
    let here = all.iter().find(|body| four(body, 4) == Some(index) && four(body, 12) == Some(TC_H_CLSACT));
    Ok(here.map(|body| word(body, HEAD_BYTES, TCA_KIND)))
}

fn filters(netlink: &Netlink, index: u32, at: u32) -> io::Result<Vec<Filter>> {
    let all = netlink.dump(RTM_GETTFILTER, &head(index, 0, at, 0), RTM_NEWTFILTER)?;
    let mut found = Vec::new();
    for body in all.iter().filter(|body| four(body, 4) == Some(index)) {
        let kind = word(body, HEAD_BYTES, TCA_KIND);
        let attributes = attributes(body.get(HEAD_BYTES..).unwrap_or_default());
        let options = attributes.iter().find(|(kind, _)| *kind == TCA_OPTIONS).map(|(_, value)| *value);
        // A row for the place comes before those of its filters.
        let Some(options) = options else { continue };
        let name = word(options, 0, TCA_BPF_NAME);
        found.push(if kind == "bpf" && name == NAME {
            Filter::Ours
        } else {
            Filter::Other(format!("{kind} {name}").trim().to_owned())
        });
    }
    Ok(found)
}

/// An attribute that is text, among those from `from` on.
fn word(body: &[u8], from: usize, wanted: u16) -> String {
    let all = attributes(body.get(from..).unwrap_or_default());
    all.iter().find(|(kind, _)| *kind == wanted).map_or(String::new(), |(_, value)| text(value))
}

/// An interface.
struct Interface {
    index: u32,
    name: String,
    kind: String,
}

fn links(netlink: &Netlink) -> io::Result<Vec<Interface>> {
    let all = netlink.dump(RTM_GETLINK, &[0; LINK_BYTES], RTM_NEWLINK)?;
    Ok(all.iter().filter_map(|body| read_link(body)).collect())
}

fn read_link(body: &[u8]) -> Option<Interface> {
    let index = four(body, 4)?;
    let found = attributes(body.get(LINK_BYTES..)?);
    let info = found.iter().find(|(kind, _)| *kind == IFLA_LINKINFO).map(|(_, value)| *value);
    let kind = info.map_or(String::new(), |info| word(info, 0, IFLA_INFO_KIND));
    Some(Interface { index, name: word(body, LINK_BYTES, IFLA_IFNAME), kind })
}

/// The device in between, where there is one; whatever else has its name is somebody else's.
fn device_in_between(netlink: &Netlink, name: &str) -> io::Result<Option<u32>> {
    match links(netlink)?.into_iter().find(|link| link.name == name) {
        None => Ok(None),
        Some(link) if link.kind == "ifb" => Ok(Some(link.index)),
        Some(_) => {
            let words = format!("somebody else has an interface {name}, which is no ifb");
            Err(io::Error::new(io::ErrorKind::AlreadyExists, words))
        }
    }
}

fn make_device(netlink: &Netlink, name: &str) -> io::Result<u32> {
    // struct ifinfomsg: family, padding, type, index, flags, which of them change.
    let mut body = vec![0; 8];
    body.extend_from_slice(&IFF_UP.to_ne_bytes());
    body.extend_from_slice(&IFF_UP.to_ne_bytes());
    let mut info = Vec::new();
    attribute(&mut info, IFLA_INFO_KIND, b"ifb\0");
    attribute(&mut body, IFLA_IFNAME, format!("{name}\0").as_bytes());
    attribute(&mut body, IFLA_TXQLEN, &QUEUE_PACKETS.to_ne_bytes());
    attribute(&mut body, IFLA_LINKINFO, &info);
    netlink.ask(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &body).map_err(|error| absent("ifb", error))?;
    index_of(name)
}

fn remove_device(netlink: &Netlink, index: u32) -> io::Result<()> {
    let mut body = vec![0; LINK_BYTES];
    if let Some(place) = body.get_mut(4..8) {
        place.copy_from_slice(&index.to_ne_bytes());
    }
    netlink.ask(RTM_DELLINK, 0, &body)
}

/// The kernel says in several ways that it does not know something.
fn absent(what: &str, error: io::Error) -> io::Error {
    const NOTSUP: i32 = 95;
    match error.raw_os_error() {
        Some(NOENT | NOTSUP) => {
            io::Error::new(io::ErrorKind::Unsupported, format!("the kernel has no {what} ({error})"))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::{Class, FIRST_CLASS, priority};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::time::Duration;

    const CLASS: Class =
        Class { rate_bits: 40_000_000, ceiling_bits: 80_000_000, burst_bytes: 16_384, precedence: 0 };

    /// Runs in a network namespace of its own; what `lo` brings is what comes in.
    fn apart(test: impl FnOnce() + Send + 'static) {
        let done = std::thread::spawn(move || {
            sys::namespace::unshare(sys::namespace::UnshareFlags::NEWNET)
                .map_err(|error| error.to_string())?;
            crate::Interfaces::open().unwrap().set_up(crate::LOOPBACK).unwrap();
            match Incoming::open("lo", 80_000_000) {
                Ok(probe) => probe.close().unwrap(),
                Err(error) if error.kind() == io::ErrorKind::Unsupported => return Err(error.to_string()),
                Err(error) => panic!("{error}"),
            }
            test();
            Ok(())
        });
        if let Err(reason) = done.join().unwrap() {
            println!("skipped: {reason}");
        }
    }

    fn came(incoming: &Incoming, class: u16) -> u64 {
        incoming
            .counted()
            .unwrap()
            .iter()
            .find(|counted| counted.class == class)
            .map_or(0, |counted| counted.sent_bytes)
    }

    fn left() -> (usize, Option<String>, Vec<Filter>) {
        let netlink = Netlink::open().unwrap();
        let devices = links(&netlink).unwrap().iter().filter(|link| link.kind == "ifb").count();
        (devices, discipline(&netlink, 1).unwrap(), filters(&netlink, 1, INGRESS).unwrap_or_default())
    }

    #[test]
    fn what_comes_in_goes_through_the_class_of_the_socket_that_waits_for_it() {
        apart(|| {
            let incoming = Incoming::open("lo", 80_000_000).unwrap();
            incoming.traffic().set(FIRST_CLASS, &CLASS).unwrap();
            assert!(incoming.is_whole());
            for at in ["127.0.0.1:0", "[::1]:0"] {
                let before = came(&incoming, FIRST_CLASS);
                let Ok(waits) = UdpSocket::bind(at) else { continue };
                sys::socket_priority::set(waits.as_fd(), priority(FIRST_CLASS)).unwrap();
                let other = UdpSocket::bind(at).unwrap();
                waits.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                other.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                let mut buffer = [0; 2_000];
                other.send_to(&[1; 1_000], waits.local_addr().unwrap()).unwrap();
                assert_eq!(waits.recv(&mut buffer).unwrap(), 1_000);
                let after = came(&incoming, FIRST_CLASS);
                assert!((1_000..1_200).contains(&(after - before)), "{at}: {before} {after}");
                waits.send_to(&[1; 1_000], other.local_addr().unwrap()).unwrap();
                assert_eq!(other.recv(&mut buffer).unwrap(), 1_000);
                assert_eq!(came(&incoming, FIRST_CLASS), after, "{at}: of nobody");
            }
            // A connection; its socket has the priority of its own.
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut to, _) = listener.accept().unwrap();
            sys::socket_priority::set(to.as_fd(), priority(FIRST_CLASS)).unwrap();
            let before = came(&incoming, FIRST_CLASS);
            from.write_all(&[7; 3_000]).unwrap();
            to.read_exact(&mut [0; 3_000]).unwrap();
            assert!(came(&incoming, FIRST_CLASS) >= before + 3_000);
            // A fragment has no ports: it comes, and is nobody's.
            let (waits, other) =
                (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
            waits.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let long = vec![3; 65_507];
            other.send_to(&long, waits.local_addr().unwrap()).unwrap();
            assert_eq!(waits.recv(&mut vec![0; 70_000]).unwrap(), 65_507);
            incoming.close().unwrap();
            assert_eq!(left(), (0, None, Vec::new()));
        });
    }

    #[test]
    fn who_comes_later_finds_it_and_who_sweeps_leaves_nothing() {
        apart(|| {
            let first = Incoming::open("lo", 80_000_000).unwrap();
            first.traffic().set(FIRST_CLASS, &CLASS).unwrap();
            drop(first);
            let next = Incoming::open("lo", 80_000_000).unwrap();
            assert_eq!(next.traffic().one(FIRST_CLASS).unwrap().rate_bits, CLASS.rate_bits);
            assert_eq!(left().2, [Filter::Ours]);
            drop(next);
            sweep("lo").unwrap();
            assert_eq!(left(), (0, None, Vec::new()));
            sweep("lo").unwrap();
            sweep("absent").unwrap();
            // Killed half-way: the device is there, and the discipline, and no filter.
            let netlink = Netlink::open().unwrap();
            make_device(&netlink, "tombolo1").unwrap();
            let mut body = head(1, CLSACT, TC_H_CLSACT, 0);
            attribute(&mut body, TCA_KIND, b"clsact\0");
            netlink.ask(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, &body).unwrap();
            let again = Incoming::open("lo", 80_000_000).unwrap();
            assert!(again.is_whole());
            again.close().unwrap();
            assert_eq!(left(), (0, None, Vec::new()));
            // A link that is gone leaves its device.
            make_device(&netlink, "tombolo77").unwrap();
            sweep("lo").unwrap();
            assert_eq!(left().0, 0);
        });
    }

    #[test]
    fn what_somebody_else_has_there_stays_and_is_said() {
        apart(|| {
            let netlink = Netlink::open().unwrap();
            let mut body = head(1, CLSACT, TC_H_CLSACT, 0);
            attribute(&mut body, TCA_KIND, b"clsact\0");
            netlink.ask(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, &body).unwrap();
            let refused = Incoming::open("lo", 80_000_000).unwrap_err();
            assert!(refused.to_string().contains("somebody else has `clsact`"), "{refused}");
            sweep("lo").unwrap();
            assert_eq!(left(), (0, Some("clsact".into()), Vec::new()));
        });
    }
}
