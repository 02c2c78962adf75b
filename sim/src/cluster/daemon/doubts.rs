//! Doubting others, as `services/node/src/membership/doubts.rs` does; `lease::Doubts` decides.

use super::{ALIVE, Daemon, text};
use crate::cluster::client::{ATTEMPT_NS, DEADLINE_NS, Failed};
use crate::cluster::world::Planted;
use crate::etcd::{Ask, Entry, Expected, TTL_NS, Transaction};
use crate::time::MS;
use lease::{Doubt, Doubts, Suspicion};
use std::rc::Rc;

/// As in `services/node/src/membership/doubts.rs`.
const SUSPICION: Suspicion =
    Suspicion { slow_ns: 200 * MS, pause_ns: 1_000 * MS, longest_pause_ns: 30_000 * MS };
const TIMEOUT_NS: u64 = 1_200 * MS;
const ATTEMPT_TO_DOUBT_NS: u64 = 150 * MS;
const LEAST_WAIT_NS: u64 = 10 * MS;
const MAX_WAIT_NS: u64 = 200 * MS;

pub(super) fn doubt_key(name: &str) -> String {
    format!("doubt/{name}")
}

/// The registry's record of a doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DoubtRecord {
    pub(super) life: u64,
    pub(super) by: usize,
    pub(super) over: bool,
}

pub(super) fn read(entry: &Entry) -> Option<DoubtRecord> {
    let text = text(&entry.value);
    let mut words = text.split(' ');
    let life = words.next()?.parse().ok()?;
    let by = words.next()?.parse().ok()?;
    Some(DoubtRecord { life, by, over: words.next() == Some("over") })
}

fn write(record: DoubtRecord) -> crate::etcd::Value {
    let over = if record.over { " over" } else { "" };
    format!("{} {}{over}", record.life, record.by).into_bytes().into()
}

/// Another node that lives.
struct Other {
    name: String,
    life: u64,
    lease: u64,
}

/// The state after one tried to write a doubt.
enum Doubted {
    Stands(u64),
    Before(Entry),
    Over,
}

impl Daemon {
    pub(super) async fn doubt_others(self: Rc<Self>) {
        let mut doubts = Doubts::new(SUSPICION);
        let mut others = Vec::new();
        loop {
            let due = self.asked.get().map(|sent| doubts.due(sent));
            let wake = due.into_iter().chain(doubts.next_ripe()).min();
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
            if self.asked.get().is_some_and(|sent| self.clock() >= doubts.due(sent)) {
                self.doubt_all(&mut doubts, &others).await;
            }
            self.take_over_ripe(&mut doubts, &others).await;
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

    async fn doubt_all(&self, doubts: &mut Doubts, others: &[Other]) {
        let wait_ns = match self.world.config.planted {
            Some(Planted::HastyHeir) => TTL_NS / 2,
            _ => TTL_NS,
        };
        for other in others {
            match self.doubt(other).await {
                Ok(Doubted::Stands(revision)) => {
                    doubts.stands(&other.name, other.life, revision, wait_ns, self.clock());
                }
                Ok(Doubted::Before(there)) => match read(&there).filter(|record| record.life == other.life) {
                    Some(record) if record.over => self.end(other).await,
                    Some(_) => {
                        doubts.stands(&other.name, other.life, there.revision, wait_ns, self.clock());
                    }
                    None => doubts.over(&other.name),
                },
                Ok(Doubted::Over) => doubts.over(&other.name),
                Err(_) => return,
            }
        }
        doubts.doubted_all(self.clock());
    }

    /// As `Etcd::doubt`.
    async fn doubt(&self, other: &Other) -> Result<Doubted, Failed> {
        let (alive, doubt) = (format!("{ALIVE}{}", other.name), doubt_key(&other.name));
        let value = write(DoubtRecord { life: other.life, by: self.number, over: false });
        let transaction = Transaction {
            when: vec![(alive.clone(), Expected::Revision(other.life)), (doubt.clone(), Expected::Absent)],
            then: vec![(doubt.clone(), Some((Rc::clone(&value), other.lease)))],
            read: vec![alive, doubt],
        };
        let done = self.client.transact(transaction, TIMEOUT_NS, ATTEMPT_TO_DOUBT_NS).await;
        let (met, revision, read) = match done {
            Err(Failed::NoLease) => return Ok(Doubted::Over),
            done => done?,
        };
        if met {
            return Ok(Doubted::Stands(revision));
        }
        let mut read = read.into_iter();
        let (alive, there) = (read.next().flatten(), read.next().flatten());
        Ok(match there {
            Some(there) if there.value == value => Doubted::Stands(there.revision),
            Some(there) if alive.is_some_and(|alive| alive.revision == other.life) => Doubted::Before(there),
            _ => Doubted::Over,
        })
    }

    async fn take_over_ripe(&self, doubts: &mut Doubts, others: &[Other]) {
        if !self.holds() {
            return;
        }
        for (name, doubt) in doubts.ripe(self.clock()) {
            doubts.over(&name);
            let other = others.iter().find(|other| other.name == name && other.life == doubt.life);
            if let Some(other) = other {
                // A life that can't be ended now is ended by its lease.
                let _later = self.take_over(other, &doubt).await;
            }
        }
    }

    async fn take_over(&self, other: &Other, doubt: &Doubt) -> Result<(), Failed> {
        let (alive, key) = (format!("{ALIVE}{}", other.name), doubt_key(&other.name));
        let value = write(DoubtRecord { life: other.life, by: self.number, over: true });
        let transaction = Transaction {
            when: vec![
                (alive, Expected::Revision(other.life)),
                (key.clone(), Expected::Revision(doubt.revision)),
            ],
            then: vec![(key.clone(), Some((value, other.lease)))],
            read: Vec::new(),
        };
        let (ended, ..) = self.client.transact(transaction, DEADLINE_NS, ATTEMPT_NS).await?;
        if ended {
            self.world.tell(|| format!("{} ends the life of {}", self.me(), other.name));
            self.world.came.borrow_mut().ended_by_doubt += 1;
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
