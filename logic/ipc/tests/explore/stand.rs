//! Those that stand in for an endpoint of another node, in an exploration: the link between them
//! keeps the order, and may take its time.

use std::collections::VecDeque;
use std::rc::Rc;

use ipc::{Broken, StandIn, Turn};

use crate::drive::address;
use crate::world::{Mail, Still, TestLink, World};

/// Stands in, at the endpoint `near`, for the other one.
pub fn stand(world: &Rc<World>, near: usize) {
    let link = TestLink { world: Rc::clone(world), channel: near, side: 1 - near, looked: false };
    let stand_in = StandIn::new(link, address(near), address(1 - near));
    let mut standing = Standing {
        world: Rc::clone(world),
        near,
        stand_in,
        say: VecDeque::new(),
        listens: false,
        idle: true,
    };
    if standing.run().is_err() {
        world.post(1 - near, Mail::Closed);
        standing.close();
    }
    world.threads[near + 2].still.set(Still::Finished);
}

struct Standing {
    world: Rc<World>,
    near: usize,
    stand_in: StandIn<TestLink>,
    say: VecDeque<ipc::Said>,
    listens: bool,
    idle: bool,
}

impl Standing {
    fn know(&self, what: &str) {
        self.world.know(format!("{what} {} {} {:?} {:?}", self.listens, self.idle, self.stand_in, self.say));
    }

    fn close(&mut self) {
        use ipc::Link;
        self.stand_in.link_mut().close();
    }

    fn run(&mut self) -> Result<(), Broken> {
        loop {
            self.idle = true;
            while let Some(mail) = self.mail() {
                self.idle = false;
                match mail {
                    Mail::Said(said) => self.stand_in.hear(said, &mut self.say)?,
                    Mail::Closed => {
                        self.close();
                        return Ok(());
                    }
                }
                self.know("heard");
            }
            let turn = self.stand_in.turn(&mut self.say)?;
            self.idle &= turn == Turn::Idle && self.say.is_empty();
            self.know(if turn == Turn::Ended { "ended" } else { "looked" });
            for said in std::mem::take(&mut self.say) {
                self.world.post(1 - self.near, Mail::Said(said));
            }
            if turn == Turn::Ended {
                self.world.post(1 - self.near, Mail::Closed);
                self.close();
                return Ok(());
            }
            if !self.idle {
                continue;
            }
            if self.listens {
                self.sleep();
            } else {
                self.stand_in.listen();
            }
            self.listens = !self.listens;
            self.know("goes on");
        }
    }

    /// Returns the messages that the link has brought, one at a time.
    fn mail(&self) -> Option<Mail> {
        generator::yield_with(());
        let mail = self.world.mail.borrow_mut()[self.near].pop_front();
        self.world.read(&mail);
        mail
    }

    fn sleep(&mut self) {
        // What came meanwhile has rung.
        let me = &self.world.threads[self.near + 2];
        me.still.set(Still::Asleep { channel: Some(self.near), timed: false, may_search: false });
        generator::yield_with(());
        me.still.set(Still::Step);
        let rung = std::mem::take(&mut self.world.channels.borrow_mut()[self.near].bells[1 - self.near]);
        self.world.read(rung);
        self.stand_in.stop_listening();
    }
}
