//! Names and nodes that only a backend knows: each call about them is a question to it, and waits
//! for the answer.
//!
//! The kernel keeps nothing of them (entries and attributes are valid for no time), so a change
//! shows at once, and a number is all that the frontend, or its successor, has to know of a node.

use polyfuse_kernel as fuse;
use rustix::io::Errno;
use wire::service::{
    Attributes, Behaviour, Change, DecodeError, Entry, Kind, List, MAX_NAME_BYTES, MAX_TARGET_BYTES,
    MAX_XATTR_ANSWER_BYTES, Node as Described, Operation, Room, SESSION_NONE, are_xattr_names, is_target,
    root_of,
};
use zerocopy::IntoBytes;

use super::backend::Violation;
use super::names::take;
use super::parked::Op;
use super::{Call, Core, DOWN_WAIT_NS, Pending, Purpose};
use crate::device::TRANSFER_BYTES_MAX;
use crate::host::{Host, Outgoing};
use crate::tree::{Node, ROOT};

/// The type bits of a mode, and those of a plain file.
const TYPE: u32 = 0o170_000;
const FILE: u32 = 0o100_000;

/// Types of entries, from readdir(3).
pub(super) const TYPE_FOLDER: u32 = 4;
pub(super) const TYPE_FILE: u32 = 8;
const TYPE_LINK: u32 = 10;
/// Bytes of a block, as df(1) counts.
const BLOCK_BYTES: u32 = 4096;

/// The purpose of a backend's answer.
#[derive(Debug, Clone)]
pub(super) enum Then {
    /// A name is looked up, or was made.
    Entry,
    /// Attributes are shown.
    Attributes,
    /// A file is opened with these flags.
    Open(u32),
    /// A folder is listed.
    Listing { plus: bool, most: usize, before: Vec<u8>, first: u64 },
    /// The target of a symbolic link is told.
    Target,
    /// The room of a tree is told.
    Room,
    /// The value of an extended attribute is told, or their names: so many bytes at the most; 0
    /// asks for how many there are.
    Xattr { most: u32, is_list: bool },
    /// Something was done that nobody wants to know more of.
    Done,
}

/// A question to a backend about a name or a node.
#[derive(Debug)]
pub(super) struct NodeAsk {
    pub(super) service: usize,
    pub(super) kind: Kind,
    pub(super) file: u32,
    pub(super) payload: Vec<u8>,
    pub(super) then: Then,
}

impl<H: Host> Core<H> {
    /// Keeps a call until the backend has answered its question.
    pub(super) fn ask_node(&mut self, call: Call, ask: NodeAsk) {
        let deadline = call.arrived.saturating_add(DOWN_WAIT_NS);
        let service = ask.service;
        if self.park(call, None, Op::Node(Box::new(ask)), deadline) {
            self.ask_nodes(service);
        }
    }

    /// Sends the questions that wait for this backend, if it is there.
    pub(super) fn ask_nodes(&mut self, service: usize) {
        if !self.is_up(service) {
            return;
        }
        let mut questions = Vec::new();
        for (&key, parked) in &mut self.parked {
            if let (Op::Node(ask), None) = (&parked.op, parked.tag)
                && ask.service == service
            {
                self.last_tag += 1;
                let tag = self.last_tag;
                parked.tag = Some(tag);
                let (fh, purpose, asked) = (SESSION_NONE, Purpose::Node(key), parked.call.arrived);
                let pending = Pending { service, fh, purpose, asked };
                self.pending.insert(tag, pending);
                let (kind, file, payload) = (ask.kind, ask.file, ask.payload.clone());
                questions.push(Outgoing::Tree { kind, session: SESSION_NONE, tag, file, payload });
            }
        }
        for question in questions {
            self.host.send(service, question);
        }
    }

    /// The backend that had a question is lost: what changes nothing is asked again.
    pub(super) fn lose_node(&mut self, key: u64, deadline: u64, untouched: bool) {
        let Some(parked) = self.parked.get_mut(&key) else { return };
        parked.tag = None;
        let changes = matches!(&parked.op, Op::Node(ask) if matches!(ask.kind, Kind::Change | Kind::Set | Kind::SetXattr));
        if changes && !untouched {
            if let Some(parked) = self.unpark(key) {
                self.refuse(parked.call, Errno::CONNRESET);
            }
            return;
        }
        parked.deadline = deadline;
        self.ticking = true;
    }

    /// Fails the questions that have waited too long for a backend.
    pub(super) fn expire_nodes(&mut self, service: usize, now: u64) {
        let late = self.parked.iter().filter(|(_, parked)| {
            parked.tag.is_none()
                && parked.deadline <= now
                && matches!(&parked.op, Op::Node(ask) if ask.service == service)
        });
        let late: Vec<u64> = late.map(|(&key, _)| key).collect();
        for key in late {
            if let Some(parked) = self.unpark(key) {
                self.counters.waited_in_vain += 1;
                self.refuse(parked.call, Errno::HOSTDOWN);
            }
        }
    }

