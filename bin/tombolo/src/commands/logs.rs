//! `tombolo logs`.

use super::look::encoded;
use super::{client, wait};
use crate::cli::{LogsArgs, PlaceArgs};
use crate::output::{Failure, harmless_line, print};
use domain::{Layout, LogQuery, LogReader, Record};
use node::admin::{Code, Entry};
use node::client::{Client, ClientError};
use node::place::Place;
use std::borrow::Cow;
use std::io::IsTerminal;
use std::time::Duration;

/// How long to wait for more before looking again; events come at once, this is for file systems without any.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints what a domain wrote.
pub fn run(place: &PlaceArgs, arguments: &LogsArgs) -> Result<(), Failure> {
    let client = client(place)?;
    let found = wait(client.get::<Entry>(&format!("domains/{}/place", encoded(&arguments.domain))))?;
    if let Ok(Entry { node: Some(_), .. }) = &found {
        return of_another_node(&client, arguments);
    }
    let (layout, dc, domain) = match found {
        Ok(entry) => (entry.layout, entry.dc, entry.domain),
        Err(error) => left_behind(&super::place(place)?, &arguments.domain, error)?,
    };
    let query = LogQuery {
        tail: arguments.tail.map(|lines| u64::try_from(lines).unwrap_or(u64::MAX)),
        follow: arguments.follow,
        since: None,
    };
    let mut reader = domain::logs(&layout, &dc, &domain, &query).map_err(|e| Failure::new(e.to_string()))?;
    drain(&mut reader, arguments)?;
    if !arguments.follow {
        return Ok(());
    }
    // Who reads this may go (`| head`) before there is more to print.
    while reader.wait_for(PATIENCE, std::io::stdout()).map_err(|e| Failure::new(e.to_string()))? {
        drain(&mut reader, arguments)?;
    }
    Err(Failure::silent())
}

/// The domain is on another node, whose daemon reads its log.
fn of_another_node(client: &Client, arguments: &LogsArgs) -> Result<(), Failure> {
    let tail = arguments.tail.map_or_else(String::new, |lines| format!("&tail={lines}"));
    let path = format!("domains/{}/logs?follow={}{tail}", encoded(&arguments.domain), arguments.follow);
    wait(client.lines(&path, |record: Record| print(&line(&record, arguments))))??;
    if arguments.follow {
        return Err(Failure::new("the node whose log was followed has ended it")
            .help("say it again: `tombolo ps` shows who has the domain now"));
    }
    Ok(())
}

/// The log of a domain that the daemon does not know: `up` failed and undid it (and says to look here), or no daemon runs.
fn left_behind(place: &Place, which: &str, error: ClientError) -> Result<(Layout, String, String), Failure> {
    let unknown = matches!(&error, ClientError::Refused(problem) if problem.code == Code::UnknownDomain);
    if !unknown && !matches!(error, ClientError::NotRunning { .. }) {
        return Err(error.into());
    }
    let layout = place.layout(super::daemon::program()?);
    let (wanted, name) = which.split_once('/').map_or((None, which), |(dc, name)| (Some(dc), name));
    let folders = std::fs::read_dir(layout.state_dir.join("logs")).into_iter().flatten().flatten();
    let mut dcs: Vec<String> = folders
        .filter_map(|folder| folder.file_name().into_string().ok())
        .filter(|dc| wanted.is_none_or(|wanted| wanted == dc))
        .filter(|dc| layout.domain(dc, name).is_ok_and(|paths| paths.log.exists()))
        .collect();
    match (dcs.pop(), dcs.is_empty()) {
        (Some(dc), true) => Ok((layout, dc, name.to_owned())),
        _ => Err(error.into()),
    }
}

fn drain(reader: &mut LogReader, arguments: &LogsArgs) -> Result<(), Failure> {
    while let Some(record) = reader.next_record().map_err(|e| Failure::new(e.to_string()))? {
        print(&line(&record, arguments))?;
    }
    Ok(())
}

fn line(record: &Record, arguments: &LogsArgs) -> String {
    if arguments.json {
        // A record is text and one truth value: JSON can say that.
        return serde_json::to_string(record).unwrap_or_default() + "\n";
    }
    // A file or another program gets it as it was written.
    let text: Cow<'_, str> = if std::io::stdout().is_terminal() {
        harmless_line(&record.line).into()
    } else {
        (&record.line).into()
    };
    let end = if record.partial { "" } else { "\n" };
    if arguments.timestamps {
        return format!("{} {text}{end}", record.time);
    }
    format!("{text}{end}")
}
