//! The lines of `results.jsonl`: what was measured, as it was measured, one JSON object a line. The
//! reference is `docs/spec/bench-results.md`.

use crate::plan::{Cell, Deployment, Loop, Plan, Repeat};
use bench::core_line::State;
use bench::environment::Environment;
use bench::histogram::Latencies;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use topology::parse_nanos;

/// Name and version of the format; the first line says it.
pub const FORMAT: &str = "tombolo-bench-results-1";
/// The file in the directory of a run.
pub const FILE: &str = "results.jsonl";
/// Longest file that is read: more than any plan writes.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// One line.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "lowercase")]
pub enum Line {
    /// The first one; another follows where a run was resumed.
    Head(Head),
    /// One arm, once.
    Measured(Box<Measured>),
    /// One arm that failed once.
    Failed(Failed),
    /// A subject that could not be measured here.
    Skipped(Skipped),
    /// How a run ended; without it, it was interrupted.
    End(End),
}

/// The environment of a run, and its plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Head {
    /// [`FORMAT`].
    pub format: String,
    /// Name of the plan.
    pub plan: String,
    /// Of the plan: results of another one are not added.
    pub fingerprint: String,
    /// The plan's file.
    pub text: String,
    /// The machine and the programs.
    pub environment: serde_json::Value,
}

/// Under which circumstances.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Where {
    /// Word of the deployment.
    pub deployment: String,
    /// Bytes of a message.
    pub payload_bytes: usize,
    /// How long the server computed, in ns.
    pub work_ns: u64,
    /// `closed`, `periodic 1ms`, `poisson 1ms`.
    pub r#loop: String,
}

/// The repetition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Which {
    /// In which launch, from 0.
    pub launch: usize,
    /// Under which circumstances.
    pub cell: Where,
    /// The subject, with ` (again)` behind it in the A/A arm.
    pub arm: String,
}

/// One arm, once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// The repetition.
    #[serde(flatten)]
    pub which: Which,
    /// In which state the machine was.
    pub state: State,
    /// Requests that were answered.
    pub operations: u64,
    /// Requests that were not.
    pub unanswered: u64,
    /// Of the operations, those at the beginning that count as warm-up and are not among the
    /// latencies.
    pub warm_up: u64,
    /// Whether no end of the warm-up was found: then all operations are among the latencies.
    pub is_unsettled: bool,
    /// From the first request to the last answer, in ns.
    pub window_ns: u64,
    /// Processor time of the client, in ns.
    pub client_processor_ns: Option<u64>,
    /// Processor time of the server, in ns.
    pub server_processor_ns: Option<u64>,
    /// Context switches of both.
    pub switches: Option<u64>,
    /// From when each request was due, as pairs of ns and count.
    pub latencies: Latencies,
    /// From when each request was sent.
    pub uncorrected: Latencies,
}

/// One arm that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The repetition.
    #[serde(flatten)]
    pub which: Which,
    /// Why.
    pub why: String,
}

/// A subject that can't be measured here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// A subject, or a deployment, and where.
    pub what: String,
    /// Why, and what to do.
    pub why: String,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Whether everything was measured that could be.
    pub complete: bool,
    /// Repetitions that are still to be measured.
    pub left: usize,
}

impl From<&Cell> for Where {
    fn from(cell: &Cell) -> Self {
        Self {
            deployment: cell.deployment.word().to_owned(),
            payload_bytes: cell.payload,
            work_ns: cell.work_ns,
            r#loop: cell.pace.to_string(),
        }
    }
}

impl Where {
    /// The cell; `None` where another version of the program wrote words that this one does not
    /// know.
    #[must_use]
    pub fn cell(&self) -> Option<Cell> {
        let deployment = Deployment::ALL.into_iter().find(|known| known.word() == self.deployment)?;
        let pace = match self.r#loop.split_once(' ') {
            None if self.r#loop == "closed" => Loop::Closed,
            Some(("periodic", interval)) => Loop::Periodic(parse_nanos(interval)?),
            Some(("poisson", interval)) => Loop::Poisson(parse_nanos(interval)?),
            _ => return None,
        };
        Some(Cell { deployment, payload: self.payload_bytes, work_ns: self.work_ns, pace })
    }
}

impl From<&Repeat> for Which {
    fn from(repeat: &Repeat) -> Self {
        Self { launch: repeat.launch, cell: (&repeat.cell).into(), arm: repeat.arm.clone() }
    }
}

impl Head {
    /// The head of a plan's results.
    #[must_use]
    pub fn of(plan: &Plan, text: &str, environment: &Environment) -> Self {
        Self {
            format: FORMAT.into(),
            plan: plan.name.clone(),
            fingerprint: plan.fingerprint(),
            text: text.into(),
            environment: serde_json::json!(environment),
        }
    }
}

/// Why results can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file can't be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is none of ours, or of another version.
    #[error("{path}:{line}: this is no line of {FORMAT}: {why}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The fault.
        why: String,
    },
    /// It has no head.
    #[error("{path} has no results: its first line is no head of {FORMAT}")]
    Headless {
        /// The file.
        path: PathBuf,
    },
}

/// Everything of one file.
#[derive(Debug, Clone)]
pub struct Records {
    /// Its first head.
    pub head: Head,
    /// All that was measured.
    pub measured: Vec<Measured>,
    /// All that failed.
    pub failed: Vec<Failed>,
    /// All that was skipped, each once.
    pub skipped: Vec<Skipped>,
    /// How the last run ended; `None`: it was killed.
    pub end: Option<End>,
}

