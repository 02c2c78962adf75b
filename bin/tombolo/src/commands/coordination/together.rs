//! `tombolo sync`, in a domain: barriers and queues.

use super::SyncCommand;
use super::service::{Folder, refused};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write, stdin};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio, exit};
use std::time::Duration;
use terminal::{Failure, print, print_json};
use wire::coordination::MAX_VALUE_BYTES;

/// The line by which an item is written off.
const DONE: &[u8] = b"done\n";
/// The value that a shell adds to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// Does what the command says.
pub fn run(command: &SyncCommand, folder: &Folder) -> Result<(), Failure> {
    match command {
        SyncCommand::Barrier { name, parties, timeout, of } => {
            let path = format!("barriers/{name}");
            if let Some(parties) = parties {
                shape(folder, &path, &format!("parties {path} {parties}"))?;
            }
            let generation = pass(folder, &path, *timeout)?;
            if of.json {
                return print_json(&json!({ "generation": generation.parse::<u64>().ok() }));
            }
            print(&format!("{generation}\n"))
        }
        SyncCommand::Queue { name, items, durable, .. } => {
            let path = format!("queues/{name}");
            let kept = if *durable { " durable" } else { "" };
            shape(folder, &path, &format!("queue {path} {items}{kept}"))
        }
        SyncCommand::Push { name, item, only_try, .. } => {
            push(folder, &format!("queues/{name}"), item.as_deref(), *only_try)
        }
        SyncCommand::Pop { name, only_try, timeout, of, command } => {
            let path = format!("queues/{name}");
            let (queue, item) = take(folder, &path, *only_try, *timeout)?;
            deal_with(queue, (&path, &item), command, of.json)
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

/// Says a line about its shape to `ctl`.
fn shape(folder: &Folder, path: &str, line: &str) -> Result<(), Failure> {
    if path.chars().any(char::is_whitespace) {
        return Err(Failure::misuse(format!("{path:?} is no name: a name is text without white space")));
    }
    folder.ask(line).map(drop).map_err(|error| failed(path, &error))
}

/// Waits until there is something to read.
fn wait_for(file: &File, path: &str, timeout: Option<Duration>) -> Result<(), Failure> {
    let limit = timeout.map(rustix::event::Timespec::try_from).transpose();
    let limit = limit.map_err(|_| Failure::misuse("the time is too long"))?;
    let ready = poll(&mut [PollFd::new(file, PollFlags::IN)], limit.as_ref()).map_err(io::Error::from)?;
    match (ready, timeout) {
        (0, Some(timeout)) => Err(Failure::new(format!("{path}: not within {timeout:?}"))
            .help("`tombolo sync ls` shows what is there")),
        _ => Ok(()),
    }
}

/// Arrives, and waits for the others; the generation that they pass together.
fn pass(folder: &Folder, path: &str, timeout: Option<Duration>) -> Result<String, Failure> {
    let mut barrier = File::open(folder.at(path)).map_err(|error| failed(path, &error))?;
    wait_for(&barrier, path, timeout)?;
    let mut generation = String::new();
    barrier.read_to_string(&mut generation).map_err(|error| failed(path, &error))?;
    Ok(generation.trim().to_owned())
}

/// One write is one item.
fn push(folder: &Folder, path: &str, item: Option<&str>, only_try: bool) -> Result<(), Failure> {
    let item = match item {
        Some(item) => item.as_bytes().to_vec(),
        None => {
            let mut bytes = Vec::new();
            stdin().lock().take(MAX_VALUE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
            bytes
        }
    };
    if item.is_empty() {
        return Err(Failure::misuse("an item has one byte at the least"));
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    if only_try {
        options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    }
    let mut queue = options.open(folder.at(path)).map_err(|error| failed(path, &error))?;
    match queue.write(&item) {
        Ok(written) if written == item.len() => Ok(()),
        Ok(_) => Err(Failure::new(format!("{path}: an item has 32 KiB at the most"))),
        Err(error) if only_try && Errno::from_io_error(&error) == Some(Errno::AGAIN) => {
            Err(Failure::new(format!("{path}: it is full")))
        }
        Err(error) => Err(failed(path, &error)),
    }
}

/// Opens a queue, and reads an item of it.
fn take(
    folder: &Folder,
    path: &str,
    only_try: bool,
    timeout: Option<Duration>,
) -> Result<(File, Vec<u8>), Failure> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if only_try {
        options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    }
    let opened = options.open(folder.at(path));
    let mut queue = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::AGAIN) if only_try => Failure::new(format!("{path}: it is empty")),
        _ => failed(path, &error),
    })?;
    wait_for(&queue, path, timeout)?;
    let mut item = vec![0; MAX_VALUE_BYTES];
    let length = queue.read(&mut item).map_err(|error| failed(path, &error))?;
    item.truncate(length);
    Ok((queue, item))
}

/// Prints an item, or hands it to a command, and writes it off when that is done.
fn deal_with(
    mut queue: File,
    (path, item): (&str, &[u8]),
    command: &[String],
    as_json: bool,
) -> Result<(), Failure> {
    let Some((program, arguments)) = command.split_first() else {
        if as_json {
            print_json(&json!({ "item": String::from_utf8_lossy(item) }))?;
        } else {
            let mut out = io::stdout().lock();
            out.write_all(item)?;
            if !item.ends_with(b"\n") {
                out.write_all(b"\n")?;
            }
            out.flush()?;
        }
        return queue.write_all(DONE).map_err(|error| failed(path, &error));
    };
    let run = Command::new(program).args(arguments).stdin(Stdio::piped()).spawn();
    let mut child = run.map_err(|error| Failure::new(format!("can't run {program}: {error}")))?;
    if let Some(mut input) = child.stdin.take() {
        // A command that does not read all of it has its reasons: its exit code tells.
        let _unread = input.write_all(item);
    }
    let status = child.wait()?;
    match status.code().or_else(|| status.signal().map(|signal| SIGNALLED + signal)) {
        Some(0) | None => queue.write_all(DONE).map_err(|error| failed(path, &error)),
        Some(code) => {
            drop(queue);
            exit(code)
        }
    }
}
