//! `tombolo reserve watch`: a live table of what is promised, used and missed.

use super::super::{client, live, wait};
use crate::cli::PlaceArgs;
use admin::adaptation::AdaptationRow;
use admin::client::Client;
use admin::reserve::{Book, VtmRow};
use serde::Serialize;
use std::time::Instant;
use terminal::{Failure, print_table};
use topology::nanos_text;

struct Sample {
    at: Instant,
    vtms: Vec<VtmRow>,
    adaptations: Vec<AdaptationRow>,
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    processor: Option<usize>,
    cpu: Option<String>,
    /// Of its budget, in percent; null where it ran too short a time.
    used_percent: Option<f64>,
    /// Periods or slots that it has missed since the last look.
    missed: Option<u64>,
    figure: Option<String>,
    state: String,
    last_change: Option<String>,
}

/// Prints the table: anew each second on a terminal, once elsewhere.
pub fn run(place: &PlaceArgs, once: bool, json: bool) -> Result<(), Failure> {
    let client = client(place)?;
    live::run(
        once,
        json,
        || sample(&client),
        |before, now| Ok(now.vtms.iter().map(|vtm| row(vtm, before, now)).collect::<Vec<Row>>()),
        |rows| table(rows),
    )
}

fn sample(client: &Client) -> Result<Sample, Failure> {
    let book: Book = wait(client.get("reserve"))??;
    let adaptations = wait(client.get("adaptations"))??;
    Ok(Sample { at: Instant::now(), vtms: book.vtms, adaptations })
}

fn row(vtm: &VtmRow, before: &Sample, now: &Sample) -> Row {
    let earlier = before.vtms.iter().find(|other| other.name == vtm.name);
    let elapsed_us = now.at.duration_since(before.at).as_secs_f64() * 1e6;
    let grown = |of: fn(&VtmRow) -> Option<u64>| of(vtm)?.checked_sub(of(earlier?)?);
    let share = vtm.reserve.cpu.map(|cpu| cpu.budget_ns as f64 / cpu.period_ns as f64);
    let used = grown(|vtm| vtm.cpu_us).zip(share).filter(|_| elapsed_us > 0.0);
    let used_percent = used.map(|(us, share)| us as f64 * 100.0 / (elapsed_us * share));
    let late = |vtm: &VtmRow| vtm.dispatched.as_ref().map(|by| by.late_slots);
    let missed = grown(late).or_else(|| grown(|vtm| vtm.throttled_periods));
    let adaptation = now.adaptations.iter().find(|one| one.domain == vtm.name);
    let held = match (vtm.suspended, vtm.in_force) {
        (true, _) => "suspended",
        (false, true) => "kept",
        (false, false) => "not running",
    };
    Row {
        name: vtm.name.clone(),
        processor: vtm.processor,
        cpu: vtm
            .reserve
            .cpu
            .map(|cpu| format!("{} / {}", nanos_text(cpu.budget_ns), nanos_text(cpu.period_ns))),
        used_percent,
        missed,
        figure: adaptation.and_then(|one| one.figure.clone()),
        state: adaptation.map_or_else(|| held.to_owned(), |one| format!("{held}, {}", one.state)),
        last_change: adaptation.and_then(|one| Some(one.last_change.as_ref()?.what.clone())),
    }
}

fn table(rows: &[Row]) -> Result<(), Failure> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.name.clone(),
                or_dash(row.processor.map(|number| number.to_string())),
                or_dash(row.cpu.clone()),
                or_dash(row.used_percent.map(|percent| format!("{percent:.0} %"))),
                or_dash(row.missed.map(|count| count.to_string())),
                or_dash(row.figure.clone()),
                row.state.clone(),
                or_dash(row.last_change.as_deref().map(terminal::harmless)),
            ]
        })
        .collect();
    print_table(&["NAME", "ON", "CPU", "USED", "MISSED", "FIGURE", "STATE", "LAST CHANGE"], &cells)
}
