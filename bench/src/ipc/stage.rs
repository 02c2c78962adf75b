//! Where the workers live: a folder, and whatever is cleaned up afterwards.

use super::means::Tuning;
use super::plan::Arm;
use super::transport::kernel;
use crate::channel::stage::note;
use crate::channel::task::Role;
use crate::machine::{check_files, finish};
use crate::scenario::BenchError;
use crate::undo::Undo;
use crate::worker::Worker;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The worker with what is ours and the kernel's.
const OURS: &str = "ipc-worker";
/// The worker with what is other people's.
const PEERS: &str = "ipc-peer";

/// The one argument of the worker with other people's middleware when all of them have ended: to
/// take away what they have left.
pub const SWEEP: &str = "sweep";

/// The two workers of a pair.
#[derive(Debug)]
pub struct Pair {
    /// Sends first, and measures.
    pub lead: Worker,
    /// Receives.
    pub follow: Worker,
}

/// The stage of one launch.
#[derive(Debug)]
pub struct Stage {
    undo: Option<Undo>,
    binary: PathBuf,
    folder: PathBuf,
    has_peers: bool,
    has_queues: bool,
    meetings: u32,
}

impl Stage {
    /// Makes it. What this machine lacks is said in `notes`.
    ///
    /// # Errors
    /// Where the worker is missing, or the folder can't be made.
    pub fn make(binary: &Path, notes: &mut Vec<String>) -> Result<Self, BenchError> {
        check_files(binary, &[OURS])?;
        let (undo, folder) = Undo::with_folder()?;
        let has_peers = binary.with_file_name(PEERS).is_file();
        if !has_peers {
            let [grpc, zenoh] = [Arm::Grpc, Arm::Zenoh].map(Arm::name);
            let what = format!("`{PEERS}` is not beside `{OURS}`: run `make bench-peers`");
            note(notes, format!("no arms `{grpc}`, `{zenoh}`: {what}"));
        }
        let queues = kernel::queue(&Tuning::plain(1));
        if let Err(error) = &queues {
            note(notes, format!("no arm `{}`: mq_open(3): {error}", Arm::Queue.name()));
        }
        Ok(Self {
            undo: Some(undo),
            binary: binary.to_path_buf(),
            folder,
            has_peers,
            has_queues: queues.is_ok(),
            meetings: 0,
        })
    }

    /// Whether this arm can run here.
    #[must_use]
    pub fn has(&self, arm: Arm) -> bool {
        match arm {
            Arm::Queue => self.has_queues,
            _ => self.has_peers || !arm.is_peer(),
        }
    }

    /// Whether this machine allows this user what is chosen.
    ///
    /// # Errors
    /// Why not.
    pub fn allows(&self, arm: Arm, tuning: &Tuning) -> std::io::Result<()> {
        if arm == Arm::Queue { kernel::queue(tuning).map(drop) } else { Ok(()) }
    }

    /// Starts the pair of this number, which is then ready.
    ///
    /// # Errors
    /// Where it does not start.
    pub fn start(&self, is_peer: bool, number: usize) -> Result<Pair, BenchError> {
        let program = if is_peer { PEERS } else { OURS };
        let worker = |role| -> Result<Worker, BenchError> {
            let command = Command::new(self.binary.with_file_name(program));
            let mut worker = Worker::start(format!("{program} {number} ({role:?})"), command, &self.folder)?;
            worker.expect("ready")?;
            Ok(worker)
        };
        Ok(Pair { lead: worker(Role::Lead)?, follow: worker(Role::Follow)? })
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
        if self.has_peers {
            let mut sweep = Command::new(self.binary.with_file_name(PEERS));
            sweep.arg(SWEEP);
            finish(sweep)?;
        }
        let undo = self.undo.take();
        undo.map_or(Ok(()), Undo::finish).map_err(BenchError::io("cleaning up"))
    }
}
