//! Following what is wanted, as `services/node/src/placement/mod.rs` does; `placement::judge`
//! decides.

use super::books::{At, Books, Claim, claim_key, expected, placed_key};
use super::{Daemon, Failed};
use crate::cluster::machine::Instance;
use crate::cluster::world::{Planted, name_of};
use crate::etcd::{Expected, Value};
use crate::network::Place;
use crate::time::MS;
use placement::{Cluster, Node, Standing, Verdict, Wish, judge};
use std::rc::Rc;

/// As in `services/node/src/placement/mod.rs`.
const LOOK_AGAIN_NS: u64 = 2_000 * MS;
const RETRY_PAUSE_NS: u64 = 300 * MS;
const GATHER_NS: u64 = 5 * MS;
const WATCH_TIMEOUT_NS: u64 = 1_000 * MS;
/// Processors and memory of each machine: room is not what is simulated here.
const CPU_MILLI: u64 = 64_000;
const MEMORY_BYTES: u64 = 1 << 40;

impl Daemon {
    pub(super) async fn watch_books(self: Rc<Self>) {
        loop {
            let watch = self.world.watch(Place::Machine(self.number), "", &Rc::default());
            self.poke.ring(&self.world.time);
            while !watch.is_broken.get() {
                let until = self.world.time.now() + WATCH_TIMEOUT_NS;
                watch.bell.wait(&self.world.time, until).await;
                if watch.inbox.borrow_mut().drain(..).any(|change| is_of_books(&change.key)) {
                    self.poke.ring(&self.world.time);
                }
            }
        }
    }

    pub(super) async fn follow(self: Rc<Self>) {
        self.adopt().await;
        loop {
            let pause = match self.pass().await {
                Ok(()) => LOOK_AGAIN_NS,
                Err(_) => RETRY_PAUSE_NS,
            };
            let until = self.machine().when(self.clock() + pause);
            self.poke.wait(&self.world.time, until).await;
            self.pause(GATHER_NS).await;
        }
    }

    /// Domains that an earlier daemon left here go on, where nobody else has them.
    async fn adopt(&self) {
        self.was_read.set(self.refresh().await.is_ok());
        let there: Vec<Rc<Instance>> = self.machine().instances.borrow().values().cloned().collect();
        for instance in there {
            let (domain, me) = (instance.domain, self.me());
            let assigned = self.books.borrow().assigned(domain);
            let may = if self.was_read.get() {
                assigned.claimed.or(assigned.placed).is_none_or(|node| node == me)
            } else {
                !self.world.wanted[domain].want.elsewhere
            };
            if may {
                self.ready.borrow_mut().insert(domain);
            } else {
                instance.stop_at_once(&self.world, self.number).await;
            }
        }
    }

    async fn refresh(&self) -> Result<Rc<Books>, Failed> {
        let books = Rc::new(Books::read(&self.client).await?);
        *self.books.borrow_mut() = Rc::clone(&books);
        Ok(books)
    }

    async fn pass(self: &Rc<Self>) -> Result<(), Failed> {
        // Before the books, not after: what they say is not older than this.
        let (holds, lapses) = (self.holds(), self.lapses.get());
        let books = self.refresh().await?;
        if !holds {
            return Ok(());
        }
        self.rebind(&books).await?;
        for domain in 0..self.world.wanted.len() {
            if self.decide(&books, domain, lapses).await? {
                break;
            }
        }
        Ok(())
    }

    async fn rebind(&self, books: &Books) -> Result<(), Failed> {
        for (domain, claim) in &books.claims {
            if claim.value.node == self.me() && claim.value.incarnation != self.incarnation.get() {
                self.put_claim(*domain, Expected::Revision(claim.revision)).await?;
                self.poke.ring(&self.world.time);
            }
        }
        Ok(())
    }

    /// Whether it was put: somebody else may have been first.
    async fn put_claim(&self, domain: usize, expected: Expected) -> Result<bool, Failed> {
        let expected = match self.world.config.planted {
            Some(Planted::RudeClaim) => Expected::Anything,
            _ => expected,
        };
        let claim = format!("{} {}", self.me(), self.incarnation.get()).into_bytes();
        unless_conflict(self.put_leased(&claim_key(&self.world, domain), &claim.into(), expected).await)
    }

    pub(super) async fn put_placed(
        &self,
        domain: usize,
        node: &str,
        expected: Expected,
    ) -> Result<bool, Failed> {
        let placed: Value = node.as_bytes().into();
        unless_conflict(self.client.put(&placed_key(&self.world, domain), &placed, expected, 0).await)
    }

    pub(super) fn is_lost(&self, node: &str) -> bool {
        !self.alive.borrow().contains_key(node)
    }

    /// The cluster with everything booked but `but`.
    fn cluster(&self, books: &Books, but: usize) -> Cluster {
        let nodes = (0..self.world.machines.len()).map(|number| {
            let name = name_of(number);
            let standing = match (self.is_lost(&name), books.drained.contains(&number)) {
                (true, _) => Standing::Lost,
                (false, true) => Standing::Drained,
                (false, false) => Standing::Ready,
            };
            Node { cpu_milli: CPU_MILLI, memory_bytes: MEMORY_BYTES, ..Node::new(&name, standing) }
        });
        let mut cluster = Cluster::new(nodes.collect());
        for (number, wanted) in self.world.wanted.iter().enumerate().filter(|(number, _)| *number != but) {
            let assigned = books.assigned(number);
            let named = if let Wish::Named(node) = &wanted.want.wish { Some(node.clone()) } else { None };
            if let Some(node) = assigned.claimed.or(assigned.placed).or(named) {
                cluster.take_on(&node, &wanted.want);
                let moving = books.moves.get(&number).map(|at| &at.value).filter(|it| !it.step.is_last());
                for end in moving.into_iter().flat_map(|moving| [&moving.from, &moving.to]) {
                    if *end != node {
                        cluster.take_on(end, &wanted.want);
                    }
                }
            }
        }
        cluster
    }

