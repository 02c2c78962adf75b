//! Backends and frontends that die under open files, and backends that lie.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]

mod bed;

use std::process::Stdio;
use std::time::{Duration, Instant};

use bed::backend::{self, QUERY};
use bed::{Bed, Wishes, until};
use wire::control::Event;
use wire::service::{Export, Header, Kind, Phase, flags};

#[test]
#[ignore = "the other process of every test here"]
fn the_frontend_process() {
    bed::be_the_frontend();
}

/// A program that runs beside the test and says one line when it is where the test wants it.
struct Beside(std::process::Child);

impl Beside {
    fn python(bed: &Bed, program: &str) -> Self {
        let mut command = std::process::Command::new("timeout");
        command.args(["--kill-after=5", "60", "python3", "-uc", program]).current_dir(bed.srv());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = Vec::new();
        let mut byte = [0];
        while std::io::Read::read(child.stdout.as_mut().unwrap(), &mut byte).unwrap() == 1 && byte != *b"\n" {
            line.extend(byte);
        }
        assert_eq!(String::from_utf8_lossy(&line), "ready");
        Self(child)
    }

    fn go_on(&mut self) {
        std::io::Write::write_all(self.0.stdin.as_mut().unwrap(), b"\n").unwrap();
    }

    fn succeeds(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

#[test]
fn a_backend_is_replaced_under_open_files() {
    needs_fuse!();
    let bed = Bed::new();
    let mut beside = Beside::python(
        &bed,
        r"
import os, fcntl, struct, errno, sys
GET, ADD = 0x80085407, 0x40085402
f = os.open('dns/query', os.O_RDWR)
once = os.open('dns/once', os.O_RDWR)
fcntl.ioctl(f, ADD, struct.pack('Q', 42))
os.write(f, b'before\nhold one\nhold two\npart')
os.write(once, b'hold lost\n')
assert os.read(f, 100) == b'before\n'
print('ready')
sys.stdin.readline()
assert os.read(f, 100) == b'one\n'
assert os.read(f, 100) == b'two\n'
os.write(f, b'ial\n')
assert os.read(f, 100) == b'partial\n'
assert struct.unpack('Q', fcntl.ioctl(f, GET, b'\0' * 8)) == (42,), 'the capsule came along'
try: os.read(once, 100); assert False
except ConnectionResetError: pass
os.write(once, b'after\n')
assert os.read(once, 100) == b'after\n'
",
    );
    until("both are held", || bed.daemon.backend(|state| state.held.len()) == Some(3));
    bed.daemon.kill_backend();
    bed.daemon.say_down();
    until("the link is gone", || bed.daemon.inspect()["services"]["dns"]["up"] == false);
    assert_eq!(bed.ok("ls dns"), "ctl\nonce\nquery\nsecret\nstatus\n", "it stays visible");
    let nonblock = "import os\ntry: os.open('dns/query', os.O_RDWR | os.O_NONBLOCK); assert False\nexcept BlockingIOError: pass";
    bed.python(nonblock);
    let mut waiting = bed.command("exec 3<>dns/query; echo waited >&3; cat <&3; cat dns/status | head -1");
    let waiting = waiting.spawn().unwrap();
    beside.go_on();
    bed.daemon.say_up();
    until("they are asked again", || bed.daemon.backend(|state| state.held.len()) == Some(2));
    bed.daemon.release();
    beside.succeeds();
    let output = waiting.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "waited\nstatus 1\n");
}

#[test]
fn the_domains_defaults_go_on_with_the_next_backend_and_the_next_frontend() {
    needs_fuse!();
    let mut bed = Bed::new();
    let restored = |bed: &Bed| bed.daemon.backend(|state| state.restored.clone()).unwrap_or_default();
    let mut beside = Beside::python(
        &bed,
        "import os, sys\nf = os.open('dns/query', os.O_RDWR)\nprint('ready')\nsys.stdin.readline()\n\
         os.write(f, b'x\\n')\nassert os.read(f, 9) == b'x\\n'",
    );
    assert!(restored(&bed).is_empty(), "nothing was set, nothing is handed over");
    bed.ok("echo one > dns/ctl; echo two > dns/ctl");
    assert!(!bed.sh("echo bad > dns/ctl").status.success());
    let next_backend = |bed: &Bed| {
        bed.daemon.kill_backend();
        bed.daemon.say_up();
    };
    next_backend(&bed);
    assert_eq!(bed.ok("cat dns/ctl"), "two\n", "the first that the next backend hears");
    until("the session is open again", || bed.daemon.backend(|state| state.sessions.len()) == Some(1));
    assert_eq!(restored(&bed), [("two".to_owned(), 0)], "before any session");

    // The frontend's successor finds them in the ledger, and so does a third backend.
    bed.kill();
    bed.start(true);
    assert_eq!(bed.ok("cat dns/ctl"), "two\n");
    next_backend(&bed);
    assert_eq!(bed.ok("cat dns/ctl; echo three > dns/ctl; cat dns/ctl"), "two\ntwo\nthree\n");
    beside.go_on();
    beside.succeeds();

    // Refused once is forgotten: the one after is not asked.
    bed.daemon.script(|script| script.refuses_defaults = true);
    next_backend(&bed);
    until("they were refused", || restored(&bed).len() == 1);
    assert_eq!(bed.ok("cat dns/ctl"), "\n");
    bed.daemon.script(|script| script.refuses_defaults = false);
    next_backend(&bed);
    assert_eq!(bed.ok("cat dns/ctl"), "\n");
    assert!(restored(&bed).is_empty());
    bed.kill();
    bed.start(true);
    assert_eq!(bed.ok("cat dns/ctl"), "\n", "not by a successor either");
    assert!(restored(&bed).is_empty());
}

#[test]
fn a_service_that_was_taken_away_takes_its_defaults_along() {
    needs_fuse!();
    let bed = Bed::new();
    bed.ok("echo one > dns/ctl");
    bed.daemon.tell(&Event::Services { services: Vec::new() });
    until("it is gone", || !bed.path("dns").exists());
    bed.daemon.kill_backend();
    bed.daemon.mounts(|mounted| mounted.generation += 1);
    until("it is back", || bed.path("dns/ctl").exists());
    assert_eq!(bed.ok("cat dns/ctl"), "\n");
}

#[test]
fn whoever_waits_too_long_for_a_backend_is_told_so() {
    needs_fuse!();
    let bed = Bed::new();
    bed.ok("ls dns");
    bed.daemon.kill_backend();
    bed.daemon.say_down();
    until("the link is gone", || bed.daemon.inspect()["services"]["dns"]["up"] == false);
    let begun = Instant::now();
    bed.python(
        r"
import os, errno, threading
results = []
def refused(path, flags, act):
    try: f = os.open(path, flags); act(f); results.append((path, 0))
    except OSError as e: results.append((path, e.errno))
threads = [threading.Thread(target=refused, args=a) for a in (
    ('dns/query', os.O_RDWR, lambda f: None),
    ('dns/status', os.O_RDONLY, lambda f: None),
    ('dns/ctl', os.O_WRONLY, lambda f: os.write(f, b'x\n')),
    ('dns/ctl', os.O_RDONLY, lambda f: os.read(f, 10)))]
[t.start() for t in threads]; [t.join() for t in threads]
assert [e for _, e in results] == [errno.EHOSTDOWN] * 4, results
",
    );
    let took = begun.elapsed();
    assert!((9..14).contains(&took.as_secs()), "{took:?}");
    until("all is closed", || bed.daemon.inspect()["counters"]["open_files"] == 0);
}

#[test]
fn a_program_may_be_faster_than_the_first_backend() {
    needs_fuse!();
    let bed = Bed::with(Wishes { up: false, ..Wishes::default() });
    let child = bed.command("exec 3<>dns/query; echo early >&3; cat <&3").spawn().unwrap();
    until("it waits", || bed.daemon.inspect()["counters"]["parked_calls"].as_u64() > Some(0));
    bed.daemon.say_up();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "early\n");
}

