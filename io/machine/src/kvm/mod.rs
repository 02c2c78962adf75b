//! Whether KVM works here. That `/dev/kvm` can be opened says little: on some machines it hangs
//! whoever uses it, on others it interprets what a kernel begins with and can't do the rest.

mod guest;
mod trial;

pub use guest::Step;
pub use trial::{ROLE as KVM_ROLE, main as kvm_main};

use crate::qemu::kvm::{NotTaken, try_kvm};
use crate::qemu::process::{LastWords, end_of, spawn};
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;
use thiserror::Error;
use trial::Said;

/// The device that gives processors to guests.
const DEVICE: &str = "/dev/kvm";
/// How long a trial may take: some 20 ms of a processor where KVM works, so that a machine has to
/// be very busy for that to be too short.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Why KVM can't be used.
#[derive(Debug, Error)]
pub enum NoKvm {
    /// The device can't be opened, for one because there is none.
    #[error("{DEVICE} can't be used: {0}")]
    Device(#[source] io::Error),
    /// The trial could not be made.
    #[error("can't find out whether KVM works: {0}")]
    Trial(#[source] io::Error),
    /// A guest came to nothing.
    #[error("{DEVICE} is there, but a guest under it does not run: it came as far as {}, and then: {wrong}", .step.words())]
    Guest {
        /// How far it came.
        step: Step,
        /// The cause of its stop.
        wrong: String,
    },
    /// QEMU can't use it.
    #[error("a guest of the node's runs under {DEVICE}, but {0}")]
    Qemu(#[source] NotTaken),
}

/// Tries KVM: with a guest of our own, which goes through what every kernel needs, and then with
/// QEMU. `program` is this very program, which runs the guest in a process that can be killed; each
/// of the two has 3 s at the most.
///
/// # Errors
/// Why KVM is not to be used.
pub fn probe_kvm(program: &Path, qemu: &Path) -> Result<(), NoKvm> {
    drop(File::options().read(true).write(true).open(DEVICE).map_err(NoKvm::Device)?);
    try_guest(program)?;
    try_kvm(qemu).map_err(NoKvm::Qemu)
}

/// Has a process run the guest.
fn try_guest(program: &Path) -> Result<(), NoKvm> {
    let mut command = Command::new(program);
    command.arg(trial::ROLE);
    let (mut child, mut words) = spawn(command, &[]).map_err(NoKvm::Trial)?;
    let status = end_of(&mut child, TIMEOUT);
    judge(status.map_err(NoKvm::Trial)?, &mut words)
}

/// The verdict on a trial's end; `None`: it had to be killed.
fn judge(status: Option<ExitStatus>, words: &mut LastWords) -> Result<(), NoKvm> {
    words.read();
    let Said { step, wrong } = Said::parse(words.bytes());
    let wrong = match (status, wrong) {
        (Some(status), _) if status.success() && step == Step::UserMode => return Ok(()),
        (None, _) => format!("nothing more within {TIMEOUT:?}"),
        (Some(_), Some(wrong)) => wrong,
        (Some(status), None) => format!("its process ended: {status}"),
    };
    Err(NoKvm::Guest { step, wrong })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A program of ours that plays the trial, and what follows.
    fn tried(script: &str) -> Result<(), NoKvm> {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("tombolo");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        try_guest(&program)
    }

    #[test]
    fn a_guest_that_comes_to_its_end_is_one_that_runs() {
        tried("[ $1 = internal-kvm ] && printf '\\1\\2\\3\\4\\5\\6'").unwrap();
    }

    #[test]
    fn a_guest_that_does_not_is_told_with_how_far_it_came() {
        let told = |script| tried(script).unwrap_err().to_string();
        let why = told("printf '\\1\\2it broke'; exit 1");
        assert_eq!(
            why,
            "/dev/kvm is there, but a guest under it does not run: it came as far as protected mode, and then: it broke"
        );
        // Whoever says nothing has shown nothing, whatever it ends with.
        assert!(told("exit 0").contains("as far as nowhere, and then: its process ended: exit status: 0"));
        assert!(told("kill -9 $$").contains("signal: 9"));
        let missing = try_guest(Path::new("/nowhere/tombolo")).unwrap_err();
        assert!(matches!(missing, NoKvm::Trial(_)), "{missing}");
    }

    #[test]
    fn a_guest_that_hangs_holds_nobody_up() {
        let begun = std::time::Instant::now();
        let why = tried("printf '\\1'; exec sleep 1000").unwrap_err().to_string();
        assert!(why.ends_with("as far as real mode, and then: nothing more within 3s"), "{why}");
        assert!(begun.elapsed() < TIMEOUT * 5, "{:?}", begun.elapsed());
    }
}
