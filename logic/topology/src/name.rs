//! Names of distributed containers, domains and services.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// Longest name, in bytes: a name becomes a directory, a cgroup, a host name and a file below
/// `/srv`, and 32 leaves room in all of them (a Unix socket's path has 108 bytes in all).
pub const NAME_BYTES_MAX: usize = 32;

/// The pattern that [`Name::parse`] accepts, for schemas and messages.
pub const NAME_PATTERN: &str = "^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$";

/// A checked name: `[a-z]([a-z0-9-]{0,30}[a-z0-9])?`.
///
/// It is safe as a path component, a host name label, a cgroup's name and a word in a shell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// The text is no name; the message says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing was written.
    #[error("a name can't be empty")]
    Empty,
    /// Longer than [`NAME_BYTES_MAX`].
    #[error("a name has at most {NAME_BYTES_MAX} characters, this one has {0}")]
    TooLong(usize),
    /// The first character is no lower-case letter.
    #[error("a name starts with a lower-case letter, not with {0:?}")]
    Start(char),
    /// A character that no name has.
    #[error("a name has lower-case letters, digits and hyphens, not {0:?}")]
    Character(char),
    /// The last character is a hyphen.
    #[error("a name ends with a letter or a digit, not with a hyphen")]
    End,
}

impl Name {
    /// Checks `text`.
    ///
    /// # Errors
    /// The fault, for a person.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let first = text.chars().next().ok_or(NameError::Empty)?;
        if !first.is_ascii_lowercase() {
            return Err(NameError::Start(first));
        }
        if let Some(bad) = text.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-')) {
            return Err(NameError::Character(bad));
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong(text.len()));
        }
        if text.ends_with('-') {
            return Err(NameError::End);
        }
        Ok(Self(text.to_owned()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::parse(&text)
    }
}

impl std::str::FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl AsRef<std::path::Path> for Name {
    fn as_ref(&self) -> &std::path::Path {
        self.0.as_ref()
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["a", "a1", "web-1", &"a".repeat(32)] {
            assert_eq!(Name::parse(good).unwrap(), good);
        }
        assert_eq!(Name::parse(""), Err(NameError::Empty));
        assert_eq!(Name::parse("1a"), Err(NameError::Start('1')));
        assert_eq!(Name::parse("Web"), Err(NameError::Start('W')));
        assert_eq!(Name::parse("a_b"), Err(NameError::Character('_')));
        assert_eq!(Name::parse("a/../b"), Err(NameError::Character('/')));
        assert_eq!(Name::parse("a-"), Err(NameError::End));
        assert_eq!(Name::parse(&"a".repeat(33)), Err(NameError::TooLong(33)));
    }

    #[test]
    fn json_is_checked_too() {
        assert!(serde_json::from_str::<Name>("\"web\"").is_ok());
        assert!(serde_json::from_str::<Name>("\"../web\"").is_err());
    }
}
