//! `tombolo node`: several machines as one.

mod authority;
mod etcd;

use super::look::encoded;
use super::{client, place, up, wait};
use crate::cli::{ListArgs, PlaceArgs};
use ::admin::client::{Client, ClientError};
use ::admin::{
    FreeRow, InitRequest, JoinRequest, NodeRow, NodesView, RemoveRequest, RotateRequest, Said, TokenRequest,
    TokenView, Version,
};
use authority::AuthorityArgs;
use clap::{Args, Subcommand};
use etcd::EtcdArgs;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use terminal::{Failure, Paint, bytes, harmless, print, print_json, print_table, seconds};
use topology::rate_text;

/// How long the daemon may take to come back as a node of the cluster.
const RETURN_TIMEOUT: Duration = Duration::from_secs(20);
/// How often it is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest certificate or key that is read.
const MAX_PEM_BYTES: u64 = 256 << 10;

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Begin a cluster: this machine is its first node; what is up here goes on, and its topologies
    /// move into etcd
    #[command(after_help = "Examples:
  tombolo node init --name a --address 10.0.0.1
  tombolo node init --name a --address 10.0.0.1 --etcd https://e1:2379,https://e2:2379,https://e3:2379 \\
      --etcd-ca ca.pem --etcd-cert client.pem --etcd-key client.key

The cluster gets an authority of its own, kept in the state directory. All or nothing: if a step fails, this stays a single node.")]
    Init(InitArgs),
    /// Make a token: a secret that lets one machine join, once, for an hour
    #[command(after_help = "Examples:
  tombolo node token
  tombolo node token --ttl 10m --no-authority     who joins with it can't let others join
  tombolo node token --json | jq -r .token

Pass it on as you would a password: who has it becomes a node. It names the cluster's authority, so that nobody in between
can pretend to be the cluster.")]
    Token(TokenArgs),
    /// Make this machine a node of a cluster
    #[command(after_help = "Examples:
  tombolo node join 10.0.0.1 TOKEN --name b
  tombolo node join 10.0.0.1:7420 TOKEN --name b --address 10.0.0.2 --label disk=ssd

