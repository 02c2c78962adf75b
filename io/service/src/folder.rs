//! Folders of which only the service knows what is in them.

use crate::call::{Call, Reply};
use ::wire::service::{self as wire, Attributes, Behaviour, Entry, OWNER_NONE, Room, XattrChange};
use rustix::io::Errno;

/// The serial number of the folder itself.
pub const ROOT: u32 = 0;

/// The attributes of a node of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Its number: below 2^24, and never given to another node while anybody may know it.
    pub serial: u32,
    /// The node's behaviour.
    pub behaviour: Behaviour,
    /// Whether a request that was lost with its server may be sent to the next one.
    pub idempotent: bool,
    /// Permission bits.
    pub mode: u16,
    /// Names that it has.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// When it changed last: seconds since 1970, and nanoseconds.
    pub changed: (u64, u32),
    /// User and group, or none: whoever owns the mount.
    pub owner: Option<(u32, u32)>,
}

impl Node {
    fn new(serial: u32, behaviour: Behaviour, mode: u16, size: u64) -> Self {
        let links = if behaviour == Behaviour::Folder { 2 } else { 1 };
        Self { serial, behaviour, idempotent: true, mode, links, size, changed: (0, 0), owner: None }
    }

    /// A file of bytes at offsets, readable by all.
    #[must_use]
    pub fn file(serial: u32, size: u64) -> Self {
        Self::new(serial, Behaviour::Random, 0o644, size)
    }

    /// A text, which [`Folder::ask`] answers.
    #[must_use]
    pub fn text(serial: u32) -> Self {
        Self::new(serial, Behaviour::Text, 0o444, 0)
    }

    /// A folder.
    #[must_use]
    pub fn folder(serial: u32) -> Self {
        Self::new(serial, Behaviour::Folder, 0o755, 0)
    }

    /// A symbolic link whose target has so many bytes: of a folder that says
    /// [`crate::File::with_links`].
    #[must_use]
    pub fn symlink(serial: u32, bytes: u64) -> Self {
        Self::new(serial, Behaviour::Symlink, 0o777, bytes)
    }

    pub(crate) fn on_the_wire(&self, root: u32) -> Result<wire::Node, Errno> {
        Ok(wire::Node {
            number: wire::below(root, self.serial).ok_or(Errno::OVERFLOW)?,
            behaviour: self.behaviour,
            idempotent: self.idempotent,
            mode: self.mode & 0o777,
            links: self.links,
            size: self.size,
            changed: self.changed,
            owner: self.owner.unwrap_or((OWNER_NONE, OWNER_NONE)),
        })
    }
}

/// One part of a listing, as it is filled.
pub struct Listing {
    pub(crate) bytes: Vec<u8>,
    pub(crate) most_bytes: usize,
    pub(crate) root: u32,
    pub(crate) fault: Option<Errno>,
}

impl Listing {
    /// Adds an entry; false: this part is full, and the next one is asked for with the place of the
    /// last entry that was added. Places grow, and are never 0.
    pub fn add(&mut self, place: u64, name: &[u8], node: &Node) -> bool {
        let node = match node.on_the_wire(self.root) {
            Ok(node) => node,
            Err(errno) => {
                self.fault = Some(errno);
                return false;
            }
        };
        if self.bytes.len() + wire::ENTRY_BYTES + name.len() > self.most_bytes {
            // A part without an entry would say that the folder ends here.
            self.fault = self.bytes.is_empty().then_some(Errno::INVAL);
            return false;
        }
        Entry { node, place, name }.append(&mut self.bytes);
        true
    }
}

