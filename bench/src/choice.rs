//! The choice of a scenario's conditions and arms.

use crate::results::Condition;
use crate::scenario::BenchError;

/// A person's choice; nothing: all there is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Words of conditions: `stream`, `message=64 B`. One takes part that has all words of one of
    /// these.
    pub cases: Vec<String>,
    /// Names of arms, as the tables have them.
    pub arms: Vec<String>,
}

impl Choice {
    /// Whether it is all there is.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.cases.is_empty() && self.arms.is_empty()
    }

    /// Whether this condition takes part.
    #[must_use]
    pub fn takes(&self, condition: &Condition) -> bool {
        let has = |word: &str| match word.split_once('=') {
            Some((name, value)) => condition.0.iter().any(|had| (had.0, had.1.as_str()) == (name, value)),
            None => condition.0.iter().any(|(_, value)| value == word),
        };
        let all = |words: &String| words.split(',').map(str::trim).all(has);
        self.cases.is_empty() || self.cases.iter().any(all)
    }

    /// Whether this arm takes part.
    #[must_use]
    pub fn takes_arm(&self, arm: &str) -> bool {
        self.arms.is_empty() || self.arms.iter().any(|chosen| chosen == arm)
    }

    /// Looks whether all that was chosen is there, among conditions and the arms of each.
    ///
    /// # Errors
    /// [`BenchError::Choice`], with all there is.
    pub fn check(&self, all: &[(Condition, Vec<&'static str>)]) -> Result<(), BenchError> {
        for words in &self.cases {
            let only = Self { cases: vec![words.clone()], arms: Vec::new() };
            if !all.iter().any(|(condition, _)| only.takes(condition)) {
                let known = all.iter().map(|(condition, _)| words_of(condition)).collect();
                return Err(BenchError::Choice { what: "case", asked: words.clone(), known: list(known) });
            }
        }
        for arm in &self.arms {
            let taken = all.iter().filter(|(condition, _)| self.takes(condition));
            let known: Vec<String> =
                taken.flat_map(|(_, arms)| arms.iter().map(|arm| (*arm).into())).collect();
            if !known.contains(arm) {
                return Err(BenchError::Choice { what: "arm", asked: arm.clone(), known: list(known) });
            }
        }
        Ok(())
    }
}

/// As `--case` takes it.
fn words_of(condition: &Condition) -> String {
    let words: Vec<String> = condition.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
    words.join(",")
}

/// One in a line, each once, as they came.
fn list(names: Vec<String>) -> String {
    let mut seen: Vec<String> = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen.iter().map(|name| format!("\n  {name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions() -> Vec<(Condition, Vec<&'static str>)> {
        let condition = |work: &str, message: &str| {
            Condition(vec![("work", work.to_owned()), ("message", message.to_owned())])
        };
        vec![
            (condition("stream", "64 B"), vec!["link", "tcp"]),
            (condition("stream", "1 KiB"), vec!["link"]),
            (condition("round trip", "64 B"), vec!["link", "udp"]),
        ]
    }

    fn taken(cases: &[&str]) -> Vec<usize> {
        let choice = Choice { cases: cases.iter().map(|&case| case.into()).collect(), arms: Vec::new() };
        let all = conditions();
        (0..all.len()).filter(|&index| choice.takes(&all[index].0)).collect()
    }

    #[test]
    fn words_choose_the_conditions_that_have_all_of_them() {
        assert_eq!(taken(&[]), [0, 1, 2]);
        assert_eq!(taken(&["stream"]), [0, 1]);
        assert_eq!(taken(&["stream, message=64 B"]), [0]);
        assert_eq!(taken(&["stream,1 KiB", "round trip"]), [1, 2]);
        assert_eq!(taken(&["message=stream"]), [0_usize; 0]);
    }

    #[test]
    fn what_there_is_not_is_refused_with_what_there_is() {
        let check = |cases: &[&str], arms: &[&str]| {
            let own = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
            let choice = Choice { cases: own(cases), arms: own(arms) };
            choice.check(&conditions()).map_err(|error| error.to_string())
        };
        assert_eq!(check(&["stream"], &["tcp", "link"]), Ok(()));
        let said = check(&["streams"], &[]).expect_err("there is none");
        assert!(said.contains("`streams`") && said.contains("\n  work=round trip,message=64 B"), "{said}");
        // One that is there, but not in what was chosen.
        let said = check(&["stream"], &["udp"]).expect_err("not there");
        assert!(said.contains("`udp`") && said.ends_with("\n  link\n  tcp"), "{said}");
    }
}
