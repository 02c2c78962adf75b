//! A worker from the outside: a process that is talked to over its standard input and output.

use crate::scenario::BenchError;
use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A worker that says nothing for so long, beyond what its task takes, is stuck.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A worker that has not ended so long after the end of its input is killed.
const GRACE: Duration = Duration::from_secs(2);
/// How much of what a worker complained is passed on.
const COMPLAINT_BYTES: usize = 400;

/// One worker, ended when dropped.
#[derive(Debug)]
pub struct Worker {
    who: String,
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    unread: Vec<u8>,
    complaints: PathBuf,
    patience: Duration,
}

impl Worker {
    /// Starts the command, which has to become a worker in the end; what it complains goes into a
    /// file in `folder`.
    ///
    /// # Errors
    /// Where it does not start.
    pub fn start(who: String, mut command: Command, folder: &Path) -> Result<Self, BenchError> {
        let doing = || format!("starting the worker {who}");
        let complaints = folder.join(format!("{}.err", who.replace('/', "-")));
        let errors = File::create(&complaints).map_err(BenchError::io(doing()))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().map_err(BenchError::io(doing()))?;
        let input = child.stdin.take();
        let output = child
            .stdout
            .take()
            .ok_or(io::ErrorKind::BrokenPipe)
            .map_err(Into::into)
            .map_err(BenchError::io(doing()))?;
        Ok(Self { who, child, input, output, unread: Vec::new(), complaints, patience: TIMEOUT })
    }

    /// From now on it may say nothing for so long, beyond what its task takes.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Waits for its next line, beyond a task that takes so long.
    ///
    /// # Errors
    /// Where it says nothing, or is gone.
    pub fn hear(&mut self, task: Duration) -> Result<String, BenchError> {
        self.line(task + self.patience)
    }

    /// Its process, as the host sees it: of the command that was started.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says exactly this.
    ///
    /// # Errors
    /// Where it says something else, or nothing.
    pub fn expect(&mut self, word: &'static str) -> Result<(), BenchError> {
        let said = self.hear(Duration::ZERO)?;
        if said == word { Ok(()) } else { Err(self.surprise(said, word)) }
    }

    /// Says a line.
    ///
    /// # Errors
    /// Where it does not listen any more.
    pub fn say(&mut self, line: &str) -> Result<(), BenchError> {
        let mut input = self.input.as_ref().ok_or_else(|| self.surprise(String::new(), "an open input"))?;
        writeln!(input, "{line}").map_err(|_| self.surprise("nothing more".into(), "an open input"))
    }

    /// Gives it a task; [`Worker::expect`] then waits for `primed`.
    ///
    /// # Errors
    /// As [`Worker::say`].
    pub fn give(&mut self, task: &impl Serialize) -> Result<(), BenchError> {
        let text = serde_json::to_string(task).map_err(|error| io::Error::other(error.to_string()));
        let text = text.map_err(BenchError::io("writing a task"))?;
        self.say(&text)
    }

    /// Waits for what it has to tell after a task that takes so long.
    ///
    /// # Errors
    /// Where it tells something else, or nothing.
    pub fn tale<T: DeserializeOwned>(&mut self, task: Duration) -> Result<T, BenchError> {
        let said = self.hear(task)?;
        serde_json::from_str(&said).map_err(|_| self.surprise(said.clone(), "the tale of its work"))
    }

    fn line(&mut self, patience: Duration) -> Result<String, BenchError> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            let mut bytes = [0; 16 * 1024];
            match self.read_until(deadline, &mut bytes) {
                Ok(0) => return Err(self.surprise("nothing more".into(), "a line")),
                Ok(count) => self.unread.extend_from_slice(&bytes[..count]),
                Err(error) => return Err(self.surprise(error.to_string(), "a line")),
            }
        }
    }

    fn read_until(&mut self, deadline: Instant, bytes: &mut [u8]) -> io::Result<usize> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut descriptors = [PollFd::new(&self.output, PollFlags::IN)];
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => self.output.read(bytes),
            Err(error) => Err(error.into()),
        }
    }

    /// The report where it said this and something else was due: that, and the end of its
    /// complaints.
    #[must_use]
    pub fn surprise(&self, said: String, expected: &'static str) -> BenchError {
        let complaints = std::fs::read_to_string(&self.complaints).unwrap_or_default();
        let tail = complaints.trim().chars().rev().take(COMPLAINT_BYTES).collect::<Vec<_>>();
        let tail: String = tail.into_iter().rev().collect();
        let said = if tail.is_empty() { said } else { format!("{said}: {tail}") };
        BenchError::Protocol { who: self.who.clone(), said, expected }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The end of its input ends a worker that listens; one that does not is killed. Either may
        // have ended before.
        drop(self.input.take());
        if self.read_until(Instant::now() + GRACE.min(self.patience), &mut [0; 1]).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (Worker, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        (Worker::start("a worker".into(), command, folder.path()).expect("it starts"), folder)
    }

    #[test]
    fn a_worker_that_says_the_right_words_is_believed() {
        let (mut worker, _folder) = shell("echo ready; read line; echo \"$line\"; read rest");
        worker.expect("ready").expect("it is ready");
        worker.say("primed").expect("it listens");
        worker.expect("primed").expect("it is primed");
    }

    #[test]
    fn a_worker_that_dies_is_quoted() {
        let (mut worker, _folder) = shell("echo 'no such device' >&2");
        let error = worker.expect("ready").expect_err("it is gone").to_string();
        assert!(error.contains("a worker") && error.contains("no such device"), "{error}");
    }

    #[test]
    fn a_worker_that_talks_nonsense_is_quoted() {
        let (mut worker, _folder) = shell("echo nonsense");
        let error = worker.tale::<u64>(Duration::ZERO).expect_err("no tale").to_string();
        assert!(error.contains("nonsense") && error.contains("the tale of its work"), "{error}");
    }
}
