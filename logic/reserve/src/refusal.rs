//! A refusal that explains itself: who would miss, by how much, and the smallest change that would
//! pass.

use crate::fixed_priority::Response;
use crate::task::Policy;
use std::fmt;

/// A task that would miss its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Miss {
    /// Index among the tasks.
    pub who: usize,
    /// How long it would take, from the beginning of its period.
    pub response: Response,
    /// How long it may take, in ns.
    pub deadline_ns: u64,
    /// Under earliest deadline first: the shortest time, in ns, in which more work falls due, and
    /// that work, in ns.
    pub overload: Option<(u64, u64)>,
}

/// A change of one task that would let all pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remedy {
    /// Index among the tasks.
    pub who: usize,
    /// The change.
    pub change: Change,
}

/// A change that would help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A smaller budget: the greatest that passes.
    Budget {
        /// The time that was asked for, in ns.
        from_ns: u64,
        /// The time that would pass, in ns.
        to_ns: u64,
    },
    /// A longer period: the shortest that passes.
    Period {
        /// The time that was asked for, in ns.
        from_ns: u64,
        /// The time that would pass, in ns.
        to_ns: u64,
    },
}

/// Why a set of tasks is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Under which policy.
    pub policy: Policy,
    /// The task that would miss first.
    pub miss: Miss,
    /// Of whom a smaller budget (and on a whole processor a longer period) was sought that would
    /// help, if that was.
    pub sought: Option<usize>,
    /// The changes that would help, of those that were sought.
    pub remedies: Vec<Remedy>,
}

impl Refusal {
    /// The refusal in words, with a name for each index.
    pub fn told<'a, N: fmt::Display>(&'a self, name: impl Fn(usize) -> N + 'a) -> impl fmt::Display + 'a {
        fmt::from_fn(move |f| self.tell(f, &name))
    }

    /// By how much the budget would have to be smaller, in ns, where a smaller one would pass.
    pub fn smallest_cut_ns(&self) -> Option<u64> {
        self.remedies.iter().find_map(|remedy| match remedy.change {
            Change::Budget { from_ns, to_ns } => Some(from_ns - to_ns),
            Change::Period { .. } => None,
        })
    }

    /// The same with the indices of a greater set: index `n` becomes `indices[n]`.
    pub(crate) fn renamed(mut self, indices: &[usize]) -> Self {
        let renamed = |who: usize| indices.get(who).copied().unwrap_or(who);
        self.miss.who = renamed(self.miss.who);
        self.sought = self.sought.map(renamed);
        for remedy in &mut self.remedies {
            remedy.who = renamed(remedy.who);
        }
        self
    }

    fn tell<N: fmt::Display>(&self, f: &mut fmt::Formatter<'_>, name: &impl Fn(usize) -> N) -> fmt::Result {
        let Miss { who, response, deadline_ns, overload } = self.miss;
        let deadline = Span(deadline_ns);
        match response {
            Response::Within(ns) => write!(f, "{} would take {} of its {deadline}", name(who), Span(ns))?,
            Response::Over(ns) => write!(f, "{} would take more than its {}", name(who), Span(ns))?,
            Response::Unbounded => write!(f, "{} would fall behind its {deadline} more and more", name(who))?,
        }
        write!(f, " ({})", self.policy)?;
        if let Some((within, work)) = overload {
            write!(f, ": in {} at worst, {} of work fall due", Span(within), Span(work))?;
        }
        tell_remedies(f, &self.remedies, self.sought, name)
    }
}

/// Adds the changes that would help to the words on what does not pass; `sought`: the tasks for
/// which they were looked for.
pub(crate) fn tell_remedies<N: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    remedies: &[Remedy],
    sought: Option<usize>,
    name: &impl Fn(usize) -> N,
) -> fmt::Result {
    for (number, remedy) in remedies.iter().enumerate() {
        let lead = if number == 0 { "; it would pass" } else { ", or" };
        let (what, to, from) = match remedy.change {
            Change::Budget { from_ns, to_ns } => ("a budget", to_ns, from_ns),
            Change::Period { from_ns, to_ns } => ("a period", to_ns, from_ns),
        };
        let whose = name(remedy.who);
        write!(f, "{lead} with {what} of {} for {whose} instead of {}", Span(to), Span(from))?;
    }
    match sought.filter(|_| remedies.is_empty()) {
        Some(who) => write!(f, "; nothing that {} could give up would help", name(who)),
        None => Ok(()),
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tell(f, &|index| format!("reservation {}", index + 1))
    }
}

/// A time in the unit that suits it, without losing a nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name, digits) = match self.0 {
            0..1_000 => return write!(f, "{} ns", self.0),
            1_000..1_000_000 => (1_000, "us", 3),
            1_000_000..1_000_000_000 => (1_000_000, "ms", 6),
            _ => (1_000_000_000, "s", 9),
        };
        write!(f, "{}", self.0 / unit)?;
        let rest = format!("{:0digits$}", self.0 % unit);
        let rest = rest.trim_end_matches('0');
        if !rest.is_empty() {
            write!(f, ".{rest}")?;
        }
        write!(f, " {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_takes_its_unit_and_loses_nothing() {
        let shown = |ns: u64| Span(ns).to_string();
        assert_eq!(shown(0), "0 ns");
        assert_eq!(shown(999), "999 ns");
        assert_eq!(shown(5_680_000), "5.68 ms");
        assert_eq!(shown(40_000_001), "40.000001 ms");
        assert_eq!(shown(1_000), "1 us");
        assert_eq!(shown(3_600_000_000_000), "3600 s");
    }
}
