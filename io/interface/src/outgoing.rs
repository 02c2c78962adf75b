//! Classes of what goes out by a link, and whose each packet is: a program in front of the classes
//! gives each packet the priority of the control group that its socket was made in
//! ([`sys::packet_class`]). What a program has asked of the socket (`SO_PRIORITY`, `IP_TOS`)
//! chooses no class.

use super::hook::{self, Filter, Way};
use super::netlink::Netlink;
use super::traffic::{Counted, MAJOR, Traffic, index_of};
use std::io;
use sys::packet_class::{self, Owners};

/// The packets that go out by one link, in classes.
#[derive(Debug)]
pub struct Outgoing {
    netlink: Netlink,
    traffic: Traffic,
}

impl Outgoing {
    /// Puts our classes at a link, and in front of them the program that knows whose packets are
    /// whose; what an earlier process has made of it stays, with its classes.
    ///
    /// # Errors
    /// As [`Traffic::open`]; [`io::ErrorKind::AlreadyExists`] where somebody else looks at what
    /// goes out, who is left alone; [`io::ErrorKind::Unsupported`] where the kernel has no `clsact`
    /// or no filters by programs.
    pub fn open(device: &str, rate_bits: u64, owners: &Owners) -> io::Result<Self> {
        let netlink = Netlink::open()?;
        let index = index_of(device)?;
        let begun = Traffic::found(device)?.is_some();
        hook::foreign(&netlink, index, Way::Out, begun, device)?;
        let program = packet_class::load_outgoing(owners, MAJOR)?;
        let outgoing = Self { traffic: Traffic::open(device, rate_bits)?, netlink };
        if let Err(error) = hook::put(&outgoing.netlink, index, Way::Out, &program) {
            if !begun {
                // What was begun is taken back; that it can't be is worth less than why.
                let _why_counts = outgoing.close();
            }
            return Err(error);
        }
        Ok(outgoing)
    }

    /// Its classes.
    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Whether packets still go through them: nobody has taken the classes or the program away.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.traffic.is_ours() && hook::is_there(&self.netlink, self.traffic.index(), Way::Out)
    }

    /// All classes, as they are.
    ///
    /// # Errors
    /// As [`Traffic::counted`].
    pub fn counted(&self) -> io::Result<Vec<Counted>> {
        self.traffic.counted()
    }

    /// Packets go out by the direct way again, and nothing is left.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn close(&self) -> io::Result<()> {
        let cleared = hook::clear(&self.netlink, self.traffic.index(), Way::Out);
        self.traffic.close().and(cleared)
    }
}

/// The owners of packets where an earlier process kept classes of a link: its programs still know.
/// `None` where there was none.
///
/// # Errors
/// The kernel's error: no such interface.
pub fn owners_found(device: &str) -> io::Result<Option<Owners>> {
    let netlink = Netlink::open()?;
    match hook::filters(&netlink, index_of(device)?, Way::Out)?.first() {
        Some(Filter::Ours(Some(id))) => Owners::of_program(*id),
        _ => Ok(None),
    }
}

