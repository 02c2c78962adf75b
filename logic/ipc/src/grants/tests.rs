//! Tests that nothing is left of ended endpoints and grants; the table's answers are compared with
//! a reference in `tests/grants.rs`.

use super::*;

const LIMITS: Limits = Limits { bytes: 1 << 20, buffers: 16, grants: 16 };

fn at(slot: u32) -> Address {
    Address { slot, generation: 1 }
}

impl Table {
    /// All that is kept twice says the same.
    fn is_consistent(&self) {
        let owned: BTreeSet<_> = self.buffers().map(|buffer| (buffer.owner, buffer.buffer)).collect();
        assert_eq!(self.owned, owned);
        let places: BTreeMap<_, _> = self.grants().map(|g| ((g.buffer, g.place), g.grant)).collect();
        assert_eq!(self.places, places);
        let of_endpoint: BTreeSet<_> = self
            .grants
            .iter()
            .flat_map(|(grant, entry)| {
                let Granted { owner, to, .. } = entry.granted;
                entry.borrowers.iter().copied().chain([owner, to]).map(|whose| (whose, *grant))
            })
            .collect();
        assert_eq!(self.of_endpoint, of_endpoint);
        let replaced: BTreeMap<_, _> = self.replacements.iter().map(|(old, new)| (*new, *old)).collect();
        assert_eq!(self.replaced, replaced);
        assert!(
            self.replacements.iter().flat_map(|(old, new)| [old, new]).all(|b| self.buffers.contains_key(b))
        );
    }
}

#[test]
fn what_is_kept_twice_says_the_same() {
    let mut table = Table::new(1);
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for _ in 0..20_000 {
        let who = at(next(5) as u32);
        let newest = table.next.saturating_sub(1);
        let number = newest.saturating_sub(next(12));
        let place = wire::grants::PLACE_FIRST + next(3) as u32;
        let wish = Wish { buffer: number, to: at(next(5) as u32), access: Access::Read, place };
        // Most of it is refused: that changes nothing either.
        match next(12) {
            0 | 1 => drop(table.buffer(who, 5000, 0, &LIMITS)),
            2 => drop(table.buffer(who, 5000, number, &LIMITS)),
            3..6 => drop(table.grant(who, &wish, &LIMITS)),
            6 => drop(table.move_grant(who, newest.saturating_sub(next(12)), &wish)),
            7 => drop(table.revoke(who, number)),
            8 => drop(table.free(who, number)),
            9 | 10 => drop(table.borrow(who, true, number)),
            _ if next(8) == 0 => drop(table.ended(who)),
            _ => {}
        }
        table.is_consistent();
    }
    (0..5).for_each(|slot| drop(table.ended(at(slot))));
    table.is_consistent();
    assert!(table.owned.is_empty() && table.places.is_empty() && table.of_endpoint.is_empty());
}
