//! `tombolo volume`: virtual disks that outlive the domains which have them.

use super::look::{clean, encoded};
use super::{client, wait};
use crate::cli::PlaceArgs;
use admin::volume::{Change, ChangeVolume, CreateVolume, ReplicaRow, VolumeRow};
use clap::{Args, Subcommand};
use std::io::stdout;
use terminal::{Failure, Paint, bytes, print, print_json, print_table};
use topology::{DiskFormat, VolumeStore, parse_size};

#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// List the volumes of this node
    #[command(after_help = "Examples:
  tombolo volume ls
  tombolo volume ls --json | jq -r '.[] | select(.domain == null) | .name'")]
    Ls(LsArgs),
    /// Show one volume: who has it, its engine, its replicas, its snapshots
    #[command(after_help = "Examples:
  tombolo volume show data
  qemu-img info \"nbd+unix:///volume?socket=$(tombolo volume show data --json | jq -r .socket)\"")]
    Show(NameArgs),
    /// Make an empty volume before a file wants it (`up` makes one by itself)
    #[command(after_help = "Examples:
  tombolo volume create shop/data --size 8GiB
  tombolo volume create shop/data --size 8GiB --format qcow2")]
    Create(CreateArgs),
    /// Let a volume grow, while no domain has it
    #[command(after_help = "Examples:
  tombolo volume resize data --size 16GiB

While a domain has it: change the size in its file, and `tombolo up`; the domain is restarted.")]
    Resize(ResizeArgs),
    /// Remember what a qcow2 volume is like now, also while a domain has it
    #[command(after_help = "Examples:
  tombolo volume snapshot data before-upgrade
  tombolo volume snapshot data before-upgrade --remove

What a domain has not written to its disk yet (`sync`) is not in there.")]
    Snapshot(SnapshotArgs),
    /// Have a volume be what it was at a snapshot, while no domain has it
    #[command(after_help = "Examples:
  tombolo volume restore data before-upgrade")]
    Restore(RestoreArgs),
    /// Delete a volume and all that it holds, while no domain has it
    #[command(after_help = "Examples:
  tombolo volume rm shop/data")]
    Rm(NameArgs),
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct NameArgs {
    /// The volume: NAME, or DC/NAME
    #[arg(value_name = "VOLUME")]
    pub name: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The volume: DC/NAME
    #[arg(value_name = "DC/NAME")]
    pub name: String,
    /// Bytes that its domain sees: 8GiB
    #[arg(long, value_parser = size)]
    pub size: u64,
    /// How they lie in its file; qcow2 has snapshots
    #[arg(long, value_parser = ["raw", "qcow2"], default_value = "raw")]
    pub format: String,
    /// The medium that they are kept in; memory is gone after a reboot
    #[arg(long, value_parser = ["file", "memory"], default_value = "file")]
    pub store: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ResizeArgs {
    #[command(flatten)]
    pub volume: NameArgs,
    /// Bytes that its domain shall see: 16GiB
    #[arg(long, value_parser = size)]
    pub size: u64,
}

#[derive(Debug, Args)]
pub struct SnapshotArgs {
    #[command(flatten)]
    pub volume: NameArgs,
    /// Name of the snapshot
    pub snapshot: String,
    /// Forget it instead
    #[arg(long)]
    pub remove: bool,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    pub volume: NameArgs,
    /// Name of the snapshot
    pub snapshot: String,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| "a whole number and its unit: 64MiB, 8GiB".into())
}

/// `tombolo volume ...`.
pub fn run(place: &PlaceArgs, command: &VolumeCommand) -> Result<(), Failure> {
    match command {
        VolumeCommand::Ls(arguments) => list(place, arguments),
        VolumeCommand::Show(NameArgs { name, json }) => {
            let row: VolumeRow = wait(client(place)?.get(&format!("volumes/show/{}", path(name))))??;
            shown(&row, *json)
        }
        VolumeCommand::Create(arguments) => create(place, arguments),
        VolumeCommand::Resize(ResizeArgs { volume, size }) => {
            change(place, volume, Change::Resize { bytes: *size })
        }
        VolumeCommand::Snapshot(SnapshotArgs { volume, snapshot, remove }) => {
            let name = snapshot.clone();
            change(place, volume, if *remove { Change::Forget { name } } else { Change::Snapshot { name } })
        }
        VolumeCommand::Restore(RestoreArgs { volume, snapshot }) => {
            change(place, volume, Change::Restore { name: snapshot.clone() })
        }
        VolumeCommand::Rm(volume) => change(place, volume, Change::Remove),
    }
}

