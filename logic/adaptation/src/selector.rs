//! Judging figures: two thresholds with a gap between them, each for some samples in a row.

use crate::feedback::Feedback;
use crate::figure::Figure;
use serde::{Deserialize, Serialize};

/// How much longer the calm has to last at most, before less is given again, where giving less was
/// a mistake before: 64 times.
pub const BACKOFF_MAX: u32 = 64;

/// A side of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Threshold {
    /// Figures above this one.
    Above(Figure),
    /// Figures below this one.
    Below(Figure),
}

impl Threshold {
    /// Whether a figure is there.
    #[must_use]
    pub fn holds(&self, figure: Figure) -> bool {
        match self {
            Self::Above(bound) => figure > *bound,
            Self::Below(bound) => figure < *bound,
        }
    }
}

impl std::fmt::Display for Threshold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Above(bound) => write!(f, "above {bound}"),
            Self::Below(bound) => write!(f, "below {bound}"),
        }
    }
}

/// The rule that decides whether more or less is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Selector {
    /// Two thresholds; one step at a time.
    Rules {
        /// Where more is needed.
        more: Threshold,
        /// For how many samples in a row it has to be so.
        more_samples: u32,
        /// Where less would do.
        less: Threshold,
        /// For how many samples in a row it has to be so.
        less_samples: u32,
    },
    /// The controller: the budget follows the share of work that is missed.
    Feedback(Feedback),
}

/// Why two rules can't stand together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// One figure would need more and less at once.
    #[error("the rules contradict each other: a figure of {0} would mean both more and less")]
    Contradiction(Figure),
    /// There is nothing between the two.
    #[error(
        "there is no gap between the rules: what is not `more` would be `less`, and the budget would never rest"
    )]
    NoGap,
    /// Both look to the same side.
    #[error("both rules are about figures {0}: one of them never matters")]
    SameSide(&'static str),
}

impl Selector {
    /// Looks at whether the rules can stand together.
    ///
    /// # Errors
    /// How they contradict each other.
    pub fn check(&self) -> Result<(), SelectorError> {
        let Self::Rules { more, less, .. } = self else { return Ok(()) };
        let (high, low) = match (more, less) {
            (Threshold::Above(high), Threshold::Below(low))
            | (Threshold::Below(low), Threshold::Above(high)) => (*high, *low),
            (Threshold::Above(_), Threshold::Above(_)) => return Err(SelectorError::SameSide("above")),
            (Threshold::Below(_), Threshold::Below(_)) => return Err(SelectorError::SameSide("below")),
        };
        // Figures above `high` and below `low` at once are whole thousandths between the two.
        if low.0 > high.0.saturating_add(1) {
            return Err(SelectorError::Contradiction(Figure(high.0 + 1)));
        }
        if low >= high { Err(SelectorError::NoGap) } else { Ok(()) }
    }

    /// Whether a figure means that more is needed.
    #[must_use]
    pub fn is_bad(&self, figure: Figure) -> bool {
        match self {
            Self::Rules { more, .. } => more.holds(figure),
            Self::Feedback(feedback) => figure > feedback.target,
        }
    }

    /// For how many samples in a row less has to do.
    #[must_use]
    pub fn calm_samples(&self) -> u32 {
        match self {
            Self::Rules { less_samples, .. } => *less_samples,
            Self::Feedback(feedback) => feedback.calm_samples,
        }
    }
}

/// The meaning of the last figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// More is needed.
    More,
    /// Neither.
    Enough,
    /// Less would do.
    Less,
}

/// How long the figures have been to one side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Streaks {
    bad: u32,
    calm: u32,
    /// By what the calm is lengthened: doubled whenever giving less was followed by a need for
    /// more.
    backoff: u32,
    gave: bool,
}

impl Streaks {
    /// Takes one figure.
    pub(crate) fn judge(&mut self, selector: &Selector, figure: Figure) -> Judgement {
        let is_bad = selector.is_bad(figure);
        let (is_calm, bad_samples) = match selector {
            Selector::Rules { more_samples, less, .. } => (less.holds(figure), *more_samples),
            Selector::Feedback(_) => (!is_bad, 1),
        };
        self.bad = if is_bad { self.bad.saturating_add(1) } else { 0 };
        self.calm = if is_calm { self.calm.saturating_add(1) } else { 0 };
        if self.bad >= bad_samples.max(1) {
            return Judgement::More;
        }
        let calm_samples = selector.calm_samples().max(1).saturating_mul(self.backoff.max(1));
        if self.calm >= calm_samples { Judgement::Less } else { Judgement::Enough }
    }

    /// More was given, or wanted in vain.
    pub(crate) fn gave_more(&mut self) {
        self.bad = 0;
        self.calm = 0;
        if std::mem::take(&mut self.gave) {
            self.backoff = self.backoff.max(1).saturating_mul(2).min(BACKOFF_MAX);
        }
    }

    /// Less was given. That the time before went well shortens the wait again.
    pub(crate) fn gave_less(&mut self) {
        self.bad = 0;
        self.calm = 0;
        if std::mem::replace(&mut self.gave, true) {
            self.backoff = (self.backoff / 2).max(1);
        }
    }

    /// Whether giving less was a mistake lately.
    pub(crate) fn is_wary(&self) -> bool {
        self.backoff > 1
    }

    /// Nothing is known of the figure now.
    pub(crate) fn interrupt(&mut self) {
        self.bad = 0;
        self.calm = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(more: Threshold, less: Threshold) -> Selector {
        Selector::Rules { more, more_samples: 1, less, less_samples: 1 }
    }

    #[test]
    fn rules_that_contradict_each_other_are_refused() {
        use Threshold::{Above, Below};
        let whole = Figure::whole;
        assert_eq!(rules(Above(whole(5)), Below(whole(1))).check(), Ok(()));
        assert_eq!(rules(Below(whole(20)), Above(whole(24))).check(), Ok(()));
        let contradiction = Err(SelectorError::Contradiction(Figure(1_001)));
        assert_eq!(rules(Above(whole(1)), Below(whole(5))).check(), contradiction);
        assert_eq!(rules(Below(whole(5)), Above(whole(1))).check(), contradiction);
        assert_eq!(rules(Above(whole(5)), Below(whole(5))).check(), Err(SelectorError::NoGap));
        assert_eq!(rules(Above(whole(5)), Above(whole(1))).check(), Err(SelectorError::SameSide("above")));
        assert_eq!(rules(Below(whole(5)), Below(whole(1))).check(), Err(SelectorError::SameSide("below")));
    }
}
