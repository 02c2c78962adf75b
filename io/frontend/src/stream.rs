//! The reader's half of an open stream: records that came, how many more may, and what the next
//! backend is told.

use std::collections::VecDeque;

use wire::service::{MAX_RECORD_BYTES, RECORD_OVERHEAD_BYTES, Terms};

/// Bytes of records, their overhead included, that one open stream holds and is on its way to hold.
/// Credit is given anew when half of it is free, so the longest record always comes to fit.
pub(crate) const WINDOW_BYTES: usize = 256 * 1024;
/// Streams that the programs of one domain have open at once, so that their windows have a bound
/// together.
pub(crate) const STREAMS_MAX: usize = 128;
/// The cost of the longest record.
const MAX_BYTES: usize = MAX_RECORD_BYTES + RECORD_OVERHEAD_BYTES;
const _: () = assert!(WINDOW_BYTES / 2 >= MAX_BYTES);

/// A record, and the state of the session after it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    bytes: Vec<u8>,
    capsule: Vec<u8>,
}

impl Record {
    fn cost(&self) -> usize {
        self.bytes.len() + RECORD_OVERHEAD_BYTES
    }
}

/// The result of one read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) bytes: Vec<u8>,
    pub(crate) errno: i32,
    /// The state after the record, where all of it is read now.
    pub(crate) capsule: Option<Vec<u8>>,
}

/// The state of an open stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stream {
    records: VecDeque<Record>,
    /// The total cost of the records.
    held: usize,
    /// The credit that the backend has left to send.
    credit: usize,
    /// Bytes of the first record that are read already; also of one that is still to come again.
    pub(crate) taken: usize,
    /// The state after the last record that came: what a next backend goes on from.
    pub(crate) latest: Vec<u8>,
    /// No more records come: an errno that is to be read, or 0.
    pub(crate) ended: Option<i32>,
    /// An errno for the next write: a record was refused, or lost.
    pub(crate) refused: Option<i32>,
    /// An errno for the next read, when the records that are there are read: some were lost.
    pub(crate) lost: Option<i32>,
    /// The terms that the backend stated when it opened the stream; the next backend states them
    /// again.
    pub(crate) terms: Option<Terms>,
    /// It is a predecessor's, and its backend has not said its terms yet.
    pub(crate) adopted: bool,
    /// Somebody reads or polls, and a record was not asked for yet: of interest where they come on
    /// demand.
    wanted: bool,
}

impl Stream {
    /// Bytes of records that may be held and be on their way.
    fn window(&self) -> usize {
        let said = self.terms.map(|terms| terms.window as usize);
        said.map_or(WINDOW_BYTES, |window| window.clamp(MAX_BYTES, WINDOW_BYTES))
    }

    fn is_on_demand(&self) -> bool {
        self.terms.is_some_and(|terms| terms.window == 0)
    }

    /// Whether a write waits for its answer.
    pub(crate) fn writes_wait(&self) -> bool {
        self.terms.is_some_and(|terms| terms.writes_wait)
    }

    /// Somebody reads or polls, and nothing is there.
    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    /// The state after the last record that came is this one.
    pub(crate) fn renew(&mut self, capsule: &[u8]) -> bool {
        self.latest = capsule.to_vec();
        let last = self.records.back_mut();
        last.map(|record| record.capsule = capsule.to_vec()).is_some()
    }

    /// Returns the credit to grant to the backend, now that the session is open.
    pub(crate) fn begin(&mut self) -> u32 {
        self.credit = 0;
        if self.is_on_demand() { self.more().unwrap_or(0) } else { self.top_up(self.window()) }
    }

    /// Returns the further credit to grant, if that is worth a message.
    pub(crate) fn more(&mut self) -> Option<u32> {
        let free = self.window().saturating_sub(self.held + self.credit);
        let is_due = if self.is_on_demand() {
            self.records.is_empty() && std::mem::take(&mut self.wanted)
        } else {
            // A narrow window has to let the longest record in when it is empty.
            free >= self.window() / 2 || self.held == 0 && self.credit < MAX_BYTES
        };
        if !is_due || self.ended.is_some() || free == 0 && !self.is_on_demand() {
            return None;
        }
        // On demand, credit says that somebody waits; there may be as much as there can be, and
        // what is sent takes more off.
        let bytes = free.max(1);
        self.credit += bytes;
        Some(bytes as u32)
    }

    fn top_up(&mut self, wanted: usize) -> u32 {
        let free = self.window().saturating_sub(self.held + self.credit).min(wanted);
        self.credit += free;
        free as u32
    }

    /// Takes a record; false: it goes beyond the credit.
    pub(crate) fn came(&mut self, bytes: &[u8], capsule: &[u8]) -> bool {
        let record = Record { bytes: bytes.to_vec(), capsule: capsule.to_vec() };
        let Some(left) = self.credit.checked_sub(record.cost()) else { return false };
        self.credit = left;
        self.held += record.cost();
        self.wanted = false;
        self.latest = record.capsule.clone();
        self.records.push_back(record);
        true
    }

    /// The backend is lost. A next one goes on after the last record that came, or begins anew,
    /// which is told.
    pub(crate) fn interrupted(&mut self, silently: bool, errno: i32) {
        self.credit = 0;
        if self.latest.is_empty() && !silently && self.ended.is_none() {
            self.lost = Some(errno);
        }
    }

