//! The checker: uses each file of a service from a domain that mounts it, as many and as clumsy
//! clients do, and says what the service did wrong. `tombolo service check` runs it.

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The word that chooses this role.
pub const CHECKER: &str = "internal-check-service";
/// The word that chooses the client that is killed.
pub const VICTIM: &str = "internal-check-victim";

/// How long any call may take: what asks a sensor or a disk is long done, and a person still waits.
const DEADLINE: Duration = Duration::from_secs(5);
/// Clients of one file at the same time: more than a server that serves them one after another by
/// chance stands.
const CLIENTS: usize = 16;
/// How often each of them reads.
const ROUNDS: usize = 4;
/// Clients that are killed in the middle of a call.
const KILLS: usize = 4;
/// Longest text that is read, in bytes: the longest answer that there can be.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Entries of a folder that are looked up one by one.
const ENTRIES_MAX: usize = 1_000;
/// Files of the service's folder that are checked: as many as a service may export.
const FILES_MAX: usize = 255;
/// Files that may have no answer in time before the rest is left alone: each costs whoever waits a
/// [`DEADLINE`] and more.
const SILENT_MAX: usize = 8;
/// Bytes of the long line; a line may have 65,536.
const LONG_LINE_BYTES: usize = 60_000;
/// The size that files claim that are functions, as `docs/files.md` says.
const FUNCTION_SIZE: u64 = 4096;

/// The things to check.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CheckOrder {
    /// Where the domain sees the service, `/srv/thermometer`.
    pub at: PathBuf,
    /// Whether lines that mean nothing are written to controls and sessions.
    pub write: bool,
}

/// The outcome of all checks; one JSON object on the standard output.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    /// The files, in the order of their names.
    pub files: Vec<Checked>,
    /// All that is wrong.
    pub findings: Vec<Finding>,
}

/// A file that was looked at.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Checked {
    /// Its name below the service's folder.
    pub name: String,
    /// Its behaviour as a client sees it; `no verb` where the domain may not open it.
    pub behaviour: String,
    /// The checks that it went through.
    pub checks: Vec<String>,
}

/// Something that the service does wrong.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Finding {
    /// The file; empty where it is the whole service.
    pub file: String,
    /// The check that found it.
    pub check: String,
    /// The event.
    pub found: String,
    /// The advice to the service's author.
    pub advice: String,
}

/// Does what the argument says.
pub fn run(mut arguments: std::env::ArgsOs) -> Result<(), String> {
    let order = arguments.next().and_then(|word| word.into_string().ok());
    let order: CheckOrder = order
        .and_then(|text| serde_json::from_str(&text).ok())
        .ok_or("this role is run by `tombolo service check`, not by hand")?;
    let report = check(&order)?;
    println!("{}", serde_json::to_string(&report).map_err(|e| e.to_string())?);
    Ok(())
}

/// Opens a file and reads from it again and again, until it is killed.
pub fn victim(mut arguments: std::env::ArgsOs) -> Result<(), String> {
    let path =
        PathBuf::from(arguments.next().ok_or("this role is run by `tombolo service check`, not by hand")?);
    println!("begun");
    loop {
        // Whatever comes of it: it is about the service after this client's end.
        let _read = read(&path, Direction::Read);
    }
}

fn check(order: &CheckOrder) -> Result<Report, String> {
    let mut report = Report::default();
    let mut names = match within(&order.at, list) {
        Some(Ok(names)) => names,
        Some(Err(e)) => return Err(format!("can't list {}: {e}", order.at.display())),
        None => return Err(format!("{} is not listed within {DEADLINE:?}", order.at.display())),
    };
    names.sort_unstable();
    let listed = names.len();
    let mut silent = 0;
    for name in names.into_iter().take(FILES_MAX) {
        if silent > SILENT_MAX {
            break;
        }
        let mut subject =
            Subject { path: order.at.join(&name), name, checks: Vec::new(), findings: Vec::new() };
        let behaviour = subject.check(order.write);
        report.files.push(Checked {
            name: subject.name,
            behaviour: behaviour.into(),
            checks: subject.checks,
        });
        silent += usize::from(subject.findings.iter().any(|finding| finding.advice == SLOW));
        report.findings.extend(subject.findings);
    }
    if silent > SILENT_MAX {
        let left = listed - report.files.len();
        report.findings.push(Finding {
            file: String::new(),
            check: "answers in time".into(),
            found: format!("{silent} files have calls without an answer; {left} others were not checked"),
            advice: SLOW.into(),
        });
    }
    Ok(report)
}

/// A file while it is checked.
struct Subject {
    name: String,
    path: PathBuf,
    checks: Vec<String>,
    findings: Vec<Finding>,
}

/// How a client opens a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
    Both,
}

/// Where the first look at a file leads.
enum Look {
    /// A whole text, at offsets.
    Text,
    /// A place for requests, in which nothing was asked yet.
    Session,
    /// Records that come by themselves, or a device.
    Stream,
}

