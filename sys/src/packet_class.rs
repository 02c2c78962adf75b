//! The owner of each packet, looked up by a program at `clsact` (tc-bpf(8)): a packet that goes out
//! belongs to the control group that its socket was made in, one that comes in to the control group
//! of the socket that waits for it. A program's request of a socket, such as a priority, decides
//! nothing.
//!
//! The kernel tells such a program the control group of a packet that goes out, of whatever kind
//! its socket is, but not that of a socket which was looked up. So sockets are given a value when
//! they are made, which nobody but programs of the kernel's can change, and connections that are
//! accepted inherit it.

use crate::bpf::{
    self, ADD, AND, CALL, EXIT, IF_ANY_BIT, IF_EQUAL, IF_NOT_EQUAL, JUMP, Keys, LOAD_8, LOAD_16, LOAD_32,
    Label, MOVE, MOVE_REGISTER, Map, Program, SHIFT_LEFT, SHIFT_RIGHT, STORE_32, STORE_64, STORE_VALUE_32,
};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

// linux/bpf.h
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_FUNC_MAP_LOOKUP_ELEM: i32 = 1;
const BPF_FUNC_REDIRECT: i32 = 23;
const BPF_FUNC_SKB_LOAD_BYTES_RELATIVE: i32 = 68;
const BPF_FUNC_SKB_ANCESTOR_CGROUP_ID: i32 = 83;
const BPF_FUNC_SK_LOOKUP_TCP: i32 = 84;
const BPF_FUNC_SK_LOOKUP_UDP: i32 = 85;
const BPF_FUNC_SK_RELEASE: i32 = 86;
const BPF_FUNC_SK_STORAGE_GET: i32 = 107;
const BPF_SK_STORAGE_GET_F_CREATE: i32 = 1;
const BPF_PROG_TYPE_CGROUP_SOCK: u32 = 9;
const BPF_CGROUP_INET_SOCK_CREATE: u32 = 2;
/// A filter that leaves the rest to others.
const TC_ACT_UNSPEC: i32 = -1;
/// Offsets count from the network header.
const FROM_NETWORK: i32 = 1;
/// The network namespace of the interface.
const CURRENT_NAMESPACE: i32 = -1;
/// Where `struct __sk_buff` has the protocol and the priority.
const SKB_PROTOCOL: i16 = 16;
const SKB_PRIORITY: i16 = 32;
/// Where on the stack the packet's header is read to; the ports follow it.
const HEADER: i16 = -48;
/// Where on the stack the number of a control group is.
const CGROUP: i16 = -56;
/// Fragments, but for the bit that forbids them: only the first has ports.
const FRAGMENT: u16 = 0x3fff;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: i32 = 6;
const UDP: i32 = 17;
/// How many owners there may be: as many as a discipline has classes.
const MAX_OWNERS: u32 = 0x1_0000;
const OWNERS: Keys = Keys::Numbers(MAX_OWNERS);
/// How deep below the root of all control groups an owner's may be. A node's own is at the first
/// level, or below that of the container or service that the daemon runs in; domains are two below.
const MAX_LEVEL: i32 = 16;

/// The class of each control group, looked up for packets that go out. Entries that nobody takes
/// away are those of control groups that are gone, whose numbers the kernel gives to no other.
#[derive(Debug)]
pub struct Owners(Map);

impl Owners {
    /// With nobody in it.
    ///
    /// # Errors
    /// The kernel's error: it has no BPF maps, or forbids them.
    pub fn new() -> io::Result<Self> {
        Map::new(OWNERS, "tombolo_owners").map(Self)
    }

    /// Those of a program that the kernel has: of a process that is gone. `None` where that program
    /// is another.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of_program(id: u32) -> io::Result<Option<Self>> {
        Ok(Map::of_program(id, OWNERS)?.map(Self))
    }

    /// Packets of sockets that processes of this control group made, or of one below it, have this
    /// priority from now on. `cgroup`: its number, which its directory has as inode.
    ///
    /// # Errors
    /// The kernel's error: there are too many control groups in the map.
    pub fn set(&self, cgroup: u64, priority: u32) -> io::Result<()> {
        self.0.set(cgroup, priority)
    }

    /// The priority that packets of this control group have.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn get(&self, cgroup: u64) -> io::Result<Option<u32>> {
        self.0.get(cgroup)
    }

    /// Packets of this control group have no class any more.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove(&self, cgroup: u64) -> io::Result<()> {
        self.0.remove(cgroup)
    }

    /// Keeps those whose priority is wanted.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn retain(&self, wanted: impl Fn(u32) -> bool) -> io::Result<()> {
        // No control group has the number 0.
        let (mut at, mut unwanted) = (0, Vec::new());
        for _ in 0..MAX_OWNERS {
            let Some(next) = self.0.next(at)? else { break };
            if self.0.get(next)?.is_some_and(|priority| !wanted(priority)) {
                unwanted.push(next);
            }
            at = next;
        }
        unwanted.into_iter().try_for_each(|cgroup| self.0.remove(cgroup))
    }
}

