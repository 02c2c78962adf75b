//! Where the regions of channels are: in a folder that outlives this process, where there is one.

use publication::Store;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use sys::region::Region;
use wire::events::region::AT_BUFFER_BYTES;

/// Channels of one service: a mapping each, of which a process has 65,530.
pub const CHANNELS_MAX: usize = 8192;
/// Bytes of one channel's buffer.
const BUFFER_BYTES_MAX: u64 = 256 << 20;
/// Most files that are taken up: as many as there are channels, and a few that half a removal left.
const FILES_MAX: usize = 2 * CHANNELS_MAX;
/// How the file of a channel is called, behind its number.
const EXTENSION: &str = "channel";

/// The memory of one channel.
#[derive(Debug)]
pub struct ChannelMemory(Region);

impl Store for ChannelMemory {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn word(&self, offset: usize) -> u64 {
        self.0.load_u64(offset, Ordering::Acquire)
    }

    fn put(&mut self, offset: usize, word: u64) {
        self.0.store_u64(offset, word, Ordering::Relaxed);
    }

    fn commit(&mut self, offset: usize, word: u64) {
        // A successor sees what this process wrote in program order as far as the compiler keeps
        // it: release does.
        self.0.store_u64(offset, word, Ordering::Release);
    }

    fn copy_in(&mut self, offset: usize, bytes: &[u8]) {
        self.0.copy_in(offset, bytes);
    }

    fn append_to(&self, offset: usize, length: usize, into: &mut Vec<u8>) {
        self.0.append_to(offset, length, into);
    }
}

/// Makes and finds the memory of channels.
#[derive(Debug)]
pub struct Memories {
    folder: Option<PathBuf>,
}

impl Memories {
    /// In this folder, which is made; without one, everything ends with this process.
    pub fn new(folder: Option<PathBuf>) -> io::Result<Self> {
        if let Some(folder) = &folder {
            fs::create_dir_all(folder)?;
        }
        Ok(Self { folder })
    }

    /// Whether a channel outlives this process.
    pub fn are_kept(&self) -> bool {
        self.folder.is_some()
    }

    fn path(folder: &Path, serial: u32) -> PathBuf {
        folder.join(format!("{serial}.{EXTENSION}"))
    }

    /// Memory for a new channel with a buffer of so many bytes, all of it there: a full disk or
    /// file system is an error now and no signal later.
    pub fn make(&self, serial: u32, buffer: u64) -> io::Result<ChannelMemory> {
        let bytes = buffer + AT_BUFFER_BYTES as u64;
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let Some(folder) = &self.folder else {
            let memory = sys::memfd::sealed("tombolo-events", bytes)?;
            rustix::fs::fallocate(&memory, FallocateFlags::KEEP_SIZE, 0, bytes)?;
            return Ok(ChannelMemory(Region::map(&memory, length)?));
        };
        let path = Self::path(folder, serial);
        let made =
            Self::make_file(&path, bytes).and_then(|file| Ok(ChannelMemory(Region::map(&file, length)?)));
        if made.is_err() {
            // Half a file is of no use to anybody; the error that is told is the first one.
            drop(fs::remove_file(&path));
        }
        made
    }

    fn make_file(path: &Path, bytes: u64) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        Ok(file)
    }

    /// The memories that predecessors have left, without those of no use. Files that can't be taken
    /// up are removed.
    pub fn left(&self) -> io::Result<Vec<ChannelMemory>> {
        let mut left = Vec::new();
        let Some(folder) = &self.folder else { return Ok(left) };
        for entry in fs::read_dir(folder)?.take(FILES_MAX) {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            match Self::open(&path) {
                Ok(memory) => left.push(memory),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "what was left of a channel can't be used");
                    fs::remove_file(&path)?;
                }
            }
        }
        Ok(left)
    }

    fn open(path: &Path) -> io::Result<ChannelMemory> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&file)?;
        let bytes = u64::try_from(found.st_size).unwrap_or(0);
        let most = AT_BUFFER_BYTES as u64 + BUFFER_BYTES_MAX;
        if bytes <= AT_BUFFER_BYTES as u64 || bytes > most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{bytes} bytes are no channel")));
        }
        // Holes would be filled when they are written to, and could not be.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(ChannelMemory(Region::map(&file, length)?))
    }

    /// Removes what was kept of a channel.
    pub fn remove(&self, serial: u32) {
        let Some(folder) = &self.folder else { return };
        if let Err(error) = fs::remove_file(Self::path(folder, serial)) {
            tracing::warn!(serial, %error, "the memory of a removed channel stays");
        }
    }
}
