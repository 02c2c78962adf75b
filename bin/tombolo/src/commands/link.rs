//! `tombolo link`: what goes to other nodes, and over what.

use super::look::{clean, encoded};
use super::{client, wait};
use crate::cli::PlaceArgs;
use admin::{LinkChange, LinkRow};
use clap::{Args, Subcommand};
use serde_json::Value;
use std::io::stdout;
use terminal::{Failure, Paint, bytes, print, print_json, print_table, seconds};

#[derive(Debug, Subcommand)]
pub enum LinkCommand {
    /// List the links to other nodes
    #[command(after_help = "Examples:
  tombolo link ls
  tombolo link ls --json | jq -r '.[] | select(.up | not) | .node'")]
    Ls(LsArgs),
    /// Show one link: its proxy, its channels, what they moved
    #[command(after_help = "Examples:
  tombolo link show b
  tombolo link show b --json | jq .state.link")]
    Show(ShowArgs),
    /// Change what carries a link, while it is in use; no message is lost, doubled or overtaken
    #[command(after_help = "Examples:
  tombolo link set b --transport quic
  tombolo link set b --transport ethernet
  tombolo link set b --transport tipc
  tombolo link set b --compression zstd
  tombolo link set b --transport tcp --compression none
  tombolo link set b --interface eth1

Both nodes are told of transport and compression, and keep them. The interface is that of this node alone: say it on the other one, too. `ethernet` sends frames of our own over the interfaces that bear the nodes' addresses, or
those that `--interface` names: for nodes on one switch. `tipc` is for nodes whose kernels have TIPC (`modprobe tipc`) and a bearer to each other (`tipc bearer enable media eth device eth0`). Where a
transport can't be had the link stays on what it has, `link show` says why on both nodes, and it is tried again. `auto` compresses where that is sooner there. By default nothing is \
compressed: of domains whose data are compressed together, one that sees the lengths of packets can guess what others send.")]
    Set(SetArgs),
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Name of the other node
    pub node: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args(["transport", "compression", "interface"])))]
pub struct SetArgs {
    /// Name of the other node
    pub node: String,
    /// The transport that carries it
    #[arg(long, value_parser = ["tcp", "quic", "ethernet", "tipc"])]
    pub transport: Option<String>,
    /// How it is compressed
    #[arg(long, value_parser = ["none", "lz4", "zstd", "auto"])]
    pub compression: Option<String>,
    /// The interface of this node for `ethernet`; `auto`: the one that bears its address
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tombolo link ...`.
pub fn run(place: &PlaceArgs, command: &LinkCommand) -> Result<(), Failure> {
    match command {
        LinkCommand::Ls(arguments) => list(place, arguments),
        LinkCommand::Show(arguments) => {
            let tree: Value = wait(client(place)?.get(&path(&arguments.node)))??;
            shown(&tree, arguments.json)
        }
        LinkCommand::Set(arguments) => {
            let SetArgs { node, transport, compression, interface, json } = arguments;
            let change = LinkChange {
                transport: transport.clone(),
                compression: compression.clone(),
                interface: interface.clone(),
            };
            let tree: Value = wait(client(place)?.post(&path(node), &change))??;
            shown(&tree, *json)
        }
    }
}

fn path(node: &str) -> String {
    format!("links/{}", encoded(node))
}

fn list(place: &PlaceArgs, arguments: &LsArgs) -> Result<(), Failure> {
    let rows: Vec<LinkRow> = wait(client(place)?.get("links"))??;
    if arguments.json {
        return print_json(&rows);
    }
    table(&rows)
}

pub(super) fn table(rows: &[LinkRow]) -> Result<(), Failure> {
    let paint = Paint::of(&stdout());
    let cells: Vec<Vec<String>> = rows.iter().map(|row| cells(row, paint)).collect();
    print_table(&["NODE", "STATE", "SINCE", "TRANSPORT", "COMPRESSION", "PAIRS", "OUT", "IN", "PID"], &cells)
}

fn cells(row: &LinkRow, paint: Paint) -> Vec<String> {
    let dash = || "-".to_owned();
    let state = if row.up {
        format!("{}up{}", paint.green, paint.end)
    } else {
        format!("{}down{}", paint.yellow, paint.end)
    };
    let transport = if row.transport.is_empty() { &row.wanted_transport } else { &row.transport };
    vec![
        clean(&row.node),
        state,
        seconds(now_s().saturating_sub(row.since_unix_s)),
        clean(transport),
        clean(&row.compression),
        row.pairs.to_string(),
        bytes(row.bytes_out),
        bytes(row.bytes_in),
        row.pid.map_or_else(dash, |pid| pid.to_string()),
    ]
}

fn now_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

fn transport(row: &LinkRow) -> String {
    let line = format!("transport  {} (wanted: {})", clean(&row.transport), clean(&row.wanted_transport));
    let stays = row.up && row.transport != row.wanted_transport && !row.why.is_empty();
    if stays { format!("{line}\n           {}", clean(&row.why)) } else { line }
}

fn shown(tree: &Value, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(tree);
    }
    let row: LinkRow = serde_json::from_value(tree.clone())
        .map_err(|e| Failure::new(format!("the daemon's answer is not understood: {e}")))?;
    let state = if row.up { "up".to_owned() } else { format!("down: {}", clean(&row.why)) };
    let mut lines = vec![
        format!("link to    {}", clean(&row.node)),
        format!("state      {state}, since {}", seconds(now_s().saturating_sub(row.since_unix_s))),
        transport(&row),
        format!("compressed {}", clean(&row.compression)),
        format!("ethernet   over {}", row.interface.as_deref().map_or_else(|| "no interface".into(), clean)),
        format!("this side  {} {}", clean(&row.side), clean(&row.at.join(" "))),
        format!(
            "proxy      {}, its number {}, {} before",
            row.pid.map_or(0, |pid| pid),
            row.epoch,
            row.restarts
        ),
        format!("messages   {} out, {} in", row.messages_out, row.messages_in),
        format!("bytes      {} out, {} in", bytes(row.bytes_out), bytes(row.bytes_in)),
        format!("channels   {}", row.pairs),
    ];
    let left = tree.pointer("/state/link/left_addresses").and_then(Value::as_array);
    let left: Vec<String> = left.into_iter().flatten().filter_map(Value::as_str).map(clean).collect();
    if !left.is_empty() {
        lines.push(format!("left       {} (no transport that this release knows)", left.join(" ")));
    }
    for pair in tree.pointer("/state/pairs").and_then(Value::as_array).into_iter().flatten() {
        let text = |at: &str| clean(pair.pointer(at).and_then(Value::as_str).unwrap_or("-"));
        let number = |at: &str| pair.get(at).and_then(Value::as_u64).unwrap_or(0);
        lines.push(format!(
            "  {}/{} {} {}: {} out, {} in",
            text("/for/dc"),
            text("/for/domain"),
            if pair.get("ours").and_then(Value::as_bool) == Some(true) { "opened" } else { "opened there," },
            text("/for/service"),
            number("out_messages"),
            number("in_messages"),
        ));
    }
    print(&(lines.join("\n") + "\n"))
}
