//! Programs on a real mount: names, sessions, controls, texts.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]

mod bed;

use bed::Bed;

#[test]
#[ignore = "the other process of every test here"]
fn the_frontend_process() {
    bed::be_the_frontend();
}

#[test]
fn a_shell_that_only_knows_files_gets_its_answer() {
    needs_fuse!();
    let bed = Bed::new();
    assert_eq!(bed.ok("exec 3<>dns/query; echo hello >&3; cat <&3"), "hello\n");
    assert_eq!(
        bed.ok("exec 3<>dns/query; printf 'one\\ntwo\\nthree' >&3; cat <&3; cat <&3"),
        "one\ntwo\nthree\n"
    );
}

/// A shell and a cat of busybox, as they are in the smallest of roots: its cat sends by
/// sendfile(2), which goes through the page cache unless it is refused, and once gave the first
/// bytes of an answer and lost the rest.
#[test]
fn programs_that_send_files_get_whole_answers() {
    needs_fuse!();
    let bed = Bed::new();
    let busybox = |line: &str| bed.ok(&format!("busybox sh -c '{line}'"));
    if !bed.sh("command -v busybox").status.success() {
        println!("skipped: needs busybox; apt-get install busybox-static");
        return;
    }
    for _ in 0..3 {
        assert_eq!(busybox("exec 3<>dns/query; echo a-question >&3; busybox cat <&3"), "a-question\n");
    }
    assert_eq!(busybox("busybox cat dns/ctl"), bed.ok("cat dns/ctl"));
    assert_eq!(busybox("busybox cat self/name"), bed.ok("cat self/name"));
    assert_eq!(busybox("busybox cat dns/ctl | busybox wc -c"), bed.ok("cat dns/ctl | wc -c"));
}

#[test]
fn listings_look_sane() {
    needs_fuse!();
    let bed = Bed::new();
    let listing = bed.ok("ls -ln dns");
    eprintln!("{listing}");
    assert!(listing.contains("-rw-rw-rw- 1 0 0 4096 "), "{listing}");
    assert!(listing.contains("-rw-r--r-- 1 0 0 4096 "), "{listing}");
    assert!(listing.contains("---------- 1 0 0 4096 "), "{listing}");
    assert_eq!(listing.lines().count(), 6);
    assert_eq!(bed.ok("ls"), "dns\nself\n");
    assert_eq!(
        bed.ok("ls self"),
        "about.json\ncounters\nhandover\nlatency\nlevel\nname\nquality\nservices\ntargets\ntrace\n"
    );
    assert_eq!(bed.ok("find . | sort | wc -l").trim(), "18");
    assert_eq!(
        bed.ok("stat -c '%F %h %a' . dns dns/ctl"),
        "directory 4 555\ndirectory 2 555\nregular file 1 644\n"
    );
    let age = bed.ok("echo $(( $(date +%s) - $(stat -c %Y dns/query) ))");
    assert!((0..60).contains(&age.trim().parse::<i64>().unwrap()), "{age}");
    assert_eq!(bed.ok("ls -di . dns/query | wc -l; find . -printf '%i\\n' | sort -u | wc -l"), "2\n18\n");
    bed.ok("df . >/dev/null");
}

#[test]
fn one_read_gives_one_answer_and_the_rest_of_it_waits_for_the_next() {
    needs_fuse!();
    let bed = Bed::new();
    bed.python(
        r"
import os
f = os.open('dns/query', os.O_RDWR)
assert os.read(f, 100) == b'', 'nothing asked, nothing to read'
assert os.write(f, b'one\ntwo\n\n\nthr') == 13
assert os.read(f, 2) == b'on'
assert os.read(f, 100) == b'e\n'
assert os.read(f, 100) == b'two\n'
assert os.write(f, b'ee') == 2
assert os.read(f, 100) == b'three\n', 'a read ends the line'
assert os.read(f, 100) == b''
assert os.read(f, 100) == b''
os.write(f, b'big 200000\n')
got = 0
while True:
    piece = os.read(f, 1 << 20)
    if not piece: break
    got += len(piece)
assert got == 200000, got
os.write(f, b'empty\nafter\n')
assert os.read(f, 100) == b'after\n', 'an empty answer is no end of file'
",
    );
}

