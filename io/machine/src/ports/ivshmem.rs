//! The messages of an ivshmem server to QEMU (`docs/specs/ivshmem-spec.txt` of QEMU): numbers of 64
//! bits, some with a descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use wire::guest::PEER_ID;

/// Version of that protocol.
const VERSION: i64 = 0;
/// The guest's own number.
const OWN_ID: i64 = 0;
/// Stands before the shared memory.
const MEMORY: i64 = -1;

/// Our half of the conversation about one device. That the peer is gone, which a server can say as
/// well, is never said: QEMU (7.2, and later ones) then frees what it will free again with the
/// device, and dies of that.
#[derive(Debug)]
pub(crate) struct Server(OwnedFd);

impl Server {
    /// A conversation in which everything has been said, and QEMU's half of it: the region, what
    /// the guest rings, and what it hears.
    pub fn introduce(
        region: BorrowedFd<'_>,
        rings: [BorrowedFd<'_>; 2],
        hears: Option<[BorrowedFd<'_>; 2]>,
    ) -> io::Result<(Self, OwnedFd)> {
        let (ours, qemus) = sys::descriptors::stream_pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let server = Self(ours);
        server.say(VERSION, None)?;
        server.say(OWN_ID, None)?;
        server.say(MEMORY, Some(region))?;
        for ring in rings {
            server.say(PEER_ID.into(), Some(ring))?;
        }
        for hear in hears.into_iter().flatten() {
            server.say(OWN_ID, Some(hear))?;
        }
        Ok((server, qemus))
    }

    /// Never waits: all that is ever said fits a socket.
    fn say(&self, number: i64, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        sys::descriptors::send_with_descriptors(self.0.as_fd(), &number.to_le_bytes(), descriptor.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_said_in_the_order_that_qemu_wants() {
        let (listener, ringer) = sys::doorbell::pair().unwrap();
        let (ring, hear) = (ringer.as_fd(), listener.as_fd());
        let (server, qemu) = Server::introduce(ring, [ring, ring], Some([hear, hear])).unwrap();
        drop(server);
        let mut heard = Vec::new();
        for _ in 0..7 {
            let mut number = [0; 8];
            let (length, descriptors) =
                sys::descriptors::receive_with_descriptors(&qemu, &mut number, 1).unwrap();
            assert_eq!(length, 8);
            heard.push((i64::from_le_bytes(number), descriptors.len()));
        }
        assert_eq!(heard, [(0, 0), (0, 0), (-1, 1), (1, 1), (1, 1), (0, 1), (0, 1)]);
    }
}
