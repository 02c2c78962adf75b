//! `tombolo check`.

use super::up::{base_of, read};
use crate::cli::CheckArgs;
use crate::output::{Failure, print, print_json};
use std::io::IsTerminal;
use std::path::Path;
use topology::Topology;

/// Validates a file and says what it would start.
pub fn run(arguments: &CheckArgs) -> Result<(), Failure> {
    let file = &arguments.file;
    let topology = admit(&read(file)?, file, &base_of(file)?, arguments.json)?;
    let explanation = topology::explain(&topology);
    if arguments.json { print_json(&explanation) } else { print(&explanation.to_string()) }
}

/// Admits a file, or prints everything that is wrong with it.
pub fn admit(text: &str, file: &Path, base: &Path, json: bool) -> Result<Topology, Failure> {
    topology::admit(text, &file.display().to_string(), base, &node::look).map_err(|diagnostics| {
        if json {
            match print_json(&diagnostics.to_json()) {
                Ok(()) => {}
                Err(failure) => return failure,
            }
        } else {
            eprint!("{}", diagnostics.render(std::io::stderr().is_terminal()));
        }
        Failure::silent()
    })
}
