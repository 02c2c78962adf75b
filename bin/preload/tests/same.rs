//! The same questions with the library preloaded and without, then by the C library and the stub:
//! the same answers, in the same order. In a network namespace with nothing but a loopback device,
//! as in a domain.

use entrance::{Entrance, Entrances};
use session::Control;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use testing::{FakeDaemon, FakeDirectory, ServerThread};

/// Set in the process that is inside the namespaces.
const INSIDE: &str = "PRELOAD_TEST_INSIDE";
const STUB: (&str, u16) = ("127.0.0.53", 53);

/// All questions, one line of answer each.
const QUESTIONS: &str = r#"
import itertools, socket as s
names = ["host.example", "HOST.example.", "v4.example", "v6.example", "many.example", "empty.example", "missing.example",
         "failing.example", "no such name", "localhost", "192.0.2.9", "::1", "a..example", "x" * 64 + ".example"]
names = [name.encode() for name in names]
families = [s.AF_UNSPEC, s.AF_INET, s.AF_INET6]
types = [0, s.SOCK_STREAM, s.SOCK_DGRAM]
flags = [0, s.AI_CANONNAME, s.AI_V4MAPPED, s.AI_V4MAPPED | s.AI_ALL, s.AI_ADDRCONFIG, s.AI_NUMERICHOST, s.AI_PASSIVE]
ports = [None, 80, "domain", "no-such-service"]
def say(what, call, *arguments):
    try:
        print(what, arguments, call(*arguments))
    except s.gaierror as error:
        print(what, arguments, "EAI", error.errno)
    except s.herror as error:
        print(what, arguments, "h_errno", error.errno)
for name, family, type, flag in itertools.product(names, families, types, flags):
    say("getaddrinfo", s.getaddrinfo, name, 80, family, type, 0, flag)
for name, port in itertools.product(names, ports):
    say("getaddrinfo", s.getaddrinfo, name, port)
for name in names:
    say("gethostbyname_ex", s.gethostbyname_ex, name)
say("getnameinfo", s.getnameinfo, ("127.0.0.1", 80), 0)
say("getnameinfo", s.getnameinfo, ("192.0.2.1", 80), s.NI_NUMERICHOST)
"#;

#[test]
fn the_same_questions_have_the_same_answers() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let test = std::env::current_exe().expect("a path");
    let output = Command::new("unshare")
        .args(["--net", "--mount"])
        .arg(test)
        .args(["--exact", "the_same_questions_have_the_same_answers", "--nocapture"])
        .env(INSIDE, "1")
        .output();
    let Ok(output) = output else {
        println!("skipped: unshare is not installed (apt-get install util-linux)");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    if !said.contains("running 1 test") {
        println!(
            "skipped: no namespaces can be made here (it needs root): {}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    print!("{said}");
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

fn inside() {
    let folder = tempfile::tempdir().expect("a folder");
    let is_ready = run("ip link set lo up").is_some()
        && put(folder.path(), "resolv.conf", "nameserver 127.0.0.53\n")
        && put(folder.path(), "nsswitch.conf", "hosts: files dns\nservices: files\n")
        && put(folder.path(), "hosts", "127.0.0.1 localhost\n::1 localhost\n")
        && run("python3 -c 'import socket'").is_some();
    if !is_ready {
        println!("skipped: this test needs iproute2, mount and python3");
        return;
    }
    let daemon = FakeDaemon::start(folder.path(), &["server", "a"], vec![FakeDirectory::told()]);
    let _server = ServerThread::start(&daemon, FakeDirectory::default);
    let udp = UdpSocket::bind(STUB).expect("bound");
    let tcp = TcpListener::bind(STUB).expect("bound");
    let stub = entrance::run(Entrances { udp: Some(udp), tcp: Some(tcp), resolve: None }).expect("running");
    let mut control = Control::connect(&daemon.socket("a")).expect("connected");
    let soon = Instant::now() + Duration::from_secs(20);
    stub.connect(Entrance::Stub, control.connect_service("dns", "stub", 0, soon).expect("a channel").1);

    let by_the_c_library = ask(&mut Command::new("python3"));
    let asked_stub = stub.state()["udp_queries"].as_u64().expect("a number");
    let mut preloaded = Command::new("python3");
    preloaded.env("LD_PRELOAD", library()).env(wire::control::SOCKET_VARIABLE, daemon.socket("a"));
    let by_the_library = ask(&mut preloaded);
    let mut count = 0;
    for (ours, theirs) in by_the_library.lines().zip(by_the_c_library.lines()) {
        assert_eq!(ours, theirs, "with the library, and without");
        count += 1;
    }
    assert!(count > 900, "only {count} questions");
    let more = stub.state()["udp_queries"].as_u64().expect("a number") - asked_stub;
    println!(
        "{count} questions; the stub was asked {asked_stub} times without the library, {more} times with it"
    );
    // Only what is none of the library's business.
    assert!(asked_stub > 500 && more < asked_stub / 2, "the library was not used");
}

fn ask(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.args(["-c", QUESTIONS]).output().expect("run");
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("text")
}

fn run(line: &str) -> Option<()> {
    Command::new("sh").args(["-c", line]).status().ok()?.success().then_some(())
}

/// Puts a file over one of `/etc`, in this mount namespace.
fn put(folder: &Path, name: &str, text: &str) -> bool {
    let file = folder.join(name);
    std::fs::write(&file, text).expect("written");
    run(&format!("mount --bind {} /etc/{name}", file.display())).is_some()
}

/// The library that was built with this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    test.parent().expect("a folder").join("libtombolo_preload.so")
}
