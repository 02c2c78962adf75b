//! The state of one client: its fids, its outstanding requests, and the replies that it has not
//! read yet.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;

use rustix::io::Errno;
use wire::ninep::{Qid, Reply};

use super::permission::Peer;
use super::questions::{Job, Questions};
use super::xattrs::NewXattr;
use super::{ANSWER_BYTES_MAX, FIDS_MAX, MESSAGE_BYTES_MIN, READ_BYTES_MIN};

/// A node, and how it was come by: `..` leads back.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) qid: Qid,
    pub(super) parent: Option<Rc<Place>>,
    pub(super) depth: usize,
}

/// An open file of a fid.
#[derive(Debug, Clone)]
pub(super) enum Opened {
    Folder,
    /// The core's number of it, and the flags of open(2).
    File(u64, u32),
    /// An extended attribute that is read, by its name; without one, the list of all.
    Xattr(Rc<[u8]>),
    /// An extended attribute that is set when the fid is given up.
    NewXattr(Rc<NewXattr>),
}

/// A client's name of a node.
#[derive(Debug, Clone)]
pub(super) struct Fid {
    pub(super) place: Rc<Place>,
    pub(super) opened: Option<Opened>,
    /// No two fids of a connection have the same, so that one that took another's number is not
    /// taken for it.
    pub(super) serial: u64,
}

/// The part of a connection that the futures of its messages share.
pub(super) struct Connection {
    pub(super) questions: Rc<Questions>,
    pub(super) peer: Peer,
    /// The longest message; 0 while nothing is agreed.
    pub(super) agreed: Cell<u32>,
    fids: RefCell<HashMap<u32, Fid>>,
    last_serial: Cell<u64>,
    /// Numbers the owners of locks: no two connections number one alike.
    owners: RandomState,
    /// The requests under way, by tag.
    pub(super) jobs: RefCell<HashMap<u16, Rc<Job>>>,
    /// Tags in use: those of the jobs, and of what waits for their end.
    tags: RefCell<HashSet<u16>>,
    promised: Cell<usize>,
    /// Bytes of the messages that are under way.
    pub(super) held: Cell<usize>,
    pub(super) output: RefCell<Vec<u8>>,
}

impl Connection {
    pub(super) fn new(questions: Rc<Questions>, peer: Peer) -> Self {
        Self {
            questions,
            peer,
            agreed: Cell::new(0),
            fids: RefCell::default(),
            last_serial: Cell::new(0),
            owners: RandomState::new(),
            jobs: RefCell::default(),
            tags: RefCell::default(),
            promised: Cell::new(0),
            held: Cell::new(0),
            output: RefCell::default(),
        }
    }

    /// The longest message that the client may send now.
    pub(super) fn message_bytes(&self) -> u32 {
        self.agreed.get().max(MESSAGE_BYTES_MIN)
    }

    /// Takes a tag into use; false: it is in use.
    pub(super) fn take_tag(&self, tag: u16) -> bool {
        self.tags.borrow_mut().insert(tag)
    }

    /// How much of a read of `count` bytes is allowed now.
    pub(super) fn allowed(&self, count: usize) -> usize {
        let used = self.promised.get() + self.output.borrow().len();
        count.min(ANSWER_BYTES_MAX.saturating_sub(used).max(READ_BYTES_MIN))
    }

    pub(super) fn begin(&self, job: &Rc<Job>) {
        self.promised.set(self.promised.get() + job.promised);
        self.held.set(self.held.get() + job.held);
        self.jobs.borrow_mut().insert(job.tag, Rc::clone(job));
    }

    /// Answers a tag that needs no job, or whose job has ended.
    pub(super) fn reply(&self, tag: u16, reply: &Reply) {
        self.tags.borrow_mut().remove(&tag);
        reply.encode(tag, &mut self.output.borrow_mut());
    }

