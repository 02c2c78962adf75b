//! `tombolo kv` and `tombolo sync`: keys, locks, semaphores, barriers and queues of a distributed
//! container, for people. A program uses the files themselves.

mod keys;
mod locks;
mod service;
mod together;

use super::endpoint::from_node::{Where, where_to};
use super::look::encoded;
use super::{client, exec, wait};
use crate::cli::{ExecArgs, PlaceArgs};
use admin::{Entry, ServiceRow};
use clap::{Args, Subcommand};
use std::time::Duration;
use terminal::Failure;

/// The kind of services that keep keys and locks.
const KIND: &str = "coordination";

#[derive(Debug, Subcommand)]
pub enum KvCommand {
    /// Print the value of a key
    Get {
        /// The key, as config/colour
        key: String,
        #[command(flatten)]
        of: OfArgs,
    },
    /// Set a key to a value, whatever it was
    Set {
        /// The key
        key: String,
        /// The value (default: the standard input)
        #[arg(allow_hyphen_values = true)]
        value: Option<String>,
        #[command(flatten)]
        of: OfArgs,
    },
    /// Set a key only if it has this revision (0: only if there is none), and print the new one
    Cas {
        /// The key
        key: String,
        /// The revision, as `ls` and `get --json` tell it
        revision: u64,
        /// The value
        #[arg(allow_hyphen_values = true)]
        value: String,
        #[command(flatten)]
        of: OfArgs,
    },
    /// List keys with their revisions and sizes
    Ls {
        /// Only those that begin so
        #[arg(default_value = "")]
        prefix: String,
        #[command(flatten)]
        of: OfArgs,
    },
    /// Remove a key
    Rm {
        /// The key
        key: String,
        /// Only if it has this revision
        #[arg(long, value_name = "N")]
        revision: Option<u64>,
        #[command(flatten)]
        of: OfArgs,
    },
    /// Print changes as they happen
    Watch {
        /// Only of keys that begin so
        #[arg(default_value = "")]
        prefix: String,
        /// End after so many changes
        #[arg(long, value_name = "COUNT")]
        count: Option<u64>,
        #[command(flatten)]
        of: OfArgs,
    },
}