    /// An answer about a name or a node.
    pub(super) fn node_answered(&mut self, service: usize, key: u64, result: Result<&[u8], Errno>) {
        let Some(mut parked) = self.unpark(key) else { return };
        parked.tag = None;
        let call = parked.call;
        let Op::Node(ask) = parked.op else { return };
        let answered = match result {
            Err(errno) => return self.refuse(call, errno),
            Ok(bytes) => self.use_answer(call, &ask, bytes),
        };
        if let Err(violation) = answered {
            self.refuse(call, Errno::IO);
            self.violated(service, &violation);
        }
    }

    fn use_answer(&mut self, call: Call, ask: &NodeAsk, bytes: &[u8]) -> Result<(), Violation> {
        let node = || {
            let node = Described::decode(bytes)?;
            if root_of(node.number) == root_of(ask.file) { Ok(node) } else { Err(Violation::Folder) }
        };
        match &ask.then {
            Then::Done => self.answer(call, &[]),
            Then::Entry => {
                let node = node()?;
                self.aim_found(ask.service, (ask.kind, ask.file), &ask.payload, node.number);
                let entry = self.described_entry(ask.service, &node);
                self.answer(call, entry.as_bytes());
            }
            Then::Attributes => {
                let attr = self.tree.described(ask.service, &node()?);
                let out = fuse::fuse_attr_out { attr_valid: 0, attr_valid_nsec: 0, dummy: 0, attr };
                self.answer(call, out.as_bytes());
            }
            Then::Open(flags) => {
                let node = node()?;
                if let Err(errno) = self.open_described(call, ask.service, &node, *flags) {
                    self.refuse(call, errno);
                }
            }
            Then::Target => {
                if !is_target(bytes) {
                    return Err(DecodeError::Payload("target").into());
                }
                self.answer(call, bytes);
            }
            Then::Room => {
                let st = room(&Room::decode(bytes)?);
                self.answer(call, fuse::fuse_statfs_out { st }.as_bytes());
            }
            Then::Xattr { most, is_list } => {
                if *is_list && !are_xattr_names(bytes) || bytes.len() > MAX_XATTR_ANSWER_BYTES {
                    return Err(DecodeError::Payload("extended attribute").into());
                }
                self.answer_xattr(call, *most, bytes);
            }
            Then::Listing { .. } => {
                let listing = self.listing(ask, bytes)?;
                self.answer(call, &listing);
            }
        }
        Ok(())
    }

    fn described_entry(&self, service: usize, node: &Described) -> fuse::fuse_entry_out {
        fuse::fuse_entry_out {
            nodeid: Node::File(service, node.number).number(),
            attr: self.tree.described(service, node),
            ..Default::default()
        }
    }

    /// A part of a listing, as the kernel wants it: what the frontend has put before it, and what
    /// fits of the entries.
    fn listing(&self, ask: &NodeAsk, mut bytes: &[u8]) -> Result<Vec<u8>, Violation> {
        let Then::Listing { plus, most, before, first } = &ask.then else { return Ok(Vec::new()) };
        let mut listing = before.clone();
        while let Some(entry) = Entry::take(&mut bytes)? {
            if root_of(entry.node.number) != root_of(ask.file) {
                return Err(Violation::Folder);
            }
            let known = plus.then(|| self.described_entry(ask.service, &entry.node));
            let number = Node::File(ask.service, entry.node.number).number();
            let typ = match entry.node.behaviour {
                Behaviour::Folder => TYPE_FOLDER,
                Behaviour::Symlink => TYPE_LINK,
                _ => TYPE_FILE,
            };
            let place = first.saturating_add(entry.place);
            if !append(&mut listing, *most, known, (number, typ), place, entry.name) {
                break;
            }
        }
        Ok(listing)
    }

    /// A look-up in a folder that only the backend knows.
    pub(super) fn lookup_described(
        &mut self,
        call: Call,
        (service, file): (usize, u32),
        name: &[u8],
    ) -> Result<(), Errno> {
        if name.len() > MAX_NAME_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        self.may_see((service, file))?;
        let ask = NodeAsk { service, kind: Kind::Lookup, file, payload: name.to_vec(), then: Then::Entry };
        self.ask_node(call, ask);
        Ok(())
    }

    pub(super) fn may_see(&self, at: (usize, u32)) -> Result<(), Errno> {
        match self.tree.rights(at) {
            Some((true, _)) => Ok(()),
            Some((false, _)) => Err(Errno::ACCESS),
            None => Err(Errno::STALE),
        }
    }