#[test]
fn a_failed_request_fails_one_read() {
    needs_fuse!();
    let bed = Bed::new();
    bed.python(
        r"
import os, errno
f = os.open('dns/query', os.O_RDWR)
os.write(f, b'one\nfail 110\ntwo\nfail 2\n')
assert os.read(f, 100) == b'one\n'
try: os.read(f, 100); assert False
except TimeoutError: pass
assert os.read(f, 100) == b'two\n'
try: os.read(f, 100); assert False
except FileNotFoundError: pass
assert os.read(f, 100) == b''
# An errno that the kernel keeps for itself becomes EIO.
os.write(f, b'fail 512\n')
try: os.read(f, 100); assert False
except OSError as e: assert e.errno == errno.EIO, e
",
    );
}

#[test]
fn bad_lines_are_refused_whole() {
    needs_fuse!();
    let bed = Bed::new();
    bed.python(
        r"
import os, errno
f = os.open('dns/query', os.O_RDWR)
def refused(data, wanted):
    try: n = os.write(f, data); assert False, f'{n} bytes taken'
    except OSError as e: assert e.errno == wanted, e
refused(b'x' * 65537 + b'\n', errno.EMSGSIZE)
refused(b'x' * (1 << 20), errno.EMSGSIZE)
refused(b'good\nb\0d\n', errno.EINVAL)
assert os.write(f, b'x' * 65000) == 65000
refused(b'x' * 537, errno.EMSGSIZE)
assert os.read(f, 100) == b'', 'nothing of all that was asked'
assert os.write(f, b'y' * 65536 + b'\n') == 65537
assert os.read(f, 1 << 20) == b'y' * 65536 + b'\n'
for junk in (b'\xff\xfe\n', b'\r\n', b'\x1b[2J\n'):
    os.write(f, junk); assert os.read(f, 100), junk
",
    );
    assert_eq!(
        bed.ok("exec 3<>dns/query; echo to-a-file >&3; T=$(mktemp); cat <&3 > $T; cat $T; rm $T"),
        "to-a-file\n"
    );
    assert_eq!(bed.ok("dd if=dns/query bs=1 count=1 status=none | wc -c").trim(), "0");
    // More lines than may be outstanding: the shell's echo goes on until all is written.
    let lines = bed.ok("exec 3<>dns/query; for i in $(seq 1000); do echo line$i; done >&3; cat <&3 | wc -l");
    assert_eq!(lines.trim(), "1000");
}

#[test]
fn a_control_file_waits_for_each_line_and_says_what_is_set() {
    needs_fuse!();
    let bed = Bed::new();
    bed.ok("echo 'timeout 5' > dns/ctl; printf 'a 1\\nb 2' > dns/ctl; echo c >> dns/ctl");
    assert_eq!(bed.ok("cat dns/ctl"), "timeout 5\na 1\nb 2\nc\n");
    let output = bed.sh("env printf 'd\\nbad\\ne\\n' > dns/ctl");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("Invalid argument"), "{output:?}");
    assert_eq!(bed.ok("cat dns/ctl | tail -1"), "d\n", "what follows the bad line is not done");
    bed.python(
        r"
import os, errno
f = os.open('dns/ctl', os.O_RDWR)
for data, wanted in ((b'a\0b', errno.EINVAL), (b'x' * 65537, errno.EMSGSIZE)):
    try: os.write(f, data); assert False
    except OSError as e: assert e.errno == wanted, e
assert os.write(f, b'\n\n') == 2
os.write(f, b'last')
assert os.pread(f, 100000, 0).endswith(b'last\n'), 'a read from the beginning is fresh'
",
    );
}