/// Raw answers of a backend that lies, each of which has to end its link.
fn lies() -> Vec<(&'static str, backend::Raw)> {
    fn to(header: &Header) -> Header {
        Header { session: header.session, tag: header.tag, ..Header::new(Kind::Response) }
    }
    vec![
        ("an unknown tag", |h| vec![backend::message(Header { tag: 1 << 40, ..to(h) }, b"x")]),
        ("tag 0", |h| vec![backend::message(Header { tag: 0, ..to(h) }, b"x")]),
        ("endless pieces", |h| {
            let piece = backend::message(Header { flags: flags::MORE, ..to(h) }, &[b'x'; 90_000]);
            vec![piece; 20]
        }),
        ("a lying length", |h| {
            let mut message = backend::message(to(h), b"x");
            message[28] = 200;
            vec![message]
        }),
        ("a lying trailer", |h| {
            vec![backend::message(Header { flags: flags::TRACE, file: 1200, ..to(h) }, b"x")]
        }),
        ("no message", |_| vec![vec![1, 2, 3]]),
        ("a second greeting", |_| vec![backend::message(Header::new(Kind::Hello), b"{}")]),
        ("a consumer's kind", |_| vec![backend::message(Header::new(Kind::Close), b"")]),
        ("a huge capsule", |h| {
            vec![backend::message(Header { session: h.session, ..Header::new(Kind::Capsule) }, &[0; 4000])]
        }),
        ("a status that is none", |h| vec![backend::message(Header { status: 1 << 20, ..to(h) }, b"")]),
    ]
}

