//! `tombolo exec`.

mod remote;

use super::look::encoded;
use super::{client, wait};
use crate::cli::{ExecArgs, PlaceArgs};
use admin::client::Client;
use admin::{Entry, ExecRequest};
use domain::ExecOptions;
use std::os::unix::process::CommandExt;
use terminal::{FAILED, Failure};
use wire::remote::PROTOCOL;

/// Exit code where the command could not even be tried: what it would have ended with stays
/// distinguishable.
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
    if !rustix::process::geteuid().is_root() {
        return by_the_daemon(&client, arguments);
    }
    let entry: Entry = wait(client.get(&format!("domains/{}/entry", encoded(&arguments.domain))))??;
    if entry.node.is_some() {
        return by_the_daemon(&client, arguments);
    }
    let options = ExecOptions {
        tty: arguments.tty,
        interactive: arguments.interactive,
        environment: environment(arguments)?,
        user: arguments.user.clone(),
        workdir: arguments.workdir.clone(),
        limit: None,
        command: arguments.command.clone(),
    };
    let mut command = domain::exec_command(&entry.layout, &entry.dc, &entry.domain, &options)
        .map_err(|e| Failure::new(e.to_string()))?;
    // Comes back only if it fails.
    let error = command.exec();
    Err(Failure::new(format!("can't run {}: {error}", entry.layout.program.display())))
}

/// Whoever is not root can't enter a domain, and nobody one of another node: its node's daemon runs
/// the command, and what it and we say to each other goes through the daemons.
fn by_the_daemon(client: &Client, arguments: &ExecArgs) -> Result<(), Failure> {
    let size = if arguments.tty { Some(remote::size()?) } else { None };
    let request = ExecRequest {
        tty: arguments.tty,
        interactive: arguments.interactive,
        size,
        environment: environment(arguments)?,
        user: arguments.user.clone(),
        workdir: arguments.workdir.clone(),
        command: arguments.command.clone(),
    };
    let path = format!("domains/{}/exec", encoded(&arguments.domain));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let ended = runtime.block_on(async {
        let stream = client.open(&path, PROTOCOL, &request).await?;
        remote::converse(stream, arguments.tty, arguments.interactive || arguments.tty).await
    });
    std::process::exit(ended?)
}

/// The variables that were named; with a terminal also what it understands, which the domain can't
/// know.
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
