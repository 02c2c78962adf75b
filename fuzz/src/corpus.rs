//! The corpus without a fuzzer: each kept input, and for some seconds inputs that are made of them.
//!
//! This finds what a change breaks of what is known. New paths are what the fuzzer itself finds,
//! with coverage.

use std::hash::{DefaultHasher, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long made inputs go on behind those that are kept.
const MADE_FOR: Duration = Duration::from_millis(1500);
/// As long as libFuzzer's longest.
const MAX_INPUT_BYTES: usize = 600;
/// Changes to one input: few, because most of an input must still be understood to come far.
const MAX_CHANGES: u64 = 4;

/// Plays the corpus of a target, and what is made of it.
///
/// # Panics
/// When an input breaks what the target holds; it names a file that has the input.
pub fn play(target: &str, run: fn(&[u8])) {
    let kept = kept(target);
    assert!(!kept.is_empty(), "fuzz/corpus/{target} is empty");
    for (file, bytes) in &kept {
        try_one(run, bytes, || file.clone());
    }
    let mut random = Random::of_this_program();
    let mut made = 0_u64;
    let ends_at = Instant::now() + MADE_FOR;
    while Instant::now() < ends_at {
        let bytes = random.variation(&kept);
        try_one(run, &bytes, || keep(target, made, &bytes));
        made += 1;
    }
    println!("{} kept inputs, {made} made of them", kept.len());
}

fn try_one(run: fn(&[u8]), bytes: &[u8], name: impl FnOnce() -> PathBuf) {
    if catch_unwind(AssertUnwindSafe(|| run(bytes))).is_err() {
        panic!("this input breaks it: {}", name().display());
    }
}

fn kept(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    let read = |file: PathBuf| {
        let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        (file, bytes)
    };
    files.into_iter().map(read).collect()
}

/// Writes an input down where it can be played again.
fn keep(target: &str, number: u64, bytes: &[u8]) -> PathBuf {
    let file = std::env::temp_dir().join(format!("tombolo-{target}-{}-{number}", std::process::id()));
    std::fs::write(&file, bytes).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    file
}

/// A small generator (splitmix64). It begins with a number of this very program: other code, other
/// inputs.
struct Random(u64);

impl Random {
    fn of_this_program() -> Self {
        if let Some(seed) = std::env::var("TOMBOLO_SEED").ok().and_then(|text| text.parse().ok()) {
            return Self(seed);
        }
        let program = std::env::current_exe().and_then(std::fs::read).expect("this program can be read");
        let mut hasher = DefaultHasher::new();
        hasher.write(&program);
        let seed = hasher.finish();
        println!("TOMBOLO_SEED={seed}");
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `bound`, or 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % (bound.max(1) as u64)) as usize
    }

    fn variation(&mut self, kept: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = kept[self.below(kept.len())].1.clone();
        for _ in 0..=self.next() % MAX_CHANGES {
            let place = self.below(bytes.len() + 1);
            match self.next() % 5 {
                0 => bytes.insert(place, self.next() as u8),
                1 => bytes.truncate(place),
                2 => {
                    let other = &kept[self.below(kept.len())].1;
                    let from = self.below(other.len() + 1);
                    bytes.truncate(place);
                    bytes.extend_from_slice(&other[from.min(other.len())..]);
                }
                _ if place < bytes.len() => bytes[place] ^= 1 << self.below(8),
                _ => {}
            }
        }
        bytes.truncate(MAX_INPUT_BYTES);
        bytes
    }
}
