//! Each page of `docs` stands in `docs/SUMMARY.md`, from which the site is made.

use super::Violation;
use super::tree::Tree;
use std::path::Path;

const CONTENTS: &str = "docs/SUMMARY.md";

/// Checks the pages directly in `docs`; the site finds specifications and decisions by itself.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let listed = tree.text(Path::new(CONTENTS)).unwrap_or_default();
    let pages = tree
        .with_extension("md")
        .filter(|(file, _)| file.parent() == Some(Path::new("docs")) && *file != Path::new(CONTENTS));
    let names = pages.filter_map(|(file, _)| file.file_name()?.to_str());
    names
        .filter(|name| listed.matches(&format!("]({name})")).count() != 1)
        .map(|name| Violation {
            file: CONTENTS.into(),
            line: 0,
            what: format!("{name} does not stand here once"),
            why: "a page that is not in the contents is not found on the site",
            mend: format!("add a line: - [its title]({name})"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_not_in_the_contents_or_twice_are_found() {
        let tree = Tree::made_up(&[
            ("docs/SUMMARY.md", "- [a](a.md)\n- [c](c.md)\n- [c again](c.md)\n"),
            ("docs/a.md", ""),
            ("docs/b.md", ""),
            ("docs/c.md", ""),
            ("docs/spec/d.md", ""),
        ]);
        let found: Vec<String> = check(&tree).into_iter().map(|found| found.what).collect();
        assert_eq!(found, ["b.md does not stand here once", "c.md does not stand here once"]);
    }
}
