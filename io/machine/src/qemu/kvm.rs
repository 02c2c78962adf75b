//! Whether QEMU can use a KVM that works: one that was built without it, or that is not let at it,
//! can't.

use super::process::{end_of, spawn};
use qmp::Version;
use rustix::fs::MemfdFlags;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use thiserror::Error;

/// How long a QEMU may take that halts at once, or says its version: some 100 ms.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The least that QEMU takes as a firmware, in bytes.
const FIRMWARE_BYTES: usize = 64 * 1024;
/// Where a processor begins, in a firmware of that size.
const FIRST_INSTRUCTION: usize = FIRMWARE_BYTES - 16;
/// `mov al, 1; mov dx, 0x501; out dx, al`: to the port of `isa-debug-exit`.
const PROGRAM: [u8; 6] = [0xb0, 0x01, 0xba, 0x01, 0x05, 0xee];
/// QEMU's exit code when 1 was written there.
const WORKED: i32 = 3;

/// Why QEMU can't use KVM.
#[derive(Debug, Error)]
pub enum NotTaken {
    /// It could not be tried.
    #[error("QEMU can't be tried under KVM: {0}")]
    Try(#[source] io::Error),
    /// A machine did not get as far as its first instruction.
    #[error("a machine of QEMU's that halts at once did not get there under KVM within {TIMEOUT:?}")]
    Hangs,
    /// QEMU refused.
    #[error("QEMU can't use KVM: {0}")]
    Refused(String),
}

/// Runs a machine of QEMU's that halts at once, for 3 s at the most, and kills it.
///
/// # Errors
/// Why QEMU is not to use KVM.
pub(crate) fn try_kvm(qemu: &Path) -> Result<(), NotTaken> {
    let firmware = firmware().map_err(NotTaken::Try)?;
    let mut command = Command::new(qemu);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-m", "4M"]);
    command.args(["-machine", "pc", "-accel", "kvm", "-cpu", "host", "-device", "isa-debug-exit"]);
    command.arg("-bios").arg(format!("/proc/self/fd/{}", firmware.as_raw_fd()));
    let (mut child, mut words) = spawn(command, &[&firmware]).map_err(NotTaken::Try)?;
    let status = end_of(&mut child, TIMEOUT).map_err(NotTaken::Try)?;
    words.read();
    match status {
        None => Err(NotTaken::Hangs),
        Some(status) if status.code() == Some(WORKED) => Ok(()),
        Some(status) => Err(NotTaken::Refused(format!("{status}: {}", words.shown()))),
    }
}

/// The version of a QEMU that does not get as far as saying it by itself; none where it says
/// nothing, within the same time.
pub(crate) fn version_of(qemu: &Path) -> Option<Version> {
    let mut command = Command::new(qemu);
    command.arg("--version");
    let (mut child, mut words) = spawn(command, &[]).ok()?;
    end_of(&mut child, TIMEOUT).ok()??;
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