#[test]
fn a_text_is_fetched_once_for_each_open() {
    needs_fuse!();
    let bed = Bed::new();
    let text = bed.ok("cat dns/status; cp dns/status /tmp/tombolo-status.$$; wc -c < /tmp/tombolo-status.$$; rm /tmp/tombolo-status.$$");
    assert!(text.starts_with("status 1\nline\n"), "{}", &text[..40]);
    assert!(text.ends_with("\n10009\n"));
    bed.python(
        r"
f = open('dns/status', 'rb', buffering=0)
assert f.read(9) == b'status 3\n'
f.seek(10000)
assert f.read(100) == b'ine\nline\n'[-9:], 'by offset'
f.seek(0)
assert f.read(9) == b'status 3\n', 'the same text'
f.seek(1 << 40)
assert f.read(9) == b''
",
    );
    let output = bed.sh("echo x > dns/status");
    assert!(String::from_utf8_lossy(&output.stderr).contains("Permission denied"), "{output:?}");
}

#[test]
fn users_modes_and_verbs_are_enforced() {
    needs_fuse!();
    let bed = Bed::new();
    bed.python(
        r"
import os, errno
def refused(path, flags, wanted):
    try: os.open(path, flags); assert False, path
    except OSError as e: assert e.errno == wanted, e
refused('dns/secret', os.O_RDWR, errno.EACCES)
refused('dns/secret', os.O_RDONLY, errno.EACCES)
refused('dns/status', os.O_RDWR, errno.EACCES)
refused('self/name', os.O_WRONLY, errno.EACCES)
refused('dns/nothing', os.O_RDONLY, errno.ENOENT)
refused('dns', os.O_RDWR, errno.EISDIR)
refused('dns/new', os.O_CREAT | os.O_WRONLY, errno.EROFS)
for act in (lambda: os.mkdir('x'), lambda: os.unlink('dns/query'), lambda: os.rename('dns/query', 'dns/q'),
            lambda: os.symlink('a', 'b'), lambda: os.link('dns/query', 'dns/l'), lambda: os.rmdir('dns')):
    try: act(); assert False
    except OSError as e: assert e.errno == errno.EROFS, e
for act in (lambda: os.chmod('dns/query', 0o777), lambda: os.chown('dns/query', 1, 1)):
    try: act(); assert False
    except OSError as e: assert e.errno == errno.EPERM, e
os.truncate('dns/query', 0); os.utime('dns/query')
for name in ('user.x', 'security.capability'):
    try: os.getxattr('dns/query', name); assert False
    except OSError as e: assert e.errno in (errno.EOPNOTSUPP, errno.ENODATA), e
os.setgid(1000); os.setuid(1001)
refused('dns/ctl', os.O_RDWR, errno.EACCES)
assert open('dns/ctl').read()
f = os.open('dns/query', os.O_RDWR)
os.write(f, b'who\n')
assert os.read(f, 100) == f'1001 1000 {os.getpid()} device\n'.encode()
",
    );
    bed.daemon.mounts(|mounted| mounted.verbs = vec!["resolve".into()]);
    bed::until("the verb is gone", || bed.ok("stat -c %a dns/ctl") == "0\n");
    assert!(!bed.sh("echo x > dns/ctl").status.success());
}

#[test]
fn ioctls_reach_the_backend_and_sizes_are_checked() {
    needs_fuse!();
    let bed = Bed::new();
    bed.python(
        r"
import os, fcntl, struct, errno
f = os.open('dns/query', os.O_RDWR)
GET, ADD = 0x80085407, 0x40085402
assert fcntl.ioctl(f, GET, b'\0' * 8) == b'\0' * 8
fcntl.ioctl(f, ADD, struct.pack('Q', 5)); fcntl.ioctl(f, ADD, struct.pack('Q', 37))
assert struct.unpack('Q', fcntl.ioctl(f, GET, b'\0' * 8)) == (42,)
def refused(fd, number, wanted):
    try: fcntl.ioctl(fd, number, b'\0' * 64); assert False, hex(number)
    except OSError as e: assert e.errno == wanted, (hex(number), e)
refused(f, 0x5499, errno.ENOTTY)
refused(f, 0xc0105499, errno.ENOTTY)
refused(os.open('dns/ctl', os.O_RDWR), GET, errno.ENOTTY)
refused(os.open('self/trace', os.O_RDWR), GET, errno.ENOTTY)
assert not os.isatty(f)
# A number whose size is beyond the bound.
try: fcntl.ioctl(f, 0x40000000 | 8192 << 16 | 0x5402, bytes(8192)); assert False
except (OSError, ValueError) as e: assert getattr(e, 'errno', errno.EINVAL) == errno.EINVAL, e
g = os.open('dns/query', os.O_RDWR)
assert fcntl.ioctl(g, GET, b'\0' * 8) == b'\0' * 8, 'each session has its own'
",
    );
}

