//! Completions of names: the shell asks this program, and this program the daemon, if one answers
//! at once.

use admin::client::Client;
use admin::place::Place;
use admin::place::{DEFAULT_RUN_DIR, DEFAULT_STATE_DIR, RUN_DIR_VARIABLE, STATE_DIR_VARIABLE};
use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::{CompleteEnv, Shells};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// With this variable, which names a shell, the arguments are a line to be completed.
const VARIABLE: &str = "TOMBOLO_COMPLETE";
/// How long a person waits for names.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// The things whose names are completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Domains,
    Containers,
    /// Distributed containers that were up, too.
    Past,
    Services,
    Nodes,
    Volumes,
    Secrets,
    Promises,
    Adaptations,
    Endpoints,
}

/// Completes the line that a shell hands over, and ends; returns where this is no such call.
/// `command` makes the definition of all commands.
pub fn answer(command: fn() -> Command) {
    CompleteEnv::with_factory(|| knowing(command(), &[])).var(VARIABLE).complete();
}

/// The script by which a shell asks this program.
///
/// # Errors
/// It can't be written.
pub fn script(shell: &str) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let shells = Shells::builtins();
    if let Some(shell) = shells.completer(shell) {
        shell.write_registration(VARIABLE, "tombolo", "tombolo", "tombolo", &mut text)?;
    }
    Ok(text)
}

/// The command, whose arguments know what names there are.
fn knowing(command: Command, path: &[String]) -> Command {
    let of = path.to_vec();
    let command = command.mut_args(|arg| match kind_of(&of, &arg) {
        Some(kind) => arg.add(ArgValueCompleter::new(move |current: &OsStr| candidates(kind, current))),
        None => arg,
    });
    let path = path.to_vec();
    command.mut_subcommands(move |sub| {
        let below: Vec<String> = path.iter().cloned().chain([sub.get_name().to_owned()]).collect();
        knowing(sub, &below)
    })
}

/// The things that an argument names.
fn kind_of(path: &[String], arg: &Arg) -> Option<Kind> {
    let shown = arg.get_value_names().and_then(<[_]>::first).map_or("", |name| name.as_str());
    let id = arg.get_id().as_str();
    let of: Vec<&str> = path.iter().map(String::as_str).collect();
    match (of.as_slice(), id, shown) {
        // These are given a name.
        (["reserve", "run"] | ["node", "init" | "join"] | ["service", "new"] | ["volume", "create"], ..) => {
            None
        }
        (["reserve", ..], "name", _) | (["adapt"], "from" | "to", _) => Some(Kind::Promises),
        (["adaptation", ..], "name", _) => Some(Kind::Adaptations),
        (["volume", ..], "name", _) => Some(Kind::Volumes),
        (["node", ..], "name", _) | (_, _, "NODE") => Some(Kind::Nodes),
        (["service", ..], "name", _) | (_, "service", _) => Some(Kind::Services),
        (["secret", ..], "secret", _) => Some(Kind::Secrets),
        (_, _, "ENDPOINT") => Some(Kind::Endpoints),
        (["history"], _, "DC|FILE") => Some(Kind::Past),
        (_, _, "DC" | "DC|FILE") => Some(Kind::Containers),
        (_, _, "DOMAIN") => Some(Kind::Domains),
        _ => None,
    }
}

fn candidates(kind: Kind, current: &OsStr) -> Vec<CompletionCandidate> {
    let names = current.to_str().map(|current| match kind {
        // They are always said in full.
        Kind::Secrets => names(kind).into_iter().filter(|name| name.starts_with(current)).collect(),
        _ => fitting(names(kind), current),
    });
    let names: Vec<String> = names.unwrap_or_default();
    let mut candidates: Vec<CompletionCandidate> = names.into_iter().map(CompletionCandidate::new).collect();
    if matches!(kind, Kind::Containers | Kind::Past) {
        candidates.extend(PathCompleter::any().complete(current));
    }
    candidates
}

/// The names that begin as what is typed. `DC/NAME` is shown in full where a part of it is typed,
/// and where several are called NAME.
fn fitting(names: Vec<String>, current: &str) -> Vec<String> {
    let short = |name: &String| name.split_once('/').map_or(name.clone(), |(_, short)| short.to_owned());
    let shorts: Vec<String> = names.iter().map(short).collect();
    let is_one = |short: &String| shorts.iter().filter(|other| *other == short).count() == 1;
    let shown = names.iter().zip(&shorts).map(|(name, short)| {
        if current.contains('/') || !is_one(short) { name.clone() } else { short.clone() }
    });
    let mut fitting: Vec<String> = shown.filter(|name| name.starts_with(current)).collect();
    fitting.sort();
    fitting.dedup();
    fitting
}

