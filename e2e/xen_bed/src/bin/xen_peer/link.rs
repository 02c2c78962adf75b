//! The messages between the controller and an agent: JSON, one object a message, over a channel of
//! the kind that is tried.

use serde::{Deserialize, Serialize};

/// The channel's name.
pub const NAME: &str = "jobs";

/// To an agent.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Start a job.
    Start {
        /// Its number.
        id: u64,
        /// Name and arguments.
        arguments: Vec<String>,
    },
    /// Kill it, as by `kill -9`.
    Kill {
        /// Its number.
        id: u64,
    },
}

/// From an agent.
#[derive(Debug, Serialize, Deserialize)]
pub enum News {
    /// A job has said something.
    Line {
        /// The job.
        id: u64,
        /// One line.
        line: String,
    },
    /// A job has ended.
    Ended {
        /// The job.
        id: u64,
        /// Whether it says that all is well.
        well: bool,
    },
}
