//! Pages that stand in a row, of which channels have runs.

use std::collections::BTreeMap;

/// The pages of a row that are taken. It grows at its end, and never shrinks.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// Where each run begins, and how many pages it has.
    taken: BTreeMap<usize, usize>,
    pages: usize,
}

/// A run of pages that are free, of which some may be still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub first: usize,
    pub pages: usize,
    /// So many have to be added to the row first.
    pub lacks: usize,
}

impl Runs {
    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Finds room for so many pages: the first gap that has it, or the end.
    pub fn find(&self, pages: usize) -> Run {
        let mut first = 0;
        for (begin, taken) in &self.taken {
            if begin - first >= pages {
                return Run { first, pages, lacks: 0 };
            }
            first = begin + taken;
        }
        Run { first, pages, lacks: (first + pages).saturating_sub(self.pages) }
    }

    /// Takes what was found.
    pub fn take(&mut self, run: Run) {
        self.pages += run.lacks;
        self.taken.insert(run.first, run.pages);
    }

    /// Gives back the run that begins there.
    pub fn give_back(&mut self, first: usize) {
        self.taken.remove(&first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is taken and given back in whatever order: no page is in two runs, and there are no
    /// more pages than somebody needed at one time, with the gaps between.
    #[test]
    fn no_page_is_in_two_runs() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut runs = Runs::default();
        let mut held: Vec<Run> = Vec::new();
        for _ in 0..20_000 {
            // xorshift64 (Marsaglia 2003)
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if held.len() < 8 && random & 1 == 0 {
                let pages = (random >> 8) as usize % 34 + 1;
                let (before, run) = (runs.pages(), runs.find(pages));
                runs.take(run);
                assert_eq!(run.pages, pages);
                assert_eq!(runs.pages(), before + run.lacks);
                assert!(run.first + pages <= runs.pages(), "{run:?} is within the row");
                for other in &held {
                    let apart = run.first + pages <= other.first || other.first + other.pages <= run.first;
                    assert!(apart, "{run:?} and {other:?}");
                }
                held.push(run);
            } else if !held.is_empty() {
                let gone = held.swap_remove((random >> 8) as usize % held.len());
                runs.give_back(gone.first);
            }
        }
        // Eight of 34 pages, with a gap of fewer between two each.
        assert!(runs.pages() <= 16 * 34, "{} pages", runs.pages());
    }

    #[test]
    fn channels_of_all_sizes_one_after_the_other_need_no_more_than_the_largest() {
        let mut runs = Runs::default();
        for pages in (0..9).chain(0..9).map(|size| (2 << size) + 2) {
            let run = runs.find(pages);
            runs.take(run);
            assert_eq!(run.first, 0);
            runs.give_back(run.first);
        }
        assert_eq!(runs.pages(), 514);
    }
}
