//! A guest under QEMU for what this machine's own kernel can't show: cgroup version 2 alone, crun, and FUSE as Linux 6.1 has it.
//!
//! The guest is an image of ours (`image`), made of Debian's kernel, busybox and the binary under test. It runs
//! `programs/guest/start.sh` and says what came out line by line on its second serial port.

use crate::node::{binary, target};
use image::{Compression, GuestPrograms, Kernel, START, Spec};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long the guest may take for everything. It takes a minute or so; a machine with six times the work for its processors gets
/// what it needs.
const DEADLINE: Duration = Duration::from_secs(400);
/// Lines of the guest's console that explain a failure.
const SHOWN_LINES: usize = 100;
/// The guest's memory, in MiB: four times what the image and the domains take.
const MEMORY_MIB: &str = "1500";
/// A root for domains, with nothing but busybox.
const TREE_FILES: [(&str, &str); 3] = [
    ("/tree/etc/passwd", "root:x:0:0::/:/bin/sh\ntenant:x:1000:1000::/:/bin/sh\n"),
    ("/tree/etc/group", "root:x:0:\ntenant:x:1000:\nfurther:x:2000:tenant\n"),
    ("/tree/etc/hostname", "tree\n"),
];
/// What the domains run.
const TREE_PROGRAMS: [&str; 12] =
    ["sh", "sleep", "cat", "cut", "dd", "echo", "id", "ls", "nslookup", "tail", "touch", "tr"];

/// What one boot showed.
#[derive(Debug)]
pub struct Report {
    /// `Ok`, or why not, of each check.
    pub checks: BTreeMap<String, Result<(), String>>,
    /// How many checks the guest says that it made; `None` where it never came to its end.
    pub done: Option<usize>,
    /// The guest's console, its last lines.
    pub console: String,
}

/// Boots the guest and lets it come to its end; the reason, where this machine can't.
///
/// # Errors
/// What is missing, and how to get it.
pub fn run() -> Result<Report, String> {
    let spec = spec()?;
    let image = match image::build(&spec, &target().join("guests"), &mut |_| {}) {
        Ok(image) => image,
        Err(error) => {
            panic!("the guest's image can't be built: {error}\n{}", error.help().unwrap_or_default())
        }
    };
    let folder = tempfile::Builder::new().prefix("tombolo-guest-").tempdir().expect("a temporary folder");
    let console = folder.path().join("console");
    let machine = Machine::start(&image, &console);
    let mut report = Report { checks: BTreeMap::new(), done: None, console: String::new() };
    let deadline = Instant::now() + DEADLINE;
    while report.done.is_none() {
        match machine.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => report.read(&line),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    drop(machine);
    let text = String::from_utf8_lossy(&std::fs::read(&console).unwrap_or_default()).into_owned();
    if std::env::var_os("TOMBOLO_E2E_VERBOSE").is_some() {
        eprintln!("{text}");
    }
    let lines: Vec<&str> = text.lines().collect();
    report.console = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
    Ok(report)
}

impl Report {
    fn read(&mut self, line: &str) {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("ok ") {
            self.checks.insert(name.to_owned(), Ok(()));
        } else if let Some((name, why)) = line.strip_prefix("not ok ").and_then(|rest| rest.split_once(':')) {
            self.checks.insert(name.to_owned(), Err(why.trim().replace('|', "\n")));
        } else if let Some(count) = line.strip_prefix("done ") {
            self.done = count.parse().ok();
        }
    }
}

/// The image, or what is missing for it.
fn spec() -> Result<Spec, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("the guest's kernel and QEMU are those of x86-64".into());
    }
    program("qemu-system-x86_64")?;
    let [busybox, dnsmasq, runc] = [program("busybox")?, program("dnsmasq")?, program("runc")?];
    let unpacked = target().join("debian");
    let kernel =
        Kernel::find(&unpacked.join("kernel")).map_err(|error| format!("{error}; run `make deps`"))?;
    let crun = unpacked.join("crun/usr/bin/crun");
    if !crun.exists() {
        return Err(format!("needs the unpacked package crun in {}; run `make deps`", crun.display()));
    }
    assert!(binary().exists(), "{} is missing: run `make build` first", binary().display());
    let mut spec = image::guest(kernel, &GuestPrograms { busybox: busybox.clone(), tombolo: binary() });
    // A guest under emulation loads faster than it unpacks.
    spec.compression = Compression::None;
    spec.library_paths.push(unpacked.join("crun/usr/lib/x86_64-linux-gnu"));
    spec.program(dnsmasq, "/usr/sbin/dnsmasq");
    // Where nobody finds them: the guest installs one at a time.
    spec.program(runc, "/opt/runc").program(crun, "/opt/crun");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    spec.file(here.join("programs/guest/start.sh"), START, 0o755);
    spec.file(here.join("programs/guest/topology.toml"), "/etc/tombolo/topology.toml", 0o644);
    spec.file(here.join("../examples/quickstart/zone.conf"), "/etc/tombolo/zone.conf", 0o644);
    spec.directory("/tree/tmp", 0o1777).file(&busybox, "/tree/bin/busybox", 0o755);
    for (to, content) in TREE_FILES {
        spec.bytes(content, to, 0o644);
    }
    for name in TREE_PROGRAMS {
        spec.link(format!("/tree/bin/{name}"), "busybox");
    }
    Ok(spec)
}

fn program(name: &str) -> Result<PathBuf, String> {
    image::find_program(name).map_err(|_| format!("needs {name}; run `make deps`"))
}

/// QEMU with what the guest says; ended when dropped.
struct Machine {
    child: Child,
    lines: Receiver<String>,
}

impl Machine {
    fn start(image: &image::Image, console: &Path) -> Self {
        // Emulation everywhere: a KVM that is there and then hangs, as nested ones do, would cost the test its meaning. Emulated string
        // instructions (ERMS) are slower than loops.
        let mut child = Command::new("qemu-system-x86_64")
            .args(["-accel", "tcg", "-cpu", "max,erms=off,fsrm=off"])
            .args([
                "-m",
                MEMORY_MIB,
                "-smp",
                "2",
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
                "-display",
                "none",
            ])
            .arg("-kernel")
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&image.initramfs)
            .args(["-append", "console=ttyS0 cgroup_no_v1=all quiet panic=-1"])
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .args(["-serial", "stdio"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("QEMU starts");
        let lines = lines_of(child.stdout.take().expect("its output"));
        Self { child, lines }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have switched itself off; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines_of(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // A line that is no text ends the guest's report, which then is incomplete, and says so.
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
