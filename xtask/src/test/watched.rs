//! A command whose output is read line by line, and who is ended when it says nothing any more: a
//! test that hangs fails, with its name, and does not keep the run from ending.

use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Longest silence of a step. Lints of a cold build say nothing for some minutes; no test is silent
/// for so long.
const SILENCE: Duration = Duration::from_secs(15 * 60);
/// The time that output is listened to after the end: a process that a step left behind may hold it
/// open.
const AFTERMATH: Duration = Duration::from_secs(5);
/// How often it is looked whether the command has ended, while it says nothing.
const LOOK: Duration = Duration::from_millis(500);

/// A command at work, in a process group of its own.
pub struct Watched {
    child: Child,
    lines: mpsc::Receiver<String>,
    /// When the last line came, or the command began.
    heard: Instant,
    ends_at: Instant,
    given_up: Option<String>,
}

impl Watched {
    /// Starts `command`, which has until `ends_at`.
    pub fn start(command: &mut Command, ends_at: Instant) -> std::io::Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (sender, lines) = mpsc::channel();
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
            child.stderr.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
        ];
        for output in outputs.into_iter().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || forward(output, &sender));
        }
        Ok(Self { child, lines, heard: Instant::now(), ends_at, given_up: None })
    }

    /// The next line of either output, as they come; `None` at the end.
    pub fn next_line(&mut self) -> std::io::Result<Option<String>> {
        loop {
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => {
                    self.heard = Instant::now();
                    return Ok(Some(line));
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if self.is_over()? => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Whether nothing more is waited for: it has ended, or is ended now.
    fn is_over(&mut self) -> std::io::Result<bool> {
        let silent = self.heard.elapsed();
        if self.child.try_wait()?.is_some() {
            return Ok(silent > AFTERMATH);
        }
        let reason = if Instant::now() >= self.ends_at {
            "its time was over".to_owned()
        } else if silent > SILENCE {
            format!("it said nothing for {} min", SILENCE.as_secs() / 60)
        } else {
            return Ok(false);
        };
        let group = Pid::from_child(&self.child);
        self.given_up = Some(match kill_process_group(group, Signal::KILL) {
            Ok(()) => {
                self.child.wait()?;
                format!("ended, because {reason}")
            }
            Err(error) => format!("{reason}, and it can't be ended: {error}"),
        });
        Ok(true)
    }

    /// How it ended; the reason, where it was ended by us.
    pub fn finish(mut self) -> std::io::Result<Result<ExitStatus, String>> {
        match self.given_up {
            Some(reason) => Ok(Err(reason)),
            None => self.child.wait().map(Ok),
        }
    }
}

fn forward(output: Box<dyn Read + Send>, sender: &mpsc::Sender<String>) {
    let mut output = BufReader::new(output);
    let mut bytes = Vec::new();
    // A read error means that the writer is gone, as the end does.
    while output.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        bytes.clear();
        if sender.send(line).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, within: Duration) -> (Vec<String>, Result<ExitStatus, String>) {
        let begin = Instant::now();
        let mut watched =
            Watched::start(Command::new("sh").args(["-c", script]), begin + within).expect("sh starts");
        let mut lines = Vec::new();
        while let Some(line) = watched.next_line().expect("lines") {
            lines.push(line);
        }
        let end = watched.finish().expect("an end");
        assert!(begin.elapsed() < Duration::from_secs(60), "what was left behind was waited for");
        (lines, end)
    }

    #[test]
    fn a_command_that_ends_is_heard_to_its_end() {
        let (lines, end) = shell("echo one; echo two >&2; exit 3", Duration::from_secs(60));
        assert_eq!(lines.len(), 2);
        assert_eq!(end.expect("ended by itself").code(), Some(3));
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_all_that_it_started() {
        let (lines, end) = shell("sleep 100 & echo $!; sleep 100", Duration::from_millis(700));
        assert_eq!(end.expect_err("it hangs"), "ended, because its time was over");
        let until = Instant::now() + Duration::from_secs(20);
        while runs(&lines[0]) && Instant::now() < until {
            std::thread::yield_now();
        }
        assert!(!runs(&lines[0]), "somebody of it lives");
    }

    /// Whether the process lives; one that nobody has waited for yet does not.
    fn runs(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    #[test]
    fn who_is_left_behind_with_the_output_is_not_waited_for() {
        let (lines, end) = shell("setsid sleep 70 & echo $!", Duration::from_secs(120));
        assert!(end.expect("ended by itself").success());
        let left = Pid::from_raw(lines[0].parse().expect("a number")).expect("a pid");
        rustix::process::kill_process(left, Signal::KILL).expect("it was left behind");
    }
}
