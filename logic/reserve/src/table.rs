//! The dispatch table: what a policy would do over one cycle, worked out before, and then repeated
//! for ever.

use crate::admission::{AdmitError, Rule};
use crate::harmonic::{self, Discord};
use crate::refusal::Span;
use crate::simulate::Slot;
use crate::supply::Supply;
use crate::task::{Policy, Task};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most releases in one cycle. Each makes two slots at most, so a table takes 2 MiB at most.
pub const MAX_RELEASES: u64 = 32_768;

/// Cycle of a table for nobody, in ns: how often a dispatcher without work looks up.
const IDLE_CYCLE_NS: u64 = 1_000_000_000;

/// Why there is no table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Somebody would miss.
    #[error(transparent)]
    Admit(#[from] AdmitError),
    /// The periods have no common multiple that is short enough.
    #[error("{}", tell_discord(periods_ns, discord))]
    Discord {
        /// The periods, in ns.
        periods_ns: Vec<u64>,
        /// The task that does not go with the others, and the one that would.
        discord: Discord,
    },
    /// A table gives when it is time to, whether or not the work is ready.
    #[error(
        "reservation {} has a jitter of {}, for which a table can't wait; give the jitter to the jobs inside it, or use another enforcement",
        who + 1, Span(*jitter_ns)
    )]
    Jitter {
        /// Index of the task.
        who: usize,
        /// Its jitter, in ns.
        jitter_ns: u64,
    },
}

fn tell_discord(periods_ns: &[u64], discord: &Discord) -> String {
    let period = |index: usize| periods_ns.get(index).copied().unwrap_or(0);
    let would = |index: usize| discord.harmonic_ns.get(index).copied().unwrap_or(0);
    let blamed =
        discord.who.iter().map(|&index| format!("reservation {}: {}", index + 1, Span(period(index))));
    let changed = (0..periods_ns.len()).filter(|&index| would(index) != period(index));
    let better = changed.map(|index| format!("reservation {}: {}", index + 1, Span(would(index))));
    format!(
        "a table that repeats would have more than {MAX_RELEASES} releases, for these periods do not go with the shorter ones: {}. \
         Periods that do, none longer: {}",
        blamed.collect::<Vec<_>>().join(", "),
        better.collect::<Vec<_>>().join(", ")
    )
}

/// The schedule of one processor, repeated each cycle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    cycle_ns: u64,
    slots: Vec<Slot>,
    quiet: Vec<(u64, u64)>,
}

/// The holder of the processor, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Turn {
    /// Index of the task; `None`: nobody's, to be given to anybody.
    pub who: Option<usize>,
    /// When the next turn begins, in ns of the cycle; at most its length.
    pub until_ns: u64,
}

impl Table {
    /// Works out the table of `tasks` under a rule: all released together at its beginning, and
    /// done at its end.
    ///
    /// # Errors
    /// Where somebody would miss, or the periods make a cycle of more than [`MAX_RELEASES`].
    pub fn build(rule: Rule, tasks: &[Task]) -> Result<Self, TableError> {
        rule.admit(tasks, None)?;
        Self::build_admitted(rule, tasks)
    }

    /// The same for tasks that are known to be admitted by this rule.
    pub(crate) fn build_admitted(rule: Rule, tasks: &[Task]) -> Result<Self, TableError> {
        if let Some(who) = tasks.iter().position(|task| task.jitter_ns() > 0) {
            return Err(TableError::Jitter { who, jitter_ns: tasks[who].jitter_ns() });
        }
        if tasks.is_empty() {
            let quiet = vec![(0, IDLE_CYCLE_NS)];
            return Ok(Self { cycle_ns: IDLE_CYCLE_NS, slots: Vec::new(), quiet });
        }
        let cycle_ns = harmonic::cycle(tasks, MAX_RELEASES).map_err(|discord| TableError::Discord {
            periods_ns: tasks.iter().map(Task::period_ns).collect(),
            discord,
        })?;
        let mut builder = Builder::new(rule, tasks, cycle_ns);
        while builder.step() {}
        // Behind the last time at which nothing was left over, no more was released than fits
        // before the end, switches included.
        debug_assert!(builder.now <= cycle_ns, "the work of a cycle is done in it");
        // A switch to somebody who was interrupted before it ran gives nothing.
        builder.slots.retain(|slot| slot.to_ns - slot.from_ns > slot.switch_ns);
        Ok(Self { cycle_ns, slots: builder.slots, quiet: builder.quiet })
    }

    /// After how long it repeats, in ns.
    pub fn cycle_ns(&self) -> u64 {
        self.cycle_ns
    }

    /// All turns that are somebody's, in order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The times `(from, to)` of the cycle, in ns, both included, at which all that was released
    /// before is done. Another table can begin there: it finds nothing left over.
    pub fn quiet_ns(&self) -> &[(u64, u64)] {
        &self.quiet
    }

    /// The first time at or after `now_ns` at which nothing is left over; times count from a
    /// beginning of the table and may be in any cycle.
    pub fn next_quiet_ns(&self, now_ns: u64) -> u64 {
        let (begin, inside) = (now_ns - now_ns % self.cycle_ns, now_ns % self.cycle_ns);
        if inside == 0 {
            return now_ns;
        }
        match self.quiet.get(self.quiet.partition_point(|(_, to)| *to < inside)) {
            Some((from, _)) => begin.saturating_add(inside.max(*from)),
            None => begin.saturating_add(self.cycle_ns),
        }
    }

