//! Network cards for guests that run: one end is a tap in a network namespace of the bench, the
//! other a virtio-net card that the machine process plugs in.

use crate::machine::{finish, inside};
use crate::scenario::BenchError;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, sockopt};
use serde::Deserialize;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use sys::descriptors::{receive_with_descriptors, send_with_descriptors};
use sys::namespace::{LinkNameSpaceType, enter};

/// How long the machine process may take to plug a card in.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer of it.
const ANSWER_BYTES: usize = 4096;
/// The commands with which the guest configures its card, whose name is the first that kernels
/// give. The kernel needs a moment to find it.
const CONFIGURE: &str =
    "n=0; while [ ! -e /sys/class/net/eth0 ] && [ $n -lt 100 ]; do sleep 0.1; n=$((n+1)); done
ip address add \"$1\" dev eth0 && ip link set lo up && ip link set eth0 up";

/// Where the other ends of cards are.
#[derive(Debug, Clone, Copy)]
pub enum Network<'a> {
    /// On this bridge.
    Bridge(&'a str),
    /// Nowhere: the tap itself has this address, with the length of its prefix.
    Address(&'a str),
}

/// One card.
#[derive(Debug, Clone, Copy)]
pub struct Card<'a> {
    /// Number of the card, from 1, and less than 256.
    pub number: u8,
    /// The guest's address, with the length of its prefix.
    pub address: &'a str,
    /// Where its other end is.
    pub network: Network<'a>,
}

impl Card<'_> {
    /// Plugs it in and gives it its address. `namespace` is a process in the network namespace of
    /// the other end, `socket` that of the machine process, and `exec` the beginning of a command
    /// in the guest.
    ///
    /// # Errors
    /// Where the tap can't be made, or the machine refuses the card.
    pub fn plug(&self, namespace: u32, socket: &Path, mut exec: Command) -> Result<(), BenchError> {
        let name = format!("tap{}", self.number);
        let tap = tap(namespace, &name).map_err(BenchError::io("making a tap"))?;
        let ip = |arguments: &[&str]| {
            let mut command = inside(namespace, "ip");
            command.args(arguments);
            finish(command)
        };
        match self.network {
            Network::Bridge(bridge) => ip(&["link", "set", &name, "master", bridge])?,
            Network::Address(address) => ip(&["address", "add", address, "dev", &name])?,
        }
        ip(&["link", "set", &name, "up"])?;
        give(socket, self.number, &tap).map_err(BenchError::io("giving a machine a network card"))?;
        exec.args(["sh", "-c", CONFIGURE, "sh", self.address]);
        finish(exec)
    }
}

/// Makes a tap in the network namespace of a process.
fn tap(namespace: u32, name: &str) -> io::Result<OwnedFd> {
    let namespace = File::open(format!("/proc/{namespace}/ns/net"))?;
    // A thread of its own: it does not come back to our namespace.
    let made = std::thread::scope(|scope| {
        let maker =
            scope.spawn(|| enter(&namespace, LinkNameSpaceType::Network).and_then(|()| sys::tap::open(name)));
        maker.join()
    });
    made.unwrap_or_else(|_| Err(io::Error::other("the thread that makes taps ended")))
}

/// The machine process's answer.
#[derive(Debug, Deserialize)]
struct Answer {
    error: Option<String>,
}

/// Hands the tap to the machine process.
fn give(socket: &Path, number: u8, tap: &OwnedFd) -> io::Result<()> {
    let machine = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    sockopt::set_socket_timeout(&machine, sockopt::Timeout::Recv, Some(TIMEOUT))?;
    rustix::net::connect(&machine, &SocketAddrUnix::new(socket)?)?;
    // Locally administered, as QEMU's own.
    let request = format!(r#"{{"network_card":{{"mac":"52:54:00:00:00:{number:02x}"}}}}"#);
    send_with_descriptors(&machine, request.as_bytes(), &[std::os::fd::AsFd::as_fd(tap)])?;
    let mut bytes = [0; ANSWER_BYTES];
    let (length, _) = receive_with_descriptors(&machine, &mut bytes, 0)?;
    let answer: Answer = serde_json::from_slice(&bytes[..length])
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    answer.error.map_or(Ok(()), |error| Err(io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine process that has one answer.
    fn machine(answer: &'static str) -> io::Result<(tempfile::TempDir, std::thread::JoinHandle<String>)> {
        let folder = tempfile::tempdir()?;
        let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(folder.path().join("m"))?)?;
        rustix::net::listen(&listener, 1)?;
        let answers = std::thread::spawn(move || {
            let asked = rustix::net::accept(&listener).map_err(io::Error::from).and_then(|socket| {
                let mut bytes = [0; ANSWER_BYTES];
                let (length, descriptors) = receive_with_descriptors(&socket, &mut bytes, 1)?;
                send_with_descriptors(&socket, answer.as_bytes(), &[])?;
                Ok(format!("{} {}", descriptors.len(), String::from_utf8_lossy(&bytes[..length])))
            });
            asked.unwrap_or_else(|error| error.to_string())
        });
        Ok((folder, answers))
    }

    #[test]
    fn the_machine_is_handed_the_tap_and_believed() {
        let any = OwnedFd::from(File::open("/dev/null").expect("it is there"));
        let (folder, asked) = machine(r#"{"error":null}"#).expect("a machine");
        give(&folder.path().join("m"), 10, &any).expect("given");
        assert_eq!(asked.join().expect("no panic"), r#"1 {"network_card":{"mac":"52:54:00:00:00:0a"}}"#);
        let (folder, asked) = machine(r#"{"error":"no free port"}"#).expect("a machine");
        let error = give(&folder.path().join("m"), 1, &any).expect_err("refused");
        assert_eq!(error.to_string(), "no free port");
        asked.join().expect("no panic");
    }
}
