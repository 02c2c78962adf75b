//! Keeping the lease, as `services/node/src/membership/keep.rs` does; `lease::Holder` decides.

use super::suspicions::{read, suspicion_key};
use super::{ALIVE, Daemon, text};
use crate::cluster::client::{DEADLINE_NS, Failed};
use crate::etcd::{Ask, Entry, Expected, TTL_NS, Told, Transaction};
use crate::time::MS;
use lease::{Holder, Next, Terms};
use std::rc::Rc;

/// As in `services/node/src/membership/keep.rs`.
const TERMS: Terms = Terms { ttl_ns: TTL_NS, margin_ns: 400 * MS, renew_every_ns: 400 * MS };
const RENEW_TIMEOUT_NS: u64 = 1_200 * MS;
const RETRY_PAUSE_NS: u64 = 100 * MS;
const LOOK_AROUND_NS: u64 = 200 * MS;

/// A lease, and the life that began with it.
struct Life {
    number: u64,
    lease: u64,
    revision: u64,
}

/// The outcome of a renewal.
enum Counted {
    Lasts,
    Gone,
    Suspected(Entry),
}

impl Daemon {
    pub(super) async fn keep_lease(self: Rc<Self>) {
        let mut holder = Holder::new(TERMS);
        let mut current: Option<Life> = None;
        loop {
            let now = self.clock();
            let pause = match (holder.next(now), &current) {
                (Next::Wait(until), _) => Some(until.saturating_sub(now)),
                (Next::Renew, Some(life)) => self.renew(&mut holder, life).await,
                (Next::Grant | Next::Renew, _) => match self.begin_life(&mut holder, now).await {
                    Ok(begun) => self.renew(&mut holder, current.insert(begun)).await,
                    Err(_) => Some(RETRY_PAUSE_NS),
                },
            };
            self.publish(&holder);
            if let Some(pause) = pause {
                self.pause(pause.min(LOOK_AROUND_NS)).await;
            }
        }
    }

    async fn renew(&self, holder: &mut Holder, life: &Life) -> Option<u64> {
        let sent = self.clock();
        self.asked.set(self.asked.get().or(Some(sent)));
        self.asked_bell.ring(&self.world.time);
        let counted = self.renew_unsuspected(life).await;
        if counted.is_ok() {
            self.asked.set(None);
        }
        let said = match counted {
            Ok(Counted::Suspected(there)) => self.answer(life, &there).await,
            other => other,
        };
        match said {
            Ok(Counted::Lasts) => holder.renewed(life.number, sent),
            Ok(Counted::Suspected(_)) => {}
            Ok(Counted::Gone) => {
                holder.lost(life.number);
                // It ends by itself where this is not heard.
                let _late = self.client.ask(Ask::Revoke(life.lease), DEADLINE_NS, DEADLINE_NS / 3).await;
            }
            Err(_) => return Some(RETRY_PAUSE_NS),
        }
        None
    }

    async fn renew_unsuspected(&self, life: &Life) -> Result<Counted, Failed> {
        let look = Transaction {
            when: vec![(self.alive_key(), Expected::Revision(life.revision))],
            read: vec![suspicion_key(&self.me())],
            ..Transaction::default()
        };
        let (kept, met, suspicion) = self.client.keep_and_look(life.lease, look, RENEW_TIMEOUT_NS).await?;
        Ok(match suspicion {
            _ if !kept || !met => Counted::Gone,
            Some(suspicion) => Counted::Suspected(suspicion),
            None => Counted::Lasts,
        })
    }

    /// Takes a suspicion of this node away.
    async fn answer(&self, life: &Life, there: &Entry) -> Result<Counted, Failed> {
        if let Some(record) = read(there).filter(|record| record.over) {
            if record.life == life.revision {
                return Ok(Counted::Gone);
            }
            self.client.ask(Ask::Revoke(there.lease), DEADLINE_NS, DEADLINE_NS / 3).await?;
        }
        let answer = Transaction {
            when: vec![
                (self.alive_key(), Expected::Revision(life.revision)),
                (suspicion_key(&self.me()), Expected::Revision(there.revision)),
            ],
            then: vec![(suspicion_key(&self.me()), None)],
            ..Transaction::default()
        };
        let (answered, ..) = self.client.transact(answer, RENEW_TIMEOUT_NS, RENEW_TIMEOUT_NS / 3).await?;
        Ok(if answered { Counted::Lasts } else { Counted::Suspected(there.clone()) })
    }

