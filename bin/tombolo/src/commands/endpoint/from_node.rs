//! From the node: the command runs inside the domain, as by `tombolo exec`. So the domain's control
//! socket is who speaks, here as anywhere.

use super::look;
use super::payload::{named, open};
use super::{CallArgs, PayloadArgs, ReceiveArgs, SendArgs};
use crate::cli::PlaceArgs;
use crate::commands::look::encoded;
use crate::commands::{client, wait};
use admin::{EndpointRow, Entry};
use domain::ExecOptions;
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use terminal::Failure;

/// Where a command speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// Here: this is inside a domain.
    Here,
    /// In a domain of this node.
    Node,
}

/// In a domain there is a control socket; a domain that is named is another one.
pub fn where_to(domain: &Option<String>) -> Where {
    let inside = session::Control::path().exists();
    if domain.is_none() && inside { Where::Here } else { Where::Node }
}

/// The words of a command as it is run in the domain.
struct Words(Vec<String>);

impl Words {
    fn new(command: &str) -> Self {
        Self(vec!["endpoint".into(), command.into()])
    }

    fn flag(mut self, name: &str, set: bool) -> Self {
        if set {
            self.0.push(format!("--{name}"));
        }
        self
    }

    fn option(mut self, name: &str, value: Option<impl ToString>) -> Self {
        if let Some(value) = value {
            self.0.push(format!("--{name}={}", value.to_string()));
        }
        self
    }

    fn time(self, name: &str, value: Option<Duration>) -> Self {
        self.option(name, value.map(|time| format!("{}ms", time.as_millis())))
    }

    fn payload(self, payload: &PayloadArgs) -> Self {
        self.flag("lines", payload.lines)
            .option("tag", Some(payload.tag))
            .time("wait", payload.wait)
            .time("timeout", Some(payload.timeout))
    }

    /// Adds arguments that are no options, whatever they begin with.
    fn last<'t>(mut self, texts: impl IntoIterator<Item = &'t str>) -> Vec<String> {
        self.0.push("--".into());
        self.0.extend(texts.into_iter().map(str::to_owned));
        self.0
    }
}

/// `tombolo endpoint send`, on the node.
pub fn send(place: &PlaceArgs, arguments: &SendArgs) -> Result<(), Failure> {
    let target =
        target(place, &arguments.to, arguments.who.domain.as_deref(), arguments.who.name.as_deref())?;
    let mut words = Words::new("send").option("as", target.name.as_deref());
    words = match arguments.notify {
        Some(bits) => words
            .option("notify", Some(bits))
            .time("wait", arguments.payload.wait)
            .time("timeout", Some(arguments.payload.timeout)),
        None => words.payload(&arguments.payload).flag("buffered", arguments.buffered),
    };
    let text = arguments.payload.text.as_deref();
    let words = words.last([arguments.to.as_str()].into_iter().chain(text));
    let input = if arguments.notify.is_some() { Input::None } else { Input::of(&arguments.payload) };
    become_command(place, &target.domain, words, input)
}

/// `tombolo endpoint call`, on the node.
pub fn call(place: &PlaceArgs, arguments: &CallArgs) -> Result<(), Failure> {
    let target =
        target(place, &arguments.to, arguments.who.domain.as_deref(), arguments.who.name.as_deref())?;
    let words = Words::new("call")
        .option("as", target.name.as_deref())
        .payload(&arguments.payload)
        .option("takes", Some(arguments.takes))
        .flag("raw", arguments.raw)
        .flag("json", arguments.json)
        .last([arguments.to.as_str()].into_iter().chain(arguments.payload.text.as_deref()));
    become_command(place, &target.domain, words, Input::of(&arguments.payload))
}

/// `tombolo endpoint receive`, on the node.
pub fn receive(place: &PlaceArgs, arguments: &ReceiveArgs) -> Result<(), Failure> {
    let own = own(place, &arguments.name, arguments.domain.as_deref())?;
    let name = arguments.name.rsplit('/').next().unwrap_or_default();
    let count = if arguments.follow { None } else { Some(arguments.count) };
    let words = Words::new("receive")
        .option("from", arguments.from.as_deref())
        .option("count", count)
        .flag("follow", arguments.follow)
        .option("reply", arguments.reply.as_deref())
        .flag("echo", arguments.echo)
        .time("timeout", arguments.timeout)
        .flag("raw", arguments.raw)
        .flag("json", arguments.json)
        .last([name]);
    become_command(place, &own, words, Input::None)
}

/// From where, and as whom.
struct Target {
    domain: String,
    name: Option<String>,
}

/// The domain that was named, or the one of the endpoint that speaks.
fn target(place: &PlaceArgs, to: &str, domain: Option<&str>, name: Option<&str>) -> Result<Target, Failure> {
    match (domain, name) {
        (Some(domain), None) => Ok(Target { domain: domain.to_owned(), name: None }),
        (domain, Some(name)) => {
            let bare = name.rsplit('/').next().unwrap_or_default().to_owned();
            Ok(Target { domain: own(place, name, domain)?, name: Some(bare) })
        }
        (None, None) => Err(nobody_speaks(&look::tree(place, to)?, to)),
    }
}

