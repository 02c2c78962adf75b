//! Requests of the kernel: which they are, and those about names and attributes.

use polyfuse_kernel as fuse;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::nodes::{self, Then};
use super::parked::Op;
use super::{Agreed, Call, Core, DOWN_WAIT_NS};
use crate::abi;
use crate::device::TRANSFER_BYTES_MAX;
use crate::host::Host;
use crate::tree::{NAME_BYTES_MAX, Node};

/// How long the kernel may believe a name or attributes, in s: services come and go.
const VALID_S: u64 = 1;
/// Requests that the kernel may have in flight in the background.
const BACKGROUND_MAX: u16 = 64;
/// Pages in one request.
const PAGES_MAX: u16 = (TRANSFER_BYTES_MAX / 4096) as u16;

/// Takes a fixed part off the front of a request's body.
pub(super) fn take<T: FromBytes>(body: &[u8]) -> Result<(T, &[u8]), Errno> {
    T::read_from_prefix(body).map_err(|_| Errno::INVAL)
}

/// A name as `LOOKUP` brings it: up to its NUL.
pub(super) fn name(body: &[u8]) -> &[u8] {
    body.split(|&byte| byte == 0).next().unwrap_or_default()
}

impl<H: Host> Core<H> {
    /// Takes one request as it was read from the device.
    pub(crate) fn request(&mut self, request: &[u8]) {
        let Ok((head, body)) = take::<fuse::fuse_in_header>(request) else {
            tracing::warn!(bytes = request.len(), "the kernel sent less than a header");
            return;
        };
        let call = Call {
            unique: head.unique,
            uid: head.uid,
            gid: head.gid,
            pid: head.pid,
            arrived: self.host.now(),
        };
        self.counters.requests += 1;
        if head.unique & abi::FUSE_UNIQUE_RESEND != 0 && self.replay(call) {
            return;
        }
        if let Err(errno) = self.dispatch(&head, call, body, request) {
            self.refuse(call, errno);
        }
    }

    fn dispatch(
        &mut self,
        head: &fuse::fuse_in_header,
        call: Call,
        body: &[u8],
        request: &[u8],
    ) -> Result<(), Errno> {
        let node = || Node::from_number(head.nodeid).ok_or(Errno::STALE);
        match head.opcode {
            fuse::FUSE_INIT => self.init(call, body),
            // Numbers mean what they say, so there is nothing to forget; no reply is wanted.
            fuse::FUSE_FORGET | fuse::FUSE_BATCH_FORGET => Ok(()),
            fuse::FUSE_INTERRUPT => {
                let (interrupt, _) = take::<fuse::fuse_interrupt_in>(body)?;
                self.interrupt(interrupt.unique & !abi::FUSE_UNIQUE_RESEND);
                Ok(())
            }
            fuse::FUSE_LOOKUP => self.lookup(call, node()?, name(body), request),
            fuse::FUSE_GETATTR => self.getattr(call, node()?),
            fuse::FUSE_SETATTR => self.setattr(call, node()?, body),
            fuse::FUSE_OPENDIR => self.opendir(call, node()?, request),
            fuse::FUSE_READDIR => self.readdir(call, node()?, body, false),
            fuse::FUSE_READDIRPLUS => self.readdir(call, node()?, body, true),
            fuse::FUSE_FSYNC => self.fsync(call, body),
            // What a folder's changes are is known as soon as they are answered.
            fuse::FUSE_FSYNCDIR | fuse::FUSE_RELEASEDIR | fuse::FUSE_DESTROY => {
                self.answer(call, &[]);
                Ok(())
            }
            fuse::FUSE_STATFS => {
                self.statfs(call, node()?);
                Ok(())
            }
            fuse::FUSE_OPEN => self.open(call, node()?, body, request),
            fuse::FUSE_READ => self.read(call, body),
            fuse::FUSE_WRITE => self.write(call, body),
            fuse::FUSE_POLL => self.poll(call, body),
            fuse::FUSE_FLUSH => self.flush(call, body),
            fuse::FUSE_GETLK => self.get_lock(call, body),
            fuse::FUSE_SETLK => self.set_lock(call, body, false),
            fuse::FUSE_SETLKW => self.set_lock(call, body, true),
            fuse::FUSE_IOCTL => self.ioctl(call, body),
            fuse::FUSE_RELEASE => self.release(call, body),
            fuse::FUSE_MKNOD
            | fuse::FUSE_MKDIR
            | fuse::FUSE_SYMLINK
            | fuse::FUSE_LINK
            | fuse::FUSE_UNLINK
            | fuse::FUSE_RMDIR
            | fuse::FUSE_RENAME
            | fuse::FUSE_RENAME2 => self.change(call, head.opcode, node()?, body),
            // ENOSYS: the kernel does what is usual by itself, and does not ask again.
            fuse::FUSE_ACCESS
            // It makes a node and opens it instead.
            | fuse::FUSE_CREATE
            | fuse::FUSE_LSEEK
            | fuse::FUSE_FALLOCATE
            | fuse::FUSE_COPY_FILE_RANGE
            | fuse::FUSE_BMAP => Err(Errno::NOSYS),
            fuse::FUSE_GETXATTR => self.get_xattr(call, node()?, body),
            fuse::FUSE_LISTXATTR => self.list_xattrs(call, node()?, body),
            fuse::FUSE_SETXATTR => self.set_xattr(call, node()?, body),
            fuse::FUSE_REMOVEXATTR => self.remove_xattr(call, node()?, name(body)),
            fuse::FUSE_READLINK => self.readlink(call, node()?),
            _ => {
                self.counters.unknown += 1;
                Err(Errno::NOSYS)
            }
        }
    }

