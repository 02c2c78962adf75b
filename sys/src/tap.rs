//! Network cards of software (`/dev/net/tun`): what goes in at one side comes out at the other, and
//! the other side is a descriptor.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Opcode, Updater};

/// Where they come from.
const DEVICE: &CStr = c"/dev/net/tun";
/// `TUNSETIFF` of `linux/if_tun.h`: `_IOW('T', 202, int)`, though what it reads and writes is a
/// `struct ifreq`.
const SET_INTERFACE: Opcode = 0x4004_54ca;
/// Size of a `struct ifreq`.
const REQUEST_BYTES: usize = 40;
/// Room for the name in it, its zero at the end included (`IFNAMSIZ`); the flags follow.
const NAME_BYTES: usize = 16;

/// Makes a network card with this name in the network namespace of the calling thread. Frames of
/// Ethernet go through the descriptor, each behind a `virtio_net_hdr`, so that checksums and the
/// cutting of large segments can be left to the other side. The card is gone when the last copy of
/// the descriptor is closed.
///
/// # Errors
/// Those of open(2) and of `TUNSETIFF`: no rights, a name that is taken; `InvalidInput` for a name
/// that is empty or too long.
pub fn open(name: &str) -> io::Result<OwnedFd> {
    let mut request = request(name).ok_or(io::ErrorKind::InvalidInput)?;
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    // SAFETY: the kernel reads and writes one `struct ifreq` for this opcode; `request` has its
    // size, any bytes of it are valid before and after, and it lives until the call is over.
    let set = unsafe { Updater::<SET_INTERFACE, [u8; REQUEST_BYTES]>::new(&mut request) };
    // SAFETY: the opcode belongs to the driver of the device that was just opened, and changes
    // nothing else of this process.
    unsafe { rustix::ioctl::ioctl(&device, set) }?;
    Ok(device)
}

fn request(name: &str) -> Option<[u8; REQUEST_BYTES]> {
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as u16;
    let mut request = [0; REQUEST_BYTES];
    if name.is_empty() || name.len() >= NAME_BYTES || name.contains('\0') {
        return None;
    }
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[NAME_BYTES..NAME_BYTES + 2].copy_from_slice(&flags.to_ne_bytes());
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::{UnshareFlags, unshare};

    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        for name in ["", "a-name-of-16-byte", "nul\0"] {
            assert_eq!(
                open(name).map_err(|error| error.kind()).err(),
                Some(io::ErrorKind::InvalidInput),
                "{name}"
            );
        }
    }

    #[test]
    fn a_card_lives_as_long_as_its_descriptor() {
        // In a network namespace of this thread alone.
        if let Err(error) = unshare(UnshareFlags::NEWNET) {
            println!("skipped: no network namespace: {error}");
            return;
        }
        let card = match open("card0") {
            Ok(card) => card,
            Err(error) => {
                println!("skipped: no network cards of software: {error}");
                return;
            }
        };
        let there =
            || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default().contains("card0");
        assert!(there());
        assert!(open("card0").is_err(), "the name is taken");
        drop(card);
        assert!(!there());
    }
}
