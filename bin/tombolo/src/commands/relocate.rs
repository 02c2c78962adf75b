//! `tombolo move`.

use super::look::{clean, encoded};
use super::{client, wait};
use crate::cli::{MoveArgs, PlaceArgs};
use admin::{DomainMoveRequest, MoveOutcome, MoveReport};
use terminal::{Failure, print, print_json};

/// Moves a domain, and says how that went.
pub fn run(place: &PlaceArgs, arguments: &MoveArgs) -> Result<(), Failure> {
    let request = DomainMoveRequest { to: arguments.to.clone(), dry_run: arguments.dry_run };
    let path = format!("domains/{}/move", encoded(&arguments.domain));
    let report: MoveReport = wait(client(place)?.post(&path, &request))??;
    let stays = matches!(report.outcome, MoveOutcome::Refused | MoveOutcome::Returned | MoveOutcome::Failed);
    if arguments.json {
        print_json(&report)?;
        return if stays { Err(Failure::silent()) } else { Ok(()) };
    }
    if stays {
        return Err(failure(&report));
    }
    print(&text(&report))
}

fn text(report: &MoveReport) -> String {
    let (name, from, to) = (name(report), clean(&report.from), clean(&report.to));
    let mut text = match report.outcome {
        MoveOutcome::There => format!("{name} is on {to} already\n"),
        MoveOutcome::Possible => format!("{name} can move from {from} to {to}, by a {}\n", report.how),
        _ => format!(
            "{name} moved from {from} to {to} by a {}, within {} ms (its end took {} ms, its start {} ms)\n",
            report.how,
            ms(report.pause_ms),
            ms(report.ended_ms),
            ms(report.began_ms)
        ),
    };
    for note in &report.notes {
        text += &format!("  {}\n", clean(note));
    }
    text
}

fn failure(report: &MoveReport) -> Failure {
    let (name, from, to) = (name(report), clean(&report.from), clean(&report.to));
    let why = report.why.as_deref().map_or_else(|| "nobody knows why".to_owned(), clean);
    match report.outcome {
        MoveOutcome::Refused => {
            let reasons: Vec<String> =
                report.refused.iter().map(|why| format!("\n  {}", clean(why))).collect();
            Failure::new(format!("{name} can't move to {to}, and stays on {from}:{}", reasons.concat()))
        }
        MoveOutcome::Returned => {
            Failure::new(format!("{name} did not come up on {to}, and is back on {from}: {why}"))
        }
        _ => Failure::new(format!("{name} did not come up on {to}: {why}"))
            .help("`tombolo ps` shows where it is"),
    }
}

fn name(report: &MoveReport) -> String {
    clean(&format!("{}/{}", report.dc, report.domain))
}

/// A time that may not be known: a daemon that died meanwhile took it along.
fn ms(time: Option<u64>) -> String {
    time.map_or_else(|| "?".to_owned(), |ms| ms.to_string())
}
