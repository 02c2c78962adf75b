//! Completions and man pages, out of the definitions of the command line.

use crate::cli::Cli;
use crate::output::{Failure, print};
use clap::CommandFactory;
use std::path::Path;

/// `tombolo completions SHELL`.
pub fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tombolo", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// `tombolo man [DIR]`.
pub fn man(folder: Option<&Path>) -> Result<(), Failure> {
    let Some(folder) = folder else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page)?;
        return print(&String::from_utf8_lossy(&page));
    };
    let at = |error: std::io::Error| {
        Failure::new(format!("can't write man pages into {}: {error}", folder.display()))
    };
    std::fs::create_dir_all(folder).map_err(at)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(at)
}
