//! A backup of an endpoint: it takes what the primary hands over, and the primary's place when that
//! one dies.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ipc::{Assembly, Content, From, Gone, Received, Replies};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use session::Bound;
use wire::control::Request;
use wire::ipc::Address;
use wire::movement::{NOTICE_RELEASED, Record};

use crate::failed::Trouble;
use crate::interrupt::Interrupter;
use crate::member::{Answer, BindError, RETRY, Ticket, bind_backup, on_wire};
use crate::moving::queued;
use crate::{Endpoint, Failed, Find, FindError, Options, Step};

/// So long the name of a primary that has hung up may be taken: by then the daemon has seen that
/// its connection has ended, unless the primary lives.
const STILL_THERE_FOR: Duration = Duration::from_secs(2);

/// Bytes of messages that an endpoint may bring along when it moves: full windows of 500 pairs of
/// the default size.
const QUEUED_BYTES_MAX: usize = 64 << 20;
/// Bytes that a message counts for beside its payload.
const QUEUED_OVERHEAD_BYTES: usize = 64;

/// Why a backup is none any more.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The daemon does not let it know its primary.
    #[error(transparent)]
    Find(#[from] FindError),
    /// It has taken its primary's place: the endpoint is what [`Backup::wait`] returned.
    #[error("this backup has taken its primary's place before")]
    TakenOver,
}

/// A backup of an endpoint. It is one while its program is in [`Backup::wait`], which it should be
/// all the time: the primary's replies wait for it.
#[derive(Debug)]
pub struct Backup {
    /// `None`: it has taken over.
    endpoint: Option<Endpoint>,
    name: String,
    options: Options,
    primary: Option<Address>,
    replies: Replies,
    assembly: Assembly,
    /// Messages and notices that are queued for the endpoint, which moves here.
    queued: VecDeque<(Received, Vec<u8>)>,
    queued_bytes: usize,
    /// The least generation whose replies it knows; 0: it does not have all that its primary has.
    continues: u32,
    find: Option<Find>,
    asked: Option<Ticket>,
    /// Not before.
    again_at: Option<Instant>,
    /// Since when the primary's place was wanted.
    wanted_since: Option<Instant>,
    supersedes: bool,
    /// The primary has handed over everything, and moves here.
    moves: bool,
}