    fn init(&mut self, call: Call, body: &[u8]) -> Result<(), Errno> {
        let (short, _) = take::<fuse::fuse_init_in>(body)?;
        let long = take::<abi::InitIn>(body).map(|(long, _)| long).unwrap_or_default();
        if short.major != fuse::FUSE_KERNEL_VERSION || short.minor < abi::MINOR_MIN {
            tracing::error!(
                major = short.major,
                minor = short.minor,
                "the kernel's FUSE protocol is too old"
            );
            return Err(Errno::PROTO);
        }
        let extended = short.flags & abi::FUSE_INIT_EXT != 0;
        let offered2 = if extended { long.flags2 } else { 0 };
        let resend2 = if self.offer_resend { abi::FUSE_HAS_RESEND } else { 0 };
        let wanted2 = resend2 | abi::FUSE_PASSTHROUGH;
        let flags2 = offered2 & wanted2;
        let wanted = fuse::FUSE_ASYNC_READ
            | fuse::FUSE_ATOMIC_O_TRUNC
            | fuse::FUSE_BIG_WRITES
            | fuse::FUSE_DO_READDIRPLUS
            | fuse::FUSE_READDIRPLUS_AUTO
            | fuse::FUSE_PARALLEL_DIROPS
            | fuse::FUSE_MAX_PAGES
            // Both, or the kernel would grant locks of one kind by itself.
            | fuse::FUSE_POSIX_LOCKS
            | fuse::FUSE_FLOCK_LOCKS
            | abi::FUSE_INIT_EXT;
        let agreed = Agreed {
            minor: short.minor.min(abi::MINOR),
            resend: flags2 & abi::FUSE_HAS_RESEND != 0,
            passthrough: flags2 & abi::FUSE_PASSTHROUGH != 0,
        };
        let mut unused = [0; 8];
        unused[0] = flags2;
        unused[1] = if agreed.passthrough { abi::STACK_DEPTH } else { 0 };
        let out = fuse::fuse_init_out {
            major: fuse::FUSE_KERNEL_VERSION,
            minor: agreed.minor,
            max_readahead: 0,
            flags: short.flags & wanted,
            max_background: BACKGROUND_MAX,
            congestion_threshold: BACKGROUND_MAX / 4 * 3,
            max_write: TRANSFER_BYTES_MAX as u32,
            time_gran: 1,
            max_pages: PAGES_MAX,
            unused,
            ..Default::default()
        };
        self.agreed = Some(agreed);
        self.save_facts();
        self.answer(call, out.as_bytes());
        Ok(())
    }

    /// Whether what `folder` has is still to be told.
    fn is_unknown(&self, folder: Node) -> bool {
        match folder {
            Node::Root => !self.introduced && self.daemon_there,
            Node::Service(at) => self.tree.services.get(at).is_some_and(|s| s.present && s.export.is_none()),
            _ => false,
        }
    }

    /// Keeps a request about a folder that is not known yet; true if it has to wait.
    fn postpone(&mut self, call: Call, folder: Node, request: &[u8]) -> bool {
        let deadline = call.arrived.saturating_add(DOWN_WAIT_NS);
        // A request that has waited comes here again with the time of its first coming.
        let waits = self.is_unknown(folder) && self.host.now() < deadline;
        if waits {
            self.park(call, None, Op::Again { request: request.to_vec() }, deadline);
        }
        waits
    }

