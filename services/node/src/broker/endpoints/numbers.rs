//! Slots, generations and tokens: numbers that no daemon of this node hands out twice, and the
//! proof of having had some.
//!
//! Addresses that earlier daemons may have handed out are below the limit in the registry, and this
//! daemon raises the limit there before it goes that far. It asks for twice as much each time, so
//! that nobody makes it write often.

use hmac::Key;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use wire::control::EndpointAddress;
use wire::grants::{GRANT_BITS, node_of_grant};
use wire::ipc::{SLOT_BITS, node_of_slot};

mod hmac;

/// Slots and generations that are reserved first: few, because what is left of them is never used.
const FIRST_RESERVE: u32 = 16;
/// Most that are reserved at once.
const LARGEST_RESERVE: u32 = 1 << 16;
/// A node whose generations have come so far starts again from the first one, with slots that
/// nobody has had.
const GENERATIONS_ENOUGH: u32 = u32::MAX / 2;
/// Bytes of a token, at most: three numbers, a code of 32 bytes in hexadecimal, and what stands
/// between.
const TOKEN_BYTES_MAX: usize = 96;
/// Low bits of the number of a grant that count what one daemon gave; those above count daemons, up
/// to those of the node.
const DAEMON_BITS: u32 = 32;

/// The registry's record of reserved numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reserved {
    /// Key of tokens, in hexadecimal.
    key: String,
    /// All slots that were handed out are below.
    slots_end: u32,
    /// No generation that was handed out is greater.
    generation: u32,
    /// Daemons that there have been.
    daemons: u32,
    /// This node's number in its cluster, in which the slots are.
    #[serde(default, skip_serializing_if = "is_none")]
    node: u32,
}

/// A node without a cluster writes no number, as before there were any.
fn is_none(number: &u32) -> bool {
    *number == 0
}

/// Slots of one node.
const SLOTS: u32 = 1 << SLOT_BITS;

/// Where it is kept.
pub(crate) trait Store: fmt::Debug + Send {
    /// Loads the record; `None` at first.
    ///
    /// # Errors
    /// The record can't be read.
    fn load(&self) -> io::Result<Option<Reserved>>;
    /// Keeps it, durably.
    ///
    /// # Errors
    /// The record can't be written.
    fn save(&self, reserved: &Reserved) -> io::Result<()>;
    /// The slots that names of a distributed container have.
    ///
    /// # Errors
    /// The slots can't be read.
    fn load_names(&self, dc: &str) -> io::Result<BTreeMap<String, u32>>;
    /// Keeps them; forgets them where there are none.
    ///
    /// # Errors
    /// The slots can't be written.
    fn save_names(&self, dc: &str, names: &BTreeMap<String, u32>) -> io::Result<()>;
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Numbers {
    store: Box<dyn Store>,
    reserved: Reserved,
    key: Key,
    /// The next slot.
    next_slot: u32,
    /// The first slot that this daemon may have handed out itself.
    first_slot: u32,
    /// Generations that this daemon hands out are greater.
    floor: u32,
    /// How much is reserved next.
    reserve: u32,
}

impl Numbers {
    /// Goes on where the last daemon stopped.
    ///
    /// # Errors
    /// The record can't be read or written, or is none of ours.
    ///
    /// `node` is the number of this node in its cluster; 0: it has none, or is the first.
    pub(crate) fn open(store: Box<dyn Store>, node: u32) -> io::Result<Self> {
        let before = store.load()?;
        let (mut reserved, key) = match before {
            Some(reserved) => {
                let key = Key::parse(&reserved.key)
                    .ok_or_else(|| io::Error::other("the key of endpoints' tokens is none"))?;
                (reserved, key)
            }
            None => {
                let key = Key::random()?;
                (
                    Reserved { key: key.text(), slots_end: first_slot_of(node), node, ..Reserved::default() },
                    key,
                )
            }
        };
        if reserved.generation > GENERATIONS_ENOUGH {
            reserved.generation = 0;
        }
        if reserved.node != node {
            // Generations go on, so no address is given twice, also to a node that comes back to a
            // number.
            (reserved.node, reserved.slots_end) = (node, first_slot_of(node));
        }
        reserved.daemons = reserved.daemons.wrapping_add(1).max(1);
        let (next_slot, floor) = (reserved.slots_end, reserved.generation);
        store.save(&reserved)?;
        Ok(Self { store, reserved, key, next_slot, first_slot: next_slot, floor, reserve: FIRST_RESERVE })
    }

