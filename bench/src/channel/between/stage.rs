//! Where the workers live: a node with a guest or two, a network namespace with the other ends of
//! their cards, and a folder.

use super::plan::{Ends, RING, SERVICE};
use crate::control_group;
use crate::machine::{check_files, check_root, inside, network_namespace};
use crate::machines::{self, Card, Image, Network, PROGRAMS};
use crate::node::Node;
use crate::scenario::BenchError;
use crate::undo::Undo;
use crate::worker::Worker;
use std::path::{Path, PathBuf};
use std::process::Child;

/// The distributed container.
const DC: &str = "bench";
/// The two domains.
const LEAD: &str = "lead";
const FOLLOW: &str = "follow";
/// The program that works.
pub const WORKER: &str = "channel-worker";
/// Where a domain finds its control socket.
const CONTROL: &str = "/run/tombolo/control.sock";
/// Addresses, of the block for benchmarks (RFC 2544).
const HOST: &str = "198.18.0.1/24";
const LEAD_ADDRESS: &str = "198.18.0.3/24";
const FOLLOW_ADDRESS: &str = "198.18.0.2/24";
/// How many of a guest's last lines explain an error.
const LAST_LINES: &str = "4";
/// The first port that a connection has; each has another.
const FIRST_PORT: u16 = 20_000;

/// The other ends of the cards; two cards need a bridge. It stays until its input ends; nobody
/// reads what it says then, which busybox's `cat` would notice.
const HUB: &str = "set -e
ip link set lo up
ip link add hub type bridge
ip link set hub up
echo up
exec cat >/dev/null";

/// The stage of one launch.
#[derive(Debug)]
pub struct Stage {
    ends: Ends,
    hub: Child,
    node: Node,
    undo: Option<Undo>,
    binary: PathBuf,
    folder: PathBuf,
    ports: u16,
}

impl Stage {
    /// Starts the guests and gives them their cards.
    ///
    /// # Errors
    /// Where something is missing or does not start; what had been made is undone.
    pub fn make(ends: Ends, binary: &Path, image: &Image) -> Result<Self, BenchError> {
        check_root()?;
        check_files(binary, &[WORKER])?;
        let (mut undo, folder) = Undo::with_folder()?;
        let mut hub = network_namespace(HUB)?;
        let node = match Node::start(binary, &folder, &mut undo, &topology(ends, image)) {
            Ok(node) => node,
            Err(error) => {
                end(&mut hub);
                return Err(error);
            }
        };
        let stage =
            Self { ends, hub, node, undo: Some(undo), binary: binary.to_path_buf(), folder, ports: 0 };
        stage.plug_cards()?;
        Ok(stage)
    }

    fn plug_cards(&self) -> Result<(), BenchError> {
        let card = |domain, number, address| {
            let network = match self.ends {
                Ends::VmHost => Network::Address(HOST),
                Ends::VmVm => Network::Bridge("hub"),
            };
            let socket = self.node.domain(DC, domain).join("machine/machine.sock");
            let mut exec = self.node.tombolo(&["exec"]);
            exec.args([&format!("{DC}/{domain}"), "--"]);
            Card { number, address, network }.plug(self.hub.id(), &socket, exec)
        };
        card(FOLLOW, 1, FOLLOW_ADDRESS)?;
        if self.ends == Ends::VmVm { card(LEAD, 2, LEAD_ADDRESS) } else { Ok(()) }
    }

    /// Starts the leader and the follower, which are then ready.
    ///
    /// # Errors
    /// Where one does not start.
    pub fn workers(&self) -> Result<[Worker; 2], BenchError> {
        let start = |who: &str, domain: Option<&str>| {
            let command = match domain {
                None => inside(self.hub.id(), self.binary.with_file_name(WORKER)),
                Some(domain) => {
                    let mut command = self.node.tombolo(&["exec", "-i"]);
                    command.args([&format!("{DC}/{domain}"), "--", &format!("{PROGRAMS}/{WORKER}")]);
                    command
                }
            };
            let mut worker = Worker::start(who.to_owned(), command, &self.folder)?;
            worker.expect("ready")?;
            Ok(worker)
        };
        let lead = start("the leader", (self.ends == Ends::VmVm).then_some(LEAD))?;
        Ok([lead, start("the follower", Some(FOLLOW))?])
    }

