//! Where the two ends of a repetition are: processes of the machine, network namespaces joined by a
//! veth, containers in these.

use crate::container;
use crate::plan::Deployment;
use bench::BenchError;
use bench::channel::stage::{FOLLOW_ADDRESS, Network};
use bench::channel::task::Role;
use bench::machine::{check_programs, check_root, inside};
use bench::undo::Undo;
use bench::worker::Worker;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Ends what is left of the containers, then takes names in `/dev/shm` away; the arguments are the
/// folder and what these names start with.
const SWEEP: &str = "if [ -d \"$1/runc\" ]; then \
    for id in $(runc --root \"$1/runc\" list -q); do runc --root \"$1/runc\" delete -f \"$id\"; done; fi; \
    rm -f \"/dev/shm/$2\"*";

/// The stage of one run.
#[derive(Debug)]
pub struct Stage {
    network: Option<Network>,
    undo: Option<Undo>,
    folder: PathBuf,
    prefix: String,
    patience: Duration,
    /// Numbers of what needs a name of its own.
    names: u32,
}

impl Stage {
    /// Makes what the deployments need. What this machine can't is told by [`Stage::lacks`].
    ///
    /// # Errors
    /// Where not even a folder can be made.
    pub fn make(deployments: &[Deployment], patience: Duration) -> Result<Self, BenchError> {
        let (mut undo, folder) = Undo::with_folder()?;
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let prefix = format!("{name}_");
        let folder_word = folder.to_string_lossy();
        undo.add(&["sh", "-c", SWEEP, "sh", &folder_word, &prefix])
            .map_err(BenchError::io("noting what to clean up"))?;
        let needs_network = deployments.iter().any(|&deployment| deployment != Deployment::Bare);
        // Why there is none, `lacks` finds out again.
        let network = if needs_network { Network::make().ok() } else { None };
        Ok(Self { network, undo: Some(undo), folder, prefix, patience, names: 0 })
    }

    /// Why a deployment can't be had here, and what to do.
    #[must_use]
    pub fn lacks(&self, deployment: Deployment) -> Option<String> {
        if deployment == Deployment::Bare {
            return None;
        }
        let needed =
            check_root().and_then(|()| check_programs(&["ip", "nsenter", "unshare"])).and_then(|()| {
                if deployment == Deployment::Container { check_programs(&["runc"]) } else { Ok(()) }
            });
        match needed {
            Err(error) => Some(error.to_string()),
            Ok(()) if self.network.is_none() => {
                Some("this machine makes no network namespaces with a veth".to_owned())
            }
            Ok(()) => None,
        }
    }

    /// A folder that both ends see at this path.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The prefix of names outside this folder, by which they are taken away.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The follower's address.
    #[must_use]
    pub fn address(&self, deployment: Deployment) -> IpAddr {
        let line = FOLLOW_ADDRESS.parse().ok().filter(|_| deployment != Deployment::Bare);
        line.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// A number that nothing of this run has.
    pub fn number(&mut self) -> u32 {
        self.names += 1;
        self.names
    }

    /// Starts a program as one end; it has not said anything yet.
    ///
    /// # Errors
    /// Where it does not start.
    pub fn start(
        &mut self,
        deployment: Deployment,
        role: Role,
        who: &str,
        words: &[String],
    ) -> Result<Worker, BenchError> {
        let number = self.number();
        let (program, arguments) = words.split_first().ok_or_else(|| BenchError::Missing {
            what: format!("a program for {who}"),
            how: "this is a bug; please report it",
        })?;
        let network = self.network.as_ref().map(|network| match role {
            Role::Lead => network.lead.id(),
            Role::Follow => network.follow.id(),
        });
        let command = match (deployment, network) {
            (Deployment::NetworkNamespace, Some(process)) => {
                let mut command = inside(process, program);
                command.args(arguments);
                command
            }
            (Deployment::Container, Some(process)) => {
                container::command(&self.folder, number, process, Path::new(program))?
            }
            _ => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
        };
        let mut worker = Worker::start(format!("{who} ({role:?}, {number})"), command, &self.folder)?;
        worker.set_patience(self.patience);
        Ok(worker)
    }

    /// Cleans up; dropping does the same, and can't tell.
    ///
    /// # Errors
    /// Where something could not be undone.
    pub fn end(mut self) -> Result<(), BenchError> {
        self.network = None;
        self.undo.take().map_or(Ok(()), Undo::finish).map_err(BenchError::io("cleaning up"))
    }
}