    /// Does what is to be done about one domain. Says whether it was claimed.
    async fn decide(self: &Rc<Self>, books: &Rc<Books>, domain: usize, lapses: u64) -> Result<bool, Failed> {
        if self.busy.borrow().contains(&domain) {
            return Ok(false);
        }
        if self.follow_move(books, domain).await? {
            return Ok(false);
        }
        let me = self.me();
        let cluster = self.cluster(books, domain);
        let verdict = judge(&me, &cluster, &self.world.wanted[domain].want, &books.assigned(domain));
        match &verdict {
            Verdict::Stuck(refusal) => self.stuck.borrow_mut().insert(domain, refusal.clone()),
            _ => self.stuck.borrow_mut().remove(&domain),
        };
        let instance = self.machine().instances.borrow().get(&domain).cloned();
        match verdict {
            Verdict::Run => self.run(domain, lapses),
            Verdict::PlaceHere => {
                self.put_placed(domain, &me, expected(books.placed.get(&domain))).await?;
                self.poke.ring(&self.world.time);
            }
            Verdict::Stuck(_) if books.claims.get(&domain).is_some_and(|claim| claim.value.node == me) => {
                self.run(domain, lapses);
            }
            Verdict::Claim { .. } => {
                if self.put_claim(domain, Expected::Absent).await? {
                    self.put_placed(domain, &me, expected(books.placed.get(&domain))).await?;
                }
                self.poke.ring(&self.world.time);
                return Ok(true);
            }
            Verdict::Move { to } => {
                let (of, books) = (Rc::clone(self), Rc::clone(books));
                self.spawn_for(domain, async move {
                    if let Some(instance) = instance {
                        instance.stop(&of.world, of.number).await;
                    }
                    of.let_go(&books, domain, &to).await;
                });
            }
            Verdict::Leave | Verdict::Wait { .. } | Verdict::Stuck(_) => {
                if let Some(instance) = instance {
                    let of = Rc::clone(self);
                    self.spawn_for(domain, async move {
                        instance.stop_at_once(&of.world, of.number).await;
                    });
                }
            }
        }
        Ok(false)
    }

    /// Runs something for a domain, of which nothing else is done meanwhile.
    pub(super) fn spawn_for(self: &Rc<Self>, domain: usize, work: impl Future<Output = ()> + 'static) {
        self.busy.borrow_mut().insert(domain);
        let of = Rc::clone(self);
        self.world.time.spawn(self.owner, async move {
            work.await;
            of.busy.borrow_mut().remove(&domain);
            of.poke.ring(&of.world.time);
        });
    }

    /// Starts a domain that is claimed here.
    fn run(self: &Rc<Self>, domain: usize, lapses: u64) {
        if self.machine().instances.borrow().contains_key(&domain) || self.failed.borrow().contains(&domain) {
            return;
        }
        let of = Rc::clone(self);
        let stale = self.world.config.planted == Some(Planted::StaleStart);
        let lapses = if stale { self.lapses.get() } else { lapses };
        self.spawn_for(domain, async move {
            // What its last life left, in the registry.
            if of.client.get(&format!("handover/{}", of.world.wanted[domain].path)).await.is_err() {
                return;
            }
            let elsewhere = of.world.wanted[domain].want.elsewhere;
            if !stale && elsewhere && of.lapsed_since(lapses) {
                return;
            }
            let instance = Instance::new(of.machine(), domain);
            let comes_up = instance.start(&of.world, of.number).await;
            if !comes_up && elsewhere && of.lapsed_since(lapses) {
                return instance.stop_at_once(&of.world, of.number).await;
            }
            if comes_up && !of.fails_here(domain) {
                of.ready.borrow_mut().insert(domain);
            } else {
                instance.stop_at_once(&of.world, of.number).await;
                of.failed.borrow_mut().insert(domain);
            }
        });
    }

    /// Gives a domain that has ended here to another node, and lets go of the claim.
    pub(super) async fn let_go(&self, books: &Books, domain: usize, heir: &str) {
        self.ready.borrow_mut().remove(&domain);
        self.failed.borrow_mut().remove(&domain);
        let given = self.put_placed(domain, heir, expected(books.placed.get(&domain))).await;
        let claim: Option<&At<Claim>> = books.claims.get(&domain);
        if let (Ok(true), Some(claim)) = (given, claim) {
            let key = claim_key(&self.world, domain);
            // Where that is not heard, the next pass gives it again.
            let _later = self.client.delete(&key, Expected::Revision(claim.revision)).await;
        }
    }
}

/// Whether a pass reads it.
fn is_of_books(key: &str) -> bool {
    ["claim/", "placed/", "move/", "drain/"].iter().any(|prefix| key.starts_with(prefix))
}

pub(super) fn unless_conflict(done: Result<u64, Failed>) -> Result<bool, Failed> {
    match done {
        Ok(_) => Ok(true),
        Err(Failed::Conflict) => Ok(false),
        Err(failed) => Err(failed),
    }
}
