//! A guest under QEMU for what this machine's own kernel can't show: cgroup version 2 alone, crun,
//! and FUSE as Linux 6.1 has it.
//!
//! The guest is an image of ours (`image`), made of Debian's kernel, busybox and the binary under
//! test. It runs `programs/guest/start.sh` and says what came out line by line on its second serial
//! port.

use crate::node::{binary, target};
use crate::report::Machine;
pub use crate::report::Report;
use image::{Compression, GuestPrograms, Kernel, START, Spec};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// How long the guest may take for everything. It takes a minute or two; a machine with six times
/// the work for its processors gets what it needs.
const DEADLINE: Duration = Duration::from_secs(600);
/// The guest's memory, in MiB: four times what the image and the domains take.
const MEMORY_MIB: &str = "1500";
/// A root for domains, with nothing but busybox.
const TREE_FILES: [(&str, &str); 3] = [
    ("/tree/etc/passwd", "root:x:0:0::/:/bin/sh\ntenant:x:1000:1000::/:/bin/sh\n"),
    ("/tree/etc/group", "root:x:0:\ntenant:x:1000:\nfurther:x:2000:tenant\n"),
    ("/tree/etc/hostname", "tree\n"),
];
/// The program of the domains.
const TREE_PROGRAMS: [&str; 12] =
    ["sh", "sleep", "cat", "cut", "dd", "echo", "id", "ls", "nslookup", "tail", "touch", "tr"];

/// Boots the guest and lets it come to its end; the reason, where this machine can't.
///
/// # Errors
/// The missing part, and how to get it.
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
    let machine = start(&image, &console);
    let mut report = Report::default();
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
    report.console(&text);
    Ok(report)
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

pub(crate) fn program(name: &str) -> Result<PathBuf, String> {
    image::find_program(name).map_err(|_| format!("needs {name}; run `make deps`"))
}

fn start(image: &image::Image, console: &Path) -> Machine {
    let mut qemu = Command::new("qemu-system-x86_64");
    // Emulated string instructions (ERMS) are slower than loops.
    qemu.args(["-cpu", "max,erms=off,fsrm=off", "-m", MEMORY_MIB, "-smp", "2", "-kernel"])
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&image.initramfs)
        .args(["-append", "console=ttyS0 cgroup_no_v1=all quiet panic=-1 no_timer_check"]);
    Machine::start(&mut qemu, console)
}
