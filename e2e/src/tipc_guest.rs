//! A guest under QEMU whose kernel has what this machine's own may lack, TIPC, and in it two nodes:
//! network namespaces with a cable between them.
//!
//! It boots an image of ours (`image`), made of Debian's kernel, busybox, `ip` and `tipc` of
//! iproute2, and `tipc_peer`. The near node says line by line on the guest's second serial port
//! what came of its checks.

use crate::node::target;
use crate::report::{Machine, Report};
use image::{Compression, Image, Kernel, Spec};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Scenarios of the suite that are not run by way of the other node: what they show is above the
/// socket, they take most of the time, and two checks of their own exchange transports and connect
/// again between the nodes.
pub const NOT_BY_RELAY: [&str; 4] = [
    "bodies are made smaller, by each compression",
    "many small messages go in few packets",
    "connections that come and go under load",
    "transports are exchanged under load",
];

/// How long everything may take. It takes some seconds, or minutes with the suite; a machine with
/// much else to do gets what it needs.
const DEADLINE: Duration = Duration::from_secs(300);
/// The same with the suite.
const DEADLINE_OF_SUITE: Duration = Duration::from_secs(1200);
/// Memory of the guest, in MiB.
const MEMORY_MIB: &str = "384";
/// Asks for the suite of links between the two as well, which takes minutes: `all`, or a part of
/// the names of its scenarios.
pub const SUITE: &str = "TOMBOLO_TIPC_SUITE";
/// The value of [`SUITE`] that asks for all of it.
pub const ALL: &str = "all";
const MODULES: [&str; 2] = ["veth", "tipc"];

/// Boots it and lets the near node come to its end; the reason, where this machine can't. `peer` is
/// `tipc_peer` as it was built.
///
/// # Errors
/// The missing part, and how to get it.
///
/// # Panics
/// Where everything is there, and the image can't be built or QEMU not started.
pub fn run(peer: &Path) -> Result<Report, String> {
    let spec = spec(peer)?;
    let image = match image::build(&spec, &target().join("guests"), &mut |_| {}) {
        Ok(image) => image,
        Err(error) => {
            panic!("the guest's image can't be built: {error}\n{}", error.help().unwrap_or_default())
        }
    };
    let folder = tempfile::Builder::new().prefix("tombolo-tipc-").tempdir().expect("a temporary folder");
    let console = folder.path().join("console");
    let guest = start(&image, &console);
    let verbose = std::env::var_os("TOMBOLO_E2E_VERBOSE").is_some();
    let mut report = Report::default();
    let limit = if suite().is_some() { DEADLINE_OF_SUITE } else { DEADLINE };
    let deadline = Instant::now() + limit;
    // Until it has switched itself off, or the time is over.
    while let Ok(line) = guest.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if verbose {
            eprintln!("{line}");
        }
        report.read(&line);
    }
    drop(guest);
    report.console(&String::from_utf8_lossy(&std::fs::read(console).unwrap_or_default()));
    Ok(report)
}

/// The scenarios of the suite that are asked for.
#[must_use]
pub fn suite() -> Option<String> {
    std::env::var(SUITE).ok().filter(|asked| !asked.is_empty())
}

/// Whether a scenario of the suite is one of those that [`suite`] says.
#[must_use]
pub fn is_of_suite(name: &str, asked: &str) -> bool {
    !NOT_BY_RELAY.contains(&name) && (asked == ALL || name.contains(asked))
}

/// The image, or what is missing for it.
fn spec(peer: &Path) -> Result<Spec, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("the guest's kernel and QEMU are those of x86-64".into());
    }
    program("qemu-system-x86_64")?;
    let [busybox, ip, tipc] = [program("busybox")?, program("ip")?, program("tipc")?];
    // Those of busybox start what else it has instead of what is on the path.
    let [nsenter, unshare] = [program("nsenter")?, program("unshare")?];
    let unpacked = target().join("debian/kernel");
    let kernel = Kernel::find(&unpacked).map_err(|error| format!("{error}; run `make deps`"))?;
    let mut spec = Spec::new(kernel);
    // A guest under emulation loads faster than it unpacks.
    spec.compression = Compression::None;
    spec.modules = MODULES.map(str::to_owned).to_vec();
    for name in ["bin", "sbin", "lib", "lib64"] {
        spec.link(format!("/{name}"), format!("usr/{name}"));
    }
    for directory in ["/dev", "/proc", "/run", "/sys", "/tmp", "/usr/bin", "/usr/sbin", "/usr/lib64"] {
        spec.directory(directory, 0o755);
    }
    spec.entries.push(image::Entry::Device { to: "/dev/console".into(), mode: 0o600, number: (5, 1) });
    spec.program(busybox, "/usr/bin/busybox").program(ip, "/usr/sbin/ip").program(tipc, "/usr/sbin/tipc");
    spec.program(nsenter, "/usr/sbin/nsenter").program(unshare, "/usr/sbin/unshare");
    spec.program(peer, "/usr/bin/tipc_peer");
    for role in ["tombolo", "link-worker"] {
        spec.link(format!("/usr/bin/{role}"), "tipc_peer");
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    spec.file(here.join("programs/tipc/init.sh"), "/init", 0o755);
    Ok(spec)
}

fn program(name: &str) -> Result<PathBuf, String> {
    image::find_program(name).map_err(|_| format!("needs {name}; run `make deps`"))
}

/// Starts a machine: words of its command line that a kernel does not know are its first program's
/// environment.
fn start(image: &Image, console: &Path) -> Machine {
    let suite = suite().unwrap_or_default();
    let mut qemu = Command::new("qemu-system-x86_64");
    // Emulated string instructions (ERMS) are slower than loops.
    qemu.args(["-cpu", "max,erms=off,fsrm=off", "-m", MEMORY_MIB, "-kernel"])
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&image.initramfs)
        .arg("-append")
        // A timer that is emulated on a busy machine fails the kernel's check of timers.
        .arg(format!("console=ttyS0 quiet no_timer_check panic=-1 {SUITE}={suite}"));
    Machine::start(&mut qemu, console)
}
