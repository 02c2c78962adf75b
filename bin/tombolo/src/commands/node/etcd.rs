//! `tombolo node etcd`: what the cluster stands on.

use super::said;
use crate::cli::PlaceArgs;
use crate::commands::daemon::program;
use crate::commands::{client, place, wait};
use ::admin::{BackupRequest, EtcdMemberRow, EtcdView};
use ::node::PEER_PORT;
use ::node::daemon::{Restore, restore_etcd};
use clap::{Args, Subcommand};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use terminal::{Failure, Paint, harmless, print, print_json, print_table};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct EtcdArgs {
    #[command(subcommand)]
    pub command: Option<EtcdCommand>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum EtcdCommand {
    /// Write a copy of all that etcd holds into a file, which must not be there; it is a secret
    Backup {
        /// Where to
        file: PathBuf,
    },
    /// Begin the cluster's own etcd again from such a copy, when it is lost: no daemon of the
    /// cluster may run
    #[command(after_help = "Examples:
  a# tombolo node etcd restore /root/etcd.copy     at one node: etcd is here from now on
  b# tombolo node etcd restore --at 10.0.0.1       at each other node: etcd is there from now on

Stop the daemon on every node first, and start it again when all of this is done. Etcd grows again by itself.")]
    Restore {
        /// The copy
        #[arg(required_unless_present = "at", conflicts_with = "at")]
        file: Option<PathBuf>,
        /// The node at which the copy was restored, as it is called by other nodes
        #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = address)]
        at: Option<SocketAddr>,
    },
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let bare = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PEER_PORT));
    text.parse().or(bare).map_err(|_| format!("this is no address as 10.0.0.1 or 10.0.0.1:{PEER_PORT}"))
}

fn absolute(file: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(file).map_err(|error| Failure::misuse(format!("{}: {error}", file.display())))
}

fn restore(arguments: &PlaceArgs, what: &Restore<'_>) -> Result<(), Failure> {
    let at = restore_etcd(&place(arguments)?, program()?, what)?;
    let next = match what {
        Restore::Copy(_) => {
            "say so at each other node: `tombolo node etcd restore --at` and this node's address; then start the daemons"
        }
        Restore::At(_) => "start the daemon when this was said at every node",
    };
    print(&format!("this node finds the cluster's etcd at {at}\n{next}\n"))
}

/// `tombolo node etcd ...`.
pub fn run(arguments: &PlaceArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    match &etcd.command {
        Some(EtcdCommand::Restore { file: Some(file), .. }) => {
            return restore(arguments, &Restore::Copy(&absolute(file)?));
        }
        Some(EtcdCommand::Restore { at: Some(at), .. }) => return restore(arguments, &Restore::At(*at)),
        _ => {}
    }
    let client = client(arguments)?;
    match &etcd.command {
        None => {
            let view: EtcdView = wait(client.get("cluster/etcd"))??;
            if etcd.json { print_json(&view) } else { show(&view) }
        }
        Some(EtcdCommand::Backup { file }) => {
            let request = BackupRequest { file: absolute(file)? };
            said(&wait(client.post("cluster/etcd/backup", &request))??)
        }
        Some(EtcdCommand::Restore { .. }) => Ok(()),
    }
}

fn show(view: &EtcdView) -> Result<(), Failure> {
    let rows: Vec<Vec<String>> = view.members.iter().map(cells).collect();
    print_table(&["MEMBER", "NODE", "STATE", "AT"], &rows)?;
    let paint = Paint::of(&std::io::stdout());
    for (node, why) in &view.cannot {
        print(&format!("node {} can't have a member: {}\n", harmless(node), harmless(why)))?;
    }
    if let Some(why) = &view.why {
        print(&format!(
            "{}the member of this node does not run: {}{}\n",
            paint.red,
            harmless(why),
            paint.end
        ))?;
    }
    let voters = view.members.iter().filter(|member| member.votes).count();
    let spare = voters.saturating_sub(1) / 2;
    print(&format!("{}{}{}\n", paint.dim, spared(spare, view.own), paint.end))
}

fn cells(member: &EtcdMemberRow) -> Vec<String> {
    let state = match (member.votes, member.leads) {
        (_, true) => "leads",
        (true, false) => "follows",
        (false, false) => "learns",
    };
    let node = member.node.clone().unwrap_or_else(|| "-".into());
    vec![member.id.clone(), harmless(&node), state.into(), harmless(&member.at.join(", "))]
}

/// How many members may be lost, for a person.
fn spared(spare: usize, own: bool) -> String {
    match (spare, own) {
        (0, true) => "none of them may be lost: with three nodes there are three members".into(),
        (0, false) => "none of them may be lost".into(),
        (1, _) => "one of them may be lost".into(),
        (more, _) => format!("{more} of them may be lost"),
    }
}
