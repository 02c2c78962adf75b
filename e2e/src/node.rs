//! A node of its own: run and state directories in a temporary folder, driven through the real
//! binary.

use crate::{clean, wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The outcome of a command.
#[derive(Debug)]
pub struct Run {
    /// Exit code; 128 and more where a signal ended it.
    pub code: i32,
    /// Its output.
    pub out: String,
    /// Its complaints.
    pub err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(128),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// One node; ended and proved clean when dropped.
pub struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    /// A node for one test; `None`, and a printed reason, where this machine can't run it.
    pub fn start() -> Option<Self> {
        if let Some(reason) = missing() {
            println!("skipped: {reason}");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("tombolo-e2e-").tempdir().expect("a temporary folder");
        Some(Self { folder })
    }

    /// The temporary folder, for files of the test.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The run directory.
    pub fn run_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// The state directory.
    pub fn state_dir(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// `tombolo ARGUMENTS` against this node, not yet run.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .arg("--run-dir")
            .arg(self.run_dir())
            .arg("--state-dir")
            .arg(self.state_dir())
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// Runs `tombolo ARGUMENTS`.
    pub fn run(&self, arguments: &[&str]) -> Run {
        self.command(arguments).output().expect("tombolo starts").into()
    }

    /// Runs it and insists on exit code 0; returns what it printed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let run = self.run(arguments);
        assert_eq!(
            run.code,
            0,
            "tombolo {arguments:?} failed\n--- out\n{}\n--- err\n{}{}",
            run.out,
            run.err,
            self.daemon_log()
        );
        run.out
    }

    /// Runs it with `--json` and parses what it printed.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.push("--json");
        let out = self.ok(&all);
        serde_json::from_str(&out)
            .unwrap_or_else(|e| panic!("tombolo {arguments:?} --json printed no JSON ({e}):\n{out}"))
    }

    /// Writes `text` as a topology file and brings it up.
    pub fn up(&self, text: &str) -> Run {
        let file = self.folder.path().join("topology.toml");
        std::fs::write(&file, text).expect("the topology is written");
        self.run(&["up", &file.to_string_lossy()])
    }

    /// As [`Node::up`], insisting on success.
    pub fn up_ok(&self, text: &str) -> String {
        let run = self.up(text);
        assert_eq!(run.code, 0, "up failed\n--- out\n{}\n--- err\n{}{}", run.out, run.err, self.daemon_log());
        run.out
    }

    /// Runs a shell line inside a domain.
    pub fn shell(&self, domain: &str, line: &str) -> Run {
        self.run(&["exec", domain, "--", "/bin/bash", "-c", line])
    }

    /// Runs a shell line inside a domain and insists on exit code 0.
    pub fn shell_ok(&self, domain: &str, line: &str) -> String {
        let run = self.shell(domain, line);
        assert_eq!(
            run.code,
            0,
            "in {domain}: {line}\n--- out\n{}\n--- err\n{}{}",
            run.out,
            run.err,
            self.daemon_log()
        );
        run.out
    }

    /// Process ids of this node's processes of a role (`daemon`, `frontend`, `server`, `monitor`).
    pub fn pids(&self, role: &str) -> Vec<u32> {
        pids_of(&self.run_dir(), role)
    }

    /// Kills the daemon, and waits until nothing of it is left: neither its socket nor its lock.
    pub fn kill_daemon(&self) {
        kill_and_wait(&self.pids("daemon"));
    }

    /// The daemon's log, to explain a failure.
    pub fn daemon_log(&self) -> String {
        let text = std::fs::read_to_string(self.state_dir().join("daemon.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("\n--- daemon.log, last lines\n{}", lines[lines.len().saturating_sub(40)..].join("\n"))
    }

    /// Ends everything and proves the machine clean.
    pub fn finish(&self) {
        self.run(&["down", "--all"]);
        for pid in self.pids("daemon") {
            terminate(pid);
        }
        wait::until("nothing of the node is left", || {
            let left = clean::leftovers(&self.run_dir());
            if !left.is_empty() && std::env::var_os("TOMBOLO_E2E_VERBOSE").is_some() {
                eprintln!("{left:#?}");
            }
            left.is_empty()
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The test has failed already: clean up as far as it goes, without a second panic.
            self.run(&["down", "--all"]);
            for pid in self.pids("daemon") {
                terminate(pid);
            }
            return;
        }
        self.finish();
    }
}

/// Process ids of the processes of a role that belong to a run directory.
pub fn pids_of(run_dir: &Path, role: &str) -> Vec<u32> {
    let needle = run_dir.as_os_str().as_encoded_bytes();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|&b| b == 0).collect();
        let ours = words.first().is_some_and(|program| program.ends_with(b"tombolo"));
        if ours && words.contains(&role.as_bytes()) {
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            let near = |hay: &[u8]| hay.windows(needle.len()).any(|w| w == needle);
            if near(&line) || near(&environment) {
                found.push(pid);
            }
        }
    }
    found
}

/// The threads of the daemon of a run directory, and what each waits for in the kernel: to explain
/// one that does not answer.
pub fn threads_of_daemon(run_dir: &Path) -> String {
    let mut said = String::new();
    for pid in pids_of(run_dir, "daemon") {
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let state = read("stat").rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            let stack = read("stack");
            let frames: Vec<&str> = stack.lines().take(5).map(str::trim).collect();
            let (name, state) = (read("comm"), state.unwrap_or('?'));
            said += &format!("\n{pid} {} {state} {}", name.trim(), frames.join(", "));
        }
    }
    format!("\n--- threads of the daemon{said}")
}

/// Kills one process, as `kill -9` does. One that is gone already is as good.
pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

/// Kills processes one right after the other, as `kill -9` does, and waits until the kernel has
/// taken from each what it had: a process that is dying still has its sockets and its locks when it
/// has no name any more.
pub fn kill_and_wait(pids: &[u32]) {
    let processes = kill_together(pids);
    wait::until("what was killed has ended", || have_ended(&processes));
}

/// The same, where the death of all at once is meant: who waits for a file that a dead frontend
/// served ends only when the next daemon takes its mount away, so after a time it is gone on with.
pub fn kill_all_at_once(pids: &[u32]) {
    let processes = kill_together(pids);
    let given_up = Instant::now() + TIME_TO_DIE;
    while !have_ended(&processes) && Instant::now() < given_up {
        wait::pause(LOOK_EVERY);
    }
}

/// The time that the kernel needs at most to take a guest's memory away on a busy machine.
const TIME_TO_DIE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Asks processes to end, and waits as [`kill_and_wait`] does.
pub fn terminate_and_wait(pids: &[u32]) {
    let processes = signal_together(pids, Signal::TERM);
    wait::until("what was asked to end has ended", || have_ended(&processes));
}

fn kill_together(pids: &[u32]) -> Vec<OwnedFd> {
    signal_together(pids, Signal::KILL)
}

fn signal_together(pids: &[u32], signal: Signal) -> Vec<OwnedFd> {
    let open = |pid: &u32| {
        let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw)?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => Some(process),
            Err(rustix::io::Errno::SRCH) => None,
            Err(errno) => panic!("can't watch process {}: {errno}", pid.as_raw_nonzero()),
        }
    };
    let processes: Vec<OwnedFd> = pids.iter().filter_map(open).collect();
    for process in &processes {
        match pidfd_send_signal(process, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(errno) => panic!("can't signal a process: {errno}"),
        }
    }
    processes
}

