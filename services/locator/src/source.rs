//! The sources: a thread each reads lines from a device, a named pipe or a file, again and again.

use crate::desk::Desk;
use crate::outputs::Outputs;
use location::{Receiver, Survey, Tracker};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::termios::{OptionalActions, isatty, tcgetattr, tcsetattr};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::location::{Source, SourceKind};

/// Longest line, in bytes: a measurement of 256 beacons has 8 KiB.
const LINE_BYTES_MAX: u64 = 16 << 10;
/// Largest survey, in bytes.
const SURVEY_BYTES_MAX: u64 = 64 << 20;
/// How long to wait before a source that can't be read is tried again.
const AGAIN_PAUSE: Duration = Duration::from_secs(1);
/// A file is replayed at its own pace, but no gap in it takes longer, and none is shorter: one
/// whose times stand still must not spin.
const GAP_MAX: Duration = Duration::from_secs(10);
const GAP_MIN: Duration = Duration::from_millis(1);
/// Between the end of a file and its beginning.
const TURN: Duration = Duration::from_millis(100);

/// The reader of a source's lines.
#[derive(Debug)]
enum Reader {
    Receiver(Receiver),
    Tracker(Tracker),
}

/// A source, ready to be read.
#[derive(Debug)]
pub(crate) struct Feed {
    index: usize,
    source: Source,
    reader: Reader,
    /// The time of the last position of a file that is replayed, and when that was.
    replayed: Option<(i64, Instant)>,
}

impl Feed {
    /// The source with this place among the others.
    ///
    /// # Errors
    /// A survey that can't be read or used.
    pub(crate) fn new(index: usize, source: &Source) -> Result<Self, String> {
        let reader = match source.kind {
            SourceKind::Nmea => Reader::Receiver(Receiver::new(f64::from(source.range_error_m))),
            SourceKind::Signals => Reader::Tracker(Tracker::new(survey(source)?)),
        };
        Ok(Self { index, source: source.clone(), reader, replayed: None })
    }

    /// Reads it in a thread of its own, until the process ends.
    ///
    /// # Errors
    /// Where no thread starts.
    pub(crate) fn start(mut self, desk: Desk, outputs: Outputs) -> Result<(), String> {
        let name = format!("source-{}", self.index);
        let read = move || {
            loop {
                let pause = match self.read(&desk, &outputs) {
                    Ok(()) => TURN,
                    Err(error) => {
                        desk.fail(self.index, &format!("{}: {error}", self.source.path));
                        AGAIN_PAUSE
                    }
                };
                // tidy(sleep): nothing tells when a device is plugged in again, and a file without
                // positions must not spin.
                std::thread::sleep(pause);
            }
        };
        std::thread::Builder::new()
            .name(name)
            .spawn(read)
            .map_err(|error| format!("can't start a thread: {error}"))?;
        Ok(())
    }

    /// Reads from the beginning to the end.
    fn read(&mut self, desk: &Desk, outputs: &Outputs) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&self.source.path, flags, Mode::empty())?);
        let is_file = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) == FileType::RegularFile;
        plain(&file)?;
        self.replayed = None;
        let mut lines = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let count = (&mut lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
            match count {
                0 if is_file => return Ok(()),
                0 => return Err(io::Error::other("it has ended")),
                _ => self.take(&line, is_file, desk, outputs),
            }
        }
    }

    fn take(&mut self, line: &[u8], is_replayed: bool, desk: &Desk, outputs: &Outputs) {
        let found = match &mut self.reader {
            Reader::Receiver(receiver) => receiver.line(line, now_ms()).map_err(|error| error.to_string()),
            Reader::Tracker(tracker) => heard(line).and_then(|(heard, ms)| {
                // A line of a file without a time has no pace.
                let live = (!is_replayed).then(now_ms);
                let time_ms = ms.or(live).ok_or("a measurement of a file needs its time, `ms`")?;
                tracker
                    .hear(&heard, time_ms)
                    .map(Some)
                    .ok_or_else(|| "no beacon of the survey is heard".to_owned())
            }),
        };
        match found {
            Ok(Some(mut fix)) => {
                if is_replayed {
                    self.pace(fix.time_ms);
                    fix.time_ms = now_ms();
                }
                if let Some(name) = desk.fix(self.index, fix) {
                    outputs.tell(&name, fix);
                }
            }
            Ok(None) => {}
            Err(why) => desk.refuse(self.index, &why),
        }
    }

    /// Waits as long as it was between this position and the one before.
    fn pace(&mut self, time_ms: i64) {
        let due = match self.replayed {
            Some((before, at)) => {
                let gap = u64::try_from(time_ms.saturating_sub(before)).unwrap_or(0);
                at + Duration::from_millis(gap).clamp(GAP_MIN, GAP_MAX)
            }
            None => Instant::now(),
        };
        // tidy(sleep): the pace of what is replayed.
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        self.replayed = Some((time_ms, due));
    }
}

