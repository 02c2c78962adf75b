//! Where payloads come from: an argument, a file, the standard input.

use super::PayloadArgs;
use super::print::remark;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::Path;
use terminal::{Failure, MISUSE};

/// Most bytes that are read of a payload. Longer ones fit no pair, and an endless input shall not
/// fill the memory.
const PAYLOAD_BYTES_MAX: u64 = 64 << 20;

/// The payloads of a command, one after the other.
pub enum Payloads {
    /// There is one.
    One(Option<Vec<u8>>),
    /// Each line is one.
    Lines(BufReader<Box<dyn Read>>),
}

impl Payloads {
    /// Returns the payload of the arguments.
    pub fn of(arguments: &PayloadArgs) -> Result<Self, Failure> {
        if let Some(text) = &arguments.text {
            return Ok(Self::One(Some(text.clone().into_bytes())));
        }
        let input = input(arguments)?;
        if arguments.lines {
            return Ok(Self::Lines(BufReader::new(input)));
        }
        Ok(Self::One(Some(bounded(input)?)))
    }
}

impl Iterator for Payloads {
    type Item = Result<Vec<u8>, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::One(payload) => payload.take().map(Ok),
            Self::Lines(input) => next_line(input).transpose(),
        }
    }
}

/// The file that was named, or else the standard input.
fn input(arguments: &PayloadArgs) -> Result<Box<dyn Read>, Failure> {
    match named(arguments.file.as_deref()) {
        Some(path) => Ok(Box::new(open(path)?)),
        None => {
            if std::io::stdin().is_terminal() {
                let what = if arguments.lines { "type a line for each" } else { "type what to say" };
                remark(&format!("{what}; Ctrl-D on an empty line ends it"));
            }
            Ok(Box::new(std::io::stdin()))
        }
    }
}

/// The file, where it is none of the names of the standard input.
pub fn named(file: Option<&Path>) -> Option<&Path> {
    file.filter(|path| *path != Path::new("-"))
}

pub fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| {
        let code = if error.kind() == std::io::ErrorKind::NotFound { MISUSE } else { terminal::FAILED };
        Failure { code, ..Failure::new(format!("can't read {}: {error}", path.display())) }
    })
}

fn next_line(input: &mut impl BufRead) -> Result<Option<Vec<u8>>, Failure> {
    let mut line = Vec::new();
    let mut limited = input.take(PAYLOAD_BYTES_MAX + 1);
    if limited.read_until(b'\n', &mut line).map_err(unread)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    checked(line).map(Some)
}

fn bounded(input: impl Read) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    input.take(PAYLOAD_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unread)?;
    checked(bytes)
}

fn checked(bytes: Vec<u8>) -> Result<Vec<u8>, Failure> {
    if bytes.len() as u64 > PAYLOAD_BYTES_MAX {
        let most = PAYLOAD_BYTES_MAX >> 20;
        return Err(Failure::new(format!("what there is to send has more than {most} MiB"))
            .help("a message has a little under a sixteenth of a ring; more goes through a granted buffer (docs/endpoints.md)"));
    }
    Ok(bytes)
}

fn unread(error: std::io::Error) -> Failure {
    Failure::new(format!("can't read what to send: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lose_their_ends_and_nothing_else() {
        let mut input = BufReader::new(&b"one\r\n\nlast"[..]);
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut input).unwrap() {
            lines.push(line);
        }
        assert_eq!(lines, [&b"one\r"[..], b"", b"last"]);
    }

    #[test]
    fn an_endless_input_is_refused_in_time() {
        let endless = || std::io::repeat(b'x');
        assert!(bounded(endless()).unwrap_err().message.contains("64 MiB"));
        assert!(next_line(&mut BufReader::new(endless())).unwrap_err().message.contains("64 MiB"));
    }

    #[test]
    fn a_dash_is_the_standard_input() {
        assert_eq!((named(Some(Path::new("-"))), named(None)), (None, None));
        assert_eq!(named(Some(Path::new("./-"))), Some(Path::new("./-")));
    }
}
