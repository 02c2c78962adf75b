//! `tombolo adaptation`.

use super::reserve::{nanos, rate};
use super::{client, wait};
use crate::cli::PlaceArgs;
use admin::adaptation::{AdaptationRow, SetAdaptation, amounts_text};
use clap::{Args, Subcommand};
use std::time::{Duration, UNIX_EPOCH};
use terminal::{Failure, harmless, print, print_json, print_table};

#[derive(Debug, Subcommand)]
pub enum AdaptationCommand {
    /// List all adaptations of this node
    #[command(after_help = "Examples:
  tombolo adaptation ls
  tombolo adaptation ls --json | jq '.[] | select(.refused) | {name, refused}'")]
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one: its figure, what it has, what was changed last and why
    Show {
        /// NAME or DC/NAME
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Leave everything as it is until `resume`
    Pause {
        /// NAME or DC/NAME
        name: String,
    },
    /// Let it go on from what is now
    Resume {
        /// NAME or DC/NAME
        name: String,
    },
    /// Set by hand what it moves, and pause it
    #[command(after_help = "Examples:
  tombolo adaptation set player --cpu 12ms --level 1
  tombolo adaptation set player --file          what the file says
  tombolo adaptation resume player              let it go on from there")]
    Set(SetArgs),
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// NAME or DC/NAME
    pub name: String,
    /// Budget of the processor in each period
    #[arg(long, value_name = "TIME", value_parser = nanos, allow_hyphen_values = true)]
    pub cpu: Option<u64>,
    /// Rate of the link
    #[arg(long, value_name = "RATE", value_parser = rate, allow_hyphen_values = true)]
    pub network: Option<u64>,
    /// Level of quality: 0 is the best
    #[arg(long, value_name = "NUMBER")]
    pub level: Option<u32>,
    /// Return to the values of the file, but for those that are given here
    #[arg(long)]
    pub file: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs one of them.
pub fn run(place: &PlaceArgs, command: &AdaptationCommand) -> Result<(), Failure> {
    match command {
        AdaptationCommand::Ls { json } => list(place, *json),
        AdaptationCommand::Show { name, json } => {
            let path = format!("adaptations/show/{}", super::volume::path(name));
            let row: AdaptationRow = wait(client(place)?.get(&path))??;
            if *json { print_json(&row) } else { print(&shown(&row)) }
        }
        AdaptationCommand::Pause { name } => pause(place, name, true),
        AdaptationCommand::Resume { name } => pause(place, name, false),
        AdaptationCommand::Set(arguments) => set(place, arguments),
    }
}

fn list(place: &PlaceArgs, json: bool) -> Result<(), Failure> {
    let rows: Vec<AdaptationRow> = wait(client(place)?.get("adaptations"))??;
    if json {
        return print_json(&rows);
    }
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.name.clone(),
                row.domain.clone(),
                row.state.clone(),
                row.monitor.clone(),
                or_dash(row.figure.clone()),
                amounts_text(&row.has, levels(row)),
                row.changes.to_string(),
                or_dash(row.refused.as_deref().map(harmless)),
            ]
        })
        .collect();
    print_table(&["NAME", "DOMAIN", "STATE", "MONITOR", "FIGURE", "HAS", "CHANGES", "MAY NOT HAVE"], &cells)
}

fn levels(row: &AdaptationRow) -> u32 {
    row.most.level.saturating_add(1)
}

fn shown(row: &AdaptationRow) -> String {
    let text = |amounts| amounts_text(amounts, levels(row));
    let mut lines = vec![
        row.name.clone(),
        format!("domain     {}", row.domain),
        format!("state      {}", row.state),
        format!("monitor    {}, read every {} ms", row.monitor, row.every_ms),
        format!("figure     {}", row.figure.as_deref().unwrap_or("none")),
        format!("says       {}", harmless(&row.why)),
        format!("has        {}", text(&row.has)),
        format!("file       {}", text(&row.file)),
        format!("between    {} and {}", text(&row.least), text(&row.most)),
        format!("priority   {}", row.priority),
        format!("changes    {}, and {} wishes not had in whole", row.changes, row.refusals),
    ];
    lines.extend(row.activator.iter().map(|activator| {
        let trouble =
            activator.trouble.as_deref().map_or_else(String::new, |why| format!("; {}", harmless(why)));
        format!("activator  run {} times{trouble}", activator.runs)
    }));
    lines.extend(row.refused.iter().map(|refused| format!("may not    {}", harmless(refused))));
    lines.extend(row.last_change.iter().map(|change| {
        let at = UNIX_EPOCH.checked_add(Duration::from_millis(change.at_ms)).unwrap_or(UNIX_EPOCH);
        format!("last       {} {}", humantime::format_rfc3339_millis(at), harmless(&change.what))
    }));
    lines.join("\n") + "\n"
}

fn pause(place: &PlaceArgs, name: &str, paused: bool) -> Result<(), Failure> {
    let request = SetAdaptation { name: name.to_owned(), paused: Some(paused), ..SetAdaptation::default() };
    let row: AdaptationRow = wait(client(place)?.post("adaptations/set", &request))??;
    let state = if paused { "is paused" } else { "goes on" };
    print(&format!("{} {state} with {}\n", row.name, amounts_text(&row.has, levels(&row))))
}

fn set(place: &PlaceArgs, arguments: &SetArgs) -> Result<(), Failure> {
    let SetArgs { name, cpu, network, level, file, json } = arguments;
    if !file && cpu.is_none() && network.is_none() && level.is_none() {
        return Err(Failure::misuse("nothing is set")
            .help("say what: --cpu 12ms, --network 2mbit, --level 1 or --file"));
    }
    let request = SetAdaptation {
        name: name.clone(),
        paused: Some(true),
        cpu_ns: *cpu,
        network_bits: *network,
        level: *level,
        file: *file,
    };
    let row: AdaptationRow = wait(client(place)?.post("adaptations/set", &request))??;
    if *json {
        return print_json(&row);
    }
    let has = amounts_text(&row.has, levels(&row));
    print(&format!("{} is paused with {has}; `tombolo adaptation resume {name}` lets it go on\n", row.name))
}
