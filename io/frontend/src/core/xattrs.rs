//! Extended attributes of nodes that only a backend knows; nothing else has any.

use polyfuse_kernel as fuse;
use rustix::io::Errno;
use wire::service::{Kind, MAX_XATTR_BYTES, XATTR_NAMESPACE, XattrChange, XattrOperation, is_xattr_name};
use zerocopy::IntoBytes;

use super::names::{name, take};
use super::nodes::{NodeAsk, Then};
use super::{Call, Core};
use crate::host::Host;
use crate::tree::Node;

/// Flags of setxattr(2).
const CREATE: u32 = 1;
const REPLACE: u32 = 2;

fn check(name: &[u8]) -> Result<(), Errno> {
    // Programs ask for labels and access lists of every file: no server is.
    if !name.starts_with(XATTR_NAMESPACE) {
        return Err(Errno::OPNOTSUPP);
    }
    let is_name = is_xattr_name(name) && name.len() > XATTR_NAMESPACE.len();
    if is_name { Ok(()) } else { Err(Errno::INVAL) }
}

impl<H: Host> Core<H> {
    /// Where a node's attributes are asked for. Not `ENOSYS` where there are none: the kernel would
    /// ask for none in the whole mount any more.
    fn xattrs_at(&self, node: Node) -> Result<(usize, u32), Errno> {
        let at = match node {
            Node::File(service, file) if node.is_of_backend() => (service, file),
            _ => self.tree.asked_at(node).ok_or(Errno::OPNOTSUPP)?,
        };
        if self.tree.has_xattrs(at.0) { Ok(at) } else { Err(Errno::OPNOTSUPP) }
    }

    pub(super) fn get_xattr(&mut self, call: Call, node: Node, body: &[u8]) -> Result<(), Errno> {
        let (get, rest) = take::<fuse::fuse_getxattr_in>(body)?;
        let name = name(rest);
        check(name)?;
        let (service, file) = self.xattrs_at(node)?;
        self.may_see((service, file))?;
        let then = Then::Xattr { most: get.size, is_list: false };
        self.ask_node(call, NodeAsk { service, kind: Kind::GetXattr, file, payload: name.to_vec(), then });
        Ok(())
    }

    pub(super) fn list_xattrs(&mut self, call: Call, node: Node, body: &[u8]) -> Result<(), Errno> {
        let (get, _) = take::<fuse::fuse_getxattr_in>(body)?;
        let (service, file) = self.xattrs_at(node)?;
        self.may_see((service, file))?;
        let then = Then::Xattr { most: get.size, is_list: true };
        self.ask_node(call, NodeAsk { service, kind: Kind::ListXattrs, file, payload: Vec::new(), then });
        Ok(())
    }

    pub(super) fn answer_xattr(&mut self, call: Call, most: u32, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        match most {
            0 => {
                let out = fuse::fuse_getxattr_out { size: length, padding: 0 };
                self.answer(call, out.as_bytes());
            }
            _ if length > most => self.refuse(call, Errno::RANGE),
            _ => self.answer(call, bytes),
        }
    }

    pub(super) fn set_xattr(&mut self, call: Call, node: Node, body: &[u8]) -> Result<(), Errno> {
        let (set, rest) = take::<fuse::fuse_setxattr_in>(body)?;
        let name = name(rest);
        let value = rest.get(name.len() + 1..).unwrap_or_default();
        let value = value.get(..set.size as usize).ok_or(Errno::INVAL)?;
        let operation = match set.flags {
            0 => XattrOperation::Set,
            CREATE => XattrOperation::Create,
            REPLACE => XattrOperation::Replace,
            _ => return Err(Errno::INVAL),
        };
        self.change_xattr(call, node, &XattrChange { operation, name, value })
    }

    pub(super) fn remove_xattr(&mut self, call: Call, node: Node, name: &[u8]) -> Result<(), Errno> {
        self.change_xattr(call, node, &XattrChange { operation: XattrOperation::Remove, name, value: b"" })
    }

    fn change_xattr(&mut self, call: Call, node: Node, change: &XattrChange<'_>) -> Result<(), Errno> {
        check(change.name)?;
        let (service, file) = self.xattrs_at(node)?;
        self.may_change((service, file))?;
        if change.value.len() > MAX_XATTR_BYTES {
            return Err(Errno::RANGE);
        }
        let payload = change.encode();
        self.ask_node(call, NodeAsk { service, kind: Kind::SetXattr, file, payload, then: Then::Done });
        Ok(())
    }
}
