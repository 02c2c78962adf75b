//! The images of dom0 and of the guests, and QEMU.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use e2e::report::{Machine, Report};
use image::{Compression, Image, Kernel, Spec};

/// How long everything may take. It takes a minute; a machine with much else to do gets what it
/// needs.
const DEADLINE: Duration = Duration::from_secs(600);
/// The same of measurements, which take some minutes.
const BENCH_DEADLINE: Duration = Duration::from_secs(1800);
/// How long the guests may take to come up. Where they have not, the machine is started anew.
const GUESTS_DEADLINE: Duration = Duration::from_secs(150);
/// How often the console is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(500);
/// How often a machine is started at the most. An emulated processor that emulates virtualization
/// loses a guest now and then, in its first steps for the most part (QEMU 7.2): the guest's kernel
/// ends by a triple fault, and only the hypervisor says so.
const STARTS: u32 = 4;
/// The hypervisor's words on such a guest.
const LOST: &str = "Triple fault";
/// The controller's words when both guests have come.
const UP: &str = ": two guests";
/// The machine's memory in MiB: dom0's, two guests' and the hypervisor's.
const MEMORY_MIB: &str = "1400";
/// Where packages are unpacked below the target folder, and by whom.
const XEN: &str = "debian/xen";
const DOM0_KERNEL: &str = "debian/kernel-full";
const GUEST_KERNEL: &str = "debian/kernel";
/// Programs of the toolstack, below the package's own directory.
const TOOLS: [&str; 5] = ["xl", "xenstored", "xenconsoled", "xen-init-dom0", "libxl-save-helper"];
/// Where they look for each other.
const TOOLS_PLACE: &str = "/usr/lib/xen-4.17/bin";
const DOM0_MODULES: [&str; 6] =
    ["xen_privcmd", "xenfs", "xen_evtchn", "xen_gntdev", "xen_gntalloc", "xen_netback"];
const GUEST_MODULES: [&str; 4] = ["xen_evtchn", "xen_gntdev", "xen_gntalloc", "xen_netfront"];

/// Names of what dom0's first program is told in its environment: what to do, and to make only
/// those checks whose name has this in it, or behind a `!` has not (for whoever works on one of
/// them: the tests of the others fail then).
const WHAT: &str = "TOMBOLO_XEN_WHAT";
const ONLY: &str = "TOMBOLO_XEN_ONLY";

/// The controller's duty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// All checks.
    Test,
    /// Measurements beside what else there is on Xen.
    Bench,
}

impl What {
    fn word(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Bench => "bench",
        }
    }

    fn deadline(self) -> Duration {
        match self {
            Self::Test => DEADLINE,
            Self::Bench => BENCH_DEADLINE,
        }
    }
}

/// Starts the machine with this `xen_peer` in all its domains, and lets it come to its end; the
/// reason, where this machine can't. `target` is cargo's target folder: packages are unpacked
/// there, and images kept.
///
/// # Errors
/// The missing part, and how to get it.
///
/// # Panics
/// Where everything is there, and an image can't be built or QEMU not started.
pub fn run(what: What, peer: &Path, target: &Path) -> Result<Report, String> {
    let (dom0, hypervisor) = images(what, peer, target)?;
    let folder = tempfile::Builder::new().prefix("tombolo-xen-").tempdir().expect("a temporary folder");
    let console = folder.path().join("console");
    let verbose = std::env::var_os("TOMBOLO_E2E_VERBOSE").is_some();
    for number in 1..=STARTS {
        let machine = start(&dom0, &hypervisor, &console, what);
        let mut report = Report::default();
        let has_all = follow(&machine, &console, what, verbose, &mut report);
        drop(machine);
        let text = read(&console);
        if verbose {
            eprintln!("{text}");
        }
        report.console(&text);
        if has_all || number == STARTS {
            return Ok(report);
        }
        eprintln!(
            "one of Xen's guests was lost: the machine is started anew (start {} of {STARTS})",
            number + 1
        );
    }
    Err("the machine is started at least once".into())
}

fn read(console: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(console).unwrap_or_default()).into_owned()
}

