//! `tombolo bench`.

use std::os::unix::process::CommandExt;
use std::process::Command;
use terminal::{Failure, with_causes};

/// The program that measures, beside the one that is measured.
const PROGRAM: &str = "tombolo-bench";

/// Becomes the program that measures, with the same command line. Returns only where it can't.
pub fn run() -> Result<(), Failure> {
    let program = super::daemon::program()?.with_file_name(PROGRAM);
    let error = Command::new(&program).args(std::env::args_os().skip(1)).exec();
    let message = format!("can't start {}: {}", program.display(), with_causes(&error));
    Err(Failure::new(message)
        .help("benches are a program of their own: Debian's package tombolo-bench, or `make build-benches`"))
}
