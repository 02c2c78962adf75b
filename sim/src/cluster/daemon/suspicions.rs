//! Suspecting others, as `services/node/src/membership/suspicions.rs` does; `lease::Suspicions`
//! decides.

use super::{ALIVE, Daemon, text};
use crate::cluster::client::{ATTEMPT_NS, DEADLINE_NS, Failed};
use crate::cluster::world::Planted;
use crate::etcd::{Ask, Entry, Expected, TTL_NS, Transaction};
use crate::time::MS;
use lease::{Suspicion, SuspicionTiming, Suspicions};
use std::rc::Rc;

/// As in `services/node/src/membership/suspicions.rs`.
const TIMING: SuspicionTiming =
    SuspicionTiming { slow_ns: 200 * MS, pause_ns: 1_000 * MS, longest_pause_ns: 30_000 * MS };
const TIMEOUT_NS: u64 = 1_200 * MS;
const ATTEMPT_TO_SUSPECT_NS: u64 = 150 * MS;
const LEAST_WAIT_NS: u64 = 10 * MS;
const MAX_WAIT_NS: u64 = 200 * MS;

pub(super) fn suspicion_key(name: &str) -> String {
    format!("doubt/{name}")
}

/// The registry's record of a suspicion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SuspicionRecord {
    pub(super) life: u64,
    pub(super) by: usize,
    pub(super) over: bool,
}

pub(super) fn read(entry: &Entry) -> Option<SuspicionRecord> {
    let text = text(&entry.value);
    let mut words = text.split(' ');
    let life = words.next()?.parse().ok()?;
    let by = words.next()?.parse().ok()?;
    Some(SuspicionRecord { life, by, over: words.next() == Some("over") })
}

fn write(record: SuspicionRecord) -> crate::etcd::Value {
    let over = if record.over { " over" } else { "" };
    format!("{} {}{over}", record.life, record.by).into_bytes().into()
}

/// Another node that lives.
struct Other {
    name: String,
    life: u64,
    lease: u64,
}

/// The state after one tried to write a suspicion.
enum Suspected {
    Stands(u64),
    Before(Entry),
    Over,
}

impl Daemon {
    pub(super) async fn suspect_others(self: Rc<Self>) {
        let mut suspicions = Suspicions::new(TIMING);
        let mut others = Vec::new();
        loop {
            let due = self.asked.get().map(|sent| suspicions.due(sent));
            let wake = due.into_iter().chain(suspicions.next_ripe()).min();
            let wait = wake.map_or(MAX_WAIT_NS, |at| at.saturating_sub(self.clock()));
            let wait = wait.clamp(LEAST_WAIT_NS, MAX_WAIT_NS);
            let until = self.machine().when(self.clock() + wait);
            self.asked_bell.wait(&self.world.time, until).await;
            if self.asked.get().is_none() && self.members_changed.replace(false) {
                match self.others().await {
                    Ok(read) => others = read,
                    Err(_) => self.members_changed.set(true),
                }
            }
            if self.asked.get().is_some_and(|sent| self.clock() >= suspicions.due(sent)) {
                self.suspect_all(&mut suspicions, &others).await;
            }
            self.take_over_ripe(&mut suspicions, &others).await;
        }
    }

    async fn others(&self) -> Result<Vec<Other>, Failed> {
        let listed = self.client.list(ALIVE).await?;
        let named = listed.into_iter().filter_map(|(key, entry)| {
            let name = key.strip_prefix(ALIVE)?.to_owned();
            Some(Other { name, life: entry.revision, lease: entry.lease })
        });
        let mut others: Vec<Other> = named.filter(|other| other.name != self.me()).collect();
        let after = others.partition_point(|other| other.name < self.me());
        others.rotate_left(after);
        Ok(others)
    }

