//! The width of what people read: comments and pages fit into 100 columns. Code is the formatter's.

use super::{Tree, Violation};
use std::path::Path;

/// Columns of a line at the most.
const MAX_COLUMNS: usize = 100;

/// Comments and pages are no wider than that, but for what can't be broken: tables, examples,
/// headings, and addresses.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let comments = tree.with_extension("rs").flat_map(|(file, text)| {
        let comment = |line: &'_ str| {
            let line = line.trim_start();
            ["///", "//!", "//"].into_iter().find_map(|mark| line.strip_prefix(mark)).map(str::to_owned)
        };
        too_wide(file, text, comment)
    });
    let pages =
        tree.with_extension("md").flat_map(|(file, text)| too_wide(file, text, |line| Some(line.to_owned())));
    comments.chain(pages).collect()
}

fn too_wide(file: &Path, text: &str, words: impl Fn(&str) -> Option<String>) -> Vec<Violation> {
    let mut example = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(words) = words(line) else {
            example = false;
            continue;
        };
        let words = words.trim();
        example ^= words.starts_with("```");
        let columns = line.chars().count();
        if columns > MAX_COLUMNS && !example && can_be_broken(words) {
            found.push(Violation {
                file: file.to_path_buf(),
                line: index + 1,
                what: format!("a line of {columns} columns"),
                why: "what is read beside code, in a terminal or in two columns, has to fit there",
                mend: format!("break it: {MAX_COLUMNS} columns are the most"),
            });
        }
    }
    found
}

/// Whether a line is prose that goes on as well in the next one.
fn can_be_broken(words: &str) -> bool {
    let fixed = words.starts_with(['|', '#']) || (words.starts_with('[') && words.contains("]: "));
    // Columns of an example, or one long word.
    !fixed && !words.contains("  ") && words.contains(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_that_is_too_wide_is_found_and_tables_examples_and_code_are_not() {
        let wide = "word ".repeat(30);
        let wide = wide.trim_end();
        let code = format!(
            "let text = \"{wide}\";\n/// {wide}\n/// | {wide} |\n// short\n// ```\n// {wide}\n// ```\n//! {wide}\n"
        );
        let page = format!("{wide}\n\n| {wide} |\n# {wide}\n```\n{wide}\n```\n{wide}\n");
        let found = check(&Tree::made_up(&[("a/src/lib.rs", &code), ("docs/a.md", &page)]));
        let lines: Vec<_> = found.iter().map(|violation| (violation.file.to_str(), violation.line)).collect();
        assert_eq!(
            lines,
            [
                (Some("a/src/lib.rs"), 2),
                (Some("a/src/lib.rs"), 8),
                (Some("docs/a.md"), 1),
                (Some("docs/a.md"), 8)
            ]
        );
    }
}
