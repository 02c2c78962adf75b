//! One binary, many roles. The roles that run once for each domain are chosen before the command line is parsed, so that
//! they stay small.

mod cli;
mod commands;
mod output;
mod roles;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let role = arguments.nth(1);
    if let Some(code) = role.as_deref().and_then(|role| roles::run(role, arguments)) {
        return code;
    }
    match cli::Cli::try_parse() {
        Ok(cli) => commands::run(cli),
        Err(misuse) => {
            // Help and version are no misuse; they go to the standard output.
            let code = if misuse.use_stderr() { output::MISUSE } else { 0 };
            if misuse.print().is_err() {
                return ExitCode::FAILURE;
            }
            ExitCode::from(code)
        }
    }
}
