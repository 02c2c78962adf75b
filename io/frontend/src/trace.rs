//! Where the time of single requests went: what `/srv/self/trace` shows.

use std::collections::VecDeque;

use serde_json::{Map, Value, json};
use wire::service::Phase;

use crate::handle::Times;

/// How many of the last traced requests are kept.
pub(crate) const TRACES_MAX: usize = 64;

/// One traced request.
#[derive(Debug, Clone)]
struct Trace {
    service: String,
    file: String,
    names: &'static [&'static str],
    session: u64,
    open_ns: u64,
    times: Times,
    /// When `read` asked for the answer, and when it was handed over.
    read: (u64, u64),
    close_ns: Option<u64>,
}

/// The last traced requests.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    kept: VecDeque<Trace>,
    /// Somebody wrote `on`.
    pub(crate) wanted: bool,
    /// How many have the file open for reading.
    pub(crate) readers: u32,
}

/// The caller of a request.
pub(crate) struct Origin<'a> {
    pub(crate) kind: &'a str,
    pub(crate) service: &'a str,
    pub(crate) file: &'a str,
    pub(crate) session: u64,
    pub(crate) open_ns: u64,
}

impl Traces {
    pub(crate) fn on(&self) -> bool {
        self.wanted || self.readers > 0
    }

    pub(crate) fn clear(&mut self) {
        self.kept.clear();
    }

    pub(crate) fn add(&mut self, origin: &Origin<'_>, times: Times, read: (u64, u64)) {
        if self.kept.len() == TRACES_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(Trace {
            service: origin.service.to_owned(),
            file: origin.file.to_owned(),
            names: phase_names(origin.kind),
            session: origin.session,
            open_ns: origin.open_ns,
            times,
            read,
            close_ns: None,
        });
    }

    /// The session was closed, which took so long.
    pub(crate) fn closed(&mut self, session: u64, ns: u64) {
        let own = self.kept.iter_mut().filter(|trace| trace.session == session);
        own.for_each(|trace| trace.close_ns = Some(ns));
    }

    /// One JSON object a line, the oldest first.
    pub(crate) fn to_lines(&self) -> Vec<u8> {
        let lines = self.kept.iter().map(|trace| trace.to_json().to_string() + "\n");
        lines.collect::<String>().into_bytes()
    }
}

impl Trace {
    fn to_json(&self) -> Value {
        let times = &self.times;
        let phases = times.phases.as_deref().unwrap_or_default();
        let phases: Map<_, _> =
            phases.iter().map(|phase| (self.phase(phase), phase.nanoseconds.into())).collect();
        let (asked, taken) = self.read;
        json!({
            "service": self.service,
            "file": self.file,
            "session": self.session,
            "open_ns": self.open_ns,
            "write_ns": times.accepted.saturating_sub(times.asked),
            "sent_ns": times.sent.saturating_sub(times.asked),
            "backend_ns": times.answered.saturating_sub(times.sent),
            "phases": phases,
            "read_ns": taken.saturating_sub(times.answered.max(asked)),
            "close_ns": self.close_ns,
            "total_ns": taken.saturating_sub(times.asked),
        })
    }

    fn phase(&self, phase: &Phase) -> String {
        let name = self.names.get(usize::from(phase.phase));
        name.map_or_else(|| format!("phase {}", phase.phase), |name| (*name).to_owned())
    }
}

/// The names that a kind of service gives its phases.
fn phase_names(kind: &str) -> &'static [&'static str] {
    if kind == wire::directory::KIND { &wire::directory::PHASES } else { &[] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_names_its_phases_and_only_the_last_are_kept() {
        let mut traces = Traces::default();
        let origin = Origin { kind: "directory", service: "dns", file: "query", session: 5, open_ns: 70 };
        let phases = vec![Phase { phase: 2, nanoseconds: 9 }, Phase { phase: 99, nanoseconds: 1 }];
        let times = Times { asked: 100, sent: 110, answered: 150, accepted: 120, phases: Some(phases) };
        for _ in 0..TRACES_MAX + 3 {
            traces.add(&origin, times.clone(), (130, 160));
        }
        traces.closed(5, 44);
        let text = String::from_utf8(traces.to_lines()).unwrap();
        assert_eq!(text.lines().count(), TRACES_MAX);
        let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        let wanted = json!({
            "service": "dns", "file": "query", "session": 5, "open_ns": 70, "write_ns": 20, "sent_ns": 10,
            "backend_ns": 40, "phases": {"cache": 9, "phase 99": 1}, "read_ns": 10, "close_ns": 44, "total_ns": 60,
        });
        assert_eq!(first, wanted);
    }
}
