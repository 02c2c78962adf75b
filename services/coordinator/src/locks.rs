//! Locks and semaphores: whoever opens one for reading asks for it, and reads the token when he has
//! it.

use crate::coordinator::{Coordinator, Outcome, holder};
use crate::sessions::{OpenLock, Session, What};
use coordination::{Asked, HolderId, SessionId};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use session::{Context, ReplyTo};
use wire::service::OpenInfo;

/// The access mode in the flags of open(2), and writing alone.
const ACCESS: u32 = 3;
const WRITE_ONLY: u32 = 1;
/// `O_NONBLOCK`.
const NONBLOCK: u32 = 0o4000;

/// The capsule by which the next server recognizes a lock's holder.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Capsule {
    holder: HolderId,
    path: String,
    token: u64,
}

impl Coordinator {
    pub(crate) fn open_lock(&mut self, to: ReplyTo, path: String, info: &OpenInfo) {
        let Some(domain) = self.links.get(&to.link).map(|consumer| consumer.domain.clone()) else { return };
        if info.flags & ACCESS == WRITE_ONLY {
            self.insert(to, HolderId([0; 16]), What::Idle);
            return self.answer(to, Ok(Vec::new()));
        }
        if !info.capsule.is_empty() {
            return self.reopen_lock(to, path, &domain, &info.capsule);
        }
        let holder = match holder() {
            Ok(holder) => holder,
            Err(errno) => return self.answer(to, Err(errno)),
        };
        let id = self.next_session();
        let only_now = info.flags & NONBLOCK != 0;
        match self.decide(|state| state.ask(&path, (id, holder), &domain, only_now)) {
            Ok(asked) => {
                self.enter_lock(to, (id, holder), OpenLock { path, token: None, told: false });
                self.answer(to, Ok(Vec::new()));
                if let Asked::Granted(token) = asked {
                    self.then(Outcome::Granted(id, token));
                }
            }
            Err(errno) => self.answer(to, Err(errno)),
        }
    }

    fn enter_lock(&mut self, to: ReplyTo, (id, holder): (SessionId, HolderId), open: OpenLock) {
        self.sessions.insert((to.link, to.session), Session { id, holder, what: What::Lock(open) });
        self.places.insert(id, (to.link, to.session));
    }

    fn reopen_lock(&mut self, to: ReplyTo, path: String, domain: &str, capsule: &[u8]) {
        let Ok(Capsule { holder, path: of, token }) = serde_json::from_slice(capsule) else {
            return self.answer(to, Err(Errno::INVAL));
        };
        if of != path {
            return self.answer(to, Err(Errno::STALE));
        }
        match self.decide(|state| state.resume(&path, holder, token, domain)) {
            Ok(()) => {
                let id = self.next_session();
                self.enter_lock(to, (id, holder), OpenLock { path, token: Some(token), told: true });
                self.answer(to, Ok(Vec::new()));
            }
            // It is open nevertheless, so that whoever reads is told.
            Err(errno) => {
                self.insert(to, HolderId([0; 16]), What::Idle);
                self.answer(to, Ok(Vec::new()));
                self.then(Outcome::End(to.link, to.session, errno));
            }
        }
    }

    /// A lock is held, a barrier passed, or an item taken, and that is committed.
    pub(crate) fn granted(&mut self, ctx: &mut dyn Context, session: SessionId, token: u64) {
        let Some(&(link, number)) = self.places.get(&session) else { return };
        match self.sessions.get_mut(&(link, number)).map(|session| &mut session.what) {
            Some(What::Lock(open)) => open.token = Some(token),
            Some(What::Barrier(open)) => open.passed = Some(token),
            Some(What::Consumer(open)) => open.item = Some(token),
            _ => {}
        }
        self.send_to(ctx, link, number);
    }

    /// Tells the holder of a lock its token, as soon as the credit is there.
    pub(crate) fn tell_token(&mut self, ctx: &mut dyn Context, link: session::LinkId, number: u64) {
        let Some(Session { holder, what: What::Lock(open), .. }) = self.sessions.get_mut(&(link, number))
        else {
            return;
        };
        let Some(token) = open.token.filter(|_| !open.told) else { return };
        let capsule = Capsule { holder: *holder, path: open.path.clone(), token };
        let capsule = serde_json::to_vec(&capsule).unwrap_or_default();
        open.told = ctx.record(link, number, format!("{token}\n").as_bytes(), &capsule);
    }
}
