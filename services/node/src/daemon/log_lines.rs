//! Lines of the daemon's log, written by a thread of their own: a disk that does not answer holds
//! up the log and nobody else.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Lines that may wait for the disk; those beyond are lost, and it is said how many.
const MOST: usize = 4096;
/// How long whoever writes a line waits until it is written, so that who is answered finds in the
/// log what went before.
const TIMEOUT: Duration = Duration::from_millis(100);

/// One line of the log, for a subscriber of events.
#[derive(Debug)]
pub struct LogLine(Arc<Lines>);

/// The log of this process: its standard error.
#[must_use]
pub fn log_line() -> LogLine {
    static LINES: OnceLock<Arc<Lines>> = OnceLock::new();
    LogLine(Arc::clone(LINES.get_or_init(|| Lines::begin(io::stderr(), TIMEOUT))))
}

#[derive(Debug)]
struct Lines {
    state: Mutex<State>,
    came: Condvar,
    written: Condvar,
    patience: Duration,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    /// Lines that came, and lines that were written.
    came: u64,
    written: u64,
    lost: u64,
    /// Somebody has waited in vain: nobody waits until all that came is written.
    behind: bool,
    /// There is no thread: whoever has a line writes it.
    alone: bool,
}

impl Lines {
    fn begin(out: impl Write + Send + 'static, patience: Duration) -> Arc<Self> {
        let this = Arc::new(Self {
            state: Mutex::default(),
            came: Condvar::new(),
            written: Condvar::new(),
            patience,
        });
        let lines = Arc::clone(&this);
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || lines.write(out));
        this.lock().alone = thread.is_err();
        this
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a line in, and waits for a moment until it is written.
    fn add(&self, line: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        if state.alone {
            return io::stderr().write_all(line);
        }
        if state.waiting.len() >= MOST {
            state.lost += 1;
            return Ok(());
        }
        state.waiting.push_back(line.to_vec());
        state.came += 1;
        self.came.notify_one();
        if state.behind {
            return Ok(());
        }
        let mine = state.came;
        let waited = self.written.wait_timeout_while(state, self.patience, |state| state.written < mine);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        state.behind |= waited.timed_out();
        Ok(())
    }

    /// Writes what comes, for as long as the process lives.
    fn write(&self, mut out: impl Write) {
        let mut state = self.lock();
        loop {
            let Some(line) = state.waiting.pop_front() else {
                state.behind = false;
                state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let lost = std::mem::take(&mut state.lost);
            drop(state);
            // There is nobody to whom it could be said that the log can't be written.
            let _unsaid = out.write_all(&line);
            if lost > 0 {
                let line =
                    format!("{lost} lines of this log are lost: it could not be written fast enough\n");
                let _unsaid = out.write_all(line.as_bytes());
            }
            state = self.lock();
            state.written += 1;
            self.written.notify_all();
        }
    }
}

impl Write for LogLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.add(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A disk that writes a line when it is told to.
    struct Disk {
        go: Receiver<()>,
        written: Sender<String>,
    }

    impl Write for Disk {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _gone = self.go.recv();
            let _unread = self.written.send(String::from_utf8_lossy(line).into_owned());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_written_before_its_writer_goes_on() {
        let (go, told) = channel();
        let (written, read) = channel();
        let lines = Lines::begin(Disk { go: told, written }, Duration::from_secs(60));
        go.send(()).unwrap();
        LogLine(lines).write_all(b"one\n").unwrap();
        assert_eq!(read.try_recv().as_deref(), Ok("one\n"));
    }

    #[test]
    fn a_disk_that_does_not_answer_holds_up_nobody_and_what_was_lost_is_said() {
        let (go, told) = channel();
        let (written, read) = channel();
        let lines = Lines::begin(Disk { go: told, written }, Duration::from_millis(1));
        // One is at the disk, at most; the others wait, and three are too many.
        while lines.lock().lost < 3 {
            LogLine(Arc::clone(&lines)).write_all(b"line\n").unwrap();
        }
        drop(go);
        let said = read.iter().find(|line| line != "line\n").expect("it lives");
        assert!(said.starts_with("3 lines of this log are lost"), "{said}");
        while lines.lock().behind {
            std::thread::yield_now();
        }
    }
}
