//! The table of grants, against one that keeps everything in lists and looks through all of it at
//! each question.

use std::collections::BTreeSet;

use ipc::grants::{
    Access, BorrowError, BufferError, Done, GrantError, Granted, Limits, OutOfRange, Over, RevokeError,
    Table, Wish, check_range, cost_bytes,
};
use proptest::prelude::*;
use wire::grants::{BUFFER_BYTES_MAX, PLACE_FIRST, PLACES};
use wire::ipc::Address;

const LIMITS: Limits = Limits { bytes: 200_000, buffers: 6, grants: 8 };
/// Numbers of the table under test begin here; scripts also name smaller ones.
const FIRST: u64 = 3;

fn address(slot: u32) -> Address {
    Address { slot, generation: 1 }
}

#[derive(Clone, Debug)]
enum Op {
    Buffer { owner: u32, bytes: u64, replaces: u64 },
    Grant { owner: u32, wish: (u64, u32, bool, u32) },
    Move { owner: u32, grant: u64, wish: (u64, u32, bool, u32) },
    Revoke { owner: u32, grant: u64 },
    Free { owner: u32, buffer: u64 },
    Borrow { who: u32, copies: bool, grant: u64 },
    Ended { who: u32 },
}

fn op() -> impl Strategy<Value = Op> {
    let who = || 0..4_u32;
    let number = || FIRST - 1..FIRST + 24;
    let place = || prop_oneof![8 => PLACE_FIRST..PLACE_FIRST + 4, 1 => Just(0), 1 => Just(PLACES)];
    let wish = move || (number(), who(), any::<bool>(), place());
    let replaces = prop_oneof![3 => Just(0), 2 => number()];
    let bytes =
        prop_oneof![2 => 1..9000_u64, 4 => Just(5000), 1 => Just(0), 1 => Just(150_000), 1 => Just(u64::MAX)];
    prop_oneof![
        3 => (who(), bytes, replaces).prop_map(|(owner, bytes, replaces)| Op::Buffer { owner, bytes, replaces }),
        6 => (who(), wish()).prop_map(|(owner, wish)| Op::Grant { owner, wish }),
        2 => (who(), number(), wish()).prop_map(|(owner, grant, wish)| Op::Move { owner, grant, wish }),
        2 => (who(), number()).prop_map(|(owner, grant)| Op::Revoke { owner, grant }),
        1 => (who(), number()).prop_map(|(owner, buffer)| Op::Free { owner, buffer }),
        4 => (who(), any::<bool>(), number()).prop_map(|(who, copies, grant)| Op::Borrow { who, copies, grant }),
        1 => who().prop_map(|who| Op::Ended { who }),
    ]
}

/// Everything that ever was.
#[derive(Default)]
struct Reference {
    numbers: u64,
    buffers: Vec<OldBuffer>,
    grants: Vec<OldGrant>,
}

struct OldBuffer {
    number: u64,
    owner: Address,
    bytes: u64,
    access: Option<Access>,
    alive: bool,
    /// The one that it takes over from what that one counts for, while both are there.
    after: Option<u64>,
}

struct OldGrant {
    granted: Granted,
    /// `Some(true)`: over because its owner has ended.
    over: Option<bool>,
    borrowers: BTreeSet<Address>,
}

