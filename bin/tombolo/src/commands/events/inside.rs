//! Publishing and subscribing from inside a domain: by the files, as any program does.

use clap::Args;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terminal::{Failure, harmless};
use wire::events::module::BYTES_MAX as MODULE_BYTES_MAX;
use wire::events::{EVENT_BYTES_MAX, EventHeader, HEADER_BYTES};

/// Where a domain's services are.
const SERVICES: &str = "/srv";
/// The longest line of a recording: an event as hexadecimal, and what is said of it.
const LINE_BYTES_MAX: u64 = 2 * EVENT_BYTES_MAX as u64 + 1024;

/// The events that are wanted.
#[derive(Debug, Clone, Args)]
pub struct WhichArgs {
    /// Only events that pass this: comparisons of JSON fields, `&&`, `||`, `!`, `in`, `has(...)`
    #[arg(long, value_name = "EXPRESSION")]
    pub filter: Option<String>,
    /// Only what this WebAssembly module lets through, or makes of it; `-` is the standard input
    #[arg(long, value_name = "FILE", conflicts_with = "filter")]
    pub module: Option<PathBuf>,
    /// The behaviour when this is slow: drop, latest, or "wait MS"
    #[arg(long, value_name = "MODE", default_value = "drop")]
    pub overflow: String,
    /// Begin with so many events that were published before; or `all` that the channel has
    #[arg(long, value_name = "COUNT")]
    pub replay: Option<String>,
    /// End after so many
    #[arg(long, value_name = "COUNT")]
    pub count: Option<u64>,
}

/// The folder of a channel.
pub fn folder(channel: &str) -> Result<PathBuf, Failure> {
    let there = |folder: &PathBuf| folder.join("pub").exists() && folder.join("sub").exists();
    if let Some((service, name)) = channel.split_once('/') {
        let folder = Path::new(SERVICES).join(service).join(name);
        return if there(&folder) { Ok(folder) } else { Err(missing(channel)) };
    }
    let entries = fs::read_dir(SERVICES)
        .map_err(|error| Failure::new(format!("can't look into {SERVICES}: {error}")))?;
    let folders = entries.filter_map(|entry| Some(entry.ok()?.path().join(channel)));
    folders.into_iter().find(there).ok_or_else(|| missing(channel))
}

fn missing(channel: &str) -> Failure {
    Failure::new(format!("there is no event channel {channel:?} below {SERVICES}")).help(
        "`ls /srv/*` shows what this domain has; `mkdir /srv/SERVICE/NAME` makes one, where the domain may",
    )
}

fn at(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("can't {what} {}: {error}", path.display()))
}

/// Publishes one text, the whole input, or each of its lines.
pub fn publish(channel: &str, text: Option<&str>, lines: bool) -> Result<(), Failure> {
    let path = folder(channel)?.join("pub");
    let mut to = OpenOptions::new().write(true).open(&path).map_err(|error| at("open", &path, &error))?;
    let mut put = |event: &[u8]| write_whole(&mut to, event).map_err(|error| at("publish to", &path, &error));
    if let Some(text) = text {
        return put(text.as_bytes());
    }
    if lines {
        for line in stdin().lock().split(b'\n') {
            put(&line?)?;
        }
        return Ok(());
    }
    let mut event = Vec::new();
    stdin().lock().take(EVENT_BYTES_MAX as u64 + 1).read_to_end(&mut event)?;
    put(&event)
}

