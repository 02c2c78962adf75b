//! The promises to owners of locks, one by one.

use locks::{Held, Kind, LAST, MAX_LOCKS, MAX_WAITERS, Mode, Outcome, Owner, Range, Refusal, Table};

const FILE: u32 = 7;

fn owner(party: u64) -> Owner {
    Owner { party, number: 1 }
}

fn want(party: u64, mode: Mode, first: u64, last: u64) -> Held {
    let range = Range::new(first, last).expect("a range");
    Held { owner: owner(party), kind: Kind::Record, mode, range, via: 10 * party, process: 100 }
}

fn whole(party: u64, mode: Mode) -> Held {
    Held { kind: Kind::Whole, range: Range::ALL, ..want(party, mode, 0, 0) }
}

fn ranges(table: &Table<u32>, party: u64) -> Vec<(u64, u64, Mode)> {
    let own = table.of(FILE).iter().filter(|held| held.owner.party == party);
    let mut ranges: Vec<_> = own.map(|held| (held.range.first(), held.range.last(), held.mode)).collect();
    ranges.sort_by_key(|range| range.0);
    ranges
}

const SHARED: Mode = Mode::Shared;
const EXCLUSIVE: Mode = Mode::Exclusive;

#[test]
fn readers_share_and_a_writer_is_alone() {
    let mut table = Table::default();
    assert_eq!(table.lock(FILE, want(1, SHARED, 0, 9), None), Ok(Outcome::Granted));
    assert_eq!(table.lock(FILE, want(2, SHARED, 5, 20), None), Ok(Outcome::Granted));
    assert_eq!(table.lock(FILE, want(3, EXCLUSIVE, 9, 9), None), Err(Refusal::Held));
    assert_eq!(table.lock(FILE, want(3, EXCLUSIVE, 21, LAST), None), Ok(Outcome::Granted));
    assert_eq!(table.lock(FILE + 1, want(3, EXCLUSIVE, 0, LAST), None), Ok(Outcome::Granted));
    let found = table.test(FILE, &want(3, EXCLUSIVE, 0, LAST)).expect("both");
    assert_eq!((found.owner, found.range.first(), found.process), (owner(1), 0, 100));
    assert_eq!(table.test(FILE, &want(3, SHARED, 0, 20)), None);
}

#[test]
fn ranges_of_one_owner_are_split_and_joined() {
    let mut table = Table::default();
    table.lock(FILE, want(1, SHARED, 0, 9), None).expect("free");
    table.lock(FILE, want(1, EXCLUSIVE, 4, 5), None).expect("its own");
    assert_eq!(ranges(&table, 1), [(0, 3, SHARED), (4, 5, EXCLUSIVE), (6, 9, SHARED)]);
    table.lock(FILE, want(1, SHARED, 4, 5), None).expect("its own");
    assert_eq!(ranges(&table, 1), [(0, 9, SHARED)]);
    table.lock(FILE, want(1, SHARED, 10, 12), None).expect("beside it");
    assert_eq!(ranges(&table, 1), [(0, 12, SHARED)]);
    table.unlock(FILE, owner(1), Kind::Record, Range::new(3, 3).expect("a byte")).expect("room");
    assert_eq!(ranges(&table, 1), [(0, 2, SHARED), (4, 12, SHARED)]);
    table.unlock(FILE, owner(1), Kind::Record, Range::ALL).expect("room");
    assert_eq!((table.of(FILE).len(), table.count(1)), (0, (0, 0)));
}

#[test]
fn who_waits_is_next_when_the_holder_gives_up_or_wants_less() {
    let mut table = Table::default();
    table.lock(FILE, want(1, EXCLUSIVE, 0, 9), None).expect("free");
    assert_eq!(table.lock(FILE, want(2, SHARED, 0, 0), Some(21)), Ok(Outcome::Waits));
    assert_eq!(table.lock(FILE, want(3, EXCLUSIVE, 5, 5), Some(31)), Ok(Outcome::Waits));
    assert_eq!(table.settled(), []);
    table.lock(FILE, want(1, SHARED, 0, 9), None).expect("its own");
    assert_eq!(table.settled(), [(21, Ok(()))]);
    assert_eq!(table.close(1, 10), [0; 0]);
    assert_eq!(table.settled(), [(31, Ok(()))]);
    assert!(!table.cancel(31), "it has its lock");
}

