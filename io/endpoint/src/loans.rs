//! Grants whose memory is on another node: the channels that lead there, and copies over them
//! (`docs/spec/loan.md`).

use std::time::Instant;

use channel::{End, Mode, OpenError, OpenOptions, ReceiveError, Receiver, SendError, Sender};
use ipc::grants::{Access, check_range};
use ipc::loan::{Borrower, Broken, Heard};
use wire::loan::{HEADER_BYTES, Outcome, Record};

use crate::copy::{CopyError, Way};
use crate::failed::Trouble;
use crate::grants::{GrantId, Granted};
use crate::pairs::Pairs;
use crate::waiting::ANSWER_WITHIN;

/// Channels that are kept; the one that was not used for the longest time goes first, and comes
/// again when it is used. Each takes two rings.
const LOANS_MAX: usize = 16;

/// A grant whose memory is on another node.
#[derive(Debug)]
pub(crate) struct Loan {
    grant: GrantId,
    sender: Sender,
    receiver: Receiver,
    logic: Borrower,
    /// The next record to send, the offset of its bytes in the copy, and their number.
    say: Option<(Record, u64, usize)>,
    /// Its doorbells are in the endpoint's set.
    watched: bool,
    /// The announced reasons of its sleep: messages, and room.
    sleeps: [bool; 2],
    used: u64,
}

/// A copy over a loan, as far as it has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Crossing {
    /// It goes on, under this use of the loan.
    begun: bool,
    /// Some of it was said.
    said: bool,
    /// Since when its time is over.
    late_since: Option<Instant>,
}

/// The result of a step over a loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crossed {
    /// All was copied, and counts.
    Good,
    /// The grant stands for another buffer now, or soon.
    Moved,
    /// The channel is closed: what the grant stands for has to be asked again.
    Gone,
    /// It rings when there is more, or look again then.
    Wait(Option<Instant>),
}

/// All loans of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    entries: Vec<Loan>,
    uses: u64,
}

impl Loans {
    pub fn find(&mut self, grant: GrantId) -> Option<&mut Loan> {
        let loan = self.entries.iter_mut().find(|loan| loan.grant == grant)?;
        self.uses += 1;
        loan.used = self.uses;
        Some(loan)
    }

    /// Returns the loans that are known.
    pub fn all(&self) -> impl Iterator<Item = Granted> {
        self.entries.iter().filter_map(Loan::granted)
    }

    /// Keeps a channel, in the place of one of before.
    pub fn insert(&mut self, loan: Loan, pairs: &Pairs) {
        self.remove(loan.grant, pairs);
        if self.entries.len() >= LOANS_MAX
            && let Some(oldest) = self.entries.iter().min_by_key(|loan| loan.used).map(|loan| loan.grant)
        {
            self.remove(oldest, pairs);
        }
        self.uses += 1;
        self.entries.push(Loan { used: self.uses, ..loan });
    }

    /// Closes a channel.
    pub fn remove(&mut self, grant: GrantId, pairs: &Pairs) {
        if let Some(at) = self.entries.iter().position(|loan| loan.grant == grant) {
            self.entries.swap_remove(at).unwatch(pairs);
        }
    }

    /// Closes all of them.
    pub fn clear(&mut self, pairs: &Pairs) {
        for mut loan in self.entries.drain(..) {
            loan.unwatch(pairs);
        }
    }
}

impl Loan {
    /// A channel at whose other end the memory is.
    pub fn open(grant: GrantId, end: End) -> Result<Loan, OpenError> {
        let found = end.mode()?;
        if found != Mode::Messages {
            return Err(OpenError::WrongMode { found, wanted: Mode::Messages });
        }
        let (sender, receiver) = end.open_with(&OpenOptions::default())?;
        let logic = Borrower::default();
        Ok(Loan { grant, sender, receiver, logic, say: None, watched: false, sleeps: [false; 2], used: 0 })
    }

    /// Returns the lent grant, once it was announced.
    pub fn granted(&self) -> Option<Granted> {
        let terms = self.logic.terms()?;
        let access = if terms.writable { Access::Write } else { Access::Read };
        Some(Granted { grant: self.grant, owner: terms.owner, access, bytes: terms.bytes })
    }

    /// Whether a copy goes on.
    pub fn is_busy(&self) -> bool {
        self.logic.is_busy()
    }

    /// Waits for what was lent. `None`: it has not been said yet.
    pub fn step_terms(&mut self, pairs: &Pairs) -> Result<Option<Granted>, Lost> {
        self.awake()?;
        loop {
            if let Some(granted) = self.granted() {
                self.unwatch(pairs);
                return Ok(Some(granted));
            }
            if self.hear(&mut Way::Out(&[]))?.is_none() && self.sleep(pairs)? {
                return Ok(None);
            }
        }
    }

