//! A node of its own: run and state directories in a temporary folder, driven through the real binary.

use crate::{clean, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// What a command did.
#[derive(Debug)]
pub struct Run {
    /// Exit code; 128 and more where a signal ended it.
    pub code: i32,
    /// What it printed.
    pub out: String,
    /// What it complained.
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
        let run_dir = self.run_dir();
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

    /// What the daemon logged, to explain a failure.
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

/// Kills one process, as `kill -9` does. One that is gone already is as good.
pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
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

/// The binary under test: `TOMBOLO_BIN`, or the release build of this checkout.
pub fn binary() -> PathBuf {
    std::env::var_os("TOMBOLO_BIN").map_or_else(|| target().join("release/tombolo"), PathBuf::from)
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

fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root; run the tests through sudo".into());
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("needs /dev/fuse; load the kernel's fuse module".into());
    }
    for program in ["runc", "dnsmasq"] {
        let found = std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()));
        if !found {
            return Some(format!("needs {program}; run `make deps`"));
        }
    }
    assert!(binary().exists(), "{} is missing: run `make build` first", binary().display());
    None
}

/// A topology with a directory service in front of `port` and the given client domains, in the words of the file.
/// `service` and `client` are further lines for the service's settings and for each client.
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