    pub(super) fn may_change(&self, at: (usize, u32)) -> Result<(), Errno> {
        match self.tree.rights(at) {
            Some((_, Some(true))) => Ok(()),
            Some((_, Some(false))) => Err(Errno::ACCESS),
            Some((_, None)) => Err(Errno::ROFS),
            None => Err(Errno::STALE),
        }
    }

    /// Answers with the attributes of a node that only the backend knows.
    pub(super) fn stat_described(
        &mut self,
        call: Call,
        (service, file): (usize, u32),
        then: Then,
    ) -> Result<(), Errno> {
        self.may_see((service, file))?;
        self.ask_node(call, NodeAsk { service, kind: Kind::Stat, file, payload: Vec::new(), then });
        Ok(())
    }

    /// Changes attributes of a node that only the backend knows.
    pub(super) fn set_described(
        &mut self,
        call: Call,
        (service, file): (usize, u32),
        wanted: &fuse::fuse_setattr_in,
    ) -> Result<(), Errno> {
        if wanted.valid & (fuse::FATTR_UID | fuse::FATTR_GID) != 0 {
            return Err(Errno::PERM);
        }
        let has = |bit: u32| wanted.valid & bit != 0;
        let now = crate::tree::Moment::now();
        let set = Attributes {
            size: has(fuse::FATTR_SIZE).then_some(wanted.size),
            mode: has(fuse::FATTR_MODE).then_some(wanted.mode & 0o777),
            changed: if has(fuse::FATTR_MTIME_NOW) {
                Some((now.seconds, now.nanoseconds))
            } else {
                has(fuse::FATTR_MTIME).then_some((wanted.mtime, wanted.mtimensec))
            },
        };
        if set == Attributes::default() {
            return self.stat_described(call, (service, file), Then::Attributes);
        }
        self.may_change((service, file))?;
        let payload = set.encode().to_vec();
        self.ask_node(call, NodeAsk { service, kind: Kind::Set, file, payload, then: Then::Attributes });
        Ok(())
    }

    /// The part of a listing that begins at `offset`, of a folder whose first entries the frontend
    /// knows.
    pub(super) fn list_described(
        &mut self,
        call: Call,
        (service, file): (usize, u32),
        (listing, plus): (Vec<u8>, bool),
        (offset, first, most): (u64, u64, usize),
    ) -> Result<(), Errno> {
        self.may_see((service, file))?;
        let most = most.min(TRANSFER_BYTES_MAX);
        let bytes = most.saturating_sub(listing.len()) as u32;
        let payload = List { after: offset.saturating_sub(first), bytes }.encode().to_vec();
        let then = Then::Listing { plus, most, before: listing, first };
        self.ask_node(call, NodeAsk { service, kind: Kind::List, file, payload, then });
        Ok(())
    }

