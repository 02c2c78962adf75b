//! The files of the repository, or of a made-up one.

use super::TidyError;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folders that hold nothing of ours.
const FOREIGN: [&str; 3] = ["target", "node_modules", "corpus"];
/// Files that are read; everything else is only known to exist.
const READ: [&str; 4] = ["rs", "md", "toml", "h"];

/// Paths relative to the root, with the text of those that a rule reads.
#[derive(Debug)]
pub struct Tree(BTreeMap<PathBuf, Option<String>>);

impl Tree {
    /// Reads the tree below `root`, but no hidden and no foreign folder.
    ///
    /// # Errors
    /// Where a folder or a file of text can't be read.
    pub fn read(root: &Path) -> Result<Self, TidyError> {
        let mut files = BTreeMap::new();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).map_err(|source| read_error(&folder, source))? {
                let entry = entry.map_err(|source| read_error(&folder, source))?;
                let (path, name) = (entry.path(), entry.file_name());
                let name = name.to_string_lossy();
                let kind = entry.file_type().map_err(|source| read_error(&path, source))?;
                if kind.is_dir() && !name.starts_with('.') && !FOREIGN.contains(&name.as_ref()) {
                    folders.push(path);
                } else if kind.is_file() {
                    let text = text_of(&path)?;
                    files.insert(path.strip_prefix(root).unwrap_or(&path).to_path_buf(), text);
                }
            }
        }
        Ok(Self(files))
    }

    /// A tree that exists only in a test.
    #[cfg(test)]
    pub fn made_up(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(path, text)| (path.into(), Some((*text).to_owned()))).collect())
    }

    /// The text of one file, if there is one and it is text.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<&str> {
        self.0.get(path.as_ref())?.as_deref()
    }

    /// Whether a file or a folder is there.
    pub fn holds(&self, path: &Path) -> bool {
        path.as_os_str().is_empty()
            || self.0.range(path.to_path_buf()..).next().is_some_and(|(found, _)| found.starts_with(path))
    }

    /// All files of text with this extension.
    pub fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = (&'a Path, &'a str)> {
        self.0.iter().filter_map(move |(path, text)| {
            let fits = path.extension().is_some_and(|found| found == extension);
            Some((path.as_path(), text.as_deref()?)).filter(|_| fits)
        })
    }
}

fn text_of(path: &Path) -> Result<Option<String>, TidyError> {
    let wanted = path.extension().is_some_and(|extension| READ.iter().any(|known| extension == *known));
    if !wanted {
        return Ok(None);
    }
    std::fs::read_to_string(path).map(Some).map_err(|source| read_error(path, source))
}

fn read_error(path: &Path, source: std::io::Error) -> TidyError {
    TidyError::Read { path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_tree_is_read_without_its_foreign_folders() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (path, text) in
            [("a/b.rs", "fn b() {}"), ("target/c.rs", "x"), (".git/d.md", "x"), ("e.bin", "\u{1}")]
        {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        let tree = Tree::read(folder.path()).expect("readable");
        assert_eq!(tree.text("a/b.rs"), Some("fn b() {}"));
        assert!(tree.holds(Path::new("a")) && tree.holds(Path::new("e.bin")) && tree.holds(Path::new("")));
        assert!(!tree.holds(Path::new("target/c.rs")) && !tree.holds(Path::new("a/c.rs")));
        assert_eq!(tree.text("e.bin"), None);
    }
}
