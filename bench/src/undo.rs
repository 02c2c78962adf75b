//! Cleaning up, whatever ends us: a Ctrl-C, a panic, a `kill -9`.
//!
//! A small shell outside our process group holds the list of what is to be undone, and reads it
//! from a pipe whose other end is ours. When we are gone, for whatever reason, the pipe ends, and
//! the shell does its work, last things first.

use crate::BenchError;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

/// Collects lines until the pipe ends, then runs them, the last one first; its exit code says
/// whether all went well.
const SCRIPT: &str = "
trap '' INT TERM HUP
list=
while IFS= read -r line; do list=\"$line || failed=1
$list\"; done
failed=0
eval \"$list\"
exit $failed
";

/// An action that is to be undone when this value, or this process, is gone.
#[derive(Debug)]
pub struct Undo {
    shell: Child,
    list: Option<ChildStdin>,
}

impl Undo {
    /// Starts the shell.
    ///
    /// # Errors
    /// Where no shell starts.
    pub fn start() -> io::Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let list = shell.stdin.take();
        Ok(Self { shell, list })
    }

    /// Starts the shell, and makes a folder that is removed after all else is undone.
    ///
    /// # Errors
    /// Where no shell starts, or no folder can be made.
    pub fn with_folder() -> Result<(Self, PathBuf), BenchError> {
        let mut undo = Self::start().map_err(BenchError::io("starting the shell that cleans up"))?;
        let folder = tempfile::Builder::new().prefix("tombolo-bench-").tempdir();
        let folder = folder.map_err(BenchError::io("making a folder"))?.keep();
        let gone: [&OsStr; 3] = ["rm".as_ref(), "-rf".as_ref(), folder.as_os_str()];
        undo.add(&gone).map_err(BenchError::io("noting what to clean up"))?;
        Ok((undo, folder))
    }

    /// Adds a command. Say it before doing what it undoes; it has to be content where there is
    /// nothing to undo.
    ///
    /// # Errors
    /// Where the shell is gone, and for a word with a line break, which the list can't hold.
    pub fn add<S: AsRef<OsStr>>(&mut self, command: &[S]) -> io::Result<()> {
        let words: Vec<String> =
            command.iter().map(|word| quoted(&word.as_ref().to_string_lossy())).collect();
        let line = words.join(" ");
        if line.contains('\n') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut list = self.list.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(list, "{line}")
    }

    /// Undoes it all now.
    ///
    /// # Errors
    /// Where one of the commands failed; the others ran all the same.
    pub fn finish(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        if self.list.take().is_none() {
            return Ok(());
        }
        let status = self.shell.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(io::Error::other("something could not be undone, see above"))
        }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("bench: {error}");
        }
    }
}

/// The word as a shell reads it back.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_thing_is_undone_first_and_words_stay_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("a 'quoted' name");
        let append = format!("echo \"$1\" >> {}", quoted(&log.to_string_lossy()));
        let mut undo = Undo::start().expect("a shell");
        undo.add(&["sh", "-c", &append, "sh", "made first"]).expect("added");
        undo.add(&["sh", "-c", &append, "sh", "made last; $HOME"]).expect("added");
        assert!(!log.exists());
        undo.finish().expect("undone");
        assert_eq!(std::fs::read_to_string(log).expect("the log"), "made last; $HOME\nmade first\n");
    }

    #[test]
    fn a_failure_is_told_and_does_not_stop_the_rest() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        let mut undo = Undo::start().expect("a shell");
        undo.add(&["touch".as_ref(), file.as_os_str()]).expect("added");
        undo.add(&["false"]).expect("added");
        assert!(undo.add(&["a line\nand another"]).is_err());
        assert!(undo.finish().is_err());
        assert!(file.exists());
    }
}
