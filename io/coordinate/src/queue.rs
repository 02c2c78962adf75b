//! Queues.

use super::{Sync, Wait, named, wait_for};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;
use wire::coordination::MAX_VALUE_BYTES;

/// The line by which an item is written off.
const DONE: &[u8] = b"done";

/// A queue. Each item is dealt with at least once: one whose consumer dies comes back.
#[derive(Debug, Clone)]
pub struct Queue<'s> {
    sync: &'s Sync,
    name: String,
}

impl Sync {
    /// A queue. Nothing is looked at yet: one that is not there is made by the first push, with
    /// room for 1,024 items that die with the service's server.
    pub fn queue(&self, name: &str) -> Queue<'_> {
        Queue { sync: self, name: name.to_owned() }
    }
}

impl Queue<'_> {
    fn path(&self) -> io::Result<String> {
        named("queues", &self.name)
    }

    /// Makes it, or gives it room for so many items. What a durable one answered is kept whatever
    /// dies.
    ///
    /// # Errors
    /// `EINVAL`: there are 1 to 4,096; `EBUSY`: it has items, and is (not) durable. Else the
    /// service's.
    pub fn make(&self, items: u64, is_durable: bool) -> io::Result<()> {
        let kept = if is_durable { " durable" } else { "" };
        self.sync.ask(format!("queue {} {items}{kept}", self.path()?).as_bytes()).map(drop)
    }

    /// Puts an item of 1 byte to 32 KiB into it; waits while it is full, or does not
    /// ([`Wait::Not`]).
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`]: of an item that can't be, and of [`Wait::For`], which a
    /// push has not. Else the service's.
    pub fn push(&self, item: &[u8], wait: Wait) -> io::Result<()> {
        let odd = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why.to_owned()));
        if !(1..=MAX_VALUE_BYTES).contains(&item.len()) {
            return odd("an item has one byte to 32 KiB");
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        match wait {
            Wait::Ever => {}
            Wait::Not => _ = options.custom_flags(OFlags::NONBLOCK.bits().cast_signed()),
            Wait::For(_) => return odd("a push waits for ever, or not at all"),
        }
        let mut file = options.open(self.sync.path(&self.path()?))?;
        match file.write(item)? {
            written if written == item.len() => Ok(()),
            _ => Err(rustix::io::Errno::MSGSIZE.into()),
        }
    }

    /// Takes an item.
    ///
    /// # Errors
    /// The service's; see [`Wait`].
    pub fn take(&self, wait: Wait) -> io::Result<Item> {
        let begun = Instant::now();
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if wait == Wait::Not {
            options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        }
        let mut file = options.open(self.sync.path(&self.path()?))?;
        wait_for(&file, wait, begun)?;
        let mut bytes = vec![0; MAX_VALUE_BYTES];
        let length = file.read(&mut bytes)?;
        bytes.truncate(length);
        Ok(Item { bytes, file })
    }
}

/// An item that was taken. One that is dropped, without [`Item::done`], is the first that somebody
/// gets.
#[derive(Debug)]
pub struct Item {
    bytes: Vec<u8>,
    file: File,
}

impl Item {
    /// The bytes that were pushed.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// It is dealt with.
    ///
    /// # Errors
    /// `ESTALE`: its taker was not heard of for too long, and it is somebody else's. Else the
    /// service's.
    pub fn done(mut self) -> io::Result<Vec<u8>> {
        self.file.write_all(DONE)?;
        Ok(self.bytes)
    }
}