/// The domain in which the programs of an endpoint are.
fn own(place: &PlaceArgs, name: &str, domain: Option<&str>) -> Result<String, Failure> {
    if let Some(domain) = domain {
        return Ok(domain.to_owned());
    }
    let rows = look::rows(place)?;
    let (dc, bare) = match name.split_once('/') {
        Some((dc, bare)) => (Some(dc), bare),
        None => (None, name),
    };
    let is_it =
        |row: &&EndpointRow| row.endpoint.as_deref() == Some(bare) && dc.is_none_or(|dc| row.dc == dc);
    let found: Vec<&EndpointRow> = rows.iter().filter(is_it).collect();
    match found.as_slice() {
        [row] => Ok(format!("{}/{}", row.dc, row.domain)),
        // The daemon says it best: which names there are, or which distributed containers.
        _ => match look::tree(place, name) {
            Ok(tree) => Err(Failure::misuse(format!("{name:?} is no name of an endpoint"))
                .help(format!("to be bound takes a name, as {}", tree["endpoint"]))),
            Err(refused) => Err(refused),
        },
    }
}

/// On the node nobody speaks by itself: says from where it could be.
fn nobody_speaks(tree: &Value, to: &str) -> Failure {
    let dc = tree["dc"].as_str().unwrap_or_default();
    let mut ways = Vec::new();
    for entry in tree["called_by"].as_array().into_iter().flatten() {
        match (entry["endpoint"].as_str(), entry["domain"].as_str()) {
            (Some(name), _) => ways.push(format!("--as {dc}/{name}")),
            (None, Some(domain)) => ways.push(format!("--domain {dc}/{domain}")),
            (None, None) => {}
        }
    }
    let help = if ways.is_empty() {
        format!("the file lets nobody call {to}: see `allow` of [endpoint.{to}]")
    } else {
        format!("the file lets these: {}", ways.join(", "))
    };
    Failure::misuse("say from which domain, or as which endpoint: `tombolo` is in no domain here").help(help)
}

/// The standard input of the command.
pub enum Input {
    /// Nothing.
    None,
    /// The standard input of this command.
    Standard,
    /// This file.
    File(PathBuf),
}

impl Input {
    fn of(payload: &PayloadArgs) -> Self {
        match (&payload.text, named(payload.file.as_deref())) {
            (Some(_), _) => Self::None,
            (None, Some(path)) => Self::File(path.to_owned()),
            (None, None) => Self::Standard,
        }
    }
}

/// Becomes our own binary inside the domain: its output, signals and exit code are the command's.
pub fn become_command(
    place: &PlaceArgs,
    domain: &str,
    words: Vec<String>,
    input: Input,
) -> Result<(), Failure> {
    let mut command = command_in(place, domain, words, &input)?;
    // Comes back only if it fails.
    let error = command.exec();
    Err(cant_run(&command, &error))
}

/// The failure of a command of [`command_in`] that can't be run.
pub fn cant_run(command: &Command, error: &std::io::Error) -> Failure {
    Failure::new(format!("can't run {}: {error}", command.get_program().display()))
}

/// Our own binary inside the domain, to be run by this process.
pub fn command_in(
    place: &PlaceArgs,
    domain: &str,
    words: Vec<String>,
    input: &Input,
) -> Result<Command, Failure> {
    let client = client(place)?;
    let entry: Entry = wait(client.get(&format!("domains/{}/entry", encoded(domain))))??;
    let options = ExecOptions {
        tty: false,
        interactive: !matches!(input, Input::None),
        environment: Vec::new(),
        user: None,
        workdir: None,
        limit: None,
        command: [vec![entry.program.clone()], words].concat(),
    };
    let mut command = domain::exec_command(&entry.layout, &entry.dc, &entry.domain, &options)
        .map_err(|e| Failure::new(e.to_string()))?;
    if let Input::File(path) = input {
        command.stdin(open(path)?);
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command as Said};
    use crate::commands::endpoint::EndpointCommand;
    use clap::Parser;
    use serde_json::json;

    fn call_words(line: &[&str]) -> Vec<String> {
        let line = [&["tombolo", "endpoint", "call"], line].concat();
        let Said::Endpoint(EndpointCommand::Call(arguments)) = Cli::parse_from(line).command else {
            panic!("no call")
        };
        Words::new("call")
            .payload(&arguments.payload)
            .flag("json", arguments.json)
            .last([arguments.to.as_str()].into_iter().chain(arguments.payload.text.as_deref()))
    }

    #[test]
    fn the_words_inside_say_what_the_words_outside_said() {
        let words = call_words(&["planner", "--timeout=5s", "--json", "--", "--help"]);
        assert_eq!(
            words,
            ["endpoint", "call", "--tag=0", "--timeout=5000ms", "--json", "--", "planner", "--help"]
        );
        let line: Vec<&str> = ["tombolo"].into_iter().chain(words.iter().map(String::as_str)).collect();
        let Said::Endpoint(EndpointCommand::Call(again)) = Cli::parse_from(line).command else {
            panic!("no call")
        };
        assert_eq!((again.to.as_str(), again.payload.text.as_deref()), ("planner", Some("--help")));
        assert_eq!(again.payload.timeout, Duration::from_secs(5));
    }

    #[test]
    fn who_says_no_domain_is_told_which_may() {
        let tree = json!({"dc": "shop", "called_by": [{"endpoint": "camera", "verbs": ["send"]}, {"domain": "desk", "verbs": ["request"]}]});
        let failure = nobody_speaks(&tree, "planner");
        assert_eq!(
            failure.help.as_deref(),
            Some("the file lets these: --as shop/camera, --domain shop/desk")
        );
        assert_eq!(failure.code, terminal::MISUSE);
        let nobody = nobody_speaks(&json!({"dc": "shop", "called_by": []}), "planner");
        assert!(nobody.help.unwrap().contains("[endpoint.planner]"));
    }
}
