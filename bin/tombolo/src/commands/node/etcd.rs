//! `tombolo node etcd`: what the cluster stands on.

use super::said;
use crate::cli::PlaceArgs;
use crate::commands::{client, wait};
use crate::output::{Failure, Paint, harmless, print, print_json, print_table};
use ::node::admin::{BackupRequest, EtcdMemberRow, EtcdView};
use clap::{Args, Subcommand};
use std::path::PathBuf;

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
}

/// `tombolo node etcd ...`.
pub fn run(arguments: &PlaceArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let client = client(arguments)?;
    match &etcd.command {
        None => {
            let view: EtcdView = wait(client.get("cluster/etcd"))??;
            if etcd.json { print_json(&view) } else { show(&view) }
        }
        Some(EtcdCommand::Backup { file }) => {
            let absolute = std::path::absolute(file)
                .map_err(|error| Failure::misuse(format!("{}: {error}", file.display())))?;
            said(&wait(client.post("cluster/etcd/backup", &BackupRequest { file: absolute }))??)
        }
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
