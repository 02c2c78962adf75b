//! POSIX message queues, mq_overview(7). On Linux a queue's descriptor is a file descriptor, which
//! can be passed on like any other.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Makes a queue for so many messages of so many bytes at most, open for both directions. `name`
/// begins with a slash, and must be free.
///
/// # Errors
/// Those of mq_open(3): beyond the system's limits (`/proc/sys/fs/mqueue`) `EINVAL`, beyond the
/// user's (`RLIMIT_MSGQUEUE`) `EMFILE`, and `ENOSYS` from a kernel without queues.
pub fn create(name: &CStr, messages: usize, message_bytes: usize) -> io::Result<OwnedFd> {
    let too_many = |_| io::Error::from(io::ErrorKind::InvalidInput);
    // SAFETY: `mq_attr` is plain numbers, for all of which zero is a value.
    let mut attributes: libc::mq_attr = unsafe { std::mem::zeroed() };
    attributes.mq_maxmsg = messages.try_into().map_err(too_many)?;
    attributes.mq_msgsize = message_bytes.try_into().map_err(too_many)?;
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    let mode: libc::mode_t = 0o600;
    // SAFETY: the name ends with a zero byte, and the attributes live as long as the call; with
    // `O_CREAT` these are the two further arguments that are read.
    let queue = unsafe { libc::mq_open(name.as_ptr(), flags, mode, &raw mut attributes) };
    if queue < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just made this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(queue) })
}

/// Takes the name away; who has the queue open keeps it.
///
/// # Errors
/// Those of mq_unlink(3).
pub fn unlink(name: &CStr) -> io::Result<()> {
    // SAFETY: the name ends with a zero byte.
    if unsafe { libc::mq_unlink(name.as_ptr()) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends a message, and waits until there is room for it.
///
/// # Errors
/// Those of mq_send(3): `EMSGSIZE` for one that is too long. Interruptions are none.
pub fn send(queue: impl AsFd, message: &[u8]) -> io::Result<()> {
    let queue = queue.as_fd().as_raw_fd();
    loop {
        // SAFETY: the descriptor is open while it is borrowed, and pointer and length are those of
        // one slice.
        if unsafe { libc::mq_send(queue, message.as_ptr().cast(), message.len(), 0) } == 0 {
            return Ok(());
        }
        not_interrupted()?;
    }
}

/// Waits for a message and says how long it is.
///
/// # Errors
/// Those of mq_receive(3): `EMSGSIZE` where `into` is shorter than the queue's longest message.
/// Interruptions are none.
pub fn receive(queue: impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    let queue = queue.as_fd().as_raw_fd();
    loop {
        // SAFETY: the descriptor is open while it is borrowed; pointer and length are those of one
        // slice, which nobody else has; no priority is asked for.
        let got =
            unsafe { libc::mq_receive(queue, into.as_mut_ptr().cast(), into.len(), std::ptr::null_mut()) };
        if let Ok(got) = usize::try_from(got) {
            return Ok(got);
        }
        not_interrupted()?;
    }
}

/// The error of the call that has just failed, but for an interruption.
fn not_interrupted() -> io::Result<()> {
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn name(what: &str) -> CString {
        CString::new(format!("/tombolo-test-{}-{what}", std::process::id())).expect("no zero byte")
    }

    #[test]
    fn messages_arrive_whole_and_in_order_though_the_name_is_gone() {
        let name = name("order");
        let queue = match create(&name, 4, 64) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                println!("skipped: this kernel has no message queues");
                return;
            }
            made => made.expect("a queue"),
        };
        assert_eq!(create(&name, 4, 64).expect_err("it is there").kind(), io::ErrorKind::AlreadyExists);
        unlink(&name).expect("it was there");
        assert!(unlink(&name).is_err());
        send(&queue, b"one").expect("sent");
        send(&queue, b"").expect("sent");
        let mut into = [0; 64];
        assert_eq!(receive(&queue, &mut into).expect("received"), 3);
        assert_eq!(&into[..3], b"one");
        assert_eq!(receive(&queue, &mut into).expect("received"), 0);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let name = name("size");
        let Ok(queue) = create(&name, 1, 64) else {
            println!("skipped: no message queue can be made here");
            return;
        };
        unlink(&name).expect("it was there");
        assert_eq!(send(&queue, &[0; 65]).expect_err("too long").raw_os_error(), Some(libc::EMSGSIZE));
        assert_eq!(
            receive(&queue, &mut [0; 63]).expect_err("too short").raw_os_error(),
            Some(libc::EMSGSIZE)
        );
    }
}
