//! Locks at a backend, step by step: what is asked of it, and what its late words come to.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use wire::control::{MountedService, Reply, Request};
use wire::service::{Behaviour, Export, FileExport, Node as Described, OWN_FOLDER, VERSION, below};
use zerocopy::FromBytes;

use super::*;
use crate::core::backend::RETRY_NS;
use crate::core::{Answer, NewLink};
use crate::ledger::Records;

#[derive(Default)]
struct World {
    replies: HashMap<u64, (i32, Vec<u8>)>,
    sent: Vec<Outgoing>,
    asked: Vec<Request>,
    ledger: HashMap<usize, Vec<u8>>,
    now: u64,
}

#[derive(Clone, Default)]
struct Outside(Rc<RefCell<World>>);

impl Host for Outside {
    fn reply(&mut self, unique: u64, errno: i32, parts: &[&[u8]]) -> bool {
        let twice = self.0.borrow_mut().replies.insert(unique, (errno, parts.concat()));
        assert!(twice.is_none(), "a call is answered twice");
        true
    }

    fn notify_poll(&mut self, _: u64) {}

    fn save(&mut self, slot: usize, record: &[u8]) {
        self.0.borrow_mut().ledger.insert(slot, record.to_vec());
    }

    fn clear(&mut self, slot: usize) {
        self.0.borrow_mut().ledger.remove(&slot);
    }

    fn send(&mut self, _: usize, message: Outgoing) {
        self.0.borrow_mut().sent.push(message);
    }

    fn unlink(&mut self, _: usize) {}

    fn ask(&mut self, request: &Request) {
        self.0.borrow_mut().asked.push(request.clone());
    }

    fn now(&self) -> u64 {
        self.0.borrow().now
    }
}

/// A frontend whose domain has a tree, with one file of it open.
struct Bed {
    outside: Outside,
    core: Core<Outside>,
    link: NewLink,
    unique: u64,
    node: u64,
    fh: u64,
}

fn file() -> u32 {
    below(0, 1).expect("a node")
}

impl Bed {
    fn new() -> Self {
        let outside = Outside::default();
        let core = Core::new(outside.clone(), 0, 0, true);
        let node = Node::File(0, file()).number();
        let mut bed = Self { outside, core, link: NewLink { service: 0, epoch: 0 }, unique: 0, node, fh: 0 };
        bed.core.introduce();
        bed.meet();
        let open = fuse::fuse_open_in { flags: 2, unused: 0 };
        let call = bed.call(fuse::FUSE_OPEN, open.as_bytes());
        let described = Described {
            number: file(),
            behaviour: Behaviour::Random,
            idempotent: true,
            mode: 0o666,
            links: 1,
            size: 0,
            changed: (0, 0),
            owner: (0, 0),
        };
        bed.answer_all(Ok(&described.encode()));
        bed.answer_all(Ok(b""));
        let (_, opened) = bed.reply(call).expect("it is open");
        bed.fh = fuse::fuse_open_out::read_from_prefix(&opened).expect("a handle").0.fh;
        bed
    }

