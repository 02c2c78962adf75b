//! Doubting the others while the registry is slow, and taking over from those who leave a doubt
//! stand: what ran with etcd's leader is missed sooner so than by its lease, which the next leader
//! gives its whole time anew. `lease::Doubts` decides; `docs/adr/0051-*` says why nobody loses what
//! it still holds.

use super::{ALIVE, AliveRecord, Cluster, boottime_ns, failed, to_json};
use crate::admin::Problem;
use lease::{Doubt, Doubts, Suspicion};
use registry::{Bound, Doubted, Entry, Registry, Watched};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Keys of doubts of those who live, bound to the leases of those whom they are about.
pub(super) const DOUBT: &str = "doubt/";
const MS: u64 = 1_000_000;
/// A renewal takes a few milliseconds. That it takes this long is worth a few small writes: whoever
/// lives answers them with its next renewal.
const SUSPICION: Suspicion =
    Suspicion { slow_ns: 200 * MS, pause_ns: 1_000 * MS, longest_pause_ns: 30_000 * MS };
/// How long etcd may take to have another leader before the next renewal is waited for.
const TIMEOUT: Duration = Duration::from_millis(1_200);
/// How long this thread waits at a time.
const LEAST_WAIT: Duration = Duration::from_millis(10);
const MAX_WAIT: Duration = Duration::from_millis(200);
/// No lease lasts longer: what says so is not understood.
const MAX_LEASE_MS: u64 = 3_600_000;
/// Words of the thread that keeps the lease that wait for this one.
pub(super) const MAX_WORDS: usize = 64;

/// The registry's record at `doubt/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DoubtRecord {
    /// The revision of `alive/NAME` in the life that is doubted.
    pub(super) life: u64,
    /// The node that suspects it.
    pub(super) by: String,
    /// Nobody answered in time: the life is over.
    #[serde(default)]
    pub(super) over: bool,
}

/// A message of the thread that keeps the lease to this one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Word {
    /// A renewal was sent (`CLOCK_BOOTTIME`, ns).
    Asked(u64),
    /// The registry answered one.
    Answered,
}

/// Another node that answers doubts.
#[derive(Debug)]
struct Other {
    name: String,
    alive: Bound,
    /// How long its lease lasts after each renewal.
    ttl_ns: u64,
}

impl Other {
    fn life(&self) -> u64 {
        self.alive.entry.revision
    }
}

/// The keys of a node.
pub(super) struct Keys {
    alive: String,
    pub(super) doubt: String,
}

impl Keys {
    pub(super) fn of(name: &str) -> Self {
        Self { alive: format!("{ALIVE}{name}"), doubt: format!("{DOUBT}{name}") }
    }

    pub(super) fn watched(&self, life: u64) -> Watched<'_> {
        Watched { alive: &self.alive, life, doubt: &self.doubt }
    }
}

/// Reads the suspicion of a node. Garbage is worth a line, and means none.
pub(super) fn read(name: &str, entry: &Entry) -> Option<DoubtRecord> {
    serde_json::from_slice(&entry.value)
        .inspect_err(|error| tracing::warn!(name, %error, "the doubt of a node is not understood: its lease alone decides"))
        .ok()
}

impl Cluster {
    pub(super) fn doubt_others(&self, words: &Receiver<Word>, over: &AtomicBool) {
        let mut doubts = Doubts::new(SUSPICION);
        let mut others = Vec::new();
        let mut members = self.changes();
        members.mark_changed();
        let mut asked = None;
        while !over.load(Ordering::Relaxed) {
            let wake = asked.map(|sent| doubts.due(sent)).into_iter().chain(doubts.next_ripe()).min();
            let wait = wake.map_or(MAX_WAIT, |at| Duration::from_nanos(at.saturating_sub(boottime_ns())));
            let mut word = words.recv_timeout(wait.clamp(LEAST_WAIT, MAX_WAIT));
            // The last one counts: this thread may have been busy.
            while let Ok(said) = word {
                asked = match said {
                    Word::Asked(sent) => asked.or(Some(sent)),
                    Word::Answered => None,
                };
                word = words.try_recv().map_err(|_| RecvTimeoutError::Timeout);
            }
            if matches!(word, Err(RecvTimeoutError::Disconnected)) {
                return;
            }
            // While it is slow, what is known has to do.
            if asked.is_none() && members.has_changed().unwrap_or(false) {
                members.mark_unchanged();
                match self.others() {
                    Ok(read) => others = read,
                    Err(error) => {
                        tracing::debug!(%error, "who could be doubted can't be read now");
                        members.mark_changed();
                    }
                }
            }
            if asked.is_some_and(|sent| boottime_ns() >= doubts.due(sent)) {
                self.doubt_all(&mut doubts, &others);
            }
            self.take_over_ripe(&mut doubts, &others);
        }
    }

    /// The other nodes that live and answer doubts: those of the release before do not, and their
    /// leases alone decide.
    fn others(&self) -> Result<Vec<Other>, Problem> {
        let listed = self.etcd().list_bound(ALIVE).map_err(failed)?;
        let mut others: Vec<Other> = listed
            .into_iter()
            .filter_map(|(key, alive)| {
                let name = key.strip_prefix(ALIVE)?.to_owned();
                let ttl_ns = answers_within_ns(&alive.entry)?;
                Some(Other { name, alive, ttl_ns })
            })
            .filter(|other| other.name != self.me())
            .collect();
        // Each begins with another one: of two that doubt at once, each is first with some.
        let after = others.partition_point(|other| other.name.as_str() < self.me());
        others.rotate_left(after);
        Ok(others)
    }

