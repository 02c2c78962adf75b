//! The files below `/srv`, as any program sees them.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use super::{Done, Opened, Stat, View};
use crate::TIMEOUT;

/// The longest value, and the longest list of names.
const XATTR_BYTES: usize = 64 * 1024;

/// A folder in which services are mounted.
#[derive(Debug)]
pub struct Mount {
    srv: PathBuf,
    files: HashMap<Opened, OwnedFd>,
    reads: HashMap<Opened, JoinHandle<Done<Vec<u8>>>>,
    last: usize,
}

fn errno(error: Errno) -> i32 {
    error.raw_os_error()
}

fn of_io(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(-1)
}

const WORDS: [(PollFlags, &str); 4] =
    [(PollFlags::IN, "in"), (PollFlags::OUT, "out"), (PollFlags::PRI, "pri"), (PollFlags::ERR, "err")];

impl Mount {
    /// The services that are mounted in this folder.
    pub fn new(srv: impl Into<PathBuf>) -> Self {
        Self { srv: srv.into(), files: HashMap::new(), reads: HashMap::new(), last: 0 }
    }

    fn keep(&mut self, file: OwnedFd) -> Opened {
        self.last += 1;
        self.files.insert(Opened(self.last), file);
        Opened(self.last)
    }

    fn file(&self, file: Opened) -> Done<&OwnedFd> {
        self.files.get(&file).ok_or(errno(Errno::BADF))
    }
}

/// One read at an offset, or without one where the file has none.
fn read(file: &OwnedFd, offset: u64, most: usize) -> Done<Vec<u8>> {
    let mut bytes = vec![0; most];
    let count = match rustix::io::pread(file, &mut bytes, offset) {
        Err(Errno::SPIPE) => rustix::io::read(file, &mut bytes),
        other => other,
    };
    bytes.truncate(count.map_err(errno)?);
    Ok(bytes)
}