    fn alive_key(&self) -> String {
        format!("{ALIVE}{}", self.me())
    }

    /// Takes another lease, and says by it that this node lives.
    async fn begin_life(&self, holder: &mut Holder, now: u64) -> Result<Life, Failed> {
        let key = self.alive_key();
        let boot = self.machine().boot.get();
        let there = self.client.get(&key).await?;
        let expected = match &there {
            None => Expected::Absent,
            // Another start of this machine: that one's lease ends first.
            Some(entry) if text(&entry.value).split(' ').next() != Some(&boot.to_string()) => {
                return Err(Failed::Conflict);
            }
            Some(entry) => Expected::Revision(entry.revision),
        };
        let (Told::Granted(lease), _) =
            self.client.ask(Ask::Grant, DEADLINE_NS, crate::cluster::client::ATTEMPT_NS).await?
        else {
            return Err(Failed::Unanswered);
        };
        let number = holder.granted(now, TTL_NS);
        match self.show(&key, boot, expected, lease).await {
            Ok((incarnation, revision)) => {
                self.incarnation.set(incarnation);
                self.lease.set(lease);
                Ok(Life { number, lease, revision })
            }
            Err(failed) => {
                holder.lost(number);
                Err(failed)
            }
        }
    }

    async fn show(&self, key: &str, boot: u64, expected: Expected, lease: u64) -> Result<(u64, u64), Failed> {
        let record = |incarnation: u64| format!("{boot} {incarnation}").into_bytes().into();
        let incarnation = self.client.put(key, &record(0), expected, lease).await?;
        let expected = Expected::Revision(incarnation);
        let revision = self.client.put(key, &record(incarnation), expected, lease).await?;
        Ok((incarnation, revision))
    }

    fn publish(&self, holder: &Holder) {
        let now = self.clock();
        let until = if holder.is_held(now) { holder.held_until() } else { 0 };
        let was = self.held_until.replace(until);
        if was == until {
            return;
        }
        // What monitors are told: not before this daemon has a lease for the first time.
        self.lapses.set(self.lapses.get() + u64::from(was > 0 && was <= now));
        self.machine().hold.set(until);
        self.hold_changed.ring(&self.world.time);
        if (was == 0) != (until == 0) {
            self.world.tell(|| format!("{} {}", self.me(), if until == 0 { "is fenced" } else { "holds" }));
            self.world.came.borrow_mut().fenced += u64::from(until == 0);
            self.poke.ring(&self.world.time);
        }
    }

    /// A domain that may run elsewhere ends here when the hold has passed
    /// (`services/node/src/placement/hold.rs`).
    pub(super) async fn end_with_hold(self: Rc<Self>) {
        let (mut before, mut had_one) = (0, false);
        loop {
            let (until, now) = (self.held_until.get(), self.clock());
            let has_passed = until <= now;
            had_one |= until > 0;
            // It may have passed and be held again, while this stood still.
            let unseen = before > 0 && before <= now;
            if unseen || (had_one && has_passed) {
                self.let_all_go();
            }
            before = if has_passed { 0 } else { until };
            let at = if has_passed { u64::MAX } else { self.machine().when(until) };
            self.hold_changed.wait(&self.world.time, at).await;
        }
    }

    fn let_all_go(self: &Rc<Self>) {
        let there: Vec<_> = self.machine().instances.borrow().values().cloned().collect();
        for instance in there {
            if self.world.wanted[instance.domain].want.elsewhere {
                let of = Rc::clone(self);
                let end = async move { instance.stop_at_once(&of.world, of.number).await };
                self.world.time.spawn(self.owner, end);
            }
        }
    }
}