impl Subject {
    /// Goes through all checks of the file; returns its behaviour.
    fn check(&mut self, write: bool) -> &'static str {
        let Some(metadata) = self.answer("stat", |path| std::fs::symlink_metadata(path)) else {
            return "unknown";
        };
        let mode = metadata.mode();
        let function = is_function(&self.path, &metadata);
        if metadata.is_dir() {
            self.folder();
            return "folder";
        }
        if !metadata.is_file() {
            return "link";
        }
        match (mode & 0o444 != 0, mode & 0o222 != 0) {
            (false, false) => "no verb",
            (false, true) => {
                self.control(write && function);
                "control"
            }
            (true, writable) => self.readable(writable, write, function),
        }
    }

    fn readable(&mut self, writable: bool, write: bool, function: bool) -> &'static str {
        let direction = if writable { Direction::Both } else { Direction::Read };
        let Some(look) = self.answer("open", move |path| look(path, direction)) else { return "unknown" };
        match look {
            Look::Text => {
                if self.answer("read", |path| read(path, Direction::Read)).is_some() {
                    self.many_clients();
                    self.killed_clients();
                }
                match (writable, function) {
                    (true, true) => {
                        self.control(write);
                        "control"
                    }
                    (true, false) => "file",
                    (false, _) => "text",
                }
            }
            Look::Session => {
                self.killed_clients();
                if write && writable && function {
                    self.wrong_lines(true);
                }
                "session"
            }
            Look::Stream => {
                self.killed_clients();
                "stream"
            }
        }
    }

    fn control(&mut self, write: bool) {
        if write {
            self.wrong_lines(false);
        }
    }

    /// Lists a folder; what is listed must be there, once.
    fn folder(&mut self) {
        let Some(names) = self.answer("list", list) else { return };
        let distinct: BTreeSet<&String> = names.iter().collect();
        if distinct.len() < names.len() {
            let twice = names.len() - distinct.len();
            self.find(
                "list",
                format!("{twice} names are listed twice"),
                "a continuation begins after its entry",
            );
        }
        let absent = self.answer("look up", move |path| {
            let absent: Vec<String> =
                names.iter().take(ENTRIES_MAX).filter(|name| is_absent(&path.join(name))).cloned().collect();
            // What went meanwhile is not listed any more.
            let now: BTreeSet<String> =
                if absent.is_empty() { BTreeSet::new() } else { list(path)?.into_iter().collect() };
            Ok(absent.into_iter().filter(|name| now.contains(name)).collect::<Vec<_>>())
        });
        if let Some([first, ..]) = absent.as_deref() {
            let found = format!("{first:?} is listed, and is not found when it is looked up");
            self.find("look up", found, "answer look-ups from the same names as listings");
        }
    }

    /// Reads by many clients at once.
    fn many_clients(&mut self) {
        const CHECK: &str = "many clients";
        self.checks.push(CHECK.into());
        let (sender, results) = mpsc::channel();
        for _ in 0..CLIENTS {
            let (path, sender) = (self.path.clone(), sender.clone());
            std::thread::spawn(move || {
                let all: io::Result<Vec<_>> = (0..ROUNDS).map(|_| read(&path, Direction::Read)).collect();
                // Nobody listens any more where the time is up.
                let _unheard = sender.send(all.map(drop));
            });
        }
        let until = Instant::now() + DEADLINE;
        let mut waits = 0;
        let mut refused = Vec::new();
        for _ in 0..CLIENTS {
            match results.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => refused.push(error),
                Err(_) => waits += 1,
            }
        }
        if waits > 0 {
            let found =
                format!("{waits} of {CLIENTS} clients that read at once were not answered in {DEADLINE:?}");
            self.find(CHECK, found, SLOW);
        }
        if let Some(first) = refused.first() {
            let found =
                format!("one client is answered; {} of {CLIENTS} at once got: {first}", refused.len());
            self.find(CHECK, found, advice(first).unwrap_or("let no answer depend on who else asks"));
        }
    }

    /// Clients are killed in the middle of calls; afterwards the file must open as before.
    fn killed_clients(&mut self) {
        const CHECK: &str = "killed clients";
        self.checks.push(CHECK.into());
        for _ in 0..KILLS {
            if let Err(error) = kill_one(&self.path) {
                self.find(
                    CHECK,
                    format!("no client could be started: {error}"),
                    "this is no fault of the service",
                );
                return;
            }
        }
        self.ask(CHECK, |path| look(path, Direction::Read));
    }

    /// Lines that mean nothing are refused by an errno, or taken; the function that gets them must
    /// not fail.
    fn wrong_lines(&mut self, answers: bool) {
        let long = vec![b'x'; LONG_LINE_BYTES];
        let lines: [(&'static str, Vec<u8>); 3] = [
            ("a line that is no UTF-8", b"\xff\xfe\x80".to_vec()),
            ("a word that nobody knows", b"tombolo-service-check".to_vec()),
            ("a long line", long),
        ];
        for (check, line) in lines {
            self.checks.push(check.into());
            self.ask(check, move |path| tell(path, &line, answers));
        }
    }

    /// As [`Subject::ask`], and the check is counted.
    fn answer<T: Send + 'static>(
        &mut self,
        check: &'static str,
        call: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Option<T> {
        self.checks.push(check.into());
        self.ask(check, call)
    }

    /// The result of a call, if it had one. No answer in time, and an errno that only a mistake
    /// has, are findings.
    fn ask<T: Send + 'static>(
        &mut self,
        check: &'static str,
        call: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Option<T> {
        match within(&self.path, call) {
            Some(Ok(result)) => return Some(result),
            Some(Err(error)) => {
                if let Some(advice) = advice(&error) {
                    self.find(check, error.to_string(), advice);
                }
            }
            None => self.find(check, format!("no answer within {DEADLINE:?}"), SLOW),
        }
        None
    }

    fn find(&mut self, check: &str, found: String, advice: &str) {
        self.findings.push(Finding {
            file: self.name.clone(),
            check: check.into(),
            found,
            advice: advice.into(),
        });
    }
}

