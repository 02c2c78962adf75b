//! The owner of the listening socket that answers at an address: a port that somebody else held
//! already must not make a domain look ready.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// State of a listening socket in `/proc/net/tcp` (`TCP_LISTEN` of Linux's `net/tcp_states.h`).
const LISTENING: &str = "0A";

/// The owner of a listening socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// One of the processes that were asked about.
    Ours,
    /// This other process: its number and name.
    Stranger(u32, String),
    /// Nobody that `/proc` shows: gone again, or of another namespace.
    Unknown,
}

/// Returns the owner of the socket that listens at `address`, in the namespace of the network that
/// this process is in.
pub(crate) fn holder(address: SocketAddr, ours: &[u32]) -> Holder {
    holder_of(&sockets_at(&|bound| reaches(bound, address)), ours)
}

/// Returns the owner of a socket that overlaps `address`, and keeps others from listening there.
pub(crate) fn in_the_way(address: SocketAddr, ours: &[u32]) -> Holder {
    holder_of(&sockets_at(&|bound| topology::Published::overlap(bound, address)), ours)
}

fn holder_of(sockets: &[u64], ours: &[u32]) -> Holder {
    let holds = |pid: &u32| holds_any(*pid, sockets);
    if sockets.is_empty() {
        return Holder::Unknown;
    }
    if ours.iter().any(holds) {
        return Holder::Ours;
    }
    match all_processes().into_iter().find(holds) {
        Some(pid) => Holder::Stranger(pid, name_of(pid)),
        None => Holder::Unknown,
    }
}

/// The numbers of the listening sockets whose own address is one that is wanted.
fn sockets_at(wanted: &dyn Fn(SocketAddr) -> bool) -> Vec<u64> {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .flat_map(|table| listening_in(&table, wanted))
        .collect()
}

/// Returns the numbers of those in one table of proc(5).
fn listening_in(table: &str, wanted: &dyn Fn(SocketAddr) -> bool) -> Vec<u64> {
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (local, state, inode) = (words.get(1)?, words.get(3)?, words.get(9)?);
        let (ip, port) = local.split_once(':')?;
        let bound = SocketAddr::new(parse(ip)?, u16::from_str_radix(port, 16).ok()?);
        (*state == LISTENING && wanted(bound)).then(|| inode.parse().ok())?
    };
    table.lines().skip(1).filter_map(of_line).collect()
}

/// An address as the kernel prints it: 32-bit words in hexadecimal, each in the byte order of the
/// machine.
fn parse(text: &str) -> Option<IpAddr> {
    let words: Option<Vec<u32>> = text
        .as_bytes()
        .chunks(8)
        .map(|chunk| u32::from_str_radix(std::str::from_utf8(chunk).ok()?, 16).ok())
        .collect();
    let bytes: Vec<u8> = words?.into_iter().flat_map(u32::to_ne_bytes).collect();
    if let Ok(v4) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(bytes.as_slice()).ok().map(|v6| Ipv6Addr::from(v6).to_canonical())
}

/// Whether a socket bound to `bound` takes connections to `to`.
fn reaches(bound: SocketAddr, to: SocketAddr) -> bool {
    let (from, ip) = (bound.ip(), to.ip());
    bound.port() == to.port() && (from == ip || from.is_unspecified() && (from.is_ipv6() || ip.is_ipv4()))
}

fn holds_any(pid: u32, sockets: &[u64]) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| {
            let inode =
                target.to_str().and_then(|t| t.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            inode.is_some_and(|inode: u64| sockets.contains(&inode))
        })
    })
}

fn all_processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn name_of(pid: u32) -> String {
    let name = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("comm"));
    let name = name.map_or_else(|_| "a process that is gone".into(), |name| name.trim_end().to_owned());
    relay_of(pid).map_or(name, |domain| format!("domain {domain}"))
}

/// The domain for which a relay of ours listens.
fn relay_of(pid: u32) -> Option<String> {
    let line = std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).ok()?;
    let mut words = line.split(|byte| *byte == 0).skip(1);
    (words.next()? == b"relay")
        .then(|| String::from_utf8_lossy(words.next().unwrap_or_default()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
        0: 0100007F:14EA 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 x\n\
        1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4712 1 x\n\
        2: 0100007F:14EA 0100007F:C000 01 00000000:00000000 00:00000000 00000000     0        0 4713 1 x\n\
        not a line\n";

    fn at(text: &str) -> Vec<u64> {
        let address = text.parse().expect("an address");
        listening_in(TABLE, &|bound| reaches(bound, address))
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn only_what_listens_where_we_connect_counts() {
        assert_eq!(at("127.0.0.1:5354"), [4711]);
        assert_eq!(at("127.0.0.2:5354"), [] as [u64; 0]);
        assert_eq!(at("127.0.0.2:8080"), [4712]);
        assert_eq!(at("[::1]:8080"), [] as [u64; 0]);
    }

    #[test]
    fn one_s_own_socket_is_told_from_a_stranger_s() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("its address");
        let me = std::process::id();
        assert_eq!(holder(address, &[me]), Holder::Ours);
        assert!(matches!(holder(address, &[]), Holder::Stranger(pid, _) if pid == me));
        let all = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port());
        assert_eq!((holder(all, &[me]), in_the_way(all, &[me])), (Holder::Unknown, Holder::Ours));
        drop(socket);
        assert_eq!(holder(address, &[me]), Holder::Unknown);
        let socket = std::net::TcpListener::bind("[::1]:0").expect("a port");
        assert_eq!(holder(socket.local_addr().expect("its address"), &[me]), Holder::Ours);
    }
}
