//! The same tree for clients of 9P2000.L, at a Unix socket (`docs/spec/ninep.md`).
//!
//! Each message becomes the requests that the kernel would have sent for the same system call, and
//! goes into the same core: so the answers are the same. What the kernel does by itself on a mount
//! (permission bits, `..`, errors of names) is done here.
//!
//! One thread serves all connections and never waits but in poll(2). A message that takes several
//! requests is a future, which goes on when the core has answered the last one.

mod calls;
mod connection;
mod locks;
mod permission;
mod questions;
mod server;
mod xattrs;

pub(crate) use server::spawn;

/// Connections at a time; more are closed at once.
pub(crate) const CONNECTIONS_MAX: usize = 16;
/// Fids of a connection; more get `EMFILE`. A program has 1024 descriptors, usually.
pub(crate) const FIDS_MAX: usize = 4096;
/// Extended attributes of a connection that are being set; more get `EMFILE`.
pub(crate) const NEW_XATTRS_MAX: usize = 64;
/// Requests of a connection that are under way; more get `EAGAIN`.
pub(crate) const REQUESTS_MAX: usize = 256;
/// Bytes of answers that a connection may have unread or may have asked for; reads beyond are cut
/// to [`READ_BYTES_MIN`].
pub(crate) const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The lower bound of the size to which a read is cut.
pub(crate) const READ_BYTES_MIN: usize = 4096;
/// Bytes of answers beyond which nothing more is read from a client that does not read.
pub(crate) const UNREAD_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of requests under way beyond which nothing more is read from their client: some thirty of
/// the largest writes.
pub(crate) const HELD_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The longest message that is agreed to: a whole transfer and its head.
pub(crate) const MESSAGE_BYTES_MAX: u32 =
    crate::device::TRANSFER_BYTES_MAX as u32 + wire::ninep::TRANSFER_HEAD_BYTES;
/// The shortest one, and the longest before anything is agreed.
pub(crate) const MESSAGE_BYTES_MIN: u32 = 4096;
/// Folders above a fid.
pub(crate) const DEPTH_MAX: usize = 512;
