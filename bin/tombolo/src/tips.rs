//! Advice of the argument parser for a mistyped command. By itself it offers whatever begins alike
//! (`completions` for `cp`), which sends people astray: here a word is offered if it differs by a
//! slip of the hand, or if it is the word that other tools have for it.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// The word of others, and its meaning here.
const ELSEWHERE: [(&[&str], &str); 10] = [
    (&["apply", "create", "deploy"], "up"),
    (&["delete", "destroy", "rm", "remove"], "down"),
    (&["list", "ls", "status"], "ps"),
    (&["attach", "enter", "run", "shell", "ssh"], "exec"),
    (&["copy"], "cp"),
    (&["describe", "show"], "inspect"),
    (&["diff", "plan"], "up --dry-run"),
    (&["config", "lint", "validate"], "check"),
    (&["signal"], "kill"),
    (&["monitor", "usage"], "stats"),
];
/// Of so many letters one may be wrong.
const LETTERS_A_SLIP: usize = 3;

/// Leaves of the parser's advice on an unknown command what helps, and adds what it does not know.
/// `first`: the first word that was typed.
pub fn sharpen(error: &mut Error, first: Option<&str>) {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand).cloned() else { return };
    let offered = match error.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(offered)) => offered,
        Some(ContextValue::String(offered)) => vec![offered],
        _ => Vec::new(),
    };
    let mut offered: Vec<String> = offered.into_iter().filter(|offered| is_slip(&word, offered)).collect();
    let known = ELSEWHERE.iter().find(|(words, _)| words.contains(&word.as_str()));
    if let Some((_, here)) = known
        && first == Some(word.as_str())
    {
        offered = vec![(*here).to_owned()];
    }
    // Advice that the parser derives from what it offered goes with it.
    error.remove(ContextKind::Suggested);
    if !offered.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(offered));
    }
}

/// The command as it was typed: the first word that is no option, nor an option's value.
pub fn first_word(mut words: impl Iterator<Item = String>) -> Option<String> {
    loop {
        let word = words.next()?;
        if matches!(word.as_str(), "--run-dir" | "--state-dir") {
            words.next()?;
        } else if !word.starts_with('-') {
            return Some(word);
        }
    }
}

fn is_slip(word: &str, meant: &str) -> bool {
    let slips = word.chars().count().max(meant.chars().count()).div_ceil(LETTERS_A_SLIP).min(2);
    strsim::damerau_levenshtein(word, meant) <= slips
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;

    fn said(words: &[&str]) -> String {
        let mut error =
            Cli::try_parse_from(std::iter::once(&"tombolo").chain(words)).expect_err("it is refused");
        sharpen(&mut error, words.first().copied());
        error.to_string()
    }

    #[test]
    fn the_command_is_found_behind_options() {
        let first = |line: &str| first_word(line.split(' ').map(str::to_owned));
        assert_eq!(first("--run-dir /r --state-dir=/s rm x").as_deref(), Some("rm"));
        assert_eq!(first("--help"), None);
    }

    #[test]
    fn slips_are_met_by_what_was_meant_and_other_words_by_nothing_misleading() {
        for (typed, meant) in
            [("pss", "'ps'"), ("inspec", "'inspect'"), ("rm", "'down'"), ("usage", "'stats'")]
        {
            let said = said(&[typed]);
            assert!(said.contains(meant), "{typed}: {said}");
        }
        for typed in ["cpx-files", "resurrect", "compose", "images-list"] {
            let said = said(&[typed]);
            assert!(said.contains(typed) && !said.contains("similar"), "{typed}: {said}");
        }
        assert!(said(&["node", "lss"]).contains("'ls'"));
        assert!(!said(&["node", "rm"]).contains("'down'"), "another level has words of its own");
    }
}
