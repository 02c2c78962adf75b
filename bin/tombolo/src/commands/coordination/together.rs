//! `tombolo sync`, in a domain: barriers and queues.

use super::SyncCommand;
use super::service::{Folder, late, refused, wait};
use coordinate::Item;
use rustix::io::Errno;
use serde_json::json;
use std::io::{self, Read, Write, stdin};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio, exit};
use std::time::Duration;
use terminal::{Failure, print, print_json};
use wire::coordination::MAX_VALUE_BYTES;

/// The value that a shell adds to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// Does what the command says.
pub fn run(command: &SyncCommand, folder: &Folder) -> Result<(), Failure> {
    match command {
        SyncCommand::Barrier { name, parties, timeout, of } => {
            let passed = folder.sync().barrier(name, parties.map(u64::from), wait(false, *timeout));
            let path = format!("barriers/{name}");
            let generation = passed.map_err(|error| late(&path, *timeout, &error, failed(&path, &error)))?;
            if of.json {
                return print_json(&json!({ "generation": generation }));
            }
            print(&format!("{generation}\n"))
        }
        SyncCommand::Queue { name, items, durable, .. } => {
            let made = folder.sync().queue(name).make(u64::from(*items), *durable);
            made.map_err(|error| failed(&format!("queues/{name}"), &error))
        }
        SyncCommand::Push { name, item, only_try, .. } => push(folder, name, item.as_deref(), *only_try),
        SyncCommand::Pop { name, only_try, timeout, of, command } => {
            let item = take(folder, name, *only_try, *timeout)?;
            deal_with(item, &format!("queues/{name}"), command, of.json)
        }
        SyncCommand::Ls { .. } | SyncCommand::Lock { .. } => Err(Failure::misuse("this is about locks")),
    }
}

/// Explains an errno about a barrier or a queue.
fn failed(path: &str, error: &io::Error) -> Failure {
    let why = match Errno::from_io_error(error) {
        Some(Errno::CANCELED) => "it is broken: somebody who waited has gone",
        Some(Errno::BUSY) => "it is in use, and can't be changed now",
        Some(Errno::DQUOT) => "the service has no room for more names or bytes",
        Some(Errno::NOLCK) => "as many wait as may",
        Some(Errno::FBIG | Errno::MSGSIZE) => "an item has 32 KiB at the most",
        Some(Errno::CONNRESET) => "the server went away meanwhile: it may have been done",
        Some(Errno::INVAL) if path.starts_with("barriers/") => {
            "nobody has said how many pass (--parties, 1 to 256), or that is no name"
        }
        Some(Errno::INVAL) => "that is no name, or a queue has room for 1 to 4096 items",
        _ => return refused(path, error),
    };
    Failure::new(format!("{path}: {why}"))
}

fn push(folder: &Folder, name: &str, item: Option<&str>, only_try: bool) -> Result<(), Failure> {
    let item = match item {
        Some(item) => item.as_bytes().to_vec(),
        None => {
            let mut bytes = Vec::new();
            stdin().lock().take(MAX_VALUE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
            bytes
        }
    };
    let path = format!("queues/{name}");
    match item.len() {
        0 => return Err(Failure::misuse("an item has one byte at the least")),
        1..=MAX_VALUE_BYTES => {}
        _ => return Err(failed(&path, &Errno::FBIG.into())),
    }
    folder.sync().queue(name).push(&item, wait(only_try, None)).map_err(|error| {
        match Errno::from_io_error(&error) {
            Some(Errno::AGAIN) if only_try => Failure::new(format!("{path}: it is full")),
            _ => failed(&path, &error),
        }
    })
}

fn take(folder: &Folder, name: &str, only_try: bool, timeout: Option<Duration>) -> Result<Item, Failure> {
    let path = format!("queues/{name}");
    folder.sync().queue(name).take(wait(only_try, timeout)).map_err(|error| {
        match Errno::from_io_error(&error) {
            Some(Errno::AGAIN) if only_try => Failure::new(format!("{path}: it is empty")),
            _ => late(&path, timeout, &error, failed(&path, &error)),
        }
    })
}

/// Prints an item, or hands it to a command, and writes it off when that is done.
fn deal_with(item: Item, path: &str, command: &[String], as_json: bool) -> Result<(), Failure> {
    let done = |item: Item| item.done().map(drop).map_err(|error| failed(path, &error));
    let Some((program, arguments)) = command.split_first() else {
        if as_json {
            print_json(&json!({ "item": String::from_utf8_lossy(item.bytes()) }))?;
        } else {
            let mut out = io::stdout().lock();
            out.write_all(item.bytes())?;
            if !item.bytes().ends_with(b"\n") {
                out.write_all(b"\n")?;
            }
            out.flush()?;
        }
        return done(item);
    };
    let run = Command::new(program).args(arguments).stdin(Stdio::piped()).spawn();
    let mut child = run.map_err(|error| Failure::new(format!("can't run {program}: {error}")))?;
    if let Some(mut input) = child.stdin.take() {
        // A command that does not read all of it has its reasons: its exit code tells.
        let _unread = input.write_all(item.bytes());
    }
    let status = child.wait()?;
    match status.code().or_else(|| status.signal().map(|signal| SIGNALLED + signal)) {
        Some(0) | None => done(item),
        Some(code) => {
            drop(item);
            exit(code)
        }
    }
}