#[test]
fn a_backend_that_lies_loses_its_link_and_nothing_else() {
    needs_fuse!();
    let bed = Bed::new();
    for (lie, instead) in lies() {
        let before = bed.daemon.inspect()["counters"]["violations"].as_u64().unwrap();
        bed.daemon.script(|script| script.instead = Some(instead));
        bed.daemon.kill_backend();
        bed.daemon.say_up();
        until("the hostile peer is there", || bed.daemon.inspect()["services"]["dns"]["up"] == true);
        let mut asker = bed.command("exec 3<>dns/query; echo lie >&3; cat <&3").spawn().unwrap();
        until(lie, || bed.daemon.inspect()["counters"]["violations"].as_u64().unwrap() > before);
        bed.daemon.script(|script| script.instead = None);
        bed.daemon.kill_backend();
        bed.daemon.say_up();
        assert!(asker.wait().unwrap().success(), "{lie}: the request goes to the next backend");
    }
    // Late answers to what was cancelled, and capsules of strangers, are no lies.
    let harmless: backend::Raw = |h| {
        let answer = Header { session: h.session, tag: h.tag, ..Header::new(Kind::Response) };
        let mut traced = b"fine\n".to_vec();
        let trailer = Phase::append(&[Phase { phase: 999, nanoseconds: u64::MAX }], &mut traced);
        vec![
            backend::message(Header { session: 12345, ..Header::new(Kind::Capsule) }, b"x"),
            backend::message(Header { flags: flags::TRACE, file: trailer, ..answer }, &traced),
            backend::message(answer, b"twice\n"),
        ]
    };
    bed.daemon.script(|script| script.instead = Some(harmless));
    bed.daemon.kill_backend();
    bed.daemon.say_up();
    let before = bed.daemon.inspect()["counters"]["violations"].clone();
    assert_eq!(bed.ok("exec 3<>dns/query; echo x >&3; cat <&3"), "fine\n");
    assert_eq!(bed.daemon.inspect()["counters"]["violations"], before);
}