/// The class of each socket, looked up for packets that come in.
#[derive(Debug)]
pub struct Sockets(Map);

impl Sockets {
    /// With no socket in it.
    ///
    /// # Errors
    /// The kernel's error: it has no BPF maps, or forbids them.
    pub fn new() -> io::Result<Self> {
        Map::new(Keys::Sockets, "tombolo_sockets").map(Self)
    }

    /// Those of a program that the kernel has: of a process that is gone. `None` where that program
    /// is another.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn of_program(id: u32) -> io::Result<Option<Self>> {
        Ok(Map::of_program(id, Keys::Sockets)?.map(Self))
    }

    /// Packets have this priority that come for sockets which processes of the cgroup (a directory
    /// of version 2) make from now on, and for connections that are accepted by those. Goes with
    /// the cgroup.
    ///
    /// # Errors
    /// The kernel's error: it knows no such programs, or forbids them.
    pub fn set_for_cgroup(&self, cgroup: BorrowedFd<'_>, priority: u32) -> io::Result<()> {
        let mut program = Program::default();
        let end = program.label();
        program
            .put(MOVE_REGISTER, 2, 1, 0, 0)
            .map(1, &self.0)
            .put(MOVE, 3, 0, 0, 0)
            .put(MOVE, 4, 0, 0, BPF_SK_STORAGE_GET_F_CREATE)
            .put(CALL, 0, 0, 0, BPF_FUNC_SK_STORAGE_GET)
            .jump(IF_EQUAL, 0, 0, end)
            .put(STORE_VALUE_32, 0, 0, 0, priority.cast_signed())
            .here(end)
            .put(MOVE, 0, 0, 0, 1)
            .put(EXIT, 0, 0, 0, 0);
        let program = program.load(BPF_PROG_TYPE_CGROUP_SOCK, BPF_CGROUP_INET_SOCK_CREATE, "tombolo_made")?;
        bpf::attach(cgroup, &program, BPF_CGROUP_INET_SOCK_CREATE)
    }
}

/// Loads the program for packets that go out: each has the priority of its owner. One that has no
/// owner keeps its own, unless `major` is in its upper half: then it has none.
///
/// # Errors
/// The kernel's error: it knows no such programs, or forbids them.
pub fn load_outgoing(owners: &Owners, major: u16) -> io::Result<OwnedFd> {
    let mut program = Program::default();
    let (nobody, found, end) = (program.label(), program.label(), program.label());
    program.put(MOVE_REGISTER, 6, 1, 0, 0);
    find_owner(&mut program, owners, nobody, found);
    program
        .here(nobody)
        .put(LOAD_32, 7, 6, SKB_PRIORITY, 0)
        .put(SHIFT_RIGHT, 7, 0, 0, 16)
        .jump(IF_NOT_EQUAL, 7, i32::from(major), end)
        .put(MOVE, 7, 0, 0, 0)
        .put(STORE_32, 6, 7, SKB_PRIORITY, 0)
        .jump(JUMP, 0, 0, end)
        .here(found)
        .put(LOAD_32, 7, 0, 0, 0)
        .put(STORE_32, 6, 7, SKB_PRIORITY, 0)
        .here(end)
        .put(MOVE, 0, 0, 0, TC_ACT_UNSPEC)
        .put(EXIT, 0, 0, 0, 0);
    program.load(BPF_PROG_TYPE_SCHED_CLS, 0, "tombolo_out")
}

/// Loads the program for packets that come in: each goes on to the interface `to`; where a socket
/// of this network namespace waits for it, it has the priority of that one then.
///
/// Packets without a socket here, other than TCP and UDP, and fragments have no class.
///
/// # Errors
/// The kernel's error: it knows no such programs, or forbids them.
pub fn load_incoming(sockets: &Sockets, to: u32) -> io::Result<OwnedFd> {
    let mut program = Program::default();
    let (ipv6, end) = (program.label(), program.label());
    program
        .put(MOVE_REGISTER, 6, 1, 0, 0)
        // Over `lo` it has what its sender gave it.
        .put(MOVE, 7, 0, 0, 0)
        .put(STORE_32, 6, 7, SKB_PRIORITY, 0)
        .put(LOAD_32, 7, 6, SKB_PROTOCOL, 0)
        .jump(IF_EQUAL, 7, i32::from(IPV6.to_be()), ipv6)
        .jump(IF_NOT_EQUAL, 7, i32::from(IPV4.to_be()), end);
    of_family(&mut program, &OF_IPV4, end, sockets);
    program.jump(JUMP, 0, 0, end).here(ipv6);
    of_family(&mut program, &OF_IPV6, end, sockets);
    program
        .here(end)
        .put(MOVE, 1, 0, 0, to.cast_signed())
        .put(MOVE, 2, 0, 0, 0)
        .put(CALL, 0, 0, 0, BPF_FUNC_REDIRECT)
        .put(EXIT, 0, 0, 0, 0);
    program.load(BPF_PROG_TYPE_SCHED_CLS, 0, "tombolo_in")
}

