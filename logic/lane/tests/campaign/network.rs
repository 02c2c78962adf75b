//! The network, and seals of paper: they show whether a frame is as it was made, and hide nothing.

use lane::{Open, Seal, Stream};
use std::collections::BTreeMap;
use wire::lane::{HEADER_BYTES, TAG_BYTES};

/// Numbers out of a seed.
pub struct XorShift(u64);

impl XorShift {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end.max(1)
    }

    fn one_of(&mut self, of: u64) -> bool {
        of > 0 && self.below(of) == 0
    }
}

/// Seals of one side.
#[derive(Debug)]
pub struct Paper {
    me: u64,
    pub opened: u32,
}

fn tag(from: u64, stream: Stream, number: u64, frame: &[u8]) -> [u8; TAG_BYTES] {
    // FNV-1a: whoever has no keys can't make it, because the network does not try.
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ from ^ number << 8 ^ (stream as u64) << 4;
    for byte in frame {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let mut tag = [0; TAG_BYTES];
    tag[..8].copy_from_slice(&hash.to_le_bytes());
    tag[8..].copy_from_slice(&hash.rotate_left(17).to_le_bytes());
    tag
}

impl Paper {
    pub fn new(me: u64) -> Self {
        Self { me, opened: 0 }
    }
}

impl Seal for Paper {
    fn seal(&mut self, stream: Stream, number: u64, frame: &mut Vec<u8>) {
        let tag = tag(self.me, stream, number, frame);
        frame.extend_from_slice(&tag);
    }
}

impl Open for Paper {
    fn open<'a>(&mut self, stream: Stream, number: u64, frame: &'a mut [u8]) -> Option<&'a [u8]> {
        self.opened += 1;
        let (front, found) = frame.split_at(frame.len() - TAG_BYTES);
        (tag(3 - self.me, stream, number, front) == found).then(|| &front[HEADER_BYTES..])
    }
}

/// Of so many frames one suffers; 0: none.
pub struct Faults {
    lost: u64,
    doubled: u64,
    late: u64,
    spoiled: u64,
    cut: u64,
    kept: u64,
    /// Nothing comes through until then.
    black_until_us: u64,
    black: u64,
    trip_us: u64,
    /// From then on it is fair.
    fair_at_us: u64,
}

impl Faults {
    pub fn of(random: &mut XorShift) -> Self {
        let mut one = |choices: [u64; 4]| choices[random.below(4) as usize];
        Self {
            lost: one([0, 3, 20, 500]),
            doubled: one([0, 4, 50, 500]),
            late: one([0, 4, 30, 200]),
            spoiled: one([0, 10, 100, 1000]),
            cut: one([0, 10, 100, 1000]),
            kept: one([0, 10, 100, 1000]),
            black_until_us: 0,
            black: one([0, 0, 2000, 20_000]),
            trip_us: one([5, 50, 500, 5_000]),
            fair_at_us: one([0, 500_000, 2_000_000, 5_000_000]),
        }
    }

    pub fn pass(&mut self, now_us: u64, random: &mut XorShift) {
        if now_us >= self.fair_at_us {
            (self.lost, self.doubled, self.late, self.spoiled) = (0, 0, 0, 0);
            (self.cut, self.kept, self.black, self.black_until_us) = (0, 0, 0, 0);
        } else if random.one_of(self.black) {
            self.black_until_us = now_us + 1 + random.below(300_000);
        }
    }
}

pub struct Network {
    pub faults: Faults,
    flying: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    kept: Vec<(usize, Vec<u8>)>,
    count: u64,
}

impl Network {
    pub fn new(faults: Faults) -> Self {
        Self { faults, flying: BTreeMap::new(), kept: Vec::new(), count: 0 }
    }

    fn fly(&mut self, at_us: u64, to: usize, frame: Vec<u8>) {
        self.count += 1;
        self.flying.insert((at_us, self.count), (to, frame));
    }

    pub fn send(&mut self, now_us: u64, to: usize, mut frame: Vec<u8>, random: &mut XorShift) {
        assert!(frame.len() <= 65_535);
        let mut at_us = now_us + self.faults.trip_us / 2;
        if now_us < self.faults.black_until_us || random.one_of(self.faults.lost) {
            return;
        }
        if random.one_of(self.faults.kept) {
            self.kept.push((to, frame.clone()));
            let chosen = random.below(self.kept.len() as u64) as usize;
            let (to, old) = self.kept[chosen].clone();
            // To either side: a frame that is sent back is none.
            let to = if random.one_of(3) { 1 - to } else { to };
            self.fly(at_us + random.below(1000), to, old);
        }
        if random.one_of(self.faults.doubled) {
            self.fly(at_us + random.below(3_000), to, frame.clone());
        }
        if random.one_of(self.faults.late) {
            at_us += random.below(4 * self.faults.trip_us + 500);
        }
        if random.one_of(self.faults.spoiled) {
            let at = random.below(frame.len() as u64) as usize;
            frame[at] ^= 1 << random.below(8);
        }
        if random.one_of(self.faults.cut) {
            frame.truncate(random.below(frame.len() as u64) as usize);
        } else if random.one_of(3) {
            // Ethernet pads what is short.
            frame.resize(frame.len().max(46), 0);
        }
        self.fly(at_us, to, frame);
    }

    pub fn next(&mut self, now_us: u64) -> Option<(usize, Vec<u8>)> {
        let first = *self.flying.first_key_value()?.0;
        if first.0 > now_us { None } else { self.flying.remove(&first) }
    }
}