impl Reference {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        FIRST + self.numbers - 1
    }

    fn bytes(&self) -> u64 {
        self.counted().map(|one| cost_bytes(one.bytes)).sum()
    }

    fn is_waiting(&self, one: &OldBuffer) -> bool {
        self.buffers.iter().any(|other| other.alive && Some(other.number) == one.after)
    }

    fn counted(&self) -> impl Iterator<Item = &OldBuffer> {
        self.buffers.iter().filter(|one| one.alive && !self.is_waiting(one))
    }

    fn alive(&self) -> impl Iterator<Item = &OldGrant> {
        self.grants.iter().filter(|one| one.over.is_none())
    }

    fn buffer(&mut self, owner: Address, bytes: u64, replaces: u64) -> Result<u64, BufferError> {
        let buffers = self.counted().count();
        let left = LIMITS.bytes - self.bytes();
        if !(1..=BUFFER_BYTES_MAX).contains(&bytes) {
            Err(BufferError::Size(bytes))
        } else if replaces != 0 {
            let mut alive = self.buffers.iter().filter(|one| one.alive);
            let replaced = alive.clone().any(|one| one.after == Some(replaces));
            let old = alive.find(|one| one.number == replaces && one.owner == owner && one.bytes == bytes);
            if replaced || old.is_none_or(|old| self.is_waiting(old)) {
                return Err(BufferError::Replaces(replaces));
            }
            let (number, after) = (self.number(), Some(replaces));
            self.buffers.push(OldBuffer { number, owner, bytes, access: None, alive: true, after });
            Ok(number)
        } else if buffers >= LIMITS.buffers {
            Err(BufferError::Buffers(buffers))
        } else if cost_bytes(bytes) > left {
            Err(BufferError::Bytes { wanted: cost_bytes(bytes), left })
        } else {
            let number = self.number();
            self.buffers.push(OldBuffer { number, owner, bytes, access: None, alive: true, after: None });
            Ok(number)
        }
    }

    fn check(&self, owner: Address, wish: &Wish) -> Result<&OldBuffer, GrantError> {
        let found = |one: &&OldBuffer| one.alive && one.owner == owner && one.number == wish.buffer;
        let buffer = self.buffers.iter().find(found).ok_or(GrantError::NoBuffer(owner, wish.buffer))?;
        if wish.to == owner {
            return Err(GrantError::Oneself(owner));
        }
        match buffer.access {
            Some(was) if was != wish.access => {
                return Err(GrantError::Access { buffer: wish.buffer, was, asked: wish.access });
            }
            _ => {}
        }
        if !(PLACE_FIRST..PLACES).contains(&wish.place) {
            return Err(GrantError::Place(wish.place));
        }
        for one in self.alive().map(|one| one.granted) {
            if (one.buffer, one.place) == (wish.buffer, wish.place) {
                let grant = one.grant;
                return Err(GrantError::PlaceTaken { buffer: wish.buffer, place: wish.place, grant });
            }
        }
        Ok(buffer)
    }

    fn give(&mut self, wish: &Wish) -> (bool, u64) {
        let buffer = self.buffers.iter_mut().find(|one| one.number == wish.buffer).expect("checked");
        (buffer.access.replace(wish.access).is_none(), buffer.bytes)
    }

    fn grant(&mut self, owner: Address, wish: &Wish) -> Result<Done, GrantError> {
        self.check(owner, wish)?;
        if self.alive().count() >= LIMITS.grants {
            return Err(GrantError::Grants(self.alive().count()));
        }
        let (seal, bytes) = self.give(wish);
        let grant = self.number();
        let Wish { buffer, to, access, place } = *wish;
        let granted = Granted { grant, buffer, place, owner, to, access, bytes };
        self.grants.push(OldGrant { granted, over: None, borrowers: BTreeSet::new() });
        Ok(Done { grant, seal, tell: Vec::new() })
    }

    fn move_grant(&mut self, owner: Address, grant: u64, wish: &Wish) -> Result<Done, GrantError> {
        let its = |one: &OldGrant| one.granted.owner == owner && one.granted.grant == grant;
        let at = self.grants.iter().position(its).ok_or(GrantError::NoGrant(owner, grant))?;
        if self.grants[at].over.is_some() {
            return Err(GrantError::Over(grant));
        }
        let granted = self.grants[at].granted;
        let bytes = self.check(owner, wish)?.bytes;
        if granted.to != wish.to || granted.access != wish.access {
            return Err(GrantError::Other(grant, granted.to, granted.access));
        }
        if bytes < granted.bytes {
            return Err(GrantError::Shorter { grant, least: granted.bytes, bytes });
        }
        let (seal, bytes) = self.give(wish);
        self.grants[at].granted = Granted { buffer: wish.buffer, place: wish.place, bytes, ..granted };
        let tell = std::mem::take(&mut self.grants[at].borrowers);
        Ok(Done { grant, seal, tell: tell.into_iter().collect() })
    }

    fn end(&mut self, which: impl Fn(&Granted) -> bool, ended: Option<Address>) -> Vec<Over> {
        let its = self.grants.iter_mut().filter(|one| one.over.is_none() && which(&one.granted));
        its.map(|one| {
            one.over = Some(ended == Some(one.granted.owner));
            let tell = one.borrowers.iter().copied().filter(|who| Some(*who) != ended).collect();
            Over { granted: one.granted, tell }
        })
        .collect()
    }

    fn revoke(&mut self, owner: Address, grant: u64) -> Result<Over, RevokeError> {
        let over = self.end(|granted| granted.owner == owner && granted.grant == grant, None);
        over.into_iter().next().ok_or(RevokeError::NoGrant(owner, grant))
    }

    fn free(&mut self, owner: Address, buffer: u64) -> Result<Vec<Over>, RevokeError> {
        let its = |one: &&mut OldBuffer| one.alive && one.owner == owner && one.number == buffer;
        let found = self.buffers.iter_mut().find(its).ok_or(RevokeError::NoBuffer(owner, buffer))?;
        found.alive = false;
        Ok(self.end(|granted| granted.buffer == buffer, None))
    }

    fn borrow(&mut self, who: Address, copies: bool, grant: u64) -> Result<Granted, BorrowError> {
        let known = self.grants.iter_mut().find(|one| one.granted.grant == grant);
        let one = known.ok_or(BorrowError::Unknown(grant))?;
        let Granted { owner, to, .. } = one.granted;
        match one.over {
            None if owner == who => Err(BorrowError::Own(grant)),
            _ if owner != who && to != who && !copies => Err(BorrowError::Unknown(grant)),
            Some(true) => Err(BorrowError::OwnerEnded(grant, owner)),
            Some(false) => Err(BorrowError::Revoked(grant)),
            None => {
                one.borrowers.insert(who);
                Ok(one.granted)
            }
        }
    }

    fn ended(&mut self, who: Address) -> (Vec<u64>, Vec<Over>) {
        let its = self.buffers.iter_mut().filter(|one| one.alive && one.owner == who);
        let buffers = its.map(|one| (one.alive = false, one.number).1).collect();
        let over = self.end(|granted| granted.owner == who || granted.to == who, Some(who));
        for one in &mut self.grants {
            one.borrowers.remove(&who);
        }
        (buffers, over)
    }
}

