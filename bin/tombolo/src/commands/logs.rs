//! `tombolo logs`.

use super::look::encoded;
use super::{client, wait};
use crate::cli::{LogsArgs, PlaceArgs};
use admin::client::{Client, ClientError};
use admin::place::Place;
use admin::{Code, Entry};
use domain::{Layout, LogQuery, LogReader, Record, Waited};
use std::borrow::Cow;
use std::io::IsTerminal;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use terminal::{Failure, harmless_line, print};

/// How long to wait for more before looking again; events come at once, this is for file systems
/// without any.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A moment as a person names it: `10m` (ago), or `2026-03-01T12:00:00Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(pub SystemTime);

impl Moment {
    fn milliseconds(self) -> u128 {
        self.0.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis())
    }
}

impl std::str::FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(ago) = humantime::parse_duration(text) {
            let moment = SystemTime::now().checked_sub(ago);
            return moment.map(Self).ok_or_else(|| format!("{text} ago is before all clocks"));
        }
        let moment = humantime::parse_rfc3339_weak(text);
        moment
            .map(Self)
            .map_err(|_| "say how long ago, as 10m or 2h, or when, as 2026-03-01T12:00:00Z".into())
    }
}

/// Prints what a domain wrote.
pub fn run(place: &PlaceArgs, arguments: &LogsArgs) -> Result<(), Failure> {
    let client = client(place)?;
    let found = wait(client.get::<Entry>(&format!("domains/{}/place", encoded(&arguments.domain))))?;
    let is_root = rustix::process::geteuid().is_root();
    if let Ok(Entry { node, .. }) = &found
        && (node.is_some() || !is_root)
    {
        return by_the_daemon(&client, arguments);
    }
    let (layout, dc, domain) = match found {
        Ok(entry) => (entry.layout, entry.dc, entry.domain),
        Err(error) => left_behind(&super::place(place)?, &arguments.domain, error)?,
    };
    let query = LogQuery {
        tail: arguments.tail.map(|lines| u64::try_from(lines).unwrap_or(u64::MAX)),
        follow: arguments.follow,
        since: arguments.since.map(|moment| moment.0),
        until: arguments.until.map(|moment| moment.0),
    };
    let mut reader = domain::logs(&layout, &dc, &domain, &query).map_err(|e| Failure::new(e.to_string()))?;
    drain(&mut reader, arguments)?;
    if !arguments.follow {
        return Ok(());
    }
    // The reader of this output may go (`| head`) before there is more to print.
    loop {
        match reader.wait_for(TIMEOUT, std::io::stdout()).map_err(|e| Failure::new(e.to_string()))? {
            Waited::More => drain(&mut reader, arguments)?,
            Waited::ReaderGone => return Err(Failure::silent()),
            Waited::LogGone => {
                eprintln!("{dc}/{domain} was taken down, and its log was removed");
                return Ok(());
            }
        }
    }
}

/// Only root may read the file, on the node that has it: its daemon reads it for us.
fn by_the_daemon(client: &Client, arguments: &LogsArgs) -> Result<(), Failure> {
    let tail = arguments.tail.map_or_else(String::new, |lines| format!("&tail={lines}"));
    let moment = |key: &str, moment: Option<Moment>| {
        moment.map_or_else(String::new, |moment| format!("&{key}={}", moment.milliseconds()))
    };
    let path = format!(
        "domains/{}/logs?follow={}{tail}{}{}",
        encoded(&arguments.domain),
        arguments.follow,
        moment("since_ms", arguments.since),
        moment("until_ms", arguments.until)
    );
    wait(client.lines(&path, |record: Record| print(&line(&record, arguments))))??;
    if arguments.follow {
        return Err(Failure::new("the node whose log was followed has ended it")
            .help("say it again: `tombolo ps` shows who has the domain now"));
    }
    Ok(())
}

/// The log of a domain that the daemon does not know: `up` failed and undid it (and says to look
/// here), or no daemon runs.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_ago_or_a_date() {
        let at = |text: &str| text.parse::<Moment>();
        assert_eq!(at("1970-01-01T00:00:01Z").expect("a date").milliseconds(), 1000);
        let ago = at("10m").expect("a duration").0.elapsed().expect("past");
        assert!((600..660).contains(&ago.as_secs()), "{ago:?}");
        for nonsense in ["", "yesterday", "-3m", "10"] {
            assert!(at(nonsense).expect_err("refused").contains("10m"), "{nonsense}");
        }
    }
}
