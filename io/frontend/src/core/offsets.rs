//! Bytes at offsets: what is asked of a backend, and what its answers are worth.

use polyfuse_kernel as fuse;
use wire::service::{Kind, MAX_TRANSFER_BYTES, Range};
use zerocopy::IntoBytes;

use super::backend::Violation;
use super::parked::Op;

/// Returns the message to the backend for a parked call.
pub(super) fn message(op: &Op) -> Option<(Kind, Vec<u8>)> {
    Some(match op {
        Op::ReadAt { offset, size } => {
            (Kind::ReadAt, Range { offset: *offset, bytes: *size as u32 }.encode().to_vec())
        }
        Op::WriteAt { offset, data, done } => {
            let rest = data.get(*done..).unwrap_or_default();
            let piece = rest.get(..MAX_TRANSFER_BYTES).unwrap_or(rest);
            let at = offset.saturating_add(*done as u64);
            (Kind::WriteAt, [&at.to_le_bytes(), piece].concat())
        }
        Op::Sync => (Kind::Sync, Vec::new()),
        _ => return None,
    })
}

/// The reply to the kernel, or `None` where more of a long write has to go.
pub(super) fn answered(op: &mut Op, answer: &[u8]) -> Result<Option<Vec<u8>>, Violation> {
    match op {
        Op::ReadAt { size, .. } if answer.len() > *size => {
            Err(Violation::Offset { room: *size, found: answer.len() })
        }
        Op::ReadAt { .. } => Ok(Some(answer.to_vec())),
        Op::WriteAt { data, done, .. } => {
            let left = data.len() - *done;
            let sent = left.min(MAX_TRANSFER_BYTES);
            let count = answer.try_into().map_or(usize::MAX, |bytes| u32::from_le_bytes(bytes) as usize);
            if count > sent {
                return Err(Violation::Offset { room: sent, found: count });
            }
            *done += count;
            if count == sent && count < left {
                return Ok(None);
            }
            let out = fuse::fuse_write_out { size: *done as u32, padding: 0 };
            Ok(Some(out.as_bytes().to_vec()))
        }
        _ => Ok(Some(Vec::new())),
    }
}