#[test]
fn a_wait_that_is_cancelled_leaves_nothing() {
    let mut table = Table::default();
    table.lock(FILE, want(1, EXCLUSIVE, 0, 9), None).expect("free");
    table.lock(FILE, want(2, EXCLUSIVE, 0, 9), Some(1)).expect("it waits");
    table.lock(FILE, want(3, EXCLUSIVE, 0, 9), Some(2)).expect("it waits");
    assert!(table.cancel(1));
    assert_eq!(table.leave(3), [2]);
    table.leave(1);
    assert_eq!((table.settled(), table.all().count()), (vec![], 0));
}

#[test]
fn owners_that_would_wait_for_each_other_are_told() {
    let mut table = Table::default();
    for party in 1..=3 {
        table.lock(FILE, want(party, EXCLUSIVE, party, party), None).expect("free");
    }
    assert_eq!(table.lock(FILE, want(1, EXCLUSIVE, 2, 2), Some(1)), Ok(Outcome::Waits));
    assert_eq!(table.lock(FILE, want(2, SHARED, 3, 3), Some(2)), Ok(Outcome::Waits));
    assert_eq!(table.lock(FILE, want(3, EXCLUSIVE, 1, 1), Some(3)), Err(Refusal::Deadlock));
    table.leave(3);
    assert_eq!(table.settled(), [(2, Ok(()))]);
}

/// Of two threads of an owner one waits, and the other takes what closes the circle.
#[test]
fn a_circle_that_closes_without_a_wait_is_found() {
    let mut table = Table::default();
    table.lock(FILE, want(1, EXCLUSIVE, 1, 1), None).expect("free");
    table.lock(FILE, want(3, EXCLUSIVE, 9, 9), None).expect("free");
    table.lock(FILE, want(1, EXCLUSIVE, 5, 9), Some(1)).expect("it waits for 3");
    table.lock(FILE, want(2, EXCLUSIVE, 1, 1), Some(2)).expect("it waits for 1");
    table.lock(FILE, want(2, EXCLUSIVE, 5, 5), None).expect("free");
    assert_eq!(table.settled(), [(2, Err(Refusal::Deadlock))]);
    table.leave(3);
    table.leave(2);
    assert_eq!(table.settled(), [(1, Ok(()))]);
}

#[test]
fn locks_of_whole_files_are_a_kind_of_their_own_and_convert_by_giving_up() {
    let mut table = Table::default();
    table.lock(FILE, want(1, EXCLUSIVE, 0, LAST), None).expect("free");
    assert_eq!(table.lock(FILE, whole(2, SHARED), None), Ok(Outcome::Granted));
    assert_eq!(table.lock(FILE, whole(3, SHARED), None), Ok(Outcome::Granted));
    // Both want to be alone: the first gives up its lock and waits, so the second gets it.
    assert_eq!(table.lock(FILE, whole(2, EXCLUSIVE), Some(2)), Ok(Outcome::Waits));
    assert_eq!(table.lock(FILE, whole(3, EXCLUSIVE), None), Ok(Outcome::Granted));
    // Who wants less than it has keeps that, whoever waits.
    assert_eq!(table.lock(FILE, whole(3, SHARED), None), Ok(Outcome::Granted));
    assert_eq!(table.settled(), []);
    table.unlock(FILE, owner(3), Kind::Whole, Range::ALL).expect("room");
    assert_eq!(table.settled(), [(2, Ok(()))]);
    assert_eq!(table.test(FILE, &whole(3, SHARED)).map(|held| held.owner), Some(owner(2)));
    assert_eq!(ranges(&table, 1), [(0, LAST, EXCLUSIVE)]);
}

