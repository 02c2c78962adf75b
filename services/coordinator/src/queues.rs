//! Queues: whoever opens one for writing alone pushes an item with each write; whoever opens one
//! for reading and writing reads items one at a time, and writes `done` after each.

use crate::coordinator::{Coordinator, Outcome, holder};
use crate::sessions::{OpenQueue, Session, What};
use coordination::{Asked, HolderId, PushId, Pushed, Refusal};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use session::{Context, LinkId, ReplyTo};
use wire::service::{OpenInfo, Terms};

/// The access mode in the flags of open(2): both, and writing alone.
const ACCESS: u32 = 3;
const READ_WRITE: u32 = 2;
const WRITE_ONLY: u32 = 1;
/// `O_NONBLOCK`.
const NONBLOCK: u32 = 0o4000;
/// The line by which a consumer says that it is done with its item.
const DONE: &[u8] = b"done";

/// The capsule by which the next server recognizes a consumer.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Capsule {
    holder: HolderId,
    path: String,
    /// The item that it was told last; 0: none.
    told: u64,
}

impl Coordinator {
    pub(crate) fn open_queue(&mut self, to: ReplyTo, path: String, info: &OpenInfo) {
        let nonblock = info.flags & NONBLOCK != 0;
        // Nothing is read ahead: an item that waits in one consumer's window is one that no other
        // deals with.
        let terms = Terms { window: 0, writes_wait: true }.encode().to_vec();
        match info.flags & ACCESS {
            WRITE_ONLY => {
                self.insert(to, HolderId([0; 16]), What::Producer { path, nonblock });
                self.answer(to, Ok(terms));
            }
            READ_WRITE => match self.open_consumer(to, path, info) {
                Ok(()) => self.answer(to, Ok(terms)),
                Err(errno) => self.answer(to, Err(errno)),
            },
            // What is read has to be written off.
            _ => self.answer(to, Err(Errno::INVAL)),
        }
    }

    fn open_consumer(&mut self, to: ReplyTo, path: String, info: &OpenInfo) -> Result<(), Errno> {
        let domain = self.links.get(&to.link).map(|consumer| consumer.domain.clone()).ok_or(Errno::BADF)?;
        let before: Option<Capsule> = match info.capsule.as_slice() {
            [] => None,
            bytes => Some(serde_json::from_slice(bytes).map_err(|_| Errno::INVAL)?),
        };
        if before.as_ref().is_some_and(|before| before.path != path) {
            return Err(Errno::INVAL);
        }
        let (holder, told) = match before {
            Some(before) => (before.holder, before.told),
            None => (holder()?, 0),
        };
        let id = self.next_session();
        let only_now = info.flags & NONBLOCK != 0 && info.capsule.is_empty();
        let item = if only_now {
            match self.decide(|state| state.take(&path, (id, holder), &domain, true))? {
                Asked::Granted(item) => Some(item),
                Asked::Waits => None,
            }
        } else {
            self.decide(|state| Ok(state.resume_item(&path, holder, &domain)))?
        };
        let capsule = Capsule { holder, path: path.clone(), told };
        let capsule = serde_json::to_vec(&capsule).unwrap_or_default();
        self.then(Outcome::Seal(to.link, to.session, capsule));
        let told = item.is_some_and(|item| item == told);
        // What it has already is as committed as everything that was loaded.
        let has = item.filter(|_| !only_now);
        let open = OpenQueue { path, asked: item.is_some(), item: has, told };
        self.sessions.insert((to.link, to.session), Session { id, holder, what: What::Consumer(open) });
        self.places.insert(id, (to.link, to.session));
        if let Some(item) = item.filter(|_| only_now) {
            self.then(Outcome::Granted(id, item));
        }
        Ok(())
    }

