//! Each guarantee of `docs/guarantees.md` and each attack of `docs/siege.md` names a test that is
//! there, or is marked `unproven`.

use super::Violation;
use super::tree::Tree;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const GUARANTEES: &str = "docs/guarantees.md";
/// The pages, and the letter that the numbers of their rows begin with.
const PAGES: [(&str, char); 2] = [(GUARANTEES, 'G'), ("docs/siege.md", 'A')];
const WHY: &str = "a guarantee is worth what shows it";

/// Checks the rows `| G1 | words | shown by |`; a test is written ``
/// `path/to/file.rs::name_of_the_test` ``.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let pages = PAGES.iter().filter_map(|page| Some((page, tree.text(page.0)?)));
    let rows = pages.flat_map(|(page, text)| text.lines().enumerate().map(move |row| (page, row)));
    rows.flat_map(|((page, letter), (number, line))| check_row(tree, (page, number + 1), *letter, line))
        .collect()
}

/// The file beside the logs in which the last full run has written what ran.
pub const fn ran_file(long: bool) -> &'static str {
    if long { "ran-long.tsv" } else { "ran.tsv" }
}

/// The tests that guarantees name and that are none of `ran`, by the folders of their packages and
/// their names. `long`: those of the long run, else all others.
pub fn not_run(tree: &Tree, ran: &Ran, long: bool) -> Vec<(usize, String)> {
    let page = tree.text(GUARANTEES).unwrap_or_default();
    let of_row = |(number, line): (usize, &str)| {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let [guarantee, _, shown, ..] = cells.as_slice() else { return Vec::new() };
        let tests = proofs(shown).into_iter().filter(|test| is_long(test) == long && !has_run(ran, test));
        let told =
            |test| (number + 1, format!("{guarantee} names {test}, which did not run in the last full run"));
        tests.map(told).collect()
    };
    page.lines().enumerate().filter(|(_, line)| line.starts_with("| G")).flat_map(of_row).collect()
}

/// Tests that ran, with the folders of their packages.
pub type Ran = BTreeSet<(PathBuf, String)>;

/// Reads what a full run wrote down.
pub fn read_ran(text: &str) -> Ran {
    let line = |line: &str| line.split_once('\t').map(|(folder, test)| (folder.into(), test.to_owned()));
    text.lines().filter_map(line).collect()
}

fn is_long(test: &str) -> bool {
    test.contains("/tests/long/") || test.contains("/tests/long.rs::") || test.starts_with("e2e/xen_bed/")
}

fn has_run(ran: &Ran, test: &str) -> bool {
    let Some((file, name)) = test.rsplit_once("::") else { return false };
    let folders = ran.iter().map(|(folder, _)| folder).filter(|folder| Path::new(file).starts_with(folder));
    let Some(owner) = folders.max_by_key(|folder| folder.components().count()) else { return false };
    let is_it = |ran: &str| ran == name || ran.rsplit("::").next() == Some(name);
    ran.iter().any(|(folder, ran)| folder == owner && is_it(ran))
}

/// The tests of a cell.
fn proofs(shown: &str) -> Vec<&str> {
    shown.split('`').skip(1).step_by(2).filter(|span| span.contains("::")).collect()
}

/// A proof that did not run, as a violation; of a file that is newer than the run it is too early
/// to say.
pub fn check_ran(tree: &Tree, root: &Path, logs: &Path) -> Vec<Violation> {
    let modified = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
    let mut violations = Vec::new();
    for long in [false, true] {
        let file = logs.join(ran_file(long));
        let (Ok(text), Some(then)) = (std::fs::read_to_string(&file), modified(&file)) else { continue };
        let newer = |what: &str| {
            let source = what.split_whitespace().nth(2).and_then(|test| test.split("::").next());
            source.is_none_or(|source| modified(&root.join(source)).is_none_or(|changed| changed > then))
        };
        let not_run = not_run(tree, &read_ran(&text), long).into_iter().filter(|(_, what)| !newer(what));
        violations.extend(not_run.map(|(line, what)| {
            violation((GUARANTEES, line), what, "have it run, or name the test that shows it".into())
        }));
    }
    violations
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
    let tests = proofs(shown);
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

    #[test]
    fn a_proof_has_run_where_its_package_ran_a_test_of_its_name() {
        let page = "| G1 | a | `io/domain/tests/exec.rs::it_ends`, `io/domain/src/init.rs::it_begins` |\n\
                    | G2 | b | `io/tests/exec.rs::it_ends` |\n\
                    | G3 | c | `e2e/tests/long/tipc.rs::frames_go` |\n";
        let tree = Tree::made_up(&[(GUARANTEES, page)]);
        let ran = read_ran("io\tother\nio/domain\tit_ends\nio/domain\ttests::it_begins_late\n");
        let lines = |long| not_run(&tree, &ran, long);
        let (ordinary, long) = (lines(false), lines(true));
        assert_eq!(ordinary.len(), 2, "{ordinary:?}");
        assert!(ordinary[0].1.contains("init.rs::it_begins") && ordinary[1].0 == 2, "{ordinary:?}");
        assert!(long.len() == 1 && long[0].1.starts_with("G3 names e2e/tests/long"), "{long:?}");
    }
}
