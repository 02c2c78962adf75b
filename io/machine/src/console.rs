//! The guest's console: lines for the log, as many as a log can bear.

use qmp::clean;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest line, in bytes; the rest of a longer one is the next.
const LINE_BYTES: usize = 500;
/// Bytes read at a time.
const READ_BYTES: usize = 4096;
/// The number of bytes that a guest may write at once: a boot with all its words, or a panic with
/// all its registers.
const BURST_BYTES: u64 = 128 * 1024;
/// The rate that it may write at in the long run, in bytes per second: beyond it the log of the
/// domain would hold nothing else.
const BYTES_PER_SECOND: u64 = 4096;
/// By what a line of a panic is known (Linux, `kernel/panic.c`).
const PANIC: &str = "Kernel panic - not syncing";

/// The output of the guest's console.
#[derive(Debug)]
pub(crate) struct Console {
    socket: Option<OwnedFd>,
    line: Vec<u8>,
    allowed: u64,
    counted_ms: u64,
    dropped: u64,
    panic: Option<String>,
    last: Option<String>,
}

impl Console {
    /// Over a connected, non-blocking stream socket.
    pub fn new(socket: OwnedFd) -> Self {
        let line = Vec::new();
        let (panic, last) = (None, None);
        Self { socket: Some(socket), line, allowed: BURST_BYTES, counted_ms: 0, dropped: 0, panic, last }
    }

    /// The descriptor to poll; none when QEMU has closed it.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// The last line that says that the kernel panicked.
    pub fn panic(&self) -> Option<&str> {
        self.panic.as_deref()
    }

    /// The last line that says anything.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// Reads a part of what is there: the lines that are to be shown. Never waits.
    pub fn read(&mut self, now_ms: u64) -> Vec<String> {
        let Some(socket) = &self.socket else { return Vec::new() };
        let mut bytes = [0; READ_BYTES];
        match rustix::io::retry_on_intr(|| rustix::io::read(socket, &mut bytes[..])) {
            Ok(read) if read > 0 => self.take(bytes.get(..read).unwrap_or_default(), now_ms),
            Err(Errno::AGAIN) => Vec::new(),
            // The end; or a socket that fails, which is the end as well.
            _ => {
                self.socket = None;
                let rest = std::mem::take(&mut self.line);
                self.finish(&rest).into_iter().collect()
            }
        }
    }

    fn take(&mut self, bytes: &[u8], now_ms: u64) -> Vec<String> {
        let passed_ms = now_ms.saturating_sub(self.counted_ms);
        self.counted_ms = now_ms;
        let earned = passed_ms.saturating_mul(BYTES_PER_SECOND) / 1000;
        self.allowed = self.allowed.saturating_add(earned).min(BURST_BYTES);
        let mut lines = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
            }
            if byte == b'\n' || self.line.len() >= LINE_BYTES {
                let line = std::mem::take(&mut self.line);
                lines.extend(self.finish(&line));
            }
        }
        lines
    }

    fn finish(&mut self, line: &[u8]) -> Option<String> {
        let line = clean(&String::from_utf8_lossy(line), LINE_BYTES);
        if line.is_empty() {
            return None;
        }
        let said = without_time(&line);
        if said.contains(PANIC) {
            self.panic = Some(said.to_owned());
        }
        self.last = Some(said.to_owned());
        let Some(left) = self.allowed.checked_sub(line.len() as u64) else {
            self.dropped += 1;
            return None;
        };
        self.allowed = left;
        Some(match std::mem::take(&mut self.dropped) {
            0 => line,
            dropped => format!("({dropped} lines left out) {line}"),
        })
    }
}

/// A line of a kernel without the time that it begins with: `[   12.345678] `.
fn without_time(line: &str) -> &str {
    let behind = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    let is_time =
        |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.' || c == ' ');
    behind.filter(|(time, _)| is_time(time)).map_or(line, |(_, said)| said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn console() -> Console {
        Console::new(sys::descriptors::socket_pair().unwrap().0)
    }

    #[test]
    fn lines_are_clean_and_a_panic_is_kept() {
        let mut console = console();
        assert_eq!(console.take(b"[ 1.0] one\r\n\n[2.0] \x1b[31mKernel pa", 0), ["[ 1.0] one"]);
        let panic = " [31mKernel panic - not syncing: Attempted to kill init!";
        let lines = console.take(b"nic - not syncing: Attempted to kill init!\n[end]\n", 0);
        assert_eq!(lines, [format!("[2.0] {panic}"), "[end]".to_owned()]);
        assert_eq!((console.panic(), console.last()), (Some(panic), Some("[end]")));
    }

    #[test]
    fn a_guest_that_floods_its_console_fills_no_log() {
        let mut console = console();
        let line = [b"x".repeat(99), b"\n".to_vec()].concat();
        let shown = |console: &mut Console, now_ms| -> usize {
            (0..5000).flat_map(|_| console.take(&line, now_ms)).map(|line| line.len()).sum()
        };
        assert!(shown(&mut console, 0) <= BURST_BYTES as usize);
        assert_eq!(shown(&mut console, 0), 0);
        let later = console.take(&line, 1000);
        assert!(later[0].starts_with("(") && later[0].contains("lines left out"), "{later:?}");
        assert!(shown(&mut console, 1000) <= 2 * BYTES_PER_SECOND as usize);
        let endless = console.take(&b"y".repeat(3000), 100_000);
        assert!(endless.iter().skip(1).all(|line| line.len() <= LINE_BYTES) && endless.len() == 6);
    }
}
