//! Every order of steps of a lender, a borrower, an owner that takes its buffer back or ends, and a
//! link that is cut, at small sizes; and those that keep to no rule.

use super::*;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};

const OWNER: Address = Address { slot: 3, generation: 1 };
const BYTES: usize = 3;

/// The memory that the owner has granted, and the one that it has moved away with.
#[derive(Clone, Debug)]
struct Memory {
    data: RefCell<Vec<u8>>,
    state: Cell<State>,
    /// The owner's own copy, after it has left the memory.
    taken: RefCell<Option<Vec<u8>>>,
}

impl Memory {
    fn new(bytes: usize) -> Memory {
        let data = (0..bytes).map(|at| (at % 251) as u8).collect();
        Memory { data: RefCell::new(data), state: Cell::new(State::Live), taken: RefCell::new(None) }
    }
}

impl Lent for Memory {
    fn state(&self) -> State {
        self.state.get()
    }
    fn fence(&self) {}
    fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.data.borrow()[offset as usize..][..into.len()]);
    }
    fn write(&self, offset: u64, from: &[u8]) {
        self.data.borrow_mut()[offset as usize..][..from.len()].copy_from_slice(from);
    }
}

fn terms(writable: bool, bytes: usize) -> Terms {
    Terms { owner: OWNER, writable, bytes: bytes as u64 }
}

/// How a copy has ended for whoever made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Of(Outcome2),
    /// The channel was closed before it was over.
    Cut,
}

/// [`Outcome`], in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome2 {
    Good,
    Moved,
    Revoked,
    Dead,
    Cancelled,
}

fn ordered(outcome: Outcome) -> Outcome2 {
    match outcome {
        Outcome::Good => Outcome2::Good,
        Outcome::Moved => Outcome2::Moved,
        Outcome::Revoked => Outcome2::Revoked,
        Outcome::Dead => Outcome2::Dead,
        Outcome::Cancelled => Outcome2::Cancelled,
    }
}

/// A moment of a copy.
#[derive(Clone, Debug)]
struct World {
    lender: Lender<Memory>,
    borrower: Borrower,
    to_lender: VecDeque<(Record, Vec<u8>)>,
    to_borrower: VecDeque<(Record, Vec<u8>)>,
    write: bool,
    /// The bytes that were read so far.
    got: Vec<u8>,
    end: Option<End>,
    begun: bool,
    may_cancel: bool,
    cut: bool,
    /// The owner's next act, if there is one.
    owner: Option<State>,
    /// The memory's bytes when the copy ended.
    at_end: Option<Vec<u8>>,
}

const NEW: [u8; BYTES] = [101, 102, 103];

impl World {
    fn new(write: bool, owner: Option<State>, may_cancel: bool) -> World {
        let mut lender = Lender::new(Memory::new(BYTES), terms(write, BYTES));
        let mut borrower = Borrower::default();
        (lender.piece_bytes, borrower.piece_bytes) = (1, 1);
        World {
            lender,
            borrower,
            to_lender: VecDeque::new(),
            to_borrower: VecDeque::new(),
            write,
            got: vec![0; BYTES],
            end: None,
            begun: false,
            may_cancel,
            cut: false,
            owner,
            at_end: None,
        }
    }

    fn over(&mut self, end: End) {
        self.end = Some(end);
        self.at_end = Some(self.lender.memory.data.borrow().clone());
    }

    /// All that may happen next.
    fn next(&self) -> Vec<World> {
        let mut all = Vec::new();
        let mut step = |act: &dyn Fn(&mut World) -> bool| {
            let mut world = self.clone();
            if act(&mut world) {
                all.push(world);
            }
        };
        step(&|world| world.borrower_says());
        step(&|world| world.borrower_hears());
        step(&|world| world.borrower_cancels());
        step(&|world| world.lender_says());
        step(&|world| world.lender_hears());
        step(&|world| world.owner_acts());
        step(&|world| world.recalled());
        step(&|world| !std::mem::replace(&mut world.cut, true));
        all
    }

    fn borrower_says(&mut self) -> bool {
        if self.end.is_some() || self.borrower.terms().is_none() || self.cut {
            return false;
        }
        if !std::mem::replace(&mut self.begun, true) {
            let (record, first) = self.borrower.begin(self.write, 0, BYTES as u64);
            self.to_lender.push_back((record, NEW[..first].to_vec()));
            return true;
        }
        let Some((record, at, length)) = self.borrower.next_piece() else { return false };
        self.to_lender.push_back((record, NEW[at as usize..][..length].to_vec()));
        true
    }

