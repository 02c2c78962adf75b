//! A daemon of its own: who may start one, what its admin socket does with nonsense, and what it
//! leaves.
//!
//! Needs root, and says so where it is not.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A daemon in a temporary folder; ended when dropped.
struct Daemon {
    folder: tempfile::TempDir,
    child: Child,
}

impl Daemon {
    fn start(extra: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut child = command(folder.path(), &["daemon", "--detached"])
            .args(extra)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n");
        Some(Self { folder, child })
    }

    fn run(&self, arguments: &[&str]) -> Output {
        command(self.folder.path(), arguments).output().unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("run/daemon.sock")
    }

    /// Sends bytes that are no request, hangs up, and returns whatever came back.
    fn noise(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        // The daemon may have hung up before the last byte; then that is the answer.
        let _hung_up = stream.write_all(bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        answer(stream)
    }

    fn request(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: node\r\nconnection: close");
        let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let _hung_up = stream.write_all(request.as_bytes());
        answer(stream)
    }

    fn stop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Everything until the end. A connection that is cut is an answer, too.
fn answer(mut stream: UnixStream) -> String {
    let mut answer = Vec::new();
    let _cut = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
    command.arg("--run-dir").arg(folder.join("run")).arg("--state-dir").arg(folder.join("state"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_second_daemon_is_refused_and_told_who_is_there() {
    let Some(daemon) = Daemon::start(&[]) else { return };
    let pid = daemon.child.id().to_string();
    let second = daemon.run(&["daemon"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(err(&second).contains(&pid), "{}", err(&second));
    let run = daemon.folder.path().join("elsewhere");
    let second = daemon.run(&["daemon", "--run-dir", &run.to_string_lossy()]);
    assert!(err(&second).contains(&pid), "another run directory, the same state: {}", err(&second));
}

#[test]
fn the_next_daemon_follows_at_once_after_a_kill() {
    let Some(mut daemon) = Daemon::start(&[]) else { return };
    for _ in 0..3 {
        daemon.child.kill().unwrap();
        daemon.child.wait().unwrap();
        let mut next = command(daemon.folder.path(), &["daemon", "--detached"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(next.stdout.take().unwrap()).read_line(&mut said).unwrap();
        daemon.child = next;
        assert_eq!(said, "ready\n");
    }
}

#[test]
fn only_root_reaches_the_admin_socket() {
    let Some(daemon) = Daemon::start(&[]) else { return };
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&daemon.socket()), 0o600);
    assert_eq!(mode(&daemon.folder.path().join("run")), 0o700);
    assert_eq!(mode(&daemon.folder.path().join("state")), 0o700);
}

#[test]
fn nonsense_at_the_admin_socket_is_refused_and_forgotten() {
    let Some(daemon) = Daemon::start(&[]) else { return };
    for noise in
        [&b"\0\x01\x02\xff"[..], b"GET", b"GET / HTTP/9.9\r\n\r\n", &[b'x'; 200_000], b"\r\n\r\n\r\n"]
    {
        let answer = daemon.noise(noise);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    for (method, path, body, status) in [
        ("GET", "/", "", "404"),
        ("GET", "/v2/domains", "", "404"),
        ("GET", "/v1/up", "", "400"),
        ("POST", "/v1/up", "", "400"),
        ("POST", "/v1/up", "[]", "400"),
        ("POST", "/v1/up", "{\"text\": 5}", "400"),
        ("POST", "/v1/up", "{\"text\":\"\",\"file\":\"x\",\"base\":\"relative\"}", "400"),
        ("POST", "/v1/down", "{\"dcs\":1}", "400"),
        ("GET", "/v1/domains/nobody/entry", "", "404"),
        ("GET", "/v1/domains/%00%ff/entry", "", "400"),
        ("GET", "/v1/services/none", "", "404"),
        ("GET", "/v1/state?path=dc/none", "", "404"),
    ] {
        let answer = daemon.request(method, path, body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{method} {path} {body}: {answer}");
    }
    let long = daemon.request("POST", "/v1/up", &format!("{{\"text\":\"{}\"}}", "x".repeat(5 << 20)));
    assert!(long.starts_with("HTTP/1.1 4") || long.is_empty(), "{}", long.lines().next().unwrap_or(""));
    assert!(daemon.request("GET", "/v1/version", "").contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_file_that_is_not_admitted_is_refused_by_the_daemon_as_well() {
    let Some(daemon) = Daemon::start(&[]) else { return };
    let body = "{\"text\":\"name = 5\",\"file\":\"x.toml\",\"base\":\"/\"}";
    let answer = daemon.request("POST", "/v1/up", body);
    assert!(answer.contains("not-admitted") && answer.contains("x.toml:1"), "{answer}");
    let answer = daemon.request("POST", "/v1/down", "{\"dc\":\"none\"}");
    assert!(answer.contains("unknown-dc"), "{answer}");
}

#[test]
fn an_empty_node_can_be_looked_at() {
    let Some(daemon) = Daemon::start(&["--metrics", "127.0.0.1:0"]) else { return };
    let json = |arguments: &[&str]| -> serde_json::Value {
        let output = daemon.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", err(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(json(&["ps", "--json"]), serde_json::json!([]));
    assert_eq!(json(&["service", "ls", "--json"]), serde_json::json!([]));
    let tree = json(&["inspect", "--json"]);
    assert_eq!(tree["node"]["pid"].as_u64(), Some(u64::from(daemon.child.id())));
    assert_eq!(json(&["inspect", "node/pid", "--json"]), tree["node"]["pid"]);
    let wrong = daemon.run(&["inspect", "nod"]);
    assert!(err(&wrong).contains("did you mean \"node\""), "{}", err(&wrong));
    assert!(daemon.request("GET", "/metrics", "").contains("tombolo_node_uptime_seconds"));
    let nothing = daemon.run(&["down", "--all"]);
    assert!(String::from_utf8_lossy(&nothing.stdout).contains("nothing to do"));
}

#[test]
fn metrics_are_for_this_machine_alone() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = command(folder.path(), &["daemon", "--metrics", "0.0.0.0:9464"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("loopback"), "{}", err(&output));
}

#[test]
fn an_ended_daemon_leaves_no_socket_and_no_cgroup() {
    let Some(mut daemon) = Daemon::start(&[]) else { return };
    let cgroup = std::fs::read_to_string(daemon.folder.path().join("run/cgroup")).unwrap();
    daemon.stop();
    assert!(!daemon.socket().exists());
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        assert!(!hierarchy.path().join(cgroup.trim()).exists(), "{:?} has {cgroup}", hierarchy.path());
    }
}

#[test]
fn a_damaged_registry_is_told_by_name_and_left_alone() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state/registry.redb");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, vec![7; 8192]).unwrap();
    let output = command(folder.path(), &["daemon"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("registry.redb"), "{}", err(&output));
    assert_eq!(std::fs::read(&file).unwrap(), vec![7; 8192]);
}