/// One write is one event, so it is never a part of one.
fn write_whole(to: &mut File, event: &[u8]) -> io::Result<()> {
    loop {
        match to.write(event) {
            Ok(written) if written == event.len() => return Ok(()),
            Ok(written) => {
                return Err(io::Error::other(format!("only {written} bytes of the event were taken")));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Subscribes, and writes what comes.
pub fn subscribe(channel: &str, which: &WhichArgs, json: bool, to: &mut dyn Write) -> Result<(), Failure> {
    let folder = folder(channel)?;
    let path = folder.join("sub");
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    let mut from = opened.map_err(|error| at("open", &path, &error))?;
    let mut lines = format!("framing binary\noverflow {}\n", which.overflow);
    lines += &which.replay.as_ref().map_or_else(String::new, |count| format!("replay {count}\n"));
    lines += &which.filter.as_ref().map_or_else(String::new, |filter| format!("filter {filter}\n"));
    let mut said = lines.into_bytes();
    if let Some(module) = &which.module {
        said.extend_from_slice(b"module\n");
        said.extend(read_module(module)?);
    }
    write_whole(&mut from, &said)
        .map_err(|error| explained("the subscription is refused", &folder, error))?;
    let (mut record, mut lost, mut count) = (vec![0; HEADER_BYTES + EVENT_BYTES_MAX + 1], 0, 0);
    while which.count.is_none_or(|most| count < most) {
        let length = match from.read(&mut record) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.raw_os_error() == Some(Errno::CANCELED.raw_os_error()) => {
                return Err(explained("the subscription has ended", &folder, error));
            }
            Err(error) => return Err(at("read", &path, &error)),
        };
        let (header, event) = EventHeader::decode(record.get(..length).unwrap_or_default())
            .ok_or_else(|| Failure::new(format!("{} gave no event", path.display())))?;
        count += 1;
        if json {
            let mut line = line_of(&header, event).to_string();
            line.push('\n');
            to.write_all(line.as_bytes()).map_err(|error| full(&error))?;
        } else {
            if header.lost > lost {
                eprintln!("{} events were lost before this one", header.lost - lost);
            }
            to.write_all(event).map_err(|error| full(&error))?;
            if !event.ends_with(b"\n") {
                to.write_all(b"\n").map_err(|error| full(&error))?;
            }
        }
        lost = header.lost;
        to.flush().map_err(|error| full(&error))?;
    }
    Ok(())
}

/// Takes the lines of a recording as they come, until there are no more.
pub fn copy_lines(from: impl Read, to: &mut Recording) -> Result<(), Failure> {
    let (mut from, mut line) = (BufReader::new(from), Vec::new());
    loop {
        line.clear();
        if from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if !line.ends_with(b"\n") {
            return Err(Failure::new("the domain has recorded half an event"));
        }
        to.write_all(&line).map_err(|error| full(&error))?;
    }
}

fn full(error: &io::Error) -> Failure {
    Failure::new(format!("can't write what came: {error}"))
}

/// A module, or the first bytes of what is too long to be one.
fn read_module(path: &Path) -> Result<Vec<u8>, Failure> {
    let most = MODULE_BYTES_MAX as u64 + 1;
    let mut bytes = Vec::new();
    let read = if is_standard(path) {
        stdin().lock().take(most).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes))
    };
    read.map_err(|error| at("read", path, &error))?;
    if bytes.len() > MODULE_BYTES_MAX {
        let why = format!("{} is longer than the {MODULE_BYTES_MAX} bytes that a module has", path.display());
        return Err(Failure::misuse(why).help("`wasm-opt -Oz --strip-debug` makes modules smaller"));
    }
    Ok(bytes)
}

/// Explains a refusal by the service's words in `stats`.
fn explained(what: &str, folder: &Path, error: io::Error) -> Failure {
    let stats = fs::read_to_string(folder.join("stats")).unwrap_or_default();
    let reason = stats.lines().find_map(|line| line.strip_prefix("refused "));
    match reason {
        Some(reason) => Failure::misuse(format!("{what}: {}", harmless(reason))),
        None => Failure::new(format!("{what}: {error}")),
    }
}

fn line_of(header: &EventHeader, event: &[u8]) -> Value {
    let mut line = json!({
        "published_ns": header.published_ns, "sequence": header.sequence, "publisher": header.publisher,
        "number": header.publisher_sequence, "lost": header.lost,
    });
    match std::str::from_utf8(event) {
        Ok(text) => line["text"] = json!(text),
        Err(_) => line["hex"] = json!(event.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
    line
}

/// The event of a line of a recording, and when it was published.
fn event_of(line: &str) -> Option<(u64, Vec<u8>)> {
    let line: Value = serde_json::from_str(line).ok()?;
    let at_ns = line["published_ns"].as_u64()?;
    if let Some(text) = line["text"].as_str() {
        return Some((at_ns, text.as_bytes().to_vec()));
    }
    let hex = line["hex"].as_str().filter(|hex| hex.is_ascii() && hex.len().is_multiple_of(2))?;
    let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    Some((at_ns, (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>()?))
}

/// Whether a path stands for the standard input or output.
pub fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// Makes a file for a recording.
pub fn make(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| at("write", path, &error))
}

/// A recording that is being written: it has whole lines only, also where the disk is full.
#[derive(Debug)]
pub struct Recording {
    file: File,
    /// Bytes of whole lines, and of what the file had before.
    whole: u64,
}

impl Recording {
    /// To this file, which is made, or to the standard output.
    pub fn begin(path: &Path) -> Result<Self, Failure> {
        let file = if is_standard(path) {
            let own = stdout().as_fd().try_clone_to_owned().map_err(|error| full(&error))?;
            File::from(own)
        } else {
            make(path)?
        };
        let whole = file.metadata().map_err(|error| at("look at", path, &error))?.len();
        Ok(Self { file, whole })
    }
}

impl Write for Recording {
    /// Takes all of it, or nothing of it stays.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self.file.write_all(line) {
            Ok(()) => {
                self.whole += line.len() as u64;
                Ok(line.len())
            }
            Err(error) => {
                // Half a line would keep the recording from being replayed. A pipe has no length.
                if self.file.metadata()?.is_file() {
                    self.file.set_len(self.whole)?;
                }
                Err(error)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Publishes a recording, in the time that it took divided by `speed`.
pub fn replay(channel: &str, file: &Path, speed: f64) -> Result<(), Failure> {
    let path = folder(channel)?.join("pub");
    let mut to = OpenOptions::new().write(true).open(&path).map_err(|error| at("open", &path, &error))?;
    let mut from: Box<dyn BufRead> = if is_standard(file) {
        Box::new(stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(file).map_err(|error| at("read", file, &error))?))
    };
    let (began, mut first, mut line, mut number) = (Instant::now(), None, String::new(), 0_u64);
    loop {
        line.clear();
        if from.by_ref().take(LINE_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        number += 1;
        let (at_ns, event) = event_of(&line).ok_or_else(|| {
            Failure::new(format!("line {number} of {} is no recorded event", file.display()))
        })?;
        let since = Duration::from_nanos(at_ns.saturating_sub(*first.get_or_insert(at_ns)));
        if speed > 0.0 {
            let due = since.div_f64(speed);
            while began.elapsed() < due {
                std::thread::park_timeout(due.saturating_sub(began.elapsed()));
            }
        }
        write_whole(&mut to, &event).map_err(|error| at("publish to", &path, &error))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_event_is_the_one_that_is_replayed() {
        let header = EventHeader { sequence: 4, published_ns: 77, ..EventHeader::default() };
        for event in [&b"text \"x\"\n"[..], b"", b"\xff\0\x01"] {
            let line = line_of(&header, event).to_string();
            assert_eq!(event_of(&line), Some((77, event.to_vec())), "{line}");
        }
        for line in [
            "",
            "{}",
            r#"{"published_ns":1}"#,
            r#"{"published_ns":1,"hex":"0"}"#,
            r#"{"published_ns":1,"hex":"zz"}"#,
        ] {
            assert_eq!(event_of(line), None, "{line}");
        }
    }
}