    pub(super) fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    /// Whether the slots that names had under earlier daemons are theirs still: not where
    /// generations have started again.
    pub(super) fn keeps_names(&self) -> bool {
        self.floor > 0
    }

    /// The first number of a grant of this daemon.
    pub(super) fn first_grant(&self) -> u64 {
        let daemons = u64::from(self.reserved.daemons) % (1 << (GRANT_BITS - DAEMON_BITS));
        u64::from(self.reserved.node) << GRANT_BITS | daemons << DAEMON_BITS | 1
    }

    /// Whether a grant was made by this node.
    pub(super) fn is_own_grant(&self, grant: u64) -> bool {
        node_of_grant(grant) == u64::from(self.reserved.node)
    }

    /// Whether a slot is of this node's number: not where it was bound before the node had that.
    pub(super) fn is_own(&self, slot: u32) -> bool {
        node_of_slot(slot) == self.reserved.node
    }

    /// A slot that nobody has had, or not with the generations that follow.
    pub(super) fn slot(&mut self) -> io::Result<u32> {
        let all = u64::from(first_slot_of(self.reserved.node)) - 1 + u64::from(SLOTS);
        if u64::from(self.next_slot) >= all {
            if self.floor == 0 {
                return Err(io::Error::other("all slots were used"));
            }
            // From the first one on again: what this daemon gives has greater generations than all
            // before.
            let first = first_slot_of(self.reserved.node);
            self.keep(Reserved { slots_end: first, ..self.reserved.clone() })?;
            self.next_slot = first;
        }
        if self.next_slot == self.reserved.slots_end {
            let end = u64::from(self.next_slot) + u64::from(self.reserve);
            let slots_end = u32::try_from(end.min(all)).unwrap_or(u32::MAX);
            self.keep(Reserved { slots_end, ..self.reserved.clone() })?;
        }
        self.next_slot += 1;
        Ok(self.next_slot - 1)
    }

    /// A generation that nobody has had in a slot whose last one was `last` (0: none of this
    /// daemon). `None`: there is no greater one.
    pub(super) fn generation(&mut self, last: u32) -> io::Result<Option<u32>> {
        let Some(next) = last.max(self.floor).checked_add(1) else { return Ok(None) };
        if next > self.reserved.generation {
            let generation = next.saturating_add(self.reserve);
            self.keep(Reserved { generation, ..self.reserved.clone() })?;
        }
        Ok(Some(next))
    }

    fn keep(&mut self, reserved: Reserved) -> io::Result<()> {
        self.store.save(&reserved)?;
        self.reserved = reserved;
        self.reserve = (self.reserve * 2).min(LARGEST_RESERVE);
        Ok(())
    }

    /// Whether an earlier daemon handed out this slot with this generation, if anybody did.
    pub(super) fn is_earlier(&self, address: EndpointAddress) -> bool {
        if self.floor == 0 { address.slot < self.first_slot } else { address.generation <= self.floor }
    }

    /// The proof of having had this address.
    pub(super) fn token(&self, whose: Whose<'_>, address: EndpointAddress) -> String {
        let EndpointAddress { slot, generation } = address;
        format!("1.{slot}.{generation}.{}", self.key.code(&whose.bytes(address)))
    }

