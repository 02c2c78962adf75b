//! A frontend that dies after each single effect it has on the world, and after each two; what
//! programs see has to be the same.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use polyfuse_kernel as fuse;
use rustix::io::Errno;
use wire::control::{MountedService, Reply, Request};
use wire::service::{Behaviour, Export, FileExport, SESSION_NONE, VERSION};
use zerocopy::{FromBytes, IntoBytes};

use super::{Answer, Core, DEFAULTS_FIRST, NewLink};
use crate::abi;
use crate::host::{Host, Outgoing};
use crate::tree::Node;

const GET: u32 = 0x8008_5407;
const ADD: u32 = 0x4008_5402;
const QUERY: u32 = 0;
const CTL: u32 = 1;
const ONCE: u32 = 2;
const ONCE_CTL: u32 = 3;
const LONG: u32 = 4;
/// Bytes of the text of [`LONG`].
const LONG_BYTES: usize = 1 << 20;

/// The state that outlives a frontend.
#[derive(Default)]
struct World {
    ledger: BTreeMap<usize, Vec<u8>>,
    /// The replies to the kernel, by request.
    replies: HashMap<u64, (i32, Vec<u8>)>,
    sent: VecDeque<Outgoing>,
    asked: Vec<Request>,
    /// Effects that are left before the next death, and the deaths after it.
    left: Option<u64>,
    deaths: VecDeque<u64>,
    dead: bool,
    effects: u64,
    twice: Vec<u64>,
}

impl World {
    /// Counts an effect; false: it does not happen any more.
    fn happens(&mut self) -> bool {
        if self.left == Some(0) {
            self.dead = true;
        }
        if self.dead {
            return false;
        }
        self.effects += 1;
        self.left = self.left.map(|left| left - 1);
        true
    }
}

#[derive(Clone, Default)]
struct Outside(Rc<RefCell<World>>);

impl Host for Outside {
    fn reply(&mut self, unique: u64, errno: i32, parts: &[&[u8]]) -> bool {
        let mut world = self.0.borrow_mut();
        if world.happens() {
            let key = unique & !abi::FUSE_UNIQUE_RESEND;
            if world.replies.insert(key, (errno, parts.concat())).is_some() {
                world.twice.push(key);
            }
        }
        true
    }

    fn notify_poll(&mut self, _: u64) {}

    fn save(&mut self, slot: usize, record: &[u8]) {
        let mut world = self.0.borrow_mut();
        if world.happens() {
            world.ledger.insert(slot, record.to_vec());
        }
    }

    fn clear(&mut self, slot: usize) {
        let mut world = self.0.borrow_mut();
        if world.happens() {
            world.ledger.remove(&slot);
        }
    }

    fn send(&mut self, _: usize, message: Outgoing) {
        let mut world = self.0.borrow_mut();
        if world.happens() {
            world.sent.push_back(message);
        }
    }

    fn unlink(&mut self, _: usize) {}

    fn ask(&mut self, request: &Request) {
        self.0.borrow_mut().asked.push(request.clone());
    }

    fn now(&self) -> u64 {
        1
    }
}

/// The backend's end of one link: it knows only the sessions that were opened over it.
#[derive(Default)]
struct Backend {
    values: HashMap<u64, u64>,
    /// The defaults, as its last control line set them.
    defaults: Vec<u8>,
    /// Lines, and data of ioctls, of the files that may not be asked twice.
    once: Vec<Vec<u8>>,
    /// Sessions of those files.
    once_sessions: Vec<u64>,
}

/// A kernel with one program, whose frontend dies now and then.
struct Machine {
    outside: Outside,
    core: Core<Outside>,
    link: NewLink,
    backend: Backend,
    unique: u64,
    seen: Vec<(i32, Vec<u8>)>,
}

fn export() -> Export {
    let file = |id, name: &str, behaviour, idempotent| FileExport {
        id,
        name: Some(name.into()),
        mode: 0o666,
        behaviour,
        idempotent,
        verb: "resolve".into(),
        change: None,
    };
    let files = vec![
        file(QUERY, "query", Behaviour::Session, true),
        file(CTL, "ctl", Behaviour::Control, true),
        file(ONCE, "once", Behaviour::Session, false),
        file(ONCE_CTL, "once-ctl", Behaviour::Control, false),
        file(LONG, "long", Behaviour::Text, true),
    ];
    Export { version: VERSION, kind: "directory".into(), files }
}

impl Machine {
    fn new(deaths: &[u64]) -> Self {
        let outside = Outside::default();
        let mut deaths: VecDeque<u64> = deaths.iter().copied().collect();
        outside.0.borrow_mut().left = deaths.pop_front();
        outside.0.borrow_mut().deaths = deaths;
        let core = Core::new(outside.clone(), 0, 0, true);
        let link = NewLink { service: 0, epoch: 0 };
        let mut machine =
            Self { outside, core, link, backend: Backend::default(), unique: 0, seen: Vec::new() };
        machine.core.introduce();
        machine.meet();
        machine
    }

