//! `tombolo kv`, in a domain.

use super::KvCommand;
use super::service::{Folder, refused};
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use terminal::{Failure, print, print_json, print_table};

/// The folder of keys: paths of the service begin with it, and people leave it out.
const KEYS: &str = "kv/";
/// Most bytes of the standard input that are read: one more than a value may have, so that one too
/// long is refused and not cut.
const INPUT_BYTES: u64 = wire::coordination::MAX_VALUE_BYTES as u64 + 1;

/// Does what the command says.
pub fn run(command: &KvCommand, folder: &Folder) -> Result<(), Failure> {
    match command {
        KvCommand::Get { key, of } => get(folder, key, of.json),
        KvCommand::Set { key, value, of } => set(folder, key, value.as_deref(), of.json),
        KvCommand::Cas { key, revision, value, of } => {
            let line = format!("cas {} {revision} {value}", path(key)?);
            let answer = folder.ask(&line).map_err(|error| refused(key, &error))?;
            if of.json {
                return print_json(&json!({ "key": key, "revision": number(&answer) }));
            }
            print(&answer)
        }
        KvCommand::Ls { prefix, of } => list(folder, prefix, of.json),
        KvCommand::Rm { key, revision, of } => {
            let revision = revision.map_or_else(String::new, |revision| format!(" {revision}"));
            let line = format!("rm {}{revision}", path(key)?);
            let answer = folder.ask(&line).map_err(|error| refused(key, &error))?;
            if of.json {
                return print_json(&json!({ "key": key, "revision": number(&answer) }));
            }
            Ok(())
        }
        KvCommand::Watch { prefix, count, of } => watch(folder, prefix, *count, of.json),
    }
}

/// The path of a key in the service. White space would be another word there.
fn path(key: &str) -> Result<String, Failure> {
    if key.is_empty() || key.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(Failure::misuse(format!("{key:?} is no key: a key is text without white space")));
    }
    Ok(format!("{KEYS}{key}"))
}

fn number(answer: &str) -> Option<u64> {
    answer.trim().parse().ok()
}

