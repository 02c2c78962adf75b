//! Each link of a Markdown page to a file of the repository leads somewhere.

use super::Violation;
use super::tree::Tree;
use std::path::{Component, Path, PathBuf};

/// Checks all pages.
pub fn check(tree: &Tree) -> Vec<Violation> {
    tree.with_extension("md").flat_map(|(file, text)| check_page(tree, file, text)).collect()
}

fn check_page(tree: &Tree, file: &Path, text: &str) -> Vec<Violation> {
    let folder = file.parent().unwrap_or(Path::new(""));
    prose(text)
        .flat_map(|(line, words)| targets(&words).map(|target| (line, target)).collect::<Vec<_>>())
        .filter(|(_, target)| !resolve(folder, target).is_some_and(|path| tree.holds(&path)))
        .map(|(line, target)| Violation {
            file: file.to_path_buf(),
            line,
            what: format!("the link to `{target}` leads nowhere"),
            why: "a reader who follows it is lost",
            mend: "mend the path (it is relative to the page), or take the link out".into(),
        })
        .collect()
}

/// The lines outside fenced code, without their code spans.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then(|| (number + 1, line.split('`').step_by(2).collect()))
    })
}

/// The targets of a line's inline links, as far as they are files.
fn targets(line: &str) -> impl Iterator<Item = String> {
    line.split("](").skip(1).filter_map(|rest| {
        let target = rest.split([')', ' ']).next()?.split('#').next()?;
        (!target.is_empty() && !target.contains(':')).then(|| target.to_owned())
    })
}

/// The path from the root; `None` where it leaves the repository.
fn resolve(folder: &Path, target: &str) -> Option<PathBuf> {
    let mut path = folder.to_path_buf();
    for part in Path::new(target).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::ParentDir if !path.pop() => return None,
            Component::ParentDir | Component::CurDir => {}
            _ => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_folders_anchors_and_other_sites_are_fine() {
        let page = "[a](b.md#part) [root](../README.md) [folder](../io) [web](https://x.example/y) [here](#part)\n\
                    `[code](gone.md)`\n```\n[fenced](gone.md)\n```\n";
        let tree =
            Tree::made_up(&[("docs/a.md", page), ("docs/b.md", ""), ("README.md", ""), ("io/x.rs", "")]);
        assert_eq!(check(&tree), []);
    }

    #[test]
    fn links_that_lead_nowhere_are_found_with_their_line() {
        let page = "fine\n[a](gone.md) and ![picture](../../outside.svg)\n[x](/absolute.md)";
        let tree = Tree::made_up(&[("docs/a.md", page)]);
        let found: Vec<(usize, String)> =
            check(&tree).into_iter().map(|found| (found.line, found.what)).collect();
        assert_eq!(
            found,
            [
                (2, "the link to `gone.md` leads nowhere".to_owned()),
                (2, "the link to `../../outside.svg` leads nowhere".to_owned()),
                (3, "the link to `/absolute.md` leads nowhere".to_owned()),
            ]
        );
    }
}
