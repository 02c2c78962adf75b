//! The naive arm: a domain that has a network of its own (a veth on the bridge, or a guest's
//! network card) and resolves by itself.

use super::place::{NAME_SERVER, PROGRAMS, Place};
use crate::machine::{finish, inside};
use crate::scenario::BenchError;
use crate::worker::Worker;
use std::process::Command;

/// Binds the resolver's settings, waits for the network, becomes the worker.
const SCRIPT: &str = "set -e
mount --bind \"$1\" /etc/resolv.conf
ip link set lo up
echo alone
read -r _
exec \"$2\"";

/// In a guest: as every other program of it, but with the name server's address in place of ours,
/// which only this process sees.
const IN_GUEST: &str = "set -e
echo \"nameserver $1\" >/tmp/resolv.conf
exec unshare -m sh -c 'mount --bind /tmp/resolv.conf /etc/resolv.conf && exec \"$1\"' sh \"$2\"";

/// Starts the worker of domain `number` in its guest, which has a network card.
///
/// # Errors
/// Where it does not start.
pub fn start_in_guest(place: &Place, number: usize) -> Result<Worker, BenchError> {
    let mut command = place.exec(number, &["-i"]);
    command.args(["sh", "-c", IN_GUEST, "sh", NAME_SERVER, &format!("{PROGRAMS}/lookup-worker")]);
    Worker::start(format!("naive/{number}"), command, place.folder())
}

/// Starts the worker of domain `number`. It lives in a network and a mount namespace of its own,
/// which go when it goes.
///
/// # Errors
/// Where the machine does not make the namespace or the link.
pub fn start(place: &Place, number: usize) -> Result<Worker, BenchError> {
    let settings = place.folder().join("resolv.conf");
    std::fs::write(&settings, format!("nameserver {NAME_SERVER}\n"))
        .map_err(BenchError::io("writing resolv.conf"))?;
    let mut command = place.command("unshare");
    command.args(["--net", "--mount", "--propagation", "private", "--", "sh", "-c", SCRIPT, "sh"]);
    command.arg(settings).arg(place.programs().join("lookup-worker"));
    let mut worker = Worker::start(format!("naive/{number}"), command, place.folder())?;
    worker.expect("alone")?;
    link(place, number, worker.process())?;
    worker.say("go")?;
    Ok(worker)
}

/// Puts a veth between the bridge and the namespace of `process`.
fn link(place: &Place, number: usize, process: u32) -> Result<(), BenchError> {
    let (outer, process_text) = (format!("naive{number}"), process.to_string());
    let address = format!("198.18.{}.{}/16", 1 + number / 250, 1 + number % 250);
    let ip = |mut command: Command, arguments: &[&str]| {
        command.args(arguments);
        finish(command)
    };
    ip(
        place.command("ip"),
        &["link", "add", &outer, "type", "veth", "peer", "name", "eth0", "netns", &process_text],
    )?;
    ip(place.command("ip"), &["link", "set", &outer, "master", "hub", "up"])?;
    ip(inside(process, "ip"), &["address", "add", &address, "dev", "eth0"])?;
    ip(inside(process, "ip"), &["link", "set", "eth0", "up"])
}
