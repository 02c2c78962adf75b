//! The path at which an offerer listens: taking it, also after a dead one, and giving it back.

use super::new_socket;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::meeting::PATH_BYTES_MAX;

/// Openers that may wait to be accepted; more are told to come again (the kernel allows 4096 by
/// default).
const BACKLOG: i32 = 128;
/// How long to wait for the lock of a folder. Offerers hold it for some system calls.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// Between two tries for the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Why nothing could be offered at a path.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// The path does not fit the kernel's structure.
    #[error("the path of a socket has {PATH_BYTES_MAX} bytes at most, and {} has {bytes}: take a shorter one", path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// Somebody listens there.
    #[error("somebody offers at {} already: take another path, or end that program", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// There is something that is not ours to replace.
    #[error("{} is there, and is no socket: take another path, or remove it", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Somebody holds the folder's lock.
    #[error("the folder {} has been locked (flock) by another program for {} s", folder.display(), LOCK_WAIT.as_secs())]
    Locked {
        /// The folder.
        folder: PathBuf,
    },
    /// The kernel refused.
    #[error("can't {action} {}", path.display())]
    System {
        /// The action that was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// A path that a socket of ours is bound to. Dropped, it is removed, by the process that took it.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// Device and number of the socket's file: what is ours to remove.
    file: (u64, u64),
    process: u32,
}

impl Place {
    /// Binds a new socket to a path and listens there.
    pub(super) fn take(path: &Path, permissions: Mode) -> Result<(OwnedFd, Self), OfferError> {
        let system = |action| {
            move |errno: Errno| OfferError::System { action, path: path.to_owned(), source: errno.into() }
        };
        let bytes = path.as_os_str().len();
        if bytes > PATH_BYTES_MAX {
            return Err(OfferError::PathTooLong { path: path.to_owned(), bytes });
        }
        let address = SocketAddrUnix::new(path).map_err(system("use as the path of a socket"))?;
        let socket = new_socket().map_err(system("make a socket for"))?;
        // A socket's file gets the permissions of the socket, so it never has others, not even for
        // a moment.
        rustix::fs::fchmod(&socket, permissions).map_err(system("set the permissions of"))?;
        let _lock = lock_folder(path)?;
        match rustix::net::bind(&socket, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => {
                remove_dead(path, &address)?;
                rustix::net::bind(&socket, &address).map_err(system("listen at"))?;
            }
            Err(errno) => return Err(system("listen at")(errno)),
        }
        let place = Self {
            path: path.to_owned(),
            file: file_at(path).map_err(system("look at"))?,
            process: std::process::id(),
        };
        rustix::net::listen(&socket, BACKLOG).map_err(system("listen at"))?;
        Ok((socket, place))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The child of a fork has a copy of this value, and no business with the path.
        if self.process != std::process::id() {
            return;
        }
        // What can't be removed (the folder is gone, or locked by a stranger) is a dead socket,
        // which the next offerer replaces.
        let Ok(_lock) = lock_folder(&self.path) else { return };
        if file_at(&self.path) == Ok(self.file) {
            let _left_behind = rustix::fs::unlink(&self.path);
        }
    }
}

fn file_at(path: &Path) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::lstat(path)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Removes the socket of a dead offerer; anything else is an error. The folder is locked.
fn remove_dead(path: &Path, address: &SocketAddrUnix) -> Result<(), OfferError> {
    let system = |action| {
        move |errno: Errno| OfferError::System { action, path: path.to_owned(), source: errno.into() }
    };
    let stat = rustix::fs::lstat(path).map_err(system("look at"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(OfferError::NotASocket { path: path.to_owned() });
    }
    let probe = new_socket().map_err(system("make a socket for"))?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => rustix::fs::unlink(path).map_err(system("remove the dead socket")),
        // EAGAIN: a full backlog; EPROTOTYPE: a socket of another kind. Each has a listener.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(OfferError::InUse { path: path.to_owned() }),
        Err(errno) => Err(system("see whether somebody listens at")(errno)),
    }
}

/// The lock that keeps two offerers from taking each other for dead. Released when dropped.
fn lock_folder(path: &Path) -> Result<OwnedFd, OfferError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let system = |action| {
        move |errno: Errno| OfferError::System { action, path: folder.to_owned(), source: errno.into() }
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lock = rustix::fs::open(folder, flags, Mode::empty()).map_err(system("open the folder"))?;
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                // tidy(sleep): a lock of a file tells nobody when it becomes free, and waiting in
                // flock(2) has no time-out.
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(Errno::WOULDBLOCK) => return Err(OfferError::Locked { folder: folder.to_owned() }),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(system("lock the folder")(errno)),
        }
    }
}