/// Takes away what is ours of what goes out by a link; what somebody else has made stays.
///
/// # Errors
/// The kernel's error; there being nothing is no error, there being no such interface is.
pub fn sweep(device: &str) -> io::Result<()> {
    let netlink = Netlink::open()?;
    let index = index_of(device)?;
    let cleared = match hook::filters(&netlink, index, Way::Out)?.iter().any(Filter::is_ours) {
        true => hook::clear(&netlink, index, Way::Out),
        false => Ok(()),
    };
    super::traffic::sweep(device).and(cleared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owned::Owner;
    use crate::traffic::{Class, FIRST_CLASS, priority};
    use rustix::net::sockopt;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;

    const CLASS: Class =
        Class { rate_bits: 40_000_000, ceiling_bits: 80_000_000, burst_bytes: 16_384, precedence: 0 };
    const OTHER_CLASS: u16 = FIRST_CLASS + 1;

    /// Runs in a network namespace of its own, with two classes at `lo`, of which the owner has the
    /// first.
    fn apart(name: &'static str, test: impl FnOnce(&Owner, &Owners, &Outgoing) + Send + 'static) {
        let done = std::thread::spawn(move || {
            sys::namespace::unshare(sys::namespace::UnshareFlags::NEWNET)
                .map_err(|error| error.to_string())?;
            crate::Interfaces::open().unwrap().set_up(crate::LOOPBACK).unwrap();
            let owner = Owner::new(name).ok_or("no control groups of version 2")?;
            let owners = Owners::new().map_err(|error| error.to_string())?;
            let outgoing = match Outgoing::open("lo", 80_000_000, &owners) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => return Err(error.to_string()),
                opened => opened.unwrap(),
            };
            outgoing.traffic().set(FIRST_CLASS, &CLASS).unwrap();
            outgoing.traffic().set(OTHER_CLASS, &CLASS).unwrap();
            owners.set(owner.id(), priority(FIRST_CLASS)).unwrap();
            test(&owner, &owners, &outgoing);
            Ok(())
        });
        if let Err(reason) = done.join().unwrap() {
            println!("skipped: {reason}");
        }
    }

    fn sent(outgoing: &Outgoing, class: u16) -> u64 {
        outgoing.traffic().one(class).unwrap().sent_bytes
    }

    /// Once a class was that of a socket's priority: `SO_PRIORITY` of 0 or 6, or an `IP_TOS`, led a
    /// domain past its ceiling and out of the account, and whoever had `NET_RAW` could name the
    /// class of another.
    #[test]
    fn no_option_of_a_socket_leads_out_of_its_class_nor_into_anothers() {
        apart("options", |owner, _owners, outgoing| {
            let to = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let mut before = 0;
            let mut goes_through = |what: &str, socket: &UdpSocket| {
                socket.send_to(&[0; 1_000], to).unwrap();
                let now = sent(outgoing, FIRST_CLASS);
                assert!((1_000..1_100).contains(&(now - before)), "{what}: {before} {now}");
                before = now;
            };
            let made = || owner.inside(|| UdpSocket::bind("127.0.0.1:0").unwrap());
            goes_through("as it was made", &made());
            for wanted in [0, 6, priority(OTHER_CLASS), priority(1), priority(2), priority(0)] {
                let socket = made();
                sys::socket_priority::set(socket.as_fd(), wanted).unwrap();
                goes_through(&format!("SO_PRIORITY {wanted:x}"), &socket);
            }
            let socket = made();
            sockopt::set_ip_tos(&socket, 8).unwrap();
            goes_through("IP_TOS", &socket);
            assert_eq!(sent(outgoing, OTHER_CLASS), 0);
            // One that was made elsewhere has no class, whatever it says.
            let other = UdpSocket::bind("127.0.0.1:0").unwrap();
            sys::socket_priority::set(other.as_fd(), priority(FIRST_CLASS)).unwrap();
            other.send_to(&[0; 1_000], to).unwrap();
            assert_eq!(sent(outgoing, FIRST_CLASS), before);
        });
    }

    #[test]
    fn frames_and_accepted_connections_belong_to_the_control_group_too() {
        apart("frames", |owner, owners, outgoing| {
            let lo = sys::ethernet::Interface { name: "lo".into(), index: 1, mac: [0; 6], mtu: 65_536 };
            let frame = |socket: &std::os::fd::OwnedFd| {
                assert_eq!(sys::ethernet::send(socket, (1, 0x88b5, [0; 6]), &[&[0; 900]]).unwrap(), 1);
            };
            let open = || sys::ethernet::open_to_all(&lo, 0x88b5).unwrap();
            let inside = owner.inside(open);
            sys::socket_priority::set(inside.as_fd(), priority(OTHER_CLASS)).unwrap();
            frame(&inside);
            assert!(sent(outgoing, FIRST_CLASS) >= 900);
            let outside = open();
            sys::socket_priority::set(outside.as_fd(), priority(OTHER_CLASS)).unwrap();
            frame(&outside);
            assert_eq!(sent(outgoing, OTHER_CLASS), 0);

            let listener = owner.inside(|| TcpListener::bind("127.0.0.1:0").unwrap());
            let _from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            let before = sent(outgoing, FIRST_CLASS);
            std::io::Write::write_all(&mut accepted, &[1; 3_000]).unwrap();
            assert!(sent(outgoing, FIRST_CLASS) >= before + 3_000);
            owners.remove(owner.id()).unwrap();
            owners.remove(owner.id()).unwrap();
            let before = sent(outgoing, FIRST_CLASS);
            std::io::Write::write_all(&mut accepted, &[1; 3_000]).unwrap();
            assert_eq!(sent(outgoing, FIRST_CLASS), before);
        });
    }

    #[test]
    fn the_next_process_finds_who_owns_packets_and_sweeping_leaves_nothing() {
        apart("next", |owner, owners, outgoing| {
            owners.set(7, priority(OTHER_CLASS)).unwrap();
            let found = owners_found("lo").unwrap().unwrap();
            assert_eq!(found.get(owner.id()).unwrap(), Some(priority(FIRST_CLASS)));
            found.retain(|wanted| wanted == priority(FIRST_CLASS)).unwrap();
            assert_eq!((found.get(7).unwrap(), owners.get(7).unwrap()), (None, None));
            assert_eq!(found.get(owner.id()).unwrap(), Some(priority(FIRST_CLASS)));
            let next = Outgoing::open("lo", 80_000_000, &found).unwrap();
            assert!(next.is_whole() && outgoing.is_whole());
            sweep("lo").unwrap();
            assert!(!next.is_whole() && owners_found("lo").unwrap().is_none());
            assert_eq!(hook::discipline(&Netlink::open().unwrap(), 1).unwrap(), None);
            sweep("lo").unwrap();
            assert!(sweep("absent").is_err());
        });
    }
}
