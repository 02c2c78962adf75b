//! The counters that a frontend keeps about itself.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::histogram::Histogram;

/// Most service and entrance pairs that have a histogram.
const LATENCIES_MAX: usize = 128;

/// Counters since this process started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) requests: u64,
    pub(crate) opens: u64,
    pub(crate) refused_opens: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) polls: u64,
    pub(crate) ioctls: u64,
    pub(crate) interrupts: u64,
    pub(crate) unknown: u64,
    /// Replies that nobody waited for.
    pub(crate) unheard: u64,
    pub(crate) lines: u64,
    pub(crate) answers: u64,
    /// Records of streams that came.
    pub(crate) records: u64,
    pub(crate) errors: u64,
    /// Answers to what was cancelled.
    pub(crate) late: u64,
    /// Messages that no correct backend sends.
    pub(crate) violations: u64,
    pub(crate) links: u64,
    pub(crate) links_lost: u64,
    /// Requests that were sent to a second backend.
    pub(crate) asked_again: u64,
    /// Requests that were lost with their backend.
    pub(crate) lost: u64,
    /// Calls that waited in vain for a backend.
    pub(crate) waited_in_vain: u64,
    /// Calls that were answered from the ledger.
    pub(crate) replayed: u64,
    pub(crate) parked_most: u64,
    latencies: BTreeMap<(String, String), Histogram>,
}

impl Counters {
    /// Counts a request's time from its asking to its answer.
    pub(crate) fn latency(&mut self, service: &str, entrance: &str, ns: u64) {
        // Looked up without making a key: this is on every request's way.
        let known = self.latencies.iter_mut().find(|((s, e), _)| s == service && e == entrance);
        if let Some((_, histogram)) = known {
            histogram.record(ns);
        } else if self.latencies.len() < LATENCIES_MAX {
            let histogram = self.latencies.entry((service.to_owned(), entrance.to_owned())).or_default();
            histogram.record(ns);
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "requests": self.requests,
            "opens": self.opens,
            "refused_opens": self.refused_opens,
            "reads": self.reads,
            "writes": self.writes,
            "polls": self.polls,
            "ioctls": self.ioctls,
            "interrupts": self.interrupts,
            "unknown_requests": self.unknown,
            "unheard_replies": self.unheard,
            "lines": self.lines,
            "answers": self.answers,
            "records": self.records,
            "errors": self.errors,
            "late_answers": self.late,
            "violations": self.violations,
            "links": self.links,
            "links_lost": self.links_lost,
            "asked_again": self.asked_again,
            "lost": self.lost,
            "waited_in_vain": self.waited_in_vain,
            "replayed": self.replayed,
            "parked_most": self.parked_most,
        })
    }

    /// Histograms, by service and entrance.
    pub(crate) fn latencies_to_json(&self) -> Value {
        let mut services = Map::new();
        for ((service, entrance), histogram) in &self.latencies {
            let service = services.entry(service.clone()).or_insert_with(|| json!({}));
            if let Some(entrances) = service.as_object_mut() {
                entrances.insert(entrance.clone(), histogram.to_json());
            }
        }
        Value::Object(services)
    }
}
