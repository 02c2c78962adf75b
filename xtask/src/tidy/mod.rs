//! The rules of the house that no compiler knows. Each rule is a function from a tree of files to
//! violations, so that its test can make up a small tree that breaks it.

mod circles;
mod columns;
mod constants;
mod contents;
mod decisions;
mod dependencies;
mod guarantees;
mod links;
mod specification;
mod tokens;
mod tree;
mod words;

pub use guarantees::{Ran, ran_file};
use std::fmt;
use std::path::{Path, PathBuf};
pub use tokens::OTHER_PROCESS;
use tree::Tree;

/// A file longer than this holds more than one idea.
const MAX_FILE_LINES: usize = 800;

/// One thing to mend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Where, relative to the root of the repository.
    pub file: PathBuf,
    /// Counted from 1; 0 where the whole file is meant.
    pub line: usize,
    /// The fault.
    pub what: String,
    /// Why that is a rule.
    pub why: &'static str,
    /// The remedy.
    pub mend: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}\n    why:  {}", self.file.display(), self.line.max(1), self.what, self.why)?;
        write!(f, "\n    mend: {}", self.mend)
    }
}

/// Why the rules could not be checked at all.
#[derive(Debug, thiserror::Error)]
pub enum TidyError {
    /// A file or folder can't be read.
    #[error("can't read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The packages can't be listed.
    #[error("`cargo metadata` failed: {0}")]
    Metadata(#[from] cargo_metadata::Error),
}

/// Checks every rule on the repository at `root`.
///
/// # Errors
/// Where files can't be read or cargo can't list the packages.
pub fn check_repository(root: &Path) -> Result<Vec<Violation>, TidyError> {
    let tree = Tree::read(root)?;
    let mut violations = dependencies::check(&dependencies::packages(root)?);
    violations.extend(check_files(&tree));
    violations.extend(guarantees::check_ran(&tree, root, &crate::target(root).join("test-logs")));
    Ok(violations)
}

/// The tests that guarantees name and that did not run, in words.
///
/// # Errors
/// Where files can't be read.
pub fn proofs_that_did_not_run(root: &Path, ran: &Ran, long: bool) -> Result<Vec<String>, TidyError> {
    Ok(guarantees::not_run(&Tree::read(root)?, ran, long).into_iter().map(|(_, what)| what).collect())
}

/// Checks every rule that needs nothing but the files.
fn check_files(tree: &Tree) -> Vec<Violation> {
    [
        dependencies::check_lints as fn(&Tree) -> Vec<Violation>,
        circles::check,
        columns::check,
        tokens::check,
        specification::check,
        decisions::check,
        contents::check,
        guarantees::check,
        links::check,
        words::check,
        check_sizes,
    ]
    .into_iter()
    .flat_map(|rule| rule(tree))
    .collect()
}

fn check_sizes(tree: &Tree) -> Vec<Violation> {
    tree.with_extension("rs")
        .filter_map(|(file, text)| {
            let lines = text.lines().count();
            (lines > MAX_FILE_LINES).then(|| Violation {
                file: file.to_path_buf(),
                line: MAX_FILE_LINES + 1,
                what: format!("{lines} lines in one file"),
                why: "a file holds one idea and is read in one sitting",
                mend: format!("split it; {MAX_FILE_LINES} lines are the most, tests included"),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_801_lines_is_too_long_and_one_of_800_is_not() {
        let tree =
            Tree::made_up(&[("a/src/long.rs", &"\n".repeat(801)), ("a/src/fine.rs", &"\n".repeat(800))]);
        let found = check_sizes(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].file, Path::new("a/src/long.rs"));
    }

    #[test]
    fn this_repository_is_tidy_in_its_own_room() {
        let room = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tree = Tree::read(room).expect("xtask's own files can be read");
        assert_eq!(tokens::check(&tree), []);
        assert_eq!(check_sizes(&tree), []);
    }

    #[test]
    fn a_violation_says_where_what_why_and_how_to_mend() {
        let violation = Violation {
            file: "a.rs".into(),
            line: 3,
            what: "this".into(),
            why: "because",
            mend: "do that".into(),
        };
        assert_eq!(violation.to_string(), "a.rs:3: this\n    why:  because\n    mend: do that");
    }
}
