//! Frames of Ethernet with an `EtherType` of their own (packet(7)), several with one system call.

pub mod bundles;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Most frames of one call.
pub const FRAMES_MAX: usize = 64;
/// The bound of a socket's unreceived bytes: several windows of a lane with the kernel's
/// book-keeping.
const RECEIVE_BYTES: libc::c_int = 16 << 20;
/// The bound of its unsent bytes.
const SEND_BYTES: libc::c_int = 8 << 20;
/// The verdict of the kernel's filter that keeps a whole frame.
const ALL: u32 = u32::MAX;
/// Where the filter finds what is not in the frame (linux/filter.h): the protocol.
const PROTOCOL_AT: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;

/// An interface that frames go over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its address.
    pub mac: [u8; 6],
    /// Longest payload of a frame.
    pub mtu: u32,
}

fn name_of(name: *const libc::c_char) -> String {
    // SAFETY: only called with the names that getifaddrs(3) gives, which end with a zero and live
    // as long as its list.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// The name of the interface of the calling thread's network namespace that bears `address`.
///
/// # Errors
/// `NotFound` where none does; those of getifaddrs(3).
pub fn bearing(address: IpAddr) -> io::Result<String> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `list` is a place for a pointer; it is set where the call succeeds, and freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = None;
    let mut at = list;
    while !at.is_null() && found.is_none() {
        // SAFETY: `at` is an element of the list that getifaddrs(3) made, which is not freed yet.
        let element = unsafe { &*at };
        if !element.ifa_addr.is_null() {
            // SAFETY: the address of an element is as long as its family says, and lives as long as
            // the list.
            let here = unsafe {
                match i32::from((*element.ifa_addr).sa_family) {
                    libc::AF_INET => {
                        let ip = (*element.ifa_addr.cast::<libc::sockaddr_in>()).sin_addr.s_addr;
                        Some(IpAddr::V4(Ipv4Addr::from(ip.to_ne_bytes())))
                    }
                    libc::AF_INET6 => {
                        let ip = (*element.ifa_addr.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr;
                        Some(IpAddr::V6(Ipv6Addr::from(ip)))
                    }
                    _ => None,
                }
            };
            if here == Some(address) {
                found = Some(name_of(element.ifa_name));
            }
        }
        at = element.ifa_next;
    }
    // SAFETY: the list is that of getifaddrs(3), it is freed once, and nothing of it is used any
    // more.
    unsafe { libc::freeifaddrs(list) };
    let none = || io::Error::new(io::ErrorKind::NotFound, format!("no interface has the address {address}"));
    found.ok_or_else(none)
}

/// Looks an interface up in the calling thread's network namespace.
///
/// # Errors
/// Those of netdevice(7): there is none of that name; `Unsupported` where it is no Ethernet;
/// `InvalidInput` for no name.
pub fn interface(name: &str) -> io::Result<Interface> {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: ifreq is plain data of the C library, for which all bits zero are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let mut ask = |what: libc::c_ulong| -> io::Result<libc::ifreq> {
        // SAFETY: each of the requests below reads the name and writes the rest of one ifreq, which
        // lives until the call returns.
        let asked = unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &raw mut request) };
        if asked < 0 { Err(io::Error::last_os_error()) } else { Ok(request) }
    };
    // SAFETY: the kernel has written just this member of the union in answer to this request; all
    // three are plain numbers.
    let index = unsafe { ask(libc::SIOCGIFINDEX)?.ifr_ifru.ifru_ifindex };
    // SAFETY: as above.
    let mtu = unsafe { ask(libc::SIOCGIFMTU)?.ifr_ifru.ifru_mtu };
    // SAFETY: as above.
    let address = unsafe { ask(libc::SIOCGIFHWADDR)?.ifr_ifru.ifru_hwaddr };
    if address.sa_family != libc::ARPHRD_ETHER {
        let what = format!("{name} is no Ethernet");
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    let number = |found: libc::c_int| u32::try_from(found).map_err(|_| io::ErrorKind::InvalidData);
    Ok(Interface { name: name.to_owned(), index: number(index)?, mac, mtu: number(mtu)? })
}

