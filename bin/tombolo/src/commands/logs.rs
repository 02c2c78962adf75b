//! `tombolo logs`.

use super::look::encoded;
use super::{client, wait};
use crate::cli::{LogsArgs, PlaceArgs};
use crate::output::{Failure, print};
use domain::{LogQuery, LogReader, Record};
use node::admin::Entry;
use std::time::Duration;

/// How long to wait for more before looking again; events come at once, this is for file systems without any.
const PATIENCE: Duration = Duration::from_secs(60);

/// Prints what a domain wrote.
pub fn run(place: &PlaceArgs, arguments: &LogsArgs) -> Result<(), Failure> {
    let client = client(place)?;
    let entry: Entry = wait(client.get(&format!("domains/{}/place", encoded(&arguments.domain))))??;
    let query = LogQuery {
        tail: arguments.tail.map(|lines| u64::try_from(lines).unwrap_or(u64::MAX)),
        follow: arguments.follow,
        since: None,
    };
    let mut reader = domain::logs(&entry.layout, &entry.dc, &entry.domain, &query)
        .map_err(|e| Failure::new(e.to_string()))?;
    drain(&mut reader, arguments)?;
    if !arguments.follow {
        return Ok(());
    }
    loop {
        reader.wait(PATIENCE).map_err(|e| Failure::new(e.to_string()))?;
        drain(&mut reader, arguments)?;
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
    let end = if record.partial { "" } else { "\n" };
    if arguments.timestamps {
        return format!("{} {}{end}", record.time, record.line);
    }
    format!("{}{end}", record.line)
}