/// By the file, which whoever may `observe` can read; what is asked of `ctl` takes more.
fn get(folder: &Folder, key: &str, as_json: bool) -> Result<(), Failure> {
    if as_json {
        let answer = folder.ask(&format!("get {}", path(key)?)).map_err(|error| refused(key, &error))?;
        let (revision, value) = answer.split_once(' ').unwrap_or((&answer, ""));
        let value = value.strip_suffix('\n').unwrap_or(value);
        return print_json(&json!({ "key": key, "revision": number(revision), "value": value }));
    }
    let value = fs::read(folder.at(&path(key)?)).map_err(|error| refused(key, &error))?;
    let mut out = stdout().lock();
    out.write_all(&value)?;
    if !value.ends_with(b"\n") {
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}

/// A line of text in one change; any other bytes by the file.
fn set(folder: &Folder, key: &str, value: Option<&str>, as_json: bool) -> Result<(), Failure> {
    let at = folder.at(&path(key)?);
    let value = match value {
        Some(value) => value.as_bytes().to_vec(),
        None => {
            let mut value = Vec::new();
            stdin().lock().take(INPUT_BYTES).read_to_end(&mut value)?;
            value
        }
    };
    if value.len() > wire::coordination::MAX_VALUE_BYTES {
        return Err(refused(key, &rustix::io::Errno::FBIG.into()));
    }
    if let Some(above) = at.parent() {
        fs::create_dir_all(above).map_err(|error| refused(key, &error))?;
    }
    let line = str::from_utf8(&value).ok().filter(|text| !text.contains(['\n', '\0']));
    let revision = match line {
        Some(text) => {
            let line = format!("put {} {text}", path(key)?);
            number(&folder.ask(&line).map_err(|error| refused(key, &error))?)
        }
        None => {
            fs::write(&at, &value).map_err(|error| refused(key, &error))?;
            None
        }
    };
    if as_json {
        return print_json(&json!({ "key": key, "bytes": value.len(), "revision": revision }));
    }
    Ok(())
}

/// A key of a listing: revision, bytes, name.
fn entry(line: &str) -> Option<(u64, u64, &str)> {
    let (revision, rest) = line.split_once(' ')?;
    let (bytes, path) = rest.split_once(' ')?;
    let key = path.strip_prefix(KEYS).filter(|key| !key.is_empty() && !key.ends_with('/'))?;
    Some((revision.parse().ok()?, bytes.parse().ok()?, key))
}

fn list(folder: &Folder, prefix: &str, as_json: bool) -> Result<(), Failure> {
    let prefix = if prefix.is_empty() { KEYS.to_owned() } else { path(prefix)? };
    let answer = folder.ask(&format!("ls {prefix}")).map_err(|error| refused(&prefix, &error))?;
    let found: Vec<(u64, u64, &str)> = answer.lines().filter_map(entry).collect();
    if as_json {
        let row = |(revision, bytes, key): &(u64, u64, &str)| json!({ "key": key, "revision": revision, "bytes": bytes });
        return print_json(&found.iter().map(row).collect::<Vec<Value>>());
    }
    let row = |(revision, bytes, key): &(u64, u64, &str)| {
        vec![(*key).to_owned(), revision.to_string(), bytes.to_string()]
    };
    print_table(&["KEY", "REVISION", "BYTES"], &found.iter().map(row).collect::<Vec<_>>())
}

fn watch(folder: &Folder, prefix: &str, count: Option<u64>, as_json: bool) -> Result<(), Failure> {
    let prefix = if prefix.is_empty() { KEYS.to_owned() } else { path(prefix)? };
    let changes = OpenOptions::new().read(true).write(true).open(folder.at("watch"));
    let mut changes = changes.map_err(|error| refused("watch", &error))?;
    changes.write_all(prefix.as_bytes()).map_err(|error| refused("watch", &error))?;
    let mut left = count;
    for line in BufReader::new(changes).lines() {
        let line = line.map_err(|error| refused("watch", &error))?;
        let Some(change) = change(&line) else { continue };
        if as_json {
            print(&format!("{change}\n"))?;
        } else {
            let key = change["key"].as_str().unwrap_or_default();
            let words =
                [change["revision"].to_string(), change["what"].as_str().unwrap_or_default().to_owned()];
            print(&format!("{}\n", format!("{} {key}", words.join(" ")).trim_end()))?;
        }
        // Where it begins, and what was missed, is no change.
        if let Some(left) = left.as_mut().filter(|_| change["key"].is_string()) {
            *left = left.saturating_sub(1);
        }
        if left == Some(0) {
            break;
        }
    }
    Ok(())
}

/// A line of `watch`: `42 put kv/config/colour`, `41 now`, `7 gap`.
fn change(line: &str) -> Option<Value> {
    let mut words = line.split(' ');
    let (revision, what) = (words.next()?.parse::<u64>().ok()?, words.next()?);
    let key = words.next().map(|path| path.strip_prefix(KEYS).unwrap_or(path));
    Some(json!({ "revision": revision, "what": what, "key": key }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_service_are_read_and_nonsense_is_not() {
        assert_eq!(entry("7 5 kv/config/colour"), Some((7, 5, "config/colour")));
        for none in ["41 now", "7 0 kv/config/", "8 0 locks/printer", "x 5 kv/n", ""] {
            assert_eq!(entry(none), None, "{none}");
        }
        assert_eq!(change("42 put kv/n").map(|it| it["key"].clone()), Some(json!("n")));
        assert_eq!(change("41 now").map(|it| it["key"].clone()), Some(Value::Null));
        assert_eq!(change("now"), None);
        assert!(path("a b").is_err() && path("").is_err() && path("a\nb").is_err());
    }
}