#[test]
fn exports_that_are_no_folder_are_refused() {
    needs_fuse!();
    let bed = Bed::with(Wishes { up: false, ..Wishes::default() });
    let session = wire::service::Behaviour::Session;
    let bad = |name: &str| Export {
        files: vec![backend::file(QUERY, name, 0o666, session, true, "resolve")],
        ..backend::export()
    };
    let many =
        (0..5000).map(|id| backend::file(id, &format!("f{id}"), 0o666, session, true, "resolve")).collect();
    let huge = Export { files: many, ..backend::export() };
    for export in [bad("../../etc/passwd"), bad(".."), bad("a/b"), bad(""), bad("a\nb"), huge] {
        let before = bed.daemon.inspect()["counters"]["violations"].as_u64().unwrap();
        bed.daemon.script(|script| {
            let fits = serde_json::to_vec(&export).unwrap().len() < 100_000;
            let mut export = export.clone();
            if !fits {
                export.files.truncate(500);
            }
            script.export = Some(export);
        });
        bed.daemon.kill_backend();
        bed.daemon.say_up();
        until("it is refused", || bed.daemon.inspect()["counters"]["violations"].as_u64().unwrap() > before);
    }
    bed.daemon.script(|script| script.export = None);
    bed.daemon.kill_backend();
    bed.daemon.say_up();
    assert_eq!(bed.ok("ls dns"), "ctl\nonce\nquery\nsecret\nstatus\n");
}

#[test]
fn a_successor_takes_over_open_files_and_blocked_calls() {
    needs_fuse!();
    let mut bed = Bed::new();
    let mut beside = Beside::python(
        &bed,
        r"
import os, fcntl, struct, threading, select, sys
GET, ADD = 0x80085407, 0x40085402
f = os.open('dns/query', os.O_RDWR)
g = os.open('dns/query', os.O_RDWR)
p = os.open('dns/query', os.O_RDWR)
once = os.open('dns/once', os.O_RDWR)
ctl = os.open('dns/ctl', os.O_RDWR)
text = open('dns/status', 'rb', buffering=0)
fcntl.ioctl(f, ADD, struct.pack('Q', 7))
os.write(g, b'unread\nhalf read\npar')
os.write(once, b'hold lost\n')
os.write(p, b'hold polled\n')
assert text.read(7) == b'status '
got = {}
def blocked(name, act):
    def run():
        try: got[name] = act()
        except OSError as e: got[name] = e.errno
    t = threading.Thread(target=run); t.start(); return t
os.write(f, b'hold blocked\n')
threads = [blocked('read', lambda: os.read(f, 100)),
           blocked('poll', lambda: select.select([p], [], [], 20)[0]),
           blocked('ctl', lambda: os.write(ctl, b'hold\n'))]
import time; time.sleep(0.2)
print('ready')
sys.stdin.readline()
[t.join() for t in threads]
assert got == {'read': b'blocked\n', 'poll': [p], 'ctl': 5}, got
assert os.read(p, 100) == b'polled\n'
assert os.read(g, 100) == b'unread\n'
assert os.read(g, 4) == b'half'
assert os.read(g, 100) == b' read\n'
os.write(g, b'tial\n')
assert os.read(g, 100) == b'partial\n'
assert os.read(g, 100) == b''
assert struct.unpack('Q', fcntl.ioctl(f, GET, b'\0' * 8)) == (7,)
assert text.read(4)
try: os.read(once, 100); assert False
except ConnectionResetError: pass
",
    );
    until("all are held", || bed.daemon.backend(|state| state.held.len()) == Some(4));
    bed.kill();
    let begun = Instant::now();
    bed.start(true);
    let early = bed.ok("stat -c %s dns/query; exec 3<>dns/query; echo new >&3; cat <&3");
    eprintln!("a successor answers {:?} after it was started", begun.elapsed());
    assert_eq!(early, "4096\nnew\n");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    until("they are asked again", || {
        bed.daemon.release();
        bed.daemon.backend(|state| state.asked.iter().filter(|line| line.starts_with("hold")).count())
            >= Some(2)
    });
    until("all are answered", || {
        bed.daemon.release();
        bed.daemon.inspect()["counters"]["parked_calls"] == 0
    });
    beside.go_on();
    beside.succeeds();
    let state = bed.daemon.inspect();
    assert_eq!(state["counters"]["takeovers"], 1);
    until("all is closed", || bed.daemon.inspect()["counters"]["open_files"] == 0);
}