    fn is_dead(&self) -> bool {
        self.outside.0.borrow().dead
    }

    /// The daemon introduces the frontend to a backend.
    fn meet(&mut self) {
        let asked = std::mem::take(&mut self.outside.0.borrow_mut().asked);
        let services = vec![MountedService {
            name: "dns".into(),
            kind: "directory".into(),
            at: "dns".into(),
            verbs: vec!["resolve".into()],
            up: true,
            generation: 1,
            targets: Vec::new(),
        }];
        for request in asked {
            if let Request::Services { id } = request {
                self.core.daemon_says(Reply::Services { id, services: services.clone() });
            }
        }
        let asked = std::mem::take(&mut self.outside.0.borrow_mut().asked);
        for request in asked {
            if let Request::Connect { id, .. } = request {
                self.link = self
                    .core
                    .daemon_says(Reply::Connected { id, channel: 1, memory: false })
                    .expect("a link");
                self.backend.values.clear();
                self.backend.defaults.clear();
                self.core.greeted(self.link.service, self.link.epoch, export());
            }
        }
        self.converse();
    }

    /// Lets the backend answer until nothing more is said.
    fn converse(&mut self) {
        loop {
            let Some(message) = self.outside.0.borrow_mut().sent.pop_front() else { return };
            let NewLink { service, epoch } = self.link;
            let (tag, result) = match message {
                Outgoing::Open { session: SESSION_NONE, tag, info, .. } => {
                    assert!(
                        self.backend.values.is_empty(),
                        "a session was opened before the defaults were back"
                    );
                    self.backend.defaults = info.capsule;
                    (tag, Ok(Vec::new()))
                }
                Outgoing::Open { session, tag, info, file } => {
                    if file == ONCE {
                        self.backend.once_sessions.push(session);
                    }
                    let value = <[u8; 8]>::try_from(&info.capsule[..]).map_or(0, u64::from_le_bytes);
                    assert!(self.backend.values.insert(session, value).is_none(), "opened twice");
                    (tag, Ok(Vec::new()))
                }
                Outgoing::Request { session, tag, file, line, .. } => {
                    assert!(session == 0 || self.backend.values.contains_key(&session), "no such session");
                    if file == ONCE || file == ONCE_CTL {
                        assert!(!self.backend.once.contains(&line), "a line was asked twice that may not be");
                        self.backend.once.push(line.clone());
                    }
                    let failed = line == b"fail";
                    let line = if file == LONG { vec![b'l'; LONG_BYTES - 1] } else { line };
                    let line = match file {
                        CTL if line.is_empty() => self.backend.defaults.clone(),
                        CTL if !failed => {
                            self.backend.defaults.clone_from(&line);
                            self.tell(|core| core.capsule(service, epoch, SESSION_NONE, &line));
                            line
                        }
                        _ => line,
                    };
                    (tag, if failed { Err(Errno::TIMEDOUT) } else { Ok([&line[..], b"\n"].concat()) })
                }
                Outgoing::Control { session, tag, number, data } => {
                    if self.backend.once_sessions.contains(&session) {
                        assert!(
                            !self.backend.once.contains(&data),
                            "an ioctl was made twice that may not be"
                        );
                        self.backend.once.push(data.clone());
                    }
                    let value = self.backend.values.get_mut(&session).expect("a session");
                    if number == ADD {
                        *value += u64::from_le_bytes(data.try_into().expect("eight bytes"));
                        let capsule = value.to_le_bytes();
                        self.tell(|core| core.capsule(service, epoch, session, &capsule));
                        (tag, Ok(Vec::new()))
                    } else {
                        (tag, Ok(value.to_le_bytes().to_vec()))
                    }
                }
                Outgoing::Close { session } => {
                    self.backend.values.remove(&session).expect("a session");
                    continue;
                }
                Outgoing::Cancel { .. } => continue,
                other @ (Outgoing::Tree { .. } | Outgoing::Credit { .. }) => {
                    unreachable!("no file here has a tree or a stream behind it: {other:?}")
                }
            };
            let result = result.as_deref().map_err(|errno| *errno);
            self.tell(|core| core.answered(service, epoch, Answer { tag, result, phases: Vec::new() }));
        }
    }

    /// Says something to the frontend, if it lives.
    fn tell(&mut self, say: impl FnOnce(&mut Core<Outside>)) {
        if !self.is_dead() {
            say(&mut self.core);
        }
    }