impl Backup {
    /// Becomes a backup of the endpoint of this name, which need not be bound yet. The daemon has
    /// to be there.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(name: &str, options: &Options) -> Result<Backup, Failed<BindError>> {
        let endpoint = bind_backup(name, options)?;
        Ok(Backup {
            endpoint: Some(endpoint),
            name: name.to_owned(),
            options: options.clone(),
            primary: None,
            replies: Replies::default(),
            assembly: Assembly::default(),
            queued: VecDeque::new(),
            queued_bytes: 0,
            continues: 0,
            find: None,
            asked: None,
            again_at: None,
            wanted_since: None,
            supersedes: false,
            moves: false,
        })
    }

    /// Where it stands by: no address that anybody calls.
    #[must_use]
    pub fn address(&self) -> Option<Address> {
        self.endpoint.as_ref().map(Endpoint::address)
    }

    /// Whether it has all that its primary has, and takes over if that one dies.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.continues != 0
    }

    /// The primary that it stands by for, as far as it knows one.
    #[must_use]
    pub fn primary(&self) -> Option<Address> {
        self.primary
    }

    /// The state that the primary has handed over last.
    #[must_use]
    pub fn state(&self) -> Option<&[u8]> {
        self.replies.state()
    }

    /// Takes the primary's place at the next [`Backup::wait`], whether or not that one lives: it is
    /// superseded, and no reply of it counts any more.
    pub fn promote(&mut self) {
        self.supersedes = true;
    }

    /// A handle by which another thread ends the waits of this backup.
    ///
    /// # Errors
    /// [`Failed::System`]; [`BackupError::TakenOver`].
    pub fn interrupter(&mut self) -> Result<Interrupter, Failed<BackupError>> {
        let endpoint = self.endpoint.as_mut().ok_or(Failed::Call(BackupError::TakenOver))?;
        endpoint.interrupter().map_err(|failed| match failed {
            Failed::Call(why) => Failed::Ended { why: why.to_string() },
            Failed::System { action, source } => Failed::System { action, source },
            Failed::Daemon(error) => Failed::Daemon(error),
            Failed::Forked => Failed::Forked,
            Failed::Ended { why } => Failed::Ended { why },
            Failed::Interrupted => Failed::Interrupted,
            Failed::Moving => Failed::Moving,
        })
    }

    /// Waits until this backup has its primary's place: then it returns the endpoint, which has its
    /// primary's name, the state that was handed over last, and the replies that callers may ask
    /// for once more. `None`: the time was over first.
    ///
    /// # Errors
    /// See [`BackupError`]. [`Failed::Ended`]: the topology does not let this program be a backup
    /// any more.
    pub fn wait(&mut self, deadline: Option<Instant>) -> Result<Option<Endpoint>, Failed<BackupError>> {
        loop {
            let endpoint = self.endpoint.as_mut().ok_or(Failed::Call(BackupError::TakenOver))?;
            endpoint.check_here()?;
            endpoint.hear()?;
            endpoint.check_bound()?;
            if let Some(member) = &mut endpoint.member
                && let Some(bound) = member.take_promoted()
            {
                return self.take_over(bound).map(Some);
            }
            // END: first whether the primary lives, then what it did.
            let primary = self.primary.filter(|primary| endpoint.pairs.is_alive(*primary));
            // Whoever asks for the primary's place takes nothing of it any more: what it hands over
            // now, it does not release. And what one says that was introduced a moment ago, counts
            // once it is known to be the primary.
            let looks = self.primary.is_some() && (self.asked.is_none() || primary.is_none());
            if looks {
                self.take_all()?;
            }
            let again_at = self.go_on(primary)?;
            let Some(endpoint) = &mut self.endpoint else { continue };
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
            let nothing = !looks || endpoint.prepare(&From::Any).map_err(not_of_a_call)?;
            // Its end may have been heard of just now, and is heard once.
            let is_as_it_was = primary == self.primary.filter(|primary| endpoint.pairs.is_alive(*primary));
            // So may have been the daemon's answers, whose descriptor is silent then.
            let sought = self.find.as_ref().filter(|_| self.again_at.is_none());
            let asked = self.asked.into_iter().chain(sought.and_then(Find::asked));
            let has_news = endpoint.member.as_ref().is_some_and(|member| member.has_news(asked));
            if nothing && is_as_it_was && !has_news {
                sleep(endpoint, again_at.into_iter().chain(deadline).min())?;
            }
        }
    }

    /// Takes whatever the primary has handed over.
    fn take_all(&mut self) -> Result<(), Failed<BackupError>> {
        let mut payload = Vec::new();
        loop {
            let Some(endpoint) = &mut self.endpoint else { return Ok(()) };
            match endpoint.try_receive(&From::Any, &mut payload).map_err(not_of_a_call)? {
                Some(received) => self.take(received, &payload),
                None => return Ok(()),
            }
        }
    }

    fn take(&mut self, received: Received, payload: &[u8]) {
        if Some(received.source) != self.primary {
            return;
        }
        match received.content {
            Content::Message { tag } => match self.assembly.take(tag, payload) {
                Ok(Some(Record::Ready { continues })) => self.continues = continues,
                // The primary receives nothing more, and what it had is here.
                Ok(Some(Record::Move)) => self.moves = self.is_ready(),
                Ok(Some(record)) => match queued(&record) {
                    Some(queued) => self.queue(queued),
                    None => self.replies.take(record),
                },
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(primary = %received.source, %error, "a primary hands over what is no record");
                    self.part();
                }
            },
            Content::Notices(bits) if bits & NOTICE_RELEASED != 0 => self.part(),
            Content::Notices(_) | Content::Request { .. } => {}
        }
    }

    /// Keeps what is queued for the endpoint, which moves here, within a bound: a primary that
    /// hands over more stays where it is.
    fn queue(&mut self, queued: (Received, Vec<u8>)) {
        self.queued_bytes += QUEUED_OVERHEAD_BYTES + queued.1.len();
        self.queued.push_back(queued);
        if self.queued_bytes > QUEUED_BYTES_MAX {
            tracing::warn!(
                bytes = self.queued_bytes,
                "more is queued for an endpoint than it may bring along: it stays where it is"
            );
            self.part();
        }
    }

    /// Has nothing to do with this primary any more, until both are introduced anew.
    fn part(&mut self) {
        if let (Some(endpoint), Some(primary)) = (&mut self.endpoint, self.primary.take()) {
            let _parted = endpoint.pairs.unbind(primary, Gone::Dead);
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.continues = 0;
        self.assembly = Assembly::default();
        self.queued.clear();
        self.queued_bytes = 0;
        // A primary that goes on without this backup does not move here.
        self.moves = false;
        self.wanted_since = None;
    }

    /// Asks the daemon for whatever comes next; when to look again in any case.
    fn go_on(&mut self, primary: Option<Address>) -> Result<Option<Instant>, Failed<BackupError>> {
        let now = Instant::now();
        if self.asked.is_some() {
            return Ok(self.heed_answer(now));
        }
        if let Some(at) = self.again_at.filter(|at| *at > now) {
            return Ok(Some(at));
        }
        self.again_at = None;
        match primary {
            Some(_) if !self.supersedes && !self.moves => Ok(None),
            None if !self.is_ready() && !self.supersedes => self.look_for_primary(),
            _ => Ok(self.ask_for_place(now)),
        }
    }

    fn ask_for_place(&mut self, now: Instant) -> Option<Instant> {
        self.wanted_since.get_or_insert(now);
        if let (Some(endpoint), Some(mut find)) = (&mut self.endpoint, self.find.take()) {
            endpoint.cancel_find(&mut find);
        }
        let member = self.endpoint.as_mut().and_then(|endpoint| endpoint.member.as_mut())?;
        let (endpoint, over, continues) = (member.slot(), self.primary.map(on_wire), self.continues);
        let supersede = self.supersedes || self.moves;
        self.asked = member.ask(|id| Request::Promote { id, endpoint, over, continues, supersede });
        self.asked.is_none().then_some(now + RETRY)
    }

    fn heed_answer(&mut self, now: Instant) -> Option<Instant> {
        let member = self.endpoint.as_mut().and_then(|endpoint| endpoint.member.as_mut())?;
        let answer = self.asked.and_then(|ticket| member.answer(ticket))?;
        self.asked = None;
        match answer {
            // Its connection is not seen dead yet; or it lives, and parted from us without a word.
            Answer::Refused { errno: Errno::BUSY, .. }
                if self.wanted_since.is_none_or(|since| now < since + STILL_THERE_FOR) =>
            {
                self.again_at = Some(now + RETRY);
            }
            Answer::Refused { errno, message } => {
                tracing::info!(endpoint = self.name, %errno, message, "a backup did not get its primary's place");
                // A topology that forbids it, or a full disk, may change.
                self.again_at = (errno != Errno::STALE).then(|| now + STILL_THERE_FOR);
                if errno == Errno::STALE || errno == Errno::BUSY {
                    self.supersedes = false;
                    self.part();
                }
            }
            // The daemon has died: the next one is asked.
            _ => self.again_at = Some(now + RETRY),
        }
        Some(self.again_at.unwrap_or(now))
    }

    fn look_for_primary(&mut self) -> Result<Option<Instant>, Failed<BackupError>> {
        let Some(endpoint) = &mut self.endpoint else { return Ok(None) };
        let find = self.find.get_or_insert_with(|| Find::new(self.name.as_str(), true));
        match endpoint.step_find(find, false) {
            Ok(Step::Pending { again_at }) => Ok(again_at),
            Ok(Step::Ready(address)) => {
                (self.find, self.primary, self.replies) = (None, Some(address), Replies::default());
                self.forget();
                Ok(Some(Instant::now()))
            }
            Err(Failed::Call(FindError::Unusable { .. } | FindError::TimedOut { .. })) => {
                self.find = None;
                Ok(Some(Instant::now() + RETRY))
            }
            Err(failed) => Err(failed.of()),
        }
    }

    /// Becomes the endpoint.
    fn take_over(&mut self, bound: Bound) -> Result<Endpoint, Failed<BackupError>> {
        let mut before = self.endpoint.take().ok_or(Failed::Call(BackupError::TakenOver))?;
        let address = crate::member::of_wire(bound.address);
        let mut endpoint = Endpoint::new(address, Some(self.name.clone()), &self.options)?;
        endpoint.replies = std::mem::take(&mut self.replies);
        endpoint.pairs.inbox = std::mem::take(&mut self.queued);
        let continues = if self.continues == 0 { address.generation } else { self.continues };
        if let Some(mut member) = before.member.take() {
            member.becomes(&self.name, bound, continues);
            endpoint.member = Some(member);
        }
        endpoint.take_in()?;
        Ok(endpoint)
    }
}

/// Sleeps until the primary or the daemon has something to say.
fn sleep(endpoint: &Endpoint, until: Option<Instant>) -> Result<(), Trouble> {
    let left = until.map(|until| session::timespec(until.saturating_duration_since(Instant::now())));
    let due = endpoint.member.as_ref().and_then(|member| member.due()).is_some();
    let left = if due { Some(session::timespec(Duration::ZERO)) } else { left };
    let mut polled = [PollFd::from_borrowed_fd(endpoint.descriptor(), PollFlags::IN)];
    match rustix::event::poll(&mut polled, left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(Trouble::doing("wait for a primary")(errno)),
    }
}

/// A receive from anybody fails for what befalls the endpoint alone.
fn not_of_a_call(failed: Failed<ipc::ReceiveError>) -> Failed<BackupError> {
    match failed {
        Failed::Call(why) => Failed::Ended { why: why.to_string() },
        Failed::System { action, source } => Failed::System { action, source },
        Failed::Daemon(error) => Failed::Daemon(error),
        Failed::Forked => Failed::Forked,
        Failed::Ended { why } => Failed::Ended { why },
        Failed::Interrupted => Failed::Interrupted,
        Failed::Moving => Failed::Moving,
    }
}