    /// Writes a doubt of each of them, as soon as the registry takes it.
    fn doubt_all(&self, doubts: &mut Doubts, others: &[Other]) {
        for other in others {
            let keys = Keys::of(&other.name);
            let record = DoubtRecord { life: other.life(), by: self.me().to_owned(), over: false };
            let value = match to_json(&record) {
                Ok(value) => value,
                Err(problem) => return tracing::error!(%problem, "no doubt can be written"),
            };
            match self.etcd().doubt(keys.watched(other.life()), &other.alive, &value, TIMEOUT) {
                Ok(Doubted::Stands(revision)) => {
                    tracing::debug!(node = other.name, "it is doubted while the registry is slow");
                    doubts.stands(&other.name, other.life(), revision, other.ttl_ns, boottime_ns());
                }
                Ok(Doubted::Before(there)) => self.stood_before(doubts, other, &there),
                Ok(Doubted::Over) => doubts.over(&other.name),
                // The registry is not there: the next renewal tells, or its silence does.
                Err(error) => return tracing::debug!(%error, "nobody can be doubted now"),
            }
        }
        doubts.doubted_all(boottime_ns());
    }

    /// Another node was first with its doubt.
    fn stood_before(&self, doubts: &mut Doubts, other: &Other, there: &Entry) {
        match read(&other.name, there).filter(|record| record.life == other.life()) {
            Some(record) if record.over => self.end(other),
            Some(_) => {
                doubts.stands(&other.name, other.life(), there.revision, other.ttl_ns, boottime_ns());
            }
            None => doubts.over(&other.name),
        }
    }

    fn take_over_ripe(&self, doubts: &mut Doubts, others: &[Other]) {
        // Who has stopped itself does not say so of others.
        if self.is_fenced() {
            return;
        }
        for (name, doubt) in doubts.ripe(boottime_ns()) {
            doubts.over(&name);
            let other = others.iter().find(|other| other.name == name && other.life() == doubt.life);
            if let Some(other) = other
                && let Err(problem) = self.take_over(other, &doubt)
            {
                tracing::debug!(node = name, %problem, "a life can't be ended now: its lease does that");
            }
        }
    }

    fn take_over(&self, other: &Other, doubt: &Doubt) -> Result<(), Problem> {
        let keys = Keys::of(&other.name);
        let record = DoubtRecord { life: other.life(), by: self.me().to_owned(), over: true };
        let watched = keys.watched(other.life());
        let ended = self.etcd().end_doubted(watched, &other.alive, doubt.revision, &to_json(&record)?);
        if ended.map_err(failed)? {
            tracing::warn!(
                node = other.name,
                "it left a doubt stand for as long as its lease lasts: its life is over"
            );
            self.end(other);
            return Ok(());
        }
        // It answered; or another node was first; or this one was, and the answer was lost.
        let there = self.etcd().get(&keys.doubt).map_err(failed)?;
        if let Some(record) = there.as_ref().and_then(|there| read(&other.name, there))
            && record.over
            && record.life == other.life()
        {
            self.end(other);
        }
        Ok(())
    }

    /// Ends the lease of a life that is said to be over: all that is bound to it goes at once.
    fn end(&self, other: &Other) {
        if let Err(error) = self.etcd().revoke_bound(&other.alive) {
            tracing::debug!(node = other.name, %error, "its lease ends by itself");
        }
    }
}

/// How long after a renewal was sent a node may believe in it, where it answers doubts.
fn answers_within_ns(entry: &Entry) -> Option<u64> {
    let record: AliveRecord = serde_json::from_slice(&entry.value).ok()?;
    let ttl_ms = record.answers_within_ms?;
    (ttl_ms <= MAX_LEASE_MS).then(|| ttl_ms.saturating_mul(MS).max(super::keep::TTL_NS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(value: &str) -> Entry {
        Entry { value: value.into(), revision: 7 }
    }

    #[test]
    fn who_says_nothing_of_doubts_or_garbage_is_left_to_its_lease() {
        let alive = |more: &str| entry(&format!(r#"{{"incarnation":5,"boot":"b","since_unix_s":1{more}}}"#));
        assert_eq!(answers_within_ns(&alive("")), None, "of the release before");
        assert_eq!(answers_within_ns(&alive(r#","answers_within_ms":3000"#)), Some(3_000 * MS));
        // Shorter than anybody's lease: whoever wrote that, nobody is taken over from sooner.
        assert_eq!(answers_within_ns(&alive(r#","answers_within_ms":1"#)), Some(super::super::keep::TTL_NS));
        for bad in [r#","answers_within_ms":18446744073709551615"#, r#","answers_within_ms":-1"#] {
            assert_eq!(answers_within_ns(&alive(bad)), None, "{bad}");
        }
        assert_eq!(answers_within_ns(&entry("garbage")), None);
        assert_eq!(answers_within_ns(&entry("")), None);
    }

    #[test]
    fn a_doubt_that_is_garbage_says_nothing() {
        for bad in ["", "[]", "{}", r#"{"life":-1,"by":"b"}"#, r#"{"life":7}"#, "\u{0}"] {
            assert_eq!(read("a", &entry(bad)), None, "{bad}");
        }
        let record = DoubtRecord { life: 7, by: "b".into(), over: false };
        assert_eq!(read("a", &entry(r#"{"life":7,"by":"b"}"#)), Some(record));
    }
}
