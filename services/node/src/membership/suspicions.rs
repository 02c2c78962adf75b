//! Suspecting the others while the registry is slow, and taking over from those who leave a
//! suspicion stand: what ran with etcd's leader is missed sooner so than by its lease, which the
//! next leader gives its whole time anew. `lease::Suspicions` decides; `docs/adr/0051-*` says why
//! nobody loses what it still holds.

use super::{ALIVE, AliveRecord, Cluster, boottime_ns, failed, to_json};
use admin::Problem;
use lease::{Suspicion, SuspicionTiming, Suspicions};
use registry::{Bound, Entry, Registry, Suspected, Watched};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Keys of suspicions of those who live, bound to the leases of those whom they are about.
pub(super) const SUSPICION: &str = "doubt/";
const MS: u64 = 1_000_000;
/// A renewal takes a few milliseconds. That it takes this long is worth a few small writes: whoever
/// lives answers them with its next renewal.
const TIMING: SuspicionTiming =
    SuspicionTiming { slow_ns: 200 * MS, pause_ns: 1_000 * MS, longest_pause_ns: 30_000 * MS };
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
pub(super) struct SuspicionRecord {
    /// The revision of `alive/NAME` in the life that is suspected.
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

/// Another node that answers suspicions.
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
    pub(super) suspicion: String,
}

impl Keys {
    pub(super) fn of(name: &str) -> Self {
        Self { alive: format!("{ALIVE}{name}"), suspicion: format!("{SUSPICION}{name}") }
    }

    pub(super) fn watched(&self, life: u64) -> Watched<'_> {
        Watched { alive: &self.alive, life, suspicion: &self.suspicion }
    }
}

/// Reads the suspicion of a node. Garbage is worth a line, and means none.
pub(super) fn read(name: &str, entry: &Entry) -> Option<SuspicionRecord> {
    serde_json::from_slice(&entry.value)
        .inspect_err(|error| tracing::warn!(name, %error, "the suspicion of a node is not understood: its lease alone decides"))
        .ok()
}

impl Cluster {
    pub(super) fn suspect_others(&self, words: &Receiver<Word>, over: &AtomicBool) {
        let mut suspicions = Suspicions::new(TIMING);
        let mut others = Vec::new();
        let mut members = self.changes();
        members.mark_changed();
        let mut asked = None;
        while !over.load(Ordering::Relaxed) {
            let wake = asked.map(|sent| suspicions.due(sent)).into_iter().chain(suspicions.next_ripe()).min();
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
                        tracing::debug!(%error, "who could be suspected can't be read now");
                        members.mark_changed();
                    }
                }
            }
            if asked.is_some_and(|sent| boottime_ns() >= suspicions.due(sent)) {
                self.suspect_all(&mut suspicions, &others);
            }
            self.take_over_ripe(&mut suspicions, &others);
        }
    }

    /// The other nodes that live and answer suspicions: those of the release before do not, and
    /// their leases alone decide.
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
        // Each begins with another one: of two that suspect at once, each is first with some.
        let after = others.partition_point(|other| other.name.as_str() < self.me());
        others.rotate_left(after);
        Ok(others)
    }

    /// Writes a suspicion of each of them, as soon as the registry takes it.
    fn suspect_all(&self, suspicions: &mut Suspicions, others: &[Other]) {
        for other in others {
            let keys = Keys::of(&other.name);
            let record = SuspicionRecord { life: other.life(), by: self.me().to_owned(), over: false };
            let value = match to_json(&record) {
                Ok(value) => value,
                Err(problem) => return tracing::error!(%problem, "no suspicion can be written"),
            };
            match self.etcd().suspect(keys.watched(other.life()), &other.alive, &value, TIMEOUT) {
                Ok(Suspected::Stands(revision)) => {
                    tracing::debug!(node = other.name, "it is suspected while the registry is slow");
                    suspicions.stands(&other.name, other.life(), revision, other.ttl_ns, boottime_ns());
                }
                Ok(Suspected::Before(there)) => self.stood_before(suspicions, other, &there),
                Ok(Suspected::Over) => suspicions.over(&other.name),
                // The registry is not there: the next renewal tells, or its silence does.
                Err(error) => return tracing::debug!(%error, "nobody can be suspected now"),
            }
        }
        suspicions.suspected_all(boottime_ns());
    }

    /// Another node was first with its suspicion.
    fn stood_before(&self, suspicions: &mut Suspicions, other: &Other, there: &Entry) {
        match read(&other.name, there).filter(|record| record.life == other.life()) {
            Some(record) if record.over => self.end(other),
            Some(_) => {
                suspicions.stands(&other.name, other.life(), there.revision, other.ttl_ns, boottime_ns());
            }
            None => suspicions.over(&other.name),
        }
    }

    fn take_over_ripe(&self, suspicions: &mut Suspicions, others: &[Other]) {
        // Who has stopped itself does not say so of others.
        if self.is_fenced() {
            return;
        }
        for (name, suspicion) in suspicions.ripe(boottime_ns()) {
            suspicions.over(&name);
            let other = others.iter().find(|other| other.name == name && other.life() == suspicion.life);
            if let Some(other) = other
                && let Err(problem) = self.take_over(other, &suspicion)
            {
                tracing::debug!(node = name, %problem, "a life can't be ended now: its lease does that");
            }
        }
    }

    fn take_over(&self, other: &Other, suspicion: &Suspicion) -> Result<(), Problem> {
        let keys = Keys::of(&other.name);
        let record = SuspicionRecord { life: other.life(), by: self.me().to_owned(), over: true };
        let watched = keys.watched(other.life());
        let ended = self.etcd().end_suspected(watched, &other.alive, suspicion.revision, &to_json(&record)?);
        if ended.map_err(failed)? {
            tracing::warn!(
                node = other.name,
                "it left a suspicion stand for as long as its lease lasts: its life is over"
            );
            self.end(other);
            return Ok(());
        }
        // It answered; or another node was first; or this one was, and the answer was lost.
        let there = self.etcd().get(&keys.suspicion).map_err(failed)?;
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

/// How long after a renewal was sent a node may believe in it, where it answers suspicions.
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
    fn who_says_nothing_of_suspicions_or_garbage_is_left_to_its_lease() {
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
    fn a_suspicion_that_is_garbage_says_nothing() {
        for bad in ["", "[]", "{}", r#"{"life":-1,"by":"b"}"#, r#"{"life":7}"#, "\u{0}"] {
            assert_eq!(read("a", &entry(bad)), None, "{bad}");
        }
        let record = SuspicionRecord { life: 7, by: "b".into(), over: false };
        assert_eq!(read("a", &entry(r#"{"life":7,"by":"b"}"#)), Some(record));
    }
}
