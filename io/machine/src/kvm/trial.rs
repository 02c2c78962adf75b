//! The process that tries KVM: it runs the guest, says each step that the guest says, and why it
//! ended. Whoever started it kills it when it takes too long.

use super::guest::Step;
use std::io::{self, Write};

/// The first word of the command line that makes a process try KVM.
pub const ROLE: &str = "internal-kvm";

/// The report of such a process by its end, or so far: a byte for each step that the guest came to,
/// and then, in words, what went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    pub step: Step,
    pub wrong: Option<String>,
}

impl Said {
    /// Reads it.
    pub fn parse(bytes: &[u8]) -> Self {
        let steps: Vec<Step> = bytes.iter().map_while(|byte| Step::of(*byte)).collect();
        let rest = bytes.get(steps.len()..).unwrap_or_default();
        let wrong = (!rest.is_empty()).then(|| qmp::clean(&String::from_utf8_lossy(rest), WORDS_BYTES));
        Self { step: steps.last().copied().unwrap_or(Step::Nothing), wrong }
    }
}

/// Longest reason, in bytes.
const WORDS_BYTES: usize = 300;

/// Tries KVM, and says on the standard output how it went. The process' exit code: 0 where the
/// guest came to its end.
pub fn main() -> u8 {
    let mut output = io::stdout().lock();
    let wrong = match trial(&mut output) {
        Ok(()) => return 0,
        Err(wrong) => wrong,
    };
    // Nobody is there to hear it otherwise.
    drop(output.write_all(wrong.as_bytes()).and_then(|()| output.flush()));
    1
}

/// Goes through the guest's steps; what is wrong with one.
#[cfg(target_arch = "x86_64")]
fn trial(output: &mut impl Write) -> Result<(), String> {
    use super::guest::{PORT, START, image};
    use sys::kvm::{Exit, Machine};
    let mut machine = Machine::new(&image(), START).map_err(|error| error.to_string())?;
    for expected in Step::ALL {
        match run(&mut machine)? {
            Exit::Wrote(PORT, byte) if Step::of(byte) == Some(expected) => {
                output.write_all(&[byte]).and_then(|()| output.flush()).map_err(|error| error.to_string())?;
            }
            other => return Err(wrong(&other)),
        }
    }
    match run(&mut machine)? {
        Exit::Halted => Ok(()),
        other => Err(wrong(&other)),
    }
}

/// There is no guest for other machines.
#[cfg(not(target_arch = "x86_64"))]
fn trial(_output: &mut impl Write) -> Result<(), String> {
    Err("guests are x86-64, and this machine is not".to_owned())
}

#[cfg(target_arch = "x86_64")]
fn run(machine: &mut sys::kvm::Machine) -> Result<sys::kvm::Exit, String> {
    loop {
        match machine.run() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            ended => return ended.map_err(|error| format!("running it: {error}")),
        }
    }
}

/// The fault of a guest that left off like this.
#[cfg(target_arch = "x86_64")]
fn wrong(exit: &sys::kvm::Exit) -> String {
    use sys::kvm::Exit;
    match exit {
        Exit::Wrote(port, byte) => format!("the guest wrote {byte} to port {port:#x}, which it never does"),
        Exit::Halted => "the guest halted before its end".to_owned(),
        Exit::Shutdown => "the guest failed in handling a failure, and would have been reset".to_owned(),
        Exit::NotEmulated(bytes) => {
            let bytes: Vec<String> =
                bytes.iter().take(SHOWN_INSTRUCTION_BYTES).map(|byte| format!("{byte:02x}")).collect();
            let at = if bytes.is_empty() { String::new() } else { format!(" (at {})", bytes.join(" ")) };
            format!(
                "KVM interprets the guest's instructions here, in place of running them, and does not know all of them{at}"
            )
        }
        Exit::Refused(reason) => format!("the processor refused to enter the guest ({reason:#x})"),
        Exit::Other(what) => format!("KVM left the guest for no reason of the guest's: {what}"),
    }
}

/// Bytes of an instruction that are shown: more than most have.
#[cfg(target_arch = "x86_64")]
const SHOWN_INSTRUCTION_BYTES: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_trial_said_is_how_far_it_came_and_what_was_wrong() {
        let said = |bytes: &[u8]| {
            let Said { step, wrong } = Said::parse(bytes);
            (step, wrong)
        };
        assert_eq!(said(b""), (Step::Nothing, None));
        assert_eq!(said(&[1, 2, 3]), (Step::LongMode, None));
        assert_eq!(said(b"\x01\x02no more"), (Step::ProtectedMode, Some("no more".to_owned())));
        assert_eq!(said(b"no device\x01"), (Step::Nothing, Some("no device".to_owned())));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_guest_that_left_off_is_told_with_what_stood_there() {
        let told = wrong(&sys::kvm::Exit::NotEmulated(vec![0x66, 0x48, 0x0f, 0x6e, 0xc0, 0x66, 0x0f]));
        assert!(told.ends_with("(at 66 48 0f 6e c0 66)"), "{told}");
        assert!(wrong(&sys::kvm::Exit::NotEmulated(Vec::new())).ends_with("all of them"));
    }
}
