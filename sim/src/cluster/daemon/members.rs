//! Following who lives, as `services/node/src/membership/keep.rs` does.

use super::{ALIVE, Daemon};
use crate::cluster::client::Failed;
use crate::network::Place;
use crate::time::{Bell, MS};
use std::rc::Rc;

const RELIST_PAUSE_NS: u64 = 500 * MS;
const LOOK_AROUND_NS: u64 = 200 * MS;

impl Daemon {
    pub(super) async fn follow_members(self: Rc<Self>) {
        loop {
            // Why it has to be read anew does not matter here.
            let _again = self.follow_members_once().await;
            self.pause(RELIST_PAUSE_NS).await;
        }
    }

    async fn follow_members_once(&self) -> Result<(), Failed> {
        let bell = Rc::new(Bell::default());
        let watch = self.world.watch(Place::Machine(self.number), ALIVE, &bell);
        let listed = self.client.list(ALIVE).await?;
        let named = listed
            .into_iter()
            .filter_map(|(key, entry)| Some((key.strip_prefix(ALIVE)?.to_owned(), entry.revision)));
        *self.alive.borrow_mut() = named.collect();
        self.members_have_changed();
        loop {
            bell.wait(&self.world.time, self.world.time.now() + LOOK_AROUND_NS).await;
            if watch.is_broken.get() {
                return Err(Failed::Unanswered);
            }
            let changes: Vec<_> = watch.inbox.borrow_mut().drain(..).collect();
            if changes.is_empty() {
                continue;
            }
            for change in changes {
                let Some(name) = change.key.strip_prefix(ALIVE) else { continue };
                match change.entry {
                    Some(entry) => self.alive.borrow_mut().insert(name.to_owned(), entry.revision),
                    None => self.alive.borrow_mut().remove(name),
                };
            }
            self.members_have_changed();
        }
    }

    fn members_have_changed(&self) {
        self.members_changed.set(true);
        self.poke.ring(&self.world.time);
    }
}
