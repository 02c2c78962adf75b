//! Task sets out of a seed: shares by UUniFast-discard (Bini and Buttazzo 2005; Davis and Burns
//! 2011), periods harmonic or log-uniform among the divisors of a hyperperiod, so that a simulation
//! over all of it ends.

use reserve::Task;

/// A small generator that is the same everywhere (SplitMix64).
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, both included.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// From 0 to 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[(self.next() % choices.len() as u64) as usize]
    }
}

/// How a set is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Periods {
    /// Each divides the next.
    Harmonic,
    /// Any divisors of a hyperperiod.
    LogUniform,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadlines {
    /// The period.
    Implicit,
    /// Within the period.
    Constrained,
    /// Up to three periods.
    Arbitrary,
}

/// A unit of time, so that budgets are no round numbers.
const UNIT_NS: u64 = 97;
/// Hyperperiods, in units, with many divisors.
const HYPERPERIODS: [u64; 5] = [120, 180, 240, 360, 420];
const CHAINS: [[u64; 6]; 4] =
    [[4, 8, 16, 32, 64, 128], [5, 10, 20, 60, 120, 240], [3, 6, 18, 54, 108, 216], [6, 12, 24, 72, 144, 288]];

/// Shares that sum up to `sum`, none over 1.
pub fn shares(chance: &mut Chance, count: usize, sum: f64) -> Vec<f64> {
    loop {
        let (mut left, mut shares) = (sum, Vec::new());
        for rest in (1..count).rev() {
            let next = left * chance.share().powf(1.0 / rest as f64);
            shares.push(left - next);
            left = next;
        }
        shares.push(left);
        if shares.iter().all(|share| *share <= 1.0) {
            return shares;
        }
    }
}

fn periods(chance: &mut Chance, kind: Periods, count: usize) -> Vec<u64> {
    match kind {
        Periods::Harmonic => {
            let chain = chance.of(&CHAINS);
            (0..count).map(|_| chance.of(&chain) * UNIT_NS).collect()
        }
        Periods::LogUniform => {
            let hyperperiod = chance.of(&HYPERPERIODS);
            let divisors: Vec<u64> =
                (4..=hyperperiod).filter(|part| hyperperiod.is_multiple_of(*part)).collect();
            let mut pick = || {
                let (low, high) = (4.0_f64.ln(), (hyperperiod as f64).ln());
                let wanted = (low + chance.share() * (high - low)).exp();
                divisors.iter().copied().min_by_key(|part| (*part as f64 - wanted).abs() as u64).unwrap()
            };
            (0..count).map(|_| pick() * UNIT_NS).collect()
        }
    }
}

/// A set of tasks.
pub fn tasks(chance: &mut Chance, kind: Periods, deadlines: Deadlines, with_jitter: bool) -> Vec<Task> {
    let count = chance.within(1, 6) as usize;
    let most = if count == 1 { 1.0 } else { 1.1 };
    let sum = 0.5 + chance.share() * (most - 0.5);
    let shares = shares(chance, count, sum);
    let mut tasks: Vec<Task> = periods(chance, kind, count)
        .into_iter()
        .zip(shares)
        .map(|(period, share)| task(chance, period, share, deadlines, with_jitter))
        .collect();
    if chance.one_in(4) {
        fill(&mut tasks);
    }
    tasks
}

fn task(chance: &mut Chance, period: u64, share: f64, deadlines: Deadlines, with_jitter: bool) -> Task {
    let budget = ((share * period as f64).round() as u64).clamp(1, period);
    let task = Task::new(budget, period).unwrap();
    let deadline = match deadlines {
        Deadlines::Implicit => period,
        Deadlines::Constrained => chance.within(budget.max(period / 2), period),
        Deadlines::Arbitrary => chance.within(budget.max(period / 2), 3 * period),
    };
    let task = task.with_deadline(deadline).unwrap();
    let room = deadline - budget;
    if with_jitter && room > 0 { task.with_jitter(chance.within(0, room.min(period))).unwrap() } else { task }
}

/// Gives the last what the others leave, so that the processor is exactly full, where that can be.
fn fill(tasks: &mut [Task]) {
    let hyperperiod = hyperperiod(tasks);
    let Some((last, rest)) = tasks.split_last_mut() else { return };
    let taken: u64 = rest.iter().map(|task| task.budget_ns() * (hyperperiod / task.period_ns())).sum();
    let releases = hyperperiod / last.period_ns();
    if let Some(left) = hyperperiod.checked_sub(taken).filter(|left| left.is_multiple_of(releases)) {
        *last = last.with_budget(left / releases).unwrap_or(*last);
    }
}

pub fn hyperperiod(tasks: &[Task]) -> u64 {
    fn divisor(one: u64, other: u64) -> u64 {
        if other == 0 { one } else { divisor(other, one % other) }
    }
    tasks.iter().map(Task::period_ns).fold(1, |all, period| all / divisor(all, period) * period)
}
