//! The advice to somebody who named something that is not there.

/// A word that is at most so different is offered as what was meant.
const MAX_TYPOS: usize = 3;

/// Returns the name that was probably meant, or all there are.
pub(crate) fn meant(word: &str, names: &[String], what: &str) -> String {
    let nearest = names.iter().map(|name| (strsim::damerau_levenshtein(word, name), name)).min();
    match nearest {
        Some((distance, name)) if distance <= MAX_TYPOS.min(name.len() / 2 + 1) => {
            format!("did you mean {name:?}?")
        }
        Some(_) => format!("the {what} are: {}", names.join(", ")),
        None => format!("there are no {what}"),
    }
}