    async fn suspect_all(&self, suspicions: &mut Suspicions, others: &[Other]) {
        let wait_ns = match self.world.config.planted {
            Some(Planted::HastyHeir) => TTL_NS / 2,
            _ => TTL_NS,
        };
        for other in others {
            match self.suspect(other).await {
                Ok(Suspected::Stands(revision)) => {
                    suspicions.stands(&other.name, other.life, revision, wait_ns, self.clock());
                }
                Ok(Suspected::Before(there)) => match read(&there).filter(|record| record.life == other.life)
                {
                    Some(record) if record.over => self.end(other).await,
                    Some(_) => {
                        suspicions.stands(&other.name, other.life, there.revision, wait_ns, self.clock());
                    }
                    None => suspicions.over(&other.name),
                },
                Ok(Suspected::Over) => suspicions.over(&other.name),
                Err(_) => return,
            }
        }
        suspicions.suspected_all(self.clock());
    }

    /// As `Etcd::suspect`.
    async fn suspect(&self, other: &Other) -> Result<Suspected, Failed> {
        let (alive, suspicion) = (format!("{ALIVE}{}", other.name), suspicion_key(&other.name));
        let value = write(SuspicionRecord { life: other.life, by: self.number, over: false });
        let transaction = Transaction {
            when: vec![
                (alive.clone(), Expected::Revision(other.life)),
                (suspicion.clone(), Expected::Absent),
            ],
            then: vec![(suspicion.clone(), Some((Rc::clone(&value), other.lease)))],
            read: vec![alive, suspicion],
        };
        let done = self.client.transact(transaction, TIMEOUT_NS, ATTEMPT_TO_SUSPECT_NS).await;
        let (met, revision, read) = match done {
            Err(Failed::NoLease) => return Ok(Suspected::Over),
            done => done?,
        };
        if met {
            return Ok(Suspected::Stands(revision));
        }
        let mut read = read.into_iter();
        let (alive, there) = (read.next().flatten(), read.next().flatten());
        Ok(match there {
            Some(there) if there.value == value => Suspected::Stands(there.revision),
            Some(there) if alive.is_some_and(|alive| alive.revision == other.life) => {
                Suspected::Before(there)
            }
            _ => Suspected::Over,
        })
    }

    async fn take_over_ripe(&self, suspicions: &mut Suspicions, others: &[Other]) {
        if !self.holds() {
            return;
        }
        for (name, suspicion) in suspicions.ripe(self.clock()) {
            suspicions.over(&name);
            let other = others.iter().find(|other| other.name == name && other.life == suspicion.life);
            if let Some(other) = other {
                // A life that can't be ended now is ended by its lease.
                let _later = self.take_over(other, &suspicion).await;
            }
        }
    }

    async fn take_over(&self, other: &Other, suspicion: &Suspicion) -> Result<(), Failed> {
        let (alive, key) = (format!("{ALIVE}{}", other.name), suspicion_key(&other.name));
        let value = write(SuspicionRecord { life: other.life, by: self.number, over: true });
        let transaction = Transaction {
            when: vec![
                (alive, Expected::Revision(other.life)),
                (key.clone(), Expected::Revision(suspicion.revision)),
            ],
            then: vec![(key.clone(), Some((value, other.lease)))],
            read: Vec::new(),
        };
        let (ended, ..) = self.client.transact(transaction, DEADLINE_NS, ATTEMPT_NS).await?;
        if ended {
            self.world.tell(|| format!("{} ends the life of {}", self.me(), other.name));
            self.world.came.borrow_mut().ended_by_suspicion += 1;
            self.end(other).await;
            return Ok(());
        }
        let there = self.client.get(&key).await?;
        if there.as_ref().and_then(read).is_some_and(|record| record.over && record.life == other.life) {
            self.end(other).await;
        }
        Ok(())
    }

    /// Ends the lease of a life that is over. Where that is not heard, it ends by itself.
    async fn end(&self, other: &Other) {
        let _late = self.client.ask(Ask::Revoke(other.lease), DEADLINE_NS, ATTEMPT_NS).await;
    }
}
