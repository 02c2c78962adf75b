//! Each guarantee of `docs/guarantees.md` and each attack of `docs/siege.md` names a test that is there, or is marked `unproven`.

use super::Violation;
use super::tree::Tree;
use std::path::Path;

/// The pages, and the letter that the numbers of their rows begin with.
const PAGES: [(&str, char); 2] = [("docs/guarantees.md", 'G'), ("docs/siege.md", 'A')];
const WHY: &str = "a guarantee is worth what shows it";

/// Checks the rows `| G1 | words | shown by |`; a test is written `` `path/to/file.rs::name_of_the_test` ``.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let pages = PAGES.iter().filter_map(|page| Some((page, tree.text(page.0)?)));
    let rows = pages.flat_map(|(page, text)| text.lines().enumerate().map(move |row| (page, row)));
    rows.flat_map(|((page, letter), (number, line))| check_row(tree, (page, number + 1), *letter, line))
        .collect()
}

fn check_row(tree: &Tree, at: (&str, usize), letter: char, text: &str) -> Vec<Violation> {
    let cells: Vec<&str> = text.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [number, _, shown, ..] = cells.as_slice() else { return Vec::new() };
    if !number
        .strip_prefix(letter)
        .is_some_and(|digits| !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()))
    {
        return Vec::new();
    }
    let tests: Vec<&str> = shown.split('`').skip(1).step_by(2).filter(|span| span.contains("::")).collect();
    if tests.is_empty() && !shown.contains("unproven") {
        return vec![violation(
            at,
            format!("{number} names no test"),
            "name one, or write `unproven` and why".into(),
        )];
    }
    let gone = tests.iter().filter(|test| !exists(tree, test));
    gone.map(|test| {
        violation(at, format!("the test {test} is not there"), "name the test that shows it now".into())
    })
    .collect()
}

fn exists(tree: &Tree, test: &str) -> bool {
    let Some((file, name)) = test.rsplit_once("::") else { return false };
    tree.text(file).is_some_and(|text| text.contains(&format!("fn {name}(")))
}

fn violation((page, line): (&str, usize), what: String, mend: String) -> Violation {
    Violation { file: Path::new(page).to_path_buf(), line, what, why: WHY, mend }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guarantee_names_a_test_that_is_there_or_says_that_it_is_unproven() {
        let page = "| no | guarantee | shown by |\n| --- | --- | --- |\n\
                    | G1 | a | `e2e/tests/a.rs::it_holds` |\n\
                    | G2 | b | unproven: no machine for it |\n\
                    | G3 | c | `e2e/tests/a.rs::it_is_gone` |\n\
                    | G4 | d | believe us |\n";
        let tree = Tree::made_up(&[
            (PAGES[0].0, page),
            (PAGES[1].0, "| A1 | a | `e2e/tests/a.rs::it_went` |\n"),
            ("e2e/tests/a.rs", "#[test]\nfn it_holds() {}\n"),
        ]);
        let found: Vec<(usize, String)> =
            check(&tree).into_iter().map(|found| (found.line, found.what)).collect();
        assert_eq!(
            found,
            [
                (5, "the test e2e/tests/a.rs::it_is_gone is not there".to_owned()),
                (6, "G4 names no test".to_owned()),
                (1, "the test e2e/tests/a.rs::it_went is not there".to_owned()),
            ]
        );
    }
}
