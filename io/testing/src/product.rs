//! The programs that tests start, which cargo does not build with the tests.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Insists on a program that is no older than what it is made of, as the file `PROGRAM.d` beside it
/// says (in the words of make(1)); a program without such a file is somebody's who knows.
///
/// # Panics
/// A source is newer: tests of that program would say nothing about the sources.
pub fn assert_fresh(program: &Path) {
    if let Some(newer) = newer_than(program) {
        panic!(
            "{} is older than {}: run `cargo xtask product` first, or name another program by TOMBOLO_BIN",
            program.display(),
            newer.display()
        );
    }
}

/// The first source that is newer than the program.
fn newer_than(program: &Path) -> Option<PathBuf> {
    let modified = |path: &Path| -> Option<SystemTime> { path.metadata().ok()?.modified().ok() };
    let made = modified(program)?;
    let mut made_of = program.as_os_str().to_owned();
    made_of.push(".d");
    let text = std::fs::read_to_string(made_of).ok()?;
    let (_, sources) = text.lines().next()?.split_once(": ")?;
    words(sources).find(|source| modified(source).is_some_and(|changed| changed > made))
}

/// Paths that are parted by spaces; a space in a path has a backslash before it.
fn words(text: &str) -> impl Iterator<Item = PathBuf> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        if rest.is_empty() {
            return None;
        }
        let mut word = String::new();
        let mut characters = rest.char_indices();
        while let Some((_, character)) = characters.next() {
            match character {
                '\\' => word.extend(characters.next().map(|(_, escaped)| escaped)),
                ' ' => break,
                other => word.push(other),
            }
        }
        rest = characters.as_str();
        Some(word.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::Duration;

    #[test]
    fn a_program_is_stale_as_soon_as_one_of_its_sources_is_newer() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let made = SystemTime::now();
        let file = |name: &str, when: SystemTime| {
            File::create(at(name)).expect("made").set_modified(when).expect("a time");
        };
        file("tombolo", made);
        file("old.rs", made - Duration::from_secs(5));
        file("a new.rs", made - Duration::from_secs(5));
        assert_eq!(newer_than(&at("tombolo")), None, "nobody knows what it is made of");
        let text = format!("{0}/tombolo: {0}/gone.rs {0}/old.rs {0}/a\\ new.rs\n", folder.path().display());
        std::fs::write(at("tombolo.d"), text).expect("written");
        assert_eq!(newer_than(&at("tombolo")), None);
        file("a new.rs", made + Duration::from_secs(1));
        assert_eq!(newer_than(&at("tombolo")), Some(at("a new.rs")));
        assert!(std::panic::catch_unwind(|| assert_fresh(&at("tombolo"))).is_err());
    }
}