/// Reads what the machine says until it has switched itself off, or the time is over. `false`: one
/// of its guests did not come, or was lost on the way.
fn follow(machine: &Machine, console: &Path, what: What, verbose: bool, report: &mut Report) -> bool {
    let begin = Instant::now();
    let mut are_up = false;
    loop {
        match machine.lines.recv_timeout(LOOK) {
            Ok(line) => {
                if verbose {
                    eprintln!("{line}");
                }
                are_up |= line.trim().ends_with(UP);
                report.read(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if read(console).contains(LOST) => return false,
            Err(RecvTimeoutError::Timeout) if begin.elapsed() > what.deadline() => return true,
            Err(RecvTimeoutError::Timeout) if begin.elapsed() > GUESTS_DEADLINE && !are_up => return false,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    report.checks.values().all(Result::is_ok) || !read(console).contains(LOST)
}

/// dom0's image with everything in it, and the hypervisor, unpacked.
fn images(what: What, peer: &Path, target: &Path) -> Result<(Image, PathBuf), String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("Xen is tried on x86-64".into());
    }
    image::find_program("qemu-system-x86_64").map_err(|_| "needs qemu-system-x86_64; run `make deps`")?;
    let busybox = image::find_program("busybox").map_err(|_| "needs busybox; run `make deps`")?;
    let xen = target.join(XEN);
    let packed = xen.join("boot/xen-4.17-amd64.gz");
    if !packed.is_file() {
        return Err(format!("needs the unpacked packages of Xen in {}; run `make deps`", xen.display()));
    }
    let kernel =
        |place| Kernel::find(&target.join(place)).map_err(|error| format!("{error}; run `make deps`"));
    let guests = target.join("guests");
    let build = |spec: &Spec| match image::build(spec, &guests, &mut |_| {}) {
        Ok(image) => image,
        Err(error) => {
            panic!("the image can't be built: {error}\n{}", error.help().unwrap_or_default())
        }
    };
    let mut guest = guest(kernel(GUEST_KERNEL)?, &busybox, peer, &xen);
    if what == What::Bench {
        guest.program(vchan_peer(&xen, target)?, "/usr/bin/vchan_peer");
    }
    let guest = build(&guest);
    let dom0 = build(&dom0(kernel(DOM0_KERNEL)?, &busybox, peer, &xen, &guest));
    Ok((dom0, hypervisor(&packed, &guests)))
}

/// The part that both kinds of images have in common.
fn small(kernel: Kernel, modules: &[&str], busybox: &Path, peer: &Path, xen: &Path) -> Spec {
    let mut spec = Spec::new(kernel);
    // Emulated processors load faster than they unpack.
    spec.compression = Compression::None;
    spec.modules = modules.iter().map(|&name| name.to_owned()).collect();
    for name in ["bin", "sbin", "lib", "lib64"] {
        spec.link(format!("/{name}"), format!("usr/{name}"));
    }
    for directory in
        ["/dev", "/proc", "/run", "/sys", "/tmp", "/usr/bin", "/usr/sbin", "/usr/lib64", "/var/lib"]
    {
        spec.directory(directory, 0o755);
    }
    spec.entries.push(image::Entry::Device { to: "/dev/console".into(), mode: 0o600, number: (5, 1) });
    spec.library_paths.push(xen.join("usr/lib/x86_64-linux-gnu"));
    spec.program(busybox, "/usr/bin/busybox").program(peer, "/usr/bin/xen_peer");
    spec.program(xen.join("usr/bin/xenstore-read"), "/usr/bin/xenstore-read");
    spec
}

fn guest(kernel: Kernel, busybox: &Path, peer: &Path, xen: &Path) -> Spec {
    let mut spec = small(kernel, &GUEST_MODULES, busybox, peer, xen);
    spec.file(programs().join("guest.sh"), "/init", 0o755);
    spec
}

fn dom0(kernel: Kernel, busybox: &Path, peer: &Path, xen: &Path, guest: &Image) -> Spec {
    let mut spec = small(kernel, &DOM0_MODULES, busybox, peer, xen);
    for tool in TOOLS {
        spec.program(xen.join("usr/lib/xen-4.17/bin").join(tool), format!("{TOOLS_PLACE}/{tool}"));
    }
    for tool in ["xenstore-write", "xenstore-chmod", "xenstore-list"] {
        spec.program(xen.join("usr/bin").join(tool), format!("/usr/bin/{tool}"));
    }
    // A thread of xl is cancelled, for which the C library opens this by name.
    spec.file("/lib/x86_64-linux-gnu/libgcc_s.so.1", "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1", 0o755);
    spec.bytes("", "/etc/xen/xl.conf", 0o644);
    spec.file(programs().join("vif.sh"), "/etc/xen/scripts/vif", 0o755);
    spec.file(&guest.kernel, "/guest/kernel", 0o644).file(&guest.initramfs, "/guest/initramfs", 0o644);
    spec.file(programs().join("dom0.sh"), "/init", 0o755);
    spec
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

/// Compiles what uses Xen's own channels.
fn vchan_peer(xen: &Path, target: &Path) -> Result<PathBuf, String> {
    let to = target.join("vchan_peer");
    let libraries = xen.join("usr/lib/x86_64-linux-gnu");
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&to)
        .arg(programs().join("vchan_peer.c"))
        .arg(format!("-I{}", xen.join("usr/include").display()))
        .arg(format!("-L{}", libraries.display()))
        .arg(format!("-Wl,-rpath-link={}", libraries.display()))
        .arg("-lxenvchan")
        .status();
    match status {
        Ok(status) if status.success() => Ok(to),
        Ok(status) => Err(format!("vchan_peer.c can't be compiled: {status}")),
        Err(error) => Err(format!("needs a C compiler: {error}; run `make deps`")),
    }
}

/// QEMU starts a hypervisor as it is; the package has it packed.
fn hypervisor(packed: &Path, folder: &Path) -> PathBuf {
    let to = folder.join("xen");
    let file = tempfile::NamedTempFile::new_in(folder).expect("a file beside the images");
    let unpacked = Command::new("gzip")
        .args(["--decompress", "--stdout"])
        .arg(packed)
        .stdout(file.reopen().expect("the file once more"))
        .status();
    assert!(unpacked.is_ok_and(|status| status.success()), "gzip can't unpack {}", packed.display());
    file.persist(&to).expect("a name for the hypervisor");
    to
}

/// QEMU, with a processor that Xen takes for one with virtualization (guests without any are
/// slower) and that QEMU can be: both leave out what the other lacks.
fn start(dom0: &Image, hypervisor: &Path, console: &Path, what: What) -> Machine {
    // What a kernel does not know of its command line is its first program's environment.
    let only = std::env::var(ONLY).unwrap_or_default();
    let modules = format!(
        "{} console=hvc0 quiet panic=-1 {WHAT}={} {ONLY}={only},{}",
        dom0.kernel.display(),
        what.word(),
        dom0.initramfs.display()
    );
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-cpu", "phenom,+npt,+svm,-rdtscp", "-m", MEMORY_MIB, "-smp", "2", "-kernel"])
        .arg(hypervisor)
        .args([
            "-append",
            "com1=115200,8n1 console=com1 dom0_mem=700M,max:700M dom0_max_vcpus=1 loglvl=warning",
        ])
        .args(["-initrd", &modules])
        .stderr(Stdio::null());
    Machine::start(&mut qemu, console)
}