    /// The address that a token proves; `None`: it proves nothing of this one.
    pub(super) fn proven(&self, whose: Whose<'_>, token: &str) -> Option<EndpointAddress> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let mut parts = token.split('.');
        let version = parts.next()?;
        let address =
            EndpointAddress { slot: parts.next()?.parse().ok()?, generation: parts.next()?.parse().ok()? };
        let code = parts.next()?;
        let whole = version == "1" && parts.next().is_none() && address.generation != 0;
        (whole && self.key.proves(&whose.bytes(address), code)).then_some(address)
    }
}

/// The first slot of a node: 0 is nobody's.
fn first_slot_of(node: u32) -> u32 {
    (node << SLOT_BITS) + 1
}

/// The owner of an endpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whose<'a> {
    pub(super) dc: &'a str,
    pub(super) domain: &'a str,
    /// Empty: it has no name.
    pub(super) name: &'a str,
}

impl Whose<'_> {
    /// All of it, so that no two have the same bytes: names have no zeros.
    fn bytes(self, address: EndpointAddress) -> Vec<u8> {
        let mut bytes = Vec::new();
        for text in [self.dc, self.domain, self.name] {
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(0);
        }
        bytes.extend_from_slice(&address.slot.to_le_bytes());
        bytes.extend_from_slice(&address.generation.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Kept;
    use super::*;

    const WHOSE: Whose<'_> = Whose { dc: "shop", domain: "web", name: "planner" };

    fn at(slot: u32, generation: u32) -> EndpointAddress {
        EndpointAddress { slot, generation }
    }

    #[test]
    fn no_daemon_hands_out_what_another_one_did() {
        let kept = Kept::default();
        let (mut slots, mut generations, mut grants) = (Vec::new(), Vec::new(), Vec::new());
        for daemon in 0..5 {
            let mut numbers = Numbers::open(Box::new(kept.clone()), 0).unwrap();
            grants.push(numbers.first_grant());
            slots.extend((0..10 + daemon * 40).map(|_| numbers.slot().unwrap()));
            let mut last = 0;
            for _ in 0..3 + daemon * 30 {
                last = numbers.generation(last).unwrap().unwrap();
                generations.push(last);
            }
        }
        for mut numbers in [slots.clone(), generations.clone()] {
            let all = numbers.len();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), all);
        }
        assert!(slots[0] == 1 && generations[0] == 1 && grants.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn what_is_asked_for_often_is_written_seldom() {
        let kept = Kept::default();
        let mut numbers = Numbers::open(Box::new(kept.clone()), 0).unwrap();
        let mut last = 0;
        for _ in 0..1_000_000 {
            last = numbers.generation(last).unwrap().unwrap();
        }
        assert!(kept.writes() < 40);
    }

    #[test]
    fn the_last_generation_has_no_successor_and_the_next_daemon_starts_again_elsewhere() {
        let kept = Kept::default();
        let mut numbers = Numbers::open(Box::new(kept.clone()), 0).unwrap();
        let slot = numbers.slot().unwrap();
        assert_eq!(numbers.generation(u32::MAX - 1).unwrap(), Some(u32::MAX));
        assert_eq!(numbers.generation(u32::MAX).unwrap(), None);
        let mut next = Numbers::open(Box::new(kept), 0).unwrap();
        assert!(!next.keeps_names() && next.slot().unwrap() > slot);
        assert_eq!(next.generation(0).unwrap(), Some(1));
    }

    #[test]
    fn a_node_that_joins_a_cluster_has_slots_that_no_other_one_has() {
        let kept = Kept::default();
        let mut alone = Numbers::open(Box::new(kept.clone()), 0).unwrap();
        let before = at(alone.slot().unwrap(), alone.generation(0).unwrap().unwrap());
        let token = alone.token(WHOSE, before);
        let mut joined = Numbers::open(Box::new(kept.clone()), 7).unwrap();
        let slot = joined.slot().unwrap();
        assert_eq!((node_of_slot(slot), joined.is_own(slot), joined.is_own(before.slot)), (7, true, false));
        assert_eq!(joined.proven(WHOSE, &token), Some(before));
        assert!(joined.is_earlier(before), "who was bound before is the same as before");
        let mut left = Numbers::open(Box::new(kept), 0).unwrap();
        let after = at(left.slot().unwrap(), left.generation(0).unwrap().unwrap());
        assert!(after.slot == before.slot && after.generation > before.generation);
    }

    #[test]
    fn who_has_used_all_slots_begins_again_with_greater_generations() {
        let kept = Kept::default();
        let mut first = Numbers::open(Box::new(kept.clone()), 3).unwrap();
        first.generation(0).unwrap();
        let mut slots = Vec::new();
        loop {
            match first.slot() {
                Ok(slot) => slots.push(slot),
                // Its generations have begun at 1.
                Err(error) => break assert!(error.to_string().contains("all slots"), "{error}"),
            }
        }
        assert_eq!(slots.len(), (SLOTS - 1) as usize);
        assert!(slots.iter().all(|slot| node_of_slot(*slot) == 3));
        let mut next = Numbers::open(Box::new(kept), 3).unwrap();
        let slot = next.slot().unwrap();
        assert_eq!(slot, slots[0]);
        assert!(next.generation(0).unwrap().unwrap() > 1);
    }

    #[test]
    fn a_token_proves_what_it_says_and_nothing_else() {
        let kept = Kept::default();
        let numbers = Numbers::open(Box::new(kept.clone()), 0).unwrap();
        let token = numbers.token(WHOSE, at(3, 7));
        let next = Numbers::open(Box::new(kept), 0).unwrap();
        assert_eq!(next.proven(WHOSE, &token), Some(at(3, 7)));
        let others = [
            Whose { dc: "shopw", domain: "eb", ..WHOSE },
            Whose { dc: "lab", ..WHOSE },
            Whose { domain: "desk", ..WHOSE },
            Whose { name: "", ..WHOSE },
        ];
        assert!(others.iter().all(|other| next.proven(*other, &token).is_none()));
        let mut forged =
            vec![token.replace("3.7", "3.8"), token.replace("3.7", "4.7"), token.replace("1.3", "2.3")];
        forged.extend([
            format!("{token}0"),
            format!("{token}.0"),
            "x".repeat(1000),
            String::new(),
            "1.3.7.".into(),
        ]);
        forged.extend((0..token.len()).map(|cut| token[..cut].to_owned()));
        forged.push(token.to_uppercase().replace("1.3.7", "1.+3.7"));
        assert!(forged.iter().all(|forged| next.proven(WHOSE, forged).is_none()));
        let stranger = Numbers::open(Box::new(Kept::default()), 0).unwrap();
        assert_eq!(stranger.proven(WHOSE, &token), None);
    }

    #[test]
    fn what_can_not_be_written_down_is_not_handed_out() {
        #[derive(Debug)]
        struct Full(std::sync::atomic::AtomicBool);
        impl Store for Full {
            fn load(&self) -> io::Result<Option<Reserved>> {
                Ok(None)
            }
            fn save(&self, _: &Reserved) -> io::Result<()> {
                // The first one is that of the start.
                match self.0.swap(true, std::sync::atomic::Ordering::Relaxed) {
                    true => Err(io::ErrorKind::StorageFull.into()),
                    false => Ok(()),
                }
            }
            fn load_names(&self, _: &str) -> io::Result<BTreeMap<String, u32>> {
                Ok(BTreeMap::new())
            }
            fn save_names(&self, _: &str, _: &BTreeMap<String, u32>) -> io::Result<()> {
                Ok(())
            }
        }
        let mut numbers = Numbers::open(Box::new(Full(false.into())), 0).unwrap();
        assert!(numbers.slot().is_err() && numbers.slot().is_err());
        assert!(numbers.generation(0).is_err() && numbers.generation(0).is_err());
    }
}
