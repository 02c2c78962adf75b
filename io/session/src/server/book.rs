//! The loop's state of one consumer, and its handling of that consumer's messages. Decides without
//! waiting.

use super::service::{LinkId, ReplyTo};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::time::Instant;
use thiserror::Error;
use wire::service::{
    DecodeError, Export, Header, Kind, MAX_CAPSULE_BYTES, MAX_CONTROL_BYTES, MAX_REQUEST_BYTES, OpenInfo,
    SESSION_NONE, flags, root_of,
};

/// The access mode in the flags of open(2), and reading alone.
const ACCESS: u32 = 3;
const READ_ONLY: u32 = 0;

/// Most sessions of one consumer, whatever the service would allow: some 1.5 MiB of memory here.
pub const MAX_SESSIONS_PER_LINK: usize = 16 * 1024;
/// Most unanswered requests of one consumer, whatever the service would allow.
pub const MAX_OUTSTANDING_PER_LINK: usize = 4096;

/// A message that no correct consumer sends; its link is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Corruption {
    /// No message at all.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A kind that only backends send.
    #[error("a consumer does not send {0:?}")]
    Kind(Kind),
    /// A flag or a status that does not belong there.
    #[error("{0:?} with the flags or the status of a response")]
    Flags(Kind),
    /// A session number that is in use; session 0, opened without a capsule to hand back, is one
    /// too.
    #[error("session {0} is open already")]
    SessionInUse(u64),
    /// A tag that is in use.
    #[error("tag {0} is outstanding already")]
    TagInUse(u64),
    /// An opener that is not described as it should be.
    #[error("the opener of a session is not understood")]
    OpenInfo,
}