    fn borrower_cancels(&mut self) -> bool {
        if self.end.is_some() || self.cut || !self.begun || !std::mem::take(&mut self.may_cancel) {
            return false;
        }
        let Some(record) = self.borrower.cancel() else { return false };
        self.to_lender.push_back((record, Vec::new()));
        true
    }

    fn borrower_hears(&mut self) -> bool {
        if self.end.is_some() {
            return false;
        }
        let Some((record, bytes)) = self.to_borrower.pop_front() else {
            // What was said before the cut has been heard.
            if self.cut {
                self.over(End::Cut);
            }
            return self.cut;
        };
        match self.borrower.hear(record, bytes.len()).expect("it keeps to the rules") {
            Heard::Lent(lent) => assert_eq!(lent, terms(self.write, BYTES)),
            Heard::Bytes(at) => self.got[at as usize..][..bytes.len()].copy_from_slice(&bytes),
            Heard::Done(outcome) => self.over(End::Of(ordered(outcome))),
        }
        true
    }

    fn lender_says(&mut self) -> bool {
        let mut bytes = Vec::new();
        // What it says after the cut reaches nobody, and neither is it asked any more.
        if self.cut {
            return false;
        }
        match self.lender.say(&mut bytes) {
            Some(record) => self.to_borrower.push_back((record, bytes)),
            None => return false,
        }
        true
    }

    fn lender_hears(&mut self) -> bool {
        // What was sent before a cut may still come.
        if !self.lender.hears() {
            return false;
        }
        let Some((record, bytes)) = self.to_lender.pop_front() else { return false };
        self.lender.hear(record, &bytes).expect("it keeps to the rules");
        true
    }

    /// It stores the state, then copies to other memory.
    fn owner_acts(&mut self) -> bool {
        let memory = &self.lender.memory;
        match self.owner {
            Some(state) if memory.state.get() == State::Live => memory.state.set(state),
            Some(_) => {
                let data = memory.data.borrow().clone();
                *memory.taken.borrow_mut() = Some(data);
                self.owner = None;
            }
            None => return false,
        }
        true
    }

    fn recalled(&mut self) -> bool {
        let memory = &self.lender.memory;
        if memory.state.get() == State::Live || self.lender.doing == Doing::Nothing || !self.lender.hears() {
            return false;
        }
        self.lender.recall();
        true
    }

    /// Checks the rules that hold at every moment.
    fn check(&self) {
        let memory = &self.lender.memory;
        let (data, taken) = (memory.data.borrow(), memory.taken.borrow());
        match self.end {
            Some(End::Of(Outcome2::Good)) if self.write => {
                assert_eq!(data.as_slice(), NEW);
                if let Some(taken) = taken.as_ref() {
                    assert_eq!(taken.as_slice(), NEW, "what ended well is in what the owner has");
                }
            }
            Some(End::Of(Outcome2::Good)) => assert_eq!(self.got, [0, 1, 2]),
            // Nobody knows.
            Some(End::Cut) => {}
            Some(End::Of(why)) => {
                let state = memory.state.get();
                match why {
                    Outcome2::Moved => assert_eq!(state, State::Moved),
                    Outcome2::Revoked => assert_eq!(state, State::Revoked),
                    Outcome2::Dead => assert_eq!(state, State::Dead),
                    Outcome2::Cancelled | Outcome2::Good => {}
                }
                assert_eq!(self.at_end.as_ref(), Some(&*data), "nothing is written after the end was said");
            }
            None => {}
        }
    }
}

