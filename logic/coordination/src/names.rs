//! Paths: a root, and names below it.

use crate::{MAX_PATH_BYTES, Refusal};

/// The root folder of each kind of node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Root {
    /// Keys.
    Keys,
    /// Locks.
    Locks,
    /// Counting semaphores.
    Semaphores,
}

impl Root {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Keys, Self::Locks, Self::Semaphores];

    /// The name of its folder.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Keys => "kv",
            Self::Locks => "locks",
            Self::Semaphores => "semaphores",
        }
    }
}

/// The root of a path, if it is one of ours.
#[must_use]
pub fn root_of(path: &str) -> Option<Root> {
    let word = path.split('/').next().unwrap_or_default();
    Root::ALL.into_iter().find(|root| root.as_str() == word)
}

/// The path of the folder that something is in; `None`: it is a root.
#[must_use]
pub fn parent_of(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(parent, _)| parent)
}

/// Checks a whole path, which is below one of the roots.
///
/// # Errors
/// [`Refusal::Name`], [`Refusal::LongPath`]; [`Refusal::Missing`]: below no root.
pub fn check_path(path: &str) -> Result<Root, Refusal> {
    if path.len() > MAX_PATH_BYTES {
        return Err(Refusal::LongPath);
    }
    let fits = |name: &str| {
        let written = !name.chars().any(|c| c.is_whitespace() || c.is_control());
        !name.is_empty() && name != "." && name != ".." && written
    };
    if !path.split('/').all(fits) {
        return Err(Refusal::Name);
    }
    let root = root_of(path).ok_or(Refusal::Missing)?;
    let names = path.split('/').count() - 1;
    match root {
        _ if names == 0 => Err(Refusal::IsFolder),
        Root::Keys => Ok(root),
        Root::Locks | Root::Semaphores if names == 1 => Ok(root),
        Root::Locks | Root::Semaphores => Err(Refusal::NotFolder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_path_and_what_is_none() {
        assert_eq!(check_path("kv/config/colour"), Ok(Root::Keys));
        assert_eq!(check_path("locks/Drucker-ä"), Ok(Root::Locks));
        let long = format!("kv/{}", "x".repeat(MAX_PATH_BYTES));
        let wrong = [
            ("kv/..", Refusal::Name),
            ("kv/./a", Refusal::Name),
            ("kv//a", Refusal::Name),
            ("kv/a b", Refusal::Name),
            ("kv/a\n", Refusal::Name),
            ("kv/a\0", Refusal::Name),
            ("kv/a\u{7f}", Refusal::Name),
            ("kv/", Refusal::Name),
            ("", Refusal::Name),
            ("kv", Refusal::IsFolder),
            ("else/a", Refusal::Missing),
            ("locks/a/b", Refusal::NotFolder),
            (long.as_str(), Refusal::LongPath),
        ];
        for (path, refusal) in wrong {
            assert_eq!(check_path(path), Err(refusal), "{path:?}");
        }
    }
}
