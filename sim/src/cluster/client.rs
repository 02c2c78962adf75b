//! The registry as a daemon asks it (`io/registry/src/etcd`): over a network that loses, with
//! patience, and once more where an answer did not come.

use crate::cluster::world::World;
use crate::etcd::{Ask, Entry, Expected, Told, Transaction, Value};
use crate::network::Place;
use crate::time::{Bell, MS};
use std::cell::RefCell;
use std::rc::{Rc, Weak};

/// How long a call takes at the most (`registry::DEADLINE`).
pub const DEADLINE_NS: u64 = 5_000 * MS;
/// How long one attempt may take.
pub const ATTEMPT_NS: u64 = 1_600 * MS;

/// Why nothing was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// Whether it was done is not known.
    Unanswered,
    /// It was not done: something is not as expected.
    Conflict,
    /// It was not done: the lease is gone, or the node does not hold it.
    NoLease,
}

#[derive(Default)]
struct Answer {
    told: RefCell<Option<Told>>,
    bell: Bell,
}

/// See the module.
#[derive(Clone)]
pub struct Client {
    world: Rc<World>,
    place: Place,
}

impl Client {
    /// That of a machine.
    #[must_use]
    pub fn new(world: &Rc<World>, machine: usize) -> Self {
        Self { world: Rc::clone(world), place: Place::Machine(machine) }
    }

    fn send(&self, ask: &Ask) -> Rc<Answer> {
        let answer = Rc::new(Answer::default());
        // What a stream carries comes once, if it comes: the second arrival is for datagrams.
        let [at, _] = self.world.network.arrivals(&self.world.time, self.place, Place::Registry);
        if let Some(at) = at {
            arrive(&self.world, self.place, at, ask.clone(), Rc::downgrade(&answer));
        }
        answer
    }

    async fn heard(&self, answer: &Answer, until: u64) -> Result<Told, Failed> {
        loop {
            if let Some(told) = answer.told.borrow_mut().take() {
                return Ok(told);
            }
            if self.world.time.now() >= until {
                return Err(Failed::Unanswered);
            }
            answer.bell.wait(&self.world.time, until).await;
        }
    }