/// Reads the results of a run's directory. A last line that was torn by a kill or a full disk is
/// left out.
///
/// # Errors
/// [`RecordError`].
pub fn read(folder: &Path) -> Result<Records, RecordError> {
    let path = folder.join(FILE);
    let failed = |source| RecordError::Io { path: path.clone(), source };
    let mut text = String::new();
    let file = File::open(&path).map_err(failed)?;
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    parse(&text, &path)
}

fn parse(text: &str, path: &Path) -> Result<Records, RecordError> {
    let mut records: Option<Records> = None;
    for (number, line) in text.split_inclusive('\n').enumerate().filter(|(_, line)| line.ends_with('\n')) {
        let line: Line = serde_json::from_str(line).map_err(|error| RecordError::Line {
            path: path.to_path_buf(),
            line: number + 1,
            why: error.to_string(),
        })?;
        let Some(found) = records.as_mut() else {
            let Line::Head(head) = line else { break };
            if head.format != FORMAT {
                let why = format!("its format is `{}`", head.format);
                return Err(RecordError::Line { path: path.to_path_buf(), line: 1, why });
            }
            let (measured, failed, skipped) = (Vec::new(), Vec::new(), Vec::new());
            records = Some(Records { head, measured, failed, skipped, end: None });
            continue;
        };
        match line {
            Line::Head(_) => found.end = None,
            Line::Measured(measured) => found.measured.push(*measured),
            Line::Failed(failed) => found.failed.push(failed),
            Line::Skipped(skipped) if found.skipped.contains(&skipped) => {}
            Line::Skipped(skipped) => found.skipped.push(skipped),
            Line::End(end) => found.end = Some(end),
        }
    }
    records.ok_or_else(|| RecordError::Headless { path: path.to_path_buf() })
}

/// Adds lines to the results of a run.
#[derive(Debug)]
pub struct Writer {
    file: File,
    path: PathBuf,
}

impl Writer {
    /// Goes on behind the last whole line.
    ///
    /// # Errors
    /// [`RecordError::Io`].
    pub fn open(folder: &Path) -> Result<Self, RecordError> {
        let path = folder.join(FILE);
        let open = || -> io::Result<File> {
            std::fs::create_dir_all(folder)?;
            let mut file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at as u64 + 1);
            file.set_len(whole)?;
            file.seek(io::SeekFrom::Start(whole))?;
            Ok(file)
        };
        match open() {
            Ok(file) => Ok(Self { file, path }),
            Err(source) => Err(RecordError::Io { path, source }),
        }
    }

    /// Adds a line, which is in the file when this returns.
    ///
    /// # Errors
    /// [`RecordError::Io`], among them for a full disk: what was written before stays.
    pub fn write(&mut self, line: &Line) -> Result<(), RecordError> {
        let written = serde_json::to_string(line).map_err(io::Error::other).and_then(|text| {
            self.file.write_all(format!("{text}\n").as_bytes())?;
            self.file.flush()
        });
        written.map_err(|source| RecordError::Io { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Line {
        let plan = crate::presets::read("quick").expect("a preset");
        Line::Head(Head::of(&plan, "the text", &Environment::read(&[])))
    }

    fn failed(launch: usize) -> Line {
        let order = crate::presets::read("quick").expect("a preset").order();
        let which = Which { launch, ..(&order[0]).into() };
        Line::Failed(Failed { which, why: "it died".into() })
    }

    #[test]
    fn what_is_written_is_read_and_a_torn_line_is_left_out_and_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = Writer::open(folder.path()).expect("a file");
        writer.write(&head()).expect("written");
        writer.write(&failed(0)).expect("written");
        let path = folder.path().join(FILE);
        let whole = std::fs::read_to_string(&path).expect("text");
        std::fs::write(&path, format!("{whole}{{\"line\":\"fai")).expect("torn");
        assert_eq!(read(folder.path()).expect("read").failed.len(), 1);
        Writer::open(folder.path()).expect("a file").write(&failed(1)).expect("written");
        let records = read(folder.path()).expect("read");
        assert_eq!(records.failed.iter().map(|failed| failed.which.launch).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(records.end, None);
    }

    #[test]
    fn cells_survive_the_journey() {
        for preset in ["quick", "papers", "full"] {
            for cell in crate::presets::read(preset).expect("a preset").cells() {
                assert_eq!(Where::from(&cell).cell(), Some(cell));
            }
        }
    }

    #[test]
    fn what_is_none_of_ours_is_refused_by_line() {
        let path = Path::new("x/results.jsonl");
        let said = |text: &str| parse(text, path).expect_err("refused").to_string();
        assert!(said("").contains("has no results"));
        assert!(said("nonsense\n").contains("x/results.jsonl:1:"));
        let other = serde_json::to_string(&head()).expect("JSON").replace(FORMAT, "another-1");
        assert!(said(&format!("{other}\n")).contains("`another-1`"));
    }

    #[test]
    fn a_full_disk_is_told_by_name() {
        let Ok(file) = OpenOptions::new().write(true).open("/dev/full") else {
            println!("skipped: there is no /dev/full");
            return;
        };
        let said =
            Writer { file, path: "x/results.jsonl".into() }.write(&head()).expect_err("full").to_string();
        assert!(said.contains("x/results.jsonl") && said.contains("No space"), "{said}");
    }
}
