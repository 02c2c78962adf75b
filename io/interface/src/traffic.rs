//! Classes of a link: a hierarchical token bucket (`HTB`) at an interface of the calling thread's
//! network namespace, by rtnetlink(7). Packets go by the priority of their socket, which is the
//! handle of their class; the others go to the class of the rest. What was asked for is read back.

use super::netlink::{NLM_F_CREATE, Netlink, attribute, attributes, eight, four, text};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;

// linux/rtnetlink.h
pub(crate) const RTM_NEWQDISC: u16 = 36;
pub(crate) const RTM_DELQDISC: u16 = 37;
const RTM_NEWTCLASS: u16 = 40;
const RTM_DELTCLASS: u16 = 41;
const RTM_GETTCLASS: u16 = 42;
pub(crate) const RTM_GETQDISC: u16 = 38;
const TC_H_ROOT: u32 = 0xffff_ffff;
pub(crate) const TCA_KIND: u16 = 1;
pub(crate) const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
/// Packets have the header of Ethernet; then the kernel needs no table of how long which packet
/// takes.
const TC_LINKLAYER_ETHERNET: u8 = 1;
const HTB_VERSION: u32 = 3;
/// Bytes of struct tcmsg, after which attributes follow.
pub(crate) const HEAD_BYTES: usize = 20;
/// Divisor of rates that classes without a quantum would have; all of ours have one.
const RATE_TO_QUANTUM: u32 = 10;
/// The kernel counts bursts in such pieces of time (`PSCHED_SHIFT` is 6).
const TICK_NS: u128 = 64;
/// The upper half of the handle of our discipline, `7462:`, which nobody takes by chance.
pub const MAJOR: u16 = 0x7462;
const HANDLE: u32 = (MAJOR as u32) << 16;
/// The class that stands for the whole link.
const WHOLE: u16 = 1;
/// The class of everybody who is promised nothing.
const REST: u16 = 2;
/// The first class that is given away.
pub const FIRST_CLASS: u16 = 16;
/// The bytes that a class may send at once when its turn has come: some packets, and little enough
/// that nobody waits long.
const QUANTUM_MIN: u64 = 1_514;
const QUANTUM_MAX: u64 = 60_000;
/// Precedence of the rest: after everybody (the kernel knows 0 to 7).
const REST_PRECEDENCE: u32 = 7;
/// Least rate of the rest, in bytes per second, so that it never starves: a hundredth of the link,
/// and at least this.
const REST_RATE_MIN: u64 = 1_000;

/// One class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// The rate that it may always send, in bits per second.
    pub rate_bits: u64,
    /// The rate that it may send while others don't, in bits per second.
    pub ceiling_bits: u64,
    /// How much may come at once, in bytes.
    pub burst_bytes: u64,
    /// The order in which classes get what is left: 0 is the first.
    pub precedence: u8,
}

/// The counters of a class, and its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Its number.
    pub class: u16,
    /// Its rate, in bits per second.
    pub rate_bits: u64,
    /// Its ceiling, in bits per second.
    pub ceiling_bits: u64,
    /// Its precedence.
    pub precedence: u32,
    /// The bytes that it has sent.
    pub sent_bytes: u64,
    /// The packets that it has sent.
    pub sent_packets: u64,
    /// The bytes that wait in its queue.
    pub queued_bytes: u64,
    /// Packets that did not fit into its queue.
    pub dropped: u64,
}

/// The priority that a socket has to have for a class.
#[must_use]
pub fn priority(class: u16) -> u32 {
    HANDLE | u32::from(class)
}

/// The discipline at the root of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Root {
    /// The kernel's own: nobody's.
    Default,
    /// Ours.
    Ours,
    /// Another program's: its kind and its handle.
    Other(String),
}

/// The classes of one interface.
#[derive(Debug)]
pub struct Traffic {
    netlink: Netlink,
    device: String,
    index: u32,
    rate_bits: u64,
}

impl Traffic {
    /// Puts our discipline at the root of an interface, with the whole link and the rest; our own
    /// stays, with its classes.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] where somebody else has a discipline there, which is left
    /// alone; what the kernel says: no such interface, no privilege, no HTB.
    pub fn open(device: &str, rate_bits: u64) -> io::Result<Self> {
        let index = index_of(device)?;
        let traffic = Self { netlink: Netlink::open()?, device: device.to_owned(), index, rate_bits };
        match traffic.root()? {
            Root::Ours => {}
            Root::Default => traffic.begin()?,
            Root::Other(what) => return Err(taken(device, &what)),
        }
        traffic.set_link()?;
        Ok(traffic)
    }

