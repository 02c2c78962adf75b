//! Paths: a root, and names below it.

use crate::{Kind, MAX_PATH_BYTES, Refusal};

/// The folders at the top.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Root {
    /// Keys.
    Keys,
    /// Locks.
    Locks,
    /// Counting semaphores.
    Semaphores,
    /// Barriers.
    Barriers,
    /// Queues of items.
    Queues,
}

impl Root {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Keys, Self::Locks, Self::Semaphores, Self::Barriers, Self::Queues];

    /// The name of its folder.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Keys => "kv",
            Self::Locks => "locks",
            Self::Semaphores => "semaphores",
            Self::Barriers => "barriers",
            Self::Queues => "queues",
        }
    }

    /// The kind of what is made in its folder by opening a new file.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::Keys => Kind::Key,
            Self::Locks | Self::Semaphores => Kind::Lock,
            Self::Barriers => Kind::Barrier,
            Self::Queues => Kind::Queue,
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
        _ if names == 1 => Ok(root),
        _ => Err(Refusal::NotFolder),
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
            ("queues/a/0000000000000001", Refusal::NotFolder),
            ("barriers/..", Refusal::Name),
            (long.as_str(), Refusal::LongPath),
        ];
        for (path, refusal) in wrong {
            assert_eq!(check_path(path), Err(refusal), "{path:?}");
        }
    }
}
