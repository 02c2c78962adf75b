//! The table against one that has a cell for each byte.

use locks::{Held, Kind, Mode, Outcome, Owner, Range, Refusal, Table};
use proptest::prelude::*;
use std::collections::BTreeMap;

const BYTES: u64 = 10;
const PARTIES: u64 = 4;
const FILES: u32 = 2;

type Cells = BTreeMap<(u32, Kind, u64, u64), Mode>;

#[derive(Default)]
struct Model {
    /// By file, kind, party and byte.
    cells: Cells,
    waits: BTreeMap<u64, (u32, Held)>,
}

fn bytes(range: Range) -> impl Iterator<Item = u64> {
    range.first()..=range.last().min(BYTES - 1)
}

impl Model {
    fn set(&mut self, file: u32, of: &Held, mode: Option<Mode>) {
        for byte in bytes(of.range) {
            let key = (file, of.kind, of.owner.party, byte);
            match mode {
                Some(mode) => drop(self.cells.insert(key, mode)),
                None => drop(self.cells.remove(&key)),
            }
        }
    }

    fn blockers(&self, file: u32, of: &Held) -> Vec<u64> {
        let blocks = |party: &u64| {
            *party != of.owner.party
                && bytes(of.range).any(|byte| match self.cells.get(&(file, of.kind, *party, byte)) {
                    None => false,
                    Some(Mode::Shared) => of.mode == Mode::Exclusive,
                    Some(Mode::Exclusive) => true,
                })
        };
        (0..PARTIES).filter(blocks).collect()
    }

    /// Whether `party` waits for itself by way of locks of fcntl(2), this request included.
    fn is_circle(&self, file: u32, of: &Held) -> bool {
        let mut reached = self.blockers(file, of);
        for _ in 0..PARTIES {
            for (file, wait) in self.waits.values() {
                if wait.kind == Kind::Record && reached.contains(&wait.owner.party) {
                    reached.extend(self.blockers(*file, wait));
                }
            }
            reached.sort_unstable();
            reached.dedup();
        }
        of.kind == Kind::Record && reached.contains(&of.owner.party)
    }

    fn check(&mut self, table: &mut Table<u32>) -> Result<(), TestCaseError> {
        for (ticket, result) in table.settled() {
            let (file, wait) = self.waits.remove(&ticket).expect("it waits");
            match result {
                Ok(()) => self.set(file, &wait, Some(wait.mode)),
                Err(refusal) => prop_assert_eq!(refusal, Refusal::Deadlock),
            }
        }
        let mut cells = Cells::new();
        let mut counts = [(0, 0); PARTIES as usize];
        for (file, held) in table.all() {
            counts[held.owner.party as usize].0 += 1;
            for byte in bytes(held.range) {
                let twice = cells.insert((file, held.kind, held.owner.party, byte), held.mode);
                prop_assert!(twice.is_none(), "a byte is locked twice by one owner");
            }
            let beside = |other: &&Held| {
                other.owner == held.owner
                    && (other.kind, other.mode) == (held.kind, held.mode)
                    && other.range.first() == held.range.last() + 1
            };
            prop_assert!(table.of(file).iter().find(beside).is_none(), "two locks are one");
        }
        prop_assert_eq!(&cells, &self.cells);
        for (file, wait) in self.waits.values() {
            counts[wait.owner.party as usize].1 += 1;
            prop_assert!(!self.blockers(*file, wait).is_empty(), "nobody is in its way");
            prop_assert!(!self.is_circle(*file, wait), "it would wait for ever");
        }
        for (party, count) in counts.into_iter().enumerate() {
            prop_assert_eq!(table.count(party as u64), count);
        }
        Ok(())
    }
}

fn held() -> impl Strategy<Value = (u32, Held)> {
    let mode = prop_oneof![Just(Mode::Shared), Just(Mode::Exclusive)];
    let range = (0..BYTES, 0..BYTES).prop_map(|(a, b)| Range::new(a.min(b), a.max(b)).expect("a range"));
    (0..FILES, 0..PARTIES, mode, range, prop::bool::weighted(0.2)).prop_map(
        |(file, party, mode, range, is_whole)| {
            let owner = Owner { party, number: 0 };
            let (kind, range) = if is_whole { (Kind::Whole, Range::ALL) } else { (Kind::Record, range) };
            (file, Held { owner, kind, mode, range, via: u64::from(file), process: 0 })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn each_byte_is_locked_as_in_a_table_of_bytes(steps in prop::collection::vec((0_u8..9, held()), 1..60)) {
        let (mut table, mut model) = (Table::default(), Model::default());
        for (at, (what, (file, held))) in steps.into_iter().enumerate() {
            let ticket = at as u64;
            match what {
                0..=4 => {
                    let waits = (what < 3).then_some(ticket);
                    let before = model.cells.get(&(file, held.kind, held.owner.party, 0)).copied();
                    let result = table.lock(file, held, waits);
                    if held.kind == Kind::Whole && before.is_some_and(|mode| mode != held.mode) {
                        // It gave up what it had, whatever it got.
                        model.set(file, &held, None);
                    }
                    match result {
                        Ok(Outcome::Granted) => model.set(file, &held, Some(held.mode)),
                        Ok(Outcome::Waits) => {
                            prop_assert!(waits.is_some());
                            model.waits.insert(ticket, (file, held));
                        }
                        Err(Refusal::Held) => prop_assert!(waits.is_none()),
                        Err(Refusal::Deadlock) => prop_assert!(model.is_circle(file, &held)),
                        Err(Refusal::Full) => prop_assert!(false, "that few"),
                    }
                }
                5 | 6 => {
                    prop_assert_eq!(table.unlock(file, held.owner, held.kind, held.range), Ok(()));
                    model.set(file, &held, None);
                }
                7 => {
                    let first = model.waits.keys().next().copied().unwrap_or(ticket);
                    prop_assert_eq!(table.cancel(first), model.waits.remove(&first).is_some());
                }
                _ => {
                    let mut gone = table.close(held.owner.party, u64::from(file));
                    gone.sort_unstable();
                    let is_its = |(of, wait): &(u32, Held)| *of == file && wait.owner == held.owner;
                    let its: Vec<u64> =
                        model.waits.iter().filter(|(_, wait)| is_its(wait)).map(|(&at, _)| at).collect();
                    prop_assert_eq!(&gone, &its);
                    model.waits.retain(|_, wait| !is_its(wait));
                    model.cells.retain(|&(of, _, party, _), _| of != file || party != held.owner.party);
                }
            }
            model.check(&mut table)?;
        }
    }
}