/// The names of what there is, in full; none where no daemon answers.
fn names(kind: Kind) -> Vec<String> {
    let (path, keys): (&str, &[&str]) = match kind {
        Kind::Domains => ("domains", &["dc", "domain"]),
        Kind::Containers => ("domains", &["dc"]),
        Kind::Past => {
            let past = ask("history").unwrap_or_default();
            return past.as_object().map(|past| past.keys().cloned().collect()).unwrap_or_default();
        }
        Kind::Services => ("services", &["dc", "service"]),
        Kind::Nodes => ("nodes", &["name"]),
        Kind::Volumes => ("volumes", &["dc", "name"]),
        Kind::Secrets => ("secrets", &["dc", "secret"]),
        Kind::Promises => ("reserve", &["name"]),
        Kind::Adaptations => ("adaptations", &["name"]),
        Kind::Endpoints => ("endpoints", &["dc", "endpoint"]),
    };
    let Some(answer) = ask(path) else { return Vec::new() };
    // A book of promises has more than its rows.
    let rows = answer.get("vtms").unwrap_or(&answer);
    let name = |row: &Value| {
        let parts: Option<Vec<&str>> = keys.iter().map(|key| row.get(key)?.as_str()).collect();
        parts.map(|parts| parts.join("/"))
    };
    rows.as_array().into_iter().flatten().filter_map(name).collect()
}

fn ask(path: &str) -> Option<Value> {
    let place = Place::new(
        &folder("--run-dir", RUN_DIR_VARIABLE, DEFAULT_RUN_DIR),
        &folder("--state-dir", STATE_DIR_VARIABLE, DEFAULT_STATE_DIR),
    );
    let client = Client::new(place.ok()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let answer = runtime.block_on(async { tokio::time::timeout(ANSWER_TIMEOUT, client.get(path)).await });
    answer.ok()?.ok()
}

/// A folder of the node that the line means.
fn folder(option: &str, variable: &str, usual: &str) -> PathBuf {
    let words: Vec<OsString> = std::env::args_os().collect();
    said(&words, option).or_else(|| std::env::var_os(variable)).map_or_else(|| usual.into(), PathBuf::from)
}

/// The value of an option on a line: `--run-dir DIR`, or `--run-dir=DIR`.
fn said(words: &[OsString], option: &str) -> Option<OsString> {
    let at = words.iter().position(|word| {
        word.as_bytes()
            .strip_prefix(option.as_bytes())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"="))
    })?;
    match words.get(at)?.as_bytes().get(option.len() + 1..) {
        Some(value) => Some(OsStr::from_bytes(value).to_owned()),
        None => words.get(at + 1).cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    /// The kinds of the arguments of a command.
    fn kinds(path: &[&str]) -> Vec<(String, Kind)> {
        let mut command = Cli::command();
        command.build();
        let mut at = &command;
        for name in path {
            at = at.find_subcommand(name).unwrap_or_else(|| panic!("no command {name}"));
        }
        let path: Vec<String> = path.iter().map(|name| (*name).to_owned()).collect();
        let kinds =
            at.get_arguments().filter_map(|arg| Some((arg.get_id().to_string(), kind_of(&path, arg)?)));
        kinds.collect()
    }

    #[test]
    fn the_folders_of_the_node_are_read_in_either_form() {
        let of = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            said(&words, "--run-dir").map(|value| value.into_string().expect("text"))
        };
        assert_eq!(of("tombolo --run-dir /a ps"), Some("/a".into()));
        assert_eq!(of("tombolo ps --run-dir=/a=b"), Some("/a=b".into()));
        assert_eq!(of("tombolo ps --run-dir="), Some(String::new()));
        assert_eq!(of("tombolo ps --run-dirs=/a --run-dir"), None);
    }

    #[test]
    fn arguments_that_name_something_know_what() {
        let one = |id: &str, kind: Kind| vec![(id.to_owned(), kind)];
        for command in ["restart", "stop", "start", "kill"] {
            assert_eq!(kinds(&[command]), one("domains", Kind::Domains), "{command}");
        }
        for command in ["exec", "logs", "9p"] {
            assert_eq!(kinds(&[command]), one("domain", Kind::Domains), "{command}");
        }
        assert_eq!(kinds(&["move"]), [("domain".into(), Kind::Domains), ("to".into(), Kind::Nodes)]);
        assert_eq!(kinds(&["down"]), one("which", Kind::Containers));
        assert_eq!(kinds(&["reserve", "show"]), one("name", Kind::Promises));
        assert_eq!(kinds(&["adaptation", "pause"]), one("name", Kind::Adaptations));
        assert_eq!(kinds(&["volume", "rm"]), one("name", Kind::Volumes));
        assert_eq!(kinds(&["secret", "rm"]), one("secret", Kind::Secrets));
        assert_eq!(kinds(&["history"]), one("which", Kind::Past));
        assert_eq!(
            kinds(&["service", "move"]),
            [("service".into(), Kind::Services), ("to".into(), Kind::Domains)]
        );
        assert_eq!(kinds(&["up"]), []);
        assert_eq!(kinds(&["node", "join"]), []);
    }

    #[test]
    fn a_name_is_as_long_as_it_has_to_be() {
        let names = || ["shop/web", "shop/db", "blog/web"].map(str::to_owned).to_vec();
        assert_eq!(fitting(names(), ""), ["blog/web", "db", "shop/web"]);
        assert_eq!(fitting(names(), "d"), ["db"]);
        assert_eq!(fitting(names(), "shop/"), ["shop/db", "shop/web"]);
        assert_eq!(fitting(names(), "x"), [""; 0]);
    }
}