#[test]
fn a_frontend_may_die_before_it_has_begun() {
    needs_fuse!();
    let mut bed = Bed::new();
    for _ in 0..10 {
        bed.kill();
        bed.start(true);
    }
    assert_eq!(bed.ok("exec 3<>dns/query; echo alive >&3; cat <&3"), "alive\n");
}

#[test]
fn a_frontend_may_die_at_any_moment_under_load() {
    needs_fuse!();
    let mut bed = Bed::new();
    let seed = u64::from(std::process::id()) ^ Instant::now().elapsed().subsec_nanos() as u64;
    eprintln!("seed {seed}");
    let mut beside = Beside::python(
        &bed,
        r"
import os, threading, random, sys, time, select, fcntl, struct
print('ready')
stop = threading.Event()
errors, rounds = [], [0]
def hammer(seed):
    rng = random.Random(seed)
    n = 0
    try:
        while not stop.is_set():
            f = os.open('dns/query', os.O_RDWR)
            for _ in range(rng.randrange(1, 6)):
                asked = []
                for _ in range(rng.randrange(1, 6)):
                    n += 1
                    asked.append(f'{seed}-{n}-' + 'x' * rng.randrange(0, 3000))
                data = ''.join(a + '\n' for a in asked).encode()
                cut = rng.randrange(0, len(data))
                for piece in (data[:cut], data[cut:]):
                    if piece: assert os.write(f, piece) == len(piece)
                if rng.randrange(2): select.select([f], [], [])
                got = b''
                while len(got) < len(data):
                    piece = os.read(f, rng.choice((100, 100000)))
                    assert piece, ('end of file', seed, n, len(got), len(data))
                    got += piece
                assert got == data, (seed, n, got[:50], data[:50])
            assert os.read(f, 10) == b''
            for i in range(3):
                fcntl.ioctl(f, 0x40085402, struct.pack('Q', 1))
                value = struct.unpack('Q', fcntl.ioctl(f, 0x80085407, bytes(8)))[0]
                assert value == i + 1, ('an ioctl was done', value, 'times instead of', i + 1)
            os.close(f)
            rounds[0] += 1
            if rng.randrange(5) == 0:
                w = os.open('dns/ctl', os.O_WRONLY); os.write(w, b'x\n'); os.close(w)
                assert os.listdir('dns')
    except BaseException as e:
        errors.append(repr(e)); stop.set()
threads = [threading.Thread(target=hammer, args=(i,)) for i in range(8)]
[t.start() for t in threads]
sys.stdin.readline()
stop.set()
[t.join() for t in threads]
print('rounds', rounds[0], file=sys.stderr)
assert not errors, errors
assert rounds[0] > 20
",
    );
    let mut random = seed | 1;
    let kills = std::env::var("KILLS").map_or(25, |kills| kills.parse().unwrap());
    for _ in 0..kills {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // tidy(sleep): the death comes at a random moment, not after an event
        std::thread::sleep(Duration::from_micros(random % 120_000));
        if random.is_multiple_of(4) {
            bed.daemon.kill_backend();
            bed.daemon.say_up();
        }
        bed.kill();
        bed.start(true);
    }
    beside.go_on();
    beside.succeeds();
    until("all is closed", || bed.daemon.inspect()["counters"]["open_files"] == 0);
    let state = bed.daemon.inspect();
    eprintln!("{}", state["counters"]);
    // A successor that was killed before it had begun is none.
    assert!((1..=kills).contains(&state["counters"]["takeovers"].as_u64().unwrap()));
    assert_eq!(state["counters"]["held_bytes"], 0);
}

