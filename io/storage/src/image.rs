//! Files that hold a volume's bytes.

use crate::error::at;
use crate::process::{self, Job};
use crate::{IMAGES, StorageError};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// The unit of a volume's size, in bytes: a sector, which every client can address.
pub const SECTOR_BYTES: u64 = 512;
/// Smallest volume, in bytes: what file systems and tools take.
pub const MIN_BYTES: u64 = 1 << 20;
/// Largest volume, in bytes: 16 TiB, the longest file of ext4.
pub const MAX_BYTES: u64 = 16 << 40;

/// How long making an image may take: some metadata are written, no data.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long restoring a snapshot may take: the reference counts of the whole image are written.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(120);

/// How a volume's bytes lie in its file. Never guessed: a client could write a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// As they are.
    Raw,
    /// As QEMU's format has them: with snapshots.
    Qcow2,
}

impl Format {
    /// QEMU's word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// Checks that a volume can have this size on the file system of `folder`, which exists. A volume
/// takes no more room than what is written to it, so it may be larger than what is free, and not
/// than all there is.
///
/// # Errors
/// [`StorageError::Size`], [`StorageError::File`].
pub fn check_size(folder: &Path, bytes: u64) -> Result<(), StorageError> {
    if !bytes.is_multiple_of(SECTOR_BYTES) || !(MIN_BYTES..=MAX_BYTES).contains(&bytes) {
        return Err(StorageError::Size(format!(
            "a volume has from {MIN_BYTES} to {MAX_BYTES} bytes, in multiples of {SECTOR_BYTES}; this one would have {bytes}"
        )));
    }
    let found = rustix::fs::statvfs(folder)
        .map_err(|errno| at("look at the file system of", folder)(errno.into()))?;
    let all = found.f_blocks.saturating_mul(found.f_frsize);
    if bytes > all {
        let folder = folder.display();
        return Err(StorageError::Size(format!(
            "a volume of {bytes} bytes is larger than the whole file system of {folder}, which has {all}; make it smaller"
        )));
    }
    Ok(())
}

/// Makes the image of an empty volume at `path`, whose folder exists: on the disk before it has its
/// name. What is there already stays.
///
/// # Errors
/// [`StorageError`]: among others, that there is something.
pub fn create(path: &Path, format: Format, bytes: u64) -> Result<(), StorageError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    check_size(folder, bytes)?;
    let new = path.with_extension("new");
    // What an attempt left that broke off.
    let _nothing_there = fs::remove_file(&new);
    let made = make(&new, format, bytes).and_then(|()| {
        let file = File::open(&new).map_err(at("open", &new))?;
        file.sync_all().map_err(at("write", &new))?;
        fs::hard_link(&new, path).map_err(at("make", path))?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(at("write", folder))
    });
    let removed = fs::remove_file(&new).map_err(at("remove", &new));
    made.and(removed)
}

fn make(path: &Path, format: Format, bytes: u64) -> Result<(), StorageError> {
    if format == Format::Raw {
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(path).map_err(at("make", path))?;
        return file.set_len(bytes).map_err(at("make", path));
    }
    let mut command = process::command(IMAGES, "qemu-utils")?;
    command.args(["create", "-q", "-f", format.word()]).arg(path).arg(bytes.to_string());
    process::run(command, IMAGES, CREATE_TIMEOUT)
}

/// Has a volume that no engine serves be what it was when the snapshot was made. It is done as
/// `user`, by `program` in its role: the image may be hostile.
///
/// # Errors
/// [`StorageError`]: among others, that there is no such snapshot.
pub fn restore(program: &Path, image: &Path, user: u32, snapshot: &str) -> Result<(), StorageError> {
    let file = process::open_image(image, user)?;
    let arguments = ["snapshot", "-q", "-a", snapshot, "/proc/self/fd/{0}"].map(str::to_owned).to_vec();
    let job = Job { tool: IMAGES, package: "qemu-utils", arguments, user, descriptors: vec![file.into()] };
    let child = process::start(program, job, |_| Ok(()))?;
    process::finish(child, IMAGES, RESTORE_TIMEOUT)
}
