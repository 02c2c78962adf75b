//! Names and nodes: looking up, listing, making and removing.

use crate::coordinator::{Coordinator, errno_of};
use crate::export::{number, root};
use coordination::{Expect, Kind as NodeKind, Node, Root, check_path, root_of};
use rustix::io::Errno;
use session::ReplyTo;
use wire::service::{
    Attributes, Behaviour, Change, Entry, Kind, List, Node as Described, OWNER_NONE, Operation, SERIAL_BITS,
    below,
};

/// Most bytes of one part of a listing, whatever is asked for: some hundreds of names, and the next
/// part is asked for.
const MAX_LISTING_BYTES: usize = 60 * 1024;

/// A node as the frontend is told of it.
pub(crate) fn described(root: Root, node: &Node) -> Described {
    let (behaviour, mode) = match node.kind {
        NodeKind::Folder => (Behaviour::Folder, 0o777),
        NodeKind::Key => (Behaviour::Random, 0o666),
        NodeKind::Lock | NodeKind::Barrier | NodeKind::Queue => (Behaviour::Stream, 0o666),
    };
    Described {
        number: below(number(root), node.serial).unwrap_or(0),
        behaviour,
        // A waiter whose server died asks the next one. A write that may have been made is not made
        // again: another one may have come after it, or an item would be there twice.
        idempotent: !matches!(node.kind, NodeKind::Key | NodeKind::Queue),
        mode,
        links: if node.kind == NodeKind::Folder { 2 } else { 1 },
        size: node.value.len() as u64,
        changed: (0, 0),
        owner: (OWNER_NONE, OWNER_NONE),
    }
}

impl Coordinator {
    /// The path of what has this number: a root's folder, or a node.
    pub(crate) fn path_of(&self, number: u32) -> Result<String, Errno> {
        if let Some(root) = root(number) {
            return Ok(root.as_str().to_owned());
        }
        let serial = number & ((1 << SERIAL_BITS) - 1);
        let path = self.state().and_then(|state| state.path_of(serial)).ok_or(Errno::STALE)?;
        // The number says below which folder it is, which is what the domain's verbs were checked
        // by.
        let fits =
            root_of(path).is_some_and(|root| below(crate::export::number(root), serial) == Some(number));
        if fits { Ok(path.to_owned()) } else { Err(Errno::STALE) }
    }

    pub(crate) fn ask_tree(&mut self, to: ReplyTo, kind: Kind, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        match kind {
            Kind::Lookup => self.look_up(to.file, payload),
            Kind::List => self.list(to.file, payload),
            Kind::Stat => {
                let path = self.path_of(to.file)?;
                self.describe(&path)
            }
            Kind::Change => self.change_folder(to.file, payload),
            Kind::Set => self.set(to.file, payload),
            Kind::ReadAt => self.read_key(to, payload),
            Kind::WriteAt => self.write_key(to, payload),
            Kind::Sync => Ok(Vec::new()),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn describe(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let node = self.state().and_then(|state| state.node(path)).ok_or(Errno::NOENT)?;
        let root = root_of(path).ok_or(Errno::NOENT)?;
        Ok(described(root, node).encode().to_vec())
    }

    /// The path of a name in a folder; names are checked where something is made.
    fn in_folder(&self, folder: u32, name: &[u8]) -> Result<String, Errno> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::INVAL)?;
        if name.contains(['/', '\0']) {
            return Err(Errno::INVAL);
        }
        Ok(format!("{}/{name}", self.path_of(folder)?))
    }

    fn look_up(&self, folder: u32, name: &[u8]) -> Result<Vec<u8>, Errno> {
        // A name that can't be is one that is not there.
        let path = self
            .in_folder(folder, name)
            .map_err(|errno| if errno == Errno::INVAL { Errno::NOENT } else { errno })?;
        self.describe(&path)
    }

    fn list(&self, folder: u32, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let List { after, bytes } = List::decode(payload).map_err(|_| Errno::INVAL)?;
        let most = (bytes as usize).min(MAX_LISTING_BYTES);
        let path = self.path_of(folder)?;
        let root = root_of(&path).ok_or(Errno::NOTDIR)?;
        let state = self.state().ok_or(Errno::AGAIN)?;
        if state.node(&path).is_some_and(|node| node.kind != NodeKind::Folder) {
            return Err(Errno::NOTDIR);
        }
        let mut listing = Vec::new();
        for (name, node) in state.children(&path) {
            let place = u64::from(node.serial);
            if place <= after {
                continue;
            }
            let before = listing.len();
            Entry { node: described(root, node), place, name: name.as_bytes() }.append(&mut listing);
            if listing.len() > most {
                listing.truncate(before);
                if before == 0 {
                    return Err(Errno::INVAL);
                }
                break;
            }
        }
        Ok(listing)
    }

    fn change_folder(&mut self, folder: u32, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let change = Change::decode(payload).map_err(|_| Errno::INVAL)?;
        let path = self.in_folder(folder, change.name)?;
        let root = root_of(&path).ok_or(Errno::NOTDIR)?;
        let folder_is = |is: bool| move |node: &Node| (node.kind == NodeKind::Folder) == is;
        match change.operation {
            Operation::Create => {
                let kind = root.kind();
                let there = self.state().and_then(|state| state.node(&path)).map(|node| node.kind);
                // Of two that open a new lock at once, both have it made; a key may be one that
                // must not be there.
                if kind != NodeKind::Key && there == Some(kind) {
                    return self.describe(&path);
                }
                self.decide(|state| {
                    state.make(&path, kind).map(|node| described(root, node).encode().to_vec())
                })
            }
            Operation::MakeFolder => self.decide(|state| {
                state.make(&path, NodeKind::Folder).map(|node| described(root, node).encode().to_vec())
            }),
            Operation::Unlink => {
                self.check_kind(&path, folder_is(false), Errno::ISDIR)?;
                self.decide(|state| state.remove(&path, Expect::Anything)).map(|_| Vec::new())
            }
            Operation::RemoveFolder => {
                self.check_kind(&path, folder_is(true), Errno::NOTDIR)?;
                self.decide(|state| state.remove(&path, Expect::Anything)).map(|_| Vec::new())
            }
            // Two keys would change at once, of which a watcher could see one only.
            Operation::Rename | Operation::Link => Err(Errno::OPNOTSUPP),
            Operation::Symlink => Err(Errno::PERM),
        }
    }

    fn check_kind(
        &self,
        path: &str,
        fits: impl FnOnce(&Node) -> bool,
        otherwise: Errno,
    ) -> Result<(), Errno> {
        check_path(path).map_err(errno_of)?;
        let node = self.state().and_then(|state| state.node(path)).ok_or(Errno::NOENT)?;
        if fits(node) { Ok(()) } else { Err(otherwise) }
    }

    /// A shell that opens a key for writing truncates it first. That alone is no put: readers would
    /// see a value that nobody meant. Times are nobody's to set.
    fn set(&self, number: u32, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let set = Attributes::decode(payload).map_err(|_| Errno::INVAL)?;
        let path = self.path_of(number)?;
        if set.mode.is_some() {
            return Err(Errno::PERM);
        }
        match set.size {
            Some(size) if size != 0 => Err(Errno::INVAL),
            _ => self.describe(&path),
        }
    }
}
