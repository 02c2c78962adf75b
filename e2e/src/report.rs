//! A machine under QEMU that says on its second serial port, line by line, what it tried and what
//! came out.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

/// Lines of the console that explain a failure.
const SHOWN_LINES: usize = 150;

/// The report of one start.
#[derive(Debug, Default)]
pub struct Report {
    /// `Ok`, or why not, of each check.
    pub checks: BTreeMap<String, Result<(), String>>,
    /// Lines of JSON: what was measured.
    pub measured: Vec<String>,
    /// Its other words: how far it was.
    pub notes: Vec<String>,
    /// How many checks it says that it made; `None` where it never came to its end.
    pub done: Option<usize>,
    /// Last lines of the machine's console.
    pub console: String,
}

impl Report {
    /// Reads one line: `ok NAME`, `not ok NAME: why` (`|` for a new line), `done COUNT`, an object
    /// of JSON, or a note.
    pub fn read(&mut self, line: &str) {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("ok ") {
            self.checks.insert(name.to_owned(), Ok(()));
        } else if let Some((name, why)) = line.strip_prefix("not ok ").and_then(|rest| rest.split_once(':')) {
            self.checks.insert(name.to_owned(), Err(why.trim().replace('|', "\n")));
        } else if let Some(count) = line.strip_prefix("done ") {
            self.done = count.parse().ok();
        } else if line.starts_with('{') {
            self.measured.push(line.to_owned());
        } else if !line.is_empty() {
            self.notes.push(line.to_owned());
        }
    }

    /// Keeps the last lines of the console.
    pub fn console(&mut self, text: &str) {
        let lines: Vec<&str> = text.lines().collect();
        self.console = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
    }
}

/// QEMU with what the machine says; ended when dropped.
pub struct Machine {
    child: Child,
    /// The lines of its second serial port, until it has ended.
    pub lines: Receiver<String>,
}

impl Machine {
    /// Starts QEMU with these arguments, and the first serial port in the file `console`. Emulation
    /// everywhere: a KVM that is there and then hangs, as nested ones do, would cost the tests
    /// their meaning.
    ///
    /// # Panics
    /// Where QEMU does not start.
    pub fn start(arguments: &mut Command, console: &Path) -> Self {
        let mut child = arguments
            .args([
                "-accel",
                "tcg",
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
                "-display",
                "none",
                "-serial",
            ])
            .arg(format!("file:{}", console.display()))
            .args(["-serial", "stdio"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("QEMU starts");
        let lines = lines_of(child.stdout.take().expect("its output"));
        Self { child, lines }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have switched itself off; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines_of(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // A line that is no text ends the report, which then is incomplete, and says so.
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_checks_measures_notes_or_the_end() {
        let mut report = Report::default();
        for line in ["ok a", "not ok b: one|two", "{\"x\":1}", "3.2 two guests", "", "done 2\r"] {
            report.read(line);
        }
        assert_eq!(report.checks["a"], Ok(()));
        assert_eq!(report.checks["b"], Err("one\ntwo".to_owned()));
        assert_eq!((report.measured.len(), report.notes.len(), report.done), (1, 1, Some(2)));
    }
}
