//! A guest whose power is cut: QEMU is killed, so what the guest had not written to its disk is
//! lost. It has a node whose state directory is on that disk, and a container of an image of
//! several thousand files.
//!
//! `programs/power_cut/start.sh` is run at each boot and says how far it is; a line `cut REASON`
//! asks for the cut.

use crate::guest::program;
use crate::node::{binary, target};
use crate::oci;
use crate::report::{Machine, Report};
use image::{Compression, GuestPrograms, Image, Kernel, START, Spec};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// How long one boot may take until it asks for a cut or is done, on a machine that has much else
/// to do.
const DEADLINE: Duration = Duration::from_secs(300);
/// More boots than the script asks for.
const MAX_BOOTS: usize = 8;
/// The guest's memory, in MiB: everything that it writes may stay in its page cache.
const MEMORY_MIB: &str = "1500";
/// The size of the disk, in bytes.
const DISK_BYTES: u64 = 1 << 30;
/// Files of the image whose content is compared; enough that to unpack and to write them takes
/// seconds.
const FILES: usize = 3_000;

/// Boots the guest until it is done; its report, with the reasons of the cuts as notes. `Err`: what
/// this machine lacks.
///
/// # Errors
/// The missing part, and how to get it.
///
/// # Panics
/// Where everything is there and the image or the disk can't be made.
pub fn run() -> Result<Report, String> {
    let folder = tempfile::Builder::new().prefix("tombolo-power-").tempdir().expect("a temporary folder");
    let spec = spec(folder.path())?;
    let image = image::build(&spec, &target().join("guests"), &mut |_| {}).expect("the guest's image");
    let disk = folder.path().join("disk");
    std::fs::File::create(&disk).and_then(|file| file.set_len(DISK_BYTES)).expect("a disk");
    oci::script(folder.path(), "mkfs.ext4 -q -F disk");
    let mut report = Report::default();
    for boot in 0..MAX_BOOTS {
        let console = folder.path().join(format!("console-{boot}"));
        let is_cut = until_cut(&mut report, &image, &disk, &console);
        report.console(&String::from_utf8_lossy(&std::fs::read(&console).unwrap_or_default()));
        if !is_cut {
            break;
        }
    }
    Ok(report)
}

/// One boot, to a cut of its power; `false`: it came to its end, or to none.
fn until_cut(report: &mut Report, image: &Image, disk: &Path, console: &Path) -> bool {
    let machine = start(image, disk, console);
    let deadline = Instant::now() + DEADLINE;
    while report.done.is_none() {
        match machine.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                report.read(&line);
                if line.starts_with("cut ") {
                    // Dropping the machine kills QEMU.
                    return true;
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    false
}

fn spec(folder: &Path) -> Result<Spec, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("the guest's kernel and QEMU are those of x86-64".into());
    }
    for name in ["qemu-system-x86_64", "mkfs.ext4"] {
        program(name)?;
    }
    let [busybox, runc] = [program("busybox")?, program("runc")?];
    let kernel =
        Kernel::find(&target().join("debian/kernel")).map_err(|error| format!("{error}; run `make deps`"))?;
    assert!(binary().exists(), "{} is missing: run `make build` first", binary().display());
    let layout = layout(folder, &busybox);
    let mut spec = image::guest(kernel, &GuestPrograms { busybox, tombolo: binary() });
    // A guest under emulation loads faster than it unpacks.
    spec.compression = Compression::None;
    spec.program(runc, "/usr/sbin/runc");
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/power_cut");
    spec.file(here.join("start.sh"), START, 0o755);
    spec.file(here.join("topology.toml"), "/etc/tombolo/topology.toml", 0o644);
    spec.file(folder.join("tree/sums"), "/sums", 0o644);
    spec.file(layout, "/image.tar", 0o644);
    Ok(spec)
}

/// The image as an archive. `sums` in it has a checksum of each other file.
fn layout(folder: &Path, busybox: &Path) -> std::path::PathBuf {
    let tree = folder.join("tree");
    std::fs::create_dir_all(tree.join("data")).expect("a folder");
    for number in 0..FILES {
        let text = format!("{number:06} ").repeat(64 + number % 600);
        std::fs::write(tree.join(format!("data/{number}")), text).expect("a file");
    }
    let line = format!(
        "mkdir -p tree/bin tree/etc tree/tmp; cp {} tree/bin/busybox; \
         for i in sh sleep sha256sum; do ln -sf busybox tree/bin/$i; done; \
         echo root:x:0:0::/:/bin/sh > tree/etc/passwd; \
         cd tree; find bin etc data -type f | xargs sha256sum > sums",
        busybox.display()
    );
    oci::script(folder, &line);
    oci::layout(folder, "whole");
    folder.join("image.tar")
}

fn start(image: &Image, disk: &Path, console: &Path) -> Machine {
    let mut qemu = Command::new("qemu-system-x86_64");
    // Emulated string instructions (ERMS) are slower than loops.
    qemu.args(["-cpu", "max,erms=off,fsrm=off", "-m", MEMORY_MIB, "-smp", "2", "-kernel"])
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&image.initramfs)
        .args(["-append", "console=ttyS0 cgroup_no_v1=all quiet panic=-1 no_timer_check"])
        .arg("-drive")
        .arg(format!("file={},format=raw,if=none,id=disk,cache=writeback", disk.display()))
        .args(["-device", "virtio-blk-pci,drive=disk"]);
    Machine::start(&mut qemu, console)
}
