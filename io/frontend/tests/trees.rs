//! Programs on a real mount: folders that only the backend knows, bytes at offsets, streams.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]

mod bed;

use bed::{Bed, until};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use wire::service::{Header, Kind, Node, below};

#[test]
#[ignore = "the other process of every test here"]
fn the_frontend_process() {
    bed::be_the_frontend();
}

#[test]
fn files_and_folders_are_made_written_renamed_and_taken_away() {
    needs_fuse!();
    let bed = Bed::with_tree();
    assert_eq!(bed.ok("cd dns; mkdir -m 750 deep; echo hello > deep/a; cat deep/a"), "hello\n");
    assert_eq!(
        bed.ok("cd dns; echo more >> deep/a; cat deep/a; stat -c '%s %F %a' deep/a deep"),
        "hello\nmore\n11 regular file 644\n0 directory 750\n"
    );
    let moved = "cd dns; mv deep/a deep/b; ls deep; cp deep/b c; rm deep/b; rmdir deep; cat c; ls -d c";
    assert_eq!(bed.ok(moved), "b\nhello\nmore\nc\n");
    assert_eq!(
        bed.ok("cd dns; truncate -s 5 c; cat c; chmod 600 c; stat -c %a c; rm c; ls c 2>&1 || true")
            .lines()
            .next(),
        Some("hello600")
    );
    bed.python(
        r"
import os, errno
def refused(wanted, act):
    try: act()
    except OSError as error: assert error.errno == wanted, error
    else: assert False, act
os.chdir('dns')
os.mkdir(b'odd \xff\nname')
assert b'odd \xff\nname' in os.listdir(b'.')
refused(errno.EEXIST, lambda: os.mkdir(b'odd \xff\nname'))
refused(errno.ENOENT, lambda: os.open('nothing', os.O_RDONLY))
refused(errno.ENAMETOOLONG, lambda: os.mkdir('x' * 256))
refused(errno.EPERM, lambda: os.symlink('a', 'b'))
refused(errno.EPERM, lambda: os.mkfifo('fifo'))
open(b'odd \xff\nname/x', 'w').close()
refused(errno.ENOTEMPTY, lambda: os.rmdir(b'odd \xff\nname'))
os.unlink(b'odd \xff\nname/x')
os.rmdir(b'odd \xff\nname')
refused(errno.EROFS, lambda: os.rename('query', '../self/query'))
",
    );
}

#[test]
fn bytes_are_where_they_were_written_however_long() {
    needs_fuse!();
    let bed = Bed::with_tree();
    let file =
        std::fs::File::options().create_new(true).read(true).write(true).open(bed.path("dns/big")).unwrap();
    let bytes: Vec<u8> = (0..700_000_u32).map(|at| (at / 7) as u8).collect();
    file.write_all_at(&bytes, 12_345).unwrap();
    file.sync_all().unwrap();
    let mut read = vec![0; bytes.len()];
    file.read_exact_at(&mut read, 12_345).unwrap();
    assert!(read == bytes);
    assert_eq!(file.metadata().unwrap().len(), 12_345 + 700_000);
    let mut hole = [1; 100];
    file.read_exact_at(&mut hole, 100).unwrap();
    assert_eq!(hole, [0; 100]);
    assert_eq!(file.read_at(&mut read, 10_000_000).unwrap(), 0);
    // What is written twice ends up the same, so a lost backend's question goes to the next one:
    // which has no such file.
    bed.daemon.kill_backend();
    bed.daemon.say_down();
    bed.daemon.say_up();
    assert_eq!(file.read_at(&mut read, 0).unwrap_err().raw_os_error(), Some(2));
}

#[test]
fn a_long_folder_is_listed_whole_and_without_doubles() {
    needs_fuse!();
    let bed = Bed::with_tree();
    bed.ok("cd dns; mkdir many; cd many; for i in $(seq 2000); do : > file-$i; done");
    assert_eq!(bed.ok("ls dns/many | sort | uniq | wc -l; ls dns/many | wc -l"), "2000\n2000\n");
    let shown = bed.ok("ls dns");
    assert!(
        shown.contains("query") && shown.contains("many"),
        "both of the export and of the backend: {shown}"
    );
}