/// The operations of a service on a folder: implement those that it supports, the rest is refused
/// with `EOPNOTSUPP`. Nodes are known by serial numbers of the service's own; [`ROOT`] is the
/// folder itself.
#[allow(unused_variables, reason = "the defaults refuse whatever they are asked")]
pub trait Folder {
    /// The node of this name.
    ///
    /// # Errors
    /// The errno of the caller; also of all below.
    fn lookup(&mut self, call: &mut Call<'_>, folder: u32, name: &[u8]) -> Result<Node, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// Adds the entries whose place is greater than `after`, in the order of their places.
    ///
    /// # Errors
    /// The errno of the caller.
    fn list(
        &mut self,
        call: &mut Call<'_>,
        folder: u32,
        after: u64,
        into: &mut Listing,
    ) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// Returns the node's present attributes.
    ///
    /// # Errors
    /// The errno of the caller; `ESTALE` for a number that is no node's.
    fn stat(&mut self, call: &mut Call<'_>, node: u32) -> Result<Node, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// A file is opened; [`Call::flags`] says how.
    ///
    /// # Errors
    /// The errno of the caller: the file is not open.
    fn open(&mut self, call: &mut Call<'_>, node: u32) -> Result<(), Errno> {
        Ok(())
    }
    /// A file that was opened is closed.
    fn close(&mut self, call: &mut Call<'_>, node: u32) {}
    /// A file that was opened is not any more, because its consumer went away: its frontend's
    /// successor may open it again, with the capsule that was kept. Without this function, it is
    /// closed.
    fn leave(&mut self, call: &mut Call<'_>, node: u32) {
        self.close(call, node);
    }
    /// Bytes; fewer than `size` are the end.
    ///
    /// # Errors
    /// The errno of the caller.
    fn read(&mut self, call: &mut Call<'_>, node: u32, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// How many bytes were written.
    ///
    /// # Errors
    /// The errno of the caller.
    fn write(&mut self, call: &mut Call<'_>, node: u32, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// Makes what was written outlive a power cut.
    ///
    /// # Errors
    /// The errno of the caller.
    fn sync(&mut self, call: &mut Call<'_>, node: u32) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// As [`Folder::sync`], with an answer that may come later ([`Call::later`]): this is what is
    /// called.
    ///
    /// # Errors
    /// The errno of the caller.
    fn sync_later(&mut self, call: &mut Call<'_>, node: u32) -> Result<Reply, Errno> {
        self.sync(call, node).map(Into::into)
    }
    /// Changes attributes, and answers what the node is like then.
    ///
    /// # Errors
    /// The errno of the caller.
    fn set(&mut self, call: &mut Call<'_>, node: u32, attributes: &Attributes) -> Result<Node, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// A line that was written to a node that behaves as a session or a control; an empty one asks
    /// for the text of a text or a control.
    ///
    /// # Errors
    /// The errno of the caller.
    fn ask(&mut self, call: &mut Call<'_>, node: u32, line: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// Makes a file.
    ///
    /// # Errors
    /// `EEXIST` where the name is taken.
    fn create(&mut self, call: &mut Call<'_>, folder: u32, name: &[u8], mode: u32) -> Result<Node, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// Makes a folder.
    ///
    /// # Errors
    /// `EEXIST` where the name is taken.
    fn make_folder(
        &mut self,
        call: &mut Call<'_>,
        folder: u32,
        name: &[u8],
        mode: u32,
    ) -> Result<Node, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// Takes a file's name away.
    ///
    /// # Errors
    /// The errno of the caller.
    fn unlink(&mut self, call: &mut Call<'_>, folder: u32, name: &[u8]) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// Takes an empty folder away.
    ///
    /// # Errors
    /// `ENOTEMPTY`.
    fn remove_folder(&mut self, call: &mut Call<'_>, folder: u32, name: &[u8]) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// Gives what has the name `from` in one folder the name `to` in another or the same. `flags`
    /// are those of renameat2(2).
    ///
    /// # Errors
    /// The errno of the caller.
    fn rename(
        &mut self,
        call: &mut Call<'_>,
        from: (u32, &[u8]),
        to: (u32, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// Gives a node one more name.
    ///
    /// # Errors
    /// The errno of the caller.
    fn link(&mut self, call: &mut Call<'_>, node: u32, folder: u32, name: &[u8]) -> Result<Node, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// Makes a symbolic link. Its target is any path, which the service does not follow.
    ///
    /// # Errors
    /// `EEXIST` where the name is taken; `EPERM` where there are none.
    fn symlink(
        &mut self,
        call: &mut Call<'_>,
        folder: u32,
        name: &[u8],
        target: &[u8],
    ) -> Result<Node, Errno> {
        Err(Errno::PERM)
    }
    /// Returns the target of a symbolic link, of 1 to 4095 bytes.
    ///
    /// # Errors
    /// `EINVAL` for another node.
    fn follow(&mut self, call: &mut Call<'_>, node: u32) -> Result<Vec<u8>, Errno> {
        Err(Errno::INVAL)
    }
    /// Returns how much the tree may hold that the node is in, and how much of that is free: what
    /// df(1) shows.
    ///
    /// # Errors
    /// The errno of the caller.
    fn room(&mut self, call: &mut Call<'_>, node: u32) -> Result<Room, Errno> {
        Ok(Room::default())
    }
    /// Returns the value of an extended attribute: of a folder that says
    /// [`crate::File::with_xattrs`]; also of all below. Names have their namespace.
    ///
    /// # Errors
    /// `ENODATA` where there is none; `EOPNOTSUPP` where the node has none at all, or none of this
    /// namespace.
    fn xattr(&mut self, call: &mut Call<'_>, node: u32, name: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// Returns the names of all extended attributes, each with a NUL behind it.
    ///
    /// # Errors
    /// As of [`Folder::xattr`].
    fn xattrs(&mut self, call: &mut Call<'_>, node: u32) -> Result<Vec<u8>, Errno> {
        Err(Errno::OPNOTSUPP)
    }
    /// Sets or removes an extended attribute.
    ///
    /// # Errors
    /// As of [`Folder::xattr`]; `EEXIST`; `ERANGE` where the value is too long, `ENOSPC` where the
    /// node has too much of them.
    fn set_xattr(&mut self, call: &mut Call<'_>, node: u32, change: &XattrChange<'_>) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
}