ADDRESS is any node's that has the authority. This machine's key never leaves it.")]
    Join(JoinArgs),
    /// List the nodes
    #[command(after_help = "Examples:
  tombolo node ls
  tombolo node ls --json | jq -r '.nodes[] | select(.alive | not) | .name'")]
    Ls(ListArgs),
    /// Show one node
    Show {
        /// The node (default: this one)
        node: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a node out of the cluster for good: its certificate is revoked, its name and address
    /// are free
    #[command(after_help = "Examples:
  tombolo node remove b
  tombolo node remove b --force       though it is alive: it is fenced

To have it back, `tombolo node join` it with a new token.")]
    Remove {
        /// The node
        node: String,
        /// Also where it is alive
        #[arg(long)]
        force: bool,
    },
    /// Have a node's domains go to others, as far as they may, and keep new ones from going there
    #[command(after_help = "Examples:
  tombolo node drain b
  tombolo ps                          shows what is still there, and why

A domain that names the node stays, and so does one that fits nowhere else. `tombolo node undrain b` takes it back.")]
    Drain {
        /// The node
        node: String,
    },
    /// Let domains go to a node again
    Undrain {
        /// The node
        node: String,
    },
    /// Get another certificate for this node now (it is renewed by itself, a month before it ends)
    #[command(after_help = "Examples:
  tombolo node rotate
  tombolo node rotate --revoke        somebody else may have this node's key

Links to other nodes take it up while they are in use.")]
    Rotate {
        /// And have nobody believe the earlier ones any more
        #[arg(long)]
        revoke: bool,
    },
    /// Show the etcd that the cluster stands on, or write a copy of it
    #[command(after_help = "Examples:
  tombolo node etcd
  tombolo node etcd backup /root/etcd.copy

The cluster's own has one member with one or two nodes, three from three on, five from five on.")]
    Etcd(EtcdArgs),
    /// Show the cluster's authority, which says who is a node, or replace it
    #[command(after_help = "Examples:
  tombolo node authority
  tombolo node authority --json | jq .replacement
  tombolo node authority replace      somebody may have its key

It is known by its fingerprint, which every token names.")]
    Authority(AuthorityArgs),
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// How this node is to be called: as a topology names it, 1 to 32 of a-z, 0-9 and -, beginning
    /// with a letter
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Where other nodes reach this one
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub address: String,
    /// Where an etcd is that you look after: one URL or several (default: the cluster brings up its
    /// own, on the nodes)
    #[arg(long, value_delimiter = ',', value_name = "URL,...")]
    pub etcd: Vec<String>,
    /// The authority of etcd's certificates, where its URLs are https
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub etcd_ca: Option<PathBuf>,
    /// Our certificate for etcd, where it wants one
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    pub etcd_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
    /// Take an etcd that lets everybody in: whoever reaches it can have every node run anything, as
    /// root
    #[arg(long)]
    pub insecure_etcd: bool,
    /// The prefix of every key in etcd
    #[arg(long, value_name = "PREFIX", default_value = "/tombolo/")]
    pub prefix: String,
    /// The cluster's name
    #[arg(long, value_name = "NAME", default_value = "tombolo")]
    pub cluster: String,
    /// A label of this node, for placement (may be repeated)
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub struct TokenArgs {
    /// How long it is good for: a whole number and s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = ttl)]
    pub ttl: u64,
    /// A node that joins with it can't let others join, nor renew certificates by itself
    #[arg(long)]
    pub no_authority: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct JoinArgs {
    /// A node of the cluster
    #[arg(value_name = "ADDRESS[:PORT]")]
    pub at: String,
    /// The token that `tombolo node token` printed there
    pub token: String,
    /// How this node is to be called: as a topology names it, 1 to 32 of a-z, 0-9 and -, beginning
    /// with a letter
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Where other nodes reach this one (default: the address from which it asks)
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub address: Option<String>,
    /// Take the cluster's etcd although it lets everybody in
    #[arg(long)]
    pub insecure_etcd: bool,
    /// A label of this node, for placement (may be repeated)
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a label is NAME=VALUE, as disk=ssd")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn ttl(text: &str) -> Result<u64, String> {
    const HOW: &str = "a time is a whole number and s, m, h or d, as 10m or 1h";
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| HOW.to_owned())?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(HOW.to_owned()),
    };
    number.checked_mul(unit).ok_or_else(|| HOW.to_owned())
}