fn wish((buffer, to, write, place): (u64, u32, bool, u32)) -> Wish {
    Wish { buffer, to: address(to), access: if write { Access::Write } else { Access::Read }, place }
}

fn step(table: &mut Table, reference: &mut Reference, op: &Op) -> Result<(), TestCaseError> {
    match *op {
        Op::Buffer { owner, bytes, replaces } => {
            let owner = address(owner);
            let made = table.buffer(owner, bytes, replaces, &LIMITS);
            prop_assert_eq!(made, reference.buffer(owner, bytes, replaces));
        }
        Op::Grant { owner, wish: asked } => {
            let (owner, wish) = (address(owner), wish(asked));
            prop_assert_eq!(table.grant(owner, &wish, &LIMITS), reference.grant(owner, &wish));
        }
        Op::Move { owner, grant, wish: asked } => {
            let (owner, wish) = (address(owner), wish(asked));
            let moved = table.move_grant(owner, grant, &wish);
            prop_assert_eq!(moved, reference.move_grant(owner, grant, &wish));
        }
        Op::Revoke { owner, grant } => {
            prop_assert_eq!(table.revoke(address(owner), grant), reference.revoke(address(owner), grant));
        }
        Op::Free { owner, buffer } => {
            prop_assert_eq!(table.free(address(owner), buffer), reference.free(address(owner), buffer));
        }
        Op::Borrow { who, copies, grant } => {
            let borrowed = table.borrow(address(who), copies, grant);
            prop_assert_eq!(borrowed, reference.borrow(address(who), copies, grant));
        }
        Op::Ended { who } => {
            let gone = table.ended(address(who));
            prop_assert_eq!((gone.buffers, gone.over), reference.ended(address(who)));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_table_answers_as_one_that_forgets_nothing(ops in prop::collection::vec(op(), 1..80)) {
        let (mut table, mut reference) = (Table::new(FIRST), Reference::default());
        for op in &ops {
            step(&mut table, &mut reference, op)?;
            prop_assert_eq!(table.bytes(), reference.bytes());
            prop_assert!(table.bytes() <= LIMITS.bytes);
            let alive: Vec<Granted> = reference.alive().map(|one| one.granted).collect();
            prop_assert_eq!(table.grants().collect::<Vec<_>>(), alive);
            for granted in table.grants() {
                let buffer = table.buffers().find(|buffer| buffer.buffer == granted.buffer);
                prop_assert_eq!(buffer.map(|buffer| (buffer.owner, buffer.access)), Some((granted.owner, Some(granted.access))));
            }
        }
        for who in 0..4 {
            table.ended(address(who));
        }
        prop_assert_eq!((table.bytes(), table.buffers().len(), table.grants().len()), (0, 0, 0));
    }

    #[test]
    fn a_range_is_inside_or_refused(offset: u64, length: u64, bytes: u64) {
        let inside = u128::from(offset) + u128::from(length) <= u128::from(bytes);
        let expected = if inside { Ok(()) } else { Err(OutOfRange { offset, length, bytes }) };
        prop_assert_eq!(check_range(offset, length, bytes), expected);
    }
}

#[test]
fn ranges_at_the_edges() {
    assert_eq!(check_range(0, 0, 0), Ok(()));
    assert_eq!(check_range(10, 0, 10), Ok(()));
    assert!(check_range(11, 0, 10).is_err());
    assert!(check_range(9, 2, 10).is_err());
    assert!(check_range(u64::MAX, 1, u64::MAX).is_err());
    assert!(check_range(1, u64::MAX, u64::MAX).is_err());
    assert_eq!(check_range(0, u64::MAX, u64::MAX), Ok(()));
}

#[test]
fn what_is_over_is_remembered_for_a_while_and_then_unknown() {
    let limits = Limits { bytes: u64::MAX, buffers: 1, grants: 1 };
    let mut table = Table::new(0);
    let (owner, other) = (address(1), address(2));
    let buffer = table.buffer(owner, 1, 0, &limits).unwrap();
    let wish = Wish { buffer, to: other, access: Access::Read, place: PLACE_FIRST };
    let mut grants = Vec::new();
    for _ in 0..1100 {
        let grant = table.grant(owner, &wish, &limits).unwrap().grant;
        table.revoke(owner, grant).unwrap();
        grants.push(grant);
    }
    assert_eq!(table.borrow(other, false, grants[1099]), Err(BorrowError::Revoked(grants[1099])));
    assert_eq!(table.borrow(address(3), false, grants[1099]), Err(BorrowError::Unknown(grants[1099])));
    assert_eq!(table.borrow(other, false, grants[0]), Err(BorrowError::Unknown(grants[0])));
}