    /// A step of a copy.
    pub fn step(
        &mut self,
        call: &mut Crossing,
        offset: u64,
        way: &mut Way<'_>,
        late: bool,
        pairs: &Pairs,
    ) -> Result<Crossed, Failure> {
        let crossed = self.step_on(call, offset, way, late, pairs);
        if !matches!(crossed, Ok(Crossed::Wait(_))) {
            self.unwatch(pairs);
        }
        crossed
    }

    fn step_on(
        &mut self,
        call: &mut Crossing,
        offset: u64,
        way: &mut Way<'_>,
        late: bool,
        pairs: &Pairs,
    ) -> Result<Crossed, Failure> {
        let (grant, writes) = (self.grant, matches!(way, Way::Out(_)));
        self.awake().map_err(|lost| self.lost(*call, writes, lost))?;
        if !call.begun {
            if self.logic.is_busy() {
                // Of a copy that was given up.
                return Ok(Crossed::Gone);
            }
            if late {
                return Err(Failure::Call(CopyError::TimedOut(grant, LATE)));
            }
            self.begin(offset, way).map_err(Failure::Call)?;
            *call = Crossing { begun: true, ..Crossing::default() };
        }
        loop {
            if late && call.late_since.is_none() {
                call.late_since = Some(Instant::now());
                if !call.said {
                    self.logic.forget();
                    self.say = None;
                    return Err(Failure::Call(CopyError::TimedOut(grant, LATE)));
                }
                self.say = self.logic.cancel().map(|record| (record, 0, 0));
            }
            if late && call.late_since.is_some_and(|since| since.elapsed() > ANSWER_WITHIN) {
                // Whoever comes next asks for another channel.
                return Err(Failure::Over(match writes {
                    true => CopyError::NotKnown(grant),
                    false => CopyError::TimedOut(grant, LATE),
                }));
            }
            let went = self.go_on(call, way).map_err(|lost| match lost {
                Lost::Closed if !(writes && call.said) => Failure::Gone,
                lost => self.lost(*call, writes, lost),
            });
            match went {
                Err(Failure::Gone) => return Ok(Crossed::Gone),
                Err(failure) => return Err(failure),
                Ok(Went::Over(Outcome::Good)) => return Ok(Crossed::Good),
                Ok(Went::Over(Outcome::Moved)) => return Ok(Crossed::Moved),
                Ok(Went::Over(Outcome::Revoked)) => return Err(Failure::Over(CopyError::Revoked(grant))),
                Ok(Went::Over(Outcome::Dead)) => return Err(Failure::Over(CopyError::Dead(grant))),
                Ok(Went::Over(Outcome::Cancelled)) => {
                    return Err(Failure::Call(CopyError::TimedOut(grant, LATE)));
                }
                Ok(Went::On) => continue,
                Ok(Went::Nowhere) => {}
            }
            if self.sleep(pairs).map_err(|lost| self.lost(*call, writes, lost))? {
                return Ok(Crossed::Wait(call.late_since.map(|since| since + ANSWER_WITHIN)));
            }
        }
    }

    /// Returns the failure of a copy that was under way; the channel is of no more use.
    fn lost(&self, call: Crossing, writes: bool, lost: Lost) -> Failure {
        match lost {
            Lost::Closed if writes && call.said => Failure::Over(CopyError::NotKnown(self.grant)),
            Lost::Closed => Failure::Gone,
            Lost::Broken(why) => {
                Failure::Over(CopyError::Unusable { grant: self.grant, why: format!("over the link: {why}") })
            }
            Lost::Trouble(trouble) => Failure::Trouble(trouble),
        }
    }

    fn begin(&mut self, offset: u64, way: &Way<'_>) -> Result<(), CopyError> {
        let length = u64::try_from(way.len()).unwrap_or(u64::MAX);
        let Some(granted) = self.granted() else {
            return Err(CopyError::TimedOut(self.grant, LATE));
        };
        check_range(offset, length, granted.bytes)?;
        let writes = matches!(way, Way::Out(_));
        if writes && granted.access == Access::Read {
            return Err(CopyError::NotWritable(self.grant));
        }
        let (record, first) = self.logic.begin(writes, offset, length);
        self.say = Some((record, 0, first));
        Ok(())
    }

    /// Says what there is to say and room for, then hears one record.
    fn go_on(&mut self, call: &mut Crossing, way: &mut Way<'_>) -> Result<Went, Lost> {
        let mut went = Went::Nowhere;
        if let Some((record, at, length)) = self.say {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let bytes = match way {
                Way::Out(from) => from.get(at..).and_then(|rest| rest.get(..length)).unwrap_or_default(),
                Way::In(_) => &[],
            };
            match self.sender.try_send_vectored(&[&record.to_bytes(), bytes]) {
                Ok(()) => {
                    call.said = true;
                    self.say = self.logic.next_piece();
                    went = Went::On;
                }
                Err(SendError::Full) => {}
                // What it has said before it closed is heard.
                Err(SendError::Closed) => self.say = None,
                Err(error) => return Err(lost_sending(error)),
            }
        }
        match self.hear(way)? {
            Some(Heard::Done(outcome)) => {
                self.say = None;
                Ok(Went::Over(outcome))
            }
            Some(_) => Ok(Went::On),
            None => Ok(went),
        }
    }

