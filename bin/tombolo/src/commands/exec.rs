//! `tombolo exec`.

use super::look::encoded;
use super::{client, wait};
use crate::cli::{ExecArgs, PlaceArgs};
use crate::output::Failure;
use domain::ExecOptions;
use node::admin::Entry;
use std::os::unix::process::CommandExt;

/// Becomes the command: terminal, signals and exit code are its own.
pub fn run(place: &PlaceArgs, arguments: &ExecArgs) -> Result<(), Failure> {
    let client = client(place)?;
    let entry: Entry = wait(client.get(&format!("domains/{}/entry", encoded(&arguments.domain))))??;
    let options = ExecOptions {
        tty: arguments.tty,
        interactive: arguments.interactive,
        environment: arguments.env.iter().map(|pair| variable(pair)).collect::<Result<_, _>>()?,
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

fn variable(pair: &str) -> Result<(String, String), Failure> {
    match pair.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Failure::misuse(format!("--env {pair:?} is no NAME=VALUE"))),
    }
}
