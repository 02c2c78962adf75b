//! This test program once more, as the other process: with descriptors, and a line to whoever
//! started it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};

/// Says to the test `child` of a program what it is to do.
pub const ROLE: &str = "TOMBOLO_TEST_ROLE";

/// Another process, and our end of the line: it ends when this is dropped.
pub struct Other {
    pub child: Child,
    line: OwnedFd,
}

/// Starts the test `child` of this program in a process of its own. `role` is for [`role`] there.
pub fn start(role: &str) -> Other {
    let (line, theirs) = sys::descriptors::socket_pair().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdin(theirs)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Other { child, line }
}

impl Other {
    /// Passes descriptors; [`receive`] takes them. It is no error when the other has died
    /// meanwhile.
    pub fn pass(&self, descriptors: &[BorrowedFd<'_>]) {
        let passed = sys::descriptors::send_with_descriptors(&self.line, b"here", descriptors);
        if let Err(error) = passed {
            assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe, "{error}");
        }
    }
}

/// Returns the role for which this process was started; `None` where a person runs its test by
/// hand.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The descriptors that were passed to this process; `None` when whoever started it is gone.
pub fn receive(most: usize) -> Option<Vec<OwnedFd>> {
    let mut word = [0; 8];
    let (length, descriptors) =
        sys::descriptors::receive_with_descriptors(std::io::stdin(), &mut word, most).unwrap();
    (length > 0).then_some(descriptors)
}
