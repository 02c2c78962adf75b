//! A store, as consumers see it.

use crate::kind::Kind;
use crate::store::{Store, Told};
use rustix::fs::fsync;
use service::{Call, Errno, Folder, Later, Listing, Node, Reply};
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use wire::files::WRITE;
use wire::service::{Attributes, Room, XattrChange};

/// Flags of open(2).
const TRUNCATE: u32 = 0o1000;
const APPEND: u32 = 0o2000;
/// Syncs that wait for the disk at a time; more wait with whoever asks for them, and so do all
/// others of the tree.
const SYNCS_MAX: usize = 256;
/// Places of a listing: most. The last name of a folder has a larger one on some file systems, and
/// the frontend counts on from it.
const PLACE_MAX: u64 = i64::MAX as u64 - 1_024;

struct Sync {
    file: Arc<OwnedFd>,
    later: Later,
}

/// The folder that the service is.
pub struct Tree {
    store: Rc<RefCell<Store>>,
    syncs: SyncSender<Sync>,
}

impl Tree {
    /// The tree of a store; a thread of its own waits for the disk.
    pub fn new(store: Rc<RefCell<Store>>) -> Result<Self, String> {
        let (syncs, wanted) = sync_channel::<Sync>(SYNCS_MAX);
        std::thread::Builder::new()
            .name("sync".into())
            .spawn(move || {
                for Sync { file, later } in wanted {
                    later.answer(fsync(&*file).map(|()| Vec::new()));
                }
            })
            .map_err(|error| format!("can't start a thread: {error}"))?;
        Ok(Self { store, syncs })
    }
}

fn node(told: &Told) -> Node {
    let mut node = match told.kind {
        Kind::Folder => Node::folder(told.serial),
        Kind::File => Node::file(told.serial, told.size),
        Kind::Link => Node::symlink(told.serial, told.size),
    };
    node.mode = told.mode;
    node.links = told.links;
    node.changed = told.changed;
    node
}

impl Folder for Tree {
    fn lookup(&mut self, _: &mut Call<'_>, folder: u32, name: &[u8]) -> Result<Node, Errno> {
        self.store.borrow_mut().lookup(folder, name).map(|told| node(&told))
    }

    fn list(&mut self, _: &mut Call<'_>, folder: u32, after: u64, into: &mut Listing) -> Result<(), Errno> {
        if after >= PLACE_MAX {
            return Ok(());
        }
        self.store
            .borrow_mut()
            .list(folder, after, |place, name, told| into.add(place.clamp(1, PLACE_MAX), name, &node(told)))
    }

    fn stat(&mut self, _: &mut Call<'_>, serial: u32) -> Result<Node, Errno> {
        self.store.borrow_mut().stat(serial).map(|told| node(&told))
    }

    fn open(&mut self, call: &mut Call<'_>, serial: u32) -> Result<(), Errno> {
        let mut store = self.store.borrow_mut();
        let inode = store.inode(serial)?.to_le_bytes();
        // Who opened it at an earlier server has to get the same file.
        if !call.capsule().is_empty() && call.capsule() != inode {
            return Err(Errno::STALE);
        }
        if call.flags() & TRUNCATE != 0 && call.caller().may(WRITE) {
            store.set(serial, &Attributes { size: Some(0), ..Attributes::default() })?;
        }
        store.opened(serial)?;
        drop(store);
        call.keep(&inode)
    }

    fn close(&mut self, _: &mut Call<'_>, serial: u32) {
        self.closed(serial, false);
    }

    fn leave(&mut self, _: &mut Call<'_>, serial: u32) {
        self.closed(serial, true);
    }

    fn read(&mut self, _: &mut Call<'_>, serial: u32, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        self.store.borrow_mut().read(serial, offset, size)
    }

    fn write(&mut self, call: &mut Call<'_>, serial: u32, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let offset = (call.flags() & APPEND == 0).then_some(offset);
        self.store.borrow_mut().write(serial, offset, data)
    }

    fn sync_later(&mut self, call: &mut Call<'_>, serial: u32) -> Result<Reply, Errno> {
        let file = self.store.borrow_mut().to_sync(serial)?;
        let (reply, later) = call.later()?;
        match self.syncs.try_send(Sync { file, later }) {
            Ok(()) => Ok(reply),
            Err(TrySendError::Full(Sync { file, later })) => {
                later.answer(fsync(&*file).map(|()| Vec::new()));
                Ok(reply)
            }
            Err(TrySendError::Disconnected(_)) => Err(Errno::IO),
        }
    }

    fn set(&mut self, _: &mut Call<'_>, serial: u32, attributes: &Attributes) -> Result<Node, Errno> {
        self.store.borrow_mut().set(serial, attributes).map(|told| node(&told))
    }

    fn create(&mut self, _: &mut Call<'_>, folder: u32, name: &[u8], mode: u32) -> Result<Node, Errno> {
        self.store.borrow_mut().create(folder, name, mode).map(|told| node(&told))
    }

    fn make_folder(&mut self, _: &mut Call<'_>, folder: u32, name: &[u8], mode: u32) -> Result<Node, Errno> {
        self.store.borrow_mut().make_folder(folder, name, mode).map(|told| node(&told))
    }

    fn unlink(&mut self, _: &mut Call<'_>, folder: u32, name: &[u8]) -> Result<(), Errno> {
        self.store.borrow_mut().unlink(folder, name)
    }

    fn remove_folder(&mut self, _: &mut Call<'_>, folder: u32, name: &[u8]) -> Result<(), Errno> {
        self.store.borrow_mut().remove_folder(folder, name)
    }

    fn rename(
        &mut self,
        _: &mut Call<'_>,
        from: (u32, &[u8]),
        to: (u32, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        self.store.borrow_mut().rename(from, to, flags)
    }

    fn link(&mut self, _: &mut Call<'_>, serial: u32, folder: u32, name: &[u8]) -> Result<Node, Errno> {
        self.store.borrow_mut().link(serial, folder, name).map(|told| node(&told))
    }

    fn symlink(&mut self, _: &mut Call<'_>, folder: u32, name: &[u8], target: &[u8]) -> Result<Node, Errno> {
        self.store.borrow_mut().symlink(folder, name, target).map(|told| node(&told))
    }

    fn follow(&mut self, _: &mut Call<'_>, serial: u32) -> Result<Vec<u8>, Errno> {
        self.store.borrow_mut().follow(serial)
    }

    fn room(&mut self, _: &mut Call<'_>, _: u32) -> Result<Room, Errno> {
        self.store.borrow().room_left()
    }

    fn xattr(&mut self, _: &mut Call<'_>, serial: u32, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.store.borrow_mut().xattr(serial, name)
    }

    fn xattrs(&mut self, _: &mut Call<'_>, serial: u32) -> Result<Vec<u8>, Errno> {
        self.store.borrow_mut().xattrs(serial)
    }

    fn set_xattr(&mut self, _: &mut Call<'_>, serial: u32, change: &XattrChange<'_>) -> Result<(), Errno> {
        self.store.borrow_mut().set_xattr(serial, change)
    }
}

impl Tree {
    fn closed(&self, serial: u32, comes_back: bool) {
        if let Err(errno) = self.store.borrow_mut().closed(serial, comes_back) {
            tracing::warn!(serial, %errno, "a file that was closed can't be looked after");
        }
    }
}
