//! The subjects: each is a way of messages of the workers that the bench's core has, or a foreign
//! program.

use crate::plan::{Cell, Deployment};
use bench::channel::task::Means;
use bench::ipc::means::{Means as Ipc, Tuning, Way};
use bench::links::means::{Means as Link, Way as LinkWay};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The prefix of a foreign program's name.
pub const EXEC: &str = "exec:";
/// Bytes of a ring: as channels have it by default, and more where one message would fill it.
const RING_BYTES: usize = 1 << 20;
/// So many of the longest message fit into a ring.
const RING_MESSAGES: usize = 4;
/// Longest payload of a datagram of IP version 4: 65,535 bytes less the headers of IP and UDP, or
/// ICMP.
const DATAGRAM_BYTES: usize = 65_535 - 20 - 8;

/// The worker with what is ours and the kernel's, and those with other people's.
const OURS: &str = "plan-worker";
const CHANNEL_PEER: &str = "channel-peer";
const IPC_PEER: &str = "ipc-peer";

/// A subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject {
    /// Its name in plans.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// The worker that has it.
    pub program: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Channel { spin: bool },
    Endpoint { spin: bool },
    Tcp,
    Udp,
    Icmp,
    Unix,
    Pipe,
    Iceoryx { listener: bool },
    Zenoh,
    Grpc,
}

const fn subject(name: &'static str, about: &'static str, program: &'static str, kind: Kind) -> Subject {
    Subject { name, about, program, kind }
}

/// All subjects of this build.
pub const ALL: [Subject; 13] = [
    subject("udp", "datagrams over UDP: no connection, nothing sent again", OURS, Kind::Udp),
    subject("icmp", "echoes of ICMP, answered by the kernel", OURS, Kind::Icmp),
    subject("tcp", "a TCP connection, without delay", OURS, Kind::Tcp),
    subject("unix", "a pair of Unix stream sockets", OURS, Kind::Unix),
    subject("pipe", "two pipes", OURS, Kind::Pipe),
    subject("tombolo-channel", "a channel that spins, then sleeps", OURS, Kind::Channel { spin: true }),
    subject("tombolo-channel-asleep", "a channel that sleeps at once", OURS, Kind::Channel { spin: false }),
    subject(
        "tombolo-endpoint",
        "calls between endpoints that spin, then sleep",
        OURS,
        Kind::Endpoint { spin: true },
    ),
    subject(
        "tombolo-endpoint-asleep",
        "calls between endpoints that sleep at once",
        OURS,
        Kind::Endpoint { spin: false },
    ),
    subject("iceoryx2", "iceoryx2, whose receiver polls", CHANNEL_PEER, Kind::Iceoryx { listener: false }),
    subject(
        "iceoryx2-listener",
        "iceoryx2, whose receiver sleeps on a listener",
        CHANNEL_PEER,
        Kind::Iceoryx { listener: true },
    ),
    subject("zenoh", "zenoh: two peers, publish and subscribe", IPC_PEER, Kind::Zenoh),
    subject("grpc", "gRPC: one call that streams both ways", IPC_PEER, Kind::Grpc),
];

/// Names of all subjects of this build.
#[must_use]
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|subject| subject.name).collect()
}

/// The subject of this name.
#[must_use]
pub fn find(name: &str) -> Option<Subject> {
    ALL.into_iter().find(|subject| subject.name == name)
}

/// The surroundings of a subject.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    /// A folder that both ends see at this path.
    pub folder: &'a Path,
    /// The prefix of all of its names in `/dev/shm`.
    pub prefix: &'a str,
    /// Address of the follower.
    pub address: IpAddr,
}

impl Subject {
    /// Why this subject can't be measured in a cell on any machine.
    #[must_use]
    pub fn excuse(&self, cell: &Cell) -> Option<&'static str> {
        match self.kind {
            Kind::Icmp if cell.work_ns > 0 => Some("the kernel answers, and computes nothing"),
            Kind::Udp | Kind::Icmp if cell.payload > DATAGRAM_BYTES => Some("no datagram is so long"),
            Kind::Zenoh | Kind::Iceoryx { .. } if cell.deployment == Deployment::Container => {
                Some("the containers of a plan share no /dev/shm")
            }
            _ => None,
        }
    }

    /// How it is installed where its worker is missing.
    #[must_use]
    pub fn how_to_install(&self) -> String {
        let package = match self.program {
            CHANNEL_PEER => "peers",
            IPC_PEER => "middleware",
            _ => "campaign",
        };
        let program = self.program;
        format!(
            "`{program}` is not beside `tombolo`: `make bench-peers` or `cargo build --release -p {package}`"
        )
    }

    /// By what the core's workers do it.
    #[must_use]
    pub fn means(&self, cell: &Cell, around: &Around<'_>) -> Means {
        let ring = RING_BYTES.max((cell.payload * RING_MESSAGES).next_power_of_two());
        let ring_bytes = u32::try_from(ring).unwrap_or(u32::MAX);
        let address = around.address.to_string();
        let is_bare = cell.deployment == Deployment::Bare;
        match self.kind {
            Kind::Channel { spin } => Means::Tombolo { spin, ring_bytes, batch_bytes: 0 },
            Kind::Endpoint { spin } => {
                let tuning = Tuning { buffer_bytes: ring, ..Tuning::plain(cell.payload) };
                Means::Ipc(Ipc { way: Way::Requests { spin }, tuning })
            }
            Kind::Tcp => Means::Tcp(address),
            Kind::Udp => Means::Udp(address),
            Kind::Icmp => Means::Icmp(address),
            Kind::Unix => Means::Unix,
            Kind::Pipe => Means::Pipe,
            Kind::Iceoryx { listener } => Means::Iceoryx {
                listener,
                root: around.folder.to_path_buf(),
                prefix: around.prefix.to_owned(),
                ring_bytes,
            },
            Kind::Zenoh if is_bare => ipc(Way::Zenoh, cell),
            Kind::Zenoh => link(LinkWay::Zenoh, around),
            Kind::Grpc if is_bare => ipc(Way::Grpc, cell),
            Kind::Grpc => link(LinkWay::Grpc { tls: false }, around),
        }
    }
}

fn ipc(way: Way, cell: &Cell) -> Means {
    Means::Ipc(Ipc { way, tuning: Tuning::plain(cell.payload) })
}

/// Over a network, in clear: there is no identity.
fn link(way: LinkWay, around: &Around<'_>) -> Means {
    let (identity, peer, program) = (PathBuf::new(), String::new(), PathBuf::new());
    Means::Link(Link { way, pairs: 1, address: around.address, identity, peer, program })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Loop;
    use std::collections::BTreeSet;

    #[test]
    fn every_name_is_there_once() {
        let different: BTreeSet<&str> = names().into_iter().collect();
        assert_eq!(different.len(), ALL.len());
        assert_eq!(find("tcp").map(|subject| subject.program), Some(OURS));
    }

    #[test]
    fn what_can_not_be_is_excused_with_its_reason() {
        let cell = Cell { deployment: Deployment::Bare, payload: 1 << 20, work_ns: 1, pace: Loop::Closed };
        let excuse = |name: &str| find(name).expect("a subject").excuse(&cell);
        assert_eq!(excuse("tcp"), None);
        assert_eq!(excuse("udp"), Some("no datagram is so long"));
        assert!(excuse("icmp").is_some_and(|why| why.contains("computes nothing")));
    }
}
