//! The priority (SO_PRIORITY, socket(7)) of all sockets that the processes of a cgroup make or accept: two programs of a few instructions, attached to a cgroup of
//! version 2. They go with the cgroup, and need nobody to stay.

use crate::bpf::{
    self, ADD, CALL, EXIT, IF_NOT_EQUAL, LOAD_32, MOVE, MOVE_32, MOVE_REGISTER, Program, STORE_32,
    STORE_VALUE_32,
};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

// linux/bpf.h
const BPF_PROG_TYPE_CGROUP_SOCK: u32 = 9;
const BPF_PROG_TYPE_SOCK_OPS: u32 = 13;
const BPF_CGROUP_INET_SOCK_CREATE: u32 = 2;
const BPF_CGROUP_SOCK_OPS: u32 = 3;
const BPF_FUNC_SETSOCKOPT: i32 = 49;
/// A connection that was accepted is there: what `struct bpf_sock_ops` begins with.
const BPF_SOCK_OPS_PASSIVE_ESTABLISHED: i32 = 5;
/// Where `struct bpf_sock` has the priority.
const PRIORITY: i16 = 20;

/// Gives all sockets that processes of the cgroup (a directory of version 2) make from now on this priority, and all connections that they accept. Where there are several, the last wins.
///
/// # Errors
/// What the kernel says: it knows no such programs, or forbids them.
pub fn set_for_cgroup(cgroup: BorrowedFd<'_>, priority: u32) -> io::Result<()> {
    bpf::attach(cgroup, &of_made(priority)?, BPF_CGROUP_INET_SOCK_CREATE)?;
    bpf::attach(cgroup, &of_accepted(priority)?, BPF_CGROUP_SOCK_OPS)
}

/// A socket has it from the beginning.
fn of_made(priority: u32) -> io::Result<OwnedFd> {
    let mut program = Program::default();
    program
        .put(MOVE_32, 2, 0, 0, priority.cast_signed())
        .put(STORE_32, 1, 2, PRIORITY, 0)
        .put(MOVE, 0, 0, 0, 1)
        .put(EXIT, 0, 0, 0, 0);
    program.load(BPF_PROG_TYPE_CGROUP_SOCK, BPF_CGROUP_INET_SOCK_CREATE, "tombolo_made")
}

/// The kernel makes the socket of a connection that is accepted, and gives it priority 0, whatever the listener has.
fn of_accepted(priority: u32) -> io::Result<OwnedFd> {
    let mut program = Program::default();
    let end = program.label();
    program
        .put(LOAD_32, 2, 1, 0, 0)
        .jump(IF_NOT_EQUAL, 2, BPF_SOCK_OPS_PASSIVE_ESTABLISHED, end)
        .put(STORE_VALUE_32, 10, 0, -4, priority.cast_signed())
        .put(MOVE, 2, 0, 0, libc::SOL_SOCKET)
        .put(MOVE, 3, 0, 0, libc::SO_PRIORITY)
        .put(MOVE_REGISTER, 4, 10, 0, 0)
        .put(ADD, 4, 0, 0, -4)
        .put(MOVE, 5, 0, 0, 4)
        .put(CALL, 0, 0, 0, BPF_FUNC_SETSOCKOPT)
        .here(end)
        .put(MOVE, 0, 0, 0, 1)
        .put(EXIT, 0, 0, 0, 0);
    program.load(BPF_PROG_TYPE_SOCK_OPS, BPF_CGROUP_SOCK_OPS, "tombolo_accept")
}

/// Gives one socket a priority; above 6 that takes `CAP_NET_ADMIN`.
///
/// # Errors
/// What the kernel says.
pub fn set(socket: BorrowedFd<'_>, priority: u32) -> io::Result<()> {
    let value = i32::try_from(priority).map_err(|_| io::ErrorKind::InvalidInput)?;
    let length = libc::socklen_t::try_from(size_of::<i32>()).unwrap_or(4);
    // SAFETY: the option is an integer, `value` is one that lives until the call returns, and its length goes with it.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PRIORITY,
            (&raw const value).cast(),
            length,
        )
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