    pub(crate) fn readable(&self) -> bool {
        !self.records.is_empty() || self.lost.is_some() || self.ended.is_some()
    }

    /// Returns the result of the next read, or `None` where it would wait. A record longer than
    /// `size` goes on in the next read.
    pub(crate) fn read(&mut self, size: usize) -> Option<Taken> {
        let nothing = |errno| Some(Taken { bytes: Vec::new(), errno, capsule: None });
        let Some(first) = self.records.front() else {
            if let Some(errno) = self.lost.take() {
                return nothing(errno);
            }
            let errno = self.ended?;
            self.ended = Some(0);
            return nothing(errno);
        };
        let rest = first.bytes.get(self.taken..).unwrap_or_default();
        let piece = rest.get(..size).unwrap_or(rest).to_vec();
        if piece.len() < rest.len() {
            self.taken += piece.len();
            return Some(Taken { bytes: piece, errno: 0, capsule: None });
        }
        self.taken = 0;
        let record = self.records.pop_front()?;
        self.held -= record.cost();
        let capsule = Some(record.capsule).filter(|capsule| !capsule.is_empty());
        Some(Taken { bytes: piece, errno: 0, capsule })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Stream {
        let mut stream = Stream::default();
        assert_eq!(stream.begin() as usize, WINDOW_BYTES);
        stream
    }

    #[test]
    fn a_read_takes_one_record_and_a_long_one_goes_on() {
        let mut stream = open();
        assert_eq!(stream.read(9), None);
        assert!(stream.came(b"one", b"1") && stream.came(b"longer", b"2"));
        let taken = |bytes: &[u8], capsule: Option<&[u8]>| {
            Some(Taken { bytes: bytes.to_vec(), errno: 0, capsule: capsule.map(<[u8]>::to_vec) })
        };
        assert_eq!(stream.read(9), taken(b"one", Some(b"1")));
        assert_eq!(stream.read(4), taken(b"long", None));
        assert_eq!(stream.read(4), taken(b"er", Some(b"2")));
        assert_eq!(stream.read(4), None);
    }

    #[test]
    fn no_more_comes_than_was_taken_up_to() {
        let mut stream = open();
        let record = vec![0; MAX_RECORD_BYTES];
        let fit = WINDOW_BYTES / (MAX_RECORD_BYTES + RECORD_OVERHEAD_BYTES);
        for _ in 0..fit {
            assert!(stream.came(&record, b""));
            assert_eq!(stream.more(), None);
        }
        assert!(!stream.came(&record, b""), "beyond the credit");
        let mut given = 0;
        for _ in 0..fit {
            stream.read(MAX_RECORD_BYTES).unwrap();
            given += stream.more().unwrap_or(0);
        }
        assert!(given as usize >= MAX_RECORD_BYTES + RECORD_OVERHEAD_BYTES, "the longest fits again");
        assert!(stream.came(&record, b""));
    }

    #[test]
    fn on_demand_a_record_comes_when_somebody_wants_one() {
        let terms = Terms { window: 0, writes_wait: false };
        let mut stream = Stream { terms: Some(terms), ..Stream::default() };
        assert_eq!((stream.begin(), stream.more()), (0, None));
        stream.want();
        assert_eq!(stream.more(), Some(MAX_BYTES as u32));
        assert_eq!(stream.more(), None, "one at a time");
        assert!(stream.came(b"new", b"1"));
        stream.want();
        assert_eq!(stream.more(), None, "one is there");
        assert!(stream.read(9).is_some());
        assert_eq!(stream.more(), Some(3 + RECORD_OVERHEAD_BYTES as u32));
        stream.interrupted(true, 104);
        stream.want();
        assert_eq!(stream.begin() as usize, MAX_BYTES, "who still waits asks the next backend");
    }

    #[test]
    fn a_narrow_window_lets_the_longest_record_in() {
        let terms = Terms { window: MAX_BYTES as u32, writes_wait: false };
        let mut stream = Stream { terms: Some(terms), ..Stream::default() };
        assert_eq!(stream.begin() as usize, MAX_BYTES);
        assert!(stream.came(b"short", b""));
        assert!(stream.read(9).is_some());
        assert!(stream.more().is_some());
        assert!(stream.came(&vec![0; MAX_RECORD_BYTES], b""));
    }

    #[test]
    fn a_state_that_is_told_between_records_is_that_of_the_last_one() {
        let mut stream = open();
        assert!(!stream.renew(b"0"), "the session's own");
        assert!(stream.came(b"x", b"1") && stream.renew(b"2"));
        assert_eq!(stream.read(9).and_then(|taken| taken.capsule).as_deref(), Some(&b"2"[..]));
        assert_eq!(stream.latest, b"2");
    }

    #[test]
    fn what_was_lost_and_the_end_are_read_after_what_is_there() {
        let mut stream = open();
        assert!(stream.came(b"x", b""));
        stream.interrupted(false, 104);
        stream.ended = Some(5);
        let errnos: Vec<i32> = (0..5).map(|_| stream.read(9).unwrap().errno).collect();
        assert_eq!(errnos, [0, 104, 5, 0, 0]);
        let mut resumed = open();
        assert!(resumed.came(b"x", b"after x"));
        resumed.interrupted(false, 104);
        assert_eq!((resumed.lost, resumed.latest.as_slice()), (None, &b"after x"[..]));
    }
}