    /// Asks until there is an answer, or the time is over. Whether one was asked more than once is
    /// said too.
    ///
    /// # Errors
    /// [`Failed::Unanswered`].
    pub async fn ask(&self, ask: Ask, all_ns: u64, one_ns: u64) -> Result<(Told, bool), Failed> {
        let until = self.world.time.now() + all_ns;
        let mut again = false;
        loop {
            let answer = self.send(&ask);
            let patience = until.min(self.world.time.now() + one_ns);
            match self.heard(&answer, patience).await {
                Ok(told) => return Ok((told, again)),
                Err(_) if self.world.time.now() < until => again = true,
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Keeps a lease alive, and reads at the same time: two messages, of which either may be lost,
    /// as `Etcd::renew_unsuspected` sends them.
    ///
    /// # Errors
    /// [`Failed::Unanswered`].
    pub async fn keep_and_look(
        &self,
        lease: u64,
        look: Transaction,
        all_ns: u64,
    ) -> Result<(bool, bool, Option<Entry>), Failed> {
        let until = self.world.time.now() + all_ns;
        while self.world.time.now() < until {
            let (kept, looked) =
                (self.send(&Ask::KeepAlive(lease)), self.send(&Ask::Transaction(look.clone())));
            let patience = until.min(self.world.time.now() + all_ns / 3);
            let both = (self.heard(&kept, patience).await, self.heard(&looked, patience).await);
            if let (Ok(Told::Kept(kept)), Ok(Told::Done { met, read, .. })) = both {
                return Ok((kept, met, read.into_iter().next().flatten()));
            }
        }
        Err(Failed::Unanswered)
    }

    /// All keys that begin so.
    ///
    /// # Errors
    /// [`Failed::Unanswered`].
    pub async fn list(&self, prefix: &str) -> Result<Vec<(String, Entry)>, Failed> {
        match self.ask(Ask::List(prefix.to_owned()), DEADLINE_NS, ATTEMPT_NS).await? {
            (Told::Listed(found), _) => Ok(found),
            _ => Err(Failed::Unanswered),
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`Failed::Unanswered`].
    pub async fn get(&self, key: &str) -> Result<Option<Entry>, Failed> {
        let read = Transaction { read: vec![key.to_owned()], ..Transaction::default() };
        match self.ask(Ask::Transaction(read), DEADLINE_NS, ATTEMPT_NS).await? {
            (Told::Done { read, .. }, _) => Ok(read.into_iter().next().flatten()),
            _ => Err(Failed::Unanswered),
        }
    }

    /// Writes a key. One that was tried again is known as ours by its value.
    ///
    /// # Errors
    /// See [`Failed`].
    pub async fn put(&self, key: &str, value: &Value, expected: Expected, lease: u64) -> Result<u64, Failed> {
        let put = Transaction {
            when: vec![(key.to_owned(), expected)],
            then: vec![(key.to_owned(), Some((Rc::clone(value), lease)))],
            read: vec![key.to_owned()],
        };
        match self.ask(Ask::Transaction(put), DEADLINE_NS, ATTEMPT_NS).await? {
            (Told::Done { met: true, revision, .. }, _) => Ok(revision),
            (Told::Done { read, .. }, again) => match read.into_iter().next().flatten() {
                Some(there) if again && there.value == *value => Ok(there.revision),
                _ => Err(Failed::Conflict),
            },
            (Told::NoLease, _) => Err(Failed::NoLease),
            _ => Err(Failed::Unanswered),
        }
    }

    /// Removes a key.
    ///
    /// # Errors
    /// See [`Failed`].
    pub async fn delete(&self, key: &str, expected: Expected) -> Result<(), Failed> {
        let delete = Transaction {
            when: vec![(key.to_owned(), expected)],
            then: vec![(key.to_owned(), None)],
            read: vec![key.to_owned()],
        };
        match self.ask(Ask::Transaction(delete), DEADLINE_NS, ATTEMPT_NS).await? {
            (Told::Done { met: true, .. }, _) => Ok(()),
            (Told::Done { read, .. }, true) if read.iter().all(Option::is_none) => Ok(()),
            (Told::Done { .. }, _) => Err(Failed::Conflict),
            _ => Err(Failed::Unanswered),
        }
    }

    /// A transaction as it is.
    ///
    /// # Errors
    /// [`Failed::Unanswered`], [`Failed::NoLease`].
    pub async fn transact(
        &self,
        transaction: Transaction,
        all_ns: u64,
        one_ns: u64,
    ) -> Result<(bool, u64, Vec<Option<Entry>>), Failed> {
        match self.ask(Ask::Transaction(transaction), all_ns, one_ns).await? {
            (Told::Done { met, revision, read }, _) => Ok((met, revision, read)),
            (Told::NoLease, _) => Err(Failed::NoLease),
            _ => Err(Failed::Unanswered),
        }
    }
}

fn arrive(world: &Rc<World>, from: Place, at: u64, ask: Ask, answer: Weak<Answer>) {
    let of = Rc::downgrade(world);
    world.time.at(at, move || {
        let Some(world) = of.upgrade() else { return };
        // Without a leader everybody waits; what waits is done, whoever asked for it has given up.
        let election = world.election_until.get();
        if election > world.time.now() {
            let late = world.network.delay(&world.time);
            return arrive(&world, from, election + late, ask, answer);
        }
        let told = world.etcd.borrow_mut().answer(&ask, world.time.now());
        world.spread();
        let [back, _] = world.network.arrivals(&world.time, Place::Registry, from);
        if let Some(back) = back {
            let of = Rc::downgrade(&world);
            world.time.at(back, move || {
                if let (Some(world), Some(answer)) = (of.upgrade(), answer.upgrade()) {
                    *answer.told.borrow_mut() = Some(told);
                    answer.bell.ring(&world.time);
                }
            });
        }
    });
}