#[test]
fn a_blocked_call_ends_at_once_on_a_signal() {
    needs_fuse!();
    let bed = Bed::new();
    bed.python(
        r"
import os, signal, time, fcntl, threading, errno, subprocess
class Stop(Exception): pass
def stop(*_): raise Stop
signal.signal(signal.SIGALRM, stop)
f = os.open('dns/query', os.O_RDWR)
c = os.open('dns/ctl', os.O_RDWR)
os.write(f, b'hold x\n')
for act in (lambda: os.read(f, 10), lambda: fcntl.ioctl(f, 0x5409), lambda: os.write(c, b'hold\n')):
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    begun = time.monotonic()
    try: act(); assert False
    except Stop: pass
    took = time.monotonic() - begun
    assert took < 5, took
# Ctrl-C on cat.
cat = subprocess.Popen(['cat'], stdin=f, stdout=subprocess.PIPE)
time.sleep(0.1)
begun = time.monotonic()
cat.send_signal(signal.SIGINT)
assert cat.wait(5) == -signal.SIGINT
assert time.monotonic() - begun < 5
",
    );
    // The read's request is still being worked on; the interrupted ioctl and control write are
    // cancelled.
    bed::until("the interrupted ones are cancelled", || {
        bed.daemon.backend(|state| (state.held.len(), state.cancelled.len())) == Some((0, 2))
    });
}

#[test]
fn poll_select_and_epoll_wake_up() {
    needs_fuse!();
    let mut bed = Bed::new();
    let program = r"
import os, select, threading, sys, errno
f = os.open('dns/query', os.O_RDWR | os.O_NONBLOCK)
assert select.select([f], [f], [], 0) == ([], [f], [])
assert os.read(f, 10) == b''
os.write(f, b'now\n')
r, _, _ = select.select([f], [], [], 5); assert r == [f]
assert os.read(f, 100) == b'now\n'
r, _, _ = select.select([f], [], [], 5); assert r == [f], 'the end of file is worth a wake-up'
assert os.read(f, 100) == b''
assert select.select([f], [], [], 0.05) == ([], [], []), 'and only one'
os.write(f, b'hold a\n')
try: os.read(f, 100); assert False
except BlockingIOError: pass
e = select.epoll(); e.register(f, select.EPOLLIN)
p = select.poll(); p.register(f, select.POLLIN)
assert e.poll(0.05) == [] and p.poll(50) == []
print('blocked', flush=True)
got = []
threads = [threading.Thread(target=lambda: got.append(e.poll(10))),
           threading.Thread(target=lambda: got.append(p.poll(10000))),
           threading.Thread(target=lambda: got.append(select.select([f], [], [], 10)))]
[t.start() for t in threads]
[t.join() for t in threads]
assert len(got) == 3 and all(g and g[0] for g in got), got
assert os.read(f, 100) == b'a\n'
edge = select.epoll(); edge.register(f, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
edge.poll(0.05)
os.write(f, b'again\n')
assert any(ev & select.EPOLLIN for _, ev in edge.poll(5)), 'edge-triggered'
";
    let mut python = std::process::Command::new("timeout");
    python.args(["--kill-after=5", "30", "python3", "-c", program]).current_dir(bed.srv());
    let mut child = python.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "blocked\n");
    // tidy(sleep): nothing tells when a thread sleeps in poll; it has to be woken whether it does
    // or not
    std::thread::sleep(std::time::Duration::from_millis(100));
    bed.daemon.release();
    assert!(child.wait().unwrap().success());
    bed.kill();
}