#[test]
fn a_backend_may_die_at_any_moment_under_load() {
    needs_fuse!();
    let bed = Bed::new();
    let mut beside = Beside::python(
        &bed,
        r"
import os, threading, sys
print('ready')
stop = threading.Event(); errors = []; rounds = [0]
def hammer(seed):
    n = 0
    try:
        f = os.open('dns/query', os.O_RDWR)
        while not stop.is_set():
            n += 1
            asked = f'{seed}-{n}\n'.encode()
            os.write(f, asked)
            assert os.read(f, 100) == asked
            rounds[0] += 1
    except BaseException as e: errors.append(repr(e))
threads = [threading.Thread(target=hammer, args=(i,)) for i in range(8)]
[t.start() for t in threads]
sys.stdin.readline(); stop.set()
[t.join() for t in threads]
assert not errors, errors
assert rounds[0] > 20
",
    );
    for round in 0..20_u64 {
        // tidy(sleep): the death comes at some moment, not after an event
        std::thread::sleep(Duration::from_millis(round * 7 % 50));
        bed.daemon.kill_backend();
        bed.daemon.say_up();
    }
    beside.go_on();
    beside.succeeds();
}

#[test]
fn a_backend_that_does_not_listen_blocks_nobody_else() {
    needs_fuse!();
    let bed = Bed::new();
    let mut beside = Beside::python(
        &bed,
        r"
import os, sys
files = [os.open('dns/query', os.O_RDWR) for _ in range(20)]
deaf = os.open('dns/once', os.O_RDWR)
os.write(deaf, b'deaf\n')
line = b'x' * 60000 + b'\n'
for f in files: os.write(f, line)
print('ready')
sys.stdin.readline()
for f in files:
    got = b''
    while len(got) < len(line): got += os.read(f, 1 << 20)
    assert got == line
try: os.read(deaf, 10); assert False
except ConnectionResetError: pass
",
    );
    until("it is deaf", || bed.daemon.backend(|state| state.deaf) == Some(true));
    // 1.2 MB are asked through a ring of 256 KiB that nobody empties.
    let begun = Instant::now();
    assert_eq!(bed.ok("ls dns; cat self/name").lines().count(), 6);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    bed.daemon.kill_backend();
    bed.daemon.say_up();
    beside.go_on();
    beside.succeeds();
}

#[test]
fn a_kernel_that_sends_nothing_again_leaves_an_honest_error() {
    needs_fuse!();
    let mut bed = Bed::with(Wishes { resend: false, ..Wishes::default() });
    let mut beside = Beside::python(
        &bed,
        r"
import os, threading, sys, errno, time
f = os.open('dns/query', os.O_RDWR)
g = os.open('dns/query', os.O_RDWR)
os.write(g, b'kept\n')
os.write(f, b'hold x\n')
got = []
def run():
    try: got.append(os.read(f, 100))
    except OSError as e: got.append(e.errno)
t = threading.Thread(target=run); t.start()
time.sleep(0.2)
print('ready')
sys.stdin.readline()
t.join()
assert got == [errno.EIO], got
assert os.read(g, 100) == b'kept\n', 'what nobody had asked for goes on'
",
    );
    bed.kill();
    bed.start(true);
    assert_eq!(bed.ok("exec 3<>dns/query; echo new >&3; cat <&3"), "new\n");
    assert_eq!(bed.daemon.inspect()["fuse"]["resend"], false);
    beside.go_on();
    beside.succeeds();
}

#[test]
fn a_daemon_that_dies_takes_nothing_with_it() {
    needs_fuse!();
    let bed = Bed::new();
    assert_eq!(bed.ok("exec 3<>dns/query; echo one >&3; cat <&3"), "one\n");
    bed.daemon.die();
    assert_eq!(bed.ok("exec 3<>dns/query; echo two >&3; cat <&3; cat self/name"), "two\nweb\n");
}