    /// The control socket of the leader's domain and of the follower's, as their workers see them.
    #[must_use]
    pub fn controls(&self) -> [PathBuf; 2] {
        match self.ends {
            Ends::VmHost => [self.node.control(DC, LEAD), CONTROL.into()],
            Ends::VmVm => [CONTROL.into(), CONTROL.into()],
        }
    }

    /// The follower's address, and a port that nobody has used.
    pub fn address(&mut self) -> (&'static str, u16) {
        // A bench that makes ten thousand connections begins again; the first are long gone then.
        self.ports = (self.ports + 1) % 10_000;
        let address = FOLLOW_ADDRESS.split('/').next().unwrap_or_default();
        (address, FIRST_PORT + self.ports)
    }

    /// Processor time of the guests, in ns: of everything in their control groups on the host.
    ///
    /// # Errors
    /// Where the kernel does not count.
    pub fn guests_processor_ns(&self) -> Result<u64, BenchError> {
        let node = control_group::of_node(&self.node.run_dir());
        let used = |guest: &&str| control_group::processor_ns(&format!("{}/{DC}/{guest}", node.as_ref()?));
        self.guests().iter().map(used).sum::<Option<u64>>().ok_or_else(|| BenchError::Missing {
            what: "control groups that count processor time".into(),
            how: "mount the controller (cpuacct, or cpu of version 2)",
        })
    }

    /// The error, with the last words of the guests where a worker failed: theirs may be the
    /// reason.
    #[must_use]
    pub fn explain(&self, error: BenchError) -> BenchError {
        let BenchError::Protocol { who, mut said, expected } = error else { return error };
        for guest in self.guests() {
            let lines = self.node.tombolo(&["logs", "--tail", LAST_LINES, &format!("{DC}/{guest}")]).output();
            let lines = lines.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
            if let Some(lines) = lines.ok().filter(|lines| !lines.is_empty()) {
                said = format!("{said}; the guest `{guest}`: {lines}");
            }
        }
        BenchError::Protocol { who, said, expected }
    }

    fn guests(&self) -> &'static [&'static str] {
        match self.ends {
            Ends::VmHost => &[FOLLOW],
            Ends::VmVm => &[LEAD, FOLLOW],
        }
    }

    /// Cleans up; dropping does the same, and can't tell.
    ///
    /// # Errors
    /// Where something could not be undone.
    pub fn end(mut self) -> Result<(), BenchError> {
        let undo = self.undo.take();
        undo.map_or(Ok(()), Undo::finish).map_err(BenchError::io("cleaning up"))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // First the node, then the network that it stands in.
        drop(self.undo.take());
        end(&mut self.hub);
    }
}

/// The namespace goes with the last process in it; it may have ended before.
fn end(hub: &mut Child) {
    let _ = hub.kill();
    let _ = hub.wait();
}

fn topology(ends: Ends, image: &Image) -> String {
    let guest = machines::topology(image);
    let lead = match ends {
        Ends::VmHost => {
            "kind = \"process\"\ncommand = [\"sleep\", \"infinity\"]\nstop = { signal = \"KILL\" }\n"
        }
        Ends::VmVm => &guest,
    };
    format!(
        "name = \"{DC}\"\n\n[domain.{LEAD}]\n{lead}\n[domain.{FOLLOW}]\n{guest}\n\
         [service.{SERVICE}]\nkind = \"channel\"\ndomain = \"{FOLLOW}\"\n\
         allow = [{{ domains = [\"{LEAD}\"], verbs = [\"open\"] }}]\nsettings = {{ ring_bytes = \"{RING}\" }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_has_as_many_guests_as_are_asked_for() {
        let image = Image { kernel: "/i/vmlinuz".into(), initramfs: "/i/initramfs".into() };
        for (ends, guests) in [(Ends::VmHost, 1), (Ends::VmVm, 2)] {
            let text = topology(ends, &image);
            assert_eq!(text.matches("kind = \"vm\"").count(), guests, "{text}");
            assert!(text.contains("[service.messages]") && text.contains("/i/initramfs"));
        }
    }
}
