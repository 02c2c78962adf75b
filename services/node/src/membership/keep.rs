//! The threads that run as long as the daemon does: they keep the lease, suspect others, and follow
//! the other nodes and the authority. Each has a thread, because the registry's calls block; when
//! one stops being answered, the fence closes by the clock alone.

use super::suspicions::{self, Keys, MAX_WORDS, Word};
use super::{ALIVE, AliveRecord, Cluster, NODES, NodeRecord, REVOKED, Trouble};
use super::{boottime_ns, clock, failed, issued, remembered, to_json, unix_s};
use admin::Problem;
use lease::{Holder, Next, Terms};
use registry::{Change, Counted, Entry, Etcd, Expected, Lease, Registry, RegistryError, Watch};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;
use trust::Serial;

const MS: u64 = 1_000_000;
/// The shortest lease that etcd grants with its usual settings: a node that dies is noticed when it
/// ends, which is within 3 s.
const TTL: Duration = Duration::from_secs(2);
pub(super) const TTL_NS: u64 = 2_000 * MS;
/// The time that a node has to stop the domains that others may take over.
const MARGIN_NS: u64 = 400 * MS;
/// Renewals: three may be lost.
const RENEW_EVERY_NS: u64 = 400 * MS;
/// How long a renewal may take, and how long to wait after one that failed.
const RENEW_TIMEOUT: Duration = Duration::from_millis(1_200);
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How often those who follow look whether the daemon ends.
pub(super) const LOOK_AROUND: Duration = Duration::from_millis(200);
/// Pause before the registry is asked again for everything, after it failed.
pub(super) const RELIST_PAUSE: Duration = Duration::from_millis(500);

/// A lease, and the life that began with it.
#[derive(Debug)]
struct Life {
    /// The holder's number of the lease.
    number: u64,
    lease: Lease,
    /// The revision of this node's key among those who live.
    revision: u64,
}