fn have_ended(processes: &[OwnedFd]) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    processes.iter().all(|process| {
        let mut polled = [PollFd::new(process, PollFlags::IN)];
        // Readable when all its threads have ended.
        poll(&mut polled, Some(&now)).is_ok_and(|ended| ended == 1)
    })
}

/// Asks one process to end.
pub fn terminate(pid: u32) {
    signal(pid, Signal::TERM);
}

fn signal(pid: u32, signal: Signal) {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    match kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(errno) => panic!("can't signal process {}: {errno}", pid.as_raw_nonzero()),
    }
}

/// The binary under test: `TOMBOLO_BIN`, or what `cargo xtask product` built of this checkout.
///
/// # Panics
/// It is older than its sources.
pub fn binary() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    let found = || {
        let binary =
            std::env::var_os("TOMBOLO_BIN").map_or_else(|| target().join("product/tombolo"), PathBuf::from);
        testing::assert_fresh(&binary);
        binary
    };
    BINARY.get_or_init(found).clone()
}

/// The preload library of the same build.
pub fn preload_library() -> PathBuf {
    binary().with_file_name("libtombolo_preload.so")
}

/// Where cargo builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from)
}

/// The things that this machine lacks for a node.
pub(crate) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root; run the tests through sudo".into());
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("needs /dev/fuse; load the kernel's fuse module".into());
    }
    for program in ["runc", "dnsmasq"] {
        if !in_path(program) {
            return Some(format!("needs {program}; run `make deps`"));
        }
    }
    assert!(binary().exists(), "{} is missing: run `cargo xtask product` first", binary().display());
    None
}

/// Whether a program is installed.
pub(crate) fn in_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()))
}

/// A topology with a directory service in front of `port` and the given client domains, in the
/// words of the file. `service` and `client` are further lines for the service's settings and for
/// each client.
pub fn topology(port: u16, clients: &[&str], settings: &str, client: &str) -> String {
    let mut text = format!(
        "name = \"test\"\n\n[domain.resolver]\nkind = \"container\"\nroot = \"host\"\nnetwork = \"host\"\n\
         restart = {{ policy = \"always\", backoff = \"50ms\" }}\n\n\
         [service.dns]\nkind = \"directory\"\ndomain = \"resolver\"\n\
         allow = [{{ domains = \"*\", verbs = [\"resolve\", \"control\"] }}]\n\n\
         [service.dns.settings]\nupstream = [\"127.0.0.1:{port}\"]\n{settings}\n"
    );
    for name in clients {
        text += &format!(
            "\n[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\n\
             services = {{ dns = \"/srv/dns\" }}\n{client}\n"
        );
    }
    text
}
