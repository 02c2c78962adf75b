//! From one table to the next without a miss: when, and why then.
//!
//! A table may be left where nothing is left over of what it released (its quiet times): every
//! virtual task machine has had its budget of each period that ended there, and gets the next one's
//! from the new table, of whose work nothing is in the way. What remains are jobs that were
//! promised to be in time *inside* a machine: a window that began under the old table goes on under
//! the new one, and what it gets is the end of the one and the beginning of the other. Each such
//! window is looked at, exactly as in the analysis of one table.

use crate::admission::{AdmitError, Rule};
use crate::earliest_deadline::{Demand, Given};
use crate::effort::{Effort, Undecided};
use crate::fixed_priority::Response;
use crate::fraction::{self, ONE};
use crate::inside::{self, Reach, Window};
use crate::refusal::{Miss, Refusal};
use crate::supply::Supply;
use crate::table::Table;
use crate::task::{Load, Policy, Task};

/// How many cycles of the old table a window may have begun before it is left.
const MAX_CYCLES_BACK: u64 = 1_000;
/// Most quiet times that are tried. If none of so many will do, the changes are too great for the
/// jobs.
const MAX_TRIED: usize = 64;

/// Jobs inside a virtual task machine that is in both tables.
#[derive(Debug, Clone, Copy)]
pub struct Guests<'a> {
    /// How its jobs are ordered.
    pub rule: Rule,
    /// They.
    pub jobs: &'a [Task],
    /// Its index in the old table.
    pub before: usize,
    /// Its index in the new one.
    pub after: usize,
}

/// Why there is no good moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeoverError {
    /// The jobs of one machine are not even in time under one of the two tables.
    #[error("under the {table} table, jobs of virtual task machine {machine}: {cause}")]
    Inside {
        /// `old` or `new`.
        table: &'static str,
        /// Its index there.
        machine: usize,
        /// Why.
        cause: AdmitError,
    },
    /// Whenever the tables change, somebody is late.
    #[error(
        "none of the next {tried} moments at which the table may change is good: jobs of virtual task machine {machine}: {cause}; take the budget in smaller steps"
    )]
    Never {
        /// How many were tried.
        tried: usize,
        /// Index in the old table of the machine that the last of them was bad for.
        machine: usize,
        /// Why.
        cause: AdmitError,
    },
}

/// The first moment at or after `after_ns` at which `new` may take over from `old`, in ns since
/// `old` began, with no guest late on either side of it or across it.
///
/// # Errors
/// Where guests are late under one of the tables alone, or at each of the next moments.
pub fn first_moment(
    old: &Table,
    new: &Table,
    guests: &[Guests<'_>],
    after_ns: u64,
) -> Result<u64, ChangeoverError> {
    let pairs: Vec<(Supply, Supply)> =
        guests.iter().map(|guest| (old.supply(guest.before), new.supply(guest.after))).collect();
    for (guest, (before, after)) in guests.iter().zip(&pairs) {
        let alone = |table: &'static str, machine: usize, supply: &Supply| {
            inside::admit(guest.rule, guest.jobs, supply, None).map_err(|cause| ChangeoverError::Inside {
                table,
                machine,
                cause,
            })
        };
        alone("old", guest.before, before)?;
        alone("new", guest.after, after)?;
    }
    let (mut moment, mut last) = (old.next_quiet_ns(after_ns), None);
    for _ in 0..MAX_TRIED {
        match first_late(guests, &pairs, moment % old.cycle_ns()) {
            None => return Ok(moment),
            Some(found) => last = Some(found),
        }
        moment = next_moment(old, moment);
    }
    match last {
        Some((machine, cause)) => Err(ChangeoverError::Never { tried: MAX_TRIED, machine, cause }),
        None => Ok(moment),
    }
}

/// The beginning of the next quiet time.
fn next_moment(old: &Table, moment_ns: u64) -> u64 {
    let (begin, inside) = (moment_ns - moment_ns % old.cycle_ns(), moment_ns % old.cycle_ns());
    match old.quiet_ns().iter().find(|(from, _)| *from > inside) {
        Some((from, _)) => begin + from,
        None => begin + old.cycle_ns(),
    }
}

fn first_late(
    guests: &[Guests<'_>],
    pairs: &[(Supply, Supply)],
    inside_ns: u64,
) -> Option<(usize, AdmitError)> {
    guests.iter().zip(pairs).find_map(|(guest, (before, after))| {
        let splice = Splice { before, after, at_ns: inside_ns + MAX_CYCLES_BACK * before.cycle_ns() };
        let loads = guest.rule.loads(guest.jobs, &guest.rule.policy.order(guest.jobs));
        let found = if guest.rule.policy == Policy::EarliestDeadline {
            splice.find_overload(&loads)
        } else {
            splice.find_late(guest, &loads)
        };
        match found {
            Ok(None) => None,
            Ok(Some(miss)) => {
                let refusal = Refusal { policy: guest.rule.policy, miss, sought: None, remedies: Vec::new() };
                Some((guest.before, AdmitError::Refused(Box::new(refusal))))
            }
            Err(undecided) => Some((guest.before, AdmitError::Undecided(undecided))),
        }
    })
}

/// The end of one supply and the beginning of another.
struct Splice<'a> {
    before: &'a Supply,
    after: &'a Supply,
    /// When the second begins, in ns since the first began.
    at_ns: u64,
}