/// For a call that does not end.
const SLOW: &str = "answer each request, or refuse it; one that waits is a coroutine (Python) or answered later (Rust), \
                    so that others are served meanwhile";

/// For an errno that no service means: `None` where it is an ordinary refusal.
fn advice(error: &io::Error) -> Option<&'static str> {
    Some(match Errno::from_io_error(error)? {
        Errno::IO => {
            "a function failed; the program's log says where. Refuse what is wrong by an errno of its own (EINVAL)"
        }
        Errno::CONNRESET => {
            "the program ended during the call; its log says why. No request may end it; what may be done twice is idempotent"
        }
        Errno::MSGSIZE => "an answer has at most 1 MiB: make a stream or a folder of what is longer",
        _ => return None,
    })
}

/// Makes the call in a thread of its own: `None` where it takes too long. The thread ends with this
/// process.
fn within<T: Send + 'static>(
    path: &Path,
    call: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Option<io::Result<T>> {
    let (sender, result) = mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        // Nobody listens any more where the time is up.
        let _unheard = sender.send(call(&path));
    });
    result.recv_timeout(DEADLINE).ok()
}

fn open(path: &Path, direction: Direction, flags: OFlags) -> io::Result<File> {
    File::options()
        .read(direction != Direction::Write)
        .write(direction != Direction::Read)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

fn list(path: &Path) -> io::Result<Vec<String>> {
    let names = std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

/// Whether a file is made of functions, and keeps no bytes that a write would spoil: it has the
/// size that those claim, and the very time of the service's folder, as each file has that the
/// export itself names.
fn is_function(path: &Path, metadata: &Metadata) -> bool {
    let time = |metadata: &Metadata| (metadata.mtime(), metadata.mtime_nsec());
    let folder = path.parent().and_then(|folder| std::fs::symlink_metadata(folder).ok());
    metadata.size() == FUNCTION_SIZE && folder.is_some_and(|folder| time(&folder) == time(metadata))
}

fn is_absent(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Opens a file, which asks the server, and tells its behaviour by what a first read does.
fn look(path: &Path, direction: Direction) -> io::Result<Look> {
    if open(path, Direction::Read, OFlags::empty())?.stream_position().is_ok() {
        return Ok(Look::Text);
    }
    let read = open(path, direction, OFlags::NONBLOCK)?.read(&mut [0; 1]);
    match read {
        Ok(0) => Ok(Look::Session),
        Err(error) if advice(&error).is_some() => Err(error),
        Ok(_) | Err(_) => Ok(Look::Stream),
    }
}

fn read(path: &Path, direction: Direction) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    open(path, direction, OFlags::empty())?.take(ANSWER_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// Writes a line; where it has an answer, reads that.
fn tell(path: &Path, line: &[u8], answers: bool) -> io::Result<()> {
    let mut file = open(path, if answers { Direction::Both } else { Direction::Write }, OFlags::empty())?;
    file.write_all(&[line, b"\n"].concat())?;
    if answers {
        // Any answer will do, an empty one as well.
        let _length = file.read(&mut [0; 4096])?;
    }
    Ok(())
}

/// Starts a client that reads, and kills it as soon as it begins.
fn kill_one(path: &Path) -> io::Result<()> {
    let mut client = Command::new("/proc/self/exe").arg(VICTIM).arg(path).stdout(Stdio::piped()).spawn()?;
    let begun = client.stdout.take().map(|output| BufReader::new(output).read_line(&mut String::new()));
    client.kill()?;
    client.wait()?;
    begun.transpose().map(drop)
}