    /// The same table with other numbers: task `n` becomes `numbers[n]`; one that has no number
    /// keeps its own. So tables of different sets can speak of the same virtual task machines of a
    /// dispatcher.
    #[must_use]
    pub fn renumbered(mut self, numbers: &[usize]) -> Self {
        for slot in &mut self.slots {
            slot.who = numbers.get(slot.who).copied().unwrap_or(slot.who);
        }
        self
    }

    /// The holder of the processor at a time of the cycle. Allocates nothing.
    pub fn at(&self, inside_ns: u64) -> Turn {
        let next = self.slots.partition_point(|slot| slot.to_ns <= inside_ns);
        match self.slots.get(next) {
            Some(slot) if slot.from_ns <= inside_ns => Turn { who: Some(slot.who), until_ns: slot.to_ns },
            Some(slot) => Turn { who: None, until_ns: slot.from_ns },
            None => Turn { who: None, until_ns: self.cycle_ns },
        }
    }

    /// The time that the table gives to the task of that index, without what the switches take.
    pub fn supply(&self, who: usize) -> Supply {
        let own = self.slots.iter().filter(|slot| slot.who == who);
        Supply::new(self.cycle_ns, own.map(|slot| (slot.from_ns + slot.switch_ns, slot.to_ns)))
    }
}

/// A policy at work, with queues instead of searches.
struct Builder<'a> {
    rule: Rule,
    tasks: &'a [Task],
    cycle: u64,
    now: u64,
    ranks: Vec<u64>,
    /// When who is released next, and who has how many releases not done, and what is left of the
    /// first.
    releases: BinaryHeap<Reverse<(u64, usize)>>,
    waiting: Vec<u64>,
    left: Vec<u64>,
    done: Vec<u64>,
    /// The tasks that are ready, the highest priority first: a rank or a deadline, and the index.
    ready: BinaryHeap<Reverse<(u64, usize)>>,
    loaded: Option<usize>,
    slots: Vec<Slot>,
    quiet: Vec<(u64, u64)>,
}

impl<'a> Builder<'a> {
    fn new(rule: Rule, tasks: &'a [Task], cycle: u64) -> Self {
        let mut ranks = vec![0; tasks.len()];
        for (rank, index) in (0..).zip(rule.policy.order(tasks)) {
            ranks[index] = rank;
        }
        Self {
            rule,
            tasks,
            cycle,
            now: 0,
            ranks,
            releases: (0..tasks.len()).map(|index| Reverse((0, index))).collect(),
            waiting: vec![0; tasks.len()],
            left: vec![0; tasks.len()],
            done: vec![0; tasks.len()],
            ready: BinaryHeap::with_capacity(tasks.len()),
            loaded: None,
            slots: Vec::new(),
            quiet: Vec::new(),
        }
    }

    fn next_release(&self) -> u64 {
        self.releases.peek().map_or(u64::MAX, |Reverse((at, _))| *at)
    }

    /// Goes on to the next release or completion; `false` at the end.
    fn step(&mut self) -> bool {
        self.release();
        let Some(&Reverse((_, who))) = self.ready.peek() else {
            let next = self.next_release();
            if next == u64::MAX {
                return false;
            }
            self.now = next;
            // Anybody may have run meanwhile.
            self.loaded = None;
            return true;
        };
        let switch = self.rule.costs.switch_ns();
        if self.loaded != Some(who) {
            self.loaded = Some(who);
            if switch > 0 {
                self.write_down(who, switch, switch);
                return true;
            }
        }
        let ran = self.left[who].min(self.next_release() - self.now);
        self.write_down(who, ran, 0);
        self.left[who] -= ran;
        if self.left[who] == 0 {
            self.finish(who);
        }
        true
    }

    fn release(&mut self) {
        while let Some(&Reverse((at, who))) = self.releases.peek().filter(|Reverse((at, _))| *at <= self.now)
        {
            self.releases.pop();
            let next = at + self.tasks[who].period_ns();
            if next < self.cycle {
                self.releases.push(Reverse((next, who)));
            }
            self.waiting[who] += 1;
            if self.waiting[who] == 1 {
                self.enter(who);
            }
        }
    }

    /// Puts the first release of a task among those that are ready.
    fn enter(&mut self, who: usize) {
        let task = &self.tasks[who];
        self.left[who] = task.budget_ns();
        let key = match self.rule.policy {
            Policy::EarliestDeadline => self.done[who] * task.period_ns() + task.deadline_ns(),
            Policy::RateMonotonic | Policy::DeadlineMonotonic => self.ranks[who],
        };
        self.ready.push(Reverse((key, who)));
    }

    fn finish(&mut self, who: usize) {
        // Nobody came in since it was looked at, so it is on top.
        self.ready.pop();
        self.waiting[who] -= 1;
        self.done[who] += 1;
        if self.waiting[who] > 0 {
            self.enter(who);
        } else if self.ready.is_empty() {
            self.quiet.push((self.now, self.next_release().min(self.cycle)));
        }
    }

    fn write_down(&mut self, who: usize, ran: u64, switch_ns: u64) {
        let from_ns = self.now;
        self.now += ran;
        match self.slots.last_mut() {
            Some(last) if last.who == who && last.to_ns == from_ns && switch_ns == 0 => last.to_ns += ran,
            _ if ran > 0 => self.slots.push(Slot { from_ns, to_ns: self.now, who, switch_ns }),
            _ => {}
        }
    }
}
