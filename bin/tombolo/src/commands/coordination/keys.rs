//! `tombolo kv`, in a domain.

use super::KvCommand;
use super::service::{Folder, refused};
use coordinate::{Entry, Key, Wait};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::io::{self, Read, Write, stdin, stdout};
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

fn get(folder: &Folder, key: &str, as_json: bool) -> Result<(), Failure> {
    path(key)?;
    let entry = folder.sync().get(key).map_err(|error| refused(key, &error))?;
    let Entry { value, revision } = entry.ok_or_else(|| refused(key, &Errno::NOENT.into()))?;
    if as_json {
        let value = String::from_utf8_lossy(&value);
        return print_json(&json!({ "key": key, "revision": revision, "value": value }));
    }
    let mut out = stdout().lock();
    out.write_all(&value)?;
    if !value.ends_with(b"\n") {
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}

fn set(folder: &Folder, key: &str, value: Option<&str>, as_json: bool) -> Result<(), Failure> {
    path(key)?;
    let value = match value {
        Some(value) => value.as_bytes().to_vec(),
        None => {
            let mut value = Vec::new();
            stdin().lock().take(INPUT_BYTES).read_to_end(&mut value)?;
            value
        }
    };
    let revision = folder.sync().put(key, &value).map_err(|error| refused(key, &error))?;
    if as_json {
        return print_json(&json!({ "key": key, "bytes": value.len(), "revision": revision }));
    }
    Ok(())
}

fn list(folder: &Folder, prefix: &str, as_json: bool) -> Result<(), Failure> {
    if !prefix.is_empty() {
        path(prefix)?;
    }
    let found = folder.sync().keys(prefix).map_err(|error| refused(prefix, &error))?;
    if as_json {
        let row = |key: &Key| json!({ "key": key.name, "revision": key.revision, "bytes": key.bytes });
        return print_json(&found.iter().map(row).collect::<Vec<Value>>());
    }
    let row = |key: &Key| vec![key.name.clone(), key.revision.to_string(), key.bytes.to_string()];
    print_table(&["KEY", "REVISION", "BYTES"], &found.iter().map(row).collect::<Vec<_>>())
}

fn watch(folder: &Folder, prefix: &str, count: Option<u64>, as_json: bool) -> Result<(), Failure> {
    let prefix = if prefix.is_empty() { KEYS.to_owned() } else { path(prefix)? };
    let mut changes = folder.sync().watch(&prefix).map_err(|error| refused("watch", &error))?;
    let mut left = count;
    while left != Some(0) {
        let change = match changes.read(Wait::Ever) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            read => read.map_err(|error| refused("watch", &error))?,
        };
        let key = change.words.first().map(|path| path.strip_prefix(KEYS).unwrap_or(path));
        if as_json {
            let row = json!({ "revision": change.revision, "what": change.what, "key": key });
            print(&format!("{row}\n"))?;
        } else {
            let line = format!("{} {} {}", change.revision, change.what, key.unwrap_or_default());
            print(&format!("{}\n", line.trim_end()))?;
        }
        // Where it begins, and what was missed, is no change.
        if let Some(left) = left.as_mut().filter(|_| key.is_some()) {
            *left = left.saturating_sub(1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_text_without_white_space() {
        assert_eq!(path("config/colour").expect("a key"), "kv/config/colour");
        assert!(path("a b").is_err() && path("").is_err() && path("a\nb").is_err());
    }
}