#[test]
fn in_every_order_a_copy_ends_as_on_one_node_or_nobody_knows() {
    for write in [false, true] {
        for may_cancel in [false, true] {
            for owner in [None, Some(State::Moved), Some(State::Revoked), Some(State::Dead)] {
                let mut ends = BTreeSet::new();
                let mut seen = BTreeSet::new();
                let mut left = vec![World::new(write, owner, may_cancel)];
                while let Some(world) = left.pop() {
                    world.check();
                    if !seen.insert(format!("{world:?}")) {
                        continue;
                    }
                    ends.extend(world.end);
                    let next = world.next();
                    assert!(!next.is_empty() || world.end.is_some(), "it waits for ever: {world:?}");
                    left.extend(next);
                }
                let mut wanted = BTreeSet::from([End::Of(Outcome2::Good), End::Cut]);
                wanted.extend(may_cancel.then_some(End::Of(Outcome2::Cancelled)));
                wanted.extend(owner.map(|state| {
                    End::Of(match state {
                        State::Moved => Outcome2::Moved,
                        State::Dead => Outcome2::Dead,
                        State::Revoked | State::Live => Outcome2::Revoked,
                    })
                }));
                assert_eq!(ends, wanted, "write {write}, cancel {may_cancel}, {owner:?}");
            }
        }
    }
}

/// A whole copy, without anything in between.
fn copy(
    lender: &mut Lender<Memory>,
    borrower: &mut Borrower,
    span: (u64, u64),
    new: Option<&[u8]>,
) -> (Vec<u8>, Outcome) {
    let (offset, length) = span;
    let mut got = vec![0; length as usize];
    let mut bytes = Vec::new();
    let (record, first) = borrower.begin(new.is_some(), offset, length);
    lender.hear(record, &new.unwrap_or_default()[..first]).expect("heard");
    while let Some((record, at, length)) = borrower.next_piece() {
        if !lender.hears() {
            break;
        }
        lender.hear(record, &new.unwrap_or_default()[at as usize..][..length]).expect("heard");
    }
    loop {
        let record = lender.say(&mut bytes).expect("it goes on");
        match borrower.hear(record, bytes.len()).expect("heard") {
            Heard::Bytes(at) => got[at as usize..][..bytes.len()].copy_from_slice(&bytes),
            Heard::Done(outcome) => return (got, outcome),
            Heard::Lent(_) => {}
        }
    }
}

#[test]
fn what_is_longer_than_a_piece_crosses_in_several_and_nothing_at_all_looks_at_the_grant() {
    const LONG: usize = 3 * PIECE_BYTES_MAX + 5;
    let mut lender = Lender::new(Memory::new(LONG), terms(true, LONG));
    let mut borrower = Borrower::default();
    let record = lender.say(&mut Vec::new()).expect("what was lent");
    borrower.hear(record, 0).expect("heard");
    let new: Vec<u8> = (0..LONG).map(|at| (at % 13) as u8).collect();
    assert_eq!(copy(&mut lender, &mut borrower, (0, LONG as u64), Some(&new)).1, Outcome::Good);
    let (got, outcome) = copy(&mut lender, &mut borrower, (1, LONG as u64 - 1), None);
    assert!(got == new[1..] && outcome == Outcome::Good);
    assert_eq!(copy(&mut lender, &mut borrower, (LONG as u64, 0), Some(&[])).1, Outcome::Good);
    lender.memory.state.set(State::Revoked);
    assert_eq!(copy(&mut lender, &mut borrower, (0, 0), Some(&[])).1, Outcome::Revoked);
    assert_eq!(copy(&mut lender, &mut borrower, (0, 0), None).1, Outcome::Revoked);
    assert_eq!(copy(&mut lender, &mut borrower, (0, LONG as u64), Some(&new)).1, Outcome::Revoked);
    // The rest of that copy was on its way.
    lender.hear(Record::Bytes { copy: 6, offset: 9 }, b"late").expect("dropped");
}

