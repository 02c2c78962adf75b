//! Demos of `examples`, as tests run them.

use crate::node::{binary, target};
use std::path::Path;
use std::process::{Command, Stdio};

/// A demo of `examples`, run in a network namespace that has only `lo`: nobody else has its ports
/// there.
#[must_use]
pub fn demo(name: &str) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name).join("demo.sh");
    // Whoever runs the tests in the background has programs that ignore Ctrl-C.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=INT", "unshare", "--net", "sh", "-c", "ip link set lo up && exec \"$0\""])
        .arg(script)
        .env("TOMBOLO", binary())
        .env("CARGO_TARGET_DIR", target())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a demo to its end. Its process, whose number is in the names of what it makes, and its
/// output.
///
/// # Panics
/// It can't be started, or ends with an error.
pub fn run(command: &mut Command) -> (u32, String) {
    let child = command.spawn().expect("the demo starts");
    let pid = child.id();
    let output = child.wait_with_output().expect("the demo ends");
    let said =
        [output.stdout, output.stderr].map(|stream| String::from_utf8_lossy(&stream).into_owned()).join("\n");
    assert!(output.status.success(), "{said}");
    (pid, said)
}

/// Whether this machine can't run the demos; the reason is told.
pub fn is_skipped(lacks: Option<String>) -> bool {
    if let Some(reason) = &lacks {
        println!("skipped: {reason}");
    }
    lacks.is_some()
}