    /// Takes the requests again that waited for a folder to be known.
    pub(super) fn take_again(&mut self, only_expired: bool) {
        let now = self.host.now();
        let waiting = self.parked.iter().filter(|(_, parked)| {
            matches!(parked.op, Op::Again { .. }) && (!only_expired || parked.deadline <= now)
        });
        let keys: Vec<u64> = waiting.map(|(&key, _)| key).collect();
        for key in keys {
            let Some(parked) = self.unpark(key) else { continue };
            let Op::Again { request } = parked.op else { continue };
            let Ok((head, body)) = take::<fuse::fuse_in_header>(&request) else { continue };
            if let Err(errno) = self.dispatch(&head, parked.call, body, &request) {
                self.refuse(parked.call, errno);
            }
        }
    }

    fn lookup(&mut self, call: Call, folder: Node, name: &[u8], request: &[u8]) -> Result<(), Errno> {
        if !self.tree.is_folder(folder) {
            return Err(Errno::NOTDIR);
        }
        let asked_at = self.tree.asked_at(folder);
        if asked_at.is_none() && name.len() > NAME_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if let Some(entry) = self.tree.lookup(folder, name).and_then(|node| self.entry(node)) {
            self.answer(call, entry.as_bytes());
            return Ok(());
        }
        if self.postpone(call, folder, request) {
            return Ok(());
        }
        if let Some(at) = asked_at {
            return self.lookup_described(call, at, name);
        }
        Err(Errno::NOENT)
    }

    fn entry(&self, node: Node) -> Option<fuse::fuse_entry_out> {
        let attr = self.tree.attributes(node)?;
        Some(fuse::fuse_entry_out {
            nodeid: node.number(),
            generation: 0,
            entry_valid: VALID_S,
            attr_valid: VALID_S,
            entry_valid_nsec: 0,
            attr_valid_nsec: 0,
            attr,
        })
    }

    fn getattr(&mut self, call: Call, node: Node) -> Result<(), Errno> {
        if let (Node::File(service, id), true) = (node, node.is_of_backend()) {
            return self.stat_described(call, (service, id), Then::Attributes);
        }
        let attr = self.tree.attributes(node).ok_or(Errno::STALE)?;
        let out = fuse::fuse_attr_out { attr_valid: VALID_S, attr_valid_nsec: 0, dummy: 0, attr };
        self.answer(call, out.as_bytes());
        Ok(())
    }

    /// Sizes and times may be set, to no effect: `echo x > ctl` and `touch` are no errors. Owners
    /// and modes are the topology's.
    fn setattr(&mut self, call: Call, node: Node, body: &[u8]) -> Result<(), Errno> {
        let (wanted, _) = take::<fuse::fuse_setattr_in>(body)?;
        if let (Node::File(service, id), true) = (node, node.is_of_backend()) {
            return self.set_described(call, (service, id), &wanted);
        }
        if wanted.valid & (fuse::FATTR_MODE | fuse::FATTR_UID | fuse::FATTR_GID) != 0 {
            return Err(Errno::PERM);
        }
        if self.tree.is_folder(node) && wanted.valid & fuse::FATTR_SIZE != 0 {
            return Err(Errno::ISDIR);
        }
        self.getattr(call, node)
    }

    fn opendir(&mut self, call: Call, node: Node, request: &[u8]) -> Result<(), Errno> {
        if !self.tree.is_folder(node) {
            return Err(Errno::NOTDIR);
        }
        if !self.postpone(call, node, request) {
            self.answer(call, fuse::fuse_open_out::default().as_bytes());
        }
        Ok(())
    }

    fn readdir(&mut self, call: Call, folder: Node, body: &[u8], plus: bool) -> Result<(), Errno> {
        let (read, _) = take::<fuse::fuse_read_in>(body)?;
        if !self.tree.is_folder(folder) {
            return Err(Errno::NOTDIR);
        }
        let most = (read.size as usize).min(TRANSFER_BYTES_MAX);
        let mut listing = Vec::new();
        let dots = [(folder, "."), (Node::Root, "..")];
        let all = dots.into_iter().chain(self.tree.children(folder)).enumerate();
        let from = usize::try_from(read.offset).unwrap_or(usize::MAX);
        let mut count = 0;
        let mut full = false;
        for (at, (node, name)) in all {
            count = at + 1;
            if at < from || full {
                continue;
            }
            // The kernel takes no entry for the dots.
            let known = if at < dots.len() { None } else { self.entry(node) };
            let known = plus.then(|| known.unwrap_or_default());
            let typ = if self.tree.is_folder(node) { nodes::TYPE_FOLDER } else { nodes::TYPE_FILE };
            let what = (node.number(), typ);
            full = !nodes::append(&mut listing, most, known, what, at as u64 + 1, name.as_bytes());
        }
        if let Some(at) = self.tree.asked_at(folder).filter(|_| !full) {
            let known = count as u64;
            return self.list_described(call, at, (listing, plus), (read.offset.max(known), known, most));
        }
        self.answer(call, &listing);
        Ok(())
    }
}
