//! To whom a packet is that has come in: the priority of its socket, looked up by the packet's addresses and ports. A program for `clsact` (tc-bpf(8)).

use crate::bpf::{
    ADD, AND, CALL, EXIT, IF_ANY_BIT, IF_EQUAL, IF_NOT_EQUAL, JUMP, LOAD_8, LOAD_16, LOAD_32, Label, MOVE,
    MOVE_REGISTER, Program, SHIFT_LEFT, SHIFT_RIGHT, STORE_32,
};
use std::io;
use std::os::fd::OwnedFd;

// linux/bpf.h
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_FUNC_REDIRECT: i32 = 23;
const BPF_FUNC_SKB_LOAD_BYTES_RELATIVE: i32 = 68;
const BPF_FUNC_SK_LOOKUP_TCP: i32 = 84;
const BPF_FUNC_SK_LOOKUP_UDP: i32 = 85;
const BPF_FUNC_SK_RELEASE: i32 = 86;
/// Offsets count from the network header.
const FROM_NETWORK: i32 = 1;
/// The network namespace of the interface.
const CURRENT_NAMESPACE: i32 = -1;
/// Where `struct __sk_buff` has the protocol and the priority.
const SKB_PROTOCOL: i16 = 16;
const SKB_PRIORITY: i16 = 32;
/// Where `struct bpf_sock` has the priority.
const SOCKET_PRIORITY: i16 = 20;
/// Where on the stack the packet's header is read to; the ports follow it.
const HEADER: i16 = -48;
/// Fragments, but for the bit that forbids them: only the first has ports.
const FRAGMENT: u16 = 0x3fff;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: i32 = 6;
const UDP: i32 = 17;

/// How a header of one family is read: its bytes, where the protocol and the two addresses begin, bytes of both with the ports.
struct Family {
    header: i32,
    protocol: i16,
    addresses: i16,
    tuple: i32,
}

const OF_IPV4: Family = Family { header: 20, protocol: 9, addresses: 12, tuple: 12 };
const OF_IPV6: Family = Family { header: 40, protocol: 6, addresses: 8, tuple: 36 };

/// Loads the program: each packet goes on to the interface `to`; where a socket of this network namespace waits for it whose priority has `major` in its upper half, it has that
/// priority then.
///
/// What has no socket here, is no TCP or UDP, or is a fragment, has none.
///
/// # Errors
/// What the kernel says: it knows no such programs, or forbids them.
pub fn load(major: u16, to: u32) -> io::Result<OwnedFd> {
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
    of_family(&mut program, &OF_IPV4, end, major);
    program.jump(JUMP, 0, 0, end).here(ipv6);
    of_family(&mut program, &OF_IPV6, end, major);
    program
        .here(end)
        .put(MOVE, 1, 0, 0, to.cast_signed())
        .put(MOVE, 2, 0, 0, 0)
        .put(CALL, 0, 0, 0, BPF_FUNC_REDIRECT)
        .put(EXIT, 0, 0, 0, 0);
    program.load(BPF_PROG_TYPE_SCHED_CLS, 0, "tombolo_in")
}

/// Reads `bytes` bytes to the stack, from the network header and what register 2 adds to it. Goes to `end` where there are not so many.
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

fn of_family(program: &mut Program, family: &Family, end: Label, major: u16) {
    let (udp, look, found) = (program.label(), program.label(), program.label());
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
        .jump(IF_NOT_EQUAL, 0, 0, found)
        .jump(JUMP, 0, 0, end)
        .here(found)
        .put(LOAD_32, 7, 0, SOCKET_PRIORITY, 0)
        .put(MOVE_REGISTER, 1, 0, 0, 0)
        .put(CALL, 0, 0, 0, BPF_FUNC_SK_RELEASE)
        .put(MOVE_REGISTER, 8, 7, 0, 0)
        .put(SHIFT_RIGHT, 8, 0, 0, 16)
        .jump(IF_NOT_EQUAL, 8, i32::from(major), end)
        .put(STORE_32, 6, 7, SKB_PRIORITY, 0);
}
