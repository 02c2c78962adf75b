//! A node's part in planned moves, as in `services/node/src/placement/relocation.rs`;
//! `placement::duty` decides.

use super::books::{At, Books, Moving, expected, move_key};
use super::follow::unless_conflict;
use super::{Daemon, Failed};
use crate::etcd::Expected;
use placement::{Duty, Relocation, Start, Step, duty};
use std::rc::Rc;

impl Daemon {
    fn start_of(&self, domain: usize) -> Start {
        if self.failed.borrow().contains(&domain) {
            return Start::Failed;
        }
        let is_there = self.machine().instances.borrow().contains_key(&domain);
        if is_there && self.ready.borrow().contains(&domain) { Start::Ready } else { Start::Pending }
    }

    /// Now and then a domain does not come up where a planned move takes it.
    pub(super) fn fails_here(&self, domain: usize) -> bool {
        let moving = self.books.borrow().moves.get(&domain).map(|at| at.value.clone());
        let comes = moving.is_some_and(|moving| moving.step == Step::Taken && moving.to == self.me());
        let fails = comes && self.world.time.per_mille(150);
        if fails {
            self.world.broken.borrow_mut().insert(domain);
        }
        fails
    }

    /// Does what a planned move asks of this node. Says whether that is all that is to be done
    /// about the domain for now.
    pub(super) async fn follow_move(
        self: &Rc<Self>,
        books: &Rc<Books>,
        domain: usize,
    ) -> Result<bool, Failed> {
        let Some(moving) = books.moves.get(&domain).cloned() else { return Ok(false) };
        let (me, from, to) = (self.me(), moving.value.from.clone(), moving.value.to.clone());
        let relocation = Relocation { from: &from, to: &to, step: moving.value.step };
        let assigned = books.assigned(domain);
        match duty(&me, relocation, &assigned, self.start_of(domain), |node| self.is_lost(node)) {
            Duty::None => return Ok(false),
            Duty::Give => self.give(books, domain, moving),
            Duty::HandOn => {
                let heir = if moving.value.step == Step::Back { from } else { to };
                self.hand_on(books, domain, heir);
            }
            Duty::PlaceHere => {
                self.put_placed(domain, &me, expected(books.placed.get(&domain))).await?;
            }
            Duty::Set(next) => {
                self.set_step(domain, &moving, next).await?;
            }
            Duty::TakeBack => {
                if self.set_step(domain, &moving, Step::Back).await? {
                    self.put_placed(domain, &me, expected(books.placed.get(&domain))).await?;
                }
            }
        }
        self.poke.ring(&self.world.time);
        Ok(true)
    }

    async fn set_step(&self, domain: usize, moving: &At<Moving>, step: Step) -> Result<bool, Failed> {
        let value = Moving { step, ..moving.value.clone() }.value();
        let key = move_key(&self.world, domain);
        let set =
            unless_conflict(self.client.put(&key, &value, Expected::Revision(moving.revision), 0).await)?;
        if set {
            self.world.tell(|| format!("{}: the move of d{domain} is {}", self.me(), step.as_str()));
            self.world.came.borrow_mut().moves += u64::from(step.is_last());
        }
        Ok(set)
    }

    /// Ends a domain here as its file says, and gives it to the other node.
    fn give(self: &Rc<Self>, books: &Rc<Books>, domain: usize, moving: At<Moving>) {
        let instance = self.machine().instances.borrow().get(&domain).cloned();
        let (of, books) = (Rc::clone(self), Rc::clone(books));
        self.spawn_for(domain, async move {
            if let Some(instance) = instance {
                instance.stop(&of.world, of.number).await;
            }
            if of.set_step(domain, &moving, Step::Given).await == Ok(true) {
                of.let_go(&books, domain, &moving.value.to).await;
            }
        });
    }

    /// Ends what is left of a domain here, which is the other node's.
    fn hand_on(self: &Rc<Self>, books: &Rc<Books>, domain: usize, heir: String) {
        let instance = self.machine().instances.borrow().get(&domain).cloned();
        let (of, books) = (Rc::clone(self), Rc::clone(books));
        self.spawn_for(domain, async move {
            if let Some(instance) = instance {
                instance.stop(&of.world, of.number).await;
            }
            of.let_go(&books, domain, &heir).await;
        });
    }
}