impl Reach for Splice<'_> {
    fn reach(&self, amount_ns: u64) -> u64 {
        let until = self.before.given_ns(self.at_ns);
        match amount_ns.checked_sub(until) {
            None | Some(0) => self.before.reached_ns(amount_ns),
            Some(rest) => self.at_ns.saturating_add(self.after.reached_ns(rest)),
        }
    }
}

impl Splice<'_> {
    /// The time that was given up to a moment.
    fn given_ns(&self, time_ns: u64) -> u64 {
        match time_ns.checked_sub(self.at_ns) {
            None => self.before.given_ns(time_ns),
            Some(rest) => self.before.given_ns(self.at_ns).saturating_add(self.after.given_ns(rest)),
        }
    }

    /// Where stretches have ended before the change, latest first: cycle by cycle, as `(end,
    /// given)`.
    fn cycles_back(&self) -> impl Iterator<Item = impl Iterator<Item = (u64, u64)>> {
        let cycle = self.before.cycle_ns();
        let last = self.at_ns / cycle;
        (0..MAX_CYCLES_BACK.min(last)).map(move |back| {
            let begin = (last - back) * cycle;
            let given = (last - back) * self.before.total_ns();
            let ends = self.before.ends().map(move |(end, sum)| (begin + end, given + sum));
            ends.filter(|(end, _)| *end < self.at_ns)
        })
    }

    fn find_late(&self, guest: &Guests<'_>, loads: &[Load]) -> Result<Option<Miss>, Undecided> {
        let effort = &mut Effort::new();
        let order = guest.rule.policy.order(guest.jobs);
        for (level, load) in loads.iter().enumerate() {
            let above = loads.get(..level).unwrap_or_default();
            // A window that never closes does the same again after all periods and both cycles.
            let repeats = self.repetition(loads).map(|whole| 2 * (whole / load.period) + 2);
            for (back, ends) in self.cycles_back().enumerate() {
                let mut crosses = false;
                for begin in ends {
                    let window = Window { supply: self, begin, above };
                    let (response, length) = window.response(load, Some(load.deadline), repeats, effort)?;
                    if response > load.deadline {
                        let who = order.get(level).copied().unwrap_or(level);
                        let response = Response::Over(load.deadline);
                        return Ok(Some(Miss { who, response, deadline_ns: load.deadline, overload: None }));
                    }
                    crosses |= begin.0.saturating_add(length) > self.at_ns;
                }
                // No window of this whole cycle reached the change, so none of an earlier one does.
                if !crosses && back > 0 {
                    break;
                }
            }
        }
        Ok(None)
    }

    /// After how long all periods and both cycles do the same again.
    fn repetition(&self, loads: &[Load]) -> Option<u64> {
        let cycles = [self.before.cycle_ns(), self.after.cycle_ns()];
        fraction::hyperperiod(loads.iter().map(|load| load.period).chain(cycles))
    }

    fn find_overload(&self, loads: &[Load]) -> Result<Option<Miss>, Undecided> {
        let effort = &mut Effort::new();
        let longest = self.longest_that_matters(loads).ok_or(Undecided)?;
        let demand = Demand::new(loads);
        for begin in self.cycles_back().flatten().take_while(|(end, _)| self.at_ns - end < longest) {
            let from = From { splice: self, begin };
            let Some(overload) = demand.search_downwards(longest, &from, effort)? else { continue };
            let due = |load: &Load| {
                overload.within.checked_sub(load.first_due()).is_some_and(|rest| rest % load.period == 0)
            };
            let who = loads.iter().rposition(due).unwrap_or(0);
            let deadline_ns = loads.get(who).map_or(0, |load| load.deadline);
            let response = Response::Over(deadline_ns);
            let overload = Some((overload.within, overload.work));
            return Ok(Some(Miss { who, response, deadline_ns, overload }));
        }
        Ok(None)
    }

    /// No longer window across the change can be overloaded: each table alone makes up for what is
    /// due early in it.
    fn longest_that_matters(&self, loads: &[Load]) -> Option<u64> {
        let taken: u128 = loads.iter().map(|load| fraction::up(load.cost, load.period)).sum();
        let part = |supply: &Supply| fraction::down(supply.total_ns(), supply.cycle_ns());
        let free = part(self.before).min(part(self.after)).checked_sub(taken).filter(|free| *free > 0);
        let Some(free) = free else {
            // Nothing is left over: what is due repeats with the cycles and all periods.
            let latest = loads.iter().map(Load::first_due).max().unwrap_or(0);
            return self.repetition(loads)?.checked_mul(2)?.checked_add(latest);
        };
        let early = loads.iter().map(|load| {
            (u128::from(load.period.saturating_sub(load.first_due())) * u128::from(load.cost))
                .div_ceil(u128::from(load.period))
        });
        let behind = u128::from(self.before.total_ns()) + u128::from(self.after.total_ns());
        let ahead = early.sum::<u128>() + behind;
        u64::try_from(ahead.checked_mul(ONE)?.div_ceil(free)).ok()
    }
}

/// The time that is given from one beginning on.
struct From<'a> {
    splice: &'a Splice<'a>,
    begin: (u64, u64),
}

impl Given for From<'_> {
    fn least(&self, window: u64) -> u64 {
        self.splice.given_ns(self.begin.0.saturating_add(window)) - self.begin.1
    }

    fn window_for(&self, work: u64) -> u64 {
        if work == 0 {
            return 0;
        }
        self.splice.reach(self.begin.1.saturating_add(work)).saturating_sub(self.begin.0)
    }

    fn steps(&self) -> usize {
        2
    }
}