#[derive(Debug, Subcommand)]
pub enum SyncCommand {
    /// List locks, semaphores, barriers and queues: who holds them, and how many wait
    Ls {
        #[command(flatten)]
        of: OfArgs,
    },
    /// Hold a lock while a command runs, or until this ends
    Lock {
        /// The lock; made where there is none
        name: String,
        /// A semaphore instead
        #[arg(long)]
        semaphore: bool,
        /// Fail at once where somebody has it
        #[arg(long = "try", conflicts_with = "timeout")]
        only_try: bool,
        /// How long to wait for it: 200ms, 10s, 5m (default: for ever)
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        timeout: Option<Duration>,
        #[command(flatten)]
        of: OfArgs,
        /// The command, in the domain, with the token in TOMBOLO_TOKEN; its exit code is this one's
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Wait at a barrier until enough are there, and print its generation
    Barrier {
        /// The barrier
        name: String,
        /// How many pass together; makes the barrier where there is none
        #[arg(long, value_name = "COUNT")]
        parties: Option<u32>,
        /// How long to wait: 200ms, 10s, 5m (default: for ever). Who gives up breaks it for all who
        /// wait
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        timeout: Option<Duration>,
        #[command(flatten)]
        of: OfArgs,
    },
    /// Make a queue, or change how many items it has room for
    Queue {
        /// The queue
        name: String,
        /// Items that it has room for, 4096 at the most
        #[arg(long, value_name = "COUNT", default_value_t = 1024)]
        items: u32,
        /// Its items outlive the server of the service
        #[arg(long)]
        durable: bool,
        #[command(flatten)]
        of: OfArgs,
    },
    /// Put an item into a queue
    Push {
        /// The queue; made where there is none
        name: String,
        /// The item (default: the standard input)
        #[arg(allow_hyphen_values = true)]
        item: Option<String>,
        /// Fail at once where the queue is full
        #[arg(long = "try")]
        only_try: bool,
        #[command(flatten)]
        of: OfArgs,
    },
    /// Take an item out of a queue and print it, or have a command deal with it
    Pop {
        /// The queue
        name: String,
        /// Fail at once where the queue is empty
        #[arg(long = "try", conflicts_with = "timeout")]
        only_try: bool,
        /// How long to wait for an item: 200ms, 10s, 5m (default: for ever)
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        timeout: Option<Duration>,
        #[command(flatten)]
        of: OfArgs,
        /// The command, in the domain, with the item as its standard input; where it fails, the
        /// item goes back. Its exit code is this one's
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
}

/// The distributed container of the keys and locks.
#[derive(Debug, Clone, Default, Args)]
pub struct OfArgs {
    /// The service (default: the only one of its kind)
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// From inside this domain: NAME, or DC/NAME. Not needed in a domain, nor where only one has
    /// the service
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tombolo kv`.
pub fn kv(place: &PlaceArgs, command: &KvCommand) -> Result<(), Failure> {
    let of = command.of();
    if where_to(&of.domain) == Where::Here {
        return keys::run(command, &service::Folder::find(of.service.as_deref())?);
    }
    in_domain(place, of, command.words())
}

/// `tombolo sync`.
pub fn sync(place: &PlaceArgs, command: &SyncCommand) -> Result<(), Failure> {
    let of = command.of();
    if where_to(&of.domain) == Where::Here {
        let folder = service::Folder::find(of.service.as_deref())?;
        return match command {
            SyncCommand::Ls { .. } | SyncCommand::Lock { .. } => locks::run(command, &folder),
            _ => together::run(command, &folder),
        };
    }
    in_domain(place, of, command.words())
}

/// Runs the same inside a domain, whichever node has it: so what the domain may is what this may.
fn in_domain(place: &PlaceArgs, of: &OfArgs, words: Vec<String>) -> Result<(), Failure> {
    let domain = match &of.domain {
        Some(domain) => domain.clone(),
        None => the_only_domain(place, of.service.as_deref())?,
    };
    let entry: Entry = wait(client(place)?.get(&format!("domains/{}/entry", encoded(&domain))))??;
    let command = [vec![entry.program], words].concat();
    let arguments = ExecArgs {
        interactive: true,
        tty: false,
        user: None,
        env: Vec::new(),
        workdir: None,
        domain,
        command,
    };
    exec::run(place, &arguments)
}

/// The domain that has the service, where there is one of each.
fn the_only_domain(place: &PlaceArgs, service: Option<&str>) -> Result<String, Failure> {
    let mut rows: Vec<ServiceRow> = wait(client(place)?.get("services"))??;
    rows.retain(|row| row.kind == KIND && service.is_none_or(|name| row.service == name));
    let domains: Vec<String> =
        rows.iter().flat_map(|row| row.consumers.iter().map(|name| format!("{}/{name}", row.dc))).collect();
    match domains.as_slice() {
        [domain] => Ok(domain.clone()),
        [] => Err(Failure::new("no domain has keys and locks")
            .help("a service of kind \"coordination\" in the file gives it some (docs/coordination.md)")),
        several => Err(Failure::misuse("say from which domain, by --domain")
            .help(format!("these have keys and locks: {}", several.join(", ")))),
    }
}

impl OfArgs {
    /// The words that say the same inside.
    fn words(&self) -> Vec<String> {
        let service = self.service.iter().map(|name| format!("--service={name}"));
        service.chain(self.json.then(|| "--json".to_owned())).collect()
    }
}

impl KvCommand {
    fn of(&self) -> &OfArgs {
        match self {
            Self::Get { of, .. }
            | Self::Set { of, .. }
            | Self::Cas { of, .. }
            | Self::Ls { of, .. }
            | Self::Rm { of, .. }
            | Self::Watch { of, .. } => of,
        }
    }

    /// The words of the same command, as it is run in a domain.
    fn words(&self) -> Vec<String> {
        let (name, option, last) = match self {
            Self::Get { key, .. } => ("get", None, vec![key.clone()]),
            Self::Set { key, value, .. } => {
                ("set", None, std::iter::once(key).chain(value).cloned().collect())
            }
            Self::Cas { key, revision, value, .. } => {
                ("cas", None, vec![key.clone(), revision.to_string(), value.clone()])
            }
            Self::Ls { prefix, .. } => ("ls", None, vec![prefix.clone()]),
            Self::Rm { key, revision, .. } => {
                ("rm", revision.map(|revision| format!("--revision={revision}")), vec![key.clone()])
            }
            Self::Watch { prefix, count, .. } => {
                ("watch", count.map(|count| format!("--count={count}")), vec![prefix.clone()])
            }
        };
        let mut words = vec!["kv".to_owned(), name.to_owned()];
        words.extend(self.of().words());
        words.extend(option);
        words.push("--".to_owned());
        words.extend(last);
        words
    }
}

impl SyncCommand {
    fn of(&self) -> &OfArgs {
        match self {
            Self::Ls { of }
            | Self::Lock { of, .. }
            | Self::Barrier { of, .. }
            | Self::Queue { of, .. }
            | Self::Push { of, .. }
            | Self::Pop { of, .. } => of,
        }
    }

    fn words(&self) -> Vec<String> {
        match self {
            Self::Ls { of } => [vec!["sync".to_owned(), "ls".to_owned()], of.words()].concat(),
            Self::Lock { name, semaphore, only_try, timeout, of, command } => {
                let mut words = vec!["sync".to_owned(), "lock".to_owned()];
                words.extend(of.words());
                words.extend(semaphore.then(|| "--semaphore".to_owned()));
                words.extend(tried(*only_try, *timeout));
                words.push(name.clone());
                words.extend(after_dashes(command));
                words
            }
            Self::Barrier { name, parties, timeout, of } => {
                let mut words = vec!["sync".to_owned(), "barrier".to_owned()];
                words.extend(of.words());
                words.extend(parties.map(|parties| format!("--parties={parties}")));
                words.extend(tried(false, *timeout));
                words.push(name.clone());
                words
            }
            Self::Queue { name, items, durable, of } => {
                let mut words = vec!["sync".to_owned(), "queue".to_owned()];
                words.extend(of.words());
                words.push(format!("--items={items}"));
                words.extend(durable.then(|| "--durable".to_owned()));
                words.push(name.clone());
                words
            }
            Self::Push { name, item, only_try, of } => {
                let mut words = vec!["sync".to_owned(), "push".to_owned()];
                words.extend(of.words());
                words.extend(tried(*only_try, None));
                words.extend(["--".to_owned(), name.clone()]);
                words.extend(item.clone());
                words
            }
            Self::Pop { name, only_try, timeout, of, command } => {
                let mut words = vec!["sync".to_owned(), "pop".to_owned()];
                words.extend(of.words());
                words.extend(tried(*only_try, *timeout));
                words.push(name.clone());
                words.extend(after_dashes(command));
                words
            }
        }
    }
}

/// The words about how long to wait.
fn tried(only_try: bool, timeout: Option<Duration>) -> Vec<String> {
    let tries = only_try.then(|| "--try".to_owned());
    tries.into_iter().chain(timeout.map(|time| format!("--timeout={}ms", time.as_millis()))).collect()
}

/// A command behind the words that it is not to be taken for.
fn after_dashes(command: &[String]) -> Vec<String> {
    let dashes = (!command.is_empty()).then(|| "--".to_owned());
    dashes.into_iter().chain(command.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use crate::cli::{Cli, Command};
    use clap::Parser;

    /// The words that the node runs in a domain mean the same there.
    #[test]
    fn the_words_inside_say_what_the_words_outside_said() {
        for line in [
            "kv get --service=sync --json -- config/colour",
            "kv set -- n -1",
            "kv set -- n",
            "kv cas -- n 7 --x",
            "kv ls -- ",
            "kv rm --revision=3 -- n",
            "kv watch --count=2 -- config/",
            "sync ls --json",
            "sync lock --try printer",
            "sync lock --semaphore --timeout=1500ms printer -- sh -c exit",
            "sync barrier --parties=3 --timeout=1500ms phase",
            "sync queue --service=sync --items=7 --durable jobs",
            "sync push --try -- jobs -1",
            "sync pop --timeout=1500ms jobs -- sh -c exit",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let again = match Cli::parse_from([&["tombolo"], words.as_slice()].concat()).command {
                Command::Kv(command) => command.words(),
                Command::Sync(command) => command.words(),
                _ => panic!("another command"),
            };
            assert_eq!(again.join(" "), line);
        }
    }
}