#[test]
fn a_borrower_that_breaks_a_rule_is_heard_no_more() {
    let read = |copy, offset, length| Record::Read { copy, offset, length };
    let write = |copy, offset, length| Record::Write { copy, offset, length };
    let fresh = |writable| {
        let mut lender = Lender::new(Memory::new(100), terms(writable, 100));
        lender.say(&mut Vec::new()).expect("what was lent");
        lender
    };
    for (offset, length) in [(0, 101), (100, 1), (101, 0), (u64::MAX, 1), (u64::MAX, 0)] {
        assert!(matches!(fresh(true).hear(read(1, offset, length), &[]), Err(Broken::Range(_))));
        assert!(matches!(fresh(true).hear(write(1, offset, length), &[]), Err(Broken::Range(_))));
    }
    assert_eq!(fresh(false).hear(write(1, 0, 1), b"x"), Err(Broken::Access));
    assert!(matches!(fresh(false).hear(Record::Bytes { copy: 1, offset: 0 }, b"x"), Err(Broken::Turn(_))));
    assert!(matches!(fresh(false).hear(Record::Cancel { copy: 1 }, &[]), Err(Broken::Turn(_))));
    assert!(matches!(fresh(true).hear(write(1, 0, 2), b"xyz"), Err(Broken::Bytes { .. })));
    let mut lender = fresh(true);
    lender.hear(write(4, 10, 5), b"ab").expect("heard");
    assert!(matches!(lender.hear(read(5, 0, 1), &[]), Err(Broken::Turn(_))));
    assert!(matches!(lender.hear(Record::Bytes { copy: 4, offset: 10 }, b"c"), Err(Broken::Bytes { .. })));
    assert!(matches!(lender.hear(Record::Bytes { copy: 4, offset: 12 }, b"cdef"), Err(Broken::Bytes { .. })));
    assert!(matches!(
        lender.hear(Record::Done { copy: 4, outcome: Outcome::Good }, &[]),
        Err(Broken::Turn(_))
    ));
    lender.hear(Record::Cancel { copy: 4 }, &[]).expect("heard");
    assert!(!lender.hears());
    assert_eq!(lender.say(&mut Vec::new()), Some(Record::Done { copy: 4, outcome: Outcome::Cancelled }));
    assert!(matches!(lender.hear(read(4, 0, 1), &[]), Err(Broken::Turn(_))));
    let data = lender.memory.data.borrow();
    assert_eq!(data[9..14], [9, b'a', b'b', 12, 13]);
}

#[test]
fn a_lender_that_breaks_a_rule_is_believed_nothing() {
    let lent = Record::Lent { owner: OWNER, writable: true, bytes: 10 };
    let fresh = || {
        let mut borrower = Borrower::default();
        borrower.hear(lent, 0).expect("heard");
        borrower.begin(false, 2, 4);
        borrower
    };
    let bytes = |offset| Record::Bytes { copy: 1, offset };
    let done = |copy, outcome| Record::Done { copy, outcome };
    for (record, behind) in [
        (lent, 0),
        (bytes(3), 1),
        (bytes(2), 5),
        (Record::Bytes { copy: 2, offset: 2 }, 1),
        (done(1, Outcome::Good), 0),
        (done(1, Outcome::Cancelled), 0),
        (done(2, Outcome::Revoked), 0),
        (Record::Read { copy: 1, offset: 2, length: 1 }, 0),
    ] {
        assert!(fresh().hear(record, behind).is_err(), "{record:?}");
    }
    assert_eq!(fresh().hear(done(1, Outcome::Dead), 0), Ok(Heard::Done(Outcome::Dead)));
    let mut writer = Borrower::default();
    assert!(matches!(writer.hear(bytes(0), 1), Err(Broken::Turn(_))));
    writer.begin(true, 0, PIECE_BYTES_MAX as u64 + 1);
    assert!(writer.hear(done(1, Outcome::Good), 0).is_err(), "not all of it was sent");
    assert!(writer.hear(bytes(0), 1).is_err(), "nothing was asked for");
}

proptest! {
    #[test]
    fn whatever_is_heard_nothing_outside_is_touched(
        said in prop::collection::vec((0..6_u8, 0..4_u64, 0..60_u64, 0..60_u64, 0..40_usize), 1..60),
        writable: bool,
    ) {
        let mut lender = Lender::new(Memory::new(50), terms(writable, 50));
        let mut bytes = Vec::new();
        for (kind, copy, offset, length, behind) in said {
            let copy = lender.last + copy;
            let record = match kind {
                0 => Record::Read { copy, offset, length },
                1 => Record::Write { copy, offset, length },
                2 => Record::Bytes { copy, offset },
                3 => Record::Cancel { copy },
                4 => Record::Done { copy, outcome: Outcome::Good },
                _ => Record::Lent { owner: OWNER, writable, bytes: length },
            };
            while !lender.hears() || behind == 0 {
                if lender.say(&mut bytes).is_none() {
                    break;
                }
            }
            if lender.hear(record, &vec![7; behind]).is_err() {
                break;
            }
        }
        let data = lender.memory.data.borrow();
        prop_assert!(data.len() == 50 && (writable || *data == *Memory::new(50).data.borrow()));
    }
}
