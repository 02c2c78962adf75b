//! Memory of pairs: counted as long as somebody holds it, and not only as long as the pair lives. A
//! program that is through with a pair and keeps its descriptors pays for them itself.

use std::collections::{BTreeMap, HashMap};

/// Regions of pairs that are over which one domain may hold in any case: as many as a busy program
/// finds when it looks up again. Where the file allows many pairs it is half of them. A member that
/// holds more is introduced to nobody until it lets go of some.
const LINGERING_PER_DOMAIN: usize = 256;

/// Regions of pairs that are over which one domain may hold, of so many pairs.
pub(super) fn lingering_most(pairs: usize) -> usize {
    LINGERING_PER_DOMAIN.max(pairs / 2)
}

/// All regions of the node, by the numbers of their channels.
#[derive(Debug, Default)]
pub(super) struct Regions {
    all: HashMap<u64, Region>,
    of_dc: BTreeMap<String, Held>,
}

/// The regions of one distributed container.
#[derive(Debug, Default)]
struct Held {
    bytes: u64,
    regions: usize,
    /// Ends that each domain holds of pairs that are over.
    lingering: BTreeMap<String, usize>,
    /// Ends that each domain holds.
    ends: BTreeMap<String, usize>,
}

/// Memory of one pair.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) dc: String,
    /// Slots: of the one that asked, and of the other.
    pub(super) slots: [u32; 2],
    pub(super) domains: [String; 2],
    pub(super) bytes: u64,
    /// Whether somebody may have the end of that side.
    pub(super) held: [bool; 2],
    /// Whether the pair is over.
    pub(super) over: bool,
    /// Tell of the ends.
    pub(super) watches: Vec<super::super::Watch>,
}

impl Region {
    fn is_held(&self) -> bool {
        self.held.contains(&true)
    }

    fn holders(&self) -> impl Iterator<Item = &String> {
        self.domains.iter().zip(self.held).filter_map(|(domain, held)| held.then_some(domain))
    }
}

impl Regions {
    pub(super) fn bytes(&self, dc: &str) -> u64 {
        self.of_dc.get(dc).map_or(0, |held| held.bytes)
    }

    /// Bytes of one channel's memory.
    pub(super) fn bytes_of(&self, channel: u64) -> u64 {
        self.all.get(&channel).map_or(0, |region| region.bytes)
    }

    pub(super) fn count(&self, dc: &str) -> usize {
        self.of_dc.get(dc).map_or(0, |held| held.regions)
    }

    /// Those of pairs that are over, which a domain holds.
    pub(super) fn lingering(&self, dc: &str, domain: &str) -> usize {
        self.of_dc.get(dc).and_then(|held| held.lingering.get(domain)).copied().unwrap_or(0)
    }

    /// Ends of pairs that a domain holds.
    pub(super) fn ends(&self, dc: &str, domain: &str) -> usize {
        self.of_dc.get(dc).and_then(|held| held.ends.get(domain)).copied().unwrap_or(0)
    }

    /// Whether a channel's pair is not over; one that nobody was given an end of is not known here.
    #[cfg(test)]
    pub(super) fn is_open(&self, channel: u64, dc: &str) -> bool {
        self.all.get(&channel).is_none_or(|region| !region.over && region.dc == dc)
    }

    /// Descriptors that are held to hear of the ends.
    pub(super) fn descriptors(&self) -> usize {
        2 * self.all.len()
    }

    /// Both ends are about to be passed.
    pub(super) fn add(&mut self, channel: u64, region: Region) {
        if !region.is_held() {
            return;
        }
        let held = self.of_dc.entry(region.dc.clone()).or_default();
        held.bytes += region.bytes;
        held.regions += 1;
        for domain in region.holders() {
            *held.ends.entry(domain.clone()).or_default() += 1;
        }
        self.all.insert(channel, region);
    }

    pub(super) fn watch(&mut self, channel: u64, watches: Vec<super::super::Watch>) {
        if let Some(region) = self.all.get_mut(&channel) {
            region.watches = watches;
        }
    }

    /// A pair is over; whoever holds its memory goes on doing so.
    pub(super) fn over(&mut self, channel: u64) {
        let Some(region) = self.all.get_mut(&channel).filter(|region| !region.over) else { return };
        region.over = true;
        let held = self.of_dc.entry(region.dc.clone()).or_default();
        for domain in region.holders() {
            *held.lingering.entry(domain.clone()).or_default() += 1;
        }
    }

    /// Nobody has the end of one side any more. Where its pair is not over yet, it is now: whose it
    /// was.
    pub(super) fn let_go(&mut self, channel: u64, side: usize) -> Option<(String, [u32; 2])> {
        let region = self.all.get_mut(&channel)?;
        let (Some(domain), Some(flag)) = (region.domains.get(side), region.held.get_mut(side)) else {
            return None;
        };
        if !std::mem::replace(flag, false) {
            return None;
        }
        let held = self.of_dc.entry(region.dc.clone()).or_default();
        take_one(&mut held.ends, domain);
        if region.over {
            take_one(&mut held.lingering, domain);
        }
        let pair = (!region.over).then(|| (region.dc.clone(), region.slots));
        if pair.is_some() {
            self.over(channel);
        }
        self.forget_if_free(channel);
        pair
    }

    fn forget_if_free(&mut self, channel: u64) {
        if self.all.get(&channel).is_none_or(Region::is_held) {
            return;
        }
        let Some(region) = self.all.remove(&channel) else { return };
        let Some(held) = self.of_dc.get_mut(&region.dc) else { return };
        held.bytes -= region.bytes;
        held.regions -= 1;
        if held.regions == 0 {
            self.of_dc.remove(&region.dc);
        }
    }
}

fn take_one(counts: &mut BTreeMap<String, usize>, domain: &str) {
    if let Some(count) = counts.get_mut(domain) {
        *count -= 1;
        if *count == 0 {
            counts.remove(domain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(bytes: u64) -> Region {
        Region {
            dc: "shop".into(),
            slots: [1, 2],
            domains: ["web".into(), "desk".into()],
            bytes,
            held: [true, true],
            over: false,
            watches: Vec::new(),
        }
    }

    #[test]
    fn memory_counts_until_the_last_one_lets_go_and_is_his_who_keeps_it() {
        let mut regions = Regions::default();
        regions.add(7, region(4096));
        regions.add(8, region(8192));
        assert_eq!(
            (regions.bytes("shop"), regions.count("shop"), regions.ends("shop", "web")),
            (12288, 2, 2)
        );
        assert_eq!(regions.let_go(7, 0), Some(("shop".into(), [1, 2])));
        assert_eq!(regions.let_go(7, 0), None);
        assert_eq!((regions.bytes("shop"), regions.lingering("shop", "web")), (12288, 0));
        assert_eq!(regions.lingering("shop", "desk"), 1);
        assert_eq!(regions.let_go(7, 1), None);
        assert_eq!((regions.bytes("shop"), regions.lingering("shop", "desk")), (8192, 0));
        regions.over(8);
        regions.over(8);
        assert_eq!((regions.lingering("shop", "desk"), regions.lingering("shop", "web")), (1, 1));
        assert_eq!((regions.let_go(8, 1), regions.let_go(8, 0), regions.let_go(8, 5)), (None, None, None));
        assert_eq!((regions.bytes("shop"), regions.of_dc.len(), regions.all.len()), (0, 0, 0));
    }
}
