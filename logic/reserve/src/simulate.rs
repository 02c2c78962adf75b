//! A processor in virtual time: who runs when, and who is late.
//!
//! It is the other witness to what admission says, and it builds the dispatch tables: so it knows
//! nothing of the analysis. A switch takes its time here whenever it happens, and nobody interrupts
//! it.

use crate::admission::Rule;
use crate::task::{Policy, Task};

/// Most late releases that are written down; more of them say nothing new.
pub const MAX_LATE: usize = 64;

/// When work becomes ready.
#[derive(Debug, Clone, Copy)]
pub enum Arrivals<'a> {
    /// The worst that can be: all at once, each as late as its jitter allows, and then as often as
    /// they can be.
    Together,
    /// Periods begin at these offsets, in ns, one for each task; of the jitter, release `n` of task
    /// `i` takes what a generator makes of this seed.
    Offset(&'a [u64], u64),
}

/// When tasks are given the processor: all the time, or in stretches that repeat.
#[derive(Debug, Clone, Copy)]
pub enum Stretch<'a> {
    /// All the time.
    Whole,
    /// In these stretches `(from, to)` of each cycle, in ns, in order and apart; the simulation
    /// begins at `shift` ns in the first cycle.
    Cycle {
        /// In order, none empty, none beyond the cycle.
        stretches: &'a [(u64, u64)],
        /// Length of the cycle, in ns.
        cycle_ns: u64,
        /// Where in the cycle time 0 is.
        shift_ns: u64,
    },
}

/// A simulation to be.
#[derive(Debug, Clone, Copy)]
pub struct Scenario<'a> {
    /// The order, and the cost of a switch.
    pub rule: Rule,
    /// The tasks.
    pub tasks: &'a [Task],
    /// When.
    pub arrivals: Arrivals<'a>,
    /// On what.
    pub given: Stretch<'a>,
    /// Nothing is released from then on, in ns; what was released runs to its end.
    pub until_ns: u64,
    /// Stop at the first that is late.
    pub stop_when_late: bool,
    /// Write down who ran when.
    pub record: bool,
}

/// Somebody ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    /// From when, in ns; a switch to it is part of it.
    pub from_ns: u64,
    /// To when, in ns.
    pub to_ns: u64,
    /// Index of the task.
    pub who: usize,
    /// How much of it the switch took, in ns.
    pub switch_ns: u64,
}

/// A release that was not done in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Late {
    /// Index of the task.
    pub who: usize,
    /// The release, from 0.
    pub release: u64,
    /// When it should have been done, in ns of the simulation.
    pub deadline_ns: u64,
}

/// The outcome of a simulation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// For each task the longest time that a release took from the beginning of its period, in ns.
    pub responses_ns: Vec<u64>,
    /// The tasks that were late, in the order in which it showed; the first [`MAX_LATE`].
    pub late: Vec<Late>,
    /// The slots: who ran when, if that was asked for.
    pub slots: Vec<Slot>,
    /// How often the processor turned to another task.
    pub switches: u64,
    /// When all was done, in ns.
    pub end_ns: u64,
}

/// One task's releases.
#[derive(Debug, Clone, Copy)]
struct Line {
    /// Releases so far, and those done.
    released: u64,
    done: u64,
    /// When the next becomes ready; `u64::MAX`: none does.
    next_ns: u64,
    /// The time that is left of the one that is under way.
    left_ns: u64,
    /// Beginning of the first period, before which nothing is ready; time is shifted so that it is
    /// not negative.
    begin_ns: u64,
    late_noted: bool,
}

struct Run<'a> {
    scenario: &'a Scenario<'a>,
    /// The simulation's time 0 on the lines' clock.
    origin_ns: u64,
    lines: Vec<Line>,
    /// Fixed priorities: the lower the number the higher.
    ranks: Vec<usize>,
    now_ns: u64,
    /// The task whose registers are loaded.
    loaded: Option<usize>,
    /// The time that is left of the switch to it, in ns.
    switch_left_ns: u64,
    outcome: Outcome,
}

