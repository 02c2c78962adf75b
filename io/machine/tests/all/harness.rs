//! A machine process in a directory of its own, and its end.

use machine::{Accel, MachineOrder, Outcome, Patience, Word};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use sys::signals::SignalDescriptor;
use tempfile::TempDir;
use wire::guest::Boot;

/// How long anything may take here before the test fails.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub fn boot() -> Boot {
    Boot {
        version: wire::guest::VERSION,
        dc: "shop".into(),
        domain: "edge".into(),
        hostname: "edge".into(),
        command: vec!["true".into()],
        environment: Vec::new(),
        user: None,
        workdir: None,
        services: false,
        resolv_conf: None,
        stub: false,
        resolve: false,
        network: None,
        root: None,
    }
}

/// An order for a kernel that is there.
pub fn order(qemu: &Path, kernel: &Path) -> MachineOrder {
    MachineOrder {
        qemu: qemu.into(),
        accel: Accel::Tcg,
        cpus: 1,
        memory_bytes: 128 << 20,
        kernel: Some(kernel.into()),
        initramfs: None,
        append: String::new(),
        disk: None,
        volumes: Vec::new(),
        user_network: false,
        boot_ms: 30_000,
        shutdown_ms: 20_000,
        boot: boot(),
    }
}

/// A directory for one machine.
pub struct Place {
    pub directory: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A program of the shell.
    pub fn script(&self, text: &str) -> PathBuf {
        let path = self.path("qemu");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// A QEMU that is this test program, playing `part`.
    pub fn fake(&self, part: &str) -> PathBuf {
        let tests = std::env::current_exe().unwrap();
        let notes = self.path("notes");
        self.script(&format!(
            "FAKE_PART={part} FAKE_LINE=\"$*\" FAKE_NOTES={} exec {} fake::qemu --exact --ignored --nocapture",
            notes.display(),
            tests.display()
        ))
    }

    /// Starts the machine.
    pub fn start(&self, order: &MachineOrder, patience: Patience) -> Running {
        std::fs::write(self.path("kernel"), "a kernel").unwrap();
        std::fs::write(self.path("order.json"), serde_json::to_vec(order).unwrap()).unwrap();
        self.start_as_is(patience)
    }

    /// Starts the machine with whatever order there is.
    pub fn start_as_is(&self, patience: Patience) -> Running {
        let Patience { pong_ms, ping_every_ms, qemu_ms, off_ms } = patience;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["harness::machine_process", "--exact", "--ignored", "--nocapture"])
            .env("MACHINE_DIR", self.directory.path())
            .env("MACHINE_TIMEOUT", format!("{pong_ms} {ping_every_ms} {qemu_ms} {off_ms}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // All threads of the other process are to have the signal blocked, also those of the test
        // harness: so it inherits that, from a thread that has it blocked for good.
        let start = move || {
            let _blocked = SignalDescriptor::block(&stop_signals()).unwrap();
            command.spawn().unwrap()
        };
        let child = std::thread::spawn(start).join().unwrap();
        Running { child, directory: self.directory.path().into() }
    }
}

/// A machine process.
pub struct Running {
    pub child: Child,
    directory: PathBuf,
}

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub outcome: Option<Outcome>,
    pub output: String,
    pub errors: String,
}

impl Ended {
    pub fn word(&self) -> Word {
        self.outcome.as_ref().unwrap_or_else(|| panic!("no outcome: {self:?}")).outcome
    }

    pub fn message(&self) -> &str {
        &self.outcome.as_ref().unwrap().message
    }
}

impl Running {
    pub fn signal(&self, signal: rustix::process::Signal) {
        sys::process::kill(self.child.id(), signal).unwrap();
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Ended {
        let ended = sys::process::pidfd_open(self.child.id()).unwrap();
        let read = |mut from: Box<dyn Read + Send>| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                from.read_to_end(&mut bytes).unwrap();
                String::from_utf8_lossy(&bytes).into_owned()
            })
        };
        let output = read(Box::new(self.child.stdout.take().unwrap()));
        let errors = read(Box::new(self.child.stderr.take().unwrap()));
        let timed_out = !readable(&ended, Instant::now() + DEADLINE);
        if timed_out {
            self.child.kill().unwrap();
        }
        let status = self.child.wait().unwrap();
        let text = std::fs::read(self.directory.join("outcome.json")).ok();
        let outcome = text.and_then(|text| Outcome::parse(&text));
        let (output, errors) = (output.join().unwrap(), errors.join().unwrap());
        let ended = Ended { code: status.code().unwrap_or(-1), outcome, output, errors };
        assert!(!timed_out, "the machine did not end: {ended:?}");
        ended
    }
}

/// Waits until a descriptor can be read or has hung up.
pub fn readable(descriptor: impl std::os::fd::AsFd, until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = session::timespec(left);
    let mut polled = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&timeout))).unwrap() > 0
}

fn stop_signals() -> [i32; 2] {
    [rustix::process::Signal::TERM.as_raw(), rustix::process::Signal::INT.as_raw()]
}

#[test]
#[ignore = "the other process of these tests, which start it"]
fn machine_process() {
    let directory = PathBuf::from(std::env::var_os("MACHINE_DIR").unwrap());
    let numbers = std::env::var("MACHINE_TIMEOUT").unwrap();
    let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
    let [pong_ms, ping_every_ms, qemu_ms, off_ms] = numbers[..] else { panic!("{numbers:?}") };
    let patience = Patience { pong_ms, ping_every_ms, qemu_ms, off_ms };
    let signals = SignalDescriptor::block(&stop_signals()).unwrap();
    let ended = machine::run_with(&directory, &directory.join("control.sock"), &signals, patience);
    std::process::exit(ended.code.into());
}

impl Place {
    /// Waits until a file is there: the machine's socket, or what a fake notes.
    pub fn wait_for(&self, name: &str) {
        let path = self.path(name);
        let until = Instant::now() + DEADLINE;
        let watch = session::FolderWatch::new(&path).unwrap();
        while !path.exists() {
            assert!(readable(&watch, until), "{name} does not come");
            watch.drain();
        }
    }
}