#[test]
fn what_is_handed_over_no_waiter_gets_unless_it_is_not_all() {
    let mut table = Table::default();
    table.lock(FILE, want(1, EXCLUSIVE, 0, 9), None).expect("free");
    table.lock(FILE, want(2, EXCLUSIVE, 5, 5), Some(2)).expect("it waits");
    let again = want(3, EXCLUSIVE, 0, 9);
    assert!(table.hand_over(FILE, 1, &again));
    assert_eq!(table.lock(FILE, again, None), Ok(Outcome::Granted));
    assert_eq!((table.settled(), table.count(1)), (vec![], (0, 0)));
    assert!(!table.hand_over(FILE, 3, &want(4, SHARED, 5, 10)), "one byte is nobody's");
    assert_eq!(table.settled(), [(2, Ok(()))]);
}

/// A waiter was forgotten: what it waited for was nobody's, and nobody gave it up.
#[test]
fn what_is_handed_over_and_not_taken_is_the_waiters() {
    let mut table = Table::default();
    table.lock(FILE, want(1, EXCLUSIVE, 0, 9), None).expect("free");
    table.lock(FILE, want(2, EXCLUSIVE, 5, 5), Some(2)).expect("it waits");
    for at in 0..MAX_LOCKS as u64 {
        table.lock(FILE + 1, want(3, EXCLUSIVE, 2 * at, 2 * at), None).expect("room");
    }
    let again = want(3, EXCLUSIVE, 0, 9);
    assert!(table.hand_over(FILE, 1, &again));
    assert_eq!(table.lock(FILE, again, None), Err(Refusal::Full));
    assert_eq!(table.settled(), [(2, Ok(()))]);
}

#[test]
fn no_party_has_more_than_its_bounds() {
    let mut table = Table::default();
    for at in 0..MAX_LOCKS as u64 {
        table.lock(FILE, want(1, EXCLUSIVE, 3 * at, 3 * at + 1), None).expect("room");
    }
    assert_eq!(table.lock(FILE, want(1, EXCLUSIVE, LAST, LAST), None), Err(Refusal::Full));
    assert_eq!(table.lock(FILE, want(1, EXCLUSIVE, 0, 2), None), Ok(Outcome::Granted), "it joins two");
    table.lock(FILE, want(1, EXCLUSIVE, LAST, LAST), None).expect("room");
    let middle = Range::new(1, 1).expect("a byte");
    assert_eq!(table.unlock(FILE, owner(1), Kind::Record, middle), Err(Refusal::Full), "it splits one");
    assert_eq!(table.count(1), (MAX_LOCKS, 0));
    for ticket in 0..MAX_WAITERS as u64 {
        let result = table.lock(FILE, want(2, SHARED, 3, 3), Some(ticket));
        assert_eq!(result, Ok(Outcome::Waits));
    }
    assert_eq!(table.lock(FILE, want(2, SHARED, 3, 3), Some(1 << 40)), Err(Refusal::Full));
    assert_eq!(table.lock(FILE, want(3, SHARED, 3, 3), Some(1 << 40)), Ok(Outcome::Waits), "others do");
    table.unlock(FILE, owner(1), Kind::Record, Range::ALL).expect("it is all");
    assert_eq!((table.settled().len(), table.count(1), table.count(2)), (MAX_WAITERS + 1, (0, 0), (1, 0)));
}

/// With both bounds reached, a release takes as many looks as there are waiters and locks, and no
/// more: not so many for each waiter that is looked at.
#[test]
fn a_party_at_its_bounds_does_not_hold_up_the_others() {
    let mut table = Table::default();
    for at in 0..MAX_LOCKS as u64 - 2 {
        table.lock(FILE, want(1, EXCLUSIVE, 2 * at, 2 * at), None).expect("room");
    }
    for ticket in 0..MAX_WAITERS as u64 {
        let request = Held { owner: Owner { party: 2, number: ticket }, ..want(2, EXCLUSIVE, 0, LAST) };
        assert_eq!(table.lock(FILE, request, Some(ticket)), Ok(Outcome::Waits));
    }
    let begun = std::time::Instant::now();
    let byte = Range::new(0, 0).expect("a byte");
    for _ in 0..100 {
        table.unlock(FILE, owner(1), Kind::Record, byte).expect("room");
        table.lock(FILE, want(1, EXCLUSIVE, 0, 0), None).expect("free");
    }
    assert_eq!(table.settled(), []);
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
}