/// One thread waited for an answer; another looked whether it may write, without waiting. The
/// answer came, and the first slept on until its own time was over: each poll had taken the place
/// of the one before.
#[test]
fn who_polls_an_open_file_is_woken_whoever_else_polls_it_for_something_else() {
    needs_fuse!();
    let mut bed = Bed::new();
    let program = r"
import os, select, threading, time
f = os.open('dns/query', os.O_RDWR | os.O_NONBLOCK)
os.write(f, b'hold a\n')
reader, writer = select.poll(), select.poll()
reader.register(f, select.POLLIN)
writer.register(f, select.POLLOUT)
got = []
def read():
    begun = time.monotonic()
    got.append((reader.poll(20000), time.monotonic() - begun))
thread = threading.Thread(target=read)
thread.start()
wchan = '/proc/self/task/%d/stat' % thread.native_id
while open(wchan).read().rsplit(')', 1)[1].split()[0] != 'S': pass
assert writer.poll(0) and writer.poll(1000)
print('blocked', flush=True)
thread.join()
assert got[0][0] and got[0][1] < 15, got
assert os.read(f, 100) == b'a\n'
";
    let mut python = std::process::Command::new("timeout");
    python.args(["--kill-after=5", "60", "python3", "-c", program]).current_dir(bed.srv());
    let mut child = python.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "blocked\n");
    bed::until("the backend has the question", || bed.daemon.backend(|state| state.held.len()) == Some(1));
    bed.daemon.release();
    assert!(child.wait().unwrap().success());
    bed.kill();
}

#[test]
fn quotas_have_their_errno_and_others_go_on() {
    needs_fuse!();
    let bed = Bed::new();
    bed.python(
        r"
import os, errno, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
files = []
try:
    for i in range(10000): files.append(os.open('dns/query', os.O_RDWR))
    assert False
except OSError as e: assert e.errno == errno.EMFILE, e
assert len(files) == 4096, len(files)
os.write(files[7], b'still here\n'); assert os.read(files[7], 100) == b'still here\n'
for f in files: os.close(f)
",
    );
    assert_eq!(bed.ok("exec 3<>dns/query; echo after >&3; cat <&3"), "after\n");
    // What nobody reads is bounded, and whoever writes and never reads is told instead of hung.
    bed.python(
        r"
import os, errno
f = os.open('dns/query', os.O_RDWR)
count = 0
try:
    while True: os.write(f, b'x' * 60000 + b'\n'); count += 1
except OSError as e: assert e.errno == errno.EDQUOT, e
assert 3 <= count < 20, count
g = os.open('dns/query', os.O_RDWR | os.O_NONBLOCK)
try:
    while True: os.write(g, b'hold a\n')
except BlockingIOError: pass
",
    );
}

#[test]
fn a_backend_s_quota_is_the_errno_of_open() {
    needs_fuse!();
    let bed = Bed::with(bed::Wishes { up: false, ..bed::Wishes::default() });
    bed.daemon.script(|script| script.sessions_max = Some(3));
    bed.daemon.say_up();
    bed.python(
        r"
import os, errno
files = [os.open('dns/query', os.O_RDWR) for _ in range(3)]
try: os.open('dns/query', os.O_RDWR); assert False
except OSError as e: assert e.errno == errno.EMFILE, e
os.close(files.pop())
os.close(os.open('dns/query', os.O_RDWR))
",
    );
}

#[test]
fn threads_that_hammer_get_their_own_answers() {
    needs_fuse!();
    let bed = Bed::new();
    bed.python(
        r"
import os, threading, random
errors = []
def hammer(seed):
    try:
        rng = random.Random(seed)
        for _ in range(60):
            f = os.open('dns/query', os.O_RDWR)
            asked = [f'{seed}-{rng.random()}' for _ in range(rng.randrange(1, 9))]
            os.write(f, ''.join(a + '\n' for a in asked).encode())
            for a in asked: assert os.read(f, 1000) == (a + '\n').encode()
            assert os.read(f, 1000) == b''
            os.close(f)
    except BaseException as e: errors.append(e)
threads = [threading.Thread(target=hammer, args=(i,)) for i in range(16)]
[t.start() for t in threads]; [t.join() for t in threads]
assert not errors, errors
",
    );
    bed::until("files are closed", || bed.daemon.inspect()["counters"]["open_files"] == 0);
    assert_eq!(bed.daemon.inspect()["counters"]["held_bytes"], 0);
    bed::until("sessions are closed", || bed.daemon.backend(|s| s.sessions.len()) == Some(0));
    let kib = bed::private_kib(bed.frontend_pid());
    eprintln!("private memory after the hammering: {kib} KiB");
    assert!(kib < 4096, "{kib} KiB");
}

