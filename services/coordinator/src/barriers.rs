//! Barriers: whoever opens one for reading arrives at it, and reads the generation when there are
//! enough. A number that is written says how many that is.

use crate::coordinator::{Coordinator, Outcome, holder};
use crate::sessions::{OpenBarrier, Session, What};
use coordination::{HolderId, Place};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use session::{Context, LinkId, ReplyTo};
use wire::service::{OpenInfo, Terms};

/// The access mode in the flags of open(2), and writing alone.
const ACCESS: u32 = 3;
const WRITE_ONLY: u32 = 1;

/// The capsule by which the next server recognizes a party.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Capsule {
    holder: HolderId,
    path: String,
    /// Whether it was told what became of its arrival: then it never arrives again.
    over: bool,
}

impl Capsule {
    fn encode(holder: HolderId, path: &str, over: bool) -> Vec<u8> {
        serde_json::to_vec(&Self { holder, path: path.to_owned(), over }).unwrap_or_default()
    }
}

impl Coordinator {
    pub(crate) fn open_barrier(&mut self, to: ReplyTo, path: String, info: &OpenInfo) {
        if info.flags & ACCESS == WRITE_ONLY {
            self.insert(to, HolderId([0; 16]), What::Idle);
            let terms = Terms { window: 0, writes_wait: true };
            return self.answer(to, Ok(terms.encode().to_vec()));
        }
        let before: Option<Capsule> = match info.capsule.as_slice() {
            [] => None,
            bytes => match serde_json::from_slice::<Capsule>(bytes) {
                Ok(before) if before.path == path => Some(before),
                _ => return self.answer(to, Err(Errno::INVAL)),
            },
        };
        if self.state().and_then(|state| state.node(&path)).is_some_and(|node| node.count == 0) {
            return self.answer(to, Err(Errno::INVAL));
        }
        if before.as_ref().is_some_and(|before| before.over) {
            self.insert(to, HolderId([0; 16]), What::Idle);
            return self.answer(to, Ok(Vec::new()));
        }
        let holder = match before.map_or_else(holder, |before| Ok(before.holder)) {
            Ok(holder) => holder,
            Err(errno) => return self.answer(to, Err(errno)),
        };
        let Some(domain) = self.links.get(&to.link).map(|consumer| consumer.domain.clone()) else { return };
        let open = OpenBarrier { path: path.clone(), arrived: false, passed: None };
        // Before the answer, so that it is there before the credit comes by which the party
        // arrives.
        self.then(Outcome::Seal(to.link, to.session, Capsule::encode(holder, &path, false)));
        let id = self.insert(to, holder, What::Barrier(open));
        self.answer(to, Ok(Vec::new()));
        let place = self.decide(|state| Ok(state.arrived_before(&path, (id, holder), &domain)));
        if let Some(Session { what: What::Barrier(open), .. }) = self.sessions.get_mut(&(to.link, to.session))
        {
            open.arrived = !matches!(place, Ok(Place::Nowhere) | Err(_));
        }
        if let Ok(Place::Passed(generation)) = place {
            self.then(Outcome::Granted(id, generation));
        }
    }

    /// The reader of a barrier has given credit: it knows its capsule. It arrives once.
    pub(crate) fn arrive(&mut self, link: LinkId, number: u64) {
        let Some(domain) = self.links.get(&link).map(|consumer| consumer.domain.clone()) else { return };
        let Some(Session { id, holder, what: What::Barrier(open) }) = self.sessions.get_mut(&(link, number))
        else {
            return;
        };
        if std::mem::replace(&mut open.arrived, true) {
            return;
        }
        let (id, holder, path) = (*id, *holder, open.path.clone());
        if let Err(errno) = self.decide(|state| state.arrive(&path, (id, holder), &domain)) {
            self.end_barrier(link, number, errno);
        }
    }

    /// Nobody passes: the barrier was broken, or takes no more.
    pub(crate) fn end_barrier(&mut self, link: LinkId, number: u64, errno: Errno) {
        let Some(Session { holder, what: What::Barrier(open), .. }) = self.sessions.get(&(link, number))
        else {
            return;
        };
        let capsule = Capsule::encode(*holder, &open.path, true);
        self.then(Outcome::Seal(link, number, capsule));
        self.then(Outcome::End(link, number, errno));
    }

    /// Tells a party the generation that it has passed, as soon as the credit is there; nothing
    /// comes after it.
    pub(crate) fn tell_generation(&mut self, ctx: &mut dyn Context, link: LinkId, number: u64) {
        let Some(Session { holder, what, .. }) = self.sessions.get_mut(&(link, number)) else { return };
        let What::Barrier(OpenBarrier { path, passed: Some(generation), .. }) = what else { return };
        let capsule = Capsule::encode(*holder, path, true);
        if ctx.record(link, number, format!("{generation}\n").as_bytes(), &capsule) {
            if let What::Barrier(open) = what {
                open.passed = None;
            }
            ctx.end(link, number, None);
        }
    }

    /// A number is written to a barrier.
    pub(crate) fn set_parties(&mut self, path: &str, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let text = std::str::from_utf8(payload).map_err(|_| Errno::INVAL)?;
        let parties = text.trim_end().parse().map_err(|_| Errno::INVAL)?;
        self.decide(|state| state.set_parties(path, parties)).map(|_| Vec::new())
    }
}