    /// Takes in one record, if there is one.
    fn hear(&mut self, way: &mut Way<'_>) -> Result<Option<Heard>, Lost> {
        let logic = &mut self.logic;
        let heard = self.receiver.try_read(|message| {
            let nonsense = wire::loan::Nonsense::Length { kind: 0, length: message.len() };
            let header = message.array::<HEADER_BYTES>(0).ok_or(nonsense)?;
            let behind = message.len() - HEADER_BYTES;
            let heard = logic.hear(Record::read(header, behind)?, behind)?;
            if let (Heard::Bytes(at), Way::In(into)) = (heard, &mut *way) {
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                let into = into.get_mut(at..).and_then(|rest| rest.get_mut(..behind));
                let copied = into.is_some_and(|into| message.copy_to(HEADER_BYTES, into));
                debug_assert!(copied, "the logic lets nothing through that is not inside");
            }
            Ok::<Heard, Broken>(heard)
        });
        match heard {
            Ok(Some(heard)) => heard.map(Some).map_err(|why| Lost::Broken(why.to_string())),
            Ok(None) => Ok(None),
            Err(ReceiveError::Closed) => Err(Lost::Closed),
            Err(ReceiveError::Doorbell(source)) => Err(Lost::Trouble(bell(source))),
            Err(error) => Err(Lost::Broken(error.to_string())),
        }
    }

    /// Says that it sleeps, for the endpoint's set of doorbells. False: there is something to do.
    fn sleep(&mut self, pairs: &Pairs) -> Result<bool, Lost> {
        self.sleeps = [self.receiver.prepare_wait(), false];
        if !self.sleeps[0] {
            return Ok(false);
        }
        if let Some((_, _, length)) = self.say {
            let waits = self.sender.prepare_wait(HEADER_BYTES + length).map_err(lost_sending)?;
            self.sleeps[1] = waits;
            if !waits {
                return Ok(false);
            }
        }
        if !self.watched {
            pairs.watch_loan(self.receiver.descriptors().doorbell).map_err(Lost::Trouble)?;
            pairs.watch_loan(self.sender.descriptors().doorbell).map_err(Lost::Trouble)?;
            self.watched = true;
        }
        Ok(true)
    }

    /// Takes back that it sleeps, and takes off what rang.
    fn awake(&mut self) -> Result<(), Lost> {
        let [messages, room] = std::mem::take(&mut self.sleeps);
        if messages {
            self.receiver.cancel_wait();
        }
        if room {
            self.sender.cancel_wait();
        }
        if self.watched {
            match self.receiver.drain_doorbell() {
                Ok(()) => {}
                Err(ReceiveError::Doorbell(source)) => return Err(Lost::Trouble(bell(source))),
                Err(error) => return Err(Lost::Broken(error.to_string())),
            }
            self.sender.drain_doorbell().map_err(lost_sending)?;
        }
        Ok(())
    }

    /// Takes its doorbells out of the endpoint's set: one that has hung up would ring for ever.
    fn unwatch(&mut self, pairs: &Pairs) {
        if std::mem::take(&mut self.watched) {
            pairs.unwatch_loan(self.receiver.descriptors().doorbell);
            pairs.unwatch_loan(self.sender.descriptors().doorbell);
        }
        let [messages, room] = std::mem::take(&mut self.sleeps);
        if messages {
            self.receiver.cancel_wait();
        }
        if room {
            self.sender.cancel_wait();
        }
    }
}

/// Why a copy was not made in time.
const LATE: &str = "its owner is on another node, which has not answered";

/// How far a copy went.
enum Went {
    Nowhere,
    On,
    Over(Outcome),
}

/// Why a loan's channel is of no more use.
#[derive(Debug)]
pub(crate) enum Lost {
    Closed,
    Broken(String),
    Trouble(Trouble),
}

/// Why a step failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The channel is closed, and nothing speaks against asking again.
    Gone,
    /// The copy has failed; its channel goes on.
    Call(CopyError),
    /// The copy has failed, and its channel is of no more use.
    Over(CopyError),
    Trouble(Trouble),
}

fn bell(source: std::io::Error) -> Trouble {
    Trouble::System { action: "listen to the doorbell of a grant of another node", source }
}

fn lost_sending(error: SendError) -> Lost {
    match error {
        SendError::Closed => Lost::Closed,
        SendError::Doorbell(source) => Lost::Trouble(bell(source)),
        error => Lost::Broken(error.to_string()),
    }
}
