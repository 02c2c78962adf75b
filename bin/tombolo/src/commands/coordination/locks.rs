//! `tombolo sync`, in a domain: locks and semaphores, and the list of everything.

use super::SyncCommand;
use super::service::{Folder, late, refused, wait};
use coordinate::Held;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, stdin};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio, exit};
use std::time::Duration;
use terminal::{Failure, print, print_json, print_table};

/// The variable that has the token of the lock, for the command.
const TOKEN: &str = "TOMBOLO_TOKEN";
/// The value that a shell adds to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// Does what the command says.
pub fn run(command: &SyncCommand, folder: &Folder) -> Result<(), Failure> {
    match command {
        SyncCommand::Ls { of } => list(folder, of.json),
        SyncCommand::Lock { name, semaphore, only_try, timeout, of, command } => {
            let held = take(folder, (name, *semaphore), *only_try, *timeout)?;
            hold(held, command, of.json)
        }
        _ => Err(Failure::misuse("this is about locks")),
    }
}

fn list(folder: &Folder, as_json: bool) -> Result<(), Failure> {
    let text = fs::read_to_string(folder.at("status")).map_err(|error| refused("status", &error))?;
    let rows: Vec<Value> = text.lines().filter_map(row).collect();
    if as_json {
        return print_json(&rows);
    }
    let cells = |row: &Value| {
        if let Some(state) = row["state"].as_str() {
            let name = row["name"].as_str().unwrap_or_default().to_owned();
            return vec![name, state.to_owned(), row["waiting"].to_string()];
        }
        let holders = row["held"].as_array().into_iter().flatten();
        let holders: Vec<String> = holders
            .map(|held| format!("{} ({})", held["domain"].as_str().unwrap_or_default(), held["token"]))
            .collect();
        let holders = if holders.is_empty() { "-".to_owned() } else { holders.join(", ") };
        vec![row["name"].as_str().unwrap_or_default().to_owned(), holders, row["waiting"].to_string()]
    };
    print_table(
        &["NAME", "HELD BY (TOKEN), OR STATE", "WAITING"],
        &rows.iter().map(cells).collect::<Vec<_>>(),
    )
}

/// A line of `status` about a lock: `locks/printer held a:43,b:44 waiting 2`.
fn row(line: &str) -> Option<Value> {
    if line.starts_with("barriers/") || line.starts_with("queues/") {
        return together_row(line);
    }
    let (name, rest) = line.split_once(" held ")?;
    let (held, waiting) =
        rest.split_once(" waiting ").or_else(|| Some(("", rest.strip_prefix("waiting ")?)))?;
    let holders: Vec<Value> = held
        .split(',')
        .filter_map(|one| one.rsplit_once(':'))
        .map(|(domain, token)| json!({ "domain": domain, "token": token.parse::<u64>().ok() }))
        .collect();
    Some(json!({ "name": name, "held": holders, "waiting": waiting.parse::<u64>().ok()? }))
}

/// A line of `status` about a barrier or a queue: `barriers/phase generation 7 waiting 2 of 3`,
/// `queues/jobs items 5 of 100 given 2 waiting 0 pushing 0 durable`.
fn together_row(line: &str) -> Option<Value> {
    let (name, rest) = line.split_once(' ')?;
    let number = |of: &str| {
        let mut words = rest.split(' ').skip_while(|word| *word != of).skip(1);
        words.next()?.parse::<u64>().ok()
    };
    let (first, most) = rest.split_once(" of ")?;
    let most = most.split(' ').next()?.parse::<u64>().ok()?;
    let waiting = number("waiting")?;
    if name.starts_with("barriers/") {
        let generation = number("generation")?;
        let state = format!("generation {generation}, {most} pass");
        return Some(json!({
            "name": name, "waiting": waiting, "state": state, "generation": generation, "parties": most
        }));
    }
    let items = first.strip_prefix("items ")?.parse::<u64>().ok()?;
    let (given, durable) = (number("given")?, rest.ends_with(" durable"));
    let kept = if durable { ", durable" } else { "" };
    Some(json!({
        "name": name, "waiting": waiting, "state": format!("{items} of {most} items, {given} given{kept}"),
        "items": items, "most": most, "given": given, "pushing": number("pushing")?, "durable": durable
    }))
}

/// Takes a lock, or a place of a semaphore.
fn take(
    folder: &Folder,
    (name, is_semaphore): (&str, bool),
    only_try: bool,
    timeout: Option<Duration>,
) -> Result<Held, Failure> {
    let wait = wait(only_try, timeout);
    let (path, held) = if is_semaphore {
        (format!("semaphores/{name}"), folder.sync().semaphore(name, None, wait))
    } else {
        (format!("locks/{name}"), folder.sync().lock(name, wait))
    };
    held.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::AGAIN) if only_try => Failure::new(format!("{path}: somebody has it")),
        _ => late(&path, timeout, &error, refused(&path, &error)),
    })
}

/// Holds it while the command runs; without one, until the standard input ends.
fn hold(held: Held, command: &[String], as_json: bool) -> Result<(), Failure> {
    let token = held.token().to_string();
    let Some((program, arguments)) = command.split_first() else {
        let said = if as_json { json!({ "token": held.token() }).to_string() } else { token };
        print(&format!("{said}\n"))?;
        for line in BufReader::new(stdin()).lines() {
            line?;
        }
        drop(held);
        return Ok(());
    };
    let run = Command::new(program).args(arguments).env(TOKEN, token).stdin(Stdio::inherit()).status();
    let status = run.map_err(|error| Failure::new(format!("can't run {program}: {error}")))?;
    drop(held);
    match status.code().or_else(|| status.signal().map(|signal| SIGNALLED + signal)) {
        Some(0) | None => Ok(()),
        Some(code) => exit(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_in_the_status_are_read_held_or_not() {
        let held = row("locks/printer held a:43,b:44 waiting 2").expect("a row");
        assert_eq!(held["held"][1], json!({ "domain": "b", "token": 44 }));
        assert_eq!((held["name"].as_str(), held["waiting"].as_u64()), (Some("locks/printer"), Some(2)));
        let free = row("locks/printer held  waiting 0").expect("a row");
        assert_eq!((free["held"].as_array().map(Vec::len), free["waiting"].as_u64()), (Some(0), Some(0)));
        assert_eq!(row("names 3 of 8192"), None);
        let barrier = row("barriers/phase generation 7 waiting 2 of 3").expect("a row");
        assert_eq!((barrier["generation"].as_u64(), barrier["parties"].as_u64()), (Some(7), Some(3)));
        let queue = row("queues/jobs items 5 of 100 given 2 waiting 1 pushing 0 durable").expect("a row");
        assert_eq!((queue["items"].as_u64(), queue["most"].as_u64()), (Some(5), Some(100)));
        assert_eq!((queue["given"].as_u64(), queue["durable"].as_bool()), (Some(2), Some(true)));
        assert_eq!(queue["waiting"].as_u64(), Some(1));
    }
}
