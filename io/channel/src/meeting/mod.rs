//! Meeting at a path: two programs of one machine get the two ends of a channel without a daemon.
//! Described in `docs/spec/meeting.md`.
//!
//! ```
//! use channel::Config;
//! use channel::meeting::{Absent, Admission, Offer, open};
//!
//! let folder = std::env::temp_dir().join(format!("tombolo-doc-{}", std::process::id()));
//! std::fs::create_dir(&folder)?;
//! let path = folder.join("greeter");
//! let offer = Offer::new(&path, Config::default(), Admission::SameUser)?;
//! let opener = std::thread::spawn(move || open(&path, Admission::SameUser, Absent::Fail, None));
//! let (here, peer) = offer.accept(None)?;
//! let (there, _offerer) = opener.join().expect("no panic")?;
//! assert_eq!(peer.pid, std::process::id());
//! let ((mut sender, _receiver), (_sender, mut receiver)) = (here.open()?, there.open()?);
//! sender.send(b"hello", None)?;
//! let mut message = Vec::new();
//! receiver.receive(&mut message, None)?;
//! assert_eq!(message, b"hello");
//! # drop(offer);
//! # std::fs::remove_dir(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod offer;
mod open;
mod place;

pub use offer::{AcceptError, Offer};
pub use open::{Absent, MeetError, open};
pub use place::OfferError;
pub use sys::credentials::Credentials;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// With whom to meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// Processes of this process's effective user, and root.
    #[default]
    SameUser,
    /// Any user that the path's permissions let in.
    AnyUser,
}

impl Admission {
    fn admits(self, who: &Credentials) -> bool {
        self == Self::AnyUser || who.uid == 0 || who.uid == rustix::process::geteuid().as_raw()
    }
}

/// A socket as both sides want it.
fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Waits until there is something to read, or the deadline (`Ok(false)`).
fn wait_readable(descriptor: impl AsFd, deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], left.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