/// A terminal hands on each line as it comes, and takes nothing in it for a command.
fn plain(file: &impl AsFd) -> io::Result<()> {
    if isatty(file) {
        let mut state = tcgetattr(file)?;
        state.make_raw();
        tcsetattr(file, OptionalActions::Now, &state)?;
    }
    Ok(())
}

fn survey(source: &Source) -> Result<Survey, String> {
    let path = source.survey.as_deref().ok_or_else(|| format!("source {}: it has no survey", source.name))?;
    let fail = |what: String| format!("source {}: the survey {path}: {what}", source.name);
    let mut json = Vec::new();
    let file =
        File::open(path).map_err(|error| fail(format!("it can't be opened in this domain: {error}")))?;
    file.take(SURVEY_BYTES_MAX + 1).read_to_end(&mut json).map_err(|error| fail(error.to_string()))?;
    if json.len() as u64 > SURVEY_BYTES_MAX {
        return Err(fail(format!("it has more than {SURVEY_BYTES_MAX} bytes")));
    }
    Survey::parse(&json).map_err(|error| fail(error.to_string()))
}

/// A measurement: `{"dbm": {"BEACON": -61, ...}}`, with `"ms"` where it is one of a file.
fn heard(line: &[u8]) -> Result<(BTreeMap<String, f64>, Option<i64>), String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| format!("no measurement: {error}"))?;
    let beacons =
        value.get("dbm").and_then(Value::as_object).ok_or("no measurement: it has no object `dbm`")?;
    let strengths = beacons.iter().map(|(name, dbm)| Some((name.clone(), dbm.as_f64()?)));
    let strengths = strengths.collect::<Option<_>>().ok_or("no measurement: a strength is no number")?;
    Ok((strengths, value.get("ms").and_then(Value::as_i64)))
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // in a test, a panic is a message
    use super::*;

    #[test]
    fn a_measurement_is_an_object_of_strengths() {
        let (strengths, ms) = heard(br#"{"ms": 250, "dbm": {"a": -60, "b": -71.5}}"#).unwrap();
        assert_eq!((strengths.len(), strengths["b"], ms), (2, -71.5, Some(250)));
        for (line, words) in [
            (&b"words"[..], "expected value"),
            (br#"{"dbm": [1]}"#, "no object `dbm`"),
            (br#"{"dbm": {"a": "loud"}}"#, "no number"),
            (b"\xff", "no measurement"),
        ] {
            assert!(heard(line).unwrap_err().contains(words), "{words}");
        }
    }

    #[test]
    fn a_survey_that_does_not_fit_is_told_with_its_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{}").unwrap();
        let source = |survey: Option<&str>| Source {
            name: "radio".into(),
            kind: SourceKind::Signals,
            path: "/dev/null".into(),
            survey: survey.map(str::to_owned),
            range_error_m: 15,
            power_mw: 0,
        };
        let error = |survey| Feed::new(0, &source(survey)).unwrap_err();
        assert!(error(None).contains("source radio: it has no survey"));
        assert!(error(Some("/nowhere")).contains("/nowhere: it can't be opened in this domain"));
        assert!(error(file.path().to_str()).contains("it is no survey: missing field"));
    }
}