    /// The reader of a queue waits: it stands in line, where it is done with what it had.
    pub(crate) fn ask_for_item(&mut self, link: LinkId, number: u64) {
        let Some(domain) = self.links.get(&link).map(|consumer| consumer.domain.clone()) else { return };
        let Some(Session { id, holder, what: What::Consumer(open) }) = self.sessions.get_mut(&(link, number))
        else {
            return;
        };
        if std::mem::replace(&mut open.asked, true) {
            return;
        }
        let (id, holder, path) = (*id, *holder, open.path.clone());
        match self.decide(|state| state.take(&path, (id, holder), &domain, false)) {
            Ok(Asked::Granted(item)) => self.then(Outcome::Granted(id, item)),
            Ok(Asked::Waits) => {}
            Err(errno) => self.then(Outcome::End(link, number, errno)),
        }
    }

    /// Sends a consumer its item, as soon as the credit is there.
    pub(crate) fn tell_item(&mut self, ctx: &mut dyn Context, link: LinkId, number: u64) {
        let key = (link, number);
        let Some(Session { holder, what: What::Consumer(open), .. }) = self.sessions.get(&key) else {
            return;
        };
        let Some(item) = open.item.filter(|_| !open.told) else { return };
        let found = self.state().and_then(|state| state.item_of(&open.path, *holder));
        let Some((_, value)) = found.filter(|(number, _)| *number == item) else { return };
        let capsule = Capsule { holder: *holder, path: open.path.clone(), told: item };
        let capsule = serde_json::to_vec(&capsule).unwrap_or_default();
        let told = ctx.record(link, number, value, &capsule);
        if let Some(Session { what: What::Consumer(open), .. }) = self.sessions.get_mut(&key) {
            open.told = told;
        }
    }

    /// A producer writes an item. It is answered when that is in the queue.
    pub(crate) fn push(&mut self, to: ReplyTo, payload: &[u8]) {
        let Some(Session { what: What::Producer { path, nonblock }, .. }) =
            self.sessions.get(&(to.link, to.session))
        else {
            return self.answer(to, Err(Errno::BADF));
        };
        let (path, nonblock) = (path.clone(), *nonblock);
        self.last_push += 1;
        let push = PushId(self.last_push);
        match self.decide(|state| state.push(&path, payload.to_vec(), push, nonblock)) {
            Ok(Pushed::Done) => self.answer(to, Ok(Vec::new())),
            Ok(Pushed::Waits) => {
                self.pushes.insert(push, to);
            }
            Err(errno) => self.answer(to, Err(errno)),
        }
    }

    /// Room was made for pushes that waited for it.
    pub(crate) fn pushed(&mut self, pushed: Vec<(PushId, Result<(), Refusal>)>) {
        for (push, result) in pushed {
            if let Some(to) = self.pushes.remove(&push) {
                self.answer(to, result.map(|()| Vec::new()).map_err(crate::coordinator::errno_of));
            }
        }
    }

    /// Nobody waits for these pushes any more: what has not been made is not made.
    pub(crate) fn forget_pushes(&mut self, of: impl Fn(&ReplyTo) -> bool) {
        let gone: Vec<PushId> = self.pushes.iter().filter(|(_, to)| of(to)).map(|(push, _)| *push).collect();
        for push in gone {
            self.pushes.remove(&push);
            let _there = self.decide(|state| {
                state.forget_push(push);
                Ok(())
            });
        }
    }

    /// A consumer says that it is done with its item.
    pub(crate) fn done(&mut self, to: ReplyTo, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        if payload.trim_ascii_end() != DONE {
            return Err(Errno::INVAL);
        }
        let Some(Session { holder, what: What::Consumer(open), .. }) =
            self.sessions.get_mut(&(to.link, to.session))
        else {
            return Err(Errno::BADF);
        };
        let told = open.item.take_if(|_| open.told).ok_or(Errno::STALE)?;
        (open.asked, open.told) = (false, false);
        let (holder, path) = (*holder, open.path.clone());
        self.decide(|state| state.done(&path, holder, told)).map(|()| Vec::new())
    }
}