    /// A job has ended. One that was given up is not answered, but who gave it up is.
    pub(super) fn end(&self, job: &Rc<Job>, result: Result<Reply, Errno>) {
        self.promised.set(self.promised.get().saturating_sub(job.promised));
        self.held.set(self.held.get().saturating_sub(job.held));
        let mut jobs = self.jobs.borrow_mut();
        if jobs.get(&job.tag).is_none_or(|current| !Rc::ptr_eq(current, job)) {
            // A Tversion came in between: nobody wants to know.
            return;
        }
        jobs.remove(&job.tag);
        drop(jobs);
        let flushes = job.flushes.take();
        match result {
            Err(Errno::INTR) if !flushes.is_empty() => {
                self.tags.borrow_mut().remove(&job.tag);
            }
            Err(errno) => self.reply(job.tag, &Reply::Error(errno.raw_os_error().unsigned_abs())),
            Ok(reply) => self.reply(job.tag, &reply),
        }
        flushes.iter().for_each(|&tag| self.reply(tag, &Reply::Flush));
    }

    /// `Tflush`: gives a request up. The answer comes when it has ended.
    pub(super) fn flush(&self, tag: u16, old: u16) {
        let job = self.jobs.borrow().get(&old).cloned();
        match job {
            Some(job) => {
                job.flushes.borrow_mut().push(tag);
                self.questions.interrupt(&job, self.peer);
            }
            None => self.reply(tag, &Reply::Flush),
        }
    }

    /// Gives up all that is under way, and all fids: `Tversion`, and the end.
    pub(super) fn reset(&self) {
        let jobs = std::mem::take(&mut *self.jobs.borrow_mut());
        jobs.values().for_each(|job| self.questions.interrupt(job, self.peer));
        self.tags.borrow_mut().clear();
        let fids = std::mem::take(&mut *self.fids.borrow_mut());
        fids.into_values().for_each(|fid| self.close(&fid));
    }

    fn close(&self, fid: &Fid) {
        if let Some(Opened::File(fh, _)) = fid.opened {
            self.questions.release(fid.place.qid.path, fh, self.peer);
        }
    }

    pub(super) fn fid(&self, number: u32) -> Result<Fid, Errno> {
        self.fids.borrow().get(&number).cloned().ok_or(Errno::BADF)
    }

    /// Refuses a number that can't be a new fid.
    pub(super) fn check_new(&self, number: u32) -> Result<(), Errno> {
        let fids = self.fids.borrow();
        if number == u32::MAX || fids.contains_key(&number) {
            return Err(Errno::INVAL);
        }
        if fids.len() >= FIDS_MAX { Err(Errno::MFILE) } else { Ok(()) }
    }

    /// Gives a fid a place. `instead` is the serial of the one that it takes the place of.
    pub(super) fn put(&self, number: u32, place: Rc<Place>, instead: Option<u64>) -> Result<(), Errno> {
        match instead {
            None => self.check_new(number)?,
            Some(serial) if self.fid(number)?.serial == serial => {}
            Some(_) => return Err(Errno::BADF),
        }
        self.last_serial.set(self.last_serial.get() + 1);
        let fid = Fid { place, opened: None, serial: self.last_serial.get() };
        self.fids.borrow_mut().insert(number, fid);
        Ok(())
    }

    /// Notes that a fid is open, at `place`; if it is gone meanwhile, closes again what was opened.
    pub(super) fn open(
        &self,
        number: u32,
        serial: u64,
        place: Rc<Place>,
        opened: Opened,
    ) -> Result<(), Errno> {
        let mut fids = self.fids.borrow_mut();
        if let Some(fid) = fids.get_mut(&number)
            && fid.serial == serial
            && fid.opened.is_none()
        {
            (fid.place, fid.opened) = (place, Some(opened));
            return Ok(());
        }
        drop(fids);
        self.close(&Fid { place, opened: Some(opened), serial });
        Err(Errno::BADF)
    }

    /// The number of a process of the client as an owner of locks.
    pub(super) fn lock_owner(&self, process: u32, client: &[u8]) -> u64 {
        self.owners.hash_one((process, client))
    }

    /// How many extended attributes are being set.
    pub(super) fn new_xattrs(&self) -> usize {
        let fids = self.fids.borrow();
        fids.values().filter(|fid| matches!(fid.opened, Some(Opened::NewXattr(_)))).count()
    }

    pub(super) fn clunk(&self, number: u32) -> Result<(), Errno> {
        let fid = self.fids.borrow_mut().remove(&number).ok_or(Errno::BADF)?;
        self.close(&fid);
        Ok(())
    }
}
