//! `tombolo stats`: what domains use now.

use super::{client, live, wait};
use crate::cli::{PlaceArgs, StatsArgs};
use admin::DomainRow;
use admin::client::Client;
use serde::Serialize;
use std::time::Instant;
use terminal::{Failure, bytes, print_table};

/// The use of one domain.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    dc: String,
    domain: String,
    node: Option<String>,
    state: String,
    /// Of one processor, in percent; null where it ran too short a time.
    cpu_percent: Option<f64>,
    memory_bytes: Option<u64>,
    processes: Option<u64>,
    restarts: u64,
}

/// A sample of all domains, and its time.
pub(super) struct Sample {
    at: Instant,
    rows: Vec<DomainRow>,
}

/// Prints what domains use: once, or anew each second on a terminal.
pub fn run(place: &PlaceArgs, arguments: &StatsArgs) -> Result<(), Failure> {
    let client = client(place)?;
    live::run(
        arguments.once,
        arguments.json,
        || sample(&client),
        |before, now| Ok(now.since(before)),
        |rows| table(rows),
    )
}

impl Sample {
    /// Returns the use of each domain since an earlier sample.
    pub(super) fn since(&self, before: &Self) -> Vec<Row> {
        self.rows.iter().map(|row| used(row, before, self.at)).collect()
    }
}

pub(super) fn sample(client: &Client) -> Result<Sample, Failure> {
    let rows = wait(client.get("domains"))??;
    Ok(Sample { at: Instant::now(), rows })
}

/// Returns the use of a domain since an earlier sample.
fn used(row: &DomainRow, before: &Sample, at: Instant) -> Row {
    let same = |other: &&DomainRow| (&other.dc, &other.domain, other.pid) == (&row.dc, &row.domain, row.pid);
    let earlier = before.rows.iter().find(same).and_then(|row| row.cpu_us);
    let elapsed_us = at.duration_since(before.at).as_secs_f64() * 1e6;
    let cpu_percent = earlier
        .zip(row.cpu_us)
        .filter(|_| elapsed_us > 0.0)
        .map(|(earlier, now)| now.saturating_sub(earlier) as f64 * 100.0 / elapsed_us);
    Row {
        dc: row.dc.clone(),
        domain: row.domain.clone(),
        node: row.node.clone(),
        state: row.state.clone(),
        cpu_percent,
        memory_bytes: row.memory_bytes,
        processes: row.processes,
        restarts: row.restarts,
    }
}

pub(super) fn table(rows: &[Row]) -> Result<(), Failure> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.dc.clone(),
                row.domain.clone(),
                or_dash(row.node.clone()),
                row.state.clone(),
                or_dash(row.cpu_percent.map(|percent| format!("{percent:.1} %"))),
                or_dash(row.memory_bytes.map(bytes)),
                or_dash(row.processes.map(|count| count.to_string())),
                row.restarts.to_string(),
            ]
        })
        .collect();
    print_table(&["DC", "DOMAIN", "NODE", "STATE", "CPU", "MEMORY", "PIDS", "RESTARTS"], &cells)
}