    fn begin(&self) -> io::Result<()> {
        let mut options = Vec::new();
        let mut global = Vec::new();
        for word in [HTB_VERSION, RATE_TO_QUANTUM, u32::from(REST), 0, 0] {
            global.extend_from_slice(&word.to_ne_bytes());
        }
        attribute(&mut options, TCA_HTB_INIT, &global);
        let mut body = self.head(HANDLE, TC_H_ROOT);
        attribute(&mut body, TCA_KIND, b"htb\0");
        attribute(&mut body, TCA_OPTIONS, &options);
        self.netlink.ask(RTM_NEWQDISC, NLM_F_CREATE, &body)
    }

    fn root(&self) -> io::Result<Root> {
        for body in self.netlink.dump(RTM_GETQDISC, &self.head(0, 0), RTM_NEWQDISC)? {
            let (index, handle, parent) = (four(&body, 4), four(&body, 8), four(&body, 12));
            if index != Some(self.index) || parent != Some(TC_H_ROOT) {
                continue;
            }
            let found = attributes(body.get(HEAD_BYTES..).unwrap_or_default());
            let kind = found
                .iter()
                .find(|(kind, _)| *kind == TCA_KIND)
                .map_or(String::new(), |(_, value)| text(value));
            return Ok(match handle.unwrap_or(0) {
                0 => Root::Default,
                HANDLE if kind == "htb" => Root::Ours,
                handle => Root::Other(format!("{kind} {:x}:", handle >> 16)),
            });
        }
        Ok(Root::Default)
    }

    /// Ours, where an earlier process has left it.
    ///
    /// # Errors
    /// The kernel's error: no such interface.
    pub fn found(device: &str) -> io::Result<Option<Self>> {
        let index = index_of(device)?;
        let traffic = Self { netlink: Netlink::open()?, device: device.to_owned(), index, rate_bits: 0 };
        Ok((traffic.root()? == Root::Ours).then_some(traffic))
    }

    /// Whether it is there still: not where the interface is gone, or somebody has taken it away.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        matches!(self.root(), Ok(Root::Ours))
    }

    /// Number of the interface.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its name when this began.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    fn set_link(&self) -> io::Result<()> {
        let whole = Class {
            rate_bits: self.rate_bits,
            ceiling_bits: self.rate_bits,
            burst_bytes: QUANTUM_MAX,
            precedence: 0,
        };
        self.put(WHOLE, HANDLE, &whole, 0)?;
        let least = (self.rate_bits / 100).max(REST_RATE_MIN * 8);
        let rest = Class { rate_bits: least, ..whole };
        self.put(REST, priority(WHOLE), &rest, REST_PRECEDENCE)
    }

    /// Gives a class what it is promised, or other promises while it sends; reads back what the
    /// kernel made of it.
    ///
    /// # Errors
    /// The kernel's error, or that it does something else.
    pub fn set(&self, class: u16, wanted: &Class) -> io::Result<()> {
        if class < FIRST_CLASS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this class is not given away"));
        }
        self.put(class, priority(WHOLE), wanted, u32::from(wanted.precedence).min(REST_PRECEDENCE))?;
        let found = self.one(class)?;
        // The kernel counts in bytes.
        let kept = |found: u64, wanted: u64| found / 8 == wanted.div_ceil(8);
        if kept(found.rate_bits, wanted.rate_bits)
            && kept(found.ceiling_bits, wanted.ceiling_bits)
            && found.precedence == u32::from(wanted.precedence).min(REST_PRECEDENCE)
        {
            return Ok(());
        }
        Err(io::Error::other(format!("the kernel keeps {found:?} where {wanted:?} was asked for")))
    }

    /// One class of ours, as it is.
    ///
    /// # Errors
    /// The kernel's error: there is none.
    pub fn one(&self, class: u16) -> io::Result<Counted> {
        let body = self.netlink.get(RTM_GETTCLASS, &self.head(priority(class), 0))?;
        read_class(&body).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Takes a class away; what it has queued is lost.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove(&self, class: u16) -> io::Result<()> {
        self.netlink.ask(RTM_DELTCLASS, 0, &self.head(priority(class), priority(WHOLE)))
    }

    /// Takes our discipline away with all classes; the interface has its own again.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn close(&self) -> io::Result<()> {
        self.netlink.ask(RTM_DELQDISC, 0, &self.head(HANDLE, TC_H_ROOT))
    }

    /// All classes of ours, as they are.
    ///
    /// # Errors
    /// The kernel's error, or where it is not understood.
    pub fn counted(&self) -> io::Result<Vec<Counted>> {
        let found = self.netlink.dump(RTM_GETTCLASS, &self.head(0, 0), RTM_NEWTCLASS)?;
        Ok(found.iter().filter_map(|body| read_class(body)).collect())
    }

    fn put(&self, class: u16, parent: u32, wanted: &Class, precedence: u32) -> io::Result<()> {
        let (rate, ceiling) = (wanted.rate_bits.div_ceil(8), wanted.ceiling_bits.div_ceil(8));
        let quantum = (rate / u64::from(RATE_TO_QUANTUM)).clamp(QUANTUM_MIN, QUANTUM_MAX);
        let mut options = Vec::new();
        for rate in [rate, ceiling] {
            // struct tc_ratespec: cell_log, link layer, overhead, cell_align, mpu, rate.
            options.extend_from_slice(&[0, TC_LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0]);
            options.extend_from_slice(&u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
        }
        let word = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        for word in [
            ticks(wanted.burst_bytes, rate),
            ticks(wanted.burst_bytes, ceiling),
            word(quantum),
            0,
            precedence,
        ] {
            options.extend_from_slice(&word.to_ne_bytes());
        }
        let mut nested = Vec::new();
        attribute(&mut nested, TCA_HTB_PARMS, &options);
        for (kind, rate) in [(TCA_HTB_RATE64, rate), (TCA_HTB_CEIL64, ceiling)] {
            if u32::try_from(rate).is_err() {
                attribute(&mut nested, kind, &rate.to_ne_bytes());
            }
        }
        let mut body = self.head(priority(class), parent);
        attribute(&mut body, TCA_KIND, b"htb\0");
        attribute(&mut body, TCA_OPTIONS, &nested);
        self.netlink.ask(RTM_NEWTCLASS, NLM_F_CREATE, &body)
    }

    fn head(&self, handle: u32, parent: u32) -> Vec<u8> {
        head(self.index, handle, parent, 0)
    }
}

