//! Fixed priorities on one processor: exact response times.
//!
//! The response time of a task is greatest in a window that begins when it and everybody above it
//! are released together, each as late as its jitter allows, and then as often as they can be
//! (Joseph and Pandya 1986; Audsley et al. 1993). With deadlines beyond periods all its releases in
//! that window count (Lehoczky, RTSS 1990; Tindell, Burns and Wellings 1994).

use crate::effort::{Effort, Undecided};
use crate::fraction::{self, ONE, compare_to_one};
use crate::task::Load;
use std::cmp::Ordering;

/// How long a task takes at worst, from the beginning of its period, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Response {
    /// So long, and no longer; and there is a release that takes so long.
    Within(u64),
    /// Longer than that; how much longer would have taken too long to find out.
    Over(u64),
    /// It falls behind for ever: it and those before it want more than the whole processor.
    Unbounded,
}

impl Response {
    /// Whether it is within `deadline_ns`.
    pub fn meets(self, deadline_ns: u64) -> bool {
        matches!(self, Self::Within(ns) if ns <= deadline_ns)
    }
}

/// A processor with fixed priorities; the loads in their order, highest first.
pub(crate) struct Levels<'a> {
    loads: &'a [Load],
    /// The first level that wants exactly the whole processor together with those above, and the
    /// first that wants more.
    full: usize,
    over: usize,
}

impl<'a> Levels<'a> {
    pub fn new(loads: &'a [Load]) -> Self {
        let compare =
            |count: usize| compare_to_one(loads.iter().take(count).map(|load| (load.cost, load.period)));
        if compare(loads.len()) == Ordering::Less {
            return Self { loads, full: loads.len(), over: loads.len() };
        }
        let full = first(loads.len(), |level| compare(level + 1) != Ordering::Less);
        let over = first(loads.len(), |level| compare(level + 1) == Ordering::Greater);
        Self { loads, full, over }
    }

    /// Whether everybody from `first` on meets the deadline; else the level of the first who does
    /// not.
    pub fn first_miss(&self, first: usize, effort: &mut Effort) -> Result<Option<usize>, Undecided> {
        for (level, load) in self.loads.iter().enumerate().skip(first) {
            if !self.response(level, Some(load.deadline), effort)?.meets(load.deadline) {
                return Ok(Some(level));
            }
        }
        Ok(None)
    }

    /// The same with what is remembered of each level: a window that held all its work before,
    /// or 0. Where it still does (or one a little longer does), and the deadline is within the
    /// period, the level is known to be in time without a search from the beginning. The result is
    /// remembered instead.
    pub fn first_miss_near(
        &self,
        first: usize,
        remembered: &mut [u64],
        effort: &mut Effort,
    ) -> Result<Option<usize>, Undecided> {
        for (level, load) in self.loads.iter().enumerate().skip(first) {
            let window = remembered.get(level).copied().unwrap_or(0);
            let held = match self.holding_window(level, window, effort)? {
                Some(window) => Some(window),
                None => match self.response(level, Some(load.deadline), effort)? {
                    Response::Within(ns) if ns <= load.deadline => Some(ns.saturating_sub(load.jitter)),
                    _ => None,
                },
            };
            let Some(window) = held else { return Ok(Some(level)) };
            if let Some(place) = remembered.get_mut(level) {
                *place = window;
            }
        }
        Ok(None)
    }

    /// A window, from `window` up, within the deadline of a level, that holds all work which is
    /// released in it. There may be one where none is found.
    fn holding_window(
        &self,
        level: usize,
        window: u64,
        effort: &mut Effort,
    ) -> Result<Option<u64>, Undecided> {
        let Some((own, above)) = self.loads.get(..=level).and_then(<[Load]>::split_last) else {
            return Ok(None);
        };
        // With deadlines beyond periods one window is not enough.
        if window == 0 || own.deadline > own.period {
            return Ok(None);
        }
        let mut window = window;
        while window <= own.first_due() {
            effort.spend(level + 1)?;
            let work = above.iter().fold(own.cost, |work, load| work.saturating_add(load.released(window)));
            if work <= window {
                return Ok(Some(window));
            }
            window = work;
        }
        Ok(None)
    }

    /// The response time of a level; one over `enough` is only known to be over it.
    pub fn response(
        &self,
        level: usize,
        enough: Option<u64>,
        effort: &mut Effort,
    ) -> Result<Response, Undecided> {
        let Some((task, above)) = self.loads.get(..=level).and_then(<[Load]>::split_last) else {
            return Ok(Response::Within(0));
        };
        if level >= self.over {
            return Ok(Response::Unbounded);
        }
        let releases = if level >= self.full { self.repetition(level) } else { None };
        let (mut worst, mut window) = (0, 0);
        for release in 0.. {
            let own = (release + 1_u64).saturating_mul(task.cost);
            let begun = release.saturating_mul(task.period);
            let stop =
                enough.map_or(u64::MAX, |enough| enough.saturating_add(begun).saturating_sub(task.jitter));
            window = settle(above, own, window, stop, effort)?;
            let response = window.saturating_add(task.jitter).saturating_sub(begun);
            worst = worst.max(response);
            let next = (begun + task.period).saturating_sub(task.jitter);
            let repeats = releases.is_some_and(|releases| release + 1 >= releases);
            if window <= next || repeats || enough.is_some_and(|enough| worst > enough) {
                break;
            }
        }
        Ok(Response::Within(worst))
    }

    /// After how many releases a level that fills the processor does the same again.
    fn repetition(&self, level: usize) -> Option<u64> {
        let periods = self.loads.iter().take(level + 1).map(|load| load.period);
        Some(fraction::hyperperiod(periods)? / self.loads.get(level)?.period)
    }
}

/// The first number below `count` for which something holds that holds for all greater ones, too;
/// else `count`.
fn first(count: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// The end of a window in which `own` work is done besides all that comes from above; anything
/// beyond `stop` once that is passed.
fn settle(above: &[Load], own: u64, from: u64, stop: u64, effort: &mut Effort) -> Result<u64, Undecided> {
    let mut window = at_least(above, own).max(from);
    loop {
        effort.spend(above.len() + 1)?;
        let work = above.iter().fold(own, |work, load| work.saturating_add(load.released(window)));
        // Rounding may have put the start behind the fixed point of an earlier release, never
        // behind this one's.
        if work <= window || work > stop {
            return Ok(work.max(window));
        }
        window = work;
    }
}

/// A window that is surely too short or just right: what the sum would be without rounding up. It
/// saves most of the steps where the processor is nearly full.
fn at_least(above: &[Load], own: u64) -> u64 {
    let together = above.iter().fold(own, |sum, load| sum.saturating_add(load.cost));
    let taken: u128 = above.iter().map(|load| fraction::down(load.cost, load.period)).sum();
    let late =
        above.iter().map(|load| u128::from(load.jitter) * u128::from(load.cost) / u128::from(load.period));
    let work = late.sum::<u128>() + u128::from(own);
    match ONE.checked_sub(taken) {
        Some(free) if free > 0 && work < 1 << 64 => {
            u64::try_from((work << 62) / free).unwrap_or(u64::MAX).max(together)
        }
        _ => together,
    }
}
