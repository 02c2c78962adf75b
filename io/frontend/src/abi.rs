//! The parts of the kernel's FUSE protocol that `polyfuse-kernel` (ABI 7.31) does not name yet.
//!
//! Source of every constant: `include/uapi/linux/fuse.h` of Linux 6.18 (protocol 7.45), whose
//! changelog says which minor version brought it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The newest minor version whose meaning this session knows (`FUSE_NOTIFY_RESEND` came with it).
pub(crate) const MINOR: u32 = 40;
/// The oldest minor version that is served: `FUSE_MAX_PAGES` (Linux 4.20).
pub(crate) const MINOR_MIN: u32 = 28;
/// `fuse_init_in.flags`: the request has `flags2` (7.36).
pub(crate) const FUSE_INIT_EXT: u32 = 1 << 30;
/// `flags2` (bit 39 of both words): the kernel can send again what a dead server had read (7.40).
pub(crate) const FUSE_HAS_RESEND: u32 = 1 << (39 - 32);
/// `flags2` (bit 37 of both words): files may have memory behind them that mmap(2) reaches (7.40).
pub(crate) const FUSE_PASSTHROUGH: u32 = 1 << (37 - 32);
/// How many file systems may lie upon each other behind such a file, which `INIT` has to say:
/// memory is none.
pub(crate) const STACK_DEPTH: u32 = 1;
/// Notification: send again all that was read and never answered (7.40).
pub(crate) const FUSE_NOTIFY_RESEND: u32 = 7;
/// Bit of `unique` in a request that is sent again (7.40).
pub(crate) const FUSE_UNIQUE_RESEND: u64 = 1 << 63;
/// Open flag: writes need not be serialized by the inode's lock (7.39); the kernel keeps to it
/// within the size.
pub(crate) const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
/// Open flag: the memory that `backing_id` of the reply names is behind the file (7.40).
pub(crate) const FOPEN_PASSTHROUGH: u32 = 1 << 7;

/// `struct fuse_init_in` since 7.36; before, the request ends after `flags`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct InitIn {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
    pub(crate) flags2: u32,
    pub(crate) unused: [u32; 11],
}

const _: () = assert!(size_of::<InitIn>() == 64);
const _: () = assert!(size_of::<polyfuse_kernel::fuse_in_header>() == 40);
const _: () = assert!(size_of::<polyfuse_kernel::fuse_init_out>() == 64);
