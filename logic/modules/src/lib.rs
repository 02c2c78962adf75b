//! WebAssembly modules that filter and transform events. `docs/spec/event-modules.md` has the
//! functions that a module exports.
//!
//! A module gets an event's bytes in its own memory and says what becomes of the event. It imports
//! nothing, so it reaches nothing of the host. Its time is bounded by fuel, for each event anew,
//! and its memory by a limit; both are counted for people. [`Module::install`] may take long for a
//! hostile module, and belongs on a thread of its own; [`Module::judge`] is bounded by its fuel.

mod engine;
mod error;

pub use engine::{Module, Usage, Verdict};
pub use error::{Failure, ModuleError};