#[test]
fn rights_to_see_and_to_change_are_apart() {
    needs_fuse!();
    let bed = Bed::with_tree();
    bed.ok("echo x > dns/file");
    bed.daemon.mounts(|mounted| mounted.verbs = vec!["resolve".into()]);
    until("the right to change is gone", || !bed.sh("echo y > dns/file").status.success());
    assert_eq!(bed.ok("cat dns/file; (mkdir dns/more || rm -f dns/file || truncate -s 0 dns/file) 2>&1 | grep -c 'Permission denied'"), "x\n3\n");
    bed.daemon.mounts(|mounted| mounted.verbs = vec!["control".into()]);
    until("the right to see is gone", || !bed.sh("cat dns/file").status.success());
    let said = bed.sh("ls dns/file");
    assert!(String::from_utf8_lossy(&said.stderr).contains("Permission denied"), "{said:?}");
}

/// Reads numbers until it has seen so many, and says each.
fn reader(bed: &Bed, file: &str) -> (std::process::Child, BufReader<std::process::ChildStdout>) {
    let program = format!(
        r"
import os, sys
f = os.open('dns/{file}', os.O_RDONLY)
print('ready', flush=True)
while True:
    try: record = os.read(f, 4096)
    except OSError as error: record = b'errno %d\n' % error.errno
    if not record: break
    os.write(1, record)
"
    );
    let mut command = std::process::Command::new("timeout");
    command.args(["--kill-after=5", "60", "python3", "-uc", &program]).current_dir(bed.srv());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(line(&mut lines), "ready");
    (child, lines)
}

fn await_session(bed: &Bed) {
    until("the next backend has the session", || {
        bed.daemon.backend(|state| state.sessions.len()).unwrap_or_default() == 1
    });
}

fn line(lines: &mut impl BufRead) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn numbers(lines: &mut impl BufRead, of: std::ops::Range<u64>) {
    for number in of {
        assert_eq!(line(lines), format!("number {number}"));
    }
}

#[test]
fn a_stream_goes_on_over_the_deaths_of_backend_and_frontend_without_loss_or_doubles() {
    needs_fuse!();
    let mut bed = Bed::with_tree();
    let (mut child, mut lines) = reader(&bed, "count");
    bed.daemon.with_backend(|backend| backend.count(3));
    numbers(&mut lines, 0..3);
    bed.kill();
    // The stand-in gives each link a backend of its own, which knows nothing but what it is told.
    let before = bed.daemon.connects();
    bed.start(true);
    until("the successor has a link", || bed.daemon.connects() > before);
    await_session(&bed);
    bed.daemon.with_backend(|backend| backend.count(5));
    numbers(&mut lines, 3..5);
    bed.daemon.kill_backend();
    bed.daemon.say_down();
    bed.daemon.say_up();
    await_session(&bed);
    bed.daemon.with_backend(|backend| backend.count(20_000));
    numbers(&mut lines, 5..20_000);
    bed.daemon.with_backend(|backend| backend.end_streams(0));
    assert_eq!(line(&mut lines), "", "the end");
    assert!(child.wait().unwrap().success());
}

#[test]
fn who_reads_a_stream_that_can_not_be_resumed_is_told_of_the_gap() {
    needs_fuse!();
    let bed = Bed::with_tree();
    let (mut child, mut lines) = reader(&bed, "lossy");
    bed.daemon.with_backend(|backend| backend.count(2));
    numbers(&mut lines, 0..2);
    bed.daemon.kill_backend();
    bed.daemon.say_down();
    bed.daemon.say_up();
    assert_eq!(line(&mut lines), "errno 104");
    await_session(&bed);
    bed.daemon.with_backend(|backend| backend.count(1));
    numbers(&mut lines, 0..1);
    bed.daemon.with_backend(|backend| backend.end_streams(5));
    assert_eq!(line(&mut lines), "errno 5");
    assert_eq!(line(&mut lines), "", "and then the end");
    assert!(child.wait().unwrap().success());
}

