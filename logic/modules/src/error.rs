//! Why a module can't be installed, and why one is switched off.

use thiserror::Error;
use wire::events::EVENT_BYTES_MAX;
use wire::events::module::{BYTES_MAX, MEMORY_BYTES_MAX, TABLE_ENTRIES_MAX};

/// Characters of an engine's words that a person gets.
const DETAIL_CHARS: usize = 120;

/// Why some bytes are no module that can be installed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ModuleError {
    /// Longer than [`BYTES_MAX`].
    #[error("a module has {BYTES_MAX} bytes at the most; this one has {0}")]
    Long(usize),
    /// No WebAssembly, or more of it than is allowed.
    #[error("this is no valid WebAssembly module: {0}")]
    Invalid(String),
    /// It wants something of the host.
    #[error("a module imports nothing; this one imports `{0}`")]
    Imports(String),
    /// An export is missing, or is something else.
    #[error("a module exports `{name}` as {shape}; this one {found}")]
    Export {
        /// Its name.
        name: &'static str,
        /// The shape that is expected.
        shape: &'static str,
        /// The shape that is there.
        found: &'static str,
    },
    /// It exports both or neither of `filter` and `transform`.
    #[error("a module exports either `filter` or `transform`; this one exports {0}")]
    Verdicts(&'static str),
    /// Its memory or its table is too large from the beginning, or its data lie outside.
    #[error(
        "it can't begin with {MEMORY_BYTES_MAX} bytes of memory and {TABLE_ENTRIES_MAX} entries of a table: {0}"
    )]
    Begin(String),
    /// Its start function, or `buffer`, has failed.
    #[error("its {function} has failed: {failure}")]
    Start {
        /// The function.
        function: &'static str,
        /// Its failure.
        failure: Failure,
    },
    /// `buffer` has given no room for the longest event.
    #[error("`buffer` gives {EVENT_BYTES_MAX} bytes at {0}, which lie outside of its memory")]
    Buffer(u32),
}

/// Why a module that was installed can't judge an event.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Failure {
    /// Its time is over.
    #[error("it has used the fuel of one event, which was {0}")]
    Fuel(u64),
    /// It wants more memory, or a larger table, than there is.
    #[error(
        "it wants more than {MEMORY_BYTES_MAX} bytes of memory, or {TABLE_ENTRIES_MAX} entries of a table"
    )]
    Memory,
    /// Its calls go too deep.
    #[error("its functions call each other too deep")]
    Deep,
    /// It has done something that WebAssembly does not let it do.
    #[error("it has trapped: {0}")]
    Trap(String),
    /// The event that it gives is none.
    #[error(
        "it gives an event of {length} bytes at {address}, which is longer than {EVENT_BYTES_MAX} bytes or lies outside of its memory"
    )]
    Output {
        /// Where it would be.
        address: u32,
        /// Its bytes.
        length: u32,
    },
}

/// The engine's words, as far as a person reads them.
pub(crate) fn detail(error: &impl ToString) -> String {
    let said = error.to_string();
    let line = said.lines().next().unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).take(DETAIL_CHARS).collect()
}