/// Takes our discipline away from an interface where it is, such as one of a daemon that was
/// killed.
///
/// # Errors
/// The kernel's error; there being none is no error.
pub fn sweep(device: &str) -> io::Result<()> {
    Traffic::found(device)?.map_or(Ok(()), |traffic| traffic.close())
}

/// Whether classes can be made at an interface.
///
/// # Errors
/// As [`Traffic::open`], but for what only trying can tell.
pub fn usable(device: &str) -> io::Result<()> {
    let index = index_of(device)?;
    let traffic = Traffic { netlink: Netlink::open()?, device: device.to_owned(), index, rate_bits: 0 };
    match traffic.root()? {
        Root::Ours | Root::Default => Ok(()),
        Root::Other(what) => Err(taken(device, &what)),
    }
}

fn taken(device: &str, what: &str) -> io::Error {
    let words = format!(
        "somebody else has `{what}` at the root of {device}, which stays; take it away (`tc qdisc del dev {device} root`), or say another link"
    );
    io::Error::new(io::ErrorKind::AlreadyExists, words)
}

/// struct tcmsg: family, padding, index, handle, parent, info.
pub(crate) fn head(index: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    for word in [index, handle, parent, info] {
        body.extend_from_slice(&word.to_ne_bytes());
    }
    body
}

/// How long a burst takes at a rate of so many bytes per second, as the kernel counts.
fn ticks(burst_bytes: u64, rate: u64) -> u32 {
    let ns = u128::from(burst_bytes) * 1_000_000_000 / u128::from(rate.max(1));
    u32::try_from(ns / TICK_NS).unwrap_or(u32::MAX).max(1)
}

pub(crate) fn index_of(device: &str) -> io::Result<u32> {
    if device.is_empty() || device.len() > 15 || device.contains(['/', '\0']) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{device:?} is no name of an interface"),
        ));
    }
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::netdevice::name_to_index(&socket, device).map_err(Into::into)
}

