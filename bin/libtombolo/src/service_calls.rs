//! The calls of a service's consumers, between the thread that serves and the program that answers.

use crate::failure;
use rustix::io::Errno;
use service::{Call as Asking, Later, Reply, SessionId};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::CString;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use sys::channel_abi::{Failure, Outcome, Patience};
use sys::eventfd::Eventfd;
use sys::service_abi::Call;

/// Calls that have no answer yet, of all domains together. The memory of each is that of a line or
/// a record at most.
const MAX_CALLS: usize = 4096;
/// Those of one domain: however many it makes, the others are served.
const MAX_CALLS_OF_ONE: usize = 256;

/// A domain: its distributed container and its name.
type Caller = (CString, CString);

/// A call that has no answer yet. Its memory stays where it is until then.
struct Open {
    later: Later,
    bytes: Box<[u8]>,
    caller: Caller,
    call: Plain,
}

/// The part of a call that leads nowhere.
pub struct Plain {
    pub file: i32,
    pub kind: u32,
    pub session: u64,
    pub number: u32,
    pub uid: u32,
    pub gid: u32,
    /// A record of an exchange.
    pub is_record: bool,
}

#[derive(Default)]
struct Calls {
    open: BTreeMap<u64, Open>,
    /// Those of them that the program has not taken.
    waiting: VecDeque<u64>,
    last: u64,
    /// The number of open calls of each domain that has some.
    of_domain: BTreeMap<Caller, usize>,
    /// Our own numbers of open sessions. Those on the wire are the consumer's choice, so they tell
    /// no two consumers apart.
    sessions: HashMap<SessionId, u64>,
    last_session: u64,
    /// Why no more will come.
    over: Option<Failure>,
}

/// The calls between the thread that serves and the program.
pub struct Queue {
    calls: Mutex<Calls>,
    come: Condvar,
    /// Readable while there is something to take.
    bell: Eventfd,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queue")
    }
}

impl Queue {
    pub fn new() -> Outcome<Self> {
        let bell =
            Eventfd::new().map_err(|error| failure::system("make what a service waits with", &error))?;
        Ok(Self { calls: Mutex::default(), come: Condvar::new(), bell })
    }

    pub fn descriptor(&self) -> RawFd {
        self.bell.as_fd().as_raw_fd()
    }

    /// Answers a call, or refuses it.
    pub fn answer(&self, id: u64, answer: Result<Vec<u8>, Errno>) -> Outcome<()> {
        let open = self.lock().remove(id);
        let open = open.ok_or_else(|| {
            failure::failure(Errno::NOENT, format!("there is no call {id}, or it was answered or given up"))
        })?;
        open.later.answer(answer);
        Ok(())
    }

    /// Whether nobody waits for the answer any more.
    pub fn is_cancelled(&self, id: u64) -> bool {
        self.lock().open.get(&id).is_none_or(|open| open.later.is_cancelled())
    }

    /// Gives up all calls.
    pub fn clear(&self) {
        let mut calls = self.lock();
        calls.open.clear();
        calls.of_domain.clear();
    }

    /// Gives an open file a number of its own.
    pub fn opened(&self, id: SessionId) {
        let mut calls = self.lock();
        calls.last_session += 1;
        let number = calls.last_session;
        calls.sessions.insert(id, number);
    }

    /// Forgets the number of a file that was closed.
    pub fn closed(&self, id: SessionId) {
        self.lock().sessions.remove(&id);
    }

    /// Locks it. What is in it is whole at any time, so a thread that panicked while it had the
    /// lock has spoilt nothing.
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the program asked.
    pub fn ask(
        &self,
        asking: &mut Asking<'_>,
        bytes: &[u8],
        plain: impl FnOnce(Plain) -> Plain,
    ) -> Result<Reply, Errno> {
        let mut calls = self.lock();
        if calls.open.len() >= MAX_CALLS {
            return Err(Errno::AGAIN);
        }
        let asks = asking.caller().clone();
        let text = |text: String| CString::new(text).map_err(|_| Errno::INVAL);
        let (uid, gid) = asks.process.map_or((0, 0), |process| (process.uid, process.gid));
        let first = Plain {
            file: 0,
            kind: Call::READ,
            session: calls.sessions.get(&asking.session()).copied().unwrap_or(0),
            number: 0,
            uid,
            gid,
            is_record: false,
        };
        let caller = (text(asks.dc)?, text(asks.domain)?);
        if calls.of_domain.get(&caller).is_some_and(|count| *count >= MAX_CALLS_OF_ONE) {
            return Err(Errno::AGAIN);
        }
        let (reply, later) = asking.later()?;
        *calls.of_domain.entry(caller.clone()).or_default() += 1;
        let open = Open { later, bytes: [bytes, &[0]].concat().into(), caller, call: plain(first) };
        calls.last += 1;
        let id = calls.last;
        calls.open.insert(id, open);
        calls.waiting.push_back(id);
        self.bell.signal();
        self.come.notify_one();
        Ok(reply)
    }

    /// Tells everybody who waits, now or later, that it is over.
    pub fn end(&self, why: Failure) {
        self.lock().over.get_or_insert(why);
        self.bell.signal();
        self.come.notify_all();
    }

    pub fn next(&self, patience: Patience) -> Outcome<Call> {
        let deadline = match patience {
            Patience::For(span) => Instant::now().checked_add(span),
            Patience::Never | Patience::Forever => None,
        };
        let mut calls = self.lock();
        loop {
            if let Some(call) = calls.take() {
                if calls.waiting.is_empty() && calls.over.is_none() {
                    self.bell.drain();
                }
                return Ok(call);
            }
            if let Some(over) = &calls.over {
                return Err(over.clone());
            }
            self.bell.drain();
            calls = match (patience, deadline) {
                (Patience::Never, _) => return Err(failure::would_wait("call")),
                (_, None) => self.come.wait(calls).unwrap_or_else(PoisonError::into_inner),
                (_, Some(deadline)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(failure::timed_out("call"));
                    }
                    self.come.wait_timeout(calls, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl Calls {
    fn remove(&mut self, id: u64) -> Option<Open> {
        let open = self.open.remove(&id)?;
        if let Some(count) = self.of_domain.get_mut(&open.caller) {
            *count -= 1;
            if *count == 0 {
                self.of_domain.remove(&open.caller);
            }
        }
        Some(open)
    }

    /// The next one that somebody still waits for.
    fn take(&mut self) -> Option<Call> {
        while let Some(id) = self.waiting.pop_front() {
            let Some(open) = self.open.get(&id) else { continue };
            // The writer of a record does not wait for its answer, and may have closed the file.
            if open.later.is_cancelled() && !open.call.is_record {
                self.remove(id);
                continue;
            }
            let Plain { file, kind, session, number, uid, gid, .. } = open.call;
            return Some(Call {
                id,
                file,
                kind,
                session,
                bytes: open.bytes.as_ptr().cast(),
                length: open.bytes.len() - 1,
                takes: open.later.takes(),
                number,
                uid,
                gid,
                reserved: 0,
                dc: open.caller.0.as_ptr(),
                domain: open.caller.1.as_ptr(),
            });
        }
        None
    }
}