    fn asked(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.outside.0.borrow_mut().asked)
    }

    /// The daemon introduces the frontend to a backend.
    fn meet(&mut self) {
        let mut asked = self.asked();
        while let Some(request) = asked.pop() {
            match request {
                Request::Services { id } => self.mounted(id),
                Request::Connect { id, .. } => self.connected(id),
                _ => {}
            }
            asked.extend(self.asked());
        }
    }

    fn mounted(&mut self, id: u64) {
        let services = vec![MountedService {
            name: "tree".into(),
            kind: "files".into(),
            at: "tree".into(),
            verbs: vec!["read".into(), "write".into()],
            up: true,
            generation: 1,
            targets: Vec::new(),
        }];
        self.core.daemon_says(Reply::Services { id, services });
    }

    fn connected(&mut self, id: u64) {
        let connected = Reply::Connected { id, channel: 1, memory: false };
        self.link = self.core.daemon_says(connected).expect("a link");
        let folder = FileExport {
            id: 0,
            name: Some(OWN_FOLDER.into()),
            mode: 0o777,
            behaviour: Behaviour::Folder,
            idempotent: true,
            verb: "read".into(),
            change: Some("write".into()),
        };
        let export = Export { version: VERSION, kind: "files".into(), files: vec![folder] };
        self.core.greeted(self.link.service, self.link.epoch, export);
    }

    fn call(&mut self, opcode: u32, body: &[u8]) -> u64 {
        self.unique += 2;
        let len = (size_of::<fuse::fuse_in_header>() + body.len()) as u32;
        let (unique, nodeid) = (self.unique, self.node);
        let head = fuse::fuse_in_header { len, opcode, unique, nodeid, ..Default::default() };
        self.core.request(&[head.as_bytes(), body].concat());
        self.unique
    }

    /// Asks for a lock of flock(2).
    fn flock(&mut self, typ: u32) -> u64 {
        let lk = fuse::fuse_file_lock { start: 0, end: LAST, typ, pid: 42 };
        let flags = fuse::FUSE_LK_FLOCK;
        let wanted = fuse::fuse_lk_in { fh: self.fh, owner: 8, lk, lk_flags: flags, ..Default::default() };
        self.call(fuse::FUSE_SETLK, wanted.as_bytes())
    }

    /// Waits for an exclusive lock of the owner 7, of all bytes.
    fn lock(&mut self) -> u64 {
        let lk = fuse::fuse_file_lock { start: 0, end: LAST, typ: EXCLUSIVE, pid: 42 };
        let wanted = fuse::fuse_lk_in { fh: self.fh, owner: 7, lk, ..Default::default() };
        self.call(fuse::FUSE_SETLKW, wanted.as_bytes())
    }

    fn interrupt(&mut self, unique: u64) {
        let interrupt = fuse::fuse_interrupt_in { unique };
        self.call(fuse::FUSE_INTERRUPT, interrupt.as_bytes());
    }

    fn flush(&mut self) -> u64 {
        let flush = fuse::fuse_flush_in { fh: self.fh, lock_owner: 7, ..Default::default() };
        self.call(fuse::FUSE_FLUSH, flush.as_bytes())
    }

    fn reply(&self, unique: u64) -> Option<(i32, Vec<u8>)> {
        self.outside.0.borrow().replies.get(&unique).cloned()
    }

    fn errno(&self, unique: u64) -> Option<i32> {
        self.reply(unique).map(|(errno, _)| errno)
    }

    fn sent(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.outside.0.borrow_mut().sent)
    }

    fn answer(&mut self, tag: u64, result: Result<&[u8], Errno>) {
        let NewLink { service, epoch } = self.link;
        self.core.answered(service, epoch, Answer { tag, result, phases: Vec::new() });
    }

    /// Answers all that was sent.
    fn answer_all(&mut self, result: Result<&[u8], Errno>) {
        for message in self.sent() {
            match message {
                Outgoing::Open { tag, .. } | Outgoing::Tree { tag, .. } => self.answer(tag, result),
                other => unreachable!("it has no answer: {other:?}"),
            }
        }
    }

    /// The lock that was sent alone, and its tag.
    fn sent_lock(&mut self) -> (u64, Lock) {
        match self.sent().as_slice() {
            [Outgoing::Tree { kind: Kind::Lock, session, tag, payload, .. }] if *session == self.fh => {
                (*tag, Lock::decode(payload).expect("a lock"))
            }
            other => unreachable!("no lock: {other:?}"),
        }
    }

    fn pass(&mut self, ns: u64) {
        self.outside.0.borrow_mut().now += ns;
        self.core.tick();
    }
}

const INTR: Option<i32> = Some(4);

#[test]
fn a_waiter_with_a_signal_has_what_the_backend_says() {
    let mut bed = Bed::new();
    for granted in [false, true] {
        let call = bed.lock();
        let (tag, asked) = bed.sent_lock();
        assert_eq!((asked.mode, asked.flags, asked.owner), (LockMode::Exclusive, lock::WAIT, 7));
        bed.interrupt(call);
        assert_eq!(bed.sent(), [Outgoing::Cancel { tag }]);
        bed.interrupt(call);
        assert_eq!((bed.sent(), bed.errno(call)), (vec![], None), "it is not the frontend's to say");
        bed.answer(tag, if granted { Ok(b"") } else { Err(Errno::INTR) });
        assert_eq!(bed.errno(call), if granted { Some(0) } else { INTR });
        assert_eq!(bed.outside.0.borrow().ledger.contains_key(&LOCKS_SLOT), granted);
    }
}

/// A server hung, and a process that was killed stayed until it went on.
#[test]
fn a_lock_that_is_granted_after_its_waiter_has_gone_is_given_back() {
    let mut bed = Bed::new();
    let call = bed.lock();
    let (tag, _) = bed.sent_lock();
    bed.pass(100 * WORD_NS);
    assert_eq!(bed.errno(call), None, "who has no signal waits as long as it takes");
    bed.interrupt(call);
    bed.sent();
    bed.pass(WORD_NS);
    assert_eq!((bed.errno(call), bed.sent()), (INTR, vec![]));
    bed.answer(tag, Ok(b""));
    let (back, given) = bed.sent_lock();
    assert_eq!((given.mode, given.owner, given.range), (LockMode::None, 7, (0, LAST)));
    bed.answer(back, Ok(b""));
    assert!(!bed.outside.0.borrow().ledger.contains_key(&LOCKS_SLOT));
}

