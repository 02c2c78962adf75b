//! Printing for people and scripts, and the end of a command.

use admin::client::ClientError;
use admin::{Code, Problem};
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// Exit code of a command that failed.
pub const FAILED: u8 = 1;
/// Exit code of a command that was used wrongly.
pub const MISUSE: u8 = 2;
/// Exit code of a command that was interrupted, as a shell says it of SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Why a command ends without success: what, where, and what to do.
#[derive(Debug)]
pub struct Failure {
    /// [`FAILED`] or [`MISUSE`], or the code of what was run.
    pub code: u8,
    /// The failure; empty where it has been said already.
    pub message: String,
    /// The remedy.
    pub help: Option<String>,
}

impl Failure {
    /// One with the code [`FAILED`].
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: FAILED, message: message.into(), help: None }
    }

    /// One with the code [`MISUSE`].
    pub fn misuse(message: impl Into<String>) -> Self {
        Self { code: MISUSE, message: message.into(), help: None }
    }

    /// Something that has been printed already.
    #[must_use]
    pub fn silent() -> Self {
        Self::new("")
    }

    /// Adds the remedy.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Prints it to the standard error.
    pub fn print(&self) {
        if self.message.is_empty() {
            return;
        }
        let paint = Paint::of(&std::io::stderr());
        let mut text = format!("{}error:{} {}\n", paint.red, paint.end, harmless(&self.message));
        if let Some(help) = &self.help {
            text += &format!("  {}\n", harmless(help));
        }
        // Where nobody can be told (a full disk, a closed terminal), the exit code still says it.
        let _untold = std::io::stderr().write_all(text.as_bytes());
    }
}

/// Returns a text of others that can't steer the reader's terminal: control characters other than
/// line ends and tabs are replaced.
#[must_use]
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c }).collect()
}

/// A line that a domain wrote, for a terminal: it keeps its colours (`ESC [ ... m`, which end with
/// the line), and can't steer the terminal in any other way.
#[must_use]
pub fn harmless_line(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line.strip_suffix('\r').unwrap_or(line);
    let mut coloured = false;
    while let Some(first) = rest.chars().next() {
        let taken = match colour_at(rest) {
            Some(length) => {
                coloured = true;
                out += rest.get(..length).unwrap_or_default();
                length
            }
            None => {
                let replaced = first.is_control() && first != '\t';
                out.push(if replaced { '\u{fffd}' } else { first });
                first.len_utf8()
            }
        };
        rest = rest.get(taken..).unwrap_or_default();
    }
    if coloured {
        out += "\x1b[0m";
    }
    out
}

/// The length of the colour (ECMA-48, SGR) that `text` begins with, if it does.
fn colour_at(text: &str) -> Option<usize> {
    const PREFIX: &str = "\x1b[";
    let parameters = text.strip_prefix(PREFIX)?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && !matches!(c, ';' | ':'))?;
    parameters.get(end..)?.starts_with('m').then_some(PREFIX.len() + end + 1)
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let code = if problem.code == Code::BadRequest { MISUSE } else { FAILED };
        Self { code, message: problem.message, help: problem.help }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(problem) => problem.into(),
            ClientError::NotRunning { .. } => {
                Self::new(error.to_string()).help("`tombolo up FILE` starts one; so does `tombolo daemon`")
            }
            ClientError::NotAllowed { .. } => Self::new(error.to_string())
                .help("use sudo; or have yourself added to the group tombolo, which may look, or tombolo-admin, which is as good as root: docs/operations.md"),
            ClientError::Broken { .. } => Self::new(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// Colours, or nothing where the output is no terminal (or `NO_COLOR` is set).
#[derive(Debug, Clone, Copy, Default)]
pub struct Paint {
    /// Begins red.
    pub red: &'static str,
    /// Begins green.
    pub green: &'static str,
    /// Begins yellow.
    pub yellow: &'static str,
    /// Begins what matters less.
    pub dim: &'static str,
    /// Begins what matters more.
    pub bold: &'static str,
    /// Ends any of them.
    pub end: &'static str,
}

impl Paint {
    /// Those for a stream.
    pub fn of(stream: &impl IsTerminal) -> Self {
        if stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) {
            Self {
                red: "\x1b[31m",
                green: "\x1b[32m",
                yellow: "\x1b[33m",
                dim: "\x1b[2m",
                bold: "\x1b[1m",
                end: "\x1b[0m",
            }
        } else {
            Self::default()
        }
    }

    /// A word for a state, in its colour.
    #[must_use]
    pub fn state(&self, state: &str) -> String {
        let colour = match state {
            "running" | "up" => self.green,
            "failed" | "down" => self.red,
            "ended" => self.dim,
            _ => self.yellow,
        };
        format!("{colour}{state}{}", self.end)
    }
}

