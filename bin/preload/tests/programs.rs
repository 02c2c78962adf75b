//! Unmodified programs with the library preloaded, a stand-in for the daemon, and a directory
//! service with a few names.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testing::{FakeDaemon, FakeDirectory, ServerThread};

struct Stage {
    folder: tempfile::TempDir,
    daemon: FakeDaemon,
    server: Option<ServerThread>,
}

impl Stage {
    fn set() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = FakeDaemon::start(folder.path(), &["server", "a"], vec![FakeDirectory::told()]);
        let server = Some(ServerThread::start(&daemon, FakeDirectory::default));
        Self { folder, daemon, server }
    }

    fn preloaded(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", library()).env(wire::control::SOCKET_VARIABLE, self.daemon.socket("a"));
        command
    }
}

/// The library that was built with this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let folder = test.parent().expect("a folder");
    let found = folder.join("libtombolo_preload.so");
    assert!(found.exists(), "{} was not built", found.display());
    found
}

/// A Python that is dynamically linked, or why there is none.
fn python() -> Option<&'static str> {
    let found =
        Command::new("python3").arg("-c").arg("import socket").status().is_ok_and(|status| status.success());
    if !found {
        println!("skipped: python3 is not installed (apt-get install python3)");
    }
    found.then_some("python3")
}

fn compile(folder: &Path, name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
    let program = folder.join(name);
    match Command::new("cc").args(["-O1", "-Wall", "-o"]).arg(&program).arg(source).status() {
        Ok(status) => {
            assert!(status.success(), "{name}.c does not compile");
            Some(program)
        }
        Err(_) => {
            println!("skipped: there is no C compiler (apt-get install gcc libc6-dev)");
            None
        }
    }
}

#[test]
fn a_c_program_finds_what_the_manual_pages_promise() {
    let stage = Stage::set();
    let Some(program) = compile(stage.folder.path(), "lookups") else { return };
    let output = stage.preloaded(program).output().expect("run");
    let said = String::from_utf8_lossy(&output.stdout);
    let expected = "\
getaddrinfo host.example - 0 0 0: 2001:db8::1/0/1/6 2001:db8::1/0/2/17 2001:db8::1/0/3/0 \
192.0.2.1/0/1/6 192.0.2.1/0/2/17 192.0.2.1/0/3/0
getaddrinfo host.example 80 0x2 2 1: [host.example] 192.0.2.1/80/1/6
getaddrinfo alias.example http 0x2 10 1: [host.example] 2001:db8::1/80/1/6
getaddrinfo v4.example - 0x8 10 2: ::ffff:192.0.2.4/0/2/17
getaddrinfo host.example - 0x18 10 2: 2001:db8::1/0/2/17 ::ffff:192.0.2.1/0/2/17
getaddrinfo v4.example - 0 10 1: -5
getaddrinfo missing.example - 0 0 1: -2
getaddrinfo failing.example - 0 0 1: -3
getaddrinfo 192.0.2.7 53 0 0 2: 192.0.2.7/53/2/17
getaddrinfo host.example - 0x4 0 1: -2
getaddrinfo host.example no-such-service 0 0 1: -8
getaddrinfo host.example - 0 0 99: -7
getaddrinfo host.example - 0 99 1: -6
all rules hold
";
    // Which family comes first depends on the routes of this machine: compared without the order.
    let sorted = |text: &str| {
        let mut lines: Vec<Vec<String>> =
            text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect();
        lines.iter_mut().for_each(|words| words.sort());
        lines
    };
    assert_eq!(sorted(&said), sorted(expected), "{said}");
    assert!(output.status.success(), "{said}");
}

#[test]
fn many_threads_of_a_program_ask_at_once_and_leave_no_descriptor_to_its_children() {
    let stage = Stage::set();
    let Some(python) = python() else { return };
    let script = r#"
import fcntl, os, socket, threading
wrong = []
def ask():
    for _ in range(50):
        found = socket.getaddrinfo("v4.example", 80, type=socket.SOCK_STREAM)
        if [entry[4] for entry in found] != [("192.0.2.4", 80)]:
            wrong.append(found)
before = set(os.listdir("/proc/self/fd"))
ask()
assert len(os.listdir("/proc/self/task")) == 1, "a thread of its own"
threads = [threading.Thread(target=ask) for _ in range(12)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not wrong, wrong[0]
new = [int(fd) for fd in set(os.listdir("/proc/self/fd")) - before if os.path.exists("/proc/self/fd/" + fd)]
assert new, "no link is open?"
assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in new), new
print(socket.gethostbyaddr("192.0.2.1")[0], socket.getfqdn("alias.example"))
"#;
    let output = stage.preloaded(python).args(["-c", script]).output().expect("run");
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "host.example host.example\n", "{wrong}");
}

/// A program looked a name up, closed everything from 3 up as daemons do, and opened files: at its
/// next look-up the library wrote into them, and put descriptors of its own in their place. After a
/// fork, and where files were moved there (`dup2`), too.
#[test]
fn files_that_a_program_puts_at_the_librarys_numbers_are_the_programs() {
    let stage = Stage::set();
    let Some(program) = compile(stage.folder.path(), "daemons") else { return };
    for how in ["closefrom", "dup2", "fork-closefrom", "fork-dup2", "lowest"] {
        let mut command = stage.preloaded(&program);
        let output = command.arg(how).env("FOLDER", stage.folder.path()).output().expect("run");
        assert!(output.status.success(), "{how}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_restarted_server_is_asked_again_and_without_one_the_c_library_is() {
    let mut stage = Stage::set();
    let Some(python) = python() else { return };
    let script = r#"
import socket, sys
for line in sys.stdin:
    try:
        print(socket.gethostbyname(line.strip()), flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"#;
    let mut program = stage
        .preloaded(python)
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("run");
    let mut said = BufReader::new(program.stdout.take().expect("its output")).lines();
    let mut to_it = program.stdin.take().expect("its input");
    let mut ask = |name: &str| {
        writeln!(to_it, "{name}").expect("asked");
        said.next().expect("an answer").expect("text")
    };
    assert_eq!(ask("v4.example"), "192.0.2.4");
    stage.server = None;
    stage.server = Some(ServerThread::start(&stage.daemon, FakeDirectory::default));
    assert_eq!(ask("v4.example"), "192.0.2.4", "over a new link");
    stage.server = None;
    assert_eq!(ask("localhost"), "127.0.0.1");
    assert_eq!(ask("192.0.2.200"), "192.0.2.200");
    stage.server = Some(ServerThread::start(&stage.daemon, FakeDirectory::default));
    assert_eq!(ask("host.example"), "192.0.2.1");
    drop(to_it);
    assert!(program.wait().expect("ended").success());
}

#[test]
fn without_a_daemon_nothing_is_different() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(python) = python() else { return };
    let mut command = Command::new(python);
    command.env("LD_PRELOAD", library()).env(wire::control::SOCKET_VARIABLE, folder.path().join("none"));
    let script = "import socket; print(socket.gethostbyname('localhost'), socket.gethostbyname('127.1'))";
    let start = Instant::now();
    let output = command.args(["-c", script]).output().expect("run");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "127.0.0.1 127.0.0.1\n");
    assert!(start.elapsed() < Duration::from_secs(10));
}
