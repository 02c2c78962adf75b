//! Promises: numbered figures with a goal. `docs/performance.md` lists the same ids, and a test
//! compares.

use crate::statistics::Estimate;
use serde::Serialize;

/// On which side of the goal the value has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Relation {
    /// At most the goal.
    #[serde(rename = "<=")]
    AtMost,
    /// At least the goal.
    #[serde(rename = ">=")]
    AtLeast,
}

impl Relation {
    /// Its sign.
    #[must_use]
    pub fn sign(self) -> &'static str {
        match self {
            Self::AtMost => "<=",
            Self::AtLeast => ">=",
        }
    }

    /// Whether `value` stands in this relation to `goal`.
    #[must_use]
    pub fn holds(self, value: f64, goal: f64) -> bool {
        match self {
            Self::AtMost => value <= goal,
            Self::AtLeast => value >= goal,
        }
    }
}

/// One promise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Promise {
    /// Its id, for good: `directory.memory.domain`.
    pub id: &'static str,
    /// The measured quantity, in words.
    pub about: &'static str,
    /// Unit of value and goal; `x` for a ratio.
    pub unit: &'static str,
    /// On which side of the goal.
    pub relation: Relation,
    /// The goal.
    pub goal: f64,
}

/// The word of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    /// The whole interval reaches the goal.
    Holds,
    /// None of it does.
    Fails,
    /// The goal lies within the interval: more launches would tell.
    Undecided,
}

impl Word {
    /// The verdict on a goal that an estimate allows.
    #[must_use]
    pub fn of(relation: Relation, estimate: Estimate, goal: f64) -> Self {
        match (relation.holds(estimate.low, goal), relation.holds(estimate.high, goal)) {
            (true, true) => Self::Holds,
            (false, false) => Self::Fails,
            _ => Self::Undecided,
        }
    }
}

/// The verdict on a promise. Its JSON is the line that `--json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The promise's id.
    pub promise: &'static str,
    /// The median over launches.
    pub value: f64,
    /// Unit of value, goal and interval.
    pub unit: &'static str,
    /// On which side of the goal it has to be.
    pub relation: Relation,
    /// The goal.
    pub goal: f64,
    /// Whether the value reaches the goal.
    pub holds: bool,
    /// The verdict that the launches allow.
    pub verdict: Word,
    /// 95 % confidence interval over launches.
    pub ci: [f64; 2],
    /// Launches behind it.
    pub launches: usize,
    /// Single measurements behind it, over all launches and arms.
    pub samples: u64,
}

impl Promise {
    /// Judges what was measured.
    #[must_use]
    pub fn judge(&self, estimate: Estimate, samples: u64) -> Verdict {
        Verdict {
            promise: self.id,
            value: rounded(estimate.value),
            unit: self.unit,
            relation: self.relation,
            goal: self.goal,
            holds: self.relation.holds(estimate.value, self.goal),
            verdict: Word::of(self.relation, estimate, self.goal),
            ci: [rounded(estimate.low), rounded(estimate.high)],
            launches: estimate.launches,
            samples,
        }
    }
}

/// To six digits behind the point: more is noise, and fewer would not tell a goal of a thousandth
/// from nothing.
fn rounded(value: f64) -> f64 {
    (value * 1_000_000.0).round() / 1_000_000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const RATIO: Promise =
        Promise { id: "a.b", about: "words", unit: "x", relation: Relation::AtMost, goal: 1.0 };

    #[test]
    fn a_verdict_is_one_line_of_json_with_the_agreed_names() {
        let estimate = Estimate { value: 0.900_000_01, low: 0.8, high: 1.1, launches: 5 };
        let line = serde_json::to_string(&RATIO.judge(estimate, 1_000)).expect("JSON");
        assert_eq!(
            line,
            r#"{"promise":"a.b","value":0.9,"unit":"x","relation":"<=","goal":1.0,"holds":true,"verdict":"undecided","ci":[0.8,1.1],"launches":5,"samples":1000}"#
        );
    }

    #[test]
    fn both_relations_include_the_goal() {
        assert!(Relation::AtMost.holds(1.0, 1.0) && !Relation::AtMost.holds(1.1, 1.0));
        assert!(Relation::AtLeast.holds(1.0, 1.0) && !Relation::AtLeast.holds(0.9, 1.0));
    }

    #[test]
    fn an_interval_across_the_goal_decides_nothing() {
        let word =
            |low, high| Word::of(Relation::AtMost, Estimate { value: 0.9, low, high, launches: 5 }, 1.0);
        assert_eq!(
            (word(0.8, 1.0), word(0.8, 1.1), word(1.1, 1.2)),
            (Word::Holds, Word::Undecided, Word::Fails)
        );
        let least =
            |low, high| Word::of(Relation::AtLeast, Estimate { value: 1.0, low, high, launches: 5 }, 1.0);
        assert_eq!(
            (least(1.0, 2.0), least(0.9, 2.0), least(0.8, 0.9)),
            (Word::Holds, Word::Undecided, Word::Fails)
        );
    }

    /// Ids in the first cell of the rows `| `id` | ... |` of the page.
    fn ids_of_the_page(page: &str) -> BTreeSet<&str> {
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        rows.map(|(id, _)| id).filter(|id| id.contains('.') && !id.contains(' ')).collect()
    }

    #[test]
    fn the_page_lists_exactly_the_promises_that_the_scenarios_make() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance.md");
        let page = std::fs::read_to_string(path).expect("docs/performance.md is there");
        let promised: BTreeSet<&str> = crate::scenarios()
            .iter()
            .flat_map(|scenario| scenario.promises())
            .map(|promise| promise.id)
            .collect();
        assert_eq!(ids_of_the_page(&page), promised);
    }

    #[test]
    fn the_page_states_the_goals_that_the_code_judges_by() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance.md");
        let page = std::fs::read_to_string(path).expect("docs/performance.md is there");
        for promise in crate::scenarios().iter().flat_map(|scenario| scenario.promises()) {
            let row = page
                .lines()
                .find(|line| line.starts_with(&format!("| `{}` |", promise.id)))
                .expect("its row");
            let goal = format!("| {} {} {} |", promise.relation.sign(), promise.goal, promise.unit);
            assert!(row.contains(&goal), "the row of {} does not say {goal}", promise.id);
        }
    }
}
