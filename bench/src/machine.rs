//! The demands of a bench on the machine: programs, rights, commands that are run to their end.

use crate::scenario::BenchError;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Whether we are root.
///
/// # Errors
/// [`BenchError::Missing`] where we are not.
pub fn check_root() -> Result<(), BenchError> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(BenchError::Missing { what: "root".into(), how: "start it through sudo" })
    }
}

/// Whether these programs are on the path.
///
/// # Errors
/// [`BenchError::Missing`] with the first that is not.
pub fn check_programs(programs: &[&str]) -> Result<(), BenchError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |program: &&&str| std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    match programs.iter().find(|program| !there(program)) {
        Some(program) => Err(BenchError::Missing { what: (*program).into(), how: "run `make deps`" }),
        None => Ok(()),
    }
}

/// Whether these files lie beside `binary`.
///
/// # Errors
/// [`BenchError::Missing`] with the first that does not.
pub fn check_files(binary: &Path, names: &[&str]) -> Result<(), BenchError> {
    let files = names.iter().map(|name| binary.with_file_name(name));
    match files.into_iter().find(|file| !file.exists()) {
        Some(file) => Err(BenchError::Missing { what: file.display().to_string(), how: "run `make build`" }),
        None => Ok(()),
    }
}

/// A command in the network namespace of a process.
pub fn inside(process: u32, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{process}/ns/net")).arg("--").arg(program);
    command
}

/// Runs a command to its end and insists on success.
///
/// # Errors
/// [`BenchError::Command`] with the end of what it complained.
pub fn finish(mut command: Command) -> Result<(), BenchError> {
    let line = format!("{command:?}").replace('"', "");
    let output = command.stdin(Stdio::null()).output().map_err(BenchError::io(format!("starting {line}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(BenchError::Command { command: line, status: output.status.to_string(), said })
}

/// Starts a shell script in a network namespace of its own. It has to say `up` when all is there,
/// and to stay until its input ends.
///
/// # Errors
/// Where it fails, with what it complained.
pub fn network_namespace(script: &str) -> Result<Child, BenchError> {
    let mut shell = Command::new("unshare")
        .args(["--net", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(BenchError::io("starting a network namespace"))?;
    let mut line = String::new();
    if let Some(output) = shell.stdout.take() {
        BufReader::new(output)
            .read_line(&mut line)
            .map_err(BenchError::io("listening to a network namespace"))?;
    }
    if line == "up\n" {
        return Ok(shell);
    }
    let output = shell.wait_with_output().map_err(BenchError::io("waiting for a network namespace"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(BenchError::Command { command: "unshare --net".into(), status: output.status.to_string(), said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_is_told_with_its_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo it broke >&2; exit 3"]);
        let error = finish(command).expect_err("it failed").to_string();
        assert!(error.contains("it broke") && error.contains('3'), "{error}");
    }
}