/// `tombolo node ...`.
pub fn run(arguments: &PlaceArgs, command: &NodeCommand) -> Result<(), Failure> {
    match command {
        NodeCommand::Init(init_arguments) => init(arguments, init_arguments),
        NodeCommand::Token(token_arguments) => token(arguments, token_arguments),
        NodeCommand::Join(join_arguments) => join(arguments, join_arguments),
        NodeCommand::Ls(list_arguments) => list(arguments, list_arguments.json),
        NodeCommand::Show { node, json } => show(arguments, node.as_deref(), *json),
        NodeCommand::Remove { node, force } => {
            let request = RemoveRequest { node: node.clone(), force: *force };
            said(&wait(client(arguments)?.post("cluster/remove", &request))??)
        }
        NodeCommand::Drain { node } => {
            said(&wait(client(arguments)?.post(&format!("nodes/{}/drain", encoded(node)), &()))??)
        }
        NodeCommand::Undrain { node } => {
            said(&wait(client(arguments)?.post(&format!("nodes/{}/undrain", encoded(node)), &()))??)
        }
        NodeCommand::Rotate { revoke } => {
            let request = RotateRequest { revoke: *revoke };
            said(&wait(client(arguments)?.post("cluster/rotate", &request))??)
        }
        NodeCommand::Etcd(etcd) => etcd::run(arguments, etcd),
        NodeCommand::Authority(authority) => authority::run(arguments, authority),
    }
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn said(said: &Said) -> Result<(), Failure> {
    print(&format!("{}\n", harmless(&said.said)))
}

fn pem(path: Option<&Path>) -> Result<Option<String>, Failure> {
    use std::io::Read;
    let Some(path) = path else { return Ok(None) };
    let read = || -> std::io::Result<String> {
        let mut text = String::new();
        std::fs::File::open(path)?.take(MAX_PEM_BYTES).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map(Some).map_err(|error| Failure::misuse(format!("can't read {}: {error}", path.display())))
}

fn init(arguments: &PlaceArgs, init: &InitArgs) -> Result<(), Failure> {
    let request = InitRequest {
        cluster: init.cluster.clone(),
        name: init.name.clone(),
        address: init.address.clone(),
        labels: init.labels.iter().cloned().collect(),
        etcd: init.etcd.clone(),
        prefix: Some(init.prefix.clone()),
        etcd_authority_pem: pem(init.etcd_ca.as_deref())?,
        etcd_certificate_pem: pem(init.etcd_cert.as_deref())?,
        etcd_key_pem: pem(init.etcd_key.as_deref())?,
        insecure_etcd: init.insecure_etcd,
    };
    become_a_node(arguments, "cluster/init", &request)?;
    print("let others join: `tombolo node token`\n")
}

fn join(arguments: &PlaceArgs, join: &JoinArgs) -> Result<(), Failure> {
    let request = JoinRequest {
        at: join.at.clone(),
        token: join.token.clone(),
        name: join.name.clone(),
        address: join.address.clone(),
        labels: join.labels.iter().cloned().collect(),
        insecure_etcd: join.insecure_etcd,
    };
    become_a_node(arguments, "cluster/join", &request)
}

/// Asks the daemon (which is started where none runs) for it, and waits until it is back as a node.
fn become_a_node(arguments: &PlaceArgs, path: &str, request: &impl serde::Serialize) -> Result<(), Failure> {
    let client = client(arguments)?;
    match wait(client.get::<Version>("version"))? {
        Err(ClientError::NotRunning { .. }) => up::start_daemon(&client, &place(arguments)?)?,
        other => drop(other?),
    }
    let done: Said = wait(client.post(path, request))??;
    said(&done)?;
    let begun = Instant::now();
    loop {
        let problem = match wait(client.get::<NodesView>("nodes"))? {
            Ok(view) if view.me.is_some() && !view.fenced => return Ok(()),
            Ok(view) => view.why.unwrap_or_else(|| "it has no lease yet".into()),
            Err(error @ (ClientError::NotRunning { .. } | ClientError::Broken { .. })) => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        if begun.elapsed() > RETURN_TIMEOUT {
            let log = place(arguments)?.daemon_log();
            return Err(Failure::new(format!("the daemon is not back as a node of the cluster: {problem}"))
                .help(format!("see {}, and `tombolo node ls`", log.display())));
        }
        // tidy(sleep): the daemon starts anew; there is nobody who could tell.
        std::thread::sleep(LOOK_EVERY);
    }
}

fn token(arguments: &PlaceArgs, token: &TokenArgs) -> Result<(), Failure> {
    let request = TokenRequest { ttl_s: Some(token.ttl), may_issue: !token.no_authority };
    let made: TokenView = wait(client(arguments)?.post("cluster/token", &request))??;
    if token.json {
        return print_json(&made);
    }
    let paint = Paint::of(&std::io::stdout());
    print(&format!(
        "{}\n{}good for one machine, within {}: tombolo node join {} TOKEN --name NAME{}\n",
        made.token,
        paint.dim,
        seconds(made.ttl_s),
        made.address,
        paint.end
    ))
}

fn view(client: &Client) -> Result<NodesView, Failure> {
    Ok(wait(client.get("nodes"))??)
}

fn list(arguments: &PlaceArgs, json: bool) -> Result<(), Failure> {
    let view = view(&client(arguments)?)?;
    if json {
        return print_json(&view);
    }
    let paint = Paint::of(&std::io::stdout());
    let Some(cluster) = &view.cluster else {
        return print("a single node, which belongs to no cluster; `tombolo node init` begins one\n");
    };
    let rows: Vec<Vec<String>> = view.nodes.iter().map(|row| cells(row, paint)).collect();
    print_table(
        &["NODE", "STATE", "ADDRESS", "CPUS", "MEMORY", "FREE TO PROMISE", "VERSION", "JOINED", "LABELS"],
        &rows,
    )?;
    if let Some(why) = &view.unprotected {
        print(&format!(
            "{}{}{}\n",
            paint.red,
            harmless(&format!("{why}; the daemon's log says what to do")),
            paint.end
        ))?;
    }
    if view.fenced {
        let why = view.why.as_deref().unwrap_or("it has no lease yet");
        let what = if view.removed { "was removed from" } else { "is cut off from" };
        let me = view.me.as_deref().unwrap_or("-");
        let text = format!(
            "this node ({me}) {what} cluster {cluster}, and does nothing that others might do in its place: {why}"
        );
        print(&format!("{}{}{}\n", paint.red, harmless(&text), paint.end))?;
    }
    for trouble in &view.troubles {
        print(&format!("{}{}{}\n", paint.red, harmless(trouble), paint.end))?;
    }
    Ok(())
}

fn cells(row: &NodeRow, paint: Paint) -> Vec<String> {
    let now = unix_s();
    vec![
        format!("{}{}", harmless(&row.name), if row.me { " (this one)" } else { "" }),
        paint.state(if row.alive { "up" } else { "down" }),
        harmless(&row.address),
        row.cpus.to_string(),
        bytes(row.memory_bytes),
        row.free.as_ref().map_or_else(|| "-".into(), |free| free_of(free, row.cpus)),
        harmless(&row.version),
        format!("{} ago", seconds(now.saturating_sub(row.joined_unix_s))),
        labels(&row.labels),
    ]
}

/// Returns the amounts that may still be promised, in short: as much of processors, link and
/// memory.
fn free_of(free: &FreeRow, cpus: u32) -> String {
    let sum: u64 = free.processors_ppm.iter().sum();
    let network = free.network_bits.map_or_else(String::new, |bits| format!(" {}", rate_text(bits)));
    format!(
        "{}.{:02} of {cpus} cpus{network} {}",
        sum / 1_000_000,
        sum % 1_000_000 / 10_000,
        bytes(free.memory_bytes)
    )
}

/// The same in full.
fn free_lines(free: &FreeRow) -> String {
    let processors: Vec<String> = free
        .processors_ppm
        .iter()
        .map(|ppm| format!("{}.{:02} %", ppm / 10_000, ppm % 10_000 / 100))
        .collect();
    let network = free.network_bits.map_or_else(|| "no link".to_owned(), rate_text);
    format!(
        "processors {}; network {network}; memory {}; disk {} and {} operations a second",
        processors.join(", "),
        bytes(free.memory_bytes),
        bytes(free.disk_bytes),
        free.disk_operations
    )
}

fn labels(labels: &BTreeMap<String, String>) -> String {
    let all: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if all.is_empty() { "-".into() } else { harmless(&all.join(" ")) }
}

fn show(arguments: &PlaceArgs, node: Option<&str>, json: bool) -> Result<(), Failure> {
    let client = client(arguments)?;
    let name = match node {
        Some(name) => name.to_owned(),
        None => view(&client)?.me.ok_or_else(|| {
            Failure::new("this node belongs to no cluster").help("`tombolo node init` begins one")
        })?,
    };
    let row: NodeRow = wait(client.get(&format!("nodes/{name}")))??;
    if json {
        return print_json(&row);
    }
    let lines = [
        ("node", row.name.clone()),
        ("state", if row.alive { "up".into() } else { "down".into() }),
        ("address", row.address.clone()),
        ("incarnation", row.incarnation.map_or("-".into(), |number| number.to_string())),
        ("cpus", row.cpus.to_string()),
        ("memory", bytes(row.memory_bytes)),
        ("free", row.free.as_ref().map_or_else(|| "it does not say what it can promise".into(), free_lines)),
        ("labels", labels(&row.labels)),
        ("version", row.version.clone()),
        ("certificate", row.certificate.clone()),
        (
            "authority",
            match row.authority {
                Some(true) => "yes: it can let others join".into(),
                Some(false) => "no".into(),
                None => "ask there".into(),
            },
        ),
    ];
    let text: String =
        lines.iter().map(|(what, value)| format!("{what:<12} {}\n", harmless(value))).collect();
    print(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_labels_are_read_or_refused() {
        assert_eq!((ttl("90s"), ttl("10m"), ttl("1h"), ttl("7d")), (Ok(90), Ok(600), Ok(3_600), Ok(604_800)));
        for bad in ["", "1", "h", "1.5h", "-1h", "1y", "99999999999999999999h", "18446744073709551615d"] {
            ttl(bad).unwrap_err();
        }
        assert_eq!(label("disk=ssd=fast"), Ok(("disk".into(), "ssd=fast".into())));
        label("disk").unwrap_err();
    }
}