    /// Replaces a dead frontend.
    fn revive(&mut self) {
        let records: Vec<_> = {
            let mut world = self.outside.0.borrow_mut();
            world.dead = false;
            world.left = world.deaths.pop_front();
            world.asked.clear();
            world.ledger.iter().map(|(&slot, record)| (slot, record.clone())).collect()
        };
        self.core = Core::new(self.outside.clone(), 0, 0, true);
        assert!(self.core.take_over(records), "the kernel sends again");
        self.core.introduce();
        self.core.wake_all();
    }

    /// One call of the program.
    fn call(&mut self, opcode: u32, node: u64, body: &[u8]) -> (i32, Vec<u8>) {
        self.unique += 2;
        let mut unique = self.unique;
        loop {
            let bytes = size_of::<fuse::fuse_in_header>() + body.len();
            let head = fuse::fuse_in_header {
                len: bytes as u32,
                opcode,
                unique,
                nodeid: node,
                ..Default::default()
            };
            self.core.request(&[head.as_bytes(), body].concat());
            self.converse();
            // The kernel sends again before the daemon has a new channel, or after; both happen.
            while self.is_dead() {
                self.revive();
                self.meet();
            }
            if let Some(reply) = self.outside.0.borrow().replies.get(&self.unique).cloned() {
                self.seen.push(reply.clone());
                return reply;
            }
            unique = self.unique | abi::FUSE_UNIQUE_RESEND;
        }
    }

    fn open(&mut self, file: u32) -> u64 {
        let (errno, reply) = self.call(
            fuse::FUSE_OPEN,
            Node::File(0, file).number(),
            fuse::fuse_open_in { flags: 2, unused: 0 }.as_bytes(),
        );
        assert_eq!(errno, 0);
        fuse::fuse_open_out::read_from_bytes(&reply).expect("an open file").fh
    }

    fn write(&mut self, fh: u64, data: &[u8]) -> i32 {
        let write = fuse::fuse_write_in { fh, size: data.len() as u32, ..Default::default() };
        self.call(fuse::FUSE_WRITE, 0, &[write.as_bytes(), data].concat()).0
    }

    fn read(&mut self, fh: u64, size: u32) -> (i32, Vec<u8>) {
        self.call(
            fuse::FUSE_READ,
            0,
            fuse::fuse_read_in { fh, size, read_flags: fuse::FUSE_READ_LOCKOWNER, ..Default::default() }
                .as_bytes(),
        )
    }

    fn ioctl(&mut self, fh: u64, cmd: u32, data: &[u8], out_size: u32) -> (i32, Vec<u8>) {
        let ioctl =
            fuse::fuse_ioctl_in { fh, cmd, in_size: data.len() as u32, out_size, ..Default::default() };
        self.call(fuse::FUSE_IOCTL, 0, &[ioctl.as_bytes(), data].concat())
    }

    fn release(&mut self, fh: u64) {
        self.call(fuse::FUSE_RELEASE, 0, fuse::fuse_release_in { fh, ..Default::default() }.as_bytes());
    }

    fn init(&mut self) {
        let init = abi::InitIn {
            major: 7,
            minor: 45,
            flags: abi::FUSE_INIT_EXT,
            flags2: abi::FUSE_HAS_RESEND,
            ..Default::default()
        };
        self.call(fuse::FUSE_INIT, 0, init.as_bytes());
    }

    /// The program on files that may be asked again.
    fn program(mut self) -> Self {
        self.init();
        let first = self.open(QUERY);
        self.write(first, b"one\ntwo\nfail\nhalf");
        self.read(first, 2);
        self.ioctl(first, ADD, &5_u64.to_le_bytes(), 0);
        let second = self.open(QUERY);
        self.read(first, 100);
        self.read(first, 100);
        self.write(second, b"other\n");
        self.write(first, b" a line\n");
        self.read(first, 100);
        self.read(first, 100);
        self.read(first, 100);
        self.ioctl(first, ADD, &37_u64.to_le_bytes(), 0);
        self.ioctl(first, GET, &[], 8);
        let ctl = self.open(CTL);
        self.write(ctl, b"a\nb\nfail\nc\n");
        self.read(ctl, 100);
        self.write(ctl, b"d");
        self.read(ctl, 100);
        self.release(ctl);
        self.read(second, 100);
        self.release(second);
        self.write(first, b"bad\0");
        self.ioctl(first, GET, &[], 8);
        self.release(first);
        self
    }

    fn effects(&self) -> u64 {
        self.outside.0.borrow().effects
    }

    /// Nothing is left over, and nobody was answered twice.
    fn check(&self, deaths: &[u64]) {
        let world = self.outside.0.borrow();
        assert!(world.twice.is_empty(), "{deaths:?}: answered twice: {:?}", world.twice);
        let slots: Vec<_> = world.ledger.keys().filter(|&&slot| slot != DEFAULTS_FIRST).collect();
        assert_eq!(slots, [&0], "{deaths:?}: the ledger keeps what is closed");
        assert!(self.core.pending.is_empty() && self.core.parked.is_empty(), "{deaths:?}: something waits");
        assert_eq!((self.core.open_handles, self.core.held), (0, 0), "{deaths:?}");
    }
}

