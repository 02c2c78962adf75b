//! Locks by 9P: those of fcntl(2), whose owner is a process of the client.

use polyfuse_kernel as fuse;
use rustix::io::Errno;
use wire::ninep::{RecordLock, Reply, lock};
use zerocopy::{FromBytes, IntoBytes};

use super::calls::{ACCESS, Calls, READ_ONLY, WRITE_ONLY};
use super::connection::Opened;

/// The last byte that a file can have.
const LAST: u64 = i64::MAX as u64;

impl Calls<'_> {
    /// `Tlock`. One that waits is answered when it is granted, or given up by `Tflush`.
    pub(super) async fn lock(&self, fid: u32, flags: u32, wanted: &RecordLock<'_>) -> Result<Reply, Errno> {
        let (node, asked, open_flags) = self.wanted(fid, wanted)?;
        match (wanted.mode, open_flags & ACCESS) {
            (lock::EXCLUSIVE, READ_ONLY) | (lock::SHARED, WRITE_ONLY) => return Err(Errno::BADF),
            _ => {}
        }
        let opcode = if flags & lock::WAIT != 0 { fuse::FUSE_SETLKW } else { fuse::FUSE_SETLK };
        match self.ask(opcode, node, &[asked.as_bytes()]).await {
            Ok(_) => Ok(Reply::Lock(lock::DONE)),
            Err(Errno::AGAIN) => Ok(Reply::Lock(lock::HELD)),
            Err(errno) => Err(errno),
        }
    }

    /// `Tgetlock`: the lock that is in the way of this one.
    pub(super) async fn getlock(&self, fid: u32, wanted: &RecordLock<'_>) -> Result<Reply, Errno> {
        let (node, asked, _) = self.wanted(fid, wanted)?;
        let answer = self.ask(fuse::FUSE_GETLK, node, &[asked.as_bytes()]).await?;
        let (found, _) = fuse::fuse_lk_out::read_from_prefix(&answer).map_err(|_| Errno::IO)?;
        let fuse::fuse_file_lock { start, end, typ, pid } = found.lk;
        if typ == u32::from(lock::NONE) {
            let RecordLock { start, length, process, .. } = *wanted;
            return Ok(Reply::Getlock { mode: lock::NONE, start, length, process });
        }
        let mode = if typ == u32::from(lock::EXCLUSIVE) { lock::EXCLUSIVE } else { lock::SHARED };
        let length = if end >= LAST { 0 } else { end.saturating_sub(start) + 1 };
        Ok(Reply::Getlock { mode, start, length, process: pid })
    }

    /// The question of the kernel for a lock, and its node; and the flags of the open file.
    fn wanted(&self, fid: u32, wanted: &RecordLock<'_>) -> Result<(u64, fuse::fuse_lk_in, u32), Errno> {
        let fid = self.connection.fid(fid)?;
        let Some(Opened::File(fh, flags)) = fid.opened else { return Err(Errno::BADF) };
        let last = match wanted.length {
            0 => LAST,
            length => wanted.start.checked_add(length - 1).ok_or(Errno::OVERFLOW)?,
        };
        if wanted.mode > lock::NONE || wanted.start > LAST {
            return Err(Errno::INVAL);
        }
        let owner = self.connection.lock_owner(wanted.process, wanted.client);
        let typ = u32::from(wanted.mode);
        let lk = fuse::fuse_file_lock { start: wanted.start, end: last.min(LAST), typ, pid: wanted.process };
        let asked = fuse::fuse_lk_in { fh, owner, lk, ..Default::default() };
        Ok((fid.place.qid.path, asked, flags))
    }
}