/// Prints to the standard output; a reader that has gone away (`| head`) ends the program quietly.
///
/// # Errors
/// The output can't be written.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::silent()),
        other => Ok(other?),
    }
}

/// Prints one JSON value, indented.
///
/// # Errors
/// The output can't be written.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::new(e.to_string()))?;
    print(&(text + "\n"))
}

/// Prints a table: columns are as wide as their widest cell; escape sequences take no room.
///
/// # Errors
/// The output can't be written.
pub fn print_table(head: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    let paint = Paint::of(&std::io::stdout());
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(visible(cell));
        }
    }
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let mut text = format!("{}{}{}\n", paint.bold, line(&head, &widths), paint.end);
    for row in rows {
        text += &line(row, &widths);
        text.push('\n');
    }
    print(&text)
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let mut text = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        text += cell;
        text += &" ".repeat(width.saturating_sub(visible(cell)) + 2);
    }
    text.trim_end().to_owned()
}

/// Characters that a terminal shows of a cell.
fn visible(cell: &str) -> usize {
    let mut count = 0;
    let mut escaped = false;
    for character in cell.chars() {
        match character {
            '\x1b' => escaped = true,
            'm' if escaped => escaped = false,
            _ if escaped => {}
            _ => count += 1,
        }
    }
    count
}

/// An error with its causes, as one sentence.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Bytes as a person reads them.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A span of time as a person reads it.
#[must_use]
pub fn seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // `tombolo logs` once gave a hostile domain the reader's terminal: its title, its clipboard,
    // what is already on the screen.
    #[test]
    fn what_a_domain_wrote_keeps_its_colours_and_steers_no_terminal() {
        assert_eq!(harmless_line("a\tb\r"), "a\tb");
        assert_eq!(harmless_line("\x1b[1;31mred\x1b[0m"), "\x1b[1;31mred\x1b[0m\x1b[0m");
        assert_eq!(harmless_line("\x1b[2Jx"), "\u{fffd}[2Jx");
        assert_eq!(harmless_line("\x1b]52;c;Zm9v\x07"), "\u{fffd}]52;c;Zm9v\u{fffd}");
        assert_eq!(harmless_line("ok\rfake \u{9b}31m \x1b"), "ok\u{fffd}fake \u{fffd}31m \u{fffd}");
        assert_eq!(harmless_line("\x1b[31"), "\u{fffd}[31");
        assert_eq!(harmless("two\nlines\x1b[2J"), "two\nlines\u{fffd}[2J");
    }

    #[test]
    fn numbers_are_said_as_people_say_them() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!(seconds(59), "59s");
        assert_eq!(seconds(3725), "1h02m");
    }

    #[test]
    fn colours_take_no_room_in_a_table() {
        assert_eq!(visible("\x1b[32mrunning\x1b[0m"), 7);
        assert_eq!(line(&["\x1b[1ma\x1b[0m".into(), "b".into()], &[3, 1]), "\x1b[1ma\x1b[0m    b");
    }
}
