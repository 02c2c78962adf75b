//! The side that opens.

use super::{Admission, Credentials, new_socket, wait_readable};
use crate::{End, OpenError};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::meeting::{BadGreeting, GREETING_BYTES_MAX, Greeting, PATH_BYTES_MAX};

/// How long to trust that the folder's events tell of everything: a socket that is bound before it
/// listens, a full backlog, or a file system without inotify would otherwise be waited for in vain.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Room for some events; what they say does not matter, only that there are any.
const EVENT_BYTES: usize = 1024;

/// The way to go on where nobody listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Absent {
    /// Fail at once.
    #[default]
    Fail,
    /// Wait until somebody does, or the deadline.
    Wait,
}

/// Why no channel came out.
#[derive(Debug, thiserror::Error)]
pub enum MeetError {
    /// The path does not fit the kernel's structure.
    #[error("the path of a socket has {PATH_BYTES_MAX} bytes at most, and {} has {bytes}: take a shorter one", path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// Nobody is there, or nobody may be asked.
    #[error("can't connect to {}: is the offerer running, and may this user connect to it?", path.display())]
    Connect {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The one that listens is of another user.
    #[error("the program that offers at {} runs as user {uid}, not as this one or root: allow other users if that is meant", path.display())]
    Stranger {
        /// The path.
        path: PathBuf,
        /// The user.
        uid: u32,
    },
    /// The offerer refused.
    #[error("the offerer at {} refused: {text}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// The errno that it gave.
        errno: u32,
        /// The offerer's text.
        text: String,
    },
    /// The offerer hung up without a word.
    #[error("the offerer at {} hung up before it gave a channel", path.display())]
    HungUp {
        /// The path.
        path: PathBuf,
    },
    /// The answer is no greeting.
    #[error("what listens at {} offers no channel", path.display())]
    Greeting {
        /// The path.
        path: PathBuf,
        /// The fault of the greeting.
        #[source]
        source: BadGreeting,
    },
    /// The descriptors that came along are no end of a channel.
    #[error("the offerer at {} sent descriptors that are no channel's end", path.display())]
    End {
        /// The path.
        path: PathBuf,
        /// The fault of the descriptors.
        #[source]
        source: OpenError,
    },
    /// The deadline has passed.
    #[error("no channel came from {} in time", path.display())]
    TimedOut {
        /// The path.
        path: PathBuf,
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

/// Opens the channel that is offered at `path`: our end, and who offers.
///
/// # Errors
/// [`MeetError`].
pub fn open(
    path: &Path,
    admission: Admission,
    absent: Absent,
    deadline: Option<Instant>,
) -> Result<(End, Credentials), MeetError> {
    let bytes = path.as_os_str().len();
    if bytes > PATH_BYTES_MAX {
        return Err(MeetError::PathTooLong { path: path.to_owned(), bytes });
    }
    let socket = connect(path, absent, deadline)?;
    let system = |action| move |source| MeetError::System { action, path: path.to_owned(), source };
    let offerer = sys::credentials::of_peer(&socket).map_err(system("ask who listens at"))?;
    if !admission.admits(&offerer) {
        return Err(MeetError::Stranger { path: path.to_owned(), uid: offerer.uid });
    }
    if !wait_readable(&socket, deadline).map_err(system("wait for the offerer at"))? {
        return Err(MeetError::TimedOut { path: path.to_owned() });
    }
    let end = receive(&socket, path)?;
    // Of another user, and admitted because the caller admits anybody.
    let end = if Admission::default().admits(&offerer) { end } else { end.distrust_maker() };
    Ok((end, offerer))
}

fn receive(socket: &OwnedFd, path: &Path) -> Result<End, MeetError> {
    let greeting = |source| MeetError::Greeting { path: path.to_owned(), source };
    let mut packet = [0; GREETING_BYTES_MAX];
    let (length, descriptors) =
        match sys::descriptors::receive_with_descriptors(socket, &mut packet, End::DESCRIPTORS) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(greeting(BadGreeting::Length { bytes: GREETING_BYTES_MAX + 1 }));
            }
            // An offerer that dies with our connection in its backlog.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                return Err(MeetError::HungUp { path: path.to_owned() });
            }
            Err(source) => {
                return Err(MeetError::System {
                    action: "hear the offerer at",
                    path: path.to_owned(),
                    source,
                });
            }
        };
    if length == 0 {
        return Err(MeetError::HungUp { path: path.to_owned() });
    }
    match Greeting::decode(packet.get(..length).unwrap_or(&packet)).map_err(greeting)? {
        Greeting::Channel => End::from_descriptors(descriptors)
            .map_err(|source| MeetError::End { path: path.to_owned(), source }),
        Greeting::Refused { errno, text } => Err(MeetError::Refused { path: path.to_owned(), errno, text }),
    }
}

/// Connects, waiting for the offerer if that is wished.
fn connect(path: &Path, absent: Absent, deadline: Option<Instant>) -> Result<OwnedFd, MeetError> {
    let failed = |errno: Errno| MeetError::Connect { path: path.to_owned(), source: errno.into() };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    // The watch stands before the attempt, so that a socket which comes in between is not missed.
    let watch = (absent == Absent::Wait).then(|| watch_folder(path)).flatten();
    loop {
        let socket = new_socket().map_err(failed)?;
        match rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address)) {
            Ok(()) => return Ok(socket),
            // A full backlog: the offerer is there, and late.
            Err(Errno::AGAIN) => {}
            Err(Errno::NOENT | Errno::CONNREFUSED) if absent == Absent::Wait => {}
            Err(errno) => return Err(failed(errno)),
        }
        let now = Instant::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Err(MeetError::TimedOut { path: path.to_owned() });
        }
        let until = deadline.map_or(now + LOOK_AGAIN, |deadline| deadline.min(now + LOOK_AGAIN));
        pause(watch.as_ref(), until).map_err(|source| MeetError::System {
            action: "watch the folder of",
            path: path.to_owned(),
            source,
        })?;
    }
}

/// Waits for something to happen in the folder, or for the time.
fn pause(watch: Option<&OwnedFd>, until: Instant) -> io::Result<()> {
    let Some(watch) = watch else {
        // tidy(sleep): a backlog tells nobody that it has room, and this folder can't be watched.
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        return Ok(());
    };
    if wait_readable(watch, Some(until))? {
        let mut space = [MaybeUninit::uninit(); EVENT_BYTES];
        let mut events = inotify::Reader::new(watch, &mut space);
        while events.next().is_ok() {}
    }
    Ok(())
}

fn watch_folder(path: &Path) -> Option<OwnedFd> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let events = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ATTRIB;
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    inotify::add_watch(&watch, folder, events).ok()?;
    Some(watch)
}
