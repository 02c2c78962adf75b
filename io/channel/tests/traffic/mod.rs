//! Messages that tell, at the other end, whether they are the right ones, whole and in order; and
//! choices that a seed repeats.
#![allow(dead_code, reason = "each test program takes what it needs of it")]

/// Names the seed of a run, in hexadecimal, so that a failure can be repeated.
pub const SEED: &str = "TOMBOLO_SEED";

/// The seed of this run: the one that [`SEED`] names, or a new one. Printed, because a failure's
/// output shows it.
pub fn seed() -> u64 {
    let given = std::env::var(SEED).ok();
    let seed = given.map_or_else(sys::clock::clock_ns, |text| {
        u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("TOMBOLO_SEED is a hexadecimal number")
    });
    println!("repeat with {SEED}={seed:x}");
    seed
}

/// A generator of choices (SplitMix64, Steele et al. 2014): any seed is good, and neighbours have
/// nothing in common.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Choices that depend on `seed` and `stream` alone.
    pub fn new(seed: u64, stream: u64) -> Self {
        Random(seed ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// True once in `times` on average.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// Where a message's noise starts within the block: this many places are enough that neighbours
/// differ.
const PLACES: usize = 4096;
/// The most bytes of an ordinary long message, so that a run is of many messages and not of few
/// huge ones.
const ORDINARY_BYTES: usize = 4096;
/// One in so many is as long as messages may be.
const HUGE_ONE_IN: usize = 2048;

/// The messages of one direction: number N is always the same, and unlike any other.
#[derive(Clone, Debug)]
pub struct Messages {
    stream: u64,
    longest: usize,
    noise: Vec<u8>,
}

impl Messages {
    /// Messages of at most `longest` bytes. Both ends make them from the same arguments.
    pub fn new(seed: u64, stream: u64, longest: usize) -> Self {
        let mut random = Random::new(seed, stream);
        let words = (longest + PLACES) / 8 + 1;
        let noise = (0..words).flat_map(|_| random.next().to_le_bytes()).collect();
        Messages { stream: random.next(), longest, noise }
    }

    /// Puts message `number` into `into`: its number, as far as there is room, and noise.
    pub fn make(&self, number: u64, into: &mut Vec<u8>) {
        let mut random = Random::new(self.stream, number);
        let length = self.length(&mut random);
        let place = random.below(PLACES);
        into.clear();
        into.extend_from_slice(&self.noise[place..place + length]);
        let head = (number ^ self.stream).to_le_bytes();
        let told = length.min(head.len());
        into[..told].copy_from_slice(&head[..told]);
    }

    fn length(&self, random: &mut Random) -> usize {
        let ordinary = self.longest.min(ORDINARY_BYTES);
        match random.below(16) {
            _ if random.one_in(HUGE_ONE_IN) => self.longest - random.below(9),
            0..=8 => random.below(65),
            9..=13 => random.below(ordinary.min(700) + 1),
            14 => 8 * random.below(ordinary / 8 + 1),
            _ => random.below(ordinary + 1),
        }
    }

    /// The message that ends a direction after `count` others.
    pub fn end(&self, count: u64) -> Vec<u8> {
        [self.stream, count, !count, !self.stream].iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}
