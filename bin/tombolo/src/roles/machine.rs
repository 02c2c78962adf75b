//! The machine process: the first process of a domain of kind `vm`, with QEMU below it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use sys::signals::SignalDescriptor;

/// Signals that ask the guest to end; it is told which it was. As process 1 of a container it would
/// be deaf to them otherwise.
const STOP_SIGNALS: [rustix::process::Signal; 7] = [
    rustix::process::Signal::TERM,
    rustix::process::Signal::INT,
    rustix::process::Signal::HUP,
    rustix::process::Signal::QUIT,
    rustix::process::Signal::USR1,
    rustix::process::Signal::USR2,
    rustix::process::Signal::WINCH,
];

/// Runs the machine until it has ended.
pub fn run(arguments: impl Iterator<Item = OsString>) -> Result<ExitCode, String> {
    let directory = directory(arguments)?;
    let signals: Vec<i32> = STOP_SIGNALS.iter().map(|signal| signal.as_raw()).collect();
    let signals = SignalDescriptor::block(&signals).map_err(|e| format!("can't take signals: {e}"))?;
    let ended = machine::run(&directory, &session::Control::path(), &signals);
    Ok(ExitCode::from(ended.code))
}

/// `--dir DIR`, for a machine that is run by hand.
fn directory(mut arguments: impl Iterator<Item = OsString>) -> Result<PathBuf, String> {
    match (arguments.next(), arguments.next(), arguments.next()) {
        (None, ..) => Ok(machine::DIRECTORY.into()),
        (Some(option), Some(directory), None) if option == "--dir" => Ok(directory.into()),
        _ => Err("this role is run by the daemon; by hand: tombolo machine [--dir DIR]".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_the_usual_one_or_the_one_that_is_named() {
        let of = |words: &[&str]| directory(words.iter().map(OsString::from));
        assert_eq!(of(&[]).unwrap(), PathBuf::from("/run/machine"));
        assert_eq!(of(&["--dir", "/d"]).unwrap(), PathBuf::from("/d"));
        for wrong in [&["--dir"][..], &["/d"], &["--dir", "/d", "x"], &["--help", "x"]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }
}
