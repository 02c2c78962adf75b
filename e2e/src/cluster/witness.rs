//! The witnesses of a domain's life: the proof that it never ran twice at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The record that a domain writes while it lives (`programs/witness.py`), read by the test.
pub struct Witness {
    file: PathBuf,
}

/// One life of a domain: first and last sign, in ns of `CLOCK_BOOTTIME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// First sign.
    pub from_ns: u64,
    /// Last sign so far.
    pub to_ns: u64,
}

impl Witness {
    /// The witness of the domain that writes into `folder` by this name.
    #[must_use]
    pub fn new(folder: &Path, name: &str) -> Self {
        Self { file: folder.join(name) }
    }

    /// Every life so far, in the order of their beginnings.
    #[must_use]
    pub fn lives(&self) -> Vec<Life> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let mut lives: BTreeMap<&str, Life> = BTreeMap::new();
        for line in text.lines() {
            let Some((instance, at)) = line.split_once(' ') else { continue };
            let Ok(at) = at.parse::<u64>() else { continue };
            let life = lives.entry(instance).or_insert(Life { from_ns: at, to_ns: at });
            (life.from_ns, life.to_ns) = (life.from_ns.min(at), life.to_ns.max(at));
        }
        let mut lives: Vec<Life> = lives.into_values().collect();
        lives.sort_by_key(|life| life.from_ns);
        lives
    }

    /// Whether it gave a sign after this moment.
    #[must_use]
    pub fn lives_after(&self, ns: u64) -> bool {
        self.lives().iter().any(|life| life.to_ns > ns)
    }

    /// Insists that no two lives overlap.
    ///
    /// # Panics
    /// Where they do.
    pub fn assert_never_two(&self) {
        let lives = self.lives();
        for pair in lives.windows(2) {
            assert!(
                pair[0].to_ns < pair[1].from_ns,
                "it lived twice at once, for {} ms: {lives:?}",
                (pair[0].to_ns - pair[1].from_ns) / 1_000_000
            );
        }
    }
}

/// The clock of the witnesses, now.
#[must_use]
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let whole = |number: i64| u64::try_from(number).unwrap_or(0);
    whole(now.tv_sec).saturating_mul(1_000_000_000).saturating_add(whole(now.tv_nsec))
}
