//! Extended attributes by 9P: a fid that is read as a value, and one that is written to and sets
//! the value when it is given up.

use std::cell::RefCell;
use std::rc::Rc;

use polyfuse_kernel as fuse;
use rustix::io::Errno;
use wire::ninep::Reply;
use wire::service::{MAX_XATTR_ANSWER_BYTES, MAX_XATTR_BYTES, is_xattr_name};
use zerocopy::IntoBytes;

use super::NEW_XATTRS_MAX;
use super::calls::Calls;
use super::connection::Opened;
use super::permission::{READ, WRITE};

/// Flag of setxattr(2). With it and no bytes, the kernel's client asks for a removal.
const REPLACE: u32 = 2;

/// An extended attribute that is being set.
#[derive(Debug)]
pub(super) struct NewXattr {
    name: Vec<u8>,
    flags: u32,
    bytes: usize,
    value: RefCell<Vec<u8>>,
}

impl NewXattr {
    /// Takes the next bytes of the value.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<Reply, Errno> {
        let mut value = self.value.borrow_mut();
        if offset != value.len() as u64 {
            return Err(Errno::INVAL);
        }
        if value.len() + data.len() > self.bytes {
            return Err(Errno::NOSPC);
        }
        value.extend_from_slice(data);
        Ok(Reply::Write(data.len() as u32))
    }
}

impl Calls<'_> {
    async fn xattr(&self, node: u64, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let size = MAX_XATTR_ANSWER_BYTES as u32;
        let get = fuse::fuse_getxattr_in { size, padding: 0 };
        match name {
            b"" => self.ask(fuse::FUSE_LISTXATTR, node, &[get.as_bytes()]).await,
            _ => self.ask(fuse::FUSE_GETXATTR, node, &[get.as_bytes(), name, b"\0"]).await,
        }
    }

    /// `Txattrwalk`: a new fid that is read as the value, or as the list of names.
    pub(super) async fn walk_to_xattr(&self, fid: u32, new: u32, name: &[u8]) -> Result<Reply, Errno> {
        let place = self.connection.fid(fid)?.place;
        self.connection.check_new(new)?;
        if !name.is_empty() && !is_xattr_name(name) {
            return Err(Errno::INVAL);
        }
        let node = place.qid.path;
        if !name.is_empty() {
            self.connection.peer.may(&self.attributes(node).await?, READ)?;
        }
        let size = self.xattr(node, name).await?.len() as u64;
        self.connection.put(new, Rc::clone(&place), None)?;
        let serial = self.connection.fid(new)?.serial;
        self.connection.open(new, serial, place, Opened::Xattr(name.into()))?;
        Ok(Reply::XattrWalk(size))
    }

    /// A part of a value, as it is now: nothing is kept for fids that are not read.
    pub(super) async fn read_xattr(&self, node: u64, name: &[u8], offset: u64) -> Result<Reply, Errno> {
        let value = self.xattr(node, name).await?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(value.len());
        let to = from.saturating_add(self.job.promised).min(value.len());
        Ok(Reply::Read(value.get(from..to).unwrap_or_default().to_vec()))
    }

    /// `Txattrcreate`: the fid takes the value from now on.
    pub(super) async fn create_xattr(
        &self,
        number: u32,
        name: &[u8],
        (size, flags): (u64, u32),
    ) -> Result<Reply, Errno> {
        let fid = self.connection.fid(number)?;
        if fid.opened.is_some() || !is_xattr_name(name) {
            return Err(Errno::INVAL);
        }
        let bytes = usize::try_from(size).ok().filter(|&size| size <= MAX_XATTR_BYTES).ok_or(Errno::RANGE)?;
        self.connection.peer.may(&self.attributes(fid.place.qid.path).await?, WRITE)?;
        if self.connection.new_xattrs() >= NEW_XATTRS_MAX {
            return Err(Errno::MFILE);
        }
        let xattr = NewXattr { name: name.to_vec(), flags, bytes, value: RefCell::default() };
        self.connection.open(number, fid.serial, fid.place, Opened::NewXattr(Rc::new(xattr)))?;
        Ok(Reply::XattrCreate)
    }

    /// Gives a fid up; an attribute that was written to it is set.
    pub(super) async fn clunk(&self, number: u32) -> Result<Reply, Errno> {
        let fid = self.connection.fid(number)?;
        self.connection.clunk(number)?;
        if let Some(Opened::NewXattr(xattr)) = fid.opened {
            self.set_xattr(fid.place.qid.path, &xattr).await?;
        }
        Ok(Reply::Clunk)
    }

    async fn set_xattr(&self, node: u64, xattr: &NewXattr) -> Result<(), Errno> {
        let NewXattr { name, flags, bytes, value } = xattr;
        let value = value.take();
        if value.len() != *bytes {
            return Err(Errno::INVAL);
        }
        if value.is_empty() && *flags == REPLACE {
            return self.ask(fuse::FUSE_REMOVEXATTR, node, &[name, b"\0"]).await.map(drop);
        }
        let set = fuse::fuse_setxattr_in { size: value.len() as u32, flags: *flags };
        self.ask(fuse::FUSE_SETXATTR, node, &[set.as_bytes(), name, b"\0", &value]).await.map(drop)
    }
}
