//! Where a proxy is reached, as another node's daemon says it: what is known of that, and what is
//! left.

use std::fmt;
use transport::Locator;

/// Addresses that are tried, at most: a proxy listens once by each transport, at each address of
/// its node. Another node does not have this one knock wherever it likes.
const KNOWN_MAX: usize = 16;
/// Addresses that were left and are told, at most.
const LEFT_MAX: usize = 4;
/// So much is told of each, in characters: longer than any that there is.
const LEFT_CHARS: usize = 64;

/// The addresses that were said, as far as they are understood.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Locators {
    /// Of the wanted transport first; the others are tried where that can't be had.
    pub(crate) known: Vec<Locator>,
    /// Those of a transport that this release does not know, or that are none; shortened.
    pub(crate) left: Vec<String>,
}

impl Locators {
    /// Reads them. A later release may name transports that this one does not know: those are left,
    /// and the others used.
    pub(crate) fn read(texts: &[String], first: &str) -> Self {
        let mut found = Self::default();
        for text in texts {
            match text.parse::<Locator>() {
                Ok(locator) => found.known.push(locator),
                Err(_) if found.left.len() >= LEFT_MAX => {}
                Err(_) => found.left.push(text.chars().take(LEFT_CHARS).collect()),
            }
        }
        found.known.sort_by_key(|locator| locator.kind.name() != first);
        found.known.truncate(KNOWN_MAX);
        found
    }

    /// One of the wanted transport, if there is.
    pub(crate) fn first(&self, wanted: &str) -> Option<Locator> {
        self.known.first().copied().filter(|locator| locator.kind.name() == wanted)
    }
}

/// The sentence about those that were left.
#[derive(Debug)]
pub(crate) struct Left<'a>(pub(crate) &'a [String]);

impl fmt::Display for Left<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "of where it listens this node leaves {}, which its release knows no transport for",
            self.0.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_a_later_release_are_left_and_the_others_used() {
        let texts = ["warp:10.0.0.1:9", "tcp:10.0.0.1:7421", "quic:10.0.0.1:7421", "tcp:nowhere"];
        let found = Locators::read(&texts.map(str::to_owned), "quic");
        let known: Vec<String> = found.known.iter().map(ToString::to_string).collect();
        assert_eq!(known, ["quic:10.0.0.1:7421", "tcp:10.0.0.1:7421"]);
        assert_eq!(found.first("quic"), Some(found.known[0]));
        assert_eq!(found.first("ethernet"), None);
        assert_eq!(found.left, ["warp:10.0.0.1:9", "tcp:nowhere"]);
        assert!(Left(&found.left).to_string().contains("leaves warp:10.0.0.1:9, tcp:nowhere"));
    }

    #[test]
    fn of_many_addresses_a_bounded_number_is_tried() {
        let mut texts: Vec<String> = (1..1000).map(|port| format!("tcp:10.0.0.1:{port}")).collect();
        texts.push("quic:10.0.0.1:7421".into());
        let found = Locators::read(&texts, "quic");
        assert_eq!((found.known.len(), found.left.len()), (KNOWN_MAX, 0));
        assert_eq!(
            found.first("quic").map(|locator| locator.to_string()).as_deref(),
            Some("quic:10.0.0.1:7421")
        );
    }

    #[test]
    fn a_node_that_says_much_is_not_kept_in_full() {
        let texts: Vec<String> = (0..1000).map(|n| format!("{n}{}", "ü".repeat(1000))).collect();
        let left = Locators::read(&texts, "tcp").left;
        assert_eq!(left.len(), LEFT_MAX);
        assert!(left.iter().all(|text| text.chars().count() == LEFT_CHARS));
    }
}
