//! What domains leave in their layers: of any depth and number, and nobody else is kept waiting or falls over it.

mod ground;

use domain::Ending;
use ground::{Ground, ground};
use std::path::PathBuf;

/// A folder in memory, as run directories are on most machines; deep trees take a disk minutes.
struct Memory(PathBuf);

impl Memory {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir_in("/dev/shm").ok().map(tempfile::TempDir::keep);
        if folder.is_none() {
            println!("skipped: there is no /dev/shm");
        }
        folder.map(Self)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        sys::tree::remove(&self.0).expect("removed");
    }
}

fn in_memory() -> Option<(Ground, Memory)> {
    let (mut ground, memory) = (ground()?, Memory::new()?);
    ground.layout.run_dir = memory.0.join("run");
    Some((ground, memory))
}

const NEST: &str = "import os\nos.chdir('/opt')\nfor _ in range(60000):\n  os.mkdir('d'); os.chdir('d')\n";

// The removal recursed once for each level: the daemon ended by a stack overflow, and each one after it when it swept.
#[test]
fn a_layer_of_sixty_thousand_levels_is_cleared_away() {
    let Some((ground, _folder)) = in_memory() else { return };
    let mut spec = ground.shell("d", "");
    spec.command = ["/usr/bin/python3", "-c", NEST].map(Into::into).into();
    spec.writable = true;
    for _ in 0..2 {
        let exit = ground.run(&spec);
        assert_eq!(exit.ending, Ending::Code(0), "{}", ground.output("d"));
    }
    ground.sweep_and_assert_clean();
}