#[test]
fn who_closes_a_file_waits_for_the_word_of_a_backend_and_not_for_ever() {
    let mut bed = Bed::new();
    let nothing = bed.flush();
    assert_eq!((bed.errno(nothing), bed.sent()), (Some(0), vec![]), "it holds nothing");
    for hangs in [false, true] {
        bed.lock();
        bed.answer_all(Ok(b""));
        let call = bed.flush();
        let (tag, given) = bed.sent_lock();
        assert_eq!((given.mode, bed.errno(call)), (LockMode::None, None));
        if hangs {
            bed.pass(WORD_NS);
            assert_eq!(bed.errno(call), Some(0));
            bed.answer(tag, Ok(b""));
        } else {
            bed.answer(tag, Err(Errno::ACCESS));
            assert_eq!(bed.errno(call), Some(0), "close(2) does not fail");
        }
    }
}

#[test]
fn the_next_backend_is_asked_for_a_lock_before_anything_else() {
    let mut bed = Bed::new();
    bed.lock();
    bed.answer_all(Ok(b""));
    let waits = bed.lock();
    bed.sent();
    let NewLink { service, epoch } = bed.link;
    bed.core.link_ended(service, epoch, false);
    bed.pass(RETRY_NS);
    bed.meet();
    let sent = bed.sent();
    let [Outgoing::Open { tag: open, .. }, Outgoing::Tree { kind: Kind::Lock, tag, payload, .. }] = &sent[..]
    else {
        unreachable!("{sent:?}")
    };
    let claim = Lock::decode(payload).expect("a lock");
    assert_eq!((claim.mode, claim.flags, claim.owner), (LockMode::Exclusive, lock::AGAIN, 7));
    bed.answer(*open, Ok(b""));
    let (again, _) = bed.sent_lock();
    // It is lost: the open file can't be used any more, whoever asks.
    bed.answer(*tag, Err(Errno::AGAIN));
    let read = fuse::fuse_read_in { fh: bed.fh, size: 1, ..Default::default() };
    let read = bed.call(fuse::FUSE_READ, read.as_bytes());
    assert_eq!(bed.errno(read), Some(Errno::IO.raw_os_error()));
    bed.answer(again, Err(Errno::AGAIN));
    assert_eq!(bed.errno(waits), Some(Errno::AGAIN.raw_os_error()));
    // And so it is to the successor of this frontend.
    let ledger = std::mem::take(&mut bed.outside.0.borrow_mut().ledger);
    let records: Records = ledger.into_iter().collect();
    bed.core = Core::new(bed.outside.clone(), 0, 0, true);
    bed.core.take_over(records);
    assert_eq!(bed.core.check_lost(bed.fh), Err(Errno::IO));
}

/// A program was refused another mode, had no lock any more, and got it again from the next server.
#[test]
fn a_lock_that_is_given_up_for_another_mode_is_not_claimed() {
    let mut bed = Bed::new();
    let shared = bed.flock(SHARED);
    bed.answer_all(Ok(b""));
    assert_eq!(bed.errno(shared), Some(0));
    assert!(bed.outside.0.borrow().ledger.contains_key(&LOCKS_SLOT));
    let exclusive = bed.flock(EXCLUSIVE);
    bed.answer_all(Err(Errno::AGAIN));
    assert_eq!(bed.errno(exclusive), Some(Errno::AGAIN.raw_os_error()));
    assert!(!bed.outside.0.borrow().ledger.contains_key(&LOCKS_SLOT));
}

#[test]
fn locks_survive_the_ledger() {
    let mut bed = Bed::new();
    bed.lock();
    bed.answer_all(Ok(b""));
    let ledger = std::mem::take(&mut bed.outside.0.borrow_mut().ledger);
    let before: Vec<(u64, Held)> = bed.core.locks.table.all().map(|(node, held)| (node, *held)).collect();
    bed.core = Core::new(bed.outside.clone(), 0, 0, true);
    let mut records: Records = ledger.into_iter().collect();
    records.sort();
    bed.core.take_over(records);
    let after: Vec<(u64, Held)> = bed.core.locks.table.all().map(|(node, held)| (node, *held)).collect();
    assert_eq!((before.len(), after), (1, before));
}
