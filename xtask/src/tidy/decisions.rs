//! Each decision (`docs/adr/NNNN-*.md`) stands in the index `docs/adr/README.md`, under a number of
//! its own.

use super::Violation;
use super::tree::Tree;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const FOLDER: &str = "docs/adr";
const WHY: &str = "the index is how a decision is found again";

/// Checks the folder of decisions.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let index = Path::new(FOLDER).join("README.md");
    let listed = tree.text(&index).unwrap_or_default();
    let mut numbers: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut violations = Vec::new();
    for (file, name) in decisions(tree) {
        if !listed.contains(&format!("]({name})")) {
            let what = format!("the index does not list {name}");
            violations.push(violation(&index, what, format!("add a row that links to [{name}]({name})")));
        }
        let number: String = name.chars().take_while(char::is_ascii_digit).collect();
        if number.len() != 4 {
            violations.push(violation(
                &file,
                "the name does not begin with a number of four digits".into(),
                "call it NNNN-words.md".into(),
            ));
        } else if let Some(other) = numbers.insert(number, file.clone()) {
            let what = format!("it has the number of {}", other.display());
            violations.push(violation(&file, what, "give it the next free number".into()));
        }
    }
    violations
}

fn decisions(tree: &Tree) -> impl Iterator<Item = (PathBuf, String)> {
    tree.with_extension("md")
        .filter(|(file, _)| file.parent() == Some(Path::new(FOLDER)) && !file.ends_with("README.md"))
        .filter_map(|(file, _)| Some((file.to_path_buf(), file.file_name()?.to_str()?.to_owned())))
}

fn violation(file: &Path, what: String, mend: String) -> Violation {
    Violation { file: file.to_path_buf(), line: 0, what, why: WHY, mend }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_listed_numbered_and_numbered_once() {
        let tree = Tree::made_up(&[
            ("docs/adr/README.md", "| [0001](0001-channel.md) | [x](words.md) | [0002](0002-b.md)"),
            ("docs/adr/0001-channel.md", ""),
            ("docs/adr/0001-other.md", ""),
            ("docs/adr/0002-b.md", ""),
            ("docs/adr/words.md", ""),
        ]);
        let found: Vec<String> = check(&tree).into_iter().map(|found| found.what).collect();
        assert_eq!(
            found,
            [
                "the index does not list 0001-other.md",
                "it has the number of docs/adr/0001-channel.md",
                "the name does not begin with a number of four digits",
            ]
        );
    }
}
