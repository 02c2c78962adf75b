//! The errors of this crate.

use std::io;
use std::path::PathBuf;

use reserve::TableError;
use reserve::dispatch::DispatchError;

use crate::plan::{MAX_CGROUP, MAX_ID, MAX_PIDS, MAX_VTMS};

/// The fault of a plan, wherever it is to be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Its name can't be one.
    #[error("`{0}` is no name of a virtual task machine; give 1 to {MAX_ID} bytes on one line")]
    Name(String),
    /// Twice the same.
    #[error("virtual task machine `{0}` is in the plan twice")]
    Twice(String),
    /// Its numbers are no promise.
    #[error("virtual task machine `{id}`: {source}")]
    Task {
        /// The task machine's name.
        id: String,
        /// Why.
        source: reserve::TaskError,
    },
    /// No machine has so many.
    #[error("virtual task machine `{id}`: there is no processor {processor}")]
    Processor {
        /// The task machine's name.
        id: String,
        /// The processor.
        processor: usize,
    },
    /// A turn of nothing.
    #[error("virtual task machine `{0}`: a turn of 0 ns never ends; leave it out, or give one")]
    Turn(String),
    /// Jobs that make no sense.
    #[error("virtual task machine `{id}`: {why}")]
    Jobs {
        /// The task machine's name.
        id: String,
        /// The fault.
        why: String,
    },
    /// More saved up than there ever is.
    #[error(
        "virtual task machine `{id}`: a burst of {burst_ns} ns is more than the budget of {budget_ns} ns; the kernel saves up to one budget"
    )]
    Burst {
        /// The task machine's name.
        id: String,
        /// The burst that was asked for.
        burst_ns: u64,
        /// And the budget.
        budget_ns: u64,
    },
    /// No path of a cgroup.
    #[error(
        "virtual task machine `{id}`: `{path}` is no path of a cgroup; give names with `/` between, without `..`, of {MAX_CGROUP} bytes at most"
    )]
    Cgroup {
        /// The task machine's name.
        id: String,
        /// The path that was given.
        path: String,
    },
    /// No process of anybody's.
    #[error("virtual task machine `{id}`: {pid} is no process that can be reserved for")]
    Pid {
        /// The task machine's name.
        id: String,
        /// The process.
        pid: u32,
    },
    /// Too many by name.
    #[error(
        "virtual task machine `{id}` names {count} processes, and {MAX_PIDS} are the most; put them into a cgroup and name that"
    )]
    TooManyPids {
        /// The task machine's name.
        id: String,
        /// How many.
        count: usize,
    },
    /// In two of them.
    #[error("virtual task machine `{id}`: {what} is in another one already")]
    Shared {
        /// The task machine's name.
        id: String,
        /// The thing that is missing.
        what: String,
    },
    /// Too many.
    #[error("{0} virtual task machines are more than {MAX_VTMS}, the most of one plan")]
    TooMany(usize),
}

/// Why something is not kept, or not changed.
#[derive(Debug, thiserror::Error)]
pub enum EnforceError {
    /// The plan is wrong.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// There is no table for one of the processors.
    #[error("processor {processor}: {source}")]
    Table {
        /// The processor.
        processor: usize,
        /// Why.
        source: TableError,
    },
    /// This machine can't.
    #[error("{kind} can't be had here: {why}")]
    Unable {
        /// The kind of enforcement.
        kind: &'static str,
        /// The thing that is missing, and how to get it.
        why: String,
    },
    /// It could, but not for sure, and that was to be refused.
    #[error("this is `strict`, and not guaranteed here: {}", .0.join("; "))]
    Strict(Vec<String>),
    /// More than the kernel lets anybody have.
    #[error(
        "processor {processor} would be {asked_ppm} ppm in use, and {most_ppm} ppm are the most under {kind}: the kernel keeps the rest for everybody else"
    )]
    TooMuch {
        /// The kind of enforcement.
        kind: &'static str,
        /// The processor.
        processor: usize,
        /// The share that was asked for, in millionths.
        asked_ppm: u64,
        /// The share that there is.
        most_ppm: u64,
    },
    /// No such processor, or not ours.
    #[error(
        "virtual task machine `{id}`: processor {processor} is not among those of this machine that we may use"
    )]
    NoProcessor {
        /// The task machine's name.
        id: String,
        /// The processor.
        processor: usize,
    },
    /// A member is not there.
    #[error("virtual task machine `{id}`: {what} is not there (any more)")]
    Gone {
        /// The task machine's name.
        id: String,
        /// The reason.
        what: String,
    },
    /// A second controller is at work.
    #[error("virtual task machine `{id}`: somebody else set {what}; end that, or take another cgroup")]
    Disturbed {
        /// The task machine's name.
        id: String,
        /// The action, and its object.
        what: String,
    },
    /// The preparation is of another time.
    #[error("what was prepared is older than what is in force; prepare it again")]
    Stale,
    /// There is nothing to go back to.
    #[error("there is no change to take back")]
    NothingToUndo,
    /// A file of the kernel's, or of ours.
    #[error("could not {action} {}: {source}", path.display())]
    File {
        /// The action that was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A call of the kernel's.
    #[error("could not {action}: {source}")]
    Call {
        /// The action that was tried.
        action: String,
        /// Why not.
        source: io::Error,
    },
    /// The decisions speak of what is not there.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// The dispatcher's process is gone, or does not answer: what it held is given back by its
    /// guardian, or by the next one.
    #[error("the dispatcher is gone or does not answer ({0})")]
    Lost(String),
    /// The dispatcher's process did not answer as it should.
    #[error("the dispatcher: {0}")]
    Dispatcher(String),
}

/// The result of an operation.
pub type Result<T> = std::result::Result<T, EnforceError>;
pub(crate) trait Context<T> {
    fn at(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T>;
    fn doing(self, action: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn at(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|error| EnforceError::File { action, path: path.into(), source: error.into() })
    }
    fn doing(self, action: impl Into<String>) -> Result<T> {
        self.map_err(|error| EnforceError::Call { action: action.into(), source: error.into() })
    }
}