/// Ends the threads when it is dropped.
#[derive(Debug)]
pub(crate) struct Kept(Arc<AtomicBool>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Cluster {
    /// Begins to keep the lease, and to follow the other nodes.
    pub(crate) fn keep(&self) -> std::io::Result<Kept> {
        let over = Arc::new(AtomicBool::new(false));
        let (say, words) = sync_channel(MAX_WORDS);
        let [one, other, third, fourth] = [(); 4].map(|()| self.clone());
        let [one_over, other_over, third_over, fourth_over] = [(); 4].map(|()| Arc::clone(&over));
        let runtime = tokio::runtime::Handle::current();
        std::thread::Builder::new().name("lease".into()).spawn(move || one.keep_lease(&say, &one_over))?;
        std::thread::Builder::new().name("members".into()).spawn(move || other.follow(&other_over))?;
        std::thread::Builder::new()
            .name("suspicions".into())
            .spawn(move || third.suspect_others(&words, &third_over))?;
        std::thread::Builder::new()
            .name("authority".into())
            .spawn(move || fourth.keep_authority(&runtime, &fourth_over))?;
        Ok(Kept(over))
    }

    fn keep_lease(&self, say: &SyncSender<Word>, over: &AtomicBool) {
        let mut holder =
            Holder::new(Terms { ttl_ns: TTL_NS, margin_ns: MARGIN_NS, renew_every_ns: RENEW_EVERY_NS });
        let mut current: Option<Life> = None;
        while !over.load(Ordering::Relaxed) {
            self.give_back(&mut holder, &mut current);
            let now = boottime_ns();
            let pause = match (holder.next(now), &current) {
                (Next::Wait(until), _) => Some(Duration::from_nanos(until.saturating_sub(now))),
                (Next::Renew, Some(life)) => self.renew(&mut holder, life, say),
                (Next::Grant | Next::Renew, _) => match self.begin(&mut holder, now) {
                    // What is held is held from the first renewal on that says that nobody suspects
                    // it.
                    Ok(begun) => self.renew(&mut holder, current.insert(begun), say),
                    Err(problem) => {
                        self.say_why(&problem.message);
                        Some(RETRY_PAUSE)
                    }
                },
            };
            self.publish(&holder);
            if let Some(pause) = pause {
                // tidy(sleep): until the next renewal, or until a registry that failed is asked
                // again.
                std::thread::sleep(pause.min(LOOK_AROUND));
            }
        }
    }

    fn renew(&self, holder: &mut Holder, life: &Life, say: &SyncSender<Word>) -> Option<Duration> {
        let sent = boottime_ns();
        // Who does not listen knows that it is slow already.
        let _full = say.try_send(Word::Asked(sent));
        let keys = Keys::of(self.me());
        let watched = keys.watched(life.revision);
        let counted = self.etcd().renew_unsuspected(&life.lease, watched, RENEW_TIMEOUT);
        if counted.is_ok() {
            let _full = say.try_send(Word::Answered);
        }
        let said = match counted {
            Ok(Counted::Suspected(there)) => self.answer(&keys, life, &there),
            other => other,
        };
        match said {
            Ok(Counted::Lasts) => holder.renewed(life.number, sent),
            // Somebody else took that suspicion away: the next renewal says what there is.
            Ok(Counted::Suspected(_)) => {}
            Ok(Counted::Gone) => {
                holder.lost(life.number);
                self.say_why("its lease ended: it was cut off from the registry for too long");
                // What is bound to it and is not gone goes at once, and not when another life of
                // this node is on its way.
                if let Err(error) = self.etcd().revoke(&life.lease) {
                    tracing::debug!(%error, "the lease ends by itself");
                }
            }
            Err(error) => {
                self.say_why(&error.to_string());
                return Some(RETRY_PAUSE);
            }
        }
        None
    }

    /// Takes a suspicion of this node away. Its life lasts if it could: then none stood at a moment
    /// after the renewal was sent that found this one.
    fn answer(&self, keys: &Keys, life: &Life, there: &Entry) -> Result<Counted, RegistryError> {
        let said = suspicions::read(self.me(), there);
        if let Some(record) = said.filter(|record| record.over) {
            if record.life == life.revision {
                tracing::warn!(by = record.by, "another node found that this one's life is over");
                return Ok(Counted::Gone);
            }
            // An earlier life was ended, and that is not done yet: claims that are bound to it go
            // before this one begins.
            for (key, bound) in self.etcd().list_bound(&keys.suspicion)? {
                if key == keys.suspicion && bound.entry == *there {
                    self.etcd().revoke_bound(&bound)?;
                }
            }
        }
        let answered = self.etcd().answer(keys.watched(life.revision), there.revision, RENEW_TIMEOUT)?;
        tracing::debug!(answered, "this node was suspected");
        Ok(if answered { Counted::Lasts } else { Counted::Suspected(there.clone()) })
    }

    /// Takes another lease, and says by it that this node lives.
    fn begin(&self, holder: &mut Holder, now: u64) -> Result<Life, Problem> {
        if self.is_over() {
            return Err(failed("this machine joins the cluster anew"));
        }
        let key = format!("{ALIVE}{}", self.me());
        let boot = boot_id();
        let there = self.etcd().get(&key).map_err(failed)?;
        let (expected, before) = match &there {
            None => (Expected::Absent, None),
            Some(entry) => {
                (Expected::Revision(entry.revision), serde_json::from_slice::<AliveRecord>(&entry.value).ok())
            }
        };
        if before.is_some_and(|before| before.boot != boot) {
            return Err(failed(format!(
                "another machine says that it is node {}: two machines have one state directory, or this one was restarted a moment ago",
                self.me()
            )));
        }
        if self.etcd().get(&format!("{NODES}{}", self.me())).map_err(failed)?.is_none() {
            self.state().removed = true;
            self.inner.changes.send_modify(|changes| *changes += 1);
            return Err(failed(
                "this node was removed from the cluster; `tombolo node join` makes it a member again",
            ));
        }
        clock::check(self)?;
        let lease = self.etcd().grant(TTL).map_err(failed)?;
        let number = holder.granted(now, u64::try_from(lease.ttl().as_nanos()).unwrap_or(u64::MAX));
        let answers_within_ms = u64::try_from(lease.ttl().as_millis()).ok();
        let record = AliveRecord { incarnation: 0, boot, since_unix_s: unix_s(), answers_within_ms };
        let revision = match self.show(&key, &record, expected, &lease) {
            Ok((incarnation, revision)) => {
                self.inner.incarnation.store(incarnation, Ordering::Relaxed);
                revision
            }
            Err(problem) => {
                // Nobody saw it; it ends by itself.
                holder.lost(number);
                return Err(problem);
            }
        };
        let mut state = self.state();
        state.lease = Some(lease.clone());
        state.removed = false;
        drop(state);
        Ok(Life { number, lease, revision })
    }

    /// Says to the others that this node lives. Returns which life it is, and the revision of what
    /// says so.
    fn show(
        &self,
        key: &str,
        record: &AliveRecord,
        expected: Expected,
        lease: &Lease,
    ) -> Result<(u64, u64), Problem> {
        // The registry's own count is what no other life can have.
        let incarnation = self.etcd().put_leased(key, &to_json(record)?, expected, lease).map_err(failed)?;
        let record = AliveRecord { incarnation, ..record.clone() };
        let expected = Expected::Revision(incarnation);
        let revision = self.etcd().put_leased(key, &to_json(&record)?, expected, lease).map_err(failed)?;
        Ok((incarnation, revision))
    }

    /// Gives the lease back, where the cluster knows this node no more.
    fn give_back(&self, holder: &mut Holder, current: &mut Option<Life>) {
        if !self.is_removed() {
            return;
        }
        let Some(Life { number, lease, .. }) = current.take() else { return };
        holder.lost(number);
        self.state().lease = None;
        if let Err(error) = self.etcd().revoke(&lease) {
            tracing::debug!(%error, "the lease ends by itself");
        }
    }

    fn say_why(&self, why: &str) {
        let mut state = self.state();
        if state.why.as_deref() != Some(why) {
            tracing::warn!(why, "this node's place in the cluster can't be kept for now");
            state.why = Some(why.to_owned());
        }
    }

    fn publish(&self, holder: &Holder) {
        let now = boottime_ns();
        let until = if holder.is_held(now) { holder.held_until() } else { 0 };
        let was = self.inner.held_until.send_replace(until);
        if (was == 0) != (until == 0) {
            if until == 0 {
                tracing::error!("this node is fenced: it stops what others may take over");
            } else {
                tracing::info!(incarnation = self.incarnation(), "this node is part of the cluster");
                self.state().why = None;
            }
            self.inner.changes.send_modify(|changes| *changes += 1);
        }
    }

    fn follow(&self, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            if let Err(error) = self.follow_once(over) {
                tracing::debug!(%error, "who is in the cluster can't be followed for now");
                // tidy(sleep): nobody tells when a registry is back.
                std::thread::sleep(RELIST_PAUSE);
            }
        }
    }

    /// Reads everything, and follows what changes, until it has to be read anew.
    fn follow_once(&self, over: &AtomicBool) -> Result<(), Problem> {
        let etcd = self.etcd();
        let mut believed = self.identity().fingerprints();
        // What changes after this is heard, perhaps twice; what is heard last is what is.
        let watches = [ALIVE, NODES, REVOKED].map(|prefix| etcd.watch(prefix));
        let [alive, nodes, revoked] = watches.map(|watch| watch.map_err(failed));
        let (alive, nodes, revoked) = (alive?, nodes?, revoked?);
        self.read_all(etcd)?;
        while !over.load(Ordering::Relaxed) {
            let mut changed = false;
            if let Some(change) = alive.next(LOOK_AROUND).map_err(failed)? {
                self.heard(change);
                changed = true;
            }
            changed |= self.drain(&alive)?;
            if self.drain(&nodes)? {
                self.remember();
                changed = true;
            }
            // By whom what is revoked was issued is seen by whom this node believes.
            if self.drain(&revoked)? || believed != self.identity().fingerprints() {
                believed = self.identity().fingerprints();
                self.read_revoked(etcd)?;
            }
            if changed {
                self.inner.changes.send_modify(|changes| *changes += 1);
            }
        }
        Ok(())
    }

    fn drain(&self, watch: &Watch) -> Result<bool, Problem> {
        let mut any = false;
        while let Some(change) = watch.next(Duration::ZERO).map_err(failed)? {
            self.heard(change);
            any = true;
        }
        Ok(any)
    }

    fn read_all(&self, etcd: &Etcd) -> Result<(), Problem> {
        let nodes = etcd.list(NODES).map_err(failed)?;
        let alive = etcd.list(ALIVE).map_err(failed)?;
        let mut state = self.state();
        state.records =
            nodes.iter().filter_map(|(key, entry)| read::<NodeRecord>(key, &entry.value)).collect();
        state.alive =
            alive.iter().filter_map(|(key, entry)| read::<AliveRecord>(key, &entry.value)).collect();
        state.listed = true;
        drop(state);
        self.remember();
        self.inner.changes.send_modify(|changes| *changes += 1);
        self.read_revoked(etcd)
    }

    /// For a daemon that starts while the registry can't be asked.
    fn remember(&self) {
        let records = {
            let mut state = self.state();
            if state.remembered == state.records {
                return;
            }
            state.remembered = state.records.clone();
            state.records.clone()
        };
        if let Err(error) = remembered::store(&self.inner.state_dir, &records) {
            tracing::warn!(%error, "who is in the cluster can't be written down for a daemon that can't ask");
        }
    }

    fn read_revoked(&self, etcd: &Etcd) -> Result<(), Problem> {
        let listed = etcd.list(REVOKED).map_err(failed)?;
        let said = listed.iter().filter_map(|(key, entry)| {
            let serial = Serial::parse(key.strip_prefix(REVOKED)?).ok()?;
            Some((serial, issued::revoked_certificate(&entry.value)))
        });
        self.hear_revoked(said)
    }

    fn hear_revoked(&self, said: impl Iterator<Item = (Serial, Option<String>)>) -> Result<(), Problem> {
        let heard = self.identity().hear_revoked(said);
        if heard.left_out > 0 {
            tracing::warn!(
                left_out = heard.left_out,
                "the registry says of more certificates that they are revoked, without showing them, than are kept: an older release did, or somebody invents them"
            );
        }
        let closed: Vec<_> = self.identity().revoked().closed().map(|one| one.to_string()).collect();
        let trouble = (!closed.is_empty()).then(|| {
            format!(
                "more than {} certificates of authority {} are revoked, so none of its nodes is believed any more: `tombolo node authority replace` at a node that \
                 has the authority",
                trust::MAX_REVOKED,
                closed.join(", ")
            )
        });
        self.say_trouble(Trouble::Revoked, trouble);
        if heard.changed {
            self.identity().store_revoked(self.trust_folder()).map_err(failed)?;
            self.trust_changed();
        }
        Ok(())
    }

    fn heard(&self, change: Change) {
        let mut state = self.state();
        if let Some(name) = change.key.strip_prefix(ALIVE) {
            set(&mut state.alive, name, &change);
        } else if let Some(name) = change.key.strip_prefix(NODES) {
            set(&mut state.records, name, &change);
            if name == self.me() && change.value.is_none() {
                state.removed = true;
                state.why = Some("this node was removed from the cluster".into());
            }
        }
    }
}

fn set<T: serde::de::DeserializeOwned>(map: &mut BTreeMap<String, T>, name: &str, change: &Change) {
    let value = change.value.as_deref().and_then(|value| read::<T>(&change.key, value));
    match value {
        Some((_, value)) => map.insert(name.to_owned(), value),
        None => map.remove(name),
    };
}

/// A record by the name that ends its key. A record that is not understood is logged, and counts as
/// absent.
fn read<T: serde::de::DeserializeOwned>(key: &str, value: &[u8]) -> Option<(String, T)> {
    let name = key.split_once('/')?.1.to_owned();
    serde_json::from_slice(value)
        .inspect_err(|error| tracing::warn!(key, %error, "the registry holds what is not understood"))
        .ok()
        .map(|record| (name, record))
}

/// Returns the kernel's number of this start of this machine.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}
