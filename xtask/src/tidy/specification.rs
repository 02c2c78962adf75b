//! Formats can't drift: each public integer constant of a module of `wire` stands in its page under
//! `docs/spec`, in a row of a table, `` | `NAME` | value | ... ``, with the same value; and no page
//! lists a constant that is not there.

use super::Violation;
use super::constants::{self, Constant};
use super::tree::Tree;
use std::path::{Path, PathBuf};

/// Modules of `wire` that have a page; a module that is added needs one too.
const EXEMPT: [&str; 1] = ["lib"];
const WHY: &str = "the page is what another implementation is written from";

/// A row of a table that names a constant.
struct Row {
    line: usize,
    name: String,
    value: Option<i128>,
}

/// Checks all modules of `wire` against their pages.
pub fn check(tree: &Tree) -> Vec<Violation> {
    tree.with_extension("rs")
        .filter(|(file, _)| file.parent() == Some(Path::new("wire/src")))
        .filter_map(|(file, text)| Some((file, file.file_stem()?.to_str()?, text)))
        .filter(|(_, module, _)| !EXEMPT.contains(module))
        .flat_map(|(file, module, text)| check_module(tree, file, module, text))
        .collect()
}

fn check_module(tree: &Tree, file: &Path, module: &str, text: &str) -> Vec<Violation> {
    let page = PathBuf::from(format!("docs/spec/{module}.md"));
    let Some(words) = tree.text(&page) else {
        let mend = format!("write {}", page.display());
        return vec![violation(file, 0, format!("the module `{module}` has no page"), mend)];
    };
    let constants = match constants::public_constants(text) {
        Ok(constants) => constants,
        Err(error) => {
            return vec![violation(file, 0, format!("this is no Rust: {error}"), "cargo check".into())];
        }
    };
    let rows = rows(words);
    let missing = constants.iter().filter_map(|constant| check_constant(file, &page, constant, &rows));
    let extra = rows.iter().filter(|row| {
        row.value.is_some()
            && is_constant_name(&row.name)
            && !constants.iter().any(|constant| names(row, constant))
    });
    let extra = extra.map(|row| {
        let what = format!("`{}` is no public integer constant of wire::{module}", row.name);
        violation(&page, row.line, what, "take the row out, or make the constant public".into())
    });
    missing.chain(extra).collect()
}

fn check_constant(file: &Path, page: &Path, constant: &Constant, rows: &[Row]) -> Option<Violation> {
    let name = &constant.path;
    let value = match &constant.value {
        Ok(value) => value,
        Err(error) => {
            let what = format!("the value of `{name}` can't be worked out: {error}");
            return Some(violation(
                file,
                constant.line,
                what,
                "write it more plainly, or teach xtask".into(),
            ));
        }
    };
    let row = format!("| `{name}` | {value} |");
    let Some(found) = rows.iter().find(|row| names(row, constant)) else {
        let what = format!("`{name}` does not stand in {}", page.display());
        return Some(violation(file, constant.line, what, format!("add the row {row}")));
    };
    (found.value != Some(*value)).then(|| {
        let what = format!("`{name}` is {value} in {}, and not here", file.display());
        violation(page, found.line, what, format!("make the row begin {row}"))
    })
}

fn violation(file: &Path, line: usize, what: String, mend: String) -> Violation {
    Violation { file: file.to_path_buf(), line, what, why: WHY, mend }
}

/// Whether the row means this constant: by its whole path, or by the end of it.
fn names(row: &Row, constant: &Constant) -> bool {
    let tail = constant.path.strip_suffix(row.name.as_str());
    tail.is_some_and(|head| head.is_empty() || head.ends_with("::"))
}

