//! Extended attributes of a store's nodes: those of users, which the store's own file system keeps.
//!
//! Attributes of the other namespaces mean something to a kernel or to an administrator of this
//! node (capabilities, access lists, labels), so tenants neither see nor set them.

use crate::kind::Kind;
use crate::store::{SLACK_BYTES, Store};
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use wire::service::{MAX_XATTR_ANSWER_BYTES, MAX_XATTR_BYTES, XATTR_NAMESPACE, XattrChange, XattrOperation};

/// Attributes of one node, and the bytes of their names and values together: most.
const XATTRS_MAX: usize = 64;
const XATTRS_BYTES_MAX: usize = 16 * 1024;

fn checked(name: &[u8]) -> Result<CString, Errno> {
    match name.strip_prefix(XATTR_NAMESPACE) {
        None => Err(Errno::OPNOTSUPP),
        Some([]) => Err(Errno::INVAL),
        Some(_) => CString::new(name).map_err(|_| Errno::INVAL),
    }
}

/// The names of users that a node has.
fn names(file: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut bytes = vec![0; MAX_XATTR_ANSWER_BYTES];
    let length = flistxattr(file, &mut bytes[..])?;
    let names = bytes[..length].split(|&byte| byte == 0).filter(|name| name.starts_with(XATTR_NAMESPACE));
    Ok(names.map(<[u8]>::to_vec).collect())
}

fn length(file: &OwnedFd, name: &CString) -> Result<usize, Errno> {
    let nothing: &mut [u8] = &mut [];
    match fgetxattr(file, name.as_c_str(), nothing) {
        Err(Errno::NODATA) => Ok(0),
        other => other,
    }
}

impl Store {
    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`; `EOPNOTSUPP` for other namespaces than that of users, and where the store's file
    /// system has none.
    pub fn xattr(&mut self, serial: u32, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let name = checked(name)?;
        if self.kind(serial)? == Kind::Link {
            return Err(Errno::NODATA);
        }
        let file = self.file_or_folder(serial)?;
        let mut value = vec![0; MAX_XATTR_ANSWER_BYTES];
        let length = fgetxattr(&*file, name.as_c_str(), &mut value[..])?;
        value.truncate(length);
        Ok(value)
    }

    /// Returns the names of all extended attributes, each with a NUL behind it.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the store's file system has none.
    pub fn xattrs(&mut self, serial: u32) -> Result<Vec<u8>, Errno> {
        if self.kind(serial)? == Kind::Link {
            return Ok(Vec::new());
        }
        let file = self.file_or_folder(serial)?;
        Ok(names(&file)?.into_iter().flat_map(|name| [name, vec![0]].concat()).collect())
    }

    /// Sets or removes an extended attribute.
    ///
    /// # Errors
    /// `EOPNOTSUPP` as of [`Store::xattr`]; `EPERM` for a symbolic link; `ERANGE` for a value that
    /// is too long, `ENOSPC` where the node has too much, `EDQUOT` where the tree has; `EEXIST`,
    /// `ENODATA`.
    pub fn set_xattr(&mut self, serial: u32, change: &XattrChange<'_>) -> Result<(), Errno> {
        let name = checked(change.name)?;
        if self.kind(serial)? == Kind::Link {
            return Err(Errno::PERM);
        }
        let file = self.file_or_folder(serial)?;
        let flags = match change.operation {
            XattrOperation::Set => XattrFlags::empty(),
            XattrOperation::Create => XattrFlags::CREATE,
            XattrOperation::Replace => XattrFlags::REPLACE,
            XattrOperation::Remove => {
                fremovexattr(&*file, name.as_c_str())?;
                return self.xattrs_changed(serial, &file);
            }
        };
        self.room_for_xattr(&file, &name, change.value)?;
        fsetxattr(&*file, name.as_c_str(), change.value, flags)?;
        self.xattrs_changed(serial, &file)
    }

    fn room_for_xattr(&self, file: &OwnedFd, name: &CString, value: &[u8]) -> Result<(), Errno> {
        if value.len() > MAX_XATTR_BYTES {
            return Err(Errno::RANGE);
        }
        let mut count = 1;
        let mut bytes = name.as_bytes().len() + value.len();
        for other in names(file)?.into_iter().filter(|other| other[..] != *name.as_bytes()) {
            let other = CString::new(other).map_err(|_| Errno::IO)?;
            count += 1;
            bytes += other.as_bytes().len() + length(file, &other)?;
        }
        if count > XATTRS_MAX || bytes > XATTRS_BYTES_MAX {
            return Err(Errno::NOSPC);
        }
        // What a file system lays beside an inode takes a block of its own.
        self.room.for_bytes(SLACK_BYTES)
    }

    /// Counts what the node takes now. What the root takes is nobody's.
    fn xattrs_changed(&mut self, serial: u32, file: &OwnedFd) -> Result<(), Errno> {
        if serial == service::ROOT { Ok(()) } else { self.measure(serial, file) }
    }
}