fn option<T>(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `value` lives until the call returns, and its length goes with it; the callers pass
    // the type that each option takes.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), length)
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn address(index: u32, ether_type: u16, to: [u8; 6]) -> libc::sockaddr_ll {
    let mut mac = [0; 8];
    mac[..6].copy_from_slice(&to);
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ether_type.to_be(),
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: mac,
    }
}

/// A socket for the payloads of frames of one `EtherType` on one interface, of which it hears those
/// alone that begin with the eight bytes `station` (the first one the most significant). Nobody can
/// change that any more, whoever has the socket. It does not wait.
///
/// # Errors
/// Those of socket(2), bind(2) and setsockopt(2): `CAP_NET_RAW` is needed.
pub fn open(interface: &Interface, ether_type: u16, station: u64) -> io::Result<OwnedFd> {
    bound(interface, ether_type, Some(station))
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Goes on where what was loaded is `k`, and passes over so many statements where it is not.
fn jump(k: u32, over: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt: 0, jf: over, k }
}

/// Lets what a program comes to the end of through and nothing else, for good: a jump over all that
/// is left, and one, is a refusal.
fn take(socket: &OwnedFd, program: &mut Vec<libc::sock_filter>) -> io::Result<()> {
    program.extend([ALL, 0].map(|bytes| statement(libc::BPF_RET | libc::BPF_K, bytes)));
    let length = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let filter = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)?;
    option(socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &1_i32)
}

/// Lets nothing through but frames of this type that begin with these bytes.
fn filter(socket: &OwnedFd, ether_type: u16, station: u64) -> io::Result<()> {
    let load = libc::BPF_LD | libc::BPF_ABS;
    let mut program = vec![
        statement(load | libc::BPF_H, PROTOCOL_AT),
        jump(u32::from(ether_type), 5),
        statement(load | libc::BPF_W, 0),
        jump((station >> 32) as u32, 3),
        statement(load | libc::BPF_W, 4),
        jump(station as u32, 1),
    ];
    take(socket, &mut program)
}

fn bound(interface: &Interface, ether_type: u16, station: Option<u64>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Of no protocol it hears nothing, until it is bound.
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
    if let Some(station) = station {
        filter(&socket, ether_type, station)?;
    }
    room_for(&socket)?;
    bind(&socket, interface, ether_type)?;
    Ok(socket)
}

/// Sets what a socket may hold.
fn room_for(socket: &OwnedFd) -> io::Result<()> {
    for (forced, plain, bytes) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECEIVE_BYTES),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BYTES),
    ] {
        option(socket, libc::SOL_SOCKET, forced, &bytes)
            .or_else(|_| option(socket, libc::SOL_SOCKET, plain, &bytes))?;
    }
    Ok(())
}

fn bind(socket: &OwnedFd, interface: &Interface, ether_type: u16) -> io::Result<()> {
    let at = address(interface.index, ether_type, [0; 6]);
    // SAFETY: the descriptor is open, `at` is an address of this family that lives until the call
    // returns, and its length goes with it.
    let bound = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const at).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// As [`open`], for all frames of the type, whomever they are for: what stands in a path hears
/// them.
///
/// # Errors
/// As there.
pub fn open_to_all(interface: &Interface, ether_type: u16) -> io::Result<OwnedFd> {
    bound(interface, ether_type, None)
}

