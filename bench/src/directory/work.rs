//! The work of a worker inside a domain: it asks for names, one after the other, and notes how long
//! each took.
//!
//! The conversation, a line each: the worker says `ready`; it is given a [`Task`] as JSON, asks for
//! every name once (so that connections stand and caches are filled) and says `primed`; it is given
//! the time to begin, or `now` where its clock is not ours, does its work, and answers with a
//! [`Tale`] as JSON. The end of its input ends it.

use crate::histogram::Latencies;
use crate::statistics::SplitMix;
use crate::talk::{await_clock, next_line, processor_ns, say};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use sys::clock::clock_ns;

/// Room for one answer of the device: a name has a handful of addresses here.
const ANSWER_BYTES: usize = 4096;

/// How often a name is asked for before the window.
const PRIMING_ATTEMPTS: u32 = 4;

/// The way in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Writes to and reads from this file.
    Device(String),
    /// `getaddrinfo` of the C library, whatever that leads to.
    Library,
}

/// The task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The way in.
    pub way: Way,
    /// `n0.SUFFIX`, `n1.SUFFIX`, ... are asked for.
    pub suffix: String,
    /// How many different names.
    pub names: usize,
    /// The processor to stay on.
    pub processor: u32,
    /// How long to work before the measured window, in ns.
    pub warm_up_ns: u64,
    /// The measured window, in ns.
    pub window_ns: u64,
    /// The seed of the names and their order.
    pub seed: u64,
}

/// The account of the work.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Tale {
    /// Look-ups that ended within the window.
    pub latencies: Latencies,
    /// Look-ups that failed, at any time.
    pub failures: u64,
    /// The message of the first failure.
    pub first_failure: Option<String>,
    /// All look-ups since the beginning, those outside the window too.
    pub operations: u64,
    /// Processor time of this process for all of them, in ns.
    pub processor_ns: u64,
}

/// Leads the conversation until the input ends.
///
/// # Errors
/// Where the input is no conversation, or the way in can't be opened.
pub fn converse(input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    say(output, "ready")?;
    while let Some(line) = next_line(input)? {
        let task: Task = serde_json::from_str(&line).map_err(io::Error::other)?;
        sys::processor::pin(&[task.processor])?;
        let mut asker = Asker::open(&task)?;
        for name in 0..task.names {
            prime(&mut asker, name)?;
        }
        say(output, "primed")?;
        let Some(begin) = next_line(input)? else { return Ok(()) };
        let begin_ns = match begin.trim() {
            "now" => clock_ns(),
            instant => instant.parse().map_err(io::Error::other)?,
        };
        say(
            output,
            &serde_json::to_string(&perform(&task, &mut asker, begin_ns)).map_err(io::Error::other)?,
        )?;
    }
    Ok(())
}

/// Asks for a name until there is an answer, so that one lost packet of the naive arm, whose
/// library gives up for good, does not end a bench of many minutes. Within the window every failure
/// counts.
fn prime(asker: &mut Asker, name: usize) -> io::Result<()> {
    let mut result = asker.ask(name);
    for _ in 1..PRIMING_ATTEMPTS {
        if result.is_ok() {
            break;
        }
        result = asker.ask(name);
    }
    result
}

fn perform(task: &Task, asker: &mut Asker, begin_ns: u64) -> Tale {
    let mut random = SplitMix(task.seed);
    let mut tale = Tale {
        latencies: Latencies::new(),
        failures: 0,
        first_failure: None,
        operations: 0,
        processor_ns: 0,
    };
    await_clock(begin_ns);
    let window = begin_ns + task.warm_up_ns..=begin_ns + task.warm_up_ns + task.window_ns;
    let processor_before = processor_ns();
    let mut now = clock_ns();
    // However late this process was woken, it asks at least once.
    loop {
        let asked = asker.ask(random.below(task.names));
        let end = clock_ns();
        tale.operations += 1;
        match asked {
            Ok(()) if window.contains(&now) && window.contains(&end) => tale.latencies.record(end - now),
            Ok(()) => {}
            Err(error) => {
                tale.failures += 1;
                tale.first_failure.get_or_insert_with(|| error.to_string());
            }
        }
        now = end;
        if now >= *window.end() {
            break;
        }
    }
    tale.processor_ns = processor_ns() - processor_before;
    tale
}

/// The way in, opened, with the names as it wants them.
enum Asker {
    Device { file: File, lines: Vec<String>, answer: Vec<u8> },
    Library { names: Vec<CString> },
}

impl Asker {
    fn open(task: &Task) -> io::Result<Self> {
        let names = (0..task.names).map(|number| format!("n{number}.{}", task.suffix));
        match &task.way {
            Way::Device(path) => {
                let file = OpenOptions::new().read(true).write(true).open(path)?;
                Ok(Self::Device {
                    file,
                    lines: names.map(|name| name + "\n").collect(),
                    answer: vec![0; ANSWER_BYTES],
                })
            }
            Way::Library => {
                let names = names.map(|name| CString::new(name).map_err(io::Error::other));
                Ok(Self::Library { names: names.collect::<io::Result<_>>()? })
            }
        }
    }

    /// Asks for one name; no address is a failure.
    fn ask(&mut self, name: usize) -> io::Result<()> {
        let found = match self {
            Self::Device { file, lines, answer } => {
                let line = lines.get(name).ok_or(io::ErrorKind::InvalidInput)?;
                file.write_all(line.as_bytes())?;
                file.read(answer)?
            }
            Self::Library { names } => {
                let name = names.get(name).ok_or(io::ErrorKind::InvalidInput)?;
                sys::resolver::addresses(name).map_err(io::Error::other)?.len()
            }
        };
        if found == 0 { Err(io::Error::other("the answer was empty")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> Task {
        Task {
            way: Way::Library,
            suffix: "invalid".into(),
            // None: nothing is asked of any server, and every question fails.
            names: 0,
            processor: sys::processor::allowed().expect("our processors")[0],
            warm_up_ns: 0,
            window_ns: 1_000_000,
            seed: 7,
        }
    }

    #[test]
    fn a_conversation_has_its_turns() {
        let mut input = serde_json::to_string(&task()).expect("JSON");
        input += &format!("\n{}\n", clock_ns());
        let mut output = Vec::new();
        converse(&mut input.as_bytes(), &mut output).expect("a good conversation");
        let output = String::from_utf8(output).expect("text");
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(&lines[..2], ["ready", "primed"]);
        let tale: Tale = serde_json::from_str(lines[2]).expect("a tale");
        assert!(tale.failures > 0 && tale.failures == tale.operations && tale.latencies.count() == 0);
        assert!(tale.first_failure.is_some());
    }

    #[test]
    fn a_device_is_asked_a_line_at_a_time() {
        // A file on disk answers what was written behind the reader: enough to see the line, and
        // that the end is empty.
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("query");
        std::fs::write(&path, "").expect("a file");
        let way = Way::Device(path.to_string_lossy().into_owned());
        let mut asker = Asker::open(&Task { way, names: 2, ..task() }).expect("opened");
        assert_eq!(asker.ask(1).expect_err("nothing answers").to_string(), "the answer was empty");
        assert_eq!(std::fs::read_to_string(&path).expect("the file"), "n1.invalid\n");
    }

    #[test]
    fn nonsense_ends_the_conversation_with_an_error() {
        assert!(converse(&mut &b"nonsense\n"[..], &mut Vec::new()).is_err());
    }
}