/// A volume's name as a part of a path of the admin socket: its slash is one there, too.
pub(super) fn path(name: &str) -> String {
    name.split('/').map(encoded).collect::<Vec<_>>().join("/")
}

fn create(place: &PlaceArgs, arguments: &CreateArgs) -> Result<(), Failure> {
    let CreateArgs { name, size, format, store, json } = arguments;
    let request = CreateVolume {
        name: name.clone(),
        bytes: *size,
        format: if format == "qcow2" { DiskFormat::Qcow2 } else { DiskFormat::Raw },
        store: if store == "memory" { VolumeStore::Memory } else { VolumeStore::File },
    };
    let row: VolumeRow = wait(client(place)?.post("volumes/create", &request))??;
    shown(&row, *json)
}

fn change(place: &PlaceArgs, volume: &NameArgs, change: Change) -> Result<(), Failure> {
    let request = ChangeVolume { name: volume.name.clone(), change };
    let row: Option<VolumeRow> = wait(client(place)?.post("volumes/change", &request))??;
    match (row, volume.json) {
        (Some(row), json) => shown(&row, json),
        (None, true) => print_json(&serde_json::json!({ "removed": volume.name })),
        (None, false) => print(&format!("{} and all that it held are removed\n", clean(&volume.name))),
    }
}

fn list(place: &PlaceArgs, arguments: &LsArgs) -> Result<(), Failure> {
    let rows: Vec<VolumeRow> = wait(client(place)?.get("volumes"))??;
    if arguments.json {
        return print_json(&rows);
    }
    let paint = Paint::of(&stdout());
    let cells: Vec<Vec<String>> = rows.iter().map(|row| cells(row, paint)).collect();
    print_table(&["VOLUME", "STATE", "DOMAIN", "SIZE", "ALLOCATED", "FORMAT", "STORE", "SNAPSHOTS"], &cells)
}

fn cells(row: &VolumeRow, paint: Paint) -> Vec<String> {
    let colour = match row.state.as_str() {
        "serving" => paint.green,
        "idle" => "",
        _ => paint.yellow,
    };
    let end = if colour.is_empty() { "" } else { paint.end };
    vec![
        format!("{}/{}", clean(&row.dc), clean(&row.name)),
        format!("{colour}{}{end}", clean(&row.state)),
        row.domain.as_deref().map_or_else(|| "-".to_owned(), clean),
        bytes(row.bytes),
        bytes(row.allocated),
        clean(&row.format),
        clean(&row.store),
        row.snapshots.len().to_string(),
    ]
}

fn replica(row: &ReplicaRow) -> String {
    let percent = row.resynced_percent.map_or_else(String::new, |percent| format!(" ({percent} %)"));
    let why = row.why.as_deref().map_or_else(String::new, |why| format!(": {}", clean(why)));
    format!("replica    {} is {}{percent}{why}", clean(&row.node), clean(&row.state))
}

fn shown(row: &VolumeRow, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(row);
    }
    let mut lines = vec![
        format!("volume     {}/{}", clean(&row.dc), clean(&row.name)),
        format!("state      {}", clean(&row.state)),
        format!("size       {}, of which {} are allocated", bytes(row.bytes), bytes(row.allocated)),
        format!("kept as    {} in {}", clean(&row.format), clean(&row.store)),
    ];
    if let Some(domain) = &row.domain {
        lines.push(format!("domain     {}", clean(domain)));
    }
    if let Some(pid) = row.pid {
        lines.push(format!("engine     {pid}, {} before", row.restarts));
    }
    if let Some(socket) = &row.socket {
        lines.push(format!("NBD        {} (export `volume`)", clean(&socket.display().to_string())));
    }
    if !row.replicas.is_empty() {
        let primary = row.primary.as_deref().map_or_else(|| "nobody".to_owned(), clean);
        lines.push(format!("view       {}, of {primary}", row.view));
        lines.extend(row.replicas.iter().map(replica));
    }
    if let Some(why) = &row.why {
        lines.push(format!("why        {}", clean(why)));
    }
    if !row.snapshots.is_empty() {
        let names: Vec<String> = row.snapshots.iter().map(|name| clean(name)).collect();
        lines.push(format!("snapshots  {}", names.join(" ")));
    }
    print(&(lines.join("\n") + "\n"))
}
