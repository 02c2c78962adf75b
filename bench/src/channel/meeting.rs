//! How two workers find each other: a Unix socket at a path, over which descriptors and words are
//! passed.

use super::task::Role;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Longest word that is passed.
const WORD_BYTES: usize = 256;
/// Most descriptors that are passed at once: those of an end of a channel.
const DESCRIPTORS: usize = 8;

/// One side of a meeting.
#[derive(Debug)]
pub struct Meeting(UnixStream);

/// Where the follower waits for the leader.
#[derive(Debug)]
pub struct Place(UnixListener);

impl Place {
    /// Makes the socket; the path must be free.
    ///
    /// # Errors
    /// Those of bind(2).
    pub fn make(path: &Path) -> io::Result<Self> {
        UnixListener::bind(path).map(Self)
    }

    /// Waits for the next leader.
    ///
    /// # Errors
    /// Those of accept(2).
    pub fn meet(&self) -> io::Result<Meeting> {
        Ok(Meeting(self.0.accept()?.0))
    }
}

impl Meeting {
    /// Goes to the follower, who has made the place before.
    ///
    /// # Errors
    /// Those of connect(2).
    pub fn go(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).map(Self)
    }

    /// Passes a word, which must not be empty, and descriptors.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    pub fn give<T: AsFd>(&mut self, word: &[u8], descriptors: &[T]) -> io::Result<()> {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        sys::descriptors::send_with_descriptors(&self.0, word, &descriptors)
    }

    /// Takes what the other has given. The two take turns, so that no two words run together.
    ///
    /// # Errors
    /// Those of recvmsg(2); `UnexpectedEof` where the other is gone, `InvalidData` for other
    /// descriptors than `count`.
    pub fn take(&mut self, count: usize) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let mut word = [0; WORD_BYTES];
        let (length, descriptors) =
            sys::descriptors::receive_with_descriptors(&self.0, &mut word, DESCRIPTORS)?;
        if length == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other worker is gone"));
        }
        if descriptors.len() != count {
            let what = format!("the other worker gave {} descriptors, not {count}", descriptors.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok((word[..length].to_vec(), descriptors))
    }

    /// Waits until both have come this far.
    ///
    /// # Errors
    /// Where the other is gone.
    pub fn together(&mut self, role: Role) -> io::Result<()> {
        match role {
            Role::Lead => {
                self.give::<OwnedFd>(b"here", &[])?;
                self.take(0).map(|_| ())
            }
            Role::Follow => {
                self.take(0)?;
                self.give::<OwnedFd>(b"here", &[])
            }
        }
    }

    /// Waits until the other has let go.
    ///
    /// # Errors
    /// Those of recvmsg(2); `InvalidData` where the other says something instead.
    pub fn until_gone(mut self) -> io::Result<()> {
        match self.take(0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The socket itself, as a way of messages.
    #[must_use]
    pub fn into_stream(self) -> UnixStream {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_and_words_are_passed_in_turns() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("meeting");
        let place = Place::make(&path).expect("a place");
        let leader = std::thread::spawn(move || {
            let mut meeting = Meeting::go(&path).expect("it is there");
            let (one, other) = sys::doorbell::pair().expect("a pipe");
            meeting.give(b"two", &[one, other]).expect("given");
            meeting.together(Role::Lead).expect("together");
        });
        let mut meeting = place.meet().expect("it comes");
        let (word, descriptors) = meeting.take(2).expect("taken");
        assert_eq!((word.as_slice(), descriptors.len()), (&b"two"[..], 2));
        meeting.together(Role::Follow).expect("together");
        leader.join().expect("no panic");
        assert_eq!(meeting.take(0).expect_err("gone").kind(), io::ErrorKind::UnexpectedEof);
    }
}
