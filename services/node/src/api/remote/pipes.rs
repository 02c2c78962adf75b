//! A process for the pipes of one command: the daemon has sockets, and touches no pipe.
//!
//! A thread that splices into a pipe, or out of it, holds up everybody else who uses it, in the
//! kernel, where not even `kill -9` helps ([`sys::aside`]). A daemon with such a thread would end,
//! and let go of its locks, only when that command does, and nobody could take its place.

use admin::place::RUN_DIR_VARIABLE;
use domain::Layout;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use session::packet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use sys::aside;
use tokio::process::Command;

/// The role of that process.
pub const PIPES_ROLE: &str = "internal-pipes";

/// The direction of a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    /// From the socket into the pipe.
    Into,
    /// Out of the pipe to the socket.
    OutOf,
}

/// The process's one order; with a pipe and a socket for each.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    ways: Vec<Way>,
}

/// The pipes of a command that is about to be started.
#[derive(Debug, Default)]
pub(super) struct Pipes {
    told: Told,
    descriptors: Vec<OwnedFd>,
}

impl Pipes {
    /// The socket whose words go into the pipe; see [`aside::writer`].
    pub(super) fn writer(&mut self, pipe: OwnedFd) -> io::Result<OwnedFd> {
        self.add(Way::Into, pipe)
    }

    /// The socket that brings what comes out of the pipe; see [`aside::reader`].
    pub(super) fn reader(&mut self, pipe: OwnedFd) -> io::Result<OwnedFd> {
        self.add(Way::OutOf, pipe)
    }

    fn add(&mut self, way: Way, pipe: OwnedFd) -> io::Result<OwnedFd> {
        let (ours, theirs) = aside::sockets()?;
        self.told.ways.push(way);
        self.descriptors.extend([pipe, theirs]);
        Ok(ours)
    }

    /// Starts the process, which ends with the last of the pipes.
    pub(super) fn start(self, layout: &Layout) -> io::Result<()> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let descriptors: Vec<_> = self.descriptors.iter().map(AsFd::as_fd).collect();
        packet::send(&ours, &self.told, &descriptors).map_err(io::Error::other)?;
        let mut command = Command::new(&layout.program);
        command.arg(PIPES_ROLE).env_clear().env(RUN_DIR_VARIABLE, &layout.run_dir);
        command.current_dir("/").process_group(0);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        // Nobody waits for it: the runtime reaps it.
        command.spawn().map(drop)
    }
}

/// The entry of that process: its standard input is a socket, at which one packet waits.
///
/// # Errors
/// In words: it is not what the daemon says, or there is no thread for it.
pub fn pipes_main() -> Result<(), String> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(|e| format!("no socket: {e}"))?;
    let packet::Packet { message: Told { ways }, descriptors } =
        packet::receive(&socket).map_err(|e| format!("the daemon's word is not understood: {e}"))?;
    drop(socket);
    let mut descriptors = descriptors.into_iter();
    let mut threads = Vec::new();
    for way in ways {
        let (Some(pipe), Some(socket)) = (descriptors.next(), descriptors.next()) else {
            return Err("the daemon names more pipes than it gives".into());
        };
        let thread = match way {
            Way::Into => aside::pass_into(pipe, socket),
            Way::OutOf => aside::pass_out_of(pipe, socket),
        };
        threads.push(thread.map_err(|e| format!("no thread for a pipe: {e}"))?);
    }
    for thread in threads {
        thread.join().map_err(|_| "a thread for a pipe has panicked".to_owned())?;
    }
    Ok(())
}