impl View for Mount {
    fn name(&self) -> &'static str {
        "mount"
    }

    fn stat(&mut self, path: &str) -> Done<Stat> {
        let found = std::fs::metadata(self.srv.join(path)).map_err(of_io)?;
        Ok(Stat { mode: found.mode(), links: found.nlink(), size: found.size() })
    }

    fn list(&mut self, path: &str) -> Done<Vec<Vec<u8>>> {
        let entries = std::fs::read_dir(self.srv.join(path)).map_err(of_io)?;
        entries.map(|entry| Ok(entry.map_err(of_io)?.file_name().into_vec())).collect()
    }

    fn open(&mut self, path: &str, flags: u32) -> Done<Opened> {
        let opened = rustix::fs::open(self.srv.join(path), OFlags::from_bits_retain(flags), Mode::empty());
        opened.map(|file| self.keep(file)).map_err(errno)
    }

    fn create(&mut self, path: &str, flags: u32, mode: u32) -> Done<Opened> {
        let flags = OFlags::from_bits_retain(flags) | OFlags::CREATE;
        let opened = rustix::fs::open(self.srv.join(path), flags, Mode::from_raw_mode(mode));
        opened.map(|file| self.keep(file)).map_err(errno)
    }

    fn read(&mut self, file: Opened, offset: u64, most: usize) -> Done<Vec<u8>> {
        read(self.file(file)?, offset, most)
    }

    fn begin_read(&mut self, file: Opened, most: usize) -> Done<()> {
        let same = self.file(file)?.try_clone().map_err(of_io)?;
        self.reads.insert(file, std::thread::spawn(move || read(&same, 0, most)));
        Ok(())
    }

    fn end_read(&mut self, file: Opened) -> Done<Vec<u8>> {
        let thread = self.reads.remove(&file).ok_or(errno(Errno::BADF))?;
        thread.join().unwrap_or(Err(-1))
    }

    fn write(&mut self, file: Opened, offset: u64, data: &[u8]) -> Done<usize> {
        let file = self.file(file)?;
        match rustix::io::pwrite(file, data, offset) {
            Err(Errno::SPIPE) => rustix::io::write(file, data),
            other => other,
        }
        .map_err(errno)
    }

    fn sync(&mut self, file: Opened) -> Done<()> {
        rustix::fs::fsync(self.file(file)?).map_err(errno)
    }

    fn ready(&mut self, file: Opened, wanted: &[&str]) -> Done<Vec<&'static str>> {
        let file = self.file(file)?;
        let named = |flags: PollFlags| WORDS.into_iter().filter(move |(bit, _)| flags.contains(*bit));
        let mut wait = PollFlags::empty();
        for (bit, _) in WORDS.iter().filter(|(_, word)| wanted.contains(word)) {
            wait |= *bit;
        }
        let patience = Timespec { tv_sec: TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
        if !wait.is_empty() && poll(&mut [PollFd::new(file, wait)], Some(&patience)).map_err(errno)? == 0 {
            return Err(errno(Errno::TIMEDOUT));
        }
        let mut all = [PollFd::new(file, PollFlags::IN | PollFlags::OUT | PollFlags::PRI)];
        poll(&mut all, Some(&Timespec::default())).map_err(errno)?;
        Ok(named(all[0].revents()).map(|(_, word)| word).collect())
    }

    fn close(&mut self, file: Opened) {
        self.files.remove(&file);
    }

    fn make_folder(&mut self, path: &str) -> Done<()> {
        rustix::fs::mkdir(self.srv.join(path), Mode::from_raw_mode(0o755)).map_err(errno)
    }

    fn unlink(&mut self, path: &str) -> Done<()> {
        rustix::fs::unlink(self.srv.join(path)).map_err(errno)
    }

    fn remove_folder(&mut self, path: &str) -> Done<()> {
        rustix::fs::rmdir(self.srv.join(path)).map_err(errno)
    }

    fn rename(&mut self, path: &str, to: &str) -> Done<()> {
        let (path, to) = (self.srv.join(path), self.srv.join(to));
        rustix::fs::renameat_with(CWD, path, CWD, to, RenameFlags::empty()).map_err(errno)
    }

    fn link(&mut self, path: &str, to: &str) -> Done<()> {
        rustix::fs::linkat(CWD, self.srv.join(path), CWD, self.srv.join(to), AtFlags::empty()).map_err(errno)
    }

    fn set(&mut self, path: &str, size: Option<u64>, mode: Option<u32>) -> Done<()> {
        let path = self.srv.join(path);
        if let Some(mode) = mode {
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode)).map_err(errno)?;
        }
        let Some(size) = size else { return Ok(()) };
        let file = rustix::fs::open(&path, OFlags::WRONLY, Mode::empty()).map_err(errno)?;
        rustix::fs::ftruncate(file, size).map_err(errno)
    }

    fn xattr(&mut self, path: &str, name: &str) -> Done<Vec<u8>> {
        let mut value = vec![0; XATTR_BYTES];
        let length = rustix::fs::lgetxattr(self.srv.join(path), name, &mut value[..]).map_err(errno)?;
        value.truncate(length);
        Ok(value)
    }

    fn xattrs(&mut self, path: &str) -> Done<Vec<u8>> {
        let mut names = vec![0; XATTR_BYTES];
        let length = rustix::fs::llistxattr(self.srv.join(path), &mut names[..]).map_err(errno)?;
        names.truncate(length);
        Ok(names)
    }

    fn set_xattr(&mut self, path: &str, name: &str, value: Option<&[u8]>, flags: u32) -> Done<()> {
        let path = self.srv.join(path);
        match value {
            Some(value) => rustix::fs::lsetxattr(path, name, value, XattrFlags::from_bits_retain(flags)),
            None => rustix::fs::lremovexattr(path, name),
        }
        .map_err(errno)
    }
}
