//! The writes that a node with a backup's replica takes, and from whom.

/// One connection of a primary to a backup's replica. The backup numbers them; no number is used
/// twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    /// The backup's life: another one after each start of its node.
    pub incarnation: u64,
    /// Counts within that life.
    pub number: u64,
}

/// The verdict on a write that a primary sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Write it, and say [`Backup::stored`] when it is on stable storage.
    Store,
    /// It came before and is on stable storage: answer again.
    Again,
    /// It came before and is not on stable storage yet: the answer will come.
    UnderWay,
    /// It belongs to a session that is over, or one before it is missing: not to be written.
    Refuse,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Open {
    view: u64,
    session: Session,
    /// The sequence number that comes next.
    expected: u64,
    /// Taken and not yet on stable storage.
    under_way: Vec<u64>,
}

/// The backup's side of a replica. With a stock engine: a session is an export with a name of its
/// own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backup {
    incarnation: u64,
    sessions: u64,
    /// The highest view that was heard of.
    view: u64,
    open: Option<Open>,
}

impl Backup {
    /// Nobody writes here yet. No two lives of a node may have one incarnation. `view` is what the
    /// registry has: without it, a primary of an earlier view could write over what a later one
    /// acknowledged.
    #[must_use]
    pub fn new(incarnation: u64, view: u64) -> Self {
        Self { incarnation, sessions: 0, view, open: None }
    }

    /// The primary of `view` wants to write. Whatever was open is over. `None` while the disk is
    /// not `quiet`: a write of an earlier session that is still on its way to the disk could undo a
    /// later one. Also for a view that is older than one heard of.
    pub fn open(&mut self, view: u64, quiet: bool) -> Option<Session> {
        if view < self.view {
            return None;
        }
        self.view = view;
        self.open = None;
        if !quiet {
            return None;
        }
        self.sessions += 1;
        let session = Session { incarnation: self.incarnation, number: self.sessions };
        self.open = Some(Open { view, session, expected: 0, under_way: Vec::new() });
        Some(session)
    }

    /// Ends what is open: before this node claims the volume, and when it hears of a view.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Hears of the view that the registry has: what belongs to an older one is over.
    pub fn heard(&mut self, view: u64) {
        self.view = self.view.max(view);
        if self.open.as_ref().is_some_and(|open| open.view < self.view) {
            self.close();
        }
    }

    /// A write came, with its number in the session.
    pub fn store(&mut self, session: Session, sequence: u64) -> Verdict {
        let Some(open) = self.open.as_mut().filter(|open| open.session == session) else {
            return Verdict::Refuse;
        };
        if sequence == open.expected {
            open.expected += 1;
            open.under_way.push(sequence);
            Verdict::Store
        } else if sequence > open.expected {
            Verdict::Refuse
        } else if open.under_way.contains(&sequence) {
            Verdict::UnderWay
        } else {
            Verdict::Again
        }
    }

    /// A write is on stable storage: whether that is to be answered.
    pub fn stored(&mut self, session: Session, sequence: u64) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| open.session == session) else { return false };
        open.under_way.retain(|under_way| *under_way != sequence);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_session_at_a_time_and_only_on_a_quiet_disk() {
        let mut backup = Backup::new(7, 0);
        let first = backup.open(1, true).unwrap();
        assert_eq!(backup.store(first, 0), Verdict::Store);
        assert_eq!(backup.open(1, false), None);
        assert_eq!(backup.store(first, 1), Verdict::Refuse, "the first one is over");
        assert!(!backup.stored(first, 0), "nobody waits for that answer");
        let second = backup.open(1, true).unwrap();
        assert_ne!(first, second);
    }

    #[test]
    fn an_older_view_gets_nothing() {
        let mut backup = Backup::new(7, 0);
        let session = backup.open(2, true).unwrap();
        assert_eq!(backup.open(1, true), None);
        assert_eq!(backup.store(session, 0), Verdict::Store, "the asker's view is over, not this one");
        backup.heard(3);
        assert_eq!(backup.store(session, 1), Verdict::Refuse);
    }

    #[test]
    fn doubled_writes_are_written_once_and_gaps_refused() {
        let mut backup = Backup::new(7, 0);
        let session = backup.open(1, true).unwrap();
        assert_eq!(backup.store(session, 1), Verdict::Refuse);
        assert_eq!(backup.store(session, 0), Verdict::Store);
        assert_eq!(backup.store(session, 0), Verdict::UnderWay);
        assert!(backup.stored(session, 0));
        assert_eq!(backup.store(session, 0), Verdict::Again);
    }
}
