//! Whether KVM works here. That `/dev/kvm` can be opened says little: on some machines it hangs whoever uses it.

use super::process::spawn;
use super::qmp::Version;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use thiserror::Error;

/// The device that gives processors to QEMU.
const DEVICE: &str = "/dev/kvm";
/// How long a machine that halts at once may take: some 100 ms where it works.
const PATIENCE: Timespec = Timespec { tv_sec: 3, tv_nsec: 0 };
/// The least that QEMU takes as a firmware, in bytes.
const FIRMWARE_BYTES: usize = 64 * 1024;
/// Where a processor begins, in a firmware of that size.
const FIRST_INSTRUCTION: usize = FIRMWARE_BYTES - 16;
/// `mov al, 1; mov dx, 0x501; out dx, al`: to the port of `isa-debug-exit`.
const PROGRAM: [u8; 6] = [0xb0, 0x01, 0xba, 0x01, 0x05, 0xee];
/// What QEMU exits with when 1 was written there.
const WORKED: i32 = 3;

/// Why KVM can't be used.
#[derive(Debug, Error)]
pub enum NoKvm {
    /// The device can't be opened, for one because there is none.
    #[error("{DEVICE} can't be used: {0}")]
    Device(#[source] io::Error),
    /// The probe could not be made.
    #[error("can't find out whether KVM works: {0}")]
    Probe(#[source] io::Error),
    /// A machine did not get as far as its first instruction.
    #[error("a machine that halts at once did not get there within 3 s under KVM")]
    Hangs,
    /// QEMU refused.
    #[error("QEMU can't use KVM: {0}")]
    Refused(String),
}

/// Runs a machine that halts at once under KVM, for 3 s at the most, and kills it.
///
/// # Errors
/// Why KVM is not to be used.
pub fn probe_kvm(qemu: &Path) -> Result<(), NoKvm> {
    File::options().read(true).write(true).open(DEVICE).map_err(NoKvm::Device)?;
    let firmware = firmware().map_err(NoKvm::Probe)?;
    let mut command = Command::new(qemu);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-m", "4M"]);
    command.args(["-machine", "pc", "-accel", "kvm", "-cpu", "host", "-device", "isa-debug-exit"]);
    command.arg("-bios").arg(format!("/proc/self/fd/{}", firmware.as_raw_fd()));
    let (mut child, mut words) = spawn(command, &[&firmware]).map_err(NoKvm::Probe)?;
    let waited = sys::process::pidfd_open(child.id()).and_then(|ended| {
        let mut polled = [PollFd::new(&ended, PollFlags::IN)];
        Ok(rustix::io::retry_on_intr(|| poll(&mut polled, Some(&PATIENCE)))?)
    });
    // Whatever was found, nothing of it is left.
    drop(child.kill());
    let status = child.wait().map_err(NoKvm::Probe)?;
    words.read();
    match waited.map_err(NoKvm::Probe)? {
        0 => Err(NoKvm::Hangs),
        _ if status.code() == Some(WORKED) => Ok(()),
        _ => Err(NoKvm::Refused(format!("{status}: {}", words.shown()))),
    }
}

/// The version of a QEMU that does not get as far as saying it by itself; none where it says nothing, within the same time.
pub(crate) fn version_of(qemu: &Path) -> Option<Version> {
    let mut command = Command::new(qemu);
    command.arg("--version");
    let (mut child, mut words) = spawn(command, &[]).ok()?;
    let ended = sys::process::pidfd_open(child.id()).ok();
    if let Some(ended) = &ended {
        let mut polled = [PollFd::new(ended, PollFlags::IN)];
        let _waited = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&PATIENCE)));
    }
    drop(child.kill());
    drop(child.wait());
    words.read();
    words.shown().split_whitespace().find_map(|word| {
        let mut numbers = word.trim_end_matches(',').split('.').map(str::parse);
        match (numbers.next()?, numbers.next()?, numbers.next()?) {
            (Ok(major), Ok(minor), Ok(micro)) => Some(Version { major, minor, micro }),
            _ => None,
        }
    })
}

fn firmware() -> io::Result<OwnedFd> {
    let mut image = vec![0xf4; FIRMWARE_BYTES];
    for (place, byte) in image.iter_mut().skip(FIRST_INSTRUCTION).zip(PROGRAM) {
        *place = byte;
    }
    let file = rustix::fs::memfd_create("tombolo-probe", MemfdFlags::CLOEXEC)?;
    let written = rustix::io::pwrite(&file, &image, 0)?;
    if written == image.len() { Ok(file) } else { Err(io::ErrorKind::WriteZero.into()) }
}
