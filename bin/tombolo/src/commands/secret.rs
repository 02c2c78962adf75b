//! `tombolo secret`: values that containers read as files in memory.

use super::look::clean;
use super::up::start_daemon;
use super::{client, wait};
use crate::cli::PlaceArgs;
use admin::client::ClientError;
use admin::secret::{SecretRemoveRequest, SecretRow, SecretSetRequest, SecretValue};
use admin::{Said, Version};
use clap::{Args, Subcommand};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{IsTerminal, Read, stdin};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use terminal::{Failure, bytes, print, print_json, print_table};
use topology::bounds::SECRET_BYTES_MAX;

#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    /// List the secrets: how often each was set, and who reads it; never a value
    #[command(after_help = "Examples:
  tombolo secret ls
  tombolo secret ls --json | jq -r '.[] | select(.domains == []) | .secret'")]
    Ls(LsArgs),
    /// Say the value of a secret: from a file, the standard input, or a terminal
    #[command(after_help = "Examples:
  tombolo secret set shop/db-password < password.txt
  tombolo secret set shop/tls-key --file key.pem
  openssl rand -hex 24 | tombolo secret set shop/db-password
  tombolo secret set shop/db-password                  asks at a terminal, and shows nothing

A container reads it where its file says so: secrets = [\"db-password\"], at /run/secrets/db-password.
Bytes are kept as they are, the last newline too. A new value counts from the container's next start:
tombolo restart shop/db")]
    Set(SetArgs),
    /// Remove a secret that no file reads which is up
    #[command(after_help = "Examples:
  tombolo secret rm shop/db-password")]
    Rm(NameArgs),
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct NameArgs {
    /// The secret: DC/NAME
    #[arg(value_name = "SECRET")]
    pub secret: String,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// The secret: DC/NAME
    #[arg(value_name = "SECRET")]
    pub secret: String,
    /// The file that has the value; without it, the standard input
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs `tombolo secret ...`.
pub fn run(place: &PlaceArgs, command: &SecretCommand) -> Result<(), Failure> {
    match command {
        SecretCommand::Ls(arguments) => ls(place, arguments),
        SecretCommand::Set(arguments) => set(place, arguments),
        SecretCommand::Rm(NameArgs { secret }) => {
            let (dc, secret) = named(secret)?;
            let said: Said =
                wait(client(place)?.post("secrets/remove", &SecretRemoveRequest { dc, secret }))??;
            print(&format!("{}\n", said.said))
        }
    }
}

fn named(text: &str) -> Result<(String, String), Failure> {
    match text.split_once('/') {
        Some((dc, secret)) if !dc.is_empty() && !secret.is_empty() => Ok((dc.to_owned(), secret.to_owned())),
        _ => Err(Failure::misuse(format!("{text:?} is no DC/NAME")).help(
            "a secret belongs to a distributed container, by the `name` of its file: shop/db-password",
        )),
    }
}

fn ls(place: &PlaceArgs, arguments: &LsArgs) -> Result<(), Failure> {
    let rows: Vec<SecretRow> = wait(client(place)?.get("secrets"))??;
    if arguments.json {
        return print_json(&rows);
    }
    if rows.is_empty() {
        return print("no secrets; `tombolo secret set DC/NAME < FILE` sets one\n");
    }
    let table = rows.iter().map(|row| {
        let readers = if row.domains.is_empty() { "-".to_owned() } else { row.domains.join(" ") };
        let nodes = if row.nodes.is_empty() { "-".to_owned() } else { row.nodes.join(" ") };
        let at = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(row.at_ms));
        vec![
            clean(&row.dc),
            clean(&row.secret),
            row.revision.to_string(),
            at.to_string(),
            bytes(row.bytes),
            clean(&readers),
            clean(&nodes),
        ]
    });
    let table: Vec<Vec<String>> = table.collect();
    print_table(&["DC", "SECRET", "REVISION", "SET", "BYTES", "READ BY", "NODES"], &table)
}

fn set(place: &PlaceArgs, arguments: &SetArgs) -> Result<(), Failure> {
    let (dc, secret) = named(&arguments.secret)?;
    let value = match &arguments.file {
        Some(path) => of_file(path)?,
        None if stdin().is_terminal() => asked(&arguments.secret)?,
        None => bounded(stdin().lock(), "the standard input")?,
    };
    if value.is_empty() {
        return Err(Failure::misuse("the value is empty"));
    }
    let request = SecretSetRequest { dc, secret, value: SecretValue(value) };
    let client = client(place)?;
    // It is set before the first `up`, which starts a daemon where none runs.
    if let Err(ClientError::NotRunning { .. }) = wait(client.get::<Version>("version"))? {
        start_daemon(&client, &super::place(place)?)?;
    }
    let row: SecretRow = wait(client.post("secrets/set", &request))??;
    if arguments.json {
        return print_json(&row);
    }
    let SecretRow { dc, secret, revision, bytes, nodes, domains, .. } = row;
    let on = if nodes.is_empty() { String::new() } else { format!(", on {}", nodes.join(", ")) };
    print(&format!("{dc}/{secret} is set: revision {revision}, {bytes} bytes{on}\n"))?;
    if domains.is_empty() {
        return Ok(());
    }
    let again: Vec<String> = domains.iter().map(|domain| format!("{dc}/{domain}")).collect();
    print(&format!("what runs goes on with the value of its start: `tombolo restart {}`\n", again.join(" ")))
}

fn of_file(path: &Path) -> Result<Vec<u8>, Failure> {
    let file = File::open(path).map_err(|e| Failure::new(format!("can't read {}: {e}", path.display())))?;
    bounded(file, &path.display().to_string())
}

fn bounded(from: impl Read, what: &str) -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    let most = u64::try_from(SECRET_BYTES_MAX).unwrap_or(u64::MAX);
    let read = from.take(most + 1).read_to_end(&mut value);
    read.map_err(|error| Failure::new(format!("can't read {what}: {error}")))?;
    if value.len() > SECRET_BYTES_MAX {
        return Err(Failure::new(format!("{what} has more than {SECRET_BYTES_MAX} bytes"))
            .help("a secret is a password, a token or a key; files go into a container by `mounts`"));
    }
    Ok(value)
}

/// A terminal that shows what is typed, when this is dropped.
struct Shown(Termios);

impl Drop for Shown {
    fn drop(&mut self) {
        // A terminal that is gone shows nothing.
        let _gone = tcsetattr(stdin(), OptionalActions::Drain, &self.0);
    }
}

/// One line from the terminal, without its newline; what is typed is not shown.
fn asked(secret: &str) -> Result<Vec<u8>, Failure> {
    let failed = |error| Failure::new(format!("can't ask at the terminal: {error}"));
    let before = tcgetattr(stdin()).map_err(failed)?;
    let mut hidden = before.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    eprint!("value of {secret}: ");
    let shown = Shown(before);
    tcsetattr(stdin(), OptionalActions::Flush, &hidden).map_err(failed)?;
    let mut line = String::new();
    let read = stdin().read_line(&mut line);
    drop(shown);
    eprintln!();
    read?;
    Ok(line.trim_end_matches(['\r', '\n']).as_bytes().to_vec())
}
