//! The tables of `docs/performance.md`: behind the goal of each promise one column for each
//! machine.

use super::{Figure, newest};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The header of a table of promises, and the beginning of the line below it.
const HEADER: &str = "| id | what is measured | goal |";
const RULE: &str = "| --- | --- | --- |";
/// The lines around the list of machines.
const BEGIN: &str = "<!-- machines -->";
const END: &str = "<!-- end of machines -->";

/// The page with the newest figures in its tables.
pub(super) fn written(page: &str, figures: &[Figure]) -> String {
    let machines = machines(figures);
    let newest = newest(figures);
    let mut text = String::new();
    let mut within_table = false;
    for line in without_list(page).lines() {
        within_table = line.starts_with(HEADER) || (within_table && line.starts_with('|'));
        if within_table {
            text += &row(line, &machines, &newest);
        } else {
            text += line;
        }
        text.push('\n');
        if line == BEGIN {
            text += &list(&machines);
        }
    }
    text
}

/// The machines, in the order in which they came, with their letters.
fn machines(figures: &[Figure]) -> Vec<(char, &str)> {
    let mut names: Vec<&str> = Vec::new();
    for figure in figures {
        if !names.contains(&figure.machine.as_str()) {
            names.push(&figure.machine);
        }
    }
    ('A'..='Z').zip(names).collect()
}

/// The page without what stands between the two marks.
fn without_list(page: &str) -> String {
    match (page.split_once(BEGIN), page.split_once(END)) {
        (Some((front, _)), Some((_, back))) => format!("{front}{BEGIN}\n{END}{back}"),
        _ => page.to_owned(),
    }
}

fn list(machines: &[(char, &str)]) -> String {
    let mut list = String::new();
    for (letter, name) in machines {
        let _strings_take_all = writeln!(list, "- **{letter}**: {name}");
    }
    list
}

/// A row with its columns behind the goal made anew.
fn row(line: &str, machines: &[(char, &str)], newest: &BTreeMap<(&str, &str), &Figure>) -> String {
    let front: String = match line.match_indices(" |").nth(2) {
        Some((place, mark)) => line[..place + mark.len()].to_owned(),
        None => return line.to_owned(),
    };
    let id = line.strip_prefix("| `").and_then(|rest| rest.split_once('`')).map(|(id, _)| id);
    let mut row = front;
    for &(letter, machine) in machines {
        let cell = match id {
            Some(id) => newest.get(&(id, machine)).map_or_else(|| "-".to_owned(), |figure| cell(figure)),
            None if line.starts_with(RULE) => "---".to_owned(),
            None => letter.to_string(),
        };
        let _strings_take_all = write!(row, " {cell} |");
    }
    row
}

fn cell(figure: &Figure) -> String {
    let [value, low, high] = figure.values.map(digits);
    let mark = match figure.verdict.as_str() {
        "holds" => "",
        "fails" => "**fails** ",
        _ => "*undecided* ",
    };
    let range = if figure.launches > 1 { format!(" [{low}, {high}]") } else { String::new() };
    format!("{mark}{value}{range} `{}`", figure.commit)
}

/// Three digits that say something.
fn digits(value: f64) -> String {
    let places = match value.abs() {
        size if size == 0.0 || size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.1 => 3,
        _ => 5,
    };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::super::tests::figure_of;
    use super::*;

    const BEFORE: &str = "# Page\n\n<!-- machines -->\n<!-- end of machines -->\n\n\
        | id | what is measured | goal |\n| --- | --- | --- |\n\
        | `a.b` | words | <= 1 x |\n| `c.d` | words | >= 1 x |\n\nwords\n\n\
        | promise | value |\n| --- | --- |\n| `a.b` | 7 |\n";

    #[test]
    fn each_machine_has_a_column_and_no_other_table_changes() {
        let mut figures = vec![
            figure_of("a.b", "one", "abc", 1.5),
            figure_of("a.b", "two", "abc", 0.0625),
            figure_of("c.d", "two", "def", 150.0),
        ];
        figures[1].verdict = "fails".to_owned();
        let page = written(BEFORE, &figures);
        let expected = "# Page\n\n<!-- machines -->\n- **A**: one\n- **B**: two\n<!-- end of machines -->\n\n\
            | id | what is measured | goal | A | B |\n| --- | --- | --- | --- | --- |\n\
            | `a.b` | words | <= 1 x | 1.50 [1.00, 2.00] `abc` | **fails** 0.06250 [-0.438, 0.562] `abc` |\n\
            | `c.d` | words | >= 1 x | - | 150 [150, 150] `def` |\n\nwords\n\n\
            | promise | value |\n| --- | --- |\n| `a.b` | 7 |\n";
        assert_eq!(page, expected);
    }

    #[test]
    fn written_again_the_page_is_the_same() {
        let figures = [figure_of("a.b", "one", "abc", 1.5)];
        let once = written(BEFORE, &figures);
        assert_eq!(written(&once, &figures), once);
        assert_eq!(written(&once, &[]), BEFORE);
    }
}
