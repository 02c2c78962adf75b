//! Classes of what comes in by a link. The kernel queues nothing there, so it goes through an
//! intermediate device (`ifb`) first, which has the same classes as the link. A packet belongs to
//! the control group of the socket that waits for it, which a program looks up for each packet
//! ([`sys::packet_class`]).
//!
//! Objects of ours are told from those of others by names: the device is `tombolo` and the number
//! of the link, the filter is `tombolo`.

use super::hook::{self, Filter, NAME, Way, absent, gone, word};
use super::netlink::{NLM_F_CREATE, NLM_F_EXCL, Netlink, attribute, attributes, four};
use super::traffic::{Counted, Traffic, index_of};
use std::collections::BTreeSet;
use std::io;
use sys::packet_class::{self, Sockets};

// linux/rtnetlink.h, linux/if_link.h
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const IFF_UP: u32 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
/// Bytes of struct ifinfomsg.
const LINK_BYTES: usize = 16;
/// Packets that wait in each class: those of an Ethernet. An `ifb` would have 32.
const QUEUE_PACKETS: u32 = 1_000;

/// The packets that come in by one link, in classes.
#[derive(Debug)]
pub struct Incoming {
    netlink: Netlink,
    /// Number of the link.
    index: u32,
    /// Number of the device in between.
    between: u32,
    traffic: Traffic,
}

impl Incoming {
    /// Leads what comes in through classes; what an earlier process has made of it stays, with its
    /// classes.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] where somebody else looks at what comes in, who is left
    /// alone; [`io::ErrorKind::Unsupported`] where the kernel has no `ifb` or no `clsact`; what the
    /// kernel says.
    pub fn open(device: &str, rate_bits: u64, sockets: &Sockets) -> io::Result<Self> {
        let index = index_of(device)?;
        let netlink = Netlink::open()?;
        let name = name_of(index);
        let found = device_in_between(&netlink, &name)?;
        hook::foreign(&netlink, index, Way::In, found.is_some(), device)?;
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
        if let Err(error) = incoming.lead(sockets) {
            if fresh {
                let _why_counts = incoming.close();
            }
            return Err(error);
        }
        Ok(incoming)
    }

    /// Leads packets to the device in between.
    fn lead(&self, sockets: &Sockets) -> io::Result<()> {
        let program = packet_class::load_incoming(sockets, self.between)?;
        hook::put(&self.netlink, self.index, Way::In, &program)
    }

    /// Its classes.
    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Whether packets still go through them: nobody has taken the device or the filter away.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        hook::is_there(&self.netlink, self.index, Way::In)
            && matches!(device_in_between(&self.netlink, &name_of(self.index)), Ok(Some(found)) if found == self.between)
    }

    /// All classes, as they are.
    ///
    /// # Errors
    /// As [`Traffic::counted`].
    pub fn counted(&self) -> io::Result<Vec<Counted>> {
        self.traffic.counted()
    }

    /// Packets come in by the direct way again, and nothing is left. What somebody else has put
    /// beside it stays.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn close(&self) -> io::Result<()> {
        clear(&self.netlink, self.index, Some(self.between))
    }
}

/// The sockets and their classes where an earlier process led what comes in by a link: its program
/// still knows. `None` where there was none.
///
/// # Errors
/// The kernel's error: no such interface.
pub fn sockets_found(device: &str) -> io::Result<Option<Sockets>> {
    let netlink = Netlink::open()?;
    match hook::filters(&netlink, index_of(device)?, Way::In)?.first() {
        Some(Filter::Ours(Some(id))) => Sockets::of_program(*id),
        _ => Ok(None),
    }
}

/// Takes away what is left of a link: of one that is here (a process that led its packets was
/// killed), and of all that are gone.
///
/// # Errors
/// The kernel's error; there being nothing is no error.
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
    hook::clear(netlink, index, Way::In)?;
    between.map_or(Ok(()), |between| gone(remove_device(netlink, between)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hook::{CLSACT, TC_H_CLSACT, discipline, filters};
    use crate::owned::Owner;
    use crate::traffic::{Class, FIRST_CLASS, RTM_NEWQDISC, TCA_KIND, head, priority};
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
            match Sockets::new().and_then(|sockets| Incoming::open("lo", 80_000_000, &sockets)) {
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
        (devices, discipline(&netlink, 1).unwrap(), filters(&netlink, 1, Way::In).unwrap_or_default())
    }

    #[test]
    fn what_comes_in_goes_through_the_class_of_the_socket_that_waits_for_it() {
        apart(|| {
            let Some(owner) = Owner::new("incoming") else { return };
            let sockets = Sockets::new().unwrap();
            sockets.set_for_cgroup(owner.directory().as_fd(), priority(FIRST_CLASS)).unwrap();
            let incoming = Incoming::open("lo", 80_000_000, &sockets).unwrap();
            incoming.traffic().set(FIRST_CLASS, &CLASS).unwrap();
            assert!(incoming.is_whole());
            for at in ["127.0.0.1:0", "[::1]:0"] {
                let before = came(&incoming, FIRST_CLASS);
                let Ok(waits) = owner.inside(|| UdpSocket::bind(at)) else { continue };
                // What its owner asks of it decides nothing, nor does what the other one asks.
                sys::socket_priority::set(waits.as_fd(), 6).unwrap();
                let other = UdpSocket::bind(at).unwrap();
                sys::socket_priority::set(other.as_fd(), priority(FIRST_CLASS)).unwrap();
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
            // A connection that is accepted belongs to its listener's owner.
            let listener = owner.inside(|| TcpListener::bind("127.0.0.1:0").unwrap());
            let mut from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut to, _) = listener.accept().unwrap();
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
            // The next process finds the sockets that are open.
            let found = sockets_found("lo").unwrap().unwrap();
            let next = Incoming::open("lo", 80_000_000, &found).unwrap();
            drop((sockets, incoming));
            let before = came(&next, FIRST_CLASS);
            from.write_all(&[7; 3_000]).unwrap();
            to.read_exact(&mut [0; 3_000]).unwrap();
            assert!(came(&next, FIRST_CLASS) >= before + 3_000);
            next.close().unwrap();
            assert_eq!(left(), (0, None, Vec::new()));
        });
    }

    #[test]
    fn who_comes_later_finds_it_and_who_sweeps_leaves_nothing() {
        apart(|| {
            let sockets = Sockets::new().unwrap();
            let first = Incoming::open("lo", 80_000_000, &sockets).unwrap();
            first.traffic().set(FIRST_CLASS, &CLASS).unwrap();
            drop(first);
            let found = sockets_found("lo").unwrap().unwrap();
            let next = Incoming::open("lo", 80_000_000, &found).unwrap();
            assert_eq!(next.traffic().one(FIRST_CLASS).unwrap().rate_bits, CLASS.rate_bits);
            assert!(matches!(left().2.as_slice(), [Filter::Ours(Some(_))]), "{:?}", left());
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
            let again = Incoming::open("lo", 80_000_000, &sockets).unwrap();
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
            let sockets = Sockets::new().unwrap();
            let netlink = Netlink::open().unwrap();
            let mut body = head(1, CLSACT, TC_H_CLSACT, 0);
            attribute(&mut body, TCA_KIND, b"clsact\0");
            netlink.ask(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, &body).unwrap();
            let refused = Incoming::open("lo", 80_000_000, &sockets).unwrap_err();
            assert!(refused.to_string().contains("somebody else has `clsact`"), "{refused}");
            sweep("lo").unwrap();
            assert_eq!(left(), (0, Some("clsact".into()), Vec::new()));
        });
    }
}