#[test]
fn a_death_after_any_effect_is_not_seen() {
    let whole = Machine::new(&[]).program();
    whole.check(&[]);
    assert!(whole.seen.contains(&(Errno::TIMEDOUT.raw_os_error(), Vec::new())), "the program meets an error");
    let effects = whole.effects();
    assert!(effects > 60, "{effects} effects");
    for death in 0..effects {
        let other = Machine::new(&[death]).program();
        assert_eq!(other.seen, whole.seen, "died after {death} effects");
        other.check(&[death]);
    }
}

#[test]
fn two_deaths_are_not_seen_either() {
    let whole = Machine::new(&[]).program();
    for first in 0..whole.effects() {
        for second in 0..12 {
            let deaths = [first, second, second];
            let other = Machine::new(&deaths).program();
            assert_eq!(other.seen, whole.seen, "died {deaths:?}");
            other.check(&deaths);
        }
    }
}

#[test]
fn what_may_not_be_asked_again_is_never_asked_again() {
    let program = |mut machine: Machine| {
        machine.init();
        let fh = machine.open(ONCE);
        for round in 0..4 {
            machine.write(fh, format!("line {round}\n").as_bytes());
            let (errno, answer) = machine.read(fh, 100);
            let lost = errno == Errno::CONNRESET.raw_os_error() && answer.is_empty();
            let answered = errno == 0 && answer == format!("line {round}\n").as_bytes();
            assert!(lost || answered, "{errno} {answer:?}");
        }
        for round in 0..3_u64 {
            let (errno, _) = machine.ioctl(fh, ADD, &(1000 + round).to_le_bytes(), 0);
            assert!(errno == 0 || errno == Errno::CONNRESET.raw_os_error(), "{errno}");
        }
        machine.release(fh);
        let ctl = machine.open(ONCE_CTL);
        for round in 0..2 {
            let errno = machine.write(ctl, format!("a {round}\nb {round}\n").as_bytes());
            assert!(errno == 0 || errno == Errno::CONNRESET.raw_os_error(), "{errno}");
        }
        machine.release(ctl);
        machine
    };
    let whole = program(Machine::new(&[]));
    for first in 0..whole.effects() {
        for second in 0..10 {
            let deaths = [first, second];
            program(Machine::new(&deaths)).check(&deaths);
        }
    }
}

/// Programs of a domain had its frontend keep a gigabyte: each of the calls that may wait kept what
/// it wanted to write, and no sum was kept of it. The same of texts, of which each open file keeps
/// one.
#[test]
fn what_waiting_calls_and_texts_keep_has_a_bound() {
    const WRITE_BYTES: usize = 100 << 10;
    let mut machine = Machine::new(&[]);
    machine.init();
    let fh = machine.open(QUERY);
    let (mut refused, line) = (0, [&[b'x'; 1023][..], b"\n"].concat().repeat(WRITE_BYTES / 1024));
    for at in 0..200_u64 {
        let write = fuse::fuse_write_in { fh, size: WRITE_BYTES as u32, ..Default::default() };
        let body = [write.as_bytes(), &line[..]].concat();
        let head = fuse::fuse_in_header {
            len: (size_of::<fuse::fuse_in_header>() + body.len()) as u32,
            opcode: fuse::FUSE_WRITE,
            unique: 10_000 + 2 * at,
            ..Default::default()
        };
        machine.core.request(&[head.as_bytes(), &body].concat());
        let world = machine.outside.0.borrow();
        let reply = world.replies.get(&(10_000 + 2 * at));
        refused += usize::from(reply.is_some_and(|(errno, _)| *errno == Errno::DQUOT.raw_os_error()));
        assert!(machine.core.parked_bytes <= super::PARKED_BYTES_MAX);
    }
    assert!(refused > 100 && machine.core.parked.len() > 10, "{refused} were refused");
    machine.release(fh);
    assert_eq!((machine.core.parked_bytes, machine.core.parked.len()), (0, 0));
    let open = fuse::fuse_open_in { flags: 0, unused: 0 };
    let opened = (0..50).filter(|_| {
        let (errno, _) = machine.call(fuse::FUSE_OPEN, Node::File(0, LONG).number(), open.as_bytes());
        assert!(errno == 0 || errno == Errno::NOBUFS.raw_os_error(), "{errno}");
        errno == 0
    });
    let opened = opened.count();
    assert!((1..=2 * super::HELD_BYTES_MAX / LONG_BYTES).contains(&opened), "{opened} texts are kept");
    assert!(machine.core.held <= 2 * super::HELD_BYTES_MAX + LONG_BYTES);
}
