//! Counting the system calls of a process, all of them, by strace(1). A traced process is many
//! times slower in each call, so this is done in a transfer of its own, whose times are not used.

use crate::scenario::BenchError;
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The system call of [`mark`]: no way of messages makes it.
const MARK: &str = "getppid(";

/// Makes the system call that stands, in a trace, before and behind what is counted.
pub fn mark() {
    let _parent = std::os::unix::process::parent_id();
}

/// A trace of one process.
#[derive(Debug)]
pub struct Trace {
    strace: Child,
    file: PathBuf,
}

impl Trace {
    /// Begins to trace the process; its threads and children, too.
    ///
    /// # Errors
    /// Where strace does not start, or may not trace.
    pub fn start(process: u32, file: &Path) -> Result<Self, BenchError> {
        let strace = Command::new("strace")
            .args(["-f", "-p", &process.to_string(), "-o"])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(BenchError::io("starting strace"))?;
        let mut trace = Self { strace, file: file.to_path_buf() };
        let mut said = String::new();
        if let Some(errors) = trace.strace.stderr.take() {
            BufReader::new(errors).read_line(&mut said).map_err(BenchError::io("listening to strace"))?;
        }
        if said.contains("attached") {
            return Ok(trace);
        }
        Err(BenchError::Command {
            command: "strace".into(),
            status: "it does not trace".into(),
            said: said.trim().to_owned(),
        })
    }

    /// Ends the trace. How many system calls were made between the marks.
    ///
    /// # Errors
    /// Where strace's file can't be read.
    pub fn finish(mut self) -> Result<u64, BenchError> {
        self.end();
        let text = fs::read_to_string(&self.file).map_err(BenchError::io("reading a trace"))?;
        Ok(between_marks(&text))
    }

    fn end(&mut self) {
        // Told to end, it lets go of the process and writes down what it has. It may have ended
        // with the process.
        let _ = sys::process::kill(self.strace.id(), Signal::TERM);
        let _ = self.strace.wait();
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if matches!(self.strace.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// Lines are `PID CALL(...) = RESULT`; a call that others interrupt has two, of which the second
/// says `resumed`.
fn between_marks(trace: &str) -> u64 {
    let calls = trace.lines().filter(|line| {
        line.contains('(') && !line.contains(" resumed>") && !line.contains("--- ") && !line.contains("+++ ")
    });
    calls.skip_while(|line| !line.contains(MARK)).skip(1).take_while(|line| !line.contains(MARK)).count()
        as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_between_the_marks_count_once_each() {
        let trace = "7 read(0, \"x\", 8) = 1\n7 getppid() = 1\n7 write(3, \"a\", 1) = 1\n\
                     7 --- SIGCHLD {si_signo=SIGCHLD} ---\n7 read(3,  <unfinished ...>\n8 futex(1, 2) = 0\n\
                     7 <... read resumed>\"b\", 1) = 1\n7 getppid() = 1\n7 write(1, \"c\", 1) = 1\n";
        assert_eq!(between_marks(trace), 3);
        assert_eq!(between_marks("7 read(0) = 1\n"), 0);
    }
}
