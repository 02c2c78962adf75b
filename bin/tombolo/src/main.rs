//! One binary, many roles. The roles that run once for each domain are chosen before the command
//! line is parsed, so that they stay small.

mod cli;
mod commands;
mod completion;
mod roles;
mod tips;

use clap::{CommandFactory, Parser};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let role = arguments.nth(1);
    if let Some(code) = role.as_deref().and_then(|role| roles::run(role, arguments)) {
        return code;
    }
    completion::answer(cli::Cli::command);
    match cli::Cli::try_parse() {
        Ok(cli) => commands::run(cli),
        // Not even a word (the variables of a node count as arguments, so clap would only
        // complain).
        Err(misuse) if misuse.kind() == clap::error::ErrorKind::MissingSubcommand => {
            // Standard error, as for every misuse; if it is gone, the exit code still says so.
            drop(writeln!(std::io::stderr(), "{}", cli::Cli::command().render_help()));
            ExitCode::from(terminal::MISUSE)
        }
        Err(mut misuse) => {
            tips::sharpen(&mut misuse, tips::first_word(std::env::args().skip(1)).as_deref());
            // Help and version are no misuse; they go to the standard output.
            let code = if misuse.use_stderr() { terminal::MISUSE } else { 0 };
            if misuse.print().is_err() {
                return ExitCode::FAILURE;
            }
            ExitCode::from(code)
        }
    }
}
