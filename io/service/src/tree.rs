//! A folder's answers, as bytes for the consumer that asked.

use crate::call::{Call, Reply};
use crate::folder::{Folder, Listing, Node, ROOT};
use rustix::io::Errno;
use wire::service::{
    Attributes, Change, DecodeError, Kind, List, MAX_ANSWER_BYTES, MAX_NAME_BYTES, Operation, Range,
    SERIAL_BITS, XattrChange, below, is_xattr_name, offset_of, root_of,
};

/// Most bytes of one part of a listing, whatever is asked for: some hundreds of names, and the next
/// part is asked for.
const MAX_LISTING_BYTES: usize = 60 * 1024;
/// The access mode in flags of open(2), and its values.
const ACCESS: u32 = 3;
const READ_ONLY: u32 = 0;
const WRITE_ONLY: u32 = 1;

/// The node that a number means below an exported folder.
pub fn serial_of(number: u32) -> u32 {
    if root_of(number) == number { ROOT } else { number & ((1 << SERIAL_BITS) - 1) }
}

/// Answers what is asked about a tree in no session.
pub fn ask(
    folder: &mut dyn Folder,
    call: &mut Call<'_>,
    (root, node): (u32, u32),
    kind: Kind,
    payload: &[u8],
) -> Result<Vec<u8>, Errno> {
    let said = |node: Node| node.on_the_wire(root).map(|node| node.encode().to_vec());
    match kind {
        Kind::Lookup if payload.len() > MAX_NAME_BYTES => Err(Errno::NAMETOOLONG),
        Kind::Lookup => said(folder.lookup(call, node, payload)?),
        Kind::Stat => said(folder.stat(call, node)?),
        Kind::Follow => folder.follow(call, node),
        Kind::Room => folder.room(call, node).map(|room| room.encode().to_vec()),
        Kind::GetXattr if !is_xattr_name(payload) => Err(Errno::INVAL),
        Kind::GetXattr => folder.xattr(call, node, payload),
        Kind::ListXattrs => folder.xattrs(call, node),
        Kind::SetXattr => {
            let change = XattrChange::decode(payload).map_err(|_| Errno::INVAL)?;
            folder.set_xattr(call, node, &change).map(|()| Vec::new())
        }
        Kind::Set => {
            let attributes = Attributes::decode(payload).map_err(|_| Errno::INVAL)?;
            said(folder.set(call, node, &attributes)?)
        }
        Kind::List => {
            let list = List::decode(payload).map_err(|_| Errno::INVAL)?;
            let most_bytes = (list.bytes as usize).min(MAX_LISTING_BYTES);
            let mut listing = Listing { bytes: Vec::new(), most_bytes, root, fault: None };
            folder.list(call, node, list.after, &mut listing)?;
            listing.fault.map_or(Ok(listing.bytes), Err)
        }
        Kind::Change => {
            let change = Change::decode(payload).map_err(|error| match error {
                DecodeError::LongName(_) => Errno::NAMETOOLONG,
                _ => Errno::INVAL,
            })?;
            changed(folder, call, (root, node), &change)
        }
        _ => Err(Errno::OPNOTSUPP),
    }
}

fn changed(
    folder: &mut dyn Folder,
    call: &mut Call<'_>,
    (root, node): (u32, u32),
    change: &Change<'_>,
) -> Result<Vec<u8>, Errno> {
    let other = || {
        let is_below = change.other == root || below(root, serial_of(change.other)) == Some(change.other);
        if is_below { Ok(serial_of(change.other)) } else { Err(Errno::XDEV) }
    };
    let mode = change.mode & 0o777;
    let made = match change.operation {
        Operation::Create => Some(folder.create(call, node, change.name, mode)?),
        Operation::MakeFolder => Some(folder.make_folder(call, node, change.name, mode)?),
        Operation::Link => Some(folder.link(call, other()?, node, change.name)?),
        Operation::Symlink => Some(folder.symlink(call, node, change.name, change.new_name)?),
        Operation::Unlink => folder.unlink(call, node, change.name).map(|()| None)?,
        Operation::RemoveFolder => folder.remove_folder(call, node, change.name).map(|()| None)?,
        Operation::Rename => {
            let to = (other()?, change.new_name);
            folder.rename(call, (node, change.name), to, change.mode).map(|()| None)?
        }
    };
    made.map_or(Ok(Vec::new()), |node| Ok(node.on_the_wire(root)?.encode().to_vec()))
}

/// A request for bytes of an open file: bytes at an offset.
pub enum Bytes<'p> {
    Read { offset: u64, size: usize },
    Write { offset: u64, data: &'p [u8] },
    Sync,
}

impl<'p> Bytes<'p> {
    /// Decodes a request, if the file was opened for it.
    pub fn decode(kind: Kind, flags: u32, payload: &'p [u8]) -> Result<Self, Errno> {
        match kind {
            Kind::ReadAt => {
                let range = Range::decode(payload).map_err(|_| Errno::INVAL)?;
                if flags & ACCESS == WRITE_ONLY {
                    return Err(Errno::BADF);
                }
                let size = usize::try_from(range.bytes).map_err(|_| Errno::MSGSIZE)?;
                if size > MAX_ANSWER_BYTES {
                    Err(Errno::MSGSIZE)
                } else {
                    Ok(Self::Read { offset: range.offset, size })
                }
            }
            Kind::WriteAt => {
                let (offset, data) = offset_of(payload).map_err(|_| Errno::INVAL)?;
                if flags & ACCESS == READ_ONLY { Err(Errno::BADF) } else { Ok(Self::Write { offset, data }) }
            }
            Kind::Sync => Ok(Self::Sync),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Asks a folder.
    pub fn ask(self, folder: &mut dyn Folder, call: &mut Call<'_>, node: u32) -> Result<Reply, Errno> {
        match self {
            Self::Read { offset, size } => {
                let mut bytes = folder.read(call, node, offset, size)?;
                bytes.truncate(size);
                Ok(bytes.into())
            }
            Self::Write { offset, data } => Ok(written(folder.write(call, node, offset, data)?, data).into()),
            Self::Sync => folder.sync_later(call, node),
        }
    }
}

/// The answer to a write: how many of the bytes were written.
pub fn written(count: usize, data: &[u8]) -> Vec<u8> {
    u32::try_from(count.min(data.len())).unwrap_or(u32::MAX).to_le_bytes().to_vec()
}

/// Whether a file was opened only to be written to.
pub fn is_write_only(flags: u32) -> bool {
    flags & ACCESS == WRITE_ONLY
}