#[test]
fn a_domain_can_read_about_itself() {
    needs_fuse!();
    let bed = Bed::new();
    bed.ok("exec 3<>dns/query; echo one >&3; cat <&3");
    assert_eq!(bed.ok("cat self/name"), "web\n");
    assert!(bed.ok("cat self/about.json").contains("\"dc\": \"test\""));
    assert_eq!(bed.ok("cat self/services"), "dns directory dns up resolve,control\n");
    let latency: serde_json::Value = serde_json::from_str(&bed.ok("cat self/latency")).unwrap();
    assert_eq!(latency["dns"]["device"]["count"], 1);
    let counters: serde_json::Value = serde_json::from_str(&bed.ok("cat self/counters")).unwrap();
    assert_eq!(counters["lines"], 1);
    assert!(!bed.sh("echo x > self/trace").status.success());
    let trace = bed.ok(
        "echo on > self/trace; exec 3<>dns/query; echo traced >&3; cat <&3; exec 3>&-; echo off > self/trace
         exec 3<>dns/query; echo untraced >&3; cat <&3; exec 3>&-; tail -n +1 self/trace",
    );
    let (answers, trace) = trace.split_at("traced\nuntraced\n".len());
    assert_eq!(answers, "traced\nuntraced\n");
    let trace: serde_json::Value = serde_json::from_str(trace).expect("one line");
    eprintln!("{trace}");
    assert_eq!(trace["phases"], serde_json::json!({"cache": 300, "decode": 40}));
    for phase in ["open_ns", "write_ns", "backend_ns", "read_ns", "close_ns", "total_ns"] {
        assert!(trace[phase].as_u64().is_some_and(|ns| ns > 0), "{phase}: {trace}");
    }
    // Tracing is on for as long as somebody has the file open.
    let held = bed.ok(
        "exec 4<self/trace; exec 3<>dns/query; echo second >&3; cat <&3; exec 3>&- 4>&-; wc -l < self/trace",
    );
    assert_eq!(held, "second\n2\n");
}

#[test]
fn the_frontend_has_no_privileges() {
    needs_fuse!();
    let bed = Bed::new();
    bed.ok("ls dns");
    let tasks = std::fs::read_dir(format!("/proc/{}/task", bed.frontend_pid())).unwrap();
    let mut unprivileged = 0;
    for task in tasks {
        let task = task.unwrap();
        let status = std::fs::read_to_string(task.path().join("status")).unwrap();
        let line = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        // The test harness's own first thread was there before the frontend.
        if line("Pid:") == line("Tgid:") {
            continue;
        }
        assert_eq!((line("Uid:"), line("Gid:")), (vec!["65534".to_owned(); 4], vec!["65534".to_owned(); 4]));
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(line(set), ["0000000000000000"], "{set} {status}");
        }
        assert_eq!((line("NoNewPrivs:"), line("Groups:")), (vec!["1".to_owned()], Vec::new()));
        unprivileged += 1;
    }
    assert!(unprivileged >= 3, "{unprivileged} threads");
}

#[test]
fn what_is_left_for_the_next_life_is_said_whole_and_has_a_bound() {
    needs_fuse!();
    let bed = Bed::new();
    assert_eq!(bed.ok("cat self/handover"), "");
    bed.ok("echo 'a longer word' > self/handover; echo short > self/handover");
    assert_eq!(bed.ok("cat self/handover"), "short\n");
    // In pieces, as a copy writes it, up to the bound.
    bed.ok("head -c 65536 /dev/zero | dd of=self/handover bs=1000 2>/dev/null");
    assert_eq!(bed.ok("wc -c < self/handover").trim(), "65536");
    for (script, errno) in [
        ("head -c 65537 /dev/zero > self/handover", "File too large"),
        ("echo x >> self/handover", "Invalid argument"),
    ] {
        let refused = bed.sh(script);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(errno), "{script}: {said}");
    }
}
