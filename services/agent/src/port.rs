//! The port to the node: a virtio-serial port, known by its name.

use crate::error::AgentError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::guest::PORT_NAME;

/// Where the kernel lists such ports.
const PORTS: &str = "/sys/class/virtio-ports";
/// A port's name, and that somebody is at its other end, arrive by messages of the hypervisor after
/// the device.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often is looked.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Opens the port, non-blocking, when the node is at its other end.
///
/// # Errors
/// [`AgentError::NoPort`], [`AgentError::Port`], [`AgentError::Gone`].
pub fn open_port() -> Result<OwnedFd, AgentError> {
    let deadline = Instant::now() + TIMEOUT;
    let device = loop {
        if let Some(device) = find(Path::new(PORTS)) {
            break device;
        }
        if Instant::now() >= deadline {
            return Err(AgentError::NoPort);
        }
        // tidy(sleep): the name comes by a message of the hypervisor, and sysfs tells nobody of it.
        std::thread::sleep(LOOK_AGAIN);
    };
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let port = rustix::fs::open(&device, flags, Mode::empty())
        .map_err(|errno| AgentError::Port { what: "open it", source: errno.into() })?;
    while !is_connected(&port)? {
        if Instant::now() >= deadline {
            return Err(AgentError::Gone);
        }
        // tidy(sleep): a port that nobody is at hangs up at once, whoever waits for it.
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(port)
}

/// The device of the port of our name.
fn find(ports: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(ports).ok()?.filter_map(Result::ok);
    let ours = |folder: &Path| fs::read_to_string(folder.join("name")).is_ok_and(|n| n.trim() == PORT_NAME);
    let found = entries.into_iter().find(|entry| ours(&entry.path()))?;
    Some(Path::new("/dev").join(found.file_name()))
}

fn is_connected(port: &OwnedFd) -> Result<bool, AgentError> {
    let mut set = [PollFd::new(port, PollFlags::empty())];
    match poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(_) | Err(Errno::INTR) => Ok(!set[0].revents().contains(PollFlags::HUP)),
        Err(errno) => Err(AgentError::Port { what: "look at it", source: errno.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_known_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(find(folder.path()), None);
        for (port, name) in [("vport0p1", "org.qemu.guest_agent.0\n"), ("vport1p1", "tombolo.agent\n")] {
            fs::create_dir(folder.path().join(port)).unwrap();
            fs::write(folder.path().join(port).join("name"), name).unwrap();
        }
        fs::create_dir(folder.path().join("vport2p1")).unwrap();
        assert_eq!(find(folder.path()), Some("/dev/vport1p1".into()));
    }
}
