//! `tombolo exec`.

use super::look::encoded;
use super::{client, wait};
use crate::cli::{ExecArgs, PlaceArgs};
use crate::output::{FAILED, Failure};
use domain::ExecOptions;
use node::admin::Entry;
use std::os::unix::process::CommandExt;

/// Exit code where the command could not even be tried: what it would have ended with stays distinguishable.
const NOT_TRIED: u8 = 125;
/// The variable that says what the terminal understands.
const TERM: &str = "TERM";

/// Becomes the command: terminal, signals and exit code are its own.
pub fn run(place: &PlaceArgs, arguments: &ExecArgs) -> Result<(), Failure> {
    become_command(place, arguments).map_err(|failure| match failure.code {
        FAILED => Failure { code: NOT_TRIED, ..failure },
        _ => failure,
    })
}

fn become_command(place: &PlaceArgs, arguments: &ExecArgs) -> Result<(), Failure> {
    let client = client(place)?;
    let entry: Entry = wait(client.get(&format!("domains/{}/entry", encoded(&arguments.domain))))??;
    let options = ExecOptions {
        tty: arguments.tty,
        interactive: arguments.interactive,
        environment: environment(arguments)?,
        user: arguments.user.clone(),
        workdir: arguments.workdir.clone(),
        command: arguments.command.clone(),
    };
    let mut command = domain::exec_command(&entry.layout, &entry.dc, &entry.domain, &options)
        .map_err(|e| Failure::new(e.to_string()))?;
    // Comes back only if it fails.
    let error = command.exec();
    Err(Failure::new(format!("can't run {}: {error}", entry.layout.program.display())))
}

/// The variables that were named; with a terminal also what it understands, which the domain can't know.
fn environment(arguments: &ExecArgs) -> Result<Vec<(String, String)>, Failure> {
    let mut named: Vec<_> = arguments.env.iter().map(|pair| variable(pair)).collect::<Result<_, _>>()?;
    if arguments.tty
        && !named.iter().any(|(name, _)| name == TERM)
        && let Ok(term) = std::env::var(TERM)
    {
        named.push((TERM.to_owned(), term));
    }
    Ok(named)
}

fn variable(pair: &str) -> Result<(String, String), Failure> {
    match pair.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Failure::misuse(format!("--env {pair:?} is no NAME=VALUE"))),
    }
}
