//! The trees that domains leave in their layers: of any depth and number, and nobody else is kept
//! waiting or falls over it.

mod ground;

use domain::{Ending, Layer};
use ground::{Ground, ground};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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

// The removal recursed once for each level: the daemon ended by a stack overflow, and each one
// after it when it swept.
#[test]
fn a_layer_of_sixty_thousand_levels_is_cleared_away() {
    let Some((ground, _folder)) = in_memory() else { return };
    let mut spec = ground.shell("d", "");
    spec.command = ["/usr/bin/python3", "-c", NEST].map(Into::into).into();
    spec.writable = true;
    spec.layer = Some(Layer { bytes: 256 << 20, inodes: 100_000 });
    for _ in 0..2 {
        let exit = ground.run(&spec);
        assert_eq!(exit.ending, Ending::Code(0), "{}", ground.output("d"));
    }
    ground.sweep_and_assert_clean();
}

// Layers were in the run directory once; what a daemon of that time left there is swept by this
// one.
#[test]
fn a_deep_tree_that_an_earlier_daemon_left_is_swept() {
    let Some((ground, _memory)) = in_memory() else { return };
    let upper = ground.layout.domains().join("dc/old/upper");
    std::fs::create_dir_all(&upper).expect("upper");
    let nest = NEST.replace("/opt", upper.to_str().expect("text"));
    let made = std::process::Command::new("/usr/bin/python3").args(["-c", &nest]).status().expect("python");
    assert!(made.success());
    let report = domain::sweep(&ground.layout, &[]).expect("sweep");
    assert!(report.failures.is_empty() && report.directories.len() == 1, "{report:?}");
    ground.assert_clean();
    let discarded = ground.layout.run_dir.join("discarded");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while std::fs::read_dir(&discarded).expect("list").next().is_some() {
        assert!(std::time::Instant::now() < deadline, "it is not removed");
        std::thread::yield_now();
    }
}

/// Bytes and files below a folder. What the file system has left says nothing: others use it, too.
fn occupied(folder: &Path) -> (u64, u64) {
    let mut sum = (0, 0);
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let metadata = entry.metadata().expect("it is there");
        let below = if metadata.is_dir() { occupied(&entry.path()) } else { (0, 0) };
        sum = (sum.0 + metadata.blocks() * 512 + below.0, sum.1 + 1 + below.1);
    }
    sum
}

/// Says how much there is, and what it takes to have more.
const FILL: &str = "
import errno, os
os.chdir('/opt')
def until_full(write):
    count = 0
    try:
        while True:
            write(count)
            count += 1
    except OSError as error:
        return count, errno.errorcode[error.errno]
big = open('big', 'wb', buffering=0)
print('bytes', *until_full(lambda _: big.write(bytes(65536))))
os.unlink('big'); big.close()
print('files', *until_full(lambda number: open(str(number), 'w').close()), flush=True)
import time
time.sleep(1000)
";

// The layer was in the run directory, on most machines a tmpfs that all share: `dd` in one
// container ended what others could start.
#[test]
fn a_layer_has_a_size_and_a_number_of_files_and_takes_nothing_from_the_run_directory() {
    let Some((ground, memory)) = in_memory() else { return };
    let mut spec = ground.shell("d", "");
    spec.command = ["/usr/bin/python3", "-c", FILL].map(Into::into).into();
    spec.writable = true;
    spec.layer = Some(Layer { bytes: 16 << 20, inodes: 2000 });
    let created = domain::create(&ground.layout, &spec, &[]).expect("create");
    // With all that stands beside a domain, and with the room that is kept for starts.
    let before = occupied(&memory.0);
    let running = created.start().expect("start");
    ground.wait_for_line("d", "files");
    let said = ground.output("d");
    let count = |what: &str| -> u64 {
        let line = said.lines().find_map(|line| line.strip_prefix(what)).expect("a line");
        let (count, why) = line.trim().split_once(' ').expect("a count and a reason");
        assert_eq!(why, "ENOSPC", "{said}");
        count.parse().expect("a number")
    };
    let (pieces, files) = (count("bytes "), count("files "));
    assert!((200..=256).contains(&pieces), "{pieces} pieces of 64 KiB in 16 MiB");
    assert!((1500..2000).contains(&files), "{files} files");
    let monitor = domain::status(&ground.layout, "dc", "d").expect("status").expect("there").monitor.pid;
    let used = domain::layer_usage(&ground.layout, "dc", "d", monitor).expect("its use");
    assert!(used.inodes == 2000 && used.bytes < 16 << 20, "{used:?}");
    let after = occupied(&memory.0);
    let taken = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    assert!(taken.0 < 2 << 20 && taken.1 < 1000, "{taken:?} of the run directory");
    running.stop(Some(std::time::Duration::ZERO)).expect("stop");
    ground.sweep_and_assert_clean();
}

// What a container writes beyond its memory ends it, and what it wrote with it; the layer is no way
// around the limit.
#[test]
fn what_is_written_to_a_layer_is_charged_to_the_domain() {
    let Some((ground, _memory)) = in_memory() else { return };
    let mut spec = ground.shell("d", "exec head -c 200M /dev/zero > /opt/big");
    spec.writable = true;
    spec.limits.memory_bytes = Some(64 << 20);
    let exit = ground.run(&spec);
    assert!(exit.out_of_memory, "{exit:?}: {}", ground.output("d"));
    ground.sweep_and_assert_clean();
}