#[test]
fn who_does_not_read_holds_no_more_than_a_window_and_nobody_up() {
    needs_fuse!();
    let bed = Bed::with_tree();
    let idle = std::fs::File::open(bed.path("dns/count")).unwrap();
    bed.daemon.with_backend(|backend| backend.count(100_000));
    let (mut child, mut lines) = reader(&bed, "count");
    numbers(&mut lines, 0..50_000);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut record = [0; 64];
    let read = (&idle).read(&mut record).unwrap();
    assert_eq!(&record[..read], b"number 0\n", "its own place is where it left it");
    assert_eq!(bed.ok("exec 3<>dns/query; echo hello >&3; cat <&3"), "hello\n");
}

#[test]
fn polls_wake_up_for_records_and_writes_are_records() {
    needs_fuse!();
    let bed = Bed::with_tree();
    let mut beside = std::process::Command::new("timeout");
    beside.args([
        "60",
        "python3",
        "-uc",
        r"
import os, select, errno
f = os.open('dns/count', os.O_RDONLY | os.O_NONBLOCK)
try: os.read(f, 9)
except BlockingIOError: pass
else: assert False
print('ready')
poll = select.poll()
poll.register(f, select.POLLIN)
assert poll.poll(20000) == [(f, select.POLLIN)]
assert os.read(f, 4) == b'numb' and os.read(f, 99) == b'er 0\n'
s = os.open('dns/sink', os.O_RDWR)
for text in (b'one', b'two\n', b'bad'): assert os.write(s, text) == len(text)
for turn in range(1000):
    try: os.write(s, b'more')
    except OSError as error:
        assert error.errno == errno.EDOM, error
        break
else: assert False, 'the refusal is told'
os.write(s, b'last')
try: os.write(s, bytes(65537))
except OSError as error: assert error.errno == errno.EMSGSIZE, error
os.close(s)
",
    ]);
    let mut child = beside.current_dir(bed.srv()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(line(&mut lines), "ready");
    bed.daemon.with_backend(|backend| backend.count(1));
    assert!(child.wait().unwrap().success());
    until("all that was written has come", || {
        bed.daemon.backend(|state| state.tree.sunk.last().is_some_and(|last| last == "last")).unwrap()
    });
    bed.daemon.backend(|state| assert_eq!(state.tree.sunk[..2], ["one", "two\n"])).unwrap();
}

#[test]
fn a_backend_that_lies_about_its_tree_loses_its_link_and_nothing_else() {
    needs_fuse!();
    let bed = Bed::with_tree();
    // Beyond any credit, and for a session that reads no stream.
    let record: bed::backend::Raw = |header| {
        vec![bed::backend::message(
            Header { session: header.session, ..Header::new(Kind::Record) },
            b"unasked",
        )]
    };
    // A second greeting is none of this; a node's bytes where a line's answer is awaited are an
    // answer like any other.
    bed.daemon.script(|script| script.instead = Some(record));
    bed.daemon.say_up();
    let before = bed.daemon.connects();
    let end = bed.sh("exec 3<>dns/query; echo hello >&3; timeout 3 cat <&3");
    assert!(!String::from_utf8_lossy(&end.stdout).contains("unasked"), "{end:?}");
    until("the link is given up", || bed.daemon.connects() > before);
    let strange = Node {
        number: below(7, 1).unwrap(),
        behaviour: wire::service::Behaviour::Random,
        idempotent: true,
        mode: 0o644,
        links: 1,
        size: 0,
        changed: (0, 0),
        owner: (0, 0),
    };
    bed.daemon.script(|script| {
        script.instead = None;
        script.lies = Some(strange);
    });
    bed.daemon.kill_backend();
    bed.daemon.say_down();
    bed.daemon.say_up();
    let end = bed.sh("cat dns/anything");
    assert!(String::from_utf8_lossy(&end.stderr).contains("Input/output error"), "{end:?}");
    bed.daemon.script(|script| script.lies = None);
    bed.daemon.kill_backend();
    bed.daemon.say_down();
    bed.daemon.say_up();
    assert_eq!(bed.ok("echo fine > dns/file; cat dns/file"), "fine\n");
}
