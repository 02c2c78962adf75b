//! `tombolo-bench`: the program behind `tombolo bench`, with the same command line. It stands
//! beside the program that it measures.

mod plan;
mod scenario;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use terminal::Failure;

/// The program that is measured.
const PRODUCT: &str = "tombolo";

/// Measures Tombolo, what it stands on, and what it is compared with.
#[derive(Debug, Parser)]
#[command(name = "tombolo", bin_name = "tombolo", version)]
struct Cli {
    /// The node, which every command of `tombolo` takes. Each scenario makes nodes of its own.
    #[arg(long, global = true, hide = true)]
    run_dir: Option<PathBuf>,
    /// As `run_dir`.
    #[arg(long, global = true, hide = true)]
    state_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a benchmark: a scenario with its promises, or a plan of your own
    Bench(arguments::BenchArgs),
}

fn main() -> ExitCode {
    let Command::Bench(arguments) = Cli::parse().command;
    let done = match &arguments.command {
        Some(command) => plan::run(command),
        None => scenario::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.code)
        }
    }
}

/// The program that is measured: beside this one.
fn product() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::new(format!("can't find the program's own file: {error}")))?;
    Ok(own.with_file_name(PRODUCT))
}
