//! The words that comments begin with: a sentence about a thing begins with the thing.

use super::{Tree, Violation};

/// Beginnings that name no subject.
const NO_SUBJECT: [&str; 4] = ["What", "Which", "Who", "Whose"];

/// Doc comments name their subject first.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let in_file = |(file, text): (&std::path::Path, &str)| {
        let mut before = None;
        let mut found = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let comment = doc_comment(line);
            let begins = before.is_none_or(str::is_empty);
            let word = comment.and_then(|words| words.split(|c: char| !c.is_alphabetic()).next());
            if let Some(word) = word.filter(|word| begins && NO_SUBJECT.contains(word)) {
                found.push(Violation {
                    file: file.to_path_buf(),
                    line: index + 1,
                    what: format!("a doc comment begins with `{word}`"),
                    why: "a reader looks for the thing that the sentence is about",
                    mend: "begin with the name of the thing: `The bytes that ...`".to_owned(),
                });
            }
            before = comment;
        }
        found
    };
    tree.with_extension("rs").flat_map(in_file).collect()
}

/// The words of a doc comment, if the line is one.
fn doc_comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doc_comment_that_names_no_subject_is_found_and_a_line_in_the_middle_of_one_is_not() {
        let text = "/// What it does.\nfn a() {}\n/// Says who\n/// Who does it.\nfn b() {}\n/// First.\n///\n/// Which\n//! Whatever.\n";
        let found = check(&Tree::made_up(&[("a/src/lib.rs", text)]));
        let lines: Vec<_> = found.iter().map(|violation| violation.line).collect();
        assert_eq!(lines, [1, 8]);
    }
}
