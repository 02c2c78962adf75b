//! Locks, semaphores and barriers.

use super::{Sync, Wait, named, number, wait_for};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;

/// Bytes of a token or a generation, at the most.
const NUMBER_BYTES: usize = 64;

/// A lock, or a place of a semaphore, that is held until this is dropped, or the process dies.
#[derive(Debug)]
pub struct Held {
    token: u64,
    _file: File,
}

impl Held {
    /// It only grows: whatever the lock protects refuses one that is less than one it has seen.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }
}

impl Sync {
    /// Takes a lock, first come, first served. Made where there is none.
    ///
    /// # Errors
    /// The service's; see [`Wait`].
    pub fn lock(&self, name: &str, wait: Wait) -> io::Result<Held> {
        self.hold(&named("locks", name)?, wait)
    }

    /// Takes a place of a semaphore; `count` says how many may hold one.
    ///
    /// # Errors
    /// The service's; see [`Wait`].
    pub fn semaphore(&self, name: &str, count: Option<u64>, wait: Wait) -> io::Result<Held> {
        let path = named("semaphores", name)?;
        if let Some(count) = count {
            self.ask(format!("count {path} {count}").as_bytes())?;
        }
        self.hold(&path, wait)
    }

    /// Arrives at a barrier, waits for the others, and returns the generation: the same number to
    /// all who pass together. `parties` says how many do.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] of [`Wait::Not`]: who arrives and goes breaks it. `ECANCELED`: one that waited gave up or died, and this generation is broken. Else the
    /// service's; see [`Wait`].
    pub fn barrier(&self, name: &str, parties: Option<u64>, wait: Wait) -> io::Result<u64> {
        let (path, begun) = (named("barriers", name)?, Instant::now());
        if wait == Wait::Not {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a barrier is waited for"));
        }
        if let Some(parties) = parties {
            self.ask(format!("parties {path} {parties}").as_bytes())?;
        }
        let mut file = File::open(self.path(&path))?;
        wait_for(&file, wait, begun)?;
        read_number(&mut file)
    }

    fn hold(&self, path: &str, wait: Wait) -> io::Result<Held> {
        let (at, begun) = (self.path(path), Instant::now());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        if wait == Wait::Not {
            // Made first: what is opened without waiting must be there.
            OpenOptions::new().write(true).create(true).truncate(false).open(&at)?;
            options.write(false).create(false).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        }
        let mut file = options.open(&at)?;
        wait_for(&file, wait, begun)?;
        Ok(Held { token: read_number(&mut file)?, _file: file })
    }
}

fn read_number(file: &mut File) -> io::Result<u64> {
    let mut text = [0; NUMBER_BYTES];
    let length = file.read(&mut text)?;
    number(text.get(..length).unwrap_or_default())
}
