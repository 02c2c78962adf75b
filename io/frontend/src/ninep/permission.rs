//! The checks that the kernel makes on a mount before it asks: the permission bits
//! (path_resolution(7)).
//!
//! No capability counts, because a socket does not tell of them; a domain's root has none that
//! counts on files, unless its topology gives it one. Nor do supplementary groups.

use polyfuse_kernel::fuse_attr;
use rustix::io::Errno;

/// The credentials of a connected client, from `SO_PEERCRED`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) pid: u32,
}

pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const SEARCH: u32 = 1;

/// The type bits of a mode, and those of a folder.
const TYPE: u32 = 0o170_000;
const FOLDER: u32 = 0o040_000;

pub(super) fn is_folder(attr: &fuse_attr) -> bool {
    attr.mode & TYPE == FOLDER
}

impl Peer {
    pub(super) fn owns(self, attr: &fuse_attr) -> bool {
        self.uid == attr.uid
    }

    pub(super) fn may(self, attr: &fuse_attr, wanted: u32) -> Result<(), Errno> {
        let shift = match (self.owns(attr), self.gid == attr.gid) {
            (true, _) => 6,
            (false, true) => 3,
            (false, false) => 0,
        };
        if attr.mode >> shift & wanted == wanted { Ok(()) } else { Err(Errno::ACCESS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_class_that_fits_decides() {
        let attr = fuse_attr { mode: 0o100_204, uid: 1, gid: 2, ..fuse_attr::default() };
        let may = |uid, gid, wanted| Peer { uid, gid, pid: 0 }.may(&attr, wanted).is_ok();
        assert!(may(1, 9, WRITE) && !may(1, 9, READ));
        assert!(!may(9, 2, READ) && !may(9, 2, WRITE));
        assert!(may(9, 9, READ) && !may(9, 9, WRITE) && !may(9, 9, SEARCH));
        assert!(!may(0, 0, WRITE));
    }
}