/// Whether a name is spelled like a constant (`MAX_BYTES`, `flags::MORE`) and not like an errno,
/// which pages list too.
fn is_constant_name(name: &str) -> bool {
    let last = name.rsplit("::").next().unwrap_or_default();
    let errno = last.starts_with('E') && !last.contains('_');
    last.len() > 1 && !errno && last.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// The rows of all tables whose first cell is one name in backticks.
fn rows(page: &str) -> Vec<Row> {
    page.lines().enumerate().filter_map(|(number, line)| row(number + 1, line)).collect()
}

fn row(line: usize, text: &str) -> Option<Row> {
    let mut cells = text.trim().strip_prefix('|')?.split('|').map(str::trim);
    let name = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
    let value = cells.next().and_then(number);
    (plain && (value.is_some() || is_constant_name(name))).then(|| Row { line, name: name.to_owned(), value })
}

/// A number as people write it in a table: `64`, `0x40`, `64 * 1024`, `64 KiB`, each perhaps in
/// backticks.
fn number(cell: &str) -> Option<i128> {
    let cell = cell.replace('`', "");
    let (text, unit) = match cell.trim() {
        text if text.ends_with("KiB") => (text.trim_end_matches("KiB"), 1 << 10),
        text if text.ends_with("MiB") => (text.trim_end_matches("MiB"), 1 << 20),
        text => (text, 1),
    };
    Some(constants::evaluate(text.trim())? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "pub const VERSION: u32 = 1;\npub mod flags { pub const MORE: u16 = 0x2; }\npub enum Kind { Hello = 1 }\n";
    const PAGE: &str = "\
# Ring
| constant | value | meaning |
| --- | --- | --- |
| `VERSION` | 1 | of the format |
| `flags::MORE` | `0x2` | more follows |
| `Kind::Hello` | 1 | first |
| `length` | u32 | a field, no constant |
| `OTHER` in words | 7 | no name |
| `ENOENT` | 2 | an errno |
| `TXT` | text | a record, no constant |
";

    fn found(module: &str, page: &str) -> Vec<String> {
        let tree = Tree::made_up(&[
            ("wire/src/ring.rs", module),
            ("docs/spec/ring.md", page),
            ("wire/src/lib.rs", "pub mod ring;"),
        ]);
        check(&tree)
            .into_iter()
            .map(|found| format!("{}:{}: {}", found.file.display(), found.line, found.what))
            .collect()
    }

    #[test]
    fn a_page_in_step_is_fine() {
        assert_eq!(found(MODULE, PAGE), Vec::<String>::new());
    }

    #[test]
    fn a_row_may_leave_out_the_module_and_write_units() {
        let module = "pub mod limits { pub const MAX_BYTES: usize = 64 * 1024; }";
        assert_eq!(found(module, "| `MAX_BYTES` | 64 KiB |"), Vec::<String>::new());
        assert_eq!(found(module, "| `MAX_BYTES` | 64 * 1024 |"), Vec::<String>::new());
    }

    #[test]
    fn a_constant_without_a_row_is_found_in_the_code() {
        let module = format!("{MODULE}pub const NEW: u8 = 9;\n");
        assert_eq!(found(&module, PAGE), ["wire/src/ring.rs:4: `NEW` does not stand in docs/spec/ring.md"]);
    }

    #[test]
    fn a_wrong_value_is_found_in_the_page() {
        let page = PAGE.replace("| 1 | of", "| 2 | of");
        assert_eq!(
            found(MODULE, &page),
            ["docs/spec/ring.md:4: `VERSION` is 1 in wire/src/ring.rs, and not here"]
        );
        let page = PAGE.replace("`0x2`", "two");
        assert_eq!(found(MODULE, &page).len(), 1);
    }

    #[test]
    fn a_row_without_a_constant_is_found_in_the_page() {
        let page = format!("{PAGE}| `GONE` | 3 | was once |\n");
        assert_eq!(
            found(MODULE, &page),
            ["docs/spec/ring.md:11: `GONE` is no public integer constant of wire::ring"]
        );
    }

    #[test]
    fn a_module_without_a_page_is_found() {
        let tree = Tree::made_up(&[("wire/src/event.rs", MODULE)]);
        assert_eq!(check(&tree)[0].what, "the module `event` has no page");
    }

    #[test]
    fn a_value_that_can_not_be_worked_out_is_found() {
        let module = format!("{MODULE}pub const FAR: u8 = crate::other::FAR;\n");
        assert!(found(&module, PAGE)[0].contains("can't be worked out"));
    }
}