impl Scenario<'_> {
    /// Runs it. A task set that overloads the processor ends too, if `until_ns` is finite.
    pub fn run(&self) -> Outcome {
        let mut run = Run::new(self);
        while run.step() {}
        run.outcome.end_ns = run.now_ns - run.origin_ns;
        run.outcome
    }
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario<'a>) -> Self {
        let tasks = scenario.tasks;
        let origin_ns = tasks.iter().map(Task::jitter_ns).max().unwrap_or(0);
        let mut ranks = vec![0; tasks.len()];
        for (rank, index) in scenario.rule.policy.order(tasks).into_iter().enumerate() {
            ranks[index] = rank;
        }
        let begin = |index: usize, task: &Task| match scenario.arrivals {
            Arrivals::Together => origin_ns - task.jitter_ns(),
            Arrivals::Offset(offsets, _) => origin_ns + offsets.get(index).copied().unwrap_or(0),
        };
        let line = |(index, task): (usize, &Task)| Line {
            released: 0,
            done: 0,
            next_ns: 0,
            left_ns: 0,
            begin_ns: begin(index, task),
            late_noted: false,
        };
        let lines = tasks.iter().enumerate().map(line).collect();
        let outcome = Outcome { responses_ns: vec![0; tasks.len()], ..Outcome::default() };
        let mut run = Self {
            scenario,
            origin_ns,
            lines,
            ranks,
            now_ns: origin_ns,
            loaded: None,
            switch_left_ns: 0,
            outcome,
        };
        for index in 0..run.lines.len() {
            run.lines[index].next_ns = run.ready_ns(index);
        }
        run
    }

    /// When the next release of a task becomes ready.
    fn ready_ns(&self, index: usize) -> u64 {
        let (line, task) = (&self.lines[index], &self.scenario.tasks[index]);
        let begin = line.begin_ns + line.released * task.period_ns();
        let ready = match self.scenario.arrivals {
            Arrivals::Together => begin.max(self.origin_ns),
            Arrivals::Offset(_, seed) => begin + late_by(seed, index, line.released, task.jitter_ns()),
        };
        // Releases keep their order.
        let ready = ready.max(if line.released == 0 { 0 } else { line.next_ns });
        if ready < self.origin_ns.saturating_add(self.scenario.until_ns) { ready } else { u64::MAX }
    }

    /// Goes on to the next thing that happens; `false` when nothing is left.
    fn step(&mut self) -> bool {
        self.release();
        if self.scenario.stop_when_late && !self.outcome.late.is_empty() {
            return false;
        }
        let next = self.lines.iter().map(|line| line.next_ns).min().unwrap_or(u64::MAX);
        let Some(who) = self.highest() else {
            if next == u64::MAX {
                return false;
            }
            self.now_ns = next;
            return true;
        };
        let Some((from, to)) = self.stretch() else {
            // Nothing is ever given, so whoever waits is late.
            self.note_late(u64::MAX);
            return false;
        };
        if from > self.now_ns {
            // Nothing runs until then; who is released meanwhile is taken in.
            self.note_late(from);
            self.now_ns = from.min(next);
            return true;
        }
        if self.loaded != Some(who) && self.switch_left_ns == 0 {
            self.loaded = Some(who);
            self.outcome.switches += 1;
            self.switch_left_ns = self.scenario.rule.costs.switch_ns();
        }
        if self.switch_left_ns > 0 {
            self.switch(to);
            return true;
        }
        self.run(who, next.min(to));
        true
    }

    /// Takes in what has become ready.
    fn release(&mut self) {
        for index in 0..self.lines.len() {
            while self.lines[index].next_ns <= self.now_ns {
                let line = &mut self.lines[index];
                if line.released == line.done {
                    line.left_ns = self.scenario.tasks[index].budget_ns();
                }
                line.released += 1;
                self.lines[index].next_ns = self.ready_ns(index);
            }
        }
    }

    fn begin_ns(&self, index: usize) -> u64 {
        self.lines[index].begin_ns + self.lines[index].done * self.scenario.tasks[index].period_ns()
    }

    fn deadline_ns(&self, index: usize) -> u64 {
        self.begin_ns(index) + self.scenario.tasks[index].deadline_ns()
    }

    /// Returns the waiting task of the highest priority; of equals, the one that was named first.
    fn highest(&self) -> Option<usize> {
        let waiting =
            (0..self.lines.len()).filter(|&index| self.lines[index].released > self.lines[index].done);
        match self.scenario.rule.policy {
            Policy::EarliestDeadline => waiting.min_by_key(|&index| self.deadline_ns(index)),
            _ => waiting.min_by_key(|&index| self.ranks[index]),
        }
    }

    /// The stretch that we are in, or the next.
    fn stretch(&self) -> Option<(u64, u64)> {
        let Stretch::Cycle { stretches, cycle_ns, shift_ns } = self.scenario.given else {
            return Some((self.now_ns, u64::MAX));
        };
        let (first, cycle_ns) = (stretches.first()?, cycle_ns.max(1));
        let time = self.now_ns - self.origin_ns + shift_ns;
        let (begin, inside) = (time - time % cycle_ns, time % cycle_ns);
        let back = |ns: u64| ns + self.origin_ns - shift_ns;
        match stretches.get(stretches.partition_point(|(_, to)| *to <= inside)) {
            Some(&(from, to)) => Some((back(begin + from.max(inside)), back(begin + to))),
            None => Some((back(begin + cycle_ns + first.0), back(begin + cycle_ns + first.1))),
        }
    }

    /// Goes on with a switch, which nobody but the end of what is given interrupts.
    fn switch(&mut self, to_ns: u64) {
        let Some(who) = self.loaded else { return };
        let ran = self.switch_left_ns.min(to_ns - self.now_ns);
        self.write_down(who, ran, ran);
        self.now_ns += ran;
        self.switch_left_ns -= ran;
        self.note_late(self.now_ns);
    }

    /// Lets `who` run until it is done or something else happens at `next_ns`.
    fn run(&mut self, who: usize, next_ns: u64) {
        let left = self.lines[who].left_ns;
        let ran = left.min(next_ns - self.now_ns);
        self.write_down(who, ran, 0);
        self.now_ns += ran;
        self.lines[who].left_ns -= ran;
        if ran < left {
            self.note_late(self.now_ns);
            return;
        }
        let response = self.now_ns - self.begin_ns(who);
        self.outcome.responses_ns[who] = self.outcome.responses_ns[who].max(response);
        self.note_late(self.now_ns);
        let budget = self.scenario.tasks[who].budget_ns();
        let line = &mut self.lines[who];
        line.done += 1;
        line.late_noted = false;
        if line.released > line.done {
            line.left_ns = budget;
        }
    }

    /// Notes whose deadline is before `now_ns`, and the work not done by then.
    fn note_late(&mut self, now_ns: u64) {
        for index in 0..self.lines.len() {
            let line = &self.lines[index];
            let late = line.released > line.done && !line.late_noted && self.deadline_ns(index) < now_ns;
            if late && self.outcome.late.len() < MAX_LATE {
                let deadline_ns = self.deadline_ns(index) - self.origin_ns;
                self.outcome.late.push(Late { who: index, release: line.done, deadline_ns });
                self.lines[index].late_noted = true;
            }
        }
    }

    fn write_down(&mut self, who: usize, ran_ns: u64, switch_ns: u64) {
        if !self.scenario.record || ran_ns == 0 {
            return;
        }
        let from_ns = self.now_ns - self.origin_ns;
        let slots = &mut self.outcome.slots;
        match slots.last_mut() {
            Some(last) if last.who == who && last.to_ns == from_ns => {
                last.to_ns += ran_ns;
                last.switch_ns += switch_ns;
            }
            _ => slots.push(Slot { from_ns, to_ns: from_ns + ran_ns, who, switch_ns }),
        }
    }
}

/// The share of its jitter that a release takes: a mix of the seed and its name (SplitMix64).
fn late_by(seed: u64, index: usize, release: u64, jitter_ns: u64) -> u64 {
    let name = seed
        ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ release.wrapping_mul(0xd1b5_4a32_d192_ed03);
    let mixed = (name ^ (name >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % (jitter_ns + 1)
}
