//! Where the workers live: a folder, two network namespaces joined by a veth where we may make
//! them, and whatever is cleaned up afterwards.

use super::domains::Domains;
use super::plan::{Arm, Surroundings};
use super::task::Role;
use crate::machine::{check_files, check_programs, check_root, finish, inside, network_namespace};
use crate::scenario::BenchError;
use crate::undo::Undo;
use crate::worker::Worker;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Addresses of the two ends, of the block for benchmarks (RFC 2544).
const LEAD_ADDRESS: &str = "198.18.0.1";
/// The follower's.
pub const FOLLOW_ADDRESS: &str = "198.18.0.2";

/// Name of the interface that joins them, in each.
pub const LINE: &str = "line";

/// A peer that is silent for so many ms is lost to TIPC: as long as to a link of the bench.
const TOLERANCE_MS: &str = "10000";

/// A namespace with nothing but loopback; it stays until the input ends. Nobody reads what it says
/// then: the `cat` of busybox would notice, and end.
const ALONE: &str = "set -e
ip link set lo up
echo up
exec cat >/dev/null";

/// The stage of one launch.
#[derive(Debug)]
pub struct Stage {
    network: Option<Network>,
    node: Option<Domains>,
    undo: Option<Undo>,
    binary: PathBuf,
    folder: PathBuf,
    prefix: String,
    meetings: u32,
}

/// Two namespaces, joined.
#[derive(Debug)]
pub struct Network {
    /// Holds the leader's.
    pub lead: Child,
    /// Holds the follower's.
    pub follow: Child,
}

impl Stage {
    /// Makes it. What can't be made on this machine is missing, and said in `notes`.
    ///
    /// # Errors
    /// Where the worker is missing, or the folder can't be made.
    pub fn make(binary: &Path, notes: &mut Vec<String>) -> Result<Self, BenchError> {
        check_files(binary, &["channel-worker"])?;
        let (mut undo, folder) = Undo::with_folder()?;
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let prefix = format!("{name}_");
        // iceoryx2 leaves one name, and more when it is killed; they start with the prefix.
        undo.add(&["sh", "-c", &format!("rm -f /dev/shm/{prefix}*")])
            .map_err(BenchError::io("noting what to clean up"))?;
        let network = match Network::make() {
            Ok(network) => Some(network),
            Err(error) => {
                note(notes, format!("no arm `{}`: {error}", Arm::Veth.name()));
                None
            }
        };
        if let Err(error) = check_files(binary, &["channel-peer"]) {
            note(notes, format!("no arms `{}`, `{}`: {error}", Arm::Iceoryx.name(), Arm::Listener.name()));
        }
        let node = match Domains::start(binary, &folder, &mut undo) {
            Ok(node) => Some(node),
            Err(error) => {
                note(notes, format!("no arm `{}`: {error}", Arm::Service.name()));
                None
            }
        };
        let undo = Some(undo);
        Ok(Self { network, node, undo, binary: binary.to_path_buf(), folder, prefix, meetings: 0 })
    }

    /// Whether this arm can run here.
    #[must_use]
    pub fn has(&self, arm: Arm) -> bool {
        match arm {
            Arm::Veth => self.network.is_some(),
            Arm::Service => self.node.is_some(),
            _ if arm.is_peer() => check_files(&self.binary, &["channel-peer"]).is_ok(),
            _ => true,
        }
    }

    /// The surroundings for the arms.
    #[must_use]
    pub fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            folder: &self.folder,
            prefix: &self.prefix,
            veth: FOLLOW_ADDRESS,
            node: self.node.as_ref(),
        }
    }

    /// Starts a worker, which is then ready.
    ///
    /// # Errors
    /// Where it does not start.
    pub fn start(&self, arm: Arm, role: Role) -> Result<Worker, BenchError> {
        let program =
            self.binary.with_file_name(if arm.is_peer() { "channel-peer" } else { "channel-worker" });
        let command = match (&self.network, arm, role) {
            (Some(network), Arm::Veth, Role::Lead) => inside(network.lead.id(), program),
            (Some(network), Arm::Veth, Role::Follow) => inside(network.follow.id(), program),
            _ => Command::new(program),
        };
        let mut worker = Worker::start(format!("{} ({role:?})", arm.name()), command, &self.folder)?;
        worker.expect("ready")?;
        Ok(worker)
    }

    /// A path for a Unix socket that nobody has used.
    pub fn meeting(&mut self) -> PathBuf {
        self.meetings += 1;
        self.folder.join(format!("m{}", self.meetings))
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

/// Notes something once, however many launches there are.
pub fn note(notes: &mut Vec<String>, text: String) {
    if !notes.contains(&text) {
        notes.push(text);
    }
}

/// Runs `ip` in the network of a process.
fn ip(process: u32, arguments: &[&str]) -> Result<(), BenchError> {
    let mut command = inside(process, "ip");
    command.args(arguments);
    finish(command)
}

impl Network {
    /// Makes them.
    ///
    /// # Errors
    /// Where this user or this machine can't.
    pub fn make() -> Result<Self, BenchError> {
        check_root()?;
        check_programs(&["ip", "nsenter", "unshare"])?;
        let network = Self { lead: network_namespace(ALONE)?, follow: network_namespace(ALONE)? };
        let [lead, follow] = [network.lead.id(), network.follow.id()];
        let there = follow.to_string();
        ip(lead, &["link", "add", LINE, "type", "veth", "peer", "name", LINE, "netns", &there])?;
        for (process, address) in [(lead, LEAD_ADDRESS), (follow, FOLLOW_ADDRESS)] {
            ip(process, &["address", "add", &format!("{address}/30"), "dev", LINE])?;
            ip(process, &["link", "set", LINE, "up"])?;
        }
        Ok(network)
    }

    /// From now on its frames have payloads of so many bytes at most.
    ///
    /// # Errors
    /// The error of `ip`.
    pub fn set_mtu(&self, bytes: u32) -> Result<(), BenchError> {
        let bytes = bytes.to_string();
        [&self.lead, &self.follow]
            .into_iter()
            .try_for_each(|child| ip(child.id(), &["link", "set", LINE, "mtu", &bytes]))
    }

    /// From now on TIPC finds the other end. That takes it a moment, and it says nothing; who
    /// connects tries until then.
    ///
    /// # Errors
    /// `Unsupported`, with what to do, where the kernel has no TIPC; [`BenchError::Missing`]
    /// without its tool; what that says.
    pub fn join_by_tipc(&self) -> Result<(), BenchError> {
        transport::check_tipc().map_err(BenchError::io("asking for TIPC"))?;
        check_programs(&["tipc"])?;
        let on = ["media", "eth", "device", LINE];
        for child in [&self.lead, &self.follow] {
            for what in [&["enable"][..], &["set", "tolerance", TOLERANCE_MS]] {
                let mut command = inside(child.id(), "tipc");
                command.arg("bearer").args(what).args(on);
                finish(command)?;
            }
        }
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for child in [&mut self.lead, &mut self.follow] {
            // The namespace goes with the last process in it.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
