//! Room for starts when the disk of the run directory is full.
//!
//! A start makes files of which nobody knows the number beforehand: a root, a bundle, the OCI
//! runtime's state. `RUN/spare` holds bytes and files for some starts. A start that finds less free
//! than it may need gives up its part of that first, and what there is room for again is taken back
//! (`docs/adr/0067-room-for-the-control-plane-is-taken-beforehand.md`).

use crate::layout::Layout;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Starts for which there is room: as many domains as are likely to end while somebody makes room
/// on a disk.
const STARTS: u64 = 4;
/// Bytes that one start may need: several times what a container with the root `host` has in the
/// run directory.
const START_BYTES: u64 = 1024 * 1024;
/// Files that one start may need: the same has some eighty.
const START_FILES: u64 = 128;
/// Bytes that are allocated at a time.
const PIECE_BYTES: u64 = 128 * 1024;

/// One looks and takes at a time: who reads how much is free is to be the one who uses it.
static LOOKING: Mutex<()> = Mutex::new(());

struct Spare {
    folder: PathBuf,
}

impl Spare {
    fn bytes(&self) -> PathBuf {
        self.folder.join("bytes")
    }

    fn file(&self, number: u64) -> PathBuf {
        self.folder.join(number.to_string())
    }

    /// How many of the files are there: they are made and removed in order.
    fn files(&self) -> u64 {
        let (mut there, mut missing) = (0, STARTS * START_FILES + 1);
        while there + 1 < missing {
            let middle = there.midpoint(missing);
            if self.file(middle).exists() { there = middle } else { missing = middle }
        }
        there
    }

    /// Takes as much as there is room for, up to what is to be there.
    fn fill(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        for number in self.files() + 1..=STARTS * START_FILES {
            File::options().write(true).create(true).truncate(false).mode(0o600).open(self.file(number))?;
        }
        let bytes =
            File::options().write(true).create(true).truncate(false).mode(0o600).open(self.bytes())?;
        let mut size = bytes.metadata()?.len();
        while size < STARTS * START_BYTES {
            fallocate(&bytes, FallocateFlags::empty(), size, PIECE_BYTES)?;
            size += PIECE_BYTES;
        }
        Ok(())
    }

    /// Gives up what one start may need. What is there already, of that, is left.
    fn give(&self, bytes: u64, files: u64) -> io::Result<()> {
        let there = self.files();
        for number in (there.saturating_sub(files) + 1..=there).rev() {
            fs::remove_file(self.file(number))?;
        }
        let file = match File::options().write(true).open(self.bytes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        file.set_len(file.metadata()?.len().saturating_sub(bytes))
    }
}

fn spare(layout: &Layout) -> Spare {
    Spare { folder: layout.run_dir.join("spare") }
}

/// Free bytes and files of the file system that a path is on; files are endless where the file
/// system does not count them.
fn free(path: &Path) -> io::Result<(u64, u64)> {
    let there = statvfs(path)?;
    let files = if there.f_files == 0 { u64::MAX } else { there.f_favail };
    Ok((there.f_bavail.saturating_mul(there.f_frsize), files))
}

/// Takes room for starts, as far as there is any. Where there is less than that, it is said: then
/// it is needed soon.
pub(crate) fn keep(layout: &Layout) {
    let _one = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = spare(layout).fill() {
        tracing::warn!(
            path = %layout.run_dir.display(), %error,
            "there is no room here for what further starts of domains need; make room on this disk"
        );
    }
}

/// Sees to it that one start finds room, and gives up a part of the spare if it would not.
pub(crate) fn make_room(layout: &Layout) {
    let _one = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
    let given = free(&layout.run_dir).and_then(|(bytes, files)| {
        let short = (START_BYTES.saturating_sub(bytes), START_FILES.saturating_sub(files));
        if short == (0, 0) {
            return Ok(false);
        }
        spare(layout).give(short.0.next_multiple_of(PIECE_BYTES), short.1).map(|()| true)
    });
    match given {
        Ok(false) => {}
        Ok(true) => tracing::warn!(
            path = %layout.run_dir.display(),
            "this disk is full; a domain is started in the room that was kept for that"
        ),
        Err(error) => {
            tracing::warn!(path = %layout.run_dir.display(), %error, "no room can be made for a start")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn room_is_given_up_to_starts_on_a_full_disk_and_taken_back() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: mounting needs root");
            return;
        }
        let dir = tempfile::tempdir().expect("dir");
        let at = dir.path().to_owned();
        let there = std::thread::spawn(move || {
            use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
            sys::namespace::unshare(sys::namespace::UnshareFlags::NEWNS).expect("a namespace");
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("private");
            mount("tmpfs", &at, "tmpfs", MountFlags::empty(), c"size=16m,nr_inodes=2000")
                .expect("a small disk");
            let layout = Layout {
                run_dir: at.clone(),
                state_dir: at.clone(),
                cgroup_name: "t".into(),
                program: "/bin/true".into(),
            };
            keep(&layout);
            let kept = |layout: &Layout| {
                let spare = spare(layout);
                (fs::metadata(spare.bytes()).expect("bytes").len() / START_BYTES, spare.files() / START_FILES)
            };
            assert_eq!(kept(&layout), (STARTS, STARTS));
            make_room(&layout);
            assert_eq!(kept(&layout), (STARTS, STARTS), "there is room");
            let fill = |name: &str| {
                let mut filler = File::create(at.join(name)).expect("a filler");
                while filler.write_all(&[0; 4096]).is_ok() {}
                let folder = at.join(format!("{name}-files"));
                let _full = fs::create_dir(&folder);
                (0..).take_while(|file| File::create(folder.join(format!("{file}"))).is_ok()).count()
            };
            fill("filler");
            keep(&layout);
            for start in 1..=STARTS {
                make_room(&layout);
                let (bytes, files) = free(&at).expect("free");
                assert!(bytes >= START_BYTES && files >= START_FILES, "{bytes} {files}");
                assert_eq!(kept(&layout), (STARTS - start, STARTS - start));
                // Somebody takes it at once.
                let name = format!("more{start}");
                fill(&name);
            }
            make_room(&layout);
            assert_eq!(kept(&layout), (0, 0));
            fs::remove_file(at.join("filler")).expect("room");
            sys::tree::remove(&at.join("filler-files")).expect("room");
            keep(&layout);
            assert_eq!(kept(&layout), (STARTS, STARTS), "it is taken back");
        });
        there.join().expect("it ends");
    }
}
