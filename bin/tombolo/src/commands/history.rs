//! `tombolo history`.

use super::up::dc_of;
use super::{client, wait};
use crate::cli::{HistoryArgs, PlaceArgs};
use admin::history::Revision;
use similar::TextDiff;
use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};
use terminal::{Failure, harmless, print, print_json, print_table};

/// Steps of a revision that its row shows.
const STEPS_SHOWN: usize = 3;

/// Runs it.
pub fn run(place: &PlaceArgs, arguments: &HistoryArgs) -> Result<(), Failure> {
    let (dc, revisions) = all(place, arguments.which.as_deref())?;
    if let Some(number) = arguments.show {
        let revision = one(&dc, &revisions, number)?;
        return if arguments.json { print_json(revision) } else { print(&revision.text) };
    }
    if let [from, to @ ..] = arguments.diff.as_slice() {
        let from = one(&dc, &revisions, *from)?;
        let to = match to.first() {
            Some(number) => one(&dc, &revisions, *number)?,
            None => revisions.last().unwrap_or(from),
        };
        let diff = TextDiff::from_lines(&from.text, &to.text);
        let name = |revision: &Revision| format!("{dc} {}", revision.number);
        return print(&diff.unified_diff().header(&name(from), &name(to)).to_string());
    }
    if arguments.json {
        return print_json(&revisions);
    }
    let cells: Vec<Vec<String>> = revisions.iter().map(cells).collect();
    print_table(&["REVISION", "UP SINCE", "FILE", "CHANGES"], &cells)
}

/// One revision, of the distributed container that is meant.
pub fn revision(place: &PlaceArgs, which: Option<&str>, number: u64) -> Result<Revision, Failure> {
    let (dc, revisions) = all(place, which)?;
    one(&dc, &revisions, number).cloned()
}

fn all(place: &PlaceArgs, which: Option<&str>) -> Result<(String, Vec<Revision>), Failure> {
    if let Some(which) = which {
        let dc = dc_of(which)?;
        let revisions = wait(client(place)?.get(&format!("history/{}", super::look::encoded(&dc))))??;
        return Ok((dc, revisions));
    }
    let mut all: BTreeMap<String, Vec<Revision>> = wait(client(place)?.get("history"))??;
    match (all.pop_first(), all.is_empty()) {
        (Some(only), true) => Ok(only),
        (None, _) => Err(Failure::new("no file was up here, as far as is remembered")),
        (Some((first, _)), false) => {
            let names: Vec<String> = [first].into_iter().chain(all.into_keys()).collect();
            Err(Failure::misuse("several distributed containers were up here")
                .help(format!("say which: {}", names.join(", "))))
        }
    }
}

fn one<'a>(dc: &str, revisions: &'a [Revision], number: u64) -> Result<&'a Revision, Failure> {
    revisions.iter().find(|revision| revision.number == number).ok_or_else(|| {
        let numbers: Vec<String> = revisions.iter().map(|revision| revision.number.to_string()).collect();
        Failure::new(format!("{dc} has no revision {number}"))
            .help(format!("there are {}: tombolo history {dc}", numbers.join(", ")))
    })
}

fn cells(revision: &Revision) -> Vec<String> {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(revision.at_ms)).unwrap_or(UNIX_EPOCH);
    let file = revision.base.join(revision.file.file_name().unwrap_or_default());
    let steps: Vec<&str> = revision.changes.iter().take(STEPS_SHOWN).map(String::as_str).collect();
    let mut changes = if steps.is_empty() { "none of what runs".to_owned() } else { steps.join(", ") };
    if revision.changes.len() > STEPS_SHOWN {
        changes += &format!(", and {} more", revision.changes.len() - STEPS_SHOWN);
    }
    vec![
        revision.number.to_string(),
        humantime::format_rfc3339_seconds(at).to_string(),
        harmless(&file.to_string_lossy()),
        harmless(&changes),
    ]
}