/// The action that a message demands.
#[derive(Debug, PartialEq)]
pub enum Action<'a> {
    /// Ask the service.
    Open(ReplyTo, OpenInfo),
    /// Ask the service: the capsule of session 0, handed back.
    Restore(ReplyTo, Vec<u8>),
    /// Ask the service.
    Request(ReplyTo, &'a [u8]),
    /// Ask the service.
    Control(ReplyTo, &'a [u8]),
    /// Ask the service about its tree, or for bytes at an offset.
    Tree(ReplyTo, Kind, &'a [u8]),
    /// Tell the service that the reader of this stream takes more.
    Credit(u64),
    /// There is nothing to be done: the session is over already.
    Nothing,
    /// Tell the service that whoever asked for the lock of this tag waits for it no more. The tag
    /// is outstanding until it is answered.
    Interrupt(u64),
    /// Answer from the service's counters.
    State(ReplyTo),
    /// Answer with an errno; the service hears nothing of it. The tag was not entered.
    Refuse(ReplyTo, Errno),
    /// Tell the service that nobody waits for these tags, and then, where it was open, that the
    /// session is over.
    Forget {
        /// Tags that were outstanding.
        tags: Vec<u64>,
        /// A session that is over.
        closed: Option<u64>,
    },
}

/// One consumer's sessions and outstanding requests.
#[derive(Debug)]
pub struct Book {
    link: LinkId,
    /// Files that the consumer's verbs allow.
    allowed: HashSet<u32>,
    /// Folders that they allow to be changed.
    changeable: HashSet<u32>,
    known: HashSet<u32>,
    sessions: HashMap<u64, Opened>,
    outstanding: HashMap<u64, Outstanding>,
}

/// An open session.
#[derive(Debug, Clone, Copy)]
struct Opened {
    file: u32,
    /// Bytes of records that the reader of a stream still takes.
    credit: u64,
}

#[derive(Debug, Clone, Copy)]
struct Outstanding {
    session: u64,
    opens: bool,
    /// A lock, which is answered even if it is cancelled.
    locks: bool,
}

impl Book {
    /// An empty book for a consumer that holds `verbs`.
    pub fn new(link: LinkId, export: &Export, verbs: &[String]) -> Self {
        let mut book = Self {
            link,
            allowed: HashSet::new(),
            changeable: HashSet::new(),
            known: export.files.iter().map(|file| file.id).collect(),
            sessions: HashMap::new(),
            outstanding: HashMap::new(),
        };
        book.allow(export, verbs);
        book
    }

    /// The consumer's verbs are these from now on. Open sessions stay; their next requests are
    /// checked anew.
    pub fn allow(&mut self, export: &Export, verbs: &[String]) {
        let held = export.files.iter().filter(|file| verbs.contains(&file.verb));
        self.allowed = held.map(|file| file.id).collect();
        let may_change = |change: &Option<String>| change.as_ref().is_some_and(|verb| verbs.contains(verb));
        let changeable = export.files.iter().filter(|file| may_change(&file.change));
        self.changeable = changeable.map(|file| file.id).collect();
    }

    /// Takes `bytes` off the credit of a stream; false: it is not that much, or the session is not
    /// open.
    pub fn spend(&mut self, session: u64, bytes: usize) -> bool {
        let Some(opened) = self.sessions.get_mut(&session) else { return false };
        let left = opened.credit.checked_sub(bytes as u64);
        opened.credit = left.unwrap_or(opened.credit);
        left.is_some()
    }

    /// Returns the credit that is left of a stream.
    pub fn credit(&self, session: u64) -> u64 {
        self.sessions.get(&session).map_or(0, |opened| opened.credit)
    }

    /// How many sessions are open.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// How many requests are unanswered.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Their tags.
    pub fn outstanding_tags(&self) -> impl Iterator<Item = u64> {
        self.outstanding.keys().copied()
    }

    /// Whether `session` is open; session 0 always is.
    pub fn is_open(&self, session: u64) -> bool {
        session == SESSION_NONE || self.sessions.contains_key(&session)
    }

    /// Takes a message, which is whatever the consumer put there.
    ///
    /// # Errors
    /// [`Corruption`]: close the link.
    pub fn take<'a>(&mut self, message: &'a [u8], now: Instant) -> Result<Action<'a>, Corruption> {
        let (header, payload) = Header::decode(message)?;
        if header.flags & !flags::TRACE != 0 || header.status != 0 {
            return Err(Corruption::Flags(header.kind));
        }
        let to = ReplyTo {
            link: self.link,
            session: header.session,
            tag: header.tag,
            file: header.file,
            traced: header.flags & flags::TRACE != 0,
            received: now,
        };
        match header.kind {
            Kind::Open => self.open(to, payload),
            Kind::Request => self.ask(to, || Action::Request(to, payload), payload.len() > MAX_REQUEST_BYTES),
            Kind::Control => self.ask(to, || Action::Control(to, payload), payload.len() > MAX_CONTROL_BYTES),
            Kind::State => self.fresh(to.tag).map(|()| Action::State(to)),
            Kind::Cancel => Ok(self.cancel(to.tag)),
            Kind::Close => Ok(self.close(to.session)),
            Kind::Credit => Ok(self.grant(to.session, to.file)),
            Kind::Lookup
            | Kind::List
            | Kind::Stat
            | Kind::Change
            | Kind::Set
            | Kind::Follow
            | Kind::Room
            | Kind::GetXattr
            | Kind::ListXattrs
            | Kind::SetXattr => self.ask_tree(to, header.kind, payload),
            Kind::ReadAt | Kind::WriteAt | Kind::Sync | Kind::Lock | Kind::TestLock => {
                let too_long = payload.len() > MAX_REQUEST_BYTES;
                self.ask(to, || Action::Tree(to, header.kind, payload), too_long)
            }
            other @ (Kind::Hello
            | Kind::Response
            | Kind::Capsule
            | Kind::Record
            | Kind::Ready
            | Kind::Leave) => Err(Corruption::Kind(other)),
        }
    }

    /// The service answers `to`: whether anybody still waits. A session whose opening failed is
    /// gone.
    pub fn answered(&mut self, to: ReplyTo, succeeded: bool) -> bool {
        let Some(outstanding) = self.outstanding.remove(&to.tag) else { return false };
        if outstanding.opens && !succeeded {
            self.sessions.remove(&outstanding.session);
        }
        true
    }

    fn open<'a>(&mut self, to: ReplyTo, payload: &[u8]) -> Result<Action<'a>, Corruption> {
        self.fresh(to.tag)?;
        if self.sessions.contains_key(&to.session) {
            return Err(Corruption::SessionInUse(to.session));
        }
        let info: OpenInfo = serde_json::from_slice(payload).map_err(|_| Corruption::OpenInfo)?;
        if info.capsule.len() > MAX_CAPSULE_BYTES {
            return Err(Corruption::OpenInfo);
        }
        if to.session == SESSION_NONE {
            return self.restore(to, info.capsule);
        }
        let writes = info.flags & ACCESS != READ_ONLY;
        let allowed = self.may_use(to.file).and_then(|()| {
            let below_folder = root_of(to.file) != to.file;
            if below_folder && writes { self.may_change(to.file) } else { Ok(()) }
        });
        if let Err(errno) = allowed {
            return Ok(Action::Refuse(to, errno));
        }
        if self.sessions.len() >= MAX_SESSIONS_PER_LINK {
            return Ok(Action::Refuse(to, Errno::MFILE));
        }
        if self.outstanding.len() >= MAX_OUTSTANDING_PER_LINK {
            return Ok(Action::Refuse(to, Errno::AGAIN));
        }
        self.sessions.insert(to.session, Opened { file: to.file, credit: 0 });
        self.outstanding.insert(to.tag, Outstanding { session: to.session, opens: true, locks: false });
        Ok(Action::Open(to, info))
    }

    /// Session 0 is open already; all that its opening can mean is a capsule. What it may hold, and
    /// who may hand it back, the service knows.
    fn restore<'a>(&mut self, to: ReplyTo, capsule: Vec<u8>) -> Result<Action<'a>, Corruption> {
        if capsule.is_empty() {
            return Err(Corruption::SessionInUse(SESSION_NONE));
        }
        if self.outstanding.len() >= MAX_OUTSTANDING_PER_LINK {
            return Ok(Action::Refuse(to, Errno::AGAIN));
        }
        self.outstanding.insert(to.tag, Outstanding { session: SESSION_NONE, opens: false, locks: false });
        Ok(Action::Restore(to, capsule))
    }

    fn ask<'a>(
        &mut self,
        to: ReplyTo,
        action: impl FnOnce() -> Action<'a>,
        too_long: bool,
    ) -> Result<Action<'a>, Corruption> {
        self.fresh(to.tag)?;
        let action = action();
        let is_request = matches!(action, Action::Request(..));
        let file = match self.sessions.get(&to.session) {
            Some(opened) => opened.file,
            None if to.session == SESSION_NONE => to.file,
            None => return Ok(Action::Refuse(to, Errno::BADF)),
        };
        if is_request && file != to.file {
            return Ok(Action::Refuse(to, Errno::BADF));
        }
        if (is_request || to.session != SESSION_NONE)
            && let Err(errno) = self.may_use(file)
        {
            return Ok(Action::Refuse(to, errno));
        }
        if too_long {
            return Ok(Action::Refuse(to, Errno::MSGSIZE));
        }
        if self.outstanding.len() >= MAX_OUTSTANDING_PER_LINK {
            return Ok(Action::Refuse(to, Errno::AGAIN));
        }
        let locks = matches!(action, Action::Tree(_, Kind::Lock, _));
        self.outstanding.insert(to.tag, Outstanding { session: to.session, opens: false, locks });
        Ok(action)
    }

    /// A request about a node, in no session.
    fn ask_tree<'a>(&mut self, to: ReplyTo, kind: Kind, payload: &'a [u8]) -> Result<Action<'a>, Corruption> {
        self.fresh(to.tag)?;
        let changes = matches!(kind, Kind::Change | Kind::Set | Kind::SetXattr);
        let allowed = self.may_use(to.file);
        let allowed = if changes { allowed.and_then(|()| self.may_change(to.file)) } else { allowed };
        let refused = match allowed {
            Err(errno) => Some(errno),
            Ok(()) if payload.len() > MAX_REQUEST_BYTES => Some(Errno::MSGSIZE),
            Ok(()) if self.outstanding.len() >= MAX_OUTSTANDING_PER_LINK => Some(Errno::AGAIN),
            Ok(()) => None,
        };
        if let Some(errno) = refused {
            return Ok(Action::Refuse(to, errno));
        }
        self.outstanding.insert(to.tag, Outstanding { session: SESSION_NONE, opens: false, locks: false });
        Ok(Action::Tree(to, kind, payload))
    }

    fn grant<'a>(&mut self, session: u64, bytes: u32) -> Action<'a> {
        // It may cross with the end of the session: no fault of anybody's.
        let Some(opened) = self.sessions.get_mut(&session) else { return Action::Nothing };
        opened.credit = opened.credit.saturating_add(u64::from(bytes));
        Action::Credit(session)
    }

    fn may_change(&self, file: u32) -> Result<(), Errno> {
        if self.changeable.contains(&root_of(file)) { Ok(()) } else { Err(Errno::ACCESS) }
    }

    fn may_use(&self, file: u32) -> Result<(), Errno> {
        let file = root_of(file);
        if self.allowed.contains(&file) {
            Ok(())
        } else if self.known.contains(&file) {
            Err(Errno::ACCESS)
        } else {
            Err(Errno::NOENT)
        }
    }

    fn fresh(&self, tag: u64) -> Result<(), Corruption> {
        if self.outstanding.contains_key(&tag) { Err(Corruption::TagInUse(tag)) } else { Ok(()) }
    }

    fn cancel<'a>(&mut self, tag: u64) -> Action<'a> {
        if self.outstanding.get(&tag).is_some_and(|of| of.locks) {
            return Action::Interrupt(tag);
        }
        let tags = self.outstanding.remove(&tag).map(|_| tag).into_iter().collect();
        Action::Forget { tags, closed: None }
    }

    fn close<'a>(&mut self, session: u64) -> Action<'a> {
        let closed = self.sessions.remove(&session).map(|_| session);
        let tags: Vec<u64> = if closed.is_some() {
            self.outstanding.extract_if(|_, of| of.session == session).map(|(tag, _)| tag).collect()
        } else {
            Vec::new()
        };
        Action::Forget { tags, closed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::service::{Behaviour, FileExport, VERSION, below};

    fn export() -> Export {
        let file = |id, verb: &str| FileExport {
            id,
            name: None,
            mode: 0o666,
            behaviour: Behaviour::Session,
            idempotent: true,
            verb: verb.into(),
            change: None,
        };
        Export { version: VERSION, kind: "echo".into(), files: vec![file(0, "use"), file(1, "control")] }
    }

    fn book() -> Book {
        Book::new(LinkId(1), &export(), &["use".into()])
    }

    fn message(kind: Kind, session: u64, tag: u64, file: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short");
        let header = Header { session, tag, file, length, ..Header::new(kind) };
        [&header.encode()[..], payload].concat()
    }

    fn open(session: u64, tag: u64, file: u32) -> Vec<u8> {
        let info = serde_json::to_vec(&OpenInfo::default()).expect("json");
        message(Kind::Open, session, tag, file, &info)
    }

    fn restore(tag: u64, capsule: &[u8]) -> Vec<u8> {
        let info = OpenInfo { capsule: capsule.to_vec(), ..OpenInfo::default() };
        message(Kind::Open, SESSION_NONE, tag, 0, &serde_json::to_vec(&info).expect("json"))
    }

    fn to(session: u64, tag: u64, file: u32, received: Instant) -> ReplyTo {
        ReplyTo { link: LinkId(1), session, tag, file, traced: false, received }
    }

    #[test]
    fn a_session_lives_from_open_to_close_and_takes_its_requests_along() {
        let (mut book, now) = (book(), Instant::now());
        assert!(matches!(book.take(&open(5, 1, 0), now), Ok(Action::Open(..))));
        assert!(book.answered(to(5, 1, 0, now), true));
        let request = message(Kind::Request, 5, 2, 0, b"hi");
        assert_eq!(book.take(&request, now), Ok(Action::Request(to(5, 2, 0, now), b"hi")));
        assert_eq!((book.sessions(), book.outstanding()), (1, 1));
        let close = message(Kind::Close, 5, 0, 0, b"");
        assert_eq!(book.take(&close, now), Ok(Action::Forget { tags: vec![2], closed: Some(5) }));
        assert!(!book.answered(to(5, 2, 0, now), true), "a late answer has no taker");
        let late = message(Kind::Request, 5, 3, 0, b"hi");
        assert_eq!(book.take(&late, now), Ok(Action::Refuse(to(5, 3, 0, now), Errno::BADF)));
        assert_eq!((book.sessions(), book.outstanding()), (0, 0));
    }

    #[test]
    fn a_session_that_was_refused_is_not_open() {
        let (mut book, now) = (book(), Instant::now());
        assert!(matches!(book.take(&open(5, 1, 0), now), Ok(Action::Open(..))));
        assert!(book.answered(to(5, 1, 0, now), false));
        assert!(!book.is_open(5));
        assert!(matches!(book.take(&open(5, 2, 0), now), Ok(Action::Open(..))), "the number is free again");
    }

    #[test]
    fn verbs_and_files_are_checked_before_the_service_hears_of_it() {
        let (mut book, now) = (book(), Instant::now());
        assert_eq!(book.take(&open(5, 1, 1), now), Ok(Action::Refuse(to(5, 1, 1, now), Errno::ACCESS)));
        assert_eq!(book.take(&open(5, 1, 9), now), Ok(Action::Refuse(to(5, 1, 9, now), Errno::NOENT)));
        book.allow(&export(), &["control".into()]);
        assert!(matches!(book.take(&open(5, 1, 1), now), Ok(Action::Open(..))));
        let wrong_file = message(Kind::Request, 5, 2, 0, b"");
        assert_eq!(book.take(&wrong_file, now), Ok(Action::Refuse(to(5, 2, 0, now), Errno::BADF)));
        let no_verb = message(Kind::Request, SESSION_NONE, 2, 0, b"");
        assert_eq!(book.take(&no_verb, now), Ok(Action::Refuse(to(0, 2, 0, now), Errno::ACCESS)));
    }

    #[test]
    fn a_folders_verbs_hold_for_all_below_it() {
        let folder = FileExport {
            id: 2,
            name: Some("data".into()),
            mode: 0o777,
            behaviour: Behaviour::Folder,
            idempotent: true,
            verb: "use".into(),
            change: Some("change".into()),
        };
        let export = Export { version: VERSION, kind: "tree".into(), files: vec![folder] };
        let (mut book, now) = (Book::new(LinkId(1), &export, &["use".into()]), Instant::now());
        let node = below(2, 77).expect("a node");
        let open_for = |flags, tag| {
            let info = OpenInfo { flags, ..OpenInfo::default() };
            message(Kind::Open, tag, tag, node, &serde_json::to_vec(&info).expect("json"))
        };
        let lookup = message(Kind::Lookup, 0, 1, node, b"x");
        assert_eq!(book.take(&lookup, now), Ok(Action::Tree(to(0, 1, node, now), Kind::Lookup, b"x")));
        let change = message(Kind::Change, 0, 2, node, b"");
        assert_eq!(book.take(&change, now), Ok(Action::Refuse(to(0, 2, node, now), Errno::ACCESS)));
        assert!(matches!(book.take(&open_for(0, 3), now), Ok(Action::Open(..))));
        let refused = Ok(Action::Refuse(to(4, 4, node, now), Errno::ACCESS));
        assert_eq!(book.take(&open_for(2, 4), now), refused, "writing is changing");
        book.allow(&export, &["use".into(), "change".into()]);
        assert!(matches!(book.take(&open_for(2, 5), now), Ok(Action::Open(..))));
        let stranger = message(Kind::Stat, 0, 6, below(9, 1).expect("a node"), b"");
        assert!(matches!(book.take(&stranger, now), Ok(Action::Refuse(_, Errno::NOENT))));
    }

    #[test]
    fn no_record_goes_beyond_the_credit() {
        let (mut book, now) = (book(), Instant::now());
        assert!(matches!(book.take(&open(5, 1, 0), now), Ok(Action::Open(..))));
        assert!(!book.spend(5, 1), "none was given");
        let credit = message(Kind::Credit, 5, 0, 100, b"");
        assert_eq!(book.take(&credit, now), Ok(Action::Credit(5)));
        assert!(book.spend(5, 60) && !book.spend(5, 41) && book.spend(5, 40));
        let late = message(Kind::Credit, 6, 0, 100, b"");
        assert_eq!(book.take(&late, now), Ok(Action::Nothing), "its session was closed meanwhile");
    }

    /// Whoever gives a lock up while it is granted has to know whether it has it.
    #[test]
    fn a_lock_that_is_cancelled_is_answered_all_the_same() {
        let (mut book, now) = (book(), Instant::now());
        assert!(matches!(book.take(&open(5, 1, 0), now), Ok(Action::Open(..))));
        let lock = message(Kind::Lock, 5, 2, 0, b"");
        assert_eq!(book.take(&lock, now), Ok(Action::Tree(to(5, 2, 0, now), Kind::Lock, b"")));
        let cancel = message(Kind::Cancel, 0, 2, 0, b"");
        assert_eq!(book.take(&cancel, now), Ok(Action::Interrupt(2)));
        assert!(book.answered(to(5, 2, 0, now), true));
        assert_eq!(book.take(&cancel, now), Ok(Action::Forget { tags: vec![], closed: None }));
    }

    #[test]
    fn quotas_refuse_and_do_not_close() {
        let (mut book, now) = (book(), Instant::now());
        for number in 1..=MAX_SESSIONS_PER_LINK as u64 {
            assert!(matches!(book.take(&open(number, number, 0), now), Ok(Action::Open(..))));
            assert!(book.answered(to(number, number, 0, now), true));
        }
        let one_more = open(1 << 40, 1, 0);
        assert_eq!(book.take(&one_more, now), Ok(Action::Refuse(to(1 << 40, 1, 0, now), Errno::MFILE)));
        for tag in 0..MAX_OUTSTANDING_PER_LINK as u64 {
            let request = message(Kind::Request, SESSION_NONE, tag, 0, b"");
            assert!(matches!(book.take(&request, now), Ok(Action::Request(..))));
        }
        let one_more = message(Kind::Request, SESSION_NONE, 1 << 40, 0, b"");
        assert_eq!(book.take(&one_more, now), Ok(Action::Refuse(to(0, 1 << 40, 0, now), Errno::AGAIN)));
        let long = message(Kind::Control, 1, 1 << 40, 0, &[0; MAX_CONTROL_BYTES + 1]);
        assert_eq!(book.take(&long, now), Ok(Action::Refuse(to(1, 1 << 40, 0, now), Errno::MSGSIZE)));
    }

    #[test]
    fn the_capsule_of_session_0_is_handed_back_without_opening_anything() {
        let (mut book, now) = (book(), Instant::now());
        let restored = Action::Restore(to(0, 1, 0, now), b"sealed".to_vec());
        assert_eq!(book.take(&restore(1, b"sealed"), now), Ok(restored));
        assert_eq!((book.sessions(), book.outstanding()), (0, 1));
        assert!(book.is_open(SESSION_NONE), "as it was before");
        assert!(book.answered(to(0, 1, 0, now), false));
        assert!(book.is_open(SESSION_NONE), "even if the capsule was refused");
        assert!(
            matches!(book.take(&restore(2, b"other"), now), Ok(Action::Restore(..))),
            "as often as one likes"
        );
        assert_eq!(book.take(&restore(3, &[0; MAX_CAPSULE_BYTES + 1]), now), Err(Corruption::OpenInfo));
        assert_eq!(book.take(&restore(2, b"again"), now), Err(Corruption::TagInUse(2)));
        for tag in 3..=MAX_OUTSTANDING_PER_LINK as u64 + 1 {
            assert!(matches!(book.take(&restore(tag, b"x"), now), Ok(Action::Restore(..))), "{tag}");
        }
        let one_more = restore(1 << 40, b"x");
        assert_eq!(book.take(&one_more, now), Ok(Action::Refuse(to(0, 1 << 40, 0, now), Errno::AGAIN)));
    }

    #[test]
    fn what_no_correct_consumer_sends_is_corruption() {
        let (mut book, now) = (book(), Instant::now());
        assert!(book.take(&open(5, 1, 0), now).is_ok());
        assert_eq!(book.take(&open(5, 2, 0), now), Err(Corruption::SessionInUse(5)));
        assert_eq!(book.take(&open(0, 2, 0), now), Err(Corruption::SessionInUse(0)));
        assert_eq!(book.take(&open(6, 1, 0), now), Err(Corruption::TagInUse(1)));
        let hello = message(Kind::Hello, 0, 0, 0, b"");
        assert_eq!(book.take(&hello, now), Err(Corruption::Kind(Kind::Hello)));
        assert_eq!(book.take(b"short", now), Err(Corruption::Decode(DecodeError::Short(5))));
        let nobody = message(Kind::Open, 7, 7, 0, b"{}");
        assert_eq!(book.take(&nobody, now), Err(Corruption::OpenInfo));
        let flagged = Header { flags: flags::MORE, ..Header::new(Kind::Request) }.encode();
        assert_eq!(book.take(&flagged, now), Err(Corruption::Flags(Kind::Request)));
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..20)) {
            let mut book = book();
            for message in &messages {
                if book.take(message, Instant::now()).is_err() {
                    break;
                }
            }
        }

        /// Whatever well-formed messages come in whatever order, the service hears of each tag and
        /// each session as the trait promises.
        #[test]
        fn the_service_is_told_a_consistent_story(
            steps in prop::collection::vec((0_u8..13, 0_u64..4, 0_u64..6, 0_u32..3, any::<bool>()), 0..200)
        ) {
            let (mut book, now) = (book(), Instant::now());
            let (mut sessions, mut tags) = (HashSet::new(), HashMap::new());
            for (what, session, tag, file, succeeds) in steps {
                let message = match what {
                    0 => open(session, tag, file),
                    1 => message(Kind::Request, session, tag, file, b"x"),
                    2 => message(Kind::Control, session, tag, file, b"x"),
                    3 => message(Kind::Cancel, 0, tag, 0, b""),
                    4 => message(Kind::Close, session, 0, 0, b""),
                    5 => message(Kind::State, 0, tag, 0, b""),
                    6 => restore(tag, b"sealed"),
                    7 => message(Kind::Credit, session, 0, 1000, b""),
                    8 => message(Kind::Lookup, 0, tag, file, b"name"),
                    9 => message(Kind::ReadAt, session, tag, file, &[0; 12]),
                    11 => message(Kind::Lock, session, tag, file, b"lock"),
                    10 => message(Kind::Change, 0, tag, below(file, 7).expect("small"), b"change"),
                    _ => {
                        let known = tags.remove(&tag);
                        let (session, opens) = known.unwrap_or((session, false));
                        prop_assert_eq!(book.answered(to(session, tag, file, now), succeeds), known.is_some());
                        if opens && !succeeds {
                            sessions.remove(&session);
                        }
                        continue;
                    }
                };
                match book.take(&message, now) {
                    Ok(Action::Open(to, _)) => {
                        prop_assert!(sessions.insert(to.session));
                        prop_assert!(tags.insert(to.tag, (to.session, true)).is_none());
                    }
                    Ok(Action::Request(to, _) | Action::Control(to, _)) => {
                        prop_assert!(to.session == SESSION_NONE || sessions.contains(&to.session));
                        prop_assert!(tags.insert(to.tag, (to.session, false)).is_none());
                    }
                    Ok(Action::Forget { tags: gone, closed }) => {
                        for tag in gone {
                            prop_assert!(tags.remove(&tag).is_some());
                        }
                        if let Some(session) = closed {
                            prop_assert!(sessions.remove(&session));
                            prop_assert!(tags.values().all(|(of, _)| *of != session));
                        }
                    }
                    Ok(Action::Restore(to, _)) => {
                        prop_assert!(tags.insert(to.tag, (SESSION_NONE, false)).is_none());
                    }
                    Ok(Action::Tree(to, kind, _)) => {
                        prop_assert!(kind != Kind::ReadAt || to.session == SESSION_NONE || sessions.contains(&to.session));
                        prop_assert!(tags.insert(to.tag, (to.session, false)).is_none());
                    }
                    Ok(Action::Credit(session)) => prop_assert!(sessions.contains(&session)),
                    Ok(Action::Interrupt(tag)) => prop_assert!(tags.contains_key(&tag)),
                    Ok(Action::Refuse(..) | Action::State(..) | Action::Nothing) => {}
                    Err(Corruption::TagInUse(tag)) => prop_assert!(tags.contains_key(&tag)),
                    Err(Corruption::SessionInUse(session)) => {
                        prop_assert!(session == SESSION_NONE || sessions.contains(&session));
                    }
                    Err(other) => prop_assert!(false, "unexpected {}", other),
                }
                prop_assert_eq!((book.sessions(), book.outstanding()), (sessions.len(), tags.len()));
            }
        }
    }
}
