//! The trait of scenarios, and the wishes of the person who runs one.

use crate::choice::Choice;
use crate::promise::{Promise, Verdict};
use crate::report::{self, Column};
use crate::results::{Condition, Results};
use std::io;
use std::path::PathBuf;

/// A person's wishes.
#[derive(Debug, Clone)]
pub struct Arguments {
    /// Name of the scenario, with what chooses among its kinds: `channel --between vm,host`.
    pub scenario: String,
    /// Short: to see that it works, not to quote.
    pub quick: bool,
    /// The choice of conditions and arms.
    pub choice: Choice,
    /// Numbers of domains; empty: the scenario's own.
    pub domains: Vec<usize>,
    /// How often everything is started afresh; `None`: the scenario's own number.
    pub launches: Option<usize>,
    /// JSON lines in place of a table.
    pub json: bool,
    /// A file that gets the JSON lines as well.
    pub record: Option<PathBuf>,
    /// The `tombolo` to measure; its folder also holds `libtombolo_preload.so` and the workers.
    pub binary: PathBuf,
}

/// Why a bench did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// There is no such scenario.
    #[error("there is no scenario `{asked}`; there are: {known}")]
    Unknown {
        /// The word that was given.
        asked: String,
        /// All there are.
        known: String,
    },
    /// A scenario has nothing of that name.
    #[error("there is no {what} `{asked}`; there are:{known}")]
    Choice {
        /// The kind of the choice: a case, an arm.
        what: &'static str,
        /// The word that was given.
        asked: String,
        /// All there are, each in a line.
        known: String,
    },
    /// A scenario that is measured whole.
    #[error("`{0}` is measured as a whole: it has no `--case` and no `--arm`")]
    Whole(&'static str),
    /// The machine lacks something.
    #[error("the bench needs {what}: {how}")]
    Missing {
        /// The thing that it lacks.
        what: String,
        /// How to get it.
        how: &'static str,
    },
    /// A program that the bench started failed.
    #[error("`{command}` failed ({status}): {said}")]
    Command {
        /// The whole line.
        command: String,
        /// How it ended.
        status: String,
        /// The end of what it complained.
        said: String,
    },
    /// A worker said something else than it should.
    #[error("{who} said `{said}` where {expected} was due")]
    Protocol {
        /// The worker.
        who: String,
        /// Its message.
        said: String,
        /// The message that was due.
        expected: &'static str,
    },
    /// Something of the system failed.
    #[error("{doing}: {source}")]
    Io {
        /// The action.
        doing: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl BenchError {
    /// Wraps an error of the system: `.map_err(BenchError::io("starting dnsmasq"))`.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}

/// Something that can be measured.
pub trait Scenario {
    /// Its name on the command line.
    fn name(&self) -> &'static str;
    /// One line about it.
    fn about(&self) -> &'static str;
    /// The promises that it can judge.
    fn promises(&self) -> &'static [Promise];
    /// The arm that the others are compared with under a condition.
    fn base(&self, condition: &Condition) -> &'static str;
    /// The columns of the table of a condition.
    fn columns(&self, _: &Condition) -> &'static [Column] {
        &report::COLUMNS
    }
    /// The place of an arm in the table of a condition; those of one place stand in order of their
    /// names.
    fn rank(&self, _: &Condition, _arm: &str) -> usize {
        0
    }
    /// Its conditions with the arms of each, where some of them can be measured by themselves.
    fn choices(&self) -> Option<Vec<(Condition, Vec<&'static str>)>> {
        None
    }
    /// The folders of the repository whose code decides its figures.
    fn depends(&self) -> &'static [&'static str];
    /// Commands that print the versions of the programs that take part.
    fn peers(&self) -> &'static [&'static [&'static str]];
    /// Measures. `progress` is told, now and then, what is being done.
    ///
    /// # Errors
    /// [`BenchError`]; what was started has been ended then.
    fn measure(&self, arguments: &Arguments, progress: &mut dyn FnMut(&str)) -> Result<Results, BenchError>;
    /// The verdicts on those promises that the results can speak of.
    fn verdicts(&self, results: &Results) -> Vec<Verdict>;
}

/// The summary of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// One for each promise that was measured.
    pub verdicts: Vec<Verdict>,
}