fn read_class(body: &[u8]) -> Option<Counted> {
    let handle = four(body, 8)?;
    if handle >> 16 != u32::from(MAJOR) {
        return None;
    }
    let mut counted = Counted { class: u16::try_from(handle & 0xffff).ok()?, ..Counted::default() };
    for (kind, value) in attributes(body.get(HEAD_BYTES..)?) {
        match kind {
            TCA_OPTIONS => read_options(value, &mut counted),
            TCA_STATS2 => {
                for (kind, value) in attributes(value) {
                    match kind {
                        TCA_STATS_BASIC => {
                            counted.sent_bytes = eight(value, 0).unwrap_or(0);
                            counted.sent_packets = u64::from(four(value, 8).unwrap_or(0));
                        }
                        TCA_STATS_QUEUE => {
                            counted.queued_bytes = u64::from(four(value, 4).unwrap_or(0));
                            counted.dropped = u64::from(four(value, 8).unwrap_or(0));
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(counted)
}

fn read_options(value: &[u8], counted: &mut Counted) {
    for (kind, value) in attributes(value) {
        match kind {
            TCA_HTB_PARMS => {
                // A wide rate comes as an attribute of its own.
                let rate = u64::from(four(value, 8).unwrap_or(0)) * 8;
                let ceiling = u64::from(four(value, 20).unwrap_or(0)) * 8;
                counted.rate_bits = counted.rate_bits.max(rate);
                counted.ceiling_bits = counted.ceiling_bits.max(ceiling);
                counted.precedence = four(value, 40).unwrap_or(0);
            }
            TCA_HTB_RATE64 => counted.rate_bits = eight(value, 0).unwrap_or(0).saturating_mul(8),
            TCA_HTB_CEIL64 => counted.ceiling_bits = eight(value, 0).unwrap_or(0).saturating_mul(8),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_from_the_kernel_is_no_class() {
        assert_eq!(read_class(&[0; 20]), None);
        assert_eq!(ticks(u64::MAX, 0), u32::MAX);
    }

    /// In a network namespace of its own. The `lo` of it stands for a link: it needs nobody at the
    /// other end.
    #[test]
    fn a_class_is_kept_read_back_changed_and_counted_and_the_rest_stays_below_it() {
        let done = std::thread::spawn(|| {
            sys::namespace::unshare(sys::namespace::UnshareFlags::NEWNET)
                .map_err(|error| error.to_string())?;
            crate::Interfaces::open().unwrap().set_up(crate::LOOPBACK).unwrap();
            assert!(Traffic::open("absent", 1).is_err() && Traffic::open("../lo", 1).is_err());
            let traffic = Traffic::open("lo", 80_000_000).map_err(|error| error.to_string())?;
            let class =
                Class { rate_bits: 40_000_000, ceiling_bits: 80_000_000, burst_bytes: 16_384, precedence: 0 };
            traffic.set(FIRST_CLASS, &class).unwrap();
            let other = Class { rate_bits: 8_000, ..class };
            traffic.set(FIRST_CLASS, &other).unwrap();
            traffic.set(FIRST_CLASS, &class).unwrap();
            assert!(traffic.set(WHOLE, &class).is_err());
            // A packet of whoever has the priority, and one of nobody.
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let to = socket.local_addr().unwrap();
            socket.send_to(&[0; 1_000], to).unwrap();
            let first = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            sys_priority(&first, priority(FIRST_CLASS));
            for _ in 0..3 {
                first.send_to(&[0; 1_000], to).unwrap();
            }
            let mut buffer = [0; 2_000];
            socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
            for _ in 0..4 {
                assert_eq!(socket.recv(&mut buffer).unwrap(), 1_000);
            }
            let counted = traffic.counted().unwrap();
            let of = |class: u16| *counted.iter().find(|counted| counted.class == class).unwrap();
            assert!((3_000..4_000).contains(&of(FIRST_CLASS).sent_bytes), "{counted:?}");
            assert!((1_000..2_000).contains(&of(REST).sent_bytes), "{counted:?}");
            assert_eq!((of(FIRST_CLASS).sent_packets, of(REST).sent_packets), (3, 1));
            assert_eq!((of(FIRST_CLASS).queued_bytes, of(FIRST_CLASS).dropped), (0, 0));
            assert_eq!((of(FIRST_CLASS).rate_bits, of(FIRST_CLASS).precedence), (40_000_000, 0));
            assert_eq!(of(REST).precedence, REST_PRECEDENCE);
            // Who comes later finds the classes as they are.
            assert_eq!(Traffic::open("lo", 80_000_000).unwrap().counted().unwrap().len(), 3);
            traffic.remove(FIRST_CLASS).unwrap();
            assert_eq!(traffic.counted().unwrap().len(), 2);
            // More than 32 bits of bytes.
            let wide = Traffic::open("lo", 100_000_000_000).unwrap();
            let fast = Class { rate_bits: 50_000_000_000, ceiling_bits: 100_000_000_000, ..class };
            wide.set(FIRST_CLASS, &fast).unwrap();
            wide.close().unwrap();
            assert_eq!(wide.counted().unwrap(), []);
            Ok::<(), String>(())
        });
        if let Err(reason) = done.join().unwrap() {
            println!("skipped: {reason}");
        }
    }

    fn sys_priority(socket: &std::net::UdpSocket, priority: u32) {
        use std::os::fd::AsFd;
        sys::socket_priority::set(socket.as_fd(), priority).unwrap();
    }
}