    /// Handles requests that change a folder: create, remove, rename.
    pub(super) fn change(&mut self, call: Call, opcode: u32, folder: Node, body: &[u8]) -> Result<(), Errno> {
        let (service, file) = self.folder_to_change(folder)?;
        let split = |names: &'_ [u8]| -> Vec<Vec<u8>> {
            names.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect()
        };
        let (operation, mode, other, names) = match opcode {
            fuse::FUSE_MKNOD => {
                let (made, names) = take::<fuse::fuse_mknod_in>(body)?;
                if made.mode & TYPE != FILE {
                    return Err(Errno::PERM);
                }
                (Operation::Create, made.mode & 0o777, 0, split(names))
            }
            fuse::FUSE_MKDIR => {
                let (made, names) = take::<fuse::fuse_mkdir_in>(body)?;
                (Operation::MakeFolder, made.mode & 0o777, 0, split(names))
            }
            fuse::FUSE_UNLINK => (Operation::Unlink, 0, 0, split(body)),
            fuse::FUSE_RMDIR => (Operation::RemoveFolder, 0, 0, split(body)),
            fuse::FUSE_LINK => {
                let (link, names) = take::<fuse::fuse_link_in>(body)?;
                (Operation::Link, 0, self.same_folder((service, file), link.oldnodeid)?, split(names))
            }
            fuse::FUSE_RENAME => {
                let (rename, names) = take::<fuse::fuse_rename_in>(body)?;
                let to = self.folder_to_change(Node::from_number(rename.newdir).ok_or(Errno::STALE)?)?;
                (Operation::Rename, 0, self.below_same((service, file), to)?, split(names))
            }
            fuse::FUSE_RENAME2 => {
                let (rename, names) = take::<fuse::fuse_rename2_in>(body)?;
                let to = self.folder_to_change(Node::from_number(rename.newdir).ok_or(Errno::STALE)?)?;
                (Operation::Rename, rename.flags, self.below_same((service, file), to)?, split(names))
            }
            // Who knows no symbolic links is not asked for one.
            fuse::FUSE_SYMLINK if !self.tree.has_links(service) => return Err(Errno::PERM),
            fuse::FUSE_SYMLINK => (Operation::Symlink, 0, 0, split(body)),
            _ => return Err(Errno::NOSYS),
        };
        let name = names.first().map(Vec::as_slice).unwrap_or_default();
        let new_name = match operation {
            Operation::Rename | Operation::Symlink => names.get(1).map(Vec::as_slice).unwrap_or_default(),
            _ => &[],
        };
        let longest = if operation == Operation::Symlink { MAX_TARGET_BYTES } else { MAX_NAME_BYTES };
        if name.len() > MAX_NAME_BYTES || new_name.len() > longest {
            return Err(Errno::NAMETOOLONG);
        }
        let change = Change { operation, mode, other, caller: (call.uid, call.gid), name, new_name };
        let makes = matches!(
            operation,
            Operation::Create | Operation::MakeFolder | Operation::Link | Operation::Symlink
        );
        let then = if makes { Then::Entry } else { Then::Done };
        self.ask_node(call, NodeAsk { service, kind: Kind::Change, file, payload: change.encode(), then });
        Ok(())
    }

    /// Answers with the target of a symbolic link, which the kernel follows.
    pub(super) fn readlink(&mut self, call: Call, node: Node) -> Result<(), Errno> {
        let Node::File(service, file) = node else { return Err(Errno::INVAL) };
        if !node.is_of_backend() || !self.tree.has_links(service) {
            return Err(Errno::INVAL);
        }
        self.may_see((service, file))?;
        let then = Then::Target;
        self.ask_node(call, NodeAsk { service, kind: Kind::Follow, file, payload: Vec::new(), then });
        Ok(())
    }

    /// Answers with the room of the tree that the node is in. Elsewhere, with that of the only tree
    /// that there is: df(1) asks the mount, whatever file it was given.
    pub(super) fn statfs(&mut self, call: Call, node: Node) {
        let own = self.tree.asked_at(node).filter(|at| self.tree.has_links(at.0));
        let at = own.or_else(|| self.tree.only_with_room()).filter(|&at| self.may_see(at).is_ok());
        let Some((service, file)) = at else {
            let st = room(&Room::default());
            return self.answer(call, fuse::fuse_statfs_out { st }.as_bytes());
        };
        let then = Then::Room;
        self.ask_node(call, NodeAsk { service, kind: Kind::Room, file, payload: Vec::new(), then });
    }

    fn folder_to_change(&self, folder: Node) -> Result<(usize, u32), Errno> {
        if !self.tree.is_folder(folder) {
            return Err(Errno::NOTDIR);
        }
        // The tree is what the services export; nobody else adds to it or takes from it.
        let at = self.tree.asked_at(folder).ok_or(Errno::ROFS)?;
        self.may_change(at)?;
        Ok(at)
    }

    fn same_folder(&self, folder: (usize, u32), number: u64) -> Result<u32, Errno> {
        match Node::from_number(number) {
            Some(Node::File(service, id)) => self.below_same(folder, (service, id)),
            _ => Err(Errno::XDEV),
        }
    }

    /// The number of a node that is below the same exported folder.
    fn below_same(&self, folder: (usize, u32), other: (usize, u32)) -> Result<u32, Errno> {
        let same = folder.0 == other.0 && root_of(folder.1) == root_of(other.1);
        if same { Ok(other.1) } else { Err(Errno::XDEV) }
    }
}

/// The room of a tree, as statfs(2) shows it.
fn room(room: &Room) -> fuse::fuse_kstatfs {
    let blocks = |bytes: u64| bytes / u64::from(BLOCK_BYTES);
    fuse::fuse_kstatfs {
        blocks: blocks(room.bytes.0),
        bfree: blocks(room.bytes.1),
        bavail: blocks(room.bytes.1),
        files: room.nodes.0,
        ffree: room.nodes.1,
        bsize: BLOCK_BYTES,
        frsize: BLOCK_BYTES,
        namelen: MAX_NAME_BYTES as u32,
        ..Default::default()
    }
}

/// Appends an entry to a listing as the kernel wants it; false: it does not fit any more.
pub(super) fn append(
    listing: &mut Vec<u8>,
    most: usize,
    known: Option<fuse::fuse_entry_out>,
    (ino, typ): (u64, u32),
    off: u64,
    name: &[u8],
) -> bool {
    let before = listing.len();
    if let Some(known) = known {
        listing.extend_from_slice(known.as_bytes());
    }
    let ino = if name == b".." { ROOT } else { ino };
    let entry = fuse::fuse_dirent { ino, off, namelen: name.len() as u32, typ, name: [] };
    listing.extend_from_slice(entry.as_bytes());
    listing.extend_from_slice(name);
    listing.resize(listing.len().next_multiple_of(8), 0);
    let fits = listing.len() <= most;
    if !fits {
        listing.truncate(before);
    }
    fits
}
