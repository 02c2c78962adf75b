//! A worker from the inside: the lines that it hears and says, and what it knows of its own use of
//! the processor.

use std::fs;
use std::io::{self, BufRead, Write};
use sys::clock::clock_ns;

/// The next line of the conversation; `None` at its end.
///
/// # Errors
/// Those of the input.
pub fn next_line(input: &mut dyn BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    Ok((input.read_line(&mut line)? > 0).then_some(line))
}

/// Says a line, at once.
///
/// # Errors
/// Those of the output.
pub fn say(output: &mut dyn Write, line: &str) -> io::Result<()> {
    writeln!(output, "{line}")?;
    output.flush()
}

/// Waits for an instant of [`clock_ns`]: so that several workers begin at one instant of one clock.
pub fn await_clock(begin_ns: u64) {
    let now = clock_ns();
    if now < begin_ns {
        // tidy(sleep): the instant itself is what is awaited; there is no other event to begin
        // with.
        std::thread::sleep(std::time::Duration::from_nanos(begin_ns - now));
    }
}

/// Processor time of this process, in ns.
#[must_use]
pub fn processor_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// How often this thread has given a processor up or lost it: context switches, voluntary and not.
///
/// # Errors
/// Where `/proc` does not tell.
pub fn switches() -> io::Result<u64> {
    fs::read_to_string("/proc/thread-self/status").map(|status| switches_in(&status))
}

fn switches_in(status: &str) -> u64 {
    let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
    counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_switches_count() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(switches_in(status), 15);
    }

    #[test]
    fn a_sleep_is_a_switch() {
        let before = switches().expect("/proc tells");
        await_clock(clock_ns() + 1_000_000);
        assert!(switches().expect("/proc tells") > before);
    }
}