/// Sends the payloads of frames to one address; says how many went, which are the first. At most
/// [`FRAMES_MAX`] are looked at.
///
/// # Errors
/// Those of sendmmsg(2) at the first frame, of which `WouldBlock` says that there is no room now.
pub fn send(
    socket: impl AsFd,
    (index, ether_type, to): (u32, u16, [u8; 6]),
    frames: &[&[u8]],
) -> io::Result<usize> {
    let count = frames.len().min(FRAMES_MAX);
    let mut at = address(index, ether_type, to);
    if let [frame] = frames {
        // SAFETY: the descriptor is open for as long as `socket` is borrowed; `frame` is borrowed
        // and goes with its length, `at` is an address of this family that outlives the call and
        // goes with its length as well. The kernel reads both only.
        let sent = unsafe {
            libc::sendto(
                socket.as_fd().as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                libc::MSG_DONTWAIT,
                (&raw const at).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        return if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) };
    }
    let no_part = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut parts = [no_part; FRAMES_MAX];
    // SAFETY: mmsghdr is plain data of the C library, for which all bits zero are a value: no name,
    // no control data, no parts.
    let mut messages: [libc::mmsghdr; FRAMES_MAX] = unsafe { std::mem::zeroed() };
    for ((part, message), frame) in parts.iter_mut().zip(&mut messages).zip(frames) {
        *part = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
        message.msg_hdr.msg_iov = part;
        message.msg_hdr.msg_iovlen = 1;
        message.msg_hdr.msg_name = (&raw mut at).cast();
        message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    }
    // SAFETY: the descriptor is open for as long as `socket` is borrowed. The first `count`
    // headers, at most FRAMES_MAX, point to the one address and to one part each, and each part to
    // a frame that is borrowed and has the length that the part says; the kernel reads them only,
    // and all of them outlive the call.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_fd().as_raw_fd(),
            messages.as_mut_ptr(),
            count as libc::c_uint,
            libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Room for frames that come.
#[derive(Debug)]
pub struct Room {
    bytes: Box<[u8]>,
    each: usize,
    lengths: [usize; FRAMES_MAX],
    came: usize,
    /// Places that the kernel was shown last.
    shown: usize,
}

/// Places that the kernel is shown at least: to show more than come costs more than a second call
/// where they do come.
const SHOWN_MIN: usize = 4;

impl Room {
    /// For `frames` frames, at most [`FRAMES_MAX`], with payloads of at most `each` bytes.
    #[must_use]
    pub fn new(frames: usize, each: usize) -> Self {
        let (frames, each) = (frames.clamp(1, FRAMES_MAX), each.max(1));
        let bytes = vec![0; frames * each].into_boxed_slice();
        Self { bytes, each, lengths: [0; FRAMES_MAX], came: 0, shown: SHOWN_MIN }
    }

    /// Receives as many frames as are there and fit, and forgets those of before; does not wait.
    /// What is longer than its place is cut. Where few came before, few come at once:
    /// [`Room::is_full`].
    ///
    /// # Errors
    /// Those of recvmmsg(2), of which `WouldBlock` says that nothing is there.
    pub fn receive(&mut self, socket: impl AsFd) -> io::Result<usize> {
        self.shown = (2 * self.came).clamp(SHOWN_MIN, self.frames_max().max(SHOWN_MIN));
        self.came = 0;
        let no_part = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut parts = [no_part; FRAMES_MAX];
        // SAFETY: mmsghdr is plain data of the C library, for which all bits zero are a value: no
        // name, no control data, no parts.
        let mut messages: [libc::mmsghdr; FRAMES_MAX] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        for ((part, message), place) in
            parts.iter_mut().zip(&mut messages).zip(self.bytes.chunks_exact_mut(self.each)).take(self.shown)
        {
            *part = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: place.len() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        // SAFETY: the descriptor is open for as long as `socket` is borrowed. The first `count`
        // headers, at most FRAMES_MAX, point to one part each, and each part to a place of its own
        // in `bytes`, which is borrowed mutably and has the length that the part says; all of them
        // outlive the call. No time-out is passed.
        let came = unsafe {
            libc::recvmmsg(
                socket.as_fd().as_raw_fd(),
                messages.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let came = usize::try_from(came).map_err(|_| io::Error::last_os_error())?;
        for (length, message) in self.lengths.iter_mut().zip(&messages) {
            *length = message.msg_len as usize;
        }
        self.came = came.min(count as usize);
        Ok(self.came)
    }

    /// Frames that one call brings at most.
    #[must_use]
    pub fn frames_max(&self) -> usize {
        self.bytes.len() / self.each
    }

    /// Whether as many came as fitted: there may be more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.came == self.shown.min(self.frames_max())
    }

    /// The payloads that came last.
    pub fn frames(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let places = self.bytes.chunks_exact_mut(self.each).zip(self.lengths).take(self.came);
        places.map(|(place, length)| {
            let end = length.min(place.len());
            place.split_at_mut(end).0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::{UnshareFlags, unshare};

    /// Of local experiments.
    const TYPE: u16 = 0x88b6;

    /// In a network namespace of this thread alone: a cable with two ends.
    pub(super) fn cable() -> Option<[Interface; 2]> {
        if let Err(error) = unshare(UnshareFlags::NEWNET) {
            println!("skipped: no network namespace: {error}");
            return None;
        }
        let script = "ip link add one type veth peer name two && ip link set one up && ip link set two up \
                      && ip addr add 198.18.7.1/24 dev one";
        let made = std::process::Command::new("sh").args(["-c", script]).status();
        if !made.is_ok_and(|status| status.success()) {
            println!("skipped: no cable can be made (ip link add ... type veth)");
            return None;
        }
        Some(["one", "two"].map(|name| interface(name).unwrap()))
    }

    fn receive(room: &mut Room, socket: &OwnedFd) -> Vec<Vec<u8>> {
        match room.receive(socket) {
            Ok(_) => room.frames().map(|frame| frame.to_vec()).collect(),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                Vec::new()
            }
        }
    }

    #[test]
    fn a_station_hears_what_is_for_it_and_nothing_else() {
        let Some([one, two]) = cable() else { return };
        assert_eq!(bearing(IpAddr::from([198, 18, 7, 1])).unwrap(), "one");
        assert_eq!(bearing(IpAddr::from([198, 18, 7, 2])).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(interface("lo").unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert_eq!((one.mtu, two.mac[0] & 1), (1500, 0));
        let station = 0x0102_0304_0506_0708;
        let (from, to) = (open(&one, TYPE, 1).unwrap(), open(&two, TYPE, station).unwrap());
        let mut room = Room::new(8, 100);
        assert_eq!(receive(&mut room, &to), [[0; 0]; 0]);
        let frame = |station: u64, rest: &[u8]| [&station.to_be_bytes()[..], rest].concat();
        let frames = [
            frame(station, b"first"),
            frame(station + 1, b"another station's"),
            frame(station | 1 << 63, b"and another's"),
            frame(station, &[7; 200]),
            frame(station, b"last"),
            b"short".to_vec(),
        ];
        let parts: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        assert_eq!(send(&from, (one.index, TYPE, two.mac), &parts).unwrap(), 6);
        assert_eq!(send(&from, (one.index, TYPE + 1, two.mac), &parts).unwrap(), 6);
        let mut came = receive(&mut room, &to);
        while came.len() < 3 {
            came.extend(receive(&mut room, &to));
        }
        assert_eq!(came[0][..13], frames[0][..], "Ethernet pads what is short");
        assert_eq!(came[1], frames[3][..100], "what does not fit is cut");
        assert_eq!(came[2][..12], frames[4][..]);
        assert_eq!(receive(&mut room, &to), [[0; 0]; 0]);
        let long = vec![0; 1501];
        let refused = send(&from, (one.index, TYPE, two.mac), &[&long]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE));
    }

    #[test]
    fn the_filter_stays() {
        let Some([_, two]) = cable() else { return };
        let socket = open(&two, TYPE, 1).unwrap();
        let mut program = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: ALL }];
        let filter = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
        let error = option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    }
}
