//! The files that were up, in the admin protocol.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A file that was up: an element of `GET /v1/history/DC`, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// Its number, from 1 on.
    pub number: u64,
    /// When it was up first, in milliseconds since 1970.
    pub at_ms: u64,
    /// The name of the file.
    pub file: PathBuf,
    /// The base of its relative paths.
    pub base: PathBuf,
    /// The steps that were taken for it.
    pub changes: Vec<String>,
    /// Its text.
    pub text: String,
}