/// How a header of one family is read: its bytes, where the protocol and the two addresses begin,
/// bytes of both with the ports.
struct Family {
    header: i32,
    protocol: i16,
    addresses: i16,
    tuple: i32,
}

const OF_IPV4: Family = Family { header: 20, protocol: 9, addresses: 12, tuple: 12 };
const OF_IPV6: Family = Family { header: 40, protocol: 6, addresses: 8, tuple: 36 };

/// Looks up the control groups that the socket of the packet in register 6 is in, from the root
/// down. Goes to `found` with the owner's entry in register 0, or to `nobody`.
fn find_owner(program: &mut Program, owners: &Owners, nobody: Label, found: Label) {
    for level in 1..=MAX_LEVEL {
        program
            .put(MOVE_REGISTER, 1, 6, 0, 0)
            .put(MOVE, 2, 0, 0, level)
            .put(CALL, 0, 0, 0, BPF_FUNC_SKB_ANCESTOR_CGROUP_ID)
            .jump(IF_EQUAL, 0, 0, nobody)
            .put(STORE_64, 10, 0, CGROUP, 0)
            .map(1, &owners.0)
            .put(MOVE_REGISTER, 2, 10, 0, 0)
            .put(ADD, 2, 0, 0, i32::from(CGROUP))
            .put(CALL, 0, 0, 0, BPF_FUNC_MAP_LOOKUP_ELEM)
            .jump(IF_NOT_EQUAL, 0, 0, found);
    }
    program.jump(JUMP, 0, 0, nobody);
}

/// Reads `bytes` bytes to the stack, from the network header and what register 2 adds to it. Goes
/// to `end` where there are not so many.
fn read(program: &mut Program, to: i16, bytes: i32, end: Label) {
    program
        .put(MOVE_REGISTER, 1, 6, 0, 0)
        .put(MOVE_REGISTER, 3, 10, 0, 0)
        .put(ADD, 3, 0, 0, i32::from(to))
        .put(MOVE, 4, 0, 0, bytes)
        .put(MOVE, 5, 0, 0, FROM_NETWORK)
        .put(CALL, 0, 0, 0, BPF_FUNC_SKB_LOAD_BYTES_RELATIVE)
        .jump(IF_NOT_EQUAL, 0, 0, end);
}

fn of_family(program: &mut Program, family: &Family, end: Label, sockets: &Sockets) {
    let (udp, look, socket) = (program.label(), program.label(), program.label());
    let nobody = program.label();
    program.put(MOVE, 2, 0, 0, 0);
    read(program, HEADER, family.header, end);
    if family.header == OF_IPV4.header {
        // Words of a packet are big-endian.
        program
            .put(LOAD_16, 7, 10, HEADER + 6, 0)
            .jump(IF_ANY_BIT, 7, i32::from(FRAGMENT.to_be()), end)
            // The header may be longer than it must.
            .put(LOAD_8, 2, 10, HEADER, 0)
            .put(AND, 2, 0, 0, 0xf)
            .put(SHIFT_LEFT, 2, 0, 0, 2);
    } else {
        program.put(MOVE, 2, 0, 0, family.header);
    }
    let ports = HEADER + family.addresses + i16::try_from(family.tuple).unwrap_or(0) - 4;
    read(program, ports, 4, end);
    program
        .put(LOAD_8, 7, 10, HEADER + family.protocol, 0)
        .put(MOVE_REGISTER, 1, 6, 0, 0)
        .put(MOVE_REGISTER, 2, 10, 0, 0)
        .put(ADD, 2, 0, 0, i32::from(HEADER + family.addresses))
        .put(MOVE, 3, 0, 0, family.tuple)
        .put(MOVE, 4, 0, 0, CURRENT_NAMESPACE)
        .put(MOVE, 5, 0, 0, 0)
        .jump(IF_EQUAL, 7, UDP, udp)
        .jump(IF_NOT_EQUAL, 7, TCP, end)
        .put(CALL, 0, 0, 0, BPF_FUNC_SK_LOOKUP_TCP)
        .jump(JUMP, 0, 0, look)
        .here(udp)
        .put(CALL, 0, 0, 0, BPF_FUNC_SK_LOOKUP_UDP)
        .here(look)
        .jump(IF_NOT_EQUAL, 0, 0, socket)
        .jump(JUMP, 0, 0, end)
        .here(socket)
        .put(MOVE_REGISTER, 7, 0, 0, 0)
        .put(MOVE, 8, 0, 0, 0)
        .map(1, &sockets.0)
        .put(MOVE_REGISTER, 2, 7, 0, 0)
        .put(MOVE, 3, 0, 0, 0)
        .put(MOVE, 4, 0, 0, 0)
        .put(CALL, 0, 0, 0, BPF_FUNC_SK_STORAGE_GET)
        .jump(IF_EQUAL, 0, 0, nobody)
        .put(LOAD_32, 8, 0, 0, 0)
        .here(nobody)
        .put(MOVE_REGISTER, 1, 7, 0, 0)
        .put(CALL, 0, 0, 0, BPF_FUNC_SK_RELEASE)
        .put(STORE_32, 6, 8, SKB_PRIORITY, 0);
}
